//! Takes residual and activation into the convolution in front of them.
//!
//! `Conv2d`, then `Binary(Add)` with an activation of equal type: the residual. Then `Unary`: the
//! activation, which comes last in a convolution.

use super::edit::{Fusion, fuse, producer};
use crate::ids::ValueId;
use crate::op::{Bin, Op};
use crate::program::{Node, Program};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    fuse(program, rule);
}

fn rule(program: &Program, node: &Node, uses: &dyn Fn(ValueId) -> u32) -> Option<Fusion> {
    let grow = |conv: ValueId, other: Option<ValueId>| {
        let (id, from) = producer(program, conv).filter(|_| uses(conv) == 1)?;
        let Op::Conv2d {
            window,
            groups,
            bias,
            residual,
            act: None,
        } = from.op
        else {
            return None;
        };
        let mut inputs = from.inputs.clone();
        let op = match (&node.op, other) {
            (Op::Unary(act), None) => Op::Conv2d {
                window,
                groups,
                bias,
                residual,
                act: Some(*act),
            },
            (_, Some(other)) if !residual && program.value(other).ty == program.value(conv).ty => {
                inputs.push(other);
                Op::Conv2d {
                    window,
                    groups,
                    bias,
                    residual: true,
                    act: None,
                }
            }
            _ => return None,
        };
        Some(Fusion {
            producer: id,
            op,
            inputs,
        })
    };
    match node.op {
        Op::Unary(_) => grow(node.inputs[0], None),
        Op::Binary(Bin::Add) => {
            let [a, b] = [node.inputs[0], node.inputs[1]];
            let candidates = if a > b {
                [(a, b), (b, a)]
            } else {
                [(b, a), (a, b)]
            };
            candidates
                .into_iter()
                .find_map(|(conv, other)| grow(conv, Some(other)))
        }
        _ => None,
    }
}
