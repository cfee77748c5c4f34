//! Bounds how many later requests may end before an earlier one.
//!
//! A request is *passed over* by every request that arrived later and ended earlier. When the
//! oldest open request has been passed over [`Rescue::FACTOR`] times the requests that may be in
//! flight, it is rescued: if it waits, it is admitted with those behind it as soon as there is
//! room, alone if it is delayed, and nobody else is; if it is in flight, its entry runs until it has ended.
//!
//! Whoever can still be in time must not pay for all who cannot, nor a higher priority level for
//! all lower ones: for each request that is rescued, [`Rescue::OTHERS`] must have ended. So one that
//! finds `p` open requests when it arrives is passed over at most
//! `FACTOR x max_in_flight + OTHERS x (p + 1)` times before its rescue begins, and then by the
//! `max_in_flight` at most that are in flight with it.

use std::collections::VecDeque;

use lazybatch_sla::RequestId;
use rustc_hash::FxHashSet;

use super::{Decision, Pick};
use crate::core::{Ending, ModelSpec, Request, View};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Rescue {
    bound: u64,
    /// Open requests, and perhaps ended ones behind the oldest: id, endings at which everyone
    /// older had ended if nobody passed it over.
    open: VecDeque<(RequestId, u64)>,
    /// Ended requests that are still in `open`.
    ended: FxHashSet<RequestId>,
    num_ended: u64,
    /// Endings that rescues have used up.
    used: u64,
    /// Who is being rescued.
    paid: Vec<RequestId>,
}

impl Rescue {
    /// Times the most requests in flight of all models that a request may be passed over.
    pub const FACTOR: u64 = 16;
    /// Requests that end for each that is rescued from a queue.
    pub const OTHERS: u64 = 64;

    /// These are the models.
    pub fn start(&mut self, models: &[ModelSpec]) {
        let in_flight: u64 = models.iter().map(|m| u64::from(m.max_in_flight)).sum();
        self.bound = Self::FACTOR * in_flight;
    }

    pub fn on_arrive(&mut self, request: &Request) {
        let num_open = (self.open.len() - self.ended.len()) as u64;
        self.open.push_back((request.id, self.num_ended + num_open));
    }

    pub fn on_end(&mut self, ending: &Ending) {
        self.num_ended += 1;
        self.ended.insert(ending.id);
        while let Some((first, _)) = self.open.front()
            && self.ended.remove(first)
        {
            self.open.pop_front();
        }
    }

    /// What the rescue of the oldest open request asks for; `None` where there is nothing to do.
    pub fn decide(&mut self, view: &View<'_>) -> Option<Decision> {
        let &(oldest, baseline) = self.open.front()?;
        if self.num_ended <= baseline + self.bound {
            return None;
        }
        if let Some(entry) = view.entry_of(oldest) {
            let ids = view.members(entry).map(|r| r.request.id);
            if !self.pay(oldest, ids) {
                return None;
            }
            return Some(if view.is_launchable(entry) {
                Decision::Launch(entry.id)
            } else {
                Decision::Wait { until: None }
            });
        }
        let mut ready = view.ready();
        let (model, key) = ready.find_map(|m| Some((m, view.queue(m).find(oldest)?)))?;
        if view.queue(model).front() != Some(key) {
            // It is delayed: those before it in the queue came later.
            return self
                .pay(oldest, [oldest].into_iter())
                .then_some(Decision::Admit {
                    model,
                    pick: Pick::These(vec![key]),
                    padded: false,
                });
        }
        let n = view.fitting_prefix(model, view.model(model).max_batch);
        let keys = view.queue(model).iter().take(n);
        let ids = keys.map(|k| view.request(k).request.id);
        (n > 0 && self.pay(oldest, ids)).then_some(Decision::Admit {
            model,
            pick: Pick::First(n),
            padded: false,
        })
    }

    /// Whether those who are rescued with `oldest` are paid for, now or before.
    fn pay(&mut self, oldest: RequestId, ids: impl Iterator<Item = RequestId>) -> bool {
        if self.paid.contains(&oldest) {
            return true;
        }
        if self.num_ended < self.used {
            return false;
        }
        self.paid.clear();
        self.paid.extend(ids);
        // What was not used does not add up beyond the bound.
        let used = self.used.max(self.num_ended - self.bound);
        self.used = used + Self::OTHERS * self.paid.len() as u64;
        true
    }
}
