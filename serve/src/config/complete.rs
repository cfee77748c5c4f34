//! Holds a configuration against the model file, and fills in what it leaves out.

use lazybatch_graph::DType;

use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_version_policy::{Latest, PolicyChoice};
use crate::proto::{
    ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput, ModelTensorReshape,
    ModelVersionPolicy,
};

/// Most samples of a request to a model whose configuration does not say.
const MAX_BATCH_SIZE: i32 = 64;

/// Name of the input that takes text where the model has a tokenizer.
pub const TEXT_INPUT: &str = "text_input";
/// Name of the output that gives text.
pub const TEXT_OUTPUT: &str = "text_output";

/// What the model file says of an input or output.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type at the edge, where the configuration does not say.
    pub data_type: DataType,
    /// The type in which the program holds it.
    pub held: DType,
    /// Its first axis, behind that of samples, counts positions.
    pub is_sequence: bool,
    /// Its other axes.
    pub fixed: Vec<usize>,
    /// It is state that requests of a sequence hand on.
    pub is_carried: bool,
    /// The server fills it in, by where a request stands in its sequence, or by how it wants tokens
    /// chosen.
    pub is_control: bool,
}

impl Tensor {
    /// Whether requests bring it.
    pub fn is_own(&self) -> bool {
        !self.is_carried && !self.is_control
    }

    /// Dimensions of one sample; -1 for positions.
    pub fn dims(&self) -> Vec<i64> {
        let positions = self.is_sequence.then_some(-1);
        let fixed = self.fixed.iter().map(|&d| i64::try_from(d).unwrap_or(-1));
        positions.into_iter().chain(fixed).collect()
    }
}

/// What the model file says.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Inputs in the program's order.
    pub inputs: Vec<Tensor>,
    /// Outputs in the program's order.
    pub outputs: Vec<Tensor>,
    /// It reads text, by its tokenizer.
    pub reads_text: bool,
    /// It writes text.
    pub writes_text: bool,
}

/// Fills in inputs, outputs and the batch size of a configuration, and checks those that are
/// there. Says whether shapes at the edge begin with an axis of samples.
///
/// # Errors
/// A tensor that the model does not have, or of another type or shape.
pub fn complete(config: &mut ModelConfig, known: &Known) -> Result<bool> {
    let model = config.name.clone();
    if config.max_batch_size < 0 {
        let what = format!("model {model}: max_batch_size");
        return Err(Error::expected(what, "0 or more", config.max_batch_size));
    }
    let bare = config.input.is_empty() && config.output.is_empty();
    if bare && config.max_batch_size == 0 {
        config.max_batch_size = MAX_BATCH_SIZE;
    }
    // The batch size stands for the axis of samples; without one, dimensions show it or not.
    let by_size = config.max_batch_size > 0;
    let mut axis = by_size.then_some(false);
    for input in &config.input {
        let what = format!("model {model}: input {}", input.name);
        if input.name == TEXT_INPUT && known.reads_text {
            continue;
        }
        if known
            .inputs
            .iter()
            .any(|t| t.is_control && t.name == input.name)
        {
            let got = "one that the server fills in";
            return Err(Error::expected(what, "an input that requests bring", got));
        }
        let axes = (input.data_type, &input.dims[..], input.reshape.as_ref());
        check(&what, &known.inputs, &input.name, axes, &mut axis)?;
    }
    for output in &config.output {
        let what = format!("model {model}: output {}", output.name);
        if output.name == TEXT_OUTPUT && known.writes_text {
            continue;
        }
        let axes = (output.data_type, &output.dims[..], output.reshape.as_ref());
        check(&what, &known.outputs, &output.name, axes, &mut axis)?;
    }
    let axis = axis.unwrap_or(false);
    if config.input.is_empty() {
        let own = known.inputs.iter().filter(|t| t.is_own());
        config.input = own.map(|t| input(t, axis)).collect();
        if known.reads_text {
            config.input.push(ModelInput {
                name: TEXT_INPUT.into(),
                data_type: DataType::Bytes.config() as i32,
                dims: vec![1],
                optional: true,
                ..ModelInput::default()
            });
            config.input.iter_mut().for_each(|i| i.optional = true);
        }
    } else if let Some(missing) = missing(config, known) {
        let what = format!("model {model}: input {missing}");
        return Err(Error::expected(what, "it among the inputs", "nothing"));
    }
    if config.output.is_empty() {
        let own = known.outputs.iter().filter(|t| !t.is_carried);
        config.output = own.map(|t| output(t, axis)).collect();
        if known.writes_text {
            config.output.push(ModelOutput {
                name: TEXT_OUTPUT.into(),
                data_type: DataType::Bytes.config() as i32,
                dims: vec![1],
                ..ModelOutput::default()
            });
        }
    }
    Ok(by_size || axis)
}

