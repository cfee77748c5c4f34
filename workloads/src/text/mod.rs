//! Text for models that compute with token ids: in by a tokenizer, out by the same.
//!
//! Which tokenizer a program has is in its metadata, as its manifest said; the file lies beside the
//! program. `.json` is read by the `tokenizers` crate (feature `tokenizers`), `.bin` are scored
//! pieces of llama2.c.

mod pieces;

use std::path::Path;

use lazybatch_graph::manifest::{PROMPT_START, TOKENIZER};
use lazybatch_graph::{DType, Dim, Program, Sampling, Tensor};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, Result};
use crate::experiment::inputs::Item;
use crate::experiment::words;

pub use pieces::Pieces;

/// Bytes of a text for each token that a model reads beyond which nothing is tokenized, and bytes that always
/// are, where it is not known how many one id can stand for: a `tokenizer.json` may drop blanks, shorten
/// characters, or make one id of a word that it does not know. What is made of a text takes tens of times
/// as much memory as the text.
const ENOUGH: usize = 256;
const ALWAYS: usize = 64 << 10;
/// Most words of a made-up sentence.
const MOST_WORDS: usize = 24;

/// Reads and writes the text of one model.
pub struct Text {
    tokenizer: Tokenizer,
    start: Option<i32>,
    stop: Option<i32>,
    max_len: usize,
    /// Bytes of text beyond which there are more tokens than that, or nobody looks.
    max_bytes: usize,
    num_inputs: usize,
    samples: bool,
    model: String,
}

enum Tokenizer {
    Pieces {
        pieces: Pieces,
        cut: usize,
    },
    #[cfg(feature = "tokenizers")]
    Json(Box<tokenizers::Tokenizer>),
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Text")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl Text {
    /// The tokenizer of a program, whose file lies in `folder`; none if it has none.
    ///
    /// # Errors
    /// A file that is missing, malformed or of no known kind, more ids than the model has, or a
    /// program whose inputs are no token ids.
    pub fn of(program: &Program, folder: &Path) -> Result<Option<Self>> {
        let Some(file) = program.metadata.get(TOKENIZER) else {
            return Ok(None);
        };
        let ids = |d: &lazybatch_graph::InputDecl| {
            d.ty.dims[..] == [Dim::Len] && d.ty.dtype == DType::I32
        };
        let read = || program.inputs.iter().filter(|d| !d.is_sampling);
        let first = read().next().filter(|_| read().all(ids));
        let Some((max_len, bound)) = first.and_then(|d| Some((d.max_len?, d.id_bound?))) else {
            return Err(Error::parameter(
                format!("model {}: inputs", program.name),
                "sequences of token ids, as it has a tokenizer",
                "others",
            ));
        };
        let path = folder.join(file);
        let token = |key: &str| program.metadata.get(key).and_then(|id| id.parse().ok());
        let stop = token("stop_token");
        // A decoder cannot go on behind half a prompt; an encoder reads as much as it can.
        let cut = stop.is_none().then_some(max_len);
        let tokenizer = Tokenizer::open(&path, cut)?;
        if tokenizer.vocab() > bound {
            return Err(Error::File {
                file: path.display().to_string(),
                expected: format!("at most the {bound} ids of model {}", program.name),
                got: format!("{} ids", tokenizer.vocab()),
            });
        }
        Ok(Some(Self {
            max_bytes: match tokenizer.longest() {
                Some(longest) => max_len.saturating_mul(longest),
                None => max_len.saturating_mul(ENOUGH).max(ALWAYS),
            },
            tokenizer,
            start: token(PROMPT_START),
            stop,
            max_len,
            num_inputs: read().count(),
            samples: program.sampling().is_some(),
            model: program.name.clone(),
        }))
    }

