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
    let cells = movable(program, block, counts);
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

/// The cells of a loop whose products can move, each with where it reads its operand.
fn movable(program: &Program, block: usize, counts: &[u32]) -> Vec<(NodeId, At)> {
    let nodes = &program.blocks[block].nodes;
    let is_cell = |op: &Op| {
        matches!(
            op,
            Op::LstmCell { ahead: false, .. } | Op::GruCell { ahead: false, .. }
        )
    };
    if !nodes.iter().any(|&id| is_cell(&program.node(id).op)) {
        return Vec::new();
    }
    // Nodes stand in order, so what is known of operands is known before it is asked for.
    let mut given = vec![Given::Anywhere; program.values.len()];
    let mut cells = Vec::new();
    for &id in nodes {
        let node = program.node(id);
        if is_cell(&node.op)
            && let Given::At(at) = given[node.inputs[0].index()]
        {
            cells.push((id, at));
        }
        let own = of_node(program, block, node, counts, &given);
        for value in &node.outputs {
            given[value.index()] = own;
        }
    }
    cells
}

/// Whether a value of a loop is made, row by row, of inputs and of states that are full before the
/// loop, all read at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    /// Of something else.
    Not,
    /// Of weights alone.
    Anywhere,
    /// Read at this position.
    At(At),
}

/// What is known of a node's result, by what is known of its operands.
fn of_node(program: &Program, block: usize, node: &Node, counts: &[u32], given: &[Given]) -> Given {
    match node.op {
        Op::Input { input, at } if program.input(input).max_len.is_some() => Given::At(at),
        Op::SeqRead { state, at }
            if matches!(at, At::Step | At::Reverse) && is_full(program, block, state) =>
        {
            Given::At(at)
        }
        // What else reads a product would compute it a second time.
        Op::Linear { .. } if counts[node.outputs[0].index()] != 1 => Given::Not,
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
            let operands = node.inputs.iter().map(|v| given[v.index()]);
            operands.fold(Given::Anywhere, |all, one| match (all, one) {
                (all, Given::Anywhere) => all,
                (Given::Anywhere, one) => one,
                (all, one) if all == one => all,
                _ => Given::Not,
            })
        }
        _ => Given::Not,
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
    /// The value of all positions of a loop's value: operands are copied before what reads them.
    fn copy(&mut self, program: &mut Program, value: ValueId) -> ValueId {
        let mut wanted = vec![value];
        while let Some(&value) = wanted.last() {
            let known = self.copied(program, value);
            let Some((id, _)) = producer(program, value).filter(|_| known.is_none()) else {
                wanted.pop();
                continue;
            };
            let node = program.node(id);
            let missing = node.inputs.iter().rev();
            let missing = missing.filter(|&&v| self.copied(program, v).is_none());
            let before = wanted.len();
            wanted.extend(missing);
            if wanted.len() > before {
                continue;
            }
            wanted.pop();
            let node = node.clone();
            let inputs = node.inputs.iter();
            let inputs = inputs.filter_map(|&v| self.copied(program, v)).collect();
            let op = match node.op {
                Op::Input { input, .. } => all_of(input),
                Op::SeqRead { state, .. } => Op::SeqRead { state, at: At::All },
                op => op,
            };
            debug_assert_eq!(node.outputs.len(), 1, "ops of several results stay");
            self.copies[value.index()] = Some(self.add(program, &node.name, op, inputs));
        }
        self.copied(program, value).expect("copied above")
    }

    /// What stands for a loop's value in front of it, if that is there: weights are the same there.
    fn copied(&self, program: &Program, value: ValueId) -> Option<ValueId> {
        match program.value(value).def {
            Def::Weight(_) => Some(value),
            Def::Node { .. } => self.copies[value.index()],
        }
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
