//! Imports the models that `generate.py` writes.
//!
//! An import compares the program with the interpreter by itself; here outputs are compared bit
//! for bit between requests alone, batched, padded, and under random merges and splits.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod attention;
mod distance;
mod edges;
mod hostile;
mod lowering;
mod refusals;
mod sizes;

use std::path::PathBuf;
use std::sync::Arc;

use lazybatch_graph::{At, Op, Program, Repeat, Tensor, dump};
use lazybatch_kernels::conformance::{Request, Results, Schedule, run};
use lazybatch_kernels::import::{Options, import};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, ReferenceDevice};
use lazybatch_sla::ModelId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn path(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import/models");
    PathBuf::from(folder).join(name)
}

fn program(name: &str) -> Program {
    import(&path(&format!("{name}.onnx")), &Options::default()).unwrap()
}

fn bits(results: &Results) -> Vec<Vec<u32>> {
    let all = |tensors: &Vec<Option<Tensor>>| {
        let elements = tensors.iter().flatten().flat_map(|t| {
            let bytes = t.data.as_slice().as_chunks::<4>().0.iter();
            bytes.map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>()
        });
        elements.collect()
    };
    results.iter().map(all).collect()
}

/// Runs `num` random requests alone and in company; the bits must be the same, and near those of
/// the reference.
fn check_bits(program: Program, num: usize, longest: usize) {
    let program = Arc::new(program);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let is_sequence = program.length_input.is_some();
    let requests: Vec<Request> = (0..num)
        .map(|_| {
            let len = if is_sequence {
                rng.random_range(1..=longest)
            } else {
                0
            };
            Request {
                inputs: random_inputs(&program, len, 1, &mut rng),
                len,
                samples: 1,
            }
        })
        .collect();
    let on = |device: &mut dyn Device, schedule| {
        device.load(ModelId(0), Arc::clone(&program)).unwrap();
        run(device, &program, &requests, schedule).unwrap()
    };
    let cpu = |threads, schedule| {
        let options = CpuOptions {
            threads,
            ..CpuOptions::default()
        };
        on(&mut CpuDevice::new(options), schedule)
    };
    let alone = cpu(1, Schedule::Alone);
    let schedules = [
        Schedule::Together,
        Schedule::Padded,
        Schedule::Random(1),
        Schedule::Random(2),
    ];
    for schedule in schedules {
        assert_eq!(bits(&alone), bits(&cpu(2, schedule)), "{schedule:?}");
    }
    let mut reference = ReferenceDevice::new(Default::default());
    let wanted = on(&mut reference, Schedule::Alone);
    for (a, b) in alone.iter().flatten().zip(wanted.iter().flatten()) {
        let (a, b) = (a.as_ref().unwrap(), b.as_ref().unwrap());
        assert_eq!(a.dims, b.dims);
        for (x, y) in a.to_f32().iter().zip(b.to_f32()) {
            assert!((x - y).abs() <= 1e-3 * (1.0 + y.abs()), "{x} and {y}");
        }
    }
}

/// Names of the general nodes of a program.
fn general(program: &Program) -> Vec<&str> {
    let ops = program.nodes.iter().filter_map(|n| match &n.op {
        Op::Tensor(op) => Some(op.op.as_str()),
        _ => None,
    });
    ops.collect()
}

fn count(program: &Program, wanted: impl Fn(&Op) -> bool) -> usize {
    program.nodes.iter().filter(|n| wanted(&n.op)).count()
}

#[test]
fn a_multilayer_perceptron_becomes_linear_nodes() {
    let program = program("mlp");
    assert_eq!(count(&program, |op| matches!(op, Op::Linear { .. })), 3);
    assert_eq!(general(&program), ["Elu"]);
    assert_eq!(program.inputs[0].ty.to_string(), "f32[12]");
    check_bits(program, 5, 0);
}

#[test]
fn a_convolutional_network_becomes_fused_nodes() {
    let program = program("cnn");
    assert!(general(&program).is_empty(), "{}", dump(&program, None));
    assert_eq!(count(&program, |op| matches!(op, Op::Conv2d { .. })), 3);
    assert_eq!(count(&program, |op| matches!(op, Op::BatchNorm { .. })), 0);
    check_bits(program, 4, 0);
}

#[test]
fn an_encoder_becomes_attention_over_packed_rows() {
    let program = program("bert");
    assert_eq!(count(&program, |op| matches!(op, Op::Attention { .. })), 2);
    let norms = |op: &Op| matches!(op, Op::LayerNorm { .. } | Op::AddLayerNorm { .. });
    assert_eq!(count(&program, norms), 5);
    assert_eq!(count(&program, |op| *op == Op::AddPosition), 1);
    // The sum over positions and its quotient; the mask is gone.
    assert_eq!(general(&program), ["ReduceSum", "Div"]);
    let names: Vec<_> = program.inputs.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["input_ids", "token_type_ids"]);
    assert_eq!(program.inputs[0].id_bound, Some(30));
    assert_eq!(program.inputs[0].max_len, Some(32));
    check_bits(program, 6, 30);
}

