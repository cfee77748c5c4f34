//! Matrix products and convolutions of quantized numbers.

use lazybatch_graph::onnx::{Array, Data, Elem, Error};

use super::conv::Conv;
use super::index::spread;
use super::matmul::MatDims;
use super::wide::quantized;
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("ConvInteger", &[10], Types::BYTES, conv_integer),
    op("MatMulInteger", &[10], Types::BYTES, matmul_integer),
    op("QLinearConv", &[10], Types::BYTES, qlinear_conv),
    op("QLinearMatMul", &[10, 21], Types::BYTES, qlinear_matmul),
];

/// Operand `i` less its zero point, operand `zero`: one number, or one per index of `axis`.
fn centred(call: &Call, i: usize, zero: usize, axis: usize) -> Result<Vec<i128>, Error> {
    let x = call.x(i)?;
    let mut v = x.data().to_i128();
    if let Some(z) = call.opt(zero) {
        call.expect_elem(zero, z, x.elem())?;
        let zeros = z.data().to_i128();
        for (v, at) in v.iter_mut().zip(along(call, zero, z, x, axis)?) {
            *v -= zeros[at];
        }
    }
    Ok(v)
}

/// For each element of `x`: which element of `p`, operand `i`, goes with it. `p` has one element,
/// one per index of `axis`, or dimensions that broadcast.
fn along(call: &Call, i: usize, p: &Array, x: &Array, axis: usize) -> Result<Vec<usize>, Error> {
    if p.len() == 1 {
        return Ok(vec![0; x.len()]);
    }
    let mut dims = p.dims().to_vec();
    if p.rank() == 1 && axis < x.rank() && p.len() == x.dims()[axis] {
        dims = vec![1; x.rank()];
        dims[axis] = p.len();
    }
    if super::index::broadcast(&[&dims, x.dims()]).as_deref() != Some(x.dims()) {
        let expected = format!("one element, or one per index of axis {axis} of {x}");
        return Err(call.bad(format!("input {i}"), expected, p));
    }
    Ok(spread(&dims, x.dims()))
}

fn matmul_integer(call: &Call) -> Outputs {
    let (a, b) = (call.at_least(0, 1)?, call.at_least(1, 1)?);
    let sizes = MatDims::new(call, a.dims(), b.dims())?;
    let row = a.rank().saturating_sub(2);
    let left = centred(call, 0, 2, row)?;
    let right = centred(call, 1, 3, b.rank() - 1)?;
    let y = Data::from_i128(Elem::I32, sizes.product(&left, &right));
    Ok(vec![Array::new(sizes.dims, y)])
}

fn conv_integer(call: &Call) -> Outputs {
    let conv = Conv::new(call, call.x(0)?, call.x(1)?)?;
    let (x, w) = (centred(call, 0, 2, 1)?, centred(call, 1, 3, 0)?);
    let y = Data::from_i128(Elem::I32, conv.run(call, &x, &w)?);
    Ok(vec![Array::new(conv.dims, y)])
}

/// Scales sums `y` of dimensions `dims` to the type of the zero point, operand `zero`; `per` finds
/// the scale of one operand for each sum.
fn requantized(
    call: &Call,
    dims: Vec<usize>,
    sums: &[i128],
    scale: impl Fn(usize) -> f64,
    out_scale: usize,
) -> Outputs {
    let zero = call.x(out_scale + 1)?;
    let point = match zero.data().to_i128()[..] {
        [point] if !zero.elem().is_float() => point,
        _ => return Err(call.bad("output zero point", "one integer", zero)),
    };
    let step = call.scalar(out_scale)?;
    let y = sums.iter().enumerate().map(|(i, &sum)| {
        let real = (sum as f64 * scale(i) / step).round_ties_even();
        quantized(zero.elem(), real + point as f64)
    });
    let data = Data::from_i128(zero.elem(), y.collect());
    Ok(vec![Array::new(dims, data)])
}

/// Operands: a, its scale and zero point, b, its scale and zero point, scale and zero point of y.
fn qlinear_matmul(call: &Call) -> Outputs {
    let (a, b) = (call.at_least(0, 1)?, call.at_least(3, 1)?);
    let sizes = MatDims::new(call, a.dims(), b.dims())?;
    let left = centred(call, 0, 2, a.rank().saturating_sub(2))?;
    let right = centred(call, 3, 5, b.rank() - 1)?;
    let sums = sizes.product(&left, &right);
    let scale = call.scalar(1)? * call.scalar(4)?;
    requantized(call, sizes.dims, &sums, |_| scale, 6)
}

/// Operands: x, its scale and zero point, w, its scale and zero point, scale and zero point of y,
/// optionally a bias in steps of both scales.
fn qlinear_conv(call: &Call) -> Outputs {
    let (x, w) = (call.x(0)?, call.x(3)?);
    let conv = Conv::new(call, x, w)?;
    let mut sums = conv.run(call, &centred(call, 0, 2, 1)?, &centred(call, 3, 5, 0)?)?;
    let m = conv.dims[1];
    if let Some(bias) = call.opt(8) {
        call.expect_dims(8, bias, &[m])?;
        conv.add_bias(&mut sums, &bias.data().to_i128(), 1);
    }
    let weight_scales = call.x(4)?.data().to_f64();
    if weight_scales.len() != 1 && weight_scales.len() != m {
        return Err(call.bad("input 4", format!("1 or {m} elements"), call.x(4)?));
    }
    let in_scale = call.scalar(1)?;
    let plane: usize = conv.dims[2..].iter().product();
    let scale = |i: usize| {
        let channel = i / plane.max(1) % m;
        in_scale * weight_scales[if weight_scales.len() == 1 { 0 } else { channel }]
    };
    requantized(call, conv.dims.clone(), &sums, scale, 6)
}
