//! Sentences of different lengths in one batch: ours packed, the peer's padded to the longest, as a
//! runtime over rectangles takes them.

use lazybatch_benches::record::merge;
use lazybatch_graph::Tensor;
use serde_json::json;

use super::bert::Model;
use super::{Named, Row};
use crate::measure::fetched::{self, MINILM};

/// Sentences of a batch.
const BATCHES: [usize; 2] = [4, 16];

/// Both models; both read the words of one list by the same ids.
pub fn rows() -> Vec<Row> {
    let models = Model::ALL.into_iter();
    models
        .flat_map(|model| BATCHES.map(|batch| row(model, batch)))
        .collect()
}

fn row(model: Model, batch: usize) -> Row {
    let mut sizes = json!({ "model": model.name(), "batch": batch });
    merge(&mut sizes, model.sizes());
    let row = Row::new("mixed", sizes, move |setup| {
        let mut sentences = fetched::sentences(&setup.models)?;
        sentences.truncate(batch);
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
