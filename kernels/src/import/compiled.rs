//! A compiled model, run on tensors as its graph takes and gives them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lazybatch_graph::onnx::{Array, Elem, Error};
use lazybatch_graph::{Layout, Part, Program};
use lazybatch_sla::ModelId;

use super::axes::Input;
use super::check::{as_input, by_sample, elements};
use super::trace::dims_at;
use crate::conformance::{Request, Schedule, run};
use crate::device::Device;

/// An output of the graph.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// Its name.
    pub name: String,
    /// Element type in the graph.
    pub elem: Elem,
    /// Its axes.
    pub layout: Layout,
}

/// A program and how its graph's tensors are packed for it.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub(super) program: Arc<Program>,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
}

/// Elements of the outputs of each sample.
pub(super) type Samples = Vec<Vec<Vec<f64>>>;

impl Compiled {
    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The program alone.
    pub fn into_program(self) -> Program {
        Arc::unwrap_or_clone(self.program)
    }

    /// Runs the program on `device`, each sample as a request of its own, all together, and gives
    /// the graph's outputs in order. `given` are the graph's inputs by name; those that the program
    /// does not take are not looked at.
    ///
    /// # Errors
    /// An input that is missing or has other dimensions than the axes allow; what the device refuses.
    pub fn run(
        &self,
        device: &mut dyn Device,
        given: &BTreeMap<String, Array>,
    ) -> Result<Vec<Array>, Error> {
        let (batch, len) = self.sizes(given)?;
        let samples = self.run_samples(device, given, (batch, len))?;
        let outputs = self.outputs.iter().enumerate().map(|(i, output)| {
            let of_samples: Vec<&Vec<f64>> = samples.iter().map(|s| &s[i]).collect();
            whole(output, &of_samples, (batch, len))
        });
        outputs.collect()
    }

    /// Samples and positions of the inputs; 1 where no axis counts samples, 0 where none counts
    /// positions.
    fn sizes(&self, given: &BTreeMap<String, Array>) -> Result<(usize, usize), Error> {
        let find = |part: Part, none: usize| -> Result<usize, Error> {
            for input in &self.inputs {
                let array = self.input(input, given)?;
                let axis = input.layout.0.iter().position(|axis| axis[..] == [part]);
                if let Some(&n) = axis.and_then(|axis| array.dims().get(axis)) {
                    return Ok(n);
                }
            }
            Ok(none)
        };
        Ok((find(Part::Batch, 1)?, find(Part::Len, 0)?))
    }

    fn input<'a>(
        &self,
        input: &Input,
        given: &'a BTreeMap<String, Array>,
    ) -> Result<&'a Array, Error> {
        given
            .get(&input.name)
            .ok_or_else(|| Error::invalid(format!("input {}", input.name), "tensor", "one", "none"))
    }

    /// Elements of the outputs of each sample, as packed rows.
    pub(super) fn run_samples(
        &self,
        device: &mut dyn Device,
        given: &BTreeMap<String, Array>,
        (batch, len): (usize, usize),
    ) -> Result<Samples, Error> {
        let mut brought = Vec::new();
        for input in &self.inputs {
            let place = format!("input {}", input.name);
            let array = self.input(input, given)?;
            brought.push(by_sample(&place, array, &input.layout, (batch, len))?);
        }
        let requests: Vec<Request> = (0..batch)
            .map(|sample| {
                let inputs = self.inputs.iter().zip(&self.program.inputs).zip(&brought);
                let tensors = inputs.map(|((input, decl), all)| {
                    as_input(&all[sample], decl.ty.dtype, &input.layout, len)
                });
                Request {
                    inputs: tensors.collect(),
                    len,
                    samples: 1,
                }
            })
            .collect();
        let at = format!("at batch {batch}, length {len}");
        let fail =
            |expected: &str, e: &dyn std::fmt::Display| Error::invalid("program", &at, expected, e);
        device
            .load(ModelId(0), Arc::clone(&self.program))
            .map_err(|e| fail("one that loads", &e))?;
        let results = run(device, &self.program, &requests, Schedule::Together)
            .map_err(|e| fail("a run", &e))?;
        let mut samples = Samples::new();
        for tensors in &results {
            let mut outputs = Vec::new();
            for (output, tensor) in self.outputs.iter().zip(tensors) {
                let Some(tensor) = tensor else {
                    let place = format!("output {}", output.name);
                    return Err(Error::invalid(place, &at, "a value", "none"));
                };
                outputs.push(elements(tensor));
            }
            samples.push(outputs);
        }
        Ok(samples)
    }
}

/// A tensor of the graph from the packed rows of its samples.
fn whole(
    output: &Output,
    samples: &[&Vec<f64>],
    (batch, len): (usize, usize),
) -> Result<Array, Error> {
    let dims = dims_at(&output.layout, batch, len);
    let num: usize = dims.iter().product();
    // Where each element of the tensor comes from, by the same walk that cuts a tensor into samples.
    let places = Array::new(
        dims.clone(),
        lazybatch_graph::onnx::Data::F64((0..num).map(|i| i as f64).collect()),
    );
    let place = format!("output {}", output.name);
    let places = by_sample(&place, &places, &output.layout, (batch, len))?;
    let mut values = vec![0.0; num];
    for (places, sample) in places.iter().zip(samples) {
        if places.len() != sample.len() {
            let expected = format!("{} elements of a sample", places.len());
            return Err(Error::invalid(place, "size", expected, sample.len()));
        }
        for (&at, &value) in places.iter().zip(*sample) {
            values[at as usize] = value;
        }
    }
    Ok(Array::from_f64(output.elem, dims, values))
}
