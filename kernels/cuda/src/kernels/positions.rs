//! Positions: rotary embedding and learned tables.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, expect, launch, per_item, size};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "positions.cu",
    text: include_str!("../../cuda/positions.cu"),
    kernels: &["add_position", "rope"],
    takes: |_, node| Takes::those(matches!(node.op, Op::AddPosition | Op::Rope { .. })),
};

/// Turns per position of each pair, for [`Kernels::rope`]: `theta^(-2i / dim) / 2 pi`, `i < dim /
/// 2`.
pub fn rope_turns(dim: usize, theta: f32) -> Vec<f64> {
    let turn = |i: usize| f64::from(theta).powf(-2.0 * i as f64 / dim as f64);
    (0..dim / 2)
        .map(|i| turn(i) / std::f64::consts::TAU)
        .collect()
}

impl Kernels {
    /// Rotary embedding: the pairs `(2i, 2i + 1)` of each head of row `r` turn by `positions[r] *
    /// turns[i]` times a full turn. `x`, `out: [rows, heads * dim]`, `positions: [rows]` i32,
    /// `turns: [dim / 2]` f64 as [`rope_turns`] makes them. `out` may be `x`.
    ///
    /// # Errors
    /// An odd `dim`, sizes out of range, or what the driver answers.
    pub fn rope(
        &self,
        stream: &Stream,
        x: DevicePtr,
        positions: DevicePtr,
        turns: DevicePtr,
        out: DevicePtr,
        rows: usize,
        heads: usize,
        dim: usize,
    ) -> Result<(), CudaError> {
        expect(
            "rope",
            dim.is_multiple_of(2),
            "an even number of features",
            dim,
        )?;
        if rows == 0 || heads == 0 || dim == 0 {
            return Ok(());
        }
        size(
            "rope",
            "elements",
            rows.saturating_mul(heads).saturating_mul(dim),
        )?;
        let (rows, heads, dim) = (rows as u32, heads as u32, dim as u32);
        let grid = per_item(rows * (dim / 2));
        launch!(
            self, stream, "rope", grid, x, positions, turns, out, rows, heads, dim
        )
    }

    /// `out[r] = x[r] + table[min(positions[r], table_rows - 1)]`; `x`, `out: [rows, width]`,
    /// `table: [table_rows, width]`, `positions: [rows]` i32. `out` may be `x`.
    ///
    /// # Errors
    /// An empty table, sizes out of range, or what the driver answers.
    pub fn add_position(
        &self,
        stream: &Stream,
        x: DevicePtr,
        table: DevicePtr,
        table_rows: usize,
        positions: DevicePtr,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "add_position";
        expect(KERNEL, table_rows > 0, "a table of rows", table_rows)?;
        if rows == 0 || width == 0 {
            return Ok(());
        }
        let len = size(KERNEL, "elements", rows.saturating_mul(width))?;
        let (width, last) = (
            width as u32,
            size(KERNEL, "rows of a table", table_rows)? - 1,
        );
        launch!(
            self,
            stream,
            KERNEL,
            per_item(len),
            x,
            table,
            last,
            positions,
            out,
            len,
            width
        )
    }
}
