//! `front`, `join:K`, `balance:F`, `sharing:F/A/W`, `iteration`: node-level batching without a stack.
//!
//! Five rules that differ in two questions: when waiting requests are admitted (the gate), and
//! which entry runs (the order). All merge entries at the same cursor whenever they fit max batch
//! together, start at once when nothing of the model is in flight, and change the running entry
//! only at the head of a block, or inside a block when newcomers are let in there.
//!
//! - `front`: nobody is admitted while the model has anyone in flight; the most progressed entry
//!   runs. `greedy` without padding.
//! - `join:K`: inside a block that runs once, newcomers are admitted while their catching up to
//!   the entry in flight pays: with `B` in flight at a segment, `P` waiting, `c` the time in which
//!   the newcomers catch up, `m` the time of the rest of the block for all, `r` for those in
//!   flight alone and `f` the whole block for the newcomers alone, admit if
//!   `(B + P)(c + m) + K(c + m) < B r + P(r + f) + K(r + f)`. `K` is the number of requests that
//!   are thought to queue behind, for whom device time counts. The least progressed entry runs.
//! - `balance:F`: newcomers are admitted when the time that they have waited, added over all of
//!   them, has reached `F` times the disturbance: the members in flight times the time in which
//!   the newcomers catch up. The least progressed entry runs.
//! - `sharing:F/A/W`: admits as `balance`; entries at the head of a block take turns, pass by pass.
//!   That runs which has the greatest claim: the nodes that others ran since its own last one, times
//!   its members to the power `A`, times `W` for the most progressed entry. With `A = 0` and `W = 1`
//!   entries take equal turns; with `A = 1` requests do.
//! - `iteration`: newcomers are admitted once between two passes of the last loop that runs until a
//!   stop, when all of the model stand at its head, as far as they fit one batch with those. Who is
//!   behind that loop runs first, then the newcomers to its head, then a pass of all. `continuous`,
//!   but with what all rules here know of classes, levels, shares and those that are too late.
//!
//! Each takes a word `LATE` behind a slash for waiting requests that cannot meet their deadline, by
//! the latency tables times the ratio that recent requests took against them: with `demote`
//! (`balance:1/demote`) they let those pass that can; with `shed` they are refused once they are
//! the oldest of their kind, and those with an input longer than the mean when they arrive, if by
//! then it is predicted; with `refuse` all of them when they arrive. What a class says of its own
//! requests goes before that. A word `withinP` before `shed` (`front:within50/shed`) sheds the oldest of
//! a flow already where it would take longer than `P` percent of its target and those behind it fill a
//! batch well: they are answered sooner, and nothing runs in smaller batches for it (`bounds.rs`).
//!
//! Batches are kept so small that their most urgent member is in time, but no smaller than one that is
//! *filled well*: that reaches 90 percent of the highest throughput, or, with a word `fillP` before
//! that (`front:fill99/demote`), up to `P` percent as far as it takes no more than half of the target.
//! Whoever would be late in one of that size counts as late. A word `capP` before these limits batches
//! to the smallest that reaches `P` percent (`front:cap90/demote`), or to the one from there on
//! that costs its members and those who wait least (`sizes.rs`).
//!
//! Flows (requests of one model, class and priority level) take turns: lower levels first, level 0
//! last; among equals whoever has been charged the least device time by weight. The model of the
//! foremost flow runs; batches are filled from the foremost flows. A word behind those
//! (`spare`, `round`, `due`, `short`, `ripe`, `cost`) lets models take turns otherwise (`turns.rs`).
//!
//! Source: the balance of accrued waiting and disturbance is that of economic order quantities and
//! of ski rental; processor sharing between loops is the field's answer where neither may starve.

use std::collections::VecDeque;

use lazybatch_sla::{ClassId, Late, Launch, ModelId, Nanos, Outcome, RequestId, SubBatchId, Time};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::entries::{last_launched, last_loop, mergeable, stage};
use super::gate::{Weighed, balances, fits, iterates, joins, rows};
use super::promise::{By, Promises};
use super::rule::{self, Gate, Order, Rule};
use super::share::Shares;
use super::turns::{Began, Busy};
use super::{Decision, Entry, Pick, Policy};
use crate::core::{Ending, Flow, FlowKey, Key, ModelSpec, Request, SubBatch, View};

