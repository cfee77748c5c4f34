//! Instructions that lanes or threads do together: shuffles, votes, barriers, matrix products.

use super::{Body, Decoder, Result, check_count};
use crate::ptx::LoadError;
use crate::ptx::ast::{Instruction, Operand};
use crate::ptx::program::{Collective, MmaType, Op, ReduceOp, ShuffleMode, VoteMode};
use crate::ptx::types::Type;

/// Decodes an instruction of this family; `None` when it is none.
pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let parts: Vec<&str> = i.opcode.split('.').collect();
    match parts.as_slice() {
        ["shfl", "sync", mode, "b32"] => shuffle(decoder, i, mode, body),
        ["vote", "sync", mode, "pred" | "b32"] => vote(decoder, i, mode, body),
        [
            "match",
            kind @ ("any" | "all"),
            "sync",
            ty @ ("b32" | "b64"),
        ] => {
            check_count(i, 3)?;
            let [dest, all] = decoder.results(&i.operands[0], i, body)?;
            let Some(dest) = dest else { return Ok(None) };
            let ty = if *ty == "b32" { Type::B32 } else { Type::B64 };
            let value = decoder.source(&i.operands[1], ty, i, body)?;
            let mask = decoder.source(&i.operands[2], Type::B32, i, body)?;
            let collective = Collective::Match {
                is_all: *kind == "all",
                dest,
                all,
                value,
            };
            Ok(Some(Op::Collective { mask, collective }))
        }
        ["redux", "sync", op, ty] => reduce(decoder, i, op, ty, body),
        ["bar", "warp", "sync"] => {
            check_count(i, 1)?;
            let mask = decoder.source(&i.operands[0], Type::B32, i, body)?;
            Ok(Some(Op::Collective {
                mask,
                collective: Collective::Sync,
            }))
        }
        ["activemask", "b32"] => Ok(Some(Op::ActiveMask(decoder.result(
            &i.operands[0],
            i,
            body,
        )?))),
        ["bar" | "barrier", rest @ ..] => barrier(decoder, i, rest, body),
        ["membar", scope @ ("cta" | "gl" | "sys")] => Ok(Some(Op::Fence {
            is_gpu: *scope != "cta",
        })),
        ["fence", rest @ ..] => fence(rest),
        ["mma", "sync", "aligned", rest @ ..] => mma(decoder, i, rest, body),
        ["nanosleep", "u32"] => Ok(Some(Op::Nop)),
        _ => Ok(None),
    }
}

fn fence(rest: &[&str]) -> Result<Option<Op>> {
    let rest = match rest {
        ["sc" | "acq_rel" | "acquire" | "release", rest @ ..] => rest,
        rest => rest,
    };
    Ok(match rest {
        ["cta"] => Some(Op::Fence { is_gpu: false }),
        ["gpu" | "sys"] => Some(Op::Fence { is_gpu: true }),
        _ => None,
    })
}

fn shuffle(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    mode: &str,
    body: &Body<'_>,
) -> Result<Option<Op>> {
    let mode = match mode {
        "up" => ShuffleMode::Up,
        "down" => ShuffleMode::Down,
        "bfly" => ShuffleMode::Bfly,
        "idx" => ShuffleMode::Idx,
        _ => return Ok(None),
    };
    check_count(i, 5)?;
    let [dest, found] = decoder.results(&i.operands[0], i, body)?;
    let mut source = |n: usize| decoder.source(&i.operands[n], Type::B32, i, body);
    let (value, by, clamp, mask) = (source(1)?, source(2)?, source(3)?, source(4)?);
    let collective = Collective::Shuffle {
        mode,
        dest,
        found,
        value,
        by,
        clamp,
    };
    Ok(Some(Op::Collective { mask, collective }))
}

fn vote(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    mode: &str,
    body: &Body<'_>,
) -> Result<Option<Op>> {
    let mode = match mode {
        "all" => VoteMode::All,
        "any" => VoteMode::Any,
        "uni" => VoteMode::Uni,
        "ballot" => VoteMode::Ballot,
        _ => return Ok(None),
    };
    check_count(i, 3)?;
    let dest = decoder.result(&i.operands[0], i, body)?;
    let (value, is_negated) = predicate(decoder, &i.operands[1], i, body)?;
    let mask = decoder.source(&i.operands[2], Type::B32, i, body)?;
    Ok(Some(Op::Collective {
        mask,
        collective: Collective::Vote {
            mode,
            dest,
            value,
            is_negated,
        },
    }))
}

/// A predicate, and whether its opposite is meant.
fn predicate(
    decoder: &mut Decoder<'_>,
    operand: &Operand,
    i: &Instruction,
    body: &Body<'_>,
) -> Result<(u32, bool)> {
    match operand {
        Operand::Not(name) => Ok((body.names.dest(name, i.line)?.reg, true)),
        other => Ok((decoder.source(other, Type::Pred, i, body)?, false)),
    }
}

