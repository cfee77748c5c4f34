//! Policies in real time on the CPU device, beside the simulation of the same arrivals.
//!
//! The model's latency tables are measured first, and a short backlog under `continuous` gives the time
//! between launches (`dispatch_us` of the profile). From the profile come, by simulation, the time of a
//! request alone, which the SLA target is a multiple of, and the capacity (docs/sweeps.md). At each
//! load every policy serves the same arrivals of the same inputs, in an order that rotates from pair
//! to pair. On a machine that others share launches come to take more than the tables say, or less: by
//! what those of the last two pairs took over them (at first, of a run that is not counted) the
//! tables, the target and the rate are changed that a pair goes by; the time between launches is that
//! of these runs. As both change from run to run too, each is also simulated over tables by what its
//! own launches took, and the time between them. All runs use one device, which stays warm. The first
//! tenth of the arrivals is served but not counted, real or simulated (but for `mean_batch`, which is
//! over all launches): what a policy learns, it learns while it serves.
//!
//! Decoders with synthetic weights end behind a number of passes that is drawn with the input
//! ([`Shelf`]); the trained model's, behind the passes that it takes alone.

mod options;
mod summary;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use lazybatch_benches::clock;
use lazybatch_benches::contention::Contention;
use lazybatch_benches::metered::{Meter, Metered, Timed, gap_us, took_over_table};
use lazybatch_benches::planned::planned;
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::reused::Shelf;
use lazybatch_benches::spread::Spread;
use lazybatch_engine::ModelOptions;
use lazybatch_engine::measure::{SegmentLength, measure};
use lazybatch_graph::SharedProgram;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, Noise};
use lazybatch_sla::{LatencyTable, Nanos, OutputLen, Profile, Time, segments_of};
use lazybatch_workloads::arrivals::{Arrival, Limit, Stream, Workload, mean_rate, transform};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::{Call, Detail, Hosted, Served, Serving, Simulation, words};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::results::{Counters, FinishedRequest, RunResult};
use lazybatch_workloads::sweep::score::objective_ms;
use lazybatch_workloads::sweep::{cases, points};
use lazybatch_workloads::traces;
use serde_json::{Value, json};

pub use options::Options;

/// Items that arrivals draw from.
const POOL: usize = 256;
/// Items that the tables are measured with.
const PROFILE_POOL: usize = 64;
/// Requests that are served one after another, to hold their simulated times against.
const ALONE: usize = 6;
/// Requests of the backlog that gives the time between launches.
const BACKLOG: usize = 32;
/// One in so many arrivals, the first ones, is not counted.
const WARM_UP: usize = 10;
/// Counted requests from which on a p99 is told: of fewer it hangs on a few of them.
const LEAST_OF_P99: u64 = 2000;
/// A target that nobody misses.
const NO_SLA: Nanos = Nanos::from_ms(3_600_000);
/// Time behind the last arrival within which all must have ended.
const DRAIN: Nanos = Nanos::from_ms(300_000);

/// What all runs share.
struct Bench<'a> {
    options: &'a Options,
    program: SharedProgram,
    shelf: Shelf,
    pool: Vec<Item>,
    output_lens: Vec<u32>,
    /// As measured, and what follows from it.
    base: Rated,
    /// As the machine is now.
    now: Rated,
    /// What launches took, by run, those of the last two pairs.
    took: VecDeque<Took>,
    /// Arrivals of a trace, all of them.
    trace: Option<Vec<Arrival>>,
}

/// Latency tables, and what follows from them.
#[derive(Clone)]
struct Rated {
    /// By how much everything takes longer than when it was measured.
    slower: f64,
    profile: Profile,
    sla: Nanos,
    capacity_rps: f64,
}

/// What the launches of a run took.
#[derive(Clone, Copy)]
struct Took {
    /// Over the tables as measured.
    in_all: f64,
    /// From one to the next, where somebody was open all the while: microseconds, a mean. None
    /// where nobody was.
    gap_us: Option<f64>,
}

impl Took {
    /// The mean of some runs, of which there is at least one.
    fn mean<'t>(runs: impl Iterator<Item = &'t Self> + Clone) -> Self {
        let in_all: Vec<f64> = runs.clone().map(|t| t.in_all).collect();
        Self {
            in_all: points::mean(&in_all),
            gap_us: mean_of_some(runs.filter_map(|t| t.gap_us)),
        }
    }
}

