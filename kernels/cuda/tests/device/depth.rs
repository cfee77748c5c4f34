//! Two launches in flight: the core decides the next launch while one runs, so it learns one step
//! late that a loop has ended. Answers have the bits of those with one launch in flight.

use std::sync::Arc;

use lazybatch_cuda::CudaOptions;
use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::conformance::{Problem, problems, requests};

use crate::process::runs_clean;
use crate::{device, options};

/// What came of a run: outputs by request, and the passes that were launched for nothing.
struct Run {
    outputs: Vec<Vec<Tensor>>,
    discarded: u64,
}

/// Serves requests with these inputs; a segment is a whole block, or a node.
fn serve(
    program: &Arc<Program>,
    inputs: &[Vec<Tensor>],
    (policy, depth, whole): (&str, u32, bool),
    options: CudaOptions,
) -> Run {
    let blocks = program.blocks.iter().map(|b| b.nodes.len() as u32);
    let segments = blocks.map(|end| std::iter::once(0..end).collect());
    let of_model = ModelOptions {
        segments: whole.then(|| segments.collect()),
        ..ModelOptions::default()
    };
    let engine = Engine::builder()
        .device(device(options))
        .model("m", Arc::clone(program), of_model)
        .policy(policy)
        .depth(depth)
        .build()
        .unwrap();
    let submit = |inputs: &Vec<Tensor>| {
        let handle = engine.try_submit("m", inputs.clone(), Options::default());
        handle.unwrap()
    };
    let handles: Vec<_> = inputs.iter().map(submit).collect();
    let outputs = handles.into_iter().map(|h| h.wait().unwrap().outputs);
    let outputs = outputs.collect();
    let discarded = engine.stats().counters.discarded;
    engine.drain_blocking().unwrap();
    Run { outputs, discarded }
}

fn bits(outputs: &[Vec<Tensor>]) -> Vec<Vec<(Vec<usize>, Vec<u8>)>> {
    let of = |t: &Tensor| (t.dims.clone(), t.data.as_slice().to_vec());
    let each = outputs.iter().map(|o| o.iter().map(of).collect());
    each.collect()
}

/// Answers at greater depths are those at depth 1; returns the passes that were discarded.
fn is_as_shallow(program: &Arc<Program>, inputs: &[Vec<Tensor>], options: &CudaOptions) -> u64 {
    let mut discarded = 0;
    let shallow = serve(program, inputs, ("greedy", 1, true), options.clone());
    assert_eq!(shallow.discarded, 0);
    for (policy, depth, whole) in [("greedy", 2, false), ("lazy", 3, true)] {
        let options = CudaOptions {
            depth: depth as usize,
            ..options.clone()
        };
        let deep = serve(program, inputs, (policy, depth, whole), options);
        let name = &program.name;
        assert!(
            bits(&deep.outputs) == bits(&shallow.outputs),
            "{name}, {policy}, depth {depth}: expected {:?}, got {:?}",
            shallow.outputs,
            deep.outputs
        );
        discarded += deep.discarded;
    }
    discarded
}

#[test]
fn two_launches_in_flight_change_no_bits() {
    runs_clean("depth::two_launches_in_flight_change_no_bits", || {
        let mut discarded = 0;
        let is_decoder =
            |p: &Problem| p.name.ends_with("-decoder") || p.name.ends_with("-sampling");
        for problem in problems().into_iter().filter(is_decoder) {
            let program = Arc::new((problem.build)());
            let inputs = requests(&problem, &program).into_iter().map(|r| r.inputs);
            let inputs: Vec<_> = inputs.collect();
            discarded += is_as_shallow(&program, &inputs, &options());
        }
        assert!(discarded > 0, "no loop ended late");
    });
}

/// A loop that counts, adding its input, until a token comes, and a block behind it that reads what
/// the last pass left, or none: each pass then sets the total anew.
fn counted(has_block_behind: bool) -> Program {
    let mut b = ProgramBuilder::new("counted").with_seed(5);
    let x = b.input("x", DType::F32, &[6]);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    let total = b.output("total", DType::F32, &[6]);
    let sum = b.vector_state("sum", DType::F32, &[6], 0.0);
    let given = b.vector_state("given", DType::F32, &[6], 0.0);
    b.begin_block("start", Repeat::Once);
    let x = b.read_input("x", x);
    b.vec_write("give", given, x);
    b.begin_block("loop", Repeat::UntilStop { max: 16 });
    let x = b.vec_read("take", given);
    let s = b.vec_read("sum", sum);
    let s = b.add("add", s, x);
    b.vec_write("keep", sum, s);
    let logits = b.dense("head", s, 4, None);
    let token = b.arg_max("argmax", logits);
    b.emit("emit", tokens, token);
    if !has_block_behind {
        b.emit("emit.total", total, s);
    }
    b.stop("stop", token, 2);
    if has_block_behind {
        b.begin_block("behind", Repeat::Once);
        let s = b.vec_read("left", sum);
        b.emit("emit.total", total, s);
    }
    b.finish().unwrap()
}

/// Inputs of eight requests whose loops end at different passes.
fn to_count() -> Vec<Vec<Tensor>> {
    let input = |i: usize| {
        let values: Vec<f32> = (0..6)
            .map(|j| ((i * 7 + j * 5) % 11) as f32 - 5.0)
            .collect();
        vec![Tensor::from_f32(&[1, 6], &values)]
    };
    (0..8).map(input).collect()
}

#[test]
fn a_block_behind_a_loop_sees_its_last_pass() {
    runs_clean("depth::a_block_behind_a_loop_sees_its_last_pass", || {
        is_as_shallow(&Arc::new(counted(true)), &to_count(), &options());
    });
}

#[test]
fn an_output_that_each_pass_sets_is_that_of_the_last() {
    let name = "depth::an_output_that_each_pass_sets_is_that_of_the_last";
    runs_clean(name, || {
        is_as_shallow(&Arc::new(counted(false)), &to_count(), &options());
    });
}
