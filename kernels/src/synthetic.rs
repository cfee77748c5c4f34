//! Random inputs that a program accepts, for tests and profiling.

use lazybatch_graph::{DType, InputDecl, Program, Sampling, Tensor};
use rand::Rng;

use crate::validate::is_sequence;

/// One tensor per declared input: a sequence of `len` positions, or `samples` samples. Floats are
/// uniform in `[-1, 1)`, ids uniform below their bound (below 2 without one). Half of the requests
/// that may sample do.
pub fn random_inputs(
    program: &Program,
    len: usize,
    samples: usize,
    rng: &mut impl Rng,
) -> Vec<Tensor> {
    program
        .inputs
        .iter()
        .map(|decl| random_input(decl, len, samples, rng))
        .collect()
}

fn random_input(decl: &InputDecl, len: usize, samples: usize, rng: &mut impl Rng) -> Tensor {
    let lead = if is_sequence(decl) { len } else { samples };
    let dims: Vec<usize> = std::iter::once(lead).chain(decl.ty.fixed_dims()).collect();
    let num: usize = dims.iter().product();
    if decl.is_sampling {
        let rows: Vec<Sampling> = (0..lead).map(|_| random_sampling(rng)).collect();
        return Sampling::tensor(&rows);
    }
    let bound = decl.id_bound.unwrap_or(2).max(1) as i32;
    match decl.ty.dtype {
        DType::I8 | DType::I32 | DType::I64 => {
            let ids: Vec<i32> = (0..num).map(|_| rng.random_range(0..bound)).collect();
            match decl.ty.dtype {
                DType::I64 => {
                    let bytes = ids
                        .iter()
                        .flat_map(|&i| i64::from(i).to_le_bytes())
                        .collect();
                    Tensor::from_bytes(DType::I64, dims, bytes).expect("one element per id")
                }
                _ => Tensor::from_i32(&dims, &ids),
            }
        }
        _ => {
            let data: Vec<f32> = (0..num).map(|_| rng.random_range(-1.0..1.0)).collect();
            Tensor::from_f32(&dims, &data)
        }
    }
}

fn random_sampling(rng: &mut impl Rng) -> Sampling {
    if rng.random() {
        return Sampling::default();
    }
    Sampling {
        temperature: rng.random_range(0.1..2.0),
        top_k: rng.random_range(0..12),
        seed: rng.random(),
    }
}