fn reduce_op(op: &str, ty: &str) -> Option<ReduceOp> {
    Some(match (op, ty) {
        ("add", "u32" | "s32") => ReduceOp::Add,
        ("min", "u32") => ReduceOp::MinU,
        ("max", "u32") => ReduceOp::MaxU,
        ("min", "s32") => ReduceOp::MinS,
        ("max", "s32") => ReduceOp::MaxS,
        ("and", "b32") => ReduceOp::And,
        ("or", "b32") => ReduceOp::Or,
        ("xor", "b32") => ReduceOp::Xor,
        _ => return None,
    })
}

fn reduce(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    op: &str,
    ty: &str,
    body: &Body<'_>,
) -> Result<Option<Op>> {
    let Some(op) = reduce_op(op, ty) else {
        return Ok(None);
    };
    check_count(i, 3)?;
    let dest = decoder.result(&i.operands[0], i, body)?;
    let value = decoder.source(&i.operands[1], Type::B32, i, body)?;
    let mask = decoder.source(&i.operands[2], Type::B32, i, body)?;
    Ok(Some(Op::Collective {
        mask,
        collective: Collective::Reduce { op, dest, value },
    }))
}

fn barrier(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &Body<'_>,
) -> Result<Option<Op>> {
    let rest = if rest.first() == Some(&"cta") {
        &rest[1..]
    } else {
        rest
    };
    let (kind, op) = match rest {
        ["sync"] | ["sync", "aligned"] => ("sync", None),
        ["arrive"] | ["arrive", "aligned"] => ("arrive", None),
        ["red", op, "pred"] | ["red", op, "aligned", "pred"] if ["and", "or"].contains(op) => (
            "red",
            Some(if *op == "and" {
                ReduceOp::And
            } else {
                ReduceOp::Or
            }),
        ),
        ["red", "popc", "u32"] | ["red", "popc", "aligned", "u32"] => ("red", Some(ReduceOp::Popc)),
        _ => return Ok(None),
    };
    let mut operands = i.operands.as_slice();
    let mut dest = None;
    if op.is_some() {
        dest = Some(decoder.result(&operands[0], i, body)?);
        operands = &operands[1..];
    }
    let Some((id, mut operands)) = operands.split_first() else {
        return Err(LoadError::new(
            i.line,
            format!("`{}`: expected a barrier", i.opcode),
        ));
    };
    let id = decoder.source(id, Type::U32, i, body)?;
    let mut reduce = None;
    if let (Some(op), Some(dest), Some((last, others))) = (op, dest, operands.split_last()) {
        let (value, is_negated) = predicate(decoder, last, i, body)?;
        reduce = Some((op, dest, value, is_negated));
        operands = others;
    }
    let threads = match operands {
        [] => None,
        [threads] => Some(decoder.source(threads, Type::U32, i, body)?),
        _ => return Err(LoadError::new(i.line, format!("`{}`: operands", i.opcode))),
    };
    Ok(Some(Op::Barrier {
        id,
        threads,
        waits: kind != "arrive",
        reduce,
    }))
}

fn mma(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &Body<'_>,
) -> Result<Option<Op>> {
    let [shape, "row", "col", d, a, b, c] = rest else {
        return Ok(None);
    };
    let (k, ty) = match (*shape, *a) {
        ("m16n8k8", "f16") => (8, MmaType::F16),
        ("m16n8k16", "f16") => (16, MmaType::F16),
        ("m16n8k8", "bf16") => (8, MmaType::Bf16),
        ("m16n8k16", "bf16") => (16, MmaType::Bf16),
        ("m16n8k4", "tf32") => (4, MmaType::Tf32),
        ("m16n8k8", "tf32") => (8, MmaType::Tf32),
        _ => return Ok(None),
    };
    let is_f16_sum = *d == "f16";
    if a != b || c != d || !(*d == "f32" || (is_f16_sum && ty == MmaType::F16)) {
        return Ok(None);
    }
    check_count(i, 4)?;
    let dests = super::memory::registers(decoder, &i.operands[0], i, body)?;
    let mut sources = |n: usize, ty: Type| match &i.operands[n] {
        Operand::Vector(list) => list
            .iter()
            .map(|v| decoder.source(v, ty, i, body))
            .collect(),
        one => Ok(vec![decoder.source(one, ty, i, body)?]),
    };
    let (a, b): (Vec<_>, Vec<_>) = (sources(1, Type::B32)?, sources(2, Type::B32)?);
    let c: Vec<_> = sources(3, if is_f16_sum { Type::B32 } else { Type::F32 })?;
    // Words of a lane: 16 x k and k x 8 values, over 32 lanes.
    let per_word = if ty == MmaType::Tf32 { 1 } else { 2 };
    let expected = (
        16 * k / 32 / per_word,
        k * 8 / 32 / per_word,
        if is_f16_sum { 2 } else { 4 },
    );
    if (a.len(), b.len(), c.len()) != expected || dests.len() != expected.2 {
        return Err(LoadError::new(
            i.line,
            format!("`{}`: expected {expected:?} registers", i.opcode),
        ));
    }
    Ok(Some(Op::Mma {
        k,
        ty,
        is_f16_sum,
        dests,
        a,
        b,
        c,
    }))
}
