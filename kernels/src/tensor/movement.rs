//! Ops that move elements about: each lists, for every element of its result, where that comes
//! from.

use lazybatch_graph::onnx::{Array, Error, NONE};

use super::index::{around, each_coord, strides, transpose};
use super::{Call, OpEntry, Outputs, Types, op};

const ALL: Types = Types::ALL;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Concat", &[4, 11, 13], ALL, concat),
    op("DepthToSpace", &[1, 11, 13], ALL, depth_to_space),
    op("Pad", &[2, 11, 13, 18, 19, 21, 23, 24, 25], ALL, pad),
    op("ReverseSequence", &[10], ALL, reverse_sequence),
    op("Slice", &[1, 10, 11, 13], ALL, slice),
    op("SpaceToDepth", &[1, 13], ALL, space_to_depth),
    op("Split", &[2, 11, 13, 18], ALL, split),
    op("Tile", &[6, 13], ALL, tile),
    op("Transpose", &[1, 13, 21, 23, 24, 25], ALL, |c| {
        let x = c.x(0)?;
        let perm = match c.ints("perm")? {
            Some(perm) => c.axes_of(&perm, x.rank())?,
            None => (0..x.rank()).rev().collect(),
        };
        if perm.len() != x.rank() {
            let expected = format!("{} axes", x.rank());
            return Err(c.bad("attribute \"perm\"", expected, format!("{perm:?}")));
        }
        Ok(vec![transpose(x, &perm)])
    }),
    op("Trilu", &[14], ALL, trilu),
];

/// Takes, for each coordinate of `dims`, the element of `x` at `from(axis, coordinate)` per axis.
fn per_axis(
    call: &Call,
    x: &Array,
    dims: Vec<usize>,
    from: &[Vec<Option<usize>>],
) -> Result<Array, Error> {
    let own = strides(x.dims());
    let mut list = Vec::with_capacity(call.num(&dims)?);
    each_coord(&dims, |at| {
        let mut sum = Some(0);
        for (i, &c) in at.iter().enumerate() {
            sum = sum.zip(from[i][c]).map(|(s, p)| s + p * own[i]);
        }
        list.push(sum.unwrap_or(NONE));
    });
    Ok(Array::new(dims, x.data().take(&list)))
}

/// `arrays`, which are of one type, one after another along `axis`.
pub fn concat_along(call: &Call, arrays: &[&Array], axis: usize) -> Result<Array, Error> {
    let Some(first) = arrays.first() else {
        return Err(call.bad("inputs", "at least one", "none"));
    };
    let mut dims = first.dims().to_vec();
    call.work(&[around(&dims, axis).0, arrays.len()])?;
    dims[axis] = 0;
    let mut all = first.data().take(&[]);
    let mut starts = Vec::new();
    for (i, x) in arrays.iter().enumerate() {
        call.expect_elem(i, x, first.elem())?;
        let mut others = x.dims().to_vec();
        if others.len() != dims.len() {
            return Err(call.bad(
                format!("input {i}"),
                format!("{} dimensions", dims.len()),
                x,
            ));
        }
        dims[axis] += others[axis];
        others[axis] = dims[axis];
        if others != dims {
            return Err(call.bad(
                format!("input {i}"),
                format!("all but axis {axis} of {first}"),
                x,
            ));
        }
        starts.push(all.len());
        call.num(&dims)?;
        all.append(x.data());
    }
    let outer = around(&dims, axis).0;
    let mut list = Vec::with_capacity(all.len());
    for o in 0..outer {
        for (x, start) in arrays.iter().zip(&starts) {
            let part = x.len() / outer;
            list.extend(start + o * part..start + (o + 1) * part);
        }
    }
    Ok(Array::new(dims, all.take(&list)))
}

fn concat(call: &Call) -> Outputs {
    let arrays = (0..call.inputs.len())
        .map(|i| call.x(i))
        .collect::<Result<Vec<_>, _>>()?;
    let axis = call.axis(1, call.x(0)?.rank())?;
    Ok(vec![concat_along(call, &arrays, axis)?])
}

/// The block size, which divides what it has to.
fn block(call: &Call) -> Result<usize, Error> {
    let size = call.size("blocksize", 0, 1)?;
    call.work(&[size, size])?;
    Ok(size)
}

fn depth_to_space(call: &Call) -> Outputs {
    let x = call.ranked(0, 4)?;
    let b = block(call)?;
    let [n, c, h, w] = x.dims() else {
        return Err(call.bad("input 0", "4 dimensions", x));
    };
    if c % (b * b) != 0 {
        return Err(call.bad("channels", format!("a multiple of {}", b * b), c));
    }
    let deep = c / (b * b);
    let (split, perm) = match call.text("mode", "DCR")? {
        "DCR" => (vec![*n, b, b, deep, *h, *w], [0, 3, 4, 1, 5, 2]),
        "CRD" => (vec![*n, deep, b, b, *h, *w], [0, 1, 4, 2, 5, 3]),
        other => return Err(call.bad("attribute \"mode\"", "DCR or CRD", other)),
    };
    let moved = transpose(&x.reshaped(split), &perm);
    Ok(vec![moved.reshaped(vec![*n, deep, h * b, w * b])])
}

