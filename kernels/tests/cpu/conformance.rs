//! The conformance suite on every device that computes.

use std::sync::Arc;

use lazybatch_graph::SharedProgram;
use lazybatch_kernels::conformance::{Outcome, Schedule, check, compare, problems, requests, run};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::ModelId;

fn cpu(threads: usize, level: Level) -> Box<dyn Device> {
    let max_open = 16;
    Box::new(CpuDevice::new(CpuOptions {
        threads,
        level,
        max_open,
        poison: true,
        ..Default::default()
    }))
}

fn check_all(make: &mut dyn FnMut() -> Box<dyn Device>) {
    let mut failures = Vec::new();
    for problem in problems() {
        match check(&problem, make, true) {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Unsupported(why)) => failures.push(format!("unsupported: {why}")),
            Err(why) => failures.push(why),
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn cpu_at_the_best_level_agrees_with_the_reference_and_with_itself() {
    check_all(&mut || cpu(1, Level::detect()));
}

#[test]
fn cpu_at_every_other_level_agrees() {
    for level in Level::available() {
        check_all(&mut || cpu(1, level));
    }
}

/// Every node is spread over the threads here, however small.
#[test]
fn any_number_of_threads_and_any_level_gives_the_same_bits() {
    for problem in problems() {
        let program: SharedProgram = Arc::new((problem.build)());
        let requests = requests(&problem, &program);
        let mut first = None;
        for level in Level::available() {
            for threads in [1, 2, 3] {
                let options = CpuOptions {
                    threads,
                    level,
                    max_open: 16,
                    parallel_flops: 0,
                    poison: true,
                    ..Default::default()
                };
                let mut device = CpuDevice::new(options);
                device
                    .load(ModelId(0), Arc::clone(&program))
                    .expect("a supported program");
                let got = run(&mut device, &program, &requests, Schedule::Together);
                let got = got.unwrap_or_else(|e| panic!("{}: {e}", problem.name));
                let want = first.get_or_insert_with(|| got.clone());
                if let Err(why) = compare(&problem, &got, want, None) {
                    panic!("{threads} threads at {}: {why}", level.name());
                }
            }
        }
    }
}
