//! The first request of a fresh engine, and those behind it: on a device that has memory for launches
//! ready at load ([`lazybatch_kernels::Device::warm`]), and on one that finds it when they come. In
//! turns, each on an engine of its own.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_benches::clock;
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::spread::Spread;
use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_workloads::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::Settings;

/// Models, positions and samples of a request.
const CASES: [(&str, usize, usize); 3] =
    [("resnet50", 0, 1), ("resnet50", 0, 8), ("bert-base", 32, 1)];
/// Most samples of a launch.
const MAX_BATCH: u32 = 8;
/// Requests of an engine.
const REQUESTS: usize = 6;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("first")?;
    for (name, len, samples) in CASES {
        let program = zoo::find(name).context("a model of the zoo")?.program()?;
        one(settings, &recorder, &Arc::new(program), (len, samples))?;
    }
    Ok(())
}

fn one(
    settings: &Settings,
    recorder: &Recorder,
    program: &SharedProgram,
    (len, samples): (usize, usize),
) -> anyhow::Result<()> {
    let rng = &mut ChaCha8Rng::seed_from_u64(settings.seed);
    let inputs = random_inputs(program, len, samples, rng);
    let cases = [
        ("at load", CpuOptions::default().warm_bytes),
        ("when they come", 0),
    ];
    let mut times = [const { [const { Vec::new() }; 3] }; 2];
    for turn in 0..settings.repeats {
        for i in 0..cases.len() {
            let case = (turn + i) % cases.len();
            let (load, first, later) = engine(settings, program, &inputs, cases[case].1)?;
            times[case][0].push(load);
            times[case][1].push(first);
            times[case][2].push(later);
        }
    }
    for ((memory, _), times) in cases.iter().zip(times) {
        for (what, ms) in ["load", "first request", "later request"].iter().zip(times) {
            let mut figures = json!({ "what": what, "memory": memory, "model": program.name });
            let more = json!({
                "len": len, "samples": samples, "max_batch": MAX_BATCH, "threads": settings.threads,
            });
            merge(&mut figures, more);
            recorder.line(figures, "ms", &Spread::of(ms))?;
        }
    }
    Ok(())
}

/// Milliseconds of an engine's start, of its first request, and of later ones in the median.
fn engine(
    settings: &Settings,
    program: &SharedProgram,
    inputs: &[Tensor],
    warm_bytes: usize,
) -> anyhow::Result<(f64, f64, f64)> {
    let options = ModelOptions {
        max_batch: Some(MAX_BATCH),
        ..ModelOptions::default()
    };
    let device = CpuDevice::new(CpuOptions {
        threads: settings.threads,
        warm_bytes,
        ..CpuOptions::default()
    });
    let (ns, built) = clock::time(|| {
        let engine = Engine::builder().device(device).policy("serial");
        engine.model("m", Arc::clone(program), options).build()
    });
    let (load, engine) = (ns / 1e6, built?);
    let mut spans = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let (ns, answer) = clock::time(|| {
            let sent = engine.try_submit("m", inputs.to_vec(), Options::default());
            sent.and_then(lazybatch_engine::Handle::wait)
        });
        answer?;
        spans.push(ns / 1e6);
    }
    let first = spans.remove(0);
    Ok((load, first, Spread::of(spans).median()))
}
