//! Nodes that run on the host on every device that computes: ops of imported models without a
//! kernel of their own, and the user's.

use std::sync::Arc;

use lazybatch_graph::{Dim, Node, Op, Program};
use smallvec::SmallVec;

use crate::custom::{CustomCall, CustomKernel, CustomNode, CustomOperand, KernelRegistry};
use crate::error::Error;
use crate::frames::Mem;
use crate::general::General;

/// What runs such a node.
pub enum HostNode {
    /// An op of an imported model, sample by sample.
    General(Box<General>),
    /// A kernel that the user brought.
    Custom {
        /// The kernel.
        kernel: Arc<dyn CustomKernel>,
        /// Whether it takes all members that its node runs for at once in one call.
        batchable: bool,
    },
}

/// The host nodes of a program, by node id.
///
/// # Errors
/// [`Error::Unsupported`] naming a node without a kernel.
pub fn resolve(
    device: &str,
    program: &Program,
    registry: &KernelRegistry,
) -> Result<Vec<Option<HostNode>>, Error> {
    let one = |node: &Node| {
        let unsupported = |op: &str, why: String| Error::Unsupported {
            device: device.to_owned(),
            node: node.name.clone(),
            op: op.to_owned(),
            why,
        };
        Ok(match &node.op {
            Op::Custom(op) => {
                let kernel = registry.get(&op.name).ok_or_else(|| {
                    unsupported(&op.name, "a kernel of this name in the registry".into())
                })?;
                let operands = node.inputs.iter().map(|&v| &program.value(v).ty).collect();
                let bound = CustomNode {
                    name: &node.name,
                    op,
                    operands,
                };
                kernel
                    .validate(&bound)
                    .map_err(|why| unsupported(&op.name, why))?;
                let batchable = op.batchable;
                Some(HostNode::Custom { kernel, batchable })
            }
            Op::Tensor(op) => {
                let made = General::new(&node.name, op);
                let made = made.map_err(|why| unsupported(&op.op, why))?;
                Some(HostNode::General(Box::new(made)))
            }
            _ => None,
        })
    };
    program.nodes.iter().map(one).collect()
}

impl HostNode {
    /// Computes all rows of the results; those of padding and idle members are zero where a node runs
    /// sample by sample.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn run(
        &self,
        program: &Program,
        node: &Node,
        members: &[Mem],
        operands: &[&[f32]],
        outs: &mut [&mut [f32]],
    ) -> Result<(), String> {
        match self {
            Self::General(general) => run_general(general, program, node, members, operands, outs),
            Self::Custom { kernel, batchable } => {
                let out = outs.first_mut().ok_or("a custom node has one result")?;
                run_custom(&**kernel, *batchable, program, node, members, operands, out)
            }
        }
    }
}

impl std::fmt::Debug for HostNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::General(_) => "General",
            Self::Custom { .. } => "Custom",
        })
    }
}

fn run_general(
    general: &General,
    program: &Program,
    node: &Node,
    members: &[Mem],
    operands: &[&[f32]],
    outs: &mut [&mut [f32]],
) -> Result<(), String> {
    let ty = |value: usize| &program.value(node.inputs[value]).ty;
    outs.iter_mut().for_each(|out| out.fill(0.0));
    for mem in members.iter().filter(|m| !m.idle) {
        let len = mem.own(Some(Dim::Rows));
        for sample in 0..mem.samples {
            // The range of a value's elements that belongs to this sample.
            let range = |lead: Option<Dim>, row: usize| match lead {
                Some(Dim::Rows) => mem.row_start * row..(mem.row_start + len) * row,
                _ => (mem.sample_start + sample) * row..(mem.sample_start + sample + 1) * row,
            };
            let own: SmallVec<[&[f32]; 4]> = operands
                .iter()
                .enumerate()
                .map(|(i, all)| match ty(i).lead() {
                    None => *all,
                    lead => &all[range(lead, ty(i).row_elems())],
                })
                .collect();
            let results = general.run(&own, len)?;
            for (i, (out, result)) in outs.iter_mut().zip(results).enumerate() {
                let ty = &program.value(node.outputs[i]).ty;
                out[range(ty.lead(), ty.row_elems())].copy_from_slice(&result);
            }
        }
    }
    Ok(())
}

fn run_custom(
    kernel: &dyn CustomKernel,
    batchable: bool,
    program: &Program,
    node: &Node,
    members: &[Mem],
    operands: &[&[f32]],
    out: &mut [f32],
) -> Result<(), String> {
    let ty = &program.value(node.outputs[0]).ty;
    let (d, lead) = (ty.row_elems(), ty.lead());
    let operands: SmallVec<[(CustomOperand<'_>, _); 4]> = node
        .inputs
        .iter()
        .zip(operands)
        .map(|(&value, data)| {
            let ty = &program.value(value).ty;
            let operand = CustomOperand {
                data,
                row_elems: ty.row_elems(),
                is_weight: program.as_weight(value).is_some(),
            };
            (operand, ty.lead())
        })
        .collect();
    if batchable {
        let starts = members.iter().map(|m| m.span(lead).0);
        let mut offsets: SmallVec<[usize; 16]> = starts.collect();
        offsets.push(out.len() / d.max(1));
        let operands: SmallVec<[CustomOperand<'_>; 4]> = operands.iter().map(|o| o.0).collect();
        return kernel.run(&mut CustomCall {
            operands: &operands,
            offsets: &offsets,
            output: out,
        });
    }
    for mem in members {
        let (start, num) = mem.span(lead);
        let operands: SmallVec<[CustomOperand<'_>; 4]> = operands
            .iter()
            .map(|(o, lead)| {
                if o.is_weight {
                    return *o;
                }
                let (start, num) = mem.span(*lead);
                let data = &o.data[start * o.row_elems..(start + num) * o.row_elems];
                CustomOperand { data, ..*o }
            })
            .collect();
        kernel.run(&mut CustomCall {
            operands: &operands,
            offsets: &[0, num],
            output: &mut out[start * d..(start + num) * d],
        })?;
    }
    Ok(())
}