/// Registry line of `front`.
pub const FRONT: Entry = Entry {
    name: "front",
    usage: "front[:capP][/fillP][/TURNS][/withinP][/LATE]",
    summary: "whole-graph batches without padding: the next starts when the last has ended",
    examples: &[
        "front",
        "front:demote",
        "front:cap90/demote",
        "front:fill99/demote",
    ],
    refusing: &["front:shed", "front:fill99/within50/shed"],
    needs_output_len: false,
    build: |argument| build("front", argument),
};

/// Registry line of `join:K`.
pub const JOIN: Entry = Entry {
    name: "join",
    usage: "join:K[/capP][/fillP][/TURNS][/no-PART..][/withinP][/LATE]",
    summary: "newcomers catch up inside a block where that pays, K requests queueing behind",
    examples: &[
        "join:0",
        "join:3/demote",
        "join:1/cap60",
        "join:1/cap60/no-batched/no-stretch/demote",
        "join:1/ripe/demote",
    ],
    refusing: &["join:1/shed"],
    needs_output_len: false,
    build: |argument| build("join", argument),
};

/// Registry line of `balance:F`.
pub const BALANCE: Entry = Entry {
    name: "balance",
    usage: "balance:F[/capP][/fillP][/TURNS][/no-PART..][/withinP][/LATE]",
    summary: "newcomers catch up once they have waited F times what they disturb",
    examples: &[
        "balance:0",
        "balance:1/demote",
        "balance:2/round",
        "balance:2/due/demote",
    ],
    refusing: &["balance:0.5/shed"],
    needs_output_len: false,
    build: |argument| build("balance", argument),
};

/// Registry line of `sharing:F`.
pub const SHARING: Entry = Entry {
    name: "sharing",
    usage: "sharing:F/A/W[/capP][/fillP][/TURNS][/no-PART..][/withinP][/LATE]",
    summary: "admits as balance:F; sub-batches take turns, members count to the power A, those in \
              front W-fold",
    examples: &[
        "sharing:0.5/0.5/2",
        "sharing:2/1/1/demote",
        "sharing:1/0.5/1/cap80/demote",
        "sharing:2/10/1/cap90/spare/demote",
        "sharing:1/1/0.1/cost/demote",
    ],
    refusing: &["sharing:1/0/1/shed"],
    needs_output_len: false,
    build: |argument| build("sharing", argument),
};

/// Registry line of `iteration`.
pub const ITERATION: Entry = Entry {
    name: "iteration",
    usage: "iteration[:capP][/fillP][/TURNS][/no-PART..][/withinP][/LATE]",
    summary: "newcomers join between two passes of the last loop, once each time",
    examples: &["iteration", "iteration:demote", "iteration:cap90/demote"],
    refusing: &["iteration:shed"],
    needs_output_len: false,
    build: |argument| build("iteration", argument),
};

/// Requests in a row that were too late from the start, from which on predictions are not believed
/// where the device is idle.
const HOPELESS: u32 = 16;
/// The same where only others' requests are in flight: what is tried takes of their time.
const SELDOM: u32 = 64;

/// Nodes that are thought to have run since the last launch of an entry that had none.
const NEVER: u64 = 1 << 17;

fn build(name: &str, argument: Option<&str>) -> Option<Box<dyn Policy>> {
    Some(Box::new(Base::new(rule::read(name, argument)?)))
}

/// How many were shed.
#[derive(Clone, Copy, Debug, Default)]
struct Hopeless {
    /// In a row that were too late when they arrived.
    in_a_row: u32,
    /// Since one was found to be in time, or was answered late.
    so_far: u32,
}