/// For how long a sequence may be idle where a configuration does not say: as in Triton.
pub const SEQUENCE_IDLE_US: u64 = 1_000_000;

/// Fills in what clients of the protocol expect in any configuration that is answered, as it holds here:
/// which versions, one instance (a kind is `kind`), what is answered.
pub fn defaults(config: &mut ModelConfig, kind: Kind) {
    let latest = PolicyChoice::Latest(Latest { num_versions: 1 });
    config.version_policy.get_or_insert(ModelVersionPolicy {
        policy_choice: Some(latest),
    });
    config.optimization.get_or_insert_default();
    config.model_transaction_policy.get_or_insert_default();
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &mut config.scheduling_choice
        && batching.max_sequence_idle_microseconds == 0
    {
        batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_US;
    }
    let is_ensemble = matches!(
        config.scheduling_choice,
        Some(SchedulingChoice::EnsembleScheduling(_))
    );
    if config.instance_group.is_empty() && !is_ensemble {
        config.instance_group.push(ModelInstanceGroup {
            kind: kind as i32,
            count: 1,
            ..ModelInstanceGroup::default()
        });
    }
    for (i, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{i}", config.name);
        }
    }
}

/// Inputs that the configuration calls optional and the model needs, as paths. Those of a model that
/// reads text are: who brings the text leaves out the tokens, and the other way round. So is state.
pub fn not_optional(config: &ModelConfig, known: &Known) -> Vec<String> {
    if known.reads_text {
        return Vec::new();
    }
    let needed = |name: &str| known.inputs.iter().any(|t| t.name == name && t.is_own());
    let stated = config.input.iter().filter(|i| i.optional);
    stated
        .filter(|i| needed(&i.name))
        .map(|i| format!("input[{:?}].optional", i.name))
        .collect()
}

/// An input that the model needs and the configuration does not have.
fn missing<'a>(config: &ModelConfig, known: &'a Known) -> Option<&'a str> {
    let listed = |name: &str| config.input.iter().any(|i| i.name == name);
    let mut needed = known.inputs.iter().filter(|t| t.is_own());
    let text = known.reads_text && listed(TEXT_INPUT);
    let missing = needed.find(|t| !text && !listed(&t.name));
    missing.map(|t| t.name.as_str())
}

/// Dimensions as a configuration states them: with an axis of samples in front or without.
fn dims(tensor: &Tensor, axis: bool) -> Vec<i64> {
    axis.then_some(-1)
        .into_iter()
        .chain(tensor.dims())
        .collect()
}

fn input(tensor: &Tensor, axis: bool) -> ModelInput {
    ModelInput {
        name: tensor.name.clone(),
        data_type: tensor.data_type.config() as i32,
        dims: dims(tensor, axis),
        ..ModelInput::default()
    }
}

fn output(tensor: &Tensor, axis: bool) -> ModelOutput {
    ModelOutput {
        name: tensor.name.clone(),
        data_type: tensor.data_type.config() as i32,
        dims: dims(tensor, axis),
        ..ModelOutput::default()
    }
}

