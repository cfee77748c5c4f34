//! Row-wise kernels. A row's reductions have an order that depends on its length alone.

use lazybatch_graph::{Act, Bin, StateId};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView, Outs};
use crate::cpu::level::simd;
use crate::cpu::math::{self, LANES};
use crate::cpu::pool::Shards;
use crate::frames::Mem;

/// Runs `f(x row, out row)` on all rows of width `d`; `cost` is the operations per element.
pub(super) fn per_row<F: Fn(usize, &[f32], &mut [f32]) + Sync>(
    env: &mut Env<'_>,
    x: &[f32],
    d: usize,
    out: &mut [f32],
    out_d: usize,
    cost: usize,
    f: F,
) {
    let rows = x.len() / d.max(1);
    let shards = Shards::new(out);
    env.split(rows, rows * d * cost, |range| {
        for r in range {
            // SAFETY: ranges of rows are disjoint.
            let to = unsafe { shards.slice(r * out_d, out_d) };
            f(r, &x[r * d..][..d], to);
        }
    });
}

/// `a (op) b`, `b` of equal type or one row's or its last dimension's weight.
pub fn binary(env: &mut Env<'_>, v: NodeView<'_>, op: Bin) -> Buf {
    let mut out = v.alloc(env, 0);
    let (a, b) = (v.arg(0), v.arg(1));
    let level = env.level;
    let is_weight = v.model.program.as_weight(v.node.inputs[1]).is_some();
    let width = if is_weight {
        b.len()
    } else {
        v.ty(0).row_elems()
    };
    per_row(env, a, width, &mut out, width, 2, |r, x, to| {
        let y = if is_weight {
            b
        } else {
            &b[r * width..][..width]
        };
        math::binary(level, op, x, y, to);
    });
    out
}

/// `act(x)`.
pub fn unary(env: &mut Env<'_>, v: NodeView<'_>, act: Act) -> Buf {
    let mut out = v.alloc(env, 0);
    let level = env.level;
    let d = v.ty(0).row_elems();
    per_row(env, v.arg(0), d, &mut out, d, 20, |_, x, to| {
        to.copy_from_slice(x);
        math::act_inplace(level, act, to);
    });
    out
}

/// `x * factor`.
pub fn scale(env: &mut Env<'_>, v: NodeView<'_>, factor: f32) -> Buf {
    let mut out = v.alloc(env, 0);
    out.copy_from_slice(v.arg(0));
    math::scale(env.level, factor, &mut out);
    out
}

/// Sum of `f(x)` over sixteen chains and a fixed tree; `fill` pads the tail with what adds zero.
#[inline(always)]
fn reduce(x: &[f32], fill: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            acc[i] = f(c[i], acc[i]);
        }
    }
    if !tail.is_empty() {
        let c = math::load_tail(tail, fill);
        for i in 0..LANES {
            acc[i] = f(c[i], acc[i]);
        }
    }
    math::sum(&acc)
}

#[inline(always)]
fn norm_body(x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len();
    let mean = reduce(x, 0.0, |v, acc| acc + v) / n as f32;
    let var = reduce(x, mean, |v, acc| (v - mean).mul_add(v - mean, acc)) / n as f32;
    let inv = 1.0 / (var + eps).sqrt();
    let (gamma, beta, out) = (&gamma[..n], &beta[..n], &mut out[..n]);
    for i in 0..n {
        out[i] = ((x[i] - mean) * inv).mul_add(gamma[i], beta[i]);
    }
}

simd! {
    fn layer_norm_row(x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
        norm_body(x, gamma, beta, eps, out);
    }
}

simd! {
    fn add_layer_norm_row(
        x: &[f32],
        y: &[f32],
        gamma: &[f32],
        beta: &[f32],
        eps: f32,
        sum: &mut [f32],
        out: &mut [f32],
    ) {
        let n = sum.len();
        let (x, y) = (&x[..n], &y[..n]);
        for i in 0..n {
            sum[i] = x[i] + y[i];
        }
        norm_body(sum, gamma, beta, eps, out);
    }
}

simd! {
    fn rms_norm_row(x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32]) {
        let n = x.len();
        let square = reduce(x, 0.0, |v, acc| v.mul_add(v, acc)) / n as f32;
        let inv = 1.0 / (square + eps).sqrt();
        let (gamma, out) = (&gamma[..n], &mut out[..n]);
        for i in 0..n {
            out[i] = x[i] * inv * gamma[i];
        }
    }
}

/// Layer normalisation.
pub fn layer_norm(env: &mut Env<'_>, v: NodeView<'_>, eps: f32) -> Buf {
    let mut out = v.alloc(env, 0);
    let (gamma, beta, level) = (v.arg(1), v.arg(2), env.level);
    let d = gamma.len();
    per_row(env, v.arg(0), d, &mut out, d, 8, |_, x, to| {
        layer_norm_row(level, x, gamma, beta, eps, to);
    });
    out
}

