//! Latencies of segments, from a profile, in exact integers.
//!
//! A [`LatencyTable`] answers how long a segment takes at a batch, and how long a request still
//! needs. It knows nothing about what is running.
//!
//! Rule of the format: a node's latency between points is linear, below the first point the first
//! value, beyond the last the slope of the last two, rounded half up, never below zero, per node
//! execution; sums add those integers.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use lazybatch_graph::Repeat;

use crate::profile::{BlockProfile, By, ModelProfile, NodeProfile, micros_to_nanos};
use crate::time::Nanos;

/// Node positions of each segment, per block.
pub type SegmentRanges = Vec<Vec<Range<u32>>>;

/// Longest latency of a node, also where a curve goes on beyond its points: the bound that profiles
/// have, so that sums over nodes fit.
pub const MAX_NS: u64 = 1_000_000_000_000_000;

/// Row counts below which sums over row curves are remembered once they were asked for.
const REMEMBERED_ROWS: u64 = 16_384;

/// Latency of one node as a function of its batch axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(u64, u64)>,
}

impl Curve {
    /// From `(x, nanoseconds)`, x strictly increasing and at least one point.
    ///
    /// # Panics
    /// If there is no point.
    pub fn new(points: Vec<(u64, u64)>) -> Self {
        assert!(!points.is_empty(), "a curve has at least one point");
        Self { points }
    }

    /// The sum of curves, exact at every point of theirs; `None` of none.
    pub fn sum<'a>(curves: impl Iterator<Item = &'a Curve> + Clone) -> Option<Curve> {
        let xs: std::collections::BTreeSet<u64> = curves
            .clone()
            .flat_map(|c| c.points.iter().map(|p| p.0))
            .collect();
        let at = |x: u64| (x, curves.clone().map(|c| c.at(x)).sum());
        // One more point keeps the slope beyond the last, if there is anything beyond.
        let beyond = xs.last().and_then(|x| x.checked_mul(2)?.checked_add(1));
        let points: Vec<_> = xs.iter().copied().chain(beyond).map(at).collect();
        (!points.is_empty()).then(|| Curve::new(points))
    }

    /// Nanoseconds at `x`, at most [`MAX_NS`].
    pub fn at(&self, x: u64) -> u64 {
        let points = &self.points;
        let first = points[0];
        if x <= first.0 || points.len() == 1 {
            return first.1;
        }
        let upper = points
            .partition_point(|p| p.0 < x)
            .clamp(1, points.len() - 1);
        let ((x0, y0), (x1, y1)) = (points[upper - 1], points[upper]);
        let den = i128::from(x1 - x0);
        let num = i128::from(y0) * den
            + (i128::from(y1) - i128::from(y0)) * (i128::from(x) - i128::from(x0));
        let rounded = (2 * num + den).div_euclid(2 * den);
        u64::try_from(rounded.max(0)).map_or(MAX_NS, |ns| ns.min(MAX_NS))
    }
}

/// Where a request stands and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Block of the next segment.
    pub block: u32,
    /// Next segment within the block.
    pub segment: u32,
    /// Passes through the block that are complete.
    pub step: u32,
    /// Input length.
    pub input_len: u32,
    /// Predicted or known passes of `UntilStop` blocks.
    pub output_len: u32,
}

#[derive(Clone, Debug)]
struct BlockTable {
    repeat: Repeat,
    /// Per segment: one entry a batch size `1..=max_batch`: nodes by members, added.
    by_members: Vec<Vec<u64>>,
    /// Per batch size: suffix sums over segments of `by_members`, one longer than the segments.
    suffix: Vec<Vec<u64>>,
    /// Per segment: curves of nodes by members, for sizes beyond the table.
    member_curves: Vec<Vec<Curve>>,
    /// Per segment: curves of nodes by rows.
    row_curves: Vec<Vec<Curve>>,
    has_rows: bool,
    row_sums: RowSums,
    merge_bytes: Vec<f64>,
    num_nodes: Vec<u32>,
    /// Dispatch of the launches that each segment stands for, in nanoseconds.
    dispatch: Vec<u64>,
    /// The same from each segment to the end of the pass, one longer than the segments.
    dispatch_left: Vec<u64>,
    /// What all of these times are multiplied by, at each batch size from 1 up, the last for larger
    /// ones; empty: by nothing.
    factors: Vec<f64>,
    /// What the launches of each segment take beside, in nanoseconds, and the same to the end of the pass.
    beside: Vec<u64>,
    beside_left: Vec<u64>,
}

