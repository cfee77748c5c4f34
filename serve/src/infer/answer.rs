//! The engine's outputs as those of the protocol.

use lazybatch_graph::{Bytes, Tensor};

use super::{Answer, Output, Request, Wanted};
use crate::config::{KnownTensor, TEXT_OUTPUT};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::model::Served;

/// Puts the outputs of the engine's requests together, in the order of their samples.
///
/// Outputs whose length differs from sample to sample (a decoder's) are filled up to the longest
/// with the model's stop token, or zeros.
///
/// # Errors
/// An output that does not go where the request wants it.
pub fn gather(served: &Served, request: &Request, calls: &[Vec<Tensor>]) -> Result<Answer> {
    let all = wanted(served, request);
    let mut outputs = Vec::with_capacity(all.len());
    for wanted in all {
        let output = if wanted.name == TEXT_OUTPUT && served.known.writes_text {
            text(served, wanted, calls)?
        } else {
            let known = served.known.outputs.iter();
            let at = known.clone().position(|t| t.name == wanted.name);
            let at = at.ok_or_else(|| {
                let (name, model) = (&wanted.name, &served.name);
                Error::Invalid(format!(
                    "unexpected inference output '{name}' for model '{model}'"
                ))
            })?;
            let parts = calls.iter().filter_map(|c| c.get(at));
            numbers(served, wanted, at, parts)?
        };
        outputs.push(placed(served, output)?);
    }
    Ok(Answer {
        id: request.id.clone(),
        outputs,
        explanation: None,
        passage: None,
    })
}

/// Rows that a step gave to the program's output `at`, as classes if those are wanted of it.
///
/// # Errors
/// Classes of what has none.
pub fn rows(served: &Served, request: &Request, at: usize, rows: &Tensor) -> Result<Answer> {
    let name = served.known.outputs.get(at).map(|t| t.name.as_str());
    let wanted = wanted(served, request).into_iter();
    let own = wanted.filter(|w| Some(w.name.as_str()) == name);
    let outputs = own.map(|w| placed(served, numbers(served, w, at, [rows].into_iter())?));
    Ok(Answer {
        id: request.id.clone(),
        outputs: outputs.collect::<Result<_>>()?,
        explanation: None,
        passage: None,
    })
}

/// Looks whether answers of single steps can be as the request wants them.
///
/// # Errors
/// An output in a region, where each step would lie over the one before, or the text, which no step has.
pub fn check_steps(served: &Served, request: &Request) -> Result<()> {
    for wanted in &request.wanted {
        let is_text = wanted.name == TEXT_OUTPUT && served.known.writes_text;
        let (expected, got) = match &wanted.region {
            Some(_) => ("its elements in the answers", "a shared memory region"),
            None if is_text => ("one of the program, or generate_stream", "the text"),
            None => continue,
        };
        let (name, model) = (&wanted.name, &served.name);
        let what = format!("output '{name}' of model '{model}', which answers step by step");
        return Err(Error::expected(what, expected, got));
    }
    Ok(())
}

/// What the request wants; everything if it does not say.
pub fn wanted(served: &Served, request: &Request) -> Vec<Wanted> {
    if !request.wanted.is_empty() {
        return request.wanted.clone();
    }
    let all = served.config.output.iter().map(|o| Wanted {
        name: o.name.clone(),
        ..Wanted::default()
    });
    all.collect()
}

/// Bytes of an output of `samples` samples that is wanted as it is, where that is known before it is
/// made.
fn fixed_size(served: &Served, wanted: &Wanted, samples: usize) -> Option<usize> {
    let mut known = served.known.outputs.iter();
    let tensor = known.find(|t| t.name == wanted.name && !t.is_sequence)?;
    let row: usize = tensor.fixed.iter().product();
    let size = data_type(served, tensor).size()?;
    (wanted.classes == 0).then(|| samples.saturating_mul(row * size))
}

/// Looks whether the outputs whose size is known fit where the request wants them.
///
/// # Errors
/// A region that is too small.
pub fn check_regions(served: &Served, request: &Request, samples: usize) -> Result<()> {
    for wanted in &request.wanted {
        if let Some(region) = &wanted.region
            && let Some(size) = fixed_size(served, wanted, samples)
        {
            region.check(size)?;
        }
    }
    Ok(())
}

