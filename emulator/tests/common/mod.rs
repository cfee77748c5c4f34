//! Runs a test's body in a process of its own, with the emulator in the place of the CUDA driver
//! and the real NVRTC beside it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests, of which each test program uses some"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule};

/// Set in the process that runs a body: its name.
const INSIDE: &str = "LAZYBATCH_EMULATED";
/// Printed at the end of a body.
const RAN: &str = "(the body has run)";
/// Names under which programs look for the libraries.
const NAMES: [&str; 6] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcublas.so",
    "libcublas.so.12",
    "libcublasLt.so",
    "libcublasLt.so.12",
];
/// Where `cargo xtask nvrtc` puts the compiler.
const NVRTC: &str = "../.nvrtc/nvidia/cuda_nvrtc/lib";

/// What a process printed, and whether it passed.
pub struct Outcome {
    pub passed: bool,
    pub stdout: String,
    pub stderr: String,
}

/// The emulator as cargo built it for this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let built = exe.parent().unwrap().join("liblazybatch_emulator.so");
    assert!(
        built.is_file(),
        "expected the emulator at {}, got nothing",
        built.display()
    );
    built
}

/// A folder of links to the emulator, and the search path with it.
fn search_path(folder: &Path) -> String {
    for name in NAMES {
        std::os::unix::fs::symlink(library(), folder.join(name)).unwrap();
    }
    let nvrtc = Path::new(env!("CARGO_MANIFEST_DIR")).join(NVRTC);
    assert!(
        nvrtc.join("libnvrtc.so.12").is_file(),
        "expected NVRTC in {}, got none: run `cargo xtask nvrtc`",
        nvrtc.display()
    );
    format!("{}:{}", folder.display(), nvrtc.display())
}

/// Runs `body` in a process of its own and answers how it went; inside that process it does not
/// return to the test.
pub fn outcome(name: &str, seed: u64, body: impl FnOnce()) -> Outcome {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        body();
        println!("{RAN}");
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", search_path(folder.path()))
        .env("LAZYBATCH_EMULATOR_SEED", seed.to_string())
        .env(INSIDE, name)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let has_run = stdout.contains(RAN) || !output.status.success();
    assert!(
        has_run,
        "the process of `{name}` did not run its body: is it the test's name?"
    );
    Outcome {
        passed: output.status.success(),
        stdout,
        stderr,
    }
}

/// The body passes under three seeds, and no check finds anything.
pub fn runs_clean(name: &str, body: impl Fn()) {
    for seed in 1..=3 {
        let Outcome { passed, stderr, .. } = outcome(name, seed, &body);
        assert!(
            passed && !stderr.contains("CUDA emulator"),
            "seed {seed}:\n{stderr}"
        );
    }
}

/// Under three seeds a check finds what `expected` says, and the body sees an error.
pub fn is_reported(name: &str, expected: &[&str], body: impl Fn()) {
    for seed in 1..=3 {
        let Outcome { passed, stderr, .. } = outcome(name, seed, &body);
        assert!(
            passed,
            "seed {seed}: the body did not see the error:\n{stderr}"
        );
        for words in expected {
            assert!(
                stderr.contains(words),
                "seed {seed}: expected `{words}` in the report, got:\n{stderr}"
            );
        }
        // What happens inside a kernel has a place; a library call has its name alone.
        let is_inside = |words: &&str| words.starts_with("kernel ") && !words.contains("cublas");
        if expected.iter().any(is_inside) {
            for words in [", block (", "), thread (", "\n  PTX line "] {
                assert!(
                    stderr.contains(words),
                    "seed {seed}: no `{words}`:\n{stderr}"
                );
            }
        }
    }
}

/// A device, and the kernels of a source text.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub module: Arc<CudaModule>,
}

impl Gpu {
    /// Compiles with the real NVRTC.
    pub fn new(source: &str) -> Self {
        let context = CudaContext::new(0).unwrap();
        let options = cudarc::nvrtc::CompileOptions {
            arch: Some("compute_80"),
            ..Default::default()
        };
        let ptx = match cudarc::nvrtc::compile_ptx_with_opts(source, options) {
            Ok(ptx) => ptx,
            Err(cudarc::nvrtc::CompileError::CompileError { log, .. }) => {
                panic!("{}", log.to_string_lossy())
            }
            Err(e) => panic!("{e:?}"),
        };
        let module = context.load_module(ptx).unwrap();
        Self { context, module }
    }

    pub fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }
}

/// Numbers that repeat with the seed, in [-1, 1).
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(next).collect()
}

/// The largest difference, as a share of the larger of 1 and what is expected.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let each = got.iter().zip(want).map(|(g, w)| {
        assert!(g.is_finite(), "got {g}, expected {w}");
        (g - w).abs() / w.abs().max(1.0)
    });
    each.fold(0.0, f32::max)
}
