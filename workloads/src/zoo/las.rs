//! Listen, Attend and Spell: speech recognition by characters.
//!
//! The listener is a bidirectional LSTM of 256 units a direction over frames, with three pyramidal
//! ones on top, each halving the rate by joining pairs of frames. The speller has two LSTM layers
//! of 512 and attends to the listener by dot products of two projections.
//!
//! A position of the input is a chunk of eight frames, one step of the pyramid's top: within a pass
//! the cell of level `l` runs `8 / 2^l` times. Callers pad the last chunk with zeros. A level's
//! backward half is a block of its own that walks chunks and frames from the end.
//! Source: Chan et al., "Listen, attend and spell", sections 3.1, 3.2 and 4 (40 filter-bank
//! features every 10 ms); the character distribution's hidden layer has 512 units here.

use lazybatch_graph::{
    Act, At, DType, Error, Greedy, Heads, InputId, Program, ProgramBuilder, Repeat, StateId,
    ValueId,
};

use super::parts::{Unrolled, join, keep, split};

/// Filter-bank features of a frame.
pub const FEATURES: usize = 40;
/// Frames of a chunk: what the three pyramidal layers join to one position.
pub const FRAMES: usize = 8;
/// Most chunks of an utterance, 80 ms each.
pub const MAX_CHUNKS: usize = 512;
/// Most characters of a transcript.
pub const MAX_OUT: u32 = 520;
/// Starts a transcript.
pub const BOS: i32 = 0;
/// Ends a transcript.
pub const EOS: i32 = 1;
/// Start, end, letters, digits, space, comma, period, apostrophe, unknown.
pub const VOCAB: usize = 2 + 26 + 10 + 5;

/// LSTM units of a direction of the listener.
const UNITS: usize = 256;
/// LSTM units of the speller, and features of the attention.
const SPELLER: usize = 512;

/// Where a level of the listener reads its chunk.
#[derive(Clone, Copy)]
enum Below {
    Input(InputId),
    Level(StateId),
}

impl Below {
    fn read(self, b: &mut ProgramBuilder, name: &str, at: At) -> ValueId {
        match self {
            Self::Input(input) => b.read_input_at(name, input, at),
            Self::Level(state) => b.seq_read(name, state, at),
        }
    }
}

/// Builds it: input `chunks [len, 8 * 40]`, output `tokens [len]`.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("las");
    let chunks = b.sequence("chunks", DType::F32, &[FRAMES * FEATURES], MAX_CHUNKS);
    let greedy = Greedy::new(&mut b, BOS, EOS);
    let mut below = Below::Input(chunks);
    for level in 0..4 {
        let frames = FRAMES >> level;
        let width = if level == 0 { FEATURES } else { 4 * UNITS };
        below = Below::Level(listen(
            &mut b,
            &format!("listener.{level}"),
            below,
            frames,
            width,
        ));
    }
    let Below::Level(values) = below else {
        unreachable!("the loop has four levels")
    };

    b.begin_block("keys", Repeat::Once);
    let keys = b.sequence_state("speller.keys", SPELLER, MAX_CHUNKS);
    let x = b.seq_read("speller.memory", values, At::All);
    let k = b.dense("speller.key", x, SPELLER, None);
    b.seq_write("speller.keys", keys, At::All, k);

    b.begin_block("speller", Repeat::UntilStop { max: MAX_OUT });
    let token = greedy.read(&mut b);
    let context = b.vector_state("speller.context", DType::F32, &[SPELLER], 0.0);
    let logits = b.scope("speller", |b| spell(b, token, context, keys, values));
    greedy.choose(&mut b, logits);
    b.finish()
}

/// One bidirectional level: two blocks. Returns the state that holds its output, `frames` rows of
/// `2 * UNITS` a chunk.
fn listen(
    b: &mut ProgramBuilder,
    name: &str,
    below: Below,
    frames: usize,
    width: usize,
) -> StateId {
    let out = b.sequence_state(name, frames * 2 * UNITS, MAX_CHUNKS);
    let reverse = b.sequence_state(&format!("{name}.backward"), frames * UNITS, MAX_CHUNKS);

    b.begin_block(
        &format!("{name}.backward"),
        Repeat::PerInputStep { stride: 1 },
    );
    b.scope(&format!("{name}.backward"), |b| {
        let x = below.read(b, "chunk", At::Reverse);
        let parts = split(b, "frame", x, frames);
        let lstm = Unrolled::new(b, "lstm", width, UNITS);
        let mut rows = Vec::new();
        for (i, &frame) in parts.iter().enumerate().rev() {
            rows.push(lstm.step(b, &format!("lstm.{i}"), frame));
        }
        rows.reverse();
        let x = join(b, "join", &rows);
        b.seq_write("keep", reverse, At::Reverse, x);
    });

    b.begin_block(
        &format!("{name}.forward"),
        Repeat::PerInputStep { stride: 1 },
    );
    b.scope(&format!("{name}.forward"), |b| {
        let x = below.read(b, "chunk", At::Step);
        let parts = split(b, "frame", x, frames);
        let other = b.seq_read("other", reverse, At::Step);
        let others = split(b, "other", other, frames);
        let lstm = Unrolled::new(b, "lstm", width, UNITS);
        let mut rows = Vec::new();
        for (i, (&frame, other)) in parts.iter().zip(others).enumerate() {
            rows.push(lstm.step(b, &format!("lstm.{i}"), frame));
            rows.push(other);
        }
        let x = join(b, "join", &rows);
        keep(b, "keep", out, x);
    });
    out
}

fn spell(
    b: &mut ProgramBuilder,
    token: ValueId,
    context: StateId,
    keys: StateId,
    values: StateId,
) -> ValueId {
    let x = b.embed("embed", token, VOCAB, SPELLER);
    let last = b.vec_read("context.last", context);
    let x = b.concat("input", &[x, last]);
    let x = b.lstm("0", x, SPELLER);
    let x = b.lstm("1", x, SPELLER);
    let query = b.dense("query", x, SPELLER, None);
    let heads = Heads {
        query: 1,
        kv: 1,
        dim: SPELLER,
        scale: 1.0,
    };
    let c = b.state_attention("attention", query, heads, keys, values);
    b.vec_write("context.keep", context, c);
    let both = b.concat("both", &[x, c]);
    let hidden = b.dense("hidden", both, SPELLER, Some(Act::Tanh));
    b.dense("out", hidden, VOCAB, None)
}
