//! Shapes, views of other dimensions, and constants.

use lazybatch_graph::onnx::{Array, Attr, Data, Elem, Error, NONE, Refused};

use super::index::expand;
use super::{Call, OpEntry, Outputs, Types, op};

const ALL: Types = Types::ALL;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op(
        "Constant",
        &[1, 9, 11, 12, 13, 19, 21, 23, 24, 25],
        ALL,
        constant,
    ),
    op(
        "ConstantOfShape",
        &[9, 20, 21, 23, 24, 25],
        Types::I64,
        constant_of_shape,
    ),
    op("Dropout", &[7, 10, 12, 13, 22], Types::FLOATS, dropout),
    op("Expand", &[8, 13], ALL, expand_to),
    op("EyeLike", &[9, 22], ALL, eye_like),
    op("Flatten", &[1, 9, 11, 13, 21, 23, 24, 25], ALL, flatten),
    op("Identity", &[1, 13, 14, 16, 19, 21, 23, 24, 25], ALL, |c| {
        Ok(vec![c.x(0)?.clone()])
    }),
    op("Range", &[11], Types::NUMBERS, range),
    op("Reshape", &[5, 13, 14, 19, 21, 23, 24, 25], ALL, reshape),
    op("Shape", &[1, 13, 15, 19, 21, 23, 24, 25], ALL, shape),
    op("Size", &[1, 13, 19, 21, 23, 24, 25], ALL, |c| {
        Ok(vec![Array::scalar(Data::I64(vec![c.x(0)?.len() as i64]))])
    }),
    op("Squeeze", &[1, 11, 13, 21, 23, 24, 25], ALL, squeeze),
    op("Unsqueeze", &[1, 11, 13, 21, 23, 24, 25], ALL, unsqueeze),
];

fn constant(call: &Call) -> Outputs {
    let value = match call.node.attrs.iter().next() {
        Some((_, Attr::Tensor(t))) => t.clone(),
        Some((_, Attr::Int(v))) => Array::scalar(Data::I64(vec![*v])),
        Some((_, Attr::Ints(v))) => Array::vector(v.clone()),
        Some((_, Attr::Float(v))) => Array::scalar(Data::F32(vec![*v])),
        Some((_, Attr::Floats(v))) => Array::new(vec![v.len()], Data::F32(v.clone())),
        Some((name, other)) => {
            let what = format!("attribute {name:?}");
            return Err(call.bad(what, "a numeric value", other.kind()));
        }
        None => return Err(call.bad("attributes", "a value", "none")),
    };
    Ok(vec![value])
}

fn constant_of_shape(call: &Call) -> Outputs {
    let dims = call.sizes("input 0", &call.int_vec(0)?)?;
    let num = call.num(&dims)?;
    let data = match call.attr("value") {
        None => Data::zeros(Elem::F32, num),
        Some(Attr::Tensor(t)) if t.len() == 1 => t.data().take(&vec![0; num]),
        Some(other) => return Err(call.bad("attribute \"value\"", "one element", other.kind())),
    };
    Ok(vec![Array::new(dims, data)])
}

/// Passes its input on; training with a ratio is random and not supported.
fn dropout(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let training = match call.opt(2) {
        Some(_) => call.int_scalar(2)? != 0,
        None => false,
    };
    if training {
        let ratio = match call.opt(1) {
            Some(_) => call.scalar(1)?,
            None => 0.5,
        };
        if ratio != 0.0 {
            return Err(Error::Unsupported {
                nodes: vec![Refused {
                    node: call.node.name.clone(),
                    op: call.node.op.clone(),
                    why: format!(
                        "training mode drops elements at random (training_mode is true, the ratio \
                         {ratio})"
                    ),
                }],
            });
        }
    }
    let mask = if call.opset < 10 {
        Array::new(x.dims().to_vec(), Data::zeros(x.elem(), x.len()))
    } else {
        Array::new(x.dims().to_vec(), Data::Bool(vec![true; x.len()]))
    };
    Ok(vec![x.clone(), mask])
}

fn expand_to(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let wanted = call.sizes("input 1", &call.int_vec(1)?)?;
    let dims = call.broadcast(&[x.dims(), &wanted])?;
    let data = expand(x, &dims);
    Ok(vec![Array::new(dims, data)])
}

