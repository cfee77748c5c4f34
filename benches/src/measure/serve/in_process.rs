//! The same without servers: the engine beside ONNX Runtime in a loop of its own, so that what
//! scheduling gains is told from what servers cost.
//!
//! Both have the same ONNX files, requests and arrivals, one thread for computing, and all of it on
//! the server's cores. `padded` batches whole requests as Triton's dynamic batcher without a delay
//! does, but pads them to the longest, so that lengths never part a batch; `steps` batches one step of
//! all requests in flight, and takes in those that came between two steps. Padding is not masked: what
//! the rivals answer is not looked at, and they do less for it. They tell the share of their time that
//! ONNX Runtime takes: the rest is their loop's.
//!
//! The same two ways are also taken on our own device, by `triton` with padding clients and by
//! `cellular`: there the scheduler is all that differs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lazybatch_benches::peer::Peer;
use lazybatch_engine::ModelOptions;
use lazybatch_engine::measure::{SegmentLength, measure};
use lazybatch_engine::policy;
use lazybatch_graph::{SharedProgram, Tensor};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, import};
use lazybatch_sla::{Nanos, Time};
use lazybatch_workloads::experiment::inputs;
use lazybatch_workloads::experiment::{Call, Hosted, Served, Serving};
use serde_json::{Value, json};

use super::ladder::{self, Climb, Compared, Sent};
use super::peers::{Model, Options, SCRIPTS};

/// What is compared: policies of ours, and ways to batch of the peer. The first is held against the
/// others.
const KINDS: [&str; 5] = ["adaptive", "padded", "steps", "triton:pad", "cellular"];
/// Those that are ways of the peer.
const PEER: [&str; 2] = ["padded", "steps"];
/// Most requests of a launch, for all.
const MAX_BATCH: u32 = 16;
/// Time behind the last arrival within which all must have ended.
const DRAIN: Nanos = Nanos::from_ms(60_000);

/// Our side of a model.
struct Own {
    program: SharedProgram,
    options: ModelOptions,
    pool: Vec<inputs::Item>,
}

/// Runs the measurement.
///
/// # Errors
/// Scripts that do not run, models that do not import, or requests without an answer.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let settings = &options.settings;
    let place = options.write_models()?;
    let recorder = settings.recorder("serve-in-process")?;
    // All of it runs where a server would, but the thread that sends requests to an engine: the peer's
    // loops look between two launches who has come, and nobody has to wake them.
    settings.server_cores.take()?;
    let threads = settings.server_cores.num();
    let models = options.models();
    let kinds = options.kinds(&KINDS, |name| policy::find(name).is_ok())?;
    let mut climbs = Vec::new();
    for model in &models {
        let own = own(place.path(), model, threads)?;
        for turn in 0..settings.repeats {
            for i in 0..kinds.len() {
                let kind = kinds[(turn + i) % kinds.len()].as_str();
                // An encoder has no steps.
                if matches!(kind, "steps" | "cellular") && model.name == "encoder" {
                    continue;
                }
                climbs.push(climb(
                    options,
                    (model, &own),
                    kind,
                    (place.path(), threads),
                    turn,
                )?);
            }
        }
    }
    let figures = |what: &str| {
        options.figures(json!({
            "what": what, "seconds": settings.span.as_secs_f64(),
            "cores": settings.server_cores.to_string(),
            "client_cores": settings.client_cores.to_string(), "max_batch": MAX_BATCH,
        }))
    };
    let compared = Compared {
        kinds: &kinds,
        ours: KINDS[0],
        over: &[
            ("adaptive over best of padded and steps", &PEER),
            (
                "adaptive over best of triton:pad and cellular",
                &["triton:pad", "cellular"],
            ),
        ],
    };
    ladder::record(&recorder, &climbs, compared, figures)
}

fn own(place: &Path, model: &Model, threads: usize) -> anyhow::Result<Own> {
    let folder = place.join("lazybatch").join(model.name).join("1");
    let file = match model.name {
        "decoder" => "model.toml",
        _ => "model.onnx",
    };
    let program = import::import(&folder.join(file), &import::Options::default())?;
    let program: SharedProgram = Arc::new(program);
    let item = |item: &super::peers::Item| inputs::Item {
        model: 0,
        inputs: vec![Tensor::from_f32(&[item.len, model.features], &item.values)],
        input_len: item.len as u32,
        text: None,
    };
    let pool: Vec<_> = model.pool.iter().map(item).collect();
    let mut device = cpu(threads);
    let profile = measure(
        &mut device,
        &program,
        &pool,
        MAX_BATCH,
        SegmentLength::ByDevice,
    )?
    .into_profile();
    Ok(Own {
        program,
        options: ModelOptions {
            profile: profile.models.into_iter().next(),
            max_batch: Some(MAX_BATCH),
            ..ModelOptions::default()
        },
        pool,
    })
}

