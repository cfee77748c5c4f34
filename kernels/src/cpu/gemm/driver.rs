//! Loops over tiles, and the fused epilogue.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::Act;

use super::dynamic::gemm_dynamic;
use super::element::Element;
use super::tile::{A_STRIDE, HIGHEST, KC, NR, Tile, UNIT, num_tiles, panels};
use super::{AView, AnyB, PackedB, Panels, Right, packed_len, portable};
use crate::cpu::buffers::Aligned;
use crate::cpu::level::{Kind, Level, simd};
use crate::cpu::math;
use crate::cpu::pool::{Pool, Shards};

/// Rows whose copies stay in the second-level cache.
const MC: usize = 108;

/// Panels whose results stay in the second-level cache over all blocks of `k`.
const NC: usize = 3 * UNIT;

/// Fewest rows of a product from which copying the left side pays.
const COPY_ROWS: usize = 5;

/// Fewest tiles of rows from which panels are widened once for all of them.
const WIDEN_TILES: usize = 3;

/// Panels of the widest tile.
const WIDEST: usize = 4;

thread_local! {
    /// Copied left-hand block, and widened panels, of this thread.
    static BLOCKS: RefCell<[Aligned; 2]> = RefCell::new([
        Aligned::zeroed(MC * A_STRIDE),
        Aligned::zeroed(WIDEST * KC * NR),
    ]);
}

/// What happens to a finished element: bias, activation and residual, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added by column.
    pub bias: Option<&'a [f32]>,
    /// Activation.
    pub act: Option<Act>,
    /// Added elementwise; rows as far apart as those of the result.
    pub residual: Option<&'a [f32]>,
}

impl Epilogue<'_> {
    fn is_empty(&self) -> bool {
        self.bias.is_none() && self.act.is_none() && self.residual.is_none()
    }
}

simd! {
    /// Finishes one row's columns `col..col + c.len()`; chains of integers are scaled first.
    pub fn finish_row(
        e: &Epilogue<'_>,
        scales: Option<&[f32]>,
        row: usize,
        col: usize,
        ldc: usize,
        c: &mut [f32],
    ) {
        let n = c.len();
        if let Some(scales) = scales {
            let scales = &scales[col..col + n];
            (0..n).for_each(|j| c[j] *= scales[j]);
        }
        if let Some(bias) = e.bias {
            let bias = &bias[col..col + n];
            (0..n).for_each(|j| c[j] += bias[j]);
        }
        apply(e.act, c);
        if let Some(residual) = e.residual {
            let residual = &residual[row * ldc + col..][..n];
            (0..n).for_each(|j| c[j] += residual[j]);
        }
    }
}

#[inline(always)]
fn apply(act: Option<Act>, c: &mut [f32]) {
    match act {
        None => {}
        Some(Act::Relu) => math::for_lanes(c, |v| math::act(Act::Relu, v)),
        Some(Act::Relu6) => math::for_lanes(c, |v| math::act(Act::Relu6, v)),
        Some(Act::Gelu) => math::for_lanes(c, |v| math::act(Act::Gelu, v)),
        Some(Act::Tanh) => math::for_lanes(c, |v| math::act(Act::Tanh, v)),
        Some(Act::Sigmoid) => math::for_lanes(c, |v| math::act(Act::Sigmoid, v)),
        Some(Act::Silu) => math::for_lanes(c, |v| math::act(Act::Silu, v)),
    }
}

/// The product of the rows of `x` with a packed weight, on the pool if `parallel`.
///
/// `x: [m, k]`, `c: [m, n]`; `resume` continues the chains from the content of `c`.
///
/// # Panics
/// If `c` does not have `m * n` elements, or chains of integers are to be continued.
pub fn gemm_packed(
    pool: &mut Pool,
    level: Level,
    parallel: bool,
    x: &[f32],
    w: &PackedB,
    c: &mut [f32],
    resume: bool,
    epi: &Epilogue<'_>,
) {
    let m = x.len() / w.k;
    let c = &mut c[..m * w.n];
    match w.view() {
        AnyB::Float(b) => {
            let a = AView::rows(x, w.k);
            gemm(pool, level, parallel, a, m, b, c, w.n, resume, epi);
        }
        AnyB::Dynamic(b) => {
            assert!(!resume, "chains of integers end where they are scaled");
            gemm_dynamic(pool, level, parallel, x, m, b, c, w.n, epi);
        }
    }
}

