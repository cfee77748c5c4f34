//! Products with constant matrices.

use lazybatch_graph::onnx::{Array, Elem, Node};
use lazybatch_graph::{Bin, Op, Part};

use super::{Lower, Native, float, floats, int, one};
use crate::import::items::{Act, Arg};

const PRODUCT: Op = Op::Linear {
    bias: false,
    act: None,
    residual: false,
};

/// `[n, k]` as `[k, n]`.
pub(super) fn turned(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for c in 0..columns {
        out.extend((0..rows).map(|r| values[r * columns + c]));
    }
    out
}

impl Lower<'_> {
    pub(super) fn linear(&mut self, node: &Node) -> Native {
        let (Some(x), Some(w)) = (self.act(node, 0), self.constant(node, 1)) else {
            return Ok(None);
        };
        let is_gemm = node.op == "Gemm";
        let turn = is_gemm && int(node, "transB", 0) != 0;
        if w.rank() != 2 || (is_gemm && int(node, "transA", 0) != 0) {
            return Ok(None);
        }
        let has_bias = is_gemm && !self.absent(node, 2);
        let [k, n] = if turn {
            [w.dims()[1], w.dims()[0]]
        } else {
            [w.dims()[0], w.dims()[1]]
        };
        // Whatever else is added makes it a general node.
        let bias = self.constant(node, 2).filter(|c| {
            let is_row = c.len() == n && c.dims().last() == Some(&n);
            has_bias && (c.len() == 1 || is_row)
        });
        if has_bias && bias.is_none() {
            return Ok(None);
        }
        let Some(mut y) = self.features(&x, k) else {
            return Ok(None);
        };
        let alpha = float(node, "alpha", 1.0);
        let form = match (turn, is_gemm && alpha != 1.0) {
            (false, false) => String::new(),
            (true, false) => "turned".to_owned(),
            (turn, true) => format!("{}.times.{alpha}", if turn { "turned" } else { "plain" }),
        };
        let weight = self.weight(node, 1, &form, &[k, n], || {
            let values = floats(&w);
            let mut values = if turn { turned(&values, n, k) } else { values };
            if is_gemm {
                values.iter_mut().for_each(|v| *v *= alpha);
            }
            values
        });
        if let Some(last) = y.layout.0.last_mut() {
            *last = vec![Part::Fixed(n)];
        }
        let args = vec![Arg::Item(y.src), weight];
        y.dims.pop();
        y.dims.push(n);
        let y = self.emit(node, PRODUCT, args, y);
        match bias {
            Some(c) => one(self.gemm_bias(node, y, &c, n)),
            None => one(y),
        }
    }

    /// `y` and `beta` times the row `c`, or its only number.
    fn gemm_bias(&mut self, node: &Node, y: Act, c: &Array, n: usize) -> Act {
        let beta = float(node, "beta", 1.0);
        let form = if beta == 1.0 && c.len() == n {
            String::new()
        } else {
            format!("row.{n}.times.{beta}")
        };
        let bias = self.weight(node, 2, &form, &[n], || {
            let values = floats(c);
            (0..n).map(|i| beta * values[i % values.len()]).collect()
        });
        let args = vec![Arg::Item(y.src), bias];
        self.emit(node, Op::Binary(Bin::Add), args, y)
    }

    /// `x` in rows of the `k` features of its last axis: `[k]`, or `[n, k]` where a packed row holds
    /// several; none if the axis is another.
    pub(super) fn features(&mut self, x: &Act, k: usize) -> Option<Act> {
        let last = x.layout.0.last()?;
        let plain = last.iter().all(|p| matches!(p, Part::Fixed(_)));
        if x.elem != Elem::F32 || !plain || k == 0 || crate::import::layout::size(last).k != k {
            return None;
        }
        match x.layout.row_elems() / k {
            1 => Some(self.items.shaped(x, &[k])),
            n => Some(self.items.shaped(x, &[n, k])),
        }
    }
}
