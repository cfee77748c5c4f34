//! Ensembles: models whose steps are other models of the repository.
//!
//! The programs of the steps are joined into one ([`lazybatch_graph::join()`]), which is served like
//! any other. What is checked here is what configurations say; what programs can is checked there.
//! Steps that are wired soundly and that one program cannot express are a [`Chain`].

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Weak};

use lazybatch_graph::{Program, SharedProgram, Step, join};

use super::load::Loaded;
use super::texts::{OfStep, Texts};
use crate::chain::{Candidate, Chain, place, told};
use crate::config::Known;
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::host::Text;
use crate::model::{Runs, Served};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step as Stated;
use crate::repository::version::{Plan, Version};

/// Platform of ensembles.
pub const PLATFORM: &str = "ensemble";

/// A model as a step of an ensemble.
pub struct Part {
    /// Its configuration, completed.
    config: ModelConfig,
    known: Known,
    /// What it runs, or why it is no program.
    program: std::result::Result<SharedProgram, String>,
    text: Option<Arc<dyn Text>>,
    /// Its requests belong to sequences.
    is_sequence: bool,
    /// What clients call by its name and version, if that is served.
    pub served: Option<Arc<Served>>,
}

impl From<Arc<Served>> for Part {
    fn from(served: Arc<Served>) -> Self {
        Self {
            config: served.config.clone(),
            known: served.known.clone(),
            program: match &served.runs {
                Runs::Program(own) => Ok(own.program.clone()),
                Runs::Chain(chain) => Err(chain.why.clone()),
            },
            text: served.text.clone(),
            is_sequence: served.is_sequence() || served.is_stateful(),
            served: Some(served),
        }
    }
}

impl From<Version> for Part {
    fn from(version: Version) -> Self {
        let program = match version.plan {
            Plan::Program(program) => Ok(program),
            Plan::Chain(chain) => Err(chain.why),
        };
        let is_stateful = program.as_ref().is_ok_and(|p| !p.carries.is_empty());
        Self {
            is_sequence: version.settings.sequences.is_some() || is_stateful,
            config: version.config,
            known: version.known,
            program,
            text: version.text,
            served: None,
        }
    }
}

/// What an ensemble becomes.
pub enum Made {
    /// One program, its text, and what its steps are served as.
    Program(Box<Loaded>, Texts, Vec<Weak<Served>>),
    /// A chain of its steps.
    Chain(Chain),
}

