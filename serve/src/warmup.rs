//! Warm-up: requests that a version answers before it becomes ready (`model_warmup`).
//!
//! A sample is one request of `batch_size` samples, all alike, that is run `count` times. Random
//! numbers are from 0 to 1, random whole numbers 0 or 1, the same at every load.

use std::path::Path;

use lazybatch_graph::Tensor;
use xxhash_rust::xxh3::xxh3_64;

use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::files::{file_in, regular};
use crate::infer::{self, Input, Param, Params, Request};
use crate::model::Served;
use crate::proto::ModelWarmup;
use crate::proto::model_warmup::Input as Stated;
use crate::proto::model_warmup::input::InputDataType;

/// Folder of `input_data_file`, in the model's folder.
const FOLDER: &str = "warmup";
/// Most elements of an input.
const MAX_ELEMENTS: usize = 1 << 24;
/// Most samples of all requests: whoever loads a model keeps other loads waiting for so long.
const MOST_SAMPLES: u64 = 1 << 16;
/// Most bytes of an input.
const MAX_BYTES: usize = 1 << 28;

/// Runs all samples of a version, whose model's folder is `folder`; blocks until they have ended.
///
/// # Errors
/// The first sample that fails, and why.
pub fn run(served: &Served, folder: &Path) -> Result<()> {
    let samples = |w: &ModelWarmup| u64::from(w.batch_size.max(1)) * u64::from(w.count.max(1));
    let all = served.config.model_warmup.iter().map(samples);
    let all = all.fold(0, u64::saturating_add);
    if all > MOST_SAMPLES {
        let what = format!("model {}: model_warmup, count by batch_size", served.name);
        return Err(Error::expected(
            what,
            format!("at most {MOST_SAMPLES} in all"),
            all,
        ));
    }
    for (at, sample) in served.config.model_warmup.iter().enumerate() {
        let name = match sample.name.as_str() {
            "" => at.to_string(),
            name => format!("'{name}'"),
        };
        let done = one(served, folder, sample);
        done.map_err(|e| {
            let model = &served.name;
            Error::Invalid(format!("model {model}: model_warmup sample {name}: {e}"))
        })?;
    }
    Ok(())
}

fn one(served: &Served, folder: &Path, sample: &ModelWarmup) -> Result<()> {
    let by_size = served.config.max_batch_size > 0;
    let num = match sample.batch_size as usize {
        // What does not batch has no size to state.
        0 if !by_size => 1,
        num => num,
    };
    if num == 0 || (num > 1 && !by_size) {
        let expected = match by_size {
            true => "1 or more",
            false => "1, since the model's max_batch_size is 0",
        };
        return Err(Error::expected("batch_size", expected, num));
    }
    if num > served.max_samples {
        let expected = format!("at most {}", served.max_samples);
        return Err(Error::expected("batch_size", expected, num));
    }
    let mut inputs = Vec::new();
    for (name, stated) in &sample.inputs {
        inputs.push(input(name, stated, folder, by_size.then_some(num))?);
    }
    let mut params = Params::default();
    if served.is_sequence() {
        let mut set = |key: &str, value| params.set(key.to_owned(), value);
        set("sequence_id", Param::Uint(1));
        set("sequence_start", Param::Bool(true));
        set("sequence_end", Param::Bool(true));
    }
    let request = Request {
        params,
        inputs,
        ..Request::default()
    };
    for _ in 0..sample.count.max(1) {
        infer::rehearse(served, request.clone())?;
    }
    Ok(())
}

/// An input of `num` samples alike; of no axis of samples if `None`.
fn input(name: &str, stated: &Stated, folder: &Path, num: Option<usize>) -> Result<Input> {
    let what = format!("input '{name}'");
    let data_type = DataType::of_config(stated.data_type)
        .ok_or_else(|| Error::expected(format!("{what}: data_type"), "a type", "none"))?;
    let dims: Option<Vec<usize>> = stated.dims.iter().map(|&d| d.try_into().ok()).collect();
    let all = |dims: &Vec<usize>| {
        let elements = dtype::elements(dims).filter(|&n| n <= MAX_ELEMENTS);
        let all = elements.and_then(|n| n.checked_mul(num.unwrap_or(1)));
        elements.filter(|_| all.is_some_and(|n| n <= MAX_ELEMENTS))
    };
    let elements = dims.as_ref().and_then(all).ok_or_else(|| {
        let expected = format!("sizes of 0 or more, at most {MAX_ELEMENTS} elements in all");
        Error::expected(
            format!("{what}: dims"),
            expected,
            format!("{:?}", stated.dims),
        )
    })?;
    let one = match &stated.input_data_type {
        Some(InputDataType::ZeroData(true)) => numbers(data_type, elements, |_| 0.0)?,
        Some(InputDataType::RandomData(true)) if data_type != DataType::Bytes => {
            let random = |i: usize| xxh3_64(&i.to_le_bytes()) as f64 / u64::MAX as f64;
            numbers(data_type, elements, random)?
        }
        Some(InputDataType::InputDataFile(file)) => file_data(folder, file, data_type, elements)?,
        _ => {
            let expected = match data_type {
                DataType::Bytes => "zero_data: true or input_data_file",
                _ => "zero_data: true, random_data: true or input_data_file",
            };
            return Err(Error::expected(what, expected, "neither"));
        }
    };
    let bytes = one.len().checked_mul(num.unwrap_or(1));
    if bytes.is_none_or(|b| b > MAX_BYTES) {
        let expected = format!("at most {MAX_BYTES} bytes in all");
        return Err(Error::expected(what, expected, "more"));
    }
    Ok(Input {
        name: name.to_owned(),
        data_type,
        shape: num.into_iter().chain(dims.unwrap_or_default()).collect(),
        data: one.repeat(num.unwrap_or(1)).into(),
    })
}

/// So many elements; texts are empty.
fn numbers(data_type: DataType, elements: usize, of: impl Fn(usize) -> f64) -> Result<Vec<u8>> {
    let bytes = match data_type {
        DataType::Bytes => Ok(dtype::join_bytes((0..elements).map(|_| &[][..])).into()),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            let values: Vec<f32> = (0..elements).map(|i| of(i) as f32).collect();
            dtype::to_bytes(&Tensor::from_f32(&[elements], &values), data_type)
        }
        _ => {
            let values: Vec<i32> = (0..elements).map(|i| of(i).round() as i32).collect();
            dtype::to_bytes(&Tensor::from_i32(&[elements], &values), data_type)
        }
    };
    bytes.map(|b| b.to_vec()).map_err(Error::Invalid)
}

/// The elements of one sample, little-endian, from a file.
fn file_data(folder: &Path, file: &str, data_type: DataType, elements: usize) -> Result<Vec<u8>> {
    let path = file_in(&folder.join(FOLDER), "input_data_file", file)?;
    let data = regular(&path).and_then(|()| std::fs::read(&path));
    let data =
        data.map_err(|e| Error::expected(path.display(), "a file with the input's bytes", e))?;
    let wanted = data_type.size().map(|size| size * elements);
    if wanted.is_some_and(|wanted| wanted != data.len()) {
        let expected = format!("{} bytes", wanted.unwrap_or(0));
        let got = format!("{} bytes", data.len());
        return Err(Error::expected(path.display(), expected, got));
    }
    Ok(data)
}
