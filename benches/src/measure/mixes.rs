//! Several models on one CPU device in real time, under policies in turns, beside the simulation of the
//! same arrivals.
//!
//! Each model's latency tables are measured first. Before each pair the capacity is measured anew, as
//! machines that others share are faster now and slower then: requests per second at which `greedy` or
//! `continuous`, whichever is faster, drains inputs of all models, in the shares of the mix. Every policy
//! then serves the same arrivals at the load's share of it, in an order that rotates from pair to pair. The
//! first tenth of them is served but not counted, real or simulated (but for `mean_batch`, which is over all
//! launches): what a policy learns, it learns while it serves.
//!
//! Simulated figures go by the tables as they were measured first, without the time between launches: they
//! say how policies compare, not how long requests take.
//!
//! Decoders end behind a number of passes that is drawn with the input ([`Shelf`]). A run in which a request
//! is not answered is an error, so policies that shed cannot be compared.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use lazybatch_benches::contention::Contention;
use lazybatch_benches::metered::{Meter, Metered, Timed, gap_us, took_over_table};
use lazybatch_benches::planned::planned;
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::reused::Shelf;
use lazybatch_benches::spread::Spread;
use lazybatch_engine::measure::{SegmentLength, measure};
use lazybatch_engine::{ModelOptions, policy};
use lazybatch_graph::SharedProgram;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, Noise};
use lazybatch_sla::{LatencyTable, Nanos, OutputLen, Profile, segments_of};
use lazybatch_workloads::arrivals::{Arrival, Limit, Process, Stream, Workload, transform};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::{Call, Detail, Hosted, Serving, Simulation};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::results::{Counters, FinishedRequest, RunResult};
use lazybatch_workloads::sweep::grid::Workload as Mix;
use lazybatch_workloads::sweep::score::objective_ms;
use lazybatch_workloads::zoo;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::args::{above_0, all_cores, pairs, positive, read};

/// Items of all models, in the shares of the mix: so many that the last of them, which a backlog ends with,
/// matter little to the capacity.
const POOL: usize = 1024;
/// One in so many arrivals, the first ones, is not counted.
const WARM_UP: usize = 10;
/// Time behind the last arrival within which all must have ended.
const DRAIN: Nanos = Nanos::from_ms(300_000);

/// What is compared, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Models and their shares of the requests.
    pub mix: Mix,
    /// Where lines go.
    pub out: PathBuf,
    /// Seconds of arrivals in a run.
    pub seconds: f64,
    /// Offered rates as shares of the capacity.
    pub loads: Vec<f64>,
    /// Runs of each policy at each load.
    pub pairs: usize,
    /// The first is compared to each of the others.
    pub policies: Vec<String>,
    /// SLA target of all models.
    pub sla: Nanos,
    /// Most requests of one launch.
    pub max_batch: u32,
    /// Threads of the device.
    pub threads: usize,
    /// Seed of inputs, and of the first pair's arrivals.
    pub seed: u64,
    /// The command line that repeats this.
    pub command: String,
}

