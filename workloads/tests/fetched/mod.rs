//! Models that `cargo xtask models` fetches.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The folder of a model and its golden answers; none, with a word about it, if it is not there.
///
/// # Panics
/// If it is not there and `LAZYBATCH_REQUIRE_MODELS` is set.
pub fn model(name: &str) -> Option<(PathBuf, Value)> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models");
    let folder = models.join(name);
    let Ok(text) = std::fs::read_to_string(folder.join("golden.json")) else {
        assert!(
            std::env::var_os("LAZYBATCH_REQUIRE_MODELS").is_none(),
            "not fetched: run `cargo xtask models`"
        );
        println!("not run: {name} is not fetched (cargo xtask models)");
        return None;
    };
    Some((folder, serde_json::from_str(&text).expect("JSON")))
}

/// What ONNX Runtime answers to the cases of the golden answers, in their order.
///
/// # Panics
/// If that was not written: the models were fetched by an older version.
pub fn runtime(folder: &Path) -> Vec<Vec<f64>> {
    let path = folder.join("runtime.json");
    let text = std::fs::read_to_string(path).expect("not fetched: run `cargo xtask models`");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let answers = golden["answers"].as_array().expect("a list");
    answers.iter().map(numbers).collect()
}

/// Largest difference, in parts of the largest magnitude of `want`.
///
/// # Panics
/// If there are not as many.
pub fn difference(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f64, |a, x| a.max(x.abs()));
    let off = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs());
    off.fold(0.0, f64::max) / largest
}

/// The numbers of a list.
pub fn numbers(list: &Value) -> Vec<f64> {
    let items = list.as_array().expect("a list");
    items.iter().map(|x| x.as_f64().expect("numbers")).collect()
}
