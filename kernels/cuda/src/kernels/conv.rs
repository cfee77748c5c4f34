//! Convolution, NCHW: an implicit matrix product, and a direct kernel for depthwise ones.
//!
//! Each output element is one chain of fused multiply-adds in order of input channel, kernel row
//! and kernel column, from zero; then bias, residual, activation.

use lazybatch_graph::{Op, Window};

use super::{Epilogue, Kernels, Source, Stored, Takes, Weights, act_code, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "conv.cu",
    text: include_str!("../../cuda/conv.cu"),
    kernels: &[
        "conv_bf16",
        "conv_direct_bf16",
        "conv_direct_f16",
        "conv_direct_f32",
        "conv_f16",
        "conv_f32",
    ],
    takes: |_, node| Takes::those(matches!(node.op, Op::Conv2d { .. })),
};

/// Operands of [`Kernels::conv2d`].
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// `[rows, channels, height, width]`.
    pub x: DevicePtr,
    /// `[filters, channels / groups, kernel height, kernel width]`; f32, f16 or bf16.
    pub weights: Weights,
    /// `[rows, filters, out height, out width]`.
    pub out: DevicePtr,
    /// Images.
    pub rows: usize,
    /// Input channels.
    pub channels: usize,
    /// Input height and width.
    pub size: [usize; 2],
    /// Output channels.
    pub filters: usize,
    /// Window, stride, padding.
    pub window: Window,
    /// Channel groups.
    pub groups: usize,
    /// `bias: [filters]`; the residual comes before the activation.
    pub epilogue: Epilogue,
}

/// Filters and pixels of a block.
const TILE: [u32; 2] = [64, 64];

/// The geometry as the kernels take it.
#[repr(C)]
struct Shape {
    rows: u32,
    channels: u32,
    size: [u32; 2],
    filters: u32,
    out: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    pad: [u32; 2],
    groups: u32,
    act: u32,
}

impl Kernels {
    /// `act(conv(x, weights) + bias + residual)`.
    ///
    /// # Errors
    /// Groups or a window that do not fit, sizes out of range, or what the driver answers.
    pub fn conv2d(&self, stream: &Stream, c: &Conv) -> Result<(), CudaError> {
        const KERNEL: &str = "conv2d";
        let divides = c.groups > 0
            && c.channels.is_multiple_of(c.groups)
            && c.filters.is_multiple_of(c.groups);
        let got = format_args!("{} of {} and {}", c.groups, c.channels, c.filters);
        expect(
            KERNEL,
            divides,
            "groups that divide channels and filters",
            got,
        )?;
        let Some(out) = c.window.output(c.size[0], c.size[1]) else {
            let got = format_args!("{:?} in {:?}", c.window, c.size);
            return expect(KERNEL, false, "a window that fits", got);
        };
        let plane = out[0] * out[1];
        let made = c.rows.saturating_mul(c.filters).saturating_mul(plane);
        if made == 0 {
            return Ok(());
        }
        let made = size(KERNEL, "output elements", made)?;
        let taken = c.size.iter().product::<usize>().saturating_mul(c.channels);
        size(KERNEL, "input elements", taken.saturating_mul(c.rows))?;
        let chain = c.channels / c.groups * c.window.kernel.iter().product::<usize>();
        size(KERNEL, "weights", chain.saturating_mul(c.filters))?;
        let pair = |p: [usize; 2]| p.map(|v| v as u32);
        let [top, left, ..] = c.window.pad;
        let shape = Shape {
            rows: c.rows as u32,
            channels: c.channels as u32,
            size: pair(c.size),
            filters: c.filters as u32,
            out: pair(out),
            kernel: pair(c.window.kernel),
            stride: pair(c.window.stride),
            pad: pair([top, left]),
            groups: c.groups as u32,
            act: act_code(c.epilogue.act),
        };
        // Few filters in a group would leave most of a tile idle.
        let is_direct = c.filters / c.groups < 8 && c.groups > 1;
        let name = match (c.weights.stored, is_direct) {
            (Stored::F32, false) => "conv_f32",
            (Stored::F16, false) => "conv_f16",
            (Stored::Bf16, false) => "conv_bf16",
            (Stored::F32, true) => "conv_direct_f32",
            (Stored::F16, true) => "conv_direct_f16",
            (Stored::Bf16, true) => "conv_direct_bf16",
            (other, _) => {
                return expect(
                    KERNEL,
                    false,
                    "weights of floats",
                    format_args!("{other:?}"),
                );
            }
        };
        let grid = if is_direct {
            super::per_item(made)
        } else {
            let pixels = shape.rows * (plane as u32);
            let filters = (c.filters / c.groups) as u32;
            expect(KERNEL, c.groups <= 65_535, "at most 65535 groups", c.groups)?;
            Grid {
                blocks: [
                    pixels.div_ceil(TILE[1]),
                    filters.div_ceil(TILE[0]),
                    shape.groups,
                ],
                ..Grid::row(1, 256)
            }
        };
        let (weights, Epilogue { bias, residual, .. }) = (c.weights.at, c.epilogue);
        launch!(
            self, stream, name, grid, c.x, weights, bias, residual, c.out, shape
        )
    }
}
