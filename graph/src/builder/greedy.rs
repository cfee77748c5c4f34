//! Greedy decoding: the token with the highest score, until the stop token.

use super::ProgramBuilder;
use crate::dtype::DType;
use crate::ids::{OutputId, StateId, ValueId};

/// The last token, and where tokens go. The stop token is emitted too.
#[derive(Clone, Copy, Debug)]
pub struct Greedy {
    last: StateId,
    tokens: OutputId,
    stop: i32,
}

impl Greedy {
    /// Declares the token state, at `start`, and the output `tokens`.
    pub fn new(b: &mut ProgramBuilder, start: i32, stop: i32) -> Self {
        let last = b.vector_state("last_token", DType::I32, &[], start as f32);
        let tokens = b.output_sequence("tokens", DType::I32, &[]);
        b.metadata("start_token", start.to_string());
        b.metadata("stop_token", stop.to_string());
        Self { last, tokens, stop }
    }

    /// The last token.
    pub fn read(self, b: &mut ProgramBuilder) -> ValueId {
        b.vec_read("token", self.last)
    }

    /// Chooses the next token, emits it, and leaves the loop if it is the stop token.
    pub fn choose(self, b: &mut ProgramBuilder, logits: ValueId) {
        let best = b.arg_max("best", logits);
        b.vec_write("keep", self.last, best);
        self.emit(b, best);
    }

    /// Chooses the next token for a later pass to [`Self::read`] and [`Self::emit`]; names of nodes
    /// start with `block`.
    pub fn next(self, b: &mut ProgramBuilder, block: &str, logits: ValueId) {
        let best = b.arg_max(&format!("{block}.best"), logits);
        b.vec_write(&format!("{block}.keep_best"), self.last, best);
    }

    /// Emits a token; the stop token ends the loop.
    pub fn emit(self, b: &mut ProgramBuilder, token: ValueId) {
        b.emit("emit", self.tokens, token);
        b.stop("stop", token, self.stop);
    }
}
