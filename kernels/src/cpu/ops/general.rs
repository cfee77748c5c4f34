//! Ops of imported models that have no kernel here, sample by sample.

use lazybatch_graph::Dim;
use smallvec::SmallVec;

use crate::cpu::exec::{Env, NodeView, Outs};

/// Runs a general kernel for each sample of each member. Padding and idle members give zeros.
pub fn general(env: &mut Env<'_>, v: NodeView<'_>) -> Result<Outs, String> {
    let node = v.model.general[v.id.index()]
        .as_ref()
        .expect("resolved at load");
    let mut outs: Outs = (0..v.node.outputs.len()).map(|i| v.alloc(env, i)).collect();
    outs.iter_mut().for_each(|out| out.fill(0.0));
    for mem in v.frame.members.iter().filter(|m| !m.idle) {
        let len = mem.own(Some(Dim::Rows));
        for sample in 0..mem.samples {
            // The range of a value's elements that belongs to this sample.
            let range = |lead: Option<Dim>, row: usize| match lead {
                Some(Dim::Rows) => mem.row_start * row..(mem.row_start + len) * row,
                _ => (mem.sample_start + sample) * row..(mem.sample_start + sample + 1) * row,
            };
            let operands: SmallVec<[&[f32]; 4]> = (0..v.node.inputs.len())
                .map(|i| {
                    let ty = v.ty(i);
                    match ty.lead() {
                        None => v.arg(i),
                        lead => &v.arg(i)[range(lead, ty.row_elems())],
                    }
                })
                .collect();
            let results = node.run(&operands, len)?;
            for (i, (out, result)) in outs.iter_mut().zip(results).enumerate() {
                let ty = v.out_ty(i);
                out[range(ty.lead(), ty.row_elems())].copy_from_slice(&result);
            }
        }
    }
    Ok(outs)
}
