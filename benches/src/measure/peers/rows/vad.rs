//! silero-vad, a streaming voice detector: one chunk of each stream, by the published ONNX file on
//! both sides.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use lazybatch_graph::{Tensor, WeightFile};
use lazybatch_kernels::import::{Options, import};
use serde_json::json;

use super::{BATCHES, Own, Row};
use crate::measure::fetched::SILERO;

/// Samples of a chunk with what it sees of the one before, and from one to the next.
const CHUNK: usize = 576;
const STRIDE: usize = 512;
/// Dimensions of a stream's state.
const STATE: [usize; 3] = [1, 2, 128];

/// One row a batch size.
pub fn rows() -> Vec<Row> {
    BATCHES.map(row).into()
}

fn row(batch: usize) -> Row {
    let row = Row::new(SILERO, json!({ "batch": batch }), move |setup| {
        let folder = setup.models.join(SILERO);
        let file = folder.join("silero_vad.onnx");
        let program = import(&file, &options()?)?;
        let requests = speech(&folder, batch)?;
        let mut own = Own::program(Arc::new(program), requests, Vec::new(), setup, None)?;
        own.told = json!({ "onnx": file.display().to_string() });
        Ok(own)
    });
    row.of_model(SILERO)
}

/// Chunks of a recording, each as the first of its stream.
fn speech(folder: &Path, num: usize) -> anyhow::Result<Vec<Vec<Tensor>>> {
    let path = folder.join("audio.safetensors");
    let audio = WeightFile::open(&path)?.tensor("speech")?.to_f32();
    let chunks = audio.windows(CHUNK).step_by(STRIDE).take(num);
    let request = |chunk| {
        let state = vec![0.0; STATE.iter().product()];
        vec![
            Tensor::from_f32(&[1, CHUNK], chunk),
            Tensor::from_f32(&STATE, &state),
        ]
    };
    let requests: Vec<_> = chunks.map(request).collect();
    let shown = path.display();
    ensure!(
        requests.len() == num,
        "{shown}: expected {num} chunks of speech"
    );
    Ok(requests)
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
    parsed()
        .map_err(anyhow::Error::msg)
        .context("options of the import")
}
