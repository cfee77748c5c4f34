//! Time to load a model whose weights lie in a file: packed each time, packed and written to a cache,
//! mapped from the cache; and what a short request then takes on weights of either kind.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use lazybatch_benches::clock;
use lazybatch_benches::record::Recorder;
use lazybatch_benches::spread::Spread;
use lazybatch_graph::{SharedProgram, Tensor, WeightSource, folder};
use lazybatch_kernels::conformance::{Request, Schedule, run as run_requests};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions, WeightType};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{Device, Error};
use lazybatch_sla::ModelId;
use lazybatch_workloads::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::Settings;

/// Models, and the length of their short request.
const MODELS: [(&str, usize); 2] = [("bert-base", 1), ("resnet50", 0)];
/// Requests per repetition; the first one warms.
const REQUESTS: usize = 4;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("load")?;
    for (name, len) in MODELS {
        let place = tempfile::tempdir()?;
        let program = stored(name, &place.path().join("model"))?;
        for weights in [WeightType::F32, WeightType::Int8] {
            one(settings, &recorder, (&program, len), weights)?;
        }
    }
    Ok(())
}

/// A model of the zoo with all its weights in a file, mapped.
fn stored(name: &str, dir: &Path) -> anyhow::Result<SharedProgram> {
    let mut program = zoo::find(name).context("a model of the zoo")?.program()?;
    for weight in &mut program.weights {
        let elems = weight.source.to_f32(weight.ty.row_elems());
        weight.source = WeightSource::Data(Tensor::from_f32(&weight.ty.fixed_dims(), &elems));
    }
    folder::save(&program, dir)?;
    Ok(Arc::new(folder::load(dir)?))
}

fn one(
    settings: &Settings,
    recorder: &Recorder,
    (program, len): (&SharedProgram, usize),
    weights: WeightType,
) -> anyhow::Result<()> {
    let full = tempfile::tempdir()?;
    let device = |cache: Option<&Path>| {
        CpuDevice::new(CpuOptions {
            threads: settings.threads,
            weights,
            weight_cache: cache.map(Path::to_owned),
            max_open: 2,
            ..CpuOptions::default()
        })
    };
    let load = |cache: Option<&Path>| -> Result<(f64, CpuDevice), Error> {
        let mut device = device(cache);
        let (ns, loaded) = clock::time(|| device.load(ModelId(0), Arc::clone(program)));
        loaded.map(|()| (ns / 1e6, device))
    };
    load(Some(full.path()))?;
    let inputs = random_inputs(
        program,
        len,
        1,
        &mut ChaCha8Rng::seed_from_u64(settings.seed),
    );
    let request = [Request {
        inputs,
        len,
        samples: 1,
    }];
    let mut loads = [const { Vec::new() }; 3];
    let mut requests = [const { Vec::new() }; 3];
    for _ in 0..settings.repeats {
        let empty = tempfile::tempdir()?;
        for (i, cache) in [None, Some(empty.path()), Some(full.path())]
            .into_iter()
            .enumerate()
        {
            let (ms, mut device) = load(cache)?;
            loads[i].push(ms);
            let mut spans = Vec::new();
            for _ in 0..REQUESTS {
                let run = || run_requests(&mut device, program, &request, Schedule::Alone);
                let (ns, results) = clock::time(run);
                results.map_err(anyhow::Error::msg)?;
                spans.push(ns / 1e6);
            }
            requests[i].push(Spread::of(spans[1..].to_vec()).median());
        }
    }
    for (i, cache) in ["none", "empty", "full"].into_iter().enumerate() {
        for (what, spans) in [("load", &loads[i]), ("short request", &requests[i])] {
            let figures = json!({
                "what": what, "model": program.name, "weights": weights.name(), "cache": cache,
                "threads": settings.threads,
            });
            recorder.line(figures, "ms", &Spread::of(spans.clone()))?;
        }
    }
    Ok(())
}
