//! Checks a program's structure and types.
//!
//! Run by the builder and after every pass. What it accepts, every other part may rely on:
//! 1. An operand is a weight, or the output of an earlier node of the same block.
//! 2. Types are those that the op's rule ([`crate::infer`]) derives from its operands.
//! 3. `Stop` stands in `UntilStop` blocks only; each such block has at least one.
//! 4. Names of nodes, blocks, weights, states, inputs and outputs are unique among their kind.
//! 5. Each node stands in exactly one block; ids lie in range; definitions and results agree.
//! 6. Sequence inputs have a length bound, all the same, and one of them drives the lengths.
//! 7. No sequence state can receive more rows than it holds, and no lookup an id out of range.
//! 8. Each declared output is emitted somewhere.
//! 9. An input for sampling is the last one and `[4] i32`.
//! 10. Inputs, outputs and states are f32 or i32, and weights of integers are given as such. Ids are
//!     integers, at least one of them and no more than an i32 counts.
//! 11. Behind a `Stop` nothing in its block emits or writes a state that a later block reads.
//! 12. What is carried to the next request has one fixed type as output and as input, is no id, and
//!     no input is carried twice.

use crate::dtype::DType;
use crate::error::Error;
use crate::ids::{NodeId, StateId, ValueId};
use crate::infer::{Context, infer};
use crate::op::{At, Op};
use crate::passes::{reads, written};
use crate::program::{Block, Def, Program, Repeat, StateKind};
use crate::sampling::Sampling;
use crate::shape::{Dim, TensorType};
use crate::tensor::WeightSource;

/// Most ids of an input: those that an i32 counts.
const MAX_IDS: usize = i32::MAX as usize;

/// Checks `program` as the module describes.
///
/// # Errors
/// The first violation found: [`Error::Structure`] for the program as a whole, [`Error::Node`] for
/// one node, [`Error::Tensor`] for a weight's data.
pub fn verify(program: &Program) -> Result<(), Error> {
    if program.name.is_empty() {
        return Err(Error::Structure {
            program: "\"\"".into(),
            what: "expected a name, got an empty text".into(),
        });
    }
    unique_names(program)?;
    declarations(program)?;
    carries(program)?;
    values(program)?;
    blocks(program)?;
    state_bounds(program)?;
    id_bounds(program)?;
    outputs_emitted(program)
}

/// Checks that each node computes rows, one for each sample or position, as devices do.
///
/// What [`optimize`](crate::optimize) makes of a verified program is such a one. A node whose operands
/// are all weights has one result whatever is batched, and a device would compute a single row of it.
///
/// # Errors
/// [`Error::Node`] for the first node without rows.
pub fn verify_rows(program: &Program) -> Result<(), Error> {
    for node in &program.nodes {
        for (i, &output) in node.outputs.iter().enumerate() {
            let ty = &program.value(output).ty;
            if ty.lead().is_none() {
                return Err(Error::Node {
                    node: node.name.clone(),
                    what: format!("result {i}"),
                    expected: "[batch or rows, ...]: constants are to be folded".to_owned(),
                    got: ty.to_string(),
                });
            }
        }
    }
    Ok(())
}

fn broken<T>(program: &Program, what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Structure {
        program: program.name.clone(),
        what: what.into(),
    })
}

fn unique_names(program: &Program) -> Result<(), Error> {
    fn check<'a>(
        program: &Program,
        kind: &str,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<(), Error> {
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                return broken(program, format!("two {kind}s are named {name}"));
            }
        }
        Ok(())
    }
    check(program, "node", program.nodes.iter().map(|n| &n.name))?;
    check(program, "block", program.blocks.iter().map(|b| &b.name))?;
    check(program, "weight", program.weights.iter().map(|w| &w.name))?;
    check(program, "state", program.states.iter().map(|s| &s.name))?;
    check(program, "input", program.inputs.iter().map(|i| &i.name))?;
    check(program, "output", program.outputs.iter().map(|o| &o.name))
}