/// The product of `m` rows with all columns, on the pool if `parallel`.
///
/// `c: [m, n]` with rows `ldc` apart; `resume` continues the chains from its content.
pub fn gemm<'b>(
    pool: &mut Pool,
    level: Level,
    parallel: bool,
    a: AView<'_>,
    m: usize,
    b: impl Into<Right<'b>>,
    c: &mut [f32],
    ldc: usize,
    resume: bool,
    epi: &Epilogue<'_>,
) {
    let b = b.into();
    if m == 0 || b.n == 0 {
        return;
    }
    assert!(
        c.len() >= (m - 1) * ldc + b.n,
        "result of [{m}, {}] with stride {ldc}",
        b.n
    );
    let shards = Shards::new(c);
    let num_panels = b.n.div_ceil(NR);
    let threads = if parallel { pool.threads() } else { 1 };
    if threads == 1 {
        // SAFETY: the whole result is borrowed mutably here.
        unsafe { gemm_range(level, a, 0..m, b, 0..num_panels, shards, ldc, resume, epi) };
        return;
    }
    let chunks = m.div_ceil(MC);
    let rows_each = m.div_ceil(chunks);
    let unit = unit(num_panels, threads);
    let units = num_panels.div_ceil(unit);
    let splits = (2 * threads).div_ceil(chunks).clamp(1, units);
    pool.run(chunks * splits, |task| {
        let (chunk, split) = (task % chunks, task / chunks);
        let rows = chunk * rows_each..((chunk + 1) * rows_each).min(m);
        let first = units * split / splits * unit;
        let last = (units * (split + 1) / splits * unit).min(num_panels);
        // SAFETY: tasks own disjoint rectangles of the result.
        unsafe { gemm_range(level, a, rows, b, first..last, shards, ldc, resume, epi) };
    });
}

/// Panels that are shared out together among `threads`: fewer where that would leave one idle.
pub fn unit(num_panels: usize, threads: usize) -> usize {
    if num_panels >= 2 * threads * UNIT {
        UNIT
    } else {
        4
    }
}

/// The rectangle `rows` x `cols` (in panels) of a product, on the calling thread.
///
/// # Safety
/// No other task may touch the rectangle of `c` meanwhile.
///
/// # Panics
/// If `a`, `b` or `c` are too short, or chains of integers are to be continued.
pub unsafe fn gemm_range<'b>(
    level: Level,
    a: AView<'_>,
    rows: Range<usize>,
    b: impl Into<Right<'b>>,
    cols: Range<usize>,
    c: Shards,
    ldc: usize,
    resume: bool,
    epi: &Epilogue<'_>,
) {
    let b = b.into();
    let num_panels = b.n.div_ceil(NR);
    if rows.is_empty() || cols.is_empty() || b.k == 0 {
        return;
    }
    let last_block = (b.k - 1) / KC;
    let a_end =
        last_block * a.block_stride + (rows.end - 1) * a.row_stride + (b.k - last_block * KC);
    assert!(
        a.data.len() >= a_end,
        "left side of {} elements, {a_end} needed",
        a.data.len()
    );
    assert!(cols.end <= num_panels, "right side of {num_panels} panels");
    assert!(
        !(resume && b.scales.is_some()),
        "chains of integers end where they are scaled"
    );
    let whole = Whole {
        level,
        a,
        rows,
        b,
        cols,
        c,
        ldc,
        resume,
        epi,
    };
    // SAFETY: the rectangle is the caller's, and the left side was checked.
    unsafe {
        match b.panels {
            Panels::F32(panels) => whole.run(panels),
            Panels::F16(panels) => whole.run(panels),
            Panels::Bf16(panels) => whole.run(panels),
            Panels::Int8(panels) => whole.run(panels),
        }
    }
}

/// A rectangle of a product.
struct Whole<'a> {
    level: Level,
    a: AView<'a>,
    rows: Range<usize>,
    b: Right<'a>,
    cols: Range<usize>,
    c: Shards,
    ldc: usize,
    resume: bool,
    epi: &'a Epilogue<'a>,
}

