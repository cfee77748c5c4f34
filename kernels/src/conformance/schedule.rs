//! Drives requests through a program on a device, under one of several schedules.
//!
//! This is the least that a scheduler does: cursors, passes, exits. It keeps no time.

use std::collections::BTreeMap;

use lazybatch_graph::{Program, Repeat, Tensor};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Device, OpenRequest};
use crate::validate::passes;

/// How often a launch that runs beside this thread is asked for before it counts as lost.
const MOST_POLLS: u32 = 1_000_000_000;

/// One request's inputs.
#[derive(Clone, Debug)]
pub struct Request {
    /// By input id.
    pub inputs: Vec<Tensor>,
    /// Length of its sequence, 0 without one.
    pub len: usize,
    /// Samples.
    pub samples: usize,
}

/// Outputs by request and output id.
pub type Results = Vec<Vec<Option<Tensor>>>;

/// How requests share launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One after another.
    Alone,
    /// All that stand at a cursor go together.
    Together,
    /// One padded batch whose members wait for the longest.
    Padded,
    /// From a seed: any requests at one node go together for a few nodes, in any order.
    Random(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    block: usize,
    step: usize,
    node: usize,
    stopped: bool,
}

struct Run<'a> {
    device: &'a mut dyn Device,
    program: &'a Program,
    requests: &'a [Request],
    cursors: Vec<Cursor>,
    ticket: u64,
    sub_batches: u64,
    last: BTreeMap<Vec<usize>, u64>,
}

/// Runs all requests to their end.
///
/// # Errors
/// What a device refuses or fails.
pub fn run(
    device: &mut dyn Device,
    program: &Program,
    requests: &[Request],
    schedule: Schedule,
) -> Result<Results, String> {
    for (i, r) in requests.iter().enumerate() {
        let open = OpenRequest {
            slot: Slot(i as u32),
            request: RequestId(i as u64),
            model: ModelId(0),
            inputs: &r.inputs,
            input_len: r.len as u32,
            samples: r.samples as u32,
            output_len: None,
        };
        device.open(&open).map_err(|e| e.to_string())?;
    }
    let start = Cursor {
        block: 0,
        step: 0,
        node: 0,
        stopped: false,
    };
    let mut run = Run {
        device,
        program,
        requests,
        cursors: vec![start; requests.len()],
        ticket: 0,
        sub_batches: 0,
        last: BTreeMap::new(),
    };
    let all: Vec<usize> = (0..requests.len()).collect();
    match schedule {
        Schedule::Alone => {
            for i in all {
                while !run.is_done(i) {
                    run.whole_pass(&[i])?;
                }
            }
        }
        Schedule::Together => {
            while let Some(i) = all.iter().copied().find(|&i| !run.is_done(i)) {
                let block = run.cursors[i].block;
                let group: Vec<usize> = all
                    .iter()
                    .copied()
                    .filter(|&j| run.cursors[j].block == block)
                    .collect();
                run.whole_pass(&group)?;
            }
        }
        Schedule::Padded => run.padded()?,
        Schedule::Random(seed) => run.random(&mut ChaCha8Rng::seed_from_u64(seed))?,
    }
    let device = run.device;
    Ok((0..requests.len())
        .map(|i| device.close(Slot(i as u32)))
        .collect())
}

