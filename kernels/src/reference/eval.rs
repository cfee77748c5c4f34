//! One node for one request.

use lazybatch_graph::chain::{Step, With};
use lazybatch_graph::{At, Bin, CustomOp, Dim, Node, Op, Program, Repeat, Sampling, sampling};

use super::device::{Loaded, Request};
use super::{attention, cells, image, math};
use crate::custom::{CustomCall, CustomOperand};
use crate::error::Fault;
use crate::general::General;
use crate::validate::{is_sequence, passes};

/// A node's results, and whether the request's loop ended.
type Done = (Vec<Vec<f64>>, bool);

/// Fixed dims of operand `i`.
pub(super) fn dims(program: &Program, node: &Node, i: usize) -> Vec<usize> {
    program.value(node.inputs[i]).ty.fixed_dims().to_vec()
}

/// `x [m, k]` times `w [k, n]`.
pub(super) fn matmul(x: &[f64], w: &[f64], k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; x.len() / k * n];
    for (x, to) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (x, w) in x.iter().zip(w.chunks_exact(n)) {
            to.iter_mut().zip(w).for_each(|(t, w)| *t += x * w);
        }
    }
    out
}

/// Softmax of a row.
pub(super) fn softmax(row: &mut [f64]) {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|v| *v = (*v - top).exp());
    let total: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v /= total);
}

fn norm(x: &[f64], gamma: &[f64], beta: &[f64], eps: f32) -> Vec<f64> {
    let d = gamma.len();
    let rows = x.chunks_exact(d).flat_map(|row| {
        let mean = row.iter().sum::<f64>() / d as f64;
        let var = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / d as f64;
        let std = (var + f64::from(eps)).sqrt();
        (0..d)
            .map(move |i| (row[i] - mean) / std * gamma[i] + beta[i])
            .collect::<Vec<_>>()
    });
    rows.collect()
}

