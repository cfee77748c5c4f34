//! The rows that are compared. Each family is a file; this one has what they share: our side of a
//! row, and the tensors that the peer builds the same from.

mod bert;
mod elementwise;
mod gemm;
mod images;
mod layers;
mod mixed;
mod recurrent;
mod vad;

use std::path::PathBuf;

use anyhow::Context;
use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::matmul::Product;
use lazybatch_benches::record::merge;
use lazybatch_graph::{DType, Program, SharedProgram, Tensor, WeightSource};
use lazybatch_kernels::CpuOptions;
use serde_json::{Value, json};

/// Requests of a batch.
const BATCHES: [usize; 3] = [1, 4, 16];
/// Launches of a single step that are timed at once.
const LAUNCHES: usize = 8;

/// Builds our side of a row.
type Build = Box<dyn Fn(&Setup) -> anyhow::Result<Own>>;

/// What is compared.
pub struct Row {
    /// Its name on command lines and for the peer.
    pub family: &'static str,
    /// Its sizes.
    pub sizes: Value,
    /// Floating-point operations of a matrix product; of other rows nobody asks.
    pub flops: Option<f64>,
    /// The fetched model that it runs, by its folder.
    pub model: Option<&'static str>,
    build: Build,
}

/// What our side runs on, and from.
pub struct Setup {
    /// Threads of the device.
    pub threads: usize,
    /// The folder of fetched models.
    pub models: PathBuf,
}

/// An f32 tensor that both sides use.
pub struct Named {
    /// Name of a weight, or `input.NAME` with the requests as its first dimension.
    pub name: String,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Elements; ids are whole numbers.
    pub data: Vec<f32>,
}

/// Our side of a row.
pub struct Own {
    side: Side,
    /// What the peer builds the same from.
    pub tensors: Vec<Named>,
    /// What else the peer is told, an object.
    pub told: Value,
    /// What else is recorded, an object.
    pub facts: Value,
}

enum Side {
    Product {
        product: Product,
        m: usize,
    },
    Program {
        batch: Box<Lockstep>,
        /// The block that is timed; all, with opening and closing, if none.
        timed: Option<usize>,
    },
}

/// All rows.
pub fn all() -> Vec<Row> {
    let families = [
        gemm::rows(),
        recurrent::rows(),
        layers::rows(),
        elementwise::rows(),
        images::rows(),
        bert::rows(),
        mixed::rows(),
        vad::rows(),
    ];
    families.into_iter().flatten().collect()
}

impl Row {
    fn new(
        family: &'static str,
        sizes: Value,
        build: impl Fn(&Setup) -> anyhow::Result<Own> + 'static,
    ) -> Self {
        Self {
            family,
            sizes,
            flops: None,
            model: None,
            build: Box::new(build),
        }
    }

    /// With a fetched model.
    fn of_model(self, model: &'static str) -> Self {
        Self {
            model: Some(model),
            ..self
        }
    }

    /// Name and sizes.
    pub fn figures(&self) -> Value {
        let mut figures = json!({ "row": self.family });
        merge(&mut figures, self.sizes.clone());
        figures
    }

    /// Our side.
    ///
    /// # Errors
    /// A model that cannot be read, or a bug of the builder or the device.
    pub fn own(&self, setup: &Setup) -> anyhow::Result<Own> {
        (self.build)(setup)
    }
}

fn noise(seed: u64, num: usize) -> Vec<f32> {
    WeightSource::Seeded { seed, bound: 1.0 }.to_f32(num)
}

/// Weights in the order of their declaration.
fn weights(program: &Program) -> Vec<Named> {
    let weights = program.weights.iter();
    let named = weights.map(|w| Named {
        name: w.name.clone(),
        dims: w.ty.fixed_dims().to_vec(),
        data: w.source.to_f32(w.ty.row_elems()),
    });
    named.collect()
}

