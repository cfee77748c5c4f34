//! Inputs for real-time experiments: a pool that arrivals draw from.

use lazybatch_graph::{DType, Dim, Program, Sampling, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::arrivals::{Arrival, Limit, Process, Stream, Workload};
use crate::error::Result;
use crate::lengths::Lengths;
use crate::zoo::Served;

/// One request's inputs.
#[derive(Clone, Debug)]
pub struct Item {
    /// Which model it is for, where an experiment has several: its position.
    pub model: usize,
    /// One tensor per declared input.
    pub inputs: Vec<Tensor>,
    /// Length of the sequence that drives the program; 0 without one.
    pub input_len: u32,
    /// The text that it encodes, for models that read text.
    pub text: Option<String>,
}

impl AsRef<[Tensor]> for Item {
    fn as_ref(&self) -> &[Tensor] {
        &self.inputs
    }
}

/// `num` seeded items for any program: ids uniform below their bound, floats uniform in
/// `[-1, 1)`, sequences as long as `lengths` draws, within the program's bounds.
pub fn synthetic(program: &Program, lengths: &Lengths, num: usize, seed: u64) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..num)
        .map(|_| {
            let (drawn, _) = lengths.sample(&mut rng);
            of_length(program, drawn, &mut rng)
        })
        .collect()
}

/// `num` seeded items of a model with the decoder passes of each, lengths drawn together from the
/// model's own distribution, for devices that end a request where they are told to.
///
/// # Errors
/// A distribution of lengths that cannot be loaded.
pub fn drawn(model: &Served<'_>, num: usize, seed: u64) -> Result<(Vec<Item>, Vec<u32>)> {
    let process = Process::Constant { rate_rps: 1.0 };
    let stream = Stream::new(model.name, process, Lengths::load(model.lengths)?);
    let arrivals = Workload::single(stream, Limit::Requests(num)).generate(seed)?;
    let lens: Vec<_> = arrivals.iter().map(lens).collect();
    Ok(of_lens(model, &lens, seed))
}

/// Input and output length of an arrival.
pub fn lens(arrival: &Arrival) -> (u32, u32) {
    (arrival.input_len, arrival.output_len)
}

/// A seeded item of each input length with the decoder passes of each output length, as far as the model's
/// bounds allow these.
pub fn of_lens(model: &Served<'_>, lens: &[(u32, u32)], seed: u64) -> (Vec<Item>, Vec<u32>) {
    let item = |&(input, output): &(u32, u32)| {
        synthetic(model.program, &Lengths::fixed(input, output), 1, seed).remove(0)
    };
    let bound = model.max_output_len.unwrap_or(u32::MAX);
    let steps = lens.iter().map(|l| l.1.min(bound)).collect();
    (lens.iter().map(item).collect(), steps)
}

fn of_length(program: &Program, drawn: u32, rng: &mut ChaCha8Rng) -> Item {
    let mut input_len = 0;
    let mut inputs = Vec::new();
    for (i, decl) in program.inputs.iter().enumerate() {
        let sequence = decl.ty.dims.first() == Some(&Dim::Len);
        let lead = if sequence {
            let least = program.least_len().unwrap_or(1);
            let most = decl.max_len.unwrap_or(usize::MAX);
            (drawn as usize).max(least).min(most)
        } else {
            1
        };
        if program.length_input.is_some_and(|id| id.index() == i) {
            input_len = lead as u32;
        }
        let mut dims = vec![lead];
        dims.extend(decl.ty.fixed_dims());
        let num: usize = dims.iter().product();
        inputs.push(if decl.is_sampling {
            Sampling::tensor(&[Sampling::default()])
        } else if decl.ty.dtype == DType::F32 {
            let data: Vec<f32> = (0..num).map(|_| rng.random_range(-1.0..1.0)).collect();
            Tensor::from_f32(&dims, &data)
        } else {
            let bound = decl.id_bound.unwrap_or(2) as i32;
            let data: Vec<i32> = (0..num).map(|_| rng.random_range(0..bound)).collect();
            Tensor::from_i32(&dims, &data)
        });
    }
    Item {
        model: 0,
        inputs,
        input_len,
        text: None,
    }
}
