//! Elementary functions over sixteen lanes.
//!
//! Those of [`lazybatch_graph::math`], so that a lane's bits depend on its input alone: not on its
//! position, its neighbours, the SIMD level, or on whether it stands in a tail.

pub use lazybatch_graph::math::{
    erf, exp, gelu, logistic_divisor, max, min, relu, relu6, sigmoid, silu, tanh, tanh_parts,
};
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

/// One activation on sixteen lanes.
#[inline(always)]
pub fn act(a: Act, x: Lanes) -> Lanes {
    match a {
        Act::Relu => map(x, relu),
        Act::Relu6 => map(x, relu6),
        Act::Gelu => map(x, gelu),
        Act::Tanh => map(x, tanh),
        Act::Sigmoid => map(x, sigmoid),
        Act::Silu => map(x, silu),
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
    /// `x = cap * tanh(x / cap)`.
    pub fn soft_cap(cap: f32, x: &mut [f32]) {
        for_lanes(x, |v| map(v, |x| cap * tanh(x / cap)));
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
    fn far_from_zero_gelu_is_nothing_or_all() {
        for x in [6.0, 30_000.0, 1e6, 1e30] {
            assert_eq!(gelu(-x), 0.0, "-{x}");
            assert_eq!(gelu(x), x);
        }
        assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
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
