//! What launches carried the requests that ask for it.
//!
//! While none is open that asks, a launch costs a look at an empty list.

use lazybatch_sla::{Launch, RequestId};

/// Sizes of launches that are kept of a request.
const MOST_SIZES: usize = 128;

/// Requests at once: each costs every launch a look at its members.
const MOST_OPEN: usize = 64;

/// The launches that carried a request, of one segment each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// How many.
    pub num: u32,
    /// Samples of all of them together, its own and others'.
    pub samples: u64,
    /// How often it had more company than at its launch before: others joined it, or it joined them.
    pub joined: u32,
    /// How often launches without it came between two of its own.
    pub interrupted: u32,
    /// Samples of each, of the first 128.
    pub sizes: Vec<u32>,
}

/// A request that asks.
#[derive(Debug)]
struct Counted {
    id: RequestId,
    launches: Launches,
    /// Samples of its last launch; none before the first.
    last: Option<u32>,
    /// Whether launches without it came since.
    is_passed: bool,
}

/// The open requests that ask.
#[derive(Debug, Default)]
pub(super) struct Counting(Vec<Counted>);

impl Counting {
    /// A request is about to arrive; where too many are open, nothing is known of it.
    pub fn begin(&mut self, id: RequestId) {
        if self.0.len() == MOST_OPEN {
            return;
        }
        self.0.push(Counted {
            id,
            launches: Launches::default(),
            last: None,
            is_passed: false,
        });
    }

    /// A launch is issued.
    pub fn launched(&mut self, launch: &Launch) {
        for one in &mut self.0 {
            if !launch.members.iter().any(|m| m.request == one.id) {
                one.is_passed = true;
                continue;
            }
            let size = launch.num_samples();
            let last = one.last.replace(size);
            let was_passed = std::mem::take(&mut one.is_passed) && last.is_some();
            let told = &mut one.launches;
            told.num += 1;
            told.samples += u64::from(size);
            told.joined += u32::from(last.is_some_and(|last| size > last));
            told.interrupted += u32::from(was_passed);
            if told.sizes.len() < MOST_SIZES {
                told.sizes.push(size);
            }
        }
    }

    /// A request has ended; `None` if nothing is known of it.
    pub fn end(&mut self, id: RequestId) -> Option<Launches> {
        let at = self.0.iter().position(|one| one.id == id)?;
        Some(self.0.swap_remove(at).launches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::{LaneId, Member, ModelId, Slot, SubBatchId, Ticket};

    fn launch(requests: &[u64]) -> Launch {
        let member = |&id: &u64| Member {
            request: RequestId(id),
            slot: Slot(0),
            step: 0,
            input_len: 0,
            samples: 1,
            idle: false,
        };
        Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: ModelId(0),
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 1,
            sub_batch: SubBatchId(0),
            members: requests.iter().map(member).collect(),
            padded_len: None,
            merged_members: 0,
        }
    }

    #[test]
    fn each_request_is_told_of_its_own_launches() {
        let mut counting = Counting::default();
        counting.begin(RequestId(1));
        counting.begin(RequestId(2));
        for members in [&[1][..], &[2], &[3], &[1, 2], &[1], &[1, 2, 3], &[3]] {
            counting.launched(&launch(members));
        }
        let told = Launches {
            num: 4,
            samples: 7,
            joined: 2,
            interrupted: 1,
            sizes: vec![1, 2, 1, 3],
        };
        assert_eq!(counting.end(RequestId(1)), Some(told));
        let told = Launches {
            num: 3,
            samples: 6,
            joined: 2,
            interrupted: 2,
            sizes: vec![1, 2, 3],
        };
        assert_eq!(counting.end(RequestId(2)), Some(told));
        assert_eq!(counting.end(RequestId(3)), None, "it does not ask");
    }

    #[test]
    fn only_so_many_are_counted_and_only_so_much_is_kept() {
        let mut counting = Counting::default();
        for id in 0..=MOST_OPEN as u64 {
            counting.begin(RequestId(id));
        }
        for _ in 0..=MOST_SIZES {
            counting.launched(&launch(&[0]));
        }
        let told = counting.end(RequestId(0)).unwrap();
        assert_eq!(told.num as usize, MOST_SIZES + 1);
        assert_eq!(told.sizes.len(), MOST_SIZES);
        assert_eq!(counting.end(RequestId(MOST_OPEN as u64)), None);
    }
}