/// Whether only the first dimension may be symbolic, and that one only `len`.
fn is_declared_type(ty: &TensorType) -> bool {
    ty.dims.iter().enumerate().all(|(i, d)| match d {
        Dim::Fixed(n) => *n > 0,
        Dim::Len => i == 0,
        Dim::Batch | Dim::Rows => false,
    })
}

/// Whether devices hold elements of this type as what they are; other types are those of stored weights.
const fn is_held(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32)
}

fn declarations(program: &Program) -> Result<(), Error> {
    let mut longest = None;
    for input in &program.inputs {
        if !is_declared_type(&input.ty) {
            return broken(
                program,
                format!("input {} has the type {}", input.name, input.ty),
            );
        }
        if !is_held(input.ty.dtype) {
            let what = format!("input {}: expected f32 or i32", input.name);
            return broken(program, format!("{what}, got {}", input.ty));
        }
        let is_float = input.ty.dtype.is_float();
        if let Some(bound) = input
            .id_bound
            .filter(|b| is_float || !(1..=MAX_IDS).contains(b))
        {
            let what = format!(
                "input {}, id bound: expected i32 and 1..={MAX_IDS}",
                input.name
            );
            return broken(program, format!("{what}, got {} and {bound}", input.ty));
        }
        let is_sequence = input.ty.lead().is_some();
        if is_sequence != input.max_len.is_some_and(|n| n > 0) {
            let what = format!(
                "input {} {}: a length bound is for sequences and positive, got {:?}",
                input.name, input.ty, input.max_len
            );
            return broken(program, what);
        }
        if is_sequence && *longest.get_or_insert(input.max_len) != input.max_len {
            return broken(
                program,
                format!("sequence input {} has its own bound", input.name),
            );
        }
    }
    let mut inputs = program.inputs.iter().rev();
    let words = TensorType::fixed(DType::I32, &[Sampling::WORDS]);
    let last = inputs.next().filter(|d| d.is_sampling);
    if let Some(input) = last.filter(|d| d.ty != words || d.id_bound.is_some()) {
        let what = format!("input {}, for sampling: expected {words}", input.name);
        return broken(program, format!("{what} without a bound, got {}", input.ty));
    }
    if let Some(input) = inputs.find(|d| d.is_sampling) {
        let what = "an input for sampling is the last one, and there is one";
        return broken(program, format!("input {}: {what}", input.name));
    }
    let drives = match program.length_input {
        None => longest.is_none(),
        Some(i) => matches!(program.inputs.get(i.index()), Some(d) if d.max_len.is_some()),
    };
    if !drives {
        let expected = "expected a sequence input if there is one, else none";
        let got = match program.length_input {
            None => "none".to_owned(),
            Some(i) => i.to_string(),
        };
        return broken(program, format!("length input: {expected}, got {got}"));
    }
    for output in &program.outputs {
        if !is_declared_type(&output.ty) {
            return broken(
                program,
                format!("output {} has the type {}", output.name, output.ty),
            );
        }
        if !is_held(output.ty.dtype) {
            let what = format!("output {}: expected f32 or i32", output.name);
            return broken(program, format!("{what}, got {}", output.ty));
        }
    }
    for state in &program.states {
        let empty = match &state.kind {
            StateKind::Vector { dims, .. } => dims.contains(&0),
            StateKind::Sequence { features, max_len } => *features == 0 || *max_len == 0,
        };
        if empty || !is_held(state.dtype) {
            let what = format!("state {}: expected f32 or i32 and elements", state.name);
            return broken(
                program,
                format!("{what}, got {} {:?}", state.dtype, state.kind),
            );
        }
    }
    weights(program)
}

