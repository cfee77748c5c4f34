//! `front`, `join:K`, `balance:F`, `sharing:F/A/W`: node-level batching without a stack.
//!
//! Four rules that differ in two questions: when waiting requests are admitted (the gate), and
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
//!   That runs which has the greatest claim: the launches since its own last one, times its members
//!   to the power `A`, times `W` for the most progressed entry. With `A = 0` and `W = 1` entries
//!   take equal turns; with `A = 1` requests do.
//!
//! Each takes a word behind a slash for waiting requests that can no longer meet their deadline, by
//! the latency tables times the ratio that recent requests took against them: with `demote`
//! (`balance:1/demote`) they let those pass that can; with `shed` they are refused once they are
//! the oldest of their queue.
//!
//! With several models, the model whose entries had the least device time so far runs.
//!
//! Source: the balance of accrued waiting and disturbance is that of economic order quantities and
//! of ski rental; processor sharing between loops is the field's answer where neither may starve.

use lazybatch_graph::Repeat;
use lazybatch_sla::{LatencyTable, ModelId, Nanos, OutputLen, RequestId, SubBatchId, Time};
use rustc_hash::FxHashMap;

use super::{Decision, Entry, Pick, Policy};
use crate::core::{Ending, Key, RequestState, SubBatch, View};

/// Registry line of `front`.
pub const FRONT: Entry = Entry {
    name: "front",
    usage: "front[:demote|shed]",
    summary: "whole-graph batches without padding: the next starts when the last has ended",
    examples: &["front", "front:demote"],
    refusing: &["front:shed"],
    needs_output_len: false,
    build: |argument| build("front", argument),
};

/// Registry line of `join:K`.
pub const JOIN: Entry = Entry {
    name: "join",
    usage: "join:K[/demote|/shed]",
    summary: "newcomers catch up inside a block where that pays, K requests queueing behind",
    examples: &["join:0", "join:3/demote"],
    refusing: &["join:1/shed"],
    needs_output_len: false,
    build: |argument| build("join", argument),
};

/// Registry line of `balance:F`.
pub const BALANCE: Entry = Entry {
    name: "balance",
    usage: "balance:F[/demote|/shed]",
    summary: "newcomers catch up once they have waited F times what they disturb",
    examples: &["balance:0", "balance:1/demote"],
    refusing: &["balance:0.5/shed"],
    needs_output_len: false,
    build: |argument| build("balance", argument),
};

/// Registry line of `sharing:F`.
pub const SHARING: Entry = Entry {
    name: "sharing",
    usage: "sharing:F/A/W[/demote|/shed]",
    summary: "admits as balance:F; sub-batches take turns, members count to the power A, those in \
              front W-fold",
    examples: &["sharing:0.5/0.5/2", "sharing:2/1/1/demote"],
    refusing: &["sharing:1/0/1/shed"],
    needs_output_len: false,
    build: |argument| build("sharing", argument),
};

/// Names and how their numbers are read.
type Reader = fn(Option<&str>) -> Option<Rule>;
const RULES: [(&str, Reader); 4] = [
    ("front", |a| rule(a, 0, |_| (Order::Front, Gate::Empty))),
    ("join", |a| {
        rule(a, 1, |n| (Order::Newest, Gate::Join(n[0])))
    }),
    ("balance", |a| {
        rule(a, 1, |n| (Order::Newest, Gate::Balance(n[0])))
    }),
    ("sharing", |a| {
        rule(a, 3, |n| {
            let order = Order::Share {
                members: n[1],
                front: n[2],
            };
            (order, Gate::Balance(n[0]))
        })
    }),
];

/// The rule of a specification such as `balance:1/demote`.
pub(super) fn find(spec: &str) -> Option<Rule> {
    let (name, argument) = super::split(spec);
    let (_, read) = RULES.into_iter().find(|r| r.0 == name)?;
    read(argument)
}