impl Whole<'_> {
    /// # Safety
    /// As [`gemm_range`].
    unsafe fn run<E: Element>(&self, panels: &[E]) {
        let b = &self.b;
        assert!(
            panels.len() >= packed_len(b.k, b.n),
            "right side of {} elements, {} needed",
            panels.len(),
            packed_len(b.k, b.n)
        );
        let num_panels = b.n.div_ceil(NR);
        let last_block = (b.k - 1) / KC;
        let copy = self.rows.len() >= COPY_ROWS && self.a.row_stride != A_STRIDE;
        BLOCKS.with_borrow_mut(|[left, wide]| {
            let num = self.rows.len();
            let chunks = num.div_ceil(MC);
            for chunk in 0..chunks {
                let m0 = self.rows.start + num * chunk / chunks;
                let rows = m0..self.rows.start + num * (chunk + 1) / chunks;
                let blocks = (0..b.k).step_by(KC).enumerate();
                let parts = self.cols.clone().step_by(NC);
                for (p, (block, k0)) in parts.flat_map(|p| blocks.clone().map(move |b| (p, b))) {
                    let k = KC.min(b.k - k0);
                    let source = &self.a.data[block * self.a.block_stride..];
                    let (left, lda) = if copy {
                        for (i, row) in rows.clone().enumerate() {
                            left[i * A_STRIDE..][..k]
                                .copy_from_slice(&source[row * self.a.row_stride..][..k]);
                        }
                        (&left[..], A_STRIDE)
                    } else {
                        (&source[m0 * self.a.row_stride..], self.a.row_stride)
                    };
                    let part = Part {
                        whole: self,
                        k,
                        left,
                        lda,
                        resume: self.resume || block > 0,
                        last: block == last_block,
                    };
                    let cols = p..(p + NC).min(self.cols.end);
                    // SAFETY: the rectangle is the caller's, sides were checked above.
                    unsafe { part.run(rows.clone(), cols, &panels[k0 * num_panels * NR..], wide) };
                }
            }
        });
    }
}

/// One row chunk times one block of `k`.
struct Part<'a> {
    whole: &'a Whole<'a>,
    k: usize,
    left: &'a [f32],
    lda: usize,
    resume: bool,
    last: bool,
}

/// Where a tile lies in its part.
struct Place {
    /// First row, and its number within the part.
    row: usize,
    first: usize,
    rows: usize,
    panel: usize,
    width: usize,
    /// Whether the last panel is not whole.
    partial: bool,
}

