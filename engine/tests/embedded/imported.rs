//! Imported recurrent models through the engine: requests of different lengths join and leave at
//! any step, and get the bits that they get alone.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::path::{Path, PathBuf};

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Program, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::import::{Carried, Options as ImportOptions, import};
use lazybatch_kernels::synthetic::random_inputs;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn program(file: &str) -> Program {
    import(&path(file), &ImportOptions::default()).unwrap()
}

fn path(file: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/import/models");
    models.join(file)
}

fn engine(program: &Program, policy: &str) -> Engine {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    Engine::builder()
        .device(device)
        .model("m", program.clone(), ModelOptions::default())
        .policy(policy)
        .build()
        .unwrap()
}

fn bits(outputs: &[Tensor]) -> Vec<Vec<u8>> {
    let bytes = outputs.iter().map(|t| t.data.as_slice().to_vec());
    bytes.collect()
}

fn check(file: &str, longest: usize) {
    let program = program(file);
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let requests: Vec<Vec<Tensor>> = (1..=longest)
        .map(|len| random_inputs(&program, len, 1, &mut rng))
        .collect();
    let submit = |engine: &Engine, i: usize| {
        let inputs: Vec<Tensor> = requests[i].clone();
        engine.try_submit("m", inputs, Options::default()).unwrap()
    };
    let serial = engine(&program, "serial");
    let alone: Vec<_> = (0..longest)
        .map(|i| bits(&submit(&serial, i).wait().unwrap().outputs))
        .collect();
    serial.drain_blocking().unwrap();
    for policy in ["lazy", "adaptive", "greedy"] {
        let together = engine(&program, policy);
        let mut order: Vec<usize> = (0..longest).collect();
        for i in (1..longest).rev() {
            order.swap(i, rng.random_range(0..=i));
        }
        let mut handles = Vec::new();
        for i in order {
            // Some arrive at once, some while others are on their way.
            for _ in 0..rng.random_range(0..20_000) {
                std::hint::spin_loop();
            }
            handles.push((i, submit(&together, i)));
        }
        for (i, handle) in handles {
            let outputs = handle.wait().unwrap().outputs;
            assert_eq!(bits(&outputs), alone[i], "length {} under {policy}", i + 1);
        }
        together.drain_blocking().unwrap();
    }
}

#[test]
fn an_lstm_gives_the_same_bits_alone_and_in_company() {
    check("lstm.onnx", 50);
}

#[test]
fn an_encoder_and_decoder_give_the_same_bits_alone_and_in_company() {
    check("speller.toml", 30);
}

#[test]
fn a_step_with_carried_state_goes_on_where_the_request_before_ended() {
    let carried = |output: &str| {
        let (output, input) = (output.to_owned(), "h".to_owned());
        let options = ImportOptions {
            carried: vec![Carried { output, input }],
            ..ImportOptions::default()
        };
        import(&path("speller-step.onnx"), &options)
    };
    let message = carried("other_h").unwrap_err().to_string();
    assert!(
        message.contains("--carry") && message.contains("next_h"),
        "{message}"
    );
    let program = carried("next_h").unwrap();
    let state = program.carries[0];
    let engine = engine(&program, "adaptive");
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let chunks: Vec<Vec<Tensor>> = (0..4)
        .map(|_| random_inputs(&program, 6, 1, &mut rng))
        .collect();
    let mut kept = None;
    let by_hand: Vec<_> = chunks
        .iter()
        .map(|chunk| {
            let mut inputs = chunk.clone();
            if let Some(h) = kept.take() {
                inputs[state.input.index()] = h;
            }
            let handle = engine.try_submit("m", inputs, Options::default());
            let outputs = handle.unwrap().wait().unwrap().outputs;
            kept = Some(outputs[state.output.index()].clone());
            bits(&outputs)
        })
        .collect();
    let submit = |(i, chunk): (usize, &Vec<Tensor>)| {
        let mut inputs = chunk.clone();
        if i > 0 {
            inputs.remove(state.input.index());
        }
        let options = Options {
            sequence: Some(1),
            sequence_start: i == 0,
            ..Options::default()
        };
        engine.try_submit("m", inputs, options).unwrap()
    };
    let handles: Vec<_> = chunks.iter().enumerate().map(submit).collect();
    for (handle, want) in handles.into_iter().zip(by_hand) {
        assert_eq!(bits(&handle.wait().unwrap().outputs), want);
    }
}
