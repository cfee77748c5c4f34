//! Passes that leave the bits: programs have those that they had before.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_graph::{
    Act, At, DType, Op, Program, ProgramBuilder, Repeat, SharedProgram, Tensor, passes,
};
use lazybatch_kernels::conformance::{Request, Results, Schedule, problems, requests, run};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, ReferenceDevice};
use lazybatch_sla::ModelId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn behind(pass: &str, program: &Program) -> Program {
    let mut program = program.clone();
    passes::apply(passes::find(pass).unwrap(), &mut program).unwrap();
    program
}

fn ahead(program: &Program) -> Program {
    behind("project_ahead", program)
}

fn num_ahead(program: &Program) -> usize {
    let cells = program.nodes.iter().filter(|n| {
        matches!(
            n.op,
            Op::LstmCell { ahead: true, .. } | Op::GruCell { ahead: true, .. }
        )
    });
    cells.count()
}

fn results(program: &SharedProgram, requests: &[Request], schedule: Schedule) -> Results {
    let mut device = CpuDevice::new(CpuOptions {
        threads: 2,
        parallel_flops: 0,
        max_open: 16,
        poison: true,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), Arc::clone(program)).unwrap();
    run(&mut device, program, requests, schedule).unwrap()
}

fn of_lengths(program: &Program, lens: &[usize]) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let request = |&len| Request {
        inputs: random_inputs(program, len, 1, &mut rng),
        len,
        samples: 1,
    };
    lens.iter().map(request).collect()
}

fn bits(results: &Results) -> Vec<Vec<u8>> {
    let all = results.iter().flatten().flatten();
    all.map(|t| t.data.as_slice().to_vec()).collect()
}

/// Requests of different lengths join and leave under random schedules.
fn check(program: Program, moved: Program, requests: &[Request]) {
    let moved = Arc::new(moved);
    let want = bits(&results(&Arc::new(program), requests, Schedule::Alone));
    let random = (0..12).map(Schedule::Random);
    for schedule in [Schedule::Alone, Schedule::Together, Schedule::Padded]
        .into_iter()
        .chain(random)
    {
        let got = bits(&results(&moved, requests, schedule));
        assert!(got == want, "{}: {schedule:?}", moved.name);
    }
}

#[test]
fn the_suite_has_the_same_bits_with_products_ahead() {
    let mut moved = 0;
    for problem in problems() {
        let program: SharedProgram = Arc::new((problem.build)());
        let num = num_ahead(&ahead(&program));
        if num > 0 {
            moved += num;
            let moved = ahead(&program);
            check((*program).clone(), moved, &requests(&problem, &program));
        }
    }
    assert!(moved >= 3, "cells with products ahead: {moved}");
}

/// Blocks of `k` that do not end with a chain, words, slices, and loops that share a state.
#[test]
fn long_chains_have_the_same_bits_with_products_ahead() {
    let mut b = ProgramBuilder::new("long").with_seed(4);
    let ids = b.sequence_ids("ids", 21, 30);
    let frames = b.sequence("frames", DType::F32, &[600], 21);
    let y = b.output_sequence("y", DType::F32, &[40]);
    let z = b.output_sequence("z", DType::F32, &[40]);
    let kept = b.sequence_state("kept", 40, 21);
    b.begin_block("first", Repeat::PerInputStep { stride: 1 });
    let i = b.read_input_at("id", ids, At::Reverse);
    let x = b.embed("embed", i, 30, 300);
    let h = b.lstm("lstm", x, 40);
    b.seq_write("keep", kept, At::Reverse, h);
    b.begin_block("second", Repeat::PerInputStep { stride: 1 });
    let f = b.read_input("frame", frames);
    let half = b.slice("half", f, 300, 300);
    let half = b.unary("tanh", Act::Tanh, half);
    let other = b.seq_read("other", kept, At::Step);
    let both = b.concat("both", &[half, other]);
    let a = b.lstm("lstm2", both, 40);
    let state = b.vector_state("gru.h", DType::F32, &[40], 0.5);
    let g = b.gru("gru", f, 40, state);
    let s = b.add("sum", a, g);
    b.emit("y", y, s);
    b.emit("z", z, g);
    let program = b.finish().unwrap();
    let moved = ahead(&program);
    assert_eq!(num_ahead(&moved), 3);
    let states = moved.states.iter().filter(|s| s.name.ends_with(".ahead"));
    assert_eq!(states.count(), 2, "loops in a row share a state");
    let requests = of_lengths(&program, &[21, 1, 7, 16, 2, 19]);
    check(program, moved, &requests);
}

