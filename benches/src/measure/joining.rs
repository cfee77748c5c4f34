//! Throughput of an imported LSTM whose requests join and leave its loop at any step.
//!
//! Requests of 1 to 50 positions arrive at random, faster than they can be served. Each repetition
//! serves them under policies, and beside that runs them without a scheduler: one at a time, and as
//! the best batches that there are, of requests sorted by length, all waiting from the start. All
//! answers must have the bits of those alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::ensure;
use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::reused::Shelf;
use lazybatch_benches::spread::Spread;
use lazybatch_engine::ModelOptions;
use lazybatch_engine::measure::{SegmentLength, measure};
use lazybatch_graph::onnx::{
    Array, Attr, Data, Dim, Elem, Graph, Model, Node, ValueInfo, ValueType,
};
use lazybatch_graph::{SharedProgram, Tensor, WeightSource};
use lazybatch_kernels::import::{self, import_model};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::Nanos;
use lazybatch_workloads::arrivals::{Limit, Process, Stream, Workload};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::{Call, Hosted, Served, Serving};
use lazybatch_workloads::lengths::Lengths;
use serde_json::json;

use crate::Settings;

/// Name of the model.
const MODEL: &str = "lstm";
/// What is compared.
const POLICIES: [&str; 3] = ["adaptive", "lazy", "serial"];
/// Offered rate, over that of the best batches.
const LOAD: f64 = 1.5;
/// Positions of a request.
const LONGEST: usize = 50;
/// Items that the tables are measured with, and the shortest segment, in microseconds.
const PROFILE_POOL: usize = 64;
/// Time behind the last arrival within which all must have ended.
const DRAIN: Nanos = Nanos::from_ms(600_000);

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Features of the LSTM, and of its input.
    hidden: usize,
    /// Most requests of a launch.
    max_batch: usize,
    requests: usize,
    repeats: usize,
    threads: usize,
    seed: u64,
}

/// Runs the measurement.
///
/// # Errors
/// An answer that differs, or a request without one.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let sizes = Sizes {
        hidden: 512,
        max_batch: 64,
        requests: settings.requests,
        repeats: settings.repeats,
        threads: settings.threads,
        seed: settings.seed,
    };
    compare(sizes, &settings.recorder("joining")?)
}

/// What a run gave.
struct Outcome {
    ns: f64,
    mean_batch: f64,
}

