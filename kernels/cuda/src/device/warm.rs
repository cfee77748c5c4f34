//! Graphs that are captured when a segment is prepared, ahead of its first launch.
//!
//! Guests are opened, requests that nobody asked for, and their launches walked up to the segment;
//! that of the segment is captured. Nothing runs, and the guests leave nothing. A launch of sizes that
//! are rounded to those of guests then finds its graph, whatever else is on the device: all launches work
//! in one place ([`crate::memory`]). Others are captured when they come again ([`crate::graphs`]), as are
//! lengths and passes that no guest had.

use lazybatch_graph::{Block, Program, Repeat, Tensor};
use lazybatch_kernels::plans::PlanInfo;
use lazybatch_kernels::validate::is_sequence;
use lazybatch_kernels::{Device, OpenRequest};
use lazybatch_sla::{LaneId, Launch, Member, RequestId, Slot, SubBatchId, Ticket};

use super::CudaDevice;
use crate::exec::Effects;
use crate::graphs::{bucket, grid_bound, members_bucket};

/// What a launch is walked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// To run.
    Run,
    /// For its graph.
    Capture,
    /// For what the host notes of it.
    Note,
}

/// Longest sequence of a guest.
const LONGEST: usize = 64;
/// Lengths of several guests where a block runs for each position: sizes that are even, and sizes that
/// are rounded up.
const LENGTHS: [usize; 2] = [1, 9];
/// Guests have at least this part of the rows that they would have if all were as long as the longest.
const PART: usize = 4;

/// Guests, in slots one behind another.
struct Guests {
    first_slot: u32,
    /// Lengths of their sequences.
    lens: Vec<usize>,
}

impl CudaDevice {
    /// Captures launches of a segment of up to [`crate::CudaOptions::warm_members`] members, as far as
    /// there is room for graphs, and for guests.
    pub(super) fn warm(&mut self, info: &PlanInfo) {
        let Some(resident) = self.models.get(&info.model) else {
            return;
        };
        let program = resident.model.program.clone();
        let has_host_nodes = resident.model.host_nodes.iter().any(Option::is_some);
        let most = self.options.warm_members.min(resident.max_open as usize);
        if has_host_nodes || !self.graphs.has_room_ahead() || self.ready().is_err() {
            return;
        }
        let Some(stage) = self.free_stage() else {
            return;
        };
        for num in (1..=most).filter(|n| members_bucket(*n) == *n) {
            for lens in lengths(&program, num) {
                if !self.graphs.has_room_ahead() {
                    return;
                }
                let Some(guests) = self.invite(info, &program, lens) else {
                    continue;
                };
                self.walk_to(info, &program, &guests, stage);
                self.dismiss(&guests);
            }
        }
    }

    /// Opens guests; `None` if there is no room for them.
    fn invite(&mut self, info: &PlanInfo, program: &Program, lens: Vec<usize>) -> Option<Guests> {
        let num = lens.len() as u32;
        let is_free = |slot: &u32| (*slot..*slot + num).all(|s| self.slots.get(Slot(s)).is_none());
        let mut guests = Guests {
            first_slot: (0..).find(is_free)?,
            lens: Vec::with_capacity(lens.len()),
        };
        for (i, len) in (0..).zip(lens) {
            let opened = zeros(program, len).and_then(|inputs| {
                let opened = self.open(&OpenRequest {
                    slot: Slot(guests.first_slot + i),
                    request: guest(i),
                    model: info.model,
                    inputs: &inputs,
                    input_len: len as u32,
                    samples: 1,
                    output_len: None,
                });
                opened.ok()
            });
            if opened.is_none() {
                self.dismiss(&guests);
                return None;
            }
            guests.lens.push(len);
        }
        Some(guests)
    }

    fn dismiss(&mut self, guests: &Guests) {
        for i in 0..guests.lens.len() as u32 {
            self.close(Slot(guests.first_slot + i));
        }
    }

