//! Measures a model's latency tables on a real device.
//!
//! Two passes. The first times every node alone at batch 1 and forms segments from those times
//! ([`SegmentLength`]).
//! The second times every segment at each batch size, requests taken from a pool of inputs,
//! and gives a profile with one node per segment: what one launch costs, its dispatch included.
//! Two batches are in flight at a time and take turns, pass by pass, as sub-batches do that preempt
//! each other: back to back, a loop's passes would find caches warmer than they are in service.
//! A loop is timed with all members in, until half of them would leave (until the first, for a loop
//! over the input): its first passes cost more than later ones, and count as often as they do in
//! service. Means over interleaved rounds,
//! without outliers.
//!
//! Blocks that run once over a sequence get tables by rows, all others by members. One request
//! alone is timed at several lengths, from the shortest of the pool to the longest, as tables by
//! rows are flat below their first point.

mod segments;

use std::iter::Peekable;
use std::time::Instant;

use lazybatch_graph::{BlockId, Program, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{Completion, Device, Error, OpenRequest, Plan, validate_inputs};
use lazybatch_sla::profile::{BlockProfile, By, FORMAT, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{
    LaneId, Launch, Member, ModelId, Profile, RequestId, SegmentRanges, Slot, SubBatchId, Ticket,
    Time,
};

use rustc_hash::FxHashSet;

pub use segments::{DISPATCH_SHARE, SHORTEST_US, SegmentLength};

/// Most passes through a loop that are timed, about as many as outputs have.
const MAX_PASSES: u32 = 32;
/// Rounds per batch, unless they take longer than [`ROUND_BUDGET_S`].
const ROUNDS: usize = 5;
/// Seconds per batch behind which no further round of it starts.
const ROUND_BUDGET_S: f64 = 2.0;
/// Times that nodes are run alone, on a device that computes in place.
const ALONE: usize = 3;
/// On one that runs beside the host: first as they come, then prepared, then timed.
const ALONE_BESIDE: (usize, usize) = (2, 5);
/// Lengths at which one request alone is timed.
const LENGTHS: usize = 5;

/// A measured model.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name of the device.
    pub device: String,
    /// One node per segment.
    pub profile: ModelProfile,
    /// What launches cost the host, on a device that runs beside it.
    pub dispatch: Option<Dispatch>,
}

/// What issuing launches takes the host. It is part of the latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dispatch {
    /// Median over the launches of segments, microseconds.
    pub launch_us: f64,
    /// The largest share of a segment's time at batch 1, among blocks of several segments: the
    /// others are as long as they can be.
    pub largest_share: f64,
}

impl Measured {
    /// The profile file of this model alone.
    pub fn into_profile(self) -> Profile {
        Profile {
            format: FORMAT.into(),
            device: self.device,
            copy_gbps: 0.0,
            dispatch_us: 0.0,
            issue_us: self.dispatch.map_or(0.0, |d| d.launch_us),
            models: vec![self.profile],
        }
    }
}

/// Measures `program` on `device`, which must be empty, with segments of such a `length` and batches
/// of 1, 2, 3, 4, 6, 8, 12 .. `max_batch` requests from `pool`: the inputs of one each, a tensor per
/// declared input, of one sample. Lengths should be as they will come.
///
/// # Errors
/// Inputs that do not fit the program, and what the device refuses.
///
/// # Panics
/// If the pool is empty or `max_batch` is zero.
pub fn measure(
    device: &mut dyn Device,
    program: &SharedProgram,
    pool: &[impl AsRef<[Tensor]>],
    max_batch: u32,
    length: SegmentLength,
) -> Result<Measured, Error> {
    let items = items(program, pool)?;
    device.load(MODEL, program.clone())?;
    let segments = segments_of(device, program, &items, length);
    device.unload(MODEL);
    measure_items(device, program, &items, max_batch, &segments?)
}