fn eye_like(call: &Call) -> Outputs {
    let x = call.ranked(0, 2)?;
    let elem = match call.attr("dtype") {
        None => x.elem(),
        Some(_) => {
            let code = call.int("dtype", 0)?;
            Elem::from_code(code)
                .ok_or_else(|| call.bad("attribute \"dtype\"", "a number or boolean type", code))?
        }
    };
    let k = call.int("k", 0)?;
    let (rows, cols) = (x.dims()[0] as i64, x.dims()[1] as i64);
    let ones = (0..rows).flat_map(|i| (0..cols).map(move |j| i128::from(j == i + k)));
    Ok(vec![Array::new(
        x.dims().to_vec(),
        Data::from_i128(elem, ones.collect()),
    )])
}

fn flatten(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let rank = x.rank() as i64;
    let axis = call.int("axis", 1)?;
    let at = if axis < 0 { axis + rank } else { axis };
    if !(0..=rank).contains(&at) {
        return Err(call.bad("attribute \"axis\"", format!("-{rank} to {rank}"), axis));
    }
    let (lead, rest) = x.dims().split_at(at as usize);
    Ok(vec![x.reshaped(vec![
        lead.iter().product(),
        rest.iter().product(),
    ])])
}

fn range(call: &Call) -> Outputs {
    let elem = call.x(0)?.elem();
    let (start, limit, delta) = (call.scalar(0)?, call.scalar(1)?, call.scalar(2)?);
    let num = ((limit - start) / delta).ceil();
    if num.is_nan() || delta == 0.0 {
        return Err(call.bad("input 2", "a step that is not zero", delta));
    }
    let num = call.num(&[num.max(0.0) as usize])?;
    let y = (0..num).map(|i| start + i as f64 * delta).collect();
    Ok(vec![Array::from_f64(elem, vec![num], y)])
}

fn reshape(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let wanted = call.int_vec(1)?;
    let keep_zero = call.flag("allowzero", false)?;
    let bad = || {
        call.bad(
            "input 1",
            format!("dimensions for {x}"),
            format!("{wanted:?}"),
        )
    };
    let mut dims = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (i, &n) in wanted.iter().enumerate() {
        dims.push(match n {
            0 if !keep_zero => *x.dims().get(i).ok_or_else(bad)?,
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            n => usize::try_from(n).map_err(|_| bad())?,
        });
    }
    let known = call.num(&dims)?;
    if let Some(i) = open {
        dims[i] = x.len().checked_div(known).ok_or_else(bad)?;
    }
    if call.num(&dims)? != x.len() {
        return Err(bad());
    }
    Ok(vec![x.reshaped(dims)])
}

fn shape(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let rank = x.rank() as i64;
    let bound = |name: &str, default: i64| -> Result<usize, Error> {
        let v = call.int(name, default)?;
        let v = if v < 0 { v + rank } else { v };
        Ok(v.clamp(0, rank) as usize)
    };
    let (start, end) = (bound("start", 0)?, bound("end", rank)?);
    let dims = &x.dims()[start..end.max(start)];
    Ok(vec![Array::vector(
        dims.iter().map(|&n| n as i64).collect(),
    )])
}

fn squeeze(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axes = match call.ints_or_input("axes", 12, 1)? {
        Some(axes) => call.axes_of(&axes, x.rank())?,
        None => (0..x.rank()).filter(|&i| x.dims()[i] == 1).collect(),
    };
    if axes.iter().any(|&i| x.dims()[i] != 1) {
        return Err(call.bad("axes", "sizes of 1", format!("{axes:?} of {x}")));
    }
    let kept = (0..x.rank()).filter(|i| !axes.contains(i));
    Ok(vec![x.reshaped(kept.map(|i| x.dims()[i]).collect())])
}

fn unsqueeze(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axes = call.ints_or_input("axes", 12, 1)?.unwrap_or_default();
    let rank = x.rank() + axes.len();
    let axes = call.axes_of(&axes, rank)?;
    let mut rest = x.dims().iter().copied();
    let dims = (0..rank).map(|i| {
        if axes.contains(&i) {
            Some(1)
        } else {
            rest.next()
        }
    });
    let dims: Vec<usize> = dims.map(|n| n.unwrap_or(NONE)).collect();
    Ok(vec![x.reshaped(dims)])
}
