//! The Transformer for translation.
//!
//! Post-norm encoder and decoder layers, sinusoidal positions, one embedding table for source,
//! target and output layer, greedy decoding. With 37,000 word pieces the layer table gives
//! 63,082,496 parameters (the paper rounds to 65 million). The output layer is a transposed copy of
//! the shared table.
//! Source: Vaswani et al., "Attention is all you need", table 3, row "base", and section 3.

use lazybatch_graph::{
    Act, Error, Fused, Greedy, MultiHead, Program, ProgramBuilder, Repeat, Tensor, ValueId,
};

use super::parts::not_counted;

/// Added to variances.
const EPS: f32 = 1e-6;
/// Starts an output.
pub const BOS: i32 = 1;
/// Ends an output.
pub const EOS: i32 = 2;

/// Sizes of a Transformer.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Name of the model.
    pub name: &'static str,
    /// Layers of the encoder, and of the decoder.
    pub layers: usize,
    /// Features of a row.
    pub d: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features within the feed-forward layers.
    pub ffn: usize,
    /// Word pieces.
    pub vocab: usize,
    /// Most positions of input and output.
    pub max_len: u32,
}

impl Config {
    /// Transformer-base.
    pub const BASE: Self = Self {
        name: "transformer",
        layers: 6,
        d: 512,
        heads: 8,
        ffn: 2048,
        vocab: 37_000,
        max_len: 128,
    };
    /// For tests.
    pub const TINY: Self = Self {
        name: "transformer-tiny",
        layers: 2,
        d: 32,
        heads: 4,
        ffn: 64,
        vocab: 50,
        max_len: 40,
    };

    /// Builds it: input `source [len]`, output `tokens [len]`.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn build(&self) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(self.name);
        let max_len = self.max_len as usize;
        let source = b.sequence_ids("source", max_len, self.vocab);
        let greedy = Greedy::new(&mut b, BOS, EOS);
        let bound = (3.0 / self.d as f32).sqrt();
        let table = b.seeded_within("embed.table", &[self.vocab, self.d], bound);
        let positions = b.data("embed.positions", sinusoids(max_len, self.d));
        not_counted(&mut b, "embed.positions");

        b.begin_block("encoder", Repeat::Once);
        let ids = b.read_input("source", source);
        let mut x = b.scope("encoder", |b| self.embed(b, ids, table, positions));
        for layer in 0..self.layers {
            x = b.scope(&format!("encoder.{layer}"), |b| {
                let h = b.self_attention("attn", x, MultiHead::new(self.heads), Some(x));
                let x = b.norm("attn_norm", h, EPS);
                self.feed_forward(b, x)
            });
        }
        let memories: Vec<_> = (0..self.layers)
            .map(|i| {
                b.scope(&format!("decoder.{i}"), |b| {
                    b.cross_memory("cross", x, self.d, max_len)
                })
            })
            .collect();

        b.begin_block("decoder", Repeat::UntilStop { max: self.max_len });
        let token = greedy.read(&mut b);
        let mut x = b.scope("decoder", |b| self.embed(b, token, table, positions));
        for (layer, memory) in memories.into_iter().enumerate() {
            x = b.scope(&format!("decoder.{layer}"), |b| {
                let h = b.cached_self_attention("self", x, self.heads, max_len, Some(x));
                let x = b.norm("self_norm", h, EPS);
                let h = b.cross_attention("cross", x, self.heads, memory, Some(x));
                let x = b.norm("cross_norm", h, EPS);
                self.feed_forward(b, x)
            });
        }
        let out = b.seeded("decoder.out.weight", &[self.d, self.vocab], self.d);
        not_counted(&mut b, "decoder.out.weight");
        let logits = b.linear("decoder.out", x, out, Fused::default());
        greedy.choose(&mut b, logits);
        b.finish()
    }

    fn embed(
        &self,
        b: &mut ProgramBuilder,
        ids: ValueId,
        table: ValueId,
        positions: ValueId,
    ) -> ValueId {
        let x = b.embedding("embed", ids, table);
        let x = b.scale("embed.scale", x, (self.d as f32).sqrt());
        b.add_position("embed.positions", x, positions)
    }

    fn feed_forward(&self, b: &mut ProgramBuilder, x: ValueId) -> ValueId {
        let h = b.ffn("ffn", x, self.ffn, Act::Relu, Some(x));
        b.norm("ffn_norm", h, EPS)
    }
}

/// `sin(p / 10000^(2i / d))` and its cosine, in pairs.
fn sinusoids(positions: usize, d: usize) -> Tensor {
    let angle = |p: usize, i: usize| p as f64 / 10_000f64.powf((i / 2 * 2) as f64 / d as f64);
    let at = |n: usize| {
        let (p, i) = (n / d, n % d);
        (if i % 2 == 0 {
            angle(p, i).sin()
        } else {
            angle(p, i).cos()
        }) as f32
    };
    let data: Vec<f32> = (0..positions * d).map(at).collect();
    Tensor::from_f32(&[positions, d], &data)
}