/// Segments of such a length.
fn segments_of(
    device: &mut dyn Device,
    program: &Program,
    items: &[Item<'_>],
    length: SegmentLength,
) -> Result<SegmentRanges, Error> {
    let per_node: SegmentRanges = program
        .blocks
        .iter()
        .map(|b| (0..b.nodes.len() as u32).map(|n| n..n + 1).collect())
        .collect();
    let is_counted = matches!(length, SegmentLength::Us(0.0) | SegmentLength::Nodes(_));
    if is_counted {
        return Ok(cut(program, &Tables::new(&per_node), length, 0));
    }
    let mut alone = Tables::new(&per_node);
    let (unused, timed) = match device.is_asynchronous() {
        true => ALONE_BESIDE,
        false => (0, ALONE),
    };
    for round in 0..unused + timed {
        if round == unused {
            alone = Tables::new(&per_node);
        }
        run_once(device, program, &per_node, &items[..1], &mut alone)?;
    }
    let dispatch_ns = match device.is_asynchronous() {
        true => alone.median_issue_ns(),
        false => 0,
    };
    Ok(cut(program, &alone, length, dispatch_ns))
}

/// As [`measure`], with given segments: the tables of two such runs have the same shape, and the
/// same points on the batch axis for the same pool.
///
/// # Errors
/// As [`measure`].
///
/// # Panics
/// If the pool is empty or `max_batch` is zero.
pub fn measure_segments(
    device: &mut dyn Device,
    program: &SharedProgram,
    pool: &[impl AsRef<[Tensor]>],
    max_batch: u32,
    segments: &SegmentRanges,
) -> Result<Measured, Error> {
    let items = items(program, pool)?;
    measure_items(device, program, &items, max_batch, segments)
}

fn measure_items(
    device: &mut dyn Device,
    program: &SharedProgram,
    items: &[Item<'_>],
    max_batch: u32,
    segments: &SegmentRanges,
) -> Result<Measured, Error> {
    device.load(MODEL, program.clone())?;
    let tables = timed_tables(device, program, items, max_batch, segments);
    device.unload(MODEL);
    let tables = tables?;
    Ok(Measured {
        device: device.info().name,
        dispatch: device.is_asynchronous().then(|| tables.dispatch()),
        profile: tables.profile(program, segments, max_batch),
    })
}

/// Samples of all batches.
fn timed_tables(
    device: &mut dyn Device,
    program: &Program,
    items: &[Item<'_>],
    max_batch: u32,
    segments: &SegmentRanges,
) -> Result<Tables, Error> {
    // A larger batch never runs: no more than these are admitted.
    let max_open = device.max_open(MODEL).unwrap_or(u32::MAX).max(1);
    let batches = batches(items, max_batch.min(max_open) as usize);
    let mut tables = Tables::new(segments);
    let warm = &mut Tables::new(segments);
    // A device beside the host prepares a launch when it comes again.
    for _ in 0..1 + usize::from(device.is_asynchronous()) {
        for batch in &batches {
            run_once(device, program, segments, batch, warm)?;
        }
    }
    let mut spent_s = vec![0.0; batches.len()];
    for round in 0..ROUNDS {
        // Neighbours in this order are in flight together; they differ from round to round.
        let stride = (round + 1..).find(|s| gcd(*s, batches.len()) == 1);
        let order = (0..batches.len()).map(|i| i * stride.unwrap_or(1) % batches.len());
        let left: Vec<usize> = order.filter(|&b| spent_s[b] <= ROUND_BUDGET_S).collect();
        run_mixed(
            device,
            program,
            segments,
            &batches,
            &left,
            &mut tables,
            &mut spent_s,
        )?;
    }
    Ok(tables)
}

const MODEL: ModelId = ModelId(0);

/// A request of the pool.
#[derive(Clone, Copy)]
struct Item<'a> {
    inputs: &'a [Tensor],
    /// Length of the sequence that drives the program; 0 without one.
    input_len: u32,
}

/// The pool, checked against the program.
fn items<'a>(program: &Program, pool: &'a [impl AsRef<[Tensor]>]) -> Result<Vec<Item<'a>>, Error> {
    let item = |inputs: &'a [Tensor]| {
        let input_len = validate_inputs(program, inputs)?.input_len;
        Ok(Item { inputs, input_len })
    };
    pool.iter().map(|inputs| item(inputs.as_ref())).collect()
}

