//! Weights of products that the cpu device stores in reduced precision.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;

use half::{bf16, f16};
use lazybatch_graph::{
    DType, Op, Program, ProgramBuilder, Repeat, SharedProgram, Tensor, WeightSource,
};
use lazybatch_kernels::conformance::{
    Outcome, Problem, Results, Schedule, check, compare, problems, requests, run,
};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, Error};
use lazybatch_sla::ModelId;

fn cpu(weights: WeightType, threads: usize, level: Level) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        weights,
        threads,
        level,
        max_open: 16,
        parallel_flops: 0,
        poison: true,
        ..CpuOptions::default()
    })
}

/// Whether an operand of an op is a weight that the device may store rounded.
fn is_rounded(op: &Op, operand: usize) -> bool {
    match op {
        Op::Linear { .. } => operand == 1,
        Op::LstmCell { .. } => matches!(operand, 1 | 2 | 4),
        Op::GruCell { .. } => matches!(operand, 1 | 2),
        _ => false,
    }
}

/// Rounds the weights of products.
fn round_matrices(mut program: Program, weights: WeightType) -> Program {
    let nodes = program.nodes.iter();
    let operands = nodes.flat_map(|n| n.inputs.iter().enumerate().map(move |(i, &v)| (n, i, v)));
    let ids: BTreeSet<_> = operands
        .filter(|(node, i, _)| is_rounded(&node.op, *i))
        .filter_map(|(_, _, value)| program.as_weight(value))
        .map(|id| id.index())
        .collect();
    for i in ids {
        let decl = &mut program.weights[i];
        let dims = decl.ty.fixed_dims().to_vec();
        let mut w = decl.source.to_f32(decl.ty.row_elems());
        match weights {
            WeightType::F32 => {}
            WeightType::F16 => w.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            WeightType::Bf16 => w.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            WeightType::Int8 | WeightType::Int8Dynamic => {
                for j in 0..dims[1] {
                    let column = || (0..dims[0]).map(|i| i * dims[1] + j);
                    let most = column().map(|at| w[at].abs()).fold(0.0, f32::max);
                    let scale = (most / 127.0).max(f32::MIN_POSITIVE);
                    for at in column() {
                        w[at] = (w[at] / scale).round_ties_even() * scale;
                    }
                }
            }
        }
        decl.source = WeightSource::Data(Tensor::from_f32(&dims, &w));
    }
    program
}

/// All problems of the suite, their matrices rounded.
fn rounded_problems(weights: WeightType) -> impl Iterator<Item = Problem> {
    problems().into_iter().map(move |problem| {
        let build = problem.build;
        Problem {
            build: Box::new(move || round_matrices(build(), weights)),
            ..problem
        }
    })
}

fn results(device: &mut dyn Device, problem: &Problem, schedule: Schedule) -> Results {
    let program: SharedProgram = Arc::new((problem.build)());
    let requests = requests(problem, &program);
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    let got = run(device, &program, &requests, schedule);
    got.unwrap_or_else(|e| panic!("{}: {e}", problem.name))
}

#[test]
fn the_suite_holds_with_rounded_weights() {
    for weights in [WeightType::F16, WeightType::Bf16, WeightType::Int8] {
        for problem in rounded_problems(weights) {
            for level in Level::available() {
                let mut make = || -> Box<dyn Device> { Box::new(cpu(weights, 2, level)) };
                let outcome = check(&problem, &mut make, true);
                assert_eq!(
                    outcome,
                    Ok(Outcome::Passed),
                    "{weights} at {}",
                    level.name()
                );
            }
        }
    }
}

#[test]
fn halves_give_the_bits_of_the_rounded_weights_in_f32() {
    for weights in [WeightType::F16, WeightType::Bf16] {
        for (problem, rounded) in problems().into_iter().zip(rounded_problems(weights)) {
            let mut device = cpu(weights, 1, Level::detect());
            let got = results(&mut device, &problem, Schedule::Together);
            let mut plain = cpu(WeightType::F32, 1, Level::detect());
            let want = results(&mut plain, &rounded, Schedule::Together);
            compare(&problem, &got, &want, None).unwrap();
        }
    }
}

#[test]
fn integer_products_have_the_same_bits_alone_and_batched_everywhere() {
    for problem in problems() {
        let mut first = None;
        for level in Level::available() {
            for (threads, schedule) in [
                (1, Schedule::Alone),
                (2, Schedule::Together),
                (1, Schedule::Padded),
                (3, Schedule::Random(5)),
            ] {
                let mut device = cpu(WeightType::Int8Dynamic, threads, level);
                let got = results(&mut device, &problem, schedule);
                let want = first.get_or_insert_with(|| got.clone());
                compare(&problem, &got, want, None)
                    .unwrap_or_else(|e| panic!("{schedule:?} at {}: {e}", level.name()));
            }
        }
    }
}

/// One dense layer with the given `[2, 2]` weight.
fn dense(w: [f32; 4]) -> SharedProgram {
    let mut b = ProgramBuilder::new("dense");
    let x = b.input("x", DType::F32, &[2]);
    let y = b.output("y", DType::F32, &[2]);
    b.begin_block("only", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("layer", v, 2, None);
    b.emit("emit", y, v);
    let mut program = b.finish().unwrap();
    let decl = program
        .weights
        .iter_mut()
        .find(|w| w.ty.fixed_dims().len() == 2)
        .unwrap();
    decl.source = WeightSource::Data(Tensor::from_f32(&[2, 2], &w));
    Arc::new(program)
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() {
    let mut device = cpu(WeightType::F16, 1, Level::detect());
    let error = device
        .load(ModelId(0), dense([0.0, 1.0, -7e4, 0.0]))
        .unwrap_err();
    assert!(matches!(error, Error::Weight { .. }), "{error}");
    let message = error.to_string();
    for part in [
        "dense",
        "layer",
        "element 2",
        "up to 6.5504e4 for f16",
        "got -7e4",
    ] {
        assert!(message.contains(part), "{message}: {part}");
    }
    device
        .load(ModelId(0), dense([0.0, 1.0, -6e4, 0.0]))
        .unwrap();
}

#[test]
fn rounded_weights_take_less_room_and_are_named() {
    let bytes = WeightType::ALL.map(|weights| {
        let mut device = cpu(weights, 1, Level::PORTABLE);
        let mut b = ProgramBuilder::new("wide");
        let x = b.input("x", DType::F32, &[512]);
        let y = b.output("y", DType::F32, &[512]);
        b.begin_block("only", Repeat::Once);
        let v = b.read_input("x", x);
        let v = b.dense("layer", v, 512, None);
        b.emit("emit", y, v);
        device
            .load(ModelId(0), Arc::new(b.finish().unwrap()))
            .unwrap();
        let name = device.info().name;
        let suffix = if weights == WeightType::F32 {
            String::new()
        } else {
            format!("-{weights}")
        };
        assert_eq!(name, format!("cpu-portable-1t{suffix}"));
        device.weight_bytes(ModelId(0)).unwrap() as f64
    });
    let share = bytes.map(|b| (b / bytes[0] * 100.0).round());
    assert_eq!(share, [100.0, 50.0, 50.0, 25.0, 26.0]);
}
