//! The scheduler core: a pure state machine.
//!
//! Events go in ([`Core::handle`]), actions come out ([`Core::poll_action`]). It reads no clock,
//! starts nothing, owns no channel and no device memory, and has no random numbers. Time is handed
//! in. The same code runs under virtual time and on a real device.
//!
//! The life of a request: `Arrive` puts it into its model's arrival queue; the policy admits it as
//! (part of) a sub-batch on top of the batch table (`Open`); launches move it block by block,
//! alone or merged with others at the same cursor; the end of its last pass ends it (`Finish`,
//! `Release`).
//!
//! Invariants:
//! 1. `now` never decreases.
//! 2. At one timestamp: all completions, then all arrivals, then cancellations and wake-ups, then
//!    one decision per free lane. The driver keeps the order, [`Core::poll_action`] decides.
//! 3. Nothing here imports a device, a runtime or a clock.

pub mod checker;
mod completions;
mod config;
mod cursor;
mod delays;
mod event;
mod models;
mod plan;
mod queue;
mod request;
mod sequences;
mod state;
mod table;
mod view;
mod why;

use lazybatch_sla::{LaneId, Launch, ModelId, Nanos, Outcome, RequestId, Ticket, Time};

pub use config::{BATCHES_IN_FLIGHT, BlockSpec, CoreConfig, ModelSpec};
pub use event::{Action, Event, Note, Request};
pub use models::Attach;
pub use plan::{Backlog, Open, Past, Place, Plan, PlanRequest, Weighing};
pub use queue::{ArrivalQueue, Flow, FlowKey};
pub use request::{Key, RequestState, Stage};
use state::State;
pub use state::{Counters, Ending};
pub use table::{BatchTable, Padded, SubBatch};
pub use view::View;
pub use why::{Candidate, Hold, Why};

use crate::policy::{Decision, Pick, Policy};

/// The scheduler. See the module.
pub struct Core {
    state: State,
    policy: Box<dyn Policy>,
    now: Time,
    undecided: bool,
    /// Since the last decision the policy was not asked for a plan.
    unplanned: bool,
    plan: Option<PlanRequest>,
}

impl Core {
    /// A core at time zero with nothing to do.
    ///
    /// # Panics
    /// If there is no lane or a lane has depth 0.
    pub fn new(config: CoreConfig, policy: Box<dyn Policy>) -> Self {
        Self {
            state: State::new(config),
            policy,
            now: Time::ZERO,
            undecided: false,
            unplanned: false,
            plan: None,
        }
    }