fn build(name: &str, argument: Option<&str>) -> Option<Box<dyn Policy>> {
    let (_, read) = RULES.into_iter().find(|r| r.0 == name)?;
    Some(Box::new(Base::new(read(argument)?)))
}

fn rule(
    argument: Option<&str>,
    num_numbers: usize,
    parts: impl Fn(&[f64]) -> (Order, Gate),
) -> Option<Rule> {
    let mut words: Vec<&str> = argument.into_iter().flat_map(|a| a.split('/')).collect();
    let late = match words.last() {
        Some(&"demote") => Late::Demote,
        Some(&"shed") => Late::Shed,
        _ => Late::Keep,
    };
    words.truncate(words.len() - usize::from(late != Late::Keep));
    let number = |w: &&str| w.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    let numbers: Vec<f64> = words.iter().map(number).collect::<Option<_>>()?;
    if numbers.len() != num_numbers {
        return None;
    }
    let (order, gate) = parts(&numbers);
    Some(Rule { order, gate, late })
}

/// What makes one base rule differ from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    order: Order,
    gate: Gate,
    late: Late,
}

/// Which entry of a model runs at the head of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The most progressed.
    Front,
    /// The least progressed.
    Newest,
    /// That whose members have waited most since its last launch: the launches since then, times
    /// the number of its members to the power `members`, times `front` for the most progressed.
    Share { members: f64, front: f64 },
}

/// When waiting requests are admitted although some of their model are in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gate {
    /// Never.
    Empty,
    /// Inside a block, where it pays with that many requests queueing behind.
    Join(f64),
    /// When waiting outweighs the disturbance by that factor.
    Balance(f64),
}

/// What becomes of waiting requests that can no longer meet their deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// Nothing.
    Keep,
    /// Others pass them.
    Demote,
    /// They are refused.
    Shed,
}

/// Decides by a rule that may change as it goes.
pub(super) struct Base {
    rule: Rule,
    /// The entry that runs until it stands at the head of a block again.
    running: Option<SubBatchId>,
    /// Device time of each model's launches.
    attained: Vec<Nanos>,
    /// How long requests take, against what tables alone say; kept with `demote` and `shed` only.
    promises: Promises,
}

/// Compares the time from admission to end with the time that tables predict, as if nobody else
/// used the device.
#[derive(Debug)]
struct Promises {
    /// Admission and predicted nanoseconds of requests in flight.
    open: FxHashMap<RequestId, (Time, u64)>,
    /// Exponentially weighted mean of actual over predicted time.
    stretch: f64,
    /// By model: who waits up to this id was found too late already.
    too_late: Vec<Option<RequestId>>,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            open: FxHashMap::default(),
            stretch: 1.0,
            too_late: Vec::new(),
        }
    }
}

impl Promises {
    /// Time that a waiting request will need.
    fn needs(&self, view: &View<'_>, model: ModelId, state: &RequestState) -> Nanos {
        Nanos((needs(view, model, state).0 as f64 * self.stretch) as u64)
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        let Some((admitted, predicted)) = self.open.remove(&ending.id) else {
            return;
        };
        if ending.outcome.is_completed() && predicted > 0 {
            let ratio = now.since(admitted).0 as f64 / predicted as f64;
            self.stretch += STRETCH_WEIGHT * (ratio.min(MAX_STRETCH) - self.stretch);
        }
    }
}

/// Share that the newest request has in the stretch.
const STRETCH_WEIGHT: f64 = 0.02;
/// Most that one request counts.
const MAX_STRETCH: f64 = 20.0;

