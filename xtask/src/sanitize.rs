//! `cargo xtask sanitize`: the unsafe code under tools that see what tests cannot.
//!
//! - `miri` interprets the tests of what is unsafe and portable: buffers, pool, the portable matrix
//!   product; and the readers of weights. It knows no AVX-512 and no mapped files.
//! - `address` runs the test suites of `graph` and `kernels`, whatever instructions they use, with
//!   every access checked (AddressSanitizer).
//! - `fuzz` feeds damaged ONNX models to the reader and the interpreter (libFuzzer), starting from
//!   the fetched node cases; findings stay below `kernels/fuzz/artifacts`.
//!
//! All need a nightly toolchain: `rustup toolchain install nightly --component miri,rust-src`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::host;

/// Seconds of fuzzing without `--seconds`.
pub const DEFAULT_SECONDS: u64 = 60;
/// The toolchain that has these tools.
const NIGHTLY: &str = "nightly";
/// Model files that fuzzing starts from.
const CASES: &str = ".models/onnx-testdata/node";
/// The fuzz target.
const TARGET: &str = "onnx_model";
/// Most bytes of an input; larger files teach the fuzzer little.
const MAX_LEN: u64 = 4096;

/// One tool.
struct Tool {
    /// How the command line names it.
    name: &'static str,
    /// Runs it; `false` when it finds anything.
    run: fn(&Path, u64) -> Result<bool>,
}

/// The tools, in order.
const TOOLS: &[Tool] = &[
    Tool {
        name: "miri",
        run: miri,
    },
    Tool {
        name: "address",
        run: address,
    },
    Tool {
        name: "fuzz",
        run: fuzz,
    },
];

/// What miri interprets: package, and the tests whose names contain one of these; those skipped map
/// files or take hours.
const MIRI: &[(&str, &[&str], &[&str])] = &[
    (
        "lazybatch-graph",
        &["tensor::", "shape::", "onnx::"],
        &["messages_are_counted", "nesting_is_bounded"],
    ),
    (
        "lazybatch-kernels",
        &["cpu::buffers", "cpu::pool", "cpu::gemm"],
        &["chains_go_on", "transposed_right"],
    ),
];

/// Runs the tools named, or all; `false` when one finds anything.
pub fn run(root: &Path, names: &[&str], seconds: u64) -> Result<bool> {
    for name in names {
        let known: Vec<&str> = TOOLS.iter().map(|t| t.name).collect();
        ensure!(
            known.contains(name),
            "expected one of {}, got `{name}`",
            known.join(", ")
        );
    }
    host::first_line(Command::new("cargo").args([&format!("+{NIGHTLY}"), "--version"])).context(
        "expected a nightly toolchain: `rustup toolchain install nightly --component miri,rust-src`",
    )?;
    let mut all_passed = true;
    let mut lines = Vec::new();
    for tool in TOOLS {
        if !names.is_empty() && !names.contains(&tool.name) {
            continue;
        }
        println!("\n== {}", tool.name);
        let start = host::now();
        let passed = (tool.run)(root, seconds)?;
        all_passed &= passed;
        lines.push(line(tool.name, passed, start.elapsed()));
    }
    println!("\n{}", lines.join("\n"));
    Ok(all_passed)
}

fn line(name: &str, passed: bool, took: Duration) -> String {
    let word = if passed { "ok" } else { "FAILED" };
    format!("{name:<10} {:>9.1} s  {word}", took.as_secs_f64())
}

/// Cargo of the nightly toolchain, with build outputs of its own.
fn nightly(root: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg(format!("+{NIGHTLY}")).current_dir(root);
    // This command's own toolchain must not reach it.
    for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
        cargo.env_remove(variable);
    }
    cargo
}

