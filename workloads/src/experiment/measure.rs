//! Measures a model's latency tables on a real device.
//!
//! Two passes. The first times every node alone at batch 1 and forms segments from those times.
//! The second times every segment at each batch size, requests taken from a pool of real inputs,
//! and gives a profile with one node per segment: what one launch costs, its dispatch included.
//! Loops are timed over their first passes, all members staying in. Medians of interleaved rounds.
//!
//! Blocks that run once over a sequence get tables by rows, all others by members.

use std::time::Instant;

use lazybatch_graph::{BlockId, Program, Repeat, SharedProgram};
use lazybatch_kernels::{Device, OpenRequest, Plan};
use lazybatch_sla::profile::{BlockProfile, By, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{
    LaneId, Launch, Member, ModelId, RequestId, SegmentRanges, Slot, SubBatchId, Ticket, Time,
};

use super::inputs::Item;
use crate::error::{Error, Result};

/// Most passes through a loop that are timed.
const MAX_PASSES: u32 = 12;
/// Rounds per batch size, unless they take longer than [`ROUND_BUDGET_S`].
const ROUNDS: usize = 5;
/// Seconds per batch size behind which no further round starts.
const ROUND_BUDGET_S: f64 = 2.0;

/// A measured model.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name of the device.
    pub device: String,
    /// One node per segment.
    pub profile: ModelProfile,
}

/// Measures `program` on `device`, which must be empty, with segments of at least `segment_us`
/// (0: one per node) and batches of 1, 2, 4, ... `max_batch` requests from `pool`.
///
/// # Errors
/// What the device refuses.
///
/// # Panics
/// If the pool is empty or `max_batch` is zero.
pub fn measure(
    device: &mut dyn Device,
    program: &SharedProgram,
    pool: &[Item],
    max_batch: u32,
    segment_us: f64,
) -> Result<Measured> {
    assert!(!pool.is_empty() && max_batch > 0, "something to measure");
    device.load(MODEL, program.clone()).map_err(device_error)?;
    let per_node: SegmentRanges = program
        .blocks
        .iter()
        .map(|b| (0..b.nodes.len() as u32).map(|n| n..n + 1).collect())
        .collect();
    let segments = if segment_us > 0.0 {
        let mut alone = Tables::new(&per_node);
        for _ in 0..3 {
            run_once(device, program, &per_node, &pool[..1], &mut alone)?;
        }
        cut(&alone, (segment_us * 1e3) as u64)
    } else {
        per_node
    };
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |b| Some(b * 2))
        .take_while(|&b| b < max_batch as usize)
        .collect();
    sizes.push(max_batch as usize);
    let mut tables = Tables::new(&segments);
    for &size in &sizes {
        // A pool smaller than the batch repeats.
        let items: Vec<Item> = pool.iter().cycle().take(size).cloned().collect();
        let mut warm_up = Tables::new(&segments);
        run_once(device, program, &segments, &items, &mut warm_up)?;
        let start = now();
        for _ in 0..ROUNDS {
            run_once(device, program, &segments, &items, &mut tables)?;
            if start.elapsed().as_secs_f64() > ROUND_BUDGET_S {
                break;
            }
        }
    }
    device.unload(MODEL);
    Ok(Measured {
        device: device.info().name,
        profile: tables.profile(program, &segments, max_batch),
    })
}

const MODEL: ModelId = ModelId(0);

#[allow(clippy::disallowed_methods, reason = "a profiler reads a clock")]
fn now() -> Instant {
    Instant::now()
}

fn device_error(e: lazybatch_kernels::Error) -> Error {
    Error::run("device", e)
}

/// Samples per block and segment: `(members, rows, nanoseconds)`.
struct Tables {
    samples: Vec<Vec<Vec<(u64, u64, u64)>>>,
}

impl Tables {
    fn new(segments: &SegmentRanges) -> Self {
        Self {
            samples: segments.iter().map(|s| vec![Vec::new(); s.len()]).collect(),
        }
    }