impl Options {
    /// Reads pairs of option and value.
    ///
    /// # Errors
    /// An option that is unknown, missing, or has a bad value.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (mut mix, mut out, mut seconds, mut sla) = (None, None, None, None);
        let mut loads = vec![0.6, 0.9];
        let mut policies: Vec<String> = vec!["adaptive".into(), "greedy".into()];
        let (mut num_pairs, mut max_batch, mut threads, mut seed) = (7, 64, all_cores(), 1);
        for (key, value) in pairs(args)? {
            match key {
                "--mix" => {
                    let expected = || format!("--mix: expected NAME:SHARE+NAME:SHARE, got {value}");
                    let read = Mix::try_from(value.to_string());
                    mix = Some(read.ok().with_context(expected)?);
                }
                "--out" => out = Some(PathBuf::from(value)),
                "--seconds" => seconds = Some(above_0(key, value)?),
                "--sla-ms" => sla = Some(Nanos::from_ms_f64(above_0(key, value)?)),
                "--loads" => {
                    let read = value.split(',').map(|load| above_0(key, load));
                    loads = read.collect::<Result<_, _>>()?;
                }
                "--pairs" => num_pairs = positive(key, value)?,
                "--policies" => {
                    policies = value.split(',').map(str::to_string).collect();
                    for name in &policies {
                        policy::find(name).with_context(|| key.to_string())?;
                    }
                }
                "--max-batch" => max_batch = positive(key, value)?,
                "--threads" => threads = positive(key, value)?,
                "--seed" => seed = read(key, value, "a whole number")?,
                _ => bail!("{key} {value}: no such option"),
            }
        }
        Ok(Self {
            mix: mix.context("--mix: expected models, got nothing")?,
            out: out.context("--out: expected a file, got nothing")?,
            seconds: seconds.context("--seconds: expected a length of runs, got nothing")?,
            sla: sla.context("--sla-ms: expected a target, got nothing")?,
            loads,
            pairs: num_pairs,
            policies,
            max_batch,
            threads,
            seed,
            command: command.into(),
        })
    }

    fn device(&self) -> Box<dyn Device> {
        Box::new(CpuDevice::new(CpuOptions {
            threads: self.threads,
            ..CpuOptions::default()
        }))
    }
}

/// One policy over one pair's arrivals, real or simulated; without the warm-up.
struct Outcome {
    result: RunResult,
    j_ms: f64,
}

/// What a policy gave at one load, by pair.
#[derive(Default)]
struct Outcomes {
    real: Vec<Outcome>,
    simulated: Vec<Outcome>,
}

/// The models and their inputs.
struct Bench<'a> {
    options: &'a Options,
    models: Vec<Hosted<'a>>,
    profile: Profile,
    /// The device of all runs.
    shelf: Shelf,
    pool: Vec<Item>,
    /// Passes of the decoder, by item; 0 of models without.
    output_lens: Vec<u32>,
}

/// Runs the measurement.
///
/// # Errors
/// A model that is unknown or that the device refuses, a file that cannot be written, or a
/// request that was not answered.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let recorder = Recorder::file(&options.out, "mixes", &options.command)?;
    let bench = Bench::open(options)?;
    for &load in &options.loads {
        let none = |_| Outcomes::default();
        let mut outcomes: Vec<Outcomes> = options.policies.iter().map(none).collect();
        for pair in 0..options.pairs {
            let rate_rps = load * bench.capacity()?;
            let calls = bench.calls(rate_rps, options.seed + pair as u64)?;
            for i in 0..options.policies.len() {
                // Each goes first in turn.
                let i = (i + pair) % options.policies.len();
                let (real, simulated) = bench.pair(&recorder, (load, pair, i), rate_rps, &calls)?;
                outcomes[i].real.push(real);
                outcomes[i].simulated.push(simulated);
            }
        }
        bench.sum_up(&recorder, load, &outcomes)?;
    }
    Ok(())
}

impl<'a> Bench<'a> {
    /// With latency tables as they are measured.
    fn open(options: &'a Options) -> anyhow::Result<Self> {
        let find = |name: &str| {
            let names: Vec<_> = zoo::names().collect();
            let expected = format!("--mix: expected some of {}, got {name}", names.join(", "));
            zoo::find(name).context(expected)
        };
        let parts = options.mix.parts.iter();
        let parts = parts.map(|(name, share)| Ok((find(name)?, share)));
        let parts: Vec<_> = parts.collect::<anyhow::Result<_>>()?;
        let (mut models, mut profile) = (Vec::new(), None);
        let (mut pool, mut output_lens) = (Vec::new(), Vec::new());
        for (i, (entry, share)) in parts.into_iter().enumerate() {
            let program: SharedProgram = Arc::new(entry.program()?);
            let num = ((POOL as f64 * share).round() as usize).max(1);
            let (mut items, mut lens) = inputs::drawn(&entry.served(&program), num, options.seed)?;
            let (by, most) = (SegmentLength::ByDevice, options.max_batch);
            let measured = measure(&mut *options.device(), &program, &items, most, by)?;
            let mut measured = measured.into_profile();
            let of_model = &mut measured.models[0];
            of_model.name = entry.name.into();
            let p90 = OutputLen::covering(OutputLen::COVERAGE, lens.iter().copied()).predict();
            of_model.output_len_p90 = entry.max_output_len.map(|max| p90.min(max));
            output_lens.append(&mut lens);
            items.iter_mut().for_each(|item| item.model = i);
            pool.append(&mut items);
            models.push(Hosted {
                name: entry.name,
                program,
                options: ModelOptions {
                    profile: measured.models.first().cloned(),
                    max_batch: Some(options.max_batch),
                    ..ModelOptions::default()
                },
            });
            match &mut profile {
                None => profile = Some(measured),
                Some(all) => all.models.append(&mut measured.models),
            }
        }
        Ok(Self {
            options,
            models,
            profile: profile.context("--mix: expected models, got none")?,
            shelf: Shelf::new(options.device()),
            pool,
            output_lens,
        })
    }

