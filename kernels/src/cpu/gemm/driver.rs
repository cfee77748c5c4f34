//! Products, and what happens to their elements besides.

use std::ops::Range;

use lazybatch_graph::Act;

use super::dynamic::gemm_dynamic;
use super::part::{MC, Whole};
use super::tile::{Clamp, NR, UNIT, WIDEST};
use super::{AView, AnyB, PackedB, Panels, Right};
use crate::cpu::level::{Level, simd};
use crate::cpu::math;
use crate::cpu::pool::{Pool, Shards};

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
    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
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
    let columns = Columns::share_out(num_panels, (2 * threads).div_ceil(chunks));
    pool.run(chunks * columns.shares, |task| {
        let (chunk, share) = (task % chunks, task / chunks);
        let rows = chunk * rows_each..((chunk + 1) * rows_each).min(m);
        let cols = columns.share(share);
        // SAFETY: tasks own disjoint rectangles of the result.
        unsafe { gemm_range(level, a, rows, b, cols, shards, ldc, start, epi) };
    });
}

/// Panels that are shared out among tasks.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    panels: usize,
    /// Panels that stay together, but for the last ones.
    unit: usize,
    /// Number of shares; none is empty.
    pub shares: usize,
}

impl Columns {
    /// `panels` panels in at most `shares` shares. These are whole tiles of one width where they are
    /// then equal; else they differ by no more than the widest tile, or by half of it where that is
    /// much of a share, as the last thread to end is what a product waits for.
    pub fn share_out(panels: usize, shares: usize) -> Self {
        let is_even = |unit: &usize| panels.is_multiple_of(shares * unit);
        let uneven = if panels >= shares * UNIT {
            WIDEST
        } else {
            WIDEST / 2
        };
        let unit = [UNIT, UNIT / 2, WIDEST]
            .into_iter()
            .find(is_even)
            .unwrap_or(uneven);
        let shares = shares.clamp(1, panels.div_ceil(unit).max(1));
        Self {
            panels,
            unit,
            shares,
        }
    }

    /// The panels of share `i`.
    pub fn share(&self, i: usize) -> Range<usize> {
        let units = self.panels.div_ceil(self.unit);
        let at = |i: usize| (units * i / self.shares * self.unit).min(self.panels);
        at(i)..at(i + 1)
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
    if rows.is_empty() || cols.is_empty() || b.steps == 0 {
        return;
    }
    assert!(b.steps <= b.k, "{} steps of {}", b.steps, b.k);
    let a_end = a.rows.at(rows.end - 1) + a.cols.at(b.steps - 1) + 1;
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
            Panels::F32(panels) => whole.run(panels, b.above.map_or(&[], |b| b.data)),
            Panels::F16(panels) => whole.run(panels, &[]),
            Panels::Bf16(panels) => whole.run(panels, &[]),
            Panels::Int8(panels) => whole.run(panels, &[]),
        }
    }
}
