//! Staging of request inputs and outputs, shared by the devices that compute.
//!
//! Invariant: what passes here cannot make a kernel index out of bounds.

use lazybatch_graph::{
    At, DType, Dim, InputDecl, Op, OutputDecl, Program, Repeat, Tensor, ValueId, WeightDecl,
    WeightSource,
};

use crate::device::OpenRequest;
use crate::error::Error;
use crate::inputs::validate_inputs;

/// Whether an input is a sequence.
pub fn is_sequence(decl: &InputDecl) -> bool {
    decl.ty.dims.contains(&Dim::Len)
}

/// Passes of a member through a `PerInputStep` block, or its length elsewhere.
pub fn passes(repeat: Repeat, input_len: usize) -> usize {
    match repeat {
        Repeat::PerInputStep { stride } => input_len.div_ceil(stride.max(1) as usize),
        Repeat::Once | Repeat::UntilStop { .. } => input_len,
    }
}

/// Position that a pass touches; none if the member is past its end.
pub fn touched(repeat: Repeat, at: At, step: usize, input_len: usize) -> Option<usize> {
    match at {
        At::Reverse => passes(repeat, input_len).checked_sub(step + 1),
        _ => Some(step),
    }
}

/// Refuses programs with nodes that compute no rows, or whose positions can run past a table that is
/// added to them.
///
/// # Errors
/// [`Error::Unsupported`] naming the first such node.
pub fn check_program(device: &str, program: &Program) -> Result<(), Error> {
    check_rows(device, program)?;
    check_tables(device, program)
}

/// Constants are one row whatever is batched: passes fold them before a device sees them.
fn check_rows(device: &str, program: &Program) -> Result<(), Error> {
    for node in &program.nodes {
        let constant = |&&v: &&ValueId| program.value(v).ty.lead().is_none();
        if let Some(&output) = node.outputs.iter().find(constant) {
            let op = format!("{:?}", node.op);
            let end = op.find([' ', '(']).unwrap_or(op.len());
            return Err(Error::Unsupported {
                device: device.to_owned(),
                node: node.name.clone(),
                op: op[..end].to_owned(),
                why: format!(
                    "an operand with rows, constants are to be folded; the result is {}",
                    program.value(output).ty
                ),
            });
        }
    }
    Ok(())
}

fn check_tables(device: &str, program: &Program) -> Result<(), Error> {
    let longest = program.length_input.and_then(|i| program.input(i).max_len);
    for block in &program.blocks {
        let positions = match block.repeat {
            Repeat::UntilStop { max } => Some(max as usize),
            Repeat::PerInputStep { stride } => longest.map(|n| n.div_ceil(stride.max(1) as usize)),
            Repeat::Once => longest,
        };
        for &id in &block.nodes {
            let node = program.node(id);
            let dims = |i: usize| program.value(node.inputs[i]).ty.fixed_dims();
            let (op, rows) = match node.op {
                Op::AddPosition => ("AddPosition", dims(1)[0]),
                // A column for each distance, on both sides.
                Op::Attention { bias: true, .. } => ("Attention", dims(3)[1].div_ceil(2)),
                _ => continue,
            };
            let needed = positions.unwrap_or(1);
            if rows < needed {
                return Err(Error::Unsupported {
                    device: device.to_owned(),
                    node: node.name.clone(),
                    op: op.into(),
                    why: format!("a table of {needed} positions, this one has {rows}"),
                });
            }
        }
    }
    Ok(())
}

/// Checks a request's inputs against the program and returns their elements, ids as the bits of
/// i32.
///
/// # Errors
/// [`Error::Input`] naming the first input that does not fit.
pub fn stage_inputs(program: &Program, open: &OpenRequest<'_>) -> Result<Vec<Vec<f32>>, Error> {
    let fail = |input: &str, expected: String, got: String| Error::Input {
        model: program.name.clone(),
        input: input.to_owned(),
        expected,
        got,
    };
    let shape = validate_inputs(program, open.inputs)?;
    if shape.input_len != open.input_len {
        let got = format!("{} positions", shape.input_len);
        return Err(fail("length", format!("{} positions", open.input_len), got));
    }
    if open.samples != shape.samples {
        return Err(fail(
            "samples",
            open.samples.to_string(),
            shape.samples.to_string(),
        ));
    }
    if open.samples > 1 && !is_static(program) {
        return Err(fail(
            "samples",
            "1, for a model over sequences".into(),
            open.samples.to_string(),
        ));
    }
    let lens = program
        .inputs
        .iter()
        .zip(open.inputs)
        .filter(|(decl, _)| is_sequence(decl));
    for (decl, tensor) in lens {
        if tensor.dims[0] != open.input_len as usize {
            let expected = format!("{} positions, as the driving input", open.input_len);
            return Err(fail(&decl.name, expected, tensor.dims[0].to_string()));
        }
    }
    Ok(open.inputs.iter().map(stage).collect())
}