fn carries(program: &Program) -> Result<(), Error> {
    for (i, carry) in program.carries.iter().enumerate() {
        let output = program.outputs.get(carry.output.index());
        let input = program.inputs.get(carry.input.index());
        let (Some(output), Some(input)) = (output, input) else {
            return broken(program, format!("carry {i}: no such output or input"));
        };
        let from_to = format!("{} carried to {}", output.name, input.name);
        if output.ty != input.ty || input.ty.lead().is_some() {
            let what = format!(
                "expected one fixed type, got {} and {}",
                output.ty, input.ty
            );
            return broken(program, format!("{from_to}: {what}"));
        }
        if input.id_bound.is_some() {
            return broken(
                program,
                format!("{from_to}: expected no ids, they are unchecked"),
            );
        }
        if program.carries[..i].iter().any(|c| c.input == carry.input) {
            return broken(program, format!("{from_to}: the input is carried twice"));
        }
    }
    Ok(())
}

fn weights(program: &Program) -> Result<(), Error> {
    for weight in &program.weights {
        if !weight
            .ty
            .dims
            .iter()
            .all(|d| matches!(d, Dim::Fixed(n) if *n > 0))
        {
            return broken(
                program,
                format!("weight {} has the type {}", weight.name, weight.ty),
            );
        }
        // What is made for a weight is floats, whose bits would be read as integers.
        let is_whole = matches!(&weight.source, WeightSource::Data(t) if !t.dtype.is_float());
        if !weight.ty.dtype.is_float() && !is_whole {
            return Err(Error::Tensor {
                what: format!("weight {}", weight.name),
                expected: format!("integers for {}", weight.ty),
                got: match &weight.source {
                    WeightSource::Data(tensor) => format!("{}{:?}", tensor.dtype, tensor.dims),
                    WeightSource::Constant(value) => format!("the constant {value}"),
                    WeightSource::Seeded { .. } => "seeded floats".to_owned(),
                },
            });
        }
        if let WeightSource::Data(tensor) = &weight.source
            && tensor.dims[..] != weight.ty.fixed_dims()[..]
        {
            return Err(Error::Tensor {
                what: format!("weight {}", weight.name),
                expected: weight.ty.to_string(),
                got: format!("{}{:?}", tensor.dtype, tensor.dims),
            });
        }
    }
    Ok(())
}

fn values(program: &Program) -> Result<(), Error> {
    for (i, value) in program.values.iter().enumerate() {
        let id = ValueId::new(i);
        let agrees = match value.def {
            Def::Weight(w) => program
                .weights
                .get(w.index())
                .is_some_and(|w| w.ty == value.ty),
            Def::Node { node, output } => program
                .nodes
                .get(node.index())
                .is_some_and(|n| n.outputs.get(output) == Some(&id)),
        };
        if !agrees {
            return broken(
                program,
                format!("{id}: its definition {:?} disagrees", value.def),
            );
        }
    }
    Ok(())
}

fn blocks(program: &Program) -> Result<(), Error> {
    let mut placed = vec![false; program.nodes.len()];
    for (b, block) in program.blocks.iter().enumerate() {
        let mut ready = vec![false; program.values.len()];
        let mut stops = 0;
        for &id in &block.nodes {
            match placed.get_mut(id.index()) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return broken(program, format!("{id} stands in two places")),
                None => return broken(program, format!("block {}: no node {id}", block.name)),
            }
            node(program, id, block.repeat, &mut ready)?;
            stops += usize::from(matches!(program.node(id).op, Op::Stop { .. }));
        }
        behind_stop(program, block, &program.blocks[b + 1..])?;
        match block.repeat {
            Repeat::UntilStop { max } if stops == 0 || max == 0 => {
                let what = "runs until it stops, but has no stop node or no passes";
                return broken(program, format!("block {} {what}", block.name));
            }
            Repeat::PerInputStep { stride } if stride == 0 || program.length_input.is_none() => {
                let what = "runs per input step, but has no stride or no sequence input";
                return broken(program, format!("block {} {what}", block.name));
            }
            _ => {}
        }
    }
    match placed.iter().position(|p| !p) {
        Some(i) => broken(
            program,
            format!("node {} stands in no block", program.nodes[i].name),
        ),
        None => Ok(()),
    }
}

