//! Shares of the device among flows: the requests of one model, class and priority level.
//!
//! A flow is charged the device time of its launches, divided by the weight of its class; a launch
//! that carries several flows is charged by samples. Who has been charged least comes first, as in
//! weighted fair queueing. A flow that had nothing to do starts level with the least charged of those
//! of its level that have, or, behind a moment in which nobody of it had, with whoever of it has been
//! charged most, so that it can neither save up time nor owe any (start-time fair queueing: Goyal, Vin,
//! Cheng, SIGCOMM 1996).

use std::cmp::Ordering;

use lazybatch_sla::{ClassId, ModelId, Nanos};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::core::{Ending, Flow, Request, SubBatch, View};

/// One flow.
#[derive(Clone, Copy, Debug)]
struct Share {
    model: ModelId,
    class: ClassId,
    level: u8,
    /// Requests that have arrived and not ended.
    open: u32,
    /// Device time over weight, in nanoseconds.
    charged: f64,
}

impl Share {
    /// For how long the oldest of it has waited for the start or been in flight.
    fn longest(&self, view: &View<'_>) -> Nanos {
        let is_own = |f: &&Flow| f.key.class == self.class && f.key.level == self.level;
        let waiting = view.queue(self.model).flows().filter(is_own);
        let waiting = waiting.filter_map(Flow::front);
        let waiting = waiting.map(|key| view.request(key));
        let entries = view.table().iter().filter(|e| e.model == self.model);
        let in_flight = entries.flat_map(|e| view.members(e));
        let in_flight =
            in_flight.filter(|m| (m.request.class, m.request.priority) == (self.class, self.level));
        let arrivals = waiting.chain(in_flight).map(|r| r.request.arrival);
        arrivals.min().map_or(Nanos::ZERO, |a| view.now.since(a))
    }
}

/// Who comes first: priority levels from 1 up, then 0; then the least charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    rank: u32,
    pub charged: f64,
}

impl Claim {
    /// Of those who have nothing to do.
    const NONE: Self = Self {
        rank: u32::MAX,
        charged: f64::INFINITY,
    };

    pub fn order(&self, other: &Self) -> Ordering {
        let charged = || self.charged.total_cmp(&other.charged);
        self.rank.cmp(&other.rank).then_with(charged)
    }

    /// Whether its priority level is that of [`Shares::foremost`], or comes before it.
    pub fn is_foremost(&self, foremost: u32) -> bool {
        self.rank <= foremost
    }

    /// Whether its priority level is that of `other`, or comes before it.
    pub fn is_as_urgent(&self, other: &Self) -> bool {
        self.rank <= other.rank
    }
}

fn rank(level: u8) -> u32 {
    match level {
        0 => 256,
        level => u32::from(level),
    }
}

/// Flows beyond which those are forgotten of which nobody is open and nothing has to be known: clients
/// choose levels and classes.
const KEPT: usize = 16;

/// Flows so far, but for forgotten ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    flows: Vec<Share>,
    /// The most that any of a priority level was charged when last nobody of it had work.
    levels: FxHashMap<u8, f64>,
}

impl Shares {
    fn find(&mut self, model: ModelId, class: ClassId, level: u8) -> &mut Share {
        let is = |s: &Share| (s.model, s.class, s.level) == (model, class, level);
        let at = self.flows.iter().position(is).unwrap_or_else(|| {
            self.flows.push(Share {
                model,
                class,
                level,
                open: 0,
                charged: 0.0,
            });
            self.flows.len() - 1
        });
        &mut self.flows[at]
    }

    pub fn on_arrive(&mut self, request: &Request) {
        // Those of other levels come before all of them or behind, whatever they were charged.
        let level = request.priority;
        let busy = self.flows.iter().filter(|s| s.level == level && s.open > 0);
        let least = busy.map(|s| s.charged).min_by(f64::total_cmp);
        let behind = || self.levels.get(&level).copied().unwrap_or_default();
        let least = least.unwrap_or_else(behind);
        let share = self.find(request.model, request.class, request.priority);
        if share.open == 0 {
            share.charged = share.charged.max(least);
        }
        share.open += 1;
    }

    /// Forgets a model: nobody of it is there.
    pub fn on_model(&mut self, model: ModelId) {
        self.flows.retain(|s| s.model != model);
    }

    pub fn on_end(&mut self, ending: &Ending) {
        let share = self.find(ending.model, ending.class, ending.priority);
        share.open = share.open.saturating_sub(1);
        let level = ending.priority;
        let of_level = || self.flows.iter().filter(|s| s.level == level);
        if of_level().all(|s| s.open == 0) {
            let charged = of_level().map(|s| s.charged).fold(0.0, f64::max);
            let known = self.levels.entry(level).or_default();
            *known = known.max(charged);
        }
        if self.flows.len() > KEPT {
            self.forget(level);
        }
    }

