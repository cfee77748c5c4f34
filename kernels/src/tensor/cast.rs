//! Conversions between element types, quantization.

use lazybatch_graph::onnx::{Array, Data, Elem, Error};

use super::wide::{Wide, quantized};
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Cast", &[6, 9, 13, 19, 21, 23, 24, 25], Types::ALL, |c| {
        let code = c.int("to", 0)?;
        let elem = Elem::from_code(code)
            .ok_or_else(|| c.bad("attribute \"to\"", "a number or boolean type", code))?;
        cast(c, elem)
    }),
    op("CastLike", &[15, 19, 21, 23, 24, 25], Types::ALL, |c| {
        cast(c, c.x(1)?.elem())
    }),
    op(
        "DequantizeLinear",
        &[10, 13, 19, 21, 23, 24, 25],
        Types::BYTES.or(Types::of(&[Elem::I32, Elem::I16, Elem::U16])),
        dequantize,
    ),
    op("DynamicQuantizeLinear", &[11], FLOATS, dynamic_quantize),
    op(
        "QuantizeLinear",
        &[10, 13, 19, 21, 23, 24, 25],
        FLOATS.or(Types::of(&[Elem::I32])),
        quantize,
    ),
];

fn cast(call: &Call, elem: Elem) -> Outputs {
    let x = call.x(0)?;
    let data = match Wide::of(x) {
        Wide::F(v) => Data::from_f64(elem, v),
        Wide::I(v) => Data::from_i128(elem, v),
    };
    Ok(vec![Array::new(x.dims().to_vec(), data)])
}

/// Scales and zero points: one of each, or one per index of an axis.
struct Steps {
    scales: Vec<f64>,
    zeros: Vec<i128>,
    /// Elements behind the axis.
    inner: usize,
}

impl Steps {
    /// Those of `x`: operands 1 and 2.
    fn new(call: &Call, x: &Array) -> Result<Self, Error> {
        let scale = call.x(1)?;
        let mut inner = 1;
        if scale.len() != 1 {
            let axis = call.axis(1, x.rank())?;
            call.expect_dims(1, scale, &[x.dims()[axis]])?;
            inner = x.dims()[axis + 1..].iter().product();
        }
        if call.int("block_size", 0)? != 0 {
            return Err(call.bad("attribute \"block_size\"", "0", "another"));
        }
        let zeros = match call.opt(2) {
            Some(z) if z.len() == scale.len() => z.data().to_i128(),
            Some(z) => return Err(call.bad("input 2", format!("{} elements", scale.len()), z)),
            None => vec![0; scale.len()],
        };
        Ok(Self {
            scales: scale.data().to_f64(),
            zeros,
            inner,
        })
    }

    /// Scale and zero point of element `i`.
    fn of(&self, i: usize) -> (f64, i128) {
        let at = i / self.inner.max(1) % self.scales.len();
        (self.scales[at], self.zeros[at])
    }
}

/// `v / scale` rounded to the type `elem`: ties are those of the narrow type.
fn quotient(elem: Elem, v: f64, scale: f64) -> f64 {
    if elem == Elem::F64 {
        v / scale
    } else {
        f64::from((v / scale) as f32)
    }
}

/// The type that a node quantizes to: that of its zero points or, from opset 21 on, the one that it
/// states.
fn quantized_to(call: &Call) -> Result<Elem, Error> {
    let what = "attribute \"output_dtype\"";
    let code = call.int("output_dtype", 0)?;
    let stated = match code {
        0 => None,
        _ => Some(Elem::from_code(code).ok_or_else(|| call.bad(what, "8 or 16 bits", code))?),
    };
    let elem = match (call.opt(2).map(Array::elem), stated) {
        (Some(of_zeros), Some(stated)) if of_zeros != stated => {
            return Err(call.bad(what, format!("{of_zeros} as the zero points"), stated));
        }
        (Some(elem), _) | (None, Some(elem)) => elem,
        (None, None) => Elem::U8,
    };
    let narrow = matches!(elem, Elem::U8 | Elem::I8 | Elem::U16 | Elem::I16);
    if stated.is_some() && !narrow {
        return Err(call.bad(what, "integers of 8 or 16 bits", elem));
    }
    if elem.int_range().is_none() {
        return Err(call.bad("input 2", "integers", elem));
    }
    Ok(elem)
}

fn quantize(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let elem = quantized_to(call)?;
    let steps = Steps::new(call, x)?;
    let v = x.data().to_f64().into_iter().enumerate().map(|(i, v)| {
        let (scale, zero) = steps.of(i);
        quantized(
            elem,
            quotient(x.elem(), v, scale).round_ties_even() + zero as f64,
        )
    });
    Ok(vec![Array::new(
        x.dims().to_vec(),
        Data::from_i128(elem, v.collect()),
    )])
}

fn dequantize(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let steps = Steps::new(call, x)?;
    let v = x.data().to_i128().into_iter().enumerate().map(|(i, v)| {
        let (scale, zero) = steps.of(i);
        (v - zero) as f64 * scale
    });
    Ok(vec![Array::from_f64(
        call.x(1)?.elem(),
        x.dims().to_vec(),
        v.collect(),
    )])
}

fn dynamic_quantize(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let v = x.data().to_f64();
    let (lo, hi) = v
        .iter()
        .fold((0.0_f64, 0.0_f64), |(lo, hi), &v| (lo.min(v), hi.max(v)));
    // The scale is an f32: what comes after it computes with the rounded one.
    let scale = f64::from(((hi - lo) / 255.0) as f32);
    let zero = if scale == 0.0 {
        0
    } else {
        quantized(Elem::U8, quotient(x.elem(), -lo, scale))
    };
    let y = v.iter().map(|v| {
        let steps = if scale == 0.0 {
            0.0
        } else {
            quotient(x.elem(), *v, scale).round_ties_even()
        };
        quantized(Elem::U8, steps + zero as f64)
    });
    Ok(vec![
        Array::new(x.dims().to_vec(), Data::from_i128(Elem::U8, y.collect())),
        Array::scalar(Data::F32(vec![scale as f32])),
        Array::scalar(Data::U8(vec![zero as u8])),
    ])
}
