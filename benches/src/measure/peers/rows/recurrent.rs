//! An LSTM or a GRU layer over sequences, and one step of it.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_graph::{DType, Error, Program, ProgramBuilder, Repeat, ValueId, passes};
use serde_json::json;

use super::{BATCHES, Own, Row, requests, weights};

/// Features.
pub const HIDDEN: usize = 1024;
/// Positions: sequences, and one step, as launches that requests may join and leave at any step see
/// them.
const STEPS: [usize; 2] = [16, 1];

/// Both cells.
pub fn rows() -> Vec<Row> {
    let cells = ["lstm", "gru"];
    let sizes = cells
        .iter()
        .flat_map(|&cell| STEPS.map(|steps| (cell, steps)));
    let all = sizes.flat_map(|(cell, steps)| BATCHES.map(|batch| row(cell, batch, steps)));
    all.collect()
}

/// `batch` requests of `steps` positions.
pub fn row(cell: &'static str, batch: usize, steps: usize) -> Row {
    let sizes = json!({ "batch": batch, "hidden": HIDDEN, "steps": steps });
    Row::new(cell, sizes, move |setup| {
        let mut program = layer(cell, steps)?;
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

fn layer(cell: &str, steps: usize) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new(cell);
    let x = b.sequence("x", DType::F32, &[HIDDEN], steps);
    let y = b.output_sequence("y", DType::F32, &[HIDDEN]);
    b.begin_block("layer", Repeat::PerInputStep { stride: 1 });
    let row = b.read_input("x", x);
    let h = apply(&mut b, cell, row);
    b.emit("emit", y, h);
    b.finish()
}

fn apply(b: &mut ProgramBuilder, cell: &str, x: ValueId) -> ValueId {
    if cell == "lstm" {
        return b.lstm("lstm", x, HIDDEN);
    }
    let h = b.vector_state("gru.h", DType::F32, &[HIDDEN], 0.0);
    b.gru("gru", x, HIDDEN, h)
}
