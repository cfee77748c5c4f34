//! Elementary functions over sixteen lanes.
//!
//! Written with exactly rounded operations only, so that a lane's bits depend on its input alone:
//! not on its position, its neighbours, the SIMD level, or on whether it stands in a tail.
//!
//! Source: `exp` by Cody and Waite's reduction with the degree-6 polynomial of Cephes `expf`;
//! `tanh` and `erf` by the rational minimax approximations of Eigen (`ptanh_float`, `perf_float`);
//! the logistic function by the same reduction with a polynomial of degree 5, fitted for the least
//! relative error (1.1e-7 of `e^-x`) with 1 and `x` as they are in the series.

#![allow(
    clippy::excessive_precision,
    reason = "coefficients as they are published"
)]

use lazybatch_graph::{Act, Bin};

use super::level::simd;

/// Lanes of one step.
pub const LANES: usize = 16;

/// Sixteen values.
pub type Lanes = [f32; LANES];

/// Applies `f` to each lane.
#[inline(always)]
pub fn map(x: Lanes, f: impl Fn(f32) -> f32) -> Lanes {
    let mut y = [0.0; LANES];
    for i in 0..LANES {
        y[i] = f(x[i]);
    }
    y
}

/// Sum of the lanes as a fixed binary tree.
#[inline(always)]
pub fn sum(x: &Lanes) -> f32 {
    let mut a = [0.0f32; 8];
    for i in 0..8 {
        a[i] = x[i] + x[i + 8];
    }
    let mut b = [0.0f32; 4];
    for i in 0..4 {
        b[i] = a[i] + a[i + 4];
    }
    (b[0] + b[2]) + (b[1] + b[3])
}

/// The first (at most sixteen) elements, the missing ones filled.
#[inline(always)]
pub fn load_tail(x: &[f32], fill: f32) -> Lanes {
    let mut lanes = [fill; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

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

/// Error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let c = max(-4.0, min(4.0, x));
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
    max(-1.0, min(1.0, c * p / q))
}

/// One activation on sixteen lanes.
#[inline(always)]
pub fn act(a: Act, x: Lanes) -> Lanes {
    match a {
        Act::Relu => map(x, |x| max(0.0, x)),
        Act::Relu6 => map(x, |x| max(0.0, min(6.0, x))),
        Act::Gelu => map(x, |x| {
            x * 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
        }),
        Act::Tanh => map(x, tanh),
        Act::Sigmoid => map(x, sigmoid),
        Act::Silu => map(x, |x| x * sigmoid(x)),
    }
}

/// Runs `f` on each sixteen elements of `x`, tails through a padded copy.
#[inline(always)]
pub fn for_lanes(x: &mut [f32], f: impl Fn(Lanes) -> Lanes) {
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        *chunk = f(*chunk);
    }
    if !tail.is_empty() {
        let y = f(load_tail(tail, 0.0));
        tail.copy_from_slice(&y[..tail.len()]);
    }
}

simd! {
    /// `x = act(x)`.
    pub fn act_inplace(a: Act, x: &mut [f32]) {
        match a {
            Act::Relu => for_lanes(x, |v| act(Act::Relu, v)),
            Act::Relu6 => for_lanes(x, |v| act(Act::Relu6, v)),
            Act::Gelu => for_lanes(x, |v| act(Act::Gelu, v)),
            Act::Tanh => for_lanes(x, |v| act(Act::Tanh, v)),
            Act::Sigmoid => for_lanes(x, |v| act(Act::Sigmoid, v)),
            Act::Silu => for_lanes(x, |v| act(Act::Silu, v)),
        }
    }
}

simd! {
    /// `out = a (op) b`, all of one length.
    pub fn binary(op: Bin, a: &[f32], b: &[f32], out: &mut [f32]) {
        let n = out.len();
        let (a, b) = (&a[..n], &b[..n]);
        match op {
            Bin::Add => (0..n).for_each(|i| out[i] = a[i] + b[i]),
            Bin::Sub => (0..n).for_each(|i| out[i] = a[i] - b[i]),
            Bin::Mul => (0..n).for_each(|i| out[i] = a[i] * b[i]),
        }
    }
}

/// Runs `f` on each element with its element of `b`, which comes again where it is shorter.
#[inline(always)]
fn with_each(x: &mut [f32], b: &[f32], f: impl Fn(&mut f32, f32)) {
    if let &[b] = b {
        x.iter_mut().for_each(|x| f(x, b));
        return;
    }
    for x in x.chunks_mut(b.len().max(1)) {
        x.iter_mut().zip(b).for_each(|(x, &b)| f(x, b));
    }
}