/// What is timed: single requests of different lengths, then batches of [`sizes`].
fn batches<'a>(pool: &[Item<'a>], max_batch: usize) -> Vec<Vec<Item<'a>>> {
    assert!(!pool.is_empty() && max_batch > 0, "something to measure");
    let mut by_length = pool.to_vec();
    by_length.sort_by_key(|i| i.input_len);
    let mut alone: Vec<Item<'a>> = (0..LENGTHS)
        .map(|i| by_length[(pool.len() - 1) * i / (LENGTHS - 1)])
        .collect();
    alone.dedup_by_key(|i| i.input_len);
    let mut batches: Vec<Vec<Item<'a>>> = alone.into_iter().map(|i| vec![i]).collect();
    for size in sizes(max_batch) {
        // A pool smaller than the batch repeats.
        batches.push(pool.iter().cycle().take(size).copied().collect());
    }
    batches
}

/// 2, 3, 4, 6, 8, 12 .. `max_batch`: kernels take rows in groups, so that between two powers of two
/// a launch may take anything between what it takes at either.
fn sizes(max_batch: usize) -> Vec<usize> {
    let powers = (1..).map(|k| 1 << k);
    let mut sizes: Vec<usize> = powers
        .flat_map(|p: usize| [p, p + p / 2])
        .take_while(|&s| s < max_batch)
        .collect();
    sizes.extend((max_batch > 1).then_some(max_batch));
    sizes
}

#[allow(clippy::disallowed_methods, reason = "a profiler reads a clock")]
fn now() -> Instant {
    Instant::now()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One launch.
#[derive(Clone, Copy)]
struct Sample {
    members: u64,
    rows: u64,
    /// From its issue to its end, nanoseconds.
    ns: u64,
    /// Of that, in which the device took it.
    issue_ns: u64,
}

/// Samples per block and segment.
struct Tables {
    samples: Vec<Vec<Vec<Sample>>>,
}

impl Tables {
    fn new(segments: &SegmentRanges) -> Self {
        Self {
            samples: segments.iter().map(|s| vec![Vec::new(); s.len()]).collect(),
        }
    }

    fn points(&self, block: usize, segment: usize, by: By) -> Vec<(u64, u64)> {
        let mut by_x: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        for sample in &self.samples[block][segment] {
            let x = match by {
                By::Rows => sample.rows,
                By::Members => sample.members,
            };
            by_x.entry(x).or_default().push(sample.ns);
        }
        nondecreasing(by_x.into_iter().map(|(x, ns)| (x, typical(ns))).collect())
    }

    /// Median host time of a launch.
    fn median_issue_ns(&self) -> u64 {
        let all = self.samples.iter().flatten().flatten();
        let mut issued: Vec<u64> = all.map(|s| s.issue_ns).collect();
        issued.sort_unstable();
        issued.get(issued.len() / 2).copied().unwrap_or(0)
    }

    fn dispatch(&self) -> Dispatch {
        let cut = self.samples.iter().filter(|block| block.len() > 1);
        let share = |segment: &Vec<Sample>| {
            let alone = || segment.iter().filter(|s| s.members == 1);
            let mut issued: Vec<u64> = alone().map(|s| s.issue_ns).collect();
            issued.sort_unstable();
            let took = typical(alone().map(|s| s.ns).collect());
            issued.get(issued.len() / 2).copied().unwrap_or(0) as f64 / took.max(1) as f64
        };
        let timed = cut.flatten().filter(|s| s.iter().any(|s| s.members == 1));
        Dispatch {
            launch_us: self.median_issue_ns() as f64 / 1e3,
            largest_share: timed.map(share).fold(0.0, f64::max),
        }
    }

    fn profile(&self, program: &Program, segments: &SegmentRanges, max_batch: u32) -> ModelProfile {
        let blocks = program.blocks.iter().enumerate().map(|(b, block)| {
            let rows = block.repeat == Repeat::Once && program.length_input.is_some();
            let by = if rows { By::Rows } else { By::Members };
            let (repeat, stride, max_steps) = match block.repeat {
                Repeat::Once => (RepeatRule::Once, None, None),
                Repeat::PerInputStep { stride } => (RepeatRule::PerInputStep, Some(stride), None),
                Repeat::UntilStop { max } => (RepeatRule::UntilStop, None, Some(max)),
            };
            let nodes = segments[b].iter().enumerate().map(|(s, range)| {
                let name = |n: u32| program.node(block.nodes[n as usize]).name.clone();
                let points = self.points(b, s, by);
                NodeProfile {
                    name: match range.end - range.start {
                        1 => name(range.start),
                        _ => format!("{}..{}", name(range.start), name(range.end - 1)),
                    },
                    by,
                    latency_us: points
                        .iter()
                        .map(|&(x, ns)| (x.max(1), ns as f64 / 1e3))
                        .collect(),
                    num_nodes: Some(range.end - range.start).filter(|&n| n > 1),
                    merge_bytes_per_member: 0.0,
                    weight_bytes: None,
                    load_us: None,
                    host_access_us: None,
                }
            });
            BlockProfile {
                name: block.name.clone(),
                repeat,
                stride,
                max_steps,
                nodes: nodes.collect(),
            }
        });
        ModelProfile {
            name: program.name.clone(),
            max_batch,
            sla_ms: None,
            output_len_p90: None,
            blocks: blocks.collect(),
        }
    }
}

/// The mean, which is what a queue feels, without samples of over three times the median, which
/// are interruptions by other processes.
fn typical(mut ns: Vec<u64>) -> u64 {
    ns.sort_unstable();
    let most = 3 * ns[ns.len() / 2];
    ns.retain(|&n| n <= most);
    ns.iter().sum::<u64>() / ns.len() as u64
}

/// The nondecreasing points nearest to those measured (isotonic regression by pooling adjacent
/// violators): more rows never really take less time, so a fall is noise.
fn nondecreasing(points: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut pools: Vec<(u64, usize)> = Vec::new();
    for &(_, ns) in &points {
        let (mut sum, mut num) = (ns, 1);
        while let Some(&(s, n)) = pools.last()
            && s * num as u64 > sum * n as u64
        {
            (sum, num) = (sum + s, num + n);
            pools.pop();
        }
        pools.push((sum, num));
    }
    let levels = pools
        .iter()
        .flat_map(|&(sum, num)| std::iter::repeat_n(sum / num as u64, num));
    points.iter().map(|p| p.0).zip(levels).collect()
}

/// Segments by the times of single nodes.
fn cut(
    program: &Program,
    alone: &Tables,
    length: SegmentLength,
    dispatch_ns: u64,
) -> SegmentRanges {
    let mut ns_of = vec![0; program.nodes.len()];
    for (b, block) in program.blocks.iter().enumerate() {
        for (n, node) in block.nodes.iter().enumerate() {
            let points = alone.points(b, n, By::Members);
            ns_of[node.index()] = points.first().map_or(0, |p| p.1);
        }
    }
    let segments = length.cut(program, |node| ns_of[node.index()], dispatch_ns);
    (0..program.blocks.len())
        .map(|b| {
            let ranges = segments.block(BlockId::new(b));
            ranges
                .iter()
                .map(|r| r.start as u32..r.end as u32)
                .collect()
        })
        .collect()
}

/// Runs `items` as one batch through all blocks, alone, and adds one sample per launch.
fn run_once(
    device: &mut dyn Device,
    program: &Program,
    segments: &SegmentRanges,
    items: &[Item<'_>],
    tables: &mut Tables,
) -> Result<(), Error> {
    let mut flight = Flight::open(device, items, 0)?;
    let mut result = Ok(true);
    while let Ok(true) = result {
        result = flight.pass(device, program, segments, tables);
    }
    flight.close(device);
    result.map(|_| ())
}

/// The batches in flight, each with its place in the list of all.
type Flying<'a> = [Option<(usize, Flight<'a>)>; 2];

