//! `cargo xtask gpu-bundle`: one folder with all that a machine with an NVIDIA GPU needs to check
//! and measure the CUDA device, without Rust and without the source.
//!
//! `run.sh` in it runs the stages and leaves their results in a folder. `--check` makes a bundle of
//! unoptimised programs and runs it on the emulator; `--take` puts the profiles of such a folder into
//! one file among those of the project.

#[cfg(test)]
mod script;
mod take;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host;
use crate::models::run_step;
use crate::nvrtc;

pub use take::take;

/// What is copied as it is.
const FILES: [&str; 3] = ["run.sh", "peers.py", "README.md"];
/// What it is built from: targets of the workspace, which share what the tests have built.
const TARGETS: [&str; 5] = [
    "--bin=lazybatch",
    "--example=measure_device",
    "--example=measure_kernels",
    "--test=device",
    "--test=kernels",
];
/// The programs that `run.sh` calls.
const PROGRAMS: [&str; 5] = [
    "lazybatch",
    "measure_device",
    "measure_kernels",
    "test_device",
    "test_kernels",
];
/// The stages of `run.sh`.
const STAGES: [&str; 10] = [
    "kernels",
    "device",
    "measure",
    "measure_device",
    "profile",
    "compare",
    "compare_others",
    "compare_decoder",
    "compare_products",
    "peers",
];
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
    let made = build(root, is_check)?;
    let (mut names, mut newest) = (Vec::new(), [0, 0]);
    for artifact in &made {
        let Some(program) = &artifact.program else {
            continue;
        };
        let name = match artifact.kind.as_str() {
            "test" => format!("test_{}", artifact.name),
            "example" | "bin" => artifact.name.clone(),
            _ => continue,
        };
        if !PROGRAMS.contains(&name.as_str()) {
            continue;
        }
        let to = programs.join(&name);
        std::fs::copy(program, &to).with_context(|| to.display().to_string())?;
        run_step(Command::new("strip").arg(&to))?;
        newest = newest.max(newest_glibc(&std::fs::read(&to)?));
        // Packed they are less than half as large; `run.sh` unpacks them.
        run_step(Command::new("gzip").arg("-9").arg(&to))?;
        names.push(name);
    }
    let [major, minor] = newest;
    std::fs::write(folder.join("GLIBC"), format!("{major}.{minor}\n"))?;
    for file in FILES {
        let from = root.join("xtask/bundle").join(file);
        std::fs::copy(&from, folder.join(file)).with_context(|| from.display().to_string())?;
    }
    names.sort();
    ensure!(
        names == PROGRAMS,
        "expected the programs {PROGRAMS:?}, got {names:?}"
    );
    let bytes = size(&folder)?;
    println!(
        "{}: {:.1} MiB of {}, for glibc {major}.{minor} and newer, {}",
        folder.display(),
        bytes as f64 / f64::from(1 << 20),
        MAX_BYTES >> 20,
        names.join(", ")
    );
    if is_check {
        return check(root, &folder, &made);
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
    nvrtc::ensure(root)?;
    let results = folder.join("results");
    // The compiler is found as a package of Python's.
    let status = Command::new(folder.join("run.sh"))
        .arg("--dry")
        .arg(&results)
        .env("LD_LIBRARY_PATH", &links)
        .env("PYTHONPATH", nvrtc::python_path(root))
        .status()
        .context("cannot run run.sh")?;
    let read = |name: &str| {
        let file = results.join(name);
        std::fs::read_to_string(&file).with_context(|| file.display().to_string())
    };
    for stage in STAGES {
        let text = read(&format!("{stage}.json"))?;
        let result: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(
            result["exit_code"] == 0 && result["timed_out"] == false,
            "stage {stage} failed: {text}{}",
            read(&format!("{stage}.log")).unwrap_or_default()
        );
    }
    let said = read("GPU.txt")?;
    ensure!(said.starts_with("GPU: no."), "expected no GPU, got {said}");
    for (file, least) in [("kernels.jsonl", 20), ("device.jsonl", 15)] {
        let text = read(file)?;
        let num = lines_without_figures(&text).with_context(|| file.to_owned())?;
        ensure!(num >= least, "{file}: expected {least} lines, got {num}");
    }
    check_verdict(&results)?;
    let archive = results.join("results.tar.gz");
    let listed = Command::new("tar").arg("-tzf").arg(&archive).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in ["./verdict.json", "./device.jsonl", "./peers.json"] {
        let is_there = listed.lines().any(|line| line == name);
        ensure!(
            is_there,
            "expected {name} in {}, got {listed}",
            archive.display()
        );
    }
    // Whoever has no GPU and does not say so gets a sentence, and no measurements.
    let refused = Command::new(folder.join("run.sh"))
        .arg(folder.join("refused"))
        .env("LD_LIBRARY_PATH", &links)
        .env("PYTHONPATH", nvrtc::python_path(root))
        .output()
        .context("cannot run run.sh")?;
    // It leaves what it found, no results and no programs.
    let left = ["kernels.json", "programs"].map(|name| folder.join("refused").join(name));
    let is_refused = refused.status.code() == Some(2) && !left.iter().any(|p| p.exists());
    ensure!(
        is_refused,
        "expected status 2 and nothing left without --dry, got {refused:?}"
    );
    Ok(status.success())
}

