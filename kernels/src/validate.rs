//! Checks and staging of request inputs, shared by the devices that compute.
//!
//! Invariant: what passes here cannot make a kernel index out of bounds.

use lazybatch_graph::{DType, Dim, InputDecl, Program, Repeat, Tensor};

use crate::device::OpenRequest;
use crate::error::Error;

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
    if open.inputs.len() != program.inputs.len() {
        let names: Vec<&str> = program.inputs.iter().map(|i| i.name.as_str()).collect();
        return Err(fail(
            "list",
            format!("{} inputs ({})", names.len(), names.join(", ")),
            format!("{}", open.inputs.len()),
        ));
    }
    if open.samples == 0 {
        return Err(fail("samples", "at least 1".into(), "0".into()));
    }
    if open.samples > 1 && !is_static(program) {
        return Err(fail(
            "samples",
            "1, for a model over sequences".into(),
            open.samples.to_string(),
        ));
    }
    let staged = program.inputs.iter().zip(open.inputs).map(|(decl, tensor)| {
        check_shape(decl, tensor, open).map_err(|(e, g)| fail(&decl.name, e, g))?;
        stage(decl, tensor).map_err(|(e, g)| fail(&decl.name, e, g))
    });
    staged.collect()
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

type Mismatch = (String, String);

fn check_shape(decl: &InputDecl, tensor: &Tensor, open: &OpenRequest<'_>) -> Result<(), Mismatch> {
    let fixed = decl.ty.fixed_dims();
    let got = || format!("{}{:?}", tensor.dtype, tensor.dims);
    let lead = tensor.dims.first().copied().unwrap_or(0);
    let fits = tensor.dims.len() == fixed.len() + 1 && tensor.dims[1..] == fixed[..];
    if is_sequence(decl) {
        if !fits {
            return Err((decl.ty.to_string(), got()));
        }
        let max = decl.max_len.unwrap_or(usize::MAX);
        if lead == 0 || lead > max {
            return Err((format!("1 to {max} positions"), lead.to_string()));
        }
        if lead != open.input_len as usize {
            return Err((format!("{} positions", open.input_len), lead.to_string()));
        }
    } else if !fits || lead != open.samples as usize {
        let dims: Vec<usize> = std::iter::once(open.samples as usize).chain(fixed).collect();
        return Err((format!("{}{dims:?}", decl.ty.dtype), got()));
    }
    Ok(())
}

fn stage(decl: &InputDecl, tensor: &Tensor) -> Result<Vec<f32>, Mismatch> {
    let is_id = |d: DType| matches!(d, DType::I8 | DType::I32 | DType::I64);
    let accepted = match decl.ty.dtype {
        DType::I32 | DType::I64 => matches!(tensor.dtype, DType::I32 | DType::I64),
        other => tensor.dtype == other,
    };
    if !accepted {
        return Err((decl.ty.dtype.to_string(), tensor.dtype.to_string()));
    }
    if !is_id(decl.ty.dtype) {
        return Ok(tensor.to_f32());
    }
    let ids = tensor.to_i32();
    if let Some(bound) = decl.id_bound
        && let Some(bad) = ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= bound))
    {
        return Err((format!("ids in 0..{bound}"), bad.to_string()));
    }
    Ok(ids.into_iter().map(|id| f32::from_bits(id as u32)).collect())
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