impl Run<'_> {
    fn is_done(&self, i: usize) -> bool {
        self.cursors[i].block >= self.program.blocks.len()
    }

    /// Whether a request leaves its block after the pass it is in.
    fn ends(&self, i: usize, block: usize, step: usize, stopped: bool) -> bool {
        match self.program.blocks[block].repeat {
            Repeat::Once => true,
            repeat @ Repeat::PerInputStep { .. } => {
                step + 1 >= passes(repeat, self.requests[i].len)
            }
            Repeat::UntilStop { max } => stopped || step + 1 >= max as usize,
        }
    }

    fn whole_pass(&mut self, group: &[usize]) -> Result<(), String> {
        let end = self.program.blocks[self.cursors[group[0]].block]
            .nodes
            .len();
        let sub_batch = self.sub_batch(group);
        self.launch(group, end, sub_batch, None, &[])?;
        Ok(())
    }

    /// A sub-batch id: that of the last launch of the same members, or a new one.
    fn sub_batch(&mut self, group: &[usize]) -> u64 {
        let next = self.sub_batches;
        let id = *self.last.entry(group.to_vec()).or_insert(next);
        self.sub_batches += u64::from(id == next);
        id
    }

    /// Launches nodes up to `end` and advances the members that are not idle.
    fn launch(
        &mut self,
        group: &[usize],
        end: usize,
        sub_batch: u64,
        padded_len: Option<u32>,
        idle: &[bool],
    ) -> Result<(), String> {
        let first = self.cursors[group[0]];
        let members = group.iter().enumerate().map(|(at, &i)| Member {
            request: RequestId(i as u64),
            slot: Slot(i as u32),
            step: self.cursors[i].step as u32,
            input_len: self.requests[i].len as u32,
            samples: self.requests[i].samples as u32,
            idle: idle.get(at).copied().unwrap_or(false),
        });
        let launch = Launch {
            ticket: Ticket(self.ticket),
            lane: LaneId(0),
            model: ModelId(0),
            block: first.block as u32,
            segment: first.node as u32,
            first_node: first.node as u32,
            end_node: end as u32,
            sub_batch: SubBatchId(sub_batch),
            members: members.collect(),
            padded_len,
            merged_members: 0,
        };
        self.ticket += 1;
        let plan = self
            .device
            .prepare(
                launch.model,
                launch.block,
                launch.first_node,
                launch.end_node,
                u32::MAX,
            )
            .map_err(|e| e.to_string())?;
        self.device
            .enqueue(Time::ZERO, plan, &launch)
            .map_err(|e| e.to_string())?;
        let done = (0..MOST_POLLS)
            .find_map(|_| self.device.poll(Time::MAX))
            .ok_or("a launch that does not complete")?;
        done.whole().map_err(|e| e.to_string())?;
        let nodes = self.program.blocks[first.block].nodes.len();
        for (m, &i) in launch.members.iter().zip(group) {
            let stopped = done.stopped.contains(&m.request);
            if m.idle && stopped {
                return Err(format!("idle {} stopped", m.request));
            }
            let cursor = &mut self.cursors[i];
            cursor.node = end;
            cursor.stopped |= stopped;
            let c = *cursor;
            if end == nodes && !m.idle {
                self.cursors[i] = if self.ends(i, c.block, c.step, c.stopped) {
                    Cursor {
                        block: c.block + 1,
                        step: 0,
                        node: 0,
                        stopped: false,
                    }
                } else {
                    Cursor {
                        step: c.step + 1,
                        node: 0,
                        ..c
                    }
                };
            }
        }
        Ok(())
    }

    /// One batch of all requests, as graph batching runs it: in segments of two nodes, every
    /// member padded to the longest and carried along until the last one leaves a loop.
    fn padded(&mut self) -> Result<(), String> {
        let all: Vec<usize> = (0..self.requests.len()).collect();
        let longest = self.requests.iter().map(|r| r.len).max().unwrap_or(0) as u32;
        for block in 0..self.program.blocks.len() {
            let nodes = self.program.blocks[block].nodes.len();
            let mut step = 0;
            loop {
                let idle: Vec<bool> = all.iter().map(|&i| self.cursors[i].block > block).collect();
                if idle.iter().all(|&i| i) {
                    break;
                }
                let before = self.cursors.clone();
                for node in (0..nodes).step_by(2) {
                    let end = (node + 2).min(nodes);
                    for &i in &all {
                        if idle[i] {
                            self.cursors[i] = Cursor {
                                block,
                                step,
                                node,
                                stopped: false,
                            };
                        }
                    }
                    self.launch(&all, end, 0, Some(longest), &idle)?;
                }
                for &i in &all {
                    if idle[i] {
                        self.cursors[i] = before[i];
                    }
                }
                step += 1;
            }
        }
        Ok(())
    }

    fn random(&mut self, rng: &mut ChaCha8Rng) -> Result<(), String> {
        loop {
            let open: Vec<usize> = (0..self.requests.len())
                .filter(|&i| !self.is_done(i))
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            let lead = self.cursors[open[rng.random_range(0..open.len())]];
            let mut group: Vec<usize> = open
                .into_iter()
                .filter(|&i| {
                    (self.cursors[i].block, self.cursors[i].node) == (lead.block, lead.node)
                })
                .collect();
            group.shuffle(rng);
            group.truncate(rng.random_range(1..=group.len()));
            let nodes = self.program.blocks[lead.block].nodes.len();
            let end = (lead.node + rng.random_range(1..=4)).min(nodes);
            let sub_batch = if rng.random_bool(0.5) {
                self.sub_batch(&group)
            } else {
                1_000_000 + rng.random_range(0..3)
            };
            self.launch(&group, end, sub_batch, None, &[])?;
        }
    }
}
