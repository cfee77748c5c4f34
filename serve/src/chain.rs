//! Ensembles that one program cannot express: chains of the versions that their steps are.
//!
//! What is checked here is the wiring, by names and by shapes as far as configurations state them;
//! what types tensors have is checked before. How a request runs is in [`crate::infer`].
//!
//! Invariants:
//! 1. A chain holds the versions of its steps that were served when it was loaded, so it is served
//!    whatever becomes of them in the repository.
//! 2. Each link reads inputs of the chain, and what links before it make.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lazybatch_graph::{Ports, Source, Wires};

use crate::config::{Known, TEXT_INPUT, TEXT_OUTPUT};
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::model::{Runs, Served};
use crate::proto::ModelConfig;
use crate::proto::model_ensembling::Step as Stated;

/// Parameters of a configuration that mean something to an engine alone.
const OF_ENGINES: [&str; 11] = [
    "engine",
    "policy",
    "max_queue",
    "max_sequences",
    "max_batch",
    "memory_bytes",
    "max_steps",
    "profile",
    "segments",
    "residency",
    "limit",
];

/// A tensor of a chain: its inputs in the order of the configuration, then what its links make.
pub type TensorIdx = usize;

/// Steps that are called one behind the other.
pub struct Chain {
    /// Why they are not one program.
    pub why: String,
    /// The steps, each behind those that it reads from.
    pub links: Vec<Link>,
    /// Tensors that its outputs are, in the order of the configuration.
    pub outputs: Vec<TensorIdx>,
    /// How many tensors there are.
    pub num_tensors: usize,
}

/// What a request needs of a chain.
pub struct Needs {
    /// Whether it needs each of the links.
    pub links: Vec<bool>,
    /// How many of their inputs read each tensor, and outputs that are wanted are it.
    pub readers: Vec<usize>,
}

/// A step.
pub struct Link {
    /// Number of the step, as the configuration states it, and name of its model.
    pub place: String,
    /// What is called.
    pub served: Arc<Served>,
    /// Tensors that it reads, and the inputs as which it does.
    pub reads: Vec<Port>,
    /// Tensors that it makes, and the outputs as which it does.
    pub makes: Vec<Port>,
}

/// An input or output of a step, wired.
pub struct Port {
    /// Its name.
    pub name: String,
    /// The tensor.
    pub tensor: TensorIdx,
    /// Number of its axes.
    pub rank: usize,
}

/// A step of an ensemble that may become a link.
pub struct Candidate<'a> {
    /// Its name, its own.
    pub name: String,
    /// As the configuration states it.
    pub stated: &'a Stated,
    /// What its model is served as, if it is.
    pub served: Option<Arc<Served>>,
}

