//! Which of several models goes next, among flows of one priority level.
//!
//! By the least charge alone (`share.rs`) a model whose requests come seldom has its turn as soon as
//! one of them comes: it runs in the smallest batches, in which it takes the most of the device, and
//! there is no time left for batches of the others. So a rule may let models take turns by what is good
//! for their requests, as long as they have been charged nearly as little: whoever has been charged more
//! than the least by [`ROUNDS`] rounds, a full batch of every model that has work each, comes behind.
//! What one has been charged less counts only while it waits (`Shares::forgive`), and no more than
//! [`ROUNDS`] rounds of it as long as nobody has waited for as long (`Shares::bound`): near capacity
//! somebody of every model waits at any time, and one that is asked for seldom has been charged less by
//! ever more although nobody of it waits for long. While a model with loops has work it counts however
//! much it is: its requests are in flight for many passes, and are let through pass by pass.
//!
//! Source of `short` and `ripe`: the rule c mu of the theory of queues (Cox and Smith, "Queues", 1961),
//! who holds up most for its time first, and MaxWeight (Tassiulas and Ephremides, 1992), which weighs by
//! what has gathered as well. That of `cost`: the rules of apparent tardiness costs for job shops
//! (Vepsalainen and Morton, Management Science 33, 1987), by which what is at stake counts the more the
//! sooner it is lost. Here batches take the place of single requests, so that what is proved of those is
//! not proved of these.
//!
//! While a model with loops has work, those that are too late count as the others do, behind them: their
//! batch, too, is served the sooner the more it is for the time that it takes. While they did not, a model
//! of which all who waited were late had its turn behind everybody else's, so that what its requests take,
//! by which they are found to be late, stayed as long as it was, and those that came were late as well.
//! Without loops they count for nothing: what a chain takes varies little, and beyond capacity those that
//! can still be in time would wait for the backlogs of others.

use std::cmp::Ordering;

use lazybatch_sla::{ModelId, Nanos, Time};
use smallvec::SmallVec;

use super::adaptive::MISS_WEIGHT;
use super::gate::rows;
use super::promise::Promises;
use super::share::{Claim, Shares};
use crate::core::{Flow, Key, RequestState, SubBatch, View};

/// By how many rounds a model may have been charged more than another before that goes first. With fewer
/// models are in each other's way where batches are small and queues long; with more one that asks for its
/// share waits for longer beside one that asks for too much.
const ROUNDS: f64 = 8.0;
/// What is at stake counts by `exp(-slack / tau)`, `tau` being so much of what a batch takes, in the mean of
/// the models.
const SOON: f64 = 0.15;
/// When a request without a target counts as due, behind its arrival.
const PATIENCE: Nanos = Nanos::from_ms(1000);

/// The most that who goes within a pass of another takes of what is left of it.
const BRIEF: f64 = 0.5;
/// The time over which [`Busy`] looks back, and the share of it that the device may have worked while it
/// has time to spare: where every batch that could run does run, at once and alone, it has.
const RECENT: f64 = 100e6;
const SPARE: f64 = 0.9;

/// For how much of the recent past the device has worked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    until: Time,
    /// Nanoseconds that launches took, and that have passed, the older the less.
    worked: f64,
    passed: f64,
}

impl Busy {
    pub fn on_done(&mut self, now: Time, took: Nanos) {
        let since = now.since(self.until).0 as f64;
        let kept = (-since / RECENT).exp();
        self.worked = self.worked * kept + took.0 as f64;
        self.passed = self.passed * kept + since;
        self.until = now;
    }

    fn has_time_to_spare(&self) -> bool {
        self.worked < SPARE * self.passed
    }
}

/// How models take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    /// By charge alone.
    Least,
    /// By charge, and by [`Self::Cost`] within a pass and while the device has time to spare ([`Busy`]).
    Spare,
    /// That whose last pass of a block began first.
    Round,
    /// The earliest deadline first; by [`Self::Short`] among models of which everybody is late.
    Due,
    /// By the requests of a batch, each over the time that it takes to its end.
    Short,
    /// By the time since their arrivals, each over the time that it takes to its end.
    Ripe,
    /// By what the requests of a batch cost for each moment that they wait, each over the time that it
    /// takes to its end: their time, and their targets the more the sooner they are missed.
    Cost,
}

/// The words of a rule.
const WORDS: [(&str, Turns); 6] = [
    ("spare", Turns::Spare),
    ("round", Turns::Round),
    ("due", Turns::Due),
    ("short", Turns::Short),
    ("ripe", Turns::Ripe),
    ("cost", Turns::Cost),
];

/// The last passes of blocks that began, as numbers that grow, by model.
pub(super) type Began = Vec<u64>;

impl Turns {
    /// That of a word.
    pub fn find(word: &str) -> Option<Self> {
        WORDS.iter().find(|w| w.0 == word).map(|w| w.1)
    }

