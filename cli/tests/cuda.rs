//! `--device cuda`: without CUDA, and on the driver of the crate `emulator`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::path::Path;

use common::Place;
use lazybatch_cuda::probe;

/// Where `cargo xtask nvrtc` puts the compiler of kernels.
const NVRTC: &str = "../.nvrtc/nvidia/cuda_nvrtc/lib";

#[test]
fn without_cuda_the_library_that_was_looked_for_is_named() {
    if probe::driver().is_ok() {
        println!("not run: this machine has CUDA");
        return;
    }
    let place = Place::new();
    for command in ["compare", "profile --model cnn-tiny --out p.json"] {
        for device in ["cuda", "cuda:3"] {
            place.refuse(
                &format!("{command} --device {device}"),
                &["--device: the CUDA driver", "libcuda.so"],
            );
        }
    }
}

/// The search path of libraries: links to the emulator in `place`, and the compiler.
fn emulated(place: &Place) -> String {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("liblazybatch_emulator.so");
    assert!(library.is_file(), "expected {}", library.display());
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&library, place.path(name)).unwrap();
    }
    let nvrtc = Path::new(env!("CARGO_MANIFEST_DIR")).join(NVRTC);
    assert!(
        nvrtc.join("libnvrtc.so.12").is_file(),
        "expected NVRTC in {}, got none: run `cargo xtask nvrtc`",
        nvrtc.display()
    );
    format!("{}:{}", place.path("").display(), nvrtc.display())
}

#[test]
fn models_are_served_on_the_emulator() {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lstm = root.join("../kernels/tests/import/models/lstm.onnx");
    place.succeed(&format!("import {} --out m --max-len 6", lstm.display()));
    let path = emulated(&place);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let vars = [
        ("LD_LIBRARY_PATH", path.as_str()),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
    ];
    let done = place.run_with(
        "compare --model m --device cuda --policies serial,lazy --rate 20 --duration 0.4 \
         --max-batch 4 --json c.json",
        &vars,
    );
    assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
    // What the emulator finds it prints.
    assert!(!done.err.contains("CUDA emulator:"), "{}", done.err);
    let same = "answers bit-identical to those alone";
    assert_eq!(done.out.matches(same).count(), 2, "{}", done.out);
    let warning = "the device is an emulator";
    assert!(done.out.contains(warning), "{}", done.out);
    let device = place.json("c.json")["device"].to_string();
    assert!(device.contains("emulator"), "{device}");
}
