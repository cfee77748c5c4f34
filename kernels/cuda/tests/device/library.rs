//! Products by cuBLASLt, and weights of other types: within tolerances, not bit for bit.

use lazybatch_cuda::CudaOptions;
use lazybatch_kernels::Device;
use lazybatch_kernels::conformance::{Outcome, check, problems};
use lazybatch_kernels::cpu::WeightType;

use crate::process::runs_clean;
use crate::{device, options};

/// Problems with products of every kind.
const NAMES: [&str; 4] = [
    "linear-",
    "model-recurrent",
    "model-transformer",
    "model-decoder",
];

fn check_all(weights: WeightType, deterministic: bool, tolerance: f64) {
    check_all_by(weights, (deterministic, false), tolerance);
}

fn check_all_by(weights: WeightType, (deterministic, tensor_cores): (bool, bool), tolerance: f64) {
    let mut num = 0;
    for mut problem in problems() {
        if !NAMES.iter().any(|name| problem.name.starts_with(name)) {
            continue;
        }
        // Tokens of a decoder may change with the last bits.
        if weights != WeightType::F32 && problem.name == "model-decoder" {
            continue;
        }
        problem.tolerance = problem.tolerance.max(tolerance);
        problem.num_schedules = 1;
        let mut make = || -> Box<dyn Device> {
            Box::new(device(CudaOptions {
                weights,
                deterministic,
                tensor_cores,
                ..options()
            }))
        };
        let outcome = check(&problem, &mut make, deterministic).unwrap();
        assert_eq!(outcome, Outcome::Passed);
        num += 1;
    }
    assert!(num >= 6, "{num} problems");
}

#[test]
fn products_by_the_library_agree() {
    runs_clean("library::products_by_the_library_agree", || {
        check_all(WeightType::F32, false, 2e-5);
    });
}

#[test]
fn half_weights_agree_by_the_library() {
    runs_clean("library::half_weights_agree_by_the_library", || {
        check_all(WeightType::F16, false, 2e-2);
    });
}

#[test]
fn other_weights_have_the_same_bits_in_any_batch() {
    runs_clean(
        "library::other_weights_have_the_same_bits_in_any_batch",
        || {
            check_all(WeightType::Bf16, true, 5e-2);
            check_all(WeightType::Int8, true, 8e-2);
        },
    );
}

#[test]
fn matrix_instructions_give_the_same_bits_in_any_batch() {
    let name = "library::matrix_instructions_give_the_same_bits_in_any_batch";
    runs_clean(name, || {
        check_all_by(WeightType::Bf16, (true, true), 8e-2);
    });
}
