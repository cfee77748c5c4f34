//! What the core remembers of a request.

use lazybatch_sla::{LaneId, Outcome, Slot, SubBatchId, Time};

use super::event::Request;
use super::queue::Waiter;

/// Where a request stands in the core's storage; reused after the request is released.
pub type Key = u32;

/// Life of a request within the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Behind an earlier request of its sequence, or its sequence is in the backlog.
    Held,
    /// In the arrival queue.
    Queued,
    /// In the batch table.
    InFlight(SubBatchId),
    /// Its last pass is in flight; it ends with it.
    Finishing,
    /// Ended; its slot waits for launches that still carry it.
    Lingering,
}

/// A request and its progress.
#[derive(Clone, Debug)]
pub struct RequestState {
    /// As it arrived.
    pub request: Request,
    /// Arrival plus SLA target; [`Time::MAX`] without one.
    pub deadline: Time,
    /// Completed (launched) passes through the block of its cursor.
    pub step: u32,
    /// Whether it has waited for longer than [`Request::delay_after`].
    pub is_delayed: bool,
    /// Where in its life it is.
    pub stage: Stage,
    /// Its slot, once admitted.
    pub(crate) slot: Option<Slot>,
    /// When it was launched first.
    pub first_launch: Option<Time>,
    /// Passes of its last `UntilStop` loop, once that has ended.
    pub output_len: Option<u32>,
    /// That is as many as it asked for: its output was cut.
    pub is_cut: bool,
    /// Its own loop has ended although its padded batch goes on.
    pub(crate) stopped: bool,
    /// Ends as cancelled as soon as its launch completes.
    pub(crate) doomed: bool,
    /// Lane and number of the last launch that carries it.
    pub(crate) after: Option<(LaneId, u64)>,
    /// Outcome once decided.
    pub(crate) outcome: Option<Outcome>,
}

impl RequestState {
    /// The state of a request that has just arrived.
    pub(crate) fn new(request: Request) -> Self {
        Self {
            deadline: request.sla.map_or(Time::MAX, |sla| request.arrival + sla),
            step: 0,
            is_delayed: false,
            stage: Stage::Queued,
            slot: None,
            first_launch: None,
            output_len: None,
            is_cut: false,
            stopped: false,
            doomed: false,
            after: None,
            outcome: None,
            request,
        }
    }

    /// What a queue is told of it.
    pub(crate) fn waiter(&self) -> Waiter {
        let has_target = self.request.sla.is_some();
        Waiter {
            samples: self.request.samples,
            has_target,
            at: if has_target {
                self.deadline
            } else {
                self.request.arrival
            },
        }
    }
}
