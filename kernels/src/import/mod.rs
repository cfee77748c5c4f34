//! ONNX models to programs.
//!
//! [`import`] reads a model, finds which axes of its inputs count samples and positions, lowers its
//! graph to nodes of a program, cuts that into blocks, and compares the result with the
//! interpreter of [`crate::onnx`] on random inputs, at a few batch sizes and lengths. What it cannot
//! lower it refuses, all nodes at once, by name; what holds at small sizes alone, too.
//!
//! The steps are a file each: `flatten` (constants, branches) and `unroll` (loops), `einsum` and
//! `patterns`, `axes`, `trace` (sizes), `lower`, `schedule` (blocks), `check`. `manifest` ties an encoder and a
//! decoder together.
//!
//! Invariant: whatever the file says, an import ends in a program or an error, within the
//! [`Limits`] of its [`Options`]. Sizes that a file states are
//! multiplied under those limits only, and every evaluation takes its steps from one [`Meter`].

mod axes;
mod check;
mod compiled;
mod einsum;
mod flatten;
mod items;
mod layout;
mod lower;
mod manifest;
mod options;
mod pairs;
mod patterns;
mod schedule;
mod trace;
mod unroll;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use lazybatch_graph::onnx::{Array, Data, Dim, Elem, Error, Graph, Model, ValueInfo, ValueType};
use lazybatch_graph::tensor_op::held_as;
use lazybatch_graph::{InputId, Layout, OutputId, Program, ProgramBuilder, optimize};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::tensor::Meter;
use axes::Input;
use flatten::Asked;
use items::{Arg, Items, Kind};
use lower::{Lower, Value};
use trace::{Filled, Trace};

pub use check::TOLERANCE;
pub use compiled::Compiled;
pub use lazybatch_graph::onnx::{Limit, Limits};
pub use options::{AxisSpec, Carried, Fixed, Options, Sized as SizedAxis};

/// Most positions of a sequence where nobody says and no table bounds them.
const MAX_LEN: usize = 512;

/// Reads the model at `path` and compiles it: an ONNX file, or a TOML manifest of two.
///
/// # Errors
/// Whatever is wrong with the file; the nodes that cannot be lowered; an output that differs.
pub fn import(path: &Path, options: &Options) -> Result<Program, Error> {
    if path.extension().is_some_and(|e| e == "toml") {
        let file = path.display();
        return manifest::import(path, options).map_err(|e| match e {
            in_file @ Error::InFile { .. } => in_file,
            other => other.in_file(file),
        });
    }
    let model = Model::open(path, &options.limits)?;
    let mut options = options.clone();
    if options.name.is_none() {
        options.name = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    }
    import_model(&model, &options)
}

/// Compiles a model.
///
/// # Errors
/// As [`import`].
pub fn import_model(model: &Model, options: &Options) -> Result<Program, Error> {
    compile_model(model, options).map(Compiled::into_program)
}

/// Compiles a model, for runs on tensors as its graph takes and gives them.
///
/// # Errors
/// As [`import`].
pub fn compile_model(model: &Model, options: &Options) -> Result<Compiled, Error> {
    compile(model, options).map_err(|e| match e {
        in_file @ Error::InFile { .. } => in_file,
        other => other.in_file(&model.file),
    })
}

/// A graph made ready to be lowered.
struct Prepared {
    model: Model,
    graph: Graph,
    opset: i64,
    inputs: Vec<Input>,
    filled: BTreeMap<String, Filled>,
    fixed: BTreeMap<String, Array>,
    decided: Option<Decided>,
}

/// Branches and loops that were put in place as small sizes have them.
struct Decided {
    /// The graph with all that they were decided from among its outputs.
    graph: Graph,
    asked: Vec<Asked>,
}

fn compile(model: &Model, options: &Options) -> Result<Compiled, Error> {
    let meter = Meter::new(options.limits);
    let first = compile_as(model, options, &meter, true);
    let Err(e) = first else {
        return first;
    };
    // An axis of one may be no batch at all: then each request is a run of its own.
    if !axes::takes_one_for_batch(&model.graph, options) {
        return Err(e);
    }
    let Ok(mut compiled) = compile_as(model, options, &meter, false) else {
        return Err(e);
    };
    let program = Arc::make_mut(&mut compiled.program);
    program.add_note(
        "the graph was exported for a batch of 1 and does not take others: no axis counts samples; \
         export it with a dynamic batch axis to have requests batched"
            .to_owned(),
    );
    Ok(compiled)
}

