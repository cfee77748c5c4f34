//! Latency tables, measured on a device.
//!
//! [`measure`] runs a program with random requests, `n` members at a time, and takes the time of
//! every launch. A sum of singly measured nodes overstates a block, for each launch has its cost
//! and finds colder caches, so whole passes are measured too and the tables are scaled to them.
//! Tables are medians of repeats; the spread says how far to trust them.
//!
//! It decides neither segments nor batch bounds, and reads a clock: it belongs to tools, not to a
//! serving process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use lazybatch_graph::{BlockId, Dim, Liveness, Program, Repeat, SharedProgram};
use lazybatch_sla::profile::{BlockProfile, By, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::device::{Device, OpenRequest};
use crate::error::Error;
use crate::synthetic::random_inputs;
use crate::validate::passes;

/// What to measure.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// Members of a launch; those above `max_batch` are left out.
    pub batches: Vec<u32>,
    /// Most members.
    pub max_batch: u32,
    /// Sequence lengths; those that the model refuses are left out. Empty: an eighth, a half and
    /// all of the longest, at most 128.
    pub lengths: Vec<usize>,
    /// Times each combination is run, after one run to warm up.
    pub repeats: u32,
    /// Most measured passes of an `UntilStop` block.
    pub max_passes: usize,
    /// By block: node ranges that are launched together. Empty: every node by itself.
    pub segments: Vec<Vec<Range<u32>>>,
    /// Seed of the random inputs.
    pub seed: u64,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        Self {
            batches: vec![1, 2, 4, 8, 16, 32, 64],
            max_batch: 64,
            lengths: Vec::new(),
            repeats: 5,
            max_passes: 8,
            segments: Vec::new(),
            seed: 1,
        }
    }
}

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Members, or rows.
    pub x: u64,
    /// Median latency.
    pub latency_ns: u64,
    /// Third quartile minus first.
    pub spread_ns: u64,
}

/// Latencies of one segment.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentTable {
    /// Name of its first node, and of its last where there are more.
    pub name: String,
    /// Nodes, as positions in the block.
    pub nodes: Range<u32>,
    /// What `x` counts.
    pub by: By,
    /// By ascending `x`.
    pub points: Vec<Point>,
}

/// Latencies of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockTable {
    /// Its name.
    pub name: String,
    /// Its repeat rule.
    pub repeat: Repeat,
    /// Its segments in order.
    pub segments: Vec<SegmentTable>,
}

/// Latencies of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// The device that was measured.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Most members.
    pub max_batch: u32,
    /// By block.
    pub blocks: Vec<BlockTable>,
}

