//! Arrival queues: requests that are not yet in the batch table, per model, in order of arrival.
//!
//! A queue is made of [`Flow`]s, one for each class, priority level, and whether its requests were
//! found too late or are delayed. As a whole it is in order of arrival, too, but for those that are
//! delayed: they come behind all others.

use std::collections::{VecDeque, vec_deque};
use std::iter::Peekable;

use lazybatch_sla::{ClassId, RequestId, Time};
use smallvec::SmallVec;

use super::request::Key;

/// What the requests of a flow share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey {
    /// SLA class.
    pub class: ClassId,
    /// Priority level: 1 is the highest, 0 behind all others.
    pub level: u8,
    /// Whether they were demoted.
    pub is_late: bool,
    /// Whether their time to wait has passed.
    pub is_delayed: bool,
}

/// What a queue is told of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Samples of the client's own batch.
    pub samples: u32,
    /// It has an SLA target.
    pub has_target: bool,
    /// Its deadline; its arrival, if it has no target.
    pub at: Time,
}

/// Waiting requests that share a [`FlowKey`], oldest first.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// What they share.
    pub key: FlowKey,
    waiting: VecDeque<(RequestId, Key, u32)>,
    /// Samples of all of them.
    samples: u32,
    /// What is due last, of those that came since nobody waited.
    last: Waiter,
    /// Somebody is due before one who came earlier, or was when they both waited.
    is_mixed: bool,
}

impl Flow {
    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Samples of waiting requests.
    pub fn num_samples(&self) -> u32 {
        self.samples
    }

    /// Samples of those that came before `id`.
    pub fn num_samples_before(&self, id: RequestId) -> u32 {
        let at = match self.waiting.back() {
            // Most that are asked for have just come.
            Some(last) if last.0 < id => return self.samples,
            _ => self.waiting.partition_point(|w| w.0 < id),
        };
        if at <= self.waiting.len() / 2 {
            return self.waiting.range(..at).map(|w| w.2).sum();
        }
        self.samples - self.waiting.range(at..).map(|w| w.2).sum::<u32>()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The oldest request.
    pub fn front(&self) -> Option<Key> {
        self.waiting.front().map(|w| w.1)
    }

    /// The newest request.
    pub fn back(&self) -> Option<Key> {
        self.waiting.back().map(|w| w.1)
    }

    /// Whether nobody is known to be due before one who came earlier: all have a target, and their
    /// deadlines are in order of arrival, or nobody has one.
    pub fn is_in_order_of_deadlines(&self) -> bool {
        !self.is_mixed
    }

    /// Waiting requests, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Key> + '_ {
        self.waiting.iter().map(|w| w.1)
    }

    fn rest(&self) -> Rest<'_> {
        (self.key.is_delayed, self.waiting.iter().peekable())
    }

    fn position(&self, id: RequestId) -> Option<usize> {
        // Most that are asked for are the oldest.
        match self.waiting.front() {
            Some(first) if first.0 == id => Some(0),
            _ => self.waiting.binary_search_by_key(&id, |w| w.0).ok(),
        }
    }

    /// Inserts in order of id; at the back in the common case.
    fn insert(&mut self, id: RequestId, key: Key, waiter: Waiter) {
        let is_last = self.waiting.back().is_none_or(|last| last.0 < id);
        if self.waiting.is_empty() {
            (self.is_mixed, self.last) = (false, waiter);
        }
        let Waiter {
            samples,
            has_target,
            at,
        } = waiter;
        self.samples += samples;
        self.is_mixed |= !is_last || has_target != self.last.has_target || at < self.last.at;
        self.last = waiter;
        if is_last {
            self.waiting.push_back((id, key, samples));
        } else {
            let at = self.waiting.partition_point(|w| w.0 < id);
            self.waiting.insert(at, (id, key, samples));
        }
    }

    fn remove(&mut self, at: usize) -> Option<Key> {
        let (_, key, samples) = self.waiting.remove(at)?;
        self.samples -= samples;
        Some(key)
    }
}

/// Flows beyond which none is kept in which nobody waits: clients choose levels and classes.
const KEPT: usize = 8;

/// One model's waiting requests, oldest first, delayed ones behind the others.
#[derive(Clone, Debug, Default)]
pub struct ArrivalQueue {
    /// Those in which nobody waits are kept, up to [`KEPT`] of all.
    flows: SmallVec<[Flow; 1]>,
    len: usize,
    samples: u32,
    num_changes: u64,
}

impl ArrivalQueue {
    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Samples of waiting requests.
    pub fn num_samples(&self) -> u32 {
        self.samples
    }

