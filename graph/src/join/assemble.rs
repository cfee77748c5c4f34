//! Puts the nodes of all steps into one program. The wiring is sound.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Step;
use super::wires::{Source, Wires};
use super::wiring::emits;
use crate::ids::{InputId, NodeId, OutputId, StateId, ValueId, WeightId};
use crate::op::{At, Op};
use crate::passes::states_of;
use crate::program::{
    Block, Def, InputDecl, Node, OutputDecl, Program, Repeat, StateDecl, StateKind, Value,
    WeightDecl,
};
use crate::shape::{Dim, TensorType};

/// An output of a step: step and output.
type Made = (usize, usize);

/// The program that comes to be.
struct Assembly<'a> {
    steps: &'a [Step<'a>],
    wiring: &'a Wires,
    program: Program,
    /// Where the blocks of each step stand.
    placed: Vec<Vec<usize>>,
    /// States through which outputs go from block to block.
    states: BTreeMap<Made, StateId>,
    /// Outputs as values of the block that made them.
    values: BTreeMap<Made, ValueId>,
    /// Weights of each step as values.
    weights: Vec<Vec<ValueId>>,
}

/// The joined program, before what is dead in it goes.
pub(super) fn assemble(
    name: &str,
    inputs: &[String],
    steps: &[Step<'_>],
    outputs: &[String],
    wiring: &Wires,
) -> Program {
    let mut assembly = Assembly {
        steps,
        wiring,
        program: Program {
            name: name.to_owned(),
            ..Program::default()
        },
        placed: vec![Vec::new(); steps.len()],
        states: BTreeMap::new(),
        values: BTreeMap::new(),
        weights: vec![Vec::new(); steps.len()],
    };
    assembly.declare(inputs, outputs);
    assembly.place_blocks();
    assembly.declare_states();
    for &step in &wiring.order {
        assembly.add_weights(step);
        assembly.add_step(step);
    }
    assembly.program
}

impl Assembly<'_> {
    fn declare(&mut self, inputs: &[String], outputs: &[String]) {
        let programs = self.steps.iter().map(|s| s.program);
        let longest = programs.filter_map(|p| p.input(p.length_input?).max_len);
        let longest = longest.min();
        for (i, name) in inputs.iter().enumerate() {
            let readers = self.wiring.sources.iter().zip(self.steps);
            let readers = readers.flat_map(|(of, s)| of.iter().zip(&s.program.inputs));
            let readers = readers.filter(|(source, _)| **source == Source::Input(i));
            let decls: Vec<&InputDecl> = readers.map(|(_, decl)| decl).collect();
            let ty = decls[0].ty.clone();
            let is_sequence = ty.lead().is_some();
            if is_sequence && self.program.length_input.is_none() {
                self.program.length_input = Some(InputId::new(i));
            }
            self.program.inputs.push(InputDecl {
                name: name.clone(),
                ty,
                max_len: longest.filter(|_| is_sequence),
                id_bound: decls.iter().filter_map(|d| d.id_bound).min(),
                is_sampling: decls.iter().all(|d| d.is_sampling),
            });
        }
        for (name, &(step, output)) in outputs.iter().zip(&self.wiring.outputs) {
            let decl = &self.steps[step].program.outputs[output];
            self.program.outputs.push(OutputDecl {
                name: name.clone(),
                ty: decl.ty.clone(),
            });
        }
    }

    /// Blocks in order; a step's first one goes on where the last one before it, like it, runs once.
    fn place_blocks(&mut self) {
        for &step in &self.wiring.order {
            for (i, block) in self.steps[step].program.blocks.iter().enumerate() {
                let name = self.named(step, &block.name);
                let last = self.program.blocks.last_mut();
                match last.filter(|_| i == 0 && block.repeat == Repeat::Once) {
                    Some(last) if last.repeat == Repeat::Once => {
                        last.name = format!("{}+{name}", last.name);
                    }
                    _ => self.program.blocks.push(Block {
                        name,
                        repeat: block.repeat,
                        nodes: Vec::new(),
                    }),
                }
                self.placed[step].push(self.program.blocks.len() - 1);
            }
        }
    }

    /// The block in which an output is made, if it is there as one value.
    fn home(&self, (step, output): Made) -> Option<usize> {
        let [(block, _)] = emits(self.steps[step].program, output)[..] else {
            return None;
        };
        let at = self.placed[step][block];
        (self.program.blocks[at].repeat == Repeat::Once).then_some(at)
    }

    fn declare_states(&mut self) {
        for &step in &self.wiring.order {
            for (b, block) in self.steps[step].program.blocks.iter().enumerate() {
                for &node in &block.nodes {
                    let Op::Input { input, .. } = self.steps[step].program.node(node).op else {
                        continue;
                    };
                    let source = self.wiring.sources[step][input.index()];
                    let Source::Output { step: s, output } = source else {
                        continue;
                    };
                    let made = (s, output);
                    let is_value = self.home(made) == Some(self.placed[step][b]);
                    if !is_value && !self.states.contains_key(&made) {
                        let state = self.declare_state(made);
                        self.states.insert(made, state);
                    }
                }
            }
        }
    }

    fn declare_state(&mut self, (step, output): Made) -> StateId {
        let from = &self.steps[step];
        let decl = &from.program.outputs[output];
        let dims = decl.ty.fixed_dims().to_vec();
        let longest = self.program.length_input.map(|i| self.program.input(i));
        let longest = longest.and_then(|decl| decl.max_len);
        let kind = match decl.ty.lead() {
            Some(_) => StateKind::Sequence {
                features: dims.iter().product(),
                max_len: longest.unwrap_or(1),
            },
            None => StateKind::Vector { dims, init: 0.0 },
        };
        self.program.states.push(StateDecl {
            name: format!(":{}", from.outputs[&decl.name]),
            dtype: decl.ty.dtype,
            kind,
        });
        StateId::new(self.program.states.len() - 1)
    }

    /// A name within a step.
    fn named(&self, step: usize, name: &str) -> String {
        format!("{}/{name}", self.steps[step].name)
    }

    fn add_weights(&mut self, step: usize) {
        let own = self.steps[step].program;
        let same = |s: &usize| std::ptr::eq(self.steps[*s].program, own);
        let done = |s: &usize| self.weights[*s].len() == own.weights.len();
        let shared = (0..self.steps.len()).find(|s| *s != step && same(s) && done(s));
        if let Some(shared) = shared {
            self.weights[step] = self.weights[shared].clone();
            return;
        }
        for weight in &own.weights {
            let id = WeightId::new(self.program.weights.len());
            self.program.weights.push(WeightDecl {
                name: self.named(step, &weight.name),
                ..weight.clone()
            });
            self.program.values.push(Value {
                ty: weight.ty.clone(),
                def: Def::Weight(id),
            });
            self.weights[step].push(ValueId::new(self.program.values.len() - 1));
        }
    }

    /// Adds a node to a block.
    fn add(
        &mut self,
        block: usize,
        name: String,
        op: Op,
        inputs: &[ValueId],
        types: Vec<TensorType>,
    ) -> SmallVec<[ValueId; 2]> {
        let node = NodeId::new(self.program.nodes.len());
        let mut outputs = SmallVec::new();
        for (output, ty) in types.into_iter().enumerate() {
            outputs.push(ValueId::new(self.program.values.len()));
            self.program.values.push(Value {
                ty,
                def: Def::Node { node, output },
            });
        }
        self.program.nodes.push(Node {
            name,
            op,
            inputs: SmallVec::from_slice(inputs),
            outputs: outputs.clone(),
        });
        self.program.blocks[block].nodes.push(node);
        outputs
    }

    /// `value` with rows of `dims`.
    fn shaped(&mut self, block: usize, name: String, value: ValueId, dims: &[usize]) -> ValueId {
        let ty = self.program.value(value).ty.clone();
        if ty.fixed_dims()[..] == *dims {
            return value;
        }
        let lead = ty.lead().unwrap_or(Dim::Batch);
        let new = TensorType::activation(ty.dtype, lead, dims);
        let op = Op::Reshape {
            dims: dims.to_vec(),
        };
        self.add(block, name, op, &[value], vec![new])[0]
    }

    fn add_step(&mut self, step: usize) {
        let own = self.steps[step].program;
        let first_state = self.program.states.len();
        for state in &own.states {
            self.program.states.push(StateDecl {
                name: self.named(step, &state.name),
                ..state.clone()
            });
        }
        let mut values: Vec<Option<ValueId>> = vec![None; own.values.len()];
        for (b, block) in own.blocks.iter().enumerate() {
            let at = self.placed[step][b];
            for &id in &block.nodes {
                let node = own.node(id);
                let operand = |&v: &ValueId| match own.value(v).def {
                    Def::Weight(w) => self.weights[step][w.index()],
                    Def::Node { .. } => values[v.index()].expect("nodes stand in order"),
                };
                let inputs: Vec<ValueId> = node.inputs.iter().map(operand).collect();
                let types = node.outputs.iter().map(|&v| own.value(v).ty.clone());
                let types: Vec<TensorType> = types.collect();
                let outputs = match node.op {
                    Op::Input { input, at: pos } => {
                        let source = self.wiring.sources[step][input.index()];
                        self.read(step, at, node, source, pos, types)
                    }
                    Op::Emit { output } => {
                        self.emit(step, at, node, output.index(), inputs[0]);
                        SmallVec::new()
                    }
                    ref op => {
                        let mut op = op.clone();
                        for state in states_of(&mut op) {
                            *state = StateId::new(first_state + state.index());
                        }
                        let name = self.named(step, &node.name);
                        self.add(at, name, op, &inputs, types)
                    }
                };
                for (&old, new) in node.outputs.iter().zip(outputs) {
                    values[old.index()] = Some(new);
                }
            }
        }
    }

    /// What a node reads as its step's input.
    fn read(
        &mut self,
        step: usize,
        block: usize,
        node: &Node,
        source: Source,
        at: At,
        types: Vec<TensorType>,
    ) -> SmallVec<[ValueId; 2]> {
        let name = self.named(step, &node.name);
        let dims = types[0].fixed_dims();
        let (value, of) = match source {
            Source::Input(i) => {
                let input = InputId::new(i);
                let decl = &self.program.input(input).ty;
                let ty = TensorType::activation(
                    decl.dtype,
                    types[0].lead().unwrap_or(Dim::Batch),
                    &decl.fixed_dims(),
                );
                let op = Op::Input { input, at };
                (self.add(block, name.clone(), op, &[], vec![ty])[0], name)
            }
            Source::Output { step: s, output } => {
                let made = (s, output);
                if self.home(made) == Some(block) {
                    (self.values[&made], name)
                } else {
                    let state = self.states[&made];
                    let decl = self.program.state(state);
                    let (op, dims) = match &decl.kind {
                        StateKind::Vector { dims, .. } => (Op::VecRead { state }, dims.clone()),
                        StateKind::Sequence { features, .. } => {
                            (Op::SeqRead { state, at }, vec![*features])
                        }
                    };
                    let lead = types[0].lead().unwrap_or(Dim::Batch);
                    let ty = TensorType::activation(decl.dtype, lead, &dims);
                    (self.add(block, name.clone(), op, &[], vec![ty])[0], name)
                }
            }
        };
        SmallVec::from_slice(&[self.shaped(block, format!("{of}.shaped"), value, &dims)])
    }

    /// Hands an output out, on, or both.
    fn emit(&mut self, step: usize, block: usize, node: &Node, output: usize, value: ValueId) {
        let name = self.named(step, &node.name);
        let made = (step, output);
        let own = self.wiring.outputs.iter().position(|o| *o == made);
        if let Some(own) = own {
            let output = OutputId::new(own);
            self.add(block, name.clone(), Op::Emit { output }, &[value], vec![]);
        }
        if self.home(made) == Some(block) {
            self.values.insert(made, value);
        }
        let Some(&state) = self.states.get(&made) else {
            return;
        };
        let (op, dims) = match &self.program.state(state).kind {
            StateKind::Vector { dims, .. } => (Op::VecWrite { state }, dims.clone()),
            StateKind::Sequence { features, .. } => {
                let at = match self.program.blocks[block].repeat {
                    Repeat::Once => At::All,
                    _ => At::Step,
                };
                (Op::SeqWrite { state, at }, vec![*features])
            }
        };
        let value = self.shaped(block, format!("{name}.rows"), value, &dims);
        self.add(block, format!("{name}.hand_on"), op, &[value], vec![]);
    }
}