impl Rated {
    /// Of a machine whose launches take so long: targets and the time of a request go with them.
    fn slowed(&self, took: Took) -> Self {
        let factor = took.in_all;
        let mut profile = self.profile.clone();
        profile.dispatch_us = took.gap_us.unwrap_or(profile.dispatch_us * factor);
        let blocks = profile.models.iter_mut().flat_map(|m| &mut m.blocks);
        let nodes = blocks.flat_map(|b| &mut b.nodes);
        for (_, us) in nodes.flat_map(|n| &mut n.latency_us) {
            *us *= factor;
        }
        Self {
            slower: self.slower * factor,
            profile,
            sla: Nanos::from_ms_f64(self.sla.as_ms() * factor),
            capacity_rps: self.capacity_rps / factor,
        }
    }
}

/// One policy over one pair's arrivals, real or simulated; without the warm-up.
struct Outcome {
    result: RunResult,
    j_ms: f64,
}

impl Outcome {
    /// The p99 in milliseconds, of enough requests.
    fn p99_ms(&self) -> Option<f64> {
        (self.result.requests >= LEAST_OF_P99).then_some(self.result.p99_ms)
    }
}

/// What a policy gave at one load, by pair.
#[derive(Default)]
struct Outcomes {
    real: Vec<Outcome>,
    simulated: Vec<Outcome>,
    /// Simulated over tables by what launches took in that very run.
    as_took: Vec<Outcome>,
}

/// Runs the measurement.
///
/// # Errors
/// A trace or file that cannot be used, a model that the device refuses, or a request that was not
/// answered.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let recorder = Recorder::file(&options.out, "realtime", &options.command)?;
    let mut bench = Bench::open(options)?;
    bench.calibrate(&recorder)?;
    if let Some(&load) = options.loads.first() {
        bench.first_look(load)?;
    }
    for &load in &options.loads {
        let mut outcomes: Vec<Outcomes> = options
            .policies
            .iter()
            .map(|_| Outcomes::default())
            .collect();
        for pair in 0..options.pairs {
            bench.now = bench.base.slowed(Took::mean(bench.took.iter()));
            let calls = bench.calls(load * bench.now.capacity_rps, options.seed + pair as u64)?;
            for i in 0..options.policies.len() {
                // Each goes first in turn.
                let i = (i + pair) % options.policies.len();
                let policy = &options.policies[i];
                bench.pair(&recorder, load, pair, policy, &calls, &mut outcomes[i])?;
            }
        }
        bench.sum_up(&recorder, load, &outcomes)?;
    }
    Ok(())
}

impl<'a> Bench<'a> {
    /// With the profile as it was measured.
    fn open(options: &'a Options) -> anyhow::Result<Self> {
        let entry = options.entry;
        let trace = match options.arrivals.strip_prefix("trace:") {
            None => None,
            Some(file) => {
                let model = Some(entry.name.into());
                let format = None;
                let read = traces::Options { format, model };
                Some(traces::read(file.as_ref(), &read)?)
            }
        };
        let program: SharedProgram = Arc::new(entry.program()?);
        let is_trained = entry.name == words::MODEL;
        let (pool, output_lens) = match is_trained {
            true => (words::pool(POOL, options.seed), Vec::new()),
            false => inputs::drawn(&entry.served(&program), POOL, options.seed)?,
        };
        let shelf = Shelf::new(Box::new(CpuDevice::new(CpuOptions {
            threads: options.threads,
            ..CpuOptions::default()
        })));
        let items = &pool[..PROFILE_POOL.min(pool.len())];
        let (mut device, max_batch) = (shelf.take()?, options.max_batch);
        let mut profile = measure(
            &mut device,
            &program,
            items,
            max_batch,
            SegmentLength::ByDevice,
        )?
        .into_profile();
        drop(device);
        profile.models[0].name = entry.name.into();
        let base = Rated {
            slower: 1.0,
            profile,
            sla: NO_SLA,
            capacity_rps: 0.0,
        };
        let mut bench = Self {
            options,
            program,
            shelf,
            pool,
            output_lens,
            now: base.clone(),
            base,
            took: VecDeque::new(),
            trace,
        };
        if is_trained {
            let meter = Arc::default();
            let device = bench.device(&meter);
            bench.output_lens = bench.serving(&device).serial_pass()?.steps;
        }
        let lens = bench.output_lens.iter().copied();
        let p90 = OutputLen::covering(OutputLen::COVERAGE, lens).predict();
        bench.base.profile.models[0].output_len_p90 = entry.max_output_len.map(|max| p90.min(max));
        bench.now = bench.base.clone();
        Ok(bench)
    }