/// What has no position is read whole at each step, so nothing of it can be computed ahead.
#[test]
fn inputs_without_positions_are_left_in_their_loop() {
    let mut b = ProgramBuilder::new("whole").with_seed(5);
    let frames = b.sequence("frames", DType::F32, &[300], 9);
    let bias = b.input("bias", DType::F32, &[300]);
    let y = b.output_sequence("y", DType::F32, &[40]);
    b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
    let f = b.read_input("frame", frames);
    let c = b.read_input("whole", bias);
    let both = b.add("both", f, c);
    let kept = b.lstm("lstm", both, 40);
    let other = b.lstm("lstm2", f, 40);
    let s = b.add("sum", kept, other);
    b.emit("y", y, s);
    let program = b.finish().unwrap();
    let moved = ahead(&program);
    assert_eq!(num_ahead(&moved), 1, "the second alone");
    let requests = of_lengths(&program, &[9, 1, 4]);
    check(program, moved, &requests);
}

/// A node of constants has one row whatever is batched: devices want it folded, with its bits.
#[test]
fn constants_are_refused_until_they_are_folded() {
    let given: Vec<f32> = (0..37).map(|i| (i as f32 - 18.0) * 0.31).collect();
    let acts = [
        Act::Relu,
        Act::Relu6,
        Act::Gelu,
        Act::Tanh,
        Act::Sigmoid,
        Act::Silu,
    ];
    for act in acts {
        // With the numbers as a weight, or as an input: then the device computes on rows.
        let program = |is_weight: bool| {
            let mut b = ProgramBuilder::new("constants");
            let x = b.input("x", DType::F32, &[37]);
            let c = (!is_weight).then(|| b.input("c", DType::F32, &[37]));
            let y = b.output("y", DType::F32, &[37]);
            b.begin_block("block", Repeat::Once);
            let c = match c {
                Some(c) => b.read_input("c", c),
                None => b.data("c", Tensor::from_f32(&[37], &given)),
            };
            let c = b.unary("constant", act, c);
            let x = b.read_input("x", x);
            let s = b.add("sum", x, c);
            b.emit("y", y, s);
            b.finish().unwrap()
        };
        let plain = Arc::new(program(true));
        let mut cpu = CpuDevice::new(CpuOptions::default());
        let mut reference = ReferenceDevice::default();
        for device in [&mut cpu as &mut dyn Device, &mut reference] {
            let error = device.load(ModelId(0), Arc::clone(&plain)).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("node constant: op Unary is not supported: an operand with rows"),
                "{error}"
            );
        }
        let folded = Arc::new(behind("fold_constants", &plain));
        let requests = of_lengths(&folded, &[0; 6]);
        let with_numbers = requests.iter().map(|r| Request {
            inputs: vec![r.inputs[0].clone(), Tensor::from_f32(&[1, 37], &given)],
            ..r.clone()
        });
        let with_numbers: Vec<Request> = with_numbers.collect();
        let want = results(&Arc::new(program(false)), &with_numbers, Schedule::Alone);
        for schedule in [Schedule::Alone, Schedule::Together] {
            let got = results(&folded, &requests, schedule);
            assert!(bits(&got) == bits(&want), "{act:?}: {schedule:?}");
        }
    }
}

/// Of rows that are several pieces and of some that are no whole vectors, in blocks of all positions
/// and in loops.
#[test]
fn elementwise_chains_have_the_bits_of_their_ops() {
    for (width, repeat) in [
        (2085, Repeat::Once),
        (37, Repeat::Once),
        (29, Repeat::PerInputStep { stride: 1 }),
    ] {
        let mut b = ProgramBuilder::new("chains").with_seed(3);
        let x = b.sequence("x", DType::F32, &[width], 9);
        let y = b.output_sequence("y", DType::F32, &[width]);
        b.begin_block("block", repeat);
        let x = b.read_input("x", x);
        let cube = b.mul("square", x, x);
        let cube = b.mul("cube", cube, x);
        let s = b.scale("small", cube, 0.044_715);
        let s = b.add("inner", x, s);
        let s = b.scale("factor", s, 0.797_884_6);
        let s = b.unary("tanh", Act::Tanh, s);
        let one = b.constant("one", &[width], 1.0);
        let s = b.add("more", s, one);
        let gelu = b.mul("gelu", x, s);
        let gate = b.unary("gate", Act::Silu, x);
        let double = b.add("double", gate, gate);
        let gated = b.sub("gated", gelu, double);
        let rest = b.sub("rest", x, gated);
        b.emit("y", y, rest);
        let program = b.finish().unwrap();
        let fused = behind("fuse_elementwise", &program);
        assert_eq!(fused.nodes.len(), 4, "input, two chains, emit");
        let requests = of_lengths(&program, &[9, 1, 4, 5]);
        check(program, fused, &requests);
    }
}