    /// What it comes to now.
    pub fn now(self, busy: &Busy) -> Self {
        match self {
            Self::Spare if busy.has_time_to_spare() => Self::Cost,
            turns => turns,
        }
    }

    /// Whether another model may have its turn within a pass if it is brief.
    pub fn lets_through(self) -> bool {
        !matches!(self, Self::Least | Self::Round)
    }

    /// Whose turn it is within a pass of the entry that runs, the only one if nobody else's: that of a
    /// model whose batch takes less than [`BRIEF`] of what is left of the pass.
    pub fn within(
        self,
        view: &View<'_>,
        (shares, promises, began): (&mut Shares, &mut Promises, &Began),
        running: &SubBatch,
    ) -> SmallVec<[ModelId; 4]> {
        let own = smallvec::smallvec![running.model];
        if !self.lets_through() {
            return own;
        }
        let (turns, bounds) = match self {
            Self::Spare => (Self::Cost, false),
            turns => (turns, true),
        };
        let models = turns.order_by(view, shares, promises, began, bounds);
        let Some(&first) = models.first().filter(|m| **m != running.model) else {
            return own;
        };
        let table = &view.model(running.model).table;
        let (block, segment) = (running.block, running.segment);
        let left = table.pass(block, segment, running.samples, rows(view, running));
        let takes = takes(view, promises, first).0 as f64;
        match takes < BRIEF * left.0 as f64 {
            true => models,
            false => own,
        }
    }

    /// Models that have someone ready or launchable, in the order of their turns.
    pub fn order(
        self,
        view: &View<'_>,
        shares: &mut Shares,
        promises: &mut Promises,
        began: &Began,
    ) -> SmallVec<[ModelId; 4]> {
        self.order_by(view, shares, promises, began, true)
    }

    /// The same; without `bounds` for a rule that goes by the least charge else, what is owed stays.
    fn order_by(
        self,
        view: &View<'_>,
        shares: &mut Shares,
        promises: &mut Promises,
        began: &Began,
        bounds: bool,
    ) -> SmallVec<[ModelId; 4]> {
        let mut models: SmallVec<[ModelId; 4]> = view.ready().collect();
        let launchable = view.table().iter().filter(|e| view.is_launchable(e));
        models.extend(launchable.map(|e| e.model));
        models.sort_unstable();
        models.dedup();
        if models.len() < 2 {
            return models;
        }
        if self != Self::Least {
            shares.forgive(view);
        }
        let have_loops = models.iter().any(|&m| view.model(m).has_loops());
        let full = |&m: &ModelId| promises.whole(view, m, view.model(m).max_batch).0 as f64;
        let more = match self {
            Self::Least | Self::Spare => 0.0,
            _ => {
                let rounds = ROUNDS * models.iter().map(full).sum::<f64>();
                if bounds && !have_loops {
                    shares.bound(view, &models, rounds);
                }
                rounds
            }
        };
        let soon = match self {
            Self::Cost => {
                let all: u64 = models.iter().map(|&m| takes(view, promises, m).0).sum();
                (SOON * all as f64 / models.len() as f64).max(1.0)
            }
            _ => 1.0,
        };
        let claims: SmallVec<[Claim; 4]> = models.iter().map(|&m| shares.of_model(m)).collect();
        let Some(least) = claims.iter().copied().min_by(Claim::order) else {
            return models;
        };
        let most = least.charged + more;
        let of_model = |(&model, claim): (&ModelId, Claim)| {
            let one = |_: &RequestState, _: f64| 1.0;
            let (mut merit, mut of_late) = (0.0, 0.0);
            match self {
                Self::Least | Self::Spare => {}
                Self::Round => {
                    let began = began.get(model.index()).copied().unwrap_or_default();
                    merit = -(began as f64);
                }
                Self::Due => {
                    let due = first_due(view, model);
                    merit = -(due.0 as f64);
                    if due == Time::MAX {
                        of_late = batch_merit(view, promises, (model, have_loops), one);
                    }
                }
                Self::Short => merit = batch_merit(view, promises, (model, have_loops), one),
                Self::Ripe => {
                    let age = |r: &RequestState| view.now.since(r.request.arrival).0 + 1;
                    let counts = |r: &RequestState, _| age(r) as f64;
                    merit = batch_merit(view, promises, (model, have_loops), counts);
                }
                Self::Cost => {
                    let counts = |r: &RequestState, takes| cost(view, r, takes, soon);
                    merit = batch_merit(view, promises, (model, have_loops), counts);
                }
            }
            Turn {
                model,
                claim,
                is_behind: !claim.is_as_urgent(&least) || claim.charged > most,
                merit: [merit, of_late],
            }
        };
        let mut turns: SmallVec<[Turn; 4]> = models.iter().zip(claims).map(of_model).collect();
        turns.sort_by(Turn::order);
        turns.iter().map(|turn| turn.model).collect()
    }
}

