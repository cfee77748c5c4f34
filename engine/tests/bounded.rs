//! Requests that end at the bound of their loop, which no device calls a stop.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};

use lazybatch_engine::core::{Action, Core, CoreConfig, Ending, Event, ModelSpec, Request, View};
use lazybatch_engine::policy::{self, Decision, Policy};
use lazybatch_sla::{ClassId, ModelId, Profile, RequestId, Time};

type Lens = Arc<Mutex<Vec<Option<u32>>>>;

/// A policy that is told of endings, and tells.
struct Told {
    inner: Box<dyn Policy>,
    lens: Lens,
}

impl Policy for Told {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        self.inner.decide(view)
    }

    fn on_end(&mut self, _now: Time, ending: &Ending) {
        self.lens.lock().unwrap().push(ending.output_len);
    }
}

#[test]
fn policies_learn_the_length_of_who_ends_at_its_bound() {
    let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m","max_batch":1,
        "blocks":[{"name":"decode","repeat":"until_stop","max_steps":5,"nodes":[
        {"name":"n","latency_us":[[1,5]]}]},{"name":"behind","repeat":"once","nodes":[
        {"name":"o","latency_us":[[1,5]]}]}]}]}"#;
    let profile = Profile::parse("test", text).unwrap();
    let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 5);
    let lens = Lens::default();
    let told = Told {
        inner: policy::build("serial").unwrap(),
        lens: lens.clone(),
    };
    let mut core = Core::new(CoreConfig::new(vec![spec]), Box::new(told));
    // By its own bound, by the loop's, and by a stop in the second pass.
    for (id, max_steps, stop) in [(0, Some(3), None), (1, None, None), (2, None, Some(1))] {
        let now = Time(id * 1_000_000);
        let request = Request {
            id: RequestId(id),
            model: ModelId(0),
            arrival: now,
            sla: None,
            class: ClassId::default(),
            priority: 0,
            delay_after: None,
            samples: 1,
            input_len: 0,
            sequence: None,
            max_steps,
            known_output_len: None,
        };
        core.handle(now, Event::Arrive(request));
        let mut has_ended = false;
        while let Some(action) = core.poll_action(now) {
            match action {
                Action::Launch { ticket, lane } => {
                    let launch = core.launch(lane, ticket);
                    let step = launch.members[0].step;
                    let stops = launch.block == 0 && Some(step) == stop;
                    let stopped = stops.then_some(RequestId(id)).into_iter().collect();
                    let done = Event::Done {
                        ticket,
                        stopped,
                        faults: Vec::new(),
                        failed: None,
                        took: None,
                    };
                    core.handle(now, done);
                }
                Action::Finish { .. } => has_ended = true,
                _ => {}
            }
        }
        assert!(has_ended, "request {id}");
    }
    assert_eq!(*lens.lock().unwrap(), [Some(3), Some(5), Some(2)]);
}
