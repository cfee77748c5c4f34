//! Loops over tiles.

use std::cell::RefCell;
use std::ops::Range;

use super::driver::{Epilogue, Start, finish_row};
use super::element::Element;
use super::tile::{Clamp, DEPTH, HIGHEST, KC, NR, Tile, UNIT, WIDEST, num_tiles, panels};
use super::view::{AView, Axis, Segment, segments};
use super::{Right, packed_len, portable};
use crate::arena::LINE;
use crate::cpu::buffers::Aligned;
use crate::cpu::level::{Kind, Level};
use crate::cpu::pool::Shards;

/// Rows whose copies stay in the second-level cache.
pub const MC: usize = 108;

/// Most rows of a left side that is read as it lies: what a panel is multiplied with while it is in
/// the first-level cache.
pub const MOST_ROWS: usize = 112;

/// Panels whose results stay in the second-level cache where chains are longer than a tile goes.
const NC: usize = 3 * UNIT;

/// Fewest rows of a product from which copying the left side pays.
const COPY_ROWS: usize = 5;

/// Fewest panels from which it does.
const COPY_PANELS: usize = 16;

/// Distance of rows in copied left-hand blocks: off the power of two that would put all rows of a
/// tile on one cache set.
const A_STRIDE: usize = KC + 16;

/// Distance of copied left-hand blocks.
const A_BLOCK: usize = MC * A_STRIDE;

/// Elements of a result from which it lies too far away to be written without being fetched before:
/// those that fill the second-level cache.
const FAR: usize = 1 << 18;

/// Most bytes of the left side of a tile that are fetched before: what is left of the first-level cache
/// by panels, and by the tile that is computed meanwhile.
const MOST_LEFT: usize = 12 << 10;

/// Fewest tiles of rows from which panels are widened once for all of them.
const WIDEN_TILES: usize = 3;

/// What a thread works with.
struct Work {
    /// Copied left-hand blocks.
    left: Aligned,
    /// Widened panels.
    wide: Aligned,
    segments: Vec<Segment>,
    tiles: Vec<Rows>,
}

/// Rows of a tile.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    num: usize,
    /// Where the left side of the first begins.
    a: usize,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::new(Work {
        left: Aligned::zeroed_whole(DEPTH / KC * A_BLOCK),
        wide: Aligned::zeroed_whole(WIDEST * DEPTH * NR),
        // Who first takes a task of many rows is chance: no thread makes room for them then.
        // Blocks of the left side and of two stacked right ones end at different steps.
        segments: Vec::with_capacity(2 * DEPTH / KC + 2),
        tiles: Vec::with_capacity(MOST_ROWS),
    });
}

/// A rectangle of a product.
pub struct Whole<'a> {
    pub level: Level,
    pub a: AView<'a>,
    pub rows: Range<usize>,
    pub b: Right<'a>,
    pub cols: Range<usize>,
    pub c: Shards,
    pub ldc: usize,
    pub start: Start<'a>,
    /// What the last tiles of a chain do themselves.
    pub bias: Option<&'a [f32]>,
    pub clamp: Clamp,
    /// What is done behind them.
    pub rest: Epilogue<'a>,
}

