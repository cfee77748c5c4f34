//! How well simulation over a measured profile predicts served latency.
//!
//! The machine's speed drifts, on shared hosts by tens of percent within seconds, and a queue
//! amplifies what drifts. So the run is cut into short repetitions: latency tables of the trained
//! model are measured, a policy serves arrivals at half of measured capacity, and tables are
//! measured again; the same arrivals are then simulated over the mean of both tables. The simulator
//! gets true output lengths, both get the 90th percentile of those as prediction. The profile's
//! `dispatch_us` is the mean time between two launches of the served run while somebody is open: what
//! driver and policy spend while there is work. The figure is the simulated mean
//! latency over all requests of all repetitions, over the served one; beside it stand each
//! repetition's ratio, how well the tables predicted the launches themselves, and what others took
//! of the machine meanwhile.

use std::sync::{Arc, Mutex};

use lazybatch_benches::contention::Contention;
use lazybatch_benches::metered::{Meter, Metered, Timed};
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_engine::ModelOptions;
use lazybatch_engine::measure::{SegmentLength, measure, measure_segments};
use lazybatch_graph::SharedProgram;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, Noise};
use lazybatch_sla::{LatencyTable, Nanos, Profile, SegmentRanges, segments_of};
use lazybatch_workloads::arrivals::{Arrival, Limit, Process, Stream, Workload};
use lazybatch_workloads::experiment::Detail;
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::{Call, Hosted, Served, Serving, Simulation, words};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::results::{Counters, FinishedRequest};
use lazybatch_workloads::zoo;
use serde_json::json;

use crate::Settings;

/// The model.
const MODEL: &str = words::MODEL;
/// Policies that are compared.
const POLICIES: [&str; 2] = ["greedy", "lazy"];
/// Share of capacity that arrives.
const LOAD: f64 = 0.5;
/// Items that arrivals draw from.
const POOL: usize = 256;
/// Most requests of one launch.
const MAX_BATCH: u32 = 64;
/// Items that the tables are measured with.
const PROFILE_POOL: usize = 64;

type MadeDevice = lazybatch_workloads::Result<Box<dyn Device>>;

/// What all repetitions share.
struct Bench<'a> {
    settings: &'a Settings,
    program: SharedProgram,
    pool: Vec<Item>,
    output_lens: Vec<u32>,
    sla: Nanos,
}

/// What one policy gave, by repetition.
#[derive(Default)]
struct Outcome {
    simulated_ms: Vec<f64>,
    real_ms: Vec<f64>,
    p99_ratio: Vec<f64>,
    batch_ratio: Vec<f64>,
    launch_ratio: Vec<f64>,
    dispatch_us: Vec<f64>,
    /// Share of the machine that others took.
    others: Vec<f64>,
}

impl Outcome {
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.simulated_ms.iter().zip(&self.real_ms);
        pairs.map(|(s, r)| s / r).collect()
    }

    /// Simulated over real, means over all repetitions, but for `without`.
    fn pooled(&self, without: Option<usize>) -> f64 {
        let sum = |x: &[f64]| -> f64 {
            let kept = x.iter().enumerate().filter(|(i, _)| Some(*i) != without);
            kept.map(|(_, x)| x).sum()
        };
        sum(&self.simulated_ms) / sum(&self.real_ms)
    }

    /// Standard error of [`Outcome::pooled`] by the jackknife over repetitions.
    fn standard_error(&self) -> f64 {
        let n = self.real_ms.len();
        let left_out: Vec<f64> = (0..n).map(|i| self.pooled(Some(i))).collect();
        let mean = left_out.iter().sum::<f64>() / n as f64;
        let squares: f64 = left_out.iter().map(|x| (x - mean).powi(2)).sum();
        (squares * (n as f64 - 1.0) / n as f64).sqrt()
    }
}

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("sim-vs-real")?;
    let entry = zoo::find(MODEL).ok_or_else(|| anyhow::anyhow!("no model {MODEL}"))?;
    let mut bench = Bench {
        settings,
        program: Arc::new(entry.program()?),
        pool: words::pool(POOL, settings.seed),
        output_lens: Vec::new(),
        sla: entry.sla,
    };
    let mut before = bench.measured(None)?;
    let segments = before.models[0].program_segments();
    let alone = bench.serving(&before, &bench.device()).serial_pass()?;
    bench.output_lens = alone.steps;
    let capacity = bench.capacity(&before)?;
    let mut outcomes: Vec<Outcome> = POLICIES.iter().map(|_| Outcome::default()).collect();
    before = bench.measured(Some(&segments))?;
    for repetition in 0..settings.repeats {
        let calls = bench.calls(LOAD * capacity, settings.seed + repetition as u64)?;
        for i in 0..POLICIES.len() {
            // Each goes first in turn.
            let i = (i + repetition) % POLICIES.len();
            let contention = Contention::watch();
            let served = bench.serve(&before, POLICIES[i], &calls)?;
            let after = bench.measured(Some(&segments))?;
            outcomes[i].others.push(contention.share());
            let profile = mean_of(&before, &after);
            bench.compare(&profile, POLICIES[i], &calls, &served, &mut outcomes[i])?;
            before = after;
        }
    }
    bench.record(&recorder, &outcomes, capacity)
}

