//! A small decoder, for tests on a device.

use lazybatch_graph::{At, DType, Program, ProgramBuilder, Repeat};

/// Most passes of its writer.
const MAX_STEPS: u32 = 12;

/// An LSTM reader and an LSTM writer that stops by itself or behind [`MAX_STEPS`].
pub fn model() -> Program {
    let (vocab, hidden) = (12, 16);
    let mut b = ProgramBuilder::new("tiny");
    let letters = b.sequence_ids("letters", 16, vocab);
    let ids = b.output_sequence("ids", DType::I32, &[]);
    let token = b.vector_state("token", DType::I32, &[], 1.0);
    b.begin_block("reader", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input_at("letter", letters, At::Step);
    let x = b.embed("embed", x, vocab, hidden);
    let (memory, w) = (
        b.lstm_state("memory", hidden),
        b.lstm_weights("read", hidden, hidden),
    );
    let _ = b.lstm_cell("reader.lstm", x, w, None, memory.h, memory.c);
    b.begin_block("writer", Repeat::UntilStop { max: MAX_STEPS });
    let x = b.vec_read("last", token);
    let x = b.embed("embed_out", x, vocab, hidden);
    let w = b.lstm_weights("write", hidden, hidden);
    let h = b.lstm_cell("writer.lstm", x, w, None, memory.h, memory.c);
    let logits = b.dense("logits", h, vocab, None);
    let next = b.arg_max("next", logits);
    b.vec_write("remember", token, next);
    b.emit("emit", ids, next);
    b.stop("stop", next, 2);
    b.finish().expect("a program")
}
