//! Launches in flight: when they are over, and what they leave.
//!
//! With more than one in flight the scheduler learns late that a loop has ended. What launches behind
//! that do for the request is taken back, or not done at all.

use lazybatch_graph::{Dim, NodeId, Op, Repeat};
use lazybatch_sla::{Launch, ModelId, RequestId, Ticket};
use smallvec::SmallVec;

use super::CudaDevice;
use crate::exec::{Effects, Stop};

/// A launch that was issued, or failed at it.
pub(super) struct Flight {
    pub(super) ticket: Ticket,
    pub(super) model: ModelId,
    pub(super) block: u32,
    pub(super) segment: String,
    pub(super) stage: usize,
    pub(super) effects: Effects,
    pub(super) failed: Option<String>,
    /// Its issue waited for the device.
    pub(super) has_waited: bool,
}

impl CudaDevice {
    /// A stage that no launch in flight uses.
    pub(super) fn free_stage(&self) -> Option<usize> {
        (0..self.stages.len()).find(|s| self.flights.iter().all(|f| f.stage != *s))
    }

    /// Whether the oldest launch is over; notes why it is if the device is lost.
    pub(super) fn front_is_over(&mut self) -> Option<bool> {
        self.flights.front()?;
        if self.lost.is_some() {
            // What still runs may write what is given to others: it is waited for, once.
            if !std::mem::replace(&mut self.has_drained, true) {
                self.stream.synchronize().ok();
            }
            return Some(true);
        }
        match self.times.front_is_over() {
            Ok(is_over) => Some(is_over),
            Err(error) => {
                // Not known to be over, so it is waited for: what it uses is given to others.
                self.stream.synchronize().ok();
                self.note(&error);
                let why = error.to_string();
                if let Some(flight) = self.flights.front_mut() {
                    flight.failed.get_or_insert(why);
                }
                Some(true)
            }
        }
    }

    /// Whether nodes of a launch run on the host, for which its issue waits.
    pub(super) fn has_host_nodes(&self, launch: &Launch) -> bool {
        let Some(resident) = self.models.get(&launch.model) else {
            return false;
        };
        let (model, block) = (&resident.model, launch.block as usize);
        let nodes = launch.first_node as usize..launch.end_node as usize;
        let nodes = model.program.blocks[block].nodes[nodes].iter();
        nodes
            .copied()
            .any(|id| model.host_nodes[id.index()].is_some())
    }

    /// Takes in what a launch that is over has left.
    pub(super) fn complete(&mut self, flight: &Flight) -> SmallVec<[RequestId; 4]> {
        for emitted in &flight.effects.emitted {
            if let Some(open) = self.slots.get_mut(emitted.slot) {
                open.outputs[emitted.output].written = Some(emitted.elems);
            }
        }
        let mut stopped = SmallVec::new();
        for stop in &flight.effects.stops {
            if self.stages[flight.stage].flag(stop.flag) && !stopped.contains(&stop.request) {
                stopped.push(stop.request);
                self.cut(flight.block, stop);
            }
        }
        stopped
    }

    /// Takes back what launches in flight do for a request behind the pass that ended its loop: the
    /// scheduler did not know when it asked for them.
    fn cut(&mut self, block: u32, stop: &Stop) {
        let Some(open) = self.slots.get_mut(stop.slot) else {
            return;
        };
        for output in &mut open.outputs {
            output.issued = output.written.unwrap_or(0);
        }
        for flight in &mut self.flights {
            let is_late =
                |slot, step| flight.block == block && slot == stop.slot && step > stop.step;
            let effects = &mut flight.effects;
            effects.stops.retain(|s| !is_late(s.slot, s.step));
            effects.emitted.retain(|e| !is_late(e.slot, e.step));
            for emitted in effects.emitted.iter().filter(|e| e.slot == stop.slot) {
                open.outputs[emitted.output].issued = emitted.elems;
            }
        }
    }

    /// Where a loop is not the end, what follows reads the states that its last pass left, and no
    /// pass behind that may change them, nor an output that each pass sets anew: waits for the launches in flight, and lets members whose
    /// loop has ended in them idle.
    pub(super) fn without_ended(&mut self, launch: &Launch) -> Option<Launch> {
        let model = &self.models.get(&launch.model)?.model;
        let program = &model.program;
        let block = &program.blocks[launch.block as usize];
        if !matches!(block.repeat, Repeat::UntilStop { .. }) || self.flights.is_empty() {
            return None;
        }
        let is_last = launch.block as usize + 1 == program.blocks.len();
        let is_set = |id: &NodeId| match program.node(*id).op {
            Op::Emit { output } => !program.output(output).ty.dims.contains(&Dim::Len),
            _ => false,
        };
        if is_last && !block.nodes.iter().any(is_set) {
            return None;
        }
        // An error is one of the flight that is polled next.
        self.stream.synchronize().ok();
        let mut launch = launch.clone();
        let same = |f: &&Flight| f.block == launch.block && f.failed.is_none();
        for flight in self.flights.iter().filter(same) {
            let stage = &self.stages[flight.stage];
            let ended = flight.effects.stops.iter().filter(|s| stage.flag(s.flag));
            for stop in ended {
                let members = launch.members.iter_mut();
                members
                    .filter(|m| m.slot == stop.slot && m.step as usize > stop.step)
                    .for_each(|m| m.idle = true);
            }
        }
        Some(launch)
    }
}
