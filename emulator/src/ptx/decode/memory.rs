//! Loads, stores, atomics, asynchronous copies and matrix loads.

use super::{Body, Decoder, Result, check_count, type_of};
use crate::ptx::LoadError;
use crate::ptx::ast::{Instruction, Operand, Space};
use crate::ptx::program::{Access, AtomicOp, Dest, Op, Reg};
use crate::ptx::types::Type;

/// Types that memory instructions have.
const TYPES: [Type; 15] = [
    Type::B8,
    Type::B16,
    Type::B32,
    Type::B64,
    Type::U8,
    Type::U16,
    Type::U32,
    Type::U64,
    Type::S8,
    Type::S16,
    Type::S32,
    Type::S64,
    Type::F32,
    Type::F64,
    Type::F16,
];
/// Spaces by name; none is generic.
const SPACES: [(&str, Space); 7] = [
    ("", Space::Generic),
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
];
const SCOPES: [&str; 4] = ["cta", "gpu", "sys", "cluster"];
/// Hints, which change nothing here.
const HINTS: [&str; 13] = [
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "L2::64B", "L2::128B", "L2::256B",
    "unified",
];
const ATOMIC_OPS: [(&str, AtomicOp); 10] = [
    ("add", AtomicOp::Add),
    ("min", AtomicOp::Min),
    ("max", AtomicOp::Max),
    ("inc", AtomicOp::Inc),
    ("dec", AtomicOp::Dec),
    ("and", AtomicOp::And),
    ("or", AtomicOp::Or),
    ("xor", AtomicOp::Xor),
    ("exch", AtomicOp::Exch),
    ("cas", AtomicOp::Cas),
];

/// Names of all loads, without hints: for `st` the first letters differ.
pub fn load_forms() -> Vec<String> {
    let mut out = Vec::new();
    for (space, _) in SPACES.iter().filter(|(name, _)| *name != "shared::cta") {
        let space = if space.is_empty() {
            String::new()
        } else {
            format!(".{space}")
        };
        for ty in TYPES.iter().filter(|ty| **ty != Type::F16) {
            for (vector, lanes) in [("", 1), (".v2", 2), (".v4", 4)] {
                if lanes * ty.bytes() <= 16 {
                    out.push(format!("ld{space}{vector}.{}", ty.name()));
                }
            }
        }
    }
    out
}

/// Whether an atomic of that operation and type exists.
fn has_atomic(op: AtomicOp, ty: Type) -> bool {
    match op {
        AtomicOp::Add => matches!(
            ty,
            Type::U32
                | Type::S32
                | Type::U64
                | Type::F16
                | Type::F16x2
                | Type::Bf16
                | Type::Bf16x2
                | Type::F32
                | Type::F64
        ),
        AtomicOp::Min | AtomicOp::Max => {
            matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64)
        }
        AtomicOp::Inc | AtomicOp::Dec => ty == Type::U32,
        AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => matches!(ty, Type::B32 | Type::B64),
        AtomicOp::Exch => matches!(ty, Type::B32 | Type::B64),
        AtomicOp::Cas => matches!(ty, Type::B16 | Type::B32 | Type::B64),
    }
}

/// Operations, types and names of all atomics, without orders, scopes and hints.
pub fn atomic_forms() -> Vec<(String, AtomicOp, Type)> {
    let mut out = Vec::new();
    for (name, op) in ATOMIC_OPS {
        for ty in Type::ALL.into_iter().filter(|ty| has_atomic(op, *ty)) {
            let is_half = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
            let noftz = if is_half { ".noftz" } else { "" };
            out.push((format!("{name}{noftz}.{}", ty.name()), op, ty));
        }
    }
    out
}

/// Suffixes of a memory instruction, sorted out.
struct Suffixes {
    space: Space,
    lanes: usize,
    ty: Type,
    is_strong: bool,
}

