//! What several policies do with the entries of the batch table.
//!
//! These helpers look at any table, whoever made its entries: padded or packed, at any cursor,
//! several at the same one. They decide nothing but which two entries merge first.

use lazybatch_graph::Repeat;
use lazybatch_sla::{RequestId, SubBatchId};
use smallvec::SmallVec;

use super::Decision;
use crate::core::{ModelSpec, SubBatch, View};

/// Whether an entry stands at the first segment of a block, so that it is within no pass.
pub(super) fn is_at_head(entry: &SubBatch) -> bool {
    entry.segment == 0 && entry.padded.is_none()
}

/// The last block that runs until a stop.
pub(super) fn last_loop(spec: &ModelSpec) -> Option<u32> {
    let stops = |b: &crate::core::BlockSpec| matches!(b.repeat, Repeat::UntilStop { .. });
    spec.blocks.iter().rposition(stops).map(|b| b as u32)
}

/// Where an entry stands in its iteration; those that come first run first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Behind the last loop, or a padded batch that somebody else began.
    Leaving,
    /// Within a pass of the loop.
    Pass,
    /// Before the loop, or in a model without one.
    Prefix,
    /// Between two passes of the loop.
    Head,
}

/// The stage of an entry of a model with that last loop.
pub(super) fn stage(entry: &SubBatch, last: Option<u32>) -> Stage {
    match last {
        _ if entry.padded.is_some() => Stage::Leaving,
        Some(last) if entry.block > last => Stage::Leaving,
        Some(last) if entry.block == last && is_at_head(entry) => Stage::Head,
        Some(last) if entry.block == last => Stage::Pass,
        _ => Stage::Prefix,
    }
}

/// The least id among an entry's members: who arrived first.
pub(super) fn oldest_member(view: &View<'_>, entry: &SubBatch) -> RequestId {
    let ids = view.members(entry).map(|r| r.request.id);
    ids.min().expect("entries have members")
}

/// When an entry was last launched, as a number that orders the launches of a lane; 0 for one that
/// never was.
pub(super) fn last_launched(entry: &SubBatch) -> u64 {
    entry.after.map_or(0, |(_, number)| number)
}

/// Two entries that may merge, the one that was launched first and the other.
pub(super) fn mergeable(view: &View<'_>) -> Option<(SubBatchId, SubBatchId)> {
    let table = view.table();
    if table.len() < 2 {
        return None;
    }
    table.iter().enumerate().find_map(|(i, a)| {
        let mut others = table.iter().skip(i + 1);
        others.find(|b| view.can_merge(a, b)).map(|b| (a.id, b.id))
    })
}

/// Merges the two smallest entries at one cursor that fit max batch together, if there are any;
/// ties go to the entry with the oldest member. The lower of the two in the table stays.
pub(super) fn merge_equals(view: &View<'_>) -> Option<Decision> {
    if view.table().len() < 2 {
        return None;
    }
    let packed = |(_, e): &(usize, &SubBatch)| e.padded.is_none();
    let mut order: SmallVec<[(usize, &SubBatch); 16]> =
        view.table().iter().enumerate().filter(packed).collect();
    let cursor = |e: &SubBatch| (e.model, e.block, e.segment);
    order.sort_unstable_by(|(i, a), (j, b)| {
        (cursor(a), a.samples)
            .cmp(&(cursor(b), b.samples))
            .then_with(|| match cursor(a) == cursor(b) && i != j {
                true => oldest_member(view, a).cmp(&oldest_member(view, b)),
                false => i.cmp(j),
            })
    });
    let fits = |pair: &&[(usize, &SubBatch)]| view.can_merge(pair[0].1, pair[1].1);
    order.windows(2).find(fits).map(|pair| {
        let (low, high) = if pair[0].0 < pair[1].0 {
            (pair[0].1, pair[1].1)
        } else {
            (pair[1].1, pair[0].1)
        };
        Decision::Merge {
            into: low.id,
            from: high.id,
        }
    })
}

/// The model indices from `first` on, then those before it.
pub(super) fn in_turn(first: usize, num: usize) -> impl Iterator<Item = usize> {
    (0..num).map(move |i| (first + i) % num)
}
