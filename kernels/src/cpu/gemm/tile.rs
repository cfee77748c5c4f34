//! Shapes of register tiles.
//!
//! A tile is up to sixteen rows by one to four panels of sixteen columns, held in registers
//! over a block of `k`. Which shape computes an element does not change its chain.

use crate::cpu::level::Kind;

/// Columns of a panel.
pub const NR: usize = 16;

/// Inner dimension of a block.
pub const KC: usize = 256;

/// Steps of a chain that a tile goes through before it stores its elements.
pub const DEPTH: usize = 4 * KC;

/// Distance of rows in copied left-hand blocks: off the power of two that would put all rows of a
/// tile on one cache set.
pub const A_STRIDE: usize = KC + 16;

/// Rows of the highest tile of any kind.
pub const HIGHEST: usize = 16;

/// Panels whose width every tile divides: where columns are shared out, whole tiles stay together.
pub const UNIT: usize = 12;

/// Tiles that `rows` rows are split into. One tile passes over the panels once, which is worth more
/// than its shape where the panels come from far.
pub const fn num_tiles(kind: Kind, rows: usize) -> usize {
    match (kind, rows) {
        (Kind::Avx512, ..=HIGHEST) => 1,
        _ => rows.div_ceil(max_rows(kind)),
    }
}

/// Most rows of one among several tiles.
const fn max_rows(kind: Kind) -> usize {
    match kind {
        // Nine rows by three panels need fewer instructions a multiply-add than fourteen by two.
        Kind::Avx512 => 9,
        Kind::Avx2 | Kind::Neon => 6,
        Kind::Portable => 4,
    }
}

/// Panels that a tile of `rows` rows spans.
pub const fn panels(kind: Kind, rows: usize) -> usize {
    match (kind, rows) {
        (Kind::Avx512, 1..=6) => 4,
        (Kind::Avx512, 7..=9) => 3,
        (Kind::Avx512, 10..=14) => 2,
        (Kind::Avx2, 1) => 4,
        (Kind::Avx2, 2..=3) => 2,
        _ => 1,
    }
}

/// Activations that a tile applies before it stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clamp {
    /// None.
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
}

/// One product of a row tile with adjacent panels, over up to [`DEPTH`] steps.
///
/// Elements begin at zero or at `from`, plus `first_bias`; at the end `last_bias` and `clamp` follow.
/// Pointers that are null mean that there is no such thing.
#[derive(Clone, Copy, Debug)]
pub struct Tile<E> {
    /// Steps of the chain, in blocks of [`KC`].
    pub k: usize,
    /// First element of the left side.
    pub a: *const f32,
    /// Distance of its rows.
    pub lda: usize,
    /// Distance of its blocks.
    pub a_block: usize,
    /// First element of the right side: blocks of `panels` panels one after another.
    pub b: *const E,
    /// Panels of a block.
    pub panels: usize,
    /// The first of those that the tile spans.
    pub panel: usize,
    /// What is multiplied next: is fetched towards the end.
    pub next: *const E,
    /// First element of the result.
    pub c: *mut f32,
    /// Distance of its rows.
    pub ldc: usize,
    /// What elements begin with.
    pub from: *const f32,
    /// Distance of its rows.
    pub ld_from: usize,
    /// Added by column before the first step.
    pub first_bias: *const f32,
    /// Added by column behind the last step.
    pub last_bias: *const f32,
    /// Applied behind that.
    pub clamp: Clamp,
}

/// One block of a tile's steps.
#[derive(Clone, Copy, Debug)]
pub struct Block<E> {
    /// Steps.
    pub k: usize,
    /// First element of the left side.
    pub a: *const f32,
    /// First element of the first panel.
    pub b: *const E,
    /// Distance of panels.
    pub ldb: usize,
    /// First element of what is multiplied next.
    pub next: *const E,
}

impl<E> Tile<E> {
    /// The blocks, in order.
    #[inline(always)]
    pub fn blocks(&self) -> impl Iterator<Item = Block<E>> {
        let t = self;
        let start =
            move |i: usize, k: usize| t.b.wrapping_add(i * KC * t.panels * NR + t.panel * k * NR);
        (0..t.k.div_ceil(KC)).map(move |i| {
            let rest = t.k - i * KC;
            let k = if rest < KC { rest } else { KC };
            Block {
                k,
                a: t.a.wrapping_add(i * t.a_block),
                b: start(i, k),
                ldb: k * NR,
                next: match rest - k {
                    0 => t.next,
                    behind if behind < KC => start(i + 1, behind),
                    _ => start(i + 1, KC),
                },
            }
        })
    }
}
