//! Elements put at positions.

use lazybatch_graph::onnx::{Array, Data, Error};

use super::binary::{max, min};
use super::gather::{position, positions};
use super::index::{each_coord, strides};
use super::wide::Wide;
use super::{Call, OpEntry, Outputs, Types, op};

const ALL: Types = Types::ALL;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Scatter", &[9, 11], ALL, scatter_elements),
    op("ScatterElements", &[11, 13, 16, 18], ALL, scatter_elements),
    op("ScatterND", &[11, 13, 16, 18], ALL, scatter_nd),
];

/// Puts element `from` of `updates` at `to` of `x` for each `(to, from)`, in order, combined as
/// attribute `reduction` says.
fn put(call: &Call, x: &Array, updates: &Array, moves: &[(usize, usize)]) -> Result<Data, Error> {
    let reduction = call.text("reduction", "none")?;
    if reduction == "none" {
        let mut y = x.data().clone();
        for &(to, from) in moves {
            y.set(to, updates.data(), from);
        }
        return Ok(y);
    }
    type Pair = (fn(f64, f64) -> f64, fn(i128, i128) -> i128);
    let (f, g): Pair = match reduction {
        "add" => (|a, b| a + b, i128::wrapping_add),
        "mul" => (|a, b| a * b, i128::wrapping_mul),
        "max" => (max, i128::max),
        "min" => (min, i128::min),
        other => return Err(call.bad("attribute \"reduction\"", "a known one", other)),
    };
    let y = match (Wide::of(x), Wide::of(updates)) {
        (Wide::F(mut y), Wide::F(u)) => {
            for &(to, from) in moves {
                y[to] = f(y[to], u[from]);
            }
            Wide::F(y)
        }
        (Wide::I(mut y), Wide::I(u)) => {
            for &(to, from) in moves {
                y[to] = g(y[to], u[from]);
            }
            Wide::I(y)
        }
        _ => return Err(call.bad("inputs", "one element type", format!("{x} and {updates}"))),
    };
    Ok(y.into_data(x.elem()))
}

fn scatter_elements(call: &Call) -> Outputs {
    let (x, at, updates) = (call.x(0)?, call.x(1)?, call.x(2)?);
    call.expect_elem(2, updates, x.elem())?;
    call.expect_dims(2, updates, at.dims())?;
    let axis = call.axis(0, x.rank())?;
    let fits = |(i, &n): (usize, &usize)| i == axis || n <= x.dims()[i];
    if at.rank() != x.rank() || !at.dims().iter().enumerate().all(fits) {
        return Err(call.bad("input 1", format!("dimensions within those of {x}"), at));
    }
    let chosen = positions(call, 1, x.dims()[axis])?;
    let own = strides(x.dims());
    let mut moves = Vec::with_capacity(at.len());
    each_coord(at.dims(), |coord| {
        let from = moves.len();
        let plain: usize = coord.iter().zip(&own).map(|(c, s)| c * s).sum();
        moves.push((
            plain - coord[axis] * own[axis] + chosen[from] * own[axis],
            from,
        ));
    });
    let y = put(call, x, updates, &moves)?;
    Ok(vec![Array::new(x.dims().to_vec(), y)])
}

fn scatter_nd(call: &Call) -> Outputs {
    let (x, at, updates) = (call.at_least(0, 1)?, call.at_least(1, 1)?, call.x(2)?);
    call.expect_elem(2, updates, x.elem())?;
    let (lead, depth) = (&at.dims()[..at.rank() - 1], at.dims()[at.rank() - 1]);
    if depth > x.rank() {
        return Err(call.bad("input 1", format!("indices into {x}"), at));
    }
    let mut dims = lead.to_vec();
    dims.extend(&x.dims()[depth..]);
    call.expect_dims(2, updates, &dims)?;
    let own = strides(x.dims());
    let slice: usize = x.dims()[depth..].iter().product();
    let all = call.int_vec(1)?;
    let num: usize = lead.iter().product();
    let mut moves = Vec::with_capacity(updates.len());
    for i in 0..num {
        let mut start = 0;
        for k in 0..depth {
            start += position(call, 1, all[i * depth + k], x.dims()[k])? * own[k];
        }
        moves.extend((0..slice).map(|j| (start + j, i * slice + j)));
    }
    let y = put(call, x, updates, &moves)?;
    Ok(vec![Array::new(x.dims().to_vec(), y)])
}
