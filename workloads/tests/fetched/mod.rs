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

/// The numbers of a list.
#[allow(dead_code, reason = "not every test reads lists")]
pub fn numbers(list: &Value) -> Vec<f64> {
    let items = list.as_array().expect("a list");
    items.iter().map(|x| x.as_f64().expect("numbers")).collect()
}
