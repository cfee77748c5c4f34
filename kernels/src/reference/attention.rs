//! Attention by its definition.

use lazybatch_graph::{Heads, Seen, StateId};

use super::device::Request;
use super::eval::softmax;

/// One query head over rows of keys and values, whose scores `bias` is added to.
fn head(
    q: &[f64],
    [keys, values]: [&[&[f64]]; 2],
    scale: f32,
    at: usize,
    bias: Option<&[f64]>,
    out: &mut [f64],
) {
    let dim = out.len();
    let score = |(j, k): (usize, &&[f64])| {
        let dot: f64 = q.iter().zip(&k[at..at + dim]).map(|(a, b)| a * b).sum();
        dot * f64::from(scale) + bias.map_or(0.0, |bias| bias[j])
    };
    let mut scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
    softmax(&mut scores);
    for (p, v) in scores.iter().zip(values) {
        out.iter_mut()
            .zip(&v[at..at + dim])
            .for_each(|(o, v)| *o += p * v);
    }
}

/// All heads; `bias` gives what a head adds to the scores of the keys.
fn all_heads<'b>(
    q: &[f64],
    rows: [&[&[f64]]; 2],
    heads: Heads,
    bias: impl Fn(usize) -> Option<&'b [f64]>,
) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    if rows[0].is_empty() {
        return out;
    }
    for h in 0..heads.query {
        let range = h * heads.dim..(h + 1) * heads.dim;
        let at = h / (heads.query / heads.kv) * heads.dim;
        let to = &mut out[range.clone()];
        head(&q[range], rows, heads.scale, at, bias(h), to);
    }
    out
}

/// Self-attention within one request.
pub(super) fn within(
    [q, k, v]: [&[f64]; 3],
    heads: Heads,
    seen: Seen,
    bias: Option<&[f64]>,
) -> Vec<f64> {
    let keys: Vec<&[f64]> = k.chunks_exact(heads.kv * heads.dim).collect();
    let values: Vec<&[f64]> = v.chunks_exact(heads.kv * heads.dim).collect();
    let rows = q.chunks_exact(heads.query * heads.dim).enumerate();
    let rows = rows.flat_map(|(i, q)| {
        let seen = seen.keys(i, keys.len());
        let rows = [&keys[seen.clone()], &values[seen.clone()]];
        all_heads(q, rows, heads, |h| {
            let each = bias?.len() / heads.query;
            // Distance 0 stands in the middle.
            let first = each / 2 + seen.start - i;
            Some(&bias?[h * each + first..][..seen.len()])
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
    each.flat_map(|q| all_heads(q, [&keys, &values], heads, |_| None))
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
