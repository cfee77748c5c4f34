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
    let oy = row % oh;
    let (lo, hi, _) = g.clip(0, oy);
    let whole = g.window.kernel == [3, 3] && hi - lo == 3;
    for first in (0..c).step_by(LANES) {
        let width = LANES.min(c - first);
        let mut to = Column {
            epi,
            bias: epi.bias.map_or([0.0; LANES], |b| lanes(b, first)),
            at: row * ow * c + first,
            out: &mut out[first..],
            act: &act,
        };
        if width == LANES && whole {
            row_3x3(g, oy, first, x, taps, &mut to);
        } else {
            for ox in 0..ow {
                let acc = pixel(g, oy, ox, (first, width), x, taps);
                to.put(ox * c, width, acc);
            }
        }
    }
}

/// Up to sixteen channels of a row of outputs.
struct Column<'a, F> {
    epi: &'a Finish<'a>,
    bias: Lanes,
    /// Where the first of them lies in the whole output.
    at: usize,
    /// From there on.
    out: &'a mut [f32],
    act: &'a F,
}

impl<F: Fn(Lanes) -> Lanes> Column<'_, F> {
    /// Finishes `v` and writes its first `width` lanes `at` elements behind the first.
    #[inline(always)]
    fn put(&mut self, at: usize, width: usize, mut v: Lanes) {
        if self.epi.bias.is_some() {
            (0..LANES).for_each(|i| v[i] += self.bias[i]);
        }
        if let Residual::At(residual) = self.epi.residual {
            let residual = lanes(&residual[self.at + at..][..width], 0);
            (0..LANES).for_each(|i| v[i] += residual[i]);
        }
        store(&mut self.out[at..][..width], &(self.act)(v));
    }
}

/// Sixteen channels (or fewer, at the end) of one output pixel.
#[inline(always)]
fn pixel(
    g: &Geometry,
    oy: usize,
    ox: usize,
    (first, width): (usize, usize),
    x: &[f32],
    taps: &[f32],
) -> Lanes {
    let c = g.output[0];
    let ((y_lo, y_hi, y), (x_lo, x_hi, left)) = (g.clip(0, oy), g.clip(1, ox));
    let mut acc = [0.0; LANES];
    for ky in y_lo..y_hi {
        for kx in x_lo..x_hi {
            let at = ((y + ky - y_lo) * g.input[2] + left + kx - x_lo) * c + first;
            let tap = (ky * g.window.kernel[1] + kx) * c + first;
            step(&x[at..][..width], &taps[tap..][..width], &mut acc);
        }
    }
    acc
}

#[inline(always)]
fn step(x: &[f32], tap: &[f32], acc: &mut Lanes) {
    if let (Some(x), Some(tap)) = (x.first_chunk::<LANES>(), tap.first_chunk::<LANES>()) {
        for i in 0..LANES {
            acc[i] = x[i].mul_add(tap[i], acc[i]);
        }
    } else {
        for (i, (x, tap)) in x.iter().zip(tap).enumerate() {
            acc[i] = x.mul_add(*tap, acc[i]);
        }
    }
}

/// Sixteen channels of row `oy` of the output, whose windows of 3 x 3 lie inside the rows of the
/// image: the filters stay in registers.
#[inline(always)]
fn row_3x3(
    g: &Geometry,
    oy: usize,
    first: usize,
    x: &[f32],
    taps: &[f32],
    to: &mut Column<'_, impl Fn(Lanes) -> Lanes>,
) {
    let (c, w) = (g.output[0], g.input[2]);
    let (_, _, top) = g.clip(0, oy);
    let mut filter = [[0.0; LANES]; 9];
    for (tap, f) in filter.iter_mut().enumerate() {
        *f = lanes(taps, tap * c + first);
    }
    let rows = [0, 1, 2].map(|ky| &x[(top + ky) * w * c..][..w * c]);
    for ox in 0..g.output[2] {
        let (lo, hi, left) = g.clip(1, ox);
        let acc = if hi - lo == 3 {
            let at = left * c + first;
            let mut acc = [0.0; LANES];
            for ky in 0..3 {
                for kx in 0..3 {
                    let v = lanes(rows[ky], at + kx * c);
                    for i in 0..LANES {
                        acc[i] = v[i].mul_add(filter[ky * 3 + kx][i], acc[i]);
                    }
                }
            }
            acc
        } else {
            pixel(g, oy, ox, (first, LANES), x, taps)
        };
        to.put(ox * c, LANES, acc);
    }
}
