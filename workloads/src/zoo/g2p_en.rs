//! `g2p_en`: letters to phonemes with stress marks, by a GRU encoder-decoder.
//!
//! Reads the arrays of the Python package's `checkpoint20.npz`; the project carries no copy. The
//! decoder goes on from the encoder's last state. Source ids: letters `a` to `z` are 3 to 28, 2 ends
//! the input, 1 stands for any other character. Target ids start with 2 and end with 3.
//! Source: `g2p_en` 2.1.0, `g2p_en/g2p.py` (Apache-2.0).

use std::path::Path;

use lazybatch_graph::manifest::Store;
use lazybatch_graph::{Error, Manifest, Program};

/// Ends an output.
pub const EOS: i32 = 3;

/// What the checkpoint is.
const MANIFEST: &str = include_str!("../../models/g2p_en/model.toml");

/// Source ids of a word: its letters and the end.
pub fn encode(word: &str) -> Vec<i32> {
    let letter = |c: char| match c {
        'a'..='z' => c as i32 - 'a' as i32 + 3,
        _ => 1,
    };
    word.chars().map(letter).chain([2]).collect()
}

/// The program with the weights of `checkpoint20.npz` at `path`: input `source [len]`, output
/// `tokens [len]`.
///
/// # Errors
/// A file that is missing or malformed, or lacks an array of the right shape.
pub fn program_from_npz(path: impl AsRef<Path>) -> Result<Program, Error> {
    let manifest = Manifest::parse("g2p_en/model.toml", "", MANIFEST)?;
    manifest.program_with(&Store::open(path, "npz")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_letters_and_an_end() {
        assert_eq!(encode("az'"), [3, 28, 1, 2]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = program_from_npz("/nowhere.npz").unwrap_err().to_string();
        assert!(
            message.starts_with(
                "weight file /nowhere.npz: expected an archive of NumPy arrays, got No such"
            ),
            "{message}"
        );
    }
}
