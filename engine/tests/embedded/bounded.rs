//! Requests that end at the bound of their loop, which no device calls a stop, and more samples than are
//! counted.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};

use lazybatch_engine::core::{Action, Core, CoreConfig, Ending, Event, ModelSpec, Request, View};
use lazybatch_engine::policy::{self, Decision, Policy};
use lazybatch_sla::{ClassId, ModelId, Profile, RequestId, Time};

/// Output lengths, and whether they were cut.
type Lens = Arc<Mutex<Vec<(Option<u32>, bool)>>>;

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
        self.lens
            .lock()
            .unwrap()
            .push((ending.output_len, ending.is_cut));
    }
}

/// The passes that a request asks for, and the blocks and steps at whose ends its loops stop.
type Asked<'a> = (Option<u32>, &'a [(u32, u32)]);

/// What policies are told of requests to a model of these blocks, one after another.
fn told(blocks: &str, requests: &[Asked<'_>]) -> Vec<(Option<u32>, bool)> {
    let text = format!(
        r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","max_batch":1,
        "blocks":[{blocks}]}}]}}"#
    );
    let profile = Profile::parse("test", &text).unwrap();
    let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 5);
    let lens = Lens::default();
    let told = Told {
        inner: policy::build("serial").unwrap(),
        lens: lens.clone(),
    };
    let mut core = Core::new(CoreConfig::new(vec![spec]), Box::new(told));
    for (id, &(max_steps, stops)) in (0..).zip(requests) {
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
                    let has_stopped = stops.contains(&(launch.block, step));
                    let stopped = has_stopped.then_some(RequestId(id)).into_iter().collect();
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
    lens.lock().unwrap().clone()
}

#[test]
fn policies_learn_the_length_of_who_ends_at_its_bound() {
    let blocks = r#"{"name":"decode","repeat":"until_stop","max_steps":5,"nodes":[
        {"name":"n","latency_us":[[1,5]]}]},{"name":"behind","repeat":"once","nodes":[
        {"name":"o","latency_us":[[1,5]]}]}"#;
    // By its own bound, by the loop's, by one of its own that is no less, and by a stop in the second pass.
    let requests: [Asked<'_>; 4] = [
        (Some(3), &[]),
        (None, &[]),
        (Some(5), &[]),
        (None, &[(0, 1)]),
    ];
    let lens = [
        (Some(3), true),
        (Some(5), false),
        (Some(5), false),
        (Some(2), false),
    ];
    assert_eq!(told(blocks, &requests), lens);
}

#[test]
fn of_two_loops_policies_learn_the_length_of_the_last() {
    let blocks = r#"{"name":"draft","repeat":"until_stop","max_steps":4,"nodes":[
        {"name":"n","latency_us":[[1,5]]}]},{"name":"decode","repeat":"until_stop","max_steps":9,"nodes":[
        {"name":"o","latency_us":[[1,5]]}]}"#;
    // Both stop, only the first, only the second, neither.
    let requests: [Asked<'_>; 4] = [
        (None, &[(0, 1), (1, 6)]),
        (None, &[(0, 1)]),
        (None, &[(1, 6)]),
        (None, &[]),
    ];
    let lens = [7, 9, 7, 9].map(|len| (Some(len), false));
    assert_eq!(told(blocks, &requests), lens);
}

#[test]
fn no_more_samples_of_a_model_are_open_than_are_counted() {
    const MOST: u32 = 65_536;
    let text = format!(
        r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","max_batch":{MOST},
        "blocks":[{{"name":"net","repeat":"once","nodes":[{{"name":"n","latency_us":[[1,5]]}}]}}]}}]}}"#
    );
    let profile = Profile::parse("test", &text).unwrap();
    let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 1);
    for policy in policy::examples() {
        let needs_output_len = policy::find(policy).unwrap().needs_output_len;
        let config = CoreConfig::new(vec![spec.clone()]);
        let mut core = Core::new(config, policy::build(policy).unwrap());
        let arrive = |core: &mut Core, id: u64, sequence| {
            let request = Request {
                id: RequestId(id),
                model: ModelId(0),
                arrival: Time::ZERO,
                sla: None,
                class: ClassId::default(),
                priority: 0,
                delay_after: None,
                samples: MOST,
                input_len: 0,
                sequence,
                max_steps: None,
                known_output_len: needs_output_len.then_some(1),
            };
            core.handle(Time::ZERO, Event::Arrive(request));
        };
        // Some wait behind others of their sequence.
        for id in 0..u64::from(MOST) {
            let sequence = (id % 3 == 0).then_some(7);
            arrive(&mut core, id, sequence);
        }
        let shed = |core: &mut Core| {
            let mut shed = Vec::new();
            while let Some(action) = core.poll_action(Time::ZERO) {
                match action {
                    Action::Finish { request, cause, .. } => {
                        shed.push((request.0, cause.unwrap_or_default()));
                    }
                    Action::Launch { .. } => return shed,
                    _ => {}
                }
            }
            shed
        };
        let [(last, why)] = &shed(&mut core)[..] else {
            panic!("{policy}: all but one are counted");
        };
        assert_eq!(*last, u64::from(MOST) - 1);
        let told = "samples open of its model: expected at most 4294967295, got 65536 beside";
        assert!(why.starts_with(told), "{policy}: {why}");
        // There is room again behind one that goes.
        core.handle(Time::ZERO, Event::Cancel(RequestId(4)));
        arrive(&mut core, u64::from(MOST), None);
        arrive(&mut core, u64::from(MOST) + 1, None);
        let gone: Vec<u64> = shed(&mut core).into_iter().map(|s| s.0).collect();
        assert_eq!(gone, [4, u64::from(MOST) + 1], "{policy}");
    }
}