/// Decides by a rule that may change as it goes.
pub(super) struct Base {
    rule: Rule,
    /// The entry that runs until it stands at the head of a block again.
    running: Option<SubBatchId>,
    /// Models, each once, whose newcomers have joined, and the pass of the last loop that they joined
    /// for has not run, if there is such a loop.
    joined: Vec<ModelId>,
    /// For turns by `round`.
    began: Began,
    /// For turns by `spare`.
    busy: Busy,
    /// Who was let in within the pass of another goes on to its launch, whatever it has been charged.
    brief: Option<ModelId>,
    shares: Shares,
    promises: Promises,
    /// Arrivals that were not looked at, whether they can be in time.
    fresh: VecDeque<(ModelId, ClassId, RequestId)>,
    /// What the last decision went by.
    weighed: Weighed,
    /// Those that were shed of a model and a class.
    hopeless: FxHashMap<(ModelId, ClassId), Hopeless>,
    /// Who else was found too late, and when, the last first: they are demoted one by one.
    demoted: (Time, Vec<(Key, RequestId)>),
}

impl Policy for Base {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(request) = self.next_demoted(view) {
            self.weighed = Weighed::Late;
            return Decision::Demote { request };
        }
        if let Some((request, cause)) = self.refuse(view) {
            self.weighed = Weighed::Late;
            return Decision::Shed { request, cause };
        }
        if let Some(request) = self.too_late(view) {
            self.weighed = Weighed::Late;
            return Decision::Shed {
                request,
                cause: "its deadline can no longer be met",
            };
        }
        if let Some(request) = self.too_many(view) {
            self.weighed = Weighed::Many;
            return Decision::Shed {
                request,
                cause: "more wait than can be answered soon",
            };
        }
        if let Some((into, from)) = mergeable(view) {
            self.weighed = Weighed::SamePlace;
            return Decision::Merge { into, from };
        }
        let running = self.running.and_then(|id| view.table().get(id));
        let running = running.filter(|e| e.segment > 0 && view.is_launchable(e));
        let inside = running.map(|e| e.model);
        self.weighed = match inside {
            Some(_) => Weighed::Pass,
            None => Weighed::Nothing,
        };
        let turns = self.rule.turns.now(&self.busy);
        let (shares, promises) = (&mut self.shares, &mut self.promises);
        let models = match running {
            Some(entry) => turns.within(view, (shares, promises, &self.began), entry),
            None => turns.order(view, shares, promises, &self.began),
        };
        let brief = self
            .brief
            .filter(|m| running.is_none() && models.contains(m));
        let models = brief.into_iter().chain(models);
        for model in models {
            let admit = match view.is_ready(model) {
                true => self.admit(view, model, inside == Some(model)),
                false => None,
            };
            if let Some(decision) = admit {
                // One that is found too late ends no pass.
                if let Decision::Admit { model, .. } = decision {
                    self.running = None;
                    self.brief = inside.filter(|_| turns.lets_through()).map(|_| model);
                    if !self.joined.contains(&model) {
                        self.joined.push(model);
                    }
                }
                return decision;
            }
            let running = running.filter(|e| e.model == model);
            if let Some(entry) = running.or_else(|| self.choose(view, model)) {
                return self.launch(view, entry);
            }
        }
        Decision::Wait { until: None }
    }

    /// One that has just arrived, if its class refuses or sheds, and it will be late.
    fn refuse(&mut self, view: &View<'_>) -> Option<(Key, &'static str)> {
        while let Some((model, class, id)) = self.fresh.pop_front() {
            let late = self.rule.late(view, class);
            if late != Late::Refuse && late != Late::Shed {
                continue;
            }
            let key = view.queue(model).find(id);
            if let Some(key) = key.filter(|&key| self.is_late_at_arrival(view, key)) {
                return Some((key, "its deadline cannot be met"));
            }
        }
        None
    }

    fn because(&self) -> String {
        self.weighed.to_string()
    }

    fn on_arrive(&mut self, _now: Time, request: &Request) {
        self.shares.on_arrive(request);
        self.promises.on_arrive(request);
        let Request {
            id, model, class, ..
        } = *request;
        self.fresh.push_back((model, class, id));
    }

    fn on_done(&mut self, now: Time, _launch: &Launch, took: Nanos, ran: Nanos) {
        self.busy.on_done(now, took);
        self.promises.on_done(took, ran);
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        self.shares.on_end(ending);
        self.promises.on_end(now, ending);
        // One that was tried in vain is not tried again at once.
        if ending.outcome == Outcome::Violated
            && let Some(hopeless) = self.hopeless.get_mut(&(ending.model, ending.class))
        {
            hopeless.so_far = 0;
        }
    }

    fn on_model(&mut self, model: ModelId, _models: &[ModelSpec]) {
        self.shares.on_model(model);
        self.promises.on_model(model);
        self.fresh.retain(|(of, ..)| *of != model);
        self.joined.retain(|of| *of != model);
        self.hopeless.retain(|of, _| of.0 != model);
    }
}

