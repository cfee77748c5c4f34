//! Branches, calls and ends.

use super::{Body, Decoder, Names, Result};
use crate::ptx::LoadError;
use crate::ptx::ast::{Function, Instruction, Operand, Space};
use crate::ptx::program::{Op, Reg, RuntimeCall};
use crate::ptx::types::Type;

/// Label of what follows a body; no label of a text looks like it.
pub(super) const END: &str = "(end)";

/// Decodes an instruction that changes what runs next; `false` when it is none.
pub(super) fn branch(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    guard: Option<(Reg, bool)>,
    body: &mut Body<'_>,
) -> Result<bool> {
    let base = i.opcode.strip_suffix(".uni").unwrap_or(&i.opcode);
    match (base, i.operands.as_slice()) {
        ("bra", [Operand::Name(label)]) => {
            body.fixes.push((decoder.code.len(), vec![label.clone()]));
            decoder.emit(Op::Branch(0), guard, i.line);
        }
        ("brx.idx", [index, Operand::Name(table)]) => {
            let targets = body.tables.get(table.as_str()).copied();
            let labels = targets.map(|t| {
                t.operands.iter().filter_map(|o| match o {
                    Operand::Name(label) => Some(label.clone()),
                    _ => None,
                })
            });
            let Some(labels) = labels else {
                return Err(LoadError::new(
                    i.line,
                    format!("branch targets `{table}` are not known"),
                ));
            };
            body.fixes.push((decoder.code.len(), labels.collect()));
            let index = decoder.source(index, Type::U32, i, body)?;
            decoder.emit(
                Op::BranchIndexed {
                    index,
                    targets: Vec::new(),
                },
                guard,
                i.line,
            );
        }
        ("ret", []) if !body.function.is_entry => {
            body.fixes.push((decoder.code.len(), vec![END.to_owned()]));
            decoder.emit(Op::Branch(0), guard, i.line);
        }
        ("ret" | "exit", []) => decoder.emit(Op::Exit, guard, i.line),
        ("trap", []) => decoder.emit(Op::Trap, guard, i.line),
        ("call", operands) => call(decoder, i, operands, guard, body)?,
        _ => return Ok(false),
    }
    Ok(true)
}

impl Decoder<'_> {
    /// Fills in the targets of a body's branches.
    pub(super) fn resolve_labels(&mut self, body: &Body<'_>) -> Result<()> {
        for (at, labels) in &body.fixes {
            let line = self.code[*at].line;
            let find = |label: &String| {
                let found = body.labels.get(label.as_str()).copied();
                found.ok_or_else(|| LoadError::new(line, format!("label `{label}` is not known")))
            };
            let positions = labels.iter().map(find).collect::<Result<Vec<_>>>()?;
            match &mut self.code[*at].op {
                Op::Branch(target) => *target = positions[0],
                Op::BranchIndexed { targets, .. } => *targets = positions,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Puts the called function's body here.
fn call(
    decoder: &mut Decoder<'_>,
    i: &Instruction,
    operands: &[Operand],
    guard: Option<(Reg, bool)>,
    body: &mut Body<'_>,
) -> Result<()> {
    let (results, rest) = match operands {
        [Operand::Group(results), rest @ ..] => (results.as_slice(), rest),
        rest => (&[][..], rest),
    };
    let (name, arguments) = match rest {
        [Operand::Name(name), Operand::Group(arguments)] => (name, arguments.as_slice()),
        [Operand::Name(name)] => (name, &[][..]),
        _ => {
            return Err(LoadError::new(
                i.line,
                "only calls of named functions are known to the emulator",
            ));
        }
    };
    if let Some(call) = runtime_call(name, results, arguments, body) {
        decoder.emit(Op::Runtime(call), guard, i.line);
        return Ok(());
    }
    let module = decoder.module;
    let callee = module
        .functions
        .iter()
        .find(|f| f.name == *name && f.has_body && !f.is_entry);
    let Some(callee) = callee else {
        return Err(LoadError::new(
            i.line,
            format!("function `{name}` has no body here"),
        ));
    };
    if decoder.stack.contains(name) {
        return Err(LoadError::new(
            i.line,
            format!("call of `{name}`: recursion is not known to the emulator"),
        ));
    }
    if (results.len(), arguments.len()) != (callee.returns.len(), callee.params.len()) {
        return Err(LoadError::new(
            i.line,
            format!(
                "call of `{name}`: expected {} results and {} arguments, got {} and {}",
                callee.returns.len(),
                callee.params.len(),
                results.len(),
                arguments.len()
            ),
        ));
    }
    // Lanes for which the guard does not hold go around.
    let around = guard.map(|(reg, is_negated)| {
        decoder.emit(Op::Branch(0), Some((reg, !is_negated)), i.line);
        decoder.code.len() - 1
    });
    let mut names = Names::default();
    let passed = results
        .iter()
        .zip(&callee.returns)
        .chain(arguments.iter().zip(&callee.params));
    for (operand, formal) in passed {
        let Some(super::names::Name::Variable(Space::Local, offset)) = variable(operand, body)
        else {
            return Err(LoadError::new(
                i.line,
                format!("call of `{name}`: expected .param variables"),
            ));
        };
        names.variable(&formal.name, Space::Local, offset);
    }
    inline(decoder, callee, names)?;
    let after = decoder.code.len();
    if let Some(around) = around {
        decoder.code[around].op = Op::Branch(after);
    }
    Ok(())
}

/// A call of a function that the device's runtime has.
fn runtime_call(
    name: &str,
    results: &[Operand],
    arguments: &[Operand],
    body: &Body<'_>,
) -> Option<RuntimeCall> {
    let offset = |operand: &Operand| match variable(operand, body) {
        Some(super::names::Name::Variable(Space::Local, offset)) => Some(offset),
        _ => None,
    };
    match (name, results, arguments) {
        ("vprintf", [result], [format, values]) => Some(RuntimeCall::Print {
            format: offset(format)?,
            arguments: offset(values)?,
            result: offset(result)?,
        }),
        ("__assertfail", [], [message, file, line, _, _]) => Some(RuntimeCall::Assert {
            message: offset(message)?,
            file: offset(file)?,
            line: offset(line)?,
        }),
        _ => None,
    }
}

fn variable(operand: &Operand, body: &Body<'_>) -> Option<super::names::Name> {
    match operand {
        Operand::Name(name) => body.names.find(name),
        _ => None,
    }
}

fn inline(decoder: &mut Decoder<'_>, callee: &Function, names: Names) -> Result<()> {
    decoder.stack.push(callee.name.clone());
    let result = decoder.body(callee, names);
    decoder.stack.pop();
    result
}
