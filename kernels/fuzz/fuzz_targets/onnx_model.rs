//! Any bytes as an ONNX model: reading, checking and evaluating it on small made-up inputs, and
//! importing it, ends in a result or an error, in bounded time and memory.
#![no_main]

use lazybatch_graph::onnx::{Array, Dim, Limits, Model, ValueInfo, ValueType};
use lazybatch_kernels::import::{Options, import_model};
use lazybatch_kernels::onnx::Interpreter;
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    file_bytes: 1 << 20,
    messages: 1 << 12,
    stored: 1 << 14,
    elems: 1 << 14,
    held: 1 << 18,
    depth: 8,
    nodes: 500,
    node_runs: 500,
    work: 1 << 22,
};

/// An input as the model states it, of small numbers; `None` where it states too much.
fn input(info: &ValueInfo) -> Option<Array> {
    let ValueType::Tensor { elem, dims } = &info.ty else {
        return None;
    };
    let dim = |d: &Dim| match d {
        Dim::Fixed(n) => *n,
        _ => 2,
    };
    let dims: Vec<usize> = dims.iter().flatten().map(dim).collect();
    let num = dims.iter().try_fold(1_usize, |n, d| n.checked_mul(*d))?;
    if num > LIMITS.elems {
        return None;
    }
    let values = (0..num).map(|i| (i % 7) as f64 - 2.0).collect();
    Some(Array::from_f64(*elem, dims, values))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Model::decode("fuzzed", bytes, &LIMITS) else {
        return;
    };
    let inputs = model.graph.inputs.iter().map(input).collect();
    if let Ok(interpreter) = Interpreter::new(&model, LIMITS) {
        drop(interpreter.run(inputs));
    }
    let options = Options {
        limits: LIMITS,
        ..Options::default()
    };
    drop(import_model(&model, &options));
});