/// Type of an output at the edge.
fn data_type(served: &Served, tensor: &KnownTensor) -> DataType {
    let listed = served.config.output.iter().find(|o| o.name == tensor.name);
    let stated = listed.and_then(|o| DataType::of_config(o.data_type));
    stated.unwrap_or(tensor.data_type)
}

/// Numbers of the program's output `at` in the type that the configuration states.
///
/// # Errors
/// A number that the type does not hold.
fn numbers<'t>(
    served: &Served,
    mut wanted: Wanted,
    at: usize,
    parts: impl Iterator<Item = &'t Tensor> + Clone,
) -> Result<Output> {
    let tensor = &served.known.outputs[at];
    let listed = served.config.output.iter().find(|o| o.name == tensor.name);
    let data_type = data_type(served, tensor);
    let row: usize = tensor.fixed.iter().product();
    let row_bytes = row * data_type.size().unwrap_or(1);
    let to_bytes = |part: &Tensor| {
        dtype::to_bytes(part, data_type).map_err(|e| {
            let (name, model) = (&tensor.name, &served.name);
            Error::Invalid(format!("output '{name}' of model '{model}': {e}"))
        })
    };
    let mut shape = Vec::new();
    let mut data = Joined::default();
    if tensor.is_sequence {
        let lens = parts.clone().map(|p| p.num_elems() / row.max(1));
        let longest = lens.max().unwrap_or(0);
        if served.batched {
            shape.push(parts.clone().count());
        }
        shape.push(longest);
        let stop = served.program().and_then(|p| p.metadata.get("stop_token"));
        let stop = stop.and_then(|id| id.parse::<i32>().ok()).unwrap_or(0);
        let fill = if tensor.held.is_float() {
            vec![0; row_bytes].into()
        } else {
            to_bytes(&Tensor::from_i32(&[row], &vec![stop; row]))?
        };
        for part in parts {
            if part.num_elems() > 0 {
                data.add(to_bytes(part)?);
            }
            let missing = longest - part.num_elems() / row.max(1);
            data.add(fill.repeat(missing).into());
        }
    } else {
        if served.batched {
            let rows = parts.clone().map(|p| p.num_elems() / row.max(1));
            shape.push(rows.sum());
        }
        for part in parts.filter(|p| p.num_elems() > 0) {
            data.add(to_bytes(part)?);
        }
    }
    if let Some(stated) = listed.filter(|o| o.reshape.is_some()) {
        let dims = stated.dims.iter();
        shape.extend(dims.map(|&d| usize::try_from(d).unwrap_or(0)));
    } else {
        shape.extend(&tensor.fixed);
    }
    // A configuration may write a sample that is one number as a list of it.
    if listed.is_some_and(|o| o.dims == [1] && o.reshape.is_none() && tensor.dims().is_empty()) {
        shape.push(1);
    }
    Ok(Output {
        name: std::mem::take(&mut wanted.name),
        data_type,
        shape,
        data: data.into_bytes(),
        wanted,
    })
}

/// Bytes of an output that are put together of parts.
#[derive(Default)]
struct Joined {
    /// The first part, as long as there is no other.
    only: Option<Bytes>,
    all: Vec<u8>,
}

impl Joined {
    fn add(&mut self, part: Bytes) {
        if part.is_empty() {
            return;
        }
        if self.only.is_none() && self.all.is_empty() {
            self.only = Some(part);
            return;
        }
        if let Some(first) = self.only.take() {
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&part);
    }

    fn into_bytes(self) -> Bytes {
        self.only.unwrap_or_else(|| self.all.into())
    }
}

fn text(served: &Served, mut wanted: Wanted, calls: &[Vec<Tensor>]) -> Result<Output> {
    let codec = served.text.as_ref();
    let mut texts = Vec::new();
    for outputs in calls {
        let answer = codec.map(|c| c.answer(outputs)).transpose();
        texts.push(
            answer
                .map_err(Error::Internal)?
                .flatten()
                .unwrap_or_default(),
        );
    }
    let data = dtype::join_bytes(texts.iter().map(String::as_bytes));
    Ok(Output {
        name: std::mem::take(&mut wanted.name),
        data_type: DataType::Bytes,
        shape: if served.batched {
            vec![texts.len(), 1]
        } else {
            vec![1]
        },
        data: data.into(),
        wanted,
    })
}

