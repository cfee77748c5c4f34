//! Data of open requests: staged inputs, outputs so far, states.

use lazybatch_graph::{OutputId, Program, Tensor};
use lazybatch_sla::{ModelId, RequestId};

use super::buffers::Buf;
use crate::pages::SeqState;
use crate::plans::Opened;
use crate::validate::emitted;

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
}
