//! Models that `cargo xtask models` fetched, and what they are checked with.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use lazybatch_graph::{Manifest, Program, SharedProgram, optimize};
use serde_json::Value;

/// A sentence encoder.
pub const MINILM: &str = "minilm-l6";
/// An image classifier.
pub const MOBILENET: &str = "mobilenet-v2";
/// A streaming voice detector.
pub const SILERO: &str = "silero-vad";

/// Says if a model is not there.
///
/// # Errors
/// If so.
pub fn check(models: &Path, model: &str) -> anyhow::Result<()> {
    let folder = models.join(model);
    ensure!(
        folder.join("golden.json").is_file(),
        "expected a fetched model in {} (cargo xtask models), got none",
        folder.display()
    );
    Ok(())
}

/// The program of a model by its manifest, as its layers are written, and optimized.
///
/// # Errors
/// A model that is not there, or damaged.
pub fn program(models: &Path, model: &str) -> anyhow::Result<(Program, SharedProgram)> {
    let plain = Manifest::open(models.join(model).join("model.toml"))?.program()?;
    let served = optimize(plain.clone())?;
    Ok((plain, Arc::new(served)))
}

/// What the model is checked with, and what a reference in double precision answers.
///
/// # Errors
/// A file that cannot be read.
pub fn cases(models: &Path, model: &str) -> anyhow::Result<Vec<Value>> {
    let path = models.join(model).join("golden.json");
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(shown)?;
    let golden: Value = serde_json::from_str(&text).with_context(shown)?;
    let cases = golden["cases"].as_array().cloned();
    cases.with_context(|| format!("{}: expected cases", shown()))
}

/// A list of numbers.
///
/// # Errors
/// Anything else.
pub fn numbers(list: &Value) -> anyhow::Result<Vec<f64>> {
    let items = list.as_array().context("expected a list of numbers")?;
    let numbers: Option<_> = items.iter().map(Value::as_f64).collect();
    numbers.context("expected a list of numbers")
}

/// Token ids of the sentences that MiniLM is checked with.
///
/// # Errors
/// A file that cannot be read.
pub fn sentences(models: &Path) -> anyhow::Result<Vec<Vec<i32>>> {
    let ids = |case: &Value| -> anyhow::Result<Vec<i32>> {
        let ids = numbers(&case["ids"])?;
        Ok(ids.iter().map(|&id| id as i32).collect())
    };
    cases(models, MINILM)?.iter().map(ids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_fetched_is_named() {
        let message = check(Path::new("nowhere"), SILERO).unwrap_err().to_string();
        assert_eq!(
            message,
            "expected a fetched model in nowhere/silero-vad (cargo xtask models), got none"
        );
        assert!(numbers(&Value::Null).is_err());
    }
}