impl Policy for Base {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if self.rule.late == Late::Shed
            && let Some(request) = self.too_late(view)
        {
            return Decision::Shed {
                request,
                cause: "its deadline can no longer be met",
            };
        }
        if let Some((into, from)) = mergeable(view) {
            return Decision::Merge { into, from };
        }
        let running = self.running.and_then(|id| view.table().get(id));
        let running = running.filter(|e| e.segment > 0 && view.is_launchable(e));
        let inside = running.map(|e| e.model);
        if let Some(admit) = self.admit(view, inside) {
            self.running = None;
            return admit;
        }
        match running.or_else(|| self.choose(view)) {
            Some(entry) => self.launch(view, entry),
            None => Decision::Wait { until: None },
        }
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        if self.rule.late != Late::Keep {
            self.promises.on_end(now, ending);
        }
    }
}

impl Base {
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            running: None,
            attained: Vec::new(),
            promises: Promises::default(),
        }
    }

    /// Goes on by another rule, with what has been learned.
    pub fn change(&mut self, rule: Rule) {
        self.rule = rule;
    }

    fn launch(&mut self, view: &View<'_>, entry: &SubBatch) -> Decision {
        self.running = Some(entry.id);
        let table = &view.model(entry.model).table;
        let ns = table.segment(entry.block, entry.segment, entry.samples, rows(view, entry));
        self.attained.resize(view.models().len(), Nanos::ZERO);
        let attained = &mut self.attained[entry.model.index()];
        *attained = attained.saturating_add(ns);
        Decision::Launch(entry.id)
    }

    fn attained(&self, model: ModelId) -> Nanos {
        self.attained
            .get(model.index())
            .copied()
            .unwrap_or_default()
    }

    /// The next entry at the head of a block: of the model that had least, by the order.
    fn choose<'a>(&self, view: &View<'a>) -> Option<&'a SubBatch> {
        let launchable = || view.table().iter().filter(|e| view.is_launchable(e));
        let model = launchable().map(|e| e.model);
        let model = model.min_by_key(|&m| (self.attained(m), m))?;
        let entries = || launchable().filter(|e| e.model == model);
        let progress = |e: &&SubBatch| (e.block, e.segment, std::cmp::Reverse(e.id));
        match self.rule.order {
            Order::Front => entries().max_by_key(progress),
            Order::Newest => entries().min_by_key(progress),
            Order::Share { members, front } => {
                let first = entries().max_by_key(progress).map(|e| e.id);
                let latest = entries().filter_map(SubBatch::last_launch).max();
                let claim = |e: &SubBatch| {
                    let since = latest.unwrap_or(0) + 1 - e.last_launch().unwrap_or(0);
                    let weight = if Some(e.id) == first { front } else { 1.0 };
                    since as f64 * f64::from(e.samples).powf(members) * weight
                };
                entries().max_by(|a, b| claim(a).total_cmp(&claim(b)).then(b.id.cmp(&a.id)))
            }
        }
    }

    /// Whom to admit now. Inside a pass of `inside` only that model's newcomers may come in, and
    /// only by [`Gate::Join`].
    fn admit(&mut self, view: &View<'_>, inside: Option<ModelId>) -> Option<Decision> {
        let mut models: Vec<ModelId> = view.ready().collect();
        models.sort_by_key(|&m| (self.attained(m), m));
        models.into_iter().find_map(|model| {
            let max_batch = view.model(model).max_batch;
            let entries = || view.table().iter().filter(move |e| e.model == model);
            let n = view.fitting_prefix(model, max_batch);
            if n == 0 {
                return None;
            }
            if entries().next().is_none() {
                let idle = inside.is_none();
                return idle.then(|| self.pick(view, model, max_batch));
            }
            let padded = entries().any(|e| e.padded.is_some());
            if padded || inside.is_some_and(|i| i != model) {
                return None;
            }
            let room = match self.rule.gate {
                Gate::Empty => None,
                Gate::Join(behind) => {
                    let newest = entries().min_by_key(|e| (e.block, e.segment))?;
                    joins(view, newest, behind)
                }
                Gate::Balance(_) if inside.is_some() => None,
                Gate::Balance(factor) => balances(view, model, factor),
            };
            let room = room.filter(|&room| view.fitting_prefix(model, room) > 0)?;
            Some(self.pick(view, model, room))
        })
    }

    /// The first who fit `room` samples; with `demote`, of those who can still be in time, if any.
    fn pick(&mut self, view: &View<'_>, model: ModelId, room: u32) -> Decision {
        let n = view.fitting_prefix(model, room);
        let mut pick = Pick::First(n);
        if self.rule.late != Late::Keep {
            let in_time = match self.rule.late {
                Late::Demote => self.in_time_first(view, model, room),
                _ => None,
            };
            let first = || view.queue(model).iter().take(n).collect();
            let keys: Vec<Key> = in_time.unwrap_or_else(first);
            for &key in &keys {
                let state = view.request(key);
                let needs = needs(view, model, state).0;
                let promise = (view.now, needs);
                self.promises.open.insert(state.request.id, promise);
            }
            pick = Pick::These(keys);
        }
        Decision::Admit {
            model,
            pick,
            padded: false,
        }
    }

    /// The oldest of a queue that can no longer be in time.
    fn too_late(&self, view: &View<'_>) -> Option<Key> {
        let heads = view
            .ready()
            .filter_map(|m| Some((m, view.queue(m).front()?)));
        let is_late = |m, key| {
            let state = view.request(key);
            view.now + self.promises.needs(view, m, state) > state.deadline
        };
        heads
            .into_iter()
            .find(|&(m, key)| is_late(m, key))
            .map(|h| h.1)
    }

    /// Of the waiting, those who can still meet their deadline if admitted now, oldest first, as
    /// many as fit `room`; `None` where that is the plain prefix, or nobody can. Who is too late
    /// once is not looked at again.
    fn in_time_first(&mut self, view: &View<'_>, model: ModelId, room: u32) -> Option<Vec<Key>> {
        let free = view.model(model).max_in_flight - view.num_in_flight(model);
        let too_late = &mut self.promises.too_late;
        too_late.resize(view.models().len(), None);
        let mut seen = too_late[model.index()];
        let queue = view.queue(model);
        let behind = seen.map(|id| queue.iter_behind(id));
        let all = seen.is_none().then(|| queue.iter());
        let waiting = behind
            .into_iter()
            .flatten()
            .chain(all.into_iter().flatten());
        let mut keys = Vec::new();
        let mut taken = 0;
        for key in waiting {
            let state = view.request(key);
            if taken + state.request.samples > room || keys.len() >= free as usize {
                break;
            }
            if view.now + self.promises.needs(view, model, state) <= state.deadline {
                taken += state.request.samples;
                keys.push(key);
            }
            seen = Some(state.request.id);
        }
        self.promises.too_late[model.index()] = seen;
        (!keys.is_empty()).then_some(keys)
    }
}

