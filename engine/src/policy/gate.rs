//! When newcomers are admitted although some of their model are in flight: the gates of the base
//! rules, whose formulas stand in `base.rs`.

use std::fmt;

use lazybatch_graph::Repeat;
use lazybatch_sla::{LatencyTable, ModelId};

use super::entries::{Stage, last_loop, stage};
use crate::core::{Flow, SubBatch, View};

/// What a decision went by. Sums of waiting times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Weighed {
    /// The first launch of all.
    #[default]
    Nothing,
    Late,
    /// More of its flow wait than are answered soon.
    Many,
    SamePlace,
    /// Nobody of the model was in flight.
    Idle,
    /// Time that all lose if the newcomers are admitted, and if they are not.
    Admission {
        if_admitted: f64,
        if_not: f64,
    },
    /// There is no room, or no place to come in.
    Closed,
    /// A pass is under way.
    Pass,
    /// The pass that newcomers have joined for has not run.
    Joined,
}

impl fmt::Display for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nobody waits"),
            Self::Late => write!(f, "its deadline cannot be met"),
            Self::Many => write!(f, "more wait than can be answered soon"),
            Self::SamePlace => write!(f, "they stand at the same place"),
            Self::Idle => write!(f, "none of its model was in flight"),
            Self::Admission {
                if_admitted,
                if_not,
            } => {
                let (admitted, not) = (if_admitted / 1e6, if_not / 1e6);
                write!(
                    f,
                    "all lose {admitted:.3} ms if newcomers are admitted, {not:.3} ms if not"
                )
            }
            Self::Closed => write!(f, "no room, or no place to come in"),
            Self::Pass => write!(f, "a pass is under way"),
            Self::Joined => write!(f, "the pass that others joined for has not run"),
        }
    }
}

/// Rows of an entry: its members' input lengths, samples counted.
pub(super) fn rows(view: &View<'_>, entry: &SubBatch) -> u64 {
    view.members(entry)
        .map(|r| u64::from(r.request.samples) * u64::from(r.request.input_len))
        .sum()
}

/// Whether somebody who waits fits `room` samples and a free slot. Not all of a queue is looked at, but
/// who is first of each flow.
pub(super) fn fits(view: &View<'_>, model: ModelId, room: u32) -> bool {
    let firsts = view.queue(model).flows().filter_map(Flow::front);
    let mut samples = firsts.map(|key| view.request(key).request.samples);
    view.num_free(model) > 0 && samples.any(|samples| samples <= room)
}

/// Of those who wait, how many times a full batch are looked at.
const LOOKED_AT: usize = 2;

/// Those who could come in.
#[derive(Default)]
struct Newcomers {
    samples: u32,
    rows: u64,
    longest: u32,
    /// Nanoseconds that all of them have waited.
    waited: u64,
}

impl Newcomers {
    /// In order of arrival, without those that are too large for what is left of `room` samples:
    /// who comes in first is another question, and one that waits for more room keeps out nobody.
    fn of(view: &View<'_>, model: ModelId, room: u32) -> Self {
        let mut all = Self::default();
        let (mut free, most) = (view.num_free(model), view.model(model).max_batch as usize);
        for key in view.queue(model).iter().take(LOOKED_AT * most) {
            if all.samples == room || free == 0 {
                break;
            }
            let request = &view.request(key).request;
            if request.samples > room - all.samples {
                continue;
            }
            free -= 1;
            all.samples += request.samples;
            all.rows += u64::from(request.samples) * u64::from(request.input_len);
            all.longest = all.longest.max(request.input_len);
            all.waited += view.now.since(request.arrival).0;
        }
        all
    }
}

