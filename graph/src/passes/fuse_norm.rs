//! Makes a residual sum and the layer norm behind it one `AddLayerNorm`.
//!
//! The sum may have other readers: the fused node stands in its place and yields it too.

use super::edit::{producer, remove};
use crate::ids::NodeId;
use crate::op::{Bin, Op};
use crate::program::{Def, Program};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    let order: Vec<NodeId> = program
        .blocks
        .iter()
        .flat_map(|b| b.nodes.clone())
        .collect();
    let mut absorbed = vec![false; program.nodes.len()];
    for id in order {
        let Op::LayerNorm { eps } = program.node(id).op else {
            continue;
        };
        let norm = program.node(id).clone();
        // What is computed may come behind the sum, where the fused node stands.
        let mut scales = norm.inputs[1..].iter();
        if !scales.all(|&v| program.as_weight(v).is_some()) {
            continue;
        }
        let Some((sum_id, sum)) = producer(program, norm.inputs[0]) else {
            continue;
        };
        let [x, y] = match (&sum.op, &sum.inputs[..]) {
            (Op::Binary(Bin::Add), &[x, y]) if program.value(x).ty == program.value(y).ty => [x, y],
            _ => continue,
        };
        let normed = norm.outputs[0];
        let node = &mut program.nodes[sum_id.index()];
        node.name = norm.name;
        node.op = Op::AddLayerNorm { eps };
        node.inputs = [x, y, norm.inputs[1], norm.inputs[2]].into_iter().collect();
        node.outputs.push(normed);
        program.values[normed.index()].def = Def::Node {
            node: sum_id,
            output: 1,
        };
        absorbed[id.index()] = true;
    }
    remove(program, &absorbed);
}
