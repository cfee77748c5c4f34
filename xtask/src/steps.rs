//! The steps of `cargo xtask test`: one list, run in order, each timed.
//!
//! A failing step does not stop the ones after it, so that one run tells everything that is wrong.
//! Output goes straight through: continuous integration reads the test runner's own summary.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{host, readme, tidy};

/// One step.
struct Step {
    /// How the command line names it.
    name: &'static str,
    /// What it checks.
    about: &'static str,
    /// Runs it; `false` when the check fails.
    run: fn(&Path) -> Result<bool>,
}

/// The steps, in order.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "formatting",
        run: |root| cargo(root, &["fmt", "--all", "--check"]),
    },
    Step {
        name: "clippy",
        about: "lints, warnings denied",
        run: |root| {
            cargo(
                root,
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ],
            )
        },
    },
    Step {
        name: "models",
        about: "pretrained models and ONNX cases that tests compare with",
        run: |root| {
            crate::models::ensure(root)?;
            crate::onnx_cases::ensure(root).map(|()| true)
        },
    },
    Step {
        name: "nvrtc",
        about: "the CUDA kernel compiler that the emulator's tests use",
        run: |root| crate::nvrtc::ensure(root).map(|()| true),
    },
    Step {
        name: "tests",
        about: "unit, property and integration tests",
        run: tests,
    },
    Step {
        name: "cuda-check",
        about: "the CUDA device's kernels, compiled for GPUs of several generations",
        run: crate::nvrtc::check,
    },
    Step {
        name: "protocol",
        about: "the serving protocol, by the clients that its users have",
        run: crate::protocol::run,
    },
    Step {
        name: "dashboard",
        about: "the page of the serving front end, in a browser",
        run: crate::dashboard::run,
    },
    Step {
        name: "doctests",
        about: "examples in the documentation",
        run: |root| cargo(root, &["test", "--workspace", "--doc"]),
    },
    Step {
        name: "doc",
        about: "documentation, warnings denied",
        run: |root| {
            let mut command = host::cargo();
            command.env("RUSTDOCFLAGS", "-D warnings");
            status(
                command
                    .args(["doc", "--workspace", "--no-deps"])
                    .current_dir(root),
            )
        },
    },
    Step {
        name: "tidy",
        about: "the project's own style rules",
        run: tidy::run,
    },
    Step {
        name: "smoke",
        about: "the README's main command",
        run: smoke,
    },
];

/// When the first step began.
static BEGAN: OnceLock<Instant> = OnceLock::new();

/// Steps are to be over within 40 minutes. An optimised build takes up to more than half of what the steps
/// before it take, so behind this much it is left out.
const NO_MORE_BUILDS: Duration = Duration::from_secs(1200);

/// Runs all steps, or those named; `false` when one fails.
pub fn run(root: &Path, names: &[&str]) -> Result<bool> {
    let steps = select(names)?;
    BEGAN.get_or_init(host::now);
    let mut results = Vec::new();
    for step in steps {
        println!("\n== {}: {}", step.name, step.about);
        let start = host::now();
        let passed = (step.run)(root).unwrap_or_else(|e| {
            eprintln!("error: {e:#}");
            false
        });
        results.push((step.name, passed, start.elapsed()));
    }
    print!("\n{}", table(&results));
    Ok(results.iter().all(|(_, passed, _)| *passed))
}