impl Whole<'_> {
    /// # Safety
    /// As [`gemm_range`](super::gemm_range).
    pub unsafe fn run<E: Element>(&self, panels: &[E], top: &[E]) {
        let b = &self.b;
        let above = b.num_above();
        assert!(above == 0 || b.steps == b.k && b.k <= DEPTH, "one part");
        for (k, panels) in [(above, top), (b.k - above, panels)] {
            let needed = packed_len(k, b.n);
            assert!(
                panels.len() >= needed,
                "right side of {} elements, {needed} needed",
                panels.len(),
            );
        }
        let num_panels = b.n.div_ceil(NR);
        let copy = self.rows.len() >= COPY_ROWS && self.cols.len() >= COPY_PANELS;
        let together = if b.steps > DEPTH { NC } else { num_panels };
        let most = if copy { MC } else { MOST_ROWS };
        WORK.with_borrow_mut(|work| {
            let num = self.rows.len();
            let chunks = num.div_ceil(most);
            for chunk in 0..chunks {
                let m0 = self.rows.start + num * chunk / chunks;
                let rows = m0..self.rows.start + num * (chunk + 1) / chunks;
                let copied = Axis::even(A_STRIDE);
                let (axis, start) = if copy {
                    (&copied, m0)
                } else {
                    (&self.a.rows, 0)
                };
                split(
                    self.level.kind(),
                    rows.clone(),
                    axis,
                    start,
                    &mut work.tiles,
                );
                let depths = (0..b.steps).step_by(DEPTH);
                let parts = self.cols.clone().step_by(together);
                for (p, k0) in parts.flat_map(|p| depths.clone().map(move |k0| (p, k0))) {
                    // What panels have from there on, and how much of it is multiplied.
                    let (k, steps) = (DEPTH.min(b.k - above - k0), DEPTH.min(b.steps - k0));
                    if copy {
                        copy_left(&self.a, rows.clone(), k0, steps, &mut work.left);
                        let blocks = (0..steps).step_by(KC).enumerate();
                        let runs = blocks.map(|(i, at)| (i * A_BLOCK, KC.min(steps - at)));
                        segments(runs, above, &mut work.segments);
                    } else {
                        segments(self.a.runs(k0, steps), above, &mut work.segments);
                    }
                    let part = Part {
                        whole: self,
                        segments: &work.segments,
                        tiles: &work.tiles,
                        k,
                        left: if copy { &work.left } else { self.a.data },
                        lda: axis.strides[0],
                        is_far: !copy && self.left_is_far(&work.segments, &work.tiles),
                        is_first: k0 == 0,
                        is_last: k0 + steps == b.steps,
                    };
                    let cols = p..(p + together).min(self.cols.end);
                    // SAFETY: the rectangle is the caller's, sides were checked above.
                    unsafe { part.run(cols, &panels[k0 * num_panels * NR..], top, &mut work.wide) };
                }
            }
        });
    }

    /// Whether the result lies far away.
    fn is_far(&self) -> bool {
        self.c.elems() >= FAR
    }

    /// Whether the left side, which is read as it lies, does so likewise, and no tile reads what the one
    /// before has read: rows that are short runs, which end before the processor finds out where the
    /// next elements are.
    fn left_is_far(&self, segments: &[Segment], tiles: &[Rows]) -> bool {
        let highest = tiles.iter().map(|tile| tile.num).max().unwrap_or(0);
        let bytes = |s: &Segment| highest * s.k * size_of::<f32>();
        match segments {
            [s] => self.is_far() && self.a.rows.strides[0] >= s.k && bytes(s) <= MOST_LEFT,
            _ => false,
        }
    }
}

/// Splits `rows`, which lie as `axis` says from row `start` on, into tiles of rows at one distance.
fn split(kind: Kind, rows: Range<usize>, axis: &Axis, start: usize, to: &mut Vec<Rows>) {
    to.clear();
    let mut first = rows.start;
    while first < rows.end {
        let (at, line) = (first - start, axis.inner);
        let num = (rows.end - first).min(line - at % line);
        let (tiles, a) = (num_tiles(kind, num), axis.at(at));
        let (each, more) = (num / tiles, num % tiles);
        to.extend((0..tiles).map(|i| {
            let from = i * each + i.min(more);
            Rows {
                first: first + from,
                num: each + usize::from(i < more),
                a: a + from * axis.strides[0],
            }
        }));
        first += num;
    }
}

/// Copies `k` columns of some rows from `k0` on, so that those of a tile lie close together.
fn copy_left(a: &AView<'_>, rows: Range<usize>, k0: usize, k: usize, to: &mut [f32]) {
    for (block, at) in (0..k).step_by(KC).enumerate() {
        for (i, row) in rows.clone().enumerate() {
            let source = &a.data[a.rows.at(row)..];
            let mut to = &mut to[block * A_BLOCK + i * A_STRIDE..];
            for (start, len) in a.runs(k0 + at, KC.min(k - at)) {
                let (now, behind) = to.split_at_mut(len);
                now.copy_from_slice(&source[start..][..len]);
                to = behind;
            }
        }
    }
}