fn binary(op: Bin, a: f64, b: f64) -> f64 {
    match op {
        Bin::Add => a + b,
        Bin::Sub => a - b,
        Bin::Mul => a * b,
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    let n = y.len();
    x.iter_mut().enumerate().for_each(|(i, v)| *v += y[i % n]);
}

/// Position that a pass touches.
fn touched(repeat: Repeat, at: At, step: usize, len: usize) -> Option<usize> {
    if at == At::Reverse {
        passes(repeat, len).checked_sub(step + 1)
    } else {
        Some(step)
    }
}

/// Index of the largest element of a row, the lowest among equals.
fn arg_max(row: &[f64]) -> usize {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter().position(|&v| v == top).unwrap_or(0)
}

/// Indices of a row's elements from the first in order to the last.
fn in_order(row: &[f64], largest: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // Sorting is stable, so equals stay in order of their indices.
    order.sort_by(|&a, &b| match (row[a].is_nan(), row[b].is_nan()) {
        (false, false) => {
            // Adding zero makes both zeros the same.
            let order = (row[a] + 0.0).total_cmp(&(row[b] + 0.0));
            if largest { order.reverse() } else { order }
        }
        (a, b) => a.cmp(&b),
    });
    order
}

/// The token of a row of scores, chosen as `how` says, with the random number `draw`.
fn sample(scores: &[f64], how: &[f64], draw: u32) -> usize {
    let best = arg_max(scores);
    let words: Vec<i32> = how.iter().map(|&w| w as i32).collect();
    let how = Sampling::of_words(&words).unwrap_or_default();
    let top = scores[best];
    if how.is_greedy() || !top.is_finite() {
        return best;
    }
    let mut chosen = in_order(scores, true);
    if how.top_k > 0 {
        chosen.truncate(how.top_k as usize);
    }
    chosen.sort_unstable();
    let weight = |i: usize| {
        let weight = ((scores[i] - top) / f64::from(how.temperature)).exp() * f64::from(1u32 << 31);
        // What is no number becomes zero.
        weight as u64
    };
    let total: u64 = chosen.iter().map(|&i| weight(i)).sum();
    let random = sampling::random(how.seed, draw);
    let mut left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    for &i in &chosen {
        if left < weight(i) {
            return i;
        }
        left -= weight(i);
    }
    unreachable!("less is left than all weights are")
}

/// Runs a node for one request.
pub(super) fn run(
    model: &Loaded,
    r: &mut Request,
    node: &Node,
    repeat: Repeat,
    step: usize,
) -> Result<Done, Fault> {
    let program = &model.program;
    match node.op {
        Op::VecWrite { .. } | Op::SeqWrite { .. } | Op::Emit { .. } | Op::Stop { .. } => {
            return effect(model, r, node, repeat, step).map(|stop| (Vec::new(), stop));
        }
        Op::LstmCell { h, c, .. } => {
            return Ok((vec![cells::lstm(model, r, node, h, c)], false));
        }
        Op::Tensor(ref op) => {
            let done = general(model, r, node, op);
            return done.map(|values| (values, false));
        }
        Op::GruCell { h, .. } => return Ok((vec![cells::gru(model, r, node, h)], false)),
        _ => {}
    }
    let x = |i: usize| model.operand(r, node.inputs[i]);
    let dims = |i: usize| dims(program, node, i);
    let last = |i: usize| dims(i).last().copied().unwrap_or(1);
    let row_elems = |i: usize| dims(i).iter().product::<usize>();
    let out_dims = || program.value(node.outputs[0]).ty.fixed_dims().to_vec();
    let position = |row: usize| if repeat.is_loop() { step } else { row };
    let out = match &node.op {
        Op::Input { input, at } => {
            let decl = program.input(*input);
            let (data, row) = (&r.inputs[input.index()], decl.ty.row_elems());
            if is_sequence(decl) && repeat.is_loop() {
                let stride = if let Repeat::PerInputStep { stride } = repeat {
                    stride
                } else {
                    1
                };
                let pos = touched(repeat, *at, step, r.len).map(|p| p * stride as usize);
                pos.and_then(|p| data.get(p * row..(p + 1) * row))
                    .map_or_else(|| vec![0.0; row], <[f64]>::to_vec)
            } else {
                data.clone()
            }
        }
        Op::Linear {
            bias,
            act,
            residual,
        } => {
            let w = dims(1);
            let mut y = matmul(x(0), x(1), w[0], w[1]);
            if *bias {
                add(&mut y, x(2));
            }
            if let Some(act) = act {
                y.iter_mut().for_each(|v| *v = math::act(*act, *v));
            }
            if *residual {
                add(&mut y, x(2 + usize::from(*bias)));
            }
            y
        }
        Op::Binary(op) => {
            let (a, b) = (x(0), x(1));
            let elems = a.iter().enumerate();
            elems
                .map(|(i, &v)| binary(*op, v, b[i % b.len()]))
                .collect()
        }
        Op::Elementwise(steps) => {
            let with = |v: f64, at: usize, with: With| match with {
                With::Itself => v,
                With::Operand(i) => x(i)[at % x(i).len()],
            };
            let apply = |v: f64, at: usize, step: &Step| match *step {
                Step::Unary(act) => math::act(act, v),
                Step::Scale(factor) => v * f64::from(factor),
                Step::Binary(op, other) => binary(op, v, with(v, at, other)),
                Step::SubFrom(other) => with(v, at, other) - v,
            };
            let elems = x(0).iter().enumerate();
            elems
                .map(|(at, &v)| steps.iter().fold(v, |v, step| apply(v, at, step)))
                .collect()
        }
        Op::Unary(act) => x(0).iter().map(|&v| math::act(*act, v)).collect(),
        Op::Scale(factor) => x(0).iter().map(|v| v * f64::from(*factor)).collect(),
        Op::LayerNorm { eps } => norm(x(0), x(1), x(2), *eps),
        Op::AddLayerNorm { eps } => {
            let mut sum = x(0).to_vec();
            add(&mut sum, x(1));
            let y = norm(&sum, x(2), x(3), *eps);
            return Ok((vec![sum, y], false));
        }
        Op::RmsNorm { eps } => {
            let gamma = x(1);
            let rows = x(0).chunks_exact(gamma.len()).flat_map(|row| {
                let square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
                let rms = (square + f64::from(*eps)).sqrt();
                row.iter()
                    .zip(gamma)
                    .map(move |(v, g)| v / rms * g)
                    .collect::<Vec<_>>()
            });
            rows.collect()
        }
        Op::Softmax => {
            let mut y = x(0).to_vec();
            y.chunks_exact_mut(last(0)).for_each(softmax);
            y
        }
        Op::Embedding => {
            let d = last(1);
            let rows = x(0).iter().map(|&id| table_row(x(1), d, id));
            rows.collect::<Result<Vec<_>, _>>()?.concat()
        }
        Op::EmbeddingBag => {
            let d = last(1);
            let bags = x(0).chunks_exact(row_elems(0)).map(|ids| {
                let mut sum = vec![0.0; d];
                for &id in ids {
                    add(&mut sum, table_row(x(1), d, id)?);
                }
                Ok(sum)
            });
            bags.collect::<Result<Vec<_>, Fault>>()?.concat()
        }
        Op::AddPosition => {
            let d = last(1);
            let mut y = x(0).to_vec();
            for (row, y) in y.chunks_exact_mut(d).enumerate() {
                add(y, &x(1)[position(row) * d..][..d]);
            }
            y
        }
        Op::Rope {
            heads,
            dim,
            theta,
            past,
        } => {
            let position = |row: usize| match past {
                Some(state) => r.sequences[state.index()].len(),
                None => position(row),
            };
            let mut y = x(0).to_vec();
            for (row, y) in y.chunks_exact_mut(heads * dim).enumerate() {
                for (at, pair) in y.chunks_exact_mut(2).enumerate() {
                    let i = at % (dim / 2);
                    let angle = position(row) as f64
                        * f64::from(*theta).powf(-2.0 * i as f64 / *dim as f64);
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * angle.cos() - b * angle.sin();
                    pair[1] = a * angle.sin() + b * angle.cos();
                }
            }
            y
        }
        Op::Attention {
            heads,
            seen,
            cap,
            bias,
        } => {
            let bias = bias.then(|| x(3));
            attention::within([x(0), x(1), x(2)], *heads, *seen, *cap, bias)
        }
        Op::StateAttention {
            heads,
            keys,
            values,
        } => attention::over_state(r, x(0), *heads, *keys, *values),
        Op::AdditiveAttention { keys, values } => {
            attention::additive(r, x(0), x(1), *keys, *values, out_dims()[0])
        }
        Op::Conv2d {
            window,
            groups,
            bias,
            residual,
            act,
        } => {
            let mut y = image::conv(x(0), &dims(0), x(1), &dims(1), window, *groups, &out_dims());
            let plane = out_dims()[1] * out_dims()[2];
            if *bias {
                let m = out_dims()[0];
                y.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v += x(2)[i / plane % m]);
            }
            if *residual {
                add(&mut y, x(2 + usize::from(*bias)));
            }
            if let Some(act) = act {
                y.iter_mut().for_each(|v| *v = math::act(*act, *v));
            }
            y
        }
        Op::BatchNorm { eps } => {
            let d = dims(0);
            let plane: usize = d[1..].iter().product();
            let (gamma, beta, mean, var) = (x(1), x(2), x(3), x(4));
            let f = |(i, v): (usize, &f64)| {
                let c = i / plane % d[0];
                (v - mean[c]) / (var[c] + f64::from(*eps)).sqrt() * gamma[c] + beta[c]
            };
            x(0).iter().enumerate().map(f).collect()
        }
        Op::Pool2d { pool, window } => image::pool(x(0), &dims(0), *pool, window, &out_dims()),
        Op::GlobalAveragePool => {
            let plane: usize = dims(0)[1..].iter().product();
            x(0).chunks_exact(plane)
                .map(|p| p.iter().sum::<f64>() / plane as f64)
                .collect()
        }
        Op::Reshape { .. } => x(0).to_vec(),
        Op::Concat => {
            let rows = x(0).len() / row_elems(0);
            let mut y = Vec::new();
            for row in 0..rows {
                for i in 0..node.inputs.len() {
                    let w = row_elems(i);
                    y.extend_from_slice(&x(i)[row * w..][..w]);
                }
            }
            y
        }
        Op::Slice { start, len } => x(0)
            .chunks_exact(row_elems(0))
            .flat_map(|r| r[*start..start + len].to_vec())
            .collect(),
        Op::Interaction => {
            let (f, d) = (dims(0)[0], dims(0)[1]);
            let mut y = Vec::new();
            for row in x(0).chunks_exact(f * d) {
                for i in 1..f {
                    for j in 0..i {
                        y.push((0..d).map(|e| row[i * d + e] * row[j * d + e]).sum());
                    }
                }
            }
            y
        }
        Op::MeanRows => {
            let d = row_elems(0);
            let mut sum = vec![0.0; d];
            x(0).chunks_exact(d).for_each(|row| add(&mut sum, row));
            sum.iter().map(|v| v / r.len as f64).collect()
        }
        Op::FirstRow => x(0)[..row_elems(0)].to_vec(),
        Op::LastRow => x(0)[(r.len - 1) * row_elems(0)..][..row_elems(0)].to_vec(),
        Op::ArgMax => x(0)
            .chunks_exact(row_elems(0))
            .map(|row| match row.first() {
                Some(v) if v.is_nan() => 0.0,
                _ => arg_max(row) as f64,
            })
            .collect(),
        Op::Sample => {
            let is_rows = program.value(node.inputs[0]).ty.lead() == Some(Dim::Rows);
            let draw = |row: usize| match repeat.is_loop() {
                true => step + 1,
                false => row * usize::from(is_rows),
            };
            let rows = x(0)
                .chunks_exact(row_elems(0))
                .zip(x(1).chunks_exact(row_elems(1)));
            rows.enumerate()
                .map(|(i, (scores, how))| sample(scores, how, draw(i) as u32) as f64)
                .collect()
        }
        Op::TopK { k, largest } => {
            let (mut values, mut ids) = (Vec::new(), Vec::new());
            for row in x(0).chunks_exact(last(0)) {
                let order = in_order(row, *largest);
                values.extend(order[..*k].iter().map(|&i| row[i]));
                ids.extend(order[..*k].iter().map(|&i| i as f64));
            }
            return Ok((vec![values, ids], false));
        }
        Op::VecRead { state } => r.vectors[state.index()].clone(),
        Op::SeqRead { state, at } => {
            let seq = &r.sequences[state.index()];
            let d: usize = out_dims().iter().product();
            let row = |p: usize| {
                seq.get(p)
                    .cloned()
                    .flatten()
                    .unwrap_or_else(|| vec![0.0; d])
            };
            match at {
                At::All if seq.len() < r.len => {
                    return Err(format!("a state of {} of {} rows", seq.len(), r.len).into());
                }
                At::All => (0..r.len).flat_map(row).collect(),
                At::End => row(seq.len().wrapping_sub(1)),
                at => touched(repeat, *at, step, r.len).map_or_else(|| vec![0.0; d], row),
            }
        }
        Op::Custom(op) => custom(model, r, node, op)?,
        other => unreachable!("{other:?} was handled above"),
    };
    Ok((vec![out], false))
}

