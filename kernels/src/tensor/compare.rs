//! Comparisons, logic and choice.

use lazybatch_graph::onnx::{Array, Data};

use super::index::spread;
use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

const BOOL: Types = Types::BOOL;
const NUMBERS: Types = Types::NUMBERS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("And", &[7], BOOL, |c| {
        compare(c, |_, _| false, |a, b| a & b != 0)
    }),
    op("Equal", &[7, 11, 13, 19], Types::ALL, |c| {
        compare(c, |a, b| a == b, |a, b| a == b)
    }),
    op("Greater", &[7, 9, 13], NUMBERS, |c| {
        compare(c, |a, b| a > b, |a, b| a > b)
    }),
    op("GreaterOrEqual", &[12, 16], NUMBERS, |c| {
        compare(c, |a, b| a >= b, |a, b| a >= b)
    }),
    op("Less", &[7, 9, 13], NUMBERS, |c| {
        compare(c, |a, b| a < b, |a, b| a < b)
    }),
    op("LessOrEqual", &[12, 16], NUMBERS, |c| {
        compare(c, |a, b| a <= b, |a, b| a <= b)
    }),
    op("Or", &[7], BOOL, |c| {
        compare(c, |_, _| false, |a, b| a | b != 0)
    }),
    op("Where", &[9, 16], BOOL, where_),
    op("Xor", &[7], BOOL, |c| {
        compare(c, |_, _| false, |a, b| a != b)
    }),
];

fn compare(call: &Call, f: impl Fn(f64, f64) -> bool, g: impl Fn(i128, i128) -> bool) -> Outputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    call.expect_elem(1, b, a.elem())?;
    let dims = call.broadcast(&[a.dims(), b.dims()])?;
    let (i, j) = (spread(a.dims(), &dims), spread(b.dims(), &dims));
    let pairs = i.into_iter().zip(j);
    let y = match (Wide::of(a), Wide::of(b)) {
        (Wide::F(a), Wide::F(b)) => pairs.map(|(i, j)| f(a[i], b[j])).collect(),
        (Wide::I(a), Wide::I(b)) => pairs.map(|(i, j)| g(a[i], b[j])).collect(),
        _ => return Err(call.bad("inputs", "one element type", format!("{a} and {b}"))),
    };
    Ok(vec![Array::new(dims, Data::Bool(y))])
}

fn where_(call: &Call) -> Outputs {
    let (cond, a, b) = (call.x(0)?, call.x(1)?, call.x(2)?);
    call.expect_elem(2, b, a.elem())?;
    let dims = call.broadcast(&[cond.dims(), a.dims(), b.dims()])?;
    let (i, j) = (spread(a.dims(), &dims), spread(b.dims(), &dims));
    let chosen = cond.data().to_i128();
    let mut both = a.data().clone();
    both.append(b.data());
    let from: Vec<usize> = spread(cond.dims(), &dims)
        .into_iter()
        .zip(i.into_iter().zip(j))
        .map(|(c, (i, j))| if chosen[c] != 0 { i } else { a.len() + j })
        .collect();
    Ok(vec![Array::new(dims, both.take(&from))])
}
