//! Shapes of register tiles.
//!
//! A tile is up to fourteen rows by one to four panels of sixteen columns, held in registers
//! over a block of `k`. Which shape computes an element does not change its chain.

use super::view::Segment;
use crate::cpu::level::Kind;

/// Columns of a panel.
pub const NR: usize = 16;

/// Inner dimension of a block.
pub const KC: usize = 256;

/// Steps of a chain that a tile goes through before it stores its elements.
pub const DEPTH: usize = 4 * KC;

/// Rows of the highest tile of any kind.
pub const HIGHEST: usize = 14;

/// Panels of the widest tile.
pub const WIDEST: usize = 4;

/// Panels whose width every tile divides: where columns are shared out, whole tiles stay together.
pub const UNIT: usize = 12;

/// Tiles that `rows` rows are split into. One tile passes over the panels once, which is worth more
/// than its shape where the panels come from far; but a tile of one panel loads more elements of the
/// left side than it multiplies vectors: there are two of half its rows then.
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
pub struct Tile<'a, E> {
    /// The steps.
    pub segments: &'a [Segment],
    /// All of them but those above.
    pub k: usize,
    /// First element of the left side.
    pub a: *const f32,
    /// Distance of its rows.
    pub lda: usize,
    /// First element of the right side: blocks of `panels` panels one after another.
    pub b: *const E,
    /// The right side of the first steps, if it lies elsewhere, and how many they are.
    pub above: (*const E, usize),
    /// Panels of a block.
    pub panels: usize,
    /// The first of those that the tile spans.
    pub panel: usize,
    /// What is multiplied next: fetched towards the end.
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

/// The right side of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Right<E> {
    /// First element of the first panel.
    pub b: *const E,
    /// Distance of panels.
    pub ldb: usize,
    /// Steps from there to the end of the block.
    pub left: usize,
    /// First element of the block behind it.
    pub next: *const E,
}

impl<E> Tile<'_, E> {
    /// The right side of a segment.
    #[inline(always)]
    pub fn right(&self, s: &Segment) -> Right<E> {
        let main = (self.b, self.k);
        let (b, k) = if s.is_above { self.above } else { main };
        let len = |k: usize, block: usize| (k - block * KC).min(KC);
        let panel = |(b, k): (*const E, usize), block: usize| {
            let at = block * KC * self.panels + self.panel * len(k, block);
            b.wrapping_add(at * NR)
        };
        let is_last = (s.block + 1) * KC >= k;
        Right {
            b: panel((b, k), s.block).wrapping_add(s.first * NR),
            ldb: len(k, s.block) * NR,
            left: len(k, s.block) - s.first,
            next: match (is_last, s.is_above) {
                (false, _) => panel((b, k), s.block + 1),
                (true, true) => panel(main, 0),
                (true, false) => self.next,
            },
        }
    }
}
