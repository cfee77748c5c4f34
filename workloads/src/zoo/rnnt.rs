//! RNN-T: streaming speech recognition by characters.
//!
//! Encoder of two LSTM layers of 1024 over frames, a join of pairs of frames, and three more
//! layers; prediction network of two LSTM layers of 320 over the characters so far; joint network
//! of 512. A position of the input is a pair of frames, so the first two layers run twice a pass.
//!
//! Decoding is greedy with at most one character per encoder position: a pass of the decoder joins
//! the position's encoding with the prediction network's output, and where the best symbol is not
//! the blank, the prediction network consumes it. A blank leaves its states as they were: rows of
//! zeros or ones that the symbol looks up choose between new and old states. The output holds the blanks too.
//! Source: MLPerf Inference `speech_recognition/rnnt` (encoder 2 + 3 layers of 1024, stacking
//! factor 2, prediction 2 layers of 320, joint 512, 28 characters and blank, 240 features from
//! three spliced filter banks); Graves, "Sequence transduction with recurrent neural networks".
//! One bias per gate.

use lazybatch_graph::{
    Act, At, DType, Error, Program, ProgramBuilder, Repeat, StateId, Tensor, ValueId,
};

use super::parts::{Unrolled, keep, not_counted, split};

/// Features of a frame: three spliced filter banks of 80, one frame every 30 ms.
pub const FEATURES: usize = 240;
/// Frames of a position.
pub const FRAMES: usize = 2;
/// Most positions of an utterance, 60 ms each.
pub const MAX_POSITIONS: usize = 512;
/// Characters and the blank.
pub const VOCAB: usize = 29;
/// The blank.
pub const BLANK: i32 = 28;

const ENCODER: usize = 1024;
const PREDICTION: usize = 320;
const JOINT: usize = 512;

/// Builds it: input `frames [len, 2 * 240]`, output `symbols [len]`.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("rnnt");
    b.metadata("blank_token", BLANK.to_string());
    let frames = b.sequence("frames", DType::F32, &[FRAMES * FEATURES], MAX_POSITIONS);
    let symbols = b.output_sequence("symbols", DType::I32, &[]);
    let encoded = b.sequence_state("encoded", ENCODER, MAX_POSITIONS);

    b.begin_block("encoder", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input("frames", frames);
    b.scope("encoder", |b| encode(b, x, encoded));

    // The prediction network reads a row of zeros in front of the first character.
    b.begin_block("start", Repeat::Once);
    let output = b.vector_state("prediction", DType::F32, &[PREDICTION], 0.0);
    let layers: [Unrolled; 2] = ["prediction.0", "prediction.1"]
        .map(|name| Unrolled::new(&mut b, name, PREDICTION, PREDICTION));
    let mut g = b.vec_read("start.zeros", output);
    for (i, layer) in layers.iter().enumerate() {
        g = layer.step(&mut b, &format!("start.{i}"), g);
    }
    b.vec_write("start.keep", output, g);

    b.begin_block("decoder", Repeat::PerInputStep { stride: 1 });
    let f = b.seq_read("encoding", encoded, At::Step);
    let g = b.vec_read("predicted", output);
    let both = b.concat("joint.input", &[f, g]);
    let hidden = b.dense("joint.hidden", both, JOINT, Some(Act::Relu));
    let logits = b.dense("joint.out", hidden, VOCAB, None);
    let best = b.arg_max("best", logits);
    b.emit("symbols", symbols, best);
    consume(&mut b, best, &layers, output);
    b.finish()
}

fn encode(b: &mut ProgramBuilder, x: ValueId, encoded: StateId) {
    let parts = split(b, "frame", x, FRAMES);
    let below = [
        Unrolled::new(b, "0", FEATURES, ENCODER),
        Unrolled::new(b, "1", ENCODER, ENCODER),
    ];
    let mut rows = Vec::new();
    for (i, mut x) in parts.into_iter().enumerate() {
        for (layer, lstm) in below.iter().enumerate() {
            x = lstm.step(b, &format!("{layer}.{i}"), x);
        }
        rows.push(x);
    }
    let mut x = b.concat("stack", &rows);
    for layer in 2..5 {
        x = b.lstm(&layer.to_string(), x, ENCODER);
    }
    keep(b, "keep", encoded, x);
}

/// Lets the prediction network consume `symbol`, unless that is the blank.
fn consume(b: &mut ProgramBuilder, symbol: ValueId, layers: &[Unrolled; 2], output: StateId) {
    // The blank has no embedding of its own; its row is never used.
    let mut x = b.embed("embed", symbol, VOCAB, PREDICTION);
    let moves = gate(b, "moves", symbol, |id| id != BLANK);
    let stays = gate(b, "stays", symbol, |id| id == BLANK);
    let gates = [moves, stays];
    let old = b.vec_read("old", output);
    for (i, layer) in layers.iter().enumerate() {
        b.scope(&format!("consume.{i}"), |b| {
            let states = [layer.state().h, layer.state().c];
            let old = [
                b.vec_read("h.old", states[0]),
                b.vec_read("c.old", states[1]),
            ];
            x = layer.step(b, "lstm", x);
            let new = [x, b.vec_read("c.new", states[1])];
            for (part, name) in ["h", "c"].into_iter().enumerate() {
                let mixed = select(b, name, gates, new[part], old[part]);
                b.vec_write(&format!("{name}.keep"), states[part], mixed);
            }
        });
    }
    let g = select(b, "predicted", gates, x, old);
    b.vec_write("predicted.keep", output, g);
}

/// A row of ones where `open` holds for the symbol, else of zeros.
fn gate(
    b: &mut ProgramBuilder,
    name: &str,
    symbol: ValueId,
    open: impl Fn(i32) -> bool,
) -> ValueId {
    let value = |n: usize| {
        if open((n / PREDICTION) as i32) {
            1.0
        } else {
            0.0
        }
    };
    let table: Vec<f32> = (0..VOCAB * PREDICTION).map(value).collect();
    let table_name = format!("{name}.table");
    let table = b.data(&table_name, Tensor::from_f32(&[VOCAB, PREDICTION], &table));
    not_counted(b, &table_name);
    b.embedding(name, symbol, table)
}

/// `new * moves + old * stays`: exactly one of both.
fn select(
    b: &mut ProgramBuilder,
    name: &str,
    [moves, stays]: [ValueId; 2],
    new: ValueId,
    old: ValueId,
) -> ValueId {
    let new = b.mul(&format!("{name}.moves"), new, moves);
    let old = b.mul(&format!("{name}.stays"), old, stays);
    b.add(&format!("{name}.next"), new, old)
}