/// A model at a decision.
struct Turn {
    model: ModelId,
    claim: Claim,
    /// Others of its level have been charged too much less, or are of a higher level.
    is_behind: bool,
    /// The greatest first; the second counts where the first is the same.
    merit: [f64; 2],
}

impl Turn {
    fn order(&self, other: &Self) -> Ordering {
        let same = match self.is_behind {
            true => self.claim.order(&other.claim),
            false => {
                let by = |i: usize| other.merit[i].total_cmp(&self.merit[i]);
                by(0).then(by(1))
            }
        };
        let behind = self.is_behind.cmp(&other.is_behind);
        behind.then(same).then(self.model.cmp(&other.model))
    }
}

/// Entries of a model that may be launched.
fn entries<'a>(view: &View<'a>, model: ModelId) -> impl Iterator<Item = &'a SubBatch> {
    let view = *view;
    let own = move |e: &&SubBatch| e.model == model && view.is_launchable(e);
    view.table().iter().filter(own)
}

/// Flows of a model that wait and are neither too late nor delayed.
fn in_time<'a>(view: &View<'a>, model: ModelId) -> impl Iterator<Item = &'a Flow> {
    view.queue(model).flows().filter(|f| !is_put_off(f))
}

fn is_put_off(flow: &Flow) -> bool {
    flow.key.is_late || flow.key.is_delayed
}

/// The batch that those who wait would make: those that are too late, if they count, fill it up behind the
/// others.
fn gathered<'a>(
    view: &View<'a>,
    model: ModelId,
    late_count: bool,
) -> (SmallVec<[&'a RequestState; 16]>, u32) {
    let put_off = view.queue(model).flows();
    let put_off = put_off.filter(|f| late_count && is_put_off(f));
    let waiting = in_time(view, model).chain(put_off).flat_map(Flow::iter);
    let (mut batch, mut samples) = (SmallVec::new(), 0);
    for state in waiting.map(|key: Key| view.request(key)) {
        let more = samples + state.request.samples;
        if samples > 0 && more > view.model(model).max_batch {
            break;
        }
        samples = more;
        batch.push(state);
    }
    (batch, samples)
}

/// The time until the batch that would run is at its end; where several are in flight the least.
fn takes(view: &View<'_>, promises: &mut Promises, model: ModelId) -> Nanos {
    let rest = |e: &SubBatch| {
        let first = view.members(e).next()?;
        Some(promises.rest(view, e, (first, rows(view, e))))
    };
    if let Some(least) = entries(view, model).filter_map(rest).min() {
        return least;
    }
    let samples: u32 = in_time(view, model).map(Flow::num_samples).sum();
    promises.whole(view, model, samples.clamp(1, view.model(model).max_batch))
}

/// The earliest deadline of those in flight and of those who are first in their flows.
fn first_due(view: &View<'_>, model: ModelId) -> Time {
    let due = |r: &RequestState| match r.deadline {
        Time::MAX => r.request.arrival + PATIENCE,
        deadline => deadline,
    };
    let in_flight = entries(view, model).flat_map(|e| view.members(e));
    let waiting = in_time(view, model).filter_map(Flow::front);
    let waiting = waiting.map(|key| view.request(key));
    in_flight.chain(waiting).map(due).min().unwrap_or(Time::MAX)
}

/// What the requests of the batch that would run count, by the weights of their classes, each over the time
/// that it takes to its end, in nanoseconds; of entries in flight and those who wait what comes to most. A
/// request counts by that time.
fn batch_merit(
    view: &View<'_>,
    promises: &mut Promises,
    (model, late_count): (ModelId, bool),
    counts: impl Fn(&RequestState, f64) -> f64,
) -> f64 {
    let weight = |r: &RequestState| view.classes()[r.request.class.index()].weight;
    let of_entry = |e: &SubBatch| {
        let rows = rows(view, e);
        let of_member = |r: &RequestState| {
            let takes = promises.rest(view, e, (r, rows)).0.max(1) as f64;
            weight(r) * counts(r, takes) / takes
        };
        view.members(e).map(of_member).sum::<f64>()
    };
    let most = entries(view, model).map(of_entry).fold(0.0, f64::max);
    if !view.is_ready(model) {
        return most;
    }
    let (batch, samples) = gathered(view, model, late_count);
    let takes = promises.whole(view, model, samples.max(1)).0.max(1) as f64;
    let counted = batch.iter().map(|r| weight(r) * counts(r, takes));
    most.max(counted.sum::<f64>() / takes)
}

/// What one costs for each moment that it waits, as a share of its time there: that itself, and what a miss
/// costs, the more the sooner it is missed by a batch that takes so long.
fn cost(view: &View<'_>, r: &RequestState, takes: f64, soon: f64) -> f64 {
    let slack = r.deadline.since(view.now).0 as f64 - takes;
    if r.deadline == Time::MAX || slack < 0.0 {
        return 1.0;
    }
    let target = r.deadline.since(r.request.arrival).0 as f64;
    1.0 + MISS_WEIGHT * target / soon * (-slack / soon).exp()
}
