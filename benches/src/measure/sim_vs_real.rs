//! How well simulation over a measured profile predicts served latency.
//!
//! One repetition, policy by policy: measure the trained model's latency tables, serve arrivals at
//! half of measured capacity, simulate the same ones. The simulator gets true output
//! lengths, both get the 90th percentile of those as prediction. The profile's `dispatch_us` is the
//! median time between two launches of the served run, which is what driver and policy spend while
//! there is work. The ratio of mean latencies is taken within the repetition, so that a machine
//! that is slower for a while is slower on both sides; beside it stands what others took of the
//! machine meanwhile.

use std::sync::{Arc, Mutex};

use lazybatch_benches::contention::Contention;
use lazybatch_benches::metered::{Meter, Metered, Timed};
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_engine::ModelOptions;
use lazybatch_graph::SharedProgram;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, Noise};
use lazybatch_sla::profile::{FORMAT, ModelProfile};
use lazybatch_sla::{LatencyTable, Nanos, Profile, segments_of};
use lazybatch_workloads::arrivals::{Arrival, Limit, Process, Stream, Workload};
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::measure::measure;
use lazybatch_workloads::experiment::{Call, Serving, Simulation, words};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::results::FinishedRequest;
use lazybatch_workloads::zoo;
use serde_json::json;

use crate::Settings;

/// The model.
const MODEL: &str = "phonemes";
/// Policies that are compared.
const POLICIES: [&str; 2] = ["greedy", "lazy"];
/// Share of capacity that arrives.
const LOAD: f64 = 0.5;
/// Items that arrivals draw from.
const POOL: usize = 256;
/// Most requests of one launch.
const MAX_BATCH: u32 = 64;
/// Shortest segment at batch 1, in microseconds.
const SEGMENT_US: f64 = 50.0;
/// Items that the tables are measured with.
const PROFILE_POOL: usize = 64;

type MadeDevice = lazybatch_workloads::Result<Box<dyn Device>>;

/// Share of the machine's processor time that others may take in a repetition called calm.
const CALM: f64 = 0.05;

/// What all repetitions share.
struct Bench<'a> {
    settings: &'a Settings,
    program: SharedProgram,
    pool: Vec<Item>,
    output_lens: Vec<u32>,
    sla: Nanos,
}

/// What one policy gave in one repetition.
#[derive(Default)]
struct Outcome {
    ratio: Vec<f64>,
    simulated_ms: Vec<f64>,
    real_ms: Vec<f64>,
    p99_ratio: Vec<f64>,
    batch_ratio: Vec<f64>,
    launch_ratio: Vec<f64>,
    dispatch_us: Vec<f64>,
    /// Share of the machine that others took, while the tables were measured and in the run.
    others: Vec<(f64, f64)>,
}

