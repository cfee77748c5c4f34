//! Checks a request's inputs against its program, at the edge, before anything is queued.

use lazybatch_graph::{DType, Dim, InputDecl, Program, Sampling, Tensor};

use crate::error::Error;
use crate::validate::is_static;

/// What the inputs say about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputShape {
    /// Length of the sequence that drives the program; 0 without one.
    pub input_len: u32,
    /// Samples of the client's own batch; 1 for programs over sequences.
    pub samples: u32,
}

/// The inputs with that for sampling behind them, if just that is missing: the likeliest tokens.
pub fn with_sampling(program: &Program, mut given: Vec<Tensor>) -> Vec<Tensor> {
    if program.sampling().is_some() && given.len() + 1 == program.inputs.len() {
        // One for each sample of the others; one where a sequence says how long the request is.
        let samples = match program.length_input {
            Some(_) => 1,
            None => given
                .first()
                .map_or(1, |t| t.dims.first().copied().unwrap_or(1)),
        };
        given.push(Sampling::tensor(&vec![Sampling::default(); samples]));
    }
    given
}

/// Checks number, dtype, shape, length, ids and sampling of a request's inputs.
///
/// A sequence input is `[len, ...]` with `1 <= len <= max_len`; another one is `[samples, ...]`,
/// equal over all inputs and 1 for programs with a sequence or a loop. All sequences of a request
/// have one length. i64 is accepted for i32 where all elements fit. The rows of an input for sampling
/// have to be words of a [`Sampling`].
///
/// # Errors
/// [`Error::Input`] for the first input that does not fit.
pub fn validate_inputs(program: &Program, inputs: &[Tensor]) -> Result<InputShape, Error> {
    let fail = |input: &str, expected: String, got: String| Error::Input {
        model: program.name.clone(),
        input: input.to_string(),
        expected,
        got,
    };
    if inputs.len() != program.inputs.len() {
        let names: Vec<_> = program.inputs.iter().map(|i| i.name.as_str()).collect();
        return Err(fail(
            "(all)",
            format!("{} tensors ({})", names.len(), names.join(", ")),
            format!("{} tensors", inputs.len()),
        ));
    }
    let mut samples = None;
    let is_static = is_static(program);
    let driving = program
        .length_input
        .and_then(|id| inputs[id.index()].dims.first().copied());
    for (decl, tensor) in program.inputs.iter().zip(inputs) {
        let fail = |expected, got| fail(&decl.name, expected, got);
        check_dtype(decl, tensor).map_err(|(e, g)| fail(e, g))?;
        check_dims(decl, tensor).map_err(|(e, g)| fail(e, g))?;
        check_data(tensor).map_err(|(e, g)| fail(e, g))?;
        let n = tensor.dims[0];
        if is_sequence(decl) {
            if let Some(least) = program.least_len().filter(|&least| n < least) {
                return Err(fail(
                    format!("a length of at least {least}"),
                    format!("length {n}"),
                ));
            }
            if let Some(expected) = driving.filter(|&len| len != n) {
                let expected = format!("length {expected}, as the driving input");
                return Err(fail(expected, format!("length {n}")));
            }
        } else {
            let expected = if is_static {
                *samples.get_or_insert(n)
            } else {
                1
            };
            if n != expected {
                return Err(fail(format!("{expected} samples"), format!("{n} samples")));
            }
        }
        check_width(decl, tensor).map_err(|(e, g)| fail(e, g))?;
        check_ids(decl, tensor).map_err(|(e, g)| fail(e, g))?;
        check_sampling(decl, tensor).map_err(|(e, g)| fail(e, g))?;
    }
    let input_len = program
        .length_input
        .map_or(0, |id| inputs[id.index()].dims[0] as u32);
    Ok(InputShape {
        input_len,
        samples: samples.unwrap_or(1) as u32,
    })
}

fn is_sequence(decl: &InputDecl) -> bool {
    decl.ty.dims.first() == Some(&Dim::Len)
}

type Mismatch = Result<(), (String, String)>;