/// Whether a member ran a node behind a stop in its last pass is for nobody to see.
fn behind_stop(program: &Program, block: &Block, later: &[Block]) -> Result<(), Error> {
    let is_stop = |&&n: &&NodeId| matches!(program.node(n).op, Op::Stop { .. });
    let Some(stop) = block.nodes.iter().find(is_stop) else {
        return Ok(());
    };
    let later = later.iter().flat_map(|b| &b.nodes);
    let is_placed = |n: &&NodeId| n.index() < program.nodes.len();
    let read: Vec<_> = later
        .filter(is_placed)
        .flat_map(|&n| reads(&program.node(n).op))
        .collect();
    let behind = block.nodes.iter().skip_while(|n| *n != stop);
    for node in behind.map(|&n| program.node(n)) {
        let is_read = |s: &StateId| read.contains(s);
        let what = match node.op {
            Op::Emit { .. } => "emits",
            _ if written(&node.op).iter().any(is_read) => "writes a state that a later block reads",
            _ => continue,
        };
        return Err(Error::Node {
            node: node.name.clone(),
            what: format!("its place in block {}", block.name),
            expected: format!(
                "in front of node {}, as it {what}",
                program.node(*stop).name
            ),
            got: "behind it".to_owned(),
        });
    }
    Ok(())
}

fn node(program: &Program, id: NodeId, repeat: Repeat, ready: &mut [bool]) -> Result<(), Error> {
    let node = program.node(id);
    let fail = |what: String, expected: &str, got: String| {
        Err(Error::Node {
            node: node.name.clone(),
            what,
            expected: expected.to_owned(),
            got,
        })
    };
    for (i, &input) in node.inputs.iter().enumerate() {
        let known = program.values.get(input.index());
        let usable = known.is_some_and(|v| match v.def {
            Def::Weight(_) => true,
            Def::Node { .. } => ready[input.index()],
        });
        if !usable {
            let expected = "a weight or a result of an earlier node of the block";
            return fail(format!("operand {i}"), expected, input.to_string());
        }
    }
    let operands: Vec<&TensorType> = node.inputs.iter().map(|&v| &program.value(v).ty).collect();
    let cx = Context {
        program,
        repeat,
        node: &node.name,
    };
    let types = infer(&node.op, &operands, &cx)?;
    if types.len() != node.outputs.len() {
        let got = node.outputs.len().to_string();
        return fail(
            "number of results".to_owned(),
            &types.len().to_string(),
            got,
        );
    }
    for (output, ty) in types.iter().enumerate() {
        let result = node.outputs[output];
        let Some(value) = program.values.get(result.index()) else {
            return fail(format!("result {output}"), "a value", result.to_string());
        };
        if value.def != (Def::Node { node: id, output }) {
            return fail(
                format!("result {output}"),
                "its own value",
                format!("{:?}", value.def),
            );
        }
        if value.ty != *ty {
            return fail(
                format!("result {output}"),
                &ty.to_string(),
                value.ty.to_string(),
            );
        }
        ready[result.index()] = true;
    }
    Ok(())
}

/// All nodes with the repeat rule of their block.
fn placed_nodes(program: &Program) -> impl Iterator<Item = (Repeat, NodeId)> {
    program
        .blocks
        .iter()
        .flat_map(|b| b.nodes.iter().map(|&n| (b.repeat, n)))
}

