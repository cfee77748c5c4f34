//! The conformance suite: every result with the same bits alone, together, padded, and under random
//! merges and splits.

use std::sync::Arc;

use lazybatch_cuda::{CudaOptions, GraphCounts};
use lazybatch_kernels::conformance::{
    Outcome, Problem, Schedule, check, custom_means, custom_problem, problems, requests, run,
};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::{CustomCall, CustomKernel, CustomNode, Device, KernelRegistry};
use lazybatch_sla::ModelId;

use crate::process::runs_clean;
use crate::{device, options};

/// Tests that share the problems.
const PARTS: usize = 4;

/// `x + bias`.
struct Shift;

impl CustomKernel for Shift {
    fn validate(&self, _node: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        let width = call.operands[0].row_elems;
        for member in call.offsets.windows(2) {
            for row in member[0]..member[1] {
                for i in 0..width {
                    let shifted = call.operands[0].row(row)[i] + call.operands[1].data[i];
                    call.output[row * width + i] = shifted;
                }
            }
        }
        Ok(())
    }
}

fn check_part(part: usize) {
    // To look at some problems alone.
    let only = std::env::var("LAZYBATCH_PROBLEMS").unwrap_or_default();
    let mine = |(i, p): &(usize, Problem)| {
        i % PARTS == part && only.split(',').any(|word| p.name.contains(word))
    };
    // By graphs and kernel by kernel in turn: the results have to have the same bits.
    let seed = std::env::var("LAZYBATCH_EMULATOR_SEED").unwrap_or_default();
    let mut num = seed.parse::<usize>().unwrap_or(0);
    let mut failures = Vec::new();
    for (_, problem) in problems().into_iter().enumerate().filter(mine) {
        let mut make = || -> Box<dyn Device> {
            num += 1;
            Box::new(device(CudaOptions {
                graphs: num.is_multiple_of(2),
                eager_first: 0,
                ..options()
            }))
        };
        println!("{}", problem.name);
        let outcome = check(&problem, &mut make, true);
        match outcome {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Unsupported(why)) => failures.push(format!("unsupported: {why}")),
            Err(why) => failures.push(why),
        }
    }
    let num = failures.len();
    assert!(
        failures.is_empty(),
        "{num} failures:\n{}",
        failures.join("\n")
    );
}

#[test]
fn the_first_problems_pass() {
    runs_clean("conformance::the_first_problems_pass", || check_part(0));
}

#[test]
fn the_second_problems_pass() {
    runs_clean("conformance::the_second_problems_pass", || check_part(1));
}

#[test]
fn the_third_problems_pass() {
    runs_clean("conformance::the_third_problems_pass", || check_part(2));
}

#[test]
fn the_fourth_problems_pass() {
    runs_clean("conformance::the_fourth_problems_pass", || check_part(3));
}

#[test]
fn nodes_of_the_user_run_on_the_host() {
    runs_clean("conformance::nodes_of_the_user_run_on_the_host", || {
        for batchable in [true, false] {
            let mut registry = KernelRegistry::new();
            registry.register("shift", Arc::new(Shift));
            for problem in [custom_problem(registry, batchable), custom_means(batchable)] {
                let mut options = options();
                options.registry = problem.registry.clone();
                let mut make = || -> Box<dyn Device> { Box::new(device(options.clone())) };
                let outcome = check(&problem, &mut make, true).unwrap();
                assert_eq!(outcome, Outcome::Passed);
            }
        }
    });
}

#[test]
fn launches_that_come_again_are_replayed() {
    let name = "conformance::launches_that_come_again_are_replayed";
    runs_clean(name, || {
        for name in ["model-transformer", "model-recurrent", "model-decoder"] {
            let problem = problems().into_iter().find(|p| p.name == name).unwrap();
            let program = Arc::new((problem.build)());
            let requests = requests(&problem, &program);
            let mut device = device(options());
            device.load(ModelId(0), Arc::clone(&program)).unwrap();
            let mut counts = Vec::new();
            let mut results = Vec::new();
            for _ in 0..3 {
                let before = device.graph_counts();
                let ran = run(&mut device, &program, &requests, Schedule::Together);
                results.push(format!("{ran:?}"));
                let after = device.graph_counts();
                counts.push(GraphCounts {
                    replayed: after.replayed - before.replayed,
                    eager: after.eager - before.eager,
                    new: after.new - before.new,
                    captured: after.captured - before.captured,
                });
            }
            // What was captured, at the latest when it came again, is all that the third run needs.
            let [first, second, third] = counts[..] else {
                unreachable!()
            };
            assert!(
                first.new > 0 && first.new <= first.eager,
                "{name}: {counts:?}"
            );
            assert_eq!(
                (second.new, second.eager, third.captured, third.eager),
                (0, 0, 0, 0),
                "{name}: {counts:?}"
            );
            let all = first.replayed + first.eager;
            assert_eq!(
                (second.replayed, third.replayed),
                (all, all),
                "{name}: {counts:?}"
            );
            assert_eq!(results[0], results[1], "{name}");
            assert_eq!(results[0], results[2], "{name}");
        }
    });
}