/// Samples that may join `entry` now, if it pays; see the module for the rule.
pub(super) fn joins(
    view: &View<'_>,
    entry: &SubBatch,
    behind: f64,
    max_batch: u32,
) -> (Option<u32>, Weighed) {
    let spec = view.model(entry.model);
    let table = &spec.table;
    let room = max_batch.saturating_sub(entry.samples);
    if room == 0 || entry.block != 0 {
        return (None, Weighed::Closed);
    }
    if entry.segment == 0 {
        return (Some(room), Weighed::SamePlace);
    }
    if table.repeat(0) != Repeat::Once {
        return (None, Weighed::Closed);
    }
    let Newcomers {
        samples: p,
        rows: p_rows,
        ..
    } = Newcomers::of(view, entry.model, room);
    let (b, b_rows) = (entry.samples, rows(view, entry));
    let ns = |segment, samples, rows| table.pass(0, segment, samples, rows).0 as f64;
    let f = ns(0, p, p_rows);
    let r = ns(entry.segment, b, b_rows);
    let together = f - ns(entry.segment, p, p_rows) + ns(entry.segment, b + p, b_rows + p_rows);
    let apart = r + f;
    let (b, p) = (f64::from(b), f64::from(p));
    let if_not = b * r + p * apart + behind * apart;
    let if_admitted = (b + p + behind) * together;
    let room = (p > 0.0 && if_not - if_admitted > 0.0).then_some(room);
    let weighed = Weighed::Admission {
        if_admitted,
        if_not,
    };
    (room, weighed)
}

/// Samples to admit now at the head of a block, if waiting outweighs `factor` times the
/// disturbance; see the module for the rule.
pub(super) fn balances(
    view: &View<'_>,
    model: ModelId,
    factor: f64,
    max_batch: u32,
) -> (Option<u32>, Weighed) {
    let spec = view.model(model);
    let table = &spec.table;
    let entries = || view.table().iter().filter(|e| e.model == model);
    let at_start = entries().find(|e| (e.block, e.segment) == (0, 0));
    if let Some(entry) = at_start {
        let room = max_batch.checked_sub(entry.samples);
        return (room, Weighed::SamePlace);
    }
    // Beyond one launch's worth of requests in front, newcomers cannot merge with them.
    let Some(target) = entries().max_by_key(|e| e.samples) else {
        return (None, Weighed::Closed);
    };
    let room = max_batch.saturating_sub(target.samples);
    let Newcomers {
        samples,
        rows,
        longest,
        waited,
    } = Newcomers::of(view, model, room);
    if samples == 0 {
        return (None, Weighed::Closed);
    }
    let catch_up = prefix(table, target.block, samples, rows, longest);
    let in_flight: u32 = entries().map(|e| e.samples).sum();
    let disturbance = f64::from(in_flight) * catch_up as f64;
    let weighed = Weighed::Admission {
        if_admitted: factor * disturbance,
        if_not: waited as f64,
    };
    let room = (waited as f64 >= factor * disturbance).then_some(room);
    (room, weighed)
}

/// Samples to admit now where everyone of the model stands at the head of its last loop; see the
/// module for the rule.
pub(super) fn iterates(view: &View<'_>, model: ModelId, max_batch: u32) -> (Option<u32>, Weighed) {
    let last = last_loop(view.model(model));
    let entries = || view.table().iter().filter(|e| e.model == model);
    if last.is_none() || entries().any(|e| stage(e, last) != Stage::Head) {
        return (None, Weighed::Closed);
    }
    let in_flight: u32 = entries().map(|e| e.samples).sum();
    match max_batch.saturating_sub(in_flight) {
        0 => (None, Weighed::Closed),
        room => (Some(room), Weighed::SamePlace),
    }
}

/// Nanoseconds from the start to the head of `block`.
fn prefix(table: &LatencyTable, block: u32, samples: u32, rows: u64, input_len: u32) -> u64 {
    (0..block)
        .map(|b| {
            let passes = match table.repeat(b) {
                Repeat::Once => 1,
                Repeat::PerInputStep { stride } => u64::from(input_len.div_ceil(stride)),
                Repeat::UntilStop { .. } => 1,
            };
            passes * table.pass(b, 0, samples, rows).0
        })
        .sum()
}
