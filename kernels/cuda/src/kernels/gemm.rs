//! Matrix products whose rows have the same bits in any batch.
//!
//! Each output element is one chain of fused multiply-adds in order of `k`, from zero or from what
//! is there, whatever tile it falls into. For weights of f32, f16 and bf16 that is the chain of the
//! cpu device.

use lazybatch_graph::Op;

use super::{Epilogue, Kernels, Source, Stored, Takes, Weights, act_code, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "gemm.cu",
    text: include_str!("../../cuda/gemm.cu"),
    kernels: &[
        "gemm_few_bf16",
        "gemm_few_f16",
        "gemm_few_f32",
        "gemm_few_i8",
        "gemm_large_bf16",
        "gemm_large_f16",
        "gemm_large_f32",
        "gemm_large_i8",
        "gemm_small_bf16",
        "gemm_small_f16",
        "gemm_small_f32",
        "gemm_small_i8",
    ],
    takes: |_, node| {
        Takes::those(matches!(
            node.op,
            Op::Linear { .. } | Op::LstmCell { .. } | Op::GruCell { .. }
        ))
    },
};

/// Operands of [`Kernels::gemm`].
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// `[m, k]`, or a pool of rows of `k` elements.
    pub a: DevicePtr,
    /// `[m]` i32: which row of `a` is row `i`; null for row `i` itself.
    pub a_rows: DevicePtr,
    /// `[k, n]`. Chains over int8 end with their factor, before the bias.
    pub weights: Weights,
    /// `[m, n]`.
    pub out: DevicePtr,
    /// Rows.
    pub m: usize,
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Continue from the content of `out`: its chains, or, for int8, add it behind the bias.
    pub resume: bool,
    /// `act(.. + bias) + residual`; `bias: [n]`, `residual: [m, n]`, which may be `out` unless
    /// `resume`.
    pub epilogue: Epilogue,
}

impl Gemm {
    /// Rows, inner elements and columns, as kernels take them.
    pub(super) fn sizes(&self, kernel: &'static str) -> Result<[u32; 3], CudaError> {
        let right = self.k.saturating_mul(self.n);
        size(kernel, "elements of the right side", right)?;
        Ok([
            size(kernel, "rows", self.m)?,
            size(kernel, "inner elements", self.k)?,
            size(kernel, "columns", self.n)?,
        ])
    }
}

/// How a product is cut into blocks; it decides the speed, not the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// Few rows, where the time is that of reading the weights.
    Few,
    /// Small results, cut into many blocks.
    Small,
    /// Large results, where the time is that of the arithmetic.
    Large,
}

/// A tiling as the source has it.
struct Tiles {
    /// Rows and columns of a block.
    size: [u32; 2],
    threads: u32,
    /// Kernels by type of the weights.
    names: [&'static str; 4],
}

impl Tiling {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Few, Self::Small, Self::Large];

    /// The one for a shape: as an H200 has it, where [`Self::Few`] does some 9 TFLOP/s and a step of
    /// `k` takes [`Self::Small`] 0.034 us at least, so the former wins up to 140,000 results.
    pub fn of(m: usize, n: usize) -> Self {
        if m <= 8 || m.saturating_mul(n) <= 140_000 {
            Self::Few
        } else if m.div_ceil(128) * n.div_ceil(128) < 200 {
            Self::Small
        } else {
            Self::Large
        }
    }

    const fn tiles(self) -> Tiles {
        match self {
            Self::Few => Tiles {
                size: [8, 16],
                threads: 128,
                names: [
                    "gemm_few_f32",
                    "gemm_few_f16",
                    "gemm_few_bf16",
                    "gemm_few_i8",
                ],
            },
            Self::Small => Tiles {
                size: [32, 64],
                threads: 128,
                names: [
                    "gemm_small_f32",
                    "gemm_small_f16",
                    "gemm_small_bf16",
                    "gemm_small_i8",
                ],
            },
            Self::Large => Tiles {
                size: [128, 128],
                threads: 256,
                names: [
                    "gemm_large_f32",
                    "gemm_large_f16",
                    "gemm_large_bf16",
                    "gemm_large_i8",
                ],
            },
        }
    }
}

impl Kernels {
    /// `act(a weights + bias) + residual`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn gemm(&self, stream: &Stream, g: &Gemm) -> Result<(), CudaError> {
        self.gemm_tiled(stream, g, Tiling::of(g.m, g.n))
    }

    /// [`Self::gemm`] in a tiling of the caller's choice.
    ///
    /// # Errors
    /// As [`Self::gemm`].
    pub fn gemm_tiled(&self, stream: &Stream, g: &Gemm, tiling: Tiling) -> Result<(), CudaError> {
        const KERNEL: &str = "gemm";
        if g.m == 0 || g.n == 0 {
            return Ok(());
        }
        let [m, k, n] = g.sizes(KERNEL)?;
        let (which, scales) = match g.weights.stored {
            Stored::F32 => (0, DevicePtr::NULL),
            Stored::F16 => (1, DevicePtr::NULL),
            Stored::Bf16 => (2, DevicePtr::NULL),
            Stored::Int8 { scales } => (3, scales),
            Stored::F16Tiles | Stored::Bf16Tiles => {
                return expect(KERNEL, false, "weights in rows", "weights in tiles");
            }
        };
        let tiles = tiling.tiles();
        let blocks = [n.div_ceil(tiles.size[1]), m.div_ceil(tiles.size[0]), 1];
        expect(KERNEL, blocks[1] <= 65_535, "fewer rows", g.m)?;
        let grid = Grid {
            blocks,
            ..Grid::row(1, tiles.threads)
        };
        let Epilogue {
            bias,
            act,
            residual,
        } = g.epilogue;
        let (act, resume, weights) = (act_code(act), u32::from(g.resume), g.weights.at);
        launch!(
            self,
            stream,
            tiles.names[which],
            grid,
            g.a,
            g.a_rows,
            weights,
            scales,
            g.out,
            m,
            k,
            n,
            resume,
            bias,
            act,
            residual
        )
    }
}