    /// The time between launches, the time of a request alone, and from these the SLA target and the
    /// capacity.
    fn calibrate(&mut self, recorder: &Recorder) -> anyhow::Result<()> {
        let meter: Arc<Mutex<Meter>> = Arc::default();
        let backlog = self.waiting(BACKLOG);
        let full = self.serve("greedy", &backlog, &Arc::default())?;
        self.serve("continuous", &backlog, &meter)?;
        let launches = std::mem::take(&mut meter.lock().expect("no holder panics").launches);
        self.base.profile.dispatch_us = gap_us(&launches).unwrap_or_default();
        self.now = self.base.clone();
        let few = self.waiting(ALONE);
        let served = self.serve("serial", &few, &meter)?;
        let alone = per_request(&served.requests);
        let simulated_ms = |policy: &str, calls: &[Call]| -> anyhow::Result<f64> {
            let arrivals = self.arrivals(calls);
            let done = self
                .simulation(&arrivals)
                .run(policy, None, &mut (), Detail::Launches)?;
            Ok(per_request(&done.requests))
        };
        let ratio_alone = simulated_ms("serial", &few)? / alone;
        let ratio_full = simulated_ms("greedy", &backlog)? / per_request(&full.requests);
        let alone_ms = simulated_ms("serial", &self.waiting(self.pool.len()))?;
        let queue = self.waiting(cases::full_batches(self.options.max_batch));
        let capacity_rps = self.simulation(&self.arrivals(&queue)).drain_rate()?;
        self.base.capacity_rps = capacity_rps;
        self.base.sla = Nanos::from_ms_f64(self.options.sla * alone_ms);
        self.now = self.base.clone();
        let mut figures = self.figures(&self.base);
        figures["alone_ms"] = rounded(alone_ms);
        figures["dispatch_us"] = rounded(self.base.profile.dispatch_us);
        figures["segments"] = json!(
            self.base.profile.models[0]
                .blocks
                .iter()
                .map(|b| b.nodes.len())
                .collect::<Vec<_>>()
        );
        figures["simulated_over_real_alone"] = rounded(ratio_alone);
        figures["simulated_over_real_backlog"] = rounded(ratio_full);
        recorder.line(figures, "capacity_rps", &Spread::of(vec![capacity_rps]))
    }

    /// A run that is not counted, for what launches take when the first pair begins.
    fn first_look(&mut self, load: f64) -> anyhow::Result<()> {
        let calls = self.calls(load * self.now.capacity_rps, self.options.seed)?;
        let meter = Arc::default();
        self.serve(&self.options.policies[0], &calls, &meter)?;
        let launches = &meter.lock().expect("no holder panics").launches;
        self.took.push_back(self.took(launches));
        Ok(())
    }

    /// The device for a run, its launches noted in `meter`.
    fn device(
        &self,
        meter: &Arc<Mutex<Meter>>,
    ) -> impl Fn() -> lazybatch_workloads::Result<Box<dyn Device>> + use<> {
        let (shelf, meter) = (self.shelf.clone(), meter.clone());
        move || {
            let taken = shelf.take();
            let taken = taken.map_err(|e| lazybatch_workloads::Error::run("device", e))?;
            Ok(Box::new(Metered::new(Box::new(taken), meter.clone())))
        }
    }

