//! Attention within members, over sequence states, and additive attention.
//!
//! Source: Vaswani et al. 2017 (scaled dot product), Bahdanau et al. 2015 (additive).
//! Work items are (member, some heads) or (row, head); none sees another member's rows.
//!
//! The scores of some queries with all their keys are held and become weights by an ordinary softmax:
//! an online one, over blocks of keys, would hold fewer, and rescale the sums of values at each block.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::{Heads, StateId};

use super::rowwise::softmax_row;
use crate::cpu::buffers::{Aligned, Buf};
use crate::cpu::exec::{Env, NodeView, split};
use crate::cpu::gemm::{
    AView, BView, Epilogue, NR, Right, Start, gemm_range, pack_b, pack_b_transposed, packed_len,
};
use crate::cpu::level::{Level, simd};
use crate::cpu::math;
use crate::cpu::pool::Shards;
use crate::cpu::states::PagePool;
use crate::pages::{PAGE, SeqState};

/// Queries whose scores are held at once.
const QUERIES: usize = 64;

/// The same where queries see no later keys: the fewer, the less is computed for nothing.
const CAUSAL_QUERIES: usize = 32;

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
    // Heads that share keys and values stay together where there is work enough without them.
    let group = heads.query / heads.kv;
    let parts = if members.len() * heads.kv >= 2 * env.pool.threads() {
        1
    } else {
        group
    };
    let per_member = heads.kv * parts;
    env.split(members.len() * per_member, flops, |range| {
        for item in range {
            let (mem, item) = (&members[item / per_member], item % per_member);
            let (kv, part) = (item / parts, item % parts);
            let (start, rows) = mem.span(lead);
            let each = group / parts;
            let first = kv * group + part * each;
            let of = Attended {
                level,
                heads,
                start,
                rows,
                keys: mem.own(lead),
                causal,
            };
            SCRATCH.with_borrow_mut(|s| of.run(s, [q, k, val], kv, first..first + each, shards));
        }
    });
    out
}

/// A member's rows, which attend to each other.
struct Attended {
    level: Level,
    heads: Heads,
    /// The first row, the number of them, and of those that are keys.
    start: usize,
    rows: usize,
    keys: usize,
    causal: bool,
}

impl Attended {
    /// The query heads `queries`, which share the key and value head `kv`, into their columns of `out`.
    fn run(
        &self,
        s: &mut Scratch,
        [q, k, v]: [&[f32]; 3],
        kv: usize,
        queries: Range<usize>,
        out: Shards,
    ) {
        let (dim, keys) = (self.heads.dim, self.keys);
        let (q_width, kv_width) = (self.heads.query * dim, self.heads.kv * dim);
        let kv_at = self.start * kv_width + kv * dim;
        let most = if self.causal { CAUSAL_QUERIES } else { QUERIES };
        s.keys.grow(packed_len(dim, keys));
        s.values.grow(packed_len(keys, dim));
        s.scores.grow(most * keys);
        pack_b_transposed(&k[kv_at..], kv_width, dim, keys, &mut s.keys);
        pack_b(&v[kv_at..], kv_width, keys, dim, &mut s.values);
        for head in queries {
            for first in (0..self.rows).step_by(most) {
                let num = most.min(self.rows - first);
                let at = (self.start + first) * q_width + head * dim;
                let queries = AView::rows(&q[at..], q_width);
                self.block(s, queries, first, num, out.offset(at));
            }
        }
    }

    /// Queries `first..first + num` of a head, whose keys and values are packed.
    fn block(&self, s: &mut Scratch, queries: AView<'_>, first: usize, num: usize, out: Shards) {
        let Self {
            level, heads, keys, ..
        } = *self;
        let q_width = heads.query * heads.dim;
        // No query of the block sees a later key.
        let seen = if self.causal {
            (first + num).min(keys)
        } else {
            keys
        };
        let kt = BView {
            k: heads.dim,
            n: keys,
            data: &s.keys,
        };
        let values = Right {
            steps: seen,
            ..Right::from(BView {
                k: keys,
                n: heads.dim,
                data: &s.values,
            })
        };
        let epi = Epilogue::default();
        let scores = Shards::new(&mut s.scores);
        let cols = 0..seen.div_ceil(NR);
        // SAFETY: the scores are this thread's.
        unsafe {
            gemm_range(
                level,
                queries,
                0..num,
                kt,
                cols,
                scores,
                keys,
                Start::Zero,
                &epi,
            );
        }
        for r in 0..num {
            let row = &mut s.scores[r * keys..][..seen];
            let own = if self.causal {
                (first + r + 1).min(seen)
            } else {
                seen
            };
            row[own..].fill(0.0);
            math::scale(level, heads.scale, &mut row[..own]);
            softmax_row(level, &mut row[..own]);
        }
        let weights = AView::rows(&s.scores, keys);
        let cols = 0..heads.dim.div_ceil(NR);
        // SAFETY: these rows and the head of the output belong to the item alone.
        unsafe {
            gemm_range(
                level,
                weights,
                0..num,
                values,
                cols,
                out,
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

#[cfg(test)]
mod tests {
    use lazybatch_graph::WeightSource;

    use super::*;

    const ROWS: usize = CAUSAL_QUERIES + 8;
    const HEADS: Heads = Heads {
        query: 4,
        kv: 2,
        dim: 5,
        scale: 0.4,
    };

    /// Causal attention of all heads, in groups of so many.
    fn attend(level: Level, [q, k, v]: [&[f32]; 3], together: usize) -> Vec<f32> {
        let of = Attended {
            level,
            heads: HEADS,
            start: 0,
            rows: ROWS,
            keys: ROWS,
            causal: true,
        };
        let mut out = vec![f32::NAN; q.len()];
        let shards = Shards::new(&mut out);
        for first in (0..HEADS.query).step_by(together) {
            let kv = first / (HEADS.query / HEADS.kv);
            of.run(
                &mut Scratch::default(),
                [q, k, v],
                kv,
                first..first + together,
                shards,
            );
        }
        out
    }

    #[test]
    fn heads_of_a_group_have_the_bits_of_one_alone_and_values_behind_a_block_are_not_read() {
        let noise =
            |seed, width: usize| WeightSource::Seeded { seed, bound: 1.0 }.to_f32(ROWS * width);
        let (q_width, kv_width) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
        let (q, k, mut v) = (noise(1, q_width), noise(2, kv_width), noise(3, kv_width));
        for level in Level::available() {
            let bits = |together| {
                let out = attend(level, [&q, &k, &v], together);
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(2), bits(1), "{level:?}");
        }
        // Zero times infinity is not zero: who multiplied masked values would show.
        v[CAUSAL_QUERIES * kv_width..].fill(f32::INFINITY);
        for level in Level::available() {
            let out = attend(level, [&q, &k, &v], 2);
            let first = &out[..CAUSAL_QUERIES * q_width];
            assert!(first.iter().all(|x| x.is_finite()), "{level:?}");
        }
    }
}
