//! Matrix products by matrix instructions (tensor cores), for weights of f16 and bf16: activations
//! are rounded to their type, sums are f32.
//!
//! The steps of `k`, 16 at a time, are cut into eight slices, as even as whole steps allow. An element
//! is the sum, in order, of the chains of its slices; so its bits depend on its row alone, whatever
//! the tiling. They are not those of [`Kernels::gemm`].
//!
//! Weights lie in tiles ([`tiles`]), and where there are more than a few rows, so do activations: a
//! kernel of its own puts them there first.

use lazybatch_graph::Op;

use super::gemm::Gemm;
use super::{Epilogue, Kernels, Source, Stored, Takes, act_code, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;
use crate::memory::ELEM;

pub(super) const SOURCE: Source = Source {
    file: "gemm_matrix.cu",
    text: include_str!("../../cuda/gemm_matrix.cu"),
    kernels: &[
        "matrix_few_32x16_bf16",
        "matrix_few_32x16_f16",
        "matrix_few_32x32_bf16",
        "matrix_few_32x32_f16",
        "matrix_few_64x32_bf16",
        "matrix_few_64x32_f16",
        "matrix_many_128x64_bf16",
        "matrix_many_128x64_f16",
        "matrix_many_64x128_bf16",
        "matrix_many_64x128_f16",
        "matrix_pack_bf16",
        "matrix_pack_f16",
        "matrix_plain_16x8_bf16",
        "matrix_plain_16x8_f16",
        "matrix_plain_32x8_bf16",
        "matrix_plain_32x8_f16",
    ],
    takes: |_, node| {
        Takes::those(matches!(
            node.op,
            Op::Linear { .. } | Op::LstmCell { .. } | Op::GruCell { .. }
        ))
    },
};

/// Rows and columns of a tile.
const TILE: usize = 16;
/// Threads of a block.
const THREADS: u32 = 256;

/// A right side `[k, n]` of 16-bit numbers in the tiles that kernels take, filled up with zeros: those
/// of 16 columns one behind another, by `k`. In a tile, lane `4 g + q` has eight numbers: steps `4 q`
/// and `4 q + 1` of column `g`, then of column `g + 8`, and steps `4 q + 2` and `4 q + 3` likewise.
pub fn tiles(bits: &[u16], k: usize, n: usize) -> Vec<u16> {
    let steps = k.div_ceil(TILE);
    let len = n.div_ceil(TILE) * steps * TILE * TILE;
    let mut all = vec![0; len];
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Whole columns of tiles, and at least as many numbers as a thread is worth.
    let column = steps * TILE * TILE;
    if column == 0 {
        return all;
    }
    let each = n
        .div_ceil(TILE)
        .div_ceil(threads)
        .max((1 << 18) / column + 1);
    let fill = |first: usize, part: &mut [u16]| {
        for (i, tile) in part.chunks_exact_mut(TILE * TILE).enumerate() {
            let (from, step) = ((first + i / steps) * TILE, i % steps * TILE);
            for (at, number) in tile.iter_mut().enumerate() {
                let (lane, i) = (at / 8, at % 8);
                let row = step + lane % 4 * 4 + i / 4 * 2 + i % 2;
                let col = from + lane / 4 + i / 2 % 2 * 8;
                if row < k && col < n {
                    *number = bits[row * n + col];
                }
            }
        }
    };
    let parts = all.chunks_mut(each * column).enumerate();
    std::thread::scope(|scope| {
        for (i, part) in parts {
            scope.spawn(move || fill(i * each, part));
        }
    });
    all
}

/// Most blocks of a tiling where there is one with larger blocks: two for each multiprocessor of a
/// large GPU.
const MOST_BLOCKS: usize = 264;
/// Blocks that share what they read, at least: fewer take longer than more that do not share.
const SHARED_BLOCKS: usize = 200;

/// How a product is cut into blocks, of so many columns and rows; it decides the speed, not the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixTiling {
    /// Activations as they are.
    Plain16x8,
    /// Activations as they are.
    Plain32x8,
    /// Warps have slices of `k`.
    Few32x16,
    /// Warps have slices of `k`.
    Few32x32,
    /// Warps have slices of `k`.
    Few64x32,
    /// Warps share what is in shared memory.
    Many128x64,
    /// Warps share what is in shared memory.
    Many64x128,
}

/// A tiling as the source has it.
struct Tiles {
    /// Columns and rows of a block.
    size: [usize; 2],
    /// Steps of `k` of both sides in shared memory; 0 without.
    steps: usize,
    /// Kernels for weights of f16 and bf16.
    names: [&'static str; 2],
}

impl MatrixTiling {
    /// All of them, by the size of their blocks.
    pub const ALL: [Self; 7] = [
        Self::Plain16x8,
        Self::Plain32x8,
        Self::Few32x16,
        Self::Few32x32,
        Self::Few64x32,
        Self::Many128x64,
        Self::Many64x128,
    ];