fn suffixes(i: &Instruction, parts: &[&str]) -> Result<Option<Suffixes>> {
    let Some((last, middle)) = parts.split_last() else {
        return Ok(None);
    };
    let ty = type_of(last, i)?;
    let mut out = Suffixes {
        space: Space::Generic,
        lanes: 1,
        ty,
        is_strong: false,
    };
    for part in middle {
        match *part {
            "volatile" | "relaxed" | "acquire" | "release" | "mmio" => out.is_strong = true,
            "v2" => out.lanes = 2,
            "v4" => out.lanes = 4,
            part if HINTS.contains(&part) || SCOPES.contains(&part) || part.starts_with("L1::") => {
            }
            part => match SPACES.iter().find(|(name, _)| *name == part) {
                Some((_, space)) => out.space = *space,
                None => return Ok(None),
            },
        }
    }
    Ok(Some(out))
}

/// Decodes an instruction of this family; `None` when it is none.
pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let parts: Vec<&str> = i.opcode.split('.').collect();
    match parts.as_slice() {
        ["ld" | "ldu", rest @ ..] => load(decoder, i, rest, body),
        ["st", rest @ ..] => store(decoder, i, rest, body),
        ["atom", rest @ ..] => atomic(decoder, i, rest, true, body),
        ["red", rest @ ..] => atomic(decoder, i, rest, false, body),
        ["cp", "async", rest @ ..] => copy_async(decoder, i, rest, body),
        ["ldmatrix", rest @ ..] => load_matrix(decoder, i, rest, body),
        ["prefetch", "global" | "local", "L1" | "L2"] | ["prefetch", "L1" | "L2"] => {
            Ok(Some(Op::Nop))
        }
        _ => Ok(None),
    }
}

/// The access of an address operand; a named variable says the space of a parameter.
fn access(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    operand: &Operand,
    s: &Suffixes,
    body: &Body<'_>,
) -> Result<Access> {
    let (address, named) = decoder.address(operand, i, body)?;
    let space = match (s.space, named) {
        // Parameters of functions that were inlined are the thread's own memory; a variable's name
        // is an offset in its space, not a generic address.
        (Space::Param | Space::Generic, Some(space)) => space,
        (space, _) => space,
    };
    Ok(Access {
        space,
        address,
        unit: s.ty.bytes(),
        is_signed: s.ty.is_signed(),
        is_strong: s.is_strong,
    })
}

fn load(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let Some(s) = suffixes(i, rest)? else {
        return Ok(None);
    };
    check_count(i, 2)?;
    let access = access(decoder, i, &i.operands[1], &s, body)?;
    let dests = match &i.operands[0] {
        Operand::Vector(list) => list
            .iter()
            .map(|d| Ok(decoder.results(d, i, body)?[0]))
            .collect::<Result<Vec<_>>>()?,
        one => vec![Some(decoder.result(one, i, body)?)],
    };
    check_lanes(i, dests.len(), s.lanes)?;
    Ok(Some(Op::Load { access, dests }))
}

fn store(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let Some(s) = suffixes(i, rest)? else {
        return Ok(None);
    };
    check_count(i, 2)?;
    let access = access(decoder, i, &i.operands[0], &s, body)?;
    let sources: Vec<Reg> = match &i.operands[1] {
        Operand::Vector(list) => list
            .iter()
            .map(|v| decoder.source(v, s.ty, i, body))
            .collect::<Result<Vec<_>>>()?,
        one => vec![decoder.source(one, s.ty, i, body)?],
    };
    check_lanes(i, sources.len(), s.lanes)?;
    Ok(Some(Op::Store { access, sources }))
}

fn check_lanes(i: &Instruction, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(LoadError::new(
        i.line,
        format!("`{}`: expected {expected} registers, got {got}", i.opcode),
    ))
}

