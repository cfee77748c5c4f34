//! Loops over tiles, and the fused epilogue.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::Act;

use super::dynamic::gemm_dynamic;
use super::element::Element;
use super::tile::{A_STRIDE, Clamp, DEPTH, HIGHEST, KC, NR, Tile, UNIT, num_tiles, panels};
use super::{AView, AnyB, PackedB, Panels, Right, packed_len, portable};
use crate::cpu::buffers::Aligned;
use crate::cpu::level::{Kind, Level, simd};
use crate::cpu::math;
use crate::cpu::pool::{Pool, Shards};

/// Rows whose copies stay in the second-level cache.
const MC: usize = 108;

/// Panels whose results stay in the second-level cache where chains are longer than a tile goes.
const NC: usize = 3 * UNIT;

/// Distance of copied left-hand blocks.
const A_BLOCK: usize = MC * A_STRIDE;

/// Fewest rows of a product from which copying the left side pays.
const COPY_ROWS: usize = 5;

/// Fewest tiles of rows from which panels are widened once for all of them.
const WIDEN_TILES: usize = 3;

/// Panels of the widest tile.
const WIDEST: usize = 4;

thread_local! {
    /// Copied left-hand block, and widened panels, of this thread.
    static BLOCKS: RefCell<[Aligned; 2]> = RefCell::new([
        Aligned::zeroed_whole(DEPTH / KC * A_BLOCK),
        Aligned::zeroed_whole(WIDEST * DEPTH * NR),
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

impl<'a> Epilogue<'a> {
    fn is_empty(&self) -> bool {
        self.bias.is_none() && self.act.is_none() && self.residual.is_none()
    }

    /// What tiles do before they store their elements, and what is left behind that.
    fn split(self, is_scaled: bool) -> (Option<&'a [f32]>, Clamp, Self) {
        if is_scaled {
            return (None, Clamp::None, self);
        }
        let clamp = match self.act {
            Some(Act::Relu) => Clamp::Relu,
            Some(Act::Relu6) => Clamp::Relu6,
            _ => Clamp::None,
        };
        let rest = Self {
            bias: None,
            act: self.act.filter(|_| clamp == Clamp::None),
            residual: self.residual,
        };
        (self.bias, clamp, rest)
    }
}

/// What the chains of a product begin with.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Zero.
    Zero,
    /// What the result holds.
    Stored,
    /// A residual, in the place of the result or elsewhere with its layout, plus a bias by column.
    Residual(Option<&'a [f32]>, Option<&'a [f32]>),
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
    let start = if resume { Start::Stored } else { Start::Zero };
    let num_panels = b.n.div_ceil(NR);
    let threads = if parallel { pool.threads() } else { 1 };
    if threads == 1 {
        // SAFETY: the whole result is borrowed mutably here.
        unsafe { gemm_range(level, a, 0..m, b, 0..num_panels, shards, ldc, start, epi) };
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
        unsafe { gemm_range(level, a, rows, b, first..last, shards, ldc, start, epi) };
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
    start: Start<'_>,
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
        matches!(start, Start::Zero) || b.scales.is_none(),
        "chains of integers end where they are scaled"
    );
    let c_end = (rows.end - 1) * ldc + b.n.min(cols.end * NR);
    if let Start::Residual(Some(from), _) = start {
        assert!(from.len() >= c_end, "residual of {} elements", from.len());
    }
    let bias = match start {
        Start::Residual(_, first) => epi.bias.or(first),
        _ => epi.bias,
    };
    if let Some(bias) = bias {
        assert!(bias.len() >= b.n, "bias of {} elements", bias.len());
    }
    let (bias, clamp, rest) = epi.split(b.scales.is_some());
    let whole = Whole {
        level,
        a,
        rows,
        b,
        cols,
        c,
        ldc,
        start,
        bias,
        clamp,
        rest,
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
    start: Start<'a>,
    /// What the last tiles of a chain do themselves.
    bias: Option<&'a [f32]>,
    clamp: Clamp,
    /// What is done behind them.
    rest: Epilogue<'a>,
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
        let copy = self.rows.len() >= COPY_ROWS && self.a.row_stride != A_STRIDE;
        let together = if b.k > DEPTH { NC } else { num_panels };
        BLOCKS.with_borrow_mut(|[left, wide]| {
            let num = self.rows.len();
            let chunks = num.div_ceil(MC);
            for chunk in 0..chunks {
                let m0 = self.rows.start + num * chunk / chunks;
                let rows = m0..self.rows.start + num * (chunk + 1) / chunks;
                let depths = (0..b.k).step_by(DEPTH);
                let parts = self.cols.clone().step_by(together);
                for (p, k0) in parts.flat_map(|p| depths.clone().map(move |k0| (p, k0))) {
                    let k = DEPTH.min(b.k - k0);
                    let source = &self.a.data[k0 / KC * self.a.block_stride..];
                    if copy {
                        copy_left(&self.a, source, rows.clone(), k, left);
                    }
                    let part = Part {
                        whole: self,
                        k,
                        left: if copy {
                            &left[..]
                        } else {
                            &source[m0 * self.a.row_stride..]
                        },
                        lda: if copy { A_STRIDE } else { self.a.row_stride },
                        a_block: if copy { A_BLOCK } else { self.a.block_stride },
                        first: k0 == 0,
                        last: k0 + k == b.k,
                    };
                    let cols = p..(p + together).min(self.cols.end);
                    // SAFETY: the rectangle is the caller's, sides were checked above.
                    unsafe { part.run(rows.clone(), cols, &panels[k0 * num_panels * NR..], wide) };
                }
            }
        });
    }
}

/// Copies `k` columns of some rows, so that those of a tile lie close together.
fn copy_left(a: &AView<'_>, source: &[f32], rows: Range<usize>, k: usize, to: &mut [f32]) {
    for (block, k0) in (0..k).step_by(KC).enumerate() {
        let k = KC.min(k - k0);
        for (i, row) in rows.clone().enumerate() {
            let from = &source[block * a.block_stride + row * a.row_stride..][..k];
            to[block * A_BLOCK + i * A_STRIDE..][..k].copy_from_slice(from);
        }
    }
}

/// One row chunk times as many steps as a tile goes.
struct Part<'a> {
    whole: &'a Whole<'a>,
    k: usize,
    left: &'a [f32],
    lda: usize,
    a_block: usize,
    first: bool,
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

/// The right side of a tile.
struct Side<E> {
    /// Blocks of `panels` panels.
    b: *const E,
    panels: usize,
    /// Where the tile begins.
    panel: usize,
    /// What is multiplied next.
    next: *const E,
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
        let num_panels = self.whole.b.n.div_ceil(NR);
        let full = cols.end.min(self.whole.b.n / NR);
        let widen = size_of::<E>() < size_of::<f32>() && num_tiles >= WIDEN_TILES;
        let steps = KC.min(self.k);
        let mut p = cols.start;
        while p < cols.end {
            let width = if p + group <= full {
                group
            } else if group > 2 && p + 2 <= full {
                2
            } else {
                1
            };
            if widen {
                self.widen_panels(right, p, width, wide);
            }
            for tile in 0..num_tiles {
                let first = rows.len() * tile / num_tiles;
                let num = rows.len() * (tile + 1) / num_tiles - first;
                // The panels of the next tile are these again, or those behind them.
                let next = p + if tile + 1 < num_tiles { 0 } else { width };
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
                            let side = Side {
                                b: wide.as_ptr(),
                                panels: width,
                                panel: q,
                                next: wide.as_ptr(),
                            };
                            self.tile(&place, &side);
                        } else {
                            let side = Side {
                                b: right.as_ptr(),
                                panels: num_panels,
                                panel: p + q,
                                next: right.as_ptr().wrapping_add((next + q) * steps * NR),
                            };
                            self.tile(&place, &side);
                        }
                    }
                }
            }
            p += width;
        }
    }

    /// Writes `width` panels from `first` on as f32, blocks of that many panels.
    fn widen_panels<E: Element>(&self, right: &[E], first: usize, width: usize, wide: &mut [f32]) {
        let num_panels = self.whole.b.n.div_ceil(NR);
        for k0 in (0..self.k).step_by(KC) {
            let k = KC.min(self.k - k0);
            let from = &right[(k0 * num_panels + first * k) * NR..][..width * k * NR];
            widen_panels(self.whole.level, from, &mut wide[k0 * width * NR..]);
        }
    }

    /// What a tile's elements begin with, as their distance of rows in it: null for zero.
    fn begin(&self, place: &Place) -> (*const f32, usize) {
        let Whole { c, ldc, .. } = *self.whole;
        let at = place.row * ldc + place.panel * NR;
        match self.whole.start {
            Start::Zero if self.first => (std::ptr::null(), 0),
            Start::Residual(Some(from), _) if self.first => (from.as_ptr().wrapping_add(at), ldc),
            _ => (c.as_ptr().wrapping_add(at).cast_const(), ldc),
        }
    }

    /// Biases of a tile, before its first and behind its last step.
    fn biases(&self, place: &Place) -> [Option<&[f32]>; 2] {
        let first = match self.whole.start {
            Start::Residual(_, bias) => bias.filter(|_| self.first),
            _ => None,
        };
        let (col, cols) = self.columns(place);
        [first, self.whole.bias.filter(|_| self.last)].map(|b| Some(&b?[col..col + cols]))
    }

    /// # Safety
    /// As [`gemm_range`].
    unsafe fn tile<E: Element>(&self, place: &Place, side: &Side<E>) {
        let Whole { c, ldc, .. } = *self.whole;
        // SAFETY: inside the caller's rectangle.
        unsafe {
            if place.partial {
                self.partial_tile(place, side);
            } else {
                let to = c.as_ptr().wrapping_add(place.row * ldc + place.panel * NR);
                let biases = self.biases(place).map(pointer);
                self.multiply(place, side, self.begin(place), biases, to, ldc);
            }
        }
        self.finish(place);
    }

    /// A tile whose last panel is not whole: it is computed beside the result.
    ///
    /// # Safety
    /// As [`gemm_range`].
    #[cold]
    unsafe fn partial_tile<E: Element>(&self, place: &Place, side: &Side<E>) {
        let Whole { c, ldc, .. } = *self.whole;
        let (col, cols) = self.columns(place);
        let mut edge = [0.0f32; HIGHEST * NR];
        let biases = self.biases(place).map(|bias| {
            let mut whole = [0.0; NR];
            whole[..cols].copy_from_slice(bias?);
            Some(whole)
        });
        let mut begin = self.begin(place);
        if !begin.0.is_null() {
            for r in 0..place.rows {
                // SAFETY: a row of the caller's rectangle, in the result or laid out as it.
                let from = unsafe { std::slice::from_raw_parts(begin.0.add(r * begin.1), cols) };
                edge[r * NR..r * NR + cols].copy_from_slice(from);
            }
            begin = (edge.as_ptr(), NR);
        }
        let biases = [&biases[0], &biases[1]].map(|b| pointer(b.as_ref().map(|b| &b[..])));
        // SAFETY: the edge has the rows of the highest tile.
        unsafe { self.multiply(place, side, begin, biases, edge.as_mut_ptr(), NR) };
        for r in 0..place.rows {
            // SAFETY: a row of the caller's rectangle.
            let to = unsafe { c.slice((place.row + r) * ldc + col, cols) };
            to.copy_from_slice(&edge[r * NR..r * NR + cols]);
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
    /// As [`gemm_range`]; `c`, and what elements begin with, have room for the tile's rows, of whole
    /// panels.
    unsafe fn multiply<E: Element>(
        &self,
        place: &Place,
        side: &Side<E>,
        (from, ld_from): (*const f32, usize),
        [first_bias, last_bias]: [*const f32; 2],
        c: *mut f32,
        ldc: usize,
    ) {
        let tile = Tile {
            k: self.k,
            a: self.left[place.first * self.lda..].as_ptr(),
            lda: self.lda,
            a_block: self.a_block,
            b: side.b,
            panels: side.panels,
            panel: side.panel,
            next: side.next,
            c,
            ldc,
            from,
            ld_from,
            first_bias,
            last_bias,
            clamp: if self.last {
                self.whole.clamp
            } else {
                Clamp::None
            },
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

    /// Runs what is left of the epilogue over a tile whose chains have ended.
    fn finish(&self, place: &Place) {
        let Whole {
            level,
            b,
            c,
            ldc,
            ref rest,
            ..
        } = *self.whole;
        if !self.last || (rest.is_empty() && b.scales.is_none()) {
            return;
        }
        let (col, cols) = self.columns(place);
        for row in place.row..place.row + place.rows {
            // SAFETY: a row of the rectangle of [`gemm_range`]'s caller; no other reference to it
            // lives.
            let c = unsafe { c.slice(row * ldc + col, cols) };
            finish_row(level, rest, b.scales, row, col, ldc, c);
        }
    }
}

fn pointer(x: Option<&[f32]>) -> *const f32 {
    x.map_or(std::ptr::null(), <[f32]>::as_ptr)
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