/// An output as it was wanted: as classes, in a region.
///
/// # Errors
/// Classes of what has none, a region that is too small.
pub fn placed(served: &Served, mut output: Output) -> Result<Output> {
    if output.wanted.classes > 0 {
        // The first axis is of samples for the configuration's models that batch alone.
        let batches = served.config.max_batch_size > 0;
        let labels = served
            .labels
            .get(&output.name)
            .map_or(&[][..], Vec::as_slice);
        output = classify(output, batches, labels)?;
    }
    if let Some(region) = &output.wanted.region {
        region.write(&output.data)?;
    }
    Ok(output)
}

/// The largest elements of each sample, or of all where the first axis is not of samples, as texts
/// `value:place[:label]`.
fn classify(output: Output, batches: bool, labels: &[String]) -> Result<Output> {
    let samples = output.shape.first().copied().filter(|_| batches);
    let shape = samples.into_iter();
    let samples = samples.unwrap_or(1);
    let what = format!("classification of output '{}'", output.name);
    let values =
        values(&output).ok_or_else(|| Error::expected(&what, "numbers", output.data_type))?;
    let each = values.len() / samples.max(1);
    let k = output.wanted.classes.min(each);
    let mut texts = Vec::with_capacity(samples * k);
    for sample in values.chunks_exact(each.max(1)) {
        let mut order: Vec<usize> = (0..sample.len()).collect();
        order.sort_by(|&a, &b| sample[b].total_cmp(&sample[a]).then(a.cmp(&b)));
        for &at in &order[..k] {
            let value = match output.data_type {
                DataType::Fp32 | DataType::Fp64 | DataType::Fp16 | DataType::Bf16 => {
                    format!("{:.6}", sample[at])
                }
                _ => format!("{}", sample[at]),
            };
            texts.push(match labels.get(at) {
                Some(label) => format!("{value}:{at}:{label}"),
                None => format!("{value}:{at}"),
            });
        }
    }
    Ok(Output {
        data_type: DataType::Bytes,
        shape: shape.chain([k]).collect(),
        data: dtype::join_bytes(texts.iter().map(String::as_bytes)).into(),
        ..output
    })
}

/// The elements as numbers; `None` for texts.
pub fn values(output: &Output) -> Option<Vec<f64>> {
    let size = output.data_type.size()?;
    let held = if output.data_type.fits(lazybatch_graph::DType::F32) {
        lazybatch_graph::DType::F32
    } else {
        lazybatch_graph::DType::I32
    };
    let num = output.data.len() / size;
    let data = output.data.clone().into();
    let tensor = dtype::to_tensor(output.data_type, held, [num], &data).ok()?;
    Some(match held {
        lazybatch_graph::DType::F32 => tensor.to_f32().into_iter().map(f64::from).collect(),
        _ => tensor.to_i32().into_iter().map(f64::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_largest_with_their_places() {
        let scores = [0.5f32, 2.0, 1.0, 3.0, 3.0, -1.0];
        let output = Output {
            name: "y".into(),
            data_type: DataType::Fp32,
            shape: vec![2, 3],
            data: scores.map(f32::to_le_bytes).concat().into(),
            wanted: Wanted {
                classes: 2,
                ..Wanted::default()
            },
        };
        let labels = ["a".to_owned(), "b".to_owned()];
        let all = classify(output.clone(), false, &labels).unwrap();
        assert_eq!(all.shape, [2]);
        let texts = dtype::split_bytes(&all.data).unwrap();
        assert_eq!(texts, [b"3.000000:3", b"3.000000:4"]);
        let classes = classify(output, true, &labels).unwrap();
        assert_eq!(classes.shape, [2, 2]);
        let texts = dtype::split_bytes(&classes.data).unwrap();
        let texts: Vec<_> = texts
            .iter()
            .map(|t| std::str::from_utf8(t).unwrap())
            .collect();
        // Of equal ones the first.
        assert_eq!(
            texts,
            ["2.000000:1:b", "1.000000:2", "3.000000:0:a", "3.000000:1:b"]
        );
    }
}
