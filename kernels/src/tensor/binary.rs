//! Ops on corresponding elements of several operands, broadcast to common dimensions.

use lazybatch_graph::onnx::{Array, Elem, Error};

use super::index::{expand, spread};
use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;
const INTS: Types = Types::INTS;
const NUMBERS: Types = Types::NUMBERS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Add", &[7, 13, 14], NUMBERS, |c| {
        binary(c, |a, b| a + b, i128::wrapping_add)
    }),
    op("BitShift", &[11], Types::UNSIGNED, bit_shift),
    op("BitwiseAnd", &[18], INTS, |c| {
        binary(c, |a, _| a, |a, b| a & b)
    }),
    op("BitwiseOr", &[18], INTS, |c| {
        binary(c, |a, _| a, |a, b| a | b)
    }),
    op("BitwiseXor", &[18], INTS, |c| {
        binary(c, |a, _| a, |a, b| a ^ b)
    }),
    op("Clip", &[6, 11, 12, 13], NUMBERS, clip),
    op("Div", &[7, 13, 14], NUMBERS, |c| {
        refuse_zero(c)?;
        binary(c, |a, b| a / b, |a, b| a.checked_div(b).unwrap_or(0))
    }),
    op("Max", &[6, 8, 12, 13], NUMBERS, |c| fold(c, max, i128::max)),
    op("Mean", &[6, 8, 13], FLOATS, mean),
    op("Min", &[6, 8, 12, 13], NUMBERS, |c| fold(c, min, i128::min)),
    op("Mod", &[10, 13], NUMBERS, modulo),
    op("Mul", &[7, 13, 14], NUMBERS, |c| {
        binary(c, |a, b| a * b, i128::wrapping_mul)
    }),
    op("PRelu", &[7, 9, 16], NUMBERS, |c| {
        binary(
            c,
            |x, slope| if x < 0.0 { slope * x } else { x },
            |x, slope| if x < 0 { x.wrapping_mul(slope) } else { x },
        )
    }),
    op("Pow", &[7, 12, 13, 15], NUMBERS, pow),
    op("Sub", &[7, 13, 14], NUMBERS, |c| {
        binary(c, |a, b| a - b, i128::wrapping_sub)
    }),
    op("Sum", &[6, 8, 13], FLOATS, |c| {
        fold(c, |a, b| a + b, i128::wrapping_add)
    }),
];

fn binary(call: &Call, f: impl Fn(f64, f64) -> f64, g: impl Fn(i128, i128) -> i128) -> Outputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    call.expect_elem(1, b, a.elem())?;
    Ok(vec![zip(call, a, b, f, g)?])
}

/// Applies `f` or `g` to `a` and `b`, which are of one type, broadcast.
fn zip(
    call: &Call,
    a: &Array,
    b: &Array,
    f: impl Fn(f64, f64) -> f64,
    g: impl Fn(i128, i128) -> i128,
) -> Result<Array, Error> {
    let dims = call.broadcast(&[a.dims(), b.dims()])?;
    let (i, j) = (spread(a.dims(), &dims), spread(b.dims(), &dims));
    let pairs = i.into_iter().zip(j);
    let y = match (Wide::of(a), Wide::of(b)) {
        (Wide::F(a), Wide::F(b)) => Wide::F(pairs.map(|(i, j)| f(a[i], b[j])).collect()),
        (Wide::I(a), Wide::I(b)) => Wide::I(pairs.map(|(i, j)| g(a[i], b[j])).collect()),
        _ => return Err(call.bad("inputs", "one element type", format!("{a} and {b}"))),
    };
    Ok(Array::new(dims, y.into_data(a.elem())))
}

/// Combines all operands from the left.
fn fold(call: &Call, f: impl Fn(f64, f64) -> f64, g: impl Fn(i128, i128) -> i128) -> Outputs {
    let mut acc = call.x(0)?.clone();
    for i in 1..call.inputs.len() {
        let x = call.x(i)?;
        call.expect_elem(i, x, acc.elem())?;
        call.work(&call.broadcast(&[acc.dims(), x.dims()])?)?;
        acc = zip(call, &acc, x, &f, &g)?;
    }
    Ok(vec![acc])
}

/// The larger; NaN if one is.
pub fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The smaller; NaN if one is.
pub fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

