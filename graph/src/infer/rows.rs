//! Type rules of ops on packed rows.

use smallvec::smallvec;

use super::{Args, Types, one};
use crate::chain::{MOST_STEPS, Step};
use crate::dtype::DType;
use crate::error::Error;
use crate::op::Heads;
use crate::program::Repeat;
use crate::sampling::Sampling;
use crate::shape::{Dim, TensorType};

pub(super) fn linear(args: &Args<'_>, bias: bool, residual: bool) -> Result<Types, Error> {
    args.count(2 + usize::from(bias) + usize::from(residual))?;
    let (lead, mut dims, k) = args.wide(0, "x")?;
    let [rows, n] = args.weight(1, "w")?;
    dims.push(n);
    if rows != k {
        return args
            .cx
            .fail("w", format!("{k} rows, the features of x"), args.types[1]);
    }
    if bias {
        args.weight_of(2, "bias", [n])?;
    }
    let ty = TensorType::activation(DType::F32, lead, &dims);
    if residual {
        args.exactly(2 + usize::from(bias), "residual", &ty)?;
    }
    Ok(smallvec![ty])
}

pub(super) fn binary(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    args.float(0, "a")?;
    beside(args, 1, "b")?;
    Ok(smallvec![args.types[0].clone()])
}

/// Operand `i` is of operand 0's type, or a weight that spans a row of that or its last dimension.
fn beside(args: &Args<'_>, i: usize, what: &str) -> Result<(), Error> {
    let (a, b) = (args.types[0], args.types[i]);
    let fixed = a.fixed_dims();
    let other = b.fixed_dims();
    let is_weight = b.lead().is_none() && b.dtype.is_float();
    let spans_row = is_weight && other == fixed;
    let spans_last = is_weight && fixed.last().is_some_and(|&n| other[..] == [n]);
    if a == b || spans_row || spans_last {
        return Ok(());
    }
    args.cx.fail(
        what,
        format!("{a}, or a float weight {fixed:?} or of its last dimension"),
        b,
    )
}

pub(super) fn elementwise(args: &Args<'_>, steps: &[Step]) -> Result<Types, Error> {
    if !(1..=MOST_STEPS).contains(&steps.len()) {
        let expected = format!("1 to {MOST_STEPS}");
        return args.cx.fail("number of steps", expected, steps.len());
    }
    let read = steps.iter().filter_map(|step| step.operand()).max();
    let expected = read.unwrap_or(0).saturating_add(1);
    args.count(expected)?;
    args.float(0, "x")?;
    args.lead(0, "x")?;
    for i in 1..expected {
        beside(args, i, &format!("operand {i}"))?;
    }
    Ok(smallvec![args.types[0].clone()])
}

pub(super) fn layer_norm(args: &Args<'_>) -> Result<Types, Error> {
    args.count(3)?;
    let (_, _, d) = args.wide(0, "x")?;
    args.weight_of(1, "gamma", [d])?;
    args.weight_of(2, "beta", [d])?;
    Ok(smallvec![args.types[0].clone()])
}

pub(super) fn add_layer_norm(args: &Args<'_>) -> Result<Types, Error> {
    args.count(4)?;
    let (_, _, d) = args.wide(0, "x")?;
    args.exactly(1, "y", args.types[0])?;
    args.weight_of(2, "gamma", [d])?;
    args.weight_of(3, "beta", [d])?;
    Ok(smallvec![args.types[0].clone(), args.types[0].clone()])
}

pub(super) fn rms_norm(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, [d]) = args.activation(0, "x")?;
    args.weight_of(1, "gamma", [d])?;
    one(lead, &[d])
}

pub(super) fn embedding(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, []) = args.ids(0, "ids")?;
    let [_, d] = args.weight(1, "table")?;
    one(lead, &[d])
}

pub(super) fn embedding_bag(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, [_]) = args.ids(0, "ids")?;
    let [_, d] = args.weight(1, "table")?;
    one(lead, &[d])
}

/// Rows have positions if they are steps of a loop or positions of a sequence, not if they are the
/// samples of a `Once` block.
fn positions(args: &Args<'_>, lead: Dim) -> Result<(), Error> {
    if args.cx.repeat == Repeat::Once && lead != Dim::Rows {
        return args
            .cx
            .fail("x", "[rows, ...]: only those have positions", args.types[0]);
    }
    Ok(())
}

pub(super) fn add_position(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, [d]) = args.activation(0, "x")?;
    positions(args, lead)?;
    let [p, width] = args.weight(1, "table")?;
    if width != d {
        return args.cx.fail(
            "table",
            format!("{d} columns, the features of x"),
            args.types[1],
        );
    }
    if let Some(max) = args.cx.max_positions().filter(|&max| max > p) {
        return args.cx.fail(
            "table",
            format!("a row for each of {max} positions"),
            args.types[1],
        );
    }
    one(lead, &[d])
}

pub(super) fn rope(args: &Args<'_>, heads: usize, dim: usize) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [d]) = args.activation(0, "x")?;
    positions(args, lead)?;
    if heads * dim != d || !dim.is_multiple_of(2) {
        return args.cx.fail(
            "x",
            format!("{heads} heads of {dim} features, even"),
            args.types[0],
        );
    }
    one(lead, &[d])
}