/// Measures a program that is loaded as `model` on `device`, with no request open.
///
/// # Errors
/// What the device refuses or fails.
pub fn measure(
    device: &mut dyn Device,
    model: ModelId,
    program: &SharedProgram,
    options: &MeasureOptions,
) -> Result<Tables, Error> {
    let longest = program
        .length_input
        .and_then(|i| program.input(i).max_len)
        .unwrap_or(0);
    let mut lengths = options.lengths.clone();
    if lengths.is_empty() {
        let most = longest.min(128);
        lengths = vec![most.div_ceil(8), most.div_ceil(2), most];
    }
    lengths.retain(|&n| n <= longest && (n > 0 || longest == 0));
    lengths.dedup();
    let segments: Vec<Vec<Range<u32>>> = (0..program.blocks.len())
        .map(|b| {
            let nodes = program.blocks[b].nodes.len() as u32;
            let given = options.segments.get(b).filter(|s| !s.is_empty());
            given
                .cloned()
                .unwrap_or_else(|| (0..nodes).map(|n| n..n + 1).collect())
        })
        .collect();
    let whole: Vec<Vec<Range<u32>>> = program
        .blocks
        .iter()
        .map(|b| std::iter::once(0..b.nodes.len() as u32).collect())
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut runner = Runner {
        device,
        model,
        program,
        options,
        rng: &mut rng,
        ticket: 0,
    };
    let mut table: BTreeMap<(usize, usize), BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
    for &n in options
        .batches
        .iter()
        .filter(|&&n| n <= options.max_batch && n > 0)
    {
        for &len in &lengths {
            let single = runner.repeat(n, len, &segments)?;
            let together = runner.repeat(n, len, &whole)?;
            for (block, parts) in segments.iter().enumerate() {
                let sum: u64 = (0..parts.len())
                    .map(|s| median(&single[&(block, s)]).0)
                    .sum();
                let all = median(&together[&(block, 0)]).0;
                let factor = (all as f64 / sum.max(1) as f64).min(1.0);
                for (s, part) in parts.iter().enumerate() {
                    let x = match by(program, block, part) {
                        By::Members => u64::from(n),
                        By::Rows => u64::from(n) * len as u64,
                    };
                    let scaled = single[&(block, s)]
                        .iter()
                        .map(|&t| (t as f64 * factor) as u64);
                    table
                        .entry((block, s))
                        .or_default()
                        .entry(x)
                        .or_default()
                        .extend(scaled);
                }
            }
        }
    }
    let device = runner.device.info().name;
    let block_table = |block: usize| BlockTable {
        name: program.blocks[block].name.clone(),
        repeat: program.blocks[block].repeat,
        segments: segments[block]
            .iter()
            .enumerate()
            .map(|(s, nodes)| SegmentTable {
                name: segment_name(program, block, nodes),
                nodes: nodes.clone(),
                by: by(program, block, nodes),
                points: points(table.get(&(block, s))),
            })
            .collect(),
    };
    Ok(Tables {
        device,
        model: program.name.clone(),
        max_batch: options.max_batch,
        blocks: (0..program.blocks.len()).map(block_table).collect(),
    })
}

fn points(by_x: Option<&BTreeMap<u64, Vec<u64>>>) -> Vec<Point> {
    let each = by_x.into_iter().flatten().map(|(&x, samples)| {
        let (latency_ns, spread_ns) = median(samples);
        Point {
            x,
            latency_ns,
            spread_ns,
        }
    });
    each.collect()
}

/// Median and interquartile range.
fn median(samples: &[u64]) -> (u64, u64) {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = |part: usize| sorted.get(sorted.len() * part / 4).copied().unwrap_or(0);
    (at(2), at(3).saturating_sub(at(1)))
}

/// Whether a segment's time goes with rows: one of its nodes touches packed rows.
fn by(program: &Program, block: usize, nodes: &Range<u32>) -> By {
    let touches = |pos: u32| {
        let node = program.node(program.blocks[block].nodes[pos as usize]);
        let mut values = node.inputs.iter().chain(&node.outputs);
        values.any(|&v| program.value(v).ty.lead() == Some(Dim::Rows))
    };
    if nodes.clone().any(touches) {
        By::Rows
    } else {
        By::Members
    }
}

fn segment_name(program: &Program, block: usize, nodes: &Range<u32>) -> String {
    let name = |pos: u32| &program.node(program.blocks[block].nodes[pos as usize]).name;
    if nodes.len() == 1 {
        name(nodes.start).clone()
    } else {
        format!("{}..{}", name(nodes.start), name(nodes.end - 1))
    }
}

struct Runner<'a> {
    device: &'a mut dyn Device,
    model: ModelId,
    program: &'a SharedProgram,
    options: &'a MeasureOptions,
    rng: &'a mut ChaCha8Rng,
    ticket: u64,
}

/// Latencies by (block, segment).
type Samples = BTreeMap<(usize, usize), Vec<u64>>;

