//! Shapes of register tiles.
//!
//! A tile is up to sixteen rows by one to four panels of sixteen columns, held in registers
//! over a block of `k`. Which shape computes an element does not change its chain.

use crate::cpu::level::Kind;

/// Columns of a panel.
pub const NR: usize = 16;

/// Inner dimension of a block.
pub const KC: usize = 256;

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

/// One product of a row tile with adjacent panels over one block of `k`.
#[derive(Clone, Copy, Debug)]
pub struct Tile<E> {
    /// Steps of the chain.
    pub k: usize,
    /// First element of the left side.
    pub a: *const f32,
    /// Distance of its rows.
    pub lda: usize,
    /// First element of the first panel.
    pub b: *const E,
    /// Distance of panels.
    pub ldb: usize,
    /// First element of the result.
    pub c: *mut f32,
    /// Distance of its rows.
    pub ldc: usize,
    /// Continue from the stored elements instead of zero.
    pub resume: bool,
}
