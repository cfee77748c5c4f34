//! A feed-forward layer whose activation, a gelu by tanh, is written out in nine ops as exporters do it:
//! with these as one node, and as they are.

use std::sync::Arc;

use lazybatch_graph::{Act, DType, Program, ProgramBuilder, Repeat, passes};
use serde_json::json;

use super::{BATCHES, Own, Row, requests, weights};

/// Features and inner features: those of BERT-base.
pub const SIZES: [usize; 2] = [768, 3072];
/// Positions of a request.
const LEN: usize = 64;

/// With the ops as one node, then without.
pub fn rows() -> Vec<Row> {
    let both = [true, false].into_iter();
    both.flat_map(|fused| BATCHES.map(|batch| row(batch, LEN, fused)))
        .collect()
}

/// `batch` requests of `len` positions.
pub fn row(batch: usize, len: usize, fused: bool) -> Row {
    let [d, ffn] = SIZES;
    let sizes = json!({ "batch": batch, "len": len, "d": d, "ffn": ffn, "fused": fused });
    Row::new("feed-forward", sizes, move |setup| {
        let mut program = feed_forward(len)?;
        if fused {
            let pass = passes::find("fuse_elementwise").expect("a pass");
            passes::apply(pass, &mut program)?;
        }
        let (weights, requests) = (weights(&program), requests(&program, batch, len));
        Own::program(Arc::new(program), requests, weights, setup, None)
    })
}

/// Gelu as `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`. Source: Hendrycks and Gimpel, "Gaussian error
/// linear units", arXiv 1606.08415.
fn feed_forward(len: usize) -> Result<Program, lazybatch_graph::Error> {
    let [d, ffn] = SIZES;
    let mut b = ProgramBuilder::new("feed-forward");
    let x = b.sequence("x", DType::F32, &[d], len);
    let y = b.output_sequence("y", DType::F32, &[d]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let x = b.dense("up", x, ffn, None);
    let square = b.mul("square", x, x);
    let cube = b.mul("cube", square, x);
    let small = b.scale("small", cube, 0.044_715);
    let inner = b.add("inner", x, small);
    let inner = b.scale("factor", inner, (2.0 / std::f32::consts::PI).sqrt());
    let tanh = b.unary("tanh", Act::Tanh, inner);
    let one = b.constant("one", &[ffn], 1.0);
    let more = b.add("more", tanh, one);
    let times = b.mul("times", x, more);
    let half = b.scale("half", times, 0.5);
    let down = b.dense("down", half, d, None);
    b.emit("emit", y, down);
    b.finish()
}