#[test]
fn stacked_recurrent_layers_share_one_loop() {
    let program = program("lstm");
    let loops = program.blocks.iter().filter(|b| b.repeat.is_loop());
    assert_eq!(loops.count(), 1, "{}", dump(&program, None));
    assert_eq!(program.blocks[0].repeat, Repeat::PerInputStep { stride: 1 });
    // The rows that are an output are handed out where they are made.
    let emits = |n: &&lazybatch_graph::NodeId| matches!(program.node(**n).op, Op::Emit { .. });
    assert_eq!(program.blocks[0].nodes.iter().filter(emits).count(), 1);
    let keeps = |op: &Op| matches!(op, Op::SeqWrite { .. });
    assert_eq!(count(&program, keeps), 0, "{}", dump(&program, None));
    check_bits(program, 12, 50);
}

#[test]
fn bidirectional_layers_read_from_both_ends() {
    let program = program("bilstm");
    let loops = program.blocks.iter().filter(|b| b.repeat.is_loop());
    assert_eq!(loops.count(), 2, "{}", dump(&program, None));
    assert!(general(&program).is_empty(), "{}", dump(&program, None));
    check_bits(program, 8, 20);
}

#[test]
fn other_cells_are_composed_or_stepped() {
    let program = program("cells");
    assert_eq!(count(&program, |op| matches!(op, Op::GruCell { .. })), 1);
    check_bits(program, 6, 12);
}

#[test]
fn a_causal_mask_makes_attention_causal() {
    let program = program("causal");
    let causal = |op: &Op| matches!(op, Op::Attention { seen, .. } if seen.causal);
    assert_eq!(count(&program, causal), 1);
    assert!(general(&program).is_empty(), "{}", dump(&program, None));
    assert_eq!(program.inputs[0].max_len, Some(64));
    check_bits(program, 6, 30);
}

#[test]
fn an_encoder_and_a_decoder_become_one_program() {
    let program = import(&path("speller.toml"), &Options::default()).unwrap();
    let repeats: Vec<Repeat> = program.blocks.iter().map(|b| b.repeat).collect();
    assert_eq!(repeats.last(), Some(&Repeat::UntilStop { max: 15 }));
    let looks = |op: &Op| matches!(op, Op::StateAttention { .. });
    assert_eq!(count(&program, looks), 1, "{}", dump(&program, None));
    // The keys are projected once, not at every step.
    let decoder = program.blocks.last().unwrap();
    let linear = |n: &&lazybatch_graph::NodeId| matches!(program.node(**n).op, Op::Linear { .. });
    assert_eq!(decoder.nodes.iter().filter(linear).count(), 1);
    check_bits(program, 8, 20);
}

#[test]
fn caches_that_grow_become_states() {
    let program = import(&path("reader.toml"), &Options::default()).unwrap();
    let looks = |op: &Op| matches!(op, Op::StateAttention { .. });
    assert_eq!(count(&program, looks), 2, "{}", dump(&program, None));
    let appends = |op: &Op| matches!(op, Op::SeqWrite { at: At::End, .. });
    assert_eq!(count(&program, appends), 2);
    assert_eq!(count(&program, |op| *op == Op::AddPosition), 1);
    assert!(general(&program).is_empty(), "{}", dump(&program, None));
    check_bits(program, 8, 20);
}

#[test]
fn a_loop_of_few_passes_is_unrolled() {
    let program = program("loop");
    assert_eq!(count(&program, |op| matches!(op, Op::Linear { .. })), 3);
    assert!(general(&program).is_empty(), "{}", dump(&program, None));
    check_bits(program, 4, 0);
}

#[test]
fn a_scan_of_fixed_length_is_unrolled() {
    let program = program("scan");
    assert_eq!(count(&program, |op| matches!(op, Op::Linear { .. })), 4);
    assert_eq!(count(&program, |op| matches!(op, Op::Unary(_))), 5);
    check_bits(program, 4, 0);
}

#[test]
fn a_scan_over_the_sequence_is_refused_by_name() {
    let options = Options {
        sequence: vec!["x:1".parse().unwrap()],
        ..Options::default()
    };
    let e = import(&path("scan.onnx"), &options)
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("passes (Scan: the number of its passes is not known, or large)"),
        "{e}"
    );
}

#[test]
fn what_pytorch_exports_is_imported() {
    for (name, longest, slow) in [
        ("bilstm", 20, &[][..]),
        ("gru", 20, &[][..]),
        ("res", 0, &["HardSwish"][..]),
        ("gpt", 30, &[][..]),
        ("gpt-masked", 30, &[][..]),
        ("tcn", 15, &["Conv", "Conv", "InstanceNormalization"][..]),
    ] {
        let program = program(&format!("torch/{name}"));
        assert_eq!(general(&program), slow, "{name}");
        check_bits(program, 4, longest);
    }
    let vit = program("torch/vit");
    assert!(
        general(&vit)
            .iter()
            .all(|op| ["Transpose", "MatMul", "Concat"].contains(op))
    );
    assert_eq!(count(&vit, |op| matches!(op, Op::Linear { .. })), 5);
    check_bits(vit, 3, 0);
}

#[test]
fn ops_without_a_node_run_by_general_kernels() {
    let program = program("odd");
    let ops = general(&program);
    for op in ["Conv", "CumSum", "LpNormalization", "ReduceMax"] {
        assert!(ops.contains(&op), "{op} in {ops:?}");
    }
    assert_eq!(count(&program, |op| *op == Op::LastRow), 1);
    let best = Op::TopK {
        k: 2,
        largest: true,
    };
    assert_eq!(count(&program, |op| *op == best), 1);
    check_bits(program, 5, 15);
}
