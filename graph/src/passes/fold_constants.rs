//! Computes nodes whose operands are all weights, in f32, and puts a weight in their place.
//!
//! Those are `Binary`, `Unary`, `Scale` and `Reshape`: the ops that take a weight in the place of their
//! activation. All of them are folded, as no device runs a node without rows; synthetic weights are
//! generated for it, but for `Reshape`, which leaves a weight what it is. The functions are those of
//! the CPU's kernels ([`crate::math`]), so bits are those of a node that computes rows.

use super::edit::{add_weight, remove, replace_uses};
use crate::ids::{NodeId, ValueId};
use crate::math;
use crate::op::Op;
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
        let Some(source) = evaluate(program, &node.op, &node.inputs) else {
            continue;
        };
        let ty = program.value(node.outputs[0]).ty.clone();
        let weight = add_weight(program, &node.name, ty, source);
        replace_uses(program, node.outputs[0], weight);
        folded[id.index()] = true;
    }
    remove(program, &folded);
}

/// Where the elements of a weight come from.
fn source(program: &Program, value: ValueId) -> Option<&WeightSource> {
    match program.value(value).def {
        Def::Weight(w) => Some(&program.weight(w).source),
        Def::Node { .. } => None,
    }
}

fn evaluate(program: &Program, op: &Op, inputs: &[ValueId]) -> Option<WeightSource> {
    let elements = |i: usize| {
        let num = program.value(inputs[i]).ty.row_elems();
        source(program, inputs[i]).map(|s| s.to_f32(num))
    };
    let dims = program.value(inputs[0]).ty.fixed_dims();
    let mut a = match op {
        Op::Reshape { dims } => {
            let mut same = source(program, inputs[0])?.clone();
            if let WeightSource::Data(tensor) = &mut same {
                tensor.dims.clone_from(dims);
            }
            return Some(same);
        }
        Op::Binary(_) | Op::Scale(_) | Op::Unary(_) => elements(0)?,
        _ => return None,
    };
    match op {
        Op::Binary(bin) => {
            // The second operand spans all of the first, or repeats along its last dimension.
            for (x, y) in a.iter_mut().zip(elements(1)?.iter().cycle()) {
                *x = math::binary(*bin, *x, *y);
            }
        }
        Op::Scale(factor) => a.iter_mut().for_each(|x| *x *= factor),
        Op::Unary(act) => a.iter_mut().for_each(|x| *x = math::act(*act, *x)),
        _ => {}
    }
    Some(WeightSource::Data(Tensor::from_f32(&dims, &a)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::ProgramBuilder;
    use crate::dtype::DType;
    use crate::op::Act;
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

    /// One node of rows and one of constants for each activation, on numbers of all kinds.
    #[test]
    fn every_activation_is_folded() {
        let given = [-0.0, 0.3, -1.7, 9.0, f32::NAN, f32::NEG_INFINITY];
        for act in [
            Act::Relu,
            Act::Relu6,
            Act::Gelu,
            Act::Tanh,
            Act::Sigmoid,
            Act::Silu,
        ] {
            let mut b = ProgramBuilder::new("activation");
            let x = b.input("x", DType::F32, &[6]);
            let y = b.output("y", DType::F32, &[6]);
            b.begin_block("main", Repeat::Once);
            let w = b.data("w", Tensor::from_f32(&[6], &given));
            let w = b.unary("act", act, w);
            let x = b.read_input("x", x);
            let s = b.add("sum", x, w);
            b.emit("y", y, s);
            let mut program = b.finish().unwrap();
            apply(&PASSES[0], &mut program).unwrap();
            assert_eq!(program.nodes.len(), 3, "{act:?}");
            let got = program.weights[0].source.to_f32(6);
            for (x, got) in given.into_iter().zip(got) {
                let want = math::act(act, x);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{act:?} of {x}: {got}, not {want}");
                assert!(got.is_nan() || !x.is_nan(), "{act:?} of {x}: {got}");
            }
        }
    }

    #[test]
    fn a_weight_of_another_shape_keeps_type_and_source() {
        let mut b = ProgramBuilder::new("shapes").with_seed(3);
        let x = b.input("x", DType::F32, &[4]);
        let y = b.output("y", DType::F32, &[2]);
        b.begin_block("main", Repeat::Once);
        let w = b.seeded("w", &[8], 4);
        let w = b.reshape("matrix", w, &[4, 2]);
        let x = b.read_input("x", x);
        let p = b.linear("product", x, w, crate::builder::Fused::default());
        b.emit("y", y, p);
        let program = b.finish().unwrap();
        let before = program.weights[0].source.to_f32(8);
        let mut folded = program;
        apply(&PASSES[0], &mut folded).unwrap();
        assert_eq!(folded.nodes.len(), 3);
        assert!(matches!(
            folded.weights[0].source,
            WeightSource::Seeded { .. }
        ));
        assert_eq!(folded.weights[0].source.to_f32(8), before);
    }
}
