//! Sentences of different lengths in one batch: ours packed, the peer's padded to the longest, as a
//! runtime over rectangles takes them. Once as they are, once cut and joined to lengths whose mean is
//! half of the longest.

use lazybatch_benches::record::merge;
use lazybatch_graph::Tensor;
use serde_json::json;

use super::bert::Model;
use super::{Named, Row};
use crate::measure::fetched::{self, MINILM};

/// Sentences of a batch.
const BATCHES: [usize; 2] = [4, 16];

/// Lengths whose mean is half of the longest, of a small batch and of a large one.
const HALVES: [&[usize]; 2] = [
    &[40, 4, 64, 20],
    &[28, 52, 3, 40, 12, 64, 24, 36, 1, 56, 16, 48, 8, 60, 20, 44],
];

/// Both models; both read the words of one list by the same ids.
pub fn rows() -> Vec<Row> {
    let models = Model::ALL.into_iter();
    let rows = models.flat_map(|model| {
        let as_they_are = BATCHES.map(|batch| row(model, batch, None));
        let halves = HALVES.map(|lens| row(model, lens.len(), Some(lens)));
        as_they_are.into_iter().chain(halves)
    });
    rows.collect()
}

/// The words of all sentences, cut into sequences of these lengths; words are used again where there
/// are too few.
fn cut(sentences: &[Vec<i32>], lens: &[usize]) -> Vec<Vec<i32>> {
    let mut words = sentences.iter().flatten().copied().cycle();
    let next = |&len: &usize| words.by_ref().take(len).collect();
    lens.iter().map(next).collect()
}

fn row(model: Model, batch: usize, lens: Option<&'static [usize]>) -> Row {
    let lengths = if lens.is_some() { "half" } else { "sentences" };
    let mut sizes = json!({ "model": model.name(), "batch": batch, "lengths": lengths });
    merge(&mut sizes, model.sizes());
    let row = Row::new("mixed", sizes, move |setup| {
        let mut sentences = fetched::sentences(&setup.models)?;
        match lens {
            None => sentences.truncate(batch),
            Some(lens) => sentences = cut(&sentences, lens),
        }
        let mut own = model.own(setup, |program| {
            let request = |ids: &Vec<i32>| {
                let types = vec![0; ids.len()];
                let inputs = [ids, &types].into_iter().take(program.inputs.len());
                inputs.map(|x| Tensor::from_i32(&[x.len()], x)).collect()
            };
            Ok(sentences.iter().map(request).collect())
        })?;
        let lens = || sentences.iter().map(Vec::len);
        let (rows, longest) = (lens().sum::<usize>(), lens().max().unwrap_or(0));
        own.facts = json!({ "rows": rows, "padded_rows": batch * longest });
        own.tensors.push(Named {
            name: "input.len".into(),
            dims: vec![batch],
            data: lens().map(|len| len as f32).collect(),
        });
        Ok(own)
    });
    // The sentences come with the fetched model.
    row.of_model(MINILM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_lengths_are_half_of_the_longest() {
        for (lens, batch) in HALVES.iter().zip(BATCHES) {
            let longest = lens.iter().max().copied().unwrap_or(0);
            assert_eq!(lens.len(), batch);
            assert_eq!(2 * lens.iter().sum::<usize>(), batch * longest, "{lens:?}");
        }
        let cut = cut(&[vec![1, 2], vec![3]], &[2, 4]);
        assert_eq!(cut, [vec![1, 2], vec![3, 1, 2, 3]]);
    }
}
