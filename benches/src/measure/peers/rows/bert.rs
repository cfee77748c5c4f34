//! Whole BERT encoders: BERT-base with synthetic weights, and MiniLM-L6, a sentence encoder, with
//! its trained ones.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_benches::record::merge;
use lazybatch_graph::{Program, Tensor};
use lazybatch_workloads::zoo;
use serde_json::{Value, json};

use super::{BATCHES, Own, Row, Setup, requests, weights};
use crate::measure::fetched::{self, MINILM};

/// Positions.
const LENS: [usize; 2] = [16, 128];
/// Added to variances in both.
const EPS: f32 = 1e-12;
/// Attention heads of both.
const HEADS: usize = 12;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// BERT-base: answers the pooled first row.
    Base,
    /// MiniLM-L6: answers the mean of the rows, at length 1.
    MiniLm,
}

impl Model {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Base, Self::MiniLm];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "bert-base",
            Self::MiniLm => "minilm",
        }
    }

    /// Sizes that the peer needs.
    pub fn sizes(self) -> Value {
        let layers = match self {
            Self::Base => 12,
            Self::MiniLm => 6,
        };
        json!({ "layers": layers, "heads": HEADS, "eps": EPS })
    }

    /// Our side of the requests that `make` makes for the program.
    ///
    /// # Errors
    /// A model that is not there.
    pub fn own(
        self,
        setup: &Setup,
        make: impl FnOnce(&Program) -> anyhow::Result<Vec<Vec<Tensor>>>,
    ) -> anyhow::Result<Own> {
        let (program, weights) = match self {
            Self::Base => {
                let entry = zoo::find(self.name()).context("BERT-base in the zoo")?;
                let program = entry.program()?;
                let weights = weights(&program);
                (Arc::new(program), weights)
            }
            Self::MiniLm => {
                let (plain, program) = fetched::program(&setup.models, MINILM)?;
                (program, weights(&plain))
            }
        };
        let requests = make(&program)?;
        let mut own = Own::program(program, requests, weights, setup, None)?;
        for tensor in &mut own.tensors {
            tensor.name = zoo_name(&tensor.name);
        }
        Ok(own)
    }

    /// `row`, which runs this model.
    pub fn needed_by(self, row: Row) -> Row {
        match self {
            Self::Base => row,
            Self::MiniLm => row.of_model(MINILM),
        }
    }
}

/// Both models at both lengths.
pub fn rows() -> Vec<Row> {
    let sizes = Model::ALL
        .into_iter()
        .flat_map(|model| LENS.map(|len| (model, len)));
    let all = sizes.flat_map(|(model, len)| BATCHES.map(|batch| row(model, batch, len)));
    all.collect()
}

fn row(model: Model, batch: usize, len: usize) -> Row {
    let mut sizes = json!({ "batch": batch, "len": len });
    merge(&mut sizes, model.sizes());
    let row = Row::new(model.name(), sizes, move |setup| {
        model.own(setup, |program| Ok(requests(program, batch, len)))
    });
    model.needed_by(row)
}

/// What the zoo calls a tensor of Hugging Face's `BertModel`.
fn zoo_name(name: &str) -> String {
    let parts = [
        ("input.input_ids", "input.ids"),
        ("embeddings.word_embeddings.weight", "tokens.table"),
        ("embeddings.position_embeddings.weight", "positions"),
        ("embeddings.token_type_embeddings.weight", "segments.table"),
        ("embeddings.LayerNorm", "embed.norm"),
        ("encoder.layer.", "layer"),
        ("attention.output.LayerNorm", "attn.norm"),
        ("attention.output.dense", "attn.o"),
        ("attention.self.query", "attn.q"),
        ("attention.self.key", "attn.k"),
        ("attention.self.value", "attn.v"),
        ("intermediate.dense", "ffn.up"),
        ("output.dense", "ffn.down"),
        ("output.LayerNorm", "ffn.norm"),
        ("norm.weight", "norm.gamma"),
        ("norm.bias", "norm.beta"),
    ];
    let name = name.to_owned();
    parts
        .iter()
        .fold(name, |name, (from, to)| name.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_those_of_the_zoo() {
        for (name, expected) in [
            ("embeddings.word_embeddings.weight", "tokens.table"),
            ("embeddings.LayerNorm.bias", "embed.norm.beta"),
            (
                "encoder.layer.3.attention.self.key.bias",
                "layer3.attn.k.bias",
            ),
            (
                "encoder.layer.0.attention.output.dense.weight",
                "layer0.attn.o.weight",
            ),
            (
                "encoder.layer.0.attention.output.LayerNorm.weight",
                "layer0.attn.norm.gamma",
            ),
            (
                "encoder.layer.5.output.LayerNorm.weight",
                "layer5.ffn.norm.gamma",
            ),
            ("encoder.layer.5.output.dense.bias", "layer5.ffn.down.bias"),
        ] {
            assert_eq!(zoo_name(name), expected);
        }
        let program = zoo::find("bert-tiny").unwrap().program().unwrap();
        let known: Vec<&str> = program.weights.iter().map(|w| w.name.as_str()).collect();
        for name in [
            "tokens.table",
            "embed.norm.beta",
            "layer1.attn.k.bias",
            "layer1.ffn.norm.gamma",
        ] {
            assert!(known.contains(&name), "{name}: {known:?}");
        }
    }
}
