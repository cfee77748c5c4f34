//! Attention by its definition.

use lazybatch_graph::{Heads, StateId};

use super::device::Request;
use super::eval::softmax;

/// One query head over rows of keys and values.
fn head(q: &[f64], keys: &[&[f64]], values: &[&[f64]], scale: f32, at: usize, out: &mut [f64]) {
    let dim = out.len();
    let mut scores: Vec<f64> = keys
        .iter()
        .map(|k| {
            let dot: f64 = q.iter().zip(&k[at..at + dim]).map(|(a, b)| a * b).sum();
            dot * f64::from(scale)
        })
        .collect();
    softmax(&mut scores);
    for (p, v) in scores.iter().zip(values) {
        out.iter_mut()
            .zip(&v[at..at + dim])
            .for_each(|(o, v)| *o += p * v);
    }
}

fn all_heads(q: &[f64], keys: &[&[f64]], values: &[&[f64]], heads: Heads) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    if keys.is_empty() {
        return out;
    }
    for h in 0..heads.query {
        let range = h * heads.dim..(h + 1) * heads.dim;
        let at = h / (heads.query / heads.kv) * heads.dim;
        head(
            &q[range.clone()],
            keys,
            values,
            heads.scale,
            at,
            &mut out[range],
        );
    }
    out
}

/// Self-attention within one request.
pub(super) fn within(q: &[f64], k: &[f64], v: &[f64], heads: Heads, causal: bool) -> Vec<f64> {
    let keys: Vec<&[f64]> = k.chunks_exact(heads.kv * heads.dim).collect();
    let values: Vec<&[f64]> = v.chunks_exact(heads.kv * heads.dim).collect();
    let rows = q
        .chunks_exact(heads.query * heads.dim)
        .enumerate()
        .flat_map(|(i, q)| {
            let seen = if causal { i + 1 } else { keys.len() };
            all_heads(q, &keys[..seen], &values[..seen], heads)
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
    each.flat_map(|q| all_heads(q, &keys, &values, heads))
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
