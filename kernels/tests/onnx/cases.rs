//! The fetched node cases: a model, its inputs and the outputs that it should give.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use half::bf16;
use lazybatch_graph::onnx::{
    Array, Data, Dim, Elem, Error, Limits, Model, ValueInfo, ValueType, decode_tensor,
};
use lazybatch_kernels::onnx::Interpreter;

/// Bounds that every case keeps.
pub const LIMITS: Limits = Limits {
    file_bytes: 64 << 20,
    messages: 1 << 16,
    stored: 1 << 22,
    elems: 1 << 22,
    held: 1 << 24,
    depth: 16,
    nodes: 10_000,
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

/// Evaluates the model `bytes` on the case's inputs, within `limits`.
pub fn run(folder: &Path, bytes: &[u8], limits: &Limits) -> Result<Vec<Array>, Error> {
    let model = Model::decode(&name(folder), bytes, limits)?;
    let model = stated(folder, model);
    let interpreter = Interpreter::new(&model, *limits)?;
    interpreter.run(inputs(folder, &model, limits)?)
}

/// Cases whose operand `like` has one element, where their model states as many as of the input.
/// Only its type counts.
pub const UNLIKE: [&str; 4] = [
    "test_castlike_BFLOAT16_to_FLOAT",
    "test_castlike_BFLOAT16_to_FLOAT_expanded",
    "test_castlike_FLOAT_to_BFLOAT16",
    "test_castlike_FLOAT_to_BFLOAT16_expanded",
];

/// The model without what it states of an operand that the case does not keep.
pub fn stated(folder: &Path, mut model: Model) -> Model {
    let unlike = UNLIKE.contains(&name(folder).as_str());
    for info in model.graph.inputs.iter_mut().filter(|_| unlike) {
        match &mut info.ty {
            ValueType::Tensor { dims, .. } if info.name == "like" => {
                *dims = Some(vec![Dim::Fixed(1)])
            }
            _ => {}
        }
    }
    model
}

/// The inputs of the case; `None` for one that it leaves out.
pub fn inputs(folder: &Path, model: &Model, limits: &Limits) -> Result<Vec<Option<Array>>, Error> {
    let mut inputs = Vec::new();
    for i in 0..model.graph.inputs.len() {
        inputs.push(match std::fs::read(file(folder, "input", i)) {
            Ok(bytes) => {
                let value = decode_tensor("input", &bytes, limits)?;
                Some(typed(&model.graph.inputs[i], value))
            }
            Err(_) => None,
        });
    }
    Ok(inputs)
}

fn file(folder: &Path, kind: &str, i: usize) -> PathBuf {
    folder.join(format!("test_data_set_0/{kind}_{i}.pb"))
}

/// The files keep bf16 as u16 of the same bits; the model's own types tell.
fn typed(info: &ValueInfo, value: Array) -> Array {
    let is_bf16 = matches!(
        &info.ty,
        ValueType::Tensor {
            elem: Elem::BF16,
            ..
        }
    );
    match value.data() {
        Data::U16(bits) if is_bf16 => {
            let data = bits.iter().map(|&b| bf16::from_bits(b)).collect();
            Array::new(value.dims().to_vec(), Data::BF16(data))
        }
        _ => value,
    }
}

/// The outputs that the case of the model `bytes` should give.
pub fn expected(folder: &Path, bytes: &[u8]) -> Result<Vec<Array>, Error> {
    let model = Model::decode(&name(folder), bytes, &LIMITS)?;
    let read = |(i, info)| {
        let bytes = std::fs::read(file(folder, "output", i)).ok()?;
        Some(decode_tensor("output", &bytes, &LIMITS).map(|value| typed(info, value)))
    };
    model
        .graph
        .outputs
        .iter()
        .enumerate()
        .map_while(read)
        .collect()
}