/// For a row count, the suffix sums over segments of what the row curves say, one longer than the
/// segments; worked out when they are first asked for. A decision asks for the same ones again and
/// again, and a block of a Transformer has a hundred curves. Copies share what they have.
#[derive(Clone, Debug, Default)]
struct RowSums(Arc<OnceLock<Box<[Sums]>>>);

/// Suffix sums, once they were asked for.
type Sums = OnceLock<Box<[u64]>>;

impl RowSums {
    /// `None` beyond [`REMEMBERED_ROWS`].
    fn at(&self, curves: &[Vec<Curve>], rows: u64) -> Option<&[u64]> {
        if rows >= REMEMBERED_ROWS {
            return None;
        }
        let all = self.0.get_or_init(|| {
            let empty = |_| OnceLock::new();
            (0..REMEMBERED_ROWS).map(empty).collect()
        });
        let sums = all[rows as usize].get_or_init(|| {
            let mut sums = vec![0; curves.len() + 1];
            for (s, curves) in curves.iter().enumerate().rev() {
                sums[s] = sums[s + 1] + curves.iter().map(|c| c.at(rows)).sum::<u64>();
            }
            sums.into()
        });
        Some(sums)
    }
}

/// Sums from each position to the end, one longer than the values.
fn suffix_sums(values: &[u64]) -> Vec<u64> {
    let mut sums = vec![0; values.len() + 1];
    for (i, value) in values.iter().enumerate().rev() {
        sums[i] = sums[i + 1] + value;
    }
    sums
}

/// Latencies of one model's segments.
#[derive(Clone, Debug)]
pub struct LatencyTable {
    blocks: Vec<BlockTable>,
    max_batch: u32,
    ns_per_byte: f64,
    monotone: bool,
}

impl LatencyTable {
    /// Compiles a model's profile for the given segments; `dispatch_us` and `copy_gbps` are the
    /// device's.
    ///
    /// # Panics
    /// If the segments are not those of the profile's blocks, or the profile was not checked.
    pub fn new(
        model: &ModelProfile,
        segments: &SegmentRanges,
        dispatch_us: f64,
        copy_gbps: f64,
    ) -> Self {
        assert_eq!(
            segments.len(),
            model.blocks.len(),
            "one list of segments a block"
        );
        let max_batch = model.max_batch;
        let dispatch = micros_to_nanos(dispatch_us).expect("a checked profile");
        let block = |(b, ranges): (&BlockProfile, &Vec<Range<u32>>)| {
            BlockTable::new(b.repeat(), &b.nodes, ranges, max_batch, dispatch)
        };
        let blocks = model.blocks.iter().zip(segments).map(block).collect();
        Self {
            blocks,
            max_batch,
            monotone: model
                .blocks
                .iter()
                .flat_map(|b| &b.nodes)
                .all(|n| n.latency_us.is_sorted_by(|a, b| a.1 <= b.1)),
            ns_per_byte: if copy_gbps > 0.0 {
                1.0 / copy_gbps
            } else {
                0.0
            },
        }
    }

    /// Whether no node gets faster as its batch grows.
    pub fn is_monotone(&self) -> bool {
        self.monotone
    }

