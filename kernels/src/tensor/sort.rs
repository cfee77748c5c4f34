//! Ops that order elements.

use std::cmp::Ordering;

use lazybatch_graph::onnx::{Array, Data};

use super::index::{around, transpose};
use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("TopK", &[1, 10, 11, 24], Types::NUMBERS, top_k),
    op("Unique", &[11], Types::ALL, unique),
];

fn top_k(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axis = call.axis(-1, x.rank())?;
    let k = if call.opset < 10 {
        call.int("k", -1)?
    } else {
        call.int_scalar(1)?
    };
    let (outer, n, inner) = around(x.dims(), axis);
    let Some(k) = usize::try_from(k).ok().filter(|&k| k <= n) else {
        return Err(call.bad("k", format!("0 to {n}"), k));
    };
    let largest = call.flag("largest", true)?;
    let v = x.data().to_f64();
    let ints = x.data().to_i128();
    let compare = |a: usize, b: usize| {
        let order = if x.elem().is_float() {
            v[a].partial_cmp(&v[b]).unwrap_or(Ordering::Equal)
        } else {
            ints[a].cmp(&ints[b])
        };
        if largest { order.reverse() } else { order }
    };
    let mut dims = x.dims().to_vec();
    dims[axis] = k;
    let num = call.num(&dims)?;
    let (mut from, mut indices) = (vec![0; num], vec![0; num]);
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let at = |p: usize| (o * n + p) * inner + i;
        let mut line: Vec<usize> = (0..n).collect();
        // NaN breaks the order that sorting wants: it goes last.
        let (mut nan, mut rest) = (Vec::new(), Vec::new());
        for p in line.drain(..) {
            if v[at(p)].is_nan() {
                nan.push(p)
            } else {
                rest.push(p)
            }
        }
        rest.sort_by(|&a, &b| compare(at(a), at(b)).then(a.cmp(&b)));
        rest.extend(nan);
        for (rank, &p) in rest[..k].iter().enumerate() {
            let to = (o * k + rank) * inner + i;
            from[to] = at(p);
            indices[to] = p as i64;
        }
    }
    Ok(vec![
        Array::new(dims.clone(), x.data().take(&from)),
        Array::new(dims, Data::I64(indices)),
    ])
}

/// In order of size, zeros being equal whatever their sign; NaN, all of it equal, goes last.
fn nan_last(a: f64, b: f64) -> Ordering {
    let nan = || a.is_nan().cmp(&b.is_nan());
    a.partial_cmp(&b).unwrap_or_else(nan)
}

fn unique(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let sorted = call.flag("sorted", true)?;
    // Each item is one row: slices along the axis, or single elements.
    let axis = match call.attr("axis") {
        Some(_) => Some(call.axis(0, x.rank())?),
        None => None,
    };
    let mut perm: Vec<usize> = (0..x.rank()).collect();
    let items = match axis {
        Some(axis) => {
            perm.remove(axis);
            perm.insert(0, axis);
            transpose(x, &perm)
        }
        None => x.reshaped(vec![x.len()]),
    };
    let num = items.dims()[0];
    let size: usize = items.dims()[1..].iter().product();
    let v = Wide::of(&items);
    let compare = |a: usize, b: usize| {
        let (a, b) = (a * size..(a + 1) * size, b * size..(b + 1) * size);
        match &v {
            Wide::F(v) => {
                let pairs = v[a].iter().zip(&v[b]).map(|(a, b)| nan_last(*a, *b));
                pairs.fold(Ordering::Equal, Ordering::then)
            }
            Wide::I(v) => v[a].cmp(&v[b]),
        }
    };
    let mut order: Vec<usize> = (0..num).collect();
    order.sort_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
    // Groups of equal items, each by its first occurrence.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in order {
        match groups.last_mut() {
            Some(group) if compare(group[0], i) == Ordering::Equal => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if !sorted {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0; num];
    for (g, group) in groups.iter().enumerate() {
        for &i in group {
            inverse[i] = g as i64;
        }
    }
    let list: Vec<usize> = groups
        .iter()
        .flat_map(|g| g[0] * size..(g[0] + 1) * size)
        .collect();
    let mut dims = items.dims().to_vec();
    dims[0] = groups.len();
    let mut y = Array::new(dims, items.data().take(&list));
    if let Some(axis) = axis {
        let mut back: Vec<usize> = (1..x.rank()).collect();
        back.insert(axis, 0);
        y = transpose(&y, &back);
    }
    let first = groups.iter().map(|g| g[0] as i64).collect();
    let counts = groups.iter().map(|g| g.len() as i64).collect();
    Ok(vec![
        y,
        Array::vector(first),
        Array::vector(inverse),
        Array::vector(counts),
    ])
}
