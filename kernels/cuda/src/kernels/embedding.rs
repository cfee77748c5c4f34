//! Rows of tables by id, and sums of them.

use lazybatch_graph::Op;

use super::{Kernels, Source, Stored, Takes, Weights, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "embedding.cu",
    text: include_str!("../../cuda/embedding.cu"),
    kernels: &["embedding_bf16", "embedding_f16", "embedding_f32"],
    takes: |_, node| Takes::those(matches!(node.op, Op::Embedding | Op::EmbeddingBag)),
};

impl Kernels {
    /// `out[r] = table[ids[r]]`; `ids: [rows]` i32, `table: [table_rows, width]` of f32, f16 or
    /// bf16, `out: [rows, width]`. An id outside of the table gives a row of zeros.
    ///
    /// # Errors
    /// A table of int8, sizes out of range, or what the driver answers.
    pub fn embedding(
        &self,
        stream: &Stream,
        ids: DevicePtr,
        table: Weights,
        table_rows: usize,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        self.embedding_bag(stream, ids, table, table_rows, out, rows, 1, width)
    }

    /// `out[r] = sum over i of table[ids[r, i]]`, in order; `ids: [rows, bag]` i32, else as
    /// [`Self::embedding`].
    ///
    /// # Errors
    /// As [`Self::embedding`].
    pub fn embedding_bag(
        &self,
        stream: &Stream,
        ids: DevicePtr,
        table: Weights,
        table_rows: usize,
        out: DevicePtr,
        rows: usize,
        bag: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "embedding";
        let name = match table.stored {
            Stored::F32 => "embedding_f32",
            Stored::F16 => "embedding_f16",
            Stored::Bf16 => "embedding_bf16",
            other => {
                return expect(
                    KERNEL,
                    false,
                    "a table of floats",
                    format_args!("{other:?}"),
                );
            }
        };
        if rows == 0 || width == 0 {
            return Ok(());
        }
        let (rows, width) = (
            size(KERNEL, "rows", rows)?,
            size(KERNEL, "features", width)?,
        );
        let (bag, table_rows) = (
            size(KERNEL, "ids", bag)?,
            size(KERNEL, "table rows", table_rows)?,
        );
        let threads = width.div_ceil(4).next_multiple_of(32).min(256);
        let grid = Grid {
            blocks: [width.div_ceil(4 * threads), rows.min(65_535), 1],
            ..Grid::row(1, threads)
        };
        launch!(
            self, stream, name, grid, ids, table.at, table_rows, out, rows, bag, width
        )
    }
}