impl Chain {
    /// The chain of an ensemble's steps, which are not one program because of `why`.
    ///
    /// # Errors
    /// Wiring that is not sound, a step that is not served.
    pub fn of(config: &ModelConfig, steps: &[Candidate<'_>], why: &Error) -> Result<Self> {
        let policy = config.model_transaction_policy.as_ref();
        if policy.is_some_and(|p| p.decoupled) {
            let what = "model_transaction_policy.decoupled";
            let got = format!("steps that are not: {why}");
            return Err(Error::expected(what, "steps that are one program", got));
        }
        let ins = config.input.iter().map(|i| (&i.name, &i.reshape));
        let outs = config.output.iter().map(|o| (&o.name, &o.reshape));
        if let Some((name, _)) = ins.chain(outs).find(|t| t.1.is_some()) {
            let what = format!("{name}: reshape");
            let got = format!("one, with steps that are not: {why}");
            return Err(Error::expected(what, "steps that are one program", got));
        }
        let served = steps.iter().enumerate().map(|(at, step)| {
            let place = place(at, step.stated);
            let served = step.served.clone().ok_or_else(|| {
                let expected = "a model that is served, as the steps are not one program";
                Error::expected(&place, expected, format!("none ({why})"))
            })?;
            if config.max_batch_size > 0 && !served.batched {
                let got = "one whose shapes have no axis of samples";
                let expected = "a model that batches, as the ensemble does";
                return Err(Error::expected(place, expected, got));
            }
            Ok(served)
        });
        let served: Vec<Arc<Served>> = served.collect::<Result<_>>()?;
        let maps = |of: fn(&Stated) -> &HashMap<String, String>| -> Vec<BTreeMap<String, String>> {
            let map = |s: &Candidate<'_>| of(s.stated).clone().into_iter().collect();
            steps.iter().map(map).collect()
        };
        let (reads, makes) = (maps(|s| &s.input_map), maps(|s| &s.output_map));
        let mut ports = Vec::with_capacity(steps.len());
        for (at, (step, own)) in steps.iter().zip(&served).enumerate() {
            let outputs = own.config.output.iter().map(|o| o.name.as_str());
            ports.push(Ports {
                name: &step.name,
                inputs: inputs(&place(at, step.stated), own, &reads[at])?,
                outputs: outputs.collect(),
                reads: &reads[at],
                makes: &makes[at],
            });
        }
        let names: Vec<String> = config.input.iter().map(|i| i.name.clone()).collect();
        let outputs: Vec<String> = config.output.iter().map(|o| o.name.clone()).collect();
        let wires = Wires::of(&config.name, &names, &ports, &outputs).map_err(told)?;
        check_shapes(config, steps, &served)?;
        let (links, outputs) = linked(config.input.len(), steps, &served, &ports, &wires);
        let made = links.iter().map(|l| l.makes.len()).sum::<usize>();
        Ok(Self {
            why: why.to_string(),
            num_tensors: config.input.len() + made,
            links,
            outputs,
        })
    }

    /// What makes these of its outputs, by their places in the configuration. A step over sequences is
    /// needed whatever is wanted: what it keeps goes on with each request.
    pub fn needs(&self, wanted: impl IntoIterator<Item = usize>) -> Needs {
        let mut readers = vec![0; self.num_tensors];
        for at in wanted {
            readers[self.outputs[at]] += 1;
        }
        let mut links = vec![false; self.links.len()];
        // Each reads what those before it make.
        for (link, is_needed) in self.links.iter().zip(&mut links).rev() {
            let is_read = link.makes.iter().any(|port| readers[port.tensor] > 0);
            if is_read || link.is_of_sequences() {
                *is_needed = true;
                link.reads.iter().for_each(|p| readers[p.tensor] += 1);
            }
        }
        Needs { links, readers }
    }

    /// What its steps run.
    pub fn steps(&self) -> impl Iterator<Item = &Served> {
        self.links.iter().map(|link| &*link.served)
    }

    /// What its first step runs.
    pub fn first(&self) -> &Served {
        // Wiring without a step is not sound.
        &self.links[0].served
    }

    /// Whether shapes begin with an axis of samples: they are handed on as they are.
    pub fn is_batched(&self) -> bool {
        self.steps().all(|step| step.batched)
    }
}

impl Link {
    /// Whether requests to it are parts of sequences.
    pub fn is_of_sequences(&self) -> bool {
        self.served.is_sequence() || self.served.is_stateful()
    }
}

/// Where a step is told of.
pub fn place(at: usize, step: &Stated) -> String {
    format!("step {at}, model {}", step.model_name)
}

/// An error of wiring, which the ensemble is named in already.
pub fn told(error: lazybatch_graph::Error) -> Error {
    match error {
        lazybatch_graph::Error::Join {
            place,
            expected,
            got,
            ..
        }
        | lazybatch_graph::Error::Apart {
            place,
            expected,
            got,
            ..
        } => Error::expected(place, expected, got),
        other => Error::Invalid(other.to_string()),
    }
}

/// Inputs of a step that need a tensor, and those that have one without.
fn inputs<'a>(
    place: &str,
    served: &'a Served,
    reads: &'a BTreeMap<String, String>,
) -> Result<Vec<&'a str>> {
    let known = &served.known.inputs;
    let is_read = |name: &str| reads.contains_key(name);
    let is_known = |name: &str| known.iter().any(|t| t.name == name);
    if let Runs::Chain(_) = &served.runs {
        return Ok(served.config.input.iter().map(|i| &*i.name).collect());
    }
    if served.known.reads_text && !is_known(TEXT_INPUT) && is_read(TEXT_INPUT) {
        if reads.len() > 1 {
            let place = format!("{place}: {TEXT_INPUT}");
            let expected = "no other input of the step beside it";
            return Err(Error::expected(place, expected, "others"));
        }
        return Ok(vec![TEXT_INPUT]);
    }
    let needed = known.iter().filter(|t| t.is_own());
    let state = known.iter().filter(|t| t.is_carried && is_read(&t.name));
    Ok(needed.chain(state).map(|t| t.name.as_str()).collect())
}

