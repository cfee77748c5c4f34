//! A manifest that ties an encoder and the step of a decoder into one program.
//!
//! ```toml
//! name = "speller"
//!
//! [encoder]
//! file = "encoder.onnx"        # beside the manifest
//!
//! [decoder]
//! file = "step.onnx"
//! token = "token"              # input: the token that was chosen last
//! start = 2                    # the first of them
//! stop = 3                     # ends a request
//! max_steps = 20
//! choose = "logits"            # output: scores of the next token, or its id
//! feed = { h = "next_h" }      # input = output of the step before
//! first = { h = "state" }      # input = encoder's output, at the first step; zeros if absent
//! read = { memory = "states" } # input = encoder's output, at every step
//! cache = { keys = "all_keys" } # input that grows by a row per step = output; empty at first
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lazybatch_graph::onnx::{Array, Data, Elem, Error, Graph, Model, Refused};
use lazybatch_graph::{DType, Layout, Op, Part, Program, ProgramBuilder, optimize};
use serde::Deserialize;

use super::axes::Input;
use super::items::{Act, Arg, Cache, CacheState, Items, KeptState, Kind, Out, Src};
use super::lower::{Lower, Value};
use super::options::Options;
use super::trace::Trace;
use super::{Prepared, check_decided, declare_inputs, layout, max_len, pairs, prepare, schedule};
use crate::tensor::Meter;

/// Most steps of a decoder.
const MAX_STEPS: u32 = 1 << 20;

/// A manifest as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// Name of the program; that of the file if absent.
    pub name: Option<String>,
    /// The encoder.
    pub encoder: Encoder,
    /// The step of the decoder.
    pub decoder: Decoder,
}

/// The encoder's part.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Encoder {
    /// Its file.
    pub file: String,
}

/// The decoder's part.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Decoder {
    /// Its file.
    pub file: String,
    /// Input that takes the last token.
    pub token: String,
    /// First token.
    pub start: i32,
    /// Token that ends a request.
    pub stop: i32,
    /// Most steps.
    pub max_steps: u32,
    /// Output with the scores or the id of the next token.
    pub choose: String,
    /// Outputs of a step that inputs of the next one read, by input.
    #[serde(default)]
    pub feed: BTreeMap<String, String>,
    /// Outputs of the encoder that inputs read at the first step, by input.
    #[serde(default)]
    pub first: BTreeMap<String, String>,
    /// Outputs of the encoder that inputs read at every step, by input.
    #[serde(default)]
    pub read: BTreeMap<String, String>,
    /// Outputs with a row more than the inputs that read them at the next step, by input.
    #[serde(default)]
    pub cache: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads the manifest at `path`.
    ///
    /// # Errors
    /// What is wrong with its text.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bad = |expected: &str, e: &dyn std::fmt::Display| {
            Error::invalid("manifest", "text", expected, e)
        };
        let text = std::fs::read_to_string(path).map_err(|e| bad("a file", &e))?;
        let manifest: Self =
            toml::from_str(&text).map_err(|e| bad("a manifest", &e.to_string().trim()))?;
        let d = &manifest.decoder;
        if d.max_steps == 0 || d.max_steps > MAX_STEPS {
            let expected = format!("1 to {MAX_STEPS}");
            return Err(Error::invalid(
                "decoder",
                "max_steps",
                expected,
                d.max_steps,
            ));
        }
        let tokens = [("start", d.start), ("stop", d.stop)];
        if let Some((key, token)) = tokens.into_iter().find(|(_, token)| *token < 0) {
            return Err(Error::invalid("decoder", key, "a token, 0 or more", token));
        }
        if let Some(name) = d.first.keys().find(|n| !d.feed.contains_key(*n)) {
            let expected = "inputs that `feed` names";
            return Err(Error::invalid("decoder", "first", expected, name));
        }
        Ok(manifest)
    }
}

/// Both graphs, made ready.
pub(super) struct Pair {
    pub manifest: Manifest,
    pub encoder: Prepared,
    pub decoder: Prepared,
}