    fn medians(&self, block: usize, segment: usize, by: By) -> Vec<(u64, u64)> {
        let mut by_x: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        for &(members, rows, ns) in &self.samples[block][segment] {
            by_x.entry(if by == By::Rows { rows } else { members })
                .or_default()
                .push(ns);
        }
        by_x.into_iter()
            .map(|(x, mut ns)| {
                ns.sort_unstable();
                (x, ns[ns.len() / 2])
            })
            .collect()
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
                let points = self.medians(b, s, by);
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

/// Shortest runs of nodes of at least `min_ns`; what is left joins the last run.
fn cut(alone: &Tables, min_ns: u64) -> SegmentRanges {
    let block = |b: usize| {
        let mut runs: Vec<std::ops::Range<u32>> = Vec::new();
        let (mut start, mut sum) = (0u32, 0u64);
        let num = alone.samples[b].len() as u32;
        for n in 0..num {
            sum += alone
                .medians(b, n as usize, By::Members)
                .first()
                .map_or(0, |p| p.1);
            if sum >= min_ns {
                runs.push(start..n + 1);
                (start, sum) = (n + 1, 0);
            }
        }
        if start < num {
            match runs.last_mut() {
                Some(last) => last.end = num,
                None => runs.push(start..num),
            }
        }
        runs
    };
    (0..alone.samples.len()).map(block).collect()
}

/// Runs `items` as one batch through all blocks and adds one sample per launch.
fn run_once(
    device: &mut dyn Device,
    program: &Program,
    segments: &SegmentRanges,
    items: &[Item],
    tables: &mut Tables,
) -> Result<()> {
    for (i, item) in items.iter().enumerate() {
        let request = OpenRequest {
            slot: Slot(i as u32),
            request: RequestId(i as u64),
            model: MODEL,
            inputs: &item.inputs,
            input_len: item.input_len,
            samples: 1,
            output_len: None,
        };
        device.open(&request).map_err(device_error)?;
    }
    let mut result = Ok(());
    'blocks: for (b, ranges) in segments.iter().enumerate() {
        let shortest = items.iter().map(|i| i.input_len).min().unwrap_or(0);
        let passes = match program.block(BlockId::new(b)).repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => shortest.div_ceil(stride).min(MAX_PASSES),
            Repeat::UntilStop { max } => max.min(MAX_PASSES),
        };
        for step in 0..passes {
            for (s, range) in ranges.iter().enumerate() {
                let launch = launch(b, s, range, step, items);
                match timed(device, &launch) {
                    Ok(ns) => {
                        let rows = launch.num_rows();
                        tables.samples[b][s].push((items.len() as u64, rows, ns));
                    }
                    Err(e) => {
                        result = Err(device_error(e));
                        break 'blocks;
                    }
                }
            }
        }
    }
    for i in 0..items.len() {
        device.close(Slot(i as u32));
    }
    result
}

fn launch(b: usize, s: usize, range: &std::ops::Range<u32>, step: u32, items: &[Item]) -> Launch {
    let member = |(i, item): (usize, &Item)| Member {
        request: RequestId(i as u64),
        slot: Slot(i as u32),
        step,
        input_len: item.input_len,
        samples: 1,
        idle: false,
    };
    Launch {
        ticket: Ticket(0),
        lane: LaneId(0),
        model: MODEL,
        block: b as u32,
        segment: s as u32,
        first_node: range.start,
        end_node: range.end,
        sub_batch: SubBatchId(0),
        members: items.iter().enumerate().map(member).collect(),
        padded_len: None,
        merged_members: 0,
    }
}

fn timed(device: &mut dyn Device, launch: &Launch) -> Result<u64, lazybatch_kernels::Error> {
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
    loop {
        if let Some(done) = device.poll(Time::MAX) {
            let ns = start.elapsed().as_nanos() as u64;
            return done.result.map(|()| ns);
        }
    }
}
