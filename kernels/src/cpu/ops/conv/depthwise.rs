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
            if let Some(act) = epi.act.filter(|&act| clamp(Some(act)) == UNBOUNDED) {
                math::act_inplace(level, act, to);
            }
        }
    });
}

/// Sums are stored as they are.
const UNBOUNDED: u8 = 0;

/// max(x, 0) is.
const RELU: u8 = 1;

/// max(min(x, 6), 0) is.
const RELU6: u8 = 2;

/// What a row does with its sums before it stores them. It is a number that functions are compiled
/// for, as a closure is no part of a function's level, and would be called with vectors in memory.
const fn clamp(act: Option<Act>) -> u8 {
    match act {
        Some(Act::Relu) => RELU,
        Some(Act::Relu6) => RELU6,
        _ => UNBOUNDED,
    }
}

simd! {
    /// Row `row` of the output of all samples, but for activations without a [`clamp`].
    fn output_row(
        g: &Geometry,
        row: usize,
        x: &[f32],
        taps: &[f32],
        epi: &Finish<'_>,
        out: &mut [f32],
    ) {
        match clamp(epi.act) {
            RELU => each_lane::<RELU>(g, row, x, taps, epi, out),
            RELU6 => each_lane::<RELU6>(g, row, x, taps, epi, out),
            _ => each_lane::<UNBOUNDED>(g, row, x, taps, epi, out),
        }
    }
}

/// Output pixels inside the image whose sums are in registers at once.
const STRIP: usize = 4;

/// Vectors of channels of one output pixel whose sums are in registers at once: those at the edges
/// of the image come one by one, and a single chain would wait for itself.
const VECTORS: usize = 4;