fn check_dtype(decl: &InputDecl, tensor: &Tensor) -> Mismatch {
    let ids = decl.ty.dtype == DType::I32 && tensor.dtype == DType::I64;
    if tensor.dtype == decl.ty.dtype || ids {
        return Ok(());
    }
    Err((
        format!("dtype {}", decl.ty.dtype),
        format!("dtype {}", tensor.dtype),
    ))
}

/// Its fields are public, so that data may be of another shape.
fn check_data(tensor: &Tensor) -> Mismatch {
    let mut dims = tensor.dims.iter();
    let elems = dims.try_fold(1_usize, |product, &d| product.checked_mul(d));
    let bytes = elems.and_then(|e| e.checked_mul(tensor.dtype.size()));
    if bytes == Some(tensor.data.as_slice().len()) {
        return Ok(());
    }
    let expected = bytes.map_or("fewer elements".into(), |b| format!("{b} bytes of data"));
    let (dtype, dims) = (tensor.dtype, &tensor.dims);
    Err((
        format!("{expected} for {dtype} {dims:?}"),
        format!("{} bytes", tensor.data.as_slice().len()),
    ))
}

fn check_dims(decl: &InputDecl, tensor: &Tensor) -> Mismatch {
    let fixed = decl.ty.fixed_dims();
    let sequence = is_sequence(decl);
    let lead = if sequence { "len" } else { "samples" };
    if tensor.dims.len() != fixed.len() + 1 || tensor.dims[1..] != fixed[..] {
        let dims: Vec<String> = std::iter::once(lead.to_string())
            .chain(fixed.iter().map(ToString::to_string))
            .collect();
        return Err((
            format!("shape [{}]", dims.join(", ")),
            format!("shape {:?}", tensor.dims),
        ));
    }
    let n = tensor.dims[0];
    if n == 0 {
        return Err((format!("at least 1 for {lead}"), "an empty tensor".into()));
    }
    match decl.max_len {
        Some(max) if sequence && n > max => {
            Err((format!("a length of at most {max}"), format!("length {n}")))
        }
        _ => Ok(()),
    }
}

/// What a program holds as i32 fits in one, whatever the request brings it as.
fn check_width(decl: &InputDecl, tensor: &Tensor) -> Mismatch {
    if decl.ty.dtype != DType::I32 || tensor.dtype != DType::I64 {
        return Ok(());
    }
    let bytes = tensor.data.as_slice().as_chunks::<8>().0;
    let mut values = bytes.iter().map(|b| i64::from_le_bytes(*b)).enumerate();
    match values.find(|(_, v)| i32::try_from(*v).is_err()) {
        Some((i, v)) => Err((
            "whole numbers of 32 bits".into(),
            format!("{v} as element {i}"),
        )),
        None => Ok(()),
    }
}

fn check_ids(decl: &InputDecl, tensor: &Tensor) -> Mismatch {
    let Some(bound) = decl.id_bound else {
        return Ok(());
    };
    match tensor
        .to_i32()
        .iter()
        .find(|&&id| id < 0 || id as usize >= bound)
    {
        Some(id) => Err((format!("ids in 0..{bound}"), format!("id {id}"))),
        None => Ok(()),
    }
}

