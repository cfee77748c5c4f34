//! Losses of classifiers.

use lazybatch_graph::onnx::{Array, Error};

use super::softmax::log_softmax;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("NegativeLogLikelihoodLoss", &[12, 13, 22], FLOATS, |c| {
        let x = c.at_least(0, 2)?;
        Ok(vec![reduced(c, x, &x.data().to_f64())?])
    }),
    op("SoftmaxCrossEntropyLoss", &[12, 13], FLOATS, cross_entropy),
];

fn cross_entropy(call: &Call) -> Outputs {
    let x = call.at_least(0, 2)?;
    let (c, plane): (usize, usize) = (x.dims()[1], x.dims()[2..].iter().product());
    let mut v = x.data().to_f64();
    let mut line = vec![0.0; c];
    for (n, i) in (0..x.dims()[0]).flat_map(|n| (0..plane).map(move |i| (n, i))) {
        for (k, value) in line.iter_mut().enumerate() {
            *value = v[(n * c + k) * plane + i];
        }
        log_softmax(&mut line);
        for (k, value) in line.iter().enumerate() {
            v[(n * c + k) * plane + i] = *value;
        }
    }
    let loss = reduced(call, x, &v)?;
    let log_prob = Array::from_f64(x.elem(), x.dims().to_vec(), v);
    Ok(vec![loss, log_prob])
}

/// The loss of log probabilities `v` of dimensions `x: [n, c, ...]` at the classes of operand 1,
/// weighted by operand 2.
fn reduced(call: &Call, x: &Array, v: &[f64]) -> Result<Array, Error> {
    let (c, plane): (usize, usize) = (x.dims()[1], x.dims()[2..].iter().product());
    let mut dims = vec![x.dims()[0]];
    dims.extend(&x.dims()[2..]);
    call.expect_dims(1, call.x(1)?, &dims)?;
    let classes = call.int_vec(1)?;
    let weights = match call.opt(2) {
        Some(w) => {
            call.expect_dims(2, w, &[c])?;
            w.data().to_f64()
        }
        None => vec![1.0; c],
    };
    let ignored = match call.attr("ignore_index") {
        Some(_) => Some(call.int("ignore_index", 0)?),
        None => None,
    };
    let (mut losses, mut total) = (Vec::with_capacity(classes.len()), 0.0);
    for (i, &class) in classes.iter().enumerate() {
        if Some(class) == ignored {
            losses.push(0.0);
            continue;
        }
        let Some(at) = usize::try_from(class).ok().filter(|&at| at < c) else {
            return Err(call.bad(
                "input 1",
                format!("classes from 0 to {}", c as i64 - 1),
                class,
            ));
        };
        let (n, place) = (i / plane, i % plane);
        losses.push(-v[(n * c + at) * plane + place] * weights[at]);
        total += weights[at];
    }
    let sum: f64 = losses.iter().sum();
    match call.text("reduction", "mean")? {
        "none" => Ok(Array::from_f64(x.elem(), dims, losses)),
        "sum" => Ok(Array::from_f64(x.elem(), Vec::new(), vec![sum])),
        "mean" => Ok(Array::from_f64(x.elem(), Vec::new(), vec![sum / total])),
        other => Err(call.bad("attribute \"reduction\"", "none, sum or mean", other)),
    }
}