fn space_to_depth(call: &Call) -> Outputs {
    let x = call.ranked(0, 4)?;
    let b = block(call)?;
    let [n, c, h, w] = x.dims() else {
        return Err(call.bad("input 0", "4 dimensions", x));
    };
    if h % b != 0 || w % b != 0 {
        return Err(call.bad("input 0", format!("sides that are multiples of {b}"), x));
    }
    let split = x.reshaped(vec![*n, *c, h / b, b, w / b, b]);
    let moved = transpose(&split, &[0, 3, 5, 1, 2, 4]);
    let mut dims = vec![*n, *c, h / b, w / b];
    dims[1] = c.saturating_mul(b * b);
    if call.num(&dims)? != x.len() {
        return Err(call.bad("input 0", format!("blocks of {b}"), x));
    }
    Ok(vec![moved.reshaped(dims)])
}

fn pad(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let rank = x.rank();
    let pads = call.ints_or_input("pads", 10, 1)?.unwrap_or_default();
    let axes = match call.opt(3) {
        Some(_) => call.axes_of(&call.int_vec(3)?, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        let expected = format!("{} numbers", 2 * axes.len());
        return Err(call.bad("pads", expected, format!("{pads:?}")));
    }
    let mode = call.text("mode", "constant")?;
    let mut dims = x.dims().to_vec();
    let mut from: Vec<Vec<Option<usize>>> =
        dims.iter().map(|&n| (0..n).map(Some).collect()).collect();
    for (k, &axis) in axes.iter().enumerate() {
        let (n, before, after) = (x.dims()[axis] as i64, pads[k], pads[axes.len() + k]);
        let size = n + before + after;
        if size < 0 {
            return Err(call.bad(
                "pads",
                format!("sizes from 0 on of {x}"),
                format!("{pads:?}"),
            ));
        }
        dims[axis] = size as usize;
        call.num(&dims)?;
        // What a pad below zero cuts off is gone before the rest is repeated.
        let cut = (-before).max(0);
        let kept = n - cut + after.min(0);
        let place = |i: i64| -> Option<i64> {
            let p = i - before - cut;
            let p = match mode {
                "edge" => p.clamp(0, kept - 1),
                "wrap" => p.rem_euclid(kept),
                "reflect" if kept == 1 => 0,
                "reflect" => {
                    let p = p.rem_euclid(2 * (kept - 1));
                    p.min(2 * (kept - 1) - p)
                }
                _ => return (0..kept).contains(&p).then_some(p + cut),
            };
            Some(p + cut)
        };
        if !matches!(mode, "constant" | "edge" | "wrap" | "reflect") {
            return Err(call.bad("attribute \"mode\"", "a known way", mode));
        }
        if kept <= 0 && mode != "constant" && size > 0 {
            return Err(call.bad("input 0", "elements to pad with", x));
        }
        from[axis] = (0..size).map(|i| place(i).map(|p| p as usize)).collect();
    }
    // The value to pad with is one more element behind those of x.
    let mut all = x.data().clone();
    if call.opset < 11 {
        let value = vec![call.float("value", 0.0)?];
        all.append(Array::from_f64(x.elem(), vec![1], value).data());
    } else if let Some(value) = call.opt(2) {
        call.expect_elem(2, value, x.elem())?;
        if value.len() != 1 {
            return Err(call.bad("input 2", "one element", value));
        }
        all.append(value.data());
    }
    let fill = if all.len() > x.len() { x.len() } else { NONE };
    let own = strides(x.dims());
    let mut list = Vec::with_capacity(call.num(&dims)?);
    each_coord(&dims, |at| {
        let mut sum = Some(0);
        for (i, &c) in at.iter().enumerate() {
            sum = sum.zip(from[i][c]).map(|(s, p)| s + p * own[i]);
        }
        list.push(sum.unwrap_or(fill));
    });
    Ok(vec![Array::new(dims, all.take(&list))])
}

fn reverse_sequence(call: &Call) -> Outputs {
    let x = call.at_least(0, 2)?;
    let (batch, time) = (call.int("batch_axis", 1)?, call.int("time_axis", 0)?);
    let (batch, time) = (
        call.axis_of(batch, x.rank())?,
        call.axis_of(time, x.rank())?,
    );
    let lens = call.sizes("input 1", &call.int_vec(1)?)?;
    let (members, steps) = (x.dims()[batch], x.dims()[time]);
    if batch == time || lens.len() != members || lens.iter().any(|&n| n > steps) {
        let expected = format!("{members} lengths up to {steps}");
        return Err(call.bad("input 1", expected, format!("{lens:?}")));
    }
    let own = strides(x.dims());
    let mut list = Vec::with_capacity(x.len());
    each_coord(x.dims(), |at| {
        let plain: usize = at.iter().zip(&own).map(|(c, s)| c * s).sum();
        let (t, len) = (at[time], lens[at[batch]]);
        let source = if t < len { len - 1 - t } else { t };
        list.push(plain - t * own[time] + source * own[time]);
    });
    Ok(vec![Array::new(x.dims().to_vec(), x.data().take(&list))])
}

fn slice(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let rank = x.rank();
    let given = |name: &str, i: usize| call.ints_or_input(name, 9, i);
    let starts = given("starts", 1)?.unwrap_or_default();
    let ends = given("ends", 2)?.unwrap_or_default();
    let axes = match given("axes", 3)? {
        Some(axes) => call.axes_of(&axes, rank)?,
        None => (0..starts.len()).collect(),
    };
    let steps = match call.opt(4) {
        Some(_) => call.int_vec(4)?,
        None => vec![1; starts.len()],
    };
    let num = starts.len();
    let same = [ends.len(), axes.len(), steps.len()]
        .iter()
        .all(|&n| n == num);
    if !same || axes.iter().any(|&i| i >= rank) || steps.contains(&0) {
        let got = format!("{starts:?}, {ends:?}, {axes:?}, {steps:?}");
        return Err(call.bad("starts, ends, axes, steps", "one of each per axis", got));
    }
    let mut from: Vec<Vec<Option<usize>>> = x
        .dims()
        .iter()
        .map(|&n| (0..n).map(Some).collect())
        .collect();
    for k in 0..num {
        let (n, step) = (x.dims()[axes[k]] as i64, steps[k]);
        let wrap = |v: i64| if v < 0 { v + n } else { v };
        // Backwards, a start before the first element is the first. An axis without elements has none.
        let (lo, hi) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let end = wrap(ends[k]).clamp(lo, hi);
        let mut at = if n > 0 {
            wrap(starts[k]).clamp(0, hi)
        } else {
            end
        };
        let mut list = Vec::new();
        while if step > 0 { at < end } else { at > end } {
            list.push(Some(at as usize));
            at += step;
        }
        from[axes[k]] = list;
    }
    let dims = from.iter().map(Vec::len).collect();
    Ok(vec![per_axis(call, x, dims, &from)?])
}

fn split(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axis = call.axis(0, x.rank())?;
    let n = x.dims()[axis];
    let sizes = match call.ints_or_input("split", 12, 1)? {
        Some(sizes) => call.sizes("split", &sizes)?,
        None => {
            let num = call.size("num_outputs", call.node.outputs.len() as i64, 1)?;
            call.work(&[num, num])?;
            let each = n.div_ceil(num);
            (0..num)
                .map(|i| each.min(n.saturating_sub(i * each)))
                .collect()
        }
    };
    if sizes.iter().sum::<usize>() != n {
        return Err(call.bad(
            "split",
            format!("sizes that add up to {n}"),
            format!("{sizes:?}"),
        ));
    }
    // Parts list the places along all axes, also those without elements.
    let places = x
        .dims()
        .iter()
        .fold(1, |sum: usize, n| sum.saturating_add(*n));
    call.work(&[sizes.len(), places])?;
    let mut start = 0;
    let mut parts = Vec::new();
    for size in sizes {
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let mut from: Vec<Vec<Option<usize>>> = x
            .dims()
            .iter()
            .map(|&n| (0..n).map(Some).collect())
            .collect();
        from[axis] = (start..start + size).map(Some).collect();
        parts.push(per_axis(call, x, dims, &from)?);
        start += size;
    }
    Ok(parts)
}

fn tile(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let repeats = call.sizes("input 1", &call.int_vec(1)?)?;
    if repeats.len() != x.rank() {
        let expected = format!("{} numbers", x.rank());
        return Err(call.bad("input 1", expected, format!("{repeats:?}")));
    }
    let dims: Vec<usize> = x
        .dims()
        .iter()
        .zip(&repeats)
        .map(|(n, r)| n.saturating_mul(*r))
        .collect();
    call.num(&dims)?;
    let from: Vec<Vec<Option<usize>>> = x
        .dims()
        .iter()
        .zip(&dims)
        .map(|(&n, &all)| {
            if dims.contains(&0) {
                Vec::new()
            } else {
                (0..all).map(|i| Some(i % n)).collect()
            }
        })
        .collect();
    Ok(vec![per_axis(call, x, dims, &from)?])
}

fn trilu(call: &Call) -> Outputs {
    let x = call.at_least(0, 2)?;
    let upper = call.flag("upper", true)?;
    let k = match call.opt(1) {
        Some(_) => call.int_scalar(1)?,
        None => 0,
    };
    let (rows, cols) = (x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]);
    let kept = |at: usize| {
        let (i, j) = ((at / cols % rows) as i64, (at % cols) as i64);
        if upper { j >= i + k } else { j <= i + k }
    };
    let list: Vec<usize> = (0..x.len())
        .map(|at| if kept(at) { at } else { NONE })
        .collect();
    Ok(vec![Array::new(x.dims().to_vec(), x.data().take(&list))])
}