fn miri(root: &Path, _: u64) -> Result<bool> {
    let mut all_passed = true;
    for (package, tests, skipped) in MIRI {
        let mut cargo = nightly(root);
        cargo.args(["miri", "test", "--package", package, "--lib", "--"]);
        cargo.args(*tests);
        for test in *skipped {
            cargo.args(["--skip", test]);
        }
        // Files that tests read and write, and threads that wait for time.
        cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        all_passed &= status(&mut cargo)?;
    }
    Ok(all_passed)
}

fn address(root: &Path, _: u64) -> Result<bool> {
    let host = host_triple()?;
    let mut cargo = nightly(root);
    cargo.args(["test", "--no-fail-fast", "--target", &host]);
    cargo.args(["--package", "lazybatch-graph"]);
    cargo.args(["--package", "lazybatch-kernels", "--lib", "--tests"]);
    cargo.env("RUSTFLAGS", "-Zsanitizer=address");
    cargo.env("ASAN_OPTIONS", "detect_leaks=1");
    status(&mut cargo)
}

fn fuzz(root: &Path, seconds: u64) -> Result<bool> {
    let package = root.join("kernels/fuzz");
    if host::first_line(nightly(root).args(["fuzz", "--version"])).is_err() {
        bail!("expected cargo-fuzz: `cargo install cargo-fuzz`");
    }
    let corpus = package.join("corpus").join(TARGET);
    let num = seed(&root.join(CASES), &corpus)?;
    println!("{num} models to start from");
    let mut cargo = nightly(&package);
    cargo.args(["fuzz", "run", TARGET, "--"]);
    cargo.arg(format!("-max_total_time={seconds}"));
    cargo.arg(format!("-max_len={MAX_LEN}"));
    cargo.args(["-rss_limit_mb=4096", "-timeout=20", "-print_final_stats=1"]);
    status(&mut cargo)
}

/// Copies the model files below `cases` that are short enough into `corpus`; how many.
fn seed(cases: &Path, corpus: &Path) -> Result<usize> {
    std::fs::create_dir_all(corpus).with_context(|| corpus.display().to_string())?;
    let entries = std::fs::read_dir(cases)
        .with_context(|| format!("{}: `cargo xtask models` fetches it", cases.display()))?;
    let mut num = 0;
    for entry in entries {
        let folder: PathBuf = entry.with_context(|| cases.display().to_string())?.path();
        let model = folder.join("model.onnx");
        let Ok(about) = model.metadata() else {
            continue;
        };
        if about.len() <= MAX_LEN {
            let name = folder.file_name().unwrap_or_default();
            std::fs::copy(&model, corpus.join(name))
                .with_context(|| model.display().to_string())?;
            num += 1;
        }
    }
    Ok(num)
}

/// The platform that the compiler runs on.
fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple
        .context("rustc -vV: expected a line `host:`")?
        .to_owned())
}

fn status(command: &mut Command) -> Result<bool> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status();
    Ok(status
        .with_context(|| format!("cannot run {name}"))?
        .success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tools_are_refused() {
        let message = run(Path::new("."), &["valgrind"], 1)
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "expected one of miri, address, fuzz, got `valgrind`"
        );
    }

    #[test]
    fn short_models_are_the_corpus() {
        let folder = tempfile::tempdir().unwrap();
        let (cases, corpus) = (folder.path().join("cases"), folder.path().join("corpus"));
        for (name, len) in [("test_add", 10), ("test_big", MAX_LEN as usize + 1)] {
            std::fs::create_dir_all(cases.join(name)).unwrap();
            std::fs::write(cases.join(name).join("model.onnx"), vec![0; len]).unwrap();
        }
        std::fs::create_dir_all(cases.join("test_empty")).unwrap();
        assert_eq!(seed(&cases, &corpus).unwrap(), 1);
        assert!(corpus.join("test_add").is_file());
        assert!(seed(&folder.path().join("none"), &corpus).is_err());
    }

    #[test]
    fn a_line_says_what_came_of_a_tool() {
        let took = Duration::from_millis(1500);
        assert_eq!(line("miri", false, took), "miri             1.5 s  FAILED");
    }
}