impl Base {
    pub fn new(rule: Rule) -> Self {
        let mut promises = Promises::default();
        promises.follow(&rule);
        Self {
            rule,
            running: None,
            joined: Vec::new(),
            began: Vec::new(),
            busy: Busy::default(),
            brief: None,
            shares: Shares::default(),
            promises,
            fresh: VecDeque::new(),
            weighed: Weighed::Nothing,
            hopeless: FxHashMap::default(),
            demoted: (Time::ZERO, Vec::new()),
        }
    }

    /// Goes on by another rule, with what has been learned.
    pub fn change(&mut self, rule: Rule) {
        self.rule = rule;
        self.promises.follow(&rule);
    }

    /// Somebody else decides for now.
    pub fn pause(&mut self) {
        self.running = None;
        self.fresh.clear();
    }

    /// Whether one that has just arrived, of a class that refuses or sheds, will be late behind those
    /// that wait before it. Whose class sheds, only those that are longer than the mean are looked at so
    /// early: where not everyone can be in time, the device has time for several short ones in the place
    /// of each of them. Whose class refuses is tried if it may be in time, the device is idle and nobody
    /// else waits: nothing is lost; and if others are in flight, but none of its model, one of
    /// [`SELDOM`].
    fn is_late_at_arrival(&mut self, view: &View<'_>, key: Key) -> bool {
        let state = view.request(key);
        let Request {
            model,
            class,
            priority,
            ..
        } = state.request;
        let sheds = self.rule.late(view, class) == Late::Shed;
        if sheds && !self.promises.is_long(&state.request) {
            return false;
        }
        let own = self.shares.claim(model, class, priority);
        let before = view.queue(model).flows().filter(|f| {
            let claim = self.shares.claim(model, f.key.class, f.key.level);
            !f.key.is_delayed && claim.is_as_urgent(&own)
        });
        let ahead = before.map(|f| num_samples_before(view, f, state.request.id));
        let ahead = ahead.sum();
        let by = By::surely(view, model, ahead);
        if !self.promises.will_be_late(view, state, ahead, by) {
            if !sheds {
                self.hopeless.remove(&(model, class));
            }
            return false;
        }
        if sheds {
            return true;
        }
        let may_be = ahead == 0 && self.promises.may_be_in_time(view, state);
        let Hopeless { so_far, .. } = self.hopeless.entry((model, class)).or_default();
        let is_tried = may_be && is_free(view, model, *so_far);
        *so_far = match is_tried {
            true => 0,
            false => so_far.saturating_add(1),
        };
        !is_tried
    }

    /// The oldest of a flow that sheds those that can no longer be in time.
    ///
    /// Once [`HOPELESS`] in a row were too late from the start, or none was in time in so many, the oldest
    /// runs nevertheless if it would be in time with short outputs, nothing is in flight, and not
    /// even the newest is predicted to be in time: the device has nothing better to do, and what is
    /// predicted is learned from those that run.
    fn too_late(&mut self, view: &View<'_>) -> Option<Key> {
        let flows = view.ready().flat_map(|m| view.queue(m).flows());
        let rule = self.rule;
        let mut sheds = flows.filter(|f| rule.late(view, f.key.class) == Late::Shed);
        sheds.find_map(|flow| {
            let [oldest, newest] = [flow.front()?, flow.back()?].map(|key| view.request(key));
            let promises = &mut self.promises;
            let of = (oldest.request.model, flow.key.class);
            let Hopeless { in_a_row, so_far } = self.hopeless.entry(of).or_default();
            let by = By::surely(view, oldest.request.model, flow.num_samples());
            if !promises.is_late(view, oldest, by) {
                (*in_a_row, *so_far) = (0, 0);
                return None;
            }
            let tries = is_free(view, of.0, *so_far)
                && (*in_a_row).max(*so_far) >= HOPELESS
                && promises.is_late(view, newest, By::Most)
                && promises.may_be_in_time(view, oldest);
            if tries {
                return None;
            }
            *so_far = so_far.saturating_add(1);
            *in_a_row = match promises.was_hopeless(view, oldest) {
                true => in_a_row.saturating_add(1),
                false => 0,
            };
            flow.front()
        })
    }