/// What one run of a policy gave.
struct Run {
    served: Served,
    launches: Vec<Timed>,
}

impl Bench<'_> {
    fn device(&self) -> impl Fn() -> MadeDevice + use<> {
        let threads = self.settings.threads;
        move || {
            Ok(Box::new(CpuDevice::new(CpuOptions {
                threads,
                ..CpuOptions::default()
            })))
        }
    }

    /// Fresh latency tables, with the output length to predict by.
    fn measured(&self, segments: Option<&SegmentRanges>) -> anyhow::Result<Profile> {
        let mut device = self.device()()?;
        let device = device.as_mut();
        let items = &self.pool[..PROFILE_POOL.min(self.pool.len())];
        let measured = match segments {
            Some(s) => measure_segments(device, &self.program, items, MAX_BATCH, s)?,
            None => measure(
                device,
                &self.program,
                items,
                MAX_BATCH,
                SegmentLength::ByDevice,
            )?,
        };
        let mut lens = self.output_lens.clone();
        lens.sort_unstable();
        let p90 = (lens.len() * 9).div_ceil(10).max(1);
        let mut profile = measured.into_profile();
        profile.models[0].name = MODEL.into();
        profile.models[0].output_len_p90 = lens.get(p90 - 1).copied();
        Ok(profile)
    }

    fn serving<'a>(&'a self, profile: &Profile, device: &'a dyn Fn() -> MadeDevice) -> Serving<'a> {
        let known = !self.output_lens.is_empty();
        Serving {
            models: vec![Hosted {
                name: MODEL,
                program: self.program.clone(),
                options: ModelOptions {
                    profile: profile.models.first().cloned(),
                    max_batch: Some(MAX_BATCH),
                    ..ModelOptions::default()
                },
            }],
            device,
            pool: &self.pool,
            output_lens: known.then_some(&self.output_lens),
            sla: self.sla,
            classes: Vec::new(),
            drain: Nanos::from_ms(60_000),
            timing: false,
            trace: false,
            keeps_outputs: false,
            is_checked: true,
            depth: None,
            client: None,
        }
    }

    /// Requests per second of a backlog under `greedy`, the median of three.
    fn capacity(&self, profile: &Profile) -> anyhow::Result<f64> {
        let device = self.device();
        let serving = self.serving(profile, &device);
        let capacity: Result<Vec<f64>, _> = (0..3).map(|_| serving.capacity("greedy")).collect();
        Ok(Spread::of(capacity?).median())
    }

    /// A device that notes its launches in `meter`.
    fn metered(&self, meter: &Arc<Mutex<Meter>>) -> impl Fn() -> MadeDevice + use<> {
        let (plain, meter) = (self.device(), meter.clone());
        move || Ok(Box::new(Metered::new(plain()?, meter.clone())) as Box<dyn Device>)
    }

    /// Poisson arrivals over the pool, neighbours far apart in it.
    fn calls(&self, rate: f64, seed: u64) -> anyhow::Result<Vec<Call>> {
        let process = Process::Poisson { rate_rps: rate };
        let stream = Stream::new(MODEL, process, Lengths::fixed(1, 1));
        let limit = Limit::Requests(self.settings.requests);
        let arrivals = Workload::single(stream, limit).generate(seed)?;
        let call = |(i, a): (usize, &Arrival)| Call {
            at: a.at,
            item: (i * 7919 + 13) % self.pool.len(),
            ..Call::default()
        };
        Ok(arrivals.iter().enumerate().map(call).collect())
    }

    fn arrivals(&self, calls: &[Call]) -> Vec<Arrival> {
        let arrival = |c: &Call| {
            let input_len = self.pool[c.item].input_len;
            Arrival::new(c.at, MODEL, input_len, self.output_lens[c.item])
        };
        calls.iter().map(arrival).collect()
    }

    fn serve(&self, profile: &Profile, policy: &str, calls: &[Call]) -> anyhow::Result<Run> {
        let meter = Arc::new(Mutex::new(Meter::default()));
        let device = self.metered(&meter);
        let served = self.serving(profile, &device).run(policy, calls)?;
        let launches = std::mem::take(&mut meter.lock().expect("no holder panics").launches);
        Ok(Run { served, launches })
    }

    fn compare(
        &self,
        profile: &Profile,
        policy: &str,
        calls: &[Call],
        run: &Run,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let gaps = Spread::of(run.launches.iter().filter_map(|l| l.busy_gap_ns).collect());
        let profile = Profile {
            dispatch_us: gaps.mean() / 1e3,
            ..profile.clone()
        };
        let simulation = Simulation {
            profile: &profile,
            arrivals: &self.arrivals(calls),
            sla: Some(self.sla),
            classes: &[],
            segment: 1,
            decide: Nanos::ZERO,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        };
        let simulated = simulation.run(policy, None, &mut (), Detail::Launches)?;
        let real = Spread::of(latencies_ms(&run.served.requests));
        let sim = Spread::of(latencies_ms(&simulated.requests));
        let batch = |c: &Counters| c.members as f64 / c.launches as f64;
        let batch_ratio = batch(&simulated.counters) / batch(&run.served.counters);
        outcome
            .launch_ratio
            .push(launch_ratio(&profile, &run.launches));
        outcome.dispatch_us.push(profile.dispatch_us);
        outcome.real_ms.push(real.mean());
        outcome.simulated_ms.push(sim.mean());
        outcome
            .p99_ratio
            .push(sim.percentile(99) / real.percentile(99));
        outcome.batch_ratio.push(batch_ratio);
        Ok(())
    }

    fn record(
        &self,
        recorder: &Recorder,
        outcomes: &[Outcome],
        capacity: f64,
    ) -> anyhow::Result<()> {
        let median = |samples: &[f64]| rounded(Spread::of(samples.to_vec()).median());
        let all = |samples: &[f64]| samples.iter().map(|&x| rounded(x)).collect::<Vec<_>>();
        for (policy, outcome) in POLICIES.iter().zip(outcomes) {
            let figures = json!({
                "policy": policy, "model": MODEL, "threads": self.settings.threads,
                "requests": self.settings.requests, "seed": self.settings.seed,
                "capacity_rps": rounded(capacity), "rate_rps": rounded(LOAD * capacity),
                "target": [0.9, 1.1],
                "pooled_ratio": rounded(outcome.pooled(None)),
                "pooled_standard_error": rounded(outcome.standard_error()),
                "real_mean_ms": all(&outcome.real_ms),
                "simulated_mean_ms": all(&outcome.simulated_ms),
                "p99_ratio_median": median(&outcome.p99_ratio),
                "mean_batch_ratio_median": median(&outcome.batch_ratio),
                "others": all(&outcome.others),
                "launch_time_ratios": all(&outcome.launch_ratio),
                "dispatch_us_median": median(&outcome.dispatch_us),
            });
            let ratio = Spread::of(outcome.ratios());
            recorder.line(figures, "simulated_over_real_mean_latency", &ratio)?;
        }
        Ok(())
    }
}

/// The profile half way between two of the same shape.
fn mean_of(a: &Profile, b: &Profile) -> Profile {
    let mut mean = a.clone();
    for (block, other) in mean.models[0].blocks.iter_mut().zip(&b.models[0].blocks) {
        for (node, other) in block.nodes.iter_mut().zip(&other.nodes) {
            for (point, other) in node.latency_us.iter_mut().zip(&other.latency_us) {
                assert_eq!(point.0, other.0, "the same pool");
                point.1 = (point.1 + other.1) / 2.0;
            }
        }
    }
    mean
}

fn latencies_ms(requests: &[FinishedRequest]) -> Vec<f64> {
    requests.iter().map(|r| r.latency().as_ms()).collect()
}

/// Time of all launches by the profile over the time they took.
fn launch_ratio(profile: &Profile, launches: &[Timed]) -> f64 {
    let model = &profile.models[0];
    let table = LatencyTable::new(model, &segments_of(model, 1), 0.0, 0.0);
    let predicted = |l: &Timed| table.segment(l.block, l.segment, l.samples, l.rows).0 as f64;
    let total: f64 = launches.iter().map(predicted).sum();
    total / launches.iter().map(|l| l.ns).sum::<f64>()
}
