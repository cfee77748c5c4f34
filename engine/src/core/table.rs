//! The batch table: the sub-batches in flight.
//!
//! The published policy uses it as a stack (the last entry is the top); others pick any entry.
//! It stores and orders entries, and never decides.

use lazybatch_sla::{LaneId, ModelId, SubBatchId};

use super::request::Key;

/// State of a padded whole-graph batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padded {
    /// Longest input of its members.
    pub longest: u32,
    /// Passes through the current block that were launched.
    pub step: u32,
    /// The last pass of an `UntilStop` block is in flight: whether another follows is not known.
    pub undecided: bool,
}

/// Requests that share model and cursor and move together.
#[derive(Clone, Debug)]
pub struct SubBatch {
    /// Its id.
    pub id: SubBatchId,
    /// Model of all members.
    pub model: ModelId,
    /// Block of the next segment.
    pub block: u32,
    /// Next segment within the block.
    pub segment: u32,
    /// Members in batch order.
    pub(crate) members: Vec<Key>,
    /// Samples of all members.
    pub samples: u32,
    /// Padded whole-graph batch: nobody joins or leaves until it ends.
    pub padded: Option<Padded>,
    /// Lane and number of the last launch that moved it.
    pub(crate) after: Option<(LaneId, u64)>,
    /// Node executions of all entries when it was launched last; `None` before its first launch.
    pub(crate) ran_at: Option<u64>,
    /// Members that came by merges since its last launch.
    pub(crate) merged_members: u32,
}

impl SubBatch {
    /// Number of members.
    pub fn num_members(&self) -> usize {
        self.members.len()
    }

    /// Nodes that all entries together had been launched for when it was launched last, that launch
    /// included; `None` before its first.
    pub fn ran_at(&self) -> Option<u64> {
        self.ran_at
    }

    /// Whether it was launched since it was pushed or split off a launched entry.
    pub fn has_started(&self) -> bool {
        self.after.is_some()
    }
}

/// The sub-batches in flight, bottom to top.
#[derive(Clone, Debug, Default)]
pub struct BatchTable {
    entries: Vec<SubBatch>,
    next_id: u64,
}

impl BatchTable {
    /// Entries from bottom to top.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SubBatch> + ExactSizeIterator {
        self.entries.iter()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The `n`-th entry from the top, 0 being the top.
    pub fn from_top(&self, n: usize) -> Option<&SubBatch> {
        self.entries
            .len()
            .checked_sub(n + 1)
            .map(|i| &self.entries[i])
    }

    /// The entry of that id.
    pub fn get(&self, id: SubBatchId) -> Option<&SubBatch> {
        self.position(id).map(|i| &self.entries[i])
    }

    pub(crate) fn position(&self, id: SubBatchId) -> Option<usize> {
        // The entries that move are near the top.
        self.entries.iter().rposition(|e| e.id == id)
    }

    pub(crate) fn entry(&mut self, index: usize) -> &mut SubBatch {
        &mut self.entries[index]
    }

    pub(crate) fn at(&self, index: usize) -> &SubBatch {
        &self.entries[index]
    }

    pub(crate) fn fresh_id(&mut self) -> SubBatchId {
        self.next_id += 1;
        SubBatchId(self.next_id - 1)
    }

    pub(crate) fn push(&mut self, entry: SubBatch) {
        self.entries.push(entry);
    }

    pub(crate) fn insert(&mut self, index: usize, entry: SubBatch) {
        self.entries.insert(index, entry);
    }

    pub(crate) fn remove(&mut self, index: usize) -> SubBatch {
        self.entries.remove(index)
    }
}