/// Compiles a model; with `one_is_batch` a first axis of size 1 counts samples where none is open.
fn compile_as(
    model: &Model,
    options: &Options,
    meter: &Meter,
    one_is_batch: bool,
) -> Result<Compiled, Error> {
    let prepared = prepare(model, options, meter, one_is_batch)?;
    let mut trace = Trace::of(
        &prepared.graph,
        prepared.opset,
        meter,
        prepared.inputs.clone(),
        prepared.filled.clone(),
    )?;
    let has = (trace.has_batch(), trace.has_len());
    let max_len = max_len(&trace, options)?;
    trace.look_up_to(max_len);
    check_decided(&prepared, meter, max_len)?;
    let mut lower = Lower {
        trace: &trace,
        items: Items::default(),
        values: BTreeMap::new(),
        refused: Vec::new(),
        notes: BTreeSet::new(),
        stepped: BTreeSet::new(),
        terms: BTreeMap::new(),
        biases: Vec::new(),
        max_len,
        max_steps: None,
    };
    let name = options.name.clone().unwrap_or_else(|| "model".into());
    let mut builder = ProgramBuilder::new(name);
    declare_inputs(&mut lower, &mut builder, &prepared.inputs, max_len);
    lower.run();
    let outputs = declare_outputs(&mut lower, &mut builder)?;
    for carried in &options.carried {
        let (output, input) = carry_ids(carried, &prepared)?;
        builder.carry(output, input);
    }
    if !lower.refused.is_empty() {
        return Err(Error::Unsupported {
            nodes: lower.refused,
        });
    }
    let bounds = schedule::Bounds {
        max_len,
        max_steps: 1,
    };
    let mut program = schedule::build(&lower.items, builder, bounds)
        .and_then(optimize)
        .map_err(|e| Error::invalid("program", "lowering", "a sound program", e))?;
    let merged = axes::merged(&prepared.graph, &prepared.inputs);
    lower.notes.extend(merged);
    let is_f64 = trace.has_elem(Elem::F64);
    if is_f64 {
        lower.notes.insert(
            "the graph computes in f64, the program in f32: numbers beyond 3e38 become infinite, and 7 \
             digits are kept"
                .to_owned(),
        );
    }
    let notes = std::mem::take(&mut lower.notes);
    notes.into_iter().for_each(|note| program.add_note(note));
    let inputs = prepared.inputs.iter().map(|i| (&i.name, i.elem));
    for (name, elem) in inputs.chain(outputs.iter().map(|o| (&o.name, o.elem))) {
        if !matches!(elem, Elem::F32 | Elem::I32) {
            program.state_type(name, elem);
        }
    }
    let mut compiled = Compiled {
        program: Arc::new(program),
        inputs: prepared.inputs,
        outputs,
    };
    let (least, note) = check::compare(
        &check::Compared {
            model: &prepared.model,
            filled: &prepared.filled,
            fixed: &prepared.fixed,
            max_len,
            has,
            is_f64,
        },
        &compiled,
        meter,
    )?;
    let program = Arc::make_mut(&mut compiled.program);
    if least > 1 {
        program.state_least_len(least);
    }
    note.into_iter().for_each(|note| program.add_note(note));
    Ok(compiled)
}

/// Flattens the graph and finds its axes.
fn prepare(
    model: &Model,
    options: &Options,
    meter: &Meter,
    one_is_batch: bool,
) -> Result<Prepared, Error> {
    let limits = &meter.limits;
    let opset = model.opsets.get("").copied().unwrap_or(1);
    let mut model = model.clone();
    let fixed = fix_inputs(&model.graph, options)?;
    let mut source = model.graph.clone();
    source.initializers.extend(fixed.clone());
    let none = BTreeSet::new();
    let (mut graph, ..) = flatten::flatten(&source, opset, meter, BTreeMap::new(), &none)?;
    flatten::prune(&mut graph);
    let all = axes::read(&graph, options, one_is_batch)?;
    axes::check_sizes(&all, limits)?;
    relax(&mut model.graph, &all);
    let (mut inputs, filled) = split_filled(&graph, all, options)?;
    let mut decided = None;
    if graph.nodes.iter().any(has_body) {
        let asked;
        (graph, asked) = decide(&graph, opset, meter, &inputs, &filled)?;
        decided = Decided::of(&graph, asked);
        flatten::prune(&mut graph);
    }
    let shell = Model {
        graph: Graph {
            inputs: Vec::new(),
            outputs: Vec::new(),
            ..graph.clone()
        },
        ..model.clone()
    };
    let mut nodes = crate::onnx::refused(&shell, &shell.graph);
    for node in graph.nodes.iter().filter(|n| has_body(n)) {
        nodes.push(lazybatch_graph::onnx::Refused {
            node: node.name.clone(),
            op: node.op.clone(),
            why: match node.op.as_str() {
                "If" => "its condition depends on the request".into(),
                _ => "the number of its passes is not known, or large".into(),
            },
        });
    }
    if !nodes.is_empty() {
        return Err(Error::Unsupported { nodes });
    }
    einsum::replace(&mut graph);
    patterns::replace(&mut graph);
    flatten::prune(&mut graph);
    axes::id_bounds(&mut inputs, &graph);
    Ok(Prepared {
        model,
        graph,
        opset,
        inputs,
        filled,
        fixed,
        decided,
    })
}