fn cpu(threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads,
        ..CpuOptions::default()
    })
}

fn climb(
    options: &Options,
    (model, own): (&Model, &Own),
    kind: &str,
    (place, threads): (&Path, usize),
    turn: usize,
) -> anyhow::Result<Climb> {
    let mut climb = options.ladder.climb(kind, model.name);
    let mut peer = match PEER.contains(&kind) {
        false => None,
        true => Some(peer(options, model, kind, (place, threads))?),
    };
    while let Some((step, rate)) = climb.next() {
        let times = options.times(rate, turn, step)?;
        match &mut peer {
            None => climb.put(served(options, (model, own), kind, threads, &times)?)?,
            Some(peer) => {
                let at: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
                let told = peer.ask(&json!({ "serve": at }))?;
                let ms = told["ms"].as_array().map(Vec::as_slice);
                climb.put(Sent {
                    ms: ms.unwrap_or_default().iter().map(Value::as_f64).collect(),
                    in_runtime: told["in_runtime"].as_f64(),
                })?;
            }
        }
    }
    Ok(climb)
}

fn served(
    options: &Options,
    (model, own): (&Model, &Own),
    policy: &str,
    threads: usize,
    times: &[Duration],
) -> anyhow::Result<Vec<Option<f64>>> {
    let device = || -> lazybatch_workloads::Result<Box<dyn Device>> { Ok(Box::new(cpu(threads))) };
    // Threads of the engine stay where this one was when they began.
    let cores = &options.settings.client_cores;
    let client = || {
        let moved = cores.take_thread();
        moved.map_err(|e| lazybatch_workloads::Error::run("client cores", format!("{e:#}")))
    };
    let serving = Serving {
        models: vec![Hosted {
            name: model.name,
            program: own.program.clone(),
            options: own.options.clone(),
        }],
        device: &device,
        pool: &own.pool,
        output_lens: None,
        sla: Nanos::from_ms_f64(options.ladder.limit_ms),
        classes: Vec::new(),
        drain: DRAIN,
        timing: false,
        trace: false,
        keeps_outputs: false,
        // The rivals check nothing.
        is_checked: false,
        depth: None,
        client: Some(&client),
    };
    let call = |(i, at): (usize, &Duration)| Call {
        at: Time(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)),
        item: i % own.pool.len(),
        ..Call::default()
    };
    let calls: Vec<Call> = times.iter().enumerate().map(call).collect();
    let served = serving.run(policy, &calls);
    options.settings.server_cores.take_thread()?;
    let Served { requests, .. } = served?;
    let ms = |r: &lazybatch_workloads::results::FinishedRequest| {
        let took = r.finish.since(r.arrival);
        r.outcome.is_completed().then_some(took.0 as f64 / 1e6)
    };
    Ok(requests.iter().map(ms).collect())
}

/// The peer with a model and its requests.
fn peer(
    options: &Options,
    model: &Model,
    mode: &str,
    (place, threads): (&Path, usize),
) -> anyhow::Result<Peer> {
    let values = model.pool.iter().flat_map(|item| &item.values);
    let bytes: Vec<u8> = values.flat_map(|v| v.to_le_bytes()).collect();
    let file = place.join(format!("{}.f32", model.name));
    std::fs::write(&file, bytes)?;
    let mut command = Command::new(&options.python);
    command.arg(format!("{SCRIPTS}/in_process.py"));
    let mut peer = Peer::start(&mut command)?;
    let lens: Vec<usize> = model.pool.iter().map(|item| item.len).collect();
    peer.ask(&json!({
        "open": {
            "folder": place.join("files").join(model.name), "model": model.name, "mode": mode,
            "pool": file, "features": model.features, "lens": lens, "max_batch": MAX_BATCH,
            "threads": threads,
        }
    }))?;
    Ok(peer)
}