/// Compiles the manifest at `path`.
///
/// # Errors
/// As [`super::import`].
pub(super) fn import(path: &Path, options: &Options) -> Result<Program, Error> {
    let manifest = Manifest::open(path)?;
    let meter = Meter::new(options.limits);
    let folder = path.parent().unwrap_or(Path::new("."));
    let open = |file: &str| -> Result<Prepared, Error> {
        let model = Model::open(&folder.join(file), &options.limits)?;
        prepare(&model, options, &meter, true).map_err(|e| e.in_file(&model.file))
    };
    let pair = Pair {
        encoder: open(&manifest.encoder.file)?,
        decoder: open(&manifest.decoder.file)?,
        manifest,
    };
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = options
        .name
        .clone()
        .or_else(|| pair.manifest.name.clone())
        .or(stem)
        .unwrap_or_else(|| "model".into());
    let most = pair.manifest.decoder.max_steps;
    let (program, max_len) = compile(&pair, &name, options, (false, most), &meter)?;
    let most = most.min(pairs::STEPS);
    let (shown, _) = compile(&pair, &name, options, (true, most), &meter)?;
    pairs::compare(&pair, shown, max_len, most, &meter)?;
    Ok(program)
}

/// The program, and its most positions. With `shown` it also emits what the choice is made from; it
/// takes at most `max_steps` steps.
fn compile(
    pair: &Pair,
    name: &str,
    options: &Options,
    (shown, max_steps): (bool, u32),
    meter: &Meter,
) -> Result<(Program, usize), Error> {
    let (e, d) = (&pair.encoder, &pair.decoder);
    let mut of_encoder = Trace::of(&e.graph, e.opset, meter, e.inputs.clone(), e.filled.clone())?;
    let mut of_decoder = Trace::of(&d.graph, d.opset, meter, d.inputs.clone(), d.filled.clone())?;
    let mut longest = max_len(&of_encoder, options)?;
    let reads = |i: &Input| pair.manifest.decoder.read.contains_key(&i.name);
    // With caches, what grows in the step grows with the number of steps.
    let by_length = pair.manifest.decoder.cache.is_empty();
    if by_length && d.inputs.iter().any(|i| reads(i) && i.layout.has_len()) {
        longest = longest.min(max_len(&of_decoder, options)?);
    }
    let max_len = longest;
    let most = if by_length {
        max_len
    } else {
        max_steps as usize
    };
    for (prepared, trace, most) in [(e, &mut of_encoder, max_len), (d, &mut of_decoder, most)] {
        trace.look_up_to(most);
        check_decided(prepared, meter, most)?;
    }
    let mut builder = ProgramBuilder::new(name);
    let mut lower = Lower {
        trace: &of_encoder,
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
    lower.items.prefix = "encoder.".into();
    declare_inputs(&mut lower, &mut builder, &e.inputs, max_len);
    lower.run();
    let mut refused = std::mem::take(&mut lower.refused);
    let mut notes = std::mem::take(&mut lower.notes);
    let encoded = std::mem::take(&mut lower.values);
    let mut items = std::mem::take(&mut lower.items);
    items.prefix = "decoder.".into();
    let mut lower = Lower {
        trace: &of_decoder,
        items,
        values: BTreeMap::new(),
        refused: Vec::new(),
        notes: BTreeSet::new(),
        stepped: BTreeSet::new(),
        terms: BTreeMap::new(),
        biases: Vec::new(),
        max_len,
        max_steps: (!pair.manifest.decoder.cache.is_empty()).then_some(max_steps as usize),
    };
    if refused.is_empty() {
        bind(&mut lower, pair, &encoded)?;
        lower.run();
        refused.append(&mut lower.refused);
        notes.append(&mut lower.notes);
    }
    if !refused.is_empty() {
        return Err(Error::Unsupported { nodes: refused });
    }
    finish(&mut lower, &mut builder, pair, shown)?;
    check_steps(&lower.items)?;
    let bounds = schedule::Bounds { max_len, max_steps };
    let mut program = schedule::build(&lower.items, builder, bounds)
        .and_then(optimize)
        .map_err(|e| Error::invalid("program", "lowering", "a sound program", e))?;
    let facts = [
        ("start_token", pair.manifest.decoder.start),
        ("stop_token", pair.manifest.decoder.stop),
    ];
    for (key, token) in facts {
        program.metadata.insert(key.into(), token.to_string());
    }
    notes.into_iter().for_each(|note| program.add_note(note));
    Ok((program, max_len))
}

/// Refuses what would look at all positions at every step, but for attention.
fn check_steps(items: &Items) -> Result<(), Error> {
    let is_rows = |src: &Src| items.out(*src).lead == lazybatch_graph::Dim::Rows;
    let mut nodes = Vec::new();
    for item in items.items.iter().filter(|i| i.looped) {
        let looks = item.args.iter().enumerate().any(|(i, arg)| match arg {
            Arg::Item(src) => is_rows(src) && !(i > 0 && matches!(item.kind, Kind::Lookup(_))),
            Arg::Weight(_) => false,
        });
        let makes = item
            .outs
            .iter()
            .any(|o| o.lead == lazybatch_graph::Dim::Rows);
        if looks || makes {
            nodes.push(Refused {
                node: item.name.clone(),
                op: match &item.kind {
                    Kind::Op(op) => op.to_string(),
                    _ => "recurrent layer".into(),
                },
                why: "reads all positions at a step, and is no attention of a known form".into(),
            });
        }
    }
    match nodes.is_empty() {
        true => Ok(()),
        false => Err(Error::Unsupported { nodes }),
    }
}

/// An activation among the outputs of a graph.
fn activation(
    values: &BTreeMap<String, Value>,
    graph: &Graph,
    name: &str,
    place: &str,
) -> Result<Act, Error> {
    let is_output = graph.outputs.iter().any(|o| o.name == name);
    match values.get(name) {
        Some(Value::Act(act)) if is_output => Ok(act.clone()),
        _ => {
            let expected = "an output that depends on the request";
            Err(Error::invalid(place, "output", expected, name))
        }
    }
}

/// Gives the decoder's inputs their values: states that it keeps, and outputs of the encoder.
fn bind(
    lower: &mut Lower<'_>,
    pair: &Pair,
    encoded: &BTreeMap<String, Value>,
) -> Result<(), Error> {
    let d = &pair.manifest.decoder;
    let inputs = pair.decoder.inputs.clone();
    let names: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
    let tables = [&d.feed, &d.read, &d.cache].into_iter();
    let told = tables.flat_map(BTreeMap::keys).chain([&d.token]);
    if let Some(name) = told.clone().find(|n| !names.contains(&n.as_str())) {
        let expected = format!("one of {}", names.join(", "));
        return Err(Error::invalid("decoder", "input", expected, name));
    }
    for input in &inputs {
        let place = format!("decoder input {}", input.name);
        if let Some(from) = d.read.get(&input.name) {
            let act = activation(encoded, &pair.encoder.graph, from, &place)?;
            let layout = layout::canonical(&input.layout);
            let same = layout == layout::canonical(&act.layout) && act.elem == input.elem;
            if !same {
                let got = format!("{} {:?}", act.elem, act.layout.0);
                let expected = format!("{} {:?}", input.elem, input.layout.0);
                return Err(Error::invalid(place, "encoder's output", expected, got));
            }
            let act = Act {
                layout: input.layout.clone(),
                ..act
            };
            lower.values.insert(input.name.clone(), Value::Act(act));
            continue;
        }
        if d.cache.contains_key(&input.name) {
            lower.cache(input).map_err(|why| {
                let expected = "[.., steps, features], floats";
                Error::invalid(&place, "cache", expected, why)
            })?;
            continue;
        }
        let is_token = input.name == d.token;
        if !is_token && !d.feed.contains_key(&input.name) {
            let expected = "an input that `token`, `feed`, `read` or `cache` names";
            return Err(Error::invalid(place, "value", expected, "none"));
        }
        if input.layout.has_len() {
            let expected = "axes that do not grow";
            let got = format!("{:?}", input.layout.0);
            return Err(Error::invalid(place, "axes", expected, got));
        }
        let at = keep(lower, input, if is_token { d.start as f32 } else { 0.0 });
        if let Some(from) = d.first.get(&input.name) {
            let act = activation(encoded, &pair.encoder.graph, from, &place)?;
            if act.layout.has_len() || act.layout.row_elems() != input.layout.row_elems() {
                let got = format!("{:?}", act.layout.0);
                let expected = format!("{:?}", input.layout.0);
                return Err(Error::invalid(place, "first value", expected, got));
            }
            let act = lower.items.shaped(&act, &input.layout.fixed());
            let name = format!("{}.first", input.name);
            let args = vec![Arg::Item(act.src)];
            lower.items.push(&name, Kind::Seed(at), args, Vec::new());
        }
    }
    Ok(())
}

impl Lower<'_> {
    /// A cache for an input of the decoder.
    fn cache(&mut self, input: &Input) -> Result<(), String> {
        let steps = input.layout.0.iter().filter(|a| **a == [Part::Len]).count();
        if steps != 1 || input.elem != Elem::F32 {
            return Err(format!("{} {:?}", input.elem, input.layout.0));
        }
        let at = self.items.caches.len();
        self.items.caches.push(CacheState {
            name: format!("decoder.{}", input.name),
            features: input.layout.row_elems(),
            appended: false,
        });
        let cache = Cache {
            at,
            new: None,
            layout: input.layout.clone(),
        };
        self.values.insert(input.name.clone(), Value::Cache(cache));
        Ok(())
    }
}

