//! Ops on each element of one operand.

use lazybatch_graph::onnx::{Array, Data};

use crate::reference::math::{erf, sigmoid};

use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;
const SIGNED: Types = Types::SIGNED.or(FLOATS);
const NUMBERS: Types = Types::NUMBERS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Abs", &[6, 13], NUMBERS, |c| both(c, f64::abs, i128::abs)),
    op("Acos", &[7, 22], FLOATS, |c| floats(c, f64::acos)),
    op("Acosh", &[9, 22], FLOATS, |c| floats(c, f64::acosh)),
    op("Asin", &[7, 22], FLOATS, |c| floats(c, f64::asin)),
    op("Asinh", &[9, 22], FLOATS, |c| floats(c, f64::asinh)),
    op("Atan", &[7, 22], FLOATS, |c| floats(c, f64::atan)),
    op("Atanh", &[9, 22], FLOATS, |c| floats(c, f64::atanh)),
    op("BitwiseNot", &[18], Types::INTS, |c| both(c, |x| x, |x| !x)),
    op("Ceil", &[6, 13], FLOATS, |c| floats(c, f64::ceil)),
    op("Celu", &[12], FLOATS, celu),
    op("Cos", &[7, 22], FLOATS, |c| floats(c, f64::cos)),
    op("Cosh", &[9, 22], FLOATS, |c| floats(c, f64::cosh)),
    op("Elu", &[6, 22], FLOATS, elu),
    op("Erf", &[9, 13], NUMBERS, |c| floats(c, erf)),
    op("Exp", &[6, 13], FLOATS, |c| floats(c, f64::exp)),
    op("Floor", &[6, 13], FLOATS, |c| floats(c, f64::floor)),
    op("Gelu", &[20], FLOATS, gelu),
    op("HardSigmoid", &[6, 22], FLOATS, hard_sigmoid),
    op("HardSwish", &[14, 22], FLOATS, |c| {
        floats(c, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0))
    }),
    op("IsInf", &[10, 20], FLOATS, is_inf),
    op("IsNaN", &[9, 13, 20], FLOATS, |c| test(c, |x| x.is_nan())),
    op("LeakyRelu", &[6, 16], FLOATS, leaky_relu),
    op("Log", &[6, 13], FLOATS, |c| floats(c, f64::ln)),
    op("Mish", &[18, 22], FLOATS, |c| {
        floats(c, |x| x * softplus(x).tanh())
    }),
    op("Neg", &[6, 13], SIGNED, |c| both(c, |x| -x, |x| -x)),
    op("Not", &[1], Types::BOOL, |c| {
        both(c, |x| x, |x| i128::from(x == 0))
    }),
    op("Reciprocal", &[6, 13], FLOATS, |c| floats(c, f64::recip)),
    op("Relu", &[6, 13, 14], SIGNED, |c| {
        both(c, |x| if x < 0.0 { 0.0 } else { x }, |x| x.max(0))
    }),
    op("Round", &[11, 22], FLOATS, |c| {
        floats(c, f64::round_ties_even)
    }),
    op("Selu", &[6, 22], FLOATS, selu),
    op("Shrink", &[9], NUMBERS, shrink),
    op("Sigmoid", &[6, 13], FLOATS, |c| floats(c, sigmoid)),
    op("Sign", &[9, 13], NUMBERS, |c| {
        both(
            c,
            |x| {
                if x == 0.0 || x.is_nan() {
                    x
                } else {
                    x.signum()
                }
            },
            i128::signum,
        )
    }),
    op("Sin", &[7, 22], FLOATS, |c| floats(c, f64::sin)),
    op("Sinh", &[9, 22], FLOATS, |c| floats(c, f64::sinh)),
    op("Softplus", &[1, 22], FLOATS, |c| floats(c, softplus)),
    op("Softsign", &[1, 22], FLOATS, |c| {
        floats(c, |x| x / (1.0 + x.abs()))
    }),
    op("Sqrt", &[6, 13], FLOATS, |c| floats(c, f64::sqrt)),
    op("Tan", &[7, 22], FLOATS, |c| floats(c, f64::tan)),
    op("Tanh", &[6, 13], FLOATS, |c| floats(c, f64::tanh)),
    op("ThresholdedRelu", &[10, 22], FLOATS, thresholded_relu),
];

