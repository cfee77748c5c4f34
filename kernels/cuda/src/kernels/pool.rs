//! Pooling, NCHW.

use lazybatch_graph::{Op, Pool, Window};

use super::{Kernels, Source, Takes, expect, launch, per_item, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "pool.cu",
    text: include_str!("../../cuda/pool.cu"),
    kernels: &["global_average_pool", "pool2d"],
    takes: |_, node| Takes::those(matches!(node.op, Op::Pool2d { .. } | Op::GlobalAveragePool)),
};

/// Window and planes as the kernel takes them.
#[repr(C)]
struct Shape {
    len: u32,
    size: [u32; 2],
    out: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    pad: [u32; 2],
    is_max: u32,
}

impl Kernels {
    /// The largest element, or the mean of those that are not padding, of each window; `x: [planes,
    /// height, width]` (planes are rows times channels), `out: [planes, out height, out width]`.
    /// A window of padding alone gives minus infinity, or zero.
    ///
    /// # Errors
    /// A window that does not fit, sizes out of range, or what the driver answers.
    pub fn pool2d(
        &self,
        stream: &Stream,
        pool: Pool,
        window: &Window,
        x: DevicePtr,
        out: DevicePtr,
        planes: usize,
        [height, width]: [usize; 2],
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "pool2d";
        let Some(made) = window.output(height, width) else {
            let got = format_args!("{window:?} in {height} x {width}");
            return expect(KERNEL, false, "a window that fits", got);
        };
        let len = planes.saturating_mul(made[0] * made[1]);
        if len == 0 {
            return Ok(());
        }
        size(
            KERNEL,
            "input elements",
            planes.saturating_mul(height * width),
        )?;
        let pair = |p: [usize; 2]| p.map(|v| v as u32);
        let shape = Shape {
            len: size(KERNEL, "output elements", len)?,
            size: pair([height, width]),
            out: pair(made),
            kernel: pair(window.kernel),
            stride: pair(window.stride),
            pad: pair([window.pad[0], window.pad[1]]),
            is_max: u32::from(pool == Pool::Max),
        };
        launch!(self, stream, KERNEL, per_item(shape.len), x, out, shape)
    }

    /// Mean of each plane; `x: [planes, plane]`, `out: [planes]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn global_average_pool(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        planes: usize,
        plane: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "global_average_pool";
        if planes == 0 {
            return Ok(());
        }
        expect(KERNEL, plane > 0, "planes of pixels", plane)?;
        size(KERNEL, "input elements", planes.saturating_mul(plane))?;
        let (planes, plane) = (planes as u32, plane as u32);
        let grid = Grid::row(planes.div_ceil(4), 128);
        launch!(self, stream, KERNEL, grid, x, out, planes, plane)
    }
}
