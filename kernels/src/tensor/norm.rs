//! Normalization by mean and variance or by a norm.

use lazybatch_graph::onnx::{Array, Elem, Error};

use super::index::{around, expand};
use super::reduce::grouped;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("BatchNormalization", &[7, 9, 14, 15], FLOATS, batch_norm),
    op("GroupNormalization", &[18, 21], FLOATS, group_norm),
    op("InstanceNormalization", &[6, 22], FLOATS, instance_norm),
    op("LRN", &[1, 13], FLOATS, lrn),
    op("LayerNormalization", &[17], FLOATS, layer_norm),
    op("LpNormalization", &[1, 22], FLOATS, lp_norm),
    op("MeanVarianceNormalization", &[9, 13], FLOATS, mean_variance),
];

/// Mean and variance of `v`.
fn moments(v: &[f64]) -> (f64, f64) {
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    let variance = v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / v.len() as f64;
    (mean, variance)
}

/// Operand `i` as one number for each of `num` channels.
fn per_channel(call: &Call, i: usize, num: usize) -> Result<Vec<f64>, Error> {
    let x = call.x(i)?;
    call.expect_dims(i, x, &[num])?;
    Ok(x.data().to_f64())
}

/// Channels of `x: [n, c, ...]` and elements of one image of one channel.
fn channels(call: &Call) -> Result<(usize, usize), Error> {
    let x = call.at_least(0, 2)?;
    Ok((x.dims()[1], x.dims()[2..].iter().product()))
}

fn batch_norm(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (c, plane) = channels(call)?;
    if call.opset < 9 && !call.flag("spatial", true)? {
        return Err(call.bad("attribute \"spatial\"", "1", 0));
    }
    let epsilon = call.float("epsilon", 1e-5)?;
    let (scale, bias) = (per_channel(call, 1, c)?, per_channel(call, 2, c)?);
    let (mut mean, mut var) = (per_channel(call, 3, c)?, per_channel(call, 4, c)?);
    let v = x.data().to_f64();
    let mut running = Vec::new();
    if call.flag("training_mode", false)? {
        let momentum = call.float("momentum", 0.9)?;
        let (moved, _, size) = grouped(x, &axes_but(x.rank(), 1));
        let by_channel = moved.data().to_f64();
        let (old_mean, old_var) = (mean, var);
        (mean, var) = (0..c)
            .map(|i| moments(&by_channel[i * size..(i + 1) * size]))
            .unzip();
        for (i, old, new) in [(3, old_mean, &mean), (4, old_var, &var)] {
            let kept = old
                .iter()
                .zip(new)
                .map(|(o, n)| o * momentum + n * (1.0 - momentum));
            running.push(Array::from_f64(call.x(i)?.elem(), vec![c], kept.collect()));
        }
    }
    let y = v.iter().enumerate().map(|(i, v)| {
        let c = i / plane % c;
        scale[c] * (v - mean[c]) / (var[c] + epsilon).sqrt() + bias[c]
    });
    let mut outputs = vec![Array::from_f64(x.elem(), x.dims().to_vec(), y.collect())];
    outputs.extend(running);
    Ok(outputs)
}

fn axes_but(rank: usize, axis: usize) -> Vec<usize> {
    (0..rank).filter(|&i| i != axis).collect()
}

fn instance_norm(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (c, plane) = channels(call)?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let (scale, bias) = (per_channel(call, 1, c)?, per_channel(call, 2, c)?);
    let mut y = x.data().to_f64();
    for (i, image) in y.chunks_mut(plane.max(1)).enumerate() {
        standardize(image, epsilon, |_| (scale[i % c], bias[i % c]));
    }
    Ok(vec![Array::from_f64(x.elem(), x.dims().to_vec(), y)])
}

/// Takes mean and deviation out of `v`, then scales and shifts by `affine(position)`.
fn standardize(v: &mut [f64], epsilon: f64, affine: impl Fn(usize) -> (f64, f64)) -> (f64, f64) {
    let (mean, variance) = moments(v);
    let inverse = 1.0 / (variance + epsilon).sqrt();
    for (i, x) in v.iter_mut().enumerate() {
        let (scale, bias) = affine(i);
        *x = (*x - mean) * inverse * scale + bias;
    }
    (mean, inverse)
}

fn group_norm(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (c, plane) = channels(call)?;
    let groups = call.size("num_groups", 0, 1)?;
    if c % groups != 0 {
        let expected = format!("a divisor of {c}");
        return Err(call.bad("attribute \"num_groups\"", expected, groups));
    }
    let epsilon = call.float("epsilon", 1e-5)?;
    let num = if call.opset < 21 { groups } else { c };
    let (scale, bias) = (per_channel(call, 1, num)?, per_channel(call, 2, num)?);
    let per = c / groups;
    let mut y = x.data().to_f64();
    for (i, part) in y.chunks_mut((per * plane).max(1)).enumerate() {
        let group = i % groups;
        standardize(part, epsilon, |at| {
            let at = if num == groups {
                group
            } else {
                group * per + at / plane
            };
            (scale[at], bias[at])
        });
    }
    Ok(vec![Array::from_f64(x.elem(), x.dims().to_vec(), y)])
}

