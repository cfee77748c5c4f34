//! What the server adds to the requests of a sequence: control tensors and states.

use std::path::Path;

use lazybatch_graph::Tensor;

use super::{Known, KnownTensor};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::files::{file_in, regular};
use crate::proto::ModelSequenceBatching;
use crate::proto::model_sequence_batching::control::Kind;
use crate::proto::model_sequence_batching::initial_state::StateData;
use crate::proto::model_sequence_batching::{Control as Stated, ControlInput, InitialState, State};

/// Folder of `data_file`, in the model's folder.
const FOLDER: &str = "initial_state";

/// An input that tells where a request stands in its sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// Name of the input.
    pub name: String,
    /// What it tells.
    pub tells: Tells,
}

/// What a control input tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tells {
    /// Whether the request starts its sequence: the numbers for no and yes.
    Start([f32; 2]),
    /// Whether it ends it.
    End([f32; 2]),
    /// That there is a request.
    Ready([f32; 2]),
    /// The correlation id, up to [`i32::MAX`].
    CorrelationId,
}

impl Control {
    /// The controls of a configuration.
    ///
    /// # Errors
    /// One without its numbers, of an unknown kind, or stated twice.
    pub fn all(batching: &ModelSequenceBatching) -> Result<Vec<Self>> {
        let mut controls: Vec<Self> = Vec::new();
        for input in &batching.control_input {
            let what = format!("control_input {}", input.name);
            let [stated] = &input.control[..] else {
                return Err(Error::expected(what, "one control", input.control.len()));
            };
            let tells = Tells::of(&what, stated)?;
            let same = |c: &Self| {
                c.name == input.name
                    || std::mem::discriminant(&c.tells) == std::mem::discriminant(&tells)
            };
            if controls.iter().any(same) {
                return Err(Error::expected(
                    what,
                    "a name and a kind of its own",
                    "both again",
                ));
            }
            controls.push(Self {
                name: input.name.clone(),
                tells,
            });
        }
        Ok(controls)
    }

    /// Checks it against the model's input of its name, which becomes a control.
    ///
    /// # Errors
    /// No such input, one of more than one element, or of a type that does not hold its numbers.
    pub fn fit(&self, model: &str, known: &mut Known) -> Result<()> {
        let what = format!("model {model}: control_input {}", self.name);
        let names: Vec<_> = known.inputs.iter().map(|t| t.name.clone()).collect();
        let Some(tensor) = known.inputs.iter_mut().find(|t| t.name == self.name) else {
            let expected = format!("one of the inputs {}", names.join(", "));
            return Err(Error::expected(what, expected, &self.name));
        };
        if tensor.is_sequence || tensor.is_carried || tensor.fixed.iter().product::<usize>() != 1 {
            let got = format!("{:?}", tensor.dims());
            return Err(Error::expected(what, "an input of one element", got));
        }
        let whole = |v: &f32| v.fract() == 0.0;
        let fits = tensor.held.is_float()
            == match &self.tells {
                Tells::CorrelationId => false,
                Tells::Start(v) | Tells::End(v) | Tells::Ready(v) => {
                    tensor.held.is_float() || !v.iter().all(whole)
                }
            };
        if !fits {
            let expected = "an input of a type that holds its values";
            return Err(Error::expected(what, expected, tensor.held));
        }
        tensor.is_control = true;
        Ok(())
    }