    /// The oldest of a flow that sheds, where those behind it fill a batch well, and it would take longer
    /// than the share of its target: they wait for less, and the device has as much to do.
    fn too_many(&mut self, view: &View<'_>) -> Option<Key> {
        let rule = self.rule;
        if rule.within >= 1.0 {
            return None;
        }
        let flows = view.ready().flat_map(|m| view.queue(m).flows());
        let mut sheds = flows.filter(|f| rule.late(view, f.key.class) == Late::Shed);
        sheds.find_map(|flow| {
            let key = flow.front()?;
            let oldest = view.request(key);
            let by = By::surely(view, oldest.request.model, flow.num_samples());
            let promises = &mut self.promises;
            let left = flow.num_samples() - oldest.request.samples;
            let are_many = left >= promises.filled(view, oldest);
            (are_many && promises.takes_longer(view, oldest, rule.within, by)).then_some(key)
        })
    }

    fn launch(&mut self, view: &View<'_>, entry: &SubBatch) -> Decision {
        self.running = Some(entry.id);
        self.brief = None;
        let spec = view.model(entry.model);
        if entry.segment == 0 && view.models().len() > 1 {
            self.began.resize(view.models().len(), 0);
            let latest = self.began.iter().copied().max().unwrap_or_default();
            self.began[entry.model.index()] = latest + 1;
        }
        if entry.segment == 0 && last_loop(spec) == Some(entry.block) {
            self.joined.retain(|of| *of != entry.model);
        }
        let table = &spec.table;
        let ns = table.segment(entry.block, entry.segment, entry.samples, rows(view, entry));
        self.shares.charge(view, entry, ns);
        Decision::Launch(entry.id)
    }