    /// Forgets flows of a level of which nobody is open, and who would start level with the others if
    /// they came back now, and so at any later time.
    fn forget(&mut self, level: u8) {
        let busy = self.flows.iter().filter(|s| s.level == level && s.open > 0);
        let least = busy.map(|s| s.charged).min_by(f64::total_cmp);
        let least = least.unwrap_or(f64::INFINITY);
        let is_known = |s: &Share| s.level != level || s.open > 0 || s.charged > least;
        self.flows.retain(is_known);
    }

    /// A launch of `entry` that takes that long.
    pub fn charge(&mut self, view: &View<'_>, entry: &SubBatch, took: Nanos) {
        let weight = |c: ClassId| view.classes()[c.index()].weight;
        let ns = took.0 as f64;
        let mut of_model = self.flows.iter_mut().filter(|s| s.model == entry.model);
        if let (Some(only), None) = (of_model.next(), of_model.next()) {
            only.charged += ns / weight(only.class);
            return;
        }
        let each = ns / f64::from(entry.samples);
        for member in view.members(entry) {
            let r = &member.request;
            let share = self.find(r.model, r.class, r.priority);
            share.charged += each * f64::from(r.samples) / weight(r.class);
        }
    }

    /// Who has nobody waiting, for the start or for a launch, but in the entry that ran last, has all
    /// that it asks for, and is not owed more than those who have.
    pub fn forgive(&mut self, view: &View<'_>) {
        let ran_last = |e: &SubBatch| e.ran_at() == Some(view.num_nodes());
        let parked = view.table().iter().filter(|e| !ran_last(e));
        let mut parked: SmallVec<[ModelId; 4]> = parked.map(|e| e.model).collect();
        parked.dedup();
        let waits = |s: &Share| {
            let is_own = |f: &Flow| f.key.class == s.class && f.key.level == s.level;
            s.open > 0 && (parked.contains(&s.model) || view.queue(s.model).flows().any(is_own))
        };
        let waiting: SmallVec<[bool; 4]> = self.flows.iter().map(waits).collect();
        // Of each level the least charged of those that wait.
        let mut least: SmallVec<[(u8, f64); 4]> = SmallVec::new();
        for (share, _) in self.flows.iter().zip(&waiting).filter(|w| *w.1) {
            match least.iter_mut().find(|l| l.0 == share.level) {
                Some((_, least)) => *least = least.min(share.charged),
                None => least.push((share.level, share.charged)),
            }
        }
        for (share, _) in self.flows.iter_mut().zip(&waiting).filter(|w| !w.1) {
            let least = least.iter().find(|l| l.0 == share.level);
            if let Some((_, least)) = least.filter(|_| share.open > 0) {
                share.charged = share.charged.max(*least);
            }
        }
    }

    /// A flow of these models is owed no more than `most`, against whoever of its level has been charged
    /// most, as long as nobody of it has waited for longer than that. Those that are too late count as
    /// waiting: nothing else would bring them to their turn.
    pub fn bound(&mut self, view: &View<'_>, models: &[ModelId], most: f64) {
        let counts = |s: &Share| s.open > 0 && models.contains(&s.model);
        let mut highest: SmallVec<[(u8, f64); 4]> = SmallVec::new();
        for share in self.flows.iter().filter(|s| counts(s)) {
            match highest.iter_mut().find(|h| h.0 == share.level) {
                Some((_, highest)) => *highest = highest.max(share.charged),
                None => highest.push((share.level, share.charged)),
            }
        }
        for share in self.flows.iter_mut().filter(|s| counts(s)) {
            let highest = highest.iter().find(|h| h.0 == share.level);
            let least = highest.map_or(0.0, |h| h.1) - most;
            if share.charged < least && share.longest(view).0 as f64 <= most {
                share.charged = least;
            }
        }
    }

    /// How urgent the most urgent level is of those who wait and are in time, of models that have a slot.
    pub fn foremost(view: &View<'_>) -> u32 {
        let flows = view.ready().flat_map(|m| view.queue(m).flows());
        let in_time = flows.filter(|f| !f.key.is_late && !f.key.is_delayed);
        in_time.map(|f| rank(f.key.level)).min().unwrap_or(u32::MAX)
    }

    /// The claim of one flow.
    pub fn claim(&mut self, model: ModelId, class: ClassId, level: u8) -> Claim {
        Claim {
            rank: rank(level),
            charged: self.find(model, class, level).charged,
        }
    }