/// Some rows times as many steps as a tile goes.
struct Part<'a> {
    whole: &'a Whole<'a>,
    segments: &'a [Segment],
    tiles: &'a [Rows],
    k: usize,
    /// The left side, and the distance of the rows of a tile.
    left: &'a [f32],
    lda: usize,
    /// Whether tiles fetch the left side of the next one.
    is_far: bool,
    is_first: bool,
    is_last: bool,
}

/// Where a tile lies in its part.
struct Place {
    row: usize,
    rows: usize,
    /// Where its left side begins.
    a: usize,
    panel: usize,
    width: usize,
    /// Whether the last panel is not whole.
    partial: bool,
}

/// The right side of a tile.
struct Side<E> {
    /// Blocks of the first steps, if they lie elsewhere.
    above: *const E,
    /// Blocks of `panels` panels.
    b: *const E,
    panels: usize,
    /// Where the tile begins.
    panel: usize,
    /// What is multiplied next.
    next: *const E,
}

impl<'a> Part<'a> {
    /// # Safety
    /// As [`gemm_range`](super::gemm_range).
    unsafe fn run<E: Element>(
        &self,
        cols: Range<usize>,
        right: &[E],
        above: &[E],
        wide: &mut [f32],
    ) {
        let kind = self.whole.level.kind();
        let highest = self.tiles.iter().map(|t| t.num).max();
        let group = panels(kind, highest.unwrap_or(1));
        let num_panels = self.whole.b.n.div_ceil(NR);
        let full = cols.end.min(self.whole.b.n / NR);
        let widen = size_of::<E>() < size_of::<f32>() && self.tiles.len() >= WIDEN_TILES;
        // What tiles begin with.
        let (first, steps) = match self.whole.b.num_above() {
            0 => (right, KC.min(self.k)),
            num => (above, KC.min(num)),
        };
        let is_far = self.whole.is_far();
        let mut p = cols.start;
        while p < cols.end {
            let width = width(group, full.saturating_sub(p));
            if widen {
                self.widen_panels(right, p, width, wide);
            }
            for (tile, rows) in self.tiles.iter().enumerate() {
                // The panels of the next tile are these again, or those behind them.
                let next = p + if tile + 1 < self.tiles.len() {
                    0
                } else {
                    width
                };
                if is_far {
                    let (rows, panel, left) = match self.tiles.get(tile + 1) {
                        Some(rows) => (rows, p, self.is_far && p == cols.start),
                        None => (&self.tiles[0], p + width, false),
                    };
                    self.fetch(rows, panel..(panel + width).min(cols.end), left);
                }
                // Shapes that there is no tile for are computed one panel at a time.
                let step = if has_shape(kind, rows.num, width) {
                    width
                } else {
                    1
                };
                for q in (0..width).step_by(step) {
                    let place = Place {
                        row: rows.first,
                        rows: rows.num,
                        a: rows.a,
                        panel: p + q,
                        width: step,
                        partial: p >= full,
                    };
                    // SAFETY: inside the caller's rectangle.
                    unsafe {
                        if widen {
                            let side = Side {
                                above: std::ptr::null(),
                                b: wide.as_ptr(),
                                panels: width,
                                panel: q,
                                next: wide.as_ptr(),
                            };
                            self.tile(&place, &side);
                        } else {
                            let side = Side {
                                above: above.as_ptr(),
                                b: right.as_ptr(),
                                panels: num_panels,
                                panel: p + q,
                                next: first.as_ptr().wrapping_add((next + q) * steps * NR),
                            };
                            self.tile(&place, &side);
                        }
                    }
                }
            }
            p += width;
        }
    }

    /// Fetches what a tile writes, and what it reads of the left side.
    fn fetch(&self, rows: &Rows, panels: Range<usize>, left: bool) {
        let Whole { c, ldc, .. } = *self.whole;
        for r in 0..rows.num {
            let to = c.as_ptr().wrapping_add((rows.first + r) * ldc);
            panels
                .clone()
                .for_each(|p| fetch_to_write(to.wrapping_add(p * NR)));
            if let (true, [s]) = (left, self.segments) {
                let from = self.left.as_ptr().wrapping_add(rows.a + r * self.lda + s.a);
                (0..s.k)
                    .step_by(LINE)
                    .for_each(|k| fetch(from.wrapping_add(k)));
            }
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
            Start::Zero if self.is_first => (std::ptr::null(), 0),
            Start::Residual(Some(from), _) if self.is_first => {
                (from.as_ptr().wrapping_add(at), ldc)
            }
            _ => (c.as_ptr().wrapping_add(at).cast_const(), ldc),
        }
    }

