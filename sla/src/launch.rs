//! One launch: what the scheduler issues and a device runs.

use crate::ids::{LaneId, ModelId, RequestId, Slot, SubBatchId, Ticket};

/// One request's part in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The request.
    pub request: RequestId,
    /// Where its data lives on the device.
    pub slot: Slot,
    /// The pass through the block, from 0; 0 in `Once` blocks.
    pub step: u32,
    /// Length of its input sequence; 0 for models without one.
    pub input_len: u32,
    /// Samples of the client's own batch.
    pub samples: u32,
    /// Carried along by a padded batch although its own sequence has ended: the row is computed
    /// and its results are discarded.
    pub idle: bool,
}

/// One issued execution of a segment for a sub-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Handle by which its completion is reported.
    pub ticket: Ticket,
    /// Where it runs.
    pub lane: LaneId,
    /// Which model.
    pub model: ModelId,
    /// Block of the model's program.
    pub block: u32,
    /// Segment of the block.
    pub segment: u32,
    /// First node of the segment, as a position in the block's node list.
    pub first_node: u32,
    /// One behind its last node.
    pub end_node: u32,
    /// The sub-batch that moves.
    pub sub_batch: SubBatchId,
    /// Its members, in batch order.
    pub members: Vec<Member>,
    /// `Some(longest)` when the batch is padded: every member takes `longest` rows in `Once`
    /// blocks.
    pub padded_len: Option<u32>,
    /// Requests whose live tensors had to be copied because of a merge since the last launch.
    pub merged_members: u32,
}

impl Launch {
    /// Samples of all members: the batch size that node latencies depend on.
    pub fn num_samples(&self) -> u32 {
        self.members.iter().map(|m| m.samples).sum()
    }

    /// Rows of a `Once` block over sequences: input lengths added, or padded.
    pub fn num_rows(&self) -> u64 {
        self.members
            .iter()
            .map(|m| u64::from(m.samples) * u64::from(self.padded_len.unwrap_or(m.input_len)))
            .sum()
    }
}