impl Outcome {
    /// Ratios of the repetitions in which others took less than [`CALM`] of the machine.
    fn calm(&self) -> Vec<f64> {
        let is_calm = |o: &(f64, f64)| o.0.max(o.1) < CALM;
        let pairs = self.ratio.iter().zip(&self.others);
        pairs.filter(|(_, o)| is_calm(o)).map(|(&r, _)| r).collect()
    }
}

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("sim-vs-real")?;
    let entry = zoo::find(MODEL).ok_or_else(|| anyhow::anyhow!("no model {MODEL}"))?;
    let mut bench = Bench {
        settings,
        program: Arc::new(entry.program()?),
        pool: words::sample(POOL, settings.seed)
            .iter()
            .filter_map(|w| words::item(w.spelling))
            .collect(),
        output_lens: Vec::new(),
        sla: entry.sla,
    };
    let profile = bench.measured()?;
    let alone = bench.serving(&profile, &bench.device()).serial_pass()?;
    bench.output_lens = alone.steps;
    let capacity = bench.capacity(&profile)?;
    let calls = bench.calls(LOAD * capacity)?;
    let arrivals = bench.arrivals(&calls);
    let mut outcomes: Vec<Outcome> = POLICIES.iter().map(|_| Outcome::default()).collect();
    for _ in 0..settings.repeats {
        for (policy, outcome) in POLICIES.iter().zip(&mut outcomes) {
            let contention = Contention::watch();
            let profile = bench.measured()?;
            let profiling = contention.share();
            let contention = Contention::watch();
            bench.compare(&profile, policy, &calls, &arrivals, outcome)?;
            outcome.others.push((profiling, contention.share()));
        }
    }
    bench.record(&recorder, &outcomes, capacity)
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
    fn measured(&self) -> anyhow::Result<Profile> {
        let mut device = self.device()()?;
        let items = &self.pool[..PROFILE_POOL.min(self.pool.len())];
        let measured = measure(device.as_mut(), &self.program, items, MAX_BATCH, SEGMENT_US)?;
        let mut lens = self.output_lens.clone();
        lens.sort_unstable();
        let p90 = (lens.len() * 9).div_ceil(10).max(1);
        let model = ModelProfile {
            name: MODEL.into(),
            output_len_p90: lens.get(p90 - 1).copied(),
            ..measured.profile
        };
        Ok(Profile {
            format: FORMAT.into(),
            device: measured.device,
            copy_gbps: 0.0,
            dispatch_us: 0.0,
            models: vec![model],
        })
    }

    fn serving<'a>(&'a self, profile: &Profile, device: &'a dyn Fn() -> MadeDevice) -> Serving<'a> {
        let known = !self.output_lens.is_empty();
        Serving {
            model: MODEL,
            program: self.program.clone(),
            options: ModelOptions {
                profile: profile.models.first().cloned(),
                max_batch: Some(MAX_BATCH),
                ..ModelOptions::default()
            },
            device,
            pool: &self.pool,
            output_lens: known.then_some(&self.output_lens),
            sla: self.sla,
            drain: Nanos::from_ms(60_000),
            timing: false,
            trace: false,
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
    fn calls(&self, rate: f64) -> anyhow::Result<Vec<Call>> {
        let process = Process::Poisson { rate_rps: rate };
        let stream = Stream::new(MODEL, process, Lengths::fixed(1, 1));
        let limit = Limit::Requests(self.settings.requests);
        let arrivals = Workload::single(stream, limit).generate(self.settings.seed)?;
        let call = |(i, a): (usize, &Arrival)| Call {
            at: a.at,
            sla: None,
            item: (i * 7919 + 13) % self.pool.len(),
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

    fn compare(
        &self,
        profile: &Profile,
        policy: &str,
        calls: &[Call],
        arrivals: &[Arrival],
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let meter = Arc::new(Mutex::new(Meter::default()));
        let device = self.metered(&meter);
        let served = self.serving(profile, &device).run(policy, calls)?;
        let (launch_ratio, dispatch_us) = {
            let meter = meter.lock().expect("no holder panics");
            let gaps = Spread::of(meter.gaps.clone());
            (launch_ratio(profile, &meter.launches), gaps.median() / 1e3)
        };
        let profile = Profile {
            dispatch_us,
            ..profile.clone()
        };
        let simulation = Simulation {
            profile: &profile,
            arrivals,
            sla: Some(self.sla),
            segment: 1,
            decide: Nanos::ZERO,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        };
        let simulated = simulation.run(policy, None, &mut (), false)?;
        let real = Spread::of(latencies_ms(&served.requests));
        let sim = Spread::of(latencies_ms(&simulated.requests));
        let (real_mean, sim_mean) = (real.mean(), sim.mean());
        let batch =
            |c: &lazybatch_workloads::results::Counters| c.members as f64 / c.launches as f64;
        outcome.launch_ratio.push(launch_ratio);
        outcome.dispatch_us.push(dispatch_us);
        outcome.real_ms.push(real_mean);
        outcome.simulated_ms.push(sim_mean);
        outcome.ratio.push(sim_mean / real_mean);
        outcome
            .p99_ratio
            .push(sim.percentile(99) / real.percentile(99));
        outcome
            .batch_ratio
            .push(batch(&simulated.counters) / batch(&served.counters));
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
                "real_mean_ms_median": median(&outcome.real_ms),
                "simulated_mean_ms_median": median(&outcome.simulated_ms),
                "p99_ratio_median": median(&outcome.p99_ratio),
                "mean_batch_ratio_median": median(&outcome.batch_ratio),
                "others_while_profiling": all(&outcome.others.iter().map(|o| o.0).collect::<Vec<_>>()),
                "others_while_serving": all(&outcome.others.iter().map(|o| o.1).collect::<Vec<_>>()),
                "launch_time_ratios": all(&outcome.launch_ratio),
                "dispatch_us_median": median(&outcome.dispatch_us),
                "ratios": all(&outcome.ratio),
                "calm_ratios": all(&outcome.calm()),
            });
            let ratio = Spread::of(outcome.ratio.clone());
            recorder.line(figures, "simulated_over_real_mean_latency", &ratio)?;
        }
        Ok(())
    }
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