/// The steps as links in the order of `wires`, and the tensors that are outputs.
fn linked(
    num_inputs: usize,
    steps: &[Candidate<'_>],
    served: &[Arc<Served>],
    ports: &[Ports<'_>],
    wires: &Wires,
) -> (Vec<Link>, Vec<TensorIdx>) {
    let mut links: Vec<Link> = Vec::with_capacity(steps.len());
    let mut made: BTreeMap<(usize, usize), TensorIdx> = BTreeMap::new();
    for &at in &wires.order {
        let (own, port) = (&served[at], &ports[at]);
        let reads = port.inputs.iter().zip(&wires.sources[at]);
        let reads = reads.map(|(name, source)| Port {
            name: (*name).to_owned(),
            tensor: match source {
                Source::Input(i) => *i,
                Source::Output { step, output } => made[&(*step, *output)],
            },
            rank: input_dims(own, name).len(),
        });
        let reads = reads.collect();
        let mut makes = Vec::with_capacity(port.makes.len());
        for (output, name) in port.outputs.iter().enumerate() {
            if port.makes.contains_key(*name) {
                let tensor = num_inputs + made.len();
                made.insert((at, output), tensor);
                makes.push(Port {
                    name: (*name).to_owned(),
                    tensor,
                    rank: output_dims(own, name).len(),
                });
            }
        }
        links.push(Link {
            place: place(at, steps[at].stated),
            served: own.clone(),
            reads,
            makes,
        });
    }
    let outputs = wires.outputs.iter().map(|made_by| made[made_by]);
    (links, outputs.collect())
}

/// Dimensions as configurations state them, all of them; -1 where any number fits.
fn whole(config: &ModelConfig, dims: &[i64]) -> Vec<i64> {
    let samples = (config.max_batch_size > 0).then_some(-1);
    samples.into_iter().chain(dims.iter().copied()).collect()
}

fn input_dims(served: &Served, name: &str) -> Vec<i64> {
    let config = &served.config;
    if let Some(listed) = config.input.iter().find(|i| i.name == name) {
        return whole(config, &listed.dims);
    }
    // One of a model that is stated to read text alone, or its state.
    let known = served.known.inputs.iter().find(|t| t.name == name);
    let own = known.map_or(vec![1], |t| t.dims());
    let samples = served.batched.then_some(-1);
    samples.into_iter().chain(own).collect()
}

fn output_dims(served: &Served, name: &str) -> Vec<i64> {
    let config = &served.config;
    let listed = config.output.iter().find(|o| o.name == name);
    listed.map_or_else(Vec::new, |o| whole(config, &o.dims))
}

/// Whether dimensions may be the same; a last one of 1 may be left out.
fn alike(a: &[i64], b: &[i64]) -> bool {
    let (a, b) = match (a, b) {
        ([rest @ .., 1], b) if rest.len() == b.len() => (rest, b),
        (a, [rest @ .., 1]) if rest.len() == a.len() => (a, rest),
        same => same,
    };
    let fits = |(&x, &y): (&i64, &i64)| x == y || x == -1 || y == -1;
    a.len() == b.len() && a.iter().zip(b).all(fits)
}

/// Checks that every tensor may have one shape wherever it is named.
fn check_shapes(
    config: &ModelConfig,
    steps: &[Candidate<'_>],
    served: &[Arc<Served>],
) -> Result<()> {
    let mut edges: BTreeMap<&str, Vec<(String, Vec<i64>)>> = BTreeMap::new();
    for i in &config.input {
        let edge = (format!("input {}", i.name), whole(config, &i.dims));
        edges.entry(&i.name).or_default().push(edge);
    }
    for (at, (step, own)) in steps.iter().zip(served).enumerate() {
        for (name, tensor) in &step.stated.output_map {
            let what = format!("{}: output {name}: tensor {tensor}", place(at, step.stated));
            let edge = (what, output_dims(own, name));
            edges.entry(tensor).or_default().push(edge);
        }
    }
    let mut readers: Vec<(&str, String, Vec<i64>)> = Vec::new();
    for (at, (step, own)) in steps.iter().zip(served).enumerate() {
        let mut maps: Vec<_> = step.stated.input_map.iter().collect();
        maps.sort();
        for (name, tensor) in maps {
            let what = format!("{}: input {name}: tensor {tensor}", place(at, step.stated));
            readers.push((tensor, what, input_dims(own, name)));
        }
    }
    for o in &config.output {
        readers.push((
            &o.name,
            format!("output {}", o.name),
            whole(config, &o.dims),
        ));
    }
    for (tensor, what, dims) in readers {
        let made = edges.get(tensor).and_then(|all| all.first());
        if let Some((place, own)) = made.filter(|(_, own)| !alike(own, &dims)) {
            let expected = format!("{own:?}, as {place}");
            return Err(Error::expected(
                format!("{what}: dims"),
                expected,
                format!("{dims:?}"),
            ));
        }
    }
    Ok(())
}

/// What of a configuration a chain does not honour.
pub fn unhonoured(config: &ModelConfig) -> Vec<String> {
    let named = OF_ENGINES.into_iter();
    let named = named.filter(|key| config.parameters.contains_key(*key));
    let mut all: Vec<String> = named.map(|key| format!("parameters[{key:?}]")).collect();
    if config.response_cache.as_ref().is_some_and(|c| c.enable) {
        all.push("response_cache.enable".into());
    }
    let optional = config.input.iter().filter(|i| i.optional);
    all.extend(optional.map(|i| format!("input[{:?}].optional", i.name)));
    all
}

/// Text in and out of a chain: a tensor of that name and type at its edge.
pub fn texts(config: &ModelConfig) -> Known {
    let is_text = |data_type| DataType::of_config(data_type) == Some(DataType::Bytes);
    let mut inputs = config.input.iter();
    let mut outputs = config.output.iter();
    Known {
        reads_text: inputs.any(|i| i.name == TEXT_INPUT && is_text(i.data_type)),
        writes_text: outputs.any(|o| o.name == TEXT_OUTPUT && is_text(o.data_type)),
        ..Known::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn dimensions_are_alike_where_one_shape_fits_both() {
        for (a, b) in [
            (&[-1, 3][..], &[4, 3][..]),
            (&[-1, -1, 3], &[-1, 7, -1]),
            (&[-1], &[-1, 1]),
            (&[-1, 1], &[2]),
            (&[-1, 1], &[2, 1]),
            (&[], &[1]),
        ] {
            assert!(alike(a, b) && alike(b, a), "{a:?} {b:?}");
        }
        for (a, b) in [
            (&[-1, 3][..], &[-1, 2][..]),
            (&[-1, 3], &[-1, -1, 3]),
            (&[2], &[3, 1]),
            (&[-1], &[-1, 2]),
        ] {
            assert!(!alike(a, b) && !alike(b, a), "{a:?} {b:?}");
        }
    }

    #[test]
    fn what_a_chain_does_not_honour_is_listed() {
        let text = "response_cache { enable: true } input { name: \"x\" optional: true }
            parameters { key: \"max_queue\" value { string_value: \"4\" } }
            parameters { key: \"classes\" value { string_value: \"gold:sla=20\" } }";
        let config = Config::parse("c", text).unwrap();
        let expected = [
            "parameters[\"max_queue\"]",
            "response_cache.enable",
            "input[\"x\"].optional",
        ];
        assert_eq!(unhonoured(&config.proto), expected);
    }

    #[test]
    fn texts_at_the_edge_have_their_names_and_type() {
        let known = |text: &str| {
            let config = Config::parse("c", text).unwrap();
            let known = texts(&config.proto);
            (known.reads_text, known.writes_text)
        };
        let input = "input { name: \"text_input\" data_type: TYPE_STRING dims: 1 } ";
        let output = "output { name: \"text_output\" data_type: TYPE_STRING dims: 1 } ";
        assert_eq!(known(&(input.to_owned() + output)), (true, true));
        assert_eq!(known(input), (true, false));
        assert_eq!(known(&output.replace("STRING", "INT32")), (false, false));
        assert_eq!(known(&output.replace("text_", "other_")), (false, false));
    }
}
