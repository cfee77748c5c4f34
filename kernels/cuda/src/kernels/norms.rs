//! Normalisations: over the last dimension of rows, and of channels by given statistics.
//!
//! A row's sums are taken by one warp or one block, as its width says, in an order of its width.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, expect, launch, per_item, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "norms.cu",
    text: include_str!("../../cuda/norms.cu"),
    kernels: &[
        "add_layer_norm_block",
        "add_layer_norm_warp",
        "batch_norm",
        "layer_norm_block",
        "layer_norm_warp",
        "rms_norm_block",
        "rms_norm_warp",
    ],
    takes: |_, node| {
        Takes::those(matches!(
            node.op,
            Op::LayerNorm { .. }
                | Op::AddLayerNorm { .. }
                | Op::RmsNorm { .. }
                | Op::BatchNorm { .. }
        ))
    },
};

/// Widest row that one warp reduces.
pub(super) const WARP_WIDTH: usize = 512;
/// Rows of a block of warps.
const WARPS: u32 = 4;

/// Which variant of a kernel takes rows of that width, and its grid.
pub(super) fn row_grid(
    kernel: &'static str,
    [warp, block]: [&'static str; 2],
    rows: usize,
    width: usize,
) -> Result<(&'static str, Grid), CudaError> {
    let rows = size(kernel, "rows", rows)?;
    expect(kernel, width > 0, "a width above 0", width)?;
    size(kernel, "elements of a row", width)?;
    Ok(if width <= WARP_WIDTH {
        (warp, Grid::row(rows.div_ceil(WARPS), 32 * WARPS))
    } else {
        (block, Grid::row(rows, 256))
    })
}

impl Kernels {
    /// `out = (x - mean) / sqrt(var + eps) * gamma + beta` by row; `x`, `out: [rows, width]`,
    /// `gamma`, `beta: [width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn layer_norm(
        &self,
        stream: &Stream,
        x: DevicePtr,
        gamma: DevicePtr,
        beta: DevicePtr,
        eps: f32,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 {
            return Ok(());
        }
        let names = ["layer_norm_warp", "layer_norm_block"];
        let (name, grid) = row_grid("layer_norm", names, rows, width)?;
        let (rows, width) = (rows as u32, width as u32);
        launch!(
            self, stream, name, grid, x, gamma, beta, eps, out, rows, width
        )
    }

    /// `sum = x + y`, `out = layer_norm(sum)`; all `[rows, width]`, `gamma`, `beta: [width]`. `sum`
    /// may be `x` or `y`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn add_layer_norm(
        &self,
        stream: &Stream,
        x: DevicePtr,
        y: DevicePtr,
        gamma: DevicePtr,
        beta: DevicePtr,
        eps: f32,
        sum: DevicePtr,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 {
            return Ok(());
        }
        let names = ["add_layer_norm_warp", "add_layer_norm_block"];
        let (name, grid) = row_grid("add_layer_norm", names, rows, width)?;
        let (rows, width) = (rows as u32, width as u32);
        launch!(
            self, stream, name, grid, x, y, gamma, beta, eps, sum, out, rows, width
        )
    }

    /// `out = x / sqrt(mean(x^2) + eps) * gamma` by row; `x`, `out: [rows, width]`, `gamma:
    /// [width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn rms_norm(
        &self,
        stream: &Stream,
        x: DevicePtr,
        gamma: DevicePtr,
        eps: f32,
        out: DevicePtr,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 {
            return Ok(());
        }
        let names = ["rms_norm_warp", "rms_norm_block"];
        let (name, grid) = row_grid("rms_norm", names, rows, width)?;
        let (rows, width) = (rows as u32, width as u32);
        launch!(self, stream, name, grid, x, gamma, eps, out, rows, width)
    }

    /// `out = (x - mean) / sqrt(var + eps) * gamma + beta` by channel; `x`, `out: [rows, channels,
    /// plane]`, the others `[channels]`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn batch_norm(
        &self,
        stream: &Stream,
        x: DevicePtr,
        [gamma, beta, mean, var]: [DevicePtr; 4],
        eps: f32,
        out: DevicePtr,
        rows: usize,
        channels: usize,
        plane: usize,
    ) -> Result<(), CudaError> {
        let elems = rows.saturating_mul(channels).saturating_mul(plane);
        if elems == 0 {
            return Ok(());
        }
        let len = size("batch_norm", "elements", elems)?;
        let (channels, plane) = (channels as u32, plane as u32);
        launch!(
            self,
            stream,
            "batch_norm",
            per_item(len),
            x,
            gamma,
            beta,
            mean,
            var,
            eps,
            out,
            len,
            channels,
            plane
        )
    }
}
