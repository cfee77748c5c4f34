//! Convolution, pooling and batch normalisation on NCHW images.
//!
//! A convolution is the product of the weights `[m, c kh kw]` with the columns of each sample's
//! windows, packed block by block; its result is an image without transposing. Each output element
//! is one chain over (channel, kernel row, kernel column). Depthwise convolutions run directly.

use std::cell::RefCell;

use lazybatch_graph::{Act, Pool, Window};

use crate::cpu::buffers::{Aligned, Buf};
use crate::cpu::exec::{Env, NodeView, split};
use crate::cpu::gemm::{AView, BView, Epilogue, KC, NR, PackedA, gemm_range};
use crate::cpu::level::{Level, simd};
use crate::cpu::math;
use crate::cpu::model::is_depthwise;
use crate::cpu::pool::Shards;

/// Output positions of one packed block.
const COLUMNS: usize = 256;

thread_local! {
    /// Packed columns of this thread.
    static PACKED: RefCell<Aligned> = RefCell::new(Aligned::zeroed(KC * COLUMNS));
}

/// Shape of one convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    window: Window,
    h: usize,
    w: usize,
    ow: usize,
    num: usize,
}

impl Geometry {
    fn new(window: &Window, h: usize, w: usize, oh: usize, ow: usize) -> Self {
        let pointwise = window.kernel == [1, 1] && window.stride == [1, 1] && window.pad == [0; 4];
        // A pointwise convolution sees its image as one long row.
        let (h, w, ow) = if pointwise {
            (1, h * w, oh * ow)
        } else {
            (h, w, ow)
        };
        let num = if pointwise { ow } else { oh * ow };
        Self {
            window: *window,
            h,
            w,
            ow,
            num,
        }
    }

    /// Packs rows `k0..k0 + kb` of the columns `first..first + cols`.
    fn pack(&self, x: &[f32], k0: usize, kb: usize, first: usize, cols: usize, out: &mut [f32]) {
        let [kh, kw] = self.window.kernel;
        for p in 0..cols.div_ceil(NR) {
            let panel = &mut out[p * kb * NR..(p + 1) * kb * NR];
            let start = first + p * NR;
            let len = NR.min(cols - p * NR);
            for (kk, to) in panel.chunks_exact_mut(NR).enumerate() {
                let k = k0 + kk;
                let (channel, ky, kx) = (k / (kh * kw), k / kw % kh, k % kw);
                let plane = &x[channel * self.h * self.w..][..self.h * self.w];
                let mut at = 0;
                while at < len {
                    let (oy, ox) = ((start + at) / self.ow, (start + at) % self.ow);
                    let run = (len - at).min(self.ow - ox);
                    self.run(plane, oy, ox, ky, kx, &mut to[at..at + run]);
                    at += run;
                }
                to[len..].fill(0.0);
            }
        }
    }

    /// Elements under kernel position (`ky`, `kx`) for outputs `ox..` of row `oy`.
    fn run(&self, plane: &[f32], oy: usize, ox: usize, ky: usize, kx: usize, to: &mut [f32]) {
        let [sy, sx] = self.window.stride;
        let row = (oy * sy + ky)
            .checked_sub(self.window.pad[0])
            .filter(|&y| y < self.h);
        let Some(y) = row else {
            to.fill(0.0);
            return;
        };
        let row = &plane[y * self.w..][..self.w];
        let pad = self.window.pad[1];
        let x0 = ox * sx + kx;
        if sx == 1 && x0 >= pad && x0 - pad + to.len() <= self.w {
            to.copy_from_slice(&row[x0 - pad..][..to.len()]);
            return;
        }
        for (i, t) in to.iter_mut().enumerate() {
            let x = (x0 + i * sx).checked_sub(pad).filter(|&x| x < self.w);
            *t = x.map_or(0.0, |x| row[x]);
        }
    }
}