impl Decided {
    /// `graph` with all of `asked` as outputs; none if nothing was asked.
    fn of(graph: &Graph, asked: Vec<Asked>) -> Option<Self> {
        if asked.is_empty() {
            return None;
        }
        let mut graph = graph.clone();
        graph.outputs = asked
            .iter()
            .map(|asked| ValueInfo {
                name: asked.value.clone(),
                ty: ValueType::Unknown,
            })
            .collect();
        flatten::prune(&mut graph);
        Some(Self { graph, asked })
    }
}

/// Refuses branches and loops that are others at larger batches or lengths than those at which they
/// were decided, up to the longest.
fn check_decided(prepared: &Prepared, meter: &Meter, longest: usize) -> Result<(), Error> {
    let Some(Decided { graph, asked }) = &prepared.decided else {
        return Ok(());
    };
    let (inputs, filled) = (prepared.inputs.clone(), prepared.filled.clone());
    let mut trace = Trace::of(graph, prepared.opset, meter, inputs, filled)?;
    trace.look_up_to(longest);
    for (batch, len) in trace.sizes() {
        for asked in asked {
            let value = trace.known(&asked.value, batch, len)?;
            let now = value.and_then(|value| asked.what.of(&value));
            if now != Some(asked.was) {
                let what = format!("{} at batch {batch}, length {len}", asked.value);
                let expected = format!("{} as at smaller ones", asked.was);
                let got = now.map_or_else(|| "another".to_owned(), |now| now.to_string());
                return Err(Error::invalid(&asked.place, what, expected, got));
            }
        }
    }
    Ok(())
}

/// `graph` with the branches and loops in place that depend on sizes of the inputs, but are the same
/// at two batch sizes and lengths, and from what that was decided.
fn decide(
    graph: &Graph,
    opset: i64,
    meter: &Meter,
    inputs: &[Input],
    filled: &BTreeMap<String, Filled>,
) -> Result<(Graph, Vec<Asked>), Error> {
    let mut open = BTreeSet::new();
    loop {
        let at = |batch: usize, len: usize| {
            let mut rng = ChaCha8Rng::seed_from_u64(5);
            let mut probe = BTreeMap::new();
            for input in inputs {
                let array = trace::random(input, (batch, len), &meter.limits, &mut rng)?;
                probe.insert(input.name.clone(), array);
            }
            for (name, filled) in filled {
                let array = trace::fill(name, filled, (batch, len), &meter.limits)?;
                probe.insert(name.clone(), array);
            }
            flatten::flatten(graph, opset, meter, probe, &open)
        };
        let [small, large] = trace::LENGTHS;
        let (flat, decided, asked) = at(2, small)?;
        let (_, again, _) = at(3, large)?;
        let differing: Vec<String> = decided
            .iter()
            .filter(|&(node, how)| again.get(node) != Some(how) && !open.contains(node))
            .map(|(node, _)| node.clone())
            .collect();
        if differing.is_empty() {
            return Ok((flat, asked));
        }
        open.extend(differing);
    }
}

fn has_body(node: &lazybatch_graph::onnx::Node) -> bool {
    matches!(node.op.as_str(), "If" | "Loop" | "Scan")
}