    /// The first request: the oldest that is not delayed, or else the oldest.
    pub fn front(&self) -> Option<Key> {
        let place = |f: &Flow| Some((f.key.is_delayed, *f.waiting.front()?));
        self.flows.iter().filter_map(place).min().map(|w| w.1.1)
    }

    /// The last request.
    pub fn back(&self) -> Option<Key> {
        let place = |f: &Flow| Some((f.key.is_delayed, *f.waiting.back()?));
        self.flows.iter().filter_map(place).max().map(|w| w.1.1)
    }

    /// The oldest request, delayed or not.
    pub fn oldest(&self) -> Option<Key> {
        let fronts = self.flows.iter().filter_map(|f| f.waiting.front());
        fronts.min().map(|w| w.1)
    }

    /// How often somebody has come or gone: where it is the same, the queue is.
    pub fn num_changes(&self) -> u64 {
        self.num_changes
    }

    /// Waiting requests, oldest first, delayed ones behind the others.
    pub fn iter(&self) -> impl Iterator<Item = Key> + '_ {
        let waiting = self.flows.iter().filter(|f| !f.is_empty());
        Merged(waiting.map(Flow::rest).collect())
    }

    /// The flows in which someone waits.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> + '_ {
        self.flows.iter().filter(|f| !f.is_empty())
    }

    /// The request of that id, if it waits here.
    pub fn find(&self, id: RequestId) -> Option<Key> {
        let found = |f: &Flow| Some(f.waiting[f.position(id)?].1);
        self.flows.iter().find_map(found)
    }

    /// What the request of that id shares with others, if it waits here.
    pub fn flow_of(&self, id: RequestId) -> Option<FlowKey> {
        let holds = |f: &&Flow| f.position(id).is_some();
        self.flows.iter().find(holds).map(|f| f.key)
    }

    pub(crate) fn insert(&mut self, flow: FlowKey, id: RequestId, key: Key, waiter: Waiter) {
        self.len += 1;
        self.num_changes += 1;
        self.samples += waiter.samples;
        let at = self.flows.iter().position(|f| f.key == flow);
        let at = at.unwrap_or_else(|| {
            self.flows.push(Flow {
                key: flow,
                ..Flow::default()
            });
            self.flows.len() - 1
        });
        self.flows[at].insert(id, key, waiter);
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self) -> Option<Key> {
        let waiting = self.flows.iter_mut().filter(|f| !f.is_empty());
        let flow = waiting.min_by_key(|f| (f.key.is_delayed, f.waiting.front().map(|w| w.0)))?;
        let before = flow.samples;
        let key = flow.remove(0);
        self.len -= 1;
        self.num_changes += 1;
        self.samples -= before - flow.samples;
        self.forget_empty();
        key
    }

    /// Forgets flows in which nobody waits, if there are many.
    fn forget_empty(&mut self) {
        if self.flows.len() > KEPT {
            self.flows.retain(|f| !f.is_empty());
        }
    }

    /// Removes a request by id; the flow in which it waited.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<FlowKey> {
        let found = |f: &mut Flow| {
            let at = f.position(id)?;
            let before = f.samples;
            f.remove(at);
            Some((f.key, before - f.samples))
        };
        let (flow, samples) = self.flows.iter_mut().find_map(found)?;
        self.len -= 1;
        self.num_changes += 1;
        self.samples -= samples;
        self.forget_empty();
        Some(flow)
    }
}

/// Whether the requests of a flow are delayed, and what is left of it.
type Rest<'a> = (bool, Peekable<vec_deque::Iter<'a, (RequestId, Key, u32)>>);

/// Several flows as one, in order of id, delayed ones behind the others.
struct Merged<'a>(SmallVec<[Rest<'a>; 2]>);