/// Positions written lie below the bound, and appended rows fit behind them.
fn state_bounds(program: &Program) -> Result<(), Error> {
    for (i, state) in program.states.iter().enumerate() {
        let StateKind::Sequence { max_len, .. } = state.kind else {
            continue;
        };
        let (mut placed, mut appended) = (0, 0);
        for (repeat, id) in placed_nodes(program) {
            let node = program.node(id);
            let Op::SeqWrite { state, at } = node.op else {
                continue;
            };
            if state != StateId::new(i) {
                continue;
            }
            let cx = Context {
                program,
                repeat,
                node: &node.name,
            };
            match (at, cx.max_positions()) {
                (At::End, Some(n)) if repeat.is_loop() => appended += n,
                (At::End, _) => appended += 1,
                (_, n) => placed = placed.max(n.unwrap_or(0)),
            }
        }
        if placed + appended > max_len {
            let what = format!(
                "holds {max_len} rows but up to {} are written",
                placed + appended
            );
            return broken(program, format!("state {} {what}", state.name));
        }
    }
    Ok(())
}

/// Ids that come straight from an input, from a state or from a choice are rows of the table.
fn id_bounds(program: &Program) -> Result<(), Error> {
    for (_, id) in placed_nodes(program) {
        let node = program.node(id);
        if !matches!(node.op, Op::Embedding | Op::EmbeddingBag) {
            continue;
        }
        let rows = program.value(node.inputs[1]).ty.fixed_dims()[0];
        let fail = |expected: String, got: String| {
            Err(Error::Node {
                node: node.name.clone(),
                what: "ids".to_owned(),
                expected,
                got,
            })
        };
        match id_bound(program, node.inputs[0], true) {
            Bound::Below(bound) if bound > rows => {
                return fail(
                    format!("ids below the table's {rows} rows"),
                    format!("below {bound}"),
                );
            }
            Bound::Missing(input) => {
                return fail(format!("an id bound on input {input}"), "none".to_owned());
            }
            Bound::Below(_) | Bound::Unknown => {}
        }
    }
    Ok(())
}

/// What is known about an id.
enum Bound {
    /// It lies in `0..` this.
    Below(usize),
    /// It comes from this input, which states no bound.
    Missing(String),
    /// It comes through an op that is not looked through.
    Unknown,
}

fn id_bound(program: &Program, value: ValueId, through_states: bool) -> Bound {
    let Def::Node { node, .. } = program.value(value).def else {
        return Bound::Unknown;
    };
    let node = program.node(node);
    match node.op {
        Op::Input { input, .. } => {
            let decl = program.input(input);
            decl.id_bound
                .map_or_else(|| Bound::Missing(decl.name.clone()), Bound::Below)
        }
        Op::ArgMax | Op::Sample => Bound::Below(program.value(node.inputs[0]).ty.row_elems()),
        Op::TopK { .. } => {
            let dims = program.value(node.inputs[0]).ty.fixed_dims();
            dims.last().map_or(Bound::Unknown, |&d| Bound::Below(d))
        }
        Op::VecRead { state } if through_states => {
            let initial = match program.state(state).kind {
                StateKind::Vector { init, .. } if init >= 0.0 => (init as usize).saturating_add(1),
                _ => return Bound::Unknown,
            };
            let written = program.nodes.iter().filter_map(|n| match n.op {
                Op::VecWrite { state: s } if s == state => Some(n.inputs[0]),
                _ => None,
            });
            let bounds = written.filter_map(|v| match id_bound(program, v, false) {
                Bound::Below(n) => Some(n),
                Bound::Missing(_) | Bound::Unknown => None,
            });
            Bound::Below(bounds.fold(initial, usize::max))
        }
        _ => Bound::Unknown,
    }
}

fn outputs_emitted(program: &Program) -> Result<(), Error> {
    for (i, output) in program.outputs.iter().enumerate() {
        let emitted =
            |n: &crate::program::Node| matches!(n.op, Op::Emit { output } if output.index() == i);
        if !program.nodes.iter().any(emitted) {
            return broken(program, format!("output {} is never emitted", output.name));
        }
    }
    Ok(())
}
