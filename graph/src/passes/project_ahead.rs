//! Moves the input products of recurrent cells in front of their loop.
//!
//! Where the operand `x` of an LSTM or GRU cell in a loop over the input depends on no earlier
//! pass, `x w_ih` of all positions is one product with as many rows as there are positions: a
//! block that runs once computes it into a sequence state, and the cell reads finished rows. An
//! LSTM's product with `h` continues the stored chains and a GRU's two products were separate
//! anyway, so the bits stay.
//!
//! It is not part of [`super::optimize`]: on a processor it reads `w_ih` once per request instead
//! of once per step, but a request then holds `4 h` (GRU: `3 h`) floats per position, and the
//! product is a node as long as its sequence. A newcomer runs the new block by itself or with other
//! newcomers, and joins the loop as before. Loops in a row share the state: a request's memory is
//! that of the loop with the most cells.

use smallvec::SmallVec;

use super::dead_code;
use super::edit::{producer, remove, use_counts};
use crate::dtype::DType;
use crate::ids::{InputId, NodeId, StateId, ValueId};
use crate::infer::{Context, infer};
use crate::op::{At, Op};
use crate::program::{Block, Def, Node, Program, Repeat, StateDecl, StateKind, Value};
use crate::shape::TensorType;

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    let counts = use_counts(program);
    let mut shared: Vec<StateId> = Vec::new();
    let (mut block, before) = (0, program.blocks.len());
    while block < program.blocks.len() {
        if program.blocks[block].repeat == (Repeat::PerInputStep { stride: 1 }) {
            block += usize::from(hoist(program, block, &counts, &mut shared));
        }
        block += 1;
    }
    if program.blocks.len() > before {
        // What the loops no longer read.
        let none = vec![false; program.nodes.len()];
        remove(program, &none);
        dead_code::run(program);
    }
}

/// Gives a loop a block in front of it, if it has a cell whose product can move; whether it has.
fn hoist(program: &mut Program, block: usize, counts: &[u32], shared: &mut Vec<StateId>) -> bool {
    let cells: Vec<(NodeId, At)> = program.blocks[block]
        .nodes
        .iter()
        .filter_map(|&id| Some((id, movable(program, block, id, counts)?)))
        .collect();
    if cells.is_empty() {
        return false;
    }
    let name = format!("{}.ahead", program.blocks[block].name);
    let mut front = Front {
        name: unique(name, program.blocks.iter().map(|b| &b.name)),
        nodes: Vec::new(),
        copies: vec![None; program.values.len()],
    };
    let mut free = shared.clone();
    for (id, at) in cells {
        let cell = program.node(id).clone();
        let x = front.copy(program, cell.inputs[0]);
        let (op, operands, rest) = match cell.op {
            Op::GruCell { .. } => (
                linear(true),
                SmallVec::from_slice(&[x, cell.inputs[1], cell.inputs[3]]),
                vec![cell.inputs[2], cell.inputs[4]],
            ),
            _ => (
                linear(false),
                SmallVec::from_slice(&[x, cell.inputs[1]]),
                cell.inputs[2..].to_vec(),
            ),
        };
        let gates = front.add(program, &cell.name, op, operands);
        let width = program.value(gates).ty.row_elems();
        let state = state(program, &cell.name, width, &mut free, shared);
        front.add_write(program, &cell.name, state, gates);
        let read = add_node(
            program,
            format!("{}.given", cell.name),
            Op::SeqRead { state, at },
            SmallVec::new(),
            Repeat::PerInputStep { stride: 1 },
        );
        let nodes = &mut program.blocks[block].nodes;
        let place = nodes.iter().position(|&n| n == id).unwrap_or(nodes.len());
        nodes.insert(place, read);
        let given = program.node(read).outputs[0];
        let cell = &mut program.nodes[id.index()];
        cell.inputs = std::iter::once(given).chain(rest).collect();
        match &mut cell.op {
            Op::LstmCell { ahead, .. } | Op::GruCell { ahead, .. } => *ahead = true,
            _ => {}
        }
    }
    let new = Block {
        name: front.name,
        repeat: Repeat::Once,
        nodes: front.nodes,
    };
    program.blocks.insert(block, new);
    true
}

fn linear(bias: bool) -> Op {
    Op::Linear {
        bias,
        act: None,
        residual: false,
    }
}

/// Where the node reads its operand, if it is a cell whose product can move.
fn movable(program: &Program, block: usize, id: NodeId, counts: &[u32]) -> Option<At> {
    let node = program.node(id);
    let is_cell = matches!(
        node.op,
        Op::LstmCell { ahead: false, .. } | Op::GruCell { ahead: false, .. }
    );
    let mut at = None;
    (is_cell && is_given(program, block, node.inputs[0], counts, &mut at)).then_some(at?)
}

/// Whether a value of a loop is made, row by row, of inputs and of states that are full before the
/// loop, all read at one position, which is left in `at`.
fn is_given(
    program: &Program,
    block: usize,
    value: ValueId,
    counts: &[u32],
    at: &mut Option<At>,
) -> bool {
    let Some((_, node)) = producer(program, value) else {
        return true;
    };
    match node.op {
        Op::Input { input, at: here } => {
            program.input(input).max_len.is_some() && *at.get_or_insert(here) == here
        }
        Op::SeqRead { state, at: here } => {
            matches!(here, At::Step | At::Reverse)
                && *at.get_or_insert(here) == here
                && is_full(program, block, state)
        }
        // What else reads a product would compute it a second time.
        Op::Linear { .. } if counts[value.index()] != 1 => false,
        Op::Linear { .. }
        | Op::Binary(_)
        | Op::Unary(_)
        | Op::Scale(_)
        | Op::Elementwise(_)
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Embedding
        | Op::EmbeddingBag
        | Op::Reshape { .. }
        | Op::Concat
        | Op::Slice { .. } => {
            let mut inputs = node.inputs.iter();
            inputs.all(|&v| is_given(program, block, v, counts, at))
        }
        _ => false,
    }
}

