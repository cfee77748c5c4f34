//! Softmax over the last dimension.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, launch, norms};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "softmax.cu",
    text: include_str!("../../cuda/softmax.cu"),
    kernels: &["softmax_block", "softmax_warp"],
    takes: |_, node| Takes::those(matches!(node.op, Op::Softmax)),
};

impl Kernels {
    /// `out = exp(x - max) / sum` by row; `x`, `out: [rows, width]`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn softmax(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 {
            return Ok(());
        }
        let names = ["softmax_warp", "softmax_block"];
        let (name, grid) = norms::row_grid("softmax", names, rows, width)?;
        let (rows, width) = (rows as u32, width as u32);
        launch!(self, stream, name, grid, x, out, rows, width)
    }
}
