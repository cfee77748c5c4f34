//! A core in steady state: 64 requests in flight in several sub-batches, 64 waiting.
//!
//! The fixture plays driver and device in virtual time: a launch takes what the latency table says,
//! a loop ends when the request's own output length is reached, and whenever fewer than 64 wait,
//! others arrive. Models are the zoo's on the `npu` device model, with their own lengths, and a chain
//! of 54 nodes. Targets are between 1 and 256 times what a request takes alone, so that some are
//! met, some are demoted, and some turn late in between.
//!
//! Left to itself a policy may hold fewer in flight, or all in one sub-batch ([`Table::Own`]). So
//! there is a second setting ([`Table::Held`]): whenever fewer than 64 are in flight, the fixture
//! admits a sub-batch of 16 in the policy's place, and then the policy decides. Every policy serves
//! whatever table it finds.
//!
//! In both every decision is a choice. So there is a third setting without ([`Table::Alone`]): 16
//! arrive, and others only when these have ended.
//!
//! Several models on one device are a net as well (`a+b`): who arrives asks for each as often, and a
//! sub-batch that the fixture admits is of the model that most wait for.
//!
//! Launches are of at most 16 samples under policies that hold several sub-batches, of 64 under
//! `greedy`, `triton` and `continuous`, and of 128 under the stack policies, so that the slack test
//! of all in flight and all candidates is what stops them, as in [`crate::core_load`].

use std::sync::Arc;

use lazybatch_engine::core::{
    Action, Core, CoreConfig, Ending, Event, ModelSpec, Plan, PlanRequest, Request, View,
};
use lazybatch_engine::policy::{self, Decision, Pick, Policy};
use lazybatch_graph::Repeat;
use lazybatch_sla::{
    ClassId, LaneId, LatencyTable, Launch, Member, ModelId, Nanos, Profile, Progress, RequestId,
    Ticket, Time,
};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::{devices, zoo};
use smallvec::SmallVec;

use crate::core_load::{IN_FLIGHT, Net, WAITING};

/// Most samples of a launch, under policies that hold several sub-batches; samples of a sub-batch that
/// the fixture admits.
const LAUNCH: u32 = 16;
/// Steps before anything is measured: those in flight have spread over the program by then.
pub const WARM_UP: usize = 2_000;

/// What requests ask for.
pub const NETS: [&str; 3] = ["chain-54", "gnmt", "transformer"];

/// The same of several models.
pub const MIX: &str = "chain-54+gnmt+transformer";

/// Policies whose decisions are timed with several models: rules by which these take turns.
pub const MIX_POLICIES: [&str; 7] = [
    "adaptive",
    "adaptive:sharing:2/10/1/cap90/demote",
    "adaptive:sharing:2/10/1/cap90/spare/demote",
    "adaptive:sharing:2/10/1/cap90/short/demote",
    "adaptive:sharing:2/6/2/cap95/due/demote",
    "adaptive:sharing:2/6/2/cap95/ripe/demote",
    "edf",
];

/// Policies whose decisions are timed.
pub const POLICIES: [&str; 14] = [
    "adaptive",
    "adaptive:front:demote",
    "adaptive:join:1/demote",
    "adaptive:join:4/demote",
    "adaptive:balance:2/demote",
    "adaptive:sharing:2/3/1/demote",
    "adaptive:sharing:1/1/0.1/demote",
    "greedy",
    "lazy",
    "oracle",
    "continuous",
    "cellular",
    "edf",
    "triton:delay=5",
];

/// Who fills the batch table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The policy alone.
    Own,
    /// The fixture, up to 64 in flight.
    Held,
    /// The policy alone, with nobody behind those in flight.
    Alone,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Held, Self::Own, Self::Alone];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Held => "held",
            Self::Alone => "alone",
        }
    }
}

/// A policy in whose place sub-batches are admitted while fewer than 64 are in flight.
struct Held(Box<dyn Policy>);

