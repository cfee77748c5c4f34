//! BERT against the formulas of its paper.

use lazybatch_graph::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::naive::{Rows, Weights, add, attention, gelu, map, relu};
use crate::{CASES, answers, assert_close, ids, program};

const EPS: f64 = 1e-6;

struct Case {
    layers: usize,
    heads: usize,
    hidden: usize,
    ffn: usize,
    vocab: usize,
    positions: usize,
    types: usize,
    relu: bool,
    result: &'static str,
    normalise: bool,
    with_types: bool,
}

fn weights(c: &Case, seed: u64) -> Weights {
    let mut w = Weights::new(seed);
    let d = c.hidden;
    w.within(
        "embeddings.word_embeddings.weight",
        &[c.vocab, d],
        -1.0,
        1.0,
    );
    w.within(
        "embeddings.position_embeddings.weight",
        &[c.positions, d],
        -0.5,
        0.5,
    );
    w.within(
        "embeddings.token_type_embeddings.weight",
        &[c.types, d],
        -0.5,
        0.5,
    );
    w.norm("embeddings.LayerNorm", d);
    for i in 0..c.layers {
        for part in ["query", "key", "value"] {
            w.linear(&format!("encoder.layer.{i}.attention.self.{part}"), d, d);
        }
        w.linear(&format!("encoder.layer.{i}.attention.output.dense"), d, d);
        w.norm(&format!("encoder.layer.{i}.attention.output.LayerNorm"), d);
        w.linear(&format!("encoder.layer.{i}.intermediate.dense"), c.ffn, d);
        w.linear(&format!("encoder.layer.{i}.output.dense"), d, c.ffn);
        w.norm(&format!("encoder.layer.{i}.output.LayerNorm"), d);
    }
    if c.result == "pooler" {
        w.linear("pooler.dense", d, d);
    }
    w
}

fn expected(c: &Case, w: &Weights, tokens: &[usize], types: &[usize]) -> Vec<f64> {
    let mut x: Rows = Vec::new();
    for (p, (&id, &kind)) in tokens.iter().zip(types).enumerate() {
        let word = w.row("embeddings.word_embeddings.weight", id);
        let place = w.row("embeddings.position_embeddings.weight", p);
        let kind = w.row("embeddings.token_type_embeddings.weight", kind);
        x.push(
            (0..c.hidden)
                .map(|f| word[f] + place[f] + kind[f])
                .collect(),
        );
    }
    x = w.layer_norm("embeddings.LayerNorm", &x, EPS);
    for i in 0..c.layers {
        let name = |part: &str| format!("encoder.layer.{i}.{part}");
        let [q, k, v] =
            ["query", "key", "value"].map(|p| w.apply(&name(&format!("attention.self.{p}")), &x));
        let y = attention(&q, &k, &v, c.heads, c.heads, false);
        let y = w.apply(&name("attention.output.dense"), &y);
        x = w.layer_norm(&name("attention.output.LayerNorm"), &add(&x, &y), EPS);
        let y = w.apply(&name("intermediate.dense"), &x);
        let y = map(&y, if c.relu { relu } else { gelu });
        let y = w.apply(&name("output.dense"), &y);
        x = w.layer_norm(&name("output.LayerNorm"), &add(&x, &y), EPS);
    }
    let mut y = match c.result {
        "rows" => return x.concat(),
        "mean" => {
            let mean = |f: usize| x.iter().map(|row| row[f]).sum::<f64>() / x.len() as f64;
            (0..c.hidden).map(mean).collect()
        }
        "first" => x.swap_remove(0),
        _ => map(&w.apply("pooler.dense", &x[..1].to_vec()), f64::tanh).remove(0),
    };
    if c.normalise {
        let length = y.iter().map(|x| x * x).sum::<f64>().sqrt();
        y.iter_mut().for_each(|x| *x /= length);
    }
    y
}

#[test]
fn embeddings_are_those_of_the_formulas() {
    for seed in 0..CASES {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let heads = rng.random_range(1..4);
        let c = Case {
            layers: rng.random_range(1..4),
            heads,
            hidden: heads * rng.random_range(3..9),
            ffn: rng.random_range(8..40),
            vocab: rng.random_range(5..30),
            positions: rng.random_range(6..20),
            types: 1 + rng.random_range(1..3),
            relu: rng.random(),
            result: ["mean", "first", "pooler", "rows"][seed as usize % 4],
            normalise: seed % 4 != 3 && rng.random(),
            with_types: rng.random(),
        };
        let w = weights(&c, seed);
        let text = format!(
            "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'bert'\nweights = 'w'\n\
             [sizes]\nvocab = {}\nhidden = {}\nlayers = {}\nheads = {}\nffn = {}\npositions = {}\n\
             token_types = {}\n[options]\nresult = '{}'\nnormalise = {}\nact = '{}'\neps = 1e-6\n\
             token_type_input = {}\n",
            c.vocab,
            c.hidden,
            c.layers,
            c.heads,
            c.ffn,
            c.positions,
            c.types,
            c.result,
            c.normalise,
            if c.relu { "relu" } else { "gelu" },
            c.with_types
        );
        let program = program(&text, &w);
        let mut tokens = Vec::new();
        for _ in 0..5 {
            let len = rng.random_range(1..=c.positions);
            let draw = |rng: &mut ChaCha8Rng, below: usize| -> Vec<usize> {
                (0..len).map(|_| rng.random_range(0..below)).collect()
            };
            let types = if c.with_types { c.types } else { 1 };
            tokens.push((draw(&mut rng, c.vocab), draw(&mut rng, types)));
        }
        let requests: Vec<Vec<Tensor>> = tokens
            .iter()
            .map(|(t, kinds)| {
                let all = [ids(t), ids(kinds)];
                all[..program.inputs.len()].to_vec()
            })
            .collect();
        for (got, (t, kinds)) in answers(&program, &requests).iter().zip(&tokens) {
            let want = expected(&c, &w, t, kinds);
            assert_close(&got[0], &want, 1e-5, &format!("seed {seed}"));
        }
    }
}
