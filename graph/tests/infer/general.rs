//! Rows of several vectors, and general nodes.

use lazybatch_graph::onnx::Elem;
use lazybatch_graph::{Layout, Op, Operand, Part, Produced, TensorOp};

use super::{LOOP, ONCE, STEP, check};

#[test]
fn a_row_may_hold_several_vectors() {
    let linear = |bias, residual| Op::Linear {
        bias,
        act: None,
        residual,
    };
    let x = "batch f32 5 2";
    check(
        ONCE,
        linear(true, false),
        &[x, "w f32 2 3", "w f32 3"],
        "f32[batch, 5, 3]",
    );
    check(
        ONCE,
        linear(false, true),
        &[x, "w f32 2 3", "batch f32 5 3"],
        "f32[batch, 5, 3]",
    );
    check(
        ONCE,
        linear(false, true),
        &[x, "w f32 2 3", "batch f32 15"],
        "!residual",
    );
    check(
        ONCE,
        linear(false, false),
        &["batch f32", "w f32 2 3"],
        "!1 or more dimensions",
    );
    let norm = Op::LayerNorm { eps: 1e-5 };
    check(ONCE, norm, &[x, "w f32 2", "w f32 2"], "f32[batch, 5, 2]");
}

#[test]
fn general_nodes_are_seen_as_their_layouts_say() {
    let layout = |parts: &[Part]| Layout(parts.iter().map(|p| vec![*p]).collect());
    let node = |operands: Vec<Operand>, made: &[Part]| {
        Op::Tensor(Box::new(TensorOp {
            op: "Any".to_owned(),
            opset: 13,
            attrs: Default::default(),
            operands,
            outputs: vec![Produced {
                layout: layout(made),
                elem: Elem::I64,
            }],
            flops_per_row: 0,
        }))
    };
    let next = |parts: &[Part]| Operand::Next {
        layout: layout(parts),
        elem: Elem::F32,
    };
    let (batch, len, two, three) = (Part::Batch, Part::Len, Part::Fixed(2), Part::Fixed(3));
    let rows = || node(vec![next(&[batch, two, len, three])], &[len, two]);
    check(ONCE, rows(), &["rows f32 6"], "i32[rows, 2]");
    check(
        ONCE,
        rows(),
        &["rows f32 5"],
        "!operand 0 of Any: expected f32 under",
    );
    check(
        ONCE,
        rows(),
        &["batch f32 6"],
        "!operand 0 of Any: expected f32 under",
    );
    check(
        ONCE,
        rows(),
        &["rows i32 6"],
        "!operand 0 of Any: expected f32 under",
    );
    check(
        STEP,
        rows(),
        &["rows f32 6"],
        "!one sequence in blocks that run once",
    );
    check(
        ONCE,
        rows(),
        &["rows f32 6", "rows f32 6"],
        "!those that are named",
    );
    check(ONCE, rows(), &[], "!number of operands");
    // A table holds a row for each of sixteen positions.
    let table = || {
        node(
            vec![next(&[batch, two]), next(&[len, three])],
            &[batch, two],
        )
    };
    check(
        ONCE,
        table(),
        &["batch f32 2", "w f32 16 3"],
        "i32[batch, 2]",
    );
    check(
        ONCE,
        table(),
        &["batch f32 2", "w f32 15 3"],
        "!operand 1 of Any",
    );
    check(
        LOOP,
        node(vec![next(&[two])], &[batch]),
        &["batch f32 2"],
        "i32[batch]",
    );
    check(
        ONCE,
        node(vec![next(&[two])], &[batch]),
        &["w f32 2"],
        "!an activation among them",
    );
    check(
        ONCE,
        node(vec![next(&[batch, batch])], &[batch]),
        &["batch f32"],
        "!at most one batch",
    );
    let numbers = |base: Vec<i64>, per_len: Vec<i64>| Operand::Numbers {
        dims: vec![2],
        elem: Elem::I64,
        base,
        per_len,
    };
    let with = |numbers| node(vec![next(&[batch]), numbers], &[batch]);
    check(
        ONCE,
        with(numbers(vec![1, 2], vec![])),
        &["batch f32"],
        "i32[batch]",
    );
    check(
        ONCE,
        with(numbers(vec![1], vec![])),
        &["batch f32"],
        "!numbers [2]",
    );
    check(
        ONCE,
        with(numbers(vec![1, 2], vec![3])),
        &["batch f32"],
        "!numbers [2]",
    );
}
