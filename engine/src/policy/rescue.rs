//! Bounds how many later requests may end before an earlier one.
//!
//! A request is *passed over* by every request that arrived later and ended earlier. When an open
//! request has been passed over [`Rescue::FACTOR`] times the requests that may be in flight, and
//! every older one advances or has no place to run, it is rescued: if it waits, it is admitted with
//! those behind it as soon as there is room, alone if it is delayed, and nobody else is; if it is in
//! flight and its entry was not launched while as many ended as may be in flight, its entry runs until it has ended, or for
//! [`Rescue::LAUNCHES`] launches. One that takes longer is served as all others are from there on,
//! and rescued anew if it is parked again: a long answer that advances with the others is passed over
//! by many of them, and starves of nothing.
//!
//! Whoever can still be in time must not pay for all who cannot, nor a higher priority level for
//! all lower ones: for each request that is rescued, [`Rescue::OTHERS`] must have been served (those
//! that were refused took nothing of the device). So one that
//! finds `p` open requests when it arrives is passed over at most
//! `FACTOR x max_in_flight + OTHERS x (p + 1)` times before its rescue begins, a quarter of
//! `max_in_flight` more where others were looked at in vain before it, and for each of its launches behind that, which puts the rescue off, by a quarter more than `max_in_flight`; and then,
//! if a rescue has as many launches as it still takes, by the `max_in_flight` at most that are in
//! flight with it.

use std::collections::VecDeque;

use lazybatch_sla::{ModelId, RequestId};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{Decision, Pick};
use crate::core::{Ending, Key, ModelSpec, Request, SubBatch, View};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Rescue {
    /// Most requests in flight, of all models.
    in_flight: u64,
    /// How many ended and how many nodes were launched, now and then, the last time that as many
    /// endings are past as may be in flight and since.
    marks: VecDeque<(u64, u64)>,
    /// Open requests, and ended ones behind the oldest, about as many at the most: id, endings at
    /// which everyone older had ended if nobody passed it over, which is how many arrived before.
    open: VecDeque<Passed>,
    /// Ended requests that are still in `open`.
    ended: FxHashSet<RequestId>,
    num_ended: u64,
    /// Of them, those that were answered, and how many of these rescues have used up.
    num_served: u64,
    used: u64,
    /// Who is being rescued and has not ended.
    paid: Vec<RequestId>,
    /// Launches that their rescue still has.
    launches: u32,
    /// The last look found nothing to do.
    vain: Option<Vain>,
}

/// An open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passed {
    id: RequestId,
    model: ModelId,
    /// See [`Rescue::open`].
    from: u64,
}

/// A look at all who were passed over that found nothing to do.
#[derive(Clone, Debug)]
struct Vain {
    /// How many will have ended when it is worth another: who advances is not parked before, nor has
    /// who waits for its sequence had its turn for long.
    until: u64,
    /// Models of which somebody found no slot.
    full: SmallVec<[ModelId; 4]>,
}

impl Rescue {
    /// Times the most requests in flight of all models that a request may be passed over.
    pub const FACTOR: u64 = 16;
    /// Requests that end for each that is rescued.
    pub const OTHERS: u64 = 64;
    /// Launches of a rescue.
    pub const LAUNCHES: u32 = 64;
    /// Ended requests that may stay in `open` beside half of those that are in it.
    const FEW: usize = 16;
    /// Marks while as many end as may be in flight.
    const MARKS: u64 = 4;

    /// These are the models.
    pub fn start(&mut self, models: &[ModelSpec]) {
        self.in_flight = models.iter().map(|m| u64::from(m.max_in_flight)).sum();
        self.vain = None;
    }

    /// Later requests that may end before one is rescued.
    fn bound(&self) -> u64 {
        Self::FACTOR * self.in_flight
    }

    pub fn on_arrive(&mut self, request: &Request) {
        let num_open = (self.open.len() - self.ended.len()) as u64;
        self.open.push_back(Passed {
            id: request.id,
            model: request.model,
            from: self.num_ended + num_open,
        });
    }

    pub fn on_end(&mut self, ending: &Ending) {
        self.num_ended += 1;
        self.num_served += u64::from(ending.outcome.is_completed());
        if let Some(at) = self.paid.iter().position(|&p| p == ending.id) {
            self.paid.swap_remove(at);
            if self.paid.is_empty() {
                self.launches = 0;
            }
        }
        self.ended.insert(ending.id);
        while let Some(first) = self.open.front()
            && self.ended.remove(&first.id)
        {
            self.open.pop_front();
        }
        // Every look goes over those that were passed over: the ended ones must not outnumber them.
        if self.ended.len() > Self::FEW + self.open.len() / 2 {
            self.open.retain(|o| !self.ended.contains(&o.id));
            self.ended.clear();
        }
    }