fn select(names: &[&str]) -> Result<Vec<&'static Step>> {
    let known = || {
        STEPS
            .iter()
            .map(|step| step.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(unknown) = names
        .iter()
        .find(|name| STEPS.iter().all(|s| s.name != **name))
    {
        bail!("unknown step: expected one of {}, got `{unknown}`", known());
    }
    let wanted = |step: &&Step| names.is_empty() || names.contains(&step.name);
    Ok(STEPS.iter().filter(wanted).collect())
}

/// What each step took, and whether it passed.
fn table(results: &[(&str, bool, Duration)]) -> String {
    let total: Duration = results.iter().map(|(_, _, took)| *took).sum();
    let num_failed = results.iter().filter(|(_, passed, _)| !passed).count();
    let mut text = format!("{:<10} {:>9}  result\n", "suite", "seconds");
    for (name, passed, took) in results {
        let word = if *passed { "ok" } else { "FAILED" };
        text += &format!("{name:<10} {:>9.1}  {word}\n", took.as_secs_f64());
    }
    let word = if num_failed == 0 {
        "ok".to_owned()
    } else {
        format!("{num_failed} FAILED")
    };
    text + &format!("{:<10} {:>9.1}  {word}\n", "total", total.as_secs_f64())
}

/// nextest where it is installed, else cargo's own runner.
fn tests(root: &Path) -> Result<bool> {
    let has_nextest = host::first_line(host::cargo().args(["nextest", "--version"])).is_ok();
    let runner: &[&str] = if has_nextest {
        &["nextest", "run", "--workspace", "--no-fail-fast"]
    } else {
        &[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--no-fail-fast",
        ]
    };
    // The step before has fetched the models, so their absence is a failure here.
    let mut command = host::cargo();
    status(
        command
            .args(runner)
            .env("LAZYBATCH_REQUIRE_MODELS", "1")
            .current_dir(root),
    )
}

/// Runs the README's main command as a reader would type it; on a machine that has taken long so far,
/// with the program that the tests have built.
fn smoke(root: &Path) -> Result<bool> {
    let path = root.join("README.md");
    let text = std::fs::read_to_string(&path).context("README.md")?;
    let command = readme::main_command(&text)
        .context("README.md: expected a fenced block with a `cargo run` command, got none")?;
    println!("{command}");
    if BEGAN.get_or_init(host::now).elapsed() > NO_MORE_BUILDS {
        let args = arguments(&command)?;
        println!("it is late: {args:?} by what the tests have built, not optimised");
        let program = host::built(root, "lazybatch")?;
        return status(Command::new(program).args(args).current_dir(root));
    }
    status(Command::new("sh").args(["-c", &command]).current_dir(root))
}

/// What a `cargo run` command gives its program.
fn arguments(command: &str) -> Result<Vec<&str>> {
    if command.contains(['"', '\'', '\\', '$', '|', ';', '&', '>']) {
        bail!("expected a command of plain words, got `{command}`");
    }
    let (_, given) = command
        .split_once(" -- ")
        .context("expected `--` in front of the program's arguments, got none")?;
    Ok(given.split_whitespace().collect())
}

fn cargo(root: &Path, args: &[&str]) -> Result<bool> {
    status(host::cargo().args(args).current_dir(root))
}

fn status(command: &mut Command) -> Result<bool> {
    let name = command.get_program().to_string_lossy().into_owned();
    Ok(command
        .status()
        .with_context(|| format!("cannot run {name}"))?
        .success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_in_the_order_of_the_list() {
        let names = |chosen: &[&str]| -> Vec<&str> {
            select(chosen)
                .unwrap()
                .into_iter()
                .map(|step| step.name)
                .collect()
        };
        assert_eq!(names(&[]).len(), STEPS.len());
        assert_eq!(names(&["tidy", "fmt"]), ["fmt", "tidy"]);
        let message = select(&["lint"]).err().unwrap().to_string();
        assert!(
            message.contains("clippy") && message.ends_with("got `lint`"),
            "{message}"
        );
    }

    #[test]
    fn the_smoke_run_comes_last() {
        assert_eq!(STEPS.last().unwrap().name, "smoke");
    }

    #[test]
    fn arguments_are_what_stands_behind_the_dashes() {
        let args = arguments("cargo run --release -- compare --seed 3\n").unwrap();
        assert_eq!(args, ["compare", "--seed", "3"]);
        for wrong in ["cargo run compare", "cargo run -- compare 'a b'"] {
            let message = arguments(wrong).unwrap_err().to_string();
            assert!(message.starts_with("expected "), "{message}");
        }
    }

    #[test]
    fn the_table_shows_what_failed() {
        let second = Duration::from_secs(1);
        let text = table(&[("fmt", true, second), ("clippy", false, 12 * second)]);
        assert_eq!(
            text,
            "suite        seconds  result\nfmt              1.0  ok\nclippy          12.0  FAILED\n\
             total           13.0  1 FAILED\n"
        );
        assert!(table(&[("fmt", true, second)]).ends_with("total            1.0  ok\n"));
    }

    #[test]
    fn a_failing_command_fails_its_step() {
        assert!(status(Command::new("sh").args(["-c", "exit 0"])).unwrap());
        assert!(!status(Command::new("sh").args(["-c", "exit 1"])).unwrap());
        assert!(status(&mut Command::new("no-such-program")).is_err());
    }
}
