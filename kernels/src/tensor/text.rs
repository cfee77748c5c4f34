//! Counts of n-grams of token ids.

use lazybatch_graph::onnx::{Array, Elem, Error};

use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[op("TfIdfVectorizer", &[9], Types::INDEX, tf_idf)];

/// The n-grams of the pool with their length, in the order of the pool.
fn pool(call: &Call) -> Result<Vec<Vec<i64>>, Error> {
    let ids = call.ints("pool_int64s")?.unwrap_or_default();
    let starts = call.sizes(
        "ngram_counts",
        &call.ints("ngram_counts")?.unwrap_or_default(),
    )?;
    let mut grams = Vec::new();
    for (k, &start) in starts.iter().enumerate() {
        let end = starts.get(k + 1).copied().unwrap_or(ids.len());
        let part = ids
            .get(start..end)
            .filter(|part| part.len().is_multiple_of(k + 1));
        let Some(part) = part else {
            let expected = format!("ascending starts within {} ids", ids.len());
            return Err(call.bad(
                "attribute \"ngram_counts\"",
                expected,
                format!("{starts:?}"),
            ));
        };
        grams.extend(part.chunks(k + 1).map(<[i64]>::to_vec));
    }
    Ok(grams)
}

/// Token ids `[c]` or `[n, c]`; counts of each n-gram, also of tokens that are skipped between.
fn tf_idf(call: &Call) -> Outputs {
    let x = call.at_least(0, 1)?;
    if x.rank() > 2 {
        return Err(call.bad("input 0", "1 or 2 dimensions", x));
    }
    let grams = pool(call)?;
    let (least, most) = (
        call.size("min_gram_length", 1, 1)?,
        call.size("max_gram_length", 1, 1)?,
    );
    let skips = call.size("max_skip_count", 0, 0)?;
    let to = call.sizes(
        "ngram_indexes",
        &call.ints("ngram_indexes")?.unwrap_or_default(),
    )?;
    if to.len() != grams.len() {
        let expected = format!("{} numbers", grams.len());
        return Err(call.bad("attribute \"ngram_indexes\"", expected, to.len()));
    }
    let weights = match call.floats("weights")? {
        Some(weights) if weights.len() != grams.len() => {
            let expected = format!("{} numbers", grams.len());
            return Err(call.bad("attribute \"weights\"", expected, weights.len()));
        }
        weights => weights.unwrap_or_else(|| vec![1.0; grams.len()]),
    };
    let mode = call.text("mode", "")?;
    let size = to.iter().max().map_or(0, |m| m + 1);
    let (rows, cols) = match x.dims() {
        [n, c] => (*n, *c),
        _ => (1, x.len()),
    };
    let mut y = vec![0.0; call.num(&[rows, size])?];
    let ids = call.int_vec(0)?;
    let reach = skips.min(cols);
    call.work(&[rows.max(1), cols.max(1), grams.len().max(1), reach + 1])?;
    for row in 0..rows {
        let line = &ids[row * cols..(row + 1) * cols];
        for ((gram, &at), weight) in grams.iter().zip(&to).zip(&weights) {
            if gram.len() < least || gram.len() > most {
                continue;
            }
            // A single token has nothing to skip.
            let steps = if gram.len() == 1 { 1 } else { reach + 1 };
            let found = |start: usize, step: usize| {
                gram.iter()
                    .enumerate()
                    .all(|(k, id)| line.get(start + k * step) == Some(id))
            };
            let count = (1..=steps).map(|step| (0..cols).filter(|&s| found(s, step)).count());
            let count = count.sum::<usize>() as f64;
            y[row * size + at] += match mode {
                "TF" => count,
                "IDF" if count > 0.0 => *weight,
                "IDF" => 0.0,
                "TFIDF" => count * weight,
                other => {
                    let got = format!("{other:?}");
                    return Err(call.bad("attribute \"mode\"", "TF, IDF or TFIDF", got));
                }
            };
        }
    }
    let mut dims = x.dims().to_vec();
    dims[x.rank() - 1] = size;
    Ok(vec![Array::from_f64(Elem::F32, dims, y)])
}