fn check_sampling(decl: &InputDecl, tensor: &Tensor) -> Mismatch {
    if !decl.is_sampling {
        return Ok(());
    }
    let words = tensor.to_i32();
    let mut rows = words.chunks(Sampling::WORDS);
    rows.try_for_each(|row| Sampling::of_words(row).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_graph::{InputId, TensorType};

    fn program() -> Program {
        Program {
            name: "p".into(),
            inputs: vec![InputDecl {
                name: "tokens".into(),
                ty: TensorType::new(DType::I32, [Dim::Len]),
                max_len: Some(4),
                id_bound: Some(10),
                is_sampling: false,
            }],
            length_input: Some(InputId::new(0)),
            ..Program::default()
        }
    }

    #[test]
    fn good_inputs_give_length_and_samples() {
        let shape = validate_inputs(&program(), &[Tensor::from_i32(&[3], &[1, 9, 0])]);
        assert_eq!(
            shape,
            Ok(InputShape {
                input_len: 3,
                samples: 1
            })
        );
    }

    #[test]
    fn each_mismatch_names_input_expected_and_got() {
        let check = |inputs: &[Tensor], needle: &str| {
            let error = validate_inputs(&program(), inputs)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(needle), "{error:?} lacks {needle:?}");
        };
        check(&[], "expected 1 tensors (tokens), got 0 tensors");
        check(
            &[Tensor::from_f32(&[1], &[1.0])],
            "input tokens: expected dtype i32, got dtype f32",
        );
        check(
            &[Tensor::from_i32(&[1, 2], &[1, 2])],
            "expected shape [len], got shape [1, 2]",
        );
        check(&[Tensor::from_i32(&[0], &[])], "an empty tensor");
        check(
            &[Tensor::from_i32(&[5], &[1; 5])],
            "a length of at most 4, got length 5",
        );
        check(
            &[Tensor::from_i32(&[2], &[1, 10])],
            "ids in 0..10, got id 10",
        );
        check(&[Tensor::from_i32(&[2], &[1, -1])], "got id -1");
    }

    #[test]
    fn wide_numbers_are_refused_by_place_and_value() {
        let mut program = program();
        program.inputs[0].id_bound = None;
        let wide = |v: [i64; 3]| {
            let bytes = v.iter().flat_map(|v| v.to_le_bytes()).collect();
            let tensor = Tensor::from_bytes(DType::I64, vec![3], bytes).expect("three elements");
            validate_inputs(&program, &[tensor])
        };
        let (least, most) = (i64::from(i32::MIN), i64::from(i32::MAX));
        assert!(wide([least, 0, most]).is_ok());
        for (v, i) in [([0, most + 1, 0], 1), ([0, 0, least - 1], 2)] {
            let error = wide(v).expect_err("refused").to_string();
            let told = format!(
                "input tokens: expected whole numbers of 32 bits, got {} as element {i}",
                v[i]
            );
            assert!(error.contains(&told), "{error:?} lacks {told:?}");
        }
    }

    #[test]
    fn samples_must_agree_and_be_one_beside_a_sequence() {
        let decl = |name: &str| InputDecl {
            name: name.into(),
            ty: TensorType::new(DType::F32, [Dim::Batch, Dim::Fixed(2)]),
            max_len: None,
            id_bound: None,
            is_sampling: false,
        };
        let mut program = Program {
            name: "p".into(),
            inputs: vec![decl("a"), decl("b")],
            ..Program::default()
        };
        let (one, three) = (
            Tensor::from_f32(&[1, 2], &[0.0; 2]),
            Tensor::from_f32(&[3, 2], &[0.0; 6]),
        );
        let shape = validate_inputs(&program, &[three.clone(), three.clone()]);
        assert_eq!(
            shape,
            Ok(InputShape {
                input_len: 0,
                samples: 3
            })
        );
        assert!(validate_inputs(&program, &[three.clone(), one]).is_err());
        program.inputs[1].ty = TensorType::new(DType::F32, [Dim::Len, Dim::Fixed(2)]);
        program.length_input = Some(InputId::new(1));
        assert!(validate_inputs(&program, &[three.clone(), three]).is_err());
    }

    #[test]
    fn how_tokens_are_chosen_may_be_left_out_and_is_checked() {
        let mut program = program();
        program.inputs.push(InputDecl {
            name: "sampling".into(),
            ty: TensorType::fixed(DType::I32, &[Sampling::WORDS]),
            max_len: None,
            id_bound: None,
            is_sampling: true,
        });
        let ids = Tensor::from_i32(&[3], &[1, 9, 0]);
        let all = with_sampling(&program, vec![ids.clone()]);
        assert_eq!(
            (&all[1].dims[..], all[1].to_i32()),
            (&[1, 4][..], vec![0; 4])
        );
        assert!(validate_inputs(&program, &all).is_ok());
        let hot = Sampling {
            temperature: 200.0,
            ..Sampling::default()
        };
        let kept = with_sampling(&program, vec![ids, Sampling::tensor(&[hot])]);
        assert_eq!(kept.len(), 2);
        let error = validate_inputs(&program, &kept).unwrap_err().to_string();
        let told = "input sampling: expected a temperature of 0 to 100, got 200";
        assert!(error.contains(told), "{error}");
    }
}
