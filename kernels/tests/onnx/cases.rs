//! The fetched node cases: a model, its inputs and the outputs that it should give.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use lazybatch_graph::onnx::{Array, Error, Limits, Model, decode_tensor};
use lazybatch_kernels::onnx::Interpreter;

/// Bounds that every case keeps, and that make a mutated one cheap.
pub const LIMITS: Limits = Limits {
    file_bytes: 64 << 20,
    elems: 1 << 22,
    depth: 16,
    node_runs: 10_000,
    work: 1 << 28,
};

/// The folders of the cases, sorted; none, with a word, where they have not been fetched.
pub fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models/onnx-testdata/node");
    let Ok(entries) = std::fs::read_dir(&root) else {
        assert!(
            std::env::var_os("LAZYBATCH_REQUIRE_MODELS").is_none(),
            "the ONNX node cases are not in .models: `cargo xtask models` fetches them"
        );
        println!("not run: `cargo xtask models` fetches the ONNX node cases");
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// The name of a case.
pub fn name(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

/// Evaluates the model `bytes` on the case's inputs.
pub fn run(folder: &Path, bytes: &[u8]) -> Result<Vec<Array>, Error> {
    let model = Model::decode(&name(folder), bytes, &LIMITS)?;
    let interpreter = Interpreter::new(&model, LIMITS)?;
    let mut inputs = Vec::new();
    for i in 0..model.graph.inputs.len() {
        inputs.push(match std::fs::read(file(folder, "input", i)) {
            Ok(bytes) => Some(decode_tensor("input", &bytes, &LIMITS)?),
            Err(_) => None,
        });
    }
    interpreter.run(inputs)
}

fn file(folder: &Path, kind: &str, i: usize) -> PathBuf {
    folder.join(format!("test_data_set_0/{kind}_{i}.pb"))
}

/// The outputs that the case should give.
pub fn expected(folder: &Path) -> Result<Vec<Array>, Error> {
    let read = |i| std::fs::read(file(folder, "output", i)).ok();
    let files = (0..).map_while(read);
    files.map(|bytes| decode_tensor("output", &bytes, &LIMITS)).collect()
}
