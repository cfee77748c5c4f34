//! Reductions along axes, and running sums.

use std::cmp::Ordering;

use lazybatch_graph::onnx::{Array, Data, Error};

use super::binary::{max, min};
use super::index::{around, transpose};
use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

const NUMBERS: Types = Types::NUMBERS;
const ALL: Types = Types::ALL;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("ArgMax", &[1, 11, 12, 13], NUMBERS, |c| {
        arg(c, Ordering::Greater)
    }),
    op("ArgMin", &[1, 11, 12, 13], NUMBERS, |c| {
        arg(c, Ordering::Less)
    }),
    op("CumSum", &[11, 14], NUMBERS, cum_sum),
    op("ReduceL1", &[1, 11, 13, 18], NUMBERS, |c| {
        reduce(
            c,
            17,
            |v| v.iter().map(|x| x.abs()).sum(),
            |v| sum(v.iter().map(|x| x.abs())),
        )
    }),
    op("ReduceL2", &[1, 11, 13, 18], NUMBERS, |c| {
        reduce(
            c,
            17,
            |v| squares(v).sqrt(),
            |v| int_squares(v).max(0).isqrt(),
        )
    }),
    op("ReduceLogSum", &[1, 11, 13, 18], NUMBERS, |c| {
        floats(c, |v| v.iter().sum::<f64>().ln())
    }),
    op("ReduceLogSumExp", &[1, 11, 13, 18], NUMBERS, |c| {
        floats(c, log_sum_exp)
    }),
    op("ReduceMax", &[1, 11, 12, 13, 18, 20], ALL, |c| {
        let (least, _) = int_range(c)?;
        reduce(
            c,
            17,
            |v| v.iter().copied().fold(f64::NEG_INFINITY, max),
            |v| v.iter().copied().max().unwrap_or(least),
        )
    }),
    op("ReduceMean", &[1, 11, 13, 18], NUMBERS, |c| {
        reduce(
            c,
            17,
            |v| v.iter().sum::<f64>() / v.len() as f64,
            |v| {
                sum(v.iter().copied())
                    .checked_div(v.len() as i128)
                    .unwrap_or(0)
            },
        )
    }),
    op("ReduceMin", &[1, 11, 12, 13, 18, 20], ALL, |c| {
        let (_, most) = int_range(c)?;
        reduce(
            c,
            17,
            |v| v.iter().copied().fold(f64::INFINITY, min),
            |v| v.iter().copied().min().unwrap_or(most),
        )
    }),
    op("ReduceProd", &[1, 11, 13, 18], NUMBERS, |c| {
        reduce(
            c,
            17,
            |v| v.iter().product(),
            |v| v.iter().fold(1, |a, &b| a.wrapping_mul(b)),
        )
    }),
    op("ReduceSum", &[1, 11, 13], NUMBERS, |c| {
        reduce(c, 12, |v| v.iter().sum(), |v| sum(v.iter().copied()))
    }),
    op("ReduceSumSquare", &[1, 11, 13, 18], NUMBERS, |c| {
        reduce(c, 17, squares, int_squares)
    }),
];

/// The smallest and the largest value of an integer operand's type: what those of no element are.
fn int_range(call: &Call) -> Result<(i128, i128), Error> {
    Ok(call.x(0)?.elem().int_range().unwrap_or_default())
}

fn sum(v: impl Iterator<Item = i128>) -> i128 {
    v.fold(0, i128::wrapping_add)
}

fn squares(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum()
}

fn int_squares(v: &[i128]) -> i128 {
    sum(v.iter().map(|x| x.wrapping_mul(*x)))
}