    /// The next entry of a model at the head of a block, by the order.
    fn choose<'a>(&self, view: &View<'a>, model: ModelId) -> Option<&'a SubBatch> {
        let launchable = || view.table().iter().filter(|e| view.is_launchable(e));
        let entries = || launchable().filter(|e| e.model == model);
        let progress = |e: &&SubBatch| (e.block, e.segment, std::cmp::Reverse(e.id));
        match self.rule.order {
            Order::Front => entries().max_by_key(progress),
            Order::Newest => entries().min_by_key(progress),
            Order::Iteration => {
                let last = last_loop(view.model(model));
                entries()
                    .min_by_key(|e| (stage(e, last), e.block, e.segment, last_launched(e), e.id))
            }
            Order::Share { members, front } => {
                let first = entries().max_by_key(progress).map(|e| e.id);
                let latest = entries().filter_map(SubBatch::ran_at).max().unwrap_or(0);
                let claim = |e: &SubBatch| {
                    let since = e.ran_at().map_or(NEVER, |at| latest + 1 - at);
                    let weight = if Some(e.id) == first { front } else { 1.0 };
                    since as f64 * f64::from(e.samples).powf(members) * weight
                };
                entries().max_by(|a, b| claim(a).total_cmp(&claim(b)).then(b.id.cmp(&a.id)))
            }
        }
    }

    /// What launches and requests take of the host.
    pub fn host(&self) -> &super::host::Host {
        self.promises.host()
    }

    /// Most samples of a batch of a ready model.
    fn max_batch(&mut self, view: &View<'_>, model: ModelId) -> u32 {
        let max_batch = view.model(model).max_batch;
        match self.rule.cap {
            Some(share) => self.promises.knee(view, model, share),
            None => max_batch,
        }
    }

    /// Whom of a ready model to admit now, or who is too late. Inside a pass newcomers may come in only
    /// by [`Gate::Join`].
    fn admit(&mut self, view: &View<'_>, model: ModelId, inside: bool) -> Option<Decision> {
        let max_batch = self.max_batch(view, model);
        let entries = || view.table().iter().filter(move |e| e.model == model);
        if entries().next().is_none() {
            self.weighed = Weighed::Idle;
            // Who comes first may have more samples than the cap allows, and runs alone then.
            return self.pick(view, model, (max_batch, true));
        }
        if entries().any(|e| e.padded.is_some()) {
            return None;
        }
        let (room, weighed) = match self.rule.gate {
            Gate::Empty => (None, Weighed::Closed),
            Gate::Join(behind) => {
                let newest = entries().min_by_key(|e| (e.block, e.segment))?;
                joins(view, newest, behind, max_batch)
            }
            Gate::Balance(_) | Gate::Iteration if inside => (None, Weighed::Pass),
            Gate::Iteration if self.joined.contains(&model) => (None, Weighed::Joined),
            Gate::Iteration => iterates(view, model, max_batch),
            Gate::Balance(factor) => balances(view, model, factor, max_batch),
        };
        self.weighed = weighed;
        let room = room.filter(|&room| fits(view, model, room))?;
        self.pick(view, model, (room, false))
    }

    /// Drops the last of a batch while one of those `in_time` would be late for its size, down to a
    /// batch that is filled well.
    fn shrink(&mut self, view: &View<'_>, model: ModelId, keys: &mut Vec<Key>, in_time: &[Key]) {
        if !self.rule.shrinks {
            return;
        }
        let states = in_time.iter().map(|&k| view.request(k));
        let in_time = states.filter(|s| self.rule.late(view, s.request.class) != Late::Keep);
        let Some(urgent) = in_time.min_by_key(|s| (s.deadline, s.request.id)) else {
            return;
        };
        let by = match self.rule.late(view, urgent.request.class) {
            Late::Shed | Late::Refuse => By::Most,
            Late::Keep | Late::Demote => By::Mean,
        };
        let in_flight = view.num_samples_in_flight(model);
        let samples = |n: usize| -> u32 {
            let first = keys.iter().take(n);
            first.map(|&key| view.request(key).request.samples).sum()
        };
        let is_late = |n: usize| {
            let batch = in_flight + samples(n);
            self.promises.is_late_among(view, urgent, batch, by)
        };
        if !is_late(keys.len()) {
            return;
        }
        let (mut fits, mut late) = (0, keys.len());
        while late - fits > 1 {
            let middle = (fits + late) / 2;
            if is_late(middle) {
                late = middle;
            } else {
                fits = middle;
            }
        }
        if fits > 0 {
            let room = self.promises.filled(view, urgent);
            let room = room.saturating_sub(in_flight);
            let mut filled = 0;
            let filling = keys.iter().take_while(|&&key| {
                filled += view.request(key).request.samples;
                filled <= room
            });
            let filling = filling.count().max(1);
            keys.truncate(fits.max(filling));
        }
    }

    /// The next of those that were found too late in the same walk over the queue.
    fn next_demoted(&mut self, view: &View<'_>) -> Option<Key> {
        let (at, rest) = &mut self.demoted;
        if *at != view.now {
            rest.clear();
        }
        while let Some((key, id)) = rest.pop() {
            let waits = view.is_waiting(key, id);
            let queue = waits.then(|| view.queue(view.request(key).request.model));
            if queue
                .and_then(|q| q.flow_of(id))
                .is_some_and(|f| !f.is_late)
            {
                return Some(key);
            }
        }
        None
    }

    /// Who of a queue comes next, up to `room` samples, or the first alone if it `may_exceed` them:
    /// flows by priority level, then by what they have been charged; those that are too late behind all
    /// others as long as their class has patience, and behind them those that are delayed. One that is
    /// found too late is demoted first, where its class says so.
    fn pick(
        &mut self,
        view: &View<'_>,
        model: ModelId,
        (room, may_exceed): (u32, bool),
    ) -> Option<Decision> {
        let spec = view.model(model);
        let free = view.num_free(model);
        // What one more sample adds to the charge of its flow, nearly enough to take turns by.
        let each = spec.table.pass(0, 0, spec.max_batch, 0).0 as f64 / f64::from(spec.max_batch);
        let queue = view.queue(model);
        let mut flows: SmallVec<[_; 2]> = queue
            .flows()
            .map(|f| {
                let claim = self.shares.claim(model, f.key.class, f.key.level);
                (f, claim, f.iter().peekable())
            })
            .collect();
        let foremost = Shares::foremost(view);
        let (mut keys, mut late) = (Vec::new(), Vec::new());
        let (mut taken, mut in_time) = (0, Vec::new());
        while keys.len() < free {
            let next = flows.iter_mut().filter_map(|(flow, claim, waiting)| {
                let &key = waiting.peek()?;
                Some((flow, claim, waiting, key))
            });
            let next = next.min_by(|a, b| {
                let late = |f: &Flow, key| (f.key.is_delayed, lets_pass(view, f.key, key));
                let id = |key| view.request(key).request.id;
                let late = late(a.0, a.3).cmp(&late(b.0, b.3));
                late.then_with(|| a.1.order(b.1))
                    .then_with(|| id(a.3).cmp(&id(b.3)))
            });
            // Nobody goes before who waits elsewhere on a higher level, whoever is in flight here.
            let next = next.filter(|next| next.1.is_foremost(foremost));
            let Some((flow, claim, waiting, key)) = next else {
                break;
            };
            let state = view.request(key);
            let samples = state.request.samples;
            if taken + samples > room && (taken > 0 || !may_exceed) {
                break;
            }
            let rule = self.rule.late(view, flow.key.class);
            if rule == Late::Shed && !self.promises.may_be_in_time(view, state) {
                // Behind the first of its flow, which may be.
                self.weighed = Weighed::Late;
                return Some(Decision::Shed {
                    request: key,
                    cause: "its deadline can no longer be met",
                });
            }
            let demotes = rule == Late::Demote || rule == Late::Refuse;
            if demotes && !flow.key.is_late && self.promises.is_late(view, state, By::Mean) {
                // Demoted, it waits behind everyone who is looked at here before it is full.
                late.push((key, state.request.id));
                waiting.next();
                continue;
            }
            let weight = view.classes()[flow.key.class.index()].weight;
            claim.charged += each * f64::from(samples) / weight;
            taken += samples;
            waiting.next();
            keys.push(key);
            if !flow.key.is_late && !flow.key.is_delayed {
                in_time.push(key);
            }
        }
        if let Some(&(request, _)) = late.first() {
            late.reverse();
            late.pop();
            self.demoted = (view.now, late);
            self.weighed = Weighed::Late;
            return Some(Decision::Demote { request });
        }
        self.shrink(view, model, &mut keys, &in_time);
        let samples = keys.iter().map(|&key| view.request(key).request.samples);
        let batch = view.num_samples_in_flight(model) + samples.sum::<u32>();
        for &key in &keys {
            self.promises.on_admit(view, view.request(key), batch);
        }
        // The next may have more samples than there is room for.
        (!keys.is_empty()).then_some(Decision::Admit {
            model,
            pick: Pick::These(keys),
            padded: false,
        })
    }
}

/// Whether one that waits lets those pass that are not too late: it was demoted, and its class has
/// patience.
fn lets_pass(view: &View<'_>, flow: FlowKey, key: Key) -> bool {
    let patience = || view.classes()[flow.class.index()].patience;
    flow.is_late && patience().is_none_or(|p| view.now <= view.request(key).deadline + p)
}

/// Samples of a flow that go before one of another that is not too late, and came with `id`.
fn num_samples_before(view: &View<'_>, flow: &Flow, id: RequestId) -> u32 {
    if !flow.key.is_late {
        return flow.num_samples_before(id);
    }
    let states = flow.iter().map(|key| (key, view.request(key)));
    let before =
        states.take_while(|(key, state)| state.request.id < id && !lets_pass(view, flow.key, *key));
    before.map(|(_, state)| state.request.samples).sum()
}

/// Whether one of a model may be tried that is thought to be late: nothing is in flight, or nothing of
/// its model where so many have been refused in vain.
fn is_free(view: &View<'_>, model: ModelId, so_far: u32) -> bool {
    view.table().is_empty() || (so_far >= SELDOM && view.num_in_flight(model) == 0)
}
