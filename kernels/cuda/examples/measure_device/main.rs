//! Measures the device on the GPU at hand: linear layers by own products and by cuBLASLt, copies and
//! a large product as a check of the measuring itself, and what launches cost: the host's time, the
//! GPU's idle time between them, merges, preemption, and what own products cost a whole block.
//!
//! Prints one line of JSON for each, the first about the machine. `--dry` runs everything on small
//! shapes and prints no figure: a test of this program on the emulator, which it refuses else.
//! `--environment` prints the first line alone; `--verdict FOLDER` says of the results in a folder
//! which figures that were asked for are met.
#![allow(
    unsafe_code,
    reason = "copies on the device, in programs that hold its memory"
)]

mod launches;
mod noise;
mod products;
mod served;
mod stack;
mod verdict;

use std::process::ExitCode;
use std::time::Instant;

use lazybatch_cuda::{Context, CudaError, jit};
use serde_json::{Map, Value};

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// What goes wrong.
type Failure = Box<dyn std::error::Error>;

/// Where results go.
#[derive(Clone, Copy)]
pub struct Report {
    /// Small shapes, and no figures.
    pub is_dry: bool,
}

impl Report {
    /// Prints a line: `what` was measured, at which sizes, and what came of it. A dry run leaves
    /// the figures out.
    fn line(
        self,
        what: &str,
        sizes: &[(&str, Value)],
        figures: &[(&str, f64)],
    ) -> Result<(), Failure> {
        let mut line = Map::new();
        line.insert("what".into(), what.into());
        for (key, value) in sizes {
            line.insert((*key).into(), value.clone());
        }
        if self.is_dry {
            line.insert("dry".into(), true.into());
        }
        for (key, figure) in figures.iter().filter(|_| !self.is_dry) {
            if !figure.is_finite() {
                return Err(format!("{what}: expected a number as {key}, got {figure}").into());
            }
            // Four digits say more than the measurement does.
            let rounded = format!("{figure:.3e}").parse::<f64>()?;
            line.insert((*key).into(), rounded.into());
        }
        println!("{}", Value::Object(line));
        Ok(())
    }
}

/// The `p`th of a hundred parts of the values, which it sorts; nearest rank.
pub fn percentile(values: &mut [f64], p: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * p).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// The first line of a file that has `start`, or of any; empty if there is none.
fn line_of(path: &str, start: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(start));
    line.unwrap_or_default().trim().to_owned()
}

/// What the machine is: the first line. Its status says whether there is a device at all.
fn environment() -> (Value, bool) {
    let cpu = line_of("/proc/cpuinfo", "model name");
    let system = line_of("/proc/version", "");
    // Behind its version stands who built it.
    let system: Vec<&str> = system.split_whitespace().take(3).collect();
    let mut line = serde_json::json!({
        "what": "environment",
        "cpu": cpu.rsplit(": ").next(),
        "system": system.join(" "),
        "driver": line_of("/proc/driver/nvidia/version", "NVRM"),
        "bundle": env!("CARGO_PKG_VERSION"),
    });
    let device = || -> Result<Value, CudaError> {
        let context = Context::new(0)?;
        let (major, minor) = context.capability()?;
        let (nvrtc_major, nvrtc_minor) = jit::version()?;
        let is_emulator = context.is_emulator()?;
        Ok(serde_json::json!({
            "gpu": !is_emulator,
            "emulator": is_emulator,
            "device": context.name()?,
            "capability": format!("{major}.{minor}"),
            "multiprocessors": context.multiprocessors()?,
            "memory_bytes": context.memory()?.1,
            "nvrtc": format!("{nvrtc_major}.{nvrtc_minor}"),
        }))
    };
    let (more, found) = match device() {
        Ok(more) => (more, true),
        Err(error) => {
            let why = error.to_string();
            (
                serde_json::json!({ "gpu": false, "emulator": false, "why": why }),
                false,
            )
        }
    };
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.extend(more);
    }
    (line, found)
}

fn run(is_dry: bool) -> Result<ExitCode, Failure> {
    let (machine, found) = environment();
    if !found {
        eprintln!("{}", machine["why"].as_str().unwrap_or_default());
        return Ok(ExitCode::from(2));
    }
    if machine["emulator"] == true && !is_dry {
        let name = machine["device"].as_str().unwrap_or_default();
        eprintln!("expected a GPU to measure, or --dry, got {name}");
        return Ok(ExitCode::from(2));
    }
    println!("{machine}");
    let report = Report { is_dry };
    // What is asked of a GPU first, what takes long last.
    products::sanity(report)?;
    products::linear(report)?;
    served::run(report)?;
    launches::run(report)?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_dry = match arguments.as_slice() {
        [] => false,
        ["--dry"] => true,
        ["--verdict", folder] => {
            return match verdict::run(folder.as_ref()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
            };
        }
        ["--environment"] => {
            let (machine, found) = environment();
            println!("{machine}");
            return ExitCode::from(if found { 0 } else { 2 });
        }
        other => {
            let got = other.join(" ");
            eprintln!("expected nothing, --dry, --environment or --verdict FOLDER, got {got}");
            return ExitCode::from(2);
        }
    };
    run(is_dry).unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
