//! Recurrent cells by their definition.

use lazybatch_graph::{Node, Op, StateId};

use super::device::{Loaded, Request};
use super::eval::{dims, matmul};
use super::math::sigmoid;

/// `x w`, or `x` where that is computed ahead.
fn given(x: &[f64], w: Option<(&[f64], Vec<usize>)>) -> Vec<f64> {
    w.map_or_else(|| x.to_vec(), |(w, dims)| matmul(x, w, dims[0], dims[1]))
}

/// One LSTM step; gates in order i, f, g, o.
pub(super) fn lstm(
    model: &Loaded,
    r: &mut Request,
    node: &Node,
    h: StateId,
    c: StateId,
) -> Vec<f64> {
    let Op::LstmCell { proj, ahead, .. } = node.op else {
        unreachable!("an LSTM cell")
    };
    let p = &model.program;
    // Operands behind `w_ih`, or where that would be.
    let next = 1 + usize::from(!ahead);
    let hh = dims(p, node, next);
    let n = hh[1] / 4;
    let x = |i: usize| model.operand(r, node.inputs[i]);
    let a = given(x(0), (!ahead).then(|| (x(1), dims(p, node, 1))));
    let b = matmul(&r.vectors[h.index()], x(next), hh[0], hh[1]);
    let bias = x(next + 1);
    let cells = &r.vectors[c.index()];
    let (mut cell, mut hidden) = (vec![0.0; cells.len()], vec![0.0; cells.len()]);
    for i in 0..cells.len() {
        let (row, j) = (i / n, i % n);
        let gate = |g: usize| {
            let at = row * 4 * n + g * n + j;
            a[at] + b[at] + bias[g * n + j]
        };
        cell[i] = sigmoid(gate(1)) * cells[i] + sigmoid(gate(0)) * gate(2).tanh();
        hidden[i] = sigmoid(gate(3)) * cell[i].tanh();
    }
    if proj {
        let w = dims(p, node, next + 2);
        hidden = matmul(&hidden, x(next + 2), w[0], w[1]);
    }
    r.vectors[c.index()] = cell;
    r.vectors[h.index()].clone_from(&hidden);
    hidden
}

/// One GRU step; gates in order r, z, n.
pub(super) fn gru(model: &Loaded, r: &mut Request, node: &Node, h: StateId) -> Vec<f64> {
    let p = &model.program;
    let ahead = matches!(node.op, Op::GruCell { ahead: true, .. });
    let [w_hh, b_hh] = if ahead { [1, 2] } else { [2, 4] };
    let hh = dims(p, node, w_hh);
    let n = hh[0];
    let x = |i: usize| model.operand(r, node.inputs[i]);
    let a = given(x(0), (!ahead).then(|| (x(1), dims(p, node, 1))));
    let b = matmul(&r.vectors[h.index()], x(w_hh), hh[0], hh[1]);
    let (b_ih, b_hh) = (if ahead { &[] } else { x(3) }, x(b_hh));
    let mut hidden = r.vectors[h.index()].clone();
    for (i, v) in hidden.iter_mut().enumerate() {
        let (row, j) = (i / n, i % n);
        let at = |g: usize| row * 3 * n + g * n + j;
        let xs = |g: usize| a[at(g)] + b_ih.get(g * n + j).unwrap_or(&0.0);
        let hs = |g: usize| b[at(g)] + b_hh[g * n + j];
        let reset = sigmoid(xs(0) + hs(0));
        let update = sigmoid(xs(1) + hs(1));
        let new = (xs(2) + reset * hs(2)).tanh();
        *v = (1.0 - update) * new + update * *v;
    }
    r.vectors[h.index()].clone_from(&hidden);
    hidden
}
