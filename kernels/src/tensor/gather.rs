//! Elements picked by position.

use lazybatch_graph::onnx::{Array, Data, Error};

use super::index::{around, each_coord, strides};
use super::{Call, OpEntry, Outputs, Types, op};

const ALL: Types = Types::ALL;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Compress", &[9, 11], ALL, compress),
    op("Gather", &[1, 11, 13], ALL, gather),
    op("GatherElements", &[11, 13], ALL, gather_elements),
    op("GatherND", &[11, 12, 13], ALL, gather_nd),
    op("NonZero", &[9, 13], ALL, non_zero),
    op("OneHot", &[9, 11], Types::NUMBERS, one_hot),
];

/// Operand `i` as positions among `n`, counted from the end if negative.
pub fn positions(call: &Call, i: usize, n: usize) -> Result<Vec<usize>, Error> {
    let all = call.int_vec(i)?;
    all.into_iter().map(|at| position(call, i, at, n)).collect()
}

/// One position among `n`.
pub fn position(call: &Call, i: usize, at: i64, n: usize) -> Result<usize, Error> {
    let size = n as i64;
    if at < -size || at >= size {
        let expected = format!("indices from -{n} to {}", size - 1);
        return Err(call.bad(format!("input {i}"), expected, at));
    }
    Ok(at.rem_euclid(size) as usize)
}

fn gather(call: &Call) -> Outputs {
    let (x, at) = (call.x(0)?, call.x(1)?);
    let axis = call.axis(0, x.rank())?;
    let (outer, n, inner) = around(x.dims(), axis);
    let picked = positions(call, 1, n)?;
    let mut dims = x.dims()[..axis].to_vec();
    dims.extend(at.dims());
    dims.extend(&x.dims()[axis + 1..]);
    let mut list = Vec::with_capacity(call.num(&dims)?);
    for (o, p) in (0..outer).flat_map(|o| picked.iter().map(move |&p| (o, p))) {
        list.extend((o * n + p) * inner..(o * n + p + 1) * inner);
    }
    Ok(vec![Array::new(dims, x.data().take(&list))])
}

fn gather_elements(call: &Call) -> Outputs {
    let (x, at) = (call.x(0)?, call.x(1)?);
    let axis = call.axis(0, x.rank())?;
    let fits = |(i, &n): (usize, &usize)| i == axis || n <= x.dims()[i];
    if at.rank() != x.rank() || !at.dims().iter().enumerate().all(fits) {
        return Err(call.bad("input 1", format!("dimensions within those of {x}"), at));
    }
    let picked = positions(call, 1, x.dims()[axis])?;
    let own = strides(x.dims());
    let mut list = Vec::with_capacity(at.len());
    each_coord(at.dims(), |coord| {
        let plain: usize = coord.iter().zip(&own).map(|(c, s)| c * s).sum();
        let chosen = picked[list.len()];
        list.push(plain - coord[axis] * own[axis] + chosen * own[axis]);
    });
    Ok(vec![Array::new(at.dims().to_vec(), x.data().take(&list))])
}

fn gather_nd(call: &Call) -> Outputs {
    let (x, at) = (call.at_least(0, 1)?, call.at_least(1, 1)?);
    let batch = call.size("batch_dims", 0, 0)?;
    let (lead, depth) = (&at.dims()[..at.rank() - 1], at.dims()[at.rank() - 1]);
    let fits = batch < at.rank() && batch.saturating_add(depth) <= x.rank();
    if !fits || x.dims()[..batch] != at.dims()[..batch] {
        return Err(call.bad("input 1", format!("indices into {x}"), at));
    }
    let own = strides(x.dims());
    let mut dims = lead.to_vec();
    dims.extend(&x.dims()[batch + depth..]);
    let slice: usize = x.dims()[batch + depth..].iter().product();
    let per_batch: usize = at.dims()[batch..at.rank() - 1].iter().product();
    let batch_size: usize = x.dims()[batch..].iter().product();
    let mut list = Vec::with_capacity(call.num(&dims)?);
    let all = call.int_vec(1)?;
    let num: usize = lead.iter().product();
    for i in 0..num {
        let mut start = i / per_batch.max(1) * batch_size;
        for k in 0..depth {
            let p = position(call, 1, all[i * depth + k], x.dims()[batch + k])?;
            start += p * own[batch + k];
        }
        list.extend(start..start + slice);
    }
    Ok(vec![Array::new(dims, x.data().take(&list))])
}

fn compress(call: &Call) -> Outputs {
    let (x, cond) = (call.x(0)?, call.ranked(1, 1)?);
    let flat = x.reshaped(vec![x.len()]);
    let (x, axis) = match call.attr("axis") {
        Some(_) => (x, call.axis(0, x.rank())?),
        None => (&flat, 0),
    };
    let (outer, n, inner) = around(x.dims(), axis);
    let wanted = cond.data().to_i128();
    let picked: Vec<usize> = (0..n.min(wanted.len()))
        .filter(|&i| wanted[i] != 0)
        .collect();
    let mut dims = x.dims().to_vec();
    dims[axis] = picked.len();
    let mut list = Vec::with_capacity(call.num(&dims)?);
    for (o, p) in (0..outer).flat_map(|o| picked.iter().map(move |&p| (o, p))) {
        list.extend((o * n + p) * inner..(o * n + p + 1) * inner);
    }
    Ok(vec![Array::new(dims, x.data().take(&list))])
}

fn non_zero(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let v = x.data().to_f64();
    let mut found: Vec<Vec<i64>> = vec![Vec::new(); x.rank()];
    let mut i = 0;
    each_coord(x.dims(), |at| {
        if v[i] != 0.0 {
            for (list, &c) in found.iter_mut().zip(at) {
                list.push(c as i64);
            }
        }
        i += 1;
    });
    let num = found.first().map_or(0, Vec::len);
    Ok(vec![Array::new(
        vec![x.rank(), num],
        Data::I64(found.concat()),
    )])
}

fn one_hot(call: &Call) -> Outputs {
    let (at, values) = (call.x(0)?, call.x(2)?);
    let depth = call.scalar(1)?;
    if values.len() != 2 || depth.is_nan() || depth < 0.0 {
        let got = format!("depth {depth}, values {values}");
        return Err(call.bad("inputs", "a depth and the values off and on", got));
    }
    let n = call.num(&[depth as usize])?;
    let axis = call.axis(-1, at.rank() + 1)?;
    let mut dims = at.dims().to_vec();
    dims.insert(axis, n);
    let num = call.num(&dims)?;
    let size = n as f64;
    // Indices may be floats; those out of range give no element that is on.
    let chosen: Vec<Option<usize>> = at
        .data()
        .to_f64()
        .into_iter()
        .map(|v| (v >= -size && v < size).then(|| v.trunc().rem_euclid(size) as usize))
        .collect();
    let inner: usize = at.dims()[axis..].iter().product();
    let list: Vec<usize> = (0..num)
        .map(|i| {
            let (o, k, rest) = (i / inner / n, i / inner % n, i % inner);
            usize::from(chosen[o * inner + rest] == Some(k))
        })
        .collect();
    Ok(vec![Array::new(dims, values.data().take(&list))])
}
