//! Folds an inference-time batch normalisation into the weights of the convolution in front of it.
//!
//! With `s = gamma / sqrt(var + eps)`: `w' = s w` and `bias' = s (bias - mean) + beta`, computed in
//! f32. Weights are generated for it, but where `s` is the same for all channels a synthetic weight
//! stays synthetic with another bound, so that an untrained model costs nothing until it is loaded.

use super::edit::{add_weight, producer, remove, rewrite, use_counts};
use crate::dtype::DType;
use crate::ids::{NodeId, ValueId};
use crate::op::Op;
use crate::program::{Node, Program};
use crate::shape::TensorType;
use crate::tensor::{Tensor, WeightSource};

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    let counts = use_counts(program);
    let order: Vec<NodeId> = program
        .blocks
        .iter()
        .flat_map(|b| b.nodes.clone())
        .collect();
    let mut absorbed = vec![false; program.nodes.len()];
    for id in order {
        let norm = program.node(id).clone();
        let Op::BatchNorm { eps } = norm.op else {
            continue;
        };
        let x = norm.inputs[0];
        let Some((conv_id, conv)) = producer(program, x) else {
            continue;
        };
        let Op::Conv2d {
            window,
            groups,
            residual: false,
            act: None,
            ..
        } = conv.op
        else {
            continue;
        };
        if counts[x.index()] != 1 {
            continue;
        }
        let conv = conv.clone();
        let Some([w, b]) = folded(program, &conv, &norm, eps) else {
            continue;
        };
        let dims = program.value(conv.inputs[1]).ty.fixed_dims();
        let mut add = |part: &str, dims: &[usize], source| {
            let name = format!("{}.folded.{part}", conv.name);
            add_weight(program, &name, TensorType::fixed(DType::F32, dims), source)
        };
        let w = add("weight", &dims, w);
        let b = add("bias", &dims[..1], b);
        let op = Op::Conv2d {
            window,
            groups,
            bias: true,
            residual: false,
            act: None,
        };
        rewrite(program, id, conv.name, op, &[conv.inputs[0], w, b]);
        absorbed[conv_id.index()] = true;
    }
    remove(program, &absorbed);
}

/// The folded weight and bias.
fn folded(program: &Program, conv: &Node, norm: &Node, eps: f32) -> Option<[WeightSource; 2]> {
    let source = |v: ValueId| program.as_weight(v).map(|w| &program.weight(w).source);
    let old = source(conv.inputs[1])?;
    let parts = [1, 2, 3, 4].map(|i| source(norm.inputs[i]));
    let [Some(gamma), Some(beta), Some(mean), Some(var)] = parts else {
        return None;
    };
    // A bias that is no weight stays where it is, and so does the norm.
    let bias = match conv.inputs.get(2) {
        None => None,
        Some(&b) => Some(source(b)?),
    };
    let scale = |gamma: f32, var: f32| gamma / (var + eps).sqrt();
    if let (
        WeightSource::Seeded { seed, bound },
        WeightSource::Constant(gamma),
        WeightSource::Constant(beta),
        WeightSource::Constant(mean),
        WeightSource::Constant(var),
        None,
    ) = (old, gamma, beta, mean, var, bias)
    {
        let s = scale(*gamma, *var);
        let weight = WeightSource::Seeded {
            seed: *seed,
            bound: bound * s,
        };
        return Some([weight, WeightSource::Constant(beta - s * mean)]);
    }
    let dims = program.value(conv.inputs[1]).ty.fixed_dims();
    let channels = dims[0];
    let [gamma, beta, mean, var] = [gamma, beta, mean, var].map(|p| p.to_f32(channels));
    let bias = bias.map_or_else(|| vec![0.0; channels], |b| b.to_f32(channels));
    let mut weight = old.to_f32(dims.iter().product());
    let per_channel = weight.len() / channels;
    let mut shift = Vec::with_capacity(channels);
    for c in 0..channels {
        let s = scale(gamma[c], var[c]);
        weight[c * per_channel..(c + 1) * per_channel]
            .iter_mut()
            .for_each(|w| *w *= s);
        shift.push(s * (bias[c] - mean[c]) + beta[c]);
    }
    let data = |dims: &[usize], data: &[f32]| WeightSource::Data(Tensor::from_f32(dims, data));
    Some([data(&dims, &weight), data(&[channels], &shift)])
}
