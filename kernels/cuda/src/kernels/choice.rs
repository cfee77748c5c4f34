//! The best of a row, and whether it is the end.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, launch, norms, per_item, size};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "choice.cu",
    text: include_str!("../../cuda/choice.cu"),
    kernels: &["arg_max_block", "arg_max_warp", "stop_flags"],
    takes: |_, node| Takes::those(matches!(node.op, Op::ArgMax | Op::Stop { .. })),
};

impl Kernels {
    /// Index of each row's largest element, the lowest among equals; `x: [rows, width]`, `out:
    /// [rows]` i32. A row without a number above minus infinity gives 0, and so does one whose first
    /// element is no number.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn arg_max(
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
        let names = ["arg_max_warp", "arg_max_block"];
        let (name, grid) = norms::row_grid("arg_max", names, rows, width)?;
        let (rows, width) = (rows as u32, width as u32);
        launch!(self, stream, name, grid, x, out, rows, width)
    }

    /// `flags[i] = ids[i] == token`; `ids: [num]` i32; `flags` is where the address of `[num]`
    /// bytes, 1 or 0, stands, which may be page-locked memory of the host.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn stop_flags(
        &self,
        stream: &Stream,
        ids: DevicePtr,
        token: i32,
        flags: DevicePtr,
        num: usize,
    ) -> Result<(), CudaError> {
        if num == 0 {
            return Ok(());
        }
        let num = size("stop_flags", "ids", num)?;
        launch!(
            self,
            stream,
            "stop_flags",
            per_item(num),
            ids,
            token,
            flags,
            num
        )
    }
}