    /// The one for a shape: the smallest blocks of which there are not too many, and no larger ones
    /// than rows fill. On an H200 that is within some percent of the fastest, but for some shapes of
    /// 64 to 256 rows (`measure_kernels` shows which).
    pub fn of(m: usize, n: usize) -> Self {
        let blocks = |of: Self| {
            let [columns, rows] = of.tiles().size;
            n.div_ceil(columns) * m.div_ceil(rows)
        };
        let fits = |of: &Self| blocks(*of) <= MOST_BLOCKS;
        let largest = match m {
            0..=8 => 2,
            9..=16 => 3,
            _ => 5,
        };
        let few = &Self::ALL[..largest];
        let shared = if m <= 64 {
            Self::Many128x64
        } else {
            Self::Many64x128
        };
        match few.iter().copied().find(fits) {
            Some(tiling) => tiling,
            None if m > 16 && blocks(shared) >= SHARED_BLOCKS => shared,
            None => few[largest - 1],
        }
    }

    /// Whether activations are read as they are, without [`packed_elems`].
    pub const fn is_plain(self) -> bool {
        matches!(self, Self::Plain16x8 | Self::Plain32x8)
    }

    const fn tiles(self) -> Tiles {
        macro_rules! tiles {
            ($size:expr, $steps:expr, $name:literal) => {
                Tiles {
                    size: $size,
                    steps: $steps,
                    names: [concat!($name, "_f16"), concat!($name, "_bf16")],
                }
            };
        }
        match self {
            Self::Plain16x8 => tiles!([16, 8], 0, "matrix_plain_16x8"),
            Self::Plain32x8 => tiles!([32, 8], 0, "matrix_plain_32x8"),
            Self::Few32x16 => tiles!([32, 16], 0, "matrix_few_32x16"),
            Self::Few32x32 => tiles!([32, 32], 0, "matrix_few_32x32"),
            Self::Few64x32 => tiles!([64, 32], 0, "matrix_few_64x32"),
            Self::Many128x64 => tiles!([128, 64], 16, "matrix_many_128x64"),
            Self::Many64x128 => tiles!([64, 128], 16, "matrix_many_64x128"),
        }
    }
}

impl Tiles {
    /// Bytes of dynamic shared memory: room for all steps, and later for all results, in rows that
    /// are four numbers longer.
    const fn shared_bytes(&self) -> u32 {
        if self.steps == 0 {
            return 0;
        }
        let [columns, rows] = self.size;
        let staged = self.steps * (columns + rows) * TILE * 2;
        let results = rows * (columns + 4) * ELEM;
        (if staged > results { staged } else { results }) as u32
    }
}

/// Bytes of dynamic shared memory that a kernel has to be allowed, if it takes more than any may.
pub(super) fn shared_bytes(kernel: &str) -> Option<u32> {
    let mut all = MatrixTiling::ALL.iter().map(|tiling| tiling.tiles());
    let tiles = all.find(|tiles| tiles.names.contains(&kernel))?;
    Some(tiles.shared_bytes()).filter(|bytes| *bytes > 0)
}

/// Elements of 4 bytes that activations `[m, k]` take in tiles; none where they are read as they are.
/// That is at most [`packed_per_row`] for each row.
pub fn packed_elems(m: usize, k: usize, n: usize) -> usize {
    match MatrixTiling::of(m, n).is_plain() {
        true => 0,
        false => all_packed(m, k),
    }
}

/// Elements for each row that are enough for [`packed_elems`]: as activations in tiles are more than
/// eight rows, which are filled up to 16, they have at most twice as many.
pub fn packed_per_row(k: usize) -> usize {
    k.next_multiple_of(TILE)
}

fn all_packed(m: usize, k: usize) -> usize {
    m.next_multiple_of(TILE) * k.next_multiple_of(TILE) / 2
}

/// What follows a product, as kernels take it.
#[repr(C)]
struct End {
    out: DevicePtr,
    bias: DevicePtr,
    residual: DevicePtr,
    m: u32,
    n: u32,
    resume: u32,
    act: u32,
}

impl Kernels {
    /// `act(a weights + bias) + residual`, for weights in tiles. `packed` has room for
    /// [`packed_elems`] elements.
    ///
    /// # Errors
    /// Sizes out of range, other weights, or what the driver answers.
    pub fn gemm_matrix(
        &self,
        stream: &Stream,
        g: &Gemm,
        packed: DevicePtr,
    ) -> Result<(), CudaError> {
        self.gemm_matrix_tiled(stream, g, packed, MatrixTiling::of(g.m, g.n))
    }