impl Iterator for Merged<'_> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let flow = match &mut self.0[..] {
            [(_, only)] => only,
            flows => flows
                .iter_mut()
                .filter_map(|(is_delayed, f)| Some(((*is_delayed, f.peek()?.0), f)))
                .min_by_key(|(place, _)| *place)
                .map(|(_, f)| f)?,
        };
        flow.next().map(|w| w.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_requests_come_behind_all_others() {
        let mut queue = ArrivalQueue::default();
        let flow = |id: u64| FlowKey {
            class: ClassId(id as u32 % 2),
            is_delayed: id < 4,
            ..FlowKey::default()
        };
        for id in 0..7 {
            queue.insert(flow(id), RequestId(id), id as Key, Waiter::default());
        }
        assert_eq!(queue.iter().collect::<Vec<_>>(), [4, 5, 6, 0, 1, 2, 3]);
        let ends = (queue.front(), queue.oldest(), queue.back());
        assert_eq!(ends, (Some(4), Some(0), Some(3)));
        let mut order = Vec::new();
        while let Some(key) = queue.pop() {
            order.push(key);
        }
        assert_eq!(order, [4, 5, 6, 0, 1, 2, 3]);
    }

    #[test]
    fn flows_are_one_queue_in_order_of_arrival() {
        let mut queue = ArrivalQueue::default();
        let flow = |class| FlowKey {
            class: ClassId(class),
            ..FlowKey::default()
        };
        for id in [3, 0, 5, 1, 4, 2] {
            let flow = flow(id as u32 % 3);
            let waiter = Waiter {
                samples: id as u32,
                ..Waiter::default()
            };
            queue.insert(flow, RequestId(id), id as Key + 10, waiter);
        }
        assert_eq!(queue.num_samples(), 15);
        assert_eq!(queue.iter().collect::<Vec<_>>(), [10, 11, 12, 13, 14, 15]);
        assert_eq!((queue.front(), queue.back()), (Some(10), Some(15)));
        assert_eq!(queue.find(RequestId(4)), Some(14));
        assert_eq!(queue.flow_of(RequestId(4)), Some(flow(1)));
        assert_eq!(queue.remove(RequestId(4)), Some(flow(1)));
        assert_eq!(queue.remove(RequestId(4)), None);
        assert_eq!(queue.find(RequestId(4)), None);
        assert_eq!(queue.flow_of(RequestId(4)), None);
        assert_eq!(queue.pop(), Some(10));
        assert_eq!(queue.iter().collect::<Vec<_>>(), [11, 12, 13, 15]);
        let by_flow: Vec<Vec<Key>> = queue.flows().map(|f| f.iter().collect()).collect();
        assert_eq!(by_flow, [vec![13], vec![12, 15], vec![11]]);
        assert_eq!((queue.len(), queue.num_samples()), (4, 11));
        let samples: Vec<u32> = queue.flows().map(Flow::num_samples).collect();
        assert_eq!(samples, [3, 7, 1]);
        let before = |id| -> Vec<u32> {
            let flows = queue.flows();
            flows.map(|f| f.num_samples_before(RequestId(id))).collect()
        };
        assert_eq!(before(9), [3, 7, 1]);
        assert_eq!(before(5), [3, 2, 1]);
        assert_eq!(before(2), [0, 0, 1]);
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && queue.flows().next().is_none());
        assert_eq!(queue.num_samples(), 0);
    }

    #[test]
    fn flows_in_which_nobody_waits_are_few() {
        let mut queue = ArrivalQueue::default();
        let flow = |id: u64| FlowKey {
            level: (id % 256) as u8,
            class: ClassId((id / 256) as u32),
            ..FlowKey::default()
        };
        for id in 0..10_000 {
            queue.insert(flow(id), RequestId(id), id as Key, Waiter::default());
            let gone = match id % 2 {
                0 => queue.pop().is_some(),
                _ => queue.remove(RequestId(id)).is_some(),
            };
            assert!(gone && queue.flows.len() <= KEPT, "{id}");
        }
        for id in 0..100 {
            queue.insert(flow(id), RequestId(id), id as Key, Waiter::default());
        }
        assert_eq!(queue.flows().count(), 100);
        assert!(queue.iter().map(u64::from).eq(0..100));
    }

    #[test]
    fn a_flow_knows_whether_deadlines_are_in_order() {
        let due = |at| Waiter {
            samples: 1,
            has_target: true,
            at: Time(at),
        };
        let mut flow = Flow::default();
        for (id, at, in_order) in [(1, 5, true), (2, 5, true), (4, 7, true), (5, 6, false)] {
            flow.insert(RequestId(id), 0, due(at));
            assert_eq!(flow.is_in_order_of_deadlines(), in_order, "{id}");
        }
        // They are forgotten together.
        flow.waiting.clear();
        flow.insert(RequestId(9), 0, due(3));
        assert!(flow.is_in_order_of_deadlines());
        // Without a target, and with an id before another's.
        let mut other = flow.clone();
        flow.insert(
            RequestId(10),
            0,
            Waiter {
                samples: 1,
                has_target: false,
                at: Time(8),
            },
        );
        assert!(!flow.is_in_order_of_deadlines());
        other.insert(RequestId(8), 0, due(4));
        assert!(!other.is_in_order_of_deadlines());
    }
}
