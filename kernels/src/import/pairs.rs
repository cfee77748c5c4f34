//! Compares the program of a manifest with its two graphs, run in turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use lazybatch_graph::Program;
use lazybatch_graph::onnx::{Array, Error};
use lazybatch_sla::ModelId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::check::{
    FLOATS, TOLERANCE, as_input, by_sample, device, elements, never_finite, within,
};
use super::manifest::{Pair, token_array};
use super::trace::{Ranges, fill, random_within};
use super::{Prepared, trace};
use crate::conformance::{Request, Schedule, run};
use crate::device::Device;
use crate::onnx::Interpreter;
use crate::tensor::Meter;

/// Lengths of the requests that are compared.
const LENGTHS: [usize; 3] = [1, 6, 9];
/// Most steps that are compared.
pub(super) const STEPS: u32 = 24;

/// Outputs of a graph by name.
fn evaluate(
    p: &Prepared,
    interpreter: &Interpreter<'_>,
    len: usize,
    mut given: BTreeMap<String, Array>,
    meter: &Meter,
) -> Result<BTreeMap<String, Array>, Error> {
    for (name, filled) in &p.filled {
        given.insert(name.clone(), fill(name, filled, (1, len), &meter.limits)?);
    }
    given.extend(p.fixed.clone());
    let graph = &p.model.graph;
    let inputs = graph.inputs.iter().map(|i| given.remove(&i.name));
    let outputs = interpreter.run_metered(inputs.collect(), meter)?;
    let names = graph.outputs.iter().map(|o| o.name.clone());
    Ok(names.zip(outputs).collect())
}

/// Zeros for an input of the decoder.
fn zeros(input: &super::axes::Input) -> Array {
    // What grows is empty before the first step.
    let dims = trace::dims_at(&input.layout, 1, 0);
    let num = dims.iter().product();
    Array::from_f64(input.elem, dims, vec![0.0; num])
}

/// The largest score's place, the lowest among equals.
fn best(scores: &Array) -> i32 {
    let scores = scores.data().to_f64();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter().position(|s| *s == top).unwrap_or(0) as i32
}

/// Runs requests of several lengths through both; scores must agree within the tolerance, tokens
/// as they follow from them. `program` takes at most `max_steps` steps.
///
/// # Errors
/// The step and element that differ most; scores that are finite for none of [`FLOATS`].
pub(super) fn compare(
    pair: &Pair,
    program: Program,
    max_len: usize,
    max_steps: u32,
    meter: &Meter,
) -> Result<(), Error> {
    let program = Arc::new(program);
    for floats in FLOATS {
        let ranges = Ranges {
            floats,
            ..Ranges::default()
        };
        if compare_on(&ranges, pair, &program, max_len, max_steps, meter)? {
            return Ok(());
        }
    }
    let choose = &pair.manifest.decoder.choose;
    Err(never_finite(format!("decoder output {choose}")))
}

/// As [`compare`] on random inputs from `ranges`; whether any score was finite.
fn compare_on(
    ranges: &Ranges,
    pair: &Pair,
    program: &Arc<Program>,
    max_len: usize,
    max_steps: u32,
    meter: &Meter,
) -> Result<bool, Error> {
    let limits = meter.limits;
    let d = &pair.manifest.decoder;
    let encoder = Interpreter::new(&pair.encoder.model, limits)?;
    let decoder = Interpreter::new(&pair.decoder.model, limits)?;
    let has_len = program.length_input.is_some();
    let mut rng = ChaCha8Rng::seed_from_u64(37);
    let mut requests = Vec::new();
    let mut encoded = Vec::new();
    for len in LENGTHS {
        let len = if has_len { len.min(max_len) } else { 0 };
        let mut given = BTreeMap::new();
        let mut inputs = Vec::new();
        for (input, decl) in pair.encoder.inputs.iter().zip(&program.inputs) {
            let array = random_within(ranges, input, (1, len), &limits, &mut rng)?;
            let place = format!("input {}", input.name);
            let rows = by_sample(&place, &array, &input.layout, (1, len))?.remove(0);
            inputs.push(as_input(&rows, decl.ty.dtype, &input.layout, len));
            given.insert(input.name.clone(), array);
        }
        encoded.push(evaluate(&pair.encoder, &encoder, len, given, meter)?);
        requests.push(Request {
            inputs,
            len,
            samples: 1,
        });
    }
    let mut device = device(&limits);
    device
        .load(ModelId(0), Arc::clone(program))
        .map_err(|e| Error::invalid("manifest", "program", "one that loads", e))?;
    let results = run(&mut device, program, &requests, Schedule::Together)
        .map_err(|e| Error::invalid("program", "run", "one", e))?;
    let find = |name: &str| program.outputs.iter().position(|o| o.name == name);
    let (Some(tokens), Some(scores)) = (find("tokens"), find("scores")) else {
        return Err(Error::invalid(
            "program",
            "outputs",
            "tokens and scores",
            "others",
        ));
    };
    let mut told = false;
    for ((request, encoded), results) in requests.iter().zip(encoded).zip(&results) {
        let (Some(tokens), Some(scores)) = (&results[tokens], &results[scores]) else {
            return Err(Error::invalid(
                "program",
                "outputs",
                "tokens and scores",
                "none",
            ));
        };
        let tokens = tokens.to_i32();
        let scores = elements(scores);
        let width = scores.len() / tokens.len().max(1);
        let mut state: BTreeMap<String, Array> = BTreeMap::new();
        for input in &pair.decoder.inputs {
            let first = d.first.get(&input.name).or(d.read.get(&input.name));
            let value = match first.and_then(|name| encoded.get(name)) {
                Some(array) => array.clone(),
                None if input.name == d.token => token_array(input, d.start),
                None => zeros(input),
            };
            state.insert(input.name.clone(), value);
        }
        for (step, &token) in tokens.iter().enumerate() {
            let given = state.clone();
            let outputs = evaluate(&pair.decoder, &decoder, request.len, given, meter)?;
            let wanted = &outputs[&d.choose];
            let at = format!("at length {}, step {step}", request.len);
            let place = format!("decoder output {}", d.choose);
            let got = &scores[step * width..(step + 1) * width];
            let tolerance = if wanted.elem().is_float() {
                TOLERANCE
            } else {
                0.0
            };
            let values = wanted.data().to_f64();
            within(tolerance, &place, &at, &values, got)?;
            told |= values.iter().any(|v| v.is_finite());
            // Near ties may fall otherwise; the program's own choice goes on.
            let chosen = if wanted.elem().is_float() {
                let values: Vec<f32> = got.iter().map(|&v| v as f32).collect();
                best(&Array::new(
                    vec![values.len()],
                    lazybatch_graph::onnx::Data::F32(values),
                ))
            } else {
                got[0] as i32
            };
            let is_last = step + 1 == tokens.len();
            let ends = token == d.stop || step + 1 == max_steps as usize;
            if token != chosen || is_last != ends {
                return Err(Error::invalid("output tokens", &at, chosen, token));
            }
            for input in &pair.decoder.inputs {
                let next = d.feed.get(&input.name).or(d.cache.get(&input.name));
                if let Some(output) = next {
                    state.insert(input.name.clone(), outputs[output].clone());
                } else if input.name == d.token {
                    state.insert(input.name.clone(), token_array(input, token));
                }
            }
        }
    }
    Ok(told)
}
