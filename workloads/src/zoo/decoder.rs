//! A decoder-only language model: RMSNorm, rotary positions, grouped queries, a gated feed-forward
//! layer, greedy decoding on a cache of keys and values.
//!
//! The layer table of TinyLlama: 1,100,048,384 parameters. The prompt passes the block `prefill`
//! once and leaves its keys and values and the first new token; each pass of the block `decode`
//! emits the token that it finds and chooses the next one. Prompts and answers are cut to 128
//! positions each, and heads rotate neighbours.
//! Source: Zhang et al., "TinyLlama: an open-source small language model", arXiv 2401.02385,
//! table 2 (22 layers of 2048 features, 32 heads in 4 groups, 5632 features within the feed-forward
//! layers, 32,000 word pieces); Touvron et al., "Llama 2", for the layers.

use lazybatch_graph::{
    Act, At, Error, Fused, Greedy, Heads, Memory, Program, ProgramBuilder, Repeat, Seen, ValueId,
};

/// Added to mean squares.
const EPS: f32 = 1e-5;
/// Base of the rotary positions.
const THETA: f32 = 10_000.0;
/// Ends an output.
pub const EOS: i32 = 2;

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Name of the model.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Features of a row.
    pub d: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Features within the feed-forward layers.
    pub ffn: usize,
    /// Word pieces.
    pub vocab: usize,
    /// Most positions of a prompt, and of an answer.
    pub max_len: u32,
}

/// Weights of a layer, which both blocks use.
struct Layer {
    attention_norm: ValueId,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    o: ValueId,
    ffn_norm: ValueId,
    gate: ValueId,
    up: ValueId,
    down: ValueId,
    cache: Memory,
}

/// All weights.
struct Weights {
    table: ValueId,
    layers: Vec<Layer>,
    norm: ValueId,
    head: ValueId,
}

impl Config {
    /// A billion parameters.
    pub const B1: Self = Self {
        name: "decoder-1b",
        layers: 22,
        d: 2048,
        heads: 32,
        kv_heads: 4,
        ffn: 5632,
        vocab: 32_000,
        max_len: 128,
    };
    /// For tests.
    pub const TINY: Self = Self {
        name: "decoder-tiny",
        layers: 2,
        d: 32,
        heads: 4,
        kv_heads: 2,
        ffn: 48,
        vocab: 50,
        max_len: 40,
    };

    /// Builds it: input `prompt [len]`, output `tokens [len]`.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn build(&self) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(self.name);
        let prompt = b.sequence_ids("prompt", self.max_len as usize, self.vocab);
        // The first token comes from the prompt, so the state's initial value is never read.
        let greedy = Greedy::new(&mut b, 0, EOS);
        let weights = self.weights(&mut b);

        b.begin_block("prefill", Repeat::Once);
        let ids = b.read_input("prompt", prompt);
        let x = self.hidden(&mut b, "prefill", ids, &weights, true);
        let x = b.last_row("prefill.last", x);
        let logits = Self::scores(&mut b, "prefill", x, &weights);
        greedy.next(&mut b, "prefill", logits);

        b.begin_block("decode", Repeat::UntilStop { max: self.max_len });
        let token = greedy.read(&mut b);
        greedy.emit(&mut b, token);
        let x = self.hidden(&mut b, "decode", token, &weights, false);
        let logits = Self::scores(&mut b, "decode", x, &weights);
        greedy.next(&mut b, "decode", logits);
        b.finish()
    }

    fn weights(&self, b: &mut ProgramBuilder) -> Weights {
        let (d, kv) = (self.d, self.kv_heads * (self.d / self.heads));
        let layer = |b: &mut ProgramBuilder| Layer {
            attention_norm: b.constant("attention.norm", &[d], 1.0),
            q: b.seeded("q.weight", &[d, d], d),
            k: b.seeded("k.weight", &[d, kv], d),
            v: b.seeded("v.weight", &[d, kv], d),
            o: b.seeded("o.weight", &[d, d], d),
            ffn_norm: b.constant("ffn.norm", &[d], 1.0),
            gate: b.seeded("gate.weight", &[d, self.ffn], d),
            up: b.seeded("up.weight", &[d, self.ffn], d),
            down: b.seeded("down.weight", &[self.ffn, d], self.ffn),
            cache: b.memory(kv, 2 * self.max_len as usize),
        };
        Weights {
            table: b.seeded_within("embed.table", &[self.vocab, d], 1.0),
            layers: (0..self.layers)
                .map(|i| b.scope(&format!("layer{i}"), layer))
                .collect(),
            norm: b.constant("norm", &[d], 1.0),
            head: b.seeded("head.weight", &[d, self.vocab], d),
        }
    }

    /// The layers on the rows of `ids`: of a whole prompt, or of one token behind it.
    fn hidden(
        &self,
        b: &mut ProgramBuilder,
        block: &str,
        ids: ValueId,
        weights: &Weights,
        is_prompt: bool,
    ) -> ValueId {
        let mut x = b.embedding(&format!("{block}.embed"), ids, weights.table);
        for (i, w) in weights.layers.iter().enumerate() {
            x = b.scope(&format!("{block}.{i}"), |b| {
                let h = b.rms_norm("attention.norm", x, w.attention_norm, EPS);
                let y = self.attend(b, h, w, is_prompt);
                let x = b.linear("o", y, w.o, Fused::default().residual(x));
                let h = b.rms_norm("ffn.norm", x, w.ffn_norm, EPS);
                let gate = b.linear("gate", h, w.gate, Fused::default().act(Act::Silu));
                let up = b.linear("up", h, w.up, Fused::default());
                let y = b.mul("gated", gate, up);
                b.linear("down", y, w.down, Fused::default().residual(x))
            });
        }
        x
    }

    fn attend(&self, b: &mut ProgramBuilder, h: ValueId, w: &Layer, is_prompt: bool) -> ValueId {
        let dim = self.d / self.heads;
        let heads = Heads {
            query: self.heads,
            kv: self.kv_heads,
            dim,
            scale: 1.0 / (dim as f32).sqrt(),
        };
        let q = b.linear("q", h, w.q, Fused::default());
        let k = b.linear("k", h, w.k, Fused::default());
        let v = b.linear("v", h, w.v, Fused::default());
        let cache = w.cache;
        let [q, k] = [("q.rope", q, heads.query), ("k.rope", k, heads.kv)].map(|(name, x, num)| {
            if is_prompt {
                b.rope(name, x, num, dim, THETA)
            } else {
                b.rope_behind(name, x, (num, dim, THETA), cache.keys)
            }
        });
        let at = if is_prompt { At::All } else { At::End };
        b.seq_write("k.keep", cache.keys, at, k);
        b.seq_write("v.keep", cache.values, at, v);
        if is_prompt {
            b.attention("attention", [q, k, v], heads, Seen::CAUSAL, None)
        } else {
            b.state_attention("attention", q, heads, cache.keys, cache.values)
        }
    }

    /// Scores of the next token.
    fn scores(b: &mut ProgramBuilder, block: &str, x: ValueId, weights: &Weights) -> ValueId {
        let x = b.rms_norm(&format!("{block}.norm"), x, weights.norm, EPS);
        b.linear(&format!("{block}.head"), x, weights.head, Fused::default())
    }
}
