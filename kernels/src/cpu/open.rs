//! Data of open requests: staged inputs, outputs so far, states.

use lazybatch_graph::{OutputId, Program, Tensor};
use lazybatch_sla::{ModelId, RequestId, Slot};

use super::buffers::Buf;
use crate::pages::SeqState;
use crate::plans::Opened;
use crate::validate::{Staged, emitted};

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

    /// Elements so far, once anything was emitted.
    pub fn emitted(&self) -> Option<usize> {
        self.set.then_some(self.data.len())
    }

    /// Takes back what was emitted since [`Output::emitted`] said `before`. What was overwritten stays so.
    pub fn take_back(&mut self, before: Option<usize>) {
        self.data.truncate(before.unwrap_or(0));
        self.set = before.is_some();
    }
}

/// An output as it was when a node of a launch emitted.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    /// Whose output.
    pub slot: Slot,
    /// Which.
    pub output: OutputId,
    /// What [`Output::emitted`] said.
    pub before: Option<usize>,
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
    pub inputs: Vec<Staged>,
    /// Outputs by id.
    pub outputs: Vec<Output>,
    /// Vector states by id; empty for sequence states.
    pub vectors: Vec<Buf>,
    /// Sequence states by id; empty for vector states.
    pub sequences: Vec<SeqState>,
}

impl Open {
    /// What launches are compared with.
    pub fn opened(&self) -> Opened {
        Opened {
            request: self.request,
            model: self.model,
            input_len: self.input_len,
            samples: self.samples,
        }
    }

    /// An output's rows from `from` on (all of an output without `len`), once set.
    pub fn emitted(&self, program: &Program, output: OutputId, from: usize) -> Option<Tensor> {
        let out = self.outputs.get(output.index()).filter(|o| o.set)?;
        Some(emitted(program.output(output), &out.data, from))
    }

    /// A whole output, once set, of a request that is closed.
    pub fn take(&mut self, program: &Program, output: OutputId) -> Option<Tensor> {
        let decl = program.output(output);
        let out = self.outputs.get_mut(output.index()).filter(|o| o.set)?;
        // Room for much that never came would stay as long as the answer.
        let is_filled = out.data.capacity() <= 2 * out.data.len();
        if !is_filled || !decl.ty.dtype.is_float() {
            return Some(emitted(decl, &out.data, 0));
        }
        let data = std::mem::take(&mut out.data);
        let rows = data.len() / decl.ty.row_elems().max(1);
        let dims = std::iter::once(rows).chain(decl.ty.fixed_dims());
        Some(Tensor::of_f32(dims.collect(), data))
    }
}
