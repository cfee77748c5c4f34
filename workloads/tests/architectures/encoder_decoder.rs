//! Marian's family against a model that computes every token from the whole output before it.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::naive::{Rows, Weights, add, arg_max, attention, gelu, map, relu, silu, sum};
use crate::{CASES, answers, ids, program};

const EPS: f64 = 1e-5;

struct Case {
    layers: [usize; 2],
    heads: usize,
    d: usize,
    ffn: usize,
    vocab: usize,
    max_len: usize,
    act: &'static str,
    pre: bool,
    scale: bool,
    embedding_norm: bool,
    bias: bool,
    learned: Option<usize>,
    start: usize,
    stop: usize,
    never: usize,
    steps: usize,
}

impl Case {
    fn rows(&self) -> usize {
        self.learned.unwrap_or(0) + self.max_len.max(self.steps)
    }
}

fn weights(c: &Case, seed: u64) -> Weights {
    let mut w = Weights::new(seed);
    let d = c.d;
    w.within("model.shared.weight", &[c.vocab, d], -0.4, 0.4);
    for (side, layers) in ["encoder", "decoder"].into_iter().zip(c.layers) {
        let name = |part: &str| format!("model.{side}.{part}");
        if c.learned.is_some() {
            w.within(name("embed_positions.weight"), &[c.rows(), d], -0.5, 0.5);
        }
        if c.embedding_norm {
            w.norm(&name("layernorm_embedding"), d);
        }
        if c.pre {
            w.norm(&name("layer_norm"), d);
        }
        for i in 0..layers {
            let name = |part: &str| format!("model.{side}.layers.{i}.{part}");
            let attentions: &[&str] = match side {
                "encoder" => &["self_attn"],
                _ => &["self_attn", "encoder_attn"],
            };
            for attention in attentions {
                for part in ["q", "k", "v", "out"] {
                    w.linear(&name(&format!("{attention}.{part}_proj")), d, d);
                }
                w.norm(&name(&format!("{attention}_layer_norm")), d);
            }
            w.linear(&name("fc1"), c.ffn, d);
            w.linear(&name("fc2"), d, c.ffn);
            w.norm(&name("final_layer_norm"), d);
        }
    }
    if c.bias {
        w.within("final_logits_bias", &[1, c.vocab], -0.5, 0.5);
    }
    w
}

fn embedded(c: &Case, w: &Weights, side: &str, tokens: &[usize]) -> Rows {
    let half = c.d / 2;
    let one = |(p, &id): (usize, &usize)| -> Vec<f64> {
        let mut x = w.row("model.shared.weight", id);
        if c.scale {
            x.iter_mut().for_each(|x| *x *= (c.d as f64).sqrt());
        }
        let place = match c.learned {
            Some(first) => w.row(&format!("model.{side}.embed_positions.weight"), first + p),
            None => (0..c.d)
                .map(|f| {
                    let speed = 10_000f64.powf(-2.0 * (f % half) as f64 / c.d as f64);
                    let angle = p as f64 * speed;
                    if f < half { angle.sin() } else { angle.cos() }
                })
                .collect(),
        };
        sum(&x, &place)
    };
    let x: Rows = tokens.iter().enumerate().map(one).collect();
    if c.embedding_norm {
        return w.layer_norm(&format!("model.{side}.layernorm_embedding"), &x, EPS);
    }
    x
}

/// One side of the model; the decoder looks at `memory`.
fn run(c: &Case, w: &Weights, side: &str, tokens: &[usize], memory: Option<&Rows>) -> Rows {
    let mut x = embedded(c, w, side, tokens);
    for i in 0..c.layers[usize::from(memory.is_some())] {
        let name = |part: &str| format!("model.{side}.layers.{i}.{part}");
        let attend = |kind: &str, x: &Rows, over: &Rows| {
            let part = |p: &str, x: &Rows| w.apply(&name(&format!("{kind}.{p}_proj")), x);
            let (q, k, v) = (part("q", x), part("k", over), part("v", over));
            let causal = memory.is_some() && kind == "self_attn";
            part("out", &attention(&q, &k, &v, c.heads, c.heads, causal))
        };
        let around = |norm: &str, x: &Rows, body: &dyn Fn(&Rows) -> Rows| {
            let norm = |x: &Rows| w.layer_norm(&name(norm), x, EPS);
            match c.pre {
                true => add(x, &body(&norm(x))),
                false => norm(&add(x, &body(x))),
            }
        };
        x = around("self_attn_layer_norm", &x, &|h| attend("self_attn", h, h));
        if let Some(memory) = memory {
            x = around("encoder_attn_layer_norm", &x, &|h| {
                attend("encoder_attn", h, memory)
            });
        }
        x = around("final_layer_norm", &x, &|h| {
            let act = match c.act {
                "relu" => relu,
                "silu" => silu,
                _ => gelu,
            };
            w.apply(&name("fc2"), &map(&w.apply(&name("fc1"), h), act))
        });
    }
    if c.pre {
        return w.layer_norm(&format!("model.{side}.layer_norm"), &x, EPS);
    }
    x
}