    /// Token ids of a text, those that the model wants around it included.
    ///
    /// Nothing is tokenized of what is longer than as many of the longest pieces as the model reads tokens,
    /// or, with a `tokenizer.json`, than 256 bytes for each of them, and than 64 KiB.
    ///
    /// # Errors
    /// A text that the tokenizer refuses, of no tokens, or of more than the model reads; an encoder
    /// reads the start of a longer one.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        let wrong = |got| {
            let what = format!("text for {}", self.model);
            Err(Error::parameter(
                what,
                format!("1 to {} tokens", self.max_len),
                got,
            ))
        };
        let most = self.max_bytes;
        if self.stop.is_some() && text.len() > most {
            return wrong(format!("more than {most} bytes"));
        }
        let read = start_of(text, most);
        let mut ids: Vec<i32> = self.start.into_iter().collect();
        ids.extend(self.tokenizer.encode(read)?);
        if ids.is_empty() || ids.len() > self.max_len {
            return wrong(format!("{} tokens", ids.len()));
        }
        Ok(ids)
    }

    /// A request's inputs for a text: its ids, zeros for any other input (token types), and that the
    /// likeliest tokens are taken, where the model samples.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn item(&self, text: &str) -> Result<Item> {
        let ids = self.encode(text)?;
        let zeros = Tensor::from_i32(&[ids.len()], &vec![0; ids.len()]);
        let mut inputs = vec![zeros; self.num_inputs];
        inputs[0] = Tensor::from_i32(&[ids.len()], &ids);
        if self.samples {
            inputs.push(Sampling::tensor(&[Sampling::default()]));
        }
        Ok(Item {
            model: 0,
            inputs,
            input_len: ids.len() as u32,
            text: Some(text.to_owned()),
        })
    }

    /// The text that a model answers, up to its stop token; none for encoders.
    ///
    /// # Errors
    /// Ids that the tokenizer refuses.
    pub fn answer(&self, outputs: &[Tensor]) -> Result<Option<String>> {
        let (Some(stop), Some(ids)) = (self.stop, outputs.first()) else {
            return Ok(None);
        };
        let ids = ids.to_i32();
        let ids: Vec<i32> = ids.into_iter().take_while(|&id| id != stop).collect();
        self.tokenizer.decode(&ids).map(Some)
    }

    /// `num` seeded sentences of 1 to 24 words of the embedded word list, cut where the model reads
    /// no further.
    ///
    /// # Errors
    /// A tokenizer that refuses plain words.
    pub fn pool(&self, num: usize, seed: u64) -> Result<Vec<Item>> {
        let words = words::all();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..num)
            .map(|_| {
                let len = rng.random_range(1..=MOST_WORDS);
                let some = (0..len).filter_map(|_| words.choose(&mut rng));
                let mut chosen: Vec<&str> = some.map(|word| word.spelling).collect();
                loop {
                    let item = self.item(&chosen.join(" "));
                    if item.is_ok() || chosen.len() <= 1 {
                        return item;
                    }
                    chosen.pop();
                }
            })
            .collect()
    }
}

