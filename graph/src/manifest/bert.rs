//! BERT: embeddings of words, positions and token types, post-norm layers with GELU.
//!
//! Input `input_ids [len]`. Output by `options.result`: `mean` and `first` give `embedding
//! [hidden]`, the mean over the rows or the first one, at length 1 with `normalise`; `pooler` puts
//! BERT's dense tanh layer behind the first row; `rows` gives `hidden [len, hidden]`. All tokens
//! are of type 0, as in single sentences, unless `token_type_input` declares an input for them.
//! Sources: Devlin et al., "BERT", 2019; tensor names of `BertModel` in Hugging Face transformers.

use super::Source;
use super::layers::{Around, Layers};
use crate::dtype::DType;
use crate::error::Error;
use crate::ids::{InputId, ValueId};
use crate::op::{Act, Heads, Seen};
use crate::program::Repeat;
use crate::tensor::Tensor;

/// What the model answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Mean,
    First,
    Pooler,
    Rows,
}

struct Sizes {
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    ffn: usize,
    positions: usize,
    token_types: usize,
    max_len: usize,
}

impl Sizes {
    fn read(source: &Source<'_>) -> Result<Self, Error> {
        let sizes = &source.sizes;
        let positions = sizes.size("positions")?;
        let read = Self {
            vocab: sizes.size("vocab")?,
            hidden: sizes.size("hidden")?,
            layers: sizes.layers("layers")?,
            heads: sizes.size("heads")?,
            ffn: sizes.size("ffn")?,
            token_types: sizes.size_if("token_types")?.unwrap_or(2),
            max_len: sizes
                .number_if("max_len", 1..=positions)?
                .unwrap_or(positions),
            positions,
        };
        if !read.hidden.is_multiple_of(read.heads) {
            let expected = format!("a number that divides {} features", read.hidden);
            return sizes.fail("heads", expected, read.heads.to_string());
        }
        Ok(read)
    }
}

/// Builds it.
pub(super) fn build(source: &Source<'_>, l: &mut Layers<'_>) -> Result<(), Error> {
    let s = Sizes::read(source)?;
    let options = &source.options;
    let eps = options.positive_or("eps", 1e-12)?;
    let act = options.one_of_or_first("act", &[("gelu", Act::Gelu), ("relu", Act::Relu)])?;
    let answers = [
        ("mean", Answer::Mean),
        ("first", Answer::First),
        ("pooler", Answer::Pooler),
        ("rows", Answer::Rows),
    ];
    let answer = options.one_of("result", &answers)?;
    let normalise = options.flag_or("normalise", false)?;
    if normalise && answer == Answer::Rows {
        let expected = "false where the result is rows";
        return options.fail("normalise", expected, "true");
    }
    let ids = l.b.sequence_ids("input_ids", s.max_len, s.vocab);
    let types = options
        .flag_or("token_type_input", false)?
        .then(|| l.b.sequence_ids("token_type_ids", s.max_len, s.token_types));

    l.b.begin_block("encoder", Repeat::Once);
    let mut x = embed(l, &s, ids, types, eps);
    for layer in 0..s.layers {
        x = encoder_layer(l, &s, layer, x, act, eps);
    }
    if answer == Answer::Rows {
        let rows = l.b.output_sequence("hidden", DType::F32, &[s.hidden]);
        l.b.emit("emit", rows, x);
        return Ok(());
    }
    let mut y = match answer {
        Answer::Mean => l.b.mean_rows("mean", x),
        _ => l.b.first_row("first", x),
    };
    if answer == Answer::Pooler {
        let around = Around {
            act: Some(Act::Tanh),
            ..Around::bias()
        };
        y = l.linear("pooler", "pooler.dense", y, s.hidden, around);
    }
    if normalise {
        // x / sqrt(mean(x^2)) / sqrt(d) is x / |x|.
        let gamma = vec![1.0 / (s.hidden as f32).sqrt(); s.hidden];
        let gamma = l.given("unit", Tensor::from_f32(&[s.hidden], &gamma));
        y = l.b.rms_norm("normalise", y, gamma, 1e-24);
    }
    let embedding = l.b.output("embedding", DType::F32, &[s.hidden]);
    l.b.emit("emit", embedding, y);
    Ok(())
}

fn embed(l: &mut Layers<'_>, s: &Sizes, ids: InputId, types: Option<InputId>, eps: f32) -> ValueId {
    let words = l.weight("embeddings.word_embeddings.weight", &[s.vocab, s.hidden]);
    let ids = l.b.read_input("ids", ids);
    let x = l.b.embedding("embed.words", ids, words);
    let kinds = "embeddings.token_type_embeddings.weight";
    let x = match types {
        Some(types) => {
            let table = l.weight(kinds, &[s.token_types, s.hidden]);
            let ids = l.b.read_input("types", types);
            let kind = l.b.embedding("embed.type", ids, table);
            l.b.add("embed.add", x, kind)
        }
        None => {
            let kind = l.one_row(kinds, [s.token_types, s.hidden], 0);
            l.b.add("embed.add", x, kind)
        }
    };
    let places = "embeddings.position_embeddings.weight";
    let table = l.weight(places, &[s.positions, s.hidden]);
    let x = l.b.add_position("embed.position", x, table);
    l.layer_norm("embed.norm", "embeddings.LayerNorm", x, eps)
}

fn encoder_layer(
    l: &mut Layers<'_>,
    s: &Sizes,
    layer: usize,
    x: ValueId,
    act: Act,
    eps: f32,
) -> ValueId {
    let dim = s.hidden / s.heads;
    let heads = Heads {
        query: s.heads,
        kv: s.heads,
        dim,
        scale: 1.0 / (dim as f32).sqrt(),
    };
    let name = |part: &str| format!("encoder.layer.{layer}.{part}");
    let node = |part: &str| format!("layer{layer}.{part}");
    let onto = |residual| Around {
        residual: Some(residual),
        ..Around::bias()
    };
    let qkv = ["query", "key", "value"].map(|part| {
        let tensor = name(&format!("attention.self.{part}"));
        l.linear(&node(part), &tensor, x, s.hidden, Around::bias())
    });
    let y =
        l.b.attention(&node("attention"), qkv, heads, Seen::ALL, None);
    let tensor = name("attention.output.dense");
    let x = l.linear(&node("attention.out"), &tensor, y, s.hidden, onto(x));
    let tensor = name("attention.output.LayerNorm");
    let x = l.layer_norm(&node("attention.norm"), &tensor, x, eps);
    let up = Around {
        act: Some(act),
        ..Around::bias()
    };
    let y = l.linear(&node("up"), &name("intermediate.dense"), x, s.ffn, up);
    let x = l.linear(&node("down"), &name("output.dense"), y, s.hidden, onto(x));
    l.layer_norm(&node("norm"), &name("output.LayerNorm"), x, eps)
}