fn mean(call: &Call) -> Outputs {
    let first = call.x(0)?;
    let elem = first.elem();
    let mut dims = first.dims().to_vec();
    for i in 1..call.inputs.len() {
        dims = call.broadcast(&[&dims, call.x(i)?.dims()])?;
    }
    let mut sum = vec![0.0; call.num(&dims)?];
    call.work(&[call.inputs.len(), sum.len()])?;
    for i in 0..call.inputs.len() {
        let x = call.x(i)?;
        call.expect_elem(i, x, elem)?;
        for (acc, v) in sum.iter_mut().zip(expand(x, &dims).to_f64()) {
            *acc += v;
        }
    }
    let num = call.inputs.len() as f64;
    let y = sum.into_iter().map(|v| v / num).collect();
    Ok(vec![Array::from_f64(elem, dims, y)])
}

fn clip(call: &Call) -> Outputs {
    let x = call.x(0)?;
    if call.opset < 11 {
        let lo = call.float("min", f64::NEG_INFINITY)?;
        let hi = call.float("max", f64::INFINITY)?;
        let y = x.data().to_f64().into_iter().map(|v| min(max(v, lo), hi));
        return Ok(vec![Array::from_f64(
            x.elem(),
            x.dims().to_vec(),
            y.collect(),
        )]);
    }
    let mut y = x.clone();
    for (i, f, g) in [
        (
            1,
            max as fn(f64, f64) -> f64,
            i128::max as fn(i128, i128) -> i128,
        ),
        (2, min, i128::min),
    ] {
        if let Some(bound) = call.opt(i) {
            call.expect_elem(i, bound, x.elem())?;
            if bound.len() != 1 {
                return Err(call.bad(format!("input {i}"), "one element", bound));
            }
            y = zip(call, &y, &bound.reshaped(Vec::new()), f, g)?;
        }
    }
    Ok(vec![y])
}

/// Refuses integer divisors of zero.
fn refuse_zero(call: &Call) -> Result<(), Error> {
    let b = call.x(1)?;
    if !b.elem().is_float() && b.data().to_i128().contains(&0) {
        return Err(call.bad("input 1", "divisors that are not zero", "a zero"));
    }
    Ok(())
}

fn modulo(call: &Call) -> Outputs {
    refuse_zero(call)?;
    if call.flag("fmod", false)? {
        return binary(call, |a, b| a % b, |a, b| a.checked_rem(b).unwrap_or(0));
    }
    let floored = |a: i128, b: i128| {
        let r = a.checked_rem(b).unwrap_or(0);
        if r != 0 && (r < 0) != (b < 0) {
            r + b
        } else {
            r
        }
    };
    binary(call, |a, b| a - b * (a / b).floor(), floored)
}

fn pow(call: &Call) -> Outputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let dims = call.broadcast(&[a.dims(), b.dims()])?;
    let (i, j) = (spread(a.dims(), &dims), spread(b.dims(), &dims));
    let pairs = i.into_iter().zip(j);
    let y = match (Wide::of(a), Wide::of(b)) {
        (Wide::I(a), Wide::I(b)) => Wide::I(pairs.map(|(i, j)| int_pow(a[i], b[j])).collect()),
        _ => {
            let (a, b) = (a.data().to_f64(), b.data().to_f64());
            Wide::F(pairs.map(|(i, j)| a[i].powf(b[j])).collect())
        }
    };
    Ok(vec![Array::new(dims, y.into_data(a.elem()))])
}

/// `a` to the power of `b`, wrapping around; fractions are cut to zero.
fn int_pow(a: i128, b: i128) -> i128 {
    match (a, b) {
        (1, _) => 1,
        (-1, b) => 1 - 2 * (b & 1),
        (_, b) if b < 0 => 0,
        (a, b) => a.wrapping_pow(b.min(i128::from(u32::MAX)) as u32),
    }
}

fn bit_shift(call: &Call) -> Outputs {
    let mask: i128 = match call.x(0)?.elem() {
        Elem::U8 => 0xff,
        Elem::U16 => 0xffff,
        Elem::U32 => 0xffff_ffff,
        _ => 0xffff_ffff_ffff_ffff,
    };
    match call.text("direction", "")? {
        "LEFT" => binary(
            call,
            |a, _| a,
            move |a, b| if b > 63 { 0 } else { (a << b) & mask },
        ),
        "RIGHT" => binary(call, |a, _| a, |a, b| if b > 63 { 0 } else { a >> b }),
        other => Err(call.bad(
            "attribute \"direction\"",
            "LEFT or RIGHT",
            format!("{other:?}"),
        )),
    }
}
