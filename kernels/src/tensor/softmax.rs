//! Softmax and its relatives.
//!
//! Up to opset 12 they see a matrix of all axes before and all from the attribute's axis on; from
//! 13 on one axis.

use lazybatch_graph::onnx::Array;

use super::index::around;
use super::reduce::log_sum_exp;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Hardmax", &[1, 11, 13], FLOATS, |c| apply(c, hardmax)),
    op("LogSoftmax", &[1, 11, 13], FLOATS, |c| {
        apply(c, log_softmax)
    }),
    op("Softmax", &[1, 11, 13], FLOATS, |c| {
        apply(c, |v| {
            log_softmax(v);
            for x in v {
                *x = x.exp();
            }
        })
    }),
];

/// `v - ln(sum(e^v))`, in place. Beside an infinity no element is a number: its difference from the
/// largest is none, and is in the sum of all.
pub fn log_softmax(v: &mut [f64]) {
    let total = log_sum_exp(v);
    if total == f64::INFINITY {
        v.fill(f64::NAN);
        return;
    }
    for x in v {
        *x -= total;
    }
}

fn hardmax(v: &mut [f64]) {
    let mut best = 0;
    for (i, x) in v.iter().enumerate() {
        if *x > v[best] {
            best = i;
        }
    }
    for (i, x) in v.iter_mut().enumerate() {
        *x = if i == best { 1.0 } else { 0.0 };
    }
}

fn apply(call: &Call, f: impl Fn(&mut [f64])) -> Outputs {
    let x = call.x(0)?;
    let (outer, n, inner) = if call.opset < 13 {
        let axis = call.int("axis", 1)?;
        // The axis may be the rank itself: then rows have one element.
        let axis = if axis == x.rank() as i64 {
            x.rank()
        } else {
            call.axis_of(axis, x.rank())?
        };
        let rows = x.dims()[..axis].iter().product();
        (rows, x.dims()[axis..].iter().product(), 1)
    } else {
        around(x.dims(), call.axis(-1, x.rank())?)
    };
    let mut y = x.data().to_f64();
    let mut line = vec![0.0; n];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        for (k, v) in line.iter_mut().enumerate() {
            *v = y[(o * n + k) * inner + i];
        }
        f(&mut line);
        for (k, v) in line.iter().enumerate() {
            y[(o * n + k) * inner + i] = *v;
        }
    }
    Ok(vec![Array::from_f64(x.elem(), x.dims().to_vec(), y)])
}