/// Convolution with bias, residual and activation.
pub fn conv2d(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    window: &Window,
    groups: usize,
    bias: bool,
    residual: bool,
    act: Option<Act>,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let (dims, out_dims) = (v.ty(0).fixed_dims(), v.out_ty(0).fixed_dims());
    let (c, h, w) = (dims[0], dims[1], dims[2]);
    let (m, oh, ow) = (out_dims[0], out_dims[1], out_dims[2]);
    let x = v.arg(0);
    let samples = x.len() / (c * h * w);
    let bias_arg = bias.then(|| v.arg(2));
    let residual = residual.then(|| v.arg(2 + usize::from(bias)));
    if is_depthwise(groups, c) {
        depthwise(env, v, window, bias_arg, residual, act, &mut out);
        return out;
    }
    let g = Geometry::new(window, h, w, oh, ow);
    let weights = v.left(1);
    let (rows, k) = (m / groups, weights[0].k);
    let chunks = g.num.div_ceil(COLUMNS);
    let items = samples * groups * chunks;
    let parallel = env.parallel(2 * samples * m * g.num * k);
    // Small images give few chunks: the output channels are split as well.
    let splits = if parallel {
        (2 * env.pool.threads())
            .div_ceil(items)
            .clamp(1, rows.div_ceil(48))
    } else {
        1
    };
    let level = env.level;
    let shards = Shards::new(&mut out);
    let task = |task: usize| {
        let (item, part) = (task / splits, task % splits);
        let (chunk, group, sample) = (
            item % chunks,
            item / chunks % groups,
            item / chunks / groups,
        );
        let first = chunk * COLUMNS;
        let cols = COLUMNS.min(g.num - first);
        let image = &x[(sample * c + group * (c / groups)) * h * w..][..c / groups * h * w];
        let base = (sample * m + group * rows) * g.num + first;
        let epi = Epilogue {
            row_bias: bias_arg.map(|b| &b[group * rows..(group + 1) * rows]),
            residual: residual.map(|r| &r[base..]),
            act,
            act_last: true,
            ..Epilogue::default()
        };
        let part = rows * part / splits..rows * (part + 1) / splits;
        // SAFETY: tasks own disjoint (sample, channel range, column range) parts of the output.
        unsafe {
            chunk_product(
                level,
                &g,
                image,
                &weights[group],
                part,
                first,
                cols,
                shards.offset(base),
                &epi,
            );
        }
    };
    split(env.pool, parallel, items * splits, |range| {
        range.for_each(&task)
    });
    out
}

/// # Safety
/// `out`, rows `part` and columns up to `cols`, is the caller's alone.
unsafe fn chunk_product(
    level: Level,
    g: &Geometry,
    image: &[f32],
    weights: &PackedA,
    part: std::ops::Range<usize>,
    first: usize,
    cols: usize,
    out: Shards,
    epi: &Epilogue<'_>,
) {
    PACKED.with_borrow_mut(|packed| {
        let all = weights.view(0);
        for k0 in (0..weights.k).step_by(KC) {
            let kb = KC.min(weights.k - k0);
            g.pack(image, k0, kb, first, cols, packed);
            let a = AView {
                data: &all.data[k0 / KC * all.block_stride..],
                ..all
            };
            let b = BView {
                k: kb,
                n: cols,
                data: packed,
            };
            let none = Epilogue::default();
            let epi = if k0 + kb == weights.k { epi } else { &none };
            let panels = 0..cols.div_ceil(NR);
            // SAFETY: passed on.
            unsafe { gemm_range(level, a, part.clone(), b, panels, out, g.num, k0 > 0, epi) };
        }
    });
}

simd! {
    /// One plane of a depthwise convolution.
    fn depthwise_plane(g: &Geometry, x: &[f32], w: &[f32], out: &mut [f32]) {
        let [kh, kw] = g.window.kernel;
        let [sy, sx] = g.window.stride;
        let (top, left) = (g.window.pad[0], g.window.pad[1]);
        for (oy, to) in out.chunks_exact_mut(g.ow).enumerate() {
            to.fill(0.0);
            for ky in 0..kh {
                let y = oy * sy + ky;
                if y < top || y - top >= g.h {
                    continue;
                }
                let row = &x[(y - top) * g.w..][..g.w];
                for kx in 0..kw {
                    let weight = w[ky * kw + kx];
                    // Outputs whose window element lies inside the row.
                    let lo = left.saturating_sub(kx).div_ceil(sx).min(to.len());
                    let hi = (g.w + left).saturating_sub(kx).div_ceil(sx).clamp(lo, to.len());
                    if lo == hi {
                        continue;
                    }
                    let from = &row[lo * sx + kx - left..];
                    if sx == 1 {
                        for (t, x) in to[lo..hi].iter_mut().zip(from) {
                            *t = x.mul_add(weight, *t);
                        }
                    } else {
                        for (i, t) in to[lo..hi].iter_mut().enumerate() {
                            *t = from[i * sx].mul_add(weight, *t);
                        }
                    }
                }
            }
        }
    }
}

