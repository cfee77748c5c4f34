//! Every architecture of manifests, at random small sizes with seeded weights, against a naive
//! implementation in double precision that shares no code with ours; and each request in a batch
//! bit for bit as alone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bert;
mod encoder_decoder;
mod gru;
mod llama;
mod mobilenet;
mod naive;

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::manifest::ARCHITECTURES;
use lazybatch_graph::{Manifest, SharedProgram, Tensor, optimize};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

use naive::Weights;

/// Random cases of an architecture.
const CASES: u64 = 6;

/// The optimized program of a manifest's text and seeded weights.
fn program(text: &str, weights: &Weights) -> SharedProgram {
    let manifest = Manifest::parse("model.toml", "", text).unwrap();
    let program = manifest.program_with(&weights.store()).unwrap();
    Arc::new(optimize(program).unwrap())
}

/// Serves all requests, all waiting from the start, under `policy`.
fn serve(program: &SharedProgram, policy: &str, requests: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let options = CpuOptions {
        max_open: 16,
        ..CpuOptions::default()
    };
    let engine = Engine::builder()
        .device(CpuDevice::new(options))
        .model("model", program.clone(), ModelOptions::default())
        .policy(policy)
        .build()
        .unwrap();
    let submit = |inputs: &Vec<Tensor>| {
        engine
            .try_submit("model", inputs.clone(), Options::default())
            .unwrap()
    };
    let handles: Vec<_> = requests.iter().map(submit).collect();
    handles
        .into_iter()
        .map(|h| h.wait().unwrap().outputs)
        .collect()
}

/// Answers of requests that run alone; in batches they have the same bits.
fn answers(program: &SharedProgram, requests: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let alone = serve(program, "serial", requests);
    for policy in ["greedy", "lazy", "adaptive"] {
        let batched = serve(program, policy, requests);
        for (i, (a, b)) in alone.iter().zip(&batched).enumerate() {
            for (a, b) in a.iter().zip(b) {
                let same = a.dims == b.dims && a.data.as_slice() == b.data.as_slice();
                assert!(same, "request {i} under {policy}");
            }
        }
    }
    alone
}

/// Token ids as an input.
fn ids(ids: &[usize]) -> Tensor {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    Tensor::from_i32(&[ids.len()], &ids)
}

/// Largest difference relative to the larger of 1 and the expected value.
fn assert_close(got: &Tensor, expected: &[f64], tolerance: f64, what: &str) {
    let got = got.to_f32();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(*got) - want).abs() / want.abs().max(1.0);
        assert!(off <= tolerance, "{what}: element {i}: {got}, not {want}");
    }
}

#[test]
fn every_architecture_has_its_cases() {
    let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
    let tested = [
        "bert",
        "llama",
        "encoder-decoder",
        "gru-encoder-decoder",
        "mobilenet-v2",
    ];
    assert_eq!(names, tested);
}