/// Heads that fit together.
pub(super) fn check_heads(args: &Args<'_>, heads: &Heads) -> Result<(), Error> {
    let sound = heads.query > 0 && heads.kv > 0 && heads.dim > 0;
    if !sound || !heads.query.is_multiple_of(heads.kv) {
        return args.cx.fail(
            "heads",
            "positive numbers, key heads dividing query heads",
            format!("{} query, {} kv of {}", heads.query, heads.kv, heads.dim),
        );
    }
    Ok(())
}

pub(super) fn attention(
    args: &Args<'_>,
    heads: &Heads,
    cap: Option<f32>,
    bias: bool,
) -> Result<Types, Error> {
    args.count(3 + usize::from(bias))?;
    check_heads(args, heads)?;
    if let Some(cap) = cap.filter(|cap| !cap.is_normal() || *cap < 0.0) {
        return args.cx.fail("cap", "a positive number", cap);
    }
    if args.cx.repeat != Repeat::Once {
        return args
            .cx
            .fail("attention", "a block that runs once", "a loop");
    }
    for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
        let features = heads.dim * if i == 0 { heads.query } else { heads.kv };
        args.exactly(
            i,
            name,
            &TensorType::activation(DType::F32, Dim::Rows, &[features]),
        )?;
    }
    if bias {
        let [rows, distances] = args.weight(3, "bias")?;
        let max = args.cx.max_positions().unwrap_or(1);
        let fits = rows == heads.query && distances % 2 == 1 && distances.div_ceil(2) >= max;
        if !fits {
            let expected = format!(
                "{} rows with a column for each distance of {max} positions",
                heads.query
            );
            return args.cx.fail("bias", expected, args.types[3]);
        }
    }
    one(Dim::Rows, &[heads.query * heads.dim])
}

pub(super) fn reshape(args: &Args<'_>, dims: &[usize]) -> Result<Types, Error> {
    args.count(1)?;
    let ty = args.types[0];
    if dims.iter().product::<usize>() != ty.row_elems() {
        return args
            .cx
            .fail("x", format!("as many elements in a row as {dims:?}"), ty);
    }
    let lead = ty.lead().into_iter();
    let fixed = dims.iter().map(|&n| Dim::Fixed(n));
    Ok(smallvec![TensorType::new(ty.dtype, lead.chain(fixed))])
}

pub(super) fn concat(args: &Args<'_>) -> Result<Types, Error> {
    if args.types.len() < 2 {
        return args
            .cx
            .fail("number of operands", "two or more", args.types.len());
    }
    let lead = args.lead(0, "operand 0")?;
    let mut dims = args.types[0].fixed_dims();
    if dims.is_empty() {
        return args
            .cx
            .fail("operand 0", "a dimension to concatenate", args.types[0]);
    }
    for (i, &ty) in args.types.iter().enumerate().skip(1) {
        let other = ty.fixed_dims();
        let same = ty.dtype == args.types[0].dtype
            && ty.lead() == Some(lead)
            && other.len() == dims.len()
            && other[1..] == dims[1..];
        if !same {
            let expected = format!("{} but for its first fixed dimension", args.types[0]);
            return args.cx.fail(format!("operand {i}"), expected, ty);
        }
        dims[0] += other[0];
    }
    Ok(smallvec![TensorType::activation(
        args.types[0].dtype,
        lead,
        &dims
    )])
}

pub(super) fn slice(args: &Args<'_>, start: usize, len: usize) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [d]) = args.activation(0, "x")?;
    if len == 0 || start + len > d {
        let expected = format!("features {start}..{}, at least one", start + len);
        return args.cx.fail("x", expected, args.types[0]);
    }
    one(lead, &[len])
}

pub(super) fn interaction(args: &Args<'_>) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [f, _]) = args.activation(0, "x")?;
    if f < 2 {
        return args
            .cx
            .fail("x", "two or more vectors in a row", args.types[0]);
    }
    one(lead, &[f * (f - 1) / 2])
}

pub(super) fn reduce_rows(args: &Args<'_>) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [d]) = args.activation(0, "x")?;
    if args.cx.repeat != Repeat::Once || lead != Dim::Rows {
        return args
            .cx
            .fail("x", "[rows, d] in a block that runs once", args.types[0]);
    }
    one(Dim::Batch, &[d])
}

pub(super) fn arg_max(args: &Args<'_>) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [_]) = args.activation(0, "x")?;
    Ok(smallvec![TensorType::activation(DType::I32, lead, &[])])
}

pub(super) fn sample(args: &Args<'_>) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, [_]) = args.activation(0, "logits")?;
    let how = TensorType::activation(DType::I32, lead, &[Sampling::WORDS]);
    args.exactly(1, "how", &how)?;
    Ok(smallvec![TensorType::activation(DType::I32, lead, &[])])
}

pub(super) fn top_k(args: &Args<'_>, k: usize) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, mut dims, d) = args.wide(0, "x")?;
    if !(1..=d).contains(&k) {
        return args.cx.fail("k", format!("1 to {d}"), k);
    }
    dims.push(k);
    Ok(smallvec![
        TensorType::activation(DType::F32, lead, &dims),
        TensorType::activation(DType::I32, lead, &dims),
    ])
}
