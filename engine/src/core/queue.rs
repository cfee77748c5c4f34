//! Arrival queues: requests that are not yet in the batch table, per model, in order of arrival.

use std::collections::VecDeque;

use lazybatch_sla::RequestId;

use super::request::Key;

/// One model's waiting requests, oldest first.
#[derive(Clone, Debug, Default)]
pub struct ArrivalQueue {
    waiting: VecDeque<(RequestId, Key)>,
}

impl ArrivalQueue {
    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The oldest request.
    pub fn front(&self) -> Option<Key> {
        self.waiting.front().map(|w| w.1)
    }

    /// The youngest request.
    pub fn back(&self) -> Option<Key> {
        self.waiting.back().map(|w| w.1)
    }

    /// Waiting requests, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Key> + '_ {
        self.waiting.iter().map(|w| w.1)
    }

    /// Waiting requests behind one of that id, oldest first.
    pub fn iter_behind(&self, id: RequestId) -> impl Iterator<Item = Key> + '_ {
        let at = self.waiting.partition_point(|w| w.0 <= id);
        self.waiting.range(at..).map(|w| w.1)
    }

    /// Inserts in order of id; at the back in the common case.
    pub(crate) fn insert(&mut self, id: RequestId, key: Key) {
        if self.waiting.back().is_none_or(|last| last.0 < id) {
            self.waiting.push_back((id, key));
        } else {
            let at = self.waiting.partition_point(|w| w.0 < id);
            self.waiting.insert(at, (id, key));
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.waiting.pop_front().map(|w| w.1)
    }

    /// Removes a request by id; whether it was there.
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let at = self.waiting.partition_point(|w| w.0 < id);
        let found = self.waiting.get(at).is_some_and(|w| w.0 == id);
        if found {
            self.waiting.remove(at);
        }
        found
    }
}