impl Tokenizer {
    /// Reads the file at `path`; texts of more than `cut` ids lose the rest.
    fn open(path: &Path, cut: Option<usize>) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("bin") => Ok(Self::Pieces {
                pieces: Pieces::open(path)?,
                cut: cut.unwrap_or(usize::MAX),
            }),
            #[cfg(feature = "tokenizers")]
            Some("json") => json(path, cut).map(|read| Self::Json(Box::new(read))),
            _ => Err(Error::File {
                file: path.display().to_string(),
                expected: KINDS.to_owned(),
                got: "another name".to_owned(),
            }),
        }
    }

    fn vocab(&self) -> usize {
        match self {
            Self::Pieces { pieces, .. } => pieces.vocab(),
            #[cfg(feature = "tokenizers")]
            Self::Json(read) => read.get_vocab_size(true),
        }
    }

    /// Most bytes of a text that one id stands for, if that is known.
    fn longest(&self) -> Option<usize> {
        match self {
            Self::Pieces { pieces, .. } => Some(pieces.longest()),
            #[cfg(feature = "tokenizers")]
            Self::Json(_) => None,
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<i32>> {
        match self {
            Self::Pieces { pieces, cut } => {
                let mut ids = pieces.encode(text);
                ids.truncate(*cut);
                Ok(ids)
            }
            #[cfg(feature = "tokenizers")]
            Self::Json(read) => {
                let encoding = read.encode_fast(text, true).map_err(|e| {
                    Error::parameter("text", "one that the tokenizer reads", e.to_string())
                })?;
                Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
            }
        }
    }

    fn decode(&self, ids: &[i32]) -> Result<String> {
        match self {
            Self::Pieces { pieces, .. } => Ok(pieces.decode(ids)),
            #[cfg(feature = "tokenizers")]
            Self::Json(read) => {
                let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
                read.decode(&ids, true).map_err(|e| {
                    Error::parameter("tokens", "ids that the tokenizer writes", e.to_string())
                })
            }
        }
    }
}

/// The characters of a text that end within its first `most` bytes.
fn start_of(text: &str, most: usize) -> &str {
    let within = text.len().min(most);
    let end = (0..=within).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Reads a `tokenizer.json`; its own padding is dropped, since rows are packed without any.
#[cfg(feature = "tokenizers")]
fn json(path: &Path, cut: Option<usize>) -> Result<tokenizers::Tokenizer> {
    let bad = |e: tokenizers::Error| Error::File {
        file: path.display().to_string(),
        expected: "a tokenizer".to_owned(),
        got: e.to_string(),
    };
    let mut read = tokenizers::Tokenizer::from_file(path).map_err(bad)?;
    let truncation = cut.map(|max_length| tokenizers::TruncationParams {
        max_length,
        ..Default::default()
    });
    read.with_truncation(truncation).map_err(bad)?;
    read.with_padding(None);
    Ok(read)
}

/// What a tokenizer's file may be.
#[cfg(feature = "tokenizers")]
const KINDS: &str = "a tokenizer, .json or .bin";
#[cfg(not(feature = "tokenizers"))]
const KINDS: &str = "scored pieces, .bin (this build has no feature `tokenizers`)";

#[cfg(test)]
mod tests {
    use lazybatch_graph::{ProgramBuilder, Repeat};

    use super::*;

    /// A model of 4 tokens with pieces of at most 6 bytes, the names of single bytes.
    fn text(is_decoder: bool) -> Text {
        let folder = tempfile::tempdir().unwrap();
        let mut file = 6i32.to_le_bytes().to_vec();
        let names = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        for piece in special.into_iter().chain(names) {
            file.extend(0f32.to_le_bytes());
            file.extend((piece.len() as i32).to_le_bytes());
            file.extend(piece.as_bytes());
        }
        std::fs::write(folder.path().join("pieces.bin"), file).unwrap();
        let mut b = ProgramBuilder::new("reader");
        let ids = b.sequence_ids("ids", 4, 300);
        let y = b.output_sequence("y", DType::I32, &[]);
        b.metadata(TOKENIZER, "pieces.bin");
        if is_decoder {
            b.metadata("stop_token", "2");
        }
        b.begin_block("net", Repeat::Once);
        let read = b.read_input("read", ids);
        b.emit("emit", y, read);
        let program = b.finish().unwrap();
        Text::of(&program, folder.path()).unwrap().unwrap()
    }

    #[test]
    fn what_is_certainly_too_long_is_cut_or_refused_before_it_is_tokenized() {
        let (encoder, decoder) = (text(false), text(true));
        assert_eq!((encoder.max_bytes, decoder.max_bytes), (24, 24));
        // A space comes before the text.
        let read = [35, 100, 100, 100];
        for len in [3, 4, 24, 25, 1 << 20] {
            let long = "a".repeat(len);
            assert_eq!(encoder.encode(&long).unwrap(), read, "{len}");
        }
        assert_eq!(decoder.encode("aaa").unwrap(), read);
        let told = |len| decoder.encode(&"a".repeat(len)).unwrap_err().to_string();
        let expected = "text for reader: expected 1 to 4 tokens, got";
        assert_eq!(told(24), format!("{expected} 25 tokens"));
        assert_eq!(told(25), format!("{expected} more than 24 bytes"));
    }

    /// A tokenizer of words, of any length, as one id each.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn of_a_text_whose_tokens_may_be_long_so_much_is_tokenized() {
        let folder = tempfile::tempdir().unwrap();
        let file = r#"{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},
            "model":{"type":"WordLevel","vocab":{"?":0,"a":1},"unk_token":"?"}}"#;
        std::fs::write(folder.path().join("t.json"), file).unwrap();
        let text = |is_decoder: bool, most: usize| {
            let mut b = ProgramBuilder::new("reader");
            let ids = b.sequence_ids("ids", most, 300);
            let y = b.output_sequence("y", DType::I32, &[]);
            b.metadata(TOKENIZER, "t.json");
            if is_decoder {
                b.metadata("stop_token", "2");
            }
            b.begin_block("net", Repeat::Once);
            let read = b.read_input("read", ids);
            b.emit("emit", y, read);
            Text::of(&b.finish().unwrap(), folder.path())
                .unwrap()
                .unwrap()
        };
        assert_eq!(text(true, 4).max_bytes, ALWAYS);
        let (encoder, decoder) = (text(false, 300), text(true, 300));
        let most = 300 * ENOUGH;
        let blanks = |num: usize| format!("{}a", " ".repeat(num - 1));
        assert_eq!(encoder.encode(&blanks(most)).unwrap(), [1]);
        assert_eq!(decoder.encode(&blanks(most)).unwrap(), [1]);
        // What comes behind that is not seen.
        let cut = encoder.encode(&format!("a{}", blanks(most))).unwrap();
        assert_eq!(cut, [1]);
        let told = decoder.encode(&blanks(most + 1)).unwrap_err().to_string();
        let expected = "text for reader: expected 1 to 300 tokens, got";
        assert_eq!(told, format!("{expected} more than {most} bytes"));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(start_of("aé", 2), "a");
        assert_eq!(start_of("aé", 3), "aé");
        assert_eq!(start_of("é", 1), "");
        assert_eq!(start_of("é", 9), "é");
    }
}