/// `ln(sum(e^v))` without overflow.
pub fn log_sum_exp(v: &[f64]) -> f64 {
    let largest = v.iter().copied().fold(f64::NEG_INFINITY, max);
    if largest.is_infinite() {
        return largest;
    }
    largest + v.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// `x` with the elements that are reduced together side by side: its other axes first, their
/// sizes, and how many elements a group has.
pub fn grouped(x: &Array, axes: &[usize]) -> (Array, Vec<usize>, usize) {
    let mut perm: Vec<usize> = (0..x.rank()).filter(|i| !axes.contains(i)).collect();
    let kept = perm.iter().map(|&i| x.dims()[i]).collect();
    perm.extend((0..x.rank()).filter(|i| axes.contains(i)));
    let size = axes.iter().map(|&i| x.dims()[i]).product();
    (transpose(x, &perm), kept, size)
}

/// Axes and dimensions of the result. Axes are an attribute
/// up to opset `last`, an operand after it.
fn plan(call: &Call, last: i64) -> Result<(Vec<usize>, Vec<usize>), Error> {
    let x = call.x(0)?;
    let axes = call.ints_or_input("axes", last, 1)?.unwrap_or_default();
    let axes = if axes.is_empty() {
        if call.flag("noop_with_empty_axes", false)? {
            Vec::new()
        } else {
            (0..x.rank()).collect()
        }
    } else {
        call.axes_of(&axes, x.rank())?
    };
    let keep = call.flag("keepdims", true)?;
    Ok((axes.clone(), reduced_dims(x, &axes, keep)))
}

fn reduced_dims(x: &Array, axes: &[usize], keep: bool) -> Vec<usize> {
    let sizes = x.dims().iter().enumerate();
    sizes
        .filter(|(i, _)| keep || !axes.contains(i))
        .map(|(i, &n)| if axes.contains(&i) { 1 } else { n })
        .collect()
}

fn reduce(
    call: &Call,
    last: i64,
    f: impl Fn(&[f64]) -> f64,
    g: impl Fn(&[i128]) -> i128,
) -> Outputs {
    let x = call.x(0)?;
    let (axes, dims) = plan(call, last)?;
    let num = call.num(&dims)?;
    let (moved, _, size) = grouped(x, &axes);
    let y = match Wide::of(&moved) {
        Wide::F(v) => Wide::F((0..num).map(|i| f(&v[i * size..(i + 1) * size])).collect()),
        Wide::I(v) => Wide::I((0..num).map(|i| g(&v[i * size..(i + 1) * size])).collect()),
    };
    Ok(vec![Array::new(dims, y.into_data(x.elem()))])
}

/// A reduction that integers go through as floats.
fn floats(call: &Call, f: impl Fn(&[f64]) -> f64) -> Outputs {
    let x = call.x(0)?;
    let (axes, dims) = plan(call, 17)?;
    let num = call.num(&dims)?;
    let (moved, _, size) = grouped(x, &axes);
    let v = moved.data().to_f64();
    let y = (0..num).map(|i| f(&v[i * size..(i + 1) * size])).collect();
    Ok(vec![Array::from_f64(x.elem(), dims, y)])
}

/// Where each group has the element that compares so with all others.
fn arg(call: &Call, best: Ordering) -> Outputs {
    let x = call.x(0)?;
    let axis = call.axis(0, x.rank())?;
    let last = call.flag("select_last_index", false)?;
    let dims = reduced_dims(x, &[axis], call.flag("keepdims", true)?);
    let num = call.num(&dims)?;
    let (moved, _, size) = grouped(x, &[axis]);
    if size == 0 {
        return Err(call.bad("input 0", "elements along the axis", x));
    }
    let groups = (0..num).map(|i| i * size..(i + 1) * size);
    let y = match Wide::of(&moved) {
        Wide::F(v) => groups.map(|g| best_at(&v[g], best, last)).collect(),
        Wide::I(v) => groups.map(|g| best_at(&v[g], best, last)).collect(),
    };
    Ok(vec![Array::new(dims, Data::I64(y))])
}

/// The first or last place in a group of what compares so with what came before.
fn best_at<T: PartialOrd>(group: &[T], best: Ordering, last: bool) -> i64 {
    let mut at = 0;
    for (i, value) in group.iter().enumerate() {
        let order = value.partial_cmp(&group[at]);
        if order == Some(best) || last && order == Some(Ordering::Equal) {
            at = i;
        }
    }
    at as i64
}

fn cum_sum(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let axis = call.axis_of(call.int_scalar(1)?, x.rank())?;
    let exclusive = call.flag("exclusive", false)?;
    let reverse = call.flag("reverse", false)?;
    let (outer, n, inner) = around(x.dims(), axis);
    let line = |o: usize, i: usize| {
        (0..n).map(move |k| {
            let k = if reverse { n - 1 - k } else { k };
            (o * n + k) * inner + i
        })
    };
    let lines = || (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
    let y = match Wide::of(x) {
        Wide::F(v) => {
            let mut y = vec![0.0; v.len()];
            for (o, i) in lines() {
                let mut acc = 0.0;
                for at in line(o, i) {
                    y[at] = if exclusive { acc } else { acc + v[at] };
                    acc += v[at];
                }
            }
            Wide::F(y)
        }
        Wide::I(v) => {
            let mut y = vec![0; v.len()];
            for (o, i) in lines() {
                let mut acc = 0_i128;
                for at in line(o, i) {
                    y[at] = if exclusive {
                        acc
                    } else {
                        acc.wrapping_add(v[at])
                    };
                    acc = acc.wrapping_add(v[at]);
                }
            }
            Wide::I(y)
        }
    };
    Ok(vec![Array::new(x.dims().to_vec(), y.into_data(x.elem()))])
}
