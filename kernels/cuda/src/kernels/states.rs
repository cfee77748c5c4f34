//! Paged sequence states: rows in and out through page tables.
//!
//! Vector states need nothing of their own: they are rows of a pool by slot, for
//! [`Kernels::gather_rows`] and [`Kernels::scatter_rows`].

use super::{Kernels, Source, THREADS, Takes, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "states.cu",
    text: include_str!("../../cuda/states.cu"),
    kernels: &["seq_read", "seq_write"],
    // Nodes of states are copies of rows.
    takes: |_, _| Takes::No,
};

/// Positions of a page.
pub const PAGE: usize = 16;

/// A sequence state: pages of a pool, and which of them hold each sequence.
#[derive(Clone, Copy, Debug)]
pub struct Paged {
    /// `[pages, PAGE, width]`.
    pub pool: DevicePtr,
    /// `[sequences, max_pages]` i32: the pages of each sequence, in order.
    pub pages: DevicePtr,
    /// Entries of the table for each sequence.
    pub max_pages: u32,
    /// Features of a row.
    pub width: usize,
}

/// Which rows of a sequence state rows of a tensor are.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// `[rows]` i32: the sequence of each row; null if row `r` is of sequence `r`.
    pub sequences: DevicePtr,
    /// `[rows]` i32: the position of each row; a negative one means none.
    pub positions: DevicePtr,
}

impl Kernels {
    /// Writes `x: [rows, width]` (null for zeros) to its places; rows without a place are skipped,
    /// no place may come twice.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn seq_write(
        &self,
        stream: &Stream,
        x: DevicePtr,
        state: &Paged,
        places: &Places,
        rows: usize,
    ) -> Result<(), CudaError> {
        self.seq_rows(stream, "seq_write", x, state, places, rows)
    }

    /// Reads `out: [rows, width]` from its places; rows without a place become zero.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn seq_read(
        &self,
        stream: &Stream,
        state: &Paged,
        places: &Places,
        out: DevicePtr,
        rows: usize,
    ) -> Result<(), CudaError> {
        self.seq_rows(stream, "seq_read", out, state, places, rows)
    }

    fn seq_rows(
        &self,
        stream: &Stream,
        kernel: &'static str,
        tensor: DevicePtr,
        state: &Paged,
        places: &Places,
        rows: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 || state.width == 0 {
            return Ok(());
        }
        let (rows, width) = (
            size(kernel, "rows", rows)?,
            size(kernel, "features", state.width)?,
        );
        let threads = THREADS.min(width.div_ceil(4).next_multiple_of(32));
        let grid = Grid {
            blocks: [width.div_ceil(4 * threads), rows.min(65_535), 1],
            ..Grid::row(1, threads)
        };
        let Paged {
            pool,
            pages,
            max_pages,
            ..
        } = *state;
        let Places {
            sequences,
            positions,
        } = *places;
        launch!(
            self, stream, kernel, grid, tensor, pool, pages, max_pages, sequences, positions, rows,
            width
        )
    }
}
