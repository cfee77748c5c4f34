//! Depthwise convolution: each channel with a filter of its own, lanes being channels.

use super::{Finish, Geometry};
use crate::cpu::exec::Env;
use crate::cpu::level::simd;
use crate::cpu::math::{LANES, Lanes};
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
            output_row(level, g, row % oh, image, taps, to);
            for (i, to) in to.chunks_exact_mut(c).enumerate() {
                epi.apply(level, 0, (row * ow + i) * c, to);
            }
        }
    });
}

simd! {
    /// Row `oy` of the output.
    fn output_row(g: &Geometry, oy: usize, x: &[f32], taps: &[f32], out: &mut [f32]) {
        let c = g.output[0];
        let (lo, hi, _) = g.clip(0, oy);
        let whole = g.window.kernel == [3, 3] && hi - lo == 3;
        for first in (0..c).step_by(LANES) {
            let width = LANES.min(c - first);
            if width == LANES && whole {
                row_3x3(g, oy, first, x, taps, out);
            } else {
                for ox in 0..g.output[2] {
                    let acc = pixel(g, oy, ox, (first, width), x, taps);
                    out[ox * c + first..][..width].copy_from_slice(&acc[..width]);
                }
            }
        }
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
fn row_3x3(g: &Geometry, oy: usize, first: usize, x: &[f32], taps: &[f32], out: &mut [f32]) {
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
        out[ox * c + first..][..LANES].copy_from_slice(&acc);
    }
}

/// The sixteen elements from `at` on.
#[inline(always)]
fn lanes(x: &[f32], at: usize) -> Lanes {
    *x[at..].first_chunk().expect("whole lanes")
}