simd! {
    /// `x = x (op) b`; `b` comes again where it is shorter.
    pub fn binary_inplace(op: Bin, b: &[f32], x: &mut [f32]) {
        match op {
            Bin::Add => with_each(x, b, |x, b| *x += b),
            Bin::Sub => with_each(x, b, |x, b| *x -= b),
            Bin::Mul => with_each(x, b, |x, b| *x *= b),
        }
    }
}

simd! {
    /// `x = x (op) x`.
    pub fn binary_itself(op: Bin, x: &mut [f32]) {
        match op {
            Bin::Add => x.iter_mut().for_each(|x| *x += *x),
            Bin::Sub => x.iter_mut().for_each(|x| *x -= *x),
            Bin::Mul => x.iter_mut().for_each(|x| *x *= *x),
        }
    }
}

simd! {
    /// `x = b - x`; `b` comes again where it is shorter.
    pub fn sub_from(b: &[f32], x: &mut [f32]) {
        with_each(x, b, |x, b| *x = b - *x);
    }
}

simd! {
    /// `x *= factor`.
    pub fn scale(factor: f32, x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v *= factor);
    }
}

simd! {
    /// `out = alpha * x + out`.
    pub fn axpy(alpha: f32, x: &[f32], out: &mut [f32]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = x.mul_add(alpha, *o);
        }
    }
}

simd! {
    /// Dot product: sixteen chains, then a fixed tree.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        dot_lanes(a, b)
    }
}

/// Dot product inside a kernel: sixteen chains, then a fixed tree.
#[inline(always)]
pub fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (ac, at) = a.as_chunks::<LANES>();
    let (bc, bt) = b.as_chunks::<LANES>();
    for (x, y) in ac.iter().zip(bc) {
        for i in 0..LANES {
            acc[i] = x[i].mul_add(y[i], acc[i]);
        }
    }
    // Lanes behind the end keep their sums; eight at once, for heads of 8 or 24 features.
    let (a8, at) = at.as_chunks::<8>();
    let (b8, bt) = bt.as_chunks::<8>();
    let mut first = 0;
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            acc[i] = x[i].mul_add(y[i], acc[i]);
        }
        first = 8;
    }
    for (i, (x, y)) in at.iter().zip(bt).enumerate() {
        acc[first + i] = x.mul_add(*y, acc[first + i]);
    }
    sum(&acc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::level::Level;

    fn worst(f: impl Fn(f32) -> f32, oracle: impl Fn(f64) -> f64, lo: f32, hi: f32) -> f64 {
        let mut worst = 0.0f64;
        for i in 0..=20_000 {
            let x = lo + (hi - lo) * i as f32 / 20_000.0;
            let want = oracle(f64::from(x));
            let err = (f64::from(f(x)) - want).abs() / want.abs().max(1e-3);
            worst = worst.max(err);
        }
        worst
    }

    #[test]
    fn functions_are_accurate() {
        assert!(worst(exp, f64::exp, -20.0, 80.0) < 3e-7);
        assert!(worst(tanh, f64::tanh, -10.0, 10.0) < 1e-6);
        assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -30.0, 30.0) < 1e-6);
        assert!(worst(erf, crate::reference::math::erf, -5.0, 5.0) < 1e-5);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan() && erf(f32::NAN).is_nan());
        assert!((tanh(1e-6) - 1e-6).abs() < 1e-12);
    }

    #[test]
    fn tails_and_levels_have_the_bits_of_full_lanes() {
        let x: Vec<f32> = (0..61).map(|i| (i as f32 - 30.0) * 0.37).collect();
        for a in [
            Act::Relu,
            Act::Relu6,
            Act::Gelu,
            Act::Tanh,
            Act::Sigmoid,
            Act::Silu,
        ] {
            let mut whole = x.clone();
            act_inplace(Level::PORTABLE, a, &mut whole);
            for level in Level::available() {
                for start in [0, 1, 7, 16, 33] {
                    let mut part = x[start..].to_vec();
                    act_inplace(level, a, &mut part);
                    let same = part
                        .iter()
                        .zip(&whole[start..])
                        .all(|(p, w)| p.to_bits() == w.to_bits());
                    assert!(same, "{a:?} from {start} at {level:?}");
                }
            }
        }
    }
}
