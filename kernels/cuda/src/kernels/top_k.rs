//! The first elements of a row in order, and where they stand.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, expect, launch, norms};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "top_k.cu",
    text: include_str!("../../cuda/top_k.cu"),
    kernels: &["top_k_block", "top_k_warp"],
    takes: |_, node| Takes::those(matches!(node.op, Op::TopK { .. })),
};

/// Operands of [`Kernels::top_k`].
#[derive(Clone, Copy, Debug)]
pub struct TopK {
    /// `[rows, width]`.
    pub x: DevicePtr,
    /// `[rows, k]`.
    pub values: DevicePtr,
    /// `[rows, k]` i32.
    pub ids: DevicePtr,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// How many of them are chosen.
    pub k: usize,
    /// The largest, in falling order; else the smallest, in rising order.
    pub largest: bool,
}

impl Kernels {
    /// The `k` largest or smallest elements of each row, and their indices. Among equals the lower
    /// index comes first; what is no number comes last.
    ///
    /// # Errors
    /// `k` beyond the width, sizes out of range, or what the driver answers.
    pub fn top_k(&self, stream: &Stream, t: &TopK) -> Result<(), CudaError> {
        const KERNEL: &str = "top_k";
        expect(KERNEL, t.k <= t.width, "k of at most the width", t.k)?;
        if t.rows == 0 || t.k == 0 {
            return Ok(());
        }
        let names = ["top_k_warp", "top_k_block"];
        let (name, grid) = norms::row_grid(KERNEL, names, t.rows, t.width)?;
        let (rows, width, k) = (t.rows as u32, t.width as u32, t.k as u32);
        let largest = u32::from(t.largest);
        launch!(
            self, stream, name, grid, t.x, t.values, t.ids, rows, width, k, largest
        )
    }
}