/// Seeded inputs of `batch` requests: of `len` positions, or of one sample if that is 0. Floats lie
/// in -1 to 1, ids below their bound.
fn requests(program: &Program, batch: usize, len: usize) -> Vec<Vec<Tensor>> {
    let mut requests = vec![Vec::new(); batch];
    for (i, input) in program.inputs.iter().enumerate() {
        let mut dims = vec![len.max(1)];
        dims.extend(input.ty.fixed_dims());
        let each: usize = dims.iter().product();
        let data = noise(100 + i as u64, batch * each);
        let bound = input.id_bound.unwrap_or(2);
        for (request, data) in requests.iter_mut().zip(data.chunks(each)) {
            request.push(match input.ty.dtype {
                DType::F32 => Tensor::from_f32(&dims, data),
                _ => {
                    let id = |x: &f32| ((x + 1.0) / 2.0 * bound as f32) as usize;
                    let ids = data.iter().map(|x| id(x).min(bound - 1) as i32);
                    Tensor::from_i32(&dims, &ids.collect::<Vec<_>>())
                }
            });
        }
    }
    requests
}

/// The inputs of all requests, `[requests, ...]`; sequences end in zeros behind their own end, as
/// long as the longest.
fn inputs(program: &Program, requests: &[Vec<Tensor>]) -> Vec<Named> {
    let named = program.inputs.iter().enumerate().map(|(i, input)| {
        let row: usize = input.ty.fixed_dims().iter().product();
        let leads = requests.iter().map(|r| r[i].dims[0]);
        let longest = leads.max().unwrap_or(0);
        let mut dims = vec![requests.len()];
        if program.length_input.is_some() {
            dims.push(longest);
        }
        dims.extend(input.ty.fixed_dims());
        let mut data = Vec::new();
        for request in requests {
            let end = data.len() + longest * row;
            data.extend(match input.ty.dtype {
                DType::F32 => request[i].to_f32(),
                _ => request[i].to_i32().iter().map(|&id| id as f32).collect(),
            });
            data.resize(end, 0.0);
        }
        let name = format!("input.{}", input.name);
        Named { name, dims, data }
    });
    named.collect()
}

impl Own {
    /// `requests` through `program`; the peer gets their inputs and `weights`.
    fn program(
        program: SharedProgram,
        requests: Vec<Vec<Tensor>>,
        mut weights: Vec<Named>,
        setup: &Setup,
        timed: Option<usize>,
    ) -> anyhow::Result<Self> {
        weights.extend(inputs(&program, &requests));
        let options = CpuOptions {
            threads: setup.threads,
            ..CpuOptions::default()
        };
        let batch = Box::new(Lockstep::new(program, requests, options)?);
        Ok(Self {
            side: Side::Program { batch, timed },
            tensors: weights,
            told: json!({}),
            facts: json!({}),
        })
    }

    /// Nanoseconds of one call.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn call_ns(&mut self) -> anyhow::Result<f64> {
        match &mut self.side {
            Side::Product { product, m } => Ok(clock::time(|| product.run(*m)).0),
            Side::Program { batch, timed: None } => {
                let (ns, outputs) = clock::time(|| batch.run());
                outputs.map(|_| ns)
            }
            Side::Program {
                batch,
                timed: Some(block),
            } => {
                batch.open()?;
                for before in 0..*block {
                    batch.run_block(before)?;
                }
                // Launches follow each other, as they do under load; the first wakes the threads.
                // A cache grows by a row with each, so the others have no less to do than the peer.
                batch.run_block(*block)?;
                let (ns, done) =
                    clock::time(|| (0..LAUNCHES).try_for_each(|_| batch.run_block(*block)));
                batch.close();
                done.map(|()| ns / LAUNCHES as f64)
            }
        }
    }

    /// The first output of all requests, one after another.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn output(&mut self) -> anyhow::Result<Vec<f32>> {
        match &mut self.side {
            Side::Product { product, m } => {
                product.run(*m);
                Ok(product.result(*m).to_vec())
            }
            Side::Program { batch, .. } => {
                let mut all = Vec::new();
                for outputs in batch.run()? {
                    let first = outputs.into_iter().next().flatten();
                    all.extend(first.context("an output")?.to_f32());
                }
                Ok(all)
            }
        }
    }

    /// The program with its requests, if it is one.
    pub fn batch(&mut self) -> Option<&mut Lockstep> {
        match &mut self.side {
            Side::Program { batch, .. } => Some(batch),
            Side::Product { .. } => None,
        }
    }

    /// The most multiply-adds per second times two, of a matrix product's device; else nothing.
    pub fn peak_flops(&mut self) -> Option<f64> {
        let Side::Product { product, .. } = &mut self.side else {
            return None;
        };
        let (ns, ()) = clock::time(|| product.run_peak());
        Some(product.peak_flops() / ns)
    }
}

#[cfg(test)]
mod tests;
