//! Tokens drawn by their scores.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "sample.cu",
    text: include_str!("../../cuda/sample.cu"),
    kernels: &["sample"],
    takes: |_, node| Takes::those(matches!(node.op, Op::Sample)),
};

/// Operands of [`Kernels::sample`].
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// `[rows, width]`.
    pub logits: DevicePtr,
    /// `[rows, 4]` i32: words of a [`lazybatch_graph::Sampling`] for each row.
    pub how: DevicePtr,
    /// `[rows]` i32: which random number of its seed a row takes; null for 0 of each.
    pub positions: DevicePtr,
    /// Added to those.
    pub first: u32,
    /// `[rows]` i32.
    pub out: DevicePtr,
    /// Rows.
    pub rows: usize,
    /// Tokens.
    pub width: usize,
}

impl Kernels {
    /// A token of each row, as [`Op::Sample`] says; that with the largest score for words that are
    /// none of a sampling.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn sample(&self, stream: &Stream, s: &Sample) -> Result<(), CudaError> {
        const KERNEL: &str = "sample";
        if s.rows == 0 {
            return Ok(());
        }
        expect(KERNEL, s.width > 0, "a width above 0", s.width)?;
        let rows = size(KERNEL, "rows", s.rows)?;
        let width = size(KERNEL, "elements of a row", s.width)?;
        let grid = Grid::row(rows, 1024);
        launch!(
            self,
            stream,
            KERNEL,
            grid,
            s.logits,
            s.how,
            s.positions,
            s.first,
            s.out,
            rows,
            width
        )
    }
}
