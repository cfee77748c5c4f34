//! A scheduler core held at 64 requests in flight and 64 waiting.
//!
//! The fixture plays driver and device: each step reports the launch in flight as done, lets new
//! requests arrive for those that were admitted, and takes the next launch out. Nothing is computed
//! and time is made up, so a step costs what the core and the policy cost.
//!
//! Targets are out of reach, so the slack test of `lazy` and `oracle` is made at every step, over
//! everyone in flight, and refuses: for `oracle`, which then tries every number of candidates, this
//! is the dearest decision there is. `serial` has one request in flight and 127 waiting. Policies that
//! admit up to max batch whatever the targets run at a max batch of 64. `edf` meets requests that are
//! due before all earlier ones but can wait, so that it weighs a switch at every step and refuses.

use lazybatch_engine::core::{Action, Core, CoreConfig, Event, ModelSpec, Request};
use lazybatch_engine::policy;
use lazybatch_graph::Repeat;
use lazybatch_sla::{ClassId, LaneId, ModelId, Nanos, Profile, RequestId, Ticket, Time};
use serde_json::{Value, json};
use smallvec::SmallVec;

/// Requests that wait.
pub const WAITING: usize = 64;
/// Requests in flight, under policies that batch.
pub const IN_FLIGHT: usize = 64;
/// Input length of every request of [`Net::EncoderDecoder`].
const INPUT_LEN: u32 = 20;
/// Decoder passes of every request of [`Net::EncoderDecoder`].
const OUTPUT_LEN: u32 = 16;
/// Later than every run ends.
const FAR: Time = Time(1 << 60);
/// From one step to the next: a batch takes longer than the window of `graph:5`, so that what waits
/// is due when it ends.
const STEP: Nanos = Nanos(200_000);

/// What requests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// One block of 54 nodes, the depth of a residual network for images.
    Chain54,
    /// An encoder of 12 nodes by rows and a decoder of 14 nodes by members that runs 16 times.
    EncoderDecoder,
}

impl Net {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Chain54, Self::EncoderDecoder];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chain54 => "chain-54",
            Self::EncoderDecoder => "encoder-decoder",
        }
    }

    fn blocks(self) -> Value {
        let nodes = |num: usize, by: &str, points: Value| -> Vec<Value> {
            (0..num)
                .map(|i| json!({ "name": format!("n{i}"), "by": by, "latency_us": points }))
                .collect()
        };
        match self {
            Self::Chain54 => json!([
                { "name": "net", "repeat": "once",
                  "nodes": nodes(54, "members", json!([[1, 50.0], [128, 400.0]])) }]),
            Self::EncoderDecoder => json!([
                { "name": "encoder", "repeat": "once",
                  "nodes": nodes(12, "rows", json!([[1, 20.0], [64, 60.0], [2560, 2000.0]])) },
                { "name": "decoder", "repeat": "until_stop", "max_steps": 80,
                  "nodes": nodes(14, "members", json!([[1, 40.0], [128, 300.0]])) }]),
        }
    }

    /// Its latencies.
    pub(crate) fn profile(self, max_batch: usize) -> anyhow::Result<Profile> {
        let text = json!({
            "format": "lazybatch-profile/1", "device": "fixture",
            "models": [{ "name": self.name(), "max_batch": max_batch,
                         "output_len_p90": OUTPUT_LEN + 4, "blocks": self.blocks() }]
        });
        Ok(Profile::parse("fixture", &text.to_string())?)
    }
}

/// A core under load. See the module.
pub struct CoreLoad {
    core: Core,
    now: Time,
    in_flight: Option<(LaneId, Ticket)>,
    num_arrived: u64,
    waiting: usize,
    known_output_len: Option<u32>,
    /// Whoever arrives later is due earlier.
    reversed: bool,
}

