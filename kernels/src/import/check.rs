//! Compares a program with the graph that it was made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use lazybatch_graph::onnx::{Array, Error, Limits, Model};
use lazybatch_graph::{DType, Layout, Part, Program, Tensor};
use lazybatch_sla::ModelId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::axes::Input;
use super::trace::{Filled, fill, random};
use crate::conformance::{Request, Schedule, run};
use crate::cpu::{CpuDevice, CpuOptions};
use crate::device::Device;
use crate::onnx::Interpreter;

/// Largest difference, relative to the largest magnitude in the tensor.
pub const TOLERANCE: f64 = 1e-4;

/// Batch sizes and lengths at which both are run.
const SIZES: [(usize, usize); 2] = [(1, 6), (3, 9)];

/// Elements of a tensor by sample, each sample's as packed rows.
pub(super) fn by_sample(array: &Array, layout: &Layout, batch: usize, len: usize) -> Vec<Vec<f64>> {
    let parts: Vec<Part> = layout.parts().collect();
    let row = layout.row_elems();
    let rows = if layout.has_len() { len } else { 1 };
    let mut samples = vec![vec![0.0; rows * row]; batch];
    for (at, value) in array.data().to_f64().into_iter().enumerate() {
        let (mut rest, mut fixed, mut stride) = (at, 0, 1);
        let (mut sample, mut position) = (None, 0);
        for part in parts.iter().rev() {
            match *part {
                Part::Batch => {
                    sample = Some(rest % batch);
                    rest /= batch;
                }
                Part::Len => {
                    position = rest % len;
                    rest /= len;
                }
                Part::Fixed(n) => {
                    fixed += rest % n * stride;
                    stride *= n;
                    rest /= n;
                }
            }
        }
        let to = position * row + fixed;
        match sample {
            Some(sample) => samples[sample][to] = value,
            // What no sample owns is every sample's.
            None => samples.iter_mut().for_each(|s| s[to] = value),
        }
    }
    samples
}

/// A sample's rows as a request brings them.
pub(super) fn as_input(values: &[f64], dtype: DType, layout: &Layout, len: usize) -> Tensor {
    let lead = if layout.has_len() { len } else { 1 };
    let dims: Vec<usize> = std::iter::once(lead).chain(layout.fixed()).collect();
    if dtype.is_float() {
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        Tensor::from_f32(&dims, &values)
    } else {
        let values: Vec<i32> = values.iter().map(|&v| v as i32).collect();
        Tensor::from_i32(&dims, &values)
    }
}

/// Elements of an output.
pub(super) fn elements(tensor: &Tensor) -> Vec<f64> {
    if tensor.dtype.is_float() {
        tensor.to_f32().into_iter().map(f64::from).collect()
    } else {
        tensor.to_i32().into_iter().map(f64::from).collect()
    }
}

/// Where and how much two lists differ most, relative to the largest magnitude of `expected`.
pub(super) fn worst(expected: &[f64], got: &[f64]) -> (usize, f64) {
    let largest = expected.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    let scale = largest.max(1e-6);
    let mut worst = (0, 0.0);
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        let far = (e - g).abs() / scale;
        if far > worst.1 || far.is_nan() && e.is_nan() != g.is_nan() {
            worst = (i, if far.is_nan() { f64::INFINITY } else { far });
        }
    }
    worst
}

/// A program on the embedded device.
pub(super) fn device(program: &Arc<Program>, place: &str) -> Result<CpuDevice, Error> {
    let mut device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    device
        .load(ModelId(0), Arc::clone(program))
        .map_err(|e| Error::invalid(place, "program", "one that loads", e))?;
    Ok(device)
}

/// What a comparison needs to know of the graph.
pub(super) struct Compared<'a> {
    /// The model as it was read.
    pub model: &'a Model,
    /// What requests bring.
    pub inputs: &'a [Input],
    /// What they do not bring.
    pub filled: &'a BTreeMap<String, Filled>,
    /// Values of inputs that are always the same.
    pub fixed: &'a BTreeMap<String, Array>,
    /// Layouts of the outputs.
    pub outputs: &'a [Layout],
    /// Most positions.
    pub max_len: usize,
    /// Whether there is a batch axis, and a sequence.
    pub has: (bool, bool),
}

/// Runs both on random inputs at two batch sizes and lengths.
///
/// # Errors
/// The output and element that differ most.
pub(super) fn compare(c: &Compared<'_>, program: Program) -> Result<(), Error> {
    let program = Arc::new(program);
    let limits = Limits::default();
    let interpreter = Interpreter::new(c.model, limits)?;
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    for (batch, len) in SIZES {
        let batch = if c.has.0 { batch } else { 1 };
        let len = if c.has.1 { len.min(c.max_len) } else { 0 };
        let mut given = BTreeMap::new();
        for input in c.inputs {
            given.insert(input.name.clone(), random(input, batch, len, &mut rng));
        }
        let brought: Vec<Vec<Vec<f64>>> = c
            .inputs
            .iter()
            .map(|i| by_sample(&given[&i.name], &i.layout, batch, len))
            .collect();
        for (name, filled) in c.filled {
            given.insert(name.clone(), fill(filled, batch, len));
        }
        for (name, array) in c.fixed {
            given.insert(name.clone(), array.clone());
        }
        let infos = c.model.graph.inputs.iter();
        let expected = interpreter.run(infos.map(|i| given.remove(&i.name)).collect())?;
        let requests: Vec<Request> = (0..batch)
            .map(|sample| Request {
                inputs: c
                    .inputs
                    .iter()
                    .zip(&program.inputs)
                    .zip(&brought)
                    .map(|((i, decl), all)| as_input(&all[sample], decl.ty.dtype, &i.layout, len))
                    .collect(),
                len,
                samples: 1,
            })
            .collect();
        let mut device = device(&program, &c.model.file)?;
        let at = format!("at batch {batch}, length {len}");
        let results = run(&mut device, &program, &requests, Schedule::Together)
            .map_err(|e| Error::invalid("program", &at, "a run", e))?;
        for (i, output) in c.model.graph.outputs.iter().enumerate() {
            let wanted = by_sample(&expected[i], &c.outputs[i], batch, len);
            for (sample, wanted) in wanted.iter().enumerate() {
                let place = format!("output {}", output.name);
                let Some(tensor) = &results[sample][i] else {
                    return Err(Error::invalid(place, &at, "a value", "none"));
                };
                same(
                    &place,
                    &format!("{at}, sample {sample}"),
                    wanted,
                    &elements(tensor),
                )?;
            }
        }
    }
    Ok(())
}

/// Refuses lists that differ by more than [`TOLERANCE`].
pub(super) fn same(place: &str, at: &str, wanted: &[f64], got: &[f64]) -> Result<(), Error> {
    if wanted.len() != got.len() {
        let expected = format!("{} elements", wanted.len());
        return Err(Error::invalid(place, at, expected, got.len()));
    }
    let (worst, far) = worst(wanted, got);
    if far <= TOLERANCE {
        return Ok(());
    }
    let what = format!("{at}, element {worst}");
    let got = format!("{} ({far:.1e} of the largest magnitude)", got[worst]);
    Err(Error::invalid(place, what, wanted[worst], got))
}