    /// Most samples of one launch.
    pub fn max_batch(&self) -> u32 {
        self.max_batch
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Number of segments of a block.
    pub fn num_segments(&self, block: u32) -> u32 {
        self.blocks[block as usize].by_members.len() as u32
    }

    /// Number of nodes of a segment.
    pub fn num_nodes(&self, block: u32, segment: u32) -> u32 {
        self.blocks[block as usize].num_nodes[segment as usize]
    }

    /// Repeat rule of a block.
    pub fn repeat(&self, block: u32) -> Repeat {
        self.blocks[block as usize].repeat
    }

    /// Time of one launch of a segment at `samples` and `rows`, dispatch included.
    pub fn segment(&self, block: u32, segment: u32, samples: u32, rows: u64) -> Nanos {
        let (table, segment) = (&self.blocks[block as usize], segment as usize);
        let own = table.segment(segment, samples, rows) + table.dispatch[segment];
        Nanos(table.scale(samples, own) + table.beside[segment])
    }

    /// Time of the rest of one pass through a block, from `segment` on, at `samples` and `rows`,
    /// dispatch included.
    pub fn pass(&self, block: u32, segment: u32, samples: u32, rows: u64) -> Nanos {
        let table = &self.blocks[block as usize];
        Nanos(table.from(segment as usize, samples, rows))
    }

    /// A coarser table: per block, groups of consecutive segments that are one segment each. Times
    /// of whole groups stay the same but for roundings; curves are joined.
    ///
    /// # Panics
    /// If the groups are not of this table.
    pub fn coarse(&self, groups: &SegmentRanges) -> Self {
        let blocks = self.blocks.iter().zip(groups);
        self.with(blocks.map(|(b, g)| b.coarse(g)).collect())
    }

    /// Times of each block, dispatch included, multiplied by its factors: at each batch size from 1 up
    /// one, the last for larger ones; none leaves them as they are. What [`LatencyTable::delayed`] adds stays, and so do copies.
    ///
    /// # Panics
    /// If there is not one list a block.
    pub fn scaled(&self, factors: &[Vec<f64>]) -> Self {
        assert_eq!(factors.len(), self.blocks.len(), "one list a block");
        let blocks = self.blocks.iter().zip(factors);
        let mut scaled = self.with(blocks.map(|(b, f)| b.scaled(f)).collect());
        scaled.monotone &= factors.iter().all(|f| f.is_sorted());
        scaled
    }

    /// Each launch takes so much longer: `by` its block and segment.
    pub fn delayed(mut self, by: impl Fn(usize, usize) -> Nanos) -> Self {
        for (b, block) in self.blocks.iter_mut().enumerate() {
            for (s, ns) in block.beside.iter_mut().enumerate() {
                *ns = ns.saturating_add(by(b, s).0);
            }
            block.beside_left = suffix_sums(&block.beside);
        }
        self
    }

    /// The same blocks, repeated otherwise: one rule for each.
    pub fn repeated(&self, repeats: &[Repeat]) -> Self {
        let mut table = self.with(self.blocks.clone());
        for (block, &repeat) in table.blocks.iter_mut().zip(repeats) {
            block.repeat = repeat;
        }
        table
    }

    /// The same device with other blocks.
    fn with(&self, blocks: Vec<BlockTable>) -> Self {
        Self {
            blocks,
            max_batch: self.max_batch,
            ns_per_byte: self.ns_per_byte,
            monotone: self.monotone,
        }
    }

    /// Time to copy what `members` carry across the boundary in front of a segment.
    pub fn merge(&self, block: u32, segment: u32, members: u32) -> Nanos {
        let bytes = self.blocks[block as usize].merge_bytes[segment as usize];
        Nanos((bytes * f64::from(members) * self.ns_per_byte).round() as u64)
    }

    /// Time that a request at `progress` still needs if every launch has `samples` and `rows`. The
    /// pass it is in counts as one even where the predicted output length is reached; an output
    /// length of 0 skips loops that have not begun.
    pub fn remaining(&self, progress: &Progress, samples: u32, rows: u64) -> Nanos {
        let mut total = 0u64;
        for (table, passes, here) in self.left(progress) {
            let whole = if passes > 1 || !here || progress.segment == 0 {
                table.from(0, samples, rows)
            } else {
                0
            };
            let first = if here && progress.segment > 0 {
                table.from(progress.segment as usize, samples, rows)
            } else {
                whole
            };
            let others = u64::from(passes - 1).saturating_mul(whole);
            total = total.saturating_add(others).saturating_add(first);
        }
        Nanos(total)
    }

    /// Launches that a request at `progress` still needs.
    pub fn num_launches(&self, progress: &Progress) -> u64 {
        let left = self.left(progress).map(|(table, passes, here)| {
            let done = if here { progress.segment } else { 0 };
            let segments = table.by_members.len() as u64;
            (u64::from(passes) * segments).saturating_sub(u64::from(done))
        });
        left.sum()
    }

    /// Blocks that a request at `progress` still has to pass, how often, and whether it stands there.
    fn left(&self, progress: &Progress) -> impl Iterator<Item = (&BlockTable, u32, bool)> {
        let blocks = self.blocks.iter().enumerate();
        let blocks = blocks.skip(progress.block as usize).map(|(b, table)| {
            let here = b == progress.block as usize;
            let done = if here { progress.step } else { 0 };
            let passes = match table.repeat {
                Repeat::Once => 1,
                Repeat::PerInputStep { stride } => {
                    progress.input_len.div_ceil(stride).saturating_sub(done)
                }
                Repeat::UntilStop { max } => {
                    let left = progress.output_len.min(max).saturating_sub(done);
                    let begun = here && (progress.step > 0 || progress.segment > 0);
                    left.max(u32::from(begun))
                }
            };
            (table, passes, here)
        });
        blocks.filter(|(_, passes, _)| *passes > 0)
    }
}

impl BlockTable {
    fn new(
        repeat: Repeat,
        nodes: &[NodeProfile],
        ranges: &[Range<u32>],
        max_batch: u32,
        dispatch: u64,
    ) -> Self {
        let curve = |node: &NodeProfile| {
            let ns = |us| micros_to_nanos(us).expect("a checked profile");
            Curve::new(node.latency_us.iter().map(|&(x, us)| (x, ns(us))).collect())
        };
        let curves = |by: By| -> Vec<Vec<Curve>> {
            let of = |r: &Range<u32>| {
                nodes[r.start as usize..r.end as usize]
                    .iter()
                    .filter(|n| n.by == by)
            };
            ranges.iter().map(|r| of(r).map(curve).collect()).collect()
        };
        let member_curves = curves(By::Members);
        let row_curves = curves(By::Rows);
        let by_members: Vec<Vec<u64>> = member_curves
            .iter()
            .map(|cs| {
                (1..=u64::from(max_batch))
                    .map(|b| cs.iter().map(|c| c.at(b)).sum())
                    .collect()
            })
            .collect();
        let suffix = (0..max_batch as usize)
            .map(|b| {
                let mut sums = vec![0; by_members.len() + 1];
                for s in (0..by_members.len()).rev() {
                    sums[s] = sums[s + 1] + by_members[s][b];
                }
                sums
            })
            .collect();
        Self {
            repeat,
            by_members,
            suffix,
            has_rows: row_curves.iter().any(|c| !c.is_empty()),
            row_sums: RowSums::default(),
            member_curves,
            row_curves,
            merge_bytes: ranges
                .iter()
                .map(|r| nodes[r.start as usize].merge_bytes_per_member)
                .collect(),
            num_nodes: ranges.iter().map(|r| r.end - r.start).collect(),
            dispatch_left: suffix_sums(&vec![dispatch; ranges.len()]),
            dispatch: vec![dispatch; ranges.len()],
            factors: Vec::new(),
            beside: vec![0; ranges.len()],
            beside_left: vec![0; ranges.len() + 1],
        }
    }