/// Checks one tensor; finds out whether dimensions begin with an axis of samples.
fn check(
    what: &str,
    known: &[Tensor],
    name: &str,
    (data_type, dims, reshape): (i32, &[i64], Option<&ModelTensorReshape>),
    axis: &mut Option<bool>,
) -> Result<()> {
    let Some(tensor) = known.iter().find(|t| t.name == name) else {
        let names: Vec<_> = known.iter().map(|t| t.name.as_str()).collect();
        let expected = format!("one of {}", names.join(", "));
        return Err(Error::expected(what, expected, name));
    };
    let stated = DataType::of_config(data_type);
    if !stated.is_some_and(|t| t.fits(tensor.held)) {
        let got = stated.map_or("TYPE_INVALID", DataType::name);
        let what = format!("{what}: data_type");
        let expected = format!("a type that goes into {}", tensor.held);
        return Err(Error::expected(what, expected, got));
    }
    let own = tensor.dims();
    let dims = reshape.map_or(Ok(dims), |r| reshaped(what, dims, &r.shape))?;
    let same = |dims: &[i64]| {
        let fits = |(&stated, &own): (&i64, &i64)| stated == own || stated == -1 || own == -1;
        dims.len() == own.len() && dims.iter().zip(&own).all(fits)
    };
    let has_axis = match dims {
        _ if same(dims) => false,
        [1] if own.is_empty() => false,
        [-1 | 1, rest @ ..] if same(rest) => true,
        _ => {
            let expected = format!("{own:?}, or with -1 for samples in front");
            return Err(Error::expected(
                format!("{what}: dims"),
                expected,
                format!("{dims:?}"),
            ));
        }
    };
    if has_axis && reshape.is_some() {
        let expected = "none where dims have an axis of samples: max_batch_size stands for it";
        return Err(Error::expected(format!("{what}: reshape"), expected, "one"));
    }
    match *axis {
        None => {
            *axis = Some(has_axis);
            Ok(())
        }
        Some(before) if before == has_axis => Ok(()),
        Some(_) => Err(Error::expected(
            format!("{what}: dims"),
            "an axis of samples in all tensors, or in none where max_batch_size stands for it",
            format!("{dims:?}"),
        )),
    }
}

