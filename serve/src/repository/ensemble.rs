//! Ensembles: models whose steps are other models of the repository.
//!
//! The programs of the steps are joined into one ([`lazybatch_graph::join()`]), which is served like
//! any other. What is checked here is what configurations say; what programs can is checked there.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use lazybatch_graph::{SharedProgram, Step, join};

use super::load::Loaded;
use super::texts::{OfStep, Texts};
use crate::config::Known;
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::host::Text;
use crate::model::Served;
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step as Stated;
use crate::repository::version::Version;

/// Platform of ensembles.
const PLATFORM: &str = "ensemble";

/// A model as a step of an ensemble.
pub struct Part {
    /// Its configuration, completed.
    config: ModelConfig,
    known: Known,
    program: SharedProgram,
    text: Option<Arc<dyn Text>>,
    /// Its requests belong to sequences.
    is_sequence: bool,
}

impl From<&Served> for Part {
    fn from(served: &Served) -> Self {
        Self {
            config: served.config.clone(),
            known: served.known.clone(),
            program: served.program.clone(),
            text: served.text.clone(),
            is_sequence: served.settings.sequences.is_some() || served.is_stateful(),
        }
    }
}

impl From<Version> for Part {
    fn from(version: Version) -> Self {
        let is_stateful = !version.program.carries.is_empty();
        Self {
            is_sequence: version.settings.sequences.is_some() || is_stateful,
            config: version.config,
            known: version.known,
            program: version.program,
            text: version.text,
        }
    }
}

/// The steps of an ensemble; `None` for other models.
///
/// # Errors
/// A platform that contradicts them.
pub fn steps(config: &ModelConfig) -> Result<Option<&[Stated]>> {
    let steps = match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(e)) => Some(&e.step[..]),
        _ => None,
    };
    match (steps, config.platform.as_str()) {
        (Some(steps), "" | PLATFORM) => Ok(Some(steps)),
        (Some(_), other) => {
            let what = "platform, beside ensemble_scheduling";
            Err(Error::expected(what, PLATFORM, other))
        }
        (None, PLATFORM) => {
            let expected = "steps, as the platform is ensemble";
            Err(Error::expected("ensemble_scheduling", expected, "none"))
        }
        (None, _) => Ok(None),
    }
}

/// Where a tensor is named, and as what.
struct Edge {
    place: String,
    data_type: DataType,
}

/// The program of an ensemble, whose version folder is `dir`; `part` gives a model by name and
/// stated version.
///
/// # Errors
/// What is wrong with a step, with its number, model and tensor.
pub fn load(
    dir: &Path,
    config: &ModelConfig,
    steps: &[Stated],
    part: &dyn Fn(&str, i64) -> Result<Part>,
) -> Result<(Loaded, Texts)> {
    if steps.is_empty() {
        let what = "ensemble_scheduling.step";
        return Err(Error::expected(what, "one or more", "none"));
    }
    let mut inputs: Vec<String> = config.input.iter().map(|i| i.name.clone()).collect();
    let mut outputs: Vec<String> = config.output.iter().map(|o| o.name.clone()).collect();
    for (what, names) in [("input", &inputs), ("output", &outputs)] {
        if names.is_empty() {
            return Err(Error::expected(what, "those of the ensemble", "none"));
        }
    }
    let mut parts = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        parts.push(check_step(config, i, step, part)?);
    }
    let joined = steps.iter().zip(&parts).enumerate();
    let joined = joined.map(|(i, (step, part))| Step {
        name: step_name(steps, i),
        program: &part.program,
        inputs: step.input_map.clone().into_iter().collect(),
        outputs: step.output_map.clone().into_iter().collect(),
    });
    let mut joined: Vec<Step<'_>> = joined.collect();
    let of_steps = steps.iter().zip(&parts).map(|(step, part)| OfStep {
        model: &step.model_name,
        known: &part.known,
        codec: part.text.as_ref(),
    });
    let of_steps: Vec<OfStep<'_>> = of_steps.collect();
    let texts = Texts::of_steps(&of_steps, &mut joined, &mut inputs, &mut outputs)?;
    check_types(config, steps, &parts)?;
    let program = join(&config.name, &inputs, &joined, &outputs);
    let mut program = program.map_err(|e| match e {
        lazybatch_graph::Error::Join {
            place,
            expected,
            got,
            ..
        } => Error::expected(place, expected, got),
        other => Error::Invalid(other.to_string()),
    })?;
    // Answers of several samples are filled up with it, where those that decode agree on it.
    let stops = parts
        .iter()
        .filter_map(|p| p.program.metadata.get("stop_token"));
    let stops: Vec<&String> = stops.collect();
    if let [first, rest @ ..] = &stops[..]
        && rest.iter().all(|s| s == first)
    {
        program
            .metadata
            .insert("stop_token".into(), (*first).clone());
    }
    Ok((Loaded::new(program, PLATFORM, dir), texts))
}