    /// Walks what guests pass before a segment, and captures the segment. What fails is not captured.
    fn walk_to(&mut self, info: &PlanInfo, program: &Program, guests: &Guests, stage: usize) {
        let mut launches = Vec::new();
        for (b, block) in program.blocks[..info.block as usize].iter().enumerate() {
            let passes = match block.repeat {
                Repeat::PerInputStep { stride } => {
                    let longest = guests.lens.iter().max().copied().unwrap_or(0);
                    longest.div_ceil(stride.max(1) as usize)
                }
                Repeat::Once | Repeat::UntilStop { .. } => 1,
            };
            let end = block.nodes.len() as u32;
            launches.extend((0..passes).map(|step| (b as u32, step as u32, 0..end, Mode::Note)));
        }
        if info.first > 0 {
            launches.push((info.block, 0, 0..info.first, Mode::Note));
        }
        launches.push((info.block, 0, info.first..info.end, Mode::Capture));
        for (block, step, nodes, mode) in launches {
            let member = |(i, len): (u32, &usize)| Member {
                request: guest(i),
                slot: Slot(guests.first_slot + i),
                step,
                input_len: *len as u32,
                samples: 1,
                idle: false,
            };
            let launch = Launch {
                ticket: Ticket(u64::MAX),
                lane: LaneId(0),
                model: info.model,
                block,
                segment: 0,
                first_node: nodes.start,
                end_node: nodes.end,
                sub_batch: SubBatchId(u64::MAX),
                members: (0..).zip(&guests.lens).map(member).collect(),
                padded_len: None,
                merged_members: 0,
            };
            let mut effects = Effects::default();
            if let Err(why) = self.run(&launch, stage, &mut effects, mode) {
                self.graphs.note_failure(&why);
                return;
            }
        }
    }
}

/// The id of a guest, which no request has.
fn guest(i: u32) -> RequestId {
    RequestId(u64::MAX - 1 - u64::from(i))
}

/// Lengths of so many guests: where only lengths together and the longest one tell launches apart, all
/// that they are rounded to.
fn lengths(program: &Program, num: usize) -> Vec<Vec<usize>> {
    let Some(input) = program.length_input else {
        return vec![vec![0; num]];
    };
    let longest = program.input(input).max_len.unwrap_or(LONGEST).min(LONGEST);
    if num == 1 {
        let lens = (1..=longest).filter(|len| bucket(*len) == *len);
        return lens.map(|len| vec![len]).collect();
    }
    let by_position = |b: &Block| matches!(b.repeat, Repeat::PerInputStep { .. });
    if program.blocks.iter().any(by_position) {
        let lens = LENGTHS.into_iter().filter(|len| *len <= longest);
        return lens.map(|len| vec![len; num]).collect();
    }
    let mut all = Vec::new();
    let mut shorter = 0;
    while shorter < longest {
        let bound = grid_bound(shorter + 1);
        let least = num * bound.min(longest) / PART;
        let least = if shorter == 0 { num } else { least };
        let sizes = least.max(shorter + num)..=num * bound.min(longest);
        for rows in sizes.filter(|rows| bucket(*rows) == *rows) {
            // The others share what the longest leaves.
            let top = bound.min(longest).min(rows + 1 - num);
            let (each, more) = ((rows - top) / (num - 1), (rows - top) % (num - 1));
            let others = (0..num - 1).map(|i| each + usize::from(i < more));
            all.push(std::iter::once(top).chain(others).collect());
        }
        shorter = bound;
    }
    all
}

/// Inputs of zeros.
fn zeros(program: &Program, len: usize) -> Option<Vec<Tensor>> {
    let inputs = program.inputs.iter().map(|decl| {
        let lead = if is_sequence(decl) { len } else { 1 };
        let dims: Vec<usize> = std::iter::once(lead).chain(decl.ty.fixed_dims()).collect();
        let bytes = dims.iter().product::<usize>() * decl.ty.dtype.size();
        Tensor::from_bytes(decl.ty.dtype, dims, vec![0; bytes]).ok()
    });
    inputs.collect()
}
