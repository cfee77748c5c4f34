//! An LSTM or a GRU layer over sequences, and one step of it.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_graph::{DType, Error, Program, ProgramBuilder, Repeat, ValueId, passes};
use serde_json::json;

use super::{BATCHES, Own, Row, requests, weights};

/// Features.
pub const HIDDEN: usize = 1024;
/// Features of the LSTM that `serve-in-process` serves by default, and of its inputs.
const SERVED: [usize; 2] = [256, 16];
/// Batches of one step of that.
const SERVED_BATCHES: [usize; 3] = [1, 8, 16];
/// Positions: sequences, and one step, as launches that requests may join and leave at any step see
/// them.
const STEPS: [usize; 2] = [16, 1];

/// Both cells.
pub fn rows() -> Vec<Row> {
    let of = |cell| STEPS.map(|steps| BATCHES.map(|batch| row(cell, batch, steps)));
    let served = SERVED_BATCHES.map(|batch| sized("lstm", batch, 1, SERVED));
    let [lstm, gru] = ["lstm", "gru"].map(|cell| of(cell).into_iter().flatten());
    lstm.chain(served).chain(gru).collect()
}

/// `batch` requests of `steps` positions.
pub fn row(cell: &'static str, batch: usize, steps: usize) -> Row {
    sized(cell, batch, steps, [HIDDEN; 2])
}

/// The same with so many features, and those of the inputs.
fn sized(cell: &'static str, batch: usize, steps: usize, features: [usize; 2]) -> Row {
    let [hidden, inputs] = features;
    let sizes = json!({ "batch": batch, "hidden": hidden, "inputs": inputs, "steps": steps });
    Row::new(cell, sizes, move |setup| {
        let mut program = layer(cell, steps, features)?;
        // A launch of a step, or sequences with all input products ahead, as the peer has them.
        let timed = (steps == 1).then_some(0);
        if timed.is_none() {
            let pass = passes::find("project_ahead").context("the pass project_ahead")?;
            passes::apply(pass, &mut program)?;
        }
        let (weights, requests) = (weights(&program), requests(&program, batch, steps));
        Own::program(Arc::new(program), requests, weights, setup, timed)
    })
}

fn layer(cell: &str, steps: usize, [hidden, inputs]: [usize; 2]) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new(cell);
    let x = b.sequence("x", DType::F32, &[inputs], steps);
    let y = b.output_sequence("y", DType::F32, &[hidden]);
    b.begin_block("layer", Repeat::PerInputStep { stride: 1 });
    let row = b.read_input("x", x);
    let h = apply(&mut b, cell, row, hidden);
    b.emit("emit", y, h);
    b.finish()
}

fn apply(b: &mut ProgramBuilder, cell: &str, x: ValueId, hidden: usize) -> ValueId {
    if cell == "lstm" {
        return b.lstm("lstm", x, hidden);
    }
    let h = b.vector_state("gru.h", DType::F32, &[hidden], 0.0);
    b.gru("gru", x, hidden, h)
}
