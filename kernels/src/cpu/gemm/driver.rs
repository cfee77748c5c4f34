//! Loops over tiles, and the fused epilogue.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::Act;

use super::tile::{A_STRIDE, KC, NR, Tile, max_rows, panels};
use super::{AView, BView, portable};
use crate::cpu::buffers::Aligned;
use crate::cpu::level::{Kind, Level, simd};
use crate::cpu::math;
use crate::cpu::pool::{Pool, Shards};

/// Rows whose copies stay in the second-level cache.
const MC: usize = 96;

/// Panels whose results stay in the second-level cache over all blocks of `k`.
const NC: usize = 32;

/// Fewest rows of a product from which copying the left side pays.
const COPY_ROWS: usize = 5;

thread_local! {
    /// Copied left-hand block of this thread.
    static LEFT: RefCell<Aligned> = RefCell::new(Aligned::zeroed(MC * A_STRIDE));
}

/// What happens to a finished element: bias, activation and residual, in this order unless
/// `act_last`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added by column.
    pub bias: Option<&'a [f32]>,
    /// Added by row.
    pub row_bias: Option<&'a [f32]>,
    /// Activation.
    pub act: Option<Act>,
    /// Added elementwise; rows as far apart as those of the result.
    pub residual: Option<&'a [f32]>,
    /// Activation behind the residual.
    pub act_last: bool,
}

impl Epilogue<'_> {
    fn is_empty(&self) -> bool {
        self.bias.is_none()
            && self.row_bias.is_none()
            && self.act.is_none()
            && self.residual.is_none()
    }
}