    /// One segment for each of `groups` of consecutive segments.
    fn coarse(&self, groups: &[Range<u32>]) -> Self {
        let range = |g: &Range<u32>| g.start as usize..g.end as usize;
        let by_members: Vec<Vec<u64>> = groups
            .iter()
            .map(|g| {
                let segments = &self.by_members[range(g)];
                let sizes = segments.first().map_or(0, Vec::len);
                (0..sizes)
                    .map(|b| segments.iter().map(|s| s[b]).sum())
                    .collect()
            })
            .collect();
        let joined = |curves: &[Vec<Curve>]| -> Vec<Vec<Curve>> {
            let of = |g: &Range<u32>| Curve::sum(curves[range(g)].iter().flatten());
            groups.iter().map(|g| of(g).into_iter().collect()).collect()
        };
        let ends = || {
            groups
                .iter()
                .map(|g| g.start as usize)
                .chain([self.by_members.len()])
        };
        let sums =
            |of: &[u64]| -> Vec<u64> { groups.iter().map(|g| of[range(g)].iter().sum()).collect() };
        let (dispatch, beside) = (sums(&self.dispatch), sums(&self.beside));
        Self {
            repeat: self.repeat,
            factors: self.factors.clone(),
            beside_left: suffix_sums(&beside),
            beside,
            suffix: self
                .suffix
                .iter()
                .map(|sums| ends().map(|s| sums[s]).collect())
                .collect(),
            by_members,
            member_curves: joined(&self.member_curves),
            row_curves: joined(&self.row_curves),
            has_rows: self.has_rows,
            row_sums: RowSums::default(),
            merge_bytes: groups
                .iter()
                .map(|g| self.merge_bytes[g.start as usize])
                .collect(),
            num_nodes: groups
                .iter()
                .map(|g| self.num_nodes[range(g)].iter().sum())
                .collect(),
            dispatch_left: suffix_sums(&dispatch),
            dispatch,
        }
    }

