//! What happens to finished products of a convolution: bias, residual, activation.
//!
//! It runs over whole rows that were just written, not over tiles: a residual comes from far away,
//! and long runs of it are fetched ahead.

use lazybatch_graph::Act;

use crate::cpu::level::{Level, simd};
use crate::cpu::math::{self, LANES, Lanes};

/// Bias, then residual, then activation.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// By channel.
    pub bias: Option<&'a [f32]>,
    /// Elementwise, laid out as the output.
    pub residual: Option<&'a [f32]>,
    /// Activation.
    pub act: Option<Act>,
}

impl Finish<'_> {
    /// Finishes `to`: channels from `channel` on of one pixel, which lie at `at` of the output.
    #[inline]
    pub fn apply(&self, level: Level, channel: usize, at: usize, to: &mut [f32]) {
        let bias = self.bias.map(|b| &b[channel..][..to.len()]);
        let residual = self.residual.map(|r| &r[at..][..to.len()]);
        if bias.is_some() || residual.is_some() || self.act.is_some() {
            finish(level, bias, residual, self.act, to);
        }
    }
}

simd! {
    fn finish(bias: Option<&[f32]>, residual: Option<&[f32]>, act: Option<Act>, to: &mut [f32]) {
        match act {
            None => each(bias, residual, to, |v| v),
            Some(Act::Relu) => each(bias, residual, to, |v| math::act(Act::Relu, v)),
            Some(Act::Relu6) => each(bias, residual, to, |v| math::act(Act::Relu6, v)),
            Some(act) => {
                each(bias, residual, to, |v| v);
                each(None, None, to, |v| math::act(act, v));
            }
        }
    }
}

/// `to = f(to + bias + residual)`, lane by lane.
#[inline(always)]
fn each(
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
    to: &mut [f32],
    f: impl Fn(Lanes) -> Lanes,
) {
    for (i, part) in to.chunks_mut(LANES).enumerate() {
        let mut v = lanes(part, 0);
        for other in [bias, residual].into_iter().flatten() {
            let other = lanes(other, i * LANES);
            (0..LANES).for_each(|i| v[i] += other[i]);
        }
        let v = f(v);
        match part.first_chunk_mut() {
            Some(full) => *full = v,
            None => part.copy_from_slice(&v[..part.len()]),
        }
    }
}

/// The sixteen elements from `at` on, zeros behind the end.
#[inline(always)]
fn lanes(x: &[f32], at: usize) -> Lanes {
    let x = &x[at..];
    match x.first_chunk() {
        Some(full) => *full,
        None => math::load_tail(x, 0.0),
    }
}