/// A dry run's verdict: every figure that was asked for is there, and none was measured.
///
/// # Errors
/// One that was, or too few of them.
fn check_verdict(results: &Path) -> Result<()> {
    let file = results.join("verdict.json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let verdict: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let asked = verdict["asked"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(
        asked.len() >= 10 && verdict["gpu"] == false,
        "expected a verdict on ten figures and no GPU, got {text}"
    );
    for entry in asked {
        ensure!(
            entry["verdict"] == "not measured" && entry["got"].is_null(),
            "expected nothing measured, got {entry}"
        );
    }
    Ok(())
}

/// The newest version of the C library that a program asks for: the greatest of the names
/// `GLIBC_2.x` that it has; 0.0 without any.
fn newest_glibc(program: &[u8]) -> [u32; 2] {
    const NAME: &[u8] = b"GLIBC_";
    let starts = program.windows(NAME.len()).enumerate();
    let starts = starts.filter(|(_, bytes)| *bytes == NAME);
    let version = |(at, _): (usize, &[u8])| {
        let rest = &program[at + NAME.len()..];
        let is_part = |b: &u8| b.is_ascii_digit() || *b == b'.';
        let len = rest.iter().position(|b| !is_part(b)).unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..len]).ok()?;
        let mut parts = text.split('.').map(str::parse::<u32>);
        Some([parts.next()?.ok()?, parts.next()?.ok()?])
    };
    starts.filter_map(version).max().unwrap_or([0, 0])
}

/// Lines of a dry run; the first is about the machine, and no other has a figure.
///
/// # Errors
/// A line that is no JSON, or one with a figure.
fn lines_without_figures(text: &str) -> Result<usize> {
    let mut num = 0;
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let mut numbers = value.as_object().into_iter().flatten();
        let figure = numbers.find(|(_, v)| v.is_f64());
        ensure!(
            figure.is_none() && (num == 0 || value["dry"] == true),
            "expected a dry run's line, got {line}"
        );
        num += 1;
    }
    Ok(num)
}

/// Builds the programs and answers what cargo made.
fn build(root: &Path, is_check: bool) -> Result<Vec<Artifact>> {
    let mut command = host::cargo();
    command.args(["build", "--workspace", "--message-format=json"]);
    command.args(TARGETS);
    if !is_check {
        command.arg("--release");
    }
    let output = command
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "building the programs failed");
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
    fn figures_in_a_dry_run_are_found() {
        let machine = "{\"what\":\"environment\",\"emulator\":true,\"memory_bytes\":7}\n";
        let dry = "{\"what\":\"copy\",\"mib\":1,\"dry\":true}\n";
        let lines = lines_without_figures(&[machine, dry, dry].concat());
        assert_eq!(lines.unwrap(), 3);
        for wrong in [
            "{\"what\":\"copy\",\"dry\":true,\"us\":1.5}",
            "{\"what\":\"copy\"}",
            "copy",
        ] {
            assert!(lines_without_figures(&[machine, wrong].concat()).is_err());
        }
    }

    #[test]
    fn the_stages_of_the_script_end_within_nine_minutes() {
        let script = host::root().join("xtask/bundle/run.sh");
        let text = std::fs::read_to_string(script).unwrap();
        let calls = text.lines().filter_map(|line| line.strip_prefix("stage "));
        let calls: Vec<(&str, u64)> = calls
            .map(|call| {
                let (name, seconds) = call.split_once(' ').unwrap();
                (name, seconds.parse().unwrap())
            })
            .collect();
        let names: Vec<&str> = calls.iter().map(|call| call.0).collect();
        assert_eq!(names, STAGES);
        // Each may take 2 s more to end.
        let sum: u64 = calls.iter().map(|call| call.1 + 2).sum();
        assert!(sum < 9 * 60, "{sum} s");
        for name in STAGES {
            assert!(text.contains(&format!("stage_{name}() {{")), "{name}");
        }
    }

    #[test]
    fn the_newest_glibc_that_is_asked_for_is_found() {
        let program = b"\0GLIBC_2.2.5\0libm.so.6\0GLIBC_2.35\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2";
        assert_eq!(newest_glibc(program), [2, 35]);
        assert_eq!(newest_glibc(b"static"), [0, 0]);
    }

    #[test]
    fn a_verdict_on_an_emulator_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let entry = serde_json::json!({ "verdict": "not measured", "got": null });
        let write = |asked: Vec<Value>, gpu: bool| {
            let text = serde_json::json!({ "gpu": gpu, "asked": asked }).to_string();
            std::fs::write(folder.path().join("verdict.json"), text).unwrap();
            check_verdict(folder.path())
        };
        write(vec![entry.clone(); 10], false).unwrap();
        assert!(write(vec![entry.clone(); 10], true).is_err());
        assert!(write(vec![entry.clone(); 9], false).is_err());
        let met = serde_json::json!({ "verdict": "met", "got": 4.1 });
        let mut asked = vec![entry; 10];
        asked[3] = met;
        assert!(write(asked, false).is_err());
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