simd! {
    /// Finishes one row's columns `col..col + c.len()`.
    fn finish_row(e: &Epilogue<'_>, row: usize, col: usize, ldc: usize, c: &mut [f32]) {
        let n = c.len();
        if let Some(bias) = e.bias {
            let bias = &bias[col..col + n];
            (0..n).for_each(|j| c[j] += bias[j]);
        }
        if let Some(bias) = e.row_bias {
            let bias = bias[row];
            (0..n).for_each(|j| c[j] += bias);
        }
        if !e.act_last {
            apply(e.act, c);
        }
        if let Some(residual) = e.residual {
            let residual = &residual[row * ldc + col..][..n];
            (0..n).for_each(|j| c[j] += residual[j]);
        }
        if e.act_last {
            apply(e.act, c);
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

/// The product of `m` rows with all columns, on the pool if `parallel`.
///
/// `c: [m, n]` with rows `ldc` apart; `resume` continues the chains from its content.
pub fn gemm(
    pool: &mut Pool,
    level: Level,
    parallel: bool,
    a: AView<'_>,
    m: usize,
    b: BView<'_>,
    c: &mut [f32],
    ldc: usize,
    resume: bool,
    epi: &Epilogue<'_>,
) {
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
    let splits = (2 * threads)
        .div_ceil(chunks)
        .clamp(1, num_panels.div_ceil(4));
    // Groups of four panels keep whole tiles together.
    let quads = num_panels.div_ceil(4);
    pool.run(chunks * splits, |task| {
        let (chunk, split) = (task % chunks, task / chunks);
        let rows = chunk * rows_each..((chunk + 1) * rows_each).min(m);
        let first = quads * split / splits * 4;
        let last = (quads * (split + 1) / splits * 4).min(num_panels);
        // SAFETY: tasks own disjoint rectangles of the result.
        unsafe { gemm_range(level, a, rows, b, first..last, shards, ldc, resume, epi) };
    });
}

/// The rectangle `rows` x `cols` (in panels) of a product, on the calling thread.
///
/// # Safety
/// No other task may touch the rectangle of `c` meanwhile.
///
/// # Panics
/// If `a`, `b` or `c` are too short.
pub unsafe fn gemm_range(
    level: Level,
    a: AView<'_>,
    rows: Range<usize>,
    b: BView<'_>,
    cols: Range<usize>,
    c: Shards,
    ldc: usize,
    resume: bool,
    epi: &Epilogue<'_>,
) {
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
    assert!(
        b.data.len() >= super::packed_len(b.k, b.n) && cols.end <= num_panels,
        "right side"
    );
    let copy = rows.len() >= COPY_ROWS && a.row_stride != A_STRIDE;
    LEFT.with_borrow_mut(|left| {
        for m0 in rows.clone().step_by(MC) {
            let chunk = m0..(m0 + MC).min(rows.end);
            let blocks = (0..b.k).step_by(KC).enumerate();
            let parts = cols
                .clone()
                .step_by(NC)
                .flat_map(|p| blocks.clone().map(move |b| (p, b)));
            for (p, (block, k0)) in parts {
                let kb = KC.min(b.k - k0);
                let source = &a.data[block * a.block_stride..];
                let (left, lda) = if copy {
                    for (i, row) in chunk.clone().enumerate() {
                        left[i * A_STRIDE..][..kb]
                            .copy_from_slice(&source[row * a.row_stride..][..kb]);
                    }
                    (&left[..], A_STRIDE)
                } else {
                    (&source[m0 * a.row_stride..], a.row_stride)
                };
                let part = Part {
                    level,
                    k: kb,
                    left,
                    lda,
                    right: &b.data[k0 * num_panels * NR..],
                    c,
                    ldc,
                    n: b.n,
                    resume: resume || block > 0,
                    epi: (block == last_block && !epi.is_empty()).then_some(epi),
                };
                // SAFETY: the rectangle is the caller's, sides were checked above.
                unsafe { part.run(chunk.clone(), p..(p + NC).min(cols.end)) };
            }
        }
    });
}

/// One row chunk times one block of `k`.
struct Part<'a> {
    level: Level,
    k: usize,
    left: &'a [f32],
    lda: usize,
    right: &'a [f32],
    c: Shards,
    ldc: usize,
    n: usize,
    resume: bool,
    epi: Option<&'a Epilogue<'a>>,
}

impl Part<'_> {
    /// # Safety
    /// As [`gemm_range`].
    unsafe fn run(&self, rows: Range<usize>, cols: Range<usize>) {
        let kind = self.level.kind();
        let num_tiles = rows.len().div_ceil(max_rows(kind));
        let most = rows.len().div_ceil(num_tiles);
        let group = panels(kind, most);
        let full = cols.end.min(self.n / NR);
        let mut p = cols.start;
        while p < cols.end {
            let width = if p + group <= full {
                group
            } else if group > 2 && p + 2 <= full {
                2
            } else {
                1
            };
            for tile in 0..num_tiles {
                let first = rows.len() * tile / num_tiles;
                let num = rows.len() * (tile + 1) / num_tiles - first;
                // Smaller tiles than the widest shape supports fall back to one panel at a time.
                let step = if has_shape(kind, num, width) {
                    width
                } else {
                    1
                };
                for q in (p..p + width).step_by(step) {
                    // SAFETY: inside the caller's rectangle.
                    unsafe { self.tile(&rows, first, num, q, step, p >= full, tile == 0) };
                }
            }
            p += width;
        }
    }

    /// # Safety
    /// As [`gemm_range`].
    unsafe fn tile(
        &self,
        rows: &Range<usize>,
        first: usize,
        num: usize,
        panel: usize,
        width: usize,
        partial: bool,
        cold: bool,
    ) {
        let row = rows.start + first;
        let (col, cols) = (panel * NR, (width * NR).min(self.n - panel * NR));
        let mut edge = [0.0f32; 12 * NR];
        let mut tile = Tile {
            k: self.k,
            a: self.left[first * self.lda..].as_ptr(),
            lda: self.lda,
            b: self.right[panel * self.k * NR..].as_ptr(),
            ldb: self.k * NR,
            c: self.c.as_ptr().wrapping_add(row * self.ldc + col),
            ldc: self.ldc,
            resume: self.resume,
            cold,
        };
        if partial {
            if self.resume {
                for r in 0..num {
                    // SAFETY: row `row + r` of the caller's rectangle.
                    let c = unsafe { self.c.slice((row + r) * self.ldc + col, cols) };
                    edge[r * NR..r * NR + cols].copy_from_slice(c);
                }
            }
            tile.c = edge.as_mut_ptr();
            tile.ldc = NR;
        }
        // SAFETY: the level proves the instructions; `gemm_range` checked both sides, and the
        // result is the caller's rectangle or the edge buffer of twelve rows.
        unsafe {
            match self.level.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => super::x86::run512(&tile, num, width),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => super::x86::run256(&tile, num, width),
                _ => portable::run(&tile, num, width),
            }
        }
        if !partial && self.epi.is_none() {
            return;
        }
        for r in 0..num {
            // SAFETY: row `row + r` of the caller's rectangle; the tile's pointer is not used again.
            let c = unsafe { self.c.slice((row + r) * self.ldc + col, cols) };
            if partial {
                c.copy_from_slice(&edge[r * NR..r * NR + cols]);
            }
            if let Some(epi) = self.epi {
                finish_row(self.level, epi, row + r, col, self.ldc, c);
            }
        }
    }
}

const fn has_shape(kind: Kind, rows: usize, width: usize) -> bool {
    match kind {
        Kind::Avx512 => width <= 2 || rows <= 6,
        Kind::Avx2 => width == 1 || (width == 2 && rows <= 3) || (width == 4 && rows == 1),
        Kind::Portable => true,
    }
}
