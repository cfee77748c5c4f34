//! The held-out test words of the trained spelling-to-phonemes model.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use lazybatch_graph::Tensor;

use super::inputs::Item;
use crate::zoo::phonemes;

/// `word,phonemes`, accepted pronunciations joined by `|`. Source: the card of the model.
const TEST_WORDS: &str = include_str!("../../models/phonemes/test_words.csv");

/// Name of the model that reads words.
pub const MODEL: &str = "phonemes";

/// A test word and its accepted pronunciations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Spelling, lower-case letters.
    pub spelling: &'static str,
    /// Accepted pronunciations, joined by `|`, phonemes separated by spaces.
    pub accepted: &'static str,
}

impl Word {
    /// Whether `phonemes` is one of the accepted pronunciations.
    pub fn accepts(&self, phonemes: &[String]) -> bool {
        let joined = phonemes.join(" ");
        self.accepted.split('|').any(|p| p == joined)
    }
}

/// All test words, in file order.
pub fn all() -> Vec<Word> {
    TEST_WORDS
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(','))
        .map(|(spelling, accepted)| Word {
            spelling,
            accepted: accepted.trim(),
        })
        .collect()
}

/// `num` distinct test words in seeded order (all of them if there are fewer).
pub fn sample(num: usize, seed: u64) -> Vec<Word> {
    let mut words = all();
    words.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    words.truncate(num);
    words
}

/// The model's input for a word of letters; `None` for anything else.
pub fn item(spelling: &str) -> Option<Item> {
    let ids = phonemes::encode(spelling)?;
    Some(Item {
        model: 0,
        input_len: ids.len() as u32,
        inputs: vec![Tensor::from_i32(&[ids.len()], &ids)],
        text: Some(spelling.to_string()),
    })
}

/// `num` seeded inputs of the model, as [`sample`] draws their words.
pub fn pool(num: usize, seed: u64) -> Vec<Item> {
    let words = sample(num, seed);
    words.iter().filter_map(|w| item(w.spelling)).collect()
}

/// The phonemes of an answer of the model.
pub fn answer(outputs: &[Tensor]) -> Vec<String> {
    outputs
        .first()
        .map(|ids| phonemes::decode(&ids.to_i32()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_parse_and_samples_repeat() {
        let words = all();
        assert!(words.len() > 1000);
        assert!(
            words
                .iter()
                .all(|w| item(w.spelling).is_some() && !w.accepted.is_empty())
        );
        assert_eq!(sample(50, 3), sample(50, 3));
        assert_ne!(sample(50, 3), sample(50, 4));
        let tomato = Word {
            spelling: "x",
            accepted: "A B|C",
        };
        assert!(tomato.accepts(&["C".into()]) && tomato.accepts(&["A".into(), "B".into()]));
        assert!(!tomato.accepts(&["A".into()]));
    }
}
