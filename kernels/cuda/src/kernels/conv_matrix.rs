//! Convolution by matrix instructions (tensor cores), NCHW: an implicit matrix product.
//!
//! A chain of input channels and elements of the window is filled up to tiles of 32 steps and cut
//! into slices, whose number the filters alone decide; each output element is the sum of its
//! slices in order, and each of them a chain of instructions of 16 steps from zero. Then follow
//! bias, residual, activation.

use lazybatch_graph::Op;

use super::conv::{Conv, is_direct};
use super::{Epilogue, Kernels, Source, Stored, Takes, expect, launch};
use crate::context::{Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "conv_matrix.cu",
    text: include_str!("../../cuda/conv_matrix.cu"),
    kernels: &[
        "conv_matrix_few_bf16",
        "conv_matrix_few_bf16_any",
        "conv_matrix_few_bf16_points",
        "conv_matrix_few_f16",
        "conv_matrix_few_f16_any",
        "conv_matrix_few_f16_points",
        "conv_matrix_many_bf16",
        "conv_matrix_many_bf16_any",
        "conv_matrix_many_bf16_points",
        "conv_matrix_many_f16",
        "conv_matrix_many_f16_any",
        "conv_matrix_many_f16_points",
        "conv_matrix_some_bf16",
        "conv_matrix_some_bf16_any",
        "conv_matrix_some_bf16_points",
        "conv_matrix_some_f16",
        "conv_matrix_some_f16_any",
        "conv_matrix_some_f16_points",
    ],
    // Beside the kernels that take all.
    takes: |program, node| match node.op {
        Op::Conv2d { groups, .. } => {
            let filters = program.value(node.inputs[1]).ty.fixed_dims();
            Takes::those(!is_direct(filters[0], groups))
        }
        _ => Takes::No,
    },
};

/// Kernels by tiling.
macro_rules! names {
    ($suffix:literal) => {
        [
            concat!("conv_matrix_few_", $suffix),
            concat!("conv_matrix_some_", $suffix),
            concat!("conv_matrix_many_", $suffix),
        ]
    };
}

/// Steps of a chain in a tile.
const STEPS: usize = 32;
/// Steps of an instruction, and its filters.
const INNER: usize = 16;
/// Least tiles of a slice, where a chain has several.
const LEAST: usize = 4;
/// Most slices: as many as a block has warps.
const MOST: usize = 8;
/// Blocks that a GPU is to have at least, for a tiling to be taken whatever it costs: large and small.
const BLOCKS: [usize; 2] = [96, 128];
/// Multiply-adds that [`Tiling::Few`] does in the time that a block of the others takes for a tile of
/// steps: 22 for each picosecond, and 0.37 us, on an H200.
const FEW_FOR_TILE: usize = 8_100_000;

/// How filters lie in memory for these kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters {
    groups: usize,
    /// Of a group.
    filters: usize,
    /// Of a group.
    channels: usize,
    /// Elements of the window.
    area: usize,
}

impl Filters {
    /// Filters `[filters, channels of a group, kernel height, kernel width]`; groups divide them.
    pub fn new(dims: [usize; 4], groups: usize) -> Self {
        Self {
            groups,
            filters: dims[0] / groups.max(1),
            channels: dims[1],
            area: dims[2] * dims[3],
        }
    }

    /// Whether tiles of a chain have channels of one element of the window: the chain then goes by 32
    /// channels, elements of the window, and channels of these. Else it goes by channels, then
    /// elements of the window, and is filled up at its end.
    const fn is_by_channels(&self) -> bool {
        self.channels > 0 && self.channels.is_multiple_of(STEPS)
    }

    /// Tiles of a chain.
    const fn tiles(&self) -> usize {
        (self.channels * self.area).div_ceil(STEPS)
    }

    /// Slices of a chain, a power of two, and tiles of each but the last ones.
    fn slices(&self) -> [usize; 2] {
        let tiles = self.tiles().max(1);
        let mut slices = MOST;
        while slices > 1 && tiles < slices * LEAST {
            slices /= 2;
        }
        [slices, tiles.div_ceil(slices)]
    }

    /// Tiles of 16 filters in a group.
    const fn filter_tiles(&self) -> usize {
        self.filters.div_ceil(INNER)
    }

