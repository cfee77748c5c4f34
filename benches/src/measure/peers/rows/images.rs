//! Classifiers of images: of the zoo with synthetic weights, and MobileNetV2 with its trained ones.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_workloads::zoo;
use serde_json::json;

use super::{BATCHES, Own, Row, requests, weights};
use crate::measure::fetched::{self, MOBILENET};

/// Models of the zoo.
const ZOO: [&str; 2] = ["resnet50", "mobilenet-v1"];

/// All of them. The peer folds batch norms itself, so it gets the weights of the plain program.
pub fn rows() -> Vec<Row> {
    let of_zoo = ZOO
        .iter()
        .flat_map(|&model| BATCHES.map(|batch| zoo_row(model, batch)));
    of_zoo.chain(BATCHES.map(fetched_row)).collect()
}

fn zoo_row(model: &'static str, batch: usize) -> Row {
    Row::new(model, json!({ "batch": batch }), move |setup| {
        let entry = zoo::find(model).with_context(|| format!("{model} in the zoo"))?;
        let (plain, program) = ((entry.build)()?, entry.program()?);
        let requests = requests(&program, batch, 0);
        Own::program(Arc::new(program), requests, weights(&plain), setup, None)
    })
}

fn fetched_row(batch: usize) -> Row {
    let row = Row::new(MOBILENET, json!({ "batch": batch }), move |setup| {
        let (plain, program) = fetched::program(&setup.models, MOBILENET)?;
        let requests = requests(&program, batch, 0);
        Own::program(program, requests, weights(&plain), setup, None)
    });
    row.of_model(MOBILENET)
}
