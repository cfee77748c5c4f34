//! BERT encoders with pooler.
//!
//! Token, position and type embeddings, a norm, post-norm layers, and a tanh layer on the first
//! position: 109,482,240 parameters (base), 335,141,888 (large).
//! Source: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
//! understanding"; Hugging Face `BertModel` for the parameter counts.

use lazybatch_graph::{Act, DType, Error, MultiHead, Program, ProgramBuilder, Repeat};

/// Added to variances.
const EPS: f32 = 1e-12;

/// Sizes of a BERT.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Name of the model.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Features of a row.
    pub d: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features within the feed-forward layers.
    pub ffn: usize,
    /// Word pieces.
    pub vocab: usize,
    /// Positions.
    pub max_len: usize,
}

impl Config {
    /// BERT-base, uncased.
    pub const BASE: Self = Self {
        name: "bert-base",
        layers: 12,
        d: 768,
        heads: 12,
        ffn: 3072,
        vocab: 30_522,
        max_len: 512,
    };
    /// BERT-large, uncased.
    pub const LARGE: Self = Self {
        name: "bert-large",
        layers: 24,
        d: 1024,
        heads: 16,
        ffn: 4096,
        ..Self::BASE
    };
    /// For tests.
    pub const TINY: Self = Self {
        name: "bert-tiny",
        layers: 2,
        d: 32,
        heads: 4,
        ffn: 64,
        vocab: 100,
        max_len: 128,
    };

    /// Builds it: inputs `ids` and `types` `[len]`, output `pooled [d]`.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn build(&self) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(self.name);
        let ids = b.sequence_ids("ids", self.max_len, self.vocab);
        let types = b.sequence_ids("types", self.max_len, 2);
        let pooled = b.output("pooled", DType::F32, &[self.d]);
        b.begin_block("encoder", Repeat::Once);
        let i = b.read_input("ids", ids);
        let t = b.read_input("types", types);
        let x = b.embed("tokens", i, self.vocab, self.d);
        let kind = b.embed("segments", t, 2, self.d);
        let x = b.add("embed", x, kind);
        let table = b.seeded_within("positions", &[self.max_len, self.d], 1.0);
        let x = b.add_position("embed.positions", x, table);
        let mut x = b.norm("embed.norm", x, EPS);
        for layer in 0..self.layers {
            x = b.scope(&format!("layer{layer}"), |b| {
                let h = b.self_attention("attn", x, MultiHead::new(self.heads), Some(x));
                let x = b.norm("attn.norm", h, EPS);
                let h = b.ffn("ffn", x, self.ffn, Act::Gelu, Some(x));
                b.norm("ffn.norm", h, EPS)
            });
        }
        let first = b.first_row("first", x);
        let y = b.dense("pooler", first, self.d, Some(Act::Tanh));
        b.emit("pooled", pooled, y);
        b.finish()
    }
}
