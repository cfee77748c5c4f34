//! What happens to the products of a convolution: bias, residual, activation.
//!
//! The chains of a convolution with a residual begin at residual plus bias; else the bias is added to
//! the finished chain.

use lazybatch_graph::Act;

use crate::cpu::math::{self, Lanes};

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
    /// Whether there is a residual.
    pub fn has_residual(&self) -> bool {
        !matches!(self.residual, Residual::None)
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
