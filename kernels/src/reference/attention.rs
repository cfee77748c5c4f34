//! Attention by its definition.

use lazybatch_graph::{Heads, Seen, StateId};

use super::device::Request;
use super::eval::softmax;

/// One query head over rows of keys and values; `to` makes its scores of scaled products, by key.
fn head(
    q: &[f64],
    [keys, values]: [&[&[f64]]; 2],
    scale: f32,
    at: usize,
    to: impl Fn(usize, f64) -> f64,
    out: &mut [f64],
) {
    let dim = out.len();
    let score = |(j, k): (usize, &&[f64])| {
        let dot: f64 = q.iter().zip(&k[at..at + dim]).map(|(a, b)| a * b).sum();
        to(j, dot * f64::from(scale))
    };
    let mut scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
    softmax(&mut scores);
    for (p, v) in scores.iter().zip(values) {
        out.iter_mut()
            .zip(&v[at..at + dim])
            .for_each(|(o, v)| *o += p * v);
    }
}

/// All heads; `to` makes scores of scaled products, by head and key.
fn all_heads(
    q: &[f64],
    rows: [&[&[f64]]; 2],
    heads: Heads,
    to: impl Fn(usize, usize, f64) -> f64,
) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    if rows[0].is_empty() {
        return out;
    }
    for h in 0..heads.query {
        let range = h * heads.dim..(h + 1) * heads.dim;
        let at = h / (heads.query / heads.kv) * heads.dim;
        let out = &mut out[range.clone()];
        let to = |key, score| to(h, key, score);
        head(&q[range], rows, heads.scale, at, to, out);
    }
    out
}

/// Self-attention within one request.
pub(super) fn within(
    [q, k, v]: [&[f64]; 3],
    heads: Heads,
    seen: Seen,
    cap: Option<f32>,
    bias: Option<&[f64]>,
) -> Vec<f64> {
    let keys: Vec<&[f64]> = k.chunks_exact(heads.kv * heads.dim).collect();
    let values: Vec<&[f64]> = v.chunks_exact(heads.kv * heads.dim).collect();
    let rows = q.chunks_exact(heads.query * heads.dim).enumerate();
    let rows = rows.flat_map(|(i, q)| {
        let seen = seen.keys(i, keys.len());
        let rows = [&keys[seen.clone()], &values[seen.clone()]];
        all_heads(q, rows, heads, |h, key, score| {
            let score = cap
                .map(f64::from)
                .map_or(score, |cap| cap * (score / cap).tanh());
            let added = bias.map_or(0.0, |bias| {
                let each = bias.len() / heads.query;
                // Distance 0 stands in the middle.
                bias[h * each + each / 2 + seen.start + key - i]
            });
            score + added
        })
    });
    rows.collect()
}

fn rows(request: &Request, state: StateId) -> Vec<&[f64]> {
    request.sequences[state.index()]
        .iter()
        .flatten()
        .map(Vec::as_slice)
        .collect()
}

/// Attention over sequence states.
pub(super) fn over_state(r: &Request, q: &[f64], heads: Heads, k: StateId, v: StateId) -> Vec<f64> {
    let (keys, values) = (rows(r, k), rows(r, v));
    let each = q.chunks_exact(heads.query * heads.dim);
    each.flat_map(|q| all_heads(q, [&keys, &values], heads, |_, _, score| score))
        .collect()
}

/// Additive attention over sequence states.
pub(super) fn additive(
    r: &Request,
    q: &[f64],
    w: &[f64],
    k: StateId,
    v: StateId,
    width: usize,
) -> Vec<f64> {
    let (keys, values) = (rows(r, k), rows(r, v));
    let each = q.chunks_exact(w.len()).flat_map(|q| {
        let mut out = vec![0.0; width];
        let score = |k: &&[f64]| (0..w.len()).map(|i| w[i] * (q[i] + k[i]).tanh()).sum();
        let mut scores: Vec<f64> = keys.iter().map(score).collect();
        softmax(&mut scores);
        for (p, v) in scores.iter().zip(&values) {
            out.iter_mut().zip(*v).for_each(|(o, v)| *o += p * v);
        }
        out
    });
    each.collect()
}
