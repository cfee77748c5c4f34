//! `--device cuda`: without CUDA, and on the driver of the crate `emulator`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use crate::common::serving::Serving;
use crate::common::{Done, Place};
use lazybatch_cuda::probe;
use serde_json::Value;

/// Where `cargo xtask nvrtc` puts the compiler of kernels.
const NVRTC: &str = "../.nvrtc/nvidia/cuda_nvrtc/lib";

#[test]
fn without_cuda_the_library_that_was_looked_for_is_named() {
    if probe::driver().is_ok() {
        println!("not run: this machine has CUDA");
        return;
    }
    let place = Place::new();
    for command in [
        "compare",
        "compare --dry",
        "profile --model cnn-tiny --out p.json",
        "serve --models m",
    ] {
        for device in ["cuda", "cuda:3"] {
            place.refuse(
                &format!("{command} --device {device}"),
                &["--device: the CUDA driver", "libcuda.so"],
            );
        }
    }
}

#[test]
fn every_node_of_the_zoo_has_kernels() {
    for entry in lazybatch_workloads::zoo::ENTRIES {
        let program = entry.program().unwrap();
        for node in &program.nodes {
            let found = lazybatch_cuda::kernels::families_of(&program, node);
            let found = found.unwrap_or_else(|why| panic!("{}, {}: {why}", entry.name, node.name));
            assert!(!found.is_empty(), "{}, {}", entry.name, node.name);
        }
    }
}

