//! What requests that are answered step by step have been sent.
//!
//! Invariant: the rows of an output that grows are sent once each, an output of fixed size is sent
//! once, as the whole answer has it.

use lazybatch_graph::{Dim, Op, OutputId, Program, Repeat, Tensor};
use lazybatch_kernels::Device;
use lazybatch_sla::Slot;

/// How an output comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// Row by row; so many were sent.
    Rows(usize),
    /// All at once.
    Once,
    /// All at once, perhaps again: as it is at the end.
    AtEnd,
    /// It was sent.
    Sent,
}

/// What was sent of each output of a request.
pub(crate) struct Sent(Vec<Comes>);

impl Sent {
    /// Nothing, of a request to that program.
    pub fn none(program: &Program) -> Self {
        let outputs = (0..program.outputs.len()).map(OutputId::new);
        Self(outputs.map(|o| comes(program, o)).collect())
    }

    /// What the device has and was not sent, output by output; what comes at the end if this is it.
    pub fn take_new(
        &mut self,
        device: &dyn Device,
        slot: Slot,
        is_end: bool,
        mut send: impl FnMut(usize, Tensor),
    ) {
        for (o, comes) in self.0.iter_mut().enumerate() {
            let from = match *comes {
                Comes::Rows(sent) => sent,
                Comes::Once => 0,
                Comes::AtEnd if is_end => 0,
                Comes::AtEnd | Comes::Sent => continue,
            };
            let Some(rows) = device.emitted(slot, OutputId::new(o), from) else {
                continue;
            };
            let num = rows.dims.first().copied().unwrap_or(0);
            if num > 0 {
                *comes = match *comes {
                    Comes::Rows(sent) => Comes::Rows(sent + num),
                    _ => Comes::Sent,
                };
                send(o, rows);
            }
        }
    }
}

fn comes(program: &Program, output: OutputId) -> Comes {
    if program.output(output).ty.dims.contains(&Dim::Len) {
        return Comes::Rows(0);
    }
    let nodes = program.blocks.iter().flat_map(|block| {
        let nodes = block.nodes.iter().map(|&n| program.node(n));
        let own = nodes.filter(|n| matches!(n.op, Op::Emit { output: to } if to == output));
        own.map(|_| block.repeat)
    });
    match &nodes.collect::<Vec<_>>()[..] {
        [Repeat::Once] => Comes::Once,
        // A loop sets it in every pass.
        _ => Comes::AtEnd,
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::{At, DType, ProgramBuilder};

    use super::*;

    #[test]
    fn outputs_come_by_rows_at_once_or_at_the_end() {
        let mut b = ProgramBuilder::new("kinds");
        let x = b.sequence_ids("x", 4, 8);
        let rows = b.output_sequence("rows", DType::F32, &[2]);
        let last = b.output("last", DType::F32, &[2]);
        let once = b.output("once", DType::F32, &[2]);
        let state = b.vector_state("state", DType::F32, &[2], 0.0);
        b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
        let v = b.read_input_at("read", x, At::Step);
        let v = b.embed("embed", v, 8, 2);
        b.vec_write("write", state, v);
        b.emit("rows.emit", rows, v);
        b.emit("last.emit", last, v);
        b.begin_block("end", Repeat::Once);
        let v = b.vec_read("state.read", state);
        b.emit("once.emit", once, v);
        let program = b.finish().unwrap();
        let expected = [Comes::Rows(0), Comes::AtEnd, Comes::Once];
        assert_eq!(Sent::none(&program).0, expected);
    }
}
