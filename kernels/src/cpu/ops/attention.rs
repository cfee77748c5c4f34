//! Attention within members, over sequence states, and additive attention.
//!
//! Source: Vaswani et al. 2017 (scaled dot product), Bahdanau et al. 2015 (additive).
//! Work items are (member, some heads) or (row, head); none sees another member's rows.
//!
//! The scores of some queries with all their keys are held and become weights by an ordinary softmax:
//! an online one, over blocks of keys, would hold fewer, and rescale the sums of values at each block.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::{Bin, Heads, Seen, StateId};

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

/// The same where queries do not see all keys: the fewer, the less is computed for nothing.
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
pub fn attention(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    heads: Heads,
    seen: Seen,
    cap: Option<f32>,
    has_bias: bool,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let lead = v.ty(0).lead();
    let (q, k, val, level) = (v.arg(0), v.arg(1), v.arg(2), env.level);
    let bias = has_bias.then(|| v.arg(3));
    let members = &v.frame.members;
    let flops = members
        .iter()
        .map(|m| m.span(lead).1 * seen.num_keys(m.own(lead)))
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
                seen,
                cap,
                bias,
            };
            SCRATCH.with_borrow_mut(|s| of.run(s, [q, k, val], kv, first..first + each, shards));
        }
    });
    out
}

/// A member's rows, which attend to each other.
struct Attended<'a> {
    level: Level,
    heads: Heads,
    /// The first row, the number of them, and of those that are keys.
    start: usize,
    rows: usize,
    keys: usize,
    seen: Seen,
    /// What scaled scores stay below.
    cap: Option<f32>,
    /// What is added to scores, a row for each query head, by distance; 0 stands in the middle.
    bias: Option<&'a [f32]>,
}