fn atomic(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    has_result: bool,
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let Some((last, middle)) = rest.split_last() else {
        return Ok(None);
    };
    let ty = type_of(last, i)?;
    let (mut space, mut found) = (Space::Generic, None);
    for part in middle {
        if let Some((_, op)) = ATOMIC_OPS.iter().find(|(name, _)| name == part) {
            found = Some(*op);
        } else if let Some((_, named)) = SPACES.iter().find(|(name, _)| name == part) {
            space = *named;
        } else {
            let known = ["relaxed", "acquire", "release", "acq_rel", "noftz"];
            if !known.contains(part) && !SCOPES.contains(part) {
                return Ok(None);
            }
        }
    }
    let Some(op) = found.filter(|op| has_atomic(*op, ty)) else {
        return Ok(None);
    };
    let num_values = if op == AtomicOp::Cas { 2 } else { 1 };
    check_count(i, usize::from(has_result) + 1 + num_values)?;
    let mut operands = i.operands.iter();
    let mut next = || {
        operands
            .next()
            .ok_or_else(|| LoadError::new(i.line, "operands"))
    };
    let dest = if has_result {
        decoder.results(next()?, i, body)?[0]
    } else {
        None
    };
    let s = Suffixes {
        space,
        lanes: 1,
        ty,
        is_strong: true,
    };
    let access = access(decoder, i, next()?, &s, body)?;
    let value = decoder.source(next()?, ty, i, body)?;
    let other = if num_values == 2 {
        decoder.source(next()?, ty, i, body)?
    } else {
        value
    };
    Ok(Some(Op::Atomic {
        access,
        ty,
        op,
        dest,
        value,
        other,
    }))
}

fn copy_async(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    match rest {
        ["commit_group"] => return Ok(Some(Op::CopyCommit)),
        ["wait_all"] => return Ok(Some(Op::CopyWait(None))),
        ["wait_group"] => {
            let Some(Operand::Integer(left)) = i.operands.first() else {
                return Err(LoadError::new(
                    i.line,
                    "cp.async.wait_group: expected a number of groups",
                ));
            };
            return Ok(Some(Op::CopyWait(Some(*left as u32))));
        }
        ["ca" | "cg", "shared" | "shared::cta", "global"] => {}
        ["ca" | "cg", "shared" | "shared::cta", "global", hint] if HINTS.contains(hint) => {}
        _ => return Ok(None),
    }
    let Some(Operand::Integer(bytes @ (4 | 8 | 16))) = i.operands.get(2) else {
        return Err(LoadError::new(
            i.line,
            "cp.async: expected 4, 8 or 16 bytes",
        ));
    };
    let (dest, _) = decoder.address(&i.operands[0], i, body)?;
    let (source, _) = decoder.address(&i.operands[1], i, body)?;
    let source_bytes = match i.operands.get(3) {
        Some(operand) => Some(decoder.source(operand, Type::U32, i, body)?),
        None => None,
    };
    Ok(Some(Op::CopyAsync {
        dest,
        source,
        bytes: *bytes as usize,
        source_bytes,
    }))
}

fn load_matrix(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    rest: &[&str],
    body: &mut Body<'_>,
) -> Result<Option<Op>> {
    let parts: Vec<&str> = rest.iter().copied().filter(|p| *p != "trans").collect();
    let is_transposed = parts.len() < rest.len();
    let (count, space) = match parts.as_slice() {
        [
            "sync",
            "aligned",
            "m8n8",
            count @ ("x1" | "x2" | "x4"),
            "shared" | "shared::cta",
            "b16",
        ] => (*count, Space::Shared),
        [
            "sync",
            "aligned",
            "m8n8",
            count @ ("x1" | "x2" | "x4"),
            "b16",
        ] => (*count, Space::Generic),
        _ => return Ok(None),
    };
    check_count(i, 2)?;
    let dests = registers(decoder, &i.operands[0], i, body)?;
    check_lanes(i, dests.len(), count[1..].parse().unwrap_or(0))?;
    let (address, _) = decoder.address(&i.operands[1], i, body)?;
    Ok(Some(Op::LoadMatrix {
        address,
        space,
        dests,
        is_transposed,
    }))
}

/// Registers of a vector operand, or the only one.
pub(super) fn registers(
    decoder: &mut Decoder<'_>,
    operand: &Operand,
    i: &Instruction,
    body: &Body<'_>,
) -> Result<Vec<Dest>> {
    match operand {
        Operand::Vector(list) => list.iter().map(|d| decoder.result(d, i, body)).collect(),
        one => Ok(vec![decoder.result(one, i, body)?]),
    }
}
