//! Windows of signals and the discrete Fourier transform.

use std::f64::consts::TAU;

use lazybatch_graph::onnx::{Array, Elem};

use super::index::around;
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("BlackmanWindow", &[17], Types::INDEX, |c| {
        window(c, &[0.42, -0.5, 0.08])
    }),
    op("DFT", &[17, 20], Types::FLOATS, dft),
    op("HammingWindow", &[17], Types::INDEX, |c| {
        window(c, &[25.0 / 46.0, -21.0 / 46.0])
    }),
    op("HannWindow", &[17], Types::INDEX, |c| {
        window(c, &[0.5, -0.5])
    }),
];

/// A sum of cosines: `terms[k] * cos(k * phase)`.
fn window(call: &Call, terms: &[f64]) -> Outputs {
    let size = call.sizes("input 0", &[call.int_scalar(0)?])?[0];
    let num = call.num(&[size])?;
    let code = call.int("output_datatype", 1)?;
    let elem = Elem::from_code(code)
        .ok_or_else(|| call.bad("attribute \"output_datatype\"", "a number type", code))?;
    let period = if call.flag("periodic", true)? {
        num
    } else {
        num.saturating_sub(1)
    } as f64;
    let value = |i: usize| {
        let phase = TAU * i as f64 / period;
        terms
            .iter()
            .enumerate()
            .map(|(k, t)| t * (k as f64 * phase).cos())
            .sum()
    };
    Ok(vec![Array::from_f64(
        elem,
        vec![num],
        (0..num).map(value).collect(),
    )])
}

/// Signals `[..., n, 1 or 2]`: real, or real and imaginary parts, transformed along an axis. The last
/// one is none to transform along, but counts.
fn dft(call: &Call) -> Outputs {
    let x = call.at_least(0, 2)?;
    let (inverse, onesided) = (call.flag("inverse", false)?, call.flag("onesided", false)?);
    let parts = x.dims()[x.rank() - 1];
    if parts != 1 && parts != 2 {
        return Err(call.bad("input 0", "real or complex numbers along the last axis", x));
    }
    let axis = match call.opt(2).filter(|_| call.opset >= 20) {
        Some(_) => call.axis_of(call.int_scalar(2)?, x.rank())?,
        None if call.opset >= 20 => call.axis_of(-2, x.rank())?,
        None => call.axis(1, x.rank())?,
    };
    if axis == x.rank() - 1 {
        return Err(call.bad("axis", "another than the last", axis));
    }
    let (outer, n, inner) = around(&x.dims()[..x.rank() - 1], axis);
    let len = match call.opt(1) {
        Some(_) => call.sizes("input 1", &[call.int_scalar(1)?])?[0],
        None => n,
    };
    if onesided && inverse {
        return Err(call.bad("attributes", "not both inverse and onesided", "both"));
    }
    let out = if onesided { len / 2 + 1 } else { len };
    let mut dims = x.dims().to_vec();
    dims[axis] = out;
    dims[x.rank() - 1] = 2;
    let num = call.num(&dims)?;
    call.work(&[num.max(1), len.max(1)])?;
    let v = x.data().to_f64();
    let mut y = vec![0.0; num];
    let direction = if inverse { TAU } else { -TAU };
    let scale = if inverse { 1.0 / len as f64 } else { 1.0 };
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        for k in 0..out {
            let (mut re, mut im) = (0.0, 0.0);
            for t in 0..n.min(len) {
                let at = ((o * n + t) * inner + i) * parts;
                let (a, b) = (v[at], if parts == 2 { v[at + 1] } else { 0.0 });
                // Whole turns are taken out first, so that the angle stays exact.
                let turns = (k as u128 * t as u128 % len as u128) as f64 / len as f64;
                let (sin, cos) = (direction * turns).sin_cos();
                re += a * cos - b * sin;
                im += a * sin + b * cos;
            }
            let to = ((o * out + k) * inner + i) * 2;
            y[to] = re * scale;
            y[to + 1] = im * scale;
        }
    }
    Ok(vec![Array::from_f64(x.elem(), dims, y)])
}