    /// What a rescue asks for; `None` where there is nothing to do.
    pub fn decide(&mut self, view: &View<'_>) -> Option<Decision> {
        self.mark(view.num_nodes());
        if self.launches == 0 && (self.num_served < self.used || self.looks_in_vain(view)) {
            // Nobody is being rescued, and nobody can be.
            return None;
        }
        let bound = self.bound();
        let num = self
            .open
            .partition_point(|o| self.num_ended > o.from + bound);
        let mut full = SmallVec::new();
        for i in 0..num {
            let Passed { id, model, .. } = self.open[i];
            if self.ended.contains(&id) {
                continue;
            }
            if let Some(entry) = view.entry_of(id) {
                let is_due = self.is_parked(entry);
                if !self.is_begun(id) && !is_due {
                    // It advances with the others.
                    continue;
                }
                let ids = view.members(entry).map(|r| r.request.id);
                if !self.pay(id, ids) {
                    return None;
                }
                if !view.is_launchable(entry) {
                    return Some(Decision::Wait { until: None });
                }
                self.launches -= 1;
                return Some(Decision::Launch(entry.id));
            }
            if !view.is_ready(model) {
                // It has no slot, or no weights yet.
                if !full.contains(&model) {
                    full.push(model);
                }
                continue;
            }
            let Some(key) = view.queue(model).find(id) else {
                // It waits for those before it in its sequence.
                continue;
            };
            return self.admit(view, id, model, key);
        }
        if num > 0 {
            let until = self.num_ended + self.in_flight.div_ceil(Self::MARKS);
            self.vain = Some(Vain { until, full });
        }
        None
    }

    /// Whether the last look found nothing to do, and another would not either.
    fn looks_in_vain(&self, view: &View<'_>) -> bool {
        self.vain.as_ref().is_some_and(|vain| {
            self.num_ended < vain.until && !vain.full.iter().any(|&m| view.is_ready(m))
        })
    }

    fn admit(
        &mut self,
        view: &View<'_>,
        id: RequestId,
        model: ModelId,
        key: Key,
    ) -> Option<Decision> {
        if view.queue(model).front() != Some(key) {
            // It is delayed, or somebody who is older has no place: those before it are not meant.
            return self.pay(id, [id].into_iter()).then_some(Decision::Admit {
                model,
                pick: Pick::These(vec![key]),
                padded: false,
            });
        }
        let n = view.fitting_prefix(model, view.model(model).max_batch);
        let keys = view.queue(model).iter().take(n);
        let ids = keys.map(|k| view.request(k).request.id);
        (n > 0 && self.pay(id, ids)).then_some(Decision::Admit {
            model,
            pick: Pick::First(n),
            padded: false,
        })
    }

    /// Notes how far all are.
    fn mark(&mut self, num_nodes: u64) {
        let every = self.in_flight.div_ceil(Self::MARKS).max(1);
        if let Some(&(last, _)) = self.marks.back()
            && self.num_ended < last + every
        {
            return;
        }
        self.marks.push_back((self.num_ended, num_nodes));
        let is_past = |m: &(u64, u64)| m.0 + self.in_flight <= self.num_ended;
        while self.marks.get(1).is_some_and(is_past) {
            self.marks.pop_front();
        }
    }

    /// Whether an entry was not launched while as many requests ended as may be in flight.
    fn is_parked(&self, entry: &SubBatch) -> bool {
        let is_past = |m: &&(u64, u64)| m.0 + self.in_flight <= self.num_ended;
        let past = self.marks.front().filter(is_past);
        past.is_some_and(|&(_, nodes)| entry.ran_at().is_none_or(|at| at <= nodes))
    }

    /// Whether a request is being rescued.
    fn is_begun(&self, id: RequestId) -> bool {
        self.launches > 0 && self.paid.contains(&id)
    }

    /// Whether those who are rescued with `id` are paid for, now or before.
    fn pay(&mut self, id: RequestId, ids: impl Iterator<Item = RequestId>) -> bool {
        if self.is_begun(id) {
            return true;
        }
        if self.num_served < self.used {
            return false;
        }
        self.paid.clear();
        self.paid.extend(ids);
        self.launches = Self::LAUNCHES;
        // What was not used does not add up beyond the bound.
        let used = self.used.max(self.num_served.saturating_sub(self.bound()));
        self.used = used + Self::OTHERS * self.paid.len() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixtures::{ending, request};

    #[test]
    fn those_who_ended_do_not_pile_up_behind_one_who_stays() {
        let mut rescue = Rescue::default();
        rescue.on_arrive(&request(0));
        for id in 1..10_000 {
            rescue.on_arrive(&request(id));
            // Every third stays for a while too.
            match id % 3 {
                0 => {}
                _ => rescue.on_end(&ending(id)),
            }
            if id % 3 == 0 && id > 300 {
                rescue.on_end(&ending(id - 300));
            }
            let num_open = rescue.open.len() - rescue.ended.len();
            assert!(
                rescue.open.len() <= 2 * (num_open + 2 * Rescue::FEW),
                "{id}"
            );
            // As many were open as had arrived and not ended, and whoever came later has a later place.
            assert_eq!(num_open as u64, id + 1 - rescue.num_ended);
            let places = rescue.open.iter().map(|o| o.from);
            assert!(places.is_sorted_by(|a, b| a < b));
        }
        let first = rescue.open.front().unwrap();
        assert_eq!((first.id, first.from), (RequestId(0), 0));
        rescue.on_end(&ending(0));
        assert!(
            rescue
                .open
                .front()
                .is_some_and(|o| !rescue.ended.contains(&o.id))
        );
    }
}