/// A state for an input of the decoder, read at every step; returns its number.
fn keep(lower: &mut Lower<'_>, input: &Input, init: f32) -> usize {
    let at = lower.items.kept.len();
    let dims = input.layout.fixed();
    lower.items.kept.push(KeptState {
        name: format!("decoder.{}", input.name),
        elem: input.elem,
        dims: dims.clone(),
        init,
    });
    let out = Out {
        lead: lazybatch_graph::Dim::Batch,
        dims: dims.clone(),
        elem: input.elem,
    };
    let item = lower
        .items
        .push(&input.name, Kind::Kept(at), Vec::new(), vec![out]);
    let act = Act {
        src: Src { item, out: 0 },
        dims,
        layout: input.layout.clone(),
        elem: input.elem,
    };
    lower.values.insert(input.name.clone(), Value::Act(act));
    at
}

/// Chooses the next token, hands it out, and keeps what the next step reads.
fn finish(
    lower: &mut Lower<'_>,
    builder: &mut ProgramBuilder,
    pair: &Pair,
    shown: bool,
) -> Result<(), Error> {
    let d = &pair.manifest.decoder;
    let graph = &pair.decoder.graph;
    let scores = activation(&lower.values, graph, &d.choose, "decoder choose")?;
    let is_id = !scores.elem.is_float();
    let num = scores.layout.row_elems();
    if scores.layout.has_len() || (is_id && num != 1) {
        let got = format!("{:?}", scores.layout.0);
        let expected = "a row of scores, or one id";
        return Err(Error::invalid("decoder choose", "axes", expected, got));
    }
    if !is_id && d.stop as usize >= num {
        let expected = format!("one of the {num} tokens that `choose` has scores of");
        return Err(Error::invalid("decoder", "stop", expected, d.stop));
    }
    let token = if is_id {
        lower.items.shaped(&scores, &[])
    } else {
        let row = lower.items.shaped(&scores, &[num]);
        let like = Act {
            dims: Vec::new(),
            elem: Elem::I64,
            layout: Layout(vec![vec![Part::Batch]]),
            ..row.clone()
        };
        let args = vec![Arg::Item(row.src)];
        lower.items.node("choose", Op::ArgMax, args, like)
    };
    let tokens = builder.output_sequence("tokens", DType::I32, &[]);
    let push = |lower: &mut Lower<'_>, name: &str, kind: Kind, act: &Act| {
        lower
            .items
            .push(name, kind, vec![Arg::Item(act.src)], Vec::new());
    };
    if shown {
        let flat = lower.items.shaped(&scores, &[num]);
        let dtype = if is_id { DType::I32 } else { DType::F32 };
        let output = builder.output_sequence("scores", dtype, &[num]);
        push(lower, "scores.emit", Kind::Emit(output), &flat);
    }
    for (at, state) in lower.items.kept.clone().into_iter().enumerate() {
        let name = state.name.strip_prefix("decoder.").unwrap_or(&state.name);
        let name = name.to_owned();
        let from = if name == d.token {
            token.clone()
        } else {
            let output = &d.feed[&name];
            activation(
                &lower.values,
                graph,
                output,
                &format!("decoder feed {name}"),
            )?
        };
        let elems: usize = state.dims.iter().product();
        if from.layout.has_len() || from.layout.row_elems() != elems {
            let expected = format!("{:?}", state.dims);
            let got = format!("{:?}", from.layout.0);
            return Err(Error::invalid(
                format!("decoder feed {name}"),
                "axes",
                expected,
                got,
            ));
        }
        let from = lower.items.shaped(&from, &state.dims);
        push(lower, &format!("{name}.keep"), Kind::Keep(at), &from);
    }
    for (input, output) in &d.cache {
        let is_output = graph.outputs.iter().any(|o| o.name == *output);
        let grown = match (lower.values.get(input), lower.values.get(output)) {
            (Some(Value::Cache(a)), Some(Value::Cache(b))) => a.at == b.at && b.new.is_some(),
            _ => false,
        };
        if !grown || !is_output {
            let expected = format!("{input} with this step's row behind it");
            let place = format!("decoder cache {input}");
            return Err(Error::invalid(place, "output", expected, output));
        }
    }
    push(lower, "tokens.emit", Kind::Emit(tokens), &token);
    push(lower, "stop", Kind::Stop(d.stop), &token);
    Ok(())
}

/// A token as the decoder takes it.
pub(super) fn token_array(input: &Input, token: i32) -> Array {
    let dims = super::trace::dims_at(&input.layout, 1, 1);
    let num = dims.iter().product();
    Array::new(
        dims,
        Data::from_i128(input.elem, vec![i128::from(token); num]),
    )
}
