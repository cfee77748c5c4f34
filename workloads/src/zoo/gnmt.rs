//! GNMT: recurrent translation with attention.
//!
//! Encoder of LSTM layers, the first bidirectional; decoder of LSTM layers, each but the first
//! fed with the context that an additive attention computes from the first one's output; residual
//! sums from layer 3 on; greedy decoding. The backward half of the first layer is a block of its
//! own that walks the input from its end.
//! Source: Wu et al., "Google's neural machine translation system", sections 3.1 to 3.3, with 8 + 8
//! layers of 1024; where the paper leaves it open (input of the layers behind the attention, states
//! that start at zero) the MLPerf training reference `rnn_translator`. One bias per gate.

use lazybatch_graph::{
    At, Error, Fused, Greedy, Program, ProgramBuilder, Repeat, StateId, ValueId,
};

use super::parts::keep;

/// Starts an output.
pub const BOS: i32 = 1;
/// Ends an output.
pub const EOS: i32 = 2;

/// Sizes of a GNMT.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Name of the model.
    pub name: &'static str,
    /// Layers of the encoder, and of the decoder; at least two.
    pub layers: usize,
    /// Features of embeddings, layers and attention.
    pub d: usize,
    /// Word pieces of each language.
    pub vocab: usize,
    /// Most positions of input and output.
    pub max_len: u32,
}

impl Config {
    /// The model of the paper.
    pub const FULL: Self = Self {
        name: "gnmt",
        layers: 8,
        d: 1024,
        vocab: 32_000,
        max_len: 128,
    };
    /// One that a CPU can serve.
    pub const SMALL: Self = Self {
        name: "gnmt-small",
        layers: 2,
        d: 512,
        vocab: 32_000,
        max_len: 128,
    };
    /// For tests.
    pub const TINY: Self = Self {
        name: "gnmt-tiny",
        layers: 3,
        d: 16,
        vocab: 40,
        max_len: 40,
    };

    /// Builds it: input `source [len]`, output `tokens [len]`.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn build(&self) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(self.name);
        let greedy = Greedy::new(&mut b, BOS, EOS);
        let max_len = self.max_len as usize;
        let values = b.sequence_state("attention.values", self.d, max_len);
        self.encoder(&mut b, values);

        b.begin_block("keys", Repeat::Once);
        let keys = b.sequence_state("attention.keys", self.d, max_len);
        let x = b.seq_read("attention.memory", values, At::All);
        let k = b.dense_with("attention.key", x, self.d, Fused::default());
        b.seq_write("attention.keys", keys, At::All, k);

        b.begin_block("decoder", Repeat::UntilStop { max: self.max_len });
        let token = greedy.read(&mut b);
        let x = b.scope("decoder", |b| self.decoder(b, token, keys, values));
        let logits = b.dense("decoder.out", x, self.vocab, None);
        greedy.choose(&mut b, logits);
        b.finish()
    }

    fn encoder(&self, b: &mut ProgramBuilder, values: StateId) {
        let max_len = self.max_len as usize;
        let source = b.sequence_ids("source", max_len, self.vocab);
        let backward = b.sequence_state("encoder.backward", self.d, max_len);
        let table = b.seeded_within("encoder.embed.table", &[self.vocab, self.d], 1.0);

        b.begin_block("encoder.backward", Repeat::PerInputStep { stride: 1 });
        let ids = b.read_input_at("source.reverse", source, At::Reverse);
        let x = b.embedding("encoder.embed.reverse", ids, table);
        let h = b.lstm("encoder.0.backward", x, self.d);
        b.seq_write("encoder.0.backward.keep", backward, At::Reverse, h);

        b.begin_block("encoder", Repeat::PerInputStep { stride: 1 });
        let ids = b.read_input("source", source);
        let x = b.embedding("encoder.embed", ids, table);
        let forward = b.lstm("encoder.0.forward", x, self.d);
        let other = b.seq_read("encoder.0.other", backward, At::Step);
        let both = b.concat("encoder.0", &[forward, other]);
        let mut x = b.lstm("encoder.1", both, self.d);
        for layer in 2..self.layers {
            let h = b.lstm(&format!("encoder.{layer}"), x, self.d);
            x = b.add(&format!("encoder.{layer}.add"), h, x);
        }
        keep(b, "encoder.keep", values, x);
    }

    fn decoder(
        &self,
        b: &mut ProgramBuilder,
        token: ValueId,
        keys: StateId,
        values: StateId,
    ) -> ValueId {
        let x = b.embed("embed", token, self.vocab, self.d);
        let first = b.lstm("0", x, self.d);
        let bias = b.seeded_within("query.bias", &[self.d], 0.02);
        let query = b.dense_with("query", first, self.d, Fused::bias(bias));
        let v = b.seeded("attention.v", &[self.d], self.d);
        let context = b.additive_attention("attention", query, v, keys, values);
        let fed = b.concat("1.input", &[first, context]);
        let mut x = b.lstm("1", fed, self.d);
        for layer in 2..self.layers {
            let fed = b.concat(&format!("{layer}.input"), &[x, context]);
            let h = b.lstm(&layer.to_string(), fed, self.d);
            x = b.add(&format!("{layer}.add"), h, x);
        }
        x
    }
}
