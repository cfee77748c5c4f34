//! Pairwise dot products of a recommendation model (DLRM, Naumov et al. 2019).

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "interaction.cu",
    text: include_str!("../../cuda/interaction.cu"),
    kernels: &["interaction"],
    takes: |_, node| Takes::those(matches!(node.op, Op::Interaction)),
};

impl Kernels {
    /// `out[r]` = `z_i . z_j`, `j < i`, in row order of the lower triangle; `x: [rows, vectors,
    /// dim]`, `out: [rows, vectors * (vectors - 1) / 2]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn interaction(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        rows: usize,
        vectors: usize,
        dim: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "interaction";
        expect(KERNEL, vectors <= 4096, "at most 4096 vectors", vectors)?;
        let pairs = (vectors * vectors.saturating_sub(1) / 2) as u32;
        if rows == 0 || pairs == 0 {
            return Ok(());
        }
        size(KERNEL, "elements of a row", vectors.saturating_mul(dim))?;
        expect(KERNEL, rows <= 65_535, "at most 65535 rows", rows)?;
        let (rows, vectors, dim) = (rows as u32, vectors as u32, dim as u32);
        let grid = Grid {
            blocks: [pairs.div_ceil(8), rows, 1],
            ..Grid::row(1, 128)
        };
        launch!(self, stream, KERNEL, grid, x, out, vectors, dim, pairs)
    }
}