impl CoreLoad {
    /// Fills a fresh core and brings it to a launch in the middle of the first batch.
    ///
    /// # Errors
    /// An unknown policy.
    pub fn new(net: Net, policy_spec: &str) -> anyhow::Result<Self> {
        let name = policy_spec.split(':').next().unwrap_or_default();
        let admits = ["continuous", "cellular", "edf", "triton"].contains(&name);
        let max_batch = if admits {
            IN_FLIGHT
        } else {
            WAITING + IN_FLIGHT
        };
        let profile = net.profile(max_batch)?;
        let mut spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 1);
        if name == "cellular" {
            spec.max_in_flight = IN_FLIGHT as u32 + 1;
        }
        let oracle = policy::find(policy_spec)?.needs_output_len;
        let serial = policy_spec == "serial";
        let mut load = Self {
            core: Core::new(CoreConfig::new(vec![spec]), policy::build(policy_spec)?),
            now: Time::ZERO,
            in_flight: None,
            num_arrived: 0,
            waiting: if serial {
                WAITING + IN_FLIGHT - 1
            } else {
                WAITING
            },
            known_output_len: oracle.then_some(OUTPUT_LEN),
            reversed: name == "edf",
        };
        // Past the window of `graph:W`, so that what waits is due at once.
        load.fill();
        load.now = load.now + Nanos::from_ms(100);
        load.core.handle(load.now, Event::Wake);
        load.take_launch();
        for _ in 0..40 {
            load.step();
        }
        Ok(load)
    }

    /// One step: completion in, arrivals in the place of those admitted, decision, launch out.
    pub fn step(&mut self) {
        self.deliver();
        self.take_launch();
    }

    /// The first half of a step: completion and arrivals.
    pub fn deliver(&mut self) {
        self.now = self.now + STEP;
        if let Some((lane, ticket)) = self.in_flight.take() {
            let stopped = self.stopped(lane, ticket);
            let done = Event::Done {
                ticket,
                stopped,
                faults: Vec::new(),
                failed: None,
                took: None,
            };
            self.core.handle(self.now, done);
        }
        self.fill();
    }

    /// The decision alone; it belongs between the two halves and is made by the second one
    /// otherwise.
    pub fn decide(&mut self) {
        self.core.decide(self.now);
    }

    /// The second half of a step: decision and actions.
    ///
    /// # Panics
    /// If the policy launches nothing, which under this load is a bug of the fixture.
    pub fn take_launch(&mut self) {
        while let Some(action) = self.core.poll_action(self.now) {
            if let Action::Launch { ticket, lane } = action {
                self.in_flight = Some((lane, ticket));
            }
        }
        assert!(self.in_flight.is_some(), "requests wait, none is launched");
    }

    /// Requests in flight and waiting.
    pub fn levels(&self) -> (usize, usize) {
        let waiting = self.core.num_waiting();
        (self.core.num_open() - waiting, waiting)
    }

    /// Decisions with two or more legal actions so far.
    pub fn num_decisions(&self) -> u64 {
        self.core.counters().decisions
    }

    fn fill(&mut self) {
        while self.core.num_waiting() < self.waiting {
            let request = Request {
                id: RequestId(self.num_arrived),
                model: ModelId(0),
                arrival: self.now,
                sla: Some(match self.reversed {
                    true => FAR.since(self.now + Nanos(self.num_arrived)),
                    false => Nanos(1),
                }),
                class: ClassId::default(),
                priority: 0,
                delay_after: None,
                samples: 1,
                input_len: INPUT_LEN,
                sequence: None,
                max_steps: None,
                known_output_len: self.known_output_len,
            };
            self.num_arrived += 1;
            self.core.handle(self.now, Event::Arrive(request));
        }
    }

    /// Members whose last decoder pass ends with the launch.
    fn stopped(&self, lane: LaneId, ticket: Ticket) -> SmallVec<[RequestId; 4]> {
        let launch = self.core.launch(lane, ticket);
        let block = &self.core.config().models[0].blocks[launch.block as usize];
        let loops = matches!(block.repeat, Repeat::UntilStop { .. });
        if !loops || launch.segment as usize + 1 < block.segments.len() {
            return SmallVec::new();
        }
        let ends = |m: &&lazybatch_sla::Member| !m.idle && m.step + 1 == OUTPUT_LEN;
        launch
            .members
            .iter()
            .filter(ends)
            .map(|m| m.request)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::POLICIES;

    #[test]
    fn load_stays_level_under_every_policy() {
        for net in Net::ALL {
            for policy in POLICIES {
                let mut load = CoreLoad::new(net, policy).unwrap();
                let mut full = 0;
                for _ in 0..1000 {
                    load.deliver();
                    let (in_flight, waiting) = load.levels();
                    let wanted = if policy == "serial" {
                        (1, 127)
                    } else {
                        (64, 64)
                    };
                    full += usize::from((in_flight, waiting) == wanted);
                    load.take_launch();
                }
                assert!(full > 950, "{} under {policy}: {full} of 1000", net.name());
            }
        }
    }
}
