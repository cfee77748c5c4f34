//! Products of integers: int8 weights, and rows rounded to int8 as they come.
//!
//! A row's scale is its largest magnitude over 127, at least the smallest normal f32; its elements
//! become `x / scale`, rounded to nearest, ties to even. Sums of products are exact integers, so
//! they do not depend on the order; a result is `f32(sum) * row scale * column scale`, each step
//! rounded, then the epilogue. One scale per row, not per batch, keeps a row's bits independent of
//! the rows beside it. All results of a row with infinity or NaN are NaN.
//!
//! Rows are stored with 128 added, as unsigned bytes, which is what the instructions take; 128 times
//! the sum of each column is taken off at the end. Layout of the weights: `[n / 16][k / 4][16][4]`,
//! `k` and `n` padded with zeros, then a scale and a sum per column.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::driver::{Columns, Epilogue, finish_row};
use super::part::width;
use super::tile::{HIGHEST, NR, num_tiles, panels};
use super::weights::int8_scale;
use crate::cpu::buffers::Aligned;
#[cfg(target_arch = "x86_64")]
use crate::cpu::level::Kind;
use crate::cpu::level::{Level, simd};
use crate::cpu::pool::{Pool, Shards};

/// Elements of `k` that lie together.
pub const QUAD: usize = 4;

/// Longest chain whose sum an i32 holds: 2^31 / 127^2, rounded down to a power of two.
const MAX_K: usize = 1 << 17;

/// Added to a row's elements.
const OFFSET: i32 = 128;

thread_local! {
    /// Rounded rows of this thread's product, and their scales.
    static ROWS: RefCell<(Aligned, Vec<f32>)> = RefCell::default();
}

/// A borrowed right-hand matrix of integers.
#[derive(Clone, Copy, Debug)]
pub struct DynamicB<'a> {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    q: &'a [i8],
    scales: &'a [f32],
    sums: &'a [i32],
}

/// f32 elements that hold a `[k, n]` matrix with its scales and sums.
pub fn held(k: usize, n: usize) -> usize {
    n.div_ceil(NR) * NR * (k.div_ceil(QUAD) + 2)
}

/// Packs a row-major `[k, n]` matrix with its columns' scales into `out`, which is zero.
///
/// # Errors
/// Chains that are too long for exact sums.
pub fn pack(q: &[i8], scales: &[f32], k: usize, n: usize, out: &mut [f32]) -> Result<(), String> {
    if k > MAX_K {
        return Err(format!(
            "inner dimension: expected at most {MAX_K} for int8-dynamic, got {k}"
        ));
    }
    let (quads, columns) = (k.div_ceil(QUAD), n.div_ceil(NR) * NR);
    let (panels, tail) = out.split_at_mut(columns * quads);
    let (to_scales, to_sums) = tail.split_at_mut(columns);
    let panels: &mut [i8] = bytemuck::cast_slice_mut(panels);
    let to_sums: &mut [i32] = bytemuck::cast_slice_mut(to_sums);
    for kk in 0..k {
        for j in 0..n {
            let x = q[kk * n + j];
            let at = ((j / NR * quads + kk / QUAD) * NR + j % NR) * QUAD + kk % QUAD;
            panels[at] = x;
            to_sums[j] = to_sums[j].wrapping_add(OFFSET * i32::from(x));
        }
    }
    to_scales[..n].copy_from_slice(scales);
    Ok(())
}

impl<'a> DynamicB<'a> {
    /// What `pack` wrote.
    pub fn of(data: &'a [f32], k: usize, n: usize) -> Self {
        let columns = n.div_ceil(NR) * NR;
        let (panels, tail) = data.split_at(columns * k.div_ceil(QUAD));
        let (scales, sums) = tail.split_at(columns);
        Self {
            k,
            n,
            q: bytemuck::cast_slice(panels),
            scales,
            sums: bytemuck::cast_slice(sums),
        }
    }
}

simd! {
    /// Rounds a row; returns its scale, NaN for a row with infinity or NaN.
    fn round_row(x: &[f32], to: &mut [u8]) -> f32 {
        // Magnitudes are ordered as their bits are; infinity and NaN come last.
        let most = x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
        let most = f32::from_bits(most);
        if !most.is_finite() {
            to.fill(OFFSET as u8);
            return f32::NAN;
        }
        let scale = int8_scale(most);
        // Behind this sum the last bits of the mantissa are the integer, rounded as sums are.
        const SHIFT: f32 = 12_582_912.0;
        const OFF: u32 = SHIFT.to_bits() - OFFSET as u32;
        for (to, x) in to.iter_mut().zip(x) {
            *to = (x / scale + SHIFT).to_bits().wrapping_sub(OFF) as u8;
        }
        to[x.len()..].fill(OFFSET as u8);
        scale
    }
}