fn compare(sizes: Sizes, recorder: &Recorder) -> anyhow::Result<()> {
    let options = import::Options {
        max_len: Some(LONGEST),
        ..import::Options::default()
    };
    let program: SharedProgram = Arc::new(import_model(&model(sizes.hidden), &options)?);
    let pool = pool(&program, sizes);
    let cpu = CpuOptions {
        threads: sizes.threads,
        ..CpuOptions::default()
    };
    let requests = pool.iter().map(|item| item.inputs.clone()).collect();
    let mut batches = Lockstep::new(program.clone(), requests, cpu.clone())?;
    let shelf = Shelf::new(Box::new(CpuDevice::new(cpu)));
    let (mut device, items) = (shelf.take()?, &pool[..PROFILE_POOL.min(pool.len())]);
    let most = sizes.max_batch as u32;
    let profile =
        measure(&mut device, &program, items, most, SegmentLength::ByDevice)?.into_profile();
    drop(device);
    let take = || -> lazybatch_workloads::Result<Box<dyn Device>> {
        let taken = shelf.take();
        let taken = taken.map_err(|e| lazybatch_workloads::Error::run("device", e))?;
        Ok(Box::new(taken))
    };
    let serving = Serving {
        models: vec![Hosted {
            name: MODEL,
            program,
            options: ModelOptions {
                profile: profile.models.into_iter().next(),
                max_batch: Some(most),
                ..ModelOptions::default()
            },
        }],
        device: &take,
        pool: &pool,
        output_lens: None,
        sla: Nanos::from_ms(3_600_000),
        classes: Vec::new(),
        drain: DRAIN,
        timing: false,
        trace: false,
        keeps_outputs: true,
        is_checked: true,
        depth: None,
        client: None,
    };

    let (mut alone_ns, mut best_ns) = (Vec::new(), Vec::new());
    let mut outcomes: BTreeMap<&str, Vec<Outcome>> = BTreeMap::new();
    for repeat in 0..sizes.repeats {
        let (alone, answers) = in_batches(&mut batches, pool.len(), 1)?;
        let (best, together) = in_batches(&mut batches, pool.len(), sizes.max_batch)?;
        same(&answers, &together, "the best batches")?;
        let rate_rps = LOAD * pool.len() as f64 / best * 1e9;
        let calls = calls(&pool, rate_rps, sizes.seed + repeat as u64)?;
        alone_ns.push(alone);
        best_ns.push(best);
        for i in 0..POLICIES.len() {
            // Each goes first in turn.
            let policy = POLICIES[(i + repeat) % POLICIES.len()];
            let served = serving.run(policy, &calls)?;
            outcomes.entry(policy).or_default().push(outcome(&served));
            let mut served = served.outputs.into_iter();
            let by_call = calls
                .iter()
                .map(|call| (call.item, served.next().flatten()));
            let mut by_item = vec![Vec::new(); pool.len()];
            for (item, outputs) in by_call {
                by_item[item] = bits(&outputs.unwrap_or_default());
            }
            same(&answers, &by_item, policy)?;
        }
    }

    let positions: usize = pool.iter().map(|item| item.input_len as usize).sum();
    for policy in POLICIES {
        let runs = &outcomes[policy];
        let over = |other: &[f64]| {
            let ratios = other.iter().zip(runs).map(|(ns, run)| ns / run.ns);
            Spread::of(ratios.collect())
        };
        let all = |f: &dyn Fn(&Outcome) -> f64| Spread::of(runs.iter().map(f).collect()).median();
        let (over_alone, over_best) = (over(&alone_ns), over(&best_ns));
        let figures = json!({
            "policy": policy, "hidden": sizes.hidden, "max_batch": sizes.max_batch,
            "requests": pool.len(), "positions": positions, "longest": LONGEST, "load": LOAD,
            "threads": sizes.threads, "seed": sizes.seed,
            "throughput_rps": rounded(pool.len() as f64 * 1e9 / all(&|run| run.ns)),
            "alone_rps": rounded(pool.len() as f64 * 1e9 / Spread::of(alone_ns.clone()).median()),
            "best_rps": rounded(pool.len() as f64 * 1e9 / Spread::of(best_ns.clone()).median()),
            "mean_batch": rounded(all(&|run| run.mean_batch)),
            "over_best": rounded(over_best.median()),
            "over_best_min": rounded(over_best.min()),
            "over_best_max": rounded(over_best.max()),
        });
        recorder.line(figures, "over_alone", &over_alone)?;
    }
    Ok(())
}

/// Seeded requests, the shortest first.
fn pool(program: &SharedProgram, sizes: Sizes) -> Vec<Item> {
    let item = |i: usize| {
        let len = (i * LONGEST / sizes.requests + 1) as u32;
        inputs::synthetic(program, &Lengths::fixed(len, 1), 1, sizes.seed + i as u64).remove(0)
    };
    (0..sizes.requests).map(item).collect()
}

/// Arrivals of the pool in a seeded order at seeded times.
fn calls(pool: &[Item], rate_rps: f64, seed: u64) -> anyhow::Result<Vec<Call>> {
    let stream = Stream::new(MODEL, Process::Poisson { rate_rps }, Lengths::fixed(1, 1));
    let arrivals = Workload::single(stream, Limit::Requests(pool.len())).generate(seed)?;
    let keys = WeightSource::Seeded { seed, bound: 1.0 }.to_f32(pool.len());
    let mut order: Vec<usize> = (0..pool.len()).collect();
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    let calls = arrivals.iter().zip(order).map(|(arrival, item)| Call {
        at: arrival.at,
        item,
        ..Call::default()
    });
    Ok(calls.collect())
}

/// Nanoseconds of all requests in batches of neighbours, and the bits of the answers.
fn in_batches(
    batches: &mut Lockstep,
    num: usize,
    size: usize,
) -> anyhow::Result<(f64, Vec<Vec<u8>>)> {
    let (mut total, mut answers) = (0.0, Vec::new());
    for first in (0..num).step_by(size) {
        let (ns, outputs) = clock::time(|| batches.run_some(first..num.min(first + size)));
        total += ns;
        for of_request in outputs? {
            let outputs: Vec<Tensor> = of_request.into_iter().flatten().collect();
            answers.push(bits(&outputs));
        }
    }
    Ok((total, answers))
}

fn bits(outputs: &[Tensor]) -> Vec<u8> {
    let bytes = outputs.iter().flat_map(|t| t.data.as_slice());
    bytes.copied().collect()
}