/// The output and the input of these names, in their order in the graph.
fn carry_ids(carried: &Carried, prepared: &Prepared) -> Result<(OutputId, InputId), Error> {
    let find = |what: &str, names: Vec<&String>, name: &String| {
        names.iter().position(|n| *n == name).ok_or_else(|| {
            let names: Vec<_> = names.iter().map(|n| n.as_str()).collect();
            let expected = format!("one of {}", names.join(", "));
            Error::invalid("--carry", what, expected, name)
        })
    };
    let outputs = prepared.graph.outputs.iter().map(|o| &o.name).collect();
    let inputs = prepared.inputs.iter().map(|i| &i.name).collect();
    Ok((
        OutputId::new(find("output", outputs, &carried.output)?),
        InputId::new(find("input", inputs, &carried.input)?),
    ))
}

/// Values of the inputs that the user fixes.
fn fix_inputs(graph: &Graph, options: &Options) -> Result<BTreeMap<String, Array>, Error> {
    let mut fixed = BTreeMap::new();
    for f in &options.fixed {
        let Some(info) = graph.inputs.iter().find(|i| i.name == f.input) else {
            let names: Vec<_> = graph.inputs.iter().map(|i| i.name.as_str()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(Error::invalid("fixed input", "name", expected, &f.input));
        };
        let place = format!("input {}", f.input);
        let ValueType::Tensor {
            elem,
            dims: Some(dims),
        } = &info.ty
        else {
            return Err(Error::invalid(place, "type", "a tensor", "another"));
        };
        let sizes: Option<Vec<usize>> = dims
            .iter()
            .map(|d| match d {
                Dim::Fixed(n) => Some(*n),
                _ => None,
            })
            .collect();
        let Some(sizes) = sizes else {
            let expected = "stated sizes, for an input that is fixed";
            return Err(Error::invalid(place, "sizes", expected, "open ones"));
        };
        let num = options.limits.num_elems(&place, &sizes)?;
        fixed.insert(
            f.input.clone(),
            Array::new(sizes, Data::from_f64(*elem, vec![f.value; num])),
        );
    }
    Ok(fixed)
}

/// Lets axes that were found to be batch or sequence have any size.
fn relax(graph: &mut Graph, inputs: &[Input]) {
    for info in &mut graph.inputs {
        let Some(input) = inputs.iter().find(|i| i.name == info.name) else {
            continue;
        };
        if let ValueInfo {
            ty: ValueType::Tensor {
                dims: Some(dims), ..
            },
            ..
        } = info
        {
            for (dim, axis) in dims.iter_mut().zip(&input.layout.0) {
                if !matches!(axis[..], [lazybatch_graph::Part::Fixed(_)]) {
                    *dim = Dim::Unknown;
                }
            }
        }
    }
}

/// Inputs that requests bring, and those that only tell padding or lengths.
fn split_filled(
    graph: &Graph,
    all: Vec<Input>,
    options: &Options,
) -> Result<(Vec<Input>, BTreeMap<String, Filled>), Error> {
    for name in &options.masks {
        if !all.iter().any(|i| i.name == *name) {
            let names: Vec<_> = all.iter().map(|i| i.name.as_str()).collect();
            let expected = format!("one of {}", names.join(", "));
            return Err(Error::invalid("mask", "name", expected, name));
        }
    }
    let lengths = only_lengths(graph);
    let mut inputs = Vec::new();
    let mut filled = BTreeMap::new();
    for input in all {
        let is_mask = options.masks.contains(&input.name)
            || (options::MASKS.contains(&input.name.as_str()) && input.layout.has_len());
        let is_length = lengths.contains(input.name.as_str());
        if is_mask || is_length {
            let value = Filled {
                elem: input.elem,
                layout: input.layout,
                is_length,
            };
            filled.insert(input.name, value);
        } else {
            inputs.push(input);
        }
    }
    if inputs.is_empty() {
        return Err(Error::invalid(
            "graph",
            "inputs",
            "at least one with data",
            "none",
        ));
    }
    Ok((inputs, filled))
}

/// Values that recurrent layers read as the lengths of their sequences, and nobody else.
fn only_lengths(graph: &Graph) -> BTreeSet<&str> {
    let (mut lengths, mut others) = (BTreeSet::new(), BTreeSet::new());
    for node in &graph.nodes {
        let is_layer = matches!(node.op.as_str(), "LSTM" | "GRU" | "RNN");
        for (i, name) in node.inputs.iter().enumerate() {
            let to = if is_layer && i == 4 {
                &mut lengths
            } else {
                &mut others
            };
            to.insert(name.as_str());
        }
    }
    &lengths - &others
}

/// Most positions: what the user says, or the most that the graph's tables allow.
fn max_len(trace: &Trace<'_>, options: &Options) -> Result<usize, Error> {
    // Tables that grow with the length at small ones must do so up to the largest.
    let grows = |name: &String, len: usize| {
        let [small, large] = trace::LENGTHS;
        let at = |len| {
            trace
                .known(name, 1, len)
                .map(|a| a.map(|a| a.dims().to_vec()))
        };
        let (Ok(Some(a)), Ok(Some(b)), Ok(Some(c))) = (at(small), at(large), at(len)) else {
            return false;
        };
        a.len() != c.len()
            || (0..a.len()).all(|i| (a[i], b.get(i)) != (small, Some(&large)) || c[i] == len)
    };
    let has_any = |len: usize| {
        if !trace.fits(len) {
            return false;
        }
        let outputs = trace.graph.nodes.iter().flat_map(|n| &n.outputs);
        let mut known = outputs.filter(|o| !o.is_empty() && !trace.is_data(o));
        known.all(|o| grows(o, len))
    };
    if !trace.has_len() {
        return Ok(1);
    }
    if let Some(max) = options.max_len {
        if max == 0 || !has_any(max) {
            let expected = "a length that the tables of the model have, within the limits";
            return Err(Error::invalid("--max-len", "length", expected, max));
        }
        return Ok(max);
    }
    let mut max = MAX_LEN;
    while max > trace::LENGTHS[1] && !has_any(max) {
        max /= 2;
    }
    Ok(max)
}

fn declare_inputs(
    lower: &mut Lower<'_>,
    builder: &mut ProgramBuilder,
    inputs: &[Input],
    max_len: usize,
) {
    for input in inputs {
        let id = declare_input(builder, input, max_len);
        lower.input(&input.name, id, input.layout.clone(), input.elem);
    }
}

fn declare_input(builder: &mut ProgramBuilder, input: &Input, max_len: usize) -> InputId {
    let dims = input.layout.fixed();
    let dtype = held_as(input.elem);
    match (input.layout.has_len(), input.id_bound) {
        (true, Some(bound)) if dims.is_empty() => builder.sequence_ids(&input.name, max_len, bound),
        (true, _) => builder.sequence(&input.name, dtype, &dims, max_len),
        (false, Some(bound)) => builder.input_ids(&input.name, &dims, bound),
        (false, None) => builder.input(&input.name, dtype, &dims),
    }
}

/// Fixed dims of an output as a request gets them: all axes but batch and sequence.
fn output_dims(layout: &Layout) -> Vec<usize> {
    use lazybatch_graph::Part;
    let own = layout
        .0
        .iter()
        .filter(|axis| !matches!(axis[..], [Part::Batch] | [Part::Len]));
    own.map(|axis| layout::size(axis).k).collect()
}

fn declare_outputs(
    lower: &mut Lower<'_>,
    builder: &mut ProgramBuilder,
) -> Result<Vec<compiled::Output>, Error> {
    let mut layouts = Vec::new();
    let mut emitted = BTreeSet::new();
    for info in &lower.trace.graph.outputs {
        let name = &info.name;
        let place = format!("output {name}");
        match lower.values.get(name) {
            Some(Value::Act(act)) if emitted.insert(name.clone()) => {
                let act = act.clone();
                let id = declare_output(builder, name, &act.layout, held_as(act.elem));
                let dims = output_dims(&act.layout);
                let shaped = lower.items.shaped(&act, &dims);
                let args = vec![Arg::Item(shaped.src)];
                let emit = format!("{name}.emit");
                lower.items.push(&emit, Kind::Emit(id), args, Vec::new());
                layouts.push(compiled::Output {
                    name: name.clone(),
                    elem: act.elem,
                    layout: act.layout,
                });
            }
            Some(Value::Failed) => {}
            Some(Value::Act(_)) => {
                return Err(Error::invalid(place, "name", "one of this name", "two"));
            }
            Some(Value::Scores(_) | Value::Cache(_)) => {
                let expected = "at most one axis of positions";
                return Err(Error::invalid(place, "axes", expected, "two"));
            }
            None => {
                let expected = "one that depends on what a request brings";
                return Err(Error::invalid(place, "value", expected, "a constant"));
            }
        }
    }
    Ok(layouts)
}

fn declare_output(
    builder: &mut ProgramBuilder,
    name: &str,
    layout: &Layout,
    dtype: lazybatch_graph::DType,
) -> OutputId {
    let dims = output_dims(layout);
    if layout.has_len() {
        builder.output_sequence(name, dtype, &dims)
    } else {
        builder.output(name, dtype, &dims)
    }
}