/// A step's name in the program: its model's, with its number where several run one model.
fn step_name(steps: &[Stated], at: usize) -> String {
    let name = &steps[at].model_name;
    let num = steps.iter().filter(|s| s.model_name == *name).count();
    if num == 1 {
        return name.clone();
    }
    format!("{name}#{at}")
}

/// The model of a step that may be one.
fn check_step(
    config: &ModelConfig,
    at: usize,
    step: &Stated,
    part: &dyn Fn(&str, i64) -> Result<Part>,
) -> Result<Part> {
    let model = &step.model_name;
    if model.is_empty() {
        let what = format!("step {at}: model_name");
        return Err(Error::expected(what, "the name of a model", "none"));
    }
    let place = format!("step {at}, model {model}");
    if !step.model_namespace.is_empty() {
        let what = format!("{place}: model_namespace");
        return Err(Error::expected(what, "none", &step.model_namespace));
    }
    for (what, map) in [
        ("input_map", &step.input_map),
        ("output_map", &step.output_map),
    ] {
        if map.is_empty() {
            let what = format!("{place}: {what}");
            return Err(Error::expected(what, "a tensor or more", "none"));
        }
    }
    let part = part(model, step.model_version);
    let part = part.map_err(|e| Error::Invalid(format!("{place}: {e}")))?;
    if part.is_sequence {
        let got = "one whose requests belong to sequences";
        return Err(Error::expected(place, "a model without sequences", got));
    }
    let policy = part.config.model_transaction_policy.as_ref();
    if policy.is_some_and(|p| p.decoupled) {
        let got = "one with model_transaction_policy.decoupled";
        let expected = "a model that answers once (an ensemble may be decoupled itself)";
        return Err(Error::expected(place, expected, got));
    }
    let most = part.config.max_batch_size;
    if most != 0 && most < config.max_batch_size {
        let what = format!("{place}: max_batch_size");
        let expected = format!("at least the ensemble's, {}", config.max_batch_size);
        return Err(Error::expected(what, expected, most));
    }
    Ok(part)
}

/// Checks that every tensor has one type wherever it is named, and that no step's type rounds what
/// is handed from step to step, where nothing is converted.
fn check_types(config: &ModelConfig, steps: &[Stated], parts: &[Part]) -> Result<()> {
    let mut edges: BTreeMap<&str, Vec<Edge>> = BTreeMap::new();
    let mut add = |tensor, place: String, code| {
        let data_type = DataType::of_config(code);
        let data_type = data_type.ok_or_else(|| {
            Error::expected(format!("{place}: data_type"), "a type", "TYPE_INVALID")
        })?;
        edges
            .entry(tensor)
            .or_default()
            .push(Edge { place, data_type });
        Ok::<(), Error>(())
    };
    for i in &config.input {
        add(&i.name, format!("input {}", i.name), i.data_type)?;
    }
    for o in &config.output {
        add(&o.name, format!("output {}", o.name), o.data_type)?;
    }
    for (at, (step, part)) in steps.iter().zip(parts).enumerate() {
        let model = &step.model_name;
        for (name, tensor) in sorted(&step.input_map) {
            if let Some(i) = part.config.input.iter().find(|i| i.name == *name) {
                let place = format!("step {at}, model {model}: input {name}: tensor {tensor}");
                add(tensor, place, i.data_type)?;
            }
        }
        for (name, tensor) in sorted(&step.output_map) {
            let Some(o) = part.config.output.iter().find(|o| o.name == *name) else {
                continue;
            };
            let place = format!("step {at}, model {model}: output {name}: tensor {tensor}");
            let is_read = steps
                .iter()
                .any(|s| s.input_map.values().any(|t| t == tensor));
            let data_type = DataType::of_config(o.data_type);
            let own = part.known.outputs.iter().find(|t| t.name == *name);
            let is_whole = data_type.is_some_and(|t| is_exact(t, own.map(|t| t.data_type)));
            if is_read && !is_whole {
                let what = format!("{place}: data_type");
                let expected = "a type that holds all that the model computes, as steps hand it on";
                let got = data_type.map_or("TYPE_INVALID", DataType::name);
                return Err(Error::expected(what, expected, got));
            }
            add(tensor, place, o.data_type)?;
        }
    }
    for all in edges.values() {
        let Some((first, rest)) = all.split_first() else {
            continue;
        };
        if let Some(other) = rest.iter().find(|e| e.data_type != first.data_type) {
            let what = format!("{}: data_type", other.place);
            let expected = format!("{}, as {}", first.data_type, first.place);
            return Err(Error::expected(what, expected, other.data_type));
        }
    }
    Ok(())
}

/// A map of a step in order of names, so that the same error is always told.
fn sorted(map: &HashMap<String, String>) -> Vec<(&String, &String)> {
    let mut all: Vec<_> = map.iter().collect();
    all.sort();
    all
}

/// Whether nothing is lost when a model's numbers are written as `stated`; `own` is the type of its
/// file.
fn is_exact(stated: DataType, own: Option<DataType>) -> bool {
    match stated {
        DataType::Fp32 | DataType::Fp64 | DataType::Int32 | DataType::Int64 => true,
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => false,
        other => own == Some(other),
    }
}
