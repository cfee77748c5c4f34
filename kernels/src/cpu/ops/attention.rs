//! Attention within members, over sequence states, and additive attention.
//!
//! Source: Vaswani et al. 2017 (scaled dot product), Bahdanau et al. 2015 (additive).
//! Work items are (member, head) or (row, head); none sees another member's rows.

use std::cell::RefCell;

use lazybatch_graph::{Heads, StateId};

use super::rowwise::softmax_row;
use crate::cpu::buffers::{Aligned, Buf};
use crate::cpu::exec::{Env, NodeView, split};
use crate::cpu::gemm::{
    AView, BView, Epilogue, NR, Start, gemm_range, pack_b, pack_b_transposed, packed_len,
};
use crate::cpu::level::{Level, simd};
use crate::cpu::math;
use crate::cpu::pool::Shards;
use crate::cpu::states::PagePool;
use crate::pages::{PAGE, SeqState};

/// Queries whose scores are held at once.
const QUERIES: usize = 64;

/// Working memory of one thread.
#[derive(Default)]
struct Scratch {
    keys: Aligned,
    values: Aligned,
    scores: Aligned,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Self-attention within each member.
pub fn attention(env: &mut Env<'_>, v: NodeView<'_>, heads: Heads, causal: bool) -> Buf {
    let mut out = v.alloc(env, 0);
    let lead = v.ty(0).lead();
    let (q, k, val, level) = (v.arg(0), v.arg(1), v.arg(2), env.level);
    let members = &v.frame.members;
    let flops = members
        .iter()
        .map(|m| m.span(lead).1 * m.own(lead))
        .sum::<usize>()
        * heads.query
        * heads.dim
        * 4;
    let shards = Shards::new(&mut out);
    env.split(members.len() * heads.query, flops, |range| {
        for item in range {
            let (mem, head) = (&members[item / heads.query], item % heads.query);
            SCRATCH.with_borrow_mut(|s| {
                attend(
                    level,
                    s,
                    mem.span(lead),
                    mem.own(lead),
                    q,
                    k,
                    val,
                    heads,
                    head,
                    causal,
                    shards,
                );
            });
        }
    });
    out
}

fn attend(
    level: Level,
    s: &mut Scratch,
    (start, rows): (usize, usize),
    keys: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    heads: Heads,
    head: usize,
    causal: bool,
    out: Shards,
) {
    let (dim, q_width, kv_width) = (heads.dim, heads.query * heads.dim, heads.kv * heads.dim);
    let kv_at = start * kv_width + head / (heads.query / heads.kv) * dim;
    s.keys.grow(packed_len(dim, keys));
    s.values.grow(packed_len(keys, dim));
    s.scores.grow(QUERIES * keys);
    pack_b_transposed(&k[kv_at..], kv_width, dim, keys, &mut s.keys);
    pack_b(&v[kv_at..], kv_width, keys, dim, &mut s.values);
    let kt = BView {
        k: dim,
        n: keys,
        data: &s.keys,
    };
    let vals = BView {
        k: keys,
        n: dim,
        data: &s.values,
    };
    let epi = Epilogue::default();
    for first in (0..rows).step_by(QUERIES) {
        let num = QUERIES.min(rows - first);
        let q_at = (start + first) * q_width + head * dim;
        let queries = AView::rows(&q[q_at..], q_width);
        let scores = Shards::new(&mut s.scores);
        // SAFETY: the scores are this thread's.
        unsafe {
            gemm_range(
                level,
                queries,
                0..num,
                kt,
                0..keys.div_ceil(NR),
                scores,
                keys,
                Start::Zero,
                &epi,
            );
        }
        for r in 0..num {
            let row = &mut s.scores[r * keys..][..keys];
            let seen = if causal {
                (first + r + 1).min(keys)
            } else {
                keys
            };
            row[seen..].fill(0.0);
            math::scale(level, heads.scale, &mut row[..seen]);
            softmax_row(level, &mut row[..seen]);
        }
        let weights = AView::rows(&s.scores, keys);
        let to = out.offset(q_at);
        // SAFETY: this item's rows and head of the output belong to it alone.
        unsafe {
            gemm_range(
                level,
                weights,
                0..num,
                vals,
                0..dim.div_ceil(NR),
                to,
                q_width,
                Start::Zero,
                &epi,
            );
        }
    }
}

simd! {
    /// Dot products of `q` with rows of width `stride`, from `at` on.
    fn page_scores(q: &[f32], page: &[f32], stride: usize, at: usize, scores: &mut [f32]) {
        for (j, score) in scores.iter_mut().enumerate() {
            *score = math::dot_lanes(q, &page[j * stride + at..][..q.len()]);
        }
    }
}

simd! {
    /// `out += scores[j] * row j`, in order.
    fn page_sum(scores: &[f32], page: &[f32], stride: usize, at: usize, out: &mut [f32]) {
        let n = out.len();
        for (j, &score) in scores.iter().enumerate() {
            let row = &page[j * stride + at..][..n];
            for i in 0..n {
                out[i] = row[i].mul_add(score, out[i]);
            }
        }
    }
}

simd! {
    /// `sum(v * tanh(query + key))` for rows of a page.
    fn additive_scores(query: &[f32], v: &[f32], page: &[f32], scores: &mut [f32]) {
        let d = query.len();
        for (j, score) in scores.iter_mut().enumerate() {
            let key = &page[j * d..][..d];
            let mut acc = [0.0f32; math::LANES];
            let mut at = 0;
            while at < d {
                let len = math::LANES.min(d - at);
                let q = math::load_tail(&query[at..at + len], 0.0);
                let k = math::load_tail(&key[at..at + len], 0.0);
                let w = math::load_tail(&v[at..at + len], 0.0);
                for i in 0..math::LANES {
                    acc[i] = w[i].mul_add(math::tanh(q[i] + k[i]), acc[i]);
                }
                at += len;
            }
            *score = math::sum(&acc);
        }
    }
}

/// Weighted sum of a state's rows.
fn weighted(
    level: Level,
    pool: &PagePool,
    seq: &SeqState,
    weights: &[f32],
    at: usize,
    out: &mut [f32],
) {
    out.fill(0.0);
    for (i, weights) in weights.chunks(PAGE).enumerate() {
        page_sum(level, weights, pool.page(seq, i), pool.features(), at, out);
    }
}

/// Attention over sequence states.
pub fn state_attention(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    heads: Heads,
    keys: StateId,
    values: StateId,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let (q, level, dim) = (v.arg(0), env.level, heads.dim);
    let lead = v.ty(0).lead();
    let (frame, rows) = (v.frame, v.frame.num_rows(v.ty(0)));
    let (slots, states) = (&*env.slots, &*env.states);
    let flops: usize = v
        .spans(lead)
        .map(|(m, _, num)| num * slots.open(m.slot).sequences[keys.index()].len)
        .sum::<usize>()
        * heads.query
        * dim
        * 4;
    let parallel = env.pool.threads() > 1 && flops >= env.parallel_flops;
    let shards = Shards::new(&mut out);
    let task = |range: std::ops::Range<usize>| {
        for item in range {
            let (row, head) = (item / heads.query, item % heads.query);
            let mem = frame.member_at(lead, row);
            let at = (row * heads.query + head) * dim;
            let kv_at = head / (heads.query / heads.kv) * dim;
            // SAFETY: each (row, head) is one item.
            let to = unsafe { shards.slice(at, dim) };
            let open = slots.open(mem.slot);
            let (ks, vs) = (
                &open.sequences[keys.index()],
                &open.sequences[values.index()],
            );
            let (kp, vp) = (&states.pools[keys.index()], &states.pools[values.index()]);
            let len = ks.len.min(vs.len);
            if len == 0 {
                to.fill(0.0);
                continue;
            }
            SCRATCH.with_borrow_mut(|s| {
                s.scores.grow(len);
                let scores = &mut s.scores[..len];
                for (i, scores) in scores.chunks_mut(PAGE).enumerate() {
                    page_scores(
                        level,
                        &q[at..at + dim],
                        kp.page(ks, i),
                        kp.features(),
                        kv_at,
                        scores,
                    );
                }
                math::scale(level, heads.scale, scores);
                softmax_row(level, scores);
                weighted(level, vp, vs, scores, kv_at, to);
            });
        }
    };
    split(env.pool, parallel, rows * heads.query, task);
    out
}

/// Additive attention over sequence states.
pub fn additive_attention(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    keys: StateId,
    values: StateId,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let (q, w, level) = (v.arg(0), v.arg(1), env.level);
    let (d, width) = (v.ty(0).row_elems(), v.out_ty(0).row_elems());
    let lead = v.ty(0).lead();
    let (frame, rows) = (v.frame, v.frame.num_rows(v.ty(0)));
    let (slots, states) = (&*env.slots, &*env.states);
    let flops: usize = v
        .spans(lead)
        .map(|(m, _, num)| num * slots.open(m.slot).sequences[keys.index()].len)
        .sum::<usize>()
        * (d * 20 + width * 2);
    let parallel = env.pool.threads() > 1 && flops >= env.parallel_flops;
    let shards = Shards::new(&mut out);
    let task = |range: std::ops::Range<usize>| {
        for row in range {
            let mem = frame.member_at(lead, row);
            // SAFETY: each row is one item.
            let to = unsafe { shards.slice(row * width, width) };
            let open = slots.open(mem.slot);
            let (ks, vs) = (
                &open.sequences[keys.index()],
                &open.sequences[values.index()],
            );
            let (kp, vp) = (&states.pools[keys.index()], &states.pools[values.index()]);
            let len = ks.len.min(vs.len);
            if len == 0 {
                to.fill(0.0);
                continue;
            }
            SCRATCH.with_borrow_mut(|s| {
                s.scores.grow(len);
                let scores = &mut s.scores[..len];
                for (i, scores) in scores.chunks_mut(PAGE).enumerate() {
                    additive_scores(level, &q[row * d..][..d], w, kp.page(ks, i), scores);
                }
                softmax_row(level, scores);
                weighted(level, vp, vs, scores, 0, to);
            });
        }
    };
    split(env.pool, parallel, rows, task);
    out
}