/// Runs `order` of `batches`, two in flight that take turns, pass by pass: caches are as cold as
/// where sub-batches preempt each other. Two that the device cannot hold together run one behind the
/// other. Adds one sample per launch.
fn run_mixed(
    device: &mut dyn Device,
    program: &Program,
    segments: &SegmentRanges,
    batches: &[Vec<Item<'_>>],
    order: &[usize],
    tables: &mut Tables,
    spent_s: &mut [f64],
) -> Result<(), Error> {
    let mut flying: Flying<'_> = [None, None];
    let mut order = order.iter().copied().peekable();
    let mut result = Ok(());
    while result.is_ok() && (order.peek().is_some() || flying.iter().any(Option::is_some)) {
        for place in 0..flying.len() {
            if flying[place].is_none() {
                result = take_off(device, batches, &mut order, &mut flying, place);
            }
            if result.is_err() {
                break;
            }
            let Some((b, flight)) = &mut flying[place] else {
                continue;
            };
            let start = now();
            let more = flight.pass(device, program, segments, tables);
            spent_s[*b] += start.elapsed().as_secs_f64();
            match more {
                Ok(true) => {}
                Ok(false) => {
                    flight.close(device);
                    flying[place] = None;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
    }
    // Behind a failure others are open.
    for (_, flight) in flying.iter().flatten() {
        flight.close(device);
    }
    result
}

/// Opens the next batch of `order` at a place that is free, if the device holds it beside the other.
fn take_off<'a>(
    device: &mut dyn Device,
    batches: &'a [Vec<Item<'a>>],
    order: &mut Peekable<impl Iterator<Item = usize>>,
    flying: &mut Flying<'a>,
    place: usize,
) -> Result<(), Error> {
    let max_open = device.max_open(MODEL).map_or(usize::MAX, |n| n as usize);
    let num_open: usize = flying.iter().flatten().map(|(_, f)| f.items.len()).sum();
    let fits = |&b: &usize| num_open == 0 || num_open + batches[b].len() <= max_open;
    let Some(b) = order.next_if(fits) else {
        return Ok(());
    };
    let max_slots = batches.iter().map(Vec::len).max().unwrap_or(0);
    let first_slot = (place * max_slots) as u32;
    flying[place] = Some((b, Flight::open(device, &batches[b], first_slot)?));
    Ok(())
}

/// A batch on its way through the program.
struct Flight<'a> {
    items: &'a [Item<'a>],
    first_slot: u32,
    block: usize,
    step: u32,
    /// Members whose loop has ended.
    stopped: FxHashSet<RequestId>,
}