impl Runner<'_> {
    fn repeat(
        &mut self,
        n: u32,
        len: usize,
        segments: &[Vec<Range<u32>>],
    ) -> Result<Samples, Error> {
        let mut samples = Samples::new();
        self.once(n, len, segments, &mut Samples::new())?;
        for _ in 0..self.options.repeats.max(1) {
            self.once(n, len, segments, &mut samples)?;
        }
        Ok(samples)
    }

    /// Runs `n` requests of that length together from start to end.
    fn once(
        &mut self,
        n: u32,
        len: usize,
        segments: &[Vec<Range<u32>>],
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let mut members = Vec::new();
        for i in 0..n {
            let inputs = random_inputs(self.program, len, 1, self.rng);
            let opened = self.device.open(&OpenRequest {
                slot: Slot(i),
                request: RequestId(u64::from(i)),
                model: self.model,
                inputs: &inputs,
                input_len: len as u32,
                samples: 1,
                output_len: None,
            });
            if let Err(error) = opened {
                (0..i).for_each(|i| drop(self.device.close(Slot(i))));
                return Err(error);
            }
            members.push(Member {
                request: RequestId(u64::from(i)),
                slot: Slot(i),
                step: 0,
                input_len: len as u32,
                samples: 1,
                idle: false,
            });
        }
        let result = self.blocks(len, segments, &mut members, samples);
        (0..n).for_each(|i| drop(self.device.close(Slot(i))));
        result
    }

    fn blocks(
        &mut self,
        len: usize,
        segments: &[Vec<Range<u32>>],
        members: &mut [Member],
        samples: &mut Samples,
    ) -> Result<(), Error> {
        for (block, parts) in segments.iter().enumerate() {
            let passes = match self.program.blocks[block].repeat {
                Repeat::Once => 1,
                repeat @ Repeat::PerInputStep { .. } => passes(repeat, len),
                Repeat::UntilStop { max } => (max as usize).min(self.options.max_passes),
            };
            for step in 0..passes {
                members.iter_mut().for_each(|m| m.step = step as u32);
                for (s, part) in parts.iter().enumerate() {
                    let ns = self.launch(block, part, members)?;
                    samples.entry((block, s)).or_default().push(ns);
                }
            }
        }
        Ok(())
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "measuring is what a profiler does"
    )]
    fn launch(
        &mut self,
        block: usize,
        nodes: &Range<u32>,
        members: &[Member],
    ) -> Result<u64, Error> {
        let launch = Launch {
            ticket: Ticket(self.ticket),
            lane: LaneId(0),
            model: self.model,
            block: block as u32,
            segment: nodes.start,
            first_node: nodes.start,
            end_node: nodes.end,
            sub_batch: SubBatchId(0),
            members: members.to_vec(),
            padded_len: None,
            merged_members: 0,
        };
        self.ticket += 1;
        let bucket = self.device.buckets().last().copied().unwrap_or(u32::MAX);
        let plan = self
            .device
            .prepare(self.model, launch.block, nodes.start, nodes.end, bucket)?;
        let start = Instant::now();
        self.device.enqueue(Time::ZERO, plan, &launch)?;
        loop {
            if let Some(done) = self.device.poll(Time::MAX) {
                done.result?;
                return Ok(start.elapsed().as_nanos() as u64);
            }
            std::hint::spin_loop();
        }
    }
}

impl Tables {
    /// The tables as a model of a `lazybatch-profile/1` document.
    pub fn to_profile(&self, program: &Program) -> ModelProfile {
        let liveness = Liveness::of(program);
        let block = |(i, table): (usize, &BlockTable)| {
            let node = |s: &SegmentTable| NodeProfile {
                name: s.name.clone(),
                by: s.by,
                latency_us: s
                    .points
                    .iter()
                    .map(|p| (p.x, p.latency_ns as f64 / 1e3))
                    .collect(),
                num_nodes: (s.nodes.len() > 1).then_some(s.nodes.len() as u32),
                merge_bytes_per_member: liveness
                    .at(BlockId::new(i), s.nodes.start as usize)
                    .bytes(1, 1) as f64,
                weight_bytes: None,
                load_us: None,
                host_access_us: None,
            };
            let (repeat, stride, max_steps) = match table.repeat {
                Repeat::Once => (RepeatRule::Once, None, None),
                Repeat::PerInputStep { stride } => (RepeatRule::PerInputStep, Some(stride), None),
                Repeat::UntilStop { max } => (RepeatRule::UntilStop, None, Some(max)),
            };
            let nodes = table.segments.iter().map(node).collect();
            BlockProfile {
                name: table.name.clone(),
                repeat,
                stride,
                max_steps,
                nodes,
            }
        };
        ModelProfile {
            name: self.model.clone(),
            max_batch: self.max_batch,
            sla_ms: None,
            output_len_p90: None,
            blocks: self.blocks.iter().enumerate().map(block).collect(),
        }
    }
}
