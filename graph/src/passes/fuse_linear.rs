//! Takes bias, activation and residual into the linear node in front of them.
//!
//! `Linear`, then `Binary(Add)` with a weight `[n]`: the bias. Then `Unary`: the activation. Then
//! `Binary(Add)` with an activation: the residual. Each step needs the earlier result to have no
//! other reader.

use super::edit::{Fusion, fuse, producer};
use crate::ids::ValueId;
use crate::op::{Bin, Op};
use crate::program::{Node, Program};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    fuse(program, rule);
}

fn rule(program: &Program, node: &Node, uses: &dyn Fn(ValueId) -> u32) -> Option<Fusion> {
    let grow = |linear: ValueId, other: Option<ValueId>| {
        let (id, from) = producer(program, linear).filter(|_| uses(linear) == 1)?;
        let Op::Linear {
            bias,
            act,
            residual: false,
        } = from.op
        else {
            return None;
        };
        let mut inputs = from.inputs.clone();
        inputs.extend(other);
        let op = match (&node.op, other) {
            (Op::Unary(new), None) if act.is_none() => Op::Linear {
                bias,
                act: Some(*new),
                residual: false,
            },
            (_, Some(other)) if is_bias(program, linear, other) => {
                if bias || act.is_some() {
                    return None;
                }
                Op::Linear {
                    bias: true,
                    act,
                    residual: false,
                }
            }
            (_, Some(other)) if program.value(other).ty == program.value(linear).ty => Op::Linear {
                bias,
                act,
                residual: true,
            },
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
            // The later of two linear nodes takes the sum in, as it is nearer.
            let candidates = if a > b {
                [(a, b), (b, a)]
            } else {
                [(b, a), (a, b)]
            };
            candidates
                .into_iter()
                .find_map(|(linear, other)| grow(linear, Some(other)))
        }
        _ => None,
    }
}

/// Whether `other` is a weight that spans the last dimension of `linear`.
fn is_bias(program: &Program, linear: ValueId, other: ValueId) -> bool {
    let features = program.value(linear).ty.fixed_dims().last().copied();
    program.as_weight(other).is_some()
        && features.is_some_and(|n| program.value(other).ty.fixed_dims()[..] == [n])
}