impl<'a> Flight<'a> {
    /// Opens all of a batch, or none.
    fn open(
        device: &mut dyn Device,
        items: &'a [Item<'a>],
        first_slot: u32,
    ) -> Result<Self, Error> {
        for (slot, item) in (first_slot..).zip(items) {
            let request = OpenRequest {
                slot: Slot(slot),
                request: RequestId(u64::from(slot)),
                model: MODEL,
                inputs: item.inputs,
                input_len: item.input_len,
                samples: 1,
                output_len: None,
            };
            if let Err(error) = device.open(&request) {
                for opened in first_slot..slot {
                    device.close(Slot(opened));
                }
                return Err(error);
            }
        }
        Ok(Self {
            items,
            first_slot,
            block: 0,
            step: 0,
            stopped: FxHashSet::default(),
        })
    }

    /// Runs one pass of the block that is next; false when the program has ended.
    fn pass(
        &mut self,
        device: &mut dyn Device,
        program: &Program,
        segments: &SegmentRanges,
        tables: &mut Tables,
    ) -> Result<bool, Error> {
        // A loop over the input ends where the longest does, as what comes behind it reads all.
        let lens = || self.items.iter().map(|i| i.input_len);
        let (shortest, longest) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
        let passes = |block: usize| match program.block(BlockId::new(block)).repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => longest.div_ceil(stride),
            Repeat::UntilStop { max } => max.min(MAX_PASSES),
        };
        let has_ended = |f: &Self| f.step >= passes(f.block) || f.stopped.len() * 2 > f.items.len();
        while self.block < segments.len() && has_ended(self) {
            (self.block, self.step) = (self.block + 1, 0);
            self.stopped.clear();
        }
        let Some(ranges) = segments.get(self.block) else {
            return Ok(false);
        };
        let (mut long_enough, mut is_timed) = (0.., true);
        if let Repeat::PerInputStep { stride } = program.block(BlockId::new(self.block)).repeat {
            let position = self.step.saturating_mul(stride);
            long_enough.start = position + 1;
            is_timed = position < shortest && self.step < MAX_PASSES;
        }
        for (s, range) in ranges.iter().enumerate() {
            let mut launch = self.launch(s, range);
            launch
                .members
                .retain(|m| long_enough.contains(&m.input_len));
            let (issue_ns, ns, done) = timed(device, &launch)?;
            self.stopped.extend(done.stopped);
            if is_timed {
                let sample = Sample {
                    members: self.items.len() as u64,
                    rows: launch.num_rows(),
                    ns,
                    issue_ns,
                };
                tables.samples[self.block][s].push(sample);
            }
        }
        self.step += 1;
        Ok(true)
    }

    fn launch(&self, segment: usize, nodes: &std::ops::Range<u32>) -> Launch {
        let member = |(i, item): (usize, &Item<'_>)| Member {
            request: RequestId(u64::from(self.first_slot) + i as u64),
            slot: Slot(self.first_slot + i as u32),
            step: self.step,
            input_len: item.input_len,
            samples: 1,
            idle: false,
        };
        Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: MODEL,
            block: self.block as u32,
            segment: segment as u32,
            first_node: nodes.start,
            end_node: nodes.end,
            sub_batch: SubBatchId(self.first_slot.into()),
            members: self.items.iter().enumerate().map(member).collect(),
            padded_len: None,
            merged_members: 0,
        }
    }

    fn close(&self, device: &mut dyn Device) {
        for i in 0..self.items.len() as u32 {
            device.close(Slot(self.first_slot + i));
        }
    }
}

