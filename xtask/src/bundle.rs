//! `cargo xtask gpu-bundle`: one folder with all that a machine with an NVIDIA GPU needs to check
//! and measure the CUDA device, without Rust and without the source.
//!
//! `run.sh` in it runs the stages and leaves their results in a folder. `--check` makes a bundle of
//! unoptimised programs, without the command line program, and runs it on the emulator.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host;
use crate::models::run_step;
use crate::nvrtc;

/// What is copied as it is.
const FILES: [&str; 2] = ["run.sh", "README.md"];
/// Most bytes of a bundle.
const MAX_BYTES: u64 = 40 << 20;
/// Names under which programs look for the libraries that the emulator stands for.
const EMULATED: [&str; 4] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcublas.so",
    "libcublasLt.so",
];

/// A file that cargo made.
#[derive(Debug, PartialEq, Eq)]
struct Artifact {
    /// Name of the target.
    name: String,
    /// `test`, `example`, `bin`, `lib` and so on.
    kind: String,
    /// The program, if it is one.
    program: Option<PathBuf>,
    /// All files.
    files: Vec<PathBuf>,
}

/// Makes the bundle in `target/gpu-bundle`; with `is_check` runs it on the emulator and answers
/// whether all stages passed.
///
/// # Errors
/// What does not build or cannot be written, or a bundle that is too large.
pub fn run(root: &Path, is_check: bool) -> Result<bool> {
    let folder = root.join("target/gpu-bundle");
    let programs = folder.join("bin");
    std::fs::remove_dir_all(&folder).or_else(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    })?;
    std::fs::create_dir_all(&programs)?;
    let tests = build(
        root,
        is_check,
        &["test", "--no-run", "-p", "lazybatch-cuda", "--tests"],
    )?;
    let example = [
        "build",
        "-p",
        "lazybatch-cuda",
        "--example",
        "measure_kernels",
    ];
    let mut made = build(root, is_check, &example)?;
    if !is_check {
        made.extend(build(
            root,
            is_check,
            &["build", "-p", "lazybatch", "--bins"],
        )?);
    }
    let mut names = Vec::new();
    for artifact in tests.iter().chain(&made) {
        let Some(program) = &artifact.program else {
            continue;
        };
        let name = match artifact.kind.as_str() {
            "test" => format!("test_{}", artifact.name),
            "example" | "bin" => artifact.name.clone(),
            _ => continue,
        };
        let to = programs.join(&name);
        std::fs::copy(program, &to).with_context(|| to.display().to_string())?;
        run_step(Command::new("strip").arg(&to))?;
        names.push(name);
    }
    for file in FILES {
        let from = root.join("xtask/bundle").join(file);
        std::fs::copy(&from, folder.join(file)).with_context(|| from.display().to_string())?;
    }
    for needed in ["test_kernels", "measure_kernels"] {
        ensure!(
            names.iter().any(|name| name == needed),
            "expected a program {needed}, got {names:?}"
        );
    }
    let bytes = size(&folder)?;
    println!(
        "{}: {} MiB, {}",
        folder.display(),
        bytes >> 20,
        names.join(", ")
    );
    if is_check {
        return check(root, &folder, &tests);
    }
    ensure!(
        bytes <= MAX_BYTES,
        "expected a bundle of at most {MAX_BYTES} bytes, got {bytes}"
    );
    Ok(true)
}

/// Runs the bundle on the emulator.
fn check(root: &Path, folder: &Path, made: &[Artifact]) -> Result<bool> {
    let is_library = |file: &&PathBuf| file.extension().is_some_and(|e| e == "so");
    let emulator = made
        .iter()
        .filter(|artifact| artifact.name == "lazybatch_emulator")
        .find_map(|artifact| artifact.files.iter().find(is_library))
        .context("expected the emulator's library, got none")?;
    let links = folder.join("emulator");
    std::fs::create_dir_all(&links)?;
    for name in EMULATED {
        std::os::unix::fs::symlink(emulator, links.join(name))?;
    }
    let path = format!("{}:{}", links.display(), nvrtc::libraries(root)?.display());
    let results = folder.join("results");
    let status = Command::new(folder.join("run.sh"))
        .arg("--dry")
        .arg(&results)
        .env("LD_LIBRARY_PATH", path)
        .status()
        .context("cannot run run.sh")?;
    for stage in ["kernels", "measure"] {
        let file = results.join(format!("{stage}.json"));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let result: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(
            result["exit_code"] == 0,
            "stage {stage} failed: {text}{}",
            std::fs::read_to_string(results.join(format!("{stage}.log"))).unwrap_or_default()
        );
    }
    Ok(status.success())
}

/// Runs cargo and answers what it made.
fn build(root: &Path, is_check: bool, args: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = host::cargo();
    command.args(args).arg("--message-format=json");
    if !is_check {
        command.arg("--release");
    }
    let output = command
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo {} failed", args.join(" "));
    Ok(artifacts(&String::from_utf8_lossy(&output.stdout)))
}

/// What cargo says it made.
fn artifacts(messages: &str) -> Vec<Artifact> {
    let mut made = Vec::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let files = message["filenames"].as_array().into_iter().flatten();
        made.push(Artifact {
            name: text(&message["target"]["name"]),
            kind: text(&message["target"]["kind"][0]),
            program: message["executable"].as_str().map(PathBuf::from),
            files: files.filter_map(Value::as_str).map(PathBuf::from).collect(),
        });
    }
    made
}

/// Bytes of all files in a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() {
            size(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_made_is_read_from_its_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"kind\":[\"test\"],\"name\":\"kernels\"},",
            "\"filenames\":[\"/t/kernels\"],\"executable\":\"/t/kernels\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"kind\":[\"rlib\",\"cdylib\"],\"name\":\"e\"},",
            "\"filenames\":[\"/t/e.rlib\",\"/t/e.so\"],\"executable\":null}\n",
            "noise\n",
        );
        let made = artifacts(messages);
        assert_eq!(made.len(), 2);
        assert_eq!(made[0].name, "kernels");
        assert_eq!(made[0].program, Some(PathBuf::from("/t/kernels")));
        assert_eq!(made[1].kind, "rlib");
        assert_eq!(made[1].files[1], PathBuf::from("/t/e.so"));
    }

    #[test]
    fn sizes_are_those_of_all_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deeper")).unwrap();
        std::fs::write(folder.path().join("a"), "123").unwrap();
        std::fs::write(folder.path().join("deeper/b"), "4567").unwrap();
        assert_eq!(size(folder.path()).unwrap(), 7);
    }
}
