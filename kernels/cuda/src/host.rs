//! Nodes that run on the host: their operands are copied down, their results up again. The thread
//! that issues them waits for the device; it is a way to run everything, not to run it fast.

use lazybatch_graph::NodeId;

use crate::context::{Context, DevicePtr, Pinned};
use crate::error::CudaError;
use crate::exec::{Fault, Play, Walk};
use crate::memory::ELEM;
use crate::record::Operation;

/// Page-locked memory of host nodes; it grows to what they need.
#[derive(Debug)]
pub struct HostScratch {
    context: Context,
    memory: Pinned,
    bytes: usize,
}

impl HostScratch {
    /// None so far.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            context: context.clone(),
            memory: Pinned::new(context, 0)?,
            bytes: 0,
        })
    }

    /// Makes room; nothing in it may be in use.
    fn grow(&mut self, bytes: usize) -> Result<(), CudaError> {
        if bytes > self.bytes {
            let held = bytes.next_power_of_two();
            self.memory = Pinned::new(&self.context, held)?;
            self.bytes = held;
        }
        Ok(())
    }
}

/// A value of the device as a host node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    at: DevicePtr,
    elems: usize,
}

/// A node that is to run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostCall {
    id: NodeId,
    /// None for weights.
    operands: Vec<Option<Place>>,
    results: Vec<Place>,
}

/// Walks a host node.
pub fn walk(w: &mut Walk<'_>) -> Result<(), String> {
    let id = w.id();
    let operands: Vec<Option<Place>> = (0..w.node().inputs.len())
        .map(|i| {
            (!w.is_weight(i)).then(|| Place {
                at: w.arg(i),
                elems: w.elems(w.ty(i)),
            })
        })
        .collect();
    let results: Vec<Place> = (0..w.node().outputs.len())
        .map(|i| Place {
            at: w.out(i),
            elems: w.elems(w.out_ty(i)),
        })
        .collect();
    w.keep(Operation::Host(HostCall {
        id,
        operands,
        results,
    }));
    Ok(())
}

/// Runs the node: waits for its operands, and for its results to be back.
///
/// # Errors
/// CUDA's, or the node's own.
pub fn run(i: &mut Play<'_>, call: &HostCall) -> Result<(), Fault> {
    let (id, operands, results) = (call.id, &call.operands[..], &call.results[..]);
    let elems = operands.iter().flatten().map(|p| p.elems).sum::<usize>();
    let made = results.iter().map(|p| p.elems).sum::<usize>();
    i.host.grow(elems.max(made) * ELEM)?;
    let mut at = 0;
    for place in operands.iter().flatten() {
        // SAFETY: an operand of that size; nothing reads the memory before the stream is waited for.
        unsafe {
            i.stream
                .copy_out(&mut i.host.memory, at, place.at, place.elems * ELEM)
        }?;
        at += place.elems * ELEM;
    }
    i.stream.synchronize()?;
    let computed = compute(i, id, operands, results).map_err(Fault::Node)?;
    let mut at = 0;
    for (place, values) in results.iter().zip(&computed) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        i.host
            .memory
            .part_mut(at, bytes.len())
            .copy_from_slice(bytes);
        // SAFETY: a result of that size; the memory stays until the stream is waited for.
        unsafe { i.stream.copy_in(place.at, &i.host.memory, at, bytes.len()) }?;
        at += bytes.len();
    }
    Ok(i.stream.synchronize()?)
}

/// Runs the node on what was copied down.
fn compute(
    i: &mut Play<'_>,
    id: NodeId,
    operands: &[Option<Place>],
    results: &[Place],
) -> Result<Vec<Vec<f32>>, String> {
    let program = &*i.model.program;
    let node = program.node(id);
    let mut at = 0;
    let slices: Vec<&[f32]> = operands
        .iter()
        .zip(&node.inputs)
        .map(|(place, &value)| match place {
            Some(place) => {
                let bytes = i.host.memory.part(at, place.elems * ELEM);
                at += bytes.len();
                bytemuck::cast_slice(bytes)
            }
            None => {
                let weight = program.as_weight(value).expect("a weight");
                let held = &i.model.weights[weight.index()].host;
                held.as_deref().expect("prepared at load")
            }
        })
        .collect();
    let mut outs: Vec<Vec<f32>> = results.iter().map(|p| vec![0.0; p.elems]).collect();
    let mut out_slices: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
    let host_node = i.model.host_nodes[id.index()].as_ref();
    let host_node = host_node.expect("resolved at load");
    let (data, before) = ((&slices[..], &mut out_slices[..]), i.faults.len());
    host_node.run(program, node, i.members, data, i.faults)?;
    for (_, fault) in &mut i.faults[before..] {
        fault.name(&node.name);
    }
    Ok(outs)
}
