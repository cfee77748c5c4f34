//! A Transformer encoder-decoder for text to text, as Marian, Pegasus and BART have it.
//!
//! Input `source [len]`, output `tokens [len]`, greedy, the stop token included. One table of
//! embeddings for both sides and, turned, the output layer. `options.norm` puts layer norms behind
//! each residual sum (`post`) or before each layer, with one more at the end of both sides (`pre`).
//! T5 is not among them: its scores have a bias by distance, which attention over states does not add.
//! Sources: Vaswani et al., "Attention is all you need", 2017; tensor names of `MarianMTModel` in
//! Hugging Face transformers.

use super::Source;
use super::layers::{Around, Layers};
use crate::builder::{Fused, Greedy, Memory};
use crate::error::Error;
use crate::ids::ValueId;
use crate::op::{Act, At, Heads, Seen};
use crate::program::Repeat;
use crate::tensor::Tensor;

/// Most elements of a computed table of positions.
const MAX_TABLE: usize = 1 << 26;

/// What an id that must never be chosen has instead of a bias.
const NEVER: f32 = -1e30;

struct Config {
    vocab: usize,
    d: usize,
    encoder_layers: usize,
    decoder_layers: usize,
    heads: Heads,
    ffn: usize,
    max_len: usize,
    act: Act,
    eps: f32,
    pre_norm: bool,
    scale: bool,
    embedding_norm: bool,
    logits_bias: bool,
    /// Rows of learned tables of positions, and the row of the first position; computed if absent.
    learned: Option<(usize, usize)>,
    start: i32,
    stop: i32,
    never: Vec<usize>,
    steps: usize,
}

impl Config {
    fn read(source: &Source<'_>) -> Result<Self, Error> {
        let (sizes, options, tokens) = (&source.sizes, &source.options, &source.tokens);
        let d = sizes.size("hidden")?;
        let heads = sizes.number("heads", 1..=d)?;
        if !d.is_multiple_of(heads) {
            let expected = format!("a number that divides {d} features");
            return sizes.fail("heads", expected, heads.to_string());
        }
        let (vocab, max_len) = (sizes.size("vocab")?, sizes.size("max_len")?);
        let steps = tokens.number("max_steps", 1..=1 << 20)?;
        let kinds = [("sinusoidal", false), ("learned", true)];
        let learned = match options.one_of_or_first("positions", &kinds)? {
            true => {
                let first = sizes
                    .number_if("position_offset", 0..=1 << 20)?
                    .unwrap_or(0);
                let rows = sizes.number("positions", first + max_len.max(steps)..=1 << 24)?;
                Some((rows, first))
            }
            false if !d.is_multiple_of(2) || max_len.max(steps) > MAX_TABLE / d => {
                let expected = "an even number and a table of positions that fits in memory";
                return sizes.fail("hidden", expected, d.to_string());
            }
            false => None,
        };
        let acts = [
            ("relu", Act::Relu),
            ("silu", Act::Silu),
            ("gelu", Act::Gelu),
        ];
        let dim = d / heads;
        Ok(Self {
            d,
            encoder_layers: sizes.layers("encoder_layers")?,
            decoder_layers: sizes.layers("decoder_layers")?,
            heads: Heads {
                query: heads,
                kv: heads,
                dim,
                scale: 1.0 / (dim as f32).sqrt(),
            },
            ffn: sizes.size("ffn")?,
            act: options.one_of_or_first("act", &acts)?,
            eps: options.positive_or("eps", 1e-5)?,
            pre_norm: options.one_of_or_first("norm", &[("post", false), ("pre", true)])?,
            scale: options.flag_or("scale_embedding", true)?,
            embedding_norm: options.flag_or("embedding_norm", false)?,
            logits_bias: options.flag_or("logits_bias", true)?,
            start: tokens.token("start", vocab)?,
            stop: tokens.token("stop", vocab)?,
            never: tokens.tokens("never", vocab)?,
            learned,
            vocab,
            max_len,
            steps,
        })
    }
}

