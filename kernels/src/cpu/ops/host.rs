//! Nodes without a kernel of this device; see [`crate::host_nodes`].

use smallvec::SmallVec;

use crate::cpu::exec::{Env, NodeView, Outs};

/// Runs such a node.
pub fn host(env: &mut Env<'_>, v: NodeView<'_>) -> Result<Outs, String> {
    let node = v.model.host_nodes[v.id.index()]
        .as_ref()
        .expect("resolved at load");
    let mut outs: Outs = (0..v.node.outputs.len()).map(|i| v.alloc(env, i)).collect();
    let operands: SmallVec<[&[f32]; 4]> = (0..v.node.inputs.len()).map(|i| v.arg(i)).collect();
    let mut slices: SmallVec<[&mut [f32]; 2]> = outs.iter_mut().map(|o| &mut **o).collect();
    let members = &v.frame.members;
    let data = (&operands[..], &mut slices[..]);
    node.run(&v.model.program, v.node, members, data, env.faults)?;
    drop(slices);
    Ok(outs)
}