    /// All times but those beside multiplied by factors.
    fn scaled(&self, factors: &[f64]) -> Self {
        let num = factors.len().max(self.factors.len());
        let at = |all: &[f64], i: usize| all.get(i).or(all.last()).copied().unwrap_or(1.0);
        let product = |i| at(factors, i) * at(&self.factors, i);
        Self {
            factors: (0..num).map(product).collect(),
            ..self.clone()
        }
    }

    /// A time of a batch of so many samples, multiplied by the factor for it.
    fn scale(&self, samples: u32, ns: u64) -> u64 {
        match self.factors.last() {
            None => ns,
            Some(last) => {
                let factor = self.factors.get((samples as usize).saturating_sub(1));
                (ns as f64 * factor.unwrap_or(last)).round() as u64
            }
        }
    }

    /// What the latencies say of a segment, as they are.
    fn segment(&self, segment: usize, samples: u32, rows: u64) -> u64 {
        let sizes = &self.by_members[segment];
        let members = match (samples as usize).checked_sub(1) {
            Some(i) if i < sizes.len() => sizes[i],
            _ => self.member_curves[segment]
                .iter()
                .map(|c| c.at(u64::from(samples)))
                .sum(),
        };
        members + self.rows(segment, rows)
    }

    /// What the row curves of a segment say.
    fn rows(&self, segment: usize, rows: u64) -> u64 {
        let curves = &self.row_curves[segment];
        if curves.is_empty() {
            return 0;
        }
        match self.row_sums.at(&self.row_curves, rows) {
            Some(sums) => sums[segment] - sums[segment + 1],
            None => curves.iter().map(|c| c.at(rows)).sum(),
        }
    }