    /// Takes in what happened at `now`.
    ///
    /// # Panics
    /// On events that break the contract: time going back, an unknown model, a ticket that is not
    /// the oldest of its lane.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.advance(now);
        self.undecided = true;
        match event {
            Event::Arrive(request) => {
                assert!(
                    request.arrival <= now,
                    "{} arrives in the future",
                    request.id
                );
                self.policy.on_arrive(now, &request);
                self.state.arrive(now, request);
            }
            Event::Cancel(request) => self.state.cancel(now, request),
            Event::Done {
                ticket,
                stopped,
                faults,
                failed,
                took,
            } => {
                // One that failed says nothing about what launches take.
                if failed.is_none()
                    && let Some((launch, ran)) = self.state.oldest_flight(now, ticket)
                {
                    // Issued behind another launch it held the lane up for no more than it ran:
                    // the device worked meanwhile.
                    let took = took.map_or(ran, |took| took.min(ran));
                    self.policy.on_done(now, launch, took, ran);
                }
                match failed {
                    Some(cause) => self.state.failed(now, ticket, &cause),
                    None => self.state.done(now, ticket, &stopped, &faults),
                }
            }
            Event::Planned(plan) => self.policy.on_planned(now, &plan),
            Event::Loaded(model) => self.state.loaded(model),
            Event::Evict(model) => self.state.evict(model),
            Event::Attach(attach) => {
                let model = attach.model;
                self.state.attach(*attach);
                self.policy.on_model(model, &self.state.config.models);
            }
            Event::Hold { model, sequence } => self.state.hold(model, sequence),
            Event::LetGo { model, sequence } => self.state.let_go(model, sequence),
            Event::Detach(model) => self.state.detach(model),
            Event::Drain => self.state.is_draining = true,
            Event::Wake => {}
        }
        self.report_ends(now);
    }

    /// The rule that the policy decides by now, if it changes between several.
    pub fn rule(&self) -> Option<&str> {
        self.policy.rule()
    }

    /// A launch that is the oldest of its lane, and for how long it has held that.
    pub fn held(&self, now: Time, ticket: Ticket) -> Option<(&Launch, Nanos)> {
        self.state.oldest_flight(now, ticket)
    }

    /// Puts requests that never arrived into the batch table, as one sub-batch above all others: at
    /// `segment` of `block`, each with the passes through the block that it has run. For
    /// simulations that begin in the midst of work.
    ///
    /// # Panics
    /// If they do not fit a launch or the slots of their model, are of several models, or one of them
    /// is behind another of its sequence or finds the queue full.
    pub fn place(&mut self, now: Time, block: u32, segment: u32, members: Vec<(Request, u32)>) {
        self.advance(now);
        self.undecided = true;
        let mut keys = Vec::with_capacity(members.len());
        for (request, step) in members {
            let (id, model) = (request.id, request.model);
            self.policy.on_arrive(now, &request);
            self.state.arrive(now, request);
            let key = self.state.by_id[&id];
            let waited = self.state.queues[model.index()].remove(id);
            assert!(waited.is_some(), "{id} is behind another");
            self.state.requests[key as usize].step = step;
            keys.push(key);
        }
        self.state.place(block, segment, keys);
    }

    fn report_ends(&mut self, now: Time) {
        for ending in self.state.endings.drain(..) {
            self.policy.on_end(now, &ending);
        }
        for model in self.state.vacated.drain(..) {
            self.policy.on_model(model, &self.state.config.models);
        }
    }

    fn advance(&mut self, now: Time) {
        assert!(now >= self.now, "time goes back from {} to {now}", self.now);
        self.now = now;
    }

    /// The next action at `now`, deciding first if anything happened since the last decision. The
    /// policy is asked for a plan behind all other actions, when the launch is on its way: to put
    /// one together takes longer than to decide.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if self.undecided {
            self.decide(now);
        }
        if let Some(action) = self.state.actions.pop_front() {
            return Some(action);
        }
        if !std::mem::take(&mut self.unplanned) {
            return None;
        }
        let view = View::new(now, LaneId(0), &self.state);
        self.plan = Some(self.policy.plan(&view)?);
        Some(Action::Plan)
    }

    /// Decides for every lane with room; whether there was a real choice (two or more legal
    /// actions). Drivers that time decisions call this before [`Core::poll_action`].
    ///
    /// # Panics
    /// If the policy decides what the state does not allow.
    pub fn decide(&mut self, now: Time) -> bool {
        self.advance(now);
        self.undecided = false;
        self.state.delay(now);
        let mut choice = false;
        for lane in 0..self.state.lanes.len() {
            let id = LaneId(lane as u32);
            while self.state.lanes[lane].flights.len() < self.state.lanes[lane].depth as usize {
                let real = self.has_choice(id);
                self.state.counters.decisions += u64::from(real);
                choice |= real;
                if !self.decide_lane(now, id) {
                    break;
                }
                let launched = self.state.lanes[lane].flights.back();
                if let Some(model) = launched.filter(|_| real).map(|f| f.launch.model) {
                    self.state.by_model[model.index()].decisions += 1;
                }
            }
        }
        self.refuse(now);
        self.report_ends(now);
        self.unplanned = true;
        choice
    }

    /// What [`Action::Plan`] asks for.
    pub fn take_plan(&mut self) -> Option<PlanRequest> {
        self.plan.take()
    }

    /// Whether anything happened since the last decision.
    pub fn wants_decision(&self) -> bool {
        self.undecided
    }

    fn has_choice(&self, lane: LaneId) -> bool {
        let view = View::new(self.now, lane, &self.state);
        let running = view
            .table()
            .iter()
            .filter(|e| view.is_launchable(e))
            .take(2)
            .count();
        running + view.ready().take(2).count() >= 2
    }

    /// Applies decisions until a launch (true) or a wait (false).
    fn decide_lane(&mut self, now: Time, lane: LaneId) -> bool {
        loop {
            let view = View::new(now, lane, &self.state);
            let decision = self.policy.decide(&view);
            if self.state.config.reasons {
                let why = Why::new(&view, &decision, self.policy.because());
                let note = Action::Note(Note::Decide(why));
                self.state.actions.push_back(note);
            }
            match decision {
                Decision::Wait { until } => {
                    self.state.lanes[lane.index()].wake = until.filter(|&t| t > now);
                    return false;
                }
                Decision::Launch(entry) => {
                    self.state.launch(now, lane, entry);
                    return true;
                }
                Decision::Merge { into, from } => self.state.merge(into, from),
                Decision::Admit {
                    model,
                    pick,
                    padded,
                } => self.admit(now, model, pick, padded),
                Decision::Demote { request } => self.state.demote(request),
                Decision::Shed { request, cause } => self.shed(now, request, cause),
            }
        }
    }

    /// Ends those that the policy refuses, whether or not a lane has room.
    fn refuse(&mut self, now: Time) {
        loop {
            let view = View::new(now, LaneId(0), &self.state);
            let Some((request, cause)) = self.policy.refuse(&view) else {
                return;
            };
            self.shed(now, request, cause);
        }
    }

    fn admit(&mut self, now: Time, model: ModelId, pick: Pick, padded: bool) {
        let queue = &mut self.state.queues[model.index()];
        let keys: Vec<Key> = match pick {
            Pick::First(n) => (0..n)
                .map(|_| queue.pop().expect("the queue holds those admitted"))
                .collect(),
            Pick::These(keys) => {
                for &key in &keys {
                    let id = self.state.requests[key as usize].request.id;
                    assert!(queue.remove(id).is_some(), "{id} is not waiting");
                }
                keys
            }
        };
        self.state.admit(now, model, keys, padded);
    }

    fn shed(&mut self, now: Time, key: Key, cause: &'static str) {
        let request = &self.state.requests[key as usize].request;
        let (id, model) = (request.id, request.model);
        assert!(
            self.state.queues[model.index()].remove(id).is_some(),
            "{id} is not waiting"
        );
        self.state
            .finish(now, key, Outcome::Shed, Some(cause.to_string()));
    }

    /// When the policy wants a [`Event::Wake`] although nothing happens; lanes with a launch in
    /// flight are asked again at its completion anyway.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.state
            .lanes
            .iter()
            .filter(|l| l.flights.is_empty())
            .filter_map(|l| l.wake)
            .min()
    }

    /// Content of a launch in flight.
    ///
    /// # Panics
    /// If `ticket` is not in flight on `lane`.
    pub fn launch(&self, lane: LaneId, ticket: Ticket) -> &Launch {
        self.state.lanes[lane.index()]
            .flights
            .iter()
            .rev()
            .map(|f| &f.launch)
            .find(|l| l.ticket == ticket)
            .unwrap_or_else(|| panic!("{ticket} is not in flight on {lane}"))
    }

    /// Launches in flight, each with when it was issued.
    pub fn running(&self) -> impl Iterator<Item = (&Launch, Time)> {
        let flights = self.state.lanes.iter().flat_map(|l| &l.flights);
        flights.map(|f| (&f.launch, f.issued))
    }

    /// Requests of a model in the batch table or ending, and the arrival of the one that has waited
    /// longest, for its sequence too.
    pub fn load_of(&self, model: ModelId) -> (u32, Option<Time>) {
        let oldest = self.state.queues[model.index()].oldest();
        let queued = oldest.map(|k| self.state.requests[k as usize].request.arrival);
        let held = self.state.sequences.oldest(model);
        let oldest = queued.into_iter().chain(held).min();
        (self.state.in_flight[model.index()], oldest)
    }

    /// Changes [`CoreConfig::reasons`] and [`CoreConfig::notes`] from the next decision on.
    pub fn tell(&mut self, reasons: bool, notes: bool) {
        self.state.config.reasons = reasons;
        self.state.config.notes = notes;
    }

    /// What it was configured with.
    pub fn config(&self) -> &CoreConfig {
        &self.state.config
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// The same by model, since it was attached; of a model that has gone until its id is used
    /// again. Decisions are those that launched it.
    pub fn counters_by_model(&self) -> &[Counters] {
        &self.state.by_model
    }

    /// Whether requests to a model may arrive.
    pub fn takes(&self, model: ModelId) -> bool {
        self.state.takes(model)
    }

    /// Whether a model's weights are there and it takes requests.
    pub fn is_resident(&self, model: ModelId) -> bool {
        let residency = self.state.residency.get(model.index());
        residency.is_some_and(|r| *r == state::Residency::Resident)
    }

    /// Whether a model may be attached under that id.
    pub fn is_free(&self, model: ModelId) -> bool {
        self.state.is_free(model)
    }

    /// Requests waiting in arrival queues.
    pub fn num_waiting(&self) -> usize {
        self.state.queues.iter().map(ArrivalQueue::len).sum()
    }

    /// Launches in flight.
    pub fn num_launches(&self) -> usize {
        self.state.lanes.iter().map(|l| l.flights.len()).sum()
    }

    /// Launches in flight, those of a lane in their order.
    pub fn tickets(&self) -> Vec<Ticket> {
        let flights = self.state.lanes.iter().flat_map(|l| &l.flights);
        flights.map(|f| f.launch.ticket).collect()
    }

    /// The time of what was handled last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Requests that have arrived and not ended.
    pub fn num_open(&self) -> usize {
        self.state.by_id.len()
    }

    /// Whether a request has arrived and not ended.
    pub fn is_open(&self, id: RequestId) -> bool {
        self.state.by_id.contains_key(&id)
    }

    /// The launch of a ticket that is the oldest of its lane, so that it may complete.
    pub fn oldest(&self, ticket: Ticket) -> Option<&Launch> {
        self.state
            .lanes
            .iter()
            .filter_map(|l| l.flights.front())
            .map(|f| &f.launch)
            .find(|l| l.ticket == ticket)
    }

    /// The batch table, for timelines.
    pub fn table(&self) -> &BatchTable {
        &self.state.table
    }

    /// A read-only view for observers, as the policy of lane 0 would see it.
    pub fn view(&self) -> View<'_> {
        View::new(self.now, LaneId(0), &self.state)
    }
}
