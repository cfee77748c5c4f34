//! Decoding: the token with the highest score, or one as the request's sampling says, until the stop
//! token.

use super::ProgramBuilder;
use crate::dtype::DType;
use crate::ids::{InputId, OutputId, StateId, ValueId};

/// The last token, and where tokens go. The stop token is emitted too.
#[derive(Clone, Copy, Debug)]
pub struct Greedy {
    last: StateId,
    tokens: OutputId,
    stop: i32,
    sampling: Option<InputId>,
}

impl Greedy {
    /// Declares the token state, at `start`, and the output `tokens`.
    pub fn new(b: &mut ProgramBuilder, start: i32, stop: i32) -> Self {
        let last = b.vector_state("last_token", DType::I32, &[], start as f32);
        let tokens = b.output_sequence("tokens", DType::I32, &[]);
        b.metadata("start_token", start.to_string());
        b.metadata("stop_token", stop.to_string());
        Self {
            last,
            tokens,
            stop,
            sampling: None,
        }
    }

    /// The same, with the input that says how tokens are chosen; the likeliest ones for requests that
    /// leave it out. All other inputs are declared before.
    pub fn sampled(b: &mut ProgramBuilder, start: i32, stop: i32) -> Self {
        Self {
            sampling: Some(b.sampling()),
            ..Self::new(b, start, stop)
        }
    }

    /// The last token.
    pub fn read(self, b: &mut ProgramBuilder) -> ValueId {
        b.vec_read("token", self.last)
    }

    /// Chooses the next token, emits it, and leaves the loop if it is the stop token.
    pub fn choose(self, b: &mut ProgramBuilder, logits: ValueId) {
        let best = self.best(b, ["best", "sampling"], logits);
        b.vec_write("keep", self.last, best);
        self.emit(b, best);
    }

    /// Chooses the next token for a later pass to [`Self::read`] and [`Self::emit`]; names of nodes
    /// start with `block`.
    pub fn next(self, b: &mut ProgramBuilder, block: &str, logits: ValueId) {
        let names = ["best", "sampling"].map(|part| format!("{block}.{part}"));
        let best = self.best(b, names.each_ref().map(String::as_str), logits);
        b.vec_write(&format!("{block}.keep_best"), self.last, best);
    }

    /// The token to go on with; names of its node, and of that which reads how.
    fn best(self, b: &mut ProgramBuilder, [name, how]: [&str; 2], logits: ValueId) -> ValueId {
        match self.sampling {
            None => b.arg_max(name, logits),
            Some(input) => {
                let how = b.read_input(how, input);
                b.sample(name, logits, how)
            }
        }
    }

    /// Emits a token; the stop token ends the loop.
    pub fn emit(self, b: &mut ProgramBuilder, token: ValueId) {
        b.emit("emit", self.tokens, token);
        b.stop("stop", token, self.stop);
    }
}