#[inline(always)]
fn each_lane<const CLAMP: u8>(
    g: &Geometry,
    row: usize,
    x: &[f32],
    taps: &[f32],
    epi: &Finish<'_>,
    out: &mut [f32],
) {
    let [c, oh, ow] = g.output;
    let (y_lo, y_hi, top) = g.clip(0, row % oh);
    // A window may lie in the padding altogether.
    let top = top.min(g.input[1]);
    let line = Line::<CLAMP> {
        g,
        x: &x[top * g.input[2] * c..],
        taps: &taps[y_lo * g.window.kernel[1] * c..],
        rows: y_hi - y_lo,
        epi,
        at: row * ow * c,
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
struct Line<'a, const CLAMP: u8> {
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
}

/// Adjacent output pixels, and the columns of the filters that lie inside the image for all of them.
#[derive(Clone, Copy)]
struct Place {
    ox: usize,
    columns: (usize, usize),
    /// Column of the image under the first of them, for the first pixel.
    left: usize,
}

impl<const CLAMP: u8> Line<'_, CLAMP> {
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
                match (N > 1).then_some((g.window.kernel[1], g.window.stride[1])) {
                    Some((3, 1)) => self.block_of_three::<N, 1>(place, first, out),
                    Some((3, 2)) => self.block_of_three::<N, 2>(place, first, out),
                    _ => self.block::<N, 1>(place, first, out),
                }
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

    /// One vector of channels from `first` on, of `N` pixels whose filters are three columns wide and
    /// `S` columns apart: each column of the image is loaded once for all the windows that see it.
    ///
    /// # Safety
    /// As [`Line::block`].
    #[inline(always)]
    unsafe fn block_of_three<const N: usize, const S: usize>(
        &self,
        place: Place,
        first: usize,
        out: &mut [f32],
    ) {
        let g = self.g;
        let c = g.output[0];
        let mut acc = [[0.0; LANES]; N];
        for ky in 0..self.rows {
            let x = (ky * g.input[2] + place.left) * c + first;
            let tap = ky * 3 * c + first;
            let mut taps = [[0.0; LANES]; 3];
            for kx in 0..3 {
                // SAFETY: the caller's promise.
                taps[kx] = unsafe { sixteen(self.taps, tap + kx * c) };
            }
            for column in 0..(N - 1) * S + 3 {
                // SAFETY: as above.
                let x = unsafe { sixteen(self.x, x + column * c) };
                for kx in 0..3 {
                    let Some(n) = column
                        .checked_sub(kx)
                        .filter(|at| at % S == 0 && at / S < N)
                    else {
                        continue;
                    };
                    let n = n / S;
                    for i in 0..LANES {
                        acc[n][i] = x[i].mul_add(taps[kx][i], acc[n][i]);
                    }
                }
            }
        }
        for n in 0..N {
            let at = (place.ox + n) * c + first;
            self.put(acc[n], first, at, &mut out[at..at + LANES]);
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
        // As `math::act` has them: what is no number remains.
        if CLAMP == RELU6 {
            (0..LANES).for_each(|i| v[i] = math::min(6.0, v[i]));
        }
        if CLAMP != UNBOUNDED {
            (0..LANES).for_each(|i| v[i] = math::max(0.0, v[i]));
        }
        store(to, &v);
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

#[cfg(test)]
mod tests {
    use lazybatch_graph::{WeightSource, Window};

    use super::*;
    use crate::cpu::level::Level;

    /// More than two vectors, and a part of one.
    const CHANNELS: usize = 37;

    /// The chain of one output element, in the order (kernel row, kernel column).
    fn chain(g: &Geometry, x: &[f32], taps: &[f32], [oy, ox, c]: [usize; 3]) -> f32 {
        let Window {
            kernel: [kh, kw],
            stride: [down, right],
            pad: [top, left, ..],
        } = g.window;
        let [_, h, w] = g.input;
        let mut sum = 0.0f32;
        for (ky, kx) in (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
            let at = (oy * down + ky).checked_sub(top).filter(|y| *y < h);
            let at = at.zip((ox * right + kx).checked_sub(left).filter(|x| *x < w));
            if let Some((y, column)) = at {
                let tap = taps[(ky * kw + kx) * CHANNELS + c];
                sum = x[(y * w + column) * CHANNELS + c].mul_add(tap, sum);
            }
        }
        sum
    }

    #[test]
    fn every_element_is_one_chain_whatever_the_window() {
        let [h, w] = [7, 15];
        for (kernel, stride) in [(3, 1), (3, 2), (3, 3), (5, 1), (2, 1)] {
            let window = Window::square(kernel, stride, 1);
            let [oh, ow] = window.output(h, w).expect("a window that fits");
            let g = Geometry {
                window,
                input: [CHANNELS, h, w],
                output: [CHANNELS, oh, ow],
                groups: CHANNELS,
            };
            let noise = |seed, num| WeightSource::Seeded { seed, bound: 9.0 }.to_f32(num);
            let (x, taps) = (
                noise(1, h * w * CHANNELS),
                noise(2, kernel * kernel * CHANNELS),
            );
            for act in [None, Some(Act::Relu), Some(Act::Relu6)] {
                let epi = Finish {
                    bias: None,
                    residual: Residual::None,
                    act,
                };
                for (level, oy) in Level::available()
                    .into_iter()
                    .flat_map(|l| (0..oh).map(move |oy| (l, oy)))
                {
                    let mut row = vec![f32::NAN; ow * CHANNELS];
                    output_row(level, &g, oy, &x, &taps, &epi, &mut row);
                    for (i, got) in row.iter().enumerate() {
                        let sum = chain(&g, &x, &taps, [oy, i / CHANNELS, i % CHANNELS]);
                        let wanted = match act {
                            Some(Act::Relu) => sum.max(0.0),
                            Some(_) => sum.clamp(0.0, 6.0),
                            None => sum,
                        };
                        assert_eq!(
                            *got, wanted,
                            "{level:?}, {kernel} wide, stride {stride}, {act:?}, row {oy}, {i}"
                        );
                    }
                }
            }
        }
    }
}