fn effect(
    model: &Loaded,
    r: &mut Request,
    node: &Node,
    repeat: Repeat,
    step: usize,
) -> Result<bool, Fault> {
    let x = model.operand(r, node.inputs[0]).to_vec();
    let d = dims(&model.program, node, 0).iter().product::<usize>();
    match node.op {
        Op::VecWrite { state } => r.vectors[state.index()] = x,
        Op::SeqWrite { state, at } => {
            let len = r.len;
            let seq = &mut r.sequences[state.index()];
            for (i, row) in x.chunks_exact(d).enumerate() {
                let pos = match at {
                    At::All => Some(i),
                    At::End => Some(seq.len()),
                    at => touched(repeat, at, step, len),
                };
                let Some(pos) = pos else { continue };
                if seq.len() <= pos {
                    seq.resize(pos + 1, None);
                }
                seq[pos] = Some(row.to_vec());
            }
        }
        Op::Emit { output } => {
            let out = &mut r.outputs[output.index()];
            if model.program.output(output).ty.dims.contains(&Dim::Len) {
                out.get_or_insert_default().extend(x);
            } else {
                *out = Some(x);
            }
        }
        Op::Stop { token } => return Ok(x[0] as i32 == token),
        _ => {}
    }
    Ok(false)
}

/// Operands as kernels of single precision take them.
fn staged(model: &Loaded, r: &Request, node: &Node) -> Vec<Vec<f32>> {
    let stage = |&v: &lazybatch_graph::ValueId| {
        let float = model.program.value(v).ty.dtype.is_float();
        let to = |v: &f64| {
            if float {
                *v as f32
            } else {
                f32::from_bits(*v as i32 as u32)
            }
        };
        model.operand(r, v).iter().map(to).collect()
    };
    node.inputs.iter().map(stage).collect()
}

