//! English spelling to phonemes: the model that this project trains.
//!
//! A pre-norm transformer encoder-decoder over letters: 3 + 3 layers of 192, 4 heads, feed-forward
//! layers of 768 with ReLU, learned positions, greedy decoding. Source ids are the letters
//! (`a` is 3, ..., `z` is 28) and a final 2; target ids are 39 phonemes from 3 on. Weights come from
//! a safetensors file whose tensors carry the names that this program's weights have.
//! Source: `workloads/train/model.py`, which trains it and writes the file.

use std::path::Path;

use lazybatch_graph::weights::load_into;
use lazybatch_graph::{
    Act, Error, Greedy, MultiHead, Program, ProgramBuilder, Repeat, ValueId, WeightFile,
};

/// Starts an output.
pub const BOS: i32 = 1;
/// Ends an input and an output.
pub const EOS: i32 = 2;
/// Id of the letter `a` and of the first phoneme.
pub const FIRST: i32 = 3;
/// Most letters of a word.
pub const MAX_LETTERS: usize = 24;
/// Most decoder steps, the one that yields the stop token included.
pub const MAX_STEPS: u32 = 31;
/// The phonemes, from id [`FIRST`] on.
pub const PHONEMES: [&str; 39] = [
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH",
    "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH",
    "UW", "V", "W", "Y", "Z", "ZH",
];

const SOURCE_VOCAB: usize = 29;
const TARGET_VOCAB: usize = 42;
const D: usize = 192;
const HEADS: usize = 4;
const FFN: usize = 768;
const LAYERS: usize = 3;
const POSITIONS: usize = 32;
const EPS: f32 = 1e-5;

/// The trained weights, which the library carries.
const WEIGHTS: &[u8] = include_bytes!("../../models/phonemes/model.safetensors");

/// The trained program: input `letters [len]`, output `tokens [len]`.
///
/// # Errors
/// A bug: the file that the library carries always fits.
pub fn build() -> Result<Program, Error> {
    program_from_bytes(WEIGHTS)
}

/// The program with the weights of a file.
///
/// # Errors
/// A file that is missing, malformed, or lacks a tensor.
pub fn program_from_file(path: impl AsRef<Path>) -> Result<Program, Error> {
    program_with(&WeightFile::open(path)?)
}

/// The program with the weights of a file in memory.
///
/// # Errors
/// As [`program_from_file`].
pub fn program_from_bytes(bytes: &[u8]) -> Result<Program, Error> {
    program_with(&WeightFile::from_bytes("phonemes", bytes)?)
}

fn program_with(file: &WeightFile) -> Result<Program, Error> {
    let mut program = synthetic()?;
    load_into(&mut program, file)?;
    Ok(program)
}

/// Source ids of a word; `None` if it is empty, too long, or has other letters than `a` to `z`.
pub fn encode(word: &str) -> Option<Vec<i32>> {
    let letter = |c: u8| c.is_ascii_lowercase().then(|| i32::from(c - b'a') + FIRST);
    let mut ids: Vec<i32> = word.bytes().map(letter).collect::<Option<_>>()?;
    let fits = (1..=MAX_LETTERS).contains(&ids.len());
    ids.push(EOS);
    fits.then_some(ids)
}

/// Phonemes of target ids, up to the stop token; ids that are none show as numbers.
pub fn decode(ids: &[i32]) -> Vec<String> {
    let name = |&id: &i32| {
        let phoneme = usize::try_from(id - FIRST)
            .ok()
            .and_then(|i| PHONEMES.get(i));
        phoneme.map_or_else(|| format!("<{id}>"), |&p| p.to_owned())
    };
    ids.iter().take_while(|&&id| id != EOS).map(name).collect()
}

/// The program with synthetic weights: input `letters [len]`, output `tokens [len]`.
///
/// # Errors
/// A bug of the builder.
pub fn synthetic() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("phonemes");
    let source_len = MAX_LETTERS + 1;
    let letters = b.sequence_ids("letters", source_len, SOURCE_VOCAB);
    let greedy = Greedy::new(&mut b, BOS, EOS);
    b.metadata("phonemes", PHONEMES.join(" "));

    b.begin_block("encoder", Repeat::Once);
    let ids = b.read_input("letters", letters);
    let mut x = b.scope("encoder.embed", |b| embed(b, ids, SOURCE_VOCAB));
    for layer in 0..LAYERS {
        x = b.scope(&format!("encoder.{layer}"), |b| {
            let h = b.norm("attn_norm", x, EPS);
            let x = b.self_attention("attn", h, MultiHead::new(HEADS), Some(x));
            let h = b.norm("ffn_norm", x, EPS);
            b.ffn("ffn", h, FFN, Act::Relu, Some(x))
        });
    }
    let x = b.norm("encoder.norm", x, EPS);
    let memories: Vec<_> = (0..LAYERS)
        .map(|i| {
            b.scope(&format!("decoder.{i}"), |b| {
                b.cross_memory("cross", x, D, source_len)
            })
        })
        .collect();

    b.begin_block("decoder", Repeat::UntilStop { max: MAX_STEPS });
    let token = greedy.read(&mut b);
    let mut x = b.scope("decoder.embed", |b| embed(b, token, TARGET_VOCAB));
    for (layer, memory) in memories.into_iter().enumerate() {
        x = b.scope(&format!("decoder.{layer}"), |b| {
            let h = b.norm("self_norm", x, EPS);
            let x = b.cached_self_attention("self", h, HEADS, MAX_STEPS as usize, Some(x));
            let h = b.norm("cross_norm", x, EPS);
            let x = b.cross_attention("cross", h, HEADS, memory, Some(x));
            let h = b.norm("ffn_norm", x, EPS);
            b.ffn("ffn", h, FFN, Act::Relu, Some(x))
        });
    }
    let x = b.norm("decoder.norm", x, EPS);
    let logits = b.dense("decoder.out", x, TARGET_VOCAB, None);
    greedy.choose(&mut b, logits);
    b.finish()
}

fn embed(b: &mut ProgramBuilder, ids: ValueId, vocab: usize) -> ValueId {
    let tokens = b.seeded_within("tokens", &[vocab, D], 0.1);
    let positions = b.seeded_within("positions", &[POSITIONS, D], 0.1);
    let x = b.embedding("token", ids, tokens);
    b.add_position("position", x, positions)
}
