//! Data of open requests: staged inputs, outputs so far, states.

use lazybatch_graph::{Dim, OutputId, Program, Tensor};
use lazybatch_sla::{ModelId, RequestId, Slot};

use super::buffers::Buf;
use super::states::SeqState;
use crate::validate::unstage;

/// Where a request's live values are: a frame, and the member's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Key of the frame.
    pub frame: usize,
    /// Index of the member.
    pub index: usize,
}

/// An output under construction.
#[derive(Debug)]
pub struct Output {
    /// Elements so far.
    pub data: Vec<f32>,
    /// Whether anything was emitted.
    pub set: bool,
}

impl Output {
    /// An output that may become so many elements; where there is no room for all of them, it
    /// grows as they come.
    pub fn with_room(elems: usize) -> Self {
        let mut data = Vec::new();
        let _ = data.try_reserve_exact(elems);
        Self { data, set: false }
    }
}

/// An open request.
#[derive(Debug)]
pub struct Open {
    /// The request.
    pub request: RequestId,
    /// Its model.
    pub model: ModelId,
    /// Length of its input sequence.
    pub input_len: usize,
    /// Samples.
    pub samples: usize,
    /// Inputs by id.
    pub inputs: Vec<Vec<f32>>,
    /// Outputs by id.
    pub outputs: Vec<Output>,
    /// Vector states by id; empty for sequence states.
    pub vectors: Vec<Buf>,
    /// Sequence states by id; empty for vector states.
    pub sequences: Vec<SeqState>,
    /// Where its live values are.
    pub home: Option<Home>,
}

/// Open requests by slot.
#[derive(Debug, Default)]
pub struct Slots(Vec<Option<Open>>);

impl Slots {
    /// The open request at `slot`.
    pub fn get(&self, slot: Slot) -> Option<&Open> {
        self.0.get(slot.index()).and_then(Option::as_ref)
    }

    /// The open request at `slot`, mutably.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Open> {
        self.0.get_mut(slot.index()).and_then(Option::as_mut)
    }

    /// The open request at `slot` of a running launch.
    ///
    /// # Panics
    /// If it is not open; launches are checked before they run.
    pub fn open(&self, slot: Slot) -> &Open {
        self.get(slot)
            .expect("members of a running launch are open")
    }

    /// As [`Slots::open`], mutably.
    ///
    /// # Panics
    /// As [`Slots::open`].
    pub fn open_mut(&mut self, slot: Slot) -> &mut Open {
        self.get_mut(slot)
            .expect("members of a running launch are open")
    }

    /// Puts a request at `slot`.
    pub fn insert(&mut self, slot: Slot, open: Open) {
        if self.0.len() <= slot.index() {
            self.0.resize_with(slot.index() + 1, || None);
        }
        self.0[slot.index()] = Some(open);
    }

    /// Takes the request at `slot` out.
    pub fn remove(&mut self, slot: Slot) -> Option<Open> {
        self.0.get_mut(slot.index()).and_then(Option::take)
    }

    /// Open requests of a model.
    pub fn num_open(&self, model: ModelId) -> usize {
        self.0.iter().flatten().filter(|o| o.model == model).count()
    }
}

impl Open {
    /// An output's rows from `from` on (all of an output without `len`), once set.
    pub fn emitted(&self, program: &Program, output: OutputId, from: usize) -> Option<Tensor> {
        let out = self.outputs.get(output.index()).filter(|o| o.set)?;
        let ty = &program.output(output).ty;
        let row = ty.row_elems();
        let rows = out.data.len() / row.max(1);
        let first = if ty.dims.contains(&Dim::Len) {
            from.min(rows)
        } else {
            0
        };
        let dims = std::iter::once(rows - first)
            .chain(ty.fixed_dims())
            .collect();
        Some(unstage(ty.dtype, dims, &out.data[first * row..]))
    }
}