    fn serving<'b>(
        &'b self,
        device: &'b dyn Fn() -> lazybatch_workloads::Result<Box<dyn Device>>,
    ) -> Serving<'b> {
        let known = !self.output_lens.is_empty();
        Serving {
            models: vec![Hosted {
                name: self.options.entry.name,
                program: self.program.clone(),
                options: ModelOptions {
                    profile: self.now.profile.models.first().cloned(),
                    max_batch: Some(self.options.max_batch),
                    ..ModelOptions::default()
                },
            }],
            device,
            pool: &self.pool,
            output_lens: known.then_some(&self.output_lens),
            sla: self.now.sla,
            classes: Vec::new(),
            drain: DRAIN,
            timing: false,
            trace: false,
            keeps_outputs: false,
            is_checked: true,
            depth: None,
            client: None,
        }
    }

    /// `num` requests that wait from the start.
    fn waiting(&self, num: usize) -> Vec<Call> {
        (0..num).map(|i| self.call(i, Time::ZERO)).collect()
    }

    /// Request `i`: neighbours are far apart in the pool.
    fn call(&self, i: usize, at: Time) -> Call {
        Call {
            at,
            item: (i * 7919 + 13) % self.pool.len(),
            ..Call::default()
        }
    }

    /// Arrivals at a mean rate of `rate_rps`, exactly: few that are drawn could differ by a tenth.
    fn calls(&self, rate_rps: f64, seed: u64) -> anyhow::Result<Vec<Call>> {
        let num = self.options.span.requests(rate_rps);
        let spec = &self.options.arrivals;
        let arrivals = match &self.trace {
            Some(all) => transform::stretch(all, num, rate_rps, seed)?,
            None => {
                let process = cases::process(spec, rate_rps);
                let process = process.with_context(|| format!("--arrivals: {spec}"))?;
                let stream = Stream::new(self.options.entry.name, process, Lengths::fixed(1, 1));
                let mut drawn = Workload::single(stream, Limit::Requests(num)).generate(seed)?;
                transform::scale_to_rate(&mut drawn, rate_rps)?;
                drawn
            }
        };
        let calls = arrivals.iter().enumerate();
        Ok(calls.map(|(i, a)| self.call(i, a.at)).collect())
    }

    fn arrivals(&self, calls: &[Call]) -> Vec<Arrival> {
        let arrival = |c: &Call| {
            let input_len = self.pool[c.item].input_len;
            Arrival::new(
                c.at,
                self.options.entry.name,
                input_len,
                self.output_lens[c.item],
            )
        };
        calls.iter().map(arrival).collect()
    }

    fn simulation<'b>(&'b self, arrivals: &'b [Arrival]) -> Simulation<'b> {
        self.simulation_over(&self.now.profile, arrivals)
    }

    fn simulation_over<'b>(
        &'b self,
        profile: &'b Profile,
        arrivals: &'b [Arrival],
    ) -> Simulation<'b> {
        Simulation {
            profile,
            arrivals,
            sla: Some(self.now.sla),
            classes: &[],
            segment: 1,
            decide: Nanos::ZERO,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        }
    }

    /// Serves `calls`, all of which must be answered.
    fn serve(
        &self,
        policy: &str,
        calls: &[Call],
        meter: &Arc<Mutex<Meter>>,
    ) -> anyhow::Result<Served> {
        let device = self.device(meter);
        let served = self.serving(&device).run(policy, calls)?;
        let num = served
            .requests
            .iter()
            .filter(|r| r.outcome.is_completed())
            .count();
        if num < calls.len() {
            bail!(
                "{policy}: expected answers to {} requests, got {num}",
                calls.len()
            );
        }
        Ok(served)
    }

    fn outcome(
        &self,
        policy: &str,
        rate_rps: f64,
        requests: &[FinishedRequest],
        counters: &Counters,
    ) -> Outcome {
        let (name, counted) = (
            self.options.entry.name,
            &requests[requests.len() / WARM_UP..],
        );
        Outcome {
            result: RunResult::summarise(policy, name, rate_rps, self.now.sla, counted, counters),
            j_ms: objective_ms(counted, self.now.sla),
        }
    }

    /// One policy over one pair's arrivals, served and simulated.
    fn pair(
        &mut self,
        recorder: &Recorder,
        load: f64,
        pair: usize,
        policy: &str,
        calls: &[Call],
        outcomes: &mut Outcomes,
    ) -> anyhow::Result<()> {
        let arrivals = self.arrivals(calls);
        let rate_rps = mean_rate(&arrivals).unwrap_or_default();
        let (contention, meter) = (Contention::watch(), Arc::default());
        let (wall_ns, served) = clock::time(|| self.serve(policy, calls, &meter));
        let (served, others) = (served?, contention.share());
        let done = self
            .simulation(&arrivals)
            .run(policy, None, &mut (), Detail::Launches)?;
        let real = self.outcome(policy, rate_rps, &served.requests, &served.counters);
        let simulated = self.outcome(policy, rate_rps, &done.requests, &done.counters);
        let launches = &meter.lock().expect("no holder panics").launches;
        let took = self.took(launches);
        let own = self.base.slowed(took).profile;
        let own = self.simulation_over(&own, &arrivals);
        let own = own.run(policy, None, &mut (), Detail::Launches)?;
        let as_took = self.outcome(policy, rate_rps, &own.requests, &own.counters);
        let busy_ns: f64 = launches.iter().map(|l| l.ns).sum();
        let gaps = launches.iter().filter_map(|l| l.busy_gap_ns);
        let gaps_ns = gaps.fold(0.0, |sum, ns| sum + ns);
        let mut figures = self.figures(&self.now);
        figures["load"] = json!(load);
        figures["policy"] = json!(policy);
        figures["pair"] = json!(pair);
        figures["arrivals_seed"] = json!(self.options.seed + pair as u64);
        figures["rate_rps"] = rounded(rate_rps);
        figures["requests"] = json!(calls.len());
        figures["not_counted"] = json!(calls.len() / WARM_UP);
        figures["p50_ms"] = rounded(real.result.p50_ms);
        figures["p99_ms"] = json!(real.p99_ms().map(rounded));
        figures["violation_rate"] = rounded(real.result.violation_rate);
        figures["goodput_rps"] = rounded(real.result.goodput_rps);
        figures["mean_batch"] = rounded(real.result.mean_batch);
        figures["j_ms"] = rounded(real.j_ms);
        planned(&mut figures, &served);
        figures["wall_s"] = rounded(wall_ns / 1e9);
        figures["launches_s"] = rounded(busy_ns / 1e9);
        figures["gaps_s"] = rounded(gaps_ns / 1e9);
        figures["others"] = rounded(others);
        figures["slower"] = rounded(self.now.slower);
        figures["took_in_all"] = rounded(took.in_all);
        figures["gap_us"] = json!(took.gap_us.map(rounded));
        figures["took_over_table"] = self.took_over_table(launches);
        figures["simulated_mean_ms"] = rounded(simulated.result.mean_ms);
        figures["simulated_p99_ms"] = json!(simulated.p99_ms().map(rounded));
        figures["simulated_j_ms"] = rounded(simulated.j_ms);
        figures["simulated_as_took_mean_ms"] = rounded(as_took.result.mean_ms);
        figures["simulated_as_took_p99_ms"] = json!(as_took.p99_ms().map(rounded));
        figures["simulated_as_took_j_ms"] = rounded(as_took.j_ms);
        figures["simulated_mean_batch"] = rounded(simulated.result.mean_batch);
        recorder.line(figures, "mean_ms", &Spread::of(vec![real.result.mean_ms]))?;
        outcomes.real.push(real);
        outcomes.simulated.push(simulated);
        outcomes.as_took.push(as_took);
        self.took.push_back(took);
        if self.took.len() > 2 * self.options.policies.len() {
            self.took.pop_front();
        }
        Ok(())
    }

    fn took(&self, launches: &[Timed]) -> Took {
        Took {
            in_all: took_over_table(launches, &self.table()).unwrap_or_default(),
            gap_us: gap_us(launches),
        }
    }

    fn table(&self) -> LatencyTable {
        let model = &self.base.profile.models[0];
        LatencyTable::new(model, &segments_of(model, 1), 0.0, 0.0)
    }

    /// Time of launches over what the tables say, as measured, by block and by their samples: of 1,
    /// of 2 and 3, of 4 to 7, and so on; null where there were none.
    fn took_over_table(&self, launches: &[Timed]) -> Value {
        let table = self.table();
        let num_blocks = self.base.profile.models[0].blocks.len();
        let mut sums: Vec<Vec<(f64, f64)>> = vec![Vec::new(); num_blocks];
        for l in launches {
            let (sums, i) = (
                &mut sums[l.block as usize],
                l.samples.max(1).ilog2() as usize,
            );
            sums.resize(sums.len().max(i + 1), (0.0, 0.0));
            let predicted = table.segment(l.block, l.segment, l.samples, l.rows);
            sums[i] = (sums[i].0 + l.ns, sums[i].1 + predicted.0 as f64);
        }
        let ratio = |s: &(f64, f64)| (s.1 > 0.0).then(|| rounded(s.0 / s.1));
        let block = |b: &Vec<(f64, f64)>| b.iter().map(ratio).collect::<Vec<_>>();
        json!(sums.iter().map(block).collect::<Vec<_>>())
    }

    /// What every line states; a pair's say what the pair goes by, others what was measured.
    fn figures(&self, rated: &Rated) -> Value {
        json!({
            "model": self.options.entry.name, "threads": self.options.threads,
            "seed": self.options.seed, "max_batch": self.options.max_batch,
            "arrivals": self.options.arrivals, "sla_ms": rounded(rated.sla.as_ms()),
            "sla_over_alone": self.options.sla, "capacity_rps": rounded(rated.capacity_rps),
        })
    }
}

fn mean_of_some(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| points::mean(&values))
}

/// Milliseconds from the first launch to the last end, by request.
fn per_request(requests: &[FinishedRequest]) -> f64 {
    let first = requests.iter().filter_map(|r| r.first_launch).min();
    let last = requests.iter().map(|r| r.finish).max();
    let span = last.unwrap_or_default().since(first.unwrap_or_default());
    span.as_ms() / requests.len().max(1) as f64
}

#[cfg(test)]
mod tests;
