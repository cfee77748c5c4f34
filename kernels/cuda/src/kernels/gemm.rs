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
        "gemm_matrix_bf16_16",
        "gemm_matrix_bf16_32",
        "gemm_matrix_bf16_64",
        "gemm_matrix_bf16_many",
        "gemm_matrix_f16_16",
        "gemm_matrix_f16_32",
        "gemm_matrix_f16_64",
        "gemm_matrix_f16_many",
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
    fn sizes(&self, kernel: &'static str) -> Result<[u32; 3], CudaError> {
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

    /// The one for a shape.
    pub fn of(m: usize, n: usize) -> Self {
        if m <= 8 {
            Self::Few
        } else if m.div_ceil(128) * n.div_ceil(128) < 64 {
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

/// A tile of matrix instructions as the source has it.
struct MatrixTile {
    /// Rows of a block.
    rows: u32,
    /// Tiles of both sides in shared memory.
    stages: u32,
    /// Kernels for weights of f16 and bf16.
    names: [&'static str; 2],
}

/// Columns of a block.
const MATRIX_COLUMNS: u32 = 32;
/// Most blocks of the third of [`MATRIX`]: about two for each multiprocessor of a large GPU.
const FEW_BLOCKS: u32 = 256;

/// For few rows, for more, and for so many that there are many blocks. They decide the speed, not the
/// bits.
const MATRIX: [MatrixTile; 4] = [
    MatrixTile {
        rows: 16,
        stages: 16,
        names: ["gemm_matrix_f16_16", "gemm_matrix_bf16_16"],
    },
    MatrixTile {
        rows: 32,
        stages: 12,
        names: ["gemm_matrix_f16_32", "gemm_matrix_bf16_32"],
    },
    MatrixTile {
        rows: 64,
        stages: 8,
        names: ["gemm_matrix_f16_64", "gemm_matrix_bf16_64"],
    },
    MatrixTile {
        rows: 64,
        stages: 4,
        names: ["gemm_matrix_f16_many", "gemm_matrix_bf16_many"],
    },
];

impl MatrixTile {
    /// The one for so many rows and columns.
    fn of(m: u32, n: u32) -> &'static Self {
        let [few, some, more, many] = &MATRIX;
        let blocks = m
            .div_ceil(more.rows)
            .saturating_mul(n.div_ceil(MATRIX_COLUMNS));
        match m {
            _ if m <= few.rows => few,
            _ if m <= some.rows => some,
            _ if blocks <= FEW_BLOCKS => more,
            _ => many,
        }
    }

    /// Bytes of shared memory of a block, those of `Matrix` in the source: a stage has 32 steps of `k`,
    /// rows of the left side of so many f32 and four more, and rows of the right side of 32 numbers of
    /// two bytes and eight more.
    const fn shared_bytes(&self) -> u32 {
        self.stages * (self.rows * (32 + 4) * 4 + 32 * (32 + 8) * 2)
    }
}

/// Bytes of dynamic shared memory that a kernel has to be allowed, if it takes more than any may.
pub(super) fn shared_bytes(kernel: &str) -> Option<u32> {
    let mut tiles = MATRIX.iter();
    let tile = tiles.find(|tile| tile.names.contains(&kernel))?;
    Some(tile.shared_bytes())
}

impl Kernels {
    /// `act(a weights + bias) + residual`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn gemm(&self, stream: &Stream, g: &Gemm) -> Result<(), CudaError> {
        self.gemm_tiled(stream, g, Tiling::of(g.m, g.n))
    }

    /// [`Self::gemm`] by matrix instructions (tensor cores), for weights of f16 and bf16: activations
    /// are rounded to their type, sums are f32. A row's bits depend on that row alone; they are not
    /// those of [`Self::gemm`].
    ///
    /// # Errors
    /// Sizes out of range, other weights, or what the driver answers.
    pub fn gemm_matrix(&self, stream: &Stream, g: &Gemm) -> Result<(), CudaError> {
        const KERNEL: &str = "gemm_matrix";
        if g.m == 0 || g.n == 0 {
            return Ok(());
        }
        let [m, k, n] = g.sizes(KERNEL)?;
        let tile = MatrixTile::of(m, n);
        let name = match g.weights.stored {
            Stored::F16 => tile.names[0],
            Stored::Bf16 => tile.names[1],
            Stored::F32 | Stored::Int8 { .. } => {
                return Err(CudaError::Argument {
                    kernel: KERNEL,
                    expected: "weights of f16 or bf16".into(),
                    got: format!("{:?}", g.weights.stored),
                });
            }
        };
        let blocks = [n.div_ceil(MATRIX_COLUMNS), m.div_ceil(tile.rows), 1];
        expect(KERNEL, blocks[1] <= 65_535, "fewer rows", g.m)?;
        let grid = Grid {
            blocks,
            shared_bytes: tile.shared_bytes(),
            ..Grid::row(1, 128)
        };
        let Epilogue {
            bias,
            act,
            residual,
        } = g.epilogue;
        let (act, resume, weights) = (act_code(act), u32::from(g.resume), g.weights.at);
        launch!(
            self, stream, name, grid, g.a, g.a_rows, weights, g.out, m, k, n, resume, bias, act,
            residual
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_matrix_instructions_go_by_rows_then_blocks() {
        let of = |m, n| {
            let tile = MatrixTile::of(m, n);
            (tile.rows, tile.stages)
        };
        for (m, n, want) in [
            (1, 4096, (16, 16)),
            (16, 32_000, (16, 16)),
            (17, 4096, (32, 12)),
            (33, 4096, (64, 8)),
            (128, 4096, (64, 8)),
            (129, 4096, (64, 4)),
            (64, 32_000, (64, 4)),
        ] {
            assert_eq!(of(m, n), want, "{m} rows of {n}");
        }
        // Two blocks have room on a multiprocessor of 228 KiB, which takes one for each.
        for tile in &MATRIX {
            assert!(2 * (tile.shared_bytes() + 1024) <= 228 << 10);
            let same = tile.names.map(shared_bytes);
            assert_eq!(same, [Some(tile.shared_bytes()); 2]);
        }
        assert_eq!(shared_bytes("gemm_few_f16"), None);
    }
}
