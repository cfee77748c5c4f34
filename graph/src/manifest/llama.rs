//! Llama: a decoder-only language model. RMSNorm, rotary positions, grouped queries, a gated
//! feed-forward layer, greedy decoding on a KV cache.
//!
//! Input `prompt [len]`, output `tokens [len]`: what follows the prompt, the stop token included.
//! The prompt passes the block `prefill` once and leaves its keys and values and the first new
//! token; each pass of the block `decode` emits the token that it finds and chooses the next one.
//! Sources: Touvron et al., "Llama 2", 2023; tensor names of `LlamaForCausalLM` in Hugging Face
//! transformers, which rotates halves `(i, i + dim / 2)` of a head where we rotate `(2i, 2i + 1)`:
//! `options.rope_pairs` says which of the two the files mean.

use super::layers::{Around, Layers};
use super::{PROMPT_START, Source};
use crate::builder::{Fused, Greedy, Memory};
use crate::error::Error;
use crate::ids::ValueId;
use crate::op::{Act, At, Heads, Seen};
use crate::program::Repeat;

struct Config {
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: Heads,
    ffn: usize,
    eps: f32,
    theta: f32,
    halves: bool,
    bias: bool,
    tied: bool,
    prompt: usize,
    steps: usize,
    start: Option<i32>,
    stop: i32,
}

impl Config {
    fn read(source: &Source<'_>) -> Result<Self, Error> {
        let (sizes, options, tokens) = (&source.sizes, &source.options, &source.tokens);
        let hidden = sizes.size("hidden")?;
        let query = sizes.number("heads", 1..=hidden)?;
        let kv = sizes.number_if("kv_heads", 1..=query)?.unwrap_or(query);
        let dim = match sizes.number_if("head_dim", 1..=4096)? {
            Some(dim) => dim,
            None if hidden.is_multiple_of(query) => hidden / query,
            None => {
                let expected = format!("a number that divides {hidden} features");
                return sizes.fail("heads", expected, query.to_string());
            }
        };
        if !query.is_multiple_of(kv) {
            let expected = format!("a number that divides {query} heads");
            return sizes.fail("kv_heads", expected, kv.to_string());
        }
        if !dim.is_multiple_of(2) {
            return sizes.fail("head_dim", "an even number", dim.to_string());
        }
        let positions = sizes.number("positions", 2..=1 << 20)?;
        let steps = tokens.number("max_steps", 1..=positions - 1)?;
        let rest = positions - steps;
        let vocab = sizes.size("vocab")?;
        let start = tokens.number_if("start", 0..=vocab - 1)?;
        let start = start.map(|start| start as i32);
        Ok(Self {
            hidden,
            heads: Heads {
                query,
                kv,
                dim,
                scale: 1.0 / (dim as f32).sqrt(),
            },
            layers: sizes.layers("layers")?,
            ffn: sizes.size("ffn")?,
            eps: options.positive_or("eps", 1e-5)?,
            theta: options.positive_or("rope_theta", 10_000.0)?,
            halves: options
                .one_of_or_first("rope_pairs", &[("halves", true), ("neighbours", false)])?,
            bias: options.flag_or("attention_bias", false)?,
            tied: options.flag_or("tied", false)?,
            prompt: sizes.number_if("max_prompt", 1..=rest)?.unwrap_or(rest),
            steps,
            start,
            stop: tokens.token("stop", vocab)?,
            vocab,
        })
    }
}

/// Builds it.
pub(super) fn build(source: &Source<'_>, l: &mut Layers<'_>) -> Result<(), Error> {
    let c = Config::read(source)?;
    let prompt = l.b.sequence_ids("prompt", c.prompt, c.vocab);
    // The first token comes from the prompt, so the state's initial value is never read.
    let greedy = Greedy::sampled(&mut l.b, 0, c.stop);
    if let Some(start) = c.start {
        l.b.metadata(PROMPT_START, start.to_string());
    }
    let kv = c.heads.kv * c.heads.dim;
    let caches: Vec<Memory> = (0..c.layers)
        .map(|i| {
            let layer = format!("layer{i}");
            l.b.scope(&layer, |b| b.memory(kv, c.prompt + c.steps))
        })
        .collect();

    l.b.begin_block("prefill", Repeat::Once);
    let ids = l.b.read_input("prompt", prompt);
    let x = hidden(l, &c, "prefill", ids, &caches, true);
    let x = l.b.last_row("prefill.last", x);
    let logits = head(l, &c, "prefill", x);
    greedy.next(&mut l.b, "prefill", logits);

    let max = c.steps as u32;
    l.b.begin_block("decode", Repeat::UntilStop { max });
    let token = greedy.read(&mut l.b);
    greedy.emit(&mut l.b, token);
    let x = hidden(l, &c, "decode", token, &caches, false);
    let logits = head(l, &c, "decode", x);
    greedy.next(&mut l.b, "decode", logits);
    Ok(())
}