/// Whether a request may bring more than one sample: no sequences, so that every sample takes the
/// same path.
pub fn is_static(program: &Program) -> bool {
    program.length_input.is_none()
        && !program.inputs.iter().any(is_sequence)
        && program.blocks.iter().all(|b| !b.repeat.is_loop())
        && !program
            .states
            .iter()
            .any(|s| matches!(s.kind, lazybatch_graph::StateKind::Sequence { .. }))
}

fn stage(tensor: &Tensor) -> Vec<f32> {
    if tensor.dtype.is_float() {
        return tensor.to_f32();
    }
    tensor
        .to_i32()
        .into_iter()
        .map(|id| f32::from_bits(id as u32))
        .collect()
}

/// A tensor of `dtype` from staged elements.
pub fn unstage(dtype: DType, dims: Vec<usize>, data: &[f32]) -> Tensor {
    let ids = || data.iter().map(|v| v.to_bits() as i32);
    match dtype {
        DType::I32 => Tensor::from_i32(&dims, &ids().collect::<Vec<_>>()),
        DType::I64 => {
            let bytes = ids().flat_map(|id| i64::from(id).to_le_bytes()).collect();
            Tensor::from_bytes(dtype, dims, bytes).expect("one element per id")
        }
        _ => Tensor::from_f32(&dims, data),
    }
}

/// The rows of an output from `from` on (all of an output without `len`), given its elements so far.
pub fn emitted(decl: &OutputDecl, data: &[f32], from: usize) -> Tensor {
    let row = decl.ty.row_elems();
    let rows = data.len() / row.max(1);
    let first = if decl.ty.dims.contains(&Dim::Len) {
        from.min(rows)
    } else {
        0
    };
    let dims = std::iter::once(rows - first)
        .chain(decl.ty.fixed_dims())
        .collect();
    unstage(decl.ty.dtype, dims, &data[first * row..])
}

/// The elements of a weight, ids as the bits of i32.
///
/// # Errors
/// A source of another size; no memory for one that is made.
pub fn weight_elements(decl: &WeightDecl) -> Result<Vec<f32>, String> {
    let num = decl.ty.row_elems();
    let elems = match &decl.source {
        WeightSource::Data(t) if !decl.ty.dtype.is_float() && !t.dtype.is_float() => t
            .to_i32()
            .into_iter()
            .map(|id| f32::from_bits(id as u32))
            .collect(),
        other => other
            .try_to_f32(num)
            .map_err(|e| format!("{} needs {num} elements: {e}", decl.ty))?,
    };
    if elems.len() != num {
        let got = elems.len();
        return Err(format!(
            "{} needs {num} elements, its source has {got}",
            decl.ty
        ));
    }
    Ok(elems)
}

/// How a node uses a weight operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// As it is.
    Plain,
    /// As the right side of a product.
    Right,
    /// As the filters of a convolution.
    Filters {
        /// Channel groups.
        groups: usize,
    },
}

impl WeightForm {
    /// How `op` uses operand number `operand`, if that is a weight.
    pub fn of(op: &Op, operand: usize) -> Self {
        match op {
            Op::Linear { .. } if operand == 1 => Self::Right,
            Op::LstmCell { ahead: false, .. } if matches!(operand, 1 | 2 | 4) => Self::Right,
            Op::LstmCell { ahead: true, .. } if matches!(operand, 1 | 3) => Self::Right,
            Op::GruCell { ahead: false, .. } if matches!(operand, 1 | 2) => Self::Right,
            Op::GruCell { ahead: true, .. } if operand == 1 => Self::Right,
            Op::Conv2d { groups, .. } if operand == 1 => Self::Filters { groups: *groups },
            _ => Self::Plain,
        }
    }
}