/// Builds it.
pub(super) fn build(source: &Source<'_>, l: &mut Layers<'_>) -> Result<(), Error> {
    let c = Config::read(source)?;
    let ids = l.b.sequence_ids("source", c.max_len, c.vocab);
    let greedy = Greedy::sampled(&mut l.b, c.start, c.stop);
    let places = c.learned.is_none().then(|| {
        let table = sinusoids(c.max_len.max(c.steps), c.d);
        l.given("positions", table)
    });
    let memory = |l: &mut Layers<'_>, kind: &str, rows: usize| -> Vec<Memory> {
        (0..c.decoder_layers)
            .map(|i| {
                let layer = format!("decoder.{i}.{kind}");
                l.b.scope(&layer, |b| b.memory(c.d, rows))
            })
            .collect()
    };
    let (own, cross) = (memory(l, "self", c.steps), memory(l, "cross", c.max_len));

    l.b.begin_block("encoder", Repeat::Once);
    let ids = l.b.read_input("source", ids);
    let mut x = embed(l, &c, "encoder", ids, places);
    for i in 0..c.encoder_layers {
        let part = Part::new("encoder", i);
        x = sublayer(l, &c, &part, "self_attn_layer_norm", x, |l, h, residual| {
            let [q, k, v] = ["q", "k", "v"].map(|p| part.project(l, "self_attn", p, h, None));
            let y =
                l.b.attention(&part.node("attention"), [q, k, v], c.heads, Seen::ALL, None);
            part.project(l, "self_attn", "out", y, Some(residual))
        });
        x = feed_forward(l, &c, &part, x);
    }
    x = last_norm(l, &c, "encoder", x);
    for (i, memory) in cross.iter().enumerate() {
        let part = Part::new("decoder", i);
        let [k, v] = ["k", "v"].map(|p| part.project(l, "encoder_attn", p, x, None));
        l.b.seq_write(&part.node("cross.k.keep"), memory.keys, At::All, k);
        l.b.seq_write(&part.node("cross.v.keep"), memory.values, At::All, v);
    }

    let max = c.steps as u32;
    l.b.begin_block("decoder", Repeat::UntilStop { max });
    let token = greedy.read(&mut l.b);
    let mut x = embed(l, &c, "decoder", token, places);
    for i in 0..c.decoder_layers {
        let part = Part::new("decoder", i);
        x = sublayer(l, &c, &part, "self_attn_layer_norm", x, |l, h, residual| {
            let [q, k, v] = ["q", "k", "v"].map(|p| part.project(l, "self_attn", p, h, None));
            let Memory { keys, values } = own[i];
            l.b.seq_write(&part.node("k.append"), keys, At::End, k);
            l.b.seq_write(&part.node("v.append"), values, At::End, v);
            let y =
                l.b.state_attention(&part.node("attention"), q, c.heads, keys, values);
            part.project(l, "self_attn", "out", y, Some(residual))
        });
        let norm = "encoder_attn_layer_norm";
        x = sublayer(l, &c, &part, norm, x, |l, h, residual| {
            let q = part.project(l, "encoder_attn", "q", h, None);
            let Memory { keys, values } = cross[i];
            let y =
                l.b.state_attention(&part.node("cross"), q, c.heads, keys, values);
            part.project(l, "encoder_attn", "out", y, Some(residual))
        });
        x = feed_forward(l, &c, &part, x);
    }
    x = last_norm(l, &c, "decoder", x);
    let logits = head(l, &c, x);
    greedy.choose(&mut l.b, logits);
    Ok(())
}

/// A layer of one side.
struct Part {
    side: &'static str,
    layer: usize,
}

impl Part {
    fn new(side: &'static str, layer: usize) -> Self {
        Self { side, layer }
    }

    fn node(&self, part: &str) -> String {
        format!("{}.{}.{part}", self.side, self.layer)
    }

    fn name(&self, part: &str) -> String {
        format!("model.{}.layers.{}.{part}", self.side, self.layer)
    }

    /// A projection of an attention, as wide as the model, added to `residual` if there is one.
    fn project(
        &self,
        l: &mut Layers<'_>,
        attention: &str,
        part: &str,
        x: ValueId,
        residual: Option<ValueId>,
    ) -> ValueId {
        let d = l.b.features(x);
        let around = Around {
            residual,
            ..Around::bias()
        };
        let tensor = self.name(&format!("{attention}.{part}_proj"));
        l.linear(
            &self.node(&format!("{attention}.{part}")),
            &tensor,
            x,
            d,
            around,
        )
    }
}

