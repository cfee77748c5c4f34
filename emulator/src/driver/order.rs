//! Which operations are ordered after which, to find those that touch the same memory without.
//!
//! An operation comes after those of its stream, of the events that its stream waited for, and
//! after all that the host had seen to be over when it asked for it.

use rustc_hash::{FxHashMap, FxHashSet};

/// The order of operations that some other may still conflict with.
#[derive(Default)]
pub(super) struct Order {
    /// What each operation comes after.
    before: FxHashMap<u64, FxHashSet<u64>>,
    /// Operations that have run, with their names.
    run: FxHashMap<u64, String>,
    /// Of those, what the host has seen to be over.
    seen: FxHashSet<u64>,
}

impl Order {
    /// Notes an operation that comes after others.
    pub(super) fn push(&mut self, operation: u64, after: &[u64]) {
        let mut before = self.seen.clone();
        for earlier in after {
            if let Some(theirs) = self.before.get(earlier) {
                before.extend(theirs);
                before.insert(*earlier);
            }
        }
        self.before.insert(operation, before);
    }

    /// Operations that have run and that `operation` does not come after, with their names.
    pub(super) fn unordered(&self, operation: u64) -> FxHashMap<u32, String> {
        let before = self.before.get(&operation);
        let is_free = |earlier: &u64| before.is_none_or(|before| !before.contains(earlier));
        let free = self.run.iter().filter(|(earlier, _)| is_free(earlier));
        free.map(|(earlier, name)| (*earlier as u32, name.clone()))
            .collect()
    }

    /// Notes that an operation has run.
    pub(super) fn ran(&mut self, operation: u64, name: String) {
        self.run.insert(operation, name);
    }

    /// Notes that the host knows an operation to be over; forgets what nothing can conflict with.
    pub(super) fn host_sees(&mut self, operation: u64) {
        let Some(before) = self.before.get(&operation) else {
            return;
        };
        self.seen.extend(before);
        self.seen.insert(operation);
        let (run, before) = (&self.run, &self.before);
        let waiting: Vec<_> = before
            .iter()
            .filter(|(o, _)| !run.contains_key(o))
            .map(|(_, b)| b)
            .collect();
        let is_past = |o: &u64| run.contains_key(o) && waiting.iter().all(|b| b.contains(o));
        let past: Vec<u64> = self.seen.iter().copied().filter(is_past).collect();
        for operation in past {
            self.seen.remove(&operation);
            self.run.remove(&operation);
            self.before.remove(&operation);
        }
        // What was forgotten is still named by others, without effect.
        self.seen
            .retain(|operation| self.before.contains_key(operation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_events_and_the_host_order() {
        let mut order = Order::default();
        order.push(1, &[]);
        order.push(2, &[]);
        order.push(3, &[1]);
        order.ran(1, "one".to_owned());
        assert_eq!(order.unordered(2).len(), 1);
        assert_eq!(order.unordered(3).len(), 0);
        // The host sees it, but what it asked for before that stays unordered.
        order.host_sees(1);
        assert_eq!(order.unordered(2).len(), 1);
        order.push(4, &[]);
        assert_eq!(order.unordered(4).len(), 0);
        for operation in [2, 3] {
            order.ran(operation, String::new());
        }
        assert_eq!(order.unordered(4).len(), 2);
        order.ran(4, String::new());
        for operation in [2, 3, 4] {
            order.host_sees(operation);
        }
        assert!(order.run.is_empty() && order.before.is_empty() && order.seen.is_empty());
    }
}
