//! Removes nodes that no output and no stop depends on, and the states that only they touch.
//!
//! A node is alive if it emits or stops, if a live node reads its result, or if it writes a state
//! that a live node reads.

use super::edit::{producer, remove, states_of};
use crate::ids::{NodeId, StateId};
use crate::op::Op;
use crate::program::Program;

/// Runs the pass.
pub(super) fn run(program: &mut Program) {
    let mut alive = vec![false; program.nodes.len()];
    let roots = |n: &NodeId| matches!(program.node(*n).op, Op::Emit { .. } | Op::Stop { .. });
    let mut open: Vec<NodeId> = program
        .blocks
        .iter()
        .flat_map(|b| &b.nodes)
        .copied()
        .filter(roots)
        .collect();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut alive[id.index()], true) {
            continue;
        }
        let node = program.node(id);
        open.extend(
            node.inputs
                .iter()
                .filter_map(|&v| producer(program, v))
                .map(|(p, _)| p),
        );
        for state in reads(&node.op) {
            let writers = program
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, n)| writes(&n.op, state));
            open.extend(writers.map(|(i, _)| NodeId::new(i)));
        }
    }
    let dead: Vec<bool> = alive.iter().map(|a| !a).collect();
    remove(program, &dead);
}

fn touched(op: &Op) -> Vec<StateId> {
    states_of(&mut op.clone()).into_iter().map(|s| *s).collect()
}

/// States that an op's result depends on.
pub(crate) fn reads(op: &Op) -> Vec<StateId> {
    match op {
        Op::VecWrite { .. } | Op::SeqWrite { .. } => Vec::new(),
        _ => touched(op),
    }
}

fn writes(op: &Op, state: StateId) -> bool {
    written(op).contains(&state)
}

/// States that an op changes.
pub(crate) fn written(op: &Op) -> Vec<StateId> {
    match op {
        Op::VecWrite { .. } | Op::SeqWrite { .. } | Op::LstmCell { .. } | Op::GruCell { .. } => {
            touched(op)
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::builder::ProgramBuilder;
    use crate::dtype::DType;
    use crate::op::{Act, At};
    use crate::passes::{PASSES, apply};
    use crate::program::Repeat;

    #[test]
    fn what_nothing_depends_on_goes_with_its_states_and_blocks() {
        let mut b = ProgramBuilder::new("dead");
        let x = b.sequence("x", DType::F32, &[4], 8);
        let y = b.output_sequence("y", DType::F32, &[4]);
        let unread = b.sequence_state("unread", 4, 8);
        let counter = b.vector_state("counter", DType::F32, &[], 0.0);
        b.begin_block("only", Repeat::PerInputStep { stride: 1 });
        let v = b.read_input("x0", x);
        b.seq_write("never.read", unread, At::Step, v);
        b.begin_block("each", Repeat::PerInputStep { stride: 1 });
        let v = b.read_input("x", x);
        b.dense("unused", v, 9, None);
        let c = b.vec_read("count", counter);
        let c = b.unary("itself", Act::Tanh, c);
        b.vec_write("feeds.itself", counter, c);
        let w = b.lstm_weights("lstm", 4, 4);
        let state = b.lstm_state("lstm", 4);
        b.lstm_cell("lstm", v, w, None, state.h, state.c);
        let seen = b.vec_read("seen", state.h);
        let s = b.add("sum", seen, v);
        b.emit("y", y, s);
        let mut program = b.finish().unwrap();
        apply(&PASSES[1], &mut program).unwrap();
        let names: Vec<&str> = program.nodes.iter().map(|n| n.name.as_str()).collect();
        // The cell's result is not read, but its state is.
        assert_eq!(names, ["x", "lstm", "seen", "sum", "y"]);
        let states: Vec<&str> = program.states.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(states, ["lstm.h", "lstm.c"]);
        assert_eq!(program.blocks.len(), 1);
        assert_eq!(program.weights.len(), 3);
    }
}