    /// Its tensor for `num` samples of a request of `sequence`.
    ///
    /// # Errors
    /// A correlation id of more than 31 bits.
    pub fn tensor(
        &self,
        known: &KnownTensor,
        num: usize,
        (sequence, start, end): (u64, bool, bool),
    ) -> Result<Tensor> {
        let dims: Vec<usize> = [num]
            .into_iter()
            .chain(known.fixed.iter().copied())
            .collect();
        let value = match &self.tells {
            Tells::Start(v) => v[usize::from(start)],
            Tells::End(v) => v[usize::from(end)],
            Tells::Ready(v) => v[1],
            Tells::CorrelationId => {
                let id = i32::try_from(sequence).map_err(|_| {
                    let what = format!("sequence_id, which input '{}' takes", self.name);
                    Error::expected(what, "a number up to 2147483647", sequence)
                })?;
                return Ok(Tensor::from_i32(&dims, &vec![id; num]));
            }
        };
        Ok(match known.held.is_float() {
            true => Tensor::from_f32(&dims, &vec![value; num]),
            false => Tensor::from_i32(&dims, &vec![value as i32; num]),
        })
    }
}

impl Tells {
    fn of(what: &str, stated: &Stated) -> Result<Self> {
        let kind = Kind::try_from(stated.kind)
            .map_err(|_| Error::expected(what, "a known kind", stated.kind))?;
        if kind == Kind::ControlSequenceCorrid {
            let types = [
                DataType::Int32,
                DataType::Uint32,
                DataType::Int64,
                DataType::Uint64,
            ];
            let stated = DataType::of_config(stated.data_type);
            return match stated.filter(|t| types.contains(t)) {
                Some(_) => Ok(Self::CorrelationId),
                None => {
                    let got = stated.map_or("TYPE_INVALID", DataType::name);
                    let what = format!("{what}: data_type");
                    Err(Error::expected(what, "a type of whole numbers", got))
                }
            };
        }
        let lists = [
            stated.int32_false_true.iter().map(|&v| v as f32).collect(),
            stated.fp32_false_true.clone(),
            stated
                .bool_false_true
                .iter()
                .map(|&v| f32::from(v))
                .collect(),
        ];
        let given: Vec<&Vec<f32>> = lists.iter().filter(|l| !l.is_empty()).collect();
        let values = match given[..] {
            [list] => <[f32; 2]>::try_from(list.as_slice()).ok(),
            _ => None,
        };
        let values = values.ok_or_else(|| {
            let expected =
                "two values of one of int32_false_true, fp32_false_true, bool_false_true";
            Error::expected(what, expected, format!("{lists:?}"))
        })?;
        Ok(match kind {
            Kind::ControlSequenceStart => Self::Start(values),
            Kind::ControlSequenceEnd => Self::End(values),
            _ => Self::Ready(values),
        })
    }
}

/// Controls that are to tell correlation ids of a type that has more of them than can be told.
pub fn narrowed(batching: &ModelSequenceBatching) -> Vec<String> {
    let of_ids = |input: &&ControlInput| {
        let [control] = &input.control[..] else {
            return false;
        };
        let is_wide = DataType::of_config(control.data_type) != Some(DataType::Int32);
        control.kind() == Kind::ControlSequenceCorrid && is_wide
    };
    let inputs = batching.control_input.iter().filter(of_ids);
    inputs
        .map(|input| format!("ids above 2147483647 for control_input {}", input.name))
        .collect()
}

/// Checks what a configuration says of states against the tensors that the model carries.
///
/// # Errors
/// A state that the model does not carry, of another type or shape.
pub fn check_states(batching: &ModelSequenceBatching, known: &Known) -> Result<()> {
    for state in &batching.state {
        let both = [
            ("input_name", &state.input_name, &known.inputs),
            ("output_name", &state.output_name, &known.outputs),
        ];
        for (field, name, tensors) in both {
            check_state(state, field, name, tensors)?;
        }
    }
    Ok(())
}

