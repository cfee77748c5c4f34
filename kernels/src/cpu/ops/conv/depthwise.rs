//! Depthwise convolution: each channel with a filter of its own, lanes being channels.

use lazybatch_graph::Act;

use super::Geometry;
use super::finish::{Finish, Residual, lanes, store};
use crate::cpu::exec::Env;
use crate::cpu::level::simd;
use crate::cpu::math::{self, LANES, Lanes};
use crate::cpu::pool::Shards;

/// Filters of one channel each: `taps [kh kw, c]`.
pub fn run(
    env: &mut Env<'_>,
    g: &Geometry,
    x: &[f32],
    taps: &[f32],
    out: &mut [f32],
    epi: &Finish<'_>,
) {
    let [c, oh, ow] = g.output;
    let [_, h, w] = g.input;
    let (num_taps, level) = (taps.len() / c, env.level);
    let rows = out.len() / (ow * c);
    let flops = out.len() * num_taps * 2;
    let shards = Shards::new(out);
    env.split(rows, flops, |range| {
        for row in range {
            let image = &x[row / oh * h * w * c..][..h * w * c];
            // SAFETY: each row of an output image is one item.
            let to = unsafe { shards.slice(row * ow * c, ow * c) };
            output_row(level, g, row, image, taps, epi, to);
        }
    });
}

simd! {
    /// Row `row` of the output of all samples.
    fn output_row(
        g: &Geometry,
        row: usize,
        x: &[f32],
        taps: &[f32],
        epi: &Finish<'_>,
        out: &mut [f32],
    ) {
        match epi.act {
            None => each_lane(g, row, x, taps, epi, out, |v| v),
            Some(Act::Relu) => {
                each_lane(g, row, x, taps, epi, out, |v| math::act(Act::Relu, v));
            }
            Some(Act::Relu6) => {
                each_lane(g, row, x, taps, epi, out, |v| math::act(Act::Relu6, v));
            }
            Some(act) => each_lane(g, row, x, taps, epi, out, |v| math::act(act, v)),
        }
    }
}

/// Output pixels inside the image whose sums are in registers at once.
const STRIP: usize = 4;

/// Vectors of channels of one output pixel whose sums are in registers at once: those at the edges
/// of the image come one by one, and a single chain would wait for itself.
const VECTORS: usize = 4;

#[inline(always)]
fn each_lane(
    g: &Geometry,
    row: usize,
    x: &[f32],
    taps: &[f32],
    epi: &Finish<'_>,
    out: &mut [f32],
    act: impl Fn(Lanes) -> Lanes,
) {
    let [c, oh, ow] = g.output;
    let (y_lo, y_hi, top) = g.clip(0, row % oh);
    // A window may lie in the padding altogether.
    let top = top.min(g.input[1]);
    let line = Line {
        g,
        x: &x[top * g.input[2] * c..],
        taps: &taps[y_lo * g.window.kernel[1] * c..],
        rows: y_hi - y_lo,
        epi,
        at: row * ow * c,
        act,
    };
    let inside = g.inside();
    let mut ox = 0;
    while ox < ow {
        if inside.contains(&ox) && ox + STRIP <= inside.end {
            line.strip::<STRIP>(ox, out);
            ox += STRIP;
        } else {
            line.strip::<1>(ox, out);
            ox += 1;
        }
    }
}

/// What a row of outputs is made of.
struct Line<'a, F> {
    g: &'a Geometry,
    /// The image from the first row on that the windows see.
    x: &'a [f32],
    /// The filters from their first row on that lies inside the image.
    taps: &'a [f32],
    /// Rows of the filters that do.
    rows: usize,
    epi: &'a Finish<'a>,
    /// Where the row begins in the whole output.
    at: usize,
    act: F,
}

/// Adjacent output pixels, and the columns of the filters that lie inside the image for all of them.
#[derive(Clone, Copy)]
struct Place {
    ox: usize,
    columns: (usize, usize),
    /// Column of the image under the first of them, for the first pixel.
    left: usize,
}

