//! Llama against a model that computes every token from the whole text before it.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::naive::{Rows, Weights, add, arg_max, attention, map, silu};
use crate::{CASES, answers, ids, program};

const EPS: f64 = 1e-5;

struct Case {
    layers: usize,
    heads: usize,
    kv: usize,
    dim: usize,
    hidden: usize,
    ffn: usize,
    vocab: usize,
    theta: f64,
    halves: bool,
    bias: bool,
    tied: bool,
    prompt: usize,
    steps: usize,
    stop: usize,
}

fn weights(c: &Case, seed: u64) -> Weights {
    let mut w = Weights::new(seed);
    w.within("model.embed_tokens.weight", &[c.vocab, c.hidden], -1.0, 1.0);
    for i in 0..c.layers {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        w.within(name("input_layernorm.weight"), &[c.hidden], 0.5, 1.5);
        w.within(
            name("post_attention_layernorm.weight"),
            &[c.hidden],
            0.5,
            1.5,
        );
        for (part, heads) in [("q", c.heads), ("k", c.kv), ("v", c.kv)] {
            let wide = heads * c.dim;
            w.matrix(
                name(&format!("self_attn.{part}_proj.weight")),
                wide,
                c.hidden,
            );
            if c.bias {
                w.within(
                    name(&format!("self_attn.{part}_proj.bias")),
                    &[wide],
                    -0.5,
                    0.5,
                );
            }
        }
        w.matrix(name("self_attn.o_proj.weight"), c.hidden, c.heads * c.dim);
        w.matrix(name("mlp.gate_proj.weight"), c.ffn, c.hidden);
        w.matrix(name("mlp.up_proj.weight"), c.ffn, c.hidden);
        w.matrix(name("mlp.down_proj.weight"), c.hidden, c.ffn);
    }
    w.within("model.norm.weight", &[c.hidden], 0.5, 1.5);
    if !c.tied {
        w.matrix("lm_head.weight", c.vocab, c.hidden);
    }
    w
}

/// Turns each head of row `p` by `p`.
fn rotated(c: &Case, x: &Rows) -> Rows {
    let turn = |(p, row): (usize, &Vec<f64>)| -> Vec<f64> {
        let mut out = row.clone();
        for head in (0..row.len()).step_by(c.dim) {
            for i in 0..c.dim / 2 {
                let angle = p as f64 * c.theta.powf(-2.0 * i as f64 / c.dim as f64);
                let (a, b) = match c.halves {
                    true => (head + i, head + i + c.dim / 2),
                    false => (head + 2 * i, head + 2 * i + 1),
                };
                out[a] = row[a] * angle.cos() - row[b] * angle.sin();
                out[b] = row[b] * angle.cos() + row[a] * angle.sin();
            }
        }
        out
    };
    x.iter().enumerate().map(turn).collect()
}

fn next(c: &Case, w: &Weights, text: &[usize]) -> usize {
    let table = "model.embed_tokens.weight";
    let mut x: Rows = text.iter().map(|&id| w.row(table, id)).collect();
    for i in 0..c.layers {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        let h = w.rms_norm(&name("input_layernorm"), &x, EPS);
        let [q, k, v] = ["q", "k", "v"].map(|p| w.apply(&name(&format!("self_attn.{p}_proj")), &h));
        let y = attention(&rotated(c, &q), &rotated(c, &k), &v, c.heads, c.kv, true);
        x = add(&x, &w.apply(&name("self_attn.o_proj"), &y));
        let h = w.rms_norm(&name("post_attention_layernorm"), &x, EPS);
        let gate = map(&w.apply(&name("mlp.gate_proj"), &h), silu);
        let up = w.apply(&name("mlp.up_proj"), &h);
        let both: Rows = gate
            .iter()
            .zip(&up)
            .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).collect())
            .collect();
        x = add(&x, &w.apply(&name("mlp.down_proj"), &both));
    }
    let last = vec![w.rms_norm("model.norm", &x, EPS).pop().unwrap()];
    let head = if c.tied { table } else { "lm_head.weight" };
    arg_max(&w.times(head, &last)[0])
}

#[test]
fn tokens_are_those_of_the_whole_text_each_time() {
    let (mut stopped, mut ran_out) = (0, 0);
    for seed in 0..2 * CASES {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let kv = rng.random_range(1..3);
        let heads = kv * rng.random_range(1..3);
        let vocab = rng.random_range(6..40);
        let c = Case {
            layers: rng.random_range(1..4),
            heads,
            kv,
            dim: 2 * rng.random_range(1..5),
            hidden: rng.random_range(8..25),
            ffn: rng.random_range(8..40),
            vocab,
            theta: [10_000.0, 500.0][rng.random_range(0..2)],
            halves: rng.random(),
            bias: rng.random(),
            tied: rng.random(),
            prompt: rng.random_range(1..25),
            steps: rng.random_range(1..24),
            stop: rng.random_range(0..vocab),
        };
        let w = weights(&c, seed);
        let text = format!(
            "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'llama'\nweights = 'w'\n\
             [sizes]\nvocab = {}\nhidden = {}\nlayers = {}\nheads = {}\nkv_heads = {}\n\
             head_dim = {}\nffn = {}\npositions = {}\nmax_prompt = {}\n[options]\n\
             rope_theta = {}\nrope_pairs = '{}'\nattention_bias = {}\ntied = {}\n\
             [tokens]\nstop = {}\nmax_steps = {}\n",
            c.vocab,
            c.hidden,
            c.layers,
            c.heads,
            c.kv,
            c.dim,
            c.ffn,
            c.prompt + c.steps,
            c.prompt,
            c.theta,
            if c.halves { "halves" } else { "neighbours" },
            c.bias,
            c.tied,
            c.stop,
            c.steps
        );
        let program = program(&text, &w);
        let prompts: Vec<Vec<usize>> = (0..6)
            .map(|_| {
                let len = rng.random_range(1..=c.prompt);
                (0..len).map(|_| rng.random_range(0..c.vocab)).collect()
            })
            .collect();
        let requests: Vec<_> = prompts.iter().map(|p| vec![ids(p)]).collect();
        for (got, prompt) in answers(&program, &requests).iter().zip(&prompts) {
            let mut text = prompt.clone();
            while text.len() < prompt.len() + c.steps {
                text.push(next(&c, &w, &text));
                if text.last() == Some(&c.stop) {
                    break;
                }
            }
            if text.last() == Some(&c.stop) {
                stopped += 1;
            } else {
                ran_out += 1;
            }
            let got: Vec<usize> = got[0].to_i32().iter().map(|&id| id as usize).collect();
            assert_eq!(got, text[prompt.len()..], "seed {seed}");
        }
    }
    assert!(
        stopped > 3 && ran_out > 3,
        "{stopped} stopped, {ran_out} ran out"
    );
}