/// Time that a waiting request needs on a device of its own, batched with as many as there are.
fn needs(view: &View<'_>, model: ModelId, state: &RequestState) -> Nanos {
    let spec = view.model(model);
    let in_flight = view.num_in_flight(model) as usize;
    let batch = (in_flight + view.queue(model).len()).min(spec.max_batch as usize) as u32;
    let output_len = OutputLen::known(spec.output_len_p90).predict();
    let progress = view.progress(state, None, output_len);
    let rows = u64::from(batch) * u64::from(state.request.input_len);
    spec.table.remaining(&progress, batch, rows)
}

/// Two entries that may merge, the one that was launched first and the other.
fn mergeable(view: &View<'_>) -> Option<(SubBatchId, SubBatchId)> {
    let table = view.table();
    if table.len() < 2 {
        return None;
    }
    table.iter().enumerate().find_map(|(i, a)| {
        let mut others = table.iter().skip(i + 1);
        others.find(|b| view.can_merge(a, b)).map(|b| (a.id, b.id))
    })
}

/// Rows of an entry: its members' input lengths, samples counted.
fn rows(view: &View<'_>, entry: &SubBatch) -> u64 {
    view.members(entry)
        .map(|r| u64::from(r.request.samples) * u64::from(r.request.input_len))
        .sum()
}

