//! Staging of request inputs and outputs, shared by the devices that compute.
//!
//! Invariant: what passes here cannot make a kernel index out of bounds.

use std::ops::Deref;

use lazybatch_graph::{
    At, Bytes, DType, Dim, InputDecl, Op, OutputDecl, Program, Repeat, Tensor, ValueId, WeightDecl,
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

/// Elements of a request's input, ids as the bits of an i32.
#[derive(Debug)]
pub enum Staged {
    /// Where the client put them.
    Kept(Tensor),
    /// Made of another type, or of elements that do not start on a whole word.
    Made(Vec<f32>),
}

impl Staged {
    /// Elements of a tensor.
    pub fn new(tensor: &Tensor) -> Self {
        // What was checked has to stay as it is, and a file may change.
        let may_change = matches!(tensor.data, Bytes::Mapped { .. });
        if !may_change && tensor.words().is_some() {
            return Self::Kept(tensor.clone());
        }
        if tensor.dtype.is_float() {
            return Self::Made(tensor.to_f32());
        }
        let ids = tensor.to_i32().into_iter();
        Self::Made(ids.map(|id| f32::from_bits(id as u32)).collect())
    }
}

impl Deref for Staged {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Kept(tensor) => tensor.words().unwrap_or_default(),
            Self::Made(elems) => elems,
        }
    }
}

/// Checks a request's inputs against the program and returns their elements.
///
/// # Errors
/// [`Error::Input`] naming the first input that does not fit.
pub fn stage_inputs(program: &Program, open: &OpenRequest<'_>) -> Result<Vec<Staged>, Error> {
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
    Ok(open.inputs.iter().map(Staged::new).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn is_kept(tensor: &Tensor) -> bool {
        let staged = Staged::new(tensor);
        let is_same = staged.as_ptr().cast() == tensor.data.as_slice().as_ptr();
        assert_eq!(matches!(staged, Staged::Kept(_)), is_same);
        is_same
    }

    fn bits(staged: &[f32]) -> Vec<i32> {
        staged.iter().map(|x| x.to_bits() as i32).collect()
    }

    #[test]
    fn elements_on_whole_words_are_not_copied_and_others_are_the_same() {
        let floats = [1.5, f32::NAN, -0.0];
        let there = Tensor::from_f32(&[3], &floats);
        assert_eq!(bits(&Staged::new(&there)), bits(&floats));
        assert_eq!(is_kept(&there), cfg!(target_endian = "little"));
        for skip in 0..4 {
            let mut shifted = there.clone();
            let copy: Vec<u8> = [&vec![7; skip][..], there.data.as_slice()].concat();
            shifted.data = Bytes::Shared(bytes::Bytes::from(copy).slice(skip..));
            assert_eq!(bits(&Staged::new(&shifted)), bits(&floats));
            let moved = shifted.clone().on_words();
            assert_eq!(bits(&Staged::new(&moved)), bits(&floats));
            assert_eq!(is_kept(&moved), cfg!(target_endian = "little"));
        }
    }

    #[test]
    fn what_lies_in_a_file_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("elements");
        let there = Tensor::from_f32(&[2], &[1.0, 2.0]);
        std::fs::write(&path, there.data.as_slice()).unwrap();
        let mapped = Tensor {
            data: Bytes::map(&path).unwrap(),
            ..there
        };
        assert!(!is_kept(&mapped));
        assert_eq!(*Staged::new(&mapped), [1.0, 2.0]);
    }

    #[test]
    fn ids_are_bits_of_i32_whatever_they_came_as() {
        let ids = [3, -1, i32::MAX];
        let wide = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes());
        let wide = Tensor::from_bytes(DType::I64, vec![3], wide.collect()).unwrap();
        for tensor in [Tensor::from_i32(&[3], &ids), wide] {
            assert_eq!(bits(&Staged::new(&tensor)), ids);
            let is_wide = tensor.dtype == DType::I64;
            assert_eq!(is_kept(&tensor), !is_wide && cfg!(target_endian = "little"));
        }
    }
}