    /// Place in a filter of step `k` of the chain, if there is one.
    const fn place(&self, k: usize) -> Option<usize> {
        if k >= self.channels * self.area {
            return None;
        }
        if !self.is_by_channels() {
            return Some(k);
        }
        let (tile, channel) = (k / STEPS, k % STEPS);
        let channel = tile / self.area * STEPS + channel;
        Some(channel * self.area + tile % self.area)
    }

    /// Numbers that [`Self::arranged`] gives.
    pub const fn len(&self) -> usize {
        self.groups * self.filter_tiles() * INNER * self.tiles() * STEPS
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Filters, 16 bits a number, as the kernels read them: for each group, 16 filters, and 16 steps of
    /// the chain, eight numbers for each of 32 lanes. What is not there is zero.
    pub fn arranged(&self, bits: &[u16]) -> Vec<u16> {
        let chain = self.channels * self.area;
        let inner = self.tiles() * (STEPS / INNER);
        // Of the steps of an instruction, by lane and number, and the row.
        let mut all = Vec::with_capacity(self.len());
        let places: Vec<_> = (0..inner * INNER).map(|k| self.place(k)).collect();
        for group in 0..self.groups {
            for tile in 0..self.filter_tiles() {
                for step in 0..inner {
                    for i in 0..32 * 8 {
                        let (lane, word) = (i / 8, i % 8 / 2);
                        let filter = tile * INNER + lane / 4 + word % 2 * 8;
                        let k = step * INNER + word / 2 * 8 + lane % 4 * 2 + i % 2;
                        let from = (group * self.filters + filter) * chain;
                        let place = places[k].filter(|_| filter < self.filters);
                        all.push(place.map_or(0, |place| bits[from + place]));
                    }
                }
            }
        }
        all
    }
}

/// Outputs of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// 16 to 128 filters, the fewer the longer the chain, and 32 pixels; slices at the same time.
    Few,
    /// 64 filters and 64 pixels.
    Some,
    /// 128 filters and 64 pixels.
    Many,
}

impl Tiling {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Few, Self::Some, Self::Many];

    /// Blocks of pixels and of filters.
    fn blocks(self, of: &Filters, pixels: usize) -> [usize; 2] {
        let [filters, across] = match self {
            Self::Few => [INNER * MOST / of.slices()[0], 32],
            Self::Some => [64, 64],
            Self::Many => [128, 64],
        };
        [pixels.div_ceil(across), of.filters.div_ceil(filters)]
    }

    /// The one for so many pixels of all images: that with the largest blocks that has enough of them,
    /// or whose few blocks, though each has the whole chain, are done before [`Self::Few`] is.
    pub fn of(of: &Filters, pixels: usize) -> Self {
        let blocks = |tiling: Self| {
            let [across, down] = tiling.blocks(of, pixels);
            across.saturating_mul(down).saturating_mul(of.groups)
        };
        let all = of.groups.saturating_mul(of.filters).saturating_mul(pixels);
        let chain = of.channels * of.area;
        let products = all.saturating_mul(chain);
        let few = products / FEW_FOR_TILE;
        match () {
            () if of.filters > 64 && blocks(Self::Many) >= BLOCKS[0] => Self::Many,
            () if blocks(Self::Some) >= BLOCKS[1] => Self::Some,
            () if few > chain.div_ceil(STEPS) => Self::Some,
            () => Self::Few,
        }
    }
}

/// The geometry as the kernels take it.
#[repr(C)]
struct Shape {
    base: super::conv::Shape,
    tiles: u32,
    slice: u32,
    slices: u32,
}

impl Conv {
    /// Whether windows are a matrix of channels and pixels whose rows can be read by 16 bytes, within
    /// images.
    fn is_matrix(&self) -> bool {
        let is_point = self.window.kernel == [1; 2] && self.window.stride == [1; 2];
        let plane = self.size[0] * self.size[1];
        let is_whole = plane.is_multiple_of(4) && self.x.0.is_multiple_of(16);
        is_point && self.window.pad == [0; 4] && is_whole
    }
}

impl Kernels {
    /// [`Self::conv2d`] by matrix instructions, for filters of f16 or bf16 as
    /// [`Filters::arranged`] gives them: images are rounded to the same type, sums are f32. An image's
    /// bits depend on it alone; they are not those of [`Self::conv2d`].
    ///
    /// # Errors
    /// Other weights, and those of [`Self::conv2d`].
    pub fn conv2d_matrix(&self, stream: &Stream, c: &Conv) -> Result<(), CudaError> {
        self.conv2d_matrix_tiled(stream, c, None)
    }

