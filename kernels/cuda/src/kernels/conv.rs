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
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Shape {
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

impl Shape {
    /// Output pixels of all images.
    pub(super) const fn pixels(&self) -> u32 {
        self.rows * self.out[0] * self.out[1]
    }
}

/// Whether a convolution is for the direct kernel: few filters in a group would leave most of a tile
/// idle.
pub(crate) const fn is_direct(filters: usize, groups: usize) -> bool {
    groups > 1 && filters / groups < 8
}

impl Conv {
    /// The geometry and the output elements, if there are any.
    ///
    /// # Errors
    /// Groups or a window that do not fit, or sizes out of range.
    pub(super) fn shape(&self, kernel: &'static str) -> Result<Option<(Shape, u32)>, CudaError> {
        let divides = self.groups > 0
            && self.channels.is_multiple_of(self.groups)
            && self.filters.is_multiple_of(self.groups);
        let got = format_args!("{} of {} and {}", self.groups, self.channels, self.filters);
        expect(
            kernel,
            divides,
            "groups that divide channels and filters",
            got,
        )?;
        let Some(out) = self.window.output(self.size[0], self.size[1]) else {
            let got = format_args!("{:?} in {:?}", self.window, self.size);
            return expect(kernel, false, "a window that fits", got).map(|()| None);
        };
        let plane = out[0] * out[1];
        let made = self.rows.saturating_mul(self.filters).saturating_mul(plane);
        if made == 0 {
            return Ok(None);
        }
        let made = size(kernel, "output elements", made)?;
        let taken = self.size.iter().product::<usize>();
        let taken = taken
            .saturating_mul(self.channels)
            .saturating_mul(self.rows);
        size(kernel, "input elements", taken)?;
        let chain = self.channels / self.groups * self.window.kernel.iter().product::<usize>();
        size(kernel, "weights", chain.saturating_mul(self.filters))?;
        let pair = |p: [usize; 2]| p.map(|v| v as u32);
        let [top, left, ..] = self.window.pad;
        let shape = Shape {
            rows: self.rows as u32,
            channels: self.channels as u32,
            size: pair(self.size),
            filters: self.filters as u32,
            out: pair(out),
            kernel: pair(self.window.kernel),
            stride: pair(self.window.stride),
            pad: pair([top, left]),
            groups: self.groups as u32,
            act: act_code(self.epilogue.act),
        };
        Ok(Some((shape, made)))
    }
}

impl Kernels {
    /// `act(conv(x, weights) + bias + residual)`.
    ///
    /// # Errors
    /// Groups or a window that do not fit, sizes out of range, or what the driver answers.
    pub fn conv2d(&self, stream: &Stream, c: &Conv) -> Result<(), CudaError> {
        const KERNEL: &str = "conv2d";
        let Some((shape, made)) = c.shape(KERNEL)? else {
            return Ok(());
        };
        let is_direct = is_direct(c.filters, c.groups);
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
            let pixels = shape.pixels();
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