fn check_state(state: &State, field: &str, name: &str, tensors: &[KnownTensor]) -> Result<()> {
    let what = format!("state {}", state.input_name);
    let mut carried = tensors.iter().filter(|t| t.is_carried);
    let Some(tensor) = carried.clone().find(|t| t.name == *name) else {
        let names: Vec<_> = carried.by_ref().map(|t| t.name.as_str()).collect();
        let expected = match names.is_empty() {
            true => "no state, for the model carries none".to_owned(),
            false => format!("one of those that the model carries, {}", names.join(", ")),
        };
        return Err(Error::expected(format!("{what}: {field}"), expected, name));
    };
    let data_type = DataType::of_config(state.data_type);
    // What is not stated is as in the model.
    if state.data_type != 0 && !data_type.is_some_and(|t| t.fits(tensor.held)) {
        let got = data_type.map_or("TYPE_INVALID", DataType::name);
        let expected = format!("a type that goes into {}, as {name} is", tensor.held);
        return Err(Error::expected(format!("{what}: data_type"), expected, got));
    }
    let own = tensor.dims();
    if !state.dims.is_empty() && !is_shape(&state.dims, &own) {
        let expected = format!("{own:?} of {name}, or those with 1 or -1 for samples");
        let got = format!("{:?}", state.dims);
        return Err(Error::expected(format!("{what}: dims"), expected, got));
    }
    Ok(())
}

/// Whether stated dimensions are a model's own, -1 standing for any. Files may have their axis of
/// samples at any place.
fn is_shape(stated: &[i64], own: &[i64]) -> bool {
    let fits = |stated: &[i64]| {
        let same = |(&stated, &own): (&i64, &i64)| stated == own || stated == -1 || own == -1;
        stated.len() == own.len() && stated.iter().zip(own).all(same)
    };
    let without = |at: usize| [&stated[..at], &stated[at + 1..]].concat();
    let mut samples = (0..stated.len()).filter(|&at| matches!(stated[at], 1 | -1));
    fits(stated) || samples.any(|at| fits(&without(at)))
}

/// States with which sequences start, by carried input: one sample each, zeros where nothing is
/// stated; `None` where nothing is stated at all.
///
/// # Errors
/// A state of the wrong type or size, a file that cannot be read.
pub fn initial_states(
    batching: &ModelSequenceBatching,
    known: &Known,
    folder: &Path,
) -> Result<Option<Vec<Tensor>>> {
    if batching.state.iter().all(|s| s.initial_state.is_empty()) {
        return Ok(None);
    }
    let carried = known.inputs.iter().filter(|t| t.is_carried);
    let states = carried.map(|tensor| {
        let state = batching.state.iter().find(|s| s.input_name == tensor.name);
        match state.map_or(&[][..], |s| &s.initial_state[..]) {
            [] => initial(tensor, None, folder),
            [stated] => initial(tensor, Some(stated), folder),
            more => {
                let what = format!("state {}: initial_state", tensor.name);
                Err(Error::expected(what, "one", more.len()))
            }
        }
    });
    states.collect::<Result<_>>().map(Some)
}

fn initial(tensor: &KnownTensor, stated: Option<&InitialState>, folder: &Path) -> Result<Tensor> {
    let dims: Vec<usize> = [1]
        .into_iter()
        .chain(tensor.fixed.iter().copied())
        .collect();
    let num: usize = dims.iter().product();
    let zeros = || match tensor.held.is_float() {
        true => Tensor::from_f32(&dims, &vec![0.0; num]),
        false => Tensor::from_i32(&dims, &vec![0; num]),
    };
    let Some(stated) = stated else {
        return Ok(zeros());
    };
    let what = format!("state {}: initial_state {}", tensor.name, stated.name);
    let own: Option<Vec<usize>> = stated.dims.iter().map(|&d| d.try_into().ok()).collect();
    if own.as_deref().and_then(dtype::elements) != Some(num) {
        let expected = format!("the elements of {:?}", tensor.fixed);
        let got = format!("{:?}", stated.dims);
        return Err(Error::expected(format!("{what}: dims"), expected, got));
    }
    let data_type = DataType::of_config(stated.data_type).filter(|t| t.fits(tensor.held));
    let data_type = data_type.ok_or_else(|| {
        let expected = format!("a type that goes into {}", tensor.held);
        Error::expected(format!("{what}: data_type"), expected, stated.data_type)
    })?;
    match &stated.state_data {
        Some(StateData::ZeroData(true)) => Ok(zeros()),
        Some(StateData::DataFile(file)) => {
            let path = file_in(&folder.join(FOLDER), &what, file)?;
            let bytes = regular(&path).and_then(|()| std::fs::read(&path));
            let bytes =
                bytes.map_err(|e| Error::expected(path.display(), "a file with the state", e))?;
            dtype::to_tensor(data_type, tensor.held, dims, &bytes.into())
                .map_err(|e| Error::Invalid(format!("{what}: {}: {e}", path.display())))
        }
        _ => Err(Error::expected(
            what,
            "zero_data: true or data_file",
            "neither",
        )),
    }
}

