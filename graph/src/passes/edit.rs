//! Helpers for passes: uses of values, fusions, new weights, and renumbering.

use smallvec::SmallVec;

use crate::ids::{NodeId, StateId, ValueId, WeightId};
use crate::op::Op;
use crate::program::{Def, Node, Program, Value, WeightDecl};
use crate::shape::TensorType;
use crate::tensor::WeightSource;

/// How often each value is an operand.
pub(super) fn use_counts(program: &Program) -> Vec<u32> {
    let mut counts = vec![0; program.values.len()];
    for block in &program.blocks {
        for &node in &block.nodes {
            for value in &program.node(node).inputs {
                counts[value.index()] += 1;
            }
        }
    }
    counts
}

/// The node that computes `value`.
pub(super) fn producer(program: &Program, value: ValueId) -> Option<(NodeId, &Node)> {
    match program.value(value).def {
        Def::Node { node, .. } => Some((node, program.node(node))),
        Def::Weight(_) => None,
    }
}

/// What a consumer becomes when it takes its producer in.
pub(super) struct Fusion {
    /// The producer, whose only result nobody else reads.
    pub producer: NodeId,
    /// The op of both.
    pub op: Op,
    /// Its operands.
    pub inputs: SmallVec<[ValueId; 4]>,
}

/// Applies `rule` to every node in order. A rule sees a program in which earlier fusions are done,
/// so chains fuse in one go. `uses(v)` tells how often a value is an operand, or was: where a fused node
/// reads one operand for two nodes, that counts twice.
pub(super) fn fuse(
    program: &mut Program,
    rule: impl Fn(&Program, &Node, &dyn Fn(ValueId) -> u32) -> Option<Fusion>,
) {
    let counts = use_counts(program);
    let order: Vec<NodeId> = program
        .blocks
        .iter()
        .flat_map(|b| b.nodes.clone())
        .collect();
    let mut absorbed = vec![false; program.nodes.len()];
    for id in order {
        // The operands of a producer move to its consumer, so counts of live values stay right.
        let uses = |v: ValueId| counts[v.index()];
        let Some(fusion) = rule(program, program.node(id), &uses) else {
            continue;
        };
        absorbed[fusion.producer.index()] = true;
        let name = program.node(fusion.producer).name.clone();
        rewrite(program, id, name, fusion.op, &fusion.inputs);
    }
    remove(program, &absorbed);
}

/// Gives a node another name, op and operands; its place and results stay.
pub(super) fn rewrite(program: &mut Program, id: NodeId, name: String, op: Op, inputs: &[ValueId]) {
    let node = &mut program.nodes[id.index()];
    node.name = name;
    node.op = op;
    node.inputs = SmallVec::from_slice(inputs);
}

/// Takes the marked nodes out of the program.
pub(super) fn remove(program: &mut Program, marked: &[bool]) {
    for block in &mut program.blocks {
        block.nodes.retain(|n| !marked[n.index()]);
    }
    program.blocks.retain(|b| !b.nodes.is_empty());
    compact(program);
}

/// Adds a weight under a name that derives from `name`.
pub(super) fn add_weight(
    program: &mut Program,
    name: &str,
    ty: TensorType,
    source: WeightSource,
) -> ValueId {
    let taken = |name: &String| program.weights.iter().any(|w| w.name == *name);
    let mut unique = name.to_owned();
    while taken(&unique) {
        unique.push('\'');
    }
    let weight = WeightId::new(program.weights.len());
    program.weights.push(WeightDecl {
        name: unique,
        ty: ty.clone(),
        source,
    });
    program.values.push(Value {
        ty,
        def: Def::Weight(weight),
    });
    ValueId::new(program.values.len() - 1)
}

/// Makes every reader of `old` read `new`.
pub(super) fn replace_uses(program: &mut Program, old: ValueId, new: ValueId) {
    for node in &mut program.nodes {
        for input in &mut node.inputs {
            if *input == old {
                *input = new;
            }
        }
    }
}

/// The states that an op names.
pub(crate) fn states_of(op: &mut Op) -> SmallVec<[&mut StateId; 2]> {
    match op {
        Op::StateAttention { keys, values, .. } | Op::AdditiveAttention { keys, values } => {
            SmallVec::from([keys, values])
        }
        Op::LstmCell { h, c, .. } => SmallVec::from([h, c]),
        Op::GruCell { h: state, .. }
        | Op::Rope {
            past: Some(state), ..
        }
        | Op::VecRead { state }
        | Op::VecWrite { state }
        | Op::SeqRead { state, .. }
        | Op::SeqWrite { state, .. } => SmallVec::from_iter([state]),
        _ => SmallVec::new(),
    }
}

/// Drops nodes that stand in no block, and values, weights and states that nobody names, and
/// renumbers the rest: nodes in block order, weights, states and values in the order of first use.
fn compact(program: &mut Program) {
    let old_nodes = std::mem::take(&mut program.nodes);
    let old_values = std::mem::take(&mut program.values);
    let old_weights = std::mem::take(&mut program.weights);
    let old_states = std::mem::take(&mut program.states);
    let mut values: Vec<Option<ValueId>> = vec![None; old_values.len()];
    let mut states: Vec<Option<StateId>> = vec![None; old_states.len()];
    let mut weights: Vec<Option<WeightId>> = vec![None; old_weights.len()];
    for block in 0..program.blocks.len() {
        for at in 0..program.blocks[block].nodes.len() {
            let id = NodeId::new(program.nodes.len());
            let mut node = old_nodes[program.blocks[block].nodes[at].index()].clone();
            program.blocks[block].nodes[at] = id;
            for input in &mut node.inputs {
                let old = &old_values[input.index()];
                let new = *values[input.index()].get_or_insert_with(|| {
                    // Results of nodes were numbered when their producer was.
                    let def = match old.def {
                        Def::Weight(w) => {
                            Def::Weight(*weights[w.index()].get_or_insert_with(|| {
                                program.weights.push(old_weights[w.index()].clone());
                                WeightId::new(program.weights.len() - 1)
                            }))
                        }
                        def @ Def::Node { .. } => def,
                    };
                    program.values.push(Value {
                        ty: old.ty.clone(),
                        def,
                    });
                    ValueId::new(program.values.len() - 1)
                });
                *input = new;
            }
            for (output, value) in node.outputs.iter_mut().enumerate() {
                let ty = old_values[value.index()].ty.clone();
                let new = ValueId::new(program.values.len());
                values[value.index()] = Some(new);
                program.values.push(Value {
                    ty,
                    def: Def::Node { node: id, output },
                });
                *value = new;
            }
            for state in states_of(&mut node.op) {
                *state = *states[state.index()].get_or_insert_with(|| {
                    program.states.push(old_states[state.index()].clone());
                    StateId::new(program.states.len() - 1)
                });
            }
            program.nodes.push(node);
        }
    }
}