/// Why steps are not joined.
pub enum Refusal {
    /// They are wrong, whatever runs them.
    Wrong(Error),
    /// One program cannot express them.
    Apart(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
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

/// The program of an ensemble, whose version folder is `dir`, or the chain that it is; `part` gives a
/// model by name and stated version.
///
/// # Errors
/// What is wrong with a step, with its number, model and tensor.
pub fn load(
    dir: &Path,
    config: &ModelConfig,
    steps: &[Stated],
    part: &dyn Fn(&str, i64) -> Result<Part>,
) -> Result<Made> {
    if steps.is_empty() {
        let what = "ensemble_scheduling.step";
        return Err(Error::expected(what, "one or more", "none"));
    }
    let num = [
        ("input", config.input.len()),
        ("output", config.output.len()),
    ];
    for (what, num) in num {
        if num == 0 {
            return Err(Error::expected(what, "those of the ensemble", "none"));
        }
    }
    let mut parts = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        parts.push(check_step(config, i, step, part)?);
    }
    let why = match joined(config, steps, &parts) {
        Ok((program, texts)) => {
            let loaded = Box::new(Loaded::new(program, PLATFORM, dir));
            let served = parts.iter().map(|part| part.served.as_ref());
            let served = served.map(|s| s.map_or_else(Weak::new, Arc::downgrade));
            return Ok(Made::Program(loaded, texts, served.collect()));
        }
        Err(Refusal::Wrong(error)) => return Err(error),
        Err(Refusal::Apart(why)) => why,
    };
    check_types(config, steps, &parts)?;
    let links = parts.into_iter().enumerate().map(|(i, part)| Candidate {
        name: step_name(steps, i),
        stated: &steps[i],
        served: part.served,
    });
    let links: Vec<Candidate<'_>> = links.collect();
    Chain::of(config, &links, &why).map(Made::Chain)
}

/// The one program of an ensemble's steps.
fn joined(
    config: &ModelConfig,
    steps: &[Stated],
    parts: &[Part],
) -> std::result::Result<(Program, Texts), Refusal> {
    let mut inputs: Vec<String> = config.input.iter().map(|i| i.name.clone()).collect();
    let mut outputs: Vec<String> = config.output.iter().map(|o| o.name.clone()).collect();
    let mut joined = Vec::with_capacity(steps.len());
    for (i, (step, part)) in steps.iter().zip(parts).enumerate() {
        joined.push(Step {
            name: step_name(steps, i),
            program: program(i, step, part)?,
            inputs: step.input_map.clone().into_iter().collect(),
            outputs: step.output_map.clone().into_iter().collect(),
        });
    }
    let of_steps = steps.iter().zip(parts).map(|(step, part)| OfStep {
        model: &step.model_name,
        known: &part.known,
        codec: part.text.as_ref(),
    });
    let of_steps: Vec<OfStep<'_>> = of_steps.collect();
    let texts = Texts::of_steps(&of_steps, &mut joined, &mut inputs, &mut outputs)?;
    check_types(config, steps, parts)?;
    check_exact(steps, parts).map_err(Refusal::Apart)?;
    let program = join(&config.name, &inputs, &joined, &outputs);
    let mut program = program.map_err(|e| match e {
        lazybatch_graph::Error::Apart { .. } => Refusal::Apart(told(e)),
        other => Refusal::Wrong(told(other)),
    })?;
    // Answers of several samples are filled up with it, where those that decode agree on it.
    let stops = joined
        .iter()
        .filter_map(|s| s.program.metadata.get("stop_token"));
    let stops: Vec<&String> = stops.collect();
    if let [first, rest @ ..] = &stops[..]
        && rest.iter().all(|s| s == first)
    {
        program
            .metadata
            .insert("stop_token".into(), (*first).clone());
    }
    Ok((program, texts))
}

/// The program of a step that can be a part of another.
fn program<'a>(
    at: usize,
    step: &Stated,
    part: &'a Part,
) -> std::result::Result<&'a SharedProgram, Refusal> {
    let apart = |expected, got: String| {
        let place = place(at, step);
        Err(Refusal::Apart(Error::expected(place, expected, got)))
    };
    if part.is_sequence {
        let got = "one whose requests belong to sequences";
        return apart("a model without sequences", got.to_owned());
    }
    match &part.program {
        Ok(program) => Ok(program),
        Err(why) => apart("one program", format!("a chain, as {why}")),
    }
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
    let place = place(at, step);
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

/// Checks that every tensor has one type wherever it is named.
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

/// Checks that no step's type rounds what is handed from step to step, where nothing is converted.
fn check_exact(steps: &[Stated], parts: &[Part]) -> Result<()> {
    for (at, (step, part)) in steps.iter().zip(parts).enumerate() {
        for (name, tensor) in sorted(&step.output_map) {
            let mut readers = steps.iter().flat_map(|s| s.input_map.values());
            let stated = part.config.output.iter().find(|o| o.name == *name);
            let Some(stated) = stated.filter(|_| readers.any(|t| t == tensor)) else {
                continue;
            };
            let data_type = DataType::of_config(stated.data_type);
            let own = part.known.outputs.iter().find(|t| t.name == *name);
            if !data_type.is_some_and(|t| is_exact(t, own.map(|t| t.data_type))) {
                let place = place(at, step);
                let what = format!("{place}: output {name}: tensor {tensor}: data_type");
                let expected = "a type that holds all that the model computes, as steps hand it on";
                let got = data_type.map_or("TYPE_INVALID", DataType::name);
                return Err(Error::expected(what, expected, got));
            }
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
