//! Elementary functions of one number, as the CPU's kernels compute them and constants are folded.
//!
//! Written with exactly rounded operations only, so that the bits of a result depend on the operand
//! alone, not on the machine or on what it is compiled for: a constant has the bits that a node would
//! have computed.
//!
//! Source: `exp` by Cody and Waite's reduction with the degree-6 polynomial of Cephes `expf`;
//! `tanh` and `erf` by the rational minimax approximations of Eigen (`ptanh_float`, `perf_float`);
//! the logistic function by the same reduction with a polynomial of degree 5, fitted for the least
//! relative error (1.1e-7 of `e^-x`) with 1 and `x` as they are in the series.

#![allow(
    clippy::excessive_precision,
    reason = "coefficients as they are published"
)]

use crate::op::{Act, Bin};

/// The larger; the second operand if it is NaN.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The smaller; the second operand if it is NaN.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// `e^x`; exact zero below -104, infinity above 88.8.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let x = max(-104.0, min(88.8, x));
    let t = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = n.mul_add(-0.693_359_375, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_2e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    // Two factors of about half the exponent each reach subnormals and infinity.
    let n = (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let a = f32::from_bits((half.wrapping_add(127) as u32) << 23);
    let b = f32::from_bits((n.wrapping_sub(half).wrapping_add(127) as u32) << 23);
    p * a * b
}

/// Numerator and denominator of [`tanh`], for those who divide by more than that.
#[inline(always)]
pub fn tanh_parts(x: f32) -> (f32, f32) {
    let c = max(-7.905_311, min(7.905_311, x));
    let s = c * c;
    let mut p = -2.760_768_4e-16f32;
    p = p.mul_add(s, 2.000_188e-13);
    p = p.mul_add(s, -8.604_672e-11);
    p = p.mul_add(s, 5.122_297_1e-8);
    p = p.mul_add(s, 1.485_722_4e-5);
    p = p.mul_add(s, 6.372_619_3e-4);
    p = p.mul_add(s, 4.893_524_6e-3);
    let mut q = 1.198_258_4e-6f32;
    q = q.mul_add(s, 1.185_347_1e-4);
    q = q.mul_add(s, 2.268_434_6e-3);
    q = q.mul_add(s, 4.893_525e-3);
    (c * p, q)
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (p, q) = tanh_parts(x);
    p / q
}

/// `1 + e^-x`, one over the logistic function: what gates are divided by. Finite: `x` counts as -87.3
/// at the least, where the logistic function is still a normal number.
#[inline(always)]
pub fn logistic_divisor(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let x = max(-87.3, min(86.0, x));
    let t = x.mul_add(-std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    // What is left of `x`, whose sign stays: the odd coefficients have the other one.
    let r = n.mul_add(0.693_359_375, x);
    let r = n.mul_add(-2.121_944_4e-4, r);
    let mut p = -8.312_478e-3f32;
    p = p.mul_add(r, 4.189_055e-2);
    p = p.mul_add(r, -1.666_711_6e-1);
    p = p.mul_add(r, 4.999_922_9e-1);
    p = p.mul_add(r, -1.0);
    p = p.mul_add(r, 1.0);
    // The integer is in the lowest bits of `t`: this is two to its power.
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23));
    p.mul_add(scale, 1.0)
}

/// Logistic function.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / logistic_divisor(x)
}

/// Error function; 1 and -1 from 4 and -4 on, so that what is multiplied by one less it ends at 0.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    const FAR: f32 = 4.0;
    let c = max(-FAR, min(FAR, x));
    let s = c * c;
    let mut p = -2.726_142_3e-10f32;
    p = p.mul_add(s, 2.770_681_4e-8);
    p = p.mul_add(s, -2.101_024e-6);
    p = p.mul_add(s, -5.692_506_4e-5);
    p = p.mul_add(s, -7.349_906_3e-4);
    p = p.mul_add(s, -2.954_599_8e-3);
    p = p.mul_add(s, -1.609_603_3e-2);
    let mut q = -1.456_607_2e-5f32;
    q = q.mul_add(s, -2.133_740_6e-4);
    q = q.mul_add(s, -1.682_827e-3);
    q = q.mul_add(s, -7.373_329e-3);
    q = q.mul_add(s, -1.426_473_9e-2);
    let near = max(-1.0, min(1.0, c * p / q));
    let far = if x >= FAR { 1.0 } else { near };
    if x <= -FAR { -1.0 } else { far }
}

/// max(x, 0); what is no number stays.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    max(0.0, x)
}

/// min(max(x, 0), 6); what is no number stays.
#[inline(always)]
pub fn relu6(x: f32) -> f32 {
    max(0.0, min(6.0, x))
}

/// x * 0.5 * (1 + erf(x / sqrt 2)).
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    x * 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// x * sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// One activation.
pub fn act(act: Act, x: f32) -> f32 {
    match act {
        Act::Relu => relu(x),
        Act::Relu6 => relu6(x),
        Act::Gelu => gelu(x),
        Act::Tanh => tanh(x),
        Act::Sigmoid => sigmoid(x),
        Act::Silu => silu(x),
    }
}

/// `a (op) b`.
pub fn binary(op: Bin, a: f32, b: f32) -> f32 {
    match op {
        Bin::Add => a + b,
        Bin::Sub => a - b,
        Bin::Mul => a * b,
    }
}
