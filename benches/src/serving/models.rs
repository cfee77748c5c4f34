//! Models that are served to be measured, and a repository of them.

use std::path::Path;

use anyhow::Context;
use lazybatch_graph::{DType, Error, Program, ProgramBuilder, Repeat, folder};

/// One input `x` of `features` floats, handed on as `y`: no work.
///
/// # Errors
/// A bug of the builder.
pub fn identity(features: usize) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("identity");
    let input = b.input("x", DType::F32, &[features]);
    let output = b.output("y", DType::F32, &[features]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("read", input);
    b.emit("emit", output, x);
    b.finish()
}

/// An LSTM of `hidden` over a sequence `x` of up to `max_len` steps of `features` floats, and four
/// scores `y` a step.
///
/// # Errors
/// A bug of the builder.
pub fn lstm(features: usize, hidden: usize, max_len: usize) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("lstm");
    let input = b.sequence("x", DType::F32, &[features], max_len);
    let output = b.output_sequence("y", DType::F32, &[4]);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input("read", input);
    let h = b.lstm("lstm", x, hidden);
    let y = b.dense("scores", h, 4, None);
    b.emit("emit", output, y);
    b.finish()
}

/// Adds a model to the repository `root`.
///
/// # Errors
/// A folder that cannot be written.
pub fn add(root: &Path, program: &Program, config: &str) -> anyhow::Result<()> {
    let model = root.join(&program.name);
    std::fs::create_dir_all(&model).with_context(|| model.display().to_string())?;
    folder::save(program, &model.join("1"))?;
    let path = model.join("config.pbtxt");
    std::fs::write(&path, config).with_context(|| path.display().to_string())
}
