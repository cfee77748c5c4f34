//! Runs a test's body in a process of its own, with the emulator in the place of the CUDA
//! libraries and the real NVRTC beside it. Both test programs of this crate use it.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process that runs a body: its name.
const INSIDE: &str = "LAZYBATCH_EMULATED";
/// Printed at the end of a body.
const RAN: &str = "(the body has run)";
/// Names under which the libraries are looked for.
const NAMES: [&str; 5] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcublas.so",
    "libcublasLt.so",
    "libcublasLt.so.12",
];
/// Where `cargo xtask nvrtc` puts the compiler.
const NVRTC: &str = "../../.nvrtc/nvidia/cuda_nvrtc/lib";

/// What a process printed, and whether it passed.
#[derive(Debug)]
pub struct Outcome {
    pub passed: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Which libraries the process finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libraries {
    /// All.
    All,
    /// No driver.
    NoDriver,
    /// The driver alone.
    NoCompiler,
}

/// A folder of links to the emulator, and the search path with it.
fn search_path(folder: &Path, libraries: Libraries) -> String {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("liblazybatch_emulator.so");
    assert!(
        library.is_file(),
        "expected the emulator at {}, got nothing",
        library.display()
    );
    if libraries != Libraries::NoDriver {
        for name in NAMES {
            std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
        }
    }
    let nvrtc = Path::new(env!("CARGO_MANIFEST_DIR")).join(NVRTC);
    assert!(
        nvrtc.join("libnvrtc.so.12").is_file(),
        "expected NVRTC in {}, got none: run `cargo xtask nvrtc`",
        nvrtc.display()
    );
    if libraries == Libraries::NoCompiler {
        return folder.display().to_string();
    }
    format!("{}:{}", folder.display(), nvrtc.display())
}

/// Runs `body` in a process of its own and answers how it went; inside that process it does not
/// return to the test. `name` is the test's, without the crate's.
pub fn outcome(
    name: &str,
    seed: u64,
    libraries: Libraries,
    vars: &[(&str, &str)],
    body: impl FnOnce(),
) -> Outcome {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        body();
        println!("{RAN}");
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", search_path(folder.path(), libraries))
        .env("LAZYBATCH_EMULATOR_SEED", seed.to_string())
        .env(INSIDE, name)
        .envs(vars.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let has_run = stdout.contains(RAN) || !output.status.success();
    assert!(has_run, "`{name}` did not run its body: is it its name?");
    Outcome {
        passed: output.status.success(),
        stdout,
        stderr,
    }
}

/// Most seeds of a soak.
const MOST_SEEDS: u64 = 16;

/// Cases that a soak asks for.
pub fn soak_cases() -> Option<u64> {
    let asked = std::env::var("LAZYBATCH_SOAK_CASES").ok();
    asked.and_then(|num| num.parse::<u64>().ok())
}

/// Seeds of the emulator's orders under which tests run, from `first` on: `usual` many, or as many as a
/// soak asks for, 16 at most.
pub fn seeds(first: u64, usual: u64) -> Range<u64> {
    first..first + soak_cases().map_or(usual, |num| num.clamp(1, MOST_SEEDS))
}

/// The body passes under the first of the seeds, or as many as a soak asks for, and no check of the
/// emulator finds anything.
pub fn runs_clean(name: &str, body: impl Fn()) {
    runs_clean_under(name, seeds(0, 1), body);
}

/// As [`runs_clean`], under these seeds.
pub fn runs_clean_under(name: &str, seeds: Range<u64>, body: impl Fn()) {
    for seed in seeds {
        let ran = outcome(name, seed, Libraries::All, &[], &body);
        let is_clean = ran.passed && !ran.stderr.contains("CUDA emulator");
        assert!(is_clean, "seed {seed}:\n{}{}", ran.stdout, ran.stderr);
    }
}

/// Where compiled kernels are kept from test to test; on a machine that did not build the tests,
/// where the device keeps them.
pub fn kernel_folder() -> PathBuf {
    let built_here = Path::new(env!("CARGO_TARGET_TMPDIR"));
    match lazybatch_cuda::jit::default_folder() {
        Some(folder) if !built_here.is_dir() => folder,
        _ => built_here.join("kernels"),
    }
}