impl<F: Fn(Lanes) -> Lanes> Line<'_, F> {
    /// All channels of `N` adjacent output pixels from `ox` on; several only where all their windows
    /// lie inside the rows.
    #[inline(always)]
    fn strip<const N: usize>(&self, ox: usize, out: &mut [f32]) {
        let g = self.g;
        let (c, (lo, hi, left)) = (g.output[0], g.clip(1, ox));
        let place = Place {
            ox,
            columns: (lo, hi),
            left,
        };
        if self.rows > 0 && lo < hi {
            let last = (self.rows - 1) * g.input[2] + left + hi - 1 - lo;
            let last = last + (N - 1) * g.window.stride[1];
            assert!(self.x.len() >= (last + 1) * c, "{N} windows from {ox} on");
            let last = (self.rows - 1) * g.window.kernel[1] + hi - 1;
            assert!(self.taps.len() >= (last + 1) * c, "{} taps", last + 1);
        }
        let mut first = 0;
        // SAFETY: the last pixel and the last tap that are read lie inside, as asserted, with all
        // their channels.
        unsafe {
            while N == 1 && first + VECTORS * LANES <= c {
                self.block::<N, VECTORS>(place, first, out);
                first += VECTORS * LANES;
            }
            while first + LANES <= c {
                self.block::<N, 1>(place, first, out);
                first += LANES;
            }
        }
        if first < c {
            for n in 0..N {
                self.tail(place, n, first, out);
            }
        }
    }

    /// `V` vectors of channels from `first` on, of `N` pixels.
    ///
    /// # Safety
    /// The windows of all pixels, with these channels, lie inside the image and the filters.
    #[inline(always)]
    unsafe fn block<const N: usize, const V: usize>(
        &self,
        place: Place,
        first: usize,
        out: &mut [f32],
    ) {
        let g = self.g;
        let (c, next) = (g.output[0], g.window.stride[1] * g.output[0]);
        let (lo, hi) = place.columns;
        let mut acc = [[[0.0; LANES]; V]; N];
        for ky in 0..self.rows {
            for kx in lo..hi {
                let x = (ky * g.input[2] + place.left + kx - lo) * c + first;
                let tap = (ky * g.window.kernel[1] + kx) * c + first;
                for j in 0..V {
                    // SAFETY: the caller's promise.
                    let tap = unsafe { sixteen(self.taps, tap + j * LANES) };
                    for n in 0..N {
                        // SAFETY: as above.
                        let x = unsafe { sixteen(self.x, x + n * next + j * LANES) };
                        for i in 0..LANES {
                            acc[n][j][i] = x[i].mul_add(tap[i], acc[n][j][i]);
                        }
                    }
                }
            }
        }
        for n in 0..N {
            for j in 0..V {
                let channel = first + j * LANES;
                let at = (place.ox + n) * c + channel;
                self.put(acc[n][j], channel, at, &mut out[at..at + LANES]);
            }
        }
    }

    /// The channels from `first` on, fewer than a vector, of the `n`-th pixel.
    #[inline(always)]
    fn tail(&self, place: Place, n: usize, first: usize, out: &mut [f32]) {
        let g = self.g;
        let (c, next) = (g.output[0], g.window.stride[1] * g.output[0]);
        let ((lo, hi), num) = (place.columns, c - first);
        let mut acc = [0.0; LANES];
        for ky in 0..self.rows {
            for kx in lo..hi {
                let x = (ky * g.input[2] + place.left + kx - lo) * c + n * next + first;
                let tap = (ky * g.window.kernel[1] + kx) * c + first;
                let pairs = self.x[x..][..num].iter().zip(&self.taps[tap..][..num]);
                for (acc, (x, tap)) in acc.iter_mut().zip(pairs) {
                    *acc = x.mul_add(*tap, *acc);
                }
            }
        }
        let at = (place.ox + n) * c + first;
        self.put(acc, first, at, &mut out[at..at + num]);
    }

    /// Finishes `v`, channels from `channel` on that lie `at` elements behind the start of the row.
    #[inline(always)]
    fn put(&self, mut v: Lanes, channel: usize, at: usize, to: &mut [f32]) {
        let num = to.len();
        if let Some(bias) = self.epi.bias {
            let bias = lanes(&bias[channel..channel + num], 0);
            (0..LANES).for_each(|i| v[i] += bias[i]);
        }
        if let Residual::At(residual) = self.epi.residual {
            let residual = lanes(&residual[self.at + at..][..num], 0);
            (0..LANES).for_each(|i| v[i] += residual[i]);
        }
        store(to, &(self.act)(v));
    }
}

/// The sixteen elements from `at` on.
///
/// # Safety
/// They lie inside.
#[inline(always)]
unsafe fn sixteen(x: &[f32], at: usize) -> Lanes {
    debug_assert!(at + LANES <= x.len());
    // SAFETY: the caller's promise; arrays of f32 have no other alignment than f32.
    unsafe { x.as_ptr().add(at).cast::<Lanes>().read() }
}
