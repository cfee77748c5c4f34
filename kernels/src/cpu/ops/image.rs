//! Pooling and batch normalisation of images `[h, w, c]` (see [`crate::cpu::layout`]), lanes being
//! channels.

use lazybatch_graph::{Pool, Window};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::level::simd;
use crate::cpu::math::{self, LANES};
use crate::cpu::pool::Shards;

/// Inference-time batch normalisation.
pub fn batch_norm(env: &mut Env<'_>, v: NodeView<'_>, eps: f32) -> Buf {
    let mut out = v.alloc(env, 0);
    let (gamma, beta, mean, var) = (v.arg(1), v.arg(2), v.arg(3), v.arg(4));
    let c = gamma.len();
    let (mut scale, mut shift) = (env.temporary(c), env.temporary(c));
    for i in 0..c {
        scale[i] = gamma[i] / (var[i] + eps).sqrt();
        shift[i] = (-mean[i]).mul_add(scale[i], beta[i]);
    }
    let (x, level) = (v.arg(0), env.level);
    let pixels = out.len() / c;
    let shards = Shards::new(&mut out);
    env.split(pixels, 4 * x.len(), |range| {
        // SAFETY: ranges of pixels are disjoint.
        let to = unsafe { shards.slice(range.start * c, range.len() * c) };
        affine(level, &scale, &shift, &x[range.start * c..], to);
    });
    out
}

simd! {
    /// `out = x * scale + shift`, pixel by pixel.
    fn affine(scale: &[f32], shift: &[f32], x: &[f32], out: &mut [f32]) {
        let c = scale.len();
        let shift = &shift[..c];
        for (to, from) in out.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
            for i in 0..c {
                to[i] = from[i].mul_add(scale[i], shift[i]);
            }
        }
    }
}

/// Pooling.
pub fn pool2d(env: &mut Env<'_>, v: NodeView<'_>, pool: Pool, window: &Window) -> Buf {
    let mut out = v.alloc(env, 0);
    let (dims, out_dims) = (v.ty(0).fixed_dims(), v.out_ty(0).fixed_dims());
    let (c, h, w, oh, ow) = (dims[0], dims[1], dims[2], out_dims[1], out_dims[2]);
    let (x, level) = (v.arg(0), env.level);
    let rows = out.len() / (ow * c);
    let flops = out.len() * window.kernel[0] * window.kernel[1] * 4;
    let shards = Shards::new(&mut out);
    env.split(rows, flops, |range| {
        for row in range {
            let image = &x[row / oh * h * w * c..][..h * w * c];
            // SAFETY: each row of an output image is one item.
            let to = unsafe { shards.slice(row * ow * c, ow * c) };
            pool_row(level, pool, window, image, [c, h, w], row % oh, to);
        }
    });
    out
}

simd! {
    /// Row `oy` of the output.
    fn pool_row(
        pool: Pool,
        window: &Window,
        x: &[f32],
        dims: [usize; 3],
        oy: usize,
        out: &mut [f32],
    ) {
        let [c, h, w] = dims;
        let clip = |at: usize, axis: usize, n: usize| {
            let (start, pad) = (at * window.stride[axis], window.pad[axis]);
            let end = (start + window.kernel[axis]).saturating_sub(pad).min(n);
            (start.saturating_sub(pad), end)
        };
        let (y0, y1) = clip(oy, 0, h);
        for (ox, to) in out.chunks_exact_mut(c).enumerate() {
            let (x0, x1) = clip(ox, 1, w);
            let taps = (y0..y1).flat_map(|y| (x0..x1).map(move |x| (y * w + x) * c));
            match pool {
                Pool::Max => {
                    to.fill(f32::NEG_INFINITY);
                    for at in taps {
                        for (t, &v) in to.iter_mut().zip(&x[at..][..c]) {
                            // What is no number stays, whatever comes behind it.
                            *t = if t.is_nan() || *t > v { *t } else { v };
                        }
                    }
                }
                Pool::Average => {
                    to.fill(0.0);
                    for at in taps {
                        for (t, &v) in to.iter_mut().zip(&x[at..][..c]) {
                            *t += v;
                        }
                    }
                    let num = y1.saturating_sub(y0) * x1.saturating_sub(x0);
                    let count = num.max(1) as f32;
                    to.iter_mut().for_each(|t| *t /= count);
                }
            }
        }
    }
}

/// Mean over the image.
pub fn global_average(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let dims = v.ty(0).fixed_dims();
    let (c, h, w) = (dims[0], dims[1], dims[2]);
    let (x, level) = (v.arg(0), env.level);
    let samples = out.len() / c;
    let shards = Shards::new(&mut out);
    env.split(samples, x.len(), |range| {
        for sample in range {
            // SAFETY: each sample is one item.
            let to = unsafe { shards.slice(sample * c, c) };
            image_mean(level, &x[sample * h * w * c..][..h * w * c], w, to);
        }
    });
    out
}

simd! {
    /// Means of rows of `w` pixels, of `out.len()` channels each, added in order.
    fn image_mean(x: &[f32], w: usize, out: &mut [f32]) {
        let c = out.len();
        let pixels = (x.len() / c) as f32;
        for (block, to) in out.chunks_mut(LANES).enumerate() {
            let at = block * LANES;
            let mut total = [0.0; LANES];
            for row in x.chunks_exact(w * c) {
                let mut sum = [0.0; LANES];
                for pixel in row.chunks_exact(c) {
                    if let Some(full) = pixel[at..].first_chunk::<LANES>() {
                        (0..LANES).for_each(|i| sum[i] += full[i]);
                    } else {
                        let part = math::load_tail(&pixel[at..], 0.0);
                        (0..LANES).for_each(|i| sum[i] += part[i]);
                    }
                }
                (0..LANES).for_each(|i| total[i] += sum[i]);
            }
            for (t, sum) in to.iter_mut().zip(total) {
                *t = sum / pixels;
            }
        }
    }
}
