//! The conformance suite on every device that computes.

use lazybatch_kernels::conformance::{Outcome, check, problems};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};

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