    /// Biases of a tile, before its first and behind its last step.
    fn biases(&self, place: &Place) -> [Option<&'a [f32]>; 2] {
        let first = match self.whole.start {
            Start::Residual(_, bias) => bias.filter(|_| self.is_first),
            _ => None,
        };
        let (col, cols) = self.columns(place);
        let of = |bias: Option<&'a [f32]>| Some(&bias?[col..col + cols]);
        // `map` of an array is a call here, a few percent of a short product.
        [of(first), of(self.whole.bias.filter(|_| self.is_last))]
    }

    /// # Safety
    /// As [`gemm_range`](super::gemm_range).
    unsafe fn tile<E: Element>(&self, place: &Place, side: &Side<E>) {
        let Whole { c, ldc, .. } = *self.whole;
        // SAFETY: inside the caller's rectangle.
        unsafe {
            if place.partial {
                self.partial_tile(place, side);
            } else {
                let to = c.as_ptr().wrapping_add(place.row * ldc + place.panel * NR);
                let [first, last] = self.biases(place);
                let biases = [pointer(first), pointer(last)];
                self.multiply(place, side, self.begin(place), biases, to, ldc);
            }
        }
        self.finish(place);
    }

    /// A tile whose last panel is not whole: it is computed beside the result.
    ///
    /// # Safety
    /// As [`gemm_range`](super::gemm_range).
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
        // The product reads and writes there.
        let to = edge.as_mut_ptr();
        if !begin.0.is_null() {
            for r in 0..place.rows {
                // SAFETY: a row of the caller's rectangle, in the result or laid out as it.
                let from = unsafe { std::slice::from_raw_parts(begin.0.add(r * begin.1), cols) };
                // SAFETY: a row of the edge.
                unsafe { to.add(r * NR).copy_from_nonoverlapping(from.as_ptr(), cols) };
            }
            begin = (to.cast_const(), NR);
        }
        let biases = [&biases[0], &biases[1]].map(|b| pointer(b.as_ref().map(|b| &b[..])));
        // SAFETY: the edge has the rows of the highest tile.
        unsafe { self.multiply(place, side, begin, biases, to, NR) };
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
            segments: self.segments,
            k: self.k,
            a: self.left[place.a..].as_ptr(),
            lda: self.lda,
            b: side.b,
            above: (side.above, self.whole.b.num_above()),
            panels: side.panels,
            panel: side.panel,
            next: side.next,
            c,
            ldc,
            from,
            ld_from,
            first_bias,
            last_bias,
            clamp: if self.is_last {
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
        if !self.is_last || (rest.is_empty() && b.scales.is_none()) {
            return;
        }
        let (col, cols) = self.columns(place);
        for row in place.row..place.row + place.rows {
            // SAFETY: a row of the rectangle of `gemm_range`'s caller; no other reference to it
            // lives.
            let c = unsafe { c.slice(row * ldc + col, cols) };
            finish_row(level, rest, b.scales, row, col, ldc, c);
        }
    }
}

/// Fetches a line that is read soon.
#[inline(always)]
fn fetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    super::x86::fetch(at.cast());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches a line that is written soon.
#[inline(always)]
fn fetch_to_write(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    super::x86::fetch_to_write(at.cast());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
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

/// Panels of the next tiles, of which `left` whole ones are left: a last single one would be slow.
pub(super) const fn width(group: usize, left: usize) -> usize {
    match left {
        0 => 1,
        4 if group == 3 => 2,
        _ if left >= group => group,
        _ if group > 2 && left >= 2 => 2,
        _ => 1,
    }
}

/// Whether there is a tile of that shape.
const fn has_shape(kind: Kind, rows: usize, width: usize) -> bool {
    match kind {
        Kind::Avx512 => match width {
            1 => true,
            2 => rows <= 14,
            3 => rows <= 9,
            _ => rows <= 6,
        },
        Kind::Avx2 => width == 1 || (width == 2 && rows <= 3) || (width == 4 && rows == 1),
        Kind::Neon => width == 1,
        Kind::Portable => true,
    }
}
