//! Graphs that are captured when a segment is prepared, ahead of its first launch.
//!
//! Guests are opened, requests that nobody asked for, and their launches walked up to the segment;
//! that of the segment is captured. Nothing runs, and the guests leave nothing. A launch of as many
//! members then finds its graph, if its values lie where those of the guests lay: first in an arena
//! with nothing else in it. Others are captured when they come again ([`crate::graphs`]), as are
//! lengths and passes that no guest had.

use lazybatch_graph::{Program, Repeat, Tensor};
use lazybatch_kernels::plans::PlanInfo;
use lazybatch_kernels::validate::is_sequence;
use lazybatch_kernels::{Device, OpenRequest};
use lazybatch_sla::{LaneId, Launch, Member, RequestId, Slot, SubBatchId, Ticket};

use super::CudaDevice;
use crate::exec::Effects;
use crate::graphs::{bucket, members_bucket};

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
/// Lengths of several guests: sizes that are even, and sizes that are rounded up.
const LENGTHS: [usize; 2] = [1, 9];

/// Guests of one length, in slots one behind another.
struct Guests {
    first_slot: u32,
    num: usize,
    len: usize,
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
            for len in lengths(&program, num) {
                if !self.graphs.has_room_ahead() {
                    return;
                }
                let Some(guests) = self.invite(info, &program, num, len) else {
                    continue;
                };
                self.walk_to(info, &program, &guests, stage);
                for slot in 0..num as u32 {
                    self.close(Slot(guests.first_slot + slot));
                }
            }
        }
    }

    /// Opens guests; `None` if there is no room for them.
    fn invite(
        &mut self,
        info: &PlanInfo,
        program: &Program,
        num: usize,
        len: usize,
    ) -> Option<Guests> {
        let is_free = |slot: &u32| {
            let slots = *slot..*slot + num as u32;
            slots.into_iter().all(|s| self.slots.get(Slot(s)).is_none())
        };
        let first_slot = (0..).find(is_free)?;
        let inputs = zeros(program, len)?;
        for i in 0..num as u32 {
            let opened = self.open(&OpenRequest {
                slot: Slot(first_slot + i),
                request: guest(i),
                model: info.model,
                inputs: &inputs,
                input_len: len as u32,
                samples: 1,
                output_len: None,
            });
            if opened.is_err() {
                for slot in 0..i {
                    self.close(Slot(first_slot + slot));
                }
                return None;
            }
        }
        Some(Guests {
            first_slot,
            num,
            len,
        })
    }

    /// Walks what guests pass before a segment, and captures the segment. What fails is not captured.
    fn walk_to(&mut self, info: &PlanInfo, program: &Program, guests: &Guests, stage: usize) {
        let mut launches = Vec::new();
        for (b, block) in program.blocks[..info.block as usize].iter().enumerate() {
            let passes = match block.repeat {
                Repeat::PerInputStep { stride } => guests.len.div_ceil(stride.max(1) as usize),
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
            let member = |i: u32| Member {
                request: guest(i),
                slot: Slot(guests.first_slot + i),
                step,
                input_len: guests.len as u32,
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
                members: (0..guests.num as u32).map(member).collect(),
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

/// Lengths of so many guests.
fn lengths(program: &Program, num: usize) -> Vec<usize> {
    let Some(input) = program.length_input else {
        return vec![0];
    };
    let longest = program.input(input).max_len.unwrap_or(LONGEST).min(LONGEST);
    if num == 1 {
        return (1..=longest).filter(|len| bucket(*len) == *len).collect();
    }
    LENGTHS.into_iter().filter(|len| *len <= longest).collect()
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