fn expected(c: &Case, w: &Weights, source: &[usize]) -> Vec<usize> {
    let memory = run(c, w, "encoder", source, None);
    let mut out = vec![c.start];
    while out.len() <= c.steps {
        let last = vec![run(c, w, "decoder", &out, Some(&memory)).pop().unwrap()];
        let mut logits = w.times("model.shared.weight", &last).remove(0);
        if c.bias {
            logits = sum(&logits, &w.flat("final_logits_bias"));
        }
        logits[c.never] = f64::NEG_INFINITY;
        out.push(arg_max(&logits));
        if out.last() == Some(&c.stop) {
            break;
        }
    }
    out.split_off(1)
}

#[test]
fn tokens_are_those_of_the_whole_output_each_time() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..2 * CASES {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let heads = rng.random_range(1..4);
        let vocab = rng.random_range(6..30);
        let c = Case {
            layers: [rng.random_range(1..3), rng.random_range(1..4)],
            heads,
            d: heads * 2 * rng.random_range(2..5),
            ffn: rng.random_range(8..40),
            vocab,
            max_len: rng.random_range(2..20),
            act: ["relu", "silu", "gelu"][rng.random_range(0..3)],
            pre: rng.random(),
            scale: rng.random(),
            embedding_norm: rng.random(),
            bias: rng.random(),
            learned: [None, Some(2), Some(0)][rng.random_range(0..3)],
            start: rng.random_range(0..vocab),
            stop: rng.random_range(0..vocab),
            never: rng.random_range(0..vocab),
            steps: rng.random_range(1..20),
        };
        let w = weights(&c, seed);
        let places = match c.learned {
            Some(first) => format!("positions = {}\nposition_offset = {first}\n", c.rows()),
            None => String::new(),
        };
        let text = format!(
            "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'encoder-decoder'\n\
             weights = 'w'\n[sizes]\nvocab = {}\nhidden = {}\nencoder_layers = {}\n\
             decoder_layers = {}\nheads = {}\nffn = {}\nmax_len = {}\n{places}[options]\n\
             act = '{}'\nnorm = '{}'\nscale_embedding = {}\nembedding_norm = {}\n\
             logits_bias = {}\npositions = '{}'\n[tokens]\nstart = {}\nstop = {}\nnever = [{}]\n\
             max_steps = {}\n",
            c.vocab,
            c.d,
            c.layers[0],
            c.layers[1],
            c.heads,
            c.ffn,
            c.max_len,
            c.act,
            if c.pre { "pre" } else { "post" },
            c.scale,
            c.embedding_norm,
            c.bias,
            if c.learned.is_some() {
                "learned"
            } else {
                "sinusoidal"
            },
            c.start,
            c.stop,
            c.never,
            c.steps
        );
        let program = program(&text, &w);
        let sources: Vec<Vec<usize>> = (0..5)
            .map(|_| {
                let len = rng.random_range(1..=c.max_len);
                (0..len).map(|_| rng.random_range(0..c.vocab)).collect()
            })
            .collect();
        let requests: Vec<_> = sources.iter().map(|s| vec![ids(s)]).collect();
        for (got, source) in answers(&program, &requests).iter().zip(&sources) {
            let got: Vec<usize> = got[0].to_i32().iter().map(|&id| id as usize).collect();
            assert_eq!(got, expected(&c, &w, source), "seed {seed}");
            lengths.insert(got.len());
        }
    }
    assert!(lengths.len() > 3, "{lengths:?}");
}