/// `act(rows B + bias) + residual` of `m` rows, each of `b.k` elements, on the pool if `parallel`.
///
/// `c: [m, n]` with rows `ldc` apart.
///
/// # Panics
/// If `x` or `c` is too short.
pub fn gemm_dynamic(
    pool: &mut Pool,
    level: Level,
    parallel: bool,
    x: &[f32],
    m: usize,
    b: DynamicB<'_>,
    c: &mut [f32],
    ldc: usize,
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
    ROWS.with_borrow_mut(|(rows, scales)| {
        // An odd number of cache lines, so that rows do not fall on the same cache set.
        let stride = (b.k.div_ceil(64) | 1) * 64;
        rows.grow(m * stride / 4);
        let rows: &mut [u8] = &mut bytemuck::cast_slice_mut(rows)[..m * stride];
        scales.clear();
        for (row, to) in x[..m * b.k]
            .chunks_exact(b.k.max(1))
            .zip(rows.chunks_exact_mut(stride))
        {
            scales.push(round_row(level, row, to));
        }
        scales.resize(m, f32::MIN_POSITIVE);
        let part = Part {
            level,
            rows,
            stride,
            scales,
            b,
            c: Shards::new(c),
            ldc,
            epi,
        };
        let num_panels = b.n.div_ceil(NR);
        let tasks = if parallel { 2 * pool.threads() } else { 1 };
        let columns = Columns::share_out(num_panels, tasks);
        pool.run(columns.shares, |task| {
            // SAFETY: tasks own disjoint columns of the result.
            unsafe { part.run(m, columns.share(task)) };
        });
    });
}

/// A product of rounded rows.
struct Part<'a> {
    level: Level,
    rows: &'a [u8],
    stride: usize,
    scales: &'a [f32],
    b: DynamicB<'a>,
    c: Shards,
    ldc: usize,
    epi: &'a Epilogue<'a>,
}

/// One product of a tile of rows with adjacent panels.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Steps of four elements.
    pub quads: usize,
    /// First element of the rows.
    pub a: *const u8,
    /// Distance of rows.
    pub lda: usize,
    /// First element of the first panel.
    pub b: *const i8,
    /// First element of the result, rows [`WIDEST`] apart.
    pub c: *mut i32,
}

/// Columns of the widest tile.
pub const WIDEST: usize = 4 * NR;

impl Part<'_> {
    /// # Safety
    /// No other task may touch the columns meanwhile.
    unsafe fn run(&self, m: usize, cols: Range<usize>) {
        let kind = self.level.kind();
        let num_tiles = num_tiles(kind, m);
        let group = panels(kind, m.div_ceil(num_tiles));
        let mut p = cols.start;
        while p < cols.end {
            let width = width(group, cols.end - p);
            for tile in 0..num_tiles {
                let first = m * tile / num_tiles;
                let rows = first..m * (tile + 1) / num_tiles;
                // SAFETY: passed on.
                unsafe { self.tile(rows, p, width) };
            }
            p += width;
        }
    }

    /// # Safety
    /// As [`Part::run`].
    unsafe fn tile(&self, rows: Range<usize>, panel: usize, width: usize) {
        let quads = self.b.k.div_ceil(QUAD);
        let mut sums = MaybeUninit::<[i32; HIGHEST * WIDEST]>::uninit();
        let tile = Tile {
            quads,
            a: self.rows[rows.start * self.stride..rows.end * self.stride].as_ptr(),
            lda: self.stride,
            b: self.b.q[panel * quads * NR * QUAD..][..width * quads * NR * QUAD].as_ptr(),
            c: sums.as_mut_ptr().cast(),
        };
        // SAFETY: the sides were sliced to the tile, and the sums have room for the largest one.
        unsafe {
            match self.level.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 if super::x86_int8::has_vnni() => {
                    super::x86_int8::run512(&tile, rows.len(), width);
                }
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 | Kind::Avx2 => super::x86_int8::run256(&tile, rows.len(), width),
                _ => portable(&tile, rows.len(), width),
            }
        }
        let col = panel * NR;
        let cols = (width * NR).min(self.b.n - col);
        for (r, row) in rows.enumerate() {
            // SAFETY: a row of the caller's columns.
            let c = unsafe { self.c.slice(row * self.ldc + col, cols) };
            // SAFETY: the tile wrote `width` panels of its rows.
            let sums = unsafe { std::slice::from_raw_parts(tile.c.add(r * WIDEST), cols) };
            let (scales, off) = (&self.b.scales[col..][..cols], &self.b.sums[col..][..cols]);
            scale_row(self.level, sums, off, self.scales[row], scales, c);
            finish_row(self.level, self.epi, None, row, col, self.ldc, c);
        }
    }
}

simd! {
    /// Results of one row.
    fn scale_row(sums: &[i32], off: &[i32], row: f32, scales: &[f32], c: &mut [f32]) {
        for j in 0..c.len() {
            c[j] = sums[j].wrapping_sub(off[j]) as f32 * row * scales[j];
        }
    }
}

/// # Safety
/// The pointers of `t` cover `rows` rows and `panels` panels.
unsafe fn portable(t: &Tile, rows: usize, panels: usize) {
    for (r, p) in (0..rows).flat_map(|r| (0..panels).map(move |p| (r, p))) {
        let mut acc = [0i32; NR];
        for quad in 0..t.quads {
            // SAFETY: row `r` and panel `p` are covered by the caller's promise.
            let (a, b) = unsafe {
                let a = &*t.a.add(r * t.lda + quad * QUAD).cast::<[u8; QUAD]>();
                let at = (p * t.quads + quad) * NR * QUAD;
                (a, &*t.b.add(at).cast::<[[i8; QUAD]; NR]>())
            };
            for (sum, b) in acc.iter_mut().zip(b) {
                for (&x, &w) in a.iter().zip(b) {
                    *sum = sum.wrapping_add(i32::from(x) * i32::from(w));
                }
            }
        }
        // SAFETY: as above.
        unsafe { t.c.add(r * WIDEST + p * NR).cast::<[i32; NR]>().write(acc) };
    }
}