/// A general kernel, sample by sample, in single precision.
fn general(
    model: &Loaded,
    r: &Request,
    node: &Node,
    op: &lazybatch_graph::TensorOp,
) -> Result<Vec<Vec<f64>>, Fault> {
    let kernel = General::new(&node.name, op)?;
    let data = staged(model, r, node);
    let mut outs = vec![Vec::new(); node.outputs.len()];
    for sample in 0..r.samples {
        let operands: Vec<&[f32]> = node
            .inputs
            .iter()
            .zip(&data)
            .map(|(&v, data)| {
                let ty = &model.program.value(v).ty;
                match ty.lead() {
                    Some(Dim::Batch) => &data[sample * ty.row_elems()..][..ty.row_elems()],
                    _ => data.as_slice(),
                }
            })
            .collect();
        for (i, result) in kernel.run(&operands, r.len)?.into_iter().enumerate() {
            let float = model.program.value(node.outputs[i]).ty.dtype.is_float();
            outs[i].extend(result.into_iter().map(|v| {
                if float {
                    f64::from(v)
                } else {
                    f64::from(v.to_bits() as i32)
                }
            }));
        }
    }
    Ok(outs)
}

fn custom(model: &Loaded, r: &Request, node: &Node, op: &CustomOp) -> Result<Vec<f64>, Fault> {
    let kernel = model.registry.get(&op.name).ok_or("no such kernel")?;
    let data = staged(model, r, node);
    let operands: Vec<CustomOperand<'_>> = node
        .inputs
        .iter()
        .zip(&data)
        .map(|(&v, data)| CustomOperand {
            data,
            row_elems: model.program.value(v).ty.row_elems(),
            is_weight: model.program.as_weight(v).is_some(),
        })
        .collect();
    let ty = &model.program.value(node.outputs[0]).ty;
    let rows = if ty.lead() == Some(Dim::Rows) {
        r.len
    } else {
        r.samples
    };
    let mut output = vec![0.0f32; rows * ty.row_elems()];
    let offsets = [0, rows];
    kernel.run(&mut CustomCall {
        operands: &operands,
        offsets: &offsets,
        output: &mut output,
    })?;
    Ok(output.into_iter().map(f64::from).collect())
}

/// Row `id` of a table.
fn table_row(table: &[f64], d: usize, id: f64) -> Result<&[f64], Fault> {
    let rows = table.len() / d;
    let row = (0.0..rows as f64).contains(&id).then_some(id as usize * d);
    let none = || Fault::of_request(format!("id {id} in a table of {rows} rows"));
    let at = row.ok_or_else(none)?;
    Ok(&table[at..][..d])
}