fn depthwise(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    window: &Window,
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
    act: Option<Act>,
    out: &mut [f32],
) {
    let (dims, out_dims) = (v.ty(0).fixed_dims(), v.out_ty(0).fixed_dims());
    let (c, h, w) = (dims[0], dims[1], dims[2]);
    let (m, oh, ow) = (out_dims[0], out_dims[1], out_dims[2]);
    let g = Geometry {
        window: *window,
        h,
        w,
        ow,
        num: oh * ow,
    };
    let (x, weights, level) = (v.arg(0), v.arg(1), env.level);
    let taps = window.kernel[0] * window.kernel[1];
    let planes = out.len() / g.num;
    let shards = Shards::new(out);
    env.split(planes, planes * g.num * taps * 2, |range| {
        for p in range {
            let (sample, channel) = (p / m, p % m);
            let from = &x[(sample * c + channel / (m / c)) * h * w..][..h * w];
            // SAFETY: each plane is one item.
            let to = unsafe { shards.slice(p * g.num, g.num) };
            depthwise_plane(level, &g, from, &weights[channel * taps..][..taps], to);
            if let Some(bias) = bias {
                to.iter_mut().for_each(|t| *t += bias[channel]);
            }
            if let Some(residual) = residual {
                to.iter_mut()
                    .zip(&residual[p * g.num..])
                    .for_each(|(t, r)| *t += r);
            }
            if let Some(act) = act {
                math::act_inplace(level, act, to);
            }
        }
    });
}

/// Inference-time batch normalisation.
pub fn batch_norm(env: &mut Env<'_>, v: NodeView<'_>, eps: f32) -> Buf {
    let mut out = v.alloc(env, 0);
    let dims = v.ty(0).fixed_dims();
    let plane: usize = dims[1..].iter().product();
    let (x, gamma, beta, mean, var) = (v.arg(0), v.arg(1), v.arg(2), v.arg(3), v.arg(4));
    for (i, (to, from)) in out
        .chunks_exact_mut(plane)
        .zip(x.chunks_exact(plane))
        .enumerate()
    {
        let c = i % dims[0];
        let scale = gamma[c] / (var[c] + eps).sqrt();
        let shift = (-mean[c]).mul_add(scale, beta[c]);
        math::affine(env.level, scale, shift, from, to);
    }
    out
}

/// Pooling.
pub fn pool2d(env: &mut Env<'_>, v: NodeView<'_>, pool: Pool, window: &Window) -> Buf {
    let mut out = v.alloc(env, 0);
    let (dims, out_dims) = (v.ty(0).fixed_dims(), v.out_ty(0).fixed_dims());
    let (h, w, oh, ow) = (dims[1], dims[2], out_dims[1], out_dims[2]);
    let x = v.arg(0);
    let planes = out.len() / (oh * ow);
    let shards = Shards::new(&mut out);
    let flops = planes * oh * ow * window.kernel[0] * window.kernel[1] * 4;
    env.split(planes, flops, |range| {
        for p in range {
            // SAFETY: each plane is one item.
            let to = unsafe { shards.slice(p * oh * ow, oh * ow) };
            pool_plane(pool, window, &x[p * h * w..][..h * w], h, w, ow, to);
        }
    });
    out
}

fn pool_plane(
    pool: Pool,
    window: &Window,
    x: &[f32],
    h: usize,
    w: usize,
    ow: usize,
    out: &mut [f32],
) {
    let clip = |o: usize, axis: usize, n: usize| {
        let start = o * window.stride[axis];
        let pad = window.pad[axis];
        (
            start.saturating_sub(pad),
            (start + window.kernel[axis]).saturating_sub(pad).min(n),
        )
    };
    for (i, to) in out.iter_mut().enumerate() {
        let ((y0, y1), (x0, x1)) = (clip(i / ow, 0, h), clip(i % ow, 1, w));
        let rows = (y0..y1).map(|y| &x[y * w + x0..y * w + x1.max(x0)]);
        *to = match pool {
            Pool::Max => rows
                .flatten()
                .fold(f32::NEG_INFINITY, |a, &b| math::max(a, b)),
            Pool::Average => {
                let count = (y1.saturating_sub(y0) * x1.saturating_sub(x0)).max(1);
                rows.flatten().sum::<f32>() / count as f32
            }
        };
    }
}

/// Mean over the image.
pub fn global_average(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let dims = v.ty(0).fixed_dims();
    let plane: usize = dims[1..].iter().product();
    for (to, from) in out.iter_mut().zip(v.arg(0).chunks_exact(plane)) {
        *to = math::total(env.level, from) / plane as f32;
    }
    out
}