/// Nanoseconds until the device has taken `launch` and until it is over, and what comes of it.
fn timed(device: &mut dyn Device, launch: &Launch) -> Result<(u64, u64, Completion), Error> {
    let bucket = device.buckets().last().copied().unwrap_or(u32::MAX);
    let plan: Plan = device.prepare(
        MODEL,
        launch.block,
        launch.first_node,
        launch.end_node,
        bucket,
    )?;
    let start = now();
    device.enqueue(Time::ZERO, plan, launch)?;
    let issue_ns = start.elapsed().as_nanos() as u64;
    loop {
        if let Some(done) = device.poll(Time::MAX) {
            let ns = start.elapsed().as_nanos() as u64;
            return done.whole().map(|()| (issue_ns, ns, done));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_largest_batch() {
        assert_eq!(sizes(1), [0; 0]);
        assert_eq!(sizes(2), [2]);
        assert_eq!(sizes(16), [2, 3, 4, 6, 8, 12, 16]);
        assert_eq!(sizes(20), [2, 3, 4, 6, 8, 12, 16, 20]);
    }

    #[test]
    fn means_leave_interruptions_out() {
        assert_eq!(typical(vec![10, 12, 1000, 14, 12]), 12);
        assert_eq!(typical(vec![5]), 5);
        assert_eq!(typical(vec![0, 0]), 0);
    }

    #[test]
    fn dispatch_is_judged_where_a_block_was_cut() {
        let sample = |members, ns, issue_ns| Sample {
            members,
            rows: 0,
            ns,
            issue_ns,
        };
        let whole = vec![vec![sample(1, 10_000, 5_000)]];
        let cut = vec![
            vec![sample(1, 300_000, 6_000), sample(8, 310_000, 9_000)],
            vec![sample(1, 240_000, 7_000), sample(1, 260_000, 5_000)],
        ];
        let tables = Tables {
            samples: vec![whole, cut],
        };
        let dispatch = tables.dispatch();
        assert_eq!(dispatch.launch_us, 6.0);
        assert_eq!(dispatch.largest_share, 7_000.0 / 250_000.0);
    }

    #[test]
    fn falls_are_pooled() {
        let check = |ns: &[u64], expected: &[u64]| {
            let points = ns
                .iter()
                .enumerate()
                .map(|(x, &ns)| (x as u64, ns))
                .collect();
            let ys: Vec<u64> = nondecreasing(points).into_iter().map(|p| p.1).collect();
            assert_eq!(ys, expected);
        };
        check(&[1, 2, 3], &[1, 2, 3]);
        check(&[10, 8, 12], &[9, 9, 12]);
        check(&[10, 20, 6, 12], &[10, 12, 12, 12]);
        check(&[9, 6, 3], &[6, 6, 6]);
    }

    #[test]
    fn batches_span_lengths_and_sizes() {
        let item = |input_len| Item {
            inputs: &[],
            input_len,
        };
        let pool: Vec<Item<'_>> = [7, 3, 9, 5, 5, 4, 8].map(item).into();
        let shape = |max| -> Vec<(usize, u32)> {
            let first = |b: &Vec<Item<'_>>| (b.len(), b[0].input_len);
            batches(&pool, max).iter().map(first).collect()
        };
        let alone = [(1, 3), (1, 4), (1, 5), (1, 7), (1, 9)];
        assert_eq!(shape(1), alone);
        assert_eq!(
            shape(6),
            [&alone[..], &[(2, 7), (3, 7), (4, 7), (6, 7)]].concat()
        );
        assert_eq!(shape(8).last(), Some(&(8, 7)));
        assert_eq!(batches(&pool[3..5], 1).len(), 1, "one length");
    }
}