/// The model's own dimensions of a tensor that requests and answers bring in others, `dims`.
fn reshaped<'a>(what: &str, dims: &[i64], shape: &'a [i64]) -> Result<&'a [i64]> {
    let count = |dims: &[i64]| {
        let dims = dims.iter().map(|&d| usize::try_from(d).ok());
        dims.collect::<Option<Vec<_>>>()
            .and_then(|dims| dtype::elements(&dims))
    };
    if count(dims).is_some_and(|num| count(shape) == Some(num)) {
        return Ok(shape);
    }
    let expected = format!("fixed sizes of as many elements as dims, {dims:?}");
    let got = format!("{shape:?}");
    Err(Error::expected(format!("{what}: reshape"), expected, got))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn known() -> Known {
        let tensor = |name: &str, data_type, held, is_sequence, fixed: &[usize]| Tensor {
            name: name.into(),
            data_type,
            held,
            is_sequence,
            fixed: fixed.to_vec(),
            is_carried: name == "state",
            is_control: false,
        };
        Known {
            inputs: vec![
                tensor("x", DataType::Fp32, DType::F32, true, &[3]),
                tensor("state", DataType::Fp32, DType::F32, false, &[2]),
            ],
            outputs: vec![tensor("y", DataType::Int64, DType::I32, false, &[5])],
            ..Known::default()
        }
    }

    fn completed(text: &str) -> Result<(ModelConfig, bool)> {
        let mut config = Config::parse("c", text).unwrap().proto;
        let batched = complete(&mut config, &known())?;
        Ok((config, batched))
    }

    #[test]
    fn an_empty_configuration_is_filled_in() {
        let (config, batched) = completed("name: \"m\"").unwrap();
        assert!(batched);
        assert_eq!(config.max_batch_size, MAX_BATCH_SIZE);
        assert_eq!(config.input.len(), 1, "state is no input of requests");
        assert_eq!(config.input[0].dims, [-1, 3]);
        assert_eq!(config.output[0].data_type, DataType::Int64.config() as i32);
    }

    #[test]
    fn what_clients_expect_in_any_configuration_is_there() {
        let filled = |text: &str| {
            let mut config = Config::parse("c", text).unwrap().proto;
            defaults(&mut config, Kind::Cpu);
            super::super::to_json("ModelConfig", &config)
        };
        let json = filled("name: \"m\"");
        assert_eq!(json["version_policy"]["latest"]["num_versions"], 1);
        assert_eq!(json["optimization"]["priority"], "PRIORITY_DEFAULT");
        assert_eq!(json["model_transaction_policy"]["decoupled"], false);
        assert_eq!(json["instance_group"][0]["name"], "m_0");
        assert_eq!(json["instance_group"][0]["kind"], "KIND_CPU");
        // What is stated stays.
        let json = filled(
            "name: \"m\" version_policy { all {} } model_transaction_policy { decoupled: true }
            instance_group [ { count: 2 kind: KIND_GPU }, { name: \"own\" } ]",
        );
        assert!(json["version_policy"].get("all").is_some());
        assert_eq!(json["model_transaction_policy"]["decoupled"], true);
        let groups = json["instance_group"].as_array().unwrap();
        let told = groups
            .iter()
            .map(|g| (g["name"].clone(), g["count"].clone()));
        let expected = [("m_0", 2), ("own", 0)].map(|(name, num)| (name.into(), num.into()));
        assert_eq!(told.collect::<Vec<_>>(), expected);
        let json = filled("name: \"m\" ensemble_scheduling {}");
        assert_eq!(json["instance_group"], serde_json::json!([]));
    }

    #[test]
    fn the_axis_of_samples_is_found() {
        let x = |dims: &str| format!("input {{ name: \"x\" data_type: TYPE_FP16 dims: {dims} }}");
        let batched = |text: String| completed(&text).map(|(_, batched)| batched);
        assert!(!batched(x("[-1, 3]")).unwrap());
        assert!(batched(x("[-1, -1, 3]")).unwrap());
        assert!(batched(x("[-1, 3]") + " max_batch_size: 4").unwrap());
        let (config, _) = completed(&x("[-1, -1, 3]")).unwrap();
        assert_eq!(config.output[0].dims, [-1, 5]);
    }

    #[test]
    fn dimensions_at_the_edge_may_be_others_of_as_many_elements() {
        let y = |dims: &str, shape: &str| {
            format!(
                "max_batch_size: 4 output {{ name: \"y\" data_type: TYPE_INT64 dims: {dims}
                 reshape {{ shape: {shape} }} }}"
            )
        };
        assert!(completed(&y("[5, 1]", "[5]")).is_ok());
        for (dims, shape, told) in [
            ("[4, 1]", "[5]", "as many elements as dims, [4, 1], got [5]"),
            ("[-1, 1]", "[5]", "fixed sizes"),
            ("[4]", "[4]", "expected [5]"),
        ] {
            let error = completed(&y(dims, shape)).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let unbatched = y("[5]", "[1, 5]").replace("max_batch_size: 4", "");
        let error = completed(&unbatched).unwrap_err().to_string();
        assert!(error.contains("an axis of samples"), "{error}");
    }

    #[test]
    fn inputs_that_the_model_needs_are_not_optional() {
        let text = "input { name: \"x\" data_type: TYPE_FP32 dims: [-1, 3] optional: true }
            input { name: \"state\" data_type: TYPE_FP32 dims: 2 optional: true }";
        let config = Config::parse("c", text).unwrap();
        assert_eq!(config.ignored, [""; 0], "it depends on the model");
        let mut known = known();
        let paths = not_optional(&config.proto, &known);
        assert_eq!(paths, ["input[\"x\"].optional"]);
        known.reads_text = true;
        assert_eq!(not_optional(&config.proto, &known), [""; 0]);
    }

    #[test]
    fn what_does_not_fit_the_model_is_refused() {
        let told = |text: &str| completed(text).unwrap_err().to_string();
        assert!(told("input { name: \"z\" }").contains("expected one of x, state, got z"));
        let message = told("name: \"m\" input { name: \"x\" data_type: TYPE_INT8 dims: [-1, 3] }");
        assert!(message.contains("goes into f32, got INT8"), "{message}");
        let message = told("input { name: \"x\" data_type: TYPE_FP32 dims: [-1, 4] }");
        assert!(message.contains("expected [-1, 3]"), "{message}");
        let message = told(
            "max_batch_size: 2 output { name: \"y\" data_type: TYPE_INT64 dims: 5 }
            input { name: \"state\" data_type: TYPE_FP32 dims: 2 }",
        );
        assert!(message.contains("input x"), "{message}");
    }
}