    /// [`Self::conv2d_matrix`] in tiles of one's choice, of the shape's if there is none; the bits are
    /// the same.
    ///
    /// # Errors
    /// Those of [`Self::conv2d_matrix`].
    pub fn conv2d_matrix_tiled(
        &self,
        stream: &Stream,
        c: &Conv,
        tiling: Option<Tiling>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "conv2d_matrix";
        let Some((base, _)) = c.shape(KERNEL)? else {
            return Ok(());
        };
        let [height, width] = c.window.kernel;
        let per_group = c.channels / c.groups;
        let of = Filters::new([c.filters, per_group, height, width], c.groups);
        super::size(KERNEL, "weights", of.len())?;
        let pixels = base.pixels() as usize;
        let tiling = tiling.unwrap_or_else(|| Tiling::of(&of, pixels));
        let is_bf16 = match c.weights.stored {
            Stored::F16 => false,
            Stored::Bf16 => true,
            other => {
                let got = format_args!("{other:?}");
                return expect(KERNEL, false, "weights of f16 or bf16", got);
            }
        };
        let [few, some, many] = match (is_bf16, of.is_by_channels(), c.is_matrix()) {
            (false, false, _) => names!("f16_any"),
            (false, true, false) => names!("f16"),
            (false, true, true) => names!("f16_points"),
            (true, false, _) => names!("bf16_any"),
            (true, true, false) => names!("bf16"),
            (true, true, true) => names!("bf16_points"),
        };
        let (name, threads) = match tiling {
            Tiling::Few => (few, 256),
            Tiling::Some => (some, 128),
            Tiling::Many => (many, 256),
        };
        let [across, down] = tiling.blocks(&of, pixels);
        let is_in_range = down.max(c.groups) <= 65_535;
        expect(KERNEL, is_in_range, "fewer filters or groups", c.filters)?;
        let grid = Grid {
            blocks: [across, down, c.groups].map(|n| n as u32),
            ..Grid::row(1, threads)
        };
        let [slices, slice] = of.slices();
        let shape = Shape {
            base,
            tiles: of.tiles() as u32,
            slice: slice as u32,
            slices: slices as u32,
        };
        let (weights, Epilogue { bias, residual, .. }) = (c.weights.at, c.epilogue);
        launch!(
            self, stream, name, grid, c.x, weights, bias, residual, c.out, shape
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_has_one_place() {
        for (dims, groups) in [([20, 3, 7, 7], 1), ([48, 32, 3, 3], 2), ([16, 64, 1, 1], 1)] {
            let of = Filters::new(dims, groups);
            let num = dims.iter().product::<usize>();
            let bits: Vec<u16> = (1..=num as u16).collect();
            let mut arranged = of.arranged(&bits);
            assert_eq!(arranged.len(), of.len());
            arranged.retain(|v| *v != 0);
            arranged.sort_unstable();
            assert_eq!(arranged, bits);
        }
    }

    #[test]
    fn tilings_have_enough_blocks() {
        let of = |dims| Filters::new(dims, 1);
        // Chains of ResNet-50, and the pixels of one image and of more.
        for (dims, pixels, slices, tiling) in [
            ([64, 3, 7, 7], 112 * 112, [1, 5], Tiling::Some),
            ([64, 64, 3, 3], 56 * 56, [4, 5], Tiling::Few),
            ([64, 64, 3, 3], 8 * 56 * 56, [4, 5], Tiling::Some),
            ([256, 64, 1, 1], 56 * 56, [1, 2], Tiling::Many),
            ([256, 256, 3, 3], 8 * 14 * 14, [8, 9], Tiling::Some),
            ([256, 256, 3, 3], 14 * 14, [8, 9], Tiling::Few),
            ([256, 256, 3, 3], 32 * 14 * 14, [8, 9], Tiling::Many),
            ([512, 512, 3, 3], 7 * 7, [8, 18], Tiling::Few),
            ([2048, 512, 1, 1], 7 * 7, [4, 4], Tiling::Few),
        ] {
            let of = of(dims);
            assert_eq!(of.slices(), slices, "{dims:?}");
            assert_eq!(Tiling::of(&of, pixels), tiling, "{dims:?}, {pixels} pixels");
        }
    }
}