/// Sum and its layer normalisation.
pub fn add_layer_norm(env: &mut Env<'_>, v: NodeView<'_>, eps: f32) -> Outs {
    let (mut sum, mut out) = (v.alloc(env, 0), v.alloc(env, 1));
    let (y, gamma, beta, level) = (v.arg(1), v.arg(2), v.arg(3), env.level);
    let d = gamma.len();
    let sums = Shards::new(&mut sum);
    per_row(env, v.arg(0), d, &mut out, d, 9, |r, x, to| {
        // SAFETY: each row is visited once.
        let sum = unsafe { sums.slice(r * d, d) };
        add_layer_norm_row(level, x, &y[r * d..][..d], gamma, beta, eps, sum, to);
    });
    smallvec::smallvec![sum, out]
}

/// Root-mean-square normalisation.
pub fn rms_norm(env: &mut Env<'_>, v: NodeView<'_>, eps: f32) -> Buf {
    let mut out = v.alloc(env, 0);
    let (gamma, level) = (v.arg(1), env.level);
    let d = gamma.len();
    per_row(env, v.arg(0), d, &mut out, d, 4, |_, x, to| {
        rms_norm_row(level, x, gamma, eps, to)
    });
    out
}

#[inline(always)]
fn row_max(x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            acc[i] = math::max(c[i], acc[i]);
        }
    }
    let last = math::load_tail(tail, f32::NEG_INFINITY);
    for i in 0..LANES {
        acc[i] = math::max(last[i], acc[i]);
    }
    acc.into_iter().fold(f32::NEG_INFINITY, math::max)
}

simd! {
    /// Softmax of one row in place.
    pub fn softmax_row(x: &mut [f32]) {
        let top = row_max(x);
        let mut acc = [0.0f32; LANES];
        let (chunks, tail) = x.as_chunks_mut::<LANES>();
        for c in chunks {
            for i in 0..LANES {
                c[i] = math::exp(c[i] - top);
                acc[i] += c[i];
            }
        }
        if !tail.is_empty() {
            let mut c = math::load_tail(tail, f32::NEG_INFINITY);
            for i in 0..LANES {
                c[i] = math::exp(c[i] - top);
                acc[i] += c[i];
            }
            tail.copy_from_slice(&c[..tail.len()]);
        }
        let total = math::sum(&acc);
        for v in x.iter_mut() {
            *v /= total;
        }
    }
}

/// Softmax over the last dimension.
pub fn softmax(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (d, level) = (v.last_dim(0), env.level);
    per_row(env, v.arg(0), d, &mut out, d, 20, |_, x, to| {
        to.copy_from_slice(x);
        softmax_row(level, to);
    });
    out
}

/// Rotary position embedding.
pub fn rope(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    heads: usize,
    dim: usize,
    theta: f32,
    past: Option<StateId>,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let x = v.arg(0);
    let width = heads * dim;
    let lead = v.ty(0).lead();
    let slots = &*env.slots;
    let position = |mem: &Mem, row: usize| match past {
        Some(state) => slots.open(mem.slot).sequences[state.index()].len,
        None => v.position(mem, row),
    };
    for i in 0..dim / 2 {
        let freq = f64::from(theta).powf(-2.0 * i as f64 / dim as f64);
        for (mem, start, num) in v.spans(lead) {
            for r in 0..num {
                let (sin, cos) = (position(mem, r) as f64 * freq).sin_cos();
                let (sin, cos) = (sin as f32, cos as f32);
                for h in 0..heads {
                    let at = (start + r) * width + h * dim + 2 * i;
                    let (a, b) = (x[at], x[at + 1]);
                    out[at] = a.mul_add(cos, -(b * sin));
                    out[at + 1] = a.mul_add(sin, b * cos);
                }
            }
        }
    }
    out
}

simd! {
    /// Index of the largest element, the lowest among equals; 0 without a number.
    pub(super) fn arg_max_row(x: &[f32]) -> usize {
        let top = row_max(x);
        x.iter().position(|v| *v == top).unwrap_or(0)
    }
}

/// Index of the largest element, the lowest among equals; 0 where the first is no number.
pub fn arg_max(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (d, level) = (v.ty(0).row_elems(), env.level);
    per_row(env, v.arg(0), d, &mut out, 1, 2, |_, x, to| {
        let starts = x.first().is_some_and(|v| !v.is_nan());
        let best = if starts { arg_max_row(level, x) } else { 0 };
        to[0] = f32::from_bits(best as u32);
    });
    out
}

/// Pairwise dot products.
pub fn interaction(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let dims = v.ty(0).fixed_dims();
    let (f, d, level) = (dims[0], dims[1], env.level);
    let pairs = f * (f - 1) / 2;
    per_row(env, v.arg(0), f * d, &mut out, pairs, f, |_, x, to| {
        let mut at = 0;
        for i in 1..f {
            for j in 0..i {
                to[at] = math::dot(level, &x[i * d..][..d], &x[j * d..][..d]);
                at += 1;
            }
        }
    });
    out
}
