//! Data of open requests.

use std::ops::Range;

use lazybatch_graph::{OutputId, Program, Tensor};
use lazybatch_kernels::pages::SeqState;
use lazybatch_kernels::plans::Opened;
use lazybatch_kernels::validate;

use crate::memory::{ELEM, HostPool};

/// An input in page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Its first byte in the pool.
    pub at: usize,
    /// Its elements.
    pub len: usize,
}

/// An output under construction in page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Its first byte in the pool.
    pub at: usize,
    /// Elements that there is room for.
    pub room: usize,
    /// Elements that launches were told to write so far.
    pub issued: usize,
    /// Elements that launches have written; none before the first.
    pub written: Option<usize>,
}

/// An open request.
#[derive(Debug)]
pub struct Open {
    /// What launches are compared with.
    pub opened: Opened,
    /// Bytes of the host pool.
    pub room: Range<usize>,
    /// By input id.
    pub inputs: Vec<Input>,
    /// By output id.
    pub outputs: Vec<Output>,
    /// Rows of the pools of vector states, one for each sample.
    pub rows: Vec<u32>,
    /// Sequence states by id; empty for vector states.
    pub sequences: Vec<SeqState>,
}

impl Open {
    /// Places for inputs of so many elements and outputs with so much room, in `room`.
    pub fn places(
        room: &Range<usize>,
        inputs: impl Iterator<Item = usize>,
        outputs: impl Iterator<Item = usize>,
    ) -> (Vec<Input>, Vec<Output>) {
        let mut next = room.start;
        let mut place = |elems: usize| {
            let at = next;
            next += padded(elems) * ELEM;
            at
        };
        let inputs = inputs
            .map(|len| Input {
                at: place(len),
                len,
            })
            .collect();
        let outputs = outputs.map(|room| Output {
            at: place(room),
            room,
            issued: 0,
            written: None,
        });
        (inputs, outputs.collect())
    }

    /// An output's rows from `from` on (all of an output without `len`), once set.
    pub fn emitted(
        &self,
        program: &Program,
        pool: &HostPool,
        output: OutputId,
        from: usize,
    ) -> Option<Tensor> {
        let out = self.outputs.get(output.index())?;
        let data = pool.read(out.at, out.written?);
        Some(validate::emitted(program.output(output), data, from))
    }
}

/// Elements that a place takes: whole groups of four, so that each starts where wide copies can.
pub fn padded(elems: usize) -> usize {
    elems.next_multiple_of(4)
}
