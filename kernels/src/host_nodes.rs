//! Nodes that run on the host on every device that computes: ops of imported models without a
//! kernel of their own, and the user's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lazybatch_graph::{Dim, Node, Op, Program};
use lazybatch_sla::RequestId;
use smallvec::SmallVec;

use crate::custom::{CustomCall, CustomKernel, CustomNode, CustomOperand, KernelRegistry};
use crate::error::{Error, Fault};
use crate::frames::Mem;
use crate::general::General;

/// Members of a launch that failed alone, and what their nodes say.
pub type Faults = Vec<(RequestId, Fault)>;

/// Whether a request is among those that failed.
pub fn has_failed(faults: &Faults, request: RequestId) -> bool {
    faults.iter().any(|(id, _)| *id == request)
}

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
    /// Computes all rows of the results from those of the operands; those of padding and of members that
    /// idle or are among `faults` are zero where a node runs sample by sample or member by member. A
    /// member for which the kernel fails, or panics, joins `faults`, and its rows may have any content.
    ///
    /// # Errors
    /// What a kernel says of all members together that fails for none of them alone. Where some of them
    /// idle, or have failed before, it may have said so of their rows, and the others go on.
    pub fn run(
        &self,
        program: &Program,
        node: &Node,
        members: &[Mem],
        (operands, outs): (&[&[f32]], &mut [&mut [f32]]),
        faults: &mut Faults,
    ) -> Result<(), String> {
        match self {
            Self::General(general) => {
                outs.iter_mut().for_each(|out| out.fill(0.0));
                for mem in members {
                    let run = || run_general(general, program, node, mem, operands, outs);
                    try_member(mem, faults, run);
                }
            }
            Self::Custom { kernel, batchable } => {
                let out = outs.first_mut().ok_or("a custom node has one result")?;
                let call = Custom::new(&**kernel, program, node, operands);
                let mut refused = None;
                if *batchable && call.is_packed(members, out) {
                    match call.run(members, out) {
                        Ok(()) => return Ok(()),
                        // One of a batch that fails would take the others down.
                        Err(fault) => refused = Some(fault.why),
                    }
                }
                out.fill(0.0);
                let (before, mut all_tried) = (faults.len(), true);
                for mem in members {
                    all_tried &= try_member(mem, faults, || Ok(call.run_one(mem, out)?));
                }
                if let Some(why) = refused.filter(|_| all_tried && faults.len() == before) {
                    return Err(why);
                }
            }
        }
        Ok(())
    }
}

/// Runs a kernel for a member that has an effect, and says whether it has; if the kernel fails, that
/// member does.
fn try_member(mem: &Mem, faults: &mut Faults, run: impl FnOnce() -> Result<(), Fault>) -> bool {
    if mem.idle || has_failed(faults, mem.request) {
        return false;
    }
    if let Err(fault) = guarded(run) {
        faults.push((mem.request, fault));
    }
    true
}

/// What `run` says, a panic too.
fn guarded(run: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panic_text(&*panic).into()))
}

/// What a panic says.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("of unknown kind"))
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
    mem: &Mem,
    operands: &[&[f32]],
    outs: &mut [&mut [f32]],
) -> Result<(), Fault> {
    let ty = |value: usize| &program.value(node.inputs[value]).ty;
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
    Ok(())
}

/// A user's kernel with the operands of all members.
struct Custom<'a> {
    kernel: &'a dyn CustomKernel,
    /// Each with its leading dimension.
    operands: SmallVec<[(CustomOperand<'a>, Option<Dim>); 4]>,
    /// Leading dimension of the result, and elements of one of its rows.
    result: (Option<Dim>, usize),
}

impl<'a> Custom<'a> {
    fn new(
        kernel: &'a dyn CustomKernel,
        program: &Program,
        node: &Node,
        operands: &[&'a [f32]],
    ) -> Self {
        let values = node.inputs.iter().zip(operands);
        let operands = values.map(|(&value, data)| {
            let ty = &program.value(value).ty;
            let operand = CustomOperand {
                data,
                row_elems: ty.row_elems(),
                is_weight: program.as_weight(value).is_some(),
            };
            (operand, ty.lead())
        });
        let ty = &program.value(node.outputs[0]).ty;
        Self {
            kernel,
            operands: operands.collect(),
            result: (ty.lead(), ty.row_elems()),
        }
    }

    /// Whether every row is one of a member's own: a kernel may look at all rows of a member, so it must
    /// see neither padding nor rows of nobody behind the last member.
    fn is_packed(&self, members: &[Mem], output: &[f32]) -> bool {
        let all_own = |lead, row: usize, elems: usize| {
            let own: usize = members.iter().map(|m| m.own(lead)).sum();
            own * row == elems
        };
        let (lead, d) = self.result;
        let mut operands = self.operands.iter().filter(|(o, _)| !o.is_weight);
        all_own(lead, d, output.len())
            && operands.all(|(o, lead)| all_own(*lead, o.row_elems, o.data.len()))
    }

    /// All members in one call.
    fn run(&self, members: &[Mem], output: &mut [f32]) -> Result<(), Fault> {
        let (lead, d) = self.result;
        let starts = members.iter().map(|m| m.span(lead).0);
        let mut offsets: SmallVec<[usize; 16]> = starts.collect();
        offsets.push(output.len() / d.max(1));
        let operands: SmallVec<[CustomOperand<'_>; 4]> =
            self.operands.iter().map(|o| o.0).collect();
        guarded(|| {
            Ok(self.kernel.run(&mut CustomCall {
                operands: &operands,
                offsets: &offsets,
                output,
            })?)
        })
    }

    /// One member in a call of its own, without its padding.
    fn run_one(&self, mem: &Mem, output: &mut [f32]) -> Result<(), String> {
        let (lead, d) = self.result;
        let (start, num) = (mem.span(lead).0, mem.own(lead));
        let own = self.operands.iter().map(|(o, lead)| {
            if o.is_weight {
                return *o;
            }
            let (start, num) = (mem.span(*lead).0, mem.own(*lead));
            let data = &o.data[start * o.row_elems..(start + num) * o.row_elems];
            CustomOperand { data, ..*o }
        });
        let own: SmallVec<[CustomOperand<'_>; 4]> = own.collect();
        self.kernel.run(&mut CustomCall {
            operands: &own,
            offsets: &[0, num],
            output: &mut output[start * d..(start + num) * d],
        })
    }
}
