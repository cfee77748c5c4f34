//! Imported recurrent models through the engine: requests of different lengths join and leave at
//! any step, and get the bits that they get alone.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::path::Path;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Program, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::import::{Options as ImportOptions, import};
use lazybatch_kernels::synthetic::random_inputs;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn program(file: &str) -> Program {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/import/models");
    import(&models.join(file), &ImportOptions::default()).unwrap()
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
    serial.drain_blocking();
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
        together.drain_blocking();
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