    /// The rest of a pass from `segment` on.
    fn from(&self, segment: usize, samples: u32, rows: u64) -> u64 {
        let sizes = (samples as usize).checked_sub(1);
        let own = match sizes.and_then(|i| self.suffix.get(i)) {
            Some(sums) if !self.has_rows => sums[segment],
            Some(sums) => {
                let rows: u64 = match self.row_sums.at(&self.row_curves, rows) {
                    Some(sums) => sums[segment],
                    None => {
                        let curves = self.row_curves[segment..].iter().flatten();
                        curves.map(|c| c.at(rows)).sum()
                    }
                };
                sums[segment] + rows
            }
            None => {
                let segments = segment..self.by_members.len();
                segments.map(|s| self.segment(s, samples, rows)).sum()
            }
        };
        let own = self.scale(samples, own + self.dispatch_left[segment]);
        own + self.beside_left[segment]
    }
}

/// One segment a node, or `every` nodes a segment.
///
/// # Panics
/// If `every` is zero.
pub fn segments_of(model: &ModelProfile, every: u32) -> SegmentRanges {
    assert!(every > 0, "a segment has at least one node");
    let chunk = |n: u32| {
        (0..n)
            .step_by(every as usize)
            .map(|s| s..(s + every).min(n))
            .collect()
    };
    model
        .blocks
        .iter()
        .map(|b| chunk(b.nodes.len() as u32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn remembered_row_sums_are_those_of_the_curves() {
        let text = r#"{ "format": "lazybatch-profile/1", "device": "t", "dispatch_us": 0.5,
            "models": [{ "name": "m", "max_batch": 4, "blocks": [{ "name": "b", "repeat": "once",
            "nodes": [
                { "name": "a", "by": "rows", "latency_us": [[1, 1.0], [3, 1.5], [900, 40.25]] },
                { "name": "b", "by": "members", "latency_us": [[1, 2.0], [4, 3.0]] },
                { "name": "c", "by": "rows", "latency_us": [[2, 0.7], [50, 9.1]] }] }] }] }"#;
        let profile = Profile::parse("t", text).unwrap();
        let model = &profile.models[0];
        let table = LatencyTable::new(model, &segments_of(model, 1), 0.5, 0.0);
        let coarse = table.coarse(&vec![vec![0..3]]);
        let doubled = table.scaled(&[vec![2.0]]);
        let ns = |node: usize, x| {
            let points = &model.blocks[0].nodes[node].latency_us;
            Curve::new(points.iter().map(|p| (p.0, (p.1 * 1e3) as u64)).collect()).at(x)
        };
        let far = REMEMBERED_ROWS;
        for rows in [0, 1, 2, 7, 49, 51, 1000, far - 1, far, far + 5].repeat(2) {
            let rest = ns(1, 3) + ns(2, rows) + 1000;
            assert_eq!(table.segment(0, 0, 3, rows).0, ns(0, rows) + 500, "{rows}");
            assert_eq!(table.segment(0, 1, 3, rows).0, ns(1, 3) + 500, "{rows}");
            assert_eq!(table.pass(0, 1, 3, rows).0, rest, "{rows}");
            assert_eq!(
                table.pass(0, 0, 3, rows).0,
                rest + ns(0, rows) + 500,
                "{rows}"
            );
        }
        let all = table.pass(0, 0, 1, 900).0;
        assert_eq!(coarse.pass(0, 0, 1, 900).0, all);
        assert!(doubled.pass(0, 0, 1, 900).0.abs_diff(2 * all) <= 3);
    }

    #[test]
    fn sums_reach_to_the_last_number_there_is() {
        let curves = [vec![(1, 10), (u64::MAX, 20)], vec![(1, 5)]].map(Curve::new);
        let sum = Curve::sum(curves.iter()).unwrap();
        assert_eq!([1, u64::MAX].map(|x| sum.at(x)), [15, 25]);
        assert_eq!(Curve::sum(curves[1..].iter()).unwrap().at(u64::MAX), 5);
    }

    #[test]
    fn curve_interpolates_extrapolates_and_clamps() {
        let curve = Curve::new(vec![(2, 10), (4, 15), (8, 11)]);
        assert_eq!(curve.at(1), 10);
        assert_eq!(curve.at(2), 10);
        assert_eq!(curve.at(3), 13, "12.5 rounds half up");
        assert_eq!(curve.at(4), 15);
        assert_eq!(curve.at(5), 14);
        assert_eq!(curve.at(10), 9, "slope of the last two points");
        assert_eq!(curve.at(1000), 0, "never below zero");
        assert_eq!(
            Curve::new(vec![(5, 7)]).at(99),
            7,
            "one point is a constant"
        );
    }

    #[test]
    fn a_point_at_no_members_is_one_to_interpolate_from() {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m","blocks":[
            {"name":"b","repeat":"once","nodes":[{"name":"n","latency_us":[[0,1],[2,2]]}]}]}]}"#;
        let profile = Profile::parse("-", text).expect("x from 0");
        let model = &profile.models[0];
        let table = LatencyTable::new(model, &segments_of(model, 1), 0.0, 0.0);
        let of = |members| table.segment(0, 0, members, 0);
        assert_eq!([1, 2, 4].map(of), [1_500, 2_000, 3_000].map(Nanos));
    }

    const TOY: &str = r#"{"format":"lazybatch-profile/1","device":"d","dispatch_us":1.0,"models":[
      {"name":"m","max_batch":4,"blocks":[
        {"name":"enc","repeat":"once","nodes":[
          {"name":"a","by":"rows","latency_us":[[1,2.0],[11,12.0]]},
          {"name":"b","latency_us":[[1,5.0],[4,8.0]]}]},
        {"name":"dec","repeat":"until_stop","nodes":[
          {"name":"c","latency_us":[[1,3.0]]},{"name":"d","latency_us":[[1,4.0]]}]}]}]}"#;

    #[test]
    fn remaining_counts_passes_and_dispatch() {
        let profile = Profile::parse("-", TOY).expect("valid");
        let model = &profile.models[0];
        let table = LatencyTable::new(model, &segments_of(model, 1), profile.dispatch_us, 0.0);
        assert_eq!(table.segment(0, 0, 1, 6), Nanos(8_000));
        assert_eq!(table.segment(0, 1, 4, 6), Nanos(9_000));
        let start = Progress {
            block: 0,
            segment: 0,
            step: 0,
            input_len: 6,
            output_len: 3,
        };
        // a(6 rows) 7 + 1, b 5 + 1, then three passes of (3 + 1) + (4 + 1).
        assert_eq!(table.remaining(&start, 1, 6), Nanos(14_000 + 3 * 9_000));
        let late = Progress {
            block: 1,
            segment: 1,
            step: 7,
            input_len: 6,
            output_len: 3,
        };
        assert_eq!(
            table.remaining(&late, 1, 6),
            Nanos(5_000),
            "one more step at a time"
        );
        let mid = Progress {
            block: 1,
            segment: 1,
            step: 1,
            input_len: 6,
            output_len: 3,
        };
        assert_eq!(table.remaining(&mid, 1, 6), Nanos(5_000 + 9_000));
        let none = Progress {
            output_len: 0,
            ..start
        };
        assert_eq!(
            table.remaining(&none, 1, 6),
            Nanos(14_000),
            "an output length of 0 skips the loop"
        );
        let skipped = Progress {
            block: 1,
            output_len: 0,
            ..start
        };
        assert_eq!(table.remaining(&skipped, 1, 6), Nanos(0));
        let all = [start, late, mid, none, skipped];
        assert_eq!(all.map(|p| table.num_launches(&p)), [8, 1, 3, 2, 0]);
        let delayed = table.delayed(|_, _| Nanos(50));
        let times = all.map(|p| delayed.remaining(&p, 1, 6).0);
        assert_eq!(times, [41_400, 5_050, 14_150, 14_100, 0]);
    }

    #[test]
    fn coarse_tables_keep_the_times_of_whole_groups() {
        let profile = Profile::parse("-", TOY).expect("valid");
        let model = &profile.models[0];
        let fine = LatencyTable::new(model, &segments_of(model, 1), profile.dispatch_us, 0.0);
        let coarse = fine.coarse(&vec![vec![0..2], vec![0..2]]);
        for (samples, rows) in [(1, 1), (2, 7), (4, 30), (9, 100)] {
            for block in 0..2 {
                let whole = fine.pass(block, 0, samples, rows);
                assert_eq!(coarse.pass(block, 0, samples, rows), whole);
                assert_eq!(coarse.segment(block, 0, samples, rows), whole);
            }
        }
        assert_eq!((coarse.num_segments(0), coarse.num_nodes(0, 0)), (1, 2));
    }

    #[test]
    fn scaled_tables_go_by_the_batch() {
        let profile = Profile::parse("-", TOY).expect("valid");
        let model = &profile.models[0];
        let fine = LatencyTable::new(model, &segments_of(model, 1), profile.dispatch_us, 0.0);
        let slow = fine.scaled(&[vec![2.0], vec![1.0]]);
        assert_eq!(slow.segment(0, 1, 4, 6), Nanos(16_000 + 2_000));
        assert_eq!(slow.segment(1, 0, 4, 6), fine.segment(1, 0, 4, 6));
        let by_size = fine.scaled(&[vec![0.5, 1.0, 3.0], vec![1.0]]);
        for (samples, half_times) in [(1, 1), (2, 2), (3, 6), (9, 6)] {
            let own = |t: &LatencyTable, s| t.segment(0, s, samples, 6).0;
            assert_eq!(own(&by_size, 0), own(&fine, 0) * half_times / 2);
            let pass = |t: &LatencyTable| t.pass(0, 0, samples, 6).0;
            assert_eq!(pass(&by_size), pass(&fine) * half_times / 2);
        }
        let twice = by_size.scaled(&[vec![2.0; 4], vec![1.0]]);
        assert_eq!(twice.pass(0, 0, 9, 6).0, 2 * by_size.pass(0, 0, 9, 6).0);
        // What launches take beside is as it is, and groups have that of all of their segments.
        let delayed = by_size.clone().delayed(|_, _| Nanos(7));
        let coarse = delayed.coarse(&vec![vec![0..2], vec![0..2]]);
        let whole = by_size.pass(0, 0, 2, 6).0 + 14;
        assert_eq!(
            [&delayed, &coarse].map(|t| t.pass(0, 0, 2, 6).0),
            [whole; 2]
        );
        assert_eq!(coarse.segment(0, 0, 2, 6).0, whole);
        assert!(fine.is_monotone() && by_size.is_monotone());
        let falls = fine.scaled(&[vec![2.0, 1.0], vec![1.0]]);
        assert!(!falls.is_monotone());
    }

    #[test]
    fn segments_add_their_nodes_and_dispatch_once() {
        let profile = Profile::parse("-", TOY).expect("valid");
        let model = &profile.models[0];
        let table = LatencyTable::new(model, &segments_of(model, 2), profile.dispatch_us, 0.0);
        assert_eq!(table.segment(0, 0, 4, 6), Nanos(7_000 + 8_000 + 1_000));
        assert_eq!(table.num_nodes(0, 0), 2);
        assert_eq!(
            table.segment(1, 0, 9, 0),
            Nanos(8_000),
            "beyond max batch by the curve"
        );
    }
}
