//! Type rules of ops that touch inputs, outputs and per-request states.

use smallvec::smallvec;

use super::{Args, Types, one, rows};
use crate::dtype::DType;
use crate::error::Error;
use crate::ids::{InputId, OutputId, StateId};
use crate::op::{At, Heads};
use crate::program::{Repeat, StateKind};
use crate::shape::{Dim, TensorType};

/// The position is one that this kind of block has: `All` in `Once` blocks, `Step` in loops,
/// `Reverse` in loops whose number of passes the input fixes.
fn check_at(args: &Args<'_>, at: At) -> Result<(), Error> {
    let repeat = args.cx.repeat;
    let legal = match at {
        At::All => repeat == Repeat::Once,
        At::Step => repeat.is_loop(),
        At::Reverse => matches!(repeat, Repeat::PerInputStep { .. }),
        At::End => true,
    };
    if legal {
        return Ok(());
    }
    args.cx.fail(
        "position",
        format!("one that {repeat:?} has"),
        format!("{at:?}"),
    )
}

/// `Rows` for `All`, else `Batch`.
fn lead_of(at: At) -> Dim {
    if at == At::All { Dim::Rows } else { Dim::Batch }
}

fn vector<'a>(args: &Args<'a>, state: StateId, what: &str) -> Result<(DType, &'a [usize]), Error> {
    match args.cx.program.states.get(state.index()) {
        Some(decl) => match &decl.kind {
            StateKind::Vector { dims, .. } => Ok((decl.dtype, dims)),
            StateKind::Sequence { .. } => args.cx.fail(
                what,
                "a vector state",
                format!("sequence state {}", decl.name),
            ),
        },
        None => args.cx.fail(what, "a declared state", state),
    }
}

fn sequence(args: &Args<'_>, state: StateId, what: &str) -> Result<(DType, usize), Error> {
    match args.cx.program.states.get(state.index()) {
        Some(decl) => match decl.kind {
            StateKind::Sequence { features, .. } => Ok((decl.dtype, features)),
            StateKind::Vector { .. } => args.cx.fail(
                what,
                "a sequence state",
                format!("vector state {}", decl.name),
            ),
        },
        None => args.cx.fail(what, "a declared state", state),
    }
}

/// A sequence state of f32 rows with `features`.
fn rows_of(args: &Args<'_>, state: StateId, what: &str, features: usize) -> Result<(), Error> {
    let got = sequence(args, state, what)?;
    if got == (DType::F32, features) {
        return Ok(());
    }
    args.cx.fail(
        what,
        format!("an f32 sequence state of {features} features"),
        format!("{got:?}"),
    )
}

/// An f32 vector state `[dim]`.
fn vector_of(args: &Args<'_>, state: StateId, what: &str, dim: usize) -> Result<(), Error> {
    let got = vector(args, state, what)?;
    if got == (DType::F32, &[dim][..]) {
        return Ok(());
    }
    args.cx.fail(
        what,
        format!("an f32 vector state [{dim}]"),
        format!("{got:?}"),
    )
}

pub(super) fn input(args: &Args<'_>, input: InputId, at: At) -> Result<Types, Error> {
    args.count(0)?;
    let Some(decl) = args.cx.program.inputs.get(input.index()) else {
        return args.cx.fail("input", "a declared input", input);
    };
    check_at(args, at)?;
    let is_sequence = decl.ty.lead() == Some(Dim::Len);
    let lead = match args.cx.repeat {
        Repeat::Once if is_sequence => Dim::Rows,
        Repeat::Once | Repeat::PerInputStep { .. } => Dim::Batch,
        Repeat::UntilStop { .. } if !is_sequence => Dim::Batch,
        Repeat::UntilStop { .. } => {
            let expected = "a loop over the input or a block that runs once, or one without len";
            return args
                .cx
                .fail(format!("input {}", decl.name), expected, &decl.ty);
        }
    };
    if at == At::End || (at == At::All) != (args.cx.repeat == Repeat::Once) {
        return args
            .cx
            .fail("position", "All, Step or Reverse", format!("{at:?}"));
    }
    Ok(smallvec![TensorType::activation(
        decl.ty.dtype,
        lead,
        &decl.ty.fixed_dims()
    )])
}

pub(super) fn state_attention(
    args: &Args<'_>,
    heads: &Heads,
    keys: StateId,
    values: StateId,
) -> Result<Types, Error> {
    args.count(1)?;
    rows::check_heads(args, heads)?;
    let (lead, [d]) = args.activation(0, "q")?;
    if d != heads.query * heads.dim {
        let expected = format!("{} heads of {} features", heads.query, heads.dim);
        return args.cx.fail("q", expected, args.types[0]);
    }
    rows_of(args, keys, "keys", heads.kv * heads.dim)?;
    rows_of(args, values, "values", heads.kv * heads.dim)?;
    one(lead, &[d])
}

/// A sequence state that a loop goes on behind.
pub(super) fn past(args: &Args<'_>, state: StateId) -> Result<(), Error> {
    sequence(args, state, "past")?;
    if args.cx.repeat.is_loop() {
        return Ok(());
    }
    args.cx.fail("past", "a loop", "a block that runs once")
}

pub(super) fn additive_attention(
    args: &Args<'_>,
    keys: StateId,
    values: StateId,
) -> Result<Types, Error> {
    args.count(2)?;
    let (lead, [d]) = args.activation(0, "query")?;
    args.weight_of(1, "v", [d])?;
    rows_of(args, keys, "keys", d)?;
    let (dtype, features) = sequence(args, values, "values")?;
    if dtype != DType::F32 {
        return args.cx.fail("values", "an f32 sequence state", dtype);
    }
    one(lead, &[features])
}