    fn serving<'b>(
        &'b self,
        device: &'b dyn Fn() -> lazybatch_workloads::Result<Box<dyn Device>>,
    ) -> Serving<'b> {
        Serving {
            models: self.models.clone(),
            device,
            pool: &self.pool,
            output_lens: Some(&self.output_lens),
            sla: self.options.sla,
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

    /// The device for a run, its launches noted in `meter`.
    fn device(&self, meter: &Arc<Mutex<Meter>>) -> lazybatch_workloads::Result<Box<dyn Device>> {
        let taken = self.shelf.take();
        let taken = taken.map_err(|e| lazybatch_workloads::Error::run("device", e))?;
        Ok(Box::new(Metered::new(Box::new(taken), meter.clone())))
    }

    fn capacity(&self) -> anyhow::Result<f64> {
        let meter = Arc::default();
        let device = || self.device(&meter);
        let serving = self.serving(&device);
        // Whole batches pay for the longest of them, where models have loops.
        Ok(serving
            .capacity("greedy")?
            .max(serving.capacity("continuous")?))
    }

    /// Arrivals at a mean rate of `rate_rps`, exactly, of inputs that are drawn.
    fn calls(&self, rate_rps: f64, seed: u64) -> anyhow::Result<Vec<Call>> {
        let num = ((rate_rps * self.options.seconds).round() as usize).max(10);
        let stream = Stream::new("mix", Process::Poisson { rate_rps }, Lengths::fixed(1, 1));
        let mut drawn = Workload::single(stream, Limit::Requests(num)).generate(seed)?;
        transform::scale_to_rate(&mut drawn, rate_rps)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Another one than that of the times.
        rng.set_stream(1);
        let call = |a: &Arrival| Call {
            at: a.at,
            item: self.draw(&mut rng),
            ..Call::default()
        };
        Ok(drawn.iter().map(call).collect())
    }

    /// An item: of a model by its share, which few items may round.
    fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        let mut left: f64 = rng.random();
        let shares = self.options.mix.parts.iter().map(|part| part.1);
        let chosen = shares.enumerate().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        let model = chosen.map_or(self.models.len() - 1, |(i, _)| i);
        let first = self.pool.partition_point(|item| item.model < model);
        let end = self.pool.partition_point(|item| item.model <= model);
        rng.random_range(first..end)
    }

    /// One policy, the `i`-th, over the arrivals of a pair, served and simulated.
    fn pair(
        &self,
        recorder: &Recorder,
        (load, pair, i): (f64, usize, usize),
        rate_rps: f64,
        calls: &[Call],
    ) -> anyhow::Result<(Outcome, Outcome)> {
        let policy = &self.options.policies[i];
        let meter: Arc<Mutex<Meter>> = Arc::default();
        let device = || self.device(&meter);
        let contention = Contention::watch();
        let served = self.serving(&device).run(policy, calls)?;
        let others = contention.share();
        let ended = served.requests.iter();
        let num = ended.filter(|r| r.outcome.is_completed()).count();
        if num < calls.len() {
            bail!("{policy}: expected {} answers, got {num}", calls.len());
        }
        let arrivals = self.arrivals(calls);
        let done = self.simulation(&arrivals);
        let done = done.run(policy, None, &mut (), Detail::Launches)?;
        let outcome = |requests: &[FinishedRequest], counters: &Counters| {
            let (label, sla) = (&self.options.mix.label, self.options.sla);
            let counted = &requests[requests.len() / WARM_UP..];
            Outcome {
                result: RunResult::summarise(policy, label, rate_rps, sla, counted, counters),
                j_ms: objective_ms(counted, sla),
            }
        };
        let real = outcome(&served.requests, &served.counters);
        let simulated = outcome(&done.requests, &done.counters);
        let mut figures = self.figures(load);
        figures["policy"] = json!(policy);
        figures["pair"] = json!(pair);
        figures["rate_rps"] = rounded(rate_rps);
        figures["requests"] = json!(calls.len());
        figures["p99_ms"] = rounded(real.result.p99_ms);
        figures["violation_rate"] = rounded(real.result.violation_rate);
        figures["goodput_rps"] = rounded(real.result.goodput_rps);
        figures["mean_batch"] = rounded(real.result.mean_batch);
        figures["j_ms"] = rounded(real.j_ms);
        figures["others"] = rounded(others);
        figures["simulated_mean_ms"] = rounded(simulated.result.mean_ms);
        figures["simulated_j_ms"] = rounded(simulated.j_ms);
        figures["simulated_mean_batch"] = rounded(simulated.result.mean_batch);
        planned(&mut figures, &served);
        let launches = &meter.lock().expect("no holder panics").launches;
        figures["gap_us"] = json!(gap_us(launches).map(rounded));
        for (i, model) in self.models.iter().enumerate() {
            if let Some(ratio) = self.took_over_table(i, launches) {
                figures["took_over_table"][model.name] = rounded(ratio);
            }
            let own = served.requests.iter().skip(calls.len() / WARM_UP);
            let own = own.filter(|r| *r.model == *model.name);
            let ms: Vec<f64> = own.map(|r| r.latency().as_ms()).collect();
            if !ms.is_empty() {
                figures["mean_ms_by_model"][model.name] = rounded(Spread::of(ms).mean());
            }
        }
        recorder.line(figures, "mean_ms", &Spread::of(vec![real.result.mean_ms]))?;
        Ok((real, simulated))
    }

    /// Time of a model's launches over what its table says, if it had any.
    fn took_over_table(&self, model: usize, launches: &[Timed]) -> Option<f64> {
        let of_model = &self.profile.models[model];
        let table = LatencyTable::new(of_model, &segments_of(of_model, 1), 0.0, 0.0);
        let own = launches.iter().filter(|l| l.model.0 as usize == model);
        took_over_table(own, &table)
    }

    fn arrivals(&self, calls: &[Call]) -> Vec<Arrival> {
        let arrival = |call: &Call| {
            let item = &self.pool[call.item];
            let (model, output_len) = (self.models[item.model].name, self.output_lens[call.item]);
            Arrival::new(call.at, model, item.input_len, output_len)
        };
        calls.iter().map(arrival).collect()
    }

    fn simulation<'b>(&'b self, arrivals: &'b [Arrival]) -> Simulation<'b> {
        Simulation {
            profile: &self.profile,
            arrivals,
            sla: Some(self.options.sla),
            classes: &[],
            segment: 1,
            decide: Nanos::ZERO,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        }
    }

    /// The other policies over the first, pair by pair.
    fn sum_up(&self, recorder: &Recorder, load: f64, outcomes: &[Outcomes]) -> anyhow::Result<()> {
        type Measure = fn(&Outcome) -> f64;
        let measures: [(&str, Measure); 3] = [
            ("mean_ratio", |o| o.result.mean_ms),
            ("p99_ratio", |o| o.result.p99_ms),
            ("j_ratio", |o| o.j_ms),
        ];
        let policies = &self.options.policies;
        for (policy, other) in policies.iter().zip(outcomes).skip(1) {
            for (metric, of) in measures {
                let ratios = |others: &[Outcome], judged: &[Outcome]| {
                    let pairs = others.iter().zip(judged);
                    Spread::of(pairs.map(|(o, j)| of(o) / of(j)).collect())
                };
                let simulated = ratios(&other.simulated, &outcomes[0].simulated);
                let mut figures = self.figures(load);
                figures["policy"] = json!(policy);
                figures["over"] = json!(policies[0]);
                figures["simulated_median"] = rounded(simulated.median());
                recorder.line(figures, metric, &ratios(&other.real, &outcomes[0].real))?;
            }
        }
        Ok(())
    }

    /// What every line states.
    fn figures(&self, load: f64) -> Value {
        json!({
            "mix": self.options.mix.label, "threads": self.options.threads,
            "seed": self.options.seed, "max_batch": self.options.max_batch,
            "sla_ms": rounded(self.options.sla.as_ms()), "load": load,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Options::parse(&args, "toy")
    }

    #[test]
    fn bad_options_are_named() {
        let ok = "--mix cnn-tiny:2+bert-tiny --out x --seconds 1 --sla-ms 5";
        assert_eq!(parse(ok).unwrap().mix.parts.len(), 2);
        for (line, told) in [
            ("--out x", "--mix: expected models"),
            ("--mix cnn-tiny", "--out: expected a file"),
            ("--mix cnn-tiny --out x", "--seconds: expected a length"),
            ("--mix a:1+a:2", "--mix: expected NAME:SHARE+NAME:SHARE"),
            ("--mix a --out x --seconds 1", "--sla-ms: expected a target"),
            (&format!("{ok} --policies fast"), "--policies"),
            (&format!("{ok} --speed 3"), "--speed 3: no such option"),
        ] {
            let message = format!("{:#}", parse(line).unwrap_err());
            assert!(message.starts_with(told), "{line}: {message}");
        }
        let options = parse(&format!("{ok} --mix cnn-tiny+nothing")).unwrap();
        let message = format!("{:#}", Bench::open(&options).err().unwrap());
        assert!(message.starts_with("--mix: expected some of"), "{message}");
    }

    #[test]
    fn every_policy_serves_every_model_and_lines_have_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("mixes.jsonl");
        let options = parse(&format!(
            "--mix cnn-tiny:3+bert-tiny:1+transformer-tiny:1 --seconds 0.02 --sla-ms 50 --loads 0.5 --pairs 2 \
             --max-batch 4 --threads 1 --policies adaptive,greedy,edf --out {}",
            out.display()
        ));
        run(&options.unwrap()).unwrap();
        let text = std::fs::read_to_string(&out).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str(l).unwrap());
        let lines: Vec<Value> = lines.collect();
        let of = |metric: &str| lines.iter().filter(|l| l["metric"] == metric).count();
        assert_eq!(of("mean_ms"), 2 * 3);
        for ratio in ["mean_ratio", "p99_ratio", "j_ratio"] {
            assert_eq!(of(ratio), 2, "{ratio}");
        }
        let runs = || lines.iter().filter(|l| l["metric"] == "mean_ms");
        for run in runs() {
            let same = |o: &&Value| o["pair"] == run["pair"];
            let rates = runs().filter(same).map(|o| o["rate_rps"].clone());
            assert!(
                rates
                    .collect::<Vec<_>>()
                    .iter()
                    .all(|r| *r == run["rate_rps"])
            );
            assert!(run["simulated_j_ms"].as_f64().unwrap() > 0.0, "{run}");
            for (model, _) in run["mean_ms_by_model"].as_object().unwrap() {
                let ratio = run["took_over_table"][model].as_f64().unwrap();
                assert!(ratio > 0.0, "{run}");
            }
        }
        for policy in ["adaptive", "greedy", "edf"] {
            for model in ["cnn-tiny", "bert-tiny", "transformer-tiny"] {
                let serves =
                    |r: &Value| r["policy"] == policy && r["mean_ms_by_model"][model].is_f64();
                assert!(runs().any(serves), "{policy}, {model}");
            }
        }
    }
}
