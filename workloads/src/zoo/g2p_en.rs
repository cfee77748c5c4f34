//! `g2p_en`: letters to phonemes with stress marks, by a GRU encoder-decoder.
//!
//! Reads the arrays of the Python package's `checkpoint20.npz`; the project carries no copy. The
//! decoder goes on from the encoder's last state. Source ids: letters `a` to `z` are 3 to 28, 2 ends
//! the input, 1 stands for any other character. Target ids start with 2 and end with 3.
//! Source: `g2p_en` 2.1.0, `g2p_en/g2p.py` (Apache-2.0).

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use lazybatch_graph::{DType, Error, Fused, Program, ProgramBuilder, Repeat, Tensor, ValueId};
use npyz::npz::NpzArchive;

use super::parts::Greedy;

/// Starts an output.
pub const BOS: i32 = 2;
/// Ends an output.
pub const EOS: i32 = 3;
/// Most decoder steps.
pub const MAX_STEPS: u32 = 20;
/// Most letters of a word.
pub const MAX_LETTERS: usize = 31;

const HIDDEN: usize = 256;
const SOURCE_VOCAB: usize = 29;
const TARGET_VOCAB: usize = 74;

/// Source ids of a word: its letters and the end.
pub fn encode(word: &str) -> Vec<i32> {
    let letter = |c: char| match c {
        'a'..='z' => c as i32 - 'a' as i32 + 3,
        _ => 1,
    };
    word.chars().map(letter).chain([2]).collect()
}

/// The program with the weights of `checkpoint20.npz` at `path`: input `letters [len]`, output
/// `tokens [len]`.
///
/// # Errors
/// A file that is missing or malformed, or lacks an array of the right shape.
pub fn program_from_npz(path: impl AsRef<Path>) -> Result<Program, Error> {
    let path = path.as_ref();
    let failed = |what: String| Error::File {
        path: path.display().to_string(),
        what,
    };
    let file = File::open(path).map_err(|e| failed(e.to_string()))?;
    let mut archive = NpzArchive::new(BufReader::new(file)).map_err(|e| failed(e.to_string()))?;
    program(&mut |name, dims| {
        let array = archive
            .by_name(name)
            .map_err(|e| failed(format!("array {name}: {e}")))?
            .ok_or_else(|| failed(format!("no array {name}")))?;
        let shape: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
        let is_rowwise = array.order() == npyz::Order::C;
        if shape != dims || !is_rowwise {
            return Err(Error::Tensor {
                what: format!("array {name} of {}", path.display()),
                expected: format!("row-major {dims:?}"),
                got: format!("{:?} {shape:?}", array.order()),
            });
        }
        array
            .into_vec::<f32>()
            .map_err(|e| failed(format!("array {name}: {e}")))
    })
}

/// Arrays by name and shape, row-major.
type Arrays<'a> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, Error> + 'a;

/// Builds the program from arrays, whose matrices are `[out, in]`.
fn program(arrays: &mut Arrays<'_>) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("g2p-en");
    let letters = b.sequence_ids("letters", MAX_LETTERS + 1, SOURCE_VOCAB);
    let greedy = Greedy::new(&mut b, BOS, EOS);
    let h = b.vector_state("h", DType::F32, &[HIDDEN], 0.0);

    b.begin_block("encoder", Repeat::PerInputStep { stride: 1 });
    let ids = b.read_input("letters", letters);
    let table = plain(&mut b, arrays, "enc_emb", &[SOURCE_VOCAB, HIDDEN])?;
    let x = b.embedding("encoder.embed", ids, table);
    let cell = gru(&mut b, arrays, "enc")?;
    b.gru_cell("encoder.gru", x, cell, h);

    b.begin_block("decoder", Repeat::UntilStop { max: MAX_STEPS });
    let token = greedy.read(&mut b);
    let table = plain(&mut b, arrays, "dec_emb", &[TARGET_VOCAB, HIDDEN])?;
    let x = b.embedding("decoder.embed", token, table);
    let cell = gru(&mut b, arrays, "dec")?;
    let x = b.gru_cell("decoder.gru", x, cell, h);
    let w = transposed(&mut b, arrays, "fc_w", [TARGET_VOCAB, HIDDEN])?;
    let bias = plain(&mut b, arrays, "fc_b", &[TARGET_VOCAB])?;
    let logits = b.linear("decoder.out", x, w, Fused::bias(bias));
    greedy.choose(&mut b, logits);
    b.finish()
}

/// The weights of a cell, whose gates are in the order r, z, n as ours are.
fn gru(b: &mut ProgramBuilder, arrays: &mut Arrays<'_>, side: &str) -> Result<[ValueId; 4], Error> {
    const GATES: usize = 3 * HIDDEN;
    Ok([
        transposed(b, arrays, &format!("{side}_w_ih"), [GATES, HIDDEN])?,
        transposed(b, arrays, &format!("{side}_w_hh"), [GATES, HIDDEN])?,
        plain(b, arrays, &format!("{side}_b_ih"), &[GATES])?,
        plain(b, arrays, &format!("{side}_b_hh"), &[GATES])?,
    ])
}

fn plain(
    b: &mut ProgramBuilder,
    arrays: &mut Arrays<'_>,
    name: &str,
    dims: &[usize],
) -> Result<ValueId, Error> {
    Ok(b.data(name, Tensor::from_f32(dims, &arrays(name, dims)?)))
}

/// A matrix `[out, in]` as a weight `[in, out]`.
fn transposed(
    b: &mut ProgramBuilder,
    arrays: &mut Arrays<'_>,
    name: &str,
    [rows, columns]: [usize; 2],
) -> Result<ValueId, Error> {
    let data = arrays(name, &[rows, columns])?;
    let turned: Vec<f32> = (0..rows * columns)
        .map(|n| data[(n % rows) * columns + n / rows])
        .collect();
    Ok(b.data(name, Tensor::from_f32(&[columns, rows], &turned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_find_their_places() {
        let mut seen = Vec::new();
        let mut arrays = |name: &str, dims: &[usize]| {
            seen.push(name.to_owned());
            Ok((0..dims.iter().product::<usize>())
                .map(|n| n as f32)
                .collect())
        };
        let program = program(&mut arrays).unwrap();
        seen.sort();
        assert_eq!(
            seen,
            [
                "dec_b_hh", "dec_b_ih", "dec_emb", "dec_w_hh", "dec_w_ih", "enc_b_hh", "enc_b_ih",
                "enc_emb", "enc_w_hh", "enc_w_ih", "fc_b", "fc_w"
            ]
        );
        let out = program.weights.iter().find(|w| w.name == "fc_w").unwrap();
        let data = out.source.to_f32(TARGET_VOCAB * HIDDEN);
        // Row 1 of the weight is column 1 of the array.
        let expected = [1.0, 1.0 + HIDDEN as f32, 1.0 + 2.0 * HIDDEN as f32];
        assert_eq!(data[TARGET_VOCAB..TARGET_VOCAB + 3], expected);
    }

    #[test]
    fn words_are_letters_and_an_end() {
        assert_eq!(encode("az'"), [3, 28, 1, 2]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = program_from_npz("/nowhere.npz").unwrap_err().to_string();
        assert!(
            message.starts_with("weight file /nowhere.npz: No such file"),
            "{message}"
        );
    }
}