/// The layers on the rows of `ids`: of a whole prompt, or of one token behind it.
fn hidden(
    l: &mut Layers<'_>,
    c: &Config,
    block: &str,
    ids: ValueId,
    caches: &[Memory],
    prefill: bool,
) -> ValueId {
    let table = l.weight("model.embed_tokens.weight", &[c.vocab, c.hidden]);
    let mut x = l.b.embedding(&format!("{block}.embed"), ids, table);
    for (layer, &cache) in caches.iter().enumerate() {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let node = |part: &str| format!("{block}.{layer}.{part}");
        let onto = |residual| Around {
            residual: Some(residual),
            ..Around::default()
        };
        let h = l.rms_norm(&node("attention.norm"), &name("input_layernorm"), x, c.eps);
        let y = attend(l, c, (&node, &name), h, cache, prefill);
        let tensor = name("self_attn.o_proj");
        x = l.linear(&node("o"), &tensor, y, c.hidden, onto(x));
        let tensor = name("post_attention_layernorm");
        let h = l.rms_norm(&node("ffn.norm"), &tensor, x, c.eps);
        let silu = Around {
            act: Some(Act::Silu),
            ..Around::default()
        };
        let gate = l.linear(&node("gate"), &name("mlp.gate_proj"), h, c.ffn, silu);
        let tensor = name("mlp.up_proj");
        let up = l.linear(&node("up"), &tensor, h, c.ffn, Around::default());
        let y = l.b.mul(&node("gated"), gate, up);
        x = l.linear(&node("down"), &name("mlp.down_proj"), y, c.hidden, onto(x));
    }
    x
}

type Named<'a> = (&'a dyn Fn(&str) -> String, &'a dyn Fn(&str) -> String);

/// Attention of `h` up to its output projection.
fn attend(
    l: &mut Layers<'_>,
    c: &Config,
    (node, name): Named<'_>,
    h: ValueId,
    cache: Memory,
    prefill: bool,
) -> ValueId {
    let Heads { query, kv, dim, .. } = c.heads;
    let mut project = |part: &str, heads: usize, rotates: bool| {
        let around = Around {
            bias: c.bias,
            halves: (rotates && c.halves).then_some(dim),
            ..Around::default()
        };
        let tensor = name(&format!("self_attn.{part}_proj"));
        l.linear(&node(part), &tensor, h, heads * dim, around)
    };
    let q = project("q", query, true);
    let k = project("k", kv, true);
    let v = project("v", kv, false);
    let b = &mut l.b;
    let at = if prefill { At::All } else { At::End };
    let [q, k] = [("q.rope", q, query), ("k.rope", k, kv)].map(|(part, x, heads)| {
        if prefill {
            b.rope(&node(part), x, heads, dim, c.theta)
        } else {
            b.rope_behind(&node(part), x, (heads, dim, c.theta), cache.keys)
        }
    });
    b.seq_write(&node("k.keep"), cache.keys, at, k);
    b.seq_write(&node("v.keep"), cache.values, at, v);
    if prefill {
        b.attention(&node("attention"), [q, k, v], c.heads, Seen::CAUSAL, None)
    } else {
        b.state_attention(&node("attention"), q, c.heads, cache.keys, cache.values)
    }
}

/// Scores of the next token.
fn head(l: &mut Layers<'_>, c: &Config, block: &str, x: ValueId) -> ValueId {
    let x = l.rms_norm(&format!("{block}.norm"), "model.norm", x, c.eps);
    let w = if c.tied {
        l.tied("model.embed_tokens.weight", [c.vocab, c.hidden])
    } else {
        l.matrix("lm_head.weight", [c.hidden, c.vocab])
    };
    l.b.linear(&format!("{block}.head"), x, w, Fused::default())
}