    /// [`Self::gemm_matrix`] in a tiling of the caller's choice; `packed` has room for `m` and `k`
    /// rounded up to 16, in numbers of 16 bits, unless the tiling is plain.
    ///
    /// # Errors
    /// As [`Self::gemm_matrix`].
    pub fn gemm_matrix_tiled(
        &self,
        stream: &Stream,
        g: &Gemm,
        packed: DevicePtr,
        tiling: MatrixTiling,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "gemm_matrix";
        if g.m == 0 || g.n == 0 {
            return Ok(());
        }
        let [m, k, n] = g.sizes(KERNEL)?;
        let which = match g.weights.stored {
            Stored::F16Tiles => 0,
            Stored::Bf16Tiles => 1,
            other => {
                return Err(CudaError::Argument {
                    kernel: KERNEL,
                    expected: "weights of f16 or bf16 in tiles".into(),
                    got: format!("{other:?}"),
                });
            }
        };
        let tiles = tiling.tiles();
        let [columns, rows] = tiles.size.map(|s| s as u32);
        let (mut a, mut a_rows) = (g.a, g.a_rows);
        if !tiling.is_plain() && k > 0 {
            expect(KERNEL, !packed.is_null(), "room for activations", "none")?;
            let of_warp = THREADS / 32;
            let all = all_packed(g.m, g.k) * 2 / (TILE * TILE);
            let all = size(KERNEL, "tiles of activations", all)?;
            let name = ["matrix_pack_f16", "matrix_pack_bf16"][which];
            let grid = Grid::row(all.div_ceil(of_warp), THREADS);
            launch!(self, stream, name, grid, a, a_rows, packed, m, k)?;
            (a, a_rows) = (packed, DevicePtr::NULL);
        }
        let blocks = [n.div_ceil(columns), m.div_ceil(rows), 1];
        expect(KERNEL, blocks[1] <= 65_535, "fewer rows", g.m)?;
        let grid = Grid {
            blocks,
            shared_bytes: tiles.shared_bytes(),
            ..Grid::row(1, THREADS)
        };
        let Epilogue {
            bias,
            act,
            residual,
        } = g.epilogue;
        let end = End {
            out: g.out,
            bias,
            residual,
            m,
            n,
            resume: u32::from(g.resume),
            act: act_code(act),
        };
        let weights = g.weights.at;
        launch!(
            self,
            stream,
            tiles.names[which],
            grid,
            a,
            a_rows,
            weights,
            k,
            end
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_every_number_once_and_zeros() {
        for [k, n] in [[1, 1], [16, 16], [17, 33], [40, 8], [5, 0], [0, 5]] {
            let bits: Vec<u16> = (1..=(k * n) as u16).collect();
            let all = tiles(&bits, k, n);
            assert_eq!(all.len(), k.div_ceil(16) * n.div_ceil(16) * 256);
            let mut there: Vec<u16> = all.iter().copied().filter(|v| *v > 0).collect();
            there.sort_unstable();
            assert_eq!(there, bits);
        }
        // Lane 6 has steps 8 to 11 of columns 1 and 9 of a tile; this is the second in `k`.
        let (k, n) = (32, 16);
        let bits: Vec<u16> = (0..(k * n) as u16).collect();
        let lane = &tiles(&bits, k, n)[256 + 6 * 8..][..8];
        let at = |row: usize, col: usize| (row * n + col) as u16;
        let want = [
            (24, 1),
            (25, 1),
            (24, 9),
            (25, 9),
            (26, 1),
            (27, 1),
            (26, 9),
            (27, 9),
        ];
        assert_eq!(lane, want.map(|(row, col)| at(row, col)));
    }

    #[test]
    fn activations_in_tiles_are_at_most_what_is_planned() {
        for m in 1..300 {
            for k in [1, 16, 100] {
                let most = m * packed_per_row(k);
                assert!(packed_elems(m, k, 4096) <= most, "{m} rows of {k}");
            }
        }
    }

    #[test]
    fn tilings_go_by_blocks_and_rows() {
        use MatrixTiling as T;
        for (m, n, want) in [
            (1, 4096, T::Plain16x8),
            (8, 32_000, T::Plain32x8),
            (16, 768, T::Plain16x8),
            (32, 1024, T::Plain16x8),
            (64, 1024, T::Plain32x8),
            (16, 4096, T::Plain32x8),
            (32, 4096, T::Few32x16),
            (16, 32_000, T::Few32x16),
            (64, 4096, T::Few32x32),
            (128, 768, T::Few32x16),
            (128, 4096, T::Few64x32),
            (512, 768, T::Few64x32),
            (64, 32_000, T::Many128x64),
            (2048, 768, T::Few64x32),
            (2048, 4096, T::Many64x128),
        ] {
            assert_eq!(T::of(m, n), want, "{m} rows of {n}");
        }
        // At least one block has room on a multiprocessor of 100 KiB.
        for tiling in T::ALL {
            let bytes = tiling.tiles().shared_bytes();
            assert!(bytes + 1024 <= 100 << 10, "{tiling:?}: {bytes}");
            let same = tiling.tiles().names.map(shared_bytes);
            assert_eq!(same, [(bytes > 0).then_some(bytes); 2]);
        }
    }
}