/// The search path of libraries: links to the emulator in `place`, and the compiler.
fn emulated(place: &Place) -> String {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("liblazybatch_emulator.so");
    assert!(library.is_file(), "expected {}", library.display());
    for name in ["libcuda.so", "libcuda.so.1", "libcublasLt.so"] {
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

/// A folder with the model `m`, and variables by which commands find the emulator.
fn place_with_model() -> (Place, Vec<(&'static str, String)>) {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lstm = root.join("../kernels/tests/import/models/lstm.onnx");
    place.succeed(&format!("import {} --out m --max-len 6", lstm.display()));
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let vars = vec![
        ("LD_LIBRARY_PATH", emulated(&place)),
        ("XDG_CACHE_HOME", cache.to_str().unwrap().to_owned()),
    ];
    (place, vars)
}

fn run(place: &Place, vars: &[(&'static str, String)], arguments: &str) -> Done {
    let vars: Vec<(&str, &str)> = vars.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let done = place.run_with(arguments, &vars);
    // What the emulator finds it prints.
    let findings = done.err.lines().filter(|l| l.starts_with("CUDA emulator:"));
    assert_eq!(findings.count(), 0, "{}", done.err);
    done
}

/// Whether any number of a file could be taken for a measurement.
fn has_figures(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_u64(),
        Value::Array(items) => items.iter().any(has_figures),
        Value::Object(entries) => entries
            .iter()
            .any(|(key, v)| key.ends_with("_ms") || key.ends_with("_us") || has_figures(v)),
        _ => false,
    }
}

#[test]
fn nothing_is_measured_on_the_emulator() {
    let (place, vars) = place_with_model();
    for command in ["compare --model m", "profile --model m --out p.json"] {
        let done = run(&place, &vars, &format!("{command} --device cuda"));
        assert_eq!(done.status, Some(2), "{}{}", done.out, done.err);
        let words = "expected a GPU to measure, or --dry, got CUDA emulator (CPU)";
        assert!(done.err.contains(words), "{}", done.err);
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
        assert_eq!(done.out, "");
    }
    assert!(!place.path("p.json").exists());
    for option in ["--report r.html", "--requests-csv r.csv", "--timing"] {
        let parts = ["cannot be used with", "--dry"];
        place.refuse(&format!("compare --dry {option}"), &parts);
    }
    place.refuse(
        "profile --model cnn-tiny --device npu --dry --out p.json",
        &["--dry: expected a device that is measured, got npu"],
    );
}

#[test]
fn a_dry_profile_has_segments_and_no_figures() {
    let (place, vars) = place_with_model();
    let command = "profile --model m --device cuda --max-batch 2 --dry --out p.json";
    let done = run(&place, &vars, command);
    assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
    let file = place.json("p.json");
    assert_eq!(file["emulator"], true);
    let segments = file["segments"].as_object().unwrap();
    assert!(!segments.is_empty() && segments.values().all(|n| n.as_u64() > Some(0)));
    assert!(!has_figures(&file), "{file}");
    // Nobody simulates with it.
    place.refuse(
        "simulate --profile p.json --rate 5",
        &["p.json", "expected a lazybatch-profile/1 document"],
    );
}

#[test]
fn models_are_served_on_the_emulator() {
    let (place, mut vars) = place_with_model();
    vars.push(("LAZYBATCH_EMULATOR_SEED", String::new()));
    for (seed, depth) in [(0, 1), (1, 2), (2, 2)] {
        vars.last_mut().unwrap().1 = seed.to_string();
        // Two launches are in flight where nothing is said.
        let said = ["", " --depth 1"][usize::from(depth == 1)];
        let done = run(
            &place,
            &vars,
            &format!(
                "compare --model m --device cuda --policies serial,lazy --rate 20 --duration 0.4 \
                 --max-batch 2 --dry --json c.json{said}"
            ),
        );
        assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
        let same = "answers bit-identical to those alone";
        assert_eq!(done.out.matches(same).count(), 2, "{}", done.out);
        for word in [" ms", "req/s", "requests/s", "p99"] {
            assert!(!done.out.contains(word), "{word}: {}", done.out);
        }
        let file = place.json("c.json");
        assert_eq!(file["emulator"], true);
        assert!(file["device"].to_string().contains("emulator"), "{file}");
        assert_eq!(file["depth"], depth, "{file}");
        assert!(!has_figures(&file), "{file}");
        for run in file["runs"].as_array().unwrap() {
            assert!(run["completed"].as_u64() > Some(0), "{file}");
            assert_eq!(run["identical"], run["requests"], "{file}");
            assert_eq!(run["failed"], 0, "{file}");
        }
    }
    assert!(!place.path("lazybatch-compare.html").exists());
}

/// A request to `m` of that many frames.
fn frames(num: usize) -> String {
    let values = (0..num * 6).map(|i| format!("{:.2}", ((i * 37 + num) % 19) as f64 / 10.0 - 0.9));
    let values: Vec<String> = values.collect();
    format!(
        r#"{{"inputs":[{{"name":"frames","datatype":"FP32","shape":[1,{num},6],"data":[{}]}}]}}"#,
        values.join(",")
    )
}

/// All numbers of the outputs of an answer.
fn numbers(answer: &str) -> Vec<f64> {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let outputs = answer["outputs"].as_array().unwrap();
    let all = outputs.iter().flat_map(|o| o["data"].as_array().unwrap());
    all.map(|n| n.as_f64().unwrap()).collect()
}

#[test]
fn a_server_on_the_emulator_answers_with_the_bits_of_each_request_alone() {
    let (place, vars) = place_with_model();
    std::fs::create_dir_all(place.path("models/m")).unwrap();
    std::fs::rename(place.path("m"), place.path("models/m/1")).unwrap();
    let config = "instance_group { kind: KIND_GPU }";
    place.write("models/m/config.pbtxt", config);
    let done = run(&place, &vars, "serve --models models --device cuda");
    assert_eq!(done.status, Some(2), "{}{}", done.out, done.err);
    let words = "expected a GPU to measure, or --no-measure, got CUDA emulator (CPU)";
    assert!(done.err.contains(words), "{}", done.err);

    let infer = |server: &Serving, num: usize| {
        let (status, body) = server.post("/v2/models/m/infer", &frames(num));
        assert_eq!(status, "200", "{body}");
        body
    };
    let lens = [5, 1, 6, 3, 2, 4];
    let vars: Vec<(&str, &str)> = vars.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let server = Serving::start_with(&place, "--device cuda --products own --no-measure", &vars);
    let alone = lens.map(|num| infer(&server, num));
    let together = std::thread::scope(|scope| {
        let calls = lens.map(|num| {
            let server = &server;
            scope.spawn(move || infer(server, num))
        });
        calls.map(|call| call.join().unwrap())
    });
    assert_eq!(alone, together);
    drop(server);
    let log = place.read("log");
    assert!(!log.contains("CUDA emulator:"), "{log}");
    assert!(!log.contains("KIND_GPU"), "{log}");

    let server = Serving::start(&place, "--no-measure");
    for (num, answer) in lens.into_iter().zip(&alone) {
        let (gpu, cpu) = (numbers(answer), numbers(&infer(&server, num)));
        assert!(gpu.len() == cpu.len() && !gpu.is_empty());
        let pairs = gpu.iter().zip(&cpu);
        let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(furthest < 1e-5, "{num} frames: {furthest}");
    }
    let log = place.read("log");
    assert!(log.contains("asks for KIND_GPU: ignored"), "{log}");
}

#[test]
fn products_are_by_choice_and_named() {
    let (place, vars) = place_with_model();
    for (products, device) in [
        ("matrix --weights bf16", "cuda-emulator-cpu-bf16-matrix"),
        ("cublaslt", "cuda-emulator-cpu-cublaslt"),
    ] {
        let name = products.split(' ').next().unwrap();
        let done = run(
            &place,
            &vars,
            &format!(
                "compare --model m --device cuda --products {products} --policies lazy --rate 20 \
                 --duration 0.2 --max-batch 2 --dry --json c.json"
            ),
        );
        assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
        let file = place.json("c.json");
        assert_eq!(file["device"], device, "{file}");
        assert_eq!(file["products"], name, "{file}");
        let run = &file["runs"][0];
        assert!(run["completed"].as_u64() > Some(0), "{file}");
        let is_library = name == "cublaslt";
        let right = if is_library { "close" } else { "identical" };
        assert_eq!(run[right], run["requests"], "{file}");
        assert_eq!(run["close"].is_null(), !is_library, "{file}");
        assert_eq!(done.out.contains(" within "), is_library, "{}", done.out);
    }
    let command = "profile --model m --device cuda --products matrix --weights f16 --max-batch 1";
    let done = run(&place, &vars, &format!("{command} --dry --out p.json"));
    assert_eq!(done.status, Some(0), "{}{}", done.out, done.err);
    let file = place.json("p.json");
    assert_eq!(file["device"], "cuda-emulator-cpu-f16-matrix");
    assert_eq!(file["products"], "matrix");
}

#[test]
fn a_library_that_is_asked_for_and_missing_is_named() {
    let (place, vars) = place_with_model();
    std::fs::remove_file(place.path("libcublasLt.so")).unwrap();
    let command = "compare --model m --device cuda --products cublaslt --dry";
    let done = run(&place, &vars, command);
    if done.status == Some(0) {
        println!("not run: this machine has cuBLASLt");
        return;
    }
    assert_eq!(done.status, Some(2), "{}{}", done.out, done.err);
    assert!(done.err.contains("--device: cuBLASLt"), "{}", done.err);
}
