//! What happens to the products of a convolution: bias, residual, activation.
//!
//! It runs over whole rows, not over tiles: a residual comes from far away, and long runs of it are
//! fetched ahead. The chains of a convolution with a residual begin at residual plus bias, which
//! lie where the result will.

use lazybatch_graph::Act;

use crate::cpu::level::{Level, simd};
use crate::cpu::math::{self, LANES, Lanes};

/// Bias, residual and activation.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// By channel.
    pub bias: Option<&'a [f32]>,
    /// Elementwise.
    pub residual: Residual<'a>,
    /// Activation.
    pub act: Option<Act>,
}

/// Where the residual is.
#[derive(Clone, Copy, Debug)]
pub enum Residual<'a> {
    /// There is none.
    None,
    /// In the memory of the output.
    InPlace,
    /// Elsewhere, laid out as the output.
    At(&'a [f32]),
}

impl Finish<'_> {
    /// Whether chains begin with what [`Self::begin`] writes.
    pub fn has_residual(&self) -> bool {
        !matches!(self.residual, Residual::None)
    }

    /// Writes residual plus bias to `to`: channels from `channel` on of one pixel, which lie at `at`
    /// of the output.
    pub fn begin(&self, level: Level, channel: usize, at: usize, to: &mut [f32]) {
        if let Residual::At(residual) = self.residual {
            to.copy_from_slice(&residual[at..][..to.len()]);
        }
        if let Some(bias) = self.bias {
            finish(level, Some(&bias[channel..][..to.len()]), None, to);
        }
    }

    /// Finishes the products in `to`: channels from `channel` on of one pixel.
    pub fn end(&self, level: Level, channel: usize, to: &mut [f32]) {
        let bias = self.bias.filter(|_| !self.has_residual());
        let bias = bias.map(|b| &b[channel..][..to.len()]);
        if bias.is_some() || self.act.is_some() {
            finish(level, bias, self.act, to);
        }
    }
}

simd! {
    /// `to = act(to + bias)`.
    fn finish(bias: Option<&[f32]>, act: Option<Act>, to: &mut [f32]) {
        match act {
            None => each(bias, to, |v| v),
            Some(Act::Relu) => each(bias, to, |v| math::act(Act::Relu, v)),
            Some(Act::Relu6) => each(bias, to, |v| math::act(Act::Relu6, v)),
            Some(act) => {
                each(bias, to, |v| v);
                each(None, to, |v| math::act(act, v));
            }
        }
    }
}

/// `to = f(to + bias)`, lane by lane.
#[inline(always)]
fn each(bias: Option<&[f32]>, to: &mut [f32], f: impl Fn(Lanes) -> Lanes) {
    for (i, part) in to.chunks_mut(LANES).enumerate() {
        let mut v = lanes(part, 0);
        if let Some(bias) = bias {
            let bias = lanes(bias, i * LANES);
            (0..LANES).for_each(|i| v[i] += bias[i]);
        }
        store(part, &f(v));
    }
}

/// The sixteen elements from `at` on, zeros behind the end.
#[inline(always)]
pub fn lanes(x: &[f32], at: usize) -> Lanes {
    let x = &x[at..];
    match x.first_chunk() {
        Some(full) => *full,
        None => math::load_tail(x, 0.0),
    }
}

/// Writes as many lanes as there are elements.
#[inline(always)]
pub fn store(to: &mut [f32], v: &Lanes) {
    match to.first_chunk_mut() {
        Some(full) => *full = *v,
        None => to.copy_from_slice(&v[..to.len()]),
    }
}
