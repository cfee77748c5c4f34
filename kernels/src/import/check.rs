//! Compares a program with the graph that it was made of.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Error, Limits, Model};
use lazybatch_graph::{DType, Layout, Part, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::compiled::Compiled;
use super::trace::{Filled, dims_at, fill, random};
use crate::cpu::{CpuDevice, CpuOptions};
use crate::onnx::Interpreter;
use crate::tensor::Meter;

/// Largest difference, relative to the largest magnitude in the tensor.
pub const TOLERANCE: f64 = 1e-4;

/// Batch sizes and lengths at which both are run.
const SIZES: [(usize, usize); 2] = [(1, 6), (3, 9)];

/// Elements of a tensor by sample, each sample's as packed rows.
///
/// # Errors
/// A tensor of other dimensions than its axes have at that size.
pub(super) fn by_sample(
    place: &str,
    array: &Array,
    layout: &Layout,
    (batch, len): (usize, usize),
) -> Result<Vec<Vec<f64>>, Error> {
    let dims = dims_at(layout, batch, len);
    if array.dims() != dims {
        let what = format!("dimensions at batch {batch}, length {len}");
        return Err(Error::invalid(place, what, format!("{dims:?}"), array));
    }
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
    Ok(samples)
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

/// The embedded device, within the limits.
pub(super) fn device(limits: &Limits) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        max_open: SIZES[1].0,
        state_bytes: limits.held.saturating_mul(size_of::<f32>()),
        ..CpuOptions::default()
    })
}

/// What a comparison needs to know of the graph.
pub(super) struct Compared<'a> {
    /// The model as it was read.
    pub model: &'a Model,
    /// What requests do not bring.
    pub filled: &'a BTreeMap<String, Filled>,
    /// Values of inputs that are always the same.
    pub fixed: &'a BTreeMap<String, Array>,
    /// Most positions.
    pub max_len: usize,
    /// Whether there is a batch axis, and a sequence.
    pub has: (bool, bool),
}

/// Runs both on random inputs at two batch sizes and lengths.
///
/// # Errors
/// The output and element that differ most.
pub(super) fn compare(c: &Compared<'_>, compiled: &Compiled, meter: &Meter) -> Result<(), Error> {
    let limits = &meter.limits;
    let interpreter = Interpreter::new(c.model, *limits)?;
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    for (batch, len) in SIZES {
        let batch = if c.has.0 { batch } else { 1 };
        let len = if c.has.1 { len.min(c.max_len) } else { 0 };
        let mut given = BTreeMap::new();
        for input in &compiled.inputs {
            let array = random(input, (batch, len), limits, &mut rng)?;
            given.insert(input.name.clone(), array);
        }
        let brought = given.clone();
        for (name, filled) in c.filled {
            given.insert(name.clone(), fill(name, filled, (batch, len), limits)?);
        }
        for (name, array) in c.fixed {
            given.insert(name.clone(), array.clone());
        }
        let infos = c.model.graph.inputs.iter();
        let inputs = infos.map(|i| given.remove(&i.name)).collect();
        let expected = interpreter.run_metered(inputs, meter)?;
        let results = compiled.run_samples(&mut device(limits), &brought, (batch, len))?;
        let at = format!("at batch {batch}, length {len}");
        for (i, output) in compiled.outputs.iter().enumerate() {
            let place = format!("output {}", output.name);
            let wanted = by_sample(&place, &expected[i], &output.layout, (batch, len))?;
            for (sample, (wanted, got)) in wanted.iter().zip(&results).enumerate() {
                same(&place, &format!("{at}, sample {sample}"), wanted, &got[i])?;
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