/// Applies `f` to floats or `g` to integers; the type stays.
fn both(call: &Call, f: impl Fn(f64) -> f64, g: impl Fn(i128) -> i128) -> Outputs {
    let x = call.x(0)?;
    let y = match Wide::of(x) {
        Wide::F(v) => Wide::F(v.into_iter().map(f).collect()),
        Wide::I(v) => Wide::I(v.into_iter().map(g).collect()),
    };
    Ok(vec![Array::new(x.dims().to_vec(), y.into_data(x.elem()))])
}

/// Applies `f` in f64, whatever the type; the type stays.
fn floats(call: &Call, f: impl Fn(f64) -> f64) -> Outputs {
    let x = call.x(0)?;
    let y = x.data().to_f64().into_iter().map(f).collect();
    Ok(vec![Array::from_f64(x.elem(), x.dims().to_vec(), y)])
}

/// Booleans from floats.
fn test(call: &Call, f: impl Fn(f64) -> bool) -> Outputs {
    let x = call.x(0)?;
    let y = x.data().to_f64().into_iter().map(f).collect();
    Ok(vec![Array::new(x.dims().to_vec(), Data::Bool(y))])
}

/// `ln(1 + e^x)`, without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn celu(call: &Call) -> Outputs {
    let alpha = call.float("alpha", 1.0)?;
    floats(call, |x| {
        if x.is_nan() {
            return x;
        }
        x.max(0.0) + (alpha * (x / alpha).exp_m1()).min(0.0)
    })
}

fn elu(call: &Call) -> Outputs {
    let alpha = call.float("alpha", 1.0)?;
    floats(call, |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
}

fn gelu(call: &Call) -> Outputs {
    match call.text("approximate", "none")? {
        "none" => floats(call, |x| 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt()))),
        "tanh" => floats(call, |x| {
            let inner = std::f64::consts::FRAC_2_SQRT_PI / 2.0_f64.sqrt();
            0.5 * x * (1.0 + (inner * (x + 0.044715 * x * x * x)).tanh())
        }),
        other => Err(call.bad("attribute \"approximate\"", "none or tanh", other)),
    }
}

fn hard_sigmoid(call: &Call) -> Outputs {
    let (alpha, beta) = (call.float("alpha", 0.2)?, call.float("beta", 0.5)?);
    floats(call, |x| (alpha * x + beta).clamp(0.0, 1.0))
}

fn is_inf(call: &Call) -> Outputs {
    let negative = call.flag("detect_negative", true)?;
    let positive = call.flag("detect_positive", true)?;
    test(call, |x| {
        x == f64::INFINITY && positive || x == f64::NEG_INFINITY && negative
    })
}

fn leaky_relu(call: &Call) -> Outputs {
    let alpha = call.float("alpha", 0.01)?;
    floats(call, |x| if x < 0.0 { alpha * x } else { x })
}

fn selu(call: &Call) -> Outputs {
    let alpha = call.float("alpha", 1.673_263_192_176_818_8)?;
    let gamma = call.float("gamma", 1.050_700_902_938_842_8)?;
    floats(call, |x| {
        gamma * if x > 0.0 { x } else { alpha * x.exp_m1() }
    })
}

fn shrink(call: &Call) -> Outputs {
    let (bias, lambd) = (call.float("bias", 0.0)?, call.float("lambd", 0.5)?);
    floats(call, |x| {
        if x < -lambd {
            x + bias
        } else if x > lambd {
            x - bias
        } else {
            0.0
        }
    })
}

fn thresholded_relu(call: &Call) -> Outputs {
    let alpha = call.float("alpha", 1.0)?;
    floats(call, |x| if x > alpha { x } else { 0.0 })
}
