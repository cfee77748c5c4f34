//! Nodes that a user brought.

use lazybatch_graph::CustomOp;
use smallvec::SmallVec;

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::custom::{CustomCall, CustomOperand};

/// Runs a custom kernel on all rows, or member by member if it is not batchable.
pub fn custom(env: &mut Env<'_>, v: NodeView<'_>, op: &CustomOp) -> Result<Buf, String> {
    let kernel = v.model.customs[v.id.index()]
        .as_ref()
        .expect("resolved at load");
    let mut out = v.alloc(env, 0);
    let d = v.out_ty(0).row_elems();
    let lead = v.out_ty(0).lead();
    let operands: SmallVec<[(CustomOperand<'_>, _); 4]> = (0..v.node.inputs.len())
        .map(|i| {
            let is_weight = v.model.program.as_weight(v.node.inputs[i]).is_some();
            let row_elems = v.ty(i).row_elems();
            (
                CustomOperand {
                    data: v.arg(i),
                    row_elems,
                    is_weight,
                },
                v.ty(i).lead(),
            )
        })
        .collect();
    if op.batchable {
        let mut offsets: SmallVec<[usize; 16]> = v.spans(lead).map(|(_, start, _)| start).collect();
        offsets.push(out.len() / d.max(1));
        let operands: SmallVec<[CustomOperand<'_>; 4]> = operands.iter().map(|o| o.0).collect();
        kernel.run(&mut CustomCall {
            operands: &operands,
            offsets: &offsets,
            output: &mut out,
        })?;
        return Ok(out);
    }
    for (mem, start, num) in v.spans(lead) {
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
        let output = &mut out[start * d..(start + num) * d];
        kernel.run(&mut CustomCall {
            operands: &operands,
            offsets: &[0, num],
            output,
        })?;
    }
    Ok(out)
}