    /// The foremost claim of a model's flows that have work.
    pub fn of_model(&self, model: ModelId) -> Claim {
        let busy = self.flows.iter().filter(|s| s.model == model && s.open > 0);
        let claim = |s: &Share| Claim {
            rank: rank(s.level),
            charged: s.charged,
        };
        busy.map(claim).min_by(Claim::order).unwrap_or(Claim::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixtures;

    fn request(id: u64, model: u32, level: u8) -> Request {
        Request {
            model: ModelId(model),
            priority: level,
            ..fixtures::request(id)
        }
    }

    fn ending(id: u64, model: u32, level: u8) -> Ending {
        Ending {
            model: ModelId(model),
            priority: level,
            ..fixtures::ending(id)
        }
    }

    #[test]
    fn a_starved_level_makes_nobody_of_another_owe() {
        let mut shares = Shares::default();
        let charge = |shares: &mut Shares, class, level, charged| {
            shares.find(ModelId(0), ClassId(class), level).charged = charged;
        };
        let arrive = |shares: &mut Shares, id, class, level| {
            let request = Request {
                class: ClassId(class),
                ..request(id, 0, level)
            };
            shares.on_arrive(&request);
        };
        arrive(&mut shares, 0, 0, 1);
        arrive(&mut shares, 1, 1, 0);
        charge(&mut shares, 0, 1, 3_420.0);
        charge(&mut shares, 1, 0, 180.0);
        // A second class of the first level, while the other level waits.
        arrive(&mut shares, 2, 2, 1);
        let charged = shares.find(ModelId(0), ClassId(2), 1).charged;
        assert_eq!(charged, 3_420.0);
    }

    #[test]
    fn who_comes_back_starts_level_with_those_at_work() {
        let mut shares = Shares::default();
        shares.on_arrive(&request(0, 0, 0));
        shares.find(ModelId(0), ClassId(0), 0).charged = 700.0;
        shares.on_arrive(&request(1, 1, 0));
        assert_eq!(shares.of_model(ModelId(1)).charged, 700.0);
        shares.find(ModelId(1), ClassId(0), 0).charged = 900.0;
        shares.on_end(&ending(1, 1, 0));
        assert_eq!(shares.of_model(ModelId(1)), Claim::NONE);
        // What it has used is not forgotten.
        shares.on_arrive(&request(2, 1, 0));
        assert_eq!(shares.of_model(ModelId(1)).charged, 900.0);
    }

    #[test]
    fn who_comes_first_behind_an_idle_moment_owes_and_saves_nothing() {
        for first in [0, 1] {
            let mut shares = Shares::default();
            shares.on_arrive(&request(0, 0, 0));
            shares.find(ModelId(0), ClassId(0), 0).charged = 700.0;
            shares.on_end(&ending(0, 0, 0));
            for model in [first, 1 - first] {
                shares.on_arrive(&request(1, model, 0));
                assert_eq!(shares.of_model(ModelId(model)).charged, 700.0);
            }
        }
    }

    #[test]
    fn what_nobody_needs_to_know_is_forgotten_and_changes_nothing() {
        // One of level 7 stays at work, or nobody does.
        for stays in [true, false] {
            let mut shares = Shares::default();
            let of = |id: u64, class: u32, level: u8| Request {
                class: ClassId(class),
                ..request(id, 0, level)
            };
            if stays {
                shares.on_arrive(&of(0, 0, 7));
                shares.find(ModelId(0), ClassId(0), 7).charged = 500.0;
            }
            for id in 1..5_000 {
                let (class, level) = (1 + id as u32 % 50, (id % 256) as u8);
                shares.on_arrive(&of(id, class, level));
                let share = shares.find(ModelId(0), ClassId(class), level);
                assert!(level != 7 || !stays || share.charged >= 500.0);
                share.charged += 10.0;
                let ending = Ending {
                    class: ClassId(class),
                    ..ending(id, 0, level)
                };
                shares.on_end(&ending);
                // Those of level 7 that owe something are known for as long as others of it work.
                assert!(shares.flows.len() <= KEPT + 51, "{}", shares.flows.len());
            }
            let owes = shares.flows.iter().filter(|s| s.level == 7 && s.open == 0);
            assert_eq!(owes.count() > 0, stays);
            // Who comes back starts where it would have.
            shares.on_arrive(&of(9_000, 60, 7));
            let charged = shares.find(ModelId(0), ClassId(60), 7).charged;
            assert!(charged >= if stays { 500.0 } else { 10.0 }, "{charged}");
        }
    }

    #[test]
    fn levels_come_before_charges_and_0_behind_all() {
        let mut shares = Shares::default();
        for (id, level) in [(0, 0), (1, 200), (2, 1)] {
            shares.on_arrive(&request(id, id as u32, level));
        }
        shares.find(ModelId(2), ClassId(0), 1).charged = 5.0;
        let mut models = [0, 1, 2].map(ModelId);
        models.sort_by(|&a, &b| shares.of_model(a).order(&shares.of_model(b)));
        assert_eq!(models, [2, 1, 0].map(ModelId));
    }
}