fn layer_norm(call: &Call) -> Outputs {
    let x = call.at_least(0, 1)?;
    let axis = call.axis(-1, x.rank())?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let stash = call.int("stash_type", 1)?;
    let stash = Elem::from_code(stash)
        .filter(|elem| elem.is_float())
        .ok_or_else(|| call.bad("attribute \"stash_type\"", "a type of floats", stash))?;
    let normal = &x.dims()[axis..];
    let size: usize = normal.iter().product();
    let fitted = |i: usize| -> Result<Option<Vec<f64>>, Error> {
        let Some(p) = call.opt(i) else {
            return Ok(None);
        };
        if super::index::broadcast(&[p.dims(), normal]).as_deref() != Some(normal) {
            let expected = format!("dimensions that broadcast to {normal:?}");
            return Err(call.bad(format!("input {i}"), expected, p));
        }
        Ok(Some(expand(p, normal).to_f64()))
    };
    let (scale, bias) = (fitted(1)?, fitted(2)?);
    let mut y = x.data().to_f64();
    let (mut means, mut inverses) = (Vec::new(), Vec::new());
    for row in y.chunks_mut(size.max(1)) {
        let (mean, inverse) = standardize(row, epsilon, |i| {
            let of = |v: &Option<Vec<f64>>, none| v.as_ref().map_or(none, |v| v[i]);
            (of(&scale, 1.0), of(&bias, 0.0))
        });
        means.push(mean);
        inverses.push(inverse);
    }
    let mut dims = x.dims()[..axis].to_vec();
    if means.len() != dims.iter().product::<usize>() {
        return Err(call.bad("input 0", "elements to normalize", x));
    }
    dims.resize(x.rank(), 1);
    Ok(vec![
        Array::from_f64(x.elem(), x.dims().to_vec(), y),
        Array::from_f64(stash, dims.clone(), means),
        Array::from_f64(stash, dims, inverses),
    ])
}

fn lrn(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (c, plane) = channels(call)?;
    let (alpha, beta) = (call.float("alpha", 1e-4)?, call.float("beta", 0.75)?);
    let bias = call.float("bias", 1.0)?;
    let size = call.size("size", 0, 1)?;
    call.work(&[x.len().max(1), size.min(c.max(1))])?;
    let v = x.data().to_f64();
    let y = v.iter().enumerate().map(|(i, value)| {
        let (channel, base) = (i / plane % c, i / plane / c * c * plane + i % plane);
        let first = channel.saturating_sub((size - 1) / 2);
        let last = (channel + size / 2).min(c - 1);
        let squares: f64 = (first..=last).map(|k| v[base + k * plane].powi(2)).sum();
        value / (bias + alpha / size as f64 * squares).powf(beta)
    });
    Ok(vec![Array::from_f64(
        x.elem(),
        x.dims().to_vec(),
        y.collect(),
    )])
}

fn lp_norm(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (outer, n, inner) = around(x.dims(), call.axis(-1, x.rank())?);
    let p = call.int("p", 2)?;
    let mut y = x.data().to_f64();
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let at = |k: usize| (o * n + k) * inner + i;
        let norm: f64 = match p {
            1 => (0..n).map(|k| y[at(k)].abs()).sum(),
            2 => (0..n).map(|k| y[at(k)].powi(2)).sum::<f64>().sqrt(),
            other => return Err(call.bad("attribute \"p\"", "1 or 2", other)),
        };
        for k in 0..n {
            y[at(k)] = if norm == 0.0 { 0.0 } else { y[at(k)] / norm };
        }
    }
    Ok(vec![Array::from_f64(x.elem(), x.dims().to_vec(), y)])
}

fn mean_variance(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axes = call.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = call.axes_of(&axes, x.rank())?;
    let (moved, _, size) = grouped(x, &axes);
    let mut order: Vec<usize> = (0..x.rank()).filter(|i| !axes.contains(i)).collect();
    order.extend((0..x.rank()).filter(|i| axes.contains(i)));
    let mut back = vec![0; x.rank()];
    for (to, &from) in order.iter().enumerate() {
        back[from] = to;
    }
    let mut v = moved.data().to_f64();
    for group in v.chunks_mut(size.max(1)) {
        let (mean, variance) = moments(group);
        for x in group {
            *x = (*x - mean) / (variance.sqrt() + 1e-9);
        }
    }
    let y = Array::from_f64(x.elem(), moved.dims().to_vec(), v);
    Ok(vec![super::index::transpose(&y, &back)])
}