/// `body` on `x` or on its norm, with its residual sum, and the norm behind it where it belongs.
fn sublayer(
    l: &mut Layers<'_>,
    c: &Config,
    part: &Part,
    norm: &str,
    x: ValueId,
    body: impl FnOnce(&mut Layers<'_>, ValueId, ValueId) -> ValueId,
) -> ValueId {
    let (node, tensor) = (part.node(norm), part.name(norm));
    if c.pre_norm {
        let h = l.layer_norm(&node, &tensor, x, c.eps);
        body(l, h, x)
    } else {
        let y = body(l, x, x);
        l.layer_norm(&node, &tensor, y, c.eps)
    }
}

fn feed_forward(l: &mut Layers<'_>, c: &Config, part: &Part, x: ValueId) -> ValueId {
    sublayer(l, c, part, "final_layer_norm", x, |l, h, residual| {
        let up = Around {
            act: Some(c.act),
            ..Around::bias()
        };
        let y = l.linear(&part.node("fc1"), &part.name("fc1"), h, c.ffn, up);
        let down = Around {
            residual: Some(residual),
            ..Around::bias()
        };
        l.linear(&part.node("fc2"), &part.name("fc2"), y, c.d, down)
    })
}

fn last_norm(l: &mut Layers<'_>, c: &Config, side: &str, x: ValueId) -> ValueId {
    if !c.pre_norm {
        return x;
    }
    let tensor = format!("model.{side}.layer_norm");
    l.layer_norm(&format!("{side}.norm"), &tensor, x, c.eps)
}

fn embed(
    l: &mut Layers<'_>,
    c: &Config,
    side: &str,
    ids: ValueId,
    places: Option<ValueId>,
) -> ValueId {
    let table = l.weight("model.shared.weight", &[c.vocab, c.d]);
    let mut x = l.b.embedding(&format!("{side}.embed"), ids, table);
    if c.scale {
        let root = (c.d as f32).sqrt();
        x = l.b.scale(&format!("{side}.embed.scale"), x, root);
    }
    let table = match (places, c.learned) {
        (Some(table), _) => table,
        (None, learned) => {
            let (rows, first) = learned.unwrap_or_default();
            let name = format!("model.{side}.embed_positions.weight");
            l.some_rows(&name, [rows, c.d], (first, rows - first))
        }
    };
    x =
        l.b.add_position(&format!("{side}.embed.position"), x, table);
    if c.embedding_norm {
        let tensor = format!("model.{side}.layernorm_embedding");
        x = l.layer_norm(&format!("{side}.embed.norm"), &tensor, x, c.eps);
    }
    x
}

/// Scores of the next token.
fn head(l: &mut Layers<'_>, c: &Config, x: ValueId) -> ValueId {
    let w = l.tied("model.shared.weight", [c.vocab, c.d]);
    let forbid = |mut bias: Vec<f32>| {
        for &id in &c.never {
            bias[id] = NEVER;
        }
        Tensor::from_f32(&[c.vocab], &bias)
    };
    let bias = if c.logits_bias {
        let (name, dims) = ("final_logits_bias", [1, c.vocab]);
        Some(l.computed(name, &dims, &[c.vocab], |t| forbid(t.to_f32())))
    } else if !c.never.is_empty() {
        Some(l.given("final_logits_bias", forbid(vec![0.0; c.vocab])))
    } else {
        None
    };
    let fused = Fused {
        bias,
        ..Fused::default()
    };
    l.b.linear("decoder.head", x, w, fused)
}

/// `sin(p / 10000^(2i / d))` in the first half of a row, the cosines in the second.
fn sinusoids(positions: usize, d: usize) -> Tensor {
    let at = |n: usize| {
        let (p, i) = (n / d, n % d);
        let angle = p as f64 / 10_000f64.powf((2 * (i % (d / 2))) as f64 / d as f64);
        (if i < d / 2 { angle.sin() } else { angle.cos() }) as f32
    };
    let data: Vec<f32> = (0..positions * d).map(at).collect();
    Tensor::from_f32(&[positions, d], &data)
}