impl Policy for Held {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        let models = (0..view.models().len() as u32).map(ModelId);
        let in_flight: usize = models.clone().map(|m| view.num_in_flight(m) as usize).sum();
        let most = models.max_by_key(|&m| view.queue(m).len());
        if let Some(model) = most
            && in_flight < IN_FLIGHT
            && view.queue(model).len() >= LAUNCH as usize
        {
            let num = (IN_FLIGHT - in_flight).min(LAUNCH as usize);
            return Decision::Admit {
                model,
                pick: Pick::First(num),
                padded: false,
            };
        }
        self.0.decide(view)
    }

    fn on_arrive(&mut self, now: Time, request: &Request) {
        self.0.on_arrive(now, request);
    }

    fn on_done(&mut self, now: Time, launch: &Launch, took: Nanos, ran: Nanos) {
        self.0.on_done(now, launch, took, ran);
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        self.0.on_end(now, ending);
    }

    fn plan(&mut self, view: &View<'_>) -> Option<PlanRequest> {
        self.0.plan(view)
    }

    fn on_planned(&mut self, now: Time, plan: &Plan) {
        self.0.on_planned(now, plan);
    }
}

/// Tables of a net on the device model, with launches of at most `max_batch`, and its lengths.
fn net(name: &str, max_batch: u32) -> anyhow::Result<(ModelSpec, Lengths)> {
    if let Some(net) = Net::ALL.into_iter().find(|n| n.name() == name) {
        let profile = net.profile(max_batch as usize)?;
        return Ok((spec(&profile), Lengths::fixed(1, 1)));
    }
    let mut profile = devices::find("npu")?.profile(&[name], true)?;
    profile.models[0].max_batch = max_batch;
    let entry = zoo::find(name).ok_or_else(|| anyhow::anyhow!("no model {name}"))?;
    Ok((spec(&profile), Lengths::load(entry.lengths)?))
}

fn spec(profile: &Profile) -> ModelSpec {
    ModelSpec::from_profile(profile, &profile.models[0], 1, 1)
}

/// A core under load. See the module.
pub struct Steady {
    core: Core,
    tables: Vec<Arc<LatencyTable>>,
    now: Time,
    in_flight: Option<(LaneId, Ticket, Time)>,
    /// Input and output lengths of each model, as often as they come.
    lengths: Vec<Vec<(u32, u32)>>,
    /// Output length of each request that arrived.
    outputs: Vec<u32>,
    /// True output lengths are told.
    oracle: bool,
    plan: Option<PlanRequest>,
    planned: Option<Plan>,
    filled: Table,
}

impl Steady {
    /// A core that has run for a while.
    ///
    /// # Errors
    /// An unknown net or policy.
    pub fn new(net_name: &str, policy_spec: &str, filled: Table) -> anyhow::Result<Self> {
        let mut fresh = Self::fresh(net_name, policy_spec, filled)?;
        for _ in 0..WARM_UP {
            fresh.deliver();
            fresh.decide();
            fresh.take_launch();
        }
        Ok(fresh)
    }

    fn fresh(net_name: &str, policy_spec: &str, filled: Table) -> anyhow::Result<Self> {
        let name = policy_spec.split(':').next().unwrap_or_default();
        let most = IN_FLIGHT as u32;
        let (max_batch, max_in_flight) = match name {
            "greedy" | "triton" | "continuous" => (most, most),
            "lazy" | "oracle" => (2 * most, 2 * most),
            _ => (LAUNCH, most),
        };
        let policy = policy::build(policy_spec)?;
        let (policy, max_in_flight) = match filled {
            Table::Own | Table::Alone => (policy, max_in_flight),
            // With a slot to spare, so that whoever waits is a choice.
            Table::Held => {
                let held: Box<dyn Policy> = Box::new(Held(policy));
                (held, max_in_flight.max(most + LAUNCH))
            }
        };
        let nets = net_name.split('+').map(|name| net(name, max_batch));
        let (mut specs, lengths): (Vec<_>, Vec<_>) = nets
            .collect::<anyhow::Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        for spec in &mut specs {
            spec.max_in_flight = max_in_flight;
        }
        let repeated = |((i, o), n): ((u32, u32), u64)| std::iter::repeat_n((i, o), n as usize);
        let lengths = lengths
            .iter()
            .map(|l| l.counts().flat_map(repeated).collect());
        Ok(Self {
            tables: specs.iter().map(|s| s.table.clone()).collect(),
            lengths: lengths.collect(),
            core: Core::new(CoreConfig::new(specs), policy),
            now: Time::ZERO,
            in_flight: None,
            outputs: Vec::new(),
            oracle: policy::find(policy_spec)?.needs_output_len,
            plan: None,
            planned: None,
            filled,
        })
    }

