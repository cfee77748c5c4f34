//! Computes nodes whose operands are all weights, in f32, and puts a weight in their place.
//!
//! Folds `Binary`, `Unary` (but Gelu, whose polynomial belongs to the kernels), `Scale` and
//! `Reshape`. Synthetic weights are generated for it: no device runs a node without rows.

use super::edit::{add_weight, remove, replace_uses};
use crate::ids::{NodeId, ValueId};
use crate::op::{Act, Bin, Op};
use crate::program::{Def, Program};
use crate::tensor::{Tensor, WeightSource};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    let order: Vec<NodeId> = program
        .blocks
        .iter()
        .flat_map(|b| b.nodes.clone())
        .collect();
    let mut folded = vec![false; program.nodes.len()];
    for id in order {
        let node = program.node(id).clone();
        let constant = |v: &ValueId| program.as_weight(*v).is_some();
        if node.inputs.is_empty() || !node.inputs.iter().all(constant) {
            continue;
        }
        let Some(data) = evaluate(program, &node.op, &node.inputs) else {
            continue;
        };
        let dims = program.value(node.outputs[0]).ty.fixed_dims();
        let source = WeightSource::Data(Tensor::from_f32(&dims, &data));
        let weight = add_weight(program, &node.name, &dims, source);
        replace_uses(program, node.outputs[0], weight);
        folded[id.index()] = true;
    }
    remove(program, &folded);
}

/// The elements of a weight.
fn elements(program: &Program, value: ValueId) -> Vec<f32> {
    match program.value(value).def {
        Def::Weight(w) => {
            let weight = program.weight(w);
            weight.source.to_f32(weight.ty.row_elems())
        }
        Def::Node { .. } => Vec::new(),
    }
}

fn evaluate(program: &Program, op: &Op, inputs: &[ValueId]) -> Option<Vec<f32>> {
    let mut a = elements(program, inputs[0]);
    match op {
        Op::Binary(bin) => {
            let b = elements(program, inputs[1]);
            let apply = |x: f32, y: f32| match bin {
                Bin::Add => x + y,
                Bin::Sub => x - y,
                Bin::Mul => x * y,
            };
            // The second operand spans all of the first, or repeats along its last dimension.
            for (x, y) in a.iter_mut().zip(b.iter().cycle()) {
                *x = apply(*x, *y);
            }
        }
        Op::Scale(factor) => a.iter_mut().for_each(|x| *x *= factor),
        Op::Unary(act) => {
            let apply = activation(*act)?;
            a.iter_mut().for_each(|x| *x = apply(*x));
        }
        Op::Reshape { .. } => {}
        _ => return None,
    }
    Some(a)
}

fn activation(act: Act) -> Option<fn(f32) -> f32> {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    Some(match act {
        Act::Relu => |x| x.max(0.0),
        Act::Relu6 => |x| x.clamp(0.0, 6.0),
        Act::Tanh => f32::tanh,
        Act::Sigmoid => sigmoid,
        Act::Silu => |x| x / (1.0 + (-x).exp()),
        Act::Gelu => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::ProgramBuilder;
    use crate::dtype::DType;
    use crate::passes::{PASSES, apply};
    use crate::program::Repeat;

    #[test]
    fn weights_are_computed_once_and_for_all() {
        let mut b = ProgramBuilder::new("constants");
        let x = b.input("x", DType::F32, &[2, 3]);
        let y = b.output("y", DType::F32, &[2, 3]);
        b.begin_block("main", Repeat::Once);
        let m = b.data(
            "m",
            Tensor::from_f32(&[6], &[-3.0, -2.0, -1.0, 1.0, 2.0, 3.0]),
        );
        let m = b.reshape("m2", m, &[2, 3]);
        let row = b.data("row", Tensor::from_f32(&[3], &[1.0, 10.0, 100.0]));
        let m = b.mul("times", m, row);
        let m = b.scale("twice", m, 2.0);
        let m = b.unary("relu", Act::Relu, m);
        let x = b.read_input("x", x);
        let s = b.add("sum", x, m);
        b.emit("y", y, s);
        let mut program = b.finish().unwrap();
        apply(&PASSES[0], &mut program).unwrap();
        let names: Vec<&str> = program.nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["x", "sum", "y"]);
        assert_eq!(program.weights.len(), 1);
        assert_eq!(program.weights[0].name, "relu");
        let data = program.weights[0].source.to_f32(6);
        assert_eq!(data, [0.0, 0.0, 0.0, 2.0, 40.0, 600.0]);
    }

    #[test]
    fn activations_and_unknown_functions_stay() {
        let mut b = ProgramBuilder::new("gelu");
        let x = b.input("x", DType::F32, &[2]);
        let y = b.output("y", DType::F32, &[2]);
        b.begin_block("main", Repeat::Once);
        let w = b.constant("w", &[2], 1.0);
        let w = b.unary("gelu", Act::Gelu, w);
        let x = b.read_input("x", x);
        let s = b.add("sum", x, w);
        b.emit("y", y, s);
        let mut program = b.finish().unwrap();
        apply(&PASSES[0], &mut program).unwrap();
        assert_eq!(program.nodes.len(), 4);
    }
}