/// Whether a state holds a row for each position before the block, and the block leaves them.
fn is_full(program: &Program, block: usize, state: StateId) -> bool {
    let writes = |b: usize| {
        let nodes = program.blocks[b].nodes.iter();
        nodes.filter_map(move |&n| match program.node(n).op {
            Op::SeqWrite { state: s, at } if s == state => Some(at),
            _ => None,
        })
    };
    let fills = |b: usize| match program.blocks[b].repeat {
        Repeat::Once => writes(b).any(|at| at == At::All),
        Repeat::PerInputStep { stride: 1 } => {
            writes(b).any(|at| matches!(at, At::Step | At::Reverse))
        }
        _ => false,
    };
    (0..block).any(fills) && writes(block).next().is_none()
}

/// A sequence state of `width` features that no other cell of the loop uses.
fn state(
    program: &mut Program,
    cell: &str,
    width: usize,
    free: &mut Vec<StateId>,
    shared: &mut Vec<StateId>,
) -> StateId {
    let fits = |s: &StateId| matches!(program.state(*s).kind, StateKind::Sequence { features, .. } if features == width);
    if let Some(at) = free.iter().position(fits) {
        return free.swap_remove(at);
    }
    let max_len = program.length_input.and_then(|i| program.input(i).max_len);
    let name = format!("{cell}.ahead");
    let decl = StateDecl {
        name: unique(name, program.states.iter().map(|s| &s.name)),
        dtype: DType::F32,
        kind: StateKind::Sequence {
            features: width,
            max_len: max_len.unwrap_or(1),
        },
    };
    program.states.push(decl);
    let new = StateId::new(program.states.len() - 1);
    shared.push(new);
    new
}

/// `name`, or that with strokes behind it if it is taken.
fn unique<'a>(mut name: String, taken: impl Iterator<Item = &'a String> + Clone) -> String {
    while taken.clone().any(|t| *t == name) {
        name.push('\'');
    }
    name
}

/// The block in front of a loop, under construction.
struct Front {
    name: String,
    nodes: Vec<NodeId>,
    /// By value of the loop: the same for all positions.
    copies: Vec<Option<ValueId>>,
}

impl Front {
    /// The value of all positions of a loop's value.
    fn copy(&mut self, program: &mut Program, value: ValueId) -> ValueId {
        let Def::Node { node, output } = program.value(value).def else {
            return value;
        };
        if let Some(copy) = self.copies[value.index()] {
            return copy;
        }
        let node = program.node(node).clone();
        let inputs = node.inputs.iter().map(|&v| self.copy(program, v)).collect();
        let op = match node.op {
            Op::Input { input, .. } => all_of(input),
            Op::SeqRead { state, .. } => Op::SeqRead { state, at: At::All },
            op => op,
        };
        let copy = self.add(program, &node.name, op, inputs);
        debug_assert_eq!(output, 0, "ops of several results are not copied");
        self.copies[value.index()] = Some(copy);
        copy
    }

    fn add(
        &mut self,
        program: &mut Program,
        of: &str,
        op: Op,
        inputs: SmallVec<[ValueId; 4]>,
    ) -> ValueId {
        let id = add_node(program, format!("{of}.ahead"), op, inputs, Repeat::Once);
        self.nodes.push(id);
        program.node(id).outputs[0]
    }

    fn add_write(&mut self, program: &mut Program, of: &str, state: StateId, gates: ValueId) {
        let op = Op::SeqWrite { state, at: At::All };
        let name = format!("{of}.ahead.keep");
        let id = add_node(
            program,
            name,
            op,
            SmallVec::from_slice(&[gates]),
            Repeat::Once,
        );
        self.nodes.push(id);
    }
}

fn all_of(input: InputId) -> Op {
    Op::Input { input, at: At::All }
}

/// Adds a node, in no block yet, with the results that its op has.
fn add_node(
    program: &mut Program,
    name: String,
    op: Op,
    inputs: SmallVec<[ValueId; 4]>,
    repeat: Repeat,
) -> NodeId {
    let name = unique(name, program.nodes.iter().map(|n| &n.name));
    let types: Vec<TensorType> = {
        let operands: Vec<&TensorType> = inputs.iter().map(|&v| &program.value(v).ty).collect();
        let cx = Context {
            program,
            repeat,
            node: &name,
        };
        // An error would be a bug of this pass; the verifier behind it then names the node.
        infer(&op, &operands, &cx).map_or_else(|_| Vec::new(), |types| types.into_iter().collect())
    };
    let id = NodeId::new(program.nodes.len());
    let mut outputs = SmallVec::new();
    for (output, ty) in types.into_iter().enumerate() {
        outputs.push(ValueId::new(program.values.len()));
        let def = Def::Node { node: id, output };
        program.values.push(Value { ty, def });
    }
    program.nodes.push(Node {
        name,
        op,
        inputs,
        outputs,
    });
    id
}