/// An operand with a row per sample: what an update of per-request state needs.
fn per_sample(args: &Args<'_>, lead: Dim) -> Result<(), Error> {
    if lead == Dim::Batch {
        return Ok(());
    }
    args.cx.fail(
        "x",
        "[batch, ...]: one row updates the state",
        args.types[0],
    )
}

pub(super) fn lstm_cell(
    args: &Args<'_>,
    h: StateId,
    c: StateId,
    proj: bool,
    ahead: bool,
) -> Result<Types, Error> {
    // Operands behind `w_ih`, or where that would be.
    let next = 1 + usize::from(!ahead);
    args.count(next + 2 + usize::from(proj))?;
    let gates = gates(args, 4, ahead)?;
    let hidden = gates / 4;
    let out = if proj {
        args.weight::<2>(next + 2, "w_proj")?[1]
    } else {
        hidden
    };
    args.weight_of(next, "w_hh", [out, gates])?;
    args.weight_of(next + 1, "bias", [gates])?;
    if proj {
        args.weight_of(next + 2, "w_proj", [hidden, out])?;
    }
    vector_of(args, h, "h", out)?;
    vector_of(args, c, "c", hidden)?;
    one(Dim::Batch, &[out])
}

/// Width of the `num` gates of a cell, from `x` and `w_ih`, or from their product if that is
/// computed ahead.
fn gates(args: &Args<'_>, num: usize, ahead: bool) -> Result<usize, Error> {
    let what = if ahead { "x w_ih" } else { "x" };
    let (lead, [k]) = args.activation(0, what)?;
    per_sample(args, lead)?;
    let (at, what, width) = if ahead {
        (0, what, k)
    } else {
        (1, "w_ih", args.weight::<2>(1, "w_ih")?[1])
    };
    if width == 0 || !width.is_multiple_of(num) {
        let expected = format!("{num} gates of equal width");
        return args.cx.fail(what, expected, args.types[at]);
    }
    if !ahead {
        args.weight_of(1, "w_ih", [k, width])?;
    }
    Ok(width)
}

pub(super) fn gru_cell(args: &Args<'_>, h: StateId, ahead: bool) -> Result<Types, Error> {
    args.count(if ahead { 3 } else { 5 })?;
    let gates = gates(args, 3, ahead)?;
    let hidden = gates / 3;
    let [w_hh, b_hh] = if ahead { [1, 2] } else { [2, 4] };
    args.weight_of(w_hh, "w_hh", [hidden, gates])?;
    if !ahead {
        args.weight_of(3, "b_ih", [gates])?;
    }
    args.weight_of(b_hh, "b_hh", [gates])?;
    vector_of(args, h, "h", hidden)?;
    one(Dim::Batch, &[hidden])
}

pub(super) fn vec_read(args: &Args<'_>, state: StateId) -> Result<Types, Error> {
    args.count(0)?;
    let (dtype, dims) = vector(args, state, "state")?;
    Ok(smallvec![TensorType::activation(dtype, Dim::Batch, dims)])
}

pub(super) fn vec_write(args: &Args<'_>, state: StateId) -> Result<Types, Error> {
    args.count(1)?;
    let (dtype, dims) = vector(args, state, "state")?;
    args.exactly(0, "x", &TensorType::activation(dtype, Dim::Batch, dims))?;
    Ok(Types::new())
}

pub(super) fn seq_read(args: &Args<'_>, state: StateId, at: At) -> Result<Types, Error> {
    args.count(0)?;
    check_at(args, at)?;
    if at == At::End {
        return args.cx.fail(
            "position",
            "All, Step or Reverse",
            "End, where nothing is written",
        );
    }
    let (dtype, features) = sequence(args, state, "state")?;
    Ok(smallvec![TensorType::activation(
        dtype,
        lead_of(at),
        &[features]
    )])
}

pub(super) fn seq_write(args: &Args<'_>, state: StateId, at: At) -> Result<Types, Error> {
    args.count(1)?;
    check_at(args, at)?;
    let (dtype, features) = sequence(args, state, "state")?;
    args.exactly(
        0,
        "x",
        &TensorType::activation(dtype, lead_of(at), &[features]),
    )?;
    Ok(Types::new())
}

pub(super) fn emit(args: &Args<'_>, output: OutputId) -> Result<Types, Error> {
    args.count(1)?;
    let Some(decl) = args.cx.program.outputs.get(output.index()) else {
        return args.cx.fail("output", "a declared output", output);
    };
    let lead = args.lead(0, "x")?;
    let grows = decl.ty.lead() == Some(Dim::Len);
    let fits = args.types[0].dtype == decl.ty.dtype
        && args.types[0].fixed_dims() == decl.ty.fixed_dims()
        && (grows || lead == Dim::Batch);
    if !fits {
        let expected = format!("rows of output {} {}", decl.name, decl.ty);
        return args.cx.fail("x", expected, args.types[0]);
    }
    Ok(Types::new())
}

pub(super) fn stop(args: &Args<'_>) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, []) = args.ids(0, "ids")?;
    per_sample(args, lead)?;
    if !matches!(args.cx.repeat, Repeat::UntilStop { .. }) {
        return args.cx.fail(
            "stop",
            "a block that runs until it stops",
            format!("{:?}", args.cx.repeat),
        );
    }
    Ok(Types::new())
}
