//! One suite for every device that computes.
//!
//! The suite is data: [`problems`] lists ops with operand shapes, seeds and tolerances, each built
//! into a tiny program, and a few whole models. [`check`] runs a problem on a device and compares:
//! with the reference within the tolerance, and with the device itself bit for bit, when requests
//! run alone, in one batch, padded, or under a random schedule of merges and splits.
//!
//! A problem that a device does not support is reported by [`check`], never skipped silently.

mod attention;
mod custom;
mod problems;
mod schedule;

use std::sync::Arc;

use lazybatch_graph::{DType, SharedProgram, Tensor};
use lazybatch_sla::ModelId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::Device;
use crate::error::Error;
use crate::reference::ReferenceDevice;
use crate::synthetic::random_inputs;

pub use custom::{custom_means, custom_problem};
pub use problems::{Problem, problems};
pub use schedule::{Request, Results, Schedule, run};

/// What came of a problem on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All comparisons held.
    Passed,
    /// The device has no kernel; the text says which and why.
    Unsupported(String),
}

/// Requests of a problem: lengths and samples drawn from its seed, a length of 1 among them.
pub fn requests(problem: &Problem, program: &SharedProgram) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(problem.seed);
    let is_static = crate::validate::is_static(program);
    let longest = program
        .length_input
        .and_then(|i| program.input(i).max_len)
        .unwrap_or(0);
    (0..problem.num_requests)
        .map(|i| {
            let len = match i {
                _ if longest == 0 => 0,
                0 => 1,
                1 => longest,
                _ => rng.random_range(1..=longest),
            };
            let samples = if is_static {
                rng.random_range(1..=3)
            } else {
                1
            };
            Request {
                inputs: random_inputs(program, len, samples, &mut rng),
                len,
                samples,
            }
        })
        .collect()
}

/// Runs a problem on the devices that `make` gives (one per call, all alike) and compares.
///
/// # Errors
/// The first comparison that fails, with problem, request and element.
pub fn check(
    problem: &Problem,
    make: &mut dyn FnMut() -> Box<dyn Device>,
    bitwise: bool,
) -> Result<Outcome, String> {
    let program: SharedProgram = Arc::new((problem.build)());
    let requests = requests(problem, &program);
    let mut device = make();
    match device.load(ModelId(0), Arc::clone(&program)) {
        Err(Error::Unsupported { node, why, .. }) => {
            return Ok(Outcome::Unsupported(format!(
                "{}: node {node}: {why}",
                problem.name
            )));
        }
        Err(error) => return Err(format!("{}: {error}", problem.name)),
        Ok(()) => {}
    }
    let mut oracle = ReferenceDevice::new(problem.registry.clone());
    oracle
        .load(ModelId(0), Arc::clone(&program))
        .map_err(|e| e.to_string())?;
    let want = run(&mut oracle, &program, &requests, Schedule::Alone)?;
    let alone = run(&mut *device, &program, &requests, Schedule::Alone)?;
    compare(problem, &alone, &want, Some(problem.tolerance))
        .map_err(|e| format!("reference: {e}"))?;
    let mut schedules = vec![Schedule::Together, Schedule::Padded];
    schedules.extend((0..problem.num_schedules).map(Schedule::Random));
    for schedule in schedules {
        let mut device = make();
        device
            .load(ModelId(0), Arc::clone(&program))
            .map_err(|e| e.to_string())?;
        let got = run(&mut *device, &program, &requests, schedule)
            .map_err(|e| format!("{}: {schedule:?}: {e}", problem.name))?;
        let tolerance = if bitwise {
            None
        } else {
            Some(problem.tolerance)
        };
        compare(problem, &got, &alone, tolerance).map_err(|e| format!("{schedule:?}: {e}"))?;
    }
    Ok(Outcome::Passed)
}

/// Compares outputs: bit for bit without a tolerance, else `|got - want| <= tolerance (1 + |want|)`.
///
/// # Errors
/// The first difference.
pub fn compare(
    problem: &Problem,
    got: &Results,
    want: &Results,
    tolerance: Option<f64>,
) -> Result<(), String> {
    for (r, (got, want)) in got.iter().zip(want).enumerate() {
        for (o, (got, want)) in got.iter().zip(want).enumerate() {
            let place = format!("{}: request {r}: output {o}", problem.name);
            let (got, want) = match (got, want) {
                (None, None) => continue,
                (Some(got), Some(want)) => (got, want),
                _ => return Err(format!("{place}: emitted by one device only")),
            };
            compare_tensors(got, want, tolerance).map_err(|e| format!("{place}: {e}"))?;
        }
    }
    Ok(())
}

fn compare_tensors(got: &Tensor, want: &Tensor, tolerance: Option<f64>) -> Result<(), String> {
    if (got.dtype, &got.dims) != (want.dtype, &want.dims) {
        let kind = |t: &Tensor| format!("{}{:?}", t.dtype, t.dims);
        return Err(format!("expected {}, got {}", kind(want), kind(got)));
    }
    if got.dtype != DType::F32 {
        let (got, want) = (got.to_i32(), want.to_i32());
        return if got == want {
            Ok(())
        } else {
            Err(format!("expected {want:?}, got {got:?}"))
        };
    }
    for (i, (g, w)) in got.to_f32().into_iter().zip(want.to_f32()).enumerate() {
        let same = match tolerance {
            None => g.to_bits() == w.to_bits(),
            Some(t) => f64::from((g - w).abs()) <= t * (1.0 + f64::from(w.abs())),
        };
        if !same {
            return Err(format!("element {i}: expected {w}, got {g}"));
        }
    }
    Ok(())
}
