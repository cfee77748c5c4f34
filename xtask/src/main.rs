//! Developer commands: `cargo xtask COMMAND`.
//!
//! What continuous integration runs is `cargo xtask test`, so a person runs the same thing.

mod bundle;
mod dashboard;
mod host;
mod models;
mod nvrtc;
mod onnx_cases;
mod peers;
mod protocol;
mod readme;
mod sanitize;
mod soak;
mod steps;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  test [STEP...]    format, lints, tests, documentation, tidy and the README's main command;
                    or only the steps named
  tidy              the project's own style rules
  models            fetch the pretrained models and ONNX cases that some tests and examples use
  nvrtc             fetch the CUDA kernel compiler that the emulator's tests use
  cuda-check        compile the CUDA device's kernels for GPUs of several generations
  gpu-bundle [--check | --take FOLDER [NAME]]
                    put what a machine with a GPU needs to check and measure the CUDA device into
                    target/gpu-bundle; --check runs an unoptimised one on the emulator instead;
                    --take puts the profiles among such a machine's results into
                    workloads/profiles/NAME.json (if absent, the card's)
  peers-env         make a Python in .peers for `lazybatch-measure peers`
  soak [--seeds N | FIRST..END] [--test NAME[::MODULE]]
                    long property runs, or a part of one; appends a line under benches/results
  sanitize [miri] [address] [fuzz] [--seconds N]
                    the unsafe code and the ONNX reader under miri, AddressSanitizer and a fuzzer
                    (all if none is named); needs a nightly toolchain
";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command line; `false` when what it checked does not hold.
fn run() -> Result<bool> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = host::root();
    match args.as_slice() {
        ["test", steps @ ..] => steps::run(&root, steps),
        ["tidy"] => tidy::run(&root),
        ["models"] => models::run(&root)
            .and_then(|()| onnx_cases::run(&root))
            .map(|()| true),
        ["nvrtc"] => nvrtc::ensure(&root).map(|()| true),
        ["cuda-check"] => nvrtc::check(&root),
        ["gpu-bundle"] => bundle::run(&root, false),
        ["gpu-bundle", "--check"] => bundle::run(&root, true),
        ["gpu-bundle", "--take", folder] => bundle::take(&root, folder.as_ref(), None),
        ["gpu-bundle", "--take", folder, name] => bundle::take(&root, folder.as_ref(), Some(name)),
        ["peers-env"] => peers::run(&root).map(|()| true),
        ["soak", options @ ..] => {
            let (mut seeds, mut only) = (0..soak::DEFAULT_CASES, None);
            for option in options.chunks(2) {
                match option {
                    ["--seeds", text] => seeds = soak::seeds(text)?,
                    ["--test", name] => only = Some(*name),
                    _ => bail!("unknown option `{}`\n{USAGE}", option.join(" ")),
                }
            }
            soak::run(&root, seeds, only)
        }
        ["sanitize", tools @ .., "--seconds", text] => {
            let parsed = text.parse();
            let seconds =
                parsed.with_context(|| format!("--seconds: expected a number, got `{text}`"))?;
            sanitize::run(&root, tools, seconds)
        }
        ["sanitize", tools @ ..] => sanitize::run(&root, tools, sanitize::DEFAULT_SECONDS),
        [] | ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(true)
        }
        other => bail!("unknown command line `{}`\n{USAGE}", other.join(" ")),
    }
}