    /// Completion of the launch in flight, a plan that is ready, and arrivals in the place of those
    /// that were admitted.
    pub fn deliver(&mut self) {
        if let Some((lane, ticket, end)) = self.in_flight.take() {
            self.now = end;
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
        if let Some(plan) = self.planned.take() {
            self.core.handle(self.now, Event::Planned(plan));
        }
        match self.filled {
            Table::Alone if self.core.num_open() > 0 => {}
            Table::Alone => (0..LAUNCH).for_each(|_| self.arrive()),
            Table::Own | Table::Held => {
                while self.core.num_waiting() < WAITING {
                    self.arrive();
                }
            }
        }
    }

    /// The decision; whether there were two or more legal actions.
    pub fn decide(&mut self) -> bool {
        self.core.decide(self.now)
    }

    /// Takes the launch out, and everything else.
    pub fn take_launch(&mut self) {
        loop {
            while let Some(action) = self.core.poll_action(self.now) {
                match action {
                    Action::Launch { ticket, lane } => {
                        let took = self.took(lane, ticket);
                        self.in_flight = Some((lane, ticket, self.now + took));
                    }
                    Action::Plan => self.plan = self.core.take_plan(),
                    _ => {}
                }
            }
            if self.in_flight.is_some() {
                return;
            }
            // A window is open: nothing runs until it closes.
            let Some(wake) = self.core.next_wakeup() else {
                return;
            };
            self.now = wake;
            self.core.handle(self.now, Event::Wake);
        }
    }

    /// A plan that was asked for since the last call.
    pub fn take_plan(&mut self) -> Option<PlanRequest> {
        self.plan.take()
    }

    /// A plan, in force from the next step on.
    pub fn planned(&mut self, plan: Plan) {
        self.planned = Some(plan);
    }

    /// Requests in flight, sub-batches in flight, and requests waiting.
    pub fn levels(&self) -> (usize, usize, usize) {
        let waiting = self.core.num_waiting();
        let in_flight = self.core.num_open() - waiting;
        (in_flight, self.core.table().len(), waiting)
    }

    /// Requests that arrived.
    pub fn num_arrivals(&self) -> usize {
        self.outputs.len()
    }

    /// Times that a request arrived, was demoted, left its queue or ended.
    pub fn num_moves(&self) -> u64 {
        let counters = self.core.counters();
        let left = counters.arrivals - self.core.num_waiting() as u64;
        counters.arrivals + counters.demoted + left + counters.finished
    }

    /// One more request.
    fn arrive(&mut self) {
        let id = self.outputs.len() as u64;
        let model = spread(id ^ 0x3333, self.tables.len());
        let lengths = &self.lengths[model];
        let (input_len, output_len) = lengths[spread(id, lengths.len())];
        let start = Progress {
            block: 0,
            segment: 0,
            step: 0,
            input_len,
            output_len,
        };
        let alone = self.tables[model].remaining(&start, 1, u64::from(input_len));
        let sla = Nanos(alone.0 << spread(id ^ 0x5555, 9));
        let request = Request {
            id: RequestId(id),
            model: ModelId(model as u32),
            arrival: self.now,
            sla: Some(sla),
            class: ClassId::default(),
            priority: 0,
            delay_after: None,
            samples: 1,
            input_len,
            sequence: None,
            max_steps: None,
            known_output_len: self.oracle.then_some(output_len),
        };
        self.outputs.push(output_len);
        self.core.handle(self.now, Event::Arrive(request));
    }

    fn took(&self, lane: LaneId, ticket: Ticket) -> Nanos {
        let launch = self.core.launch(lane, ticket);
        let (samples, rows) = (launch.num_samples(), launch.num_rows());
        self.tables[launch.model.index()].segment(launch.block, launch.segment, samples, rows)
    }

    /// Members whose last pass of the loop ends with the launch.
    fn stopped(&self, lane: LaneId, ticket: Ticket) -> SmallVec<[RequestId; 4]> {
        let launch = self.core.launch(lane, ticket);
        let block = &self.core.config().models[launch.model.index()].blocks[launch.block as usize];
        let loops = matches!(block.repeat, Repeat::UntilStop { .. });
        if !loops || launch.segment as usize + 1 < block.segments.len() {
            return SmallVec::new();
        }
        let ends = |m: &&Member| !m.idle && m.step + 1 == self.outputs[m.request.index()];
        launch
            .members
            .iter()
            .filter(ends)
            .map(|m| m.request)
            .collect()
    }
}

/// One of `num`, by multiplicative hashing of `id` (Knuth).
fn spread(id: u64, num: usize) -> usize {
    let hash = (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash as usize * num) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean requests in flight and mean sub-batches over some steps, and decisions with a choice.
    fn levels(net: &str, policy: &str, filled: Table) -> (f64, f64, usize) {
        let mut load = Steady::new(net, policy, filled).unwrap();
        let (mut members, mut entries, mut choices) = (0, 0, 0);
        const STEPS: usize = 1000;
        for _ in 0..STEPS {
            load.deliver();
            let (in_flight, sub_batches, waiting) = load.levels();
            match filled {
                Table::Alone => assert!(waiting <= LAUNCH as usize, "{net} under {policy}"),
                Table::Own | Table::Held => assert_eq!(waiting, WAITING, "{net} under {policy}"),
            }
            members += in_flight;
            entries += sub_batches;
            choices += usize::from(load.decide());
            load.take_launch();
        }
        let mean = |sum: usize| sum as f64 / STEPS as f64;
        (mean(members), mean(entries), choices)
    }

    #[test]
    fn the_fixture_holds_sixty_four_in_several_sub_batches() {
        for net in NETS {
            for policy in POLICIES.into_iter().filter(|p| p.starts_with("adaptive")) {
                let (members, entries, choices) = levels(net, policy, Table::Held);
                let what = format!("{net} under {policy}: {members} in {entries}");
                assert!(members > 60.0 && entries > 3.0, "{what}");
                assert!(choices > 990, "{what}: {choices} choices");
            }
        }
    }

    #[test]
    fn several_models_are_held_too() {
        for policy in MIX_POLICIES {
            let (members, entries, choices) = levels(MIX, policy, Table::Held);
            let what = format!("{policy}: {members} in {entries}");
            assert!(members > 48.0 && entries > 3.0, "{what}");
            assert!(choices > 990, "{what}: {choices} choices");
        }
    }

    #[test]
    fn with_nobody_behind_those_in_flight_a_choice_is_rare() {
        for net in ["chain-54", "transformer"] {
            let (members, entries, choices) = levels(net, "adaptive", Table::Alone);
            let what = format!("{net}: {members} in {entries}, {choices} choices");
            assert!((1.0..=16.0).contains(&members) && choices < 10, "{what}");
        }
    }

    #[test]
    fn every_policy_keeps_going() {
        for net in NETS {
            for policy in POLICIES {
                for filled in Table::ALL {
                    let (members, ..) = levels(net, policy, filled);
                    assert!(members > 0.0, "{net} under {policy}: {members}");
                }
            }
        }
    }
}
