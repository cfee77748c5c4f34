//! silero-vad, a streaming voice detector, imported from its ONNX file as docs/onnx.md says: the
//! probabilities and states of a reference in double precision and of ONNX Runtime on the same file,
//! chunk by chunk, and the same bits whatever other streams run between.
//!
//! `cargo xtask models` fetches the model; without it the test says so and passes, unless
//! `LAZYBATCH_REQUIRE_MODELS` is set.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_engine::{Engine, Handle, ModelOptions, Options};
use lazybatch_graph::{SharedProgram, Tensor, WeightFile};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::import::{Options as ImportOptions, import};
use lazybatch_workloads::experiment::inputs::Item;

const DOCS: &str = include_str!("../../../docs/onnx.md");
/// Samples of a chunk, and those before it that the model also sees.
const CHUNK: usize = 512;
const CONTEXT: usize = 64;
/// Streams of each recording that run at once.
const COPIES: usize = 3;
/// Largest difference, in parts of the largest value.
const TOLERANCE: f64 = 1e-4;

/// What the documented command says.
fn documented() -> ImportOptions {
    let line = DOCS
        .lines()
        .find_map(|line| line.strip_prefix("lazybatch import silero_vad.onnx --out vad "))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut options = ImportOptions::default();
    for pair in words.chunks(2) {
        match pair[0] {
            "--set" => options.fixed.push(pair[1].parse().unwrap()),
            "--size" => options.sizes.push(pair[1].parse().unwrap()),
            "--carry" => options.carried.push(pair[1].parse().unwrap()),
            other => panic!("{other}: an option that this test does not know"),
        }
    }
    options
}

/// The chunks of a recording, each behind the end of the one before.
fn chunks(audio: &[f32]) -> Vec<Item> {
    let padded: Vec<f32> = [0.0; CONTEXT].iter().chain(audio).copied().collect();
    let windows = padded.windows(CONTEXT + CHUNK).step_by(CHUNK);
    let item = |window| Item {
        model: 0,
        inputs: vec![Tensor::from_f32(&[1, CONTEXT + CHUNK], window)],
        input_len: 0,
        text: None,
    };
    windows.map(item).collect()
}

fn engine(program: &SharedProgram, policy: &str) -> Engine {
    Engine::builder()
        .device(CpuDevice::new(CpuOptions::default()))
        .model("vad", program.clone(), ModelOptions::default())
        .policy(policy)
        .build()
        .unwrap()
}

fn submit(engine: &Engine, sequence: usize, at: usize, stream: &[Item]) -> Handle {
    let options = Options {
        sequence: Some(sequence as u64),
        sequence_start: at == 0,
        sequence_end: at + 1 == stream.len(),
        ..Options::default()
    };
    let inputs = stream[at].inputs.clone();
    engine.try_submit("vad", inputs, options).unwrap()
}

fn bits(outputs: &[Tensor]) -> Vec<Vec<u8>> {
    let bytes = outputs.iter().map(|t| t.data.as_slice().to_vec());
    bytes.collect()
}

fn check(name: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{name}");
    let largest = want.iter().fold(0.0f64, |a, x| a.max(x.abs()));
    let off = got
        .iter()
        .zip(want)
        .map(|(a, b)| (f64::from(*a) - b).abs() / largest);
    let worst = off.fold(0.0, f64::max);
    println!("{name}: {worst:e} of the largest off");
    assert!(worst < TOLERANCE, "{name}: {worst:e} of the largest off");
}

#[test]
fn streams_are_heard_as_the_reference_hears_them() {
    let Some((folder, golden)) = crate::fetched::model("silero-vad") else {
        return;
    };
    let program: SharedProgram =
        Arc::new(import(&folder.join("silero_vad.onnx"), &documented()).unwrap());
    let recordings = WeightFile::open(folder.join("audio.safetensors")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    let streams: Vec<Vec<Item>> = cases
        .iter()
        .map(|case| {
            let audio = recordings.tensor(case["audio"].as_str().unwrap());
            chunks(&audio.unwrap().to_f32())
        })
        .collect();

    let by_runtime = crate::fetched::runtime(&folder);
    assert_eq!(by_runtime.len(), cases.len());
    let serial = engine(&program, "serial");
    let mut alone = Vec::new();
    for (sequence, (stream, case)) in streams.iter().zip(cases).enumerate() {
        let (mut probabilities, mut answers) = (Vec::new(), Vec::new());
        let mut state = Vec::new();
        for at in 0..stream.len() {
            let outputs = submit(&serial, sequence, at, stream)
                .wait()
                .unwrap()
                .outputs;
            probabilities.extend(outputs[0].to_f32());
            state = outputs[1].to_f32();
            answers.push(bits(&outputs));
        }
        let name = case["audio"].as_str().unwrap();
        let want = crate::fetched::numbers(&case["probabilities"]);
        check(name, &probabilities, &want);
        check(
            &format!("{name}, its last state"),
            &state,
            &crate::fetched::numbers(&case["state"]),
        );
        let own = &by_runtime[sequence];
        let (own_probabilities, own_state) = own.split_at(want.len());
        check(
            &format!("{name}, ONNX Runtime"),
            &probabilities,
            own_probabilities,
        );
        check(&format!("{name}, its state"), &state, own_state);
        // What the model is for: it hears the recording of a voice and nothing else.
        let heard = probabilities.iter().any(|&p| p > 0.9);
        assert_eq!(heard, name.starts_with("speech"), "{name}");
        alone.push(answers);
    }
    serial.drain_blocking().unwrap();

    let longest = streams.iter().map(Vec::len).max().unwrap();
    for policy in ["greedy", "lazy", "adaptive"] {
        let together = engine(&program, policy);
        let mut handles = Vec::new();
        for at in 0..longest {
            for copy in 0..COPIES {
                for (i, stream) in streams.iter().enumerate().filter(|(_, s)| at < s.len()) {
                    let sequence = copy * streams.len() + i;
                    handles.push((i, at, submit(&together, sequence, at, stream)));
                }
            }
        }
        for (i, at, handle) in handles {
            let outputs = handle.wait().unwrap().outputs;
            let name = &cases[i]["audio"];
            assert_eq!(bits(&outputs), alone[i][at], "{policy}: {name}, chunk {at}");
        }
        let counters = together.stats().counters;
        assert!(
            counters.batched > 2 * counters.launches,
            "{policy}: expected batches, got {counters:?}"
        );
    }
}
