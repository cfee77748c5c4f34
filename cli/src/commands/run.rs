//! `lazybatch run`: one request.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{DType, Dim, Tensor};
use lazybatch_workloads::experiment::words;
use serde_json::Value;

use crate::args::RunArgs;
use crate::failure::BadInput;
use crate::models::{self, DeviceKind, Model};
use crate::output;

/// What a model of words reads where nothing else is asked for.
const WORD: &str = "batching";
/// Seed of inputs where none is stated.
const SEED: u64 = 1;

/// Runs the command.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    DeviceKind::Cpu.check(&args.cpu)?;
    let model = Model::load(&args.model)?;
    let inputs = inputs(&model, args)?;
    let engine = Engine::builder()
        .boxed_device(models::cpu(&args.cpu))
        .model(
            model.name.as_str(),
            model.program.clone(),
            ModelOptions::default(),
        )
        .policy("greedy")
        .build()
        .map_err(|e| model.blame(e))?;
    let answer = engine
        .try_submit(model.name.as_str(), inputs, Options::default())
        .with_context(|| args.input.clone().unwrap_or_default())?
        .wait()?;
    let told = match &model.text {
        Some(text) => text.answer(&answer.outputs)?,
        None => None,
    };
    if model.reads_words() {
        output::line(words::answer(&answer.outputs).join(" "))?;
    } else if let Some(told) = told {
        output::line(told)?;
    } else {
        for (decl, tensor) in model.program.outputs.iter().zip(&answer.outputs) {
            output::line(format_args!(
                "{} {}{:?}: {}",
                decl.name,
                tensor.dtype,
                tensor.dims,
                excerpt(tensor)
            ))?;
        }
    }
    output::aside(format_args!(
        "{:.3} ms",
        answer.finish.since(answer.arrival).as_ms()
    ));
    engine.drain_blocking()?;
    Ok(())
}

fn excerpt(tensor: &Tensor) -> String {
    const MOST: usize = 16;
    let num = tensor.num_elems();
    let mut shown: Vec<String> = if tensor.dtype.is_float() {
        tensor
            .to_f32()
            .iter()
            .take(MOST)
            .map(|x| format!("{x:.5}"))
            .collect()
    } else {
        tensor
            .to_i32()
            .iter()
            .take(MOST)
            .map(ToString::to_string)
            .collect()
    };
    if num > MOST {
        shown.push(format!("... ({num} in all)"));
    }
    shown.join(" ")
}

fn inputs(model: &Model, args: &RunArgs) -> anyhow::Result<Vec<Tensor>> {
    let Some(text) = &args.input else {
        if let Some(item) = words::item(WORD).filter(|_| model.reads_words()) {
            if let Some(seed) = args.seed {
                let expected = "--seed: expected none for a model that reads words";
                return Err(BadInput(format!("{expected}, got {seed}")).into());
            }
            return Ok(item.inputs);
        }
        return Ok(model.pool(1, args.seed.unwrap_or(SEED))?.remove(0).inputs);
    };
    if model.reads_words() {
        let word = text.to_ascii_lowercase();
        let item = words::item(&word).ok_or_else(|| {
            BadInput(format!(
                "--input: expected a word of 1 to 24 letters a-z, got {text:?}"
            ))
        })?;
        return Ok(item.inputs);
    }
    let path = Path::new(text);
    match &model.text {
        // A text may end in `.json`; only a file that is there is meant as one.
        Some(tokenizer) if !(path.extension().is_some_and(|e| e == "json") && path.is_file()) => {
            Ok(tokenizer.item(text)?.inputs)
        }
        _ => from_json(model, path),
    }
}

/// Reads `{"name": [numbers, nested as the shape is]}`.
fn from_json(model: &Model, path: &Path) -> anyhow::Result<Vec<Tensor>> {
    let bad = |what: &str, expected: String, got: String| {
        BadInput(format!(
            "{}: {what}: expected {expected}, got {got}",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| bad("file", "a JSON file of input tensors".into(), e.to_string()))?;
    let values: BTreeMap<String, Value> = serde_json::from_str(&text).map_err(|e| {
        bad(
            "file",
            "an object of tensors by input name".into(),
            e.to_string(),
        )
    })?;
    let declared: Vec<_> = model
        .program
        .inputs
        .iter()
        .map(|i| i.name.as_str())
        .collect();
    if let Some(name) = values.keys().find(|n| !declared.contains(&n.as_str())) {
        return Err(bad(
            "input",
            format!("one of {}", declared.join(", ")),
            name.clone(),
        )
        .into());
    }
    let mut tensors = Vec::new();
    for decl in &model.program.inputs {
        let value = match values.get(&decl.name) {
            Some(value) => value,
            // The last one, which may be left out.
            None if decl.is_sampling => break,
            None => return Err(bad(&decl.name, "a tensor".into(), "nothing".into()).into()),
        };
        let mut dims = shape(value);
        let mut flat = Vec::new();
        flatten(value, &dims, &mut flat)
            .map_err(|got| bad(&decl.name, "numbers in even nested lists".into(), got))?;
        // One sample may stand alone.
        let is_sequence = decl.ty.dims.first() == Some(&Dim::Len);
        if !is_sequence && dims[..] == decl.ty.fixed_dims()[..] {
            dims.insert(0, 1);
        }
        tensors.push(if decl.ty.dtype == DType::F32 {
            let data: Vec<f32> = flat.iter().map(|&x| x as f32).collect();
            if let Some(i) = data.iter().position(|x| !x.is_finite()) {
                let expected = "32-bit floats".into();
                return Err(bad(&decl.name, expected, format!("{:?}", flat[i])).into());
            }
            Tensor::from_f32(&dims, &data)
        } else {
            let fits = |x: f64| {
                x.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x)
            };
            if let Some(&x) = flat.iter().find(|&&x| !fits(x)) {
                let expected = "whole numbers of 32 bits".into();
                return Err(bad(&decl.name, expected, format!("{x:?}")).into());
            }
            let data: Vec<i32> = flat.iter().map(|&x| x as i32).collect();
            Tensor::from_i32(&dims, &data)
        });
    }
    Ok(tensors)
}

/// Lengths of the lists along the first element of each.
fn shape(mut value: &Value) -> Vec<usize> {
    let mut dims = Vec::new();
    while let Value::Array(items) = value {
        dims.push(items.len());
        let Some(first) = items.first() else { break };
        value = first;
    }
    dims
}

/// The numbers of nested lists, all of that shape; else what does not fit.
fn flatten(value: &Value, dims: &[usize], flat: &mut Vec<f64>) -> Result<(), String> {
    match (value, dims) {
        (Value::Number(n), []) => {
            flat.push(n.as_f64().unwrap_or(f64::NAN));
            Ok(())
        }
        (Value::Array(items), [len, inner @ ..]) if items.len() == *len => {
            items.iter().try_for_each(|item| flatten(item, inner, flat))
        }
        (Value::Array(items), [len, ..]) => Err(format!("lists of {len} and {}", items.len())),
        (Value::Array(_), []) => Err("a list beside a number".into()),
        (other, _) => Err(other.to_string()),
    }
}