/// Says if an answer differs from that of its request alone.
fn same(alone: &[Vec<u8>], other: &[Vec<u8>], who: &str) -> anyhow::Result<()> {
    for (i, (alone, other)) in alone.iter().zip(other).enumerate() {
        ensure!(
            alone == other && !alone.is_empty(),
            "{who}: request {i}: expected the bits that it has alone, got others"
        );
    }
    Ok(())
}

/// From the first arrival to the last end.
fn outcome(served: &Served) -> Outcome {
    let first = served.requests.iter().map(|r| r.arrival).min();
    let last = served.requests.iter().map(|r| r.finish).max();
    let span = last.unwrap_or_default().since(first.unwrap_or_default());
    Outcome {
        ns: span.0 as f64,
        mean_batch: served.counters.members as f64 / served.counters.launches.max(1) as f64,
    }
}

/// `y = LSTM(x)` as an exporter writes it: `x, y: [seq, batch, hidden]`.
fn model(hidden: usize) -> Model {
    let bound = 1.0 / (hidden as f32).sqrt();
    let weight = |seed, dims: &[usize]| {
        let data = WeightSource::Seeded { seed, bound }.to_f32(dims.iter().product());
        Array::new(dims.to_vec(), Data::F32(data))
    };
    let info = |name: &str| ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            elem: Elem::F32,
            dims: Some(vec![
                Dim::Named("seq".into()),
                Dim::Named("batch".into()),
                Dim::Fixed(hidden),
            ]),
        },
    };
    let node = |op: &str, inputs: &[&str], output: &str, attrs: &[(&str, i64)]| Node {
        name: op.to_lowercase(),
        domain: String::new(),
        op: op.into(),
        inputs: inputs.iter().map(|&name| name.into()).collect(),
        outputs: vec![output.into()],
        attrs: attrs
            .iter()
            .map(|&(name, n)| (name.into(), Attr::Int(n)))
            .collect(),
    };
    let initializers = [
        ("w", weight(1, &[1, 4 * hidden, hidden])),
        ("r", weight(2, &[1, 4 * hidden, hidden])),
        ("b", weight(3, &[1, 8 * hidden])),
        ("direction", Array::new(vec![1], Data::I64(vec![1]))),
    ];
    Model {
        file: MODEL.into(),
        opsets: [(String::new(), 17)].into(),
        graph: Graph {
            name: MODEL.into(),
            inputs: vec![info("x")],
            outputs: vec![info("y")],
            initializers: initializers
                .map(|(name, array)| (name.into(), array))
                .into(),
            nodes: vec![
                node(
                    "LSTM",
                    &["x", "w", "r", "b"],
                    "rows",
                    &[("hidden_size", hidden as i64)],
                ),
                node("Squeeze", &["rows", "direction"], "y", &[]),
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::Repeat;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_small_run_gives_a_line_by_policy_and_the_same_bits() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(folder.path(), "joining", "toy").unwrap();
        let sizes = Sizes {
            hidden: 16,
            max_batch: 8,
            requests: 60,
            repeats: 1,
            threads: 1,
            seed: 1,
        };
        compare(sizes, &recorder).unwrap();
        let text = std::fs::read_to_string(folder.path().join("joining.jsonl")).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(lines.len(), POLICIES.len());
        assert_eq!(lines[0]["policy"], "adaptive");
        assert!(
            lines
                .iter()
                .all(|l| l["throughput_rps"].as_f64().unwrap() > 0.0)
        );
        assert!(lines[2]["mean_batch"].as_f64().unwrap() <= 1.0, "serial");
    }

    #[test]
    fn the_import_is_one_loop_over_the_positions() {
        let program = import_model(&model(8), &import::Options::default()).unwrap();
        let loops = program.blocks.iter().filter(|b| b.repeat != Repeat::Once);
        assert_eq!(loops.count(), 1);
    }

    #[test]
    fn other_bits_are_noticed() {
        let alone = vec![vec![1, 2], vec![3]];
        assert!(same(&alone, &alone, "toy").is_ok());
        let message = same(&alone, &[vec![1, 2], vec![4]], "toy").unwrap_err();
        assert!(
            message.to_string().starts_with("toy: request 1:"),
            "{message}"
        );
        assert!(same(&alone, &[Vec::new(), vec![3]], "toy").is_err());
    }
}