impl Part<'_> {
    /// # Safety
    /// As [`gemm_range`].
    unsafe fn run<E: Element>(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        right: &[E],
        wide: &mut [f32],
    ) {
        let level = self.whole.level;
        let kind = level.kind();
        let num_tiles = num_tiles(kind, rows.len());
        let group = panels(kind, rows.len().div_ceil(num_tiles));
        let full = cols.end.min(self.whole.b.n / NR);
        let widen = size_of::<E>() < size_of::<f32>() && num_tiles >= WIDEN_TILES;
        let panel_len = self.k * NR;
        let mut p = cols.start;
        while p < cols.end {
            let width = if p + group <= full {
                group
            } else if group > 2 && p + 2 <= full {
                2
            } else {
                1
            };
            let right = &right[p * panel_len..];
            if widen {
                widen_panels(level, &right[..width * panel_len], wide);
            }
            for tile in 0..num_tiles {
                let first = rows.len() * tile / num_tiles;
                let num = rows.len() * (tile + 1) / num_tiles - first;
                // Smaller tiles than the widest shape supports fall back to one panel at a time.
                let step = if has_shape(kind, num, width) {
                    width
                } else {
                    1
                };
                for q in (0..width).step_by(step) {
                    let place = Place {
                        row: rows.start + first,
                        first,
                        rows: num,
                        panel: p + q,
                        width: step,
                        partial: p >= full,
                    };
                    // SAFETY: inside the caller's rectangle.
                    unsafe {
                        if widen {
                            self.tile(&place, &wide[q * panel_len..]);
                        } else {
                            self.tile(&place, &right[q * panel_len..]);
                        }
                    }
                }
            }
            p += width;
        }
    }

    /// A tile of panels that begin at `right`.
    ///
    /// # Safety
    /// As [`gemm_range`].
    unsafe fn tile<E: Element>(&self, place: &Place, right: &[E]) {
        let Whole { c, ldc, .. } = *self.whole;
        // SAFETY: inside the caller's rectangle.
        unsafe {
            if place.partial {
                self.partial_tile(place, right);
            } else {
                let to = c.as_ptr().wrapping_add(place.row * ldc + place.panel * NR);
                self.multiply(place, right, to, ldc);
            }
        }
        self.finish(place);
    }

    /// A tile whose last panel is not whole: it is computed beside the result.
    ///
    /// # Safety
    /// As [`gemm_range`].
    #[cold]
    unsafe fn partial_tile<E: Element>(&self, place: &Place, right: &[E]) {
        let Whole { c, ldc, .. } = *self.whole;
        let (col, cols) = self.columns(place);
        let mut edge = [0.0f32; HIGHEST * NR];
        // SAFETY: a row of the caller's rectangle.
        let row = |r: usize| unsafe { c.slice((place.row + r) * ldc + col, cols) };
        if self.resume {
            for r in 0..place.rows {
                edge[r * NR..r * NR + cols].copy_from_slice(row(r));
            }
        }
        // SAFETY: the edge has the rows of the highest tile.
        unsafe { self.multiply(place, right, edge.as_mut_ptr(), NR) };
        for r in 0..place.rows {
            row(r).copy_from_slice(&edge[r * NR..r * NR + cols]);
        }
    }

    /// First column of a tile, and how many there are.
    fn columns(&self, place: &Place) -> (usize, usize) {
        let col = place.panel * NR;
        (col, (place.width * NR).min(self.whole.b.n - col))
    }

    /// Computes a tile into `c`, rows `ldc` apart.
    ///
    /// # Safety
    /// As [`gemm_range`]; `c` has room for the tile's rows, of whole panels.
    unsafe fn multiply<E: Element>(&self, place: &Place, right: &[E], c: *mut f32, ldc: usize) {
        let tile = Tile {
            k: self.k,
            a: self.left[place.first * self.lda..].as_ptr(),
            lda: self.lda,
            b: right.as_ptr(),
            ldb: self.k * NR,
            c,
            ldc,
            resume: self.resume,
        };
        // SAFETY: the level proves the instructions; both sides were checked, the result is the
        // caller's.
        unsafe {
            match self.whole.level.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => super::x86::run512(&tile, place.rows, place.width),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => super::x86::run256(&tile, place.rows, place.width),
                #[cfg(target_arch = "aarch64")]
                Kind::Neon => super::neon::run(&tile, place.rows),
                _ => portable::run(&tile, place.rows, place.width),
            }
        }
    }

    /// Runs the epilogue over a tile whose chains have ended.
    fn finish(&self, place: &Place) {
        let Whole {
            level,
            b,
            c,
            ldc,
            epi,
            ..
        } = *self.whole;
        if !self.last || (epi.is_empty() && b.scales.is_none()) {
            return;
        }
        let (col, cols) = self.columns(place);
        for row in place.row..place.row + place.rows {
            // SAFETY: a row of the rectangle of [`gemm_range`]'s caller; no other reference to it
            // lives.
            let c = unsafe { c.slice(row * ldc + col, cols) };
            finish_row(level, epi, b.scales, row, col, ldc, c);
        }
    }
}

/// Writes whole panels as f32.
fn widen_panels<E: Element>(level: Level, from: &[E], to: &mut [f32]) {
    match level.kind() {
        // SAFETY: the level proves the instructions.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { super::x86::widen512(from, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { super::x86::widen256(from, to) },
        _ => from
            .iter()
            .zip(to)
            .for_each(|(from, to)| *to = from.widen()),
    }
}

const fn has_shape(kind: Kind, rows: usize, width: usize) -> bool {
    match kind {
        Kind::Avx512 => match width {
            1 => true,
            2 => rows <= 14,
            3 => matches!(rows, 6..=9),
            _ => rows <= 6,
        },
        Kind::Avx2 => width == 1 || (width == 2 && rows <= 3) || (width == 4 && rows == 1),
        Kind::Neon => width == 1,
        Kind::Portable => true,
    }
}