/// Samples and rows of the first `n` waiting.
fn waiting(view: &View<'_>, model: ModelId, n: usize) -> (u32, u64) {
    let first = view
        .queue(model)
        .iter()
        .take(n)
        .map(|k| &view.request(k).request);
    first.fold((0, 0), |(samples, rows), r| {
        let row = u64::from(r.samples) * u64::from(r.input_len);
        (samples + r.samples, rows + row)
    })
}

/// Samples that may join `entry` now, if it pays; see the module for the rule.
fn joins(view: &View<'_>, entry: &SubBatch, behind: f64) -> Option<u32> {
    let spec = view.model(entry.model);
    let table = &spec.table;
    let room = spec
        .max_batch
        .checked_sub(entry.samples)
        .filter(|&r| r > 0)?;
    if entry.block != 0 {
        return None;
    }
    if entry.segment == 0 {
        return Some(room);
    }
    if table.repeat(0) != Repeat::Once {
        return None;
    }
    let n = view.fitting_prefix(entry.model, room);
    let (p, p_rows) = waiting(view, entry.model, n);
    let (b, b_rows) = (entry.samples, rows(view, entry));
    let ns = |segment, samples, rows| table.pass(0, segment, samples, rows).0 as f64;
    let f = ns(0, p, p_rows);
    let r = ns(entry.segment, b, b_rows);
    let together = f - ns(entry.segment, p, p_rows) + ns(entry.segment, b + p, b_rows + p_rows);
    let apart = r + f;
    let (b, p) = (f64::from(b), f64::from(p));
    let gain = b * r + p * apart + behind * apart - (b + p + behind) * together;
    (n > 0 && gain > 0.0).then_some(room)
}

/// Samples to admit now at the head of a block, if waiting outweighs `factor` times the
/// disturbance; see the module for the rule.
fn balances(view: &View<'_>, model: ModelId, factor: f64) -> Option<u32> {
    let spec = view.model(model);
    let table = &spec.table;
    let entries = || view.table().iter().filter(|e| e.model == model);
    let at_start = entries().find(|e| (e.block, e.segment) == (0, 0));
    if let Some(entry) = at_start {
        let room = spec.max_batch.checked_sub(entry.samples)?;
        return Some(room);
    }
    // Beyond one launch's worth of requests in front, newcomers cannot merge with them.
    let target = entries().max_by_key(|e| e.samples)?;
    let room = spec.max_batch.saturating_sub(target.samples);
    let n = view.fitting_prefix(model, room);
    if n == 0 {
        return None;
    }
    let (samples, rows) = waiting(view, model, n);
    let longest = view.queue(model).iter().take(n);
    let longest = longest.map(|k| view.request(k).request.input_len).max()?;
    let catch_up = prefix(table, target.block, samples, rows, longest);
    let in_flight: u32 = entries().map(|e| e.samples).sum();
    let waited: u64 = view
        .queue(model)
        .iter()
        .take(n)
        .map(|k| view.now.since(view.request(k).request.arrival).0)
        .sum();
    let disturbance = f64::from(in_flight) * catch_up as f64;
    (waited as f64 >= factor * disturbance).then_some(room)
}

/// Nanoseconds from the start to the head of `block`.
fn prefix(table: &LatencyTable, block: u32, samples: u32, rows: u64, input_len: u32) -> u64 {
    (0..block)
        .map(|b| {
            let passes = match table.repeat(b) {
                Repeat::Once => 1,
                Repeat::PerInputStep { stride } => u64::from(input_len.div_ceil(stride)),
                Repeat::UntilStop { .. } => 1,
            };
            passes * table.pass(b, 0, samples, rows).0
        })
        .sum()
}
