//! What each way to store the weights of products costs in accuracy, and what it gives in speed, on
//! models with trained weights.
//!
//! Accuracy is against what is right (words), or against references in double precision that share
//! no code with the engine (docs/models.md). Speed is over f32 on the same requests, one at a time
//! and sixteen together; all types take turns ([`turns`]), in an order that rotates.

mod models;
mod options;
mod table;

use std::fs;

use anyhow::Context;
use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::record::{Recorder, merge, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_benches::turns;
use lazybatch_graph::Tensor;
use lazybatch_kernels::CpuOptions;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::cpu::level::Level;
use serde_json::json;

use models::Trained;
pub use options::Options;
use options::Part;

/// Requests of a batch.
const BATCHES: [usize; 2] = [1, 16];
/// Requests that are timed.
const TIMED: usize = 16;
/// Requests of a launch where accuracy is measured.
const TOGETHER: usize = 64;

/// Runs the measurement and writes the table.
///
/// # Errors
/// A model that is not fetched, or a table that cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let recorder = Recorder::new(&options.folder, "weights", &options.command)?;
    for model in models::all(&options.models)? {
        if options.parts.contains(&Part::Accuracy) {
            accuracy(options, &model, &recorder).context(model.name)?;
        }
        if options.parts.contains(&Part::Speed) {
            speed(options, &model, &recorder).context(model.name)?;
        }
    }
    let path = options.folder.join("weights.jsonl");
    let lines = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table = table::of(&table::read(&lines)?);
    print!("{table}");
    if let Some(docs) = &options.docs {
        let shown = || docs.display().to_string();
        let text = fs::read_to_string(docs).with_context(shown)?;
        let text = table::put(&text, &table).with_context(shown)?;
        fs::write(docs, text).with_context(shown)?;
    }
    Ok(())
}

fn device(options: &Options, weights: WeightType) -> CpuOptions {
    CpuOptions {
        threads: options.threads,
        weights,
        ..CpuOptions::default()
    }
}

fn accuracy(options: &Options, model: &Trained, recorder: &Recorder) -> anyhow::Result<()> {
    for weights in WeightType::ALL {
        let requests = model.requests.clone();
        let num = requests.len();
        let device = device(options, weights);
        let mut batches = Lockstep::new(model.program.clone(), requests, device)?;
        let mut answers: Vec<Vec<Tensor>> = Vec::new();
        for first in (0..num).step_by(TOGETHER) {
            let outputs = batches.run_some(first..num.min(first + TOGETHER))?;
            answers.extend(
                outputs
                    .into_iter()
                    .map(|of| of.into_iter().flatten().collect()),
            );
        }
        let verdict = (model.judge)(&answers)?;
        let mut figures = json!({
            "part": "accuracy", "model": model.name, "weights": weights.name(),
            "simd": Level::detect().name(), "num": num,
        });
        merge(&mut figures, verdict.figures);
        recorder.line(figures, verdict.metric, &verdict.spread)?;
    }
    Ok(())
}

fn speed(options: &Options, model: &Trained, recorder: &Recorder) -> anyhow::Result<()> {
    let mut sides = Vec::new();
    for weights in WeightType::ALL {
        let requests = model.requests.iter().cycle().take(TIMED).cloned().collect();
        let device = device(options, weights);
        sides.push(Lockstep::new(model.program.clone(), requests, device)?);
    }
    for batch in BATCHES {
        // By type, of each repetition.
        let mut taken = vec![Vec::new(); sides.len()];
        for repeat in 0..options.repeats {
            for i in 0..sides.len() {
                let i = (i + repeat) % sides.len();
                turns::rest();
                taken[i].push(turns::turn(|| all_requests(&mut sides[i], batch))?);
            }
        }
        for (weights, own) in WeightType::ALL.into_iter().zip(&taken) {
            let ratios = taken[0].iter().zip(own).map(|(f32, own)| f32 / own);
            let figures = json!({
                "part": "speed", "model": model.name, "weights": weights.name(), "batch": batch,
                "simd": Level::detect().name(), "threads": options.threads,
                "request_ns": rounded(Spread::of(own.clone()).median() / TIMED as f64),
            });
            recorder.line(figures, "over_f32", &Spread::of(ratios.collect()))?;
        }
    }
    Ok(())
}

/// Nanoseconds of all requests, in batches.
fn all_requests(side: &mut Lockstep, batch: usize) -> anyhow::Result<f64> {
    let (ns, done) = clock::time(|| {
        (0..TIMED).step_by(batch).try_for_each(|first| {
            let batch = first..TIMED.min(first + batch);
            side.run_some(batch).map(|_| ())
        })
    });
    done.map(|()| ns)
}
