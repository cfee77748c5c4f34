//! Makes elementwise nodes that follow one another one `Elementwise`.
//!
//! A node takes in the one in front of it if nobody else reads that one's result. Where both operands
//! of a binary node could be taken in, the later one is, as it is nearer. A node alone stays as it
//! is. What reads the chain's first operand again, further on, is a step like any other: an
//! activation that was written out in sums and products becomes one node.

use smallvec::SmallVec;

use super::edit::{Fusion, fuse, producer};
use crate::chain::{MOST_STEPS, Step, With};
use crate::ids::ValueId;
use crate::op::{Bin, Op};
use crate::program::{Node, Program};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    fuse(program, rule);
}

fn rule(program: &Program, node: &Node, uses: &dyn Fn(ValueId) -> u32) -> Option<Fusion> {
    let mut firsts: SmallVec<[ValueId; 2]> = match (&node.op, &node.inputs[..]) {
        (Op::Unary(_) | Op::Scale(_), &[x]) => SmallVec::from_slice(&[x]),
        (Op::Binary(_), &[a, b]) => SmallVec::from_slice(&[a, b]),
        _ => return None,
    };
    firsts.sort_by_key(|v| std::cmp::Reverse(v.index()));
    firsts.dedup();
    firsts.into_iter().find_map(|first| {
        let reads = node.inputs.iter().filter(|&&v| v == first).count();
        let is_inner = uses(first) as usize == reads;
        let (id, from) = producer(program, first).filter(|_| is_inner)?;
        let (mut steps, mut inputs) = chain(program, from)?;
        let same_type = program.value(first).ty == program.value(node.outputs[0]).ty;
        if steps.len() == MOST_STEPS || !same_type {
            return None;
        }
        steps.push(last_step(node, first, &mut inputs)?);
        let op = Op::Elementwise(steps);
        Some(Fusion {
            producer: id,
            op,
            inputs,
        })
    })
}

/// A node as a chain: its steps and its operands, the first of which it starts with.
fn chain(program: &Program, node: &Node) -> Option<(Vec<Step>, SmallVec<[ValueId; 4]>)> {
    let first = *node.inputs.first()?;
    let step = match &node.op {
        Op::Elementwise(steps) => return Some((steps.clone(), node.inputs.clone())),
        Op::Unary(act) => Step::Unary(*act),
        Op::Scale(factor) => Step::Scale(*factor),
        Op::Binary(op) if node.inputs[1] == first => Step::Binary(*op, With::Itself),
        Op::Binary(op) => Step::Binary(*op, With::Operand(1)),
        _ => return None,
    };
    // Constants are folded elsewhere.
    program.value(first).ty.lead()?;
    let mut inputs = node.inputs.clone();
    inputs.dedup();
    Some((vec![step], inputs))
}

/// `node` as the step of a chain behind `first`; an operand that the chain does not have yet is added.
fn last_step(node: &Node, first: ValueId, inputs: &mut SmallVec<[ValueId; 4]>) -> Option<Step> {
    let op = match node.op {
        Op::Unary(act) => return Some(Step::Unary(act)),
        Op::Scale(factor) => return Some(Step::Scale(factor)),
        Op::Binary(op) => op,
        _ => return None,
    };
    let [a, b] = [node.inputs[0], node.inputs[1]];
    if a == b {
        return Some(Step::Binary(op, With::Itself));
    }
    let other = if a == first { b } else { a };
    let place = inputs.iter().position(|&v| v == other);
    let with = With::Operand(place.unwrap_or_else(|| {
        inputs.push(other);
        inputs.len() - 1
    }));
    Some(match op {
        Bin::Sub if b == first => Step::SubFrom(with),
        op => Step::Binary(op, with),
    })
}