#[test]
fn graphs_are_forgotten_a_few_at_a_time() {
    let name = "conformance::graphs_are_forgotten_a_few_at_a_time";
    runs_clean(name, || {
        let problem = problems().into_iter().find(|p| p.name == "model-decoder");
        let problem = problem.unwrap();
        let program = Arc::new((problem.build)());
        let requests = requests(&problem, &program);
        let ran = |max_graphs: usize| {
            let mut device = device(CudaOptions {
                max_graphs,
                ..options()
            });
            device.load(ModelId(0), Arc::clone(&program)).unwrap();
            let mut of_runs = Vec::new();
            for _ in 0..3 {
                let before = device.graph_counts();
                let ran = run(&mut device, &program, &requests, Schedule::Together);
                let after = device.graph_counts();
                let all = after.replayed + after.eager - before.replayed - before.eager;
                let new = after.captured + after.eager - before.captured - before.eager;
                of_runs.push((format!("{ran:?}"), all, new));
            }
            of_runs
        };
        // Where all have room the third run brings nothing new; where few have, what was forgotten.
        let (many, few) = (ran(1024), ran(2));
        assert_eq!(many[2].2, 0);
        assert!(few[2].2 > 0);
        for (a, b) in many.iter().zip(&few) {
            assert!(a.0 == b.0, "other results");
            assert_eq!(a.1, b.1);
        }
    });
}

/// These problems pass with matrix instructions, within `tolerance`, and by other kernels than those
/// without.
fn check_matrix(is_one: fn(&Problem) -> bool, num: usize, tolerance: f64) {
    for weights in [WeightType::F16, WeightType::Bf16] {
        let of = |tensor_cores| CudaOptions {
            weights,
            tensor_cores,
            ..options()
        };
        let mut problems: Vec<Problem> = problems().into_iter().filter(is_one).collect();
        assert_eq!(problems.len(), num);
        for problem in &mut problems {
            problem.tolerance = tolerance;
            let mut make = || -> Box<dyn Device> { Box::new(device(of(true))) };
            assert_eq!(check(problem, &mut make, true).unwrap(), Outcome::Passed);
            // They are other kernels than those without.
            let program = Arc::new((problem.build)());
            let requests = requests(problem, &program);
            let results = [true, false].map(|tensor_cores| {
                let mut device = device(of(tensor_cores));
                device.load(ModelId(0), Arc::clone(&program)).unwrap();
                format!(
                    "{:?}",
                    run(&mut device, &program, &requests, Schedule::Alone)
                )
            });
            assert_ne!(results[0], results[1], "{}", problem.name);
        }
    }
}

#[test]
fn attention_by_matrix_instructions_has_the_same_bits_in_any_batch() {
    let name = "conformance::attention_by_matrix_instructions_has_the_same_bits_in_any_batch";
    runs_clean(name, || {
        // Values are below 1, and the weights on them rounded to 8 bits.
        check_matrix(|p| p.name.starts_with("attention-"), 9, 2e-2);
    });
}

#[test]
fn convolutions_by_matrix_instructions_have_the_same_bits_in_any_batch() {
    let name = "conformance::convolutions_by_matrix_instructions_have_the_same_bits_in_any_batch";
    runs_clean(name, || {
        // Those with few filters in a group are done as without.
        let is_one = |p: &Problem| p.name.starts_with("conv2d-") && !p.name.contains("_6x");
        // Sums are of up to 288 products of numbers below 1, rounded to 8 bits.
        check_matrix(is_one, 4, 6e-2);
    });
}
