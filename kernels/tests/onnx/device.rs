//! The cases through the importer, on the CPU device: in f32, each sample a request of its own.
//!
//! A case states its operands as inputs, where a model has weights. So a case is compiled in up to
//! four ways, and the first that the importer takes is run: with the other operands as constants or
//! as inputs, and with the first axis as the batch or without one.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;

use lazybatch_graph::onnx::{Array, Dim, Error, Model, ValueType};
use lazybatch_graph::{Op, Program};
use lazybatch_kernels::import::{Compiled, Options, compile_model};
use lazybatch_kernels::{CpuDevice, CpuOptions};

use crate::cases;
use crate::conformance::{NUM_PASSED, OTHERWISE, difference};

/// Cases that pass on the device, and of these such as take no general node. The others of those
/// that pass by the interpreter are not imported.
pub const NUM_ON_DEVICE: usize = 799;
pub const NUM_NATIVE: usize = 121;

/// The case's model with its operands but the first as constants, if asked for, and with the first
/// axis of its inputs open, if all have one of the same size.
fn variant(model: &Model, inputs: &[Option<Array>], fix: bool, open: bool) -> Option<Model> {
    let mut model = model.clone();
    let given: BTreeMap<String, Array> = model
        .graph
        .inputs
        .iter()
        .zip(inputs)
        .filter_map(|(info, value)| Some((info.name.clone(), value.clone()?)))
        .collect();
    // What a case leaves out has a default in the model.
    model.graph.inputs.retain(|i| given.contains_key(&i.name));
    if fix {
        if model.graph.inputs.len() < 2 {
            return None;
        }
        let others = model.graph.inputs.split_off(1);
        for info in others {
            let value = given[&info.name].clone();
            model.graph.initializers.insert(info.name, value);
        }
    }
    if open {
        let mut first = None;
        for info in &mut model.graph.inputs {
            let ValueType::Tensor {
                dims: Some(dims), ..
            } = &mut info.ty
            else {
                return None;
            };
            let size = dims.first_mut()?;
            let same = *first.get_or_insert(size.clone()) == *size;
            if !same || *size == Dim::Fixed(1) {
                return None;
            }
            *size = Dim::Named("batch".to_owned());
        }
    }
    Some(model)
}

/// The first variant of a case that is imported.
fn compiled(model: &Model, inputs: &[Option<Array>]) -> Result<Compiled, Error> {
    let options = Options {
        limits: cases::LIMITS,
        ..Options::default()
    };
    let mut last = None;
    for (fix, open) in [(true, true), (true, false), (false, true), (false, false)] {
        if let Some(model) = variant(model, inputs, fix, open) {
            match compile_model(&model, &options) {
                Ok(compiled) => return Ok(compiled),
                Err(e) => last = Some(e),
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::invalid("case", "inputs", "some", "none")))
}

/// Whether no node of a program is a general one.
fn is_native(program: &Program) -> bool {
    let general = |op: &Op| matches!(op, Op::Tensor(_));
    !program.nodes.iter().any(|n| general(&n.op))
}

/// Runs a case on the device: whether it is native, and what is wrong; none if it is not imported.
fn on_device(folder: &Path, bytes: &[u8]) -> Option<(bool, Option<String>)> {
    let model = Model::decode(&cases::name(folder), bytes, &cases::LIMITS).ok()?;
    let model = cases::stated(folder, model);
    let inputs = cases::inputs(folder, &model, &cases::LIMITS).ok()?;
    let compiled = compiled(&model, &inputs).ok()?;
    let names = model.graph.inputs.iter().map(|i| i.name.clone());
    let given = names.zip(inputs).filter_map(|(n, x)| Some((n, x?)));
    let mut device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let is_native = is_native(compiled.program());
    let got = match compiled.run(&mut device, &given.collect()) {
        Ok(got) => got,
        Err(e) => return Some((is_native, Some(e.to_string()))),
    };
    let want =
        cases::expected(folder, bytes).expect("a case that the interpreter passes has its answers");
    let wrong = got.iter().zip(&want).find_map(|(g, w)| difference(g, w));
    Some((is_native, wrong))
}

#[test]
fn imported_cases_give_their_outputs_on_the_device() {
    let folders = cases::folders();
    if folders.is_empty() {
        return;
    }
    let (mut passed, mut native, mut refused, mut failed) = (0, 0, 0, Vec::new());
    for folder in &folders {
        let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
        match on_device(folder, &bytes) {
            None => refused += 1,
            Some((is_native, None)) => {
                passed += 1;
                native += usize::from(is_native);
            }
            Some(_) if OTHERWISE.contains(&&*cases::name(folder)) => {}
            Some((_, Some(what))) => failed.push((cases::name(folder), what)),
        }
    }
    println!("{passed} passed, {native} of them native, {refused} not imported");
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!((passed, native), (NUM_ON_DEVICE, NUM_NATIVE));
    assert!(passed <= NUM_PASSED);
}