/// `num` samples like the one of `tensor`.
pub fn repeated(tensor: &Tensor, num: usize) -> Tensor {
    let mut dims = tensor.dims.clone();
    dims[0] = num;
    match tensor.dtype.is_float() {
        true => Tensor::from_f32(&dims, &tensor.to_f32().repeat(num)),
        false => Tensor::from_i32(&dims, &tensor.to_i32().repeat(num)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::proto::model_config::SchedulingChoice;

    fn controls(text: &str) -> Result<Vec<Control>> {
        let text = format!("sequence_batching {{ {text} }}");
        let config = Config::parse("c", &text).unwrap();
        assert_eq!(config.ignored, [""; 0]);
        match config.proto.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => Control::all(&batching),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ids_that_cannot_be_told_are_warned_about() {
        let told = |data_type: &str| {
            let text = format!(
                "sequence_batching {{ control_input {{ name: \"C\" control {{
                 kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} }} }}"
            );
            match Config::parse("c", &text).unwrap().proto.scheduling_choice {
                Some(SchedulingChoice::SequenceBatching(batching)) => narrowed(&batching),
                other => panic!("{other:?}"),
            }
        };
        let expected = ["ids above 2147483647 for control_input C"];
        for data_type in ["TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32"] {
            assert_eq!(told(data_type), expected);
        }
        assert_eq!(told("TYPE_INT32"), [""; 0]);
    }

    #[test]
    fn shapes_of_states_may_have_an_axis_of_samples_anywhere() {
        for stated in [
            &[2, 128][..],
            &[-1, 128],
            &[1, 2, 128],
            &[2, 1, 128],
            &[2, -1, 128],
            &[2, 128, 1],
        ] {
            assert!(is_shape(stated, &[2, 128]), "{stated:?}");
        }
        for stated in [
            &[][..],
            &[2],
            &[2, 64],
            &[128, 2],
            &[2, 2, 128],
            &[1, 1, 2, 128],
        ] {
            assert!(!is_shape(stated, &[2, 128]), "{stated:?}");
        }
        assert!(
            is_shape(&[7, 3], &[-1, 3]),
            "as many positions as there are"
        );
    }

    #[test]
    fn controls_are_read_and_what_is_wrong_with_them_is_told() {
        let start = "control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START ";
        let read = controls(&format!("{start} fp32_false_true: [0.5, 2] }} }}")).unwrap();
        let expected = Control {
            name: "S".into(),
            tells: Tells::Start([0.5, 2.0]),
        };
        assert_eq!(read, [expected]);
        for (text, told) in [
            (format!("{start} }} }}"), "two values of one"),
            (
                format!("{start} int32_false_true: [1] }} }}"),
                "two values of one",
            ),
            (
                format!("{start} int32_false_true: [0, 1] bool_false_true: [false, true] }} }}"),
                "two values of one",
            ),
            (
                "control_input { name: \"S\" }".into(),
                "expected one control, got 0",
            ),
            (
                "control_input { name: \"C\" control { kind: CONTROL_SEQUENCE_CORRID
                    data_type: TYPE_STRING } }"
                    .into(),
                "a type of whole numbers, got BYTES",
            ),
        ] {
            let error = controls(&text).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