impl Attended<'_> {
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
        let is_near = self.seen.num_keys(keys) < keys;
        let most = if self.seen.causal || is_near {
            CAUSAL_QUERIES
        } else {
            QUERIES
        };
        s.keys.grow(packed_len(dim, keys));
        s.values.grow(packed_len(keys, dim));
        s.scores.grow(most * keys);
        pack_b_transposed(&k[kv_at..], kv_width, dim, keys, &mut s.keys);
        if !is_near {
            pack_b(&v[kv_at..], kv_width, keys, dim, &mut s.values);
        }
        for first in (0..self.rows).step_by(most) {
            let num = most.min(self.rows - first);
            let seen = self.seen_by(first).start..self.seen_by(first + num - 1).end;
            let mut packed = 0..keys;
            if is_near {
                // Values of a window are packed for the queries that see them: chains begin there.
                packed = seen.clone();
                let from = &v[kv_at + seen.start * kv_width..];
                pack_b(from, kv_width, seen.len(), dim, &mut s.values);
            }
            for head in queries.clone() {
                let at = (self.start + first) * q_width + head * dim;
                let block = Block {
                    queries: AView::rows(&q[at..], q_width),
                    head,
                    first,
                    num,
                    seen: seen.clone(),
                    packed: packed.clone(),
                };
                self.block(s, &block, out.offset(at));
            }
        }
    }

    /// Keys that the query of a row sees; those of padding see what the last one does.
    fn seen_by(&self, row: usize) -> Range<usize> {
        self.seen
            .keys(row.min(self.keys.saturating_sub(1)), self.keys)
    }

    /// One head of some queries, whose keys and values are packed.
    fn block(&self, s: &mut Scratch, block: &Block<'_>, out: Shards) {
        let Self {
            level, heads, keys, ..
        } = *self;
        let Block {
            num, first, head, ..
        } = *block;
        let Range { start, end } = block.seen;
        let q_width = heads.query * heads.dim;
        let kt = BView {
            k: heads.dim,
            n: keys,
            data: &s.keys,
        };
        let values = Right {
            steps: end - block.packed.start,
            ..Right::from(BView {
                k: block.packed.len(),
                n: heads.dim,
                data: &s.values,
            })
        };
        let epi = Epilogue::default();
        let scores = Shards::new(&mut s.scores);
        let cols = start / NR..end.div_ceil(NR);
        // SAFETY: the scores are this thread's.
        unsafe {
            gemm_range(
                level,
                block.queries,
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
            let row = &mut s.scores[r * keys..][..end];
            let own = self.seen_by(first + r);
            row[start..own.start].fill(0.0);
            row[own.end..].fill(0.0);
            let row = &mut row[own.clone()];
            math::scale(level, heads.scale, row);
            if let Some(cap) = self.cap {
                math::soft_cap(level, cap, row);
            }
            if let Some(bias) = self.bias {
                let each = bias.len() / heads.query;
                let at = (first + r).min(keys.saturating_sub(1));
                let bias = &bias[head * each + each / 2 + own.start - at..][..own.len()];
                math::binary_inplace(level, Bin::Add, bias, row);
            }
            softmax_row(level, row);
        }
        let weights = AView::rows(&s.scores[block.packed.start..], keys);
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

/// Queries `first..first + num` of a head.
struct Block<'a> {
    queries: AView<'a>,
    head: usize,
    first: usize,
    num: usize,
    /// Keys that any of them sees.
    seen: Range<usize>,
    /// Rows of values that are packed.
    packed: Range<usize>,
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

    fn noise(seed: u64, num: usize) -> Vec<f32> {
        WeightSource::Seeded { seed, bound: 1.0 }.to_f32(num)
    }

    /// Attention of all heads over `rows` rows, in groups of so many.
    fn attend(
        level: Level,
        [q, k, v]: [&[f32]; 3],
        rows: usize,
        (seen, cap, bias): (Seen, Option<f32>, Option<&[f32]>),
        together: usize,
    ) -> Vec<f32> {
        let of = Attended {
            level,
            heads: HEADS,
            start: 0,
            rows,
            keys: rows,
            seen,
            cap,
            bias,
        };
        let mut out = vec![f32::NAN; q.len()];
        let shards = Shards::new(&mut out);
        let mut scratch = Scratch::default();
        for first in (0..HEADS.query).step_by(together) {
            let kv = first / (HEADS.query / HEADS.kv);
            let heads = first..first + together;
            scratch.scores.fill(f32::NAN);
            scratch.values.fill(f32::NAN);
            of.run(&mut scratch, [q, k, v], kv, heads, shards);
        }
        out
    }

    #[test]
    fn heads_of_a_group_have_the_bits_of_one_alone_and_values_behind_a_block_are_not_read() {
        let (q_width, kv_width) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
        let (q, k) = (noise(1, ROWS * q_width), noise(2, ROWS * kv_width));
        let mut v = noise(3, ROWS * kv_width);
        let near = Seen {
            window: Some(3),
            ..Seen::ALL
        };
        for level in Level::available() {
            for seen in [Seen::CAUSAL, near] {
                let bits = |together| {
                    let out = attend(level, [&q, &k, &v], ROWS, (seen, None, None), together);
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bits(2), bits(1), "{level:?}");
            }
        }
        // Zero times infinity is not zero: who multiplied masked values would show.
        v[CAUSAL_QUERIES * kv_width..].fill(f32::INFINITY);
        for level in Level::available() {
            let out = attend(level, [&q, &k, &v], ROWS, (Seen::CAUSAL, None, None), 2);
            let first = &out[..CAUSAL_QUERIES * q_width];
            assert!(first.iter().all(|x| x.is_finite()), "{level:?}");
        }
    }

    /// By the definition, in double precision.
    fn wanted(
        [q, k, v]: [&[f32]; 3],
        rows: usize,
        (seen, cap, bias): (Seen, Option<f32>, Option<&[f32]>),
    ) -> Vec<f64> {
        let Heads {
            query,
            kv,
            dim,
            scale,
        } = HEADS;
        let mut out = vec![0.0; rows * query * dim];
        for (i, h) in (0..rows).flat_map(|i| (0..query).map(move |h| (i, h))) {
            let of = |x: &[f32], j: usize, at: usize| f64::from(x[j * kv * dim + at]);
            let first = h / (query / kv) * dim;
            let to = (i * query + h) * dim;
            let sees = |j: usize| {
                let (behind, ahead) = (i.saturating_sub(j), j.saturating_sub(i));
                let apart = behind.max(ahead);
                !(seen.causal && ahead > 0) && seen.window.is_none_or(|most| apart <= most)
            };
            let keys: Vec<usize> = (0..rows).filter(|j| sees(*j)).collect();
            let score = |&j: &usize| {
                let dot = (0..dim).map(|d| f64::from(q[to + d]) * of(k, j, first + d));
                let added = bias.map_or(0.0, |bias| {
                    let each = bias.len() / query;
                    f64::from(bias[h * each + each / 2 + j - i])
                });
                let score = dot.sum::<f64>() * f64::from(scale);
                let capped = cap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh());
                capped + added
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shares: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = shares.iter().sum();
            for (share, j) in shares.iter().zip(keys) {
                for d in 0..dim {
                    out[to + d] += share / total * of(v, j, first + d);
                }
            }
        }
        out
    }

    #[test]
    fn windows_and_biases_are_those_of_the_definition_at_any_length() {
        let (q_width, kv_width) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
        // Around a block of queries, of a packed product, and of a tile's depth.
        for rows in [1, 2, 31, 33, 64, 100, 257, 1030] {
            let [q, k, v] = [(1, q_width), (2, kv_width), (3, kv_width)]
                .map(|(seed, width)| noise(seed + rows as u64, rows * width));
            let qkv = [&q[..], &k, &v];
            // More distances than there are, some hidden, none of a query from itself.
            let columns = 2 * (rows + 2) - 1;
            let mut bias = noise(9, HEADS.query * columns);
            bias.iter_mut().for_each(|b| *b *= 4.0);
            for row in bias.chunks_exact_mut(columns) {
                let own = columns / 2;
                let far = (0..columns).filter(|at| at.abs_diff(own) % 5 == 3);
                far.for_each(|at| row[at] = f32::NEG_INFINITY);
            }
            for most in [0, 1, 5, 40, 2000] {
                for (causal, windowed) in
                    [(false, false), (true, false), (false, true), (true, true)]
                {
                    if !windowed && most > 0 {
                        continue;
                    }
                    let seen = Seen {
                        causal,
                        window: windowed.then_some(most),
                    };
                    for form in [
                        (seen, None, None),
                        (seen, None, Some(&bias[..])),
                        (seen, Some(0.3), None),
                        (seen, Some(0.7), Some(&bias[..])),
                    ] {
                        let want = wanted(qkv, rows, form);
                        let mut first = None;
                        for level in Level::available() {
                            let got = attend(level, qkv, rows, form, 2);
                            for (g, w) in got.iter().zip(&want) {
                                let far = (f64::from(*g) - w).abs();
                                assert!(
                                    far <= 2e-5 * (1.0 + w.abs()),
                                    "{seen:?}, {rows} rows: {g}, {w}"
                                );
                            }
                            let bits: Vec<u32> = got.iter().map(|g| g.to_bits()).collect();
                            assert_eq!(*first.get_or_insert(bits.clone()), bits, "{level:?}");
                        }
                    }
                }
            }
        }
    }
}
