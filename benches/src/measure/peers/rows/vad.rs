//! silero-vad, a streaming voice detector: one chunk of each stream, by the published ONNX file on
//! both sides.

use std::sync::Arc;

use lazybatch_kernels::import::{Options, import};
use serde_json::json;

use super::{BATCHES, Own, Row, requests};
use crate::measure::fetched::SILERO;

/// One row a batch size.
pub fn rows() -> Vec<Row> {
    BATCHES.map(row).into()
}

fn row(batch: usize) -> Row {
    let row = Row::new(SILERO, json!({ "batch": batch }), move |setup| {
        let file = setup.models.join(SILERO).join("silero_vad.onnx");
        let program = import(&file, &options()?)?;
        let requests = requests(&program, batch, 0);
        let mut own = Own::program(Arc::new(program), requests, Vec::new(), setup, None)?;
        own.told = json!({ "onnx": file.display().to_string() });
        Ok(own)
    });
    row.of_model(SILERO)
}

/// As docs/onnx.md imports it.
fn options() -> anyhow::Result<Options> {
    let parsed = || -> Result<Options, String> {
        Ok(Options {
            fixed: vec!["sr=16000".parse()?],
            sizes: vec!["input:1=576".parse()?],
            carried: vec!["stateN=state".parse()?],
            ..Options::default()
        })
    };
    parsed().map_err(anyhow::Error::msg)
}
