//! Cases: what a grid's settings, models and rates come to: a profile, arrivals, a capacity.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazybatch_kernels::Noise;
use lazybatch_sla::profile::RepeatRule;
use lazybatch_sla::{Nanos, OutputLen, Profile, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};

use super::grid::{Grid, MAX_REQUESTS, Offered, Setting, Source, Workload};
use crate::arrivals::{self, Arrival, Limit, Process, Stream, transform};
use crate::error::{Error, Result};
use crate::experiment::Simulation;
use crate::lengths::{self, Lengths};
use crate::{devices, traces};

/// How grids spell arrival processes.
pub const PROCESSES: &str = "poisson, constant, gamma:CV, onoff:ON:OFF:ON_MS:OFF_MS or trace:FILE";
/// Spelling of [`Grid::lengths`] that keeps those of a trace.
const TRACE_LENGTHS: &str = "trace";
/// Share of output lengths that a predictor covers where neither grid nor profile say.
const DEFAULT_COVERAGE: f64 = 0.9;

/// Whether `text` is one of [`PROCESSES`].
pub fn is_process(text: &str) -> bool {
    text.strip_prefix("trace:").is_some_and(|f| !f.is_empty()) || process(text, 1.0).is_some()
}

/// Requests of a queue that capacity is taken from: 4 full batches, 128 to 2048.
pub fn full_batches(max_batch: u32) -> usize {
    (4 * max_batch as usize).clamp(128, 2048)
}

/// Loads about which a short run cannot tell a queue that grows without bound from a long one.
const NEAR_CAPACITY: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// The process with a mean of `rate_rps`; `None` for traces and what is no process.
pub fn process(text: &str, rate_rps: f64) -> Option<Process> {
    let spelled = match text.split_once(':') {
        None if text == "poisson" || text == "constant" => format!("{text}:1"),
        Some(("gamma", cv)) => format!("gamma:1:{cv}"),
        Some(("onoff", rest)) => format!("onoff:{rest}"),
        _ => return None,
    };
    let process: Process = spelled.parse().ok()?;
    Some(process.scaled_to(rate_rps))
}

/// A setting, a workload and a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What is varied besides.
    pub setting: Setting,
    /// The model or models.
    pub model: Workload,
    /// Requests per second offered, of all models together.
    pub rate_rps: f64,
    /// Requests per second at which a long queue drains; see [`Lab::capacity`].
    pub capacity_rps: f64,
}

impl Case {
    /// The rate as a share of the capacity.
    pub fn load(&self) -> f64 {
        self.rate_rps / self.capacity_rps
    }
}

/// A profile and lengths: what cases of one setting and workload share.
pub struct Lab {
    /// The workload.
    pub workload: Workload,
    /// The setting.
    pub setting: Setting,
    /// The models' latency tables.
    pub profile: Profile,
    /// Length distribution of each part of the workload.
    lengths: Vec<Lengths>,
    /// A trace's arrivals, all of them.
    trace: Option<Vec<Arrival>>,
    keep_trace_lengths: bool,
    requests: usize,
    seconds: f64,
    seconds_near_capacity: f64,
    decide: Nanos,
}

/// Whether a workload can be simulated here.
pub enum Opened {
    /// It can.
    Lab(Box<Lab>),
    /// A file that it needs is not there.
    Missing(String),
}

impl Lab {
    /// Prepares a setting and workload of a grid. `traces` is where traces are looked for that do
    /// not lie beside the grid.
    ///
    /// # Errors
    /// A device, model, profile, length distribution or trace that cannot be used.
    pub fn open(
        grid: &Grid,
        setting: &Setting,
        workload: &Workload,
        traces: Option<&Path>,
    ) -> Result<Opened> {
        let trace = match setting.arrivals.strip_prefix("trace:") {
            None => None,
            Some(file) => {
                let Some(path) = locate(file, &grid.folder, traces) else {
                    return Ok(Opened::Missing(format!("trace {file}: no such file")));
                };
                if workload.parts.len() > 1 {
                    let expected = "one model, where a trace says who arrives";
                    return Err(grid.fault("models", expected, format!("`{}`", workload.label)));
                }
                let model = Some(workload.parts[0].0.as_str().into());
                let options = traces::Options {
                    model,
                    format: None,
                };
                let arrivals = traces::read(&path, &options)?;
                check_model(&path, &arrivals, &workload.parts[0].0)?;
                Some(arrivals)
            }
        };
        let keep_trace_lengths = grid.lengths.as_deref() == Some(TRACE_LENGTHS);
        if keep_trace_lengths && trace.is_none() {
            let expected = "a distribution, where arrivals are no trace";
            return Err(grid.fault("lengths", expected, "`trace`"));
        }
        let names: Vec<&str> = workload.parts.iter().map(|(n, _)| n.as_str()).collect();
        let mut profile = profile(grid, setting, &names)?;
        let mut distributions = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let own = lengths::of_model(name);
            let spec = match &grid.lengths {
                Some(spec) if !keep_trace_lengths => spec.as_str(),
                _ => own,
            };
            let lengths = Lengths::load(spec).map_err(|e| grid.blame("lengths", e))?;
            let model = &mut profile.models[i];
            if let Some(max_batch) = setting.max_batch {
                model.max_batch = max_batch;
            }
            if setting.coverage.is_some() || model.output_len_p90.is_none() {
                let coverage = setting.coverage.unwrap_or(DEFAULT_COVERAGE);
                model.output_len_p90 = Some(match &trace {
                    Some(all) if keep_trace_lengths => {
                        OutputLen::covering(coverage, all.iter().map(|a| a.output_len)).predict()
                    }
                    _ => covering(&lengths, coverage),
                });
            }
            distributions.push(lengths);
        }
        Ok(Opened::Lab(Box::new(Self {
            workload: workload.clone(),
            setting: setting.clone(),
            profile,
            lengths: distributions,
            trace,
            keep_trace_lengths,
            requests: grid.requests,
            seconds: grid.seconds,
            seconds_near_capacity: grid.seconds_near_capacity,
            decide: Nanos((grid.decide_us * 1e3).round() as u64),
        })))
    }

    /// Whether one of its models passes a block more than once.
    pub fn has_loop(&self) -> bool {
        let mut blocks = self.profile.models.iter().flat_map(|m| &m.blocks);
        blocks.any(|b| b.repeat != RepeatRule::Once)
    }

    /// A number that stands for these arrivals and the profile that they are simulated over.
    pub fn fingerprint(&self, arrivals: &[Arrival]) -> u64 {
        let mut hasher = FxHasher::default();
        let profile = serde_json::to_string(&self.profile);
        profile.expect("plain fields serialise").hash(&mut hasher);
        for arrival in arrivals {
            // Every field by name: one that is added has to be hashed as well.
            let Arrival {
                at,
                model,
                input_len,
                output_len,
                sla,
                priority,
                samples,
                sequence_id,
                class,
            } = arrival;
            (at.0, &**model, input_len, output_len).hash(&mut hasher);
            (samples, priority, sla.map(|sla| sla.0)).hash(&mut hasher);
            (sequence_id, class.as_deref()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The cases of a grid's rates or loads.
    ///
    /// # Errors
    /// As [`Lab::capacity`], and a run of too many arrivals.
    pub fn cases(&self, grid: &Grid) -> Result<Vec<Case>> {
        let capacity_rps = self.capacity().map_err(|e| blame(grid, e))?;
        let rates: Vec<f64> = match &grid.offered {
            Offered::Rates(rates) => rates.clone(),
            Offered::Loads(loads) => loads.iter().map(|l| l * capacity_rps).collect(),
        };
        let case = |rate_rps| Case {
            setting: self.setting.clone(),
            model: self.workload.clone(),
            rate_rps,
            capacity_rps,
        };
        let cases: Vec<Case> = rates.into_iter().map(case).collect();
        for case in &cases {
            let (seconds, rate_rps) = (self.seconds_at(case.load()), case.rate_rps);
            if seconds * rate_rps > MAX_REQUESTS as f64 {
                let key = match seconds > self.seconds {
                    true => "seconds_near_capacity",
                    false => "seconds",
                };
                let expected = format!("at most {MAX_REQUESTS} arrivals a run");
                let got = format!("{rate_rps:.1}/s for {seconds} s");
                return Err(grid.fault(key, expected, got));
            }
        }
        Ok(cases)
    }

    /// Seconds that a run at such a share of the capacity takes at the least.
    fn seconds_at(&self, load: f64) -> f64 {
        match NEAR_CAPACITY.contains(&load) {
            true => self.seconds.max(self.seconds_near_capacity),
            false => self.seconds,
        }
    }

    /// How many arrivals a run has: at least the grid's number, for at least its seconds.
    fn num_arrivals(&self, rate_rps: f64, load: f64) -> usize {
        let in_time = (rate_rps * self.seconds_at(load)).ceil() as usize;
        self.requests.max(in_time)
    }

    /// How many arrivals a run has and should have, where a trace has no more.
    pub fn cut_short(&self, rate_rps: f64, load: f64) -> Option<(usize, usize)> {
        let num = self.num_arrivals(rate_rps, load);
        let has = self.trace.as_ref()?.len();
        (has < num).then_some((has, num))
    }

    /// The arrivals of a seed at a rate, which is such a share of the capacity: at least the grid's
    /// number, for at least its seconds, as far as a trace has so many ([`Lab::cut_short`]).
    ///
    /// # Errors
    /// A process or trace that gives no such rate.
    pub fn arrivals(&self, rate_rps: f64, load: f64, seed: u64) -> Result<Vec<Arrival>> {
        let num = self.num_arrivals(rate_rps, load);
        let mut arrivals = match &self.trace {
            Some(all) => self.of_trace(all, num, rate_rps, seed)?,
            None => self.drawn(num, rate_rps, seed)?,
        };
        if arrivals.is_empty() {
            let got = format!("none of {} at {rate_rps}/s", self.workload.label);
            return Err(Error::parameter("arrivals", "some", got));
        }
        for model in &self.profile.models {
            let loops = model
                .blocks
                .iter()
                .filter(|b| b.repeat == RepeatRule::UntilStop);
            let most = loops.filter_map(|b| b.max_steps).min().unwrap_or(u32::MAX);
            for arrival in arrivals.iter_mut().filter(|a| *a.model == *model.name) {
                arrival.output_len = arrival.output_len.min(most);
            }
        }
        Ok(arrivals)
    }

    fn drawn(&self, num: usize, rate_rps: f64, seed: u64) -> Result<Vec<Arrival>> {
        let stream = |((name, share), lengths): (&(String, f64), &Lengths)| {
            let process = process(&self.setting.arrivals, rate_rps * share)
                .expect("the grid has checked its processes");
            Stream::new(name.as_str(), process, lengths.clone())
        };
        let streams = self.workload.parts.iter().zip(&self.lengths).map(stream);
        let limit = match self.workload.parts.len() {
            1 => Limit::Requests(num),
            _ => Limit::Duration(Nanos((num as f64 / rate_rps * 1e9).round() as u64)),
        };
        let workload = arrivals::Workload {
            streams: streams.collect(),
            limit,
        };
        workload.generate(seed)
    }

    /// A stretch of the trace with the workload's model, and lengths as the grid says.
    fn of_trace(
        &self,
        all: &[Arrival],
        num: usize,
        rate_rps: f64,
        seed: u64,
    ) -> Result<Vec<Arrival>> {
        let mut cut = transform::stretch(all, num, rate_rps, seed)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(1);
        for arrival in &mut cut {
            arrival.model = self.workload.parts[0].0.as_str().into();
            arrival.sla = None;
            if !self.keep_trace_lengths {
                (arrival.input_len, arrival.output_len) = self.lengths[0].sample(&mut rng);
            }
        }
        Ok(cut)
    }

    /// Requests per second at which a queue drains that holds 4 full batches (128 requests at the
    /// least) of the workload when the run starts ([`Simulation::drain_rate`]).
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn capacity(&self) -> Result<f64> {
        let max_batch = self.profile.models.iter().map(|m| m.max_batch).max();
        let num = full_batches(max_batch.unwrap_or(1));
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let mut pool: Vec<Arrival> = Vec::new();
        for ((name, share), lengths) in self.workload.parts.iter().zip(&self.lengths) {
            let name: Arc<str> = name.as_str().into();
            for _ in 0..((num as f64 * share).round() as usize).max(1) {
                let (input_len, output_len) = lengths.sample(&mut rng);
                pool.push(Arrival::new(
                    Time::ZERO,
                    name.clone(),
                    input_len,
                    output_len,
                ));
            }
        }
        self.simulation(&pool, Nanos::from_ms_f64(1e9)).drain_rate()
    }

    /// A simulation of arrivals.
    pub fn simulation<'a>(&'a self, arrivals: &'a [Arrival], sla: Nanos) -> Simulation<'a> {
        Simulation {
            profile: &self.profile,
            arrivals,
            sla: Some(sla),
            classes: &[],
            segment: self.setting.segment,
            decide: self.decide,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        }
    }
}

/// Refuses a trace with arrivals of another model than `name`.
fn check_model(path: &Path, arrivals: &[Arrival], name: &str) -> Result<()> {
    let Some(row) = arrivals.iter().position(|a| *a.model != *name) else {
        return Ok(());
    };
    let error = Error::Arrival {
        row,
        column: "model",
        expected: name.into(),
        got: traces::source::excerpt(&arrivals[row].model),
    };
    Err(traces::at_line(path, error))
}

/// What is wrong with an arrival as a fault of the key of the grid that it comes from.
pub fn blame(grid: &Grid, error: Error) -> Error {
    let Error::Arrival {
        column,
        expected,
        got,
        ..
    } = error
    else {
        return error;
    };
    let key = match column {
        "arrival_us" => match &grid.offered {
            Offered::Rates(_) => "rates",
            Offered::Loads(_) => "loads",
        },
        "input_len" | "output_len" if grid.lengths.is_some() => "lengths",
        // Those of the models themselves.
        "input_len" | "output_len" => "models",
        _ => "arrivals",
    };
    grid.fault(key, expected, got)
}

/// Files that a grid's cases are made of, where they are there. `traces` as in [`Lab::open`].
pub fn files(grid: &Grid, traces: Option<&Path>) -> Vec<PathBuf> {
    let named = grid.settings.iter();
    let named = named.filter_map(|s| s.arrivals.strip_prefix("trace:"));
    let mut files: Vec<PathBuf> = named
        .filter_map(|file| locate(file, &grid.folder, traces))
        .collect();
    if let Source::Profile(file) = &grid.source {
        files.push(profile_path(grid, file));
    }
    files.extend(grid.lengths.as_ref().map(PathBuf::from));
    files.retain(|file| file.is_file());
    files
}

/// Where a trace lies: as named, beside the grid, or in the folder of traces.
fn locate(file: &str, beside: &Path, traces: Option<&Path>) -> Option<PathBuf> {
    let folders = [Some(Path::new("")), Some(beside), traces];
    let mut paths = folders
        .into_iter()
        .flatten()
        .map(|folder| folder.join(file));
    paths.find(|path| path.is_file())
}

/// The smallest output length that covers a share of the distribution's, at least 1.
fn covering(lengths: &Lengths, coverage: f64) -> u32 {
    let mut by_output: Vec<(u32, u64)> = lengths.counts().map(|((_, o), n)| (o, n)).collect();
    by_output.sort_unstable();
    let total: u64 = by_output.iter().map(|(_, n)| n).sum();
    let rank = ((coverage * total as f64).ceil() as u64).max(1);
    let mut upto = 0;
    for (output, count) in by_output {
        upto += count;
        if upto >= rank {
            return output.max(1);
        }
    }
    1
}

/// Where a grid's profile lies: as named, or beside the grid.
fn profile_path(grid: &Grid, file: &Path) -> PathBuf {
    match file.is_file() {
        true => file.to_owned(),
        false => grid.folder.join(file),
    }
}

/// The profile of a setting with the workload's models, in its order.
fn profile(grid: &Grid, setting: &Setting, names: &[&str]) -> Result<Profile> {
    let mut profile = match &grid.source {
        Source::Device(device) => {
            let device = devices::find(device).map_err(|e| grid.blame("device", e))?;
            let profile = device.profile(names, setting.overheads);
            profile.map_err(|e| grid.blame("models", e))?
        }
        Source::Profile(file) => {
            let path = profile_path(grid, file);
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|e| {
                let got = format!("{shown}: {e}");
                grid.fault("profile", "a file that can be read", got)
            })?;
            Profile::parse(&shown, &text).map_err(|e| Error::File {
                file: format!("profile {shown}: {}", e.place),
                expected: e.expected,
                got: e.got,
            })?
        }
    };
    if !setting.overheads {
        profile.dispatch_us = 0.0;
        profile.copy_gbps = 0.0;
    }
    let mut models = Vec::new();
    for name in names {
        let known: Vec<_> = profile.models.iter().map(|m| m.name.clone()).collect();
        let model = profile.model(name).cloned().ok_or_else(|| {
            let expected = format!("one of {} (of {})", known.join(", "), profile.device);
            grid.fault("models", expected, format!("`{name}`"))
        })?;
        models.push(model);
    }
    profile.models = models;
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;

    #[test]
    fn processes_are_recognised() {
        for good in [
            "poisson",
            "constant",
            "gamma:3",
            "onoff:3:0:100:200",
            "trace:a.csv",
        ] {
            assert!(is_process(good), "{good}");
        }
        for bad in [
            "",
            "gamma",
            "gamma:-1",
            "poisson:5",
            "onoff:1:1",
            "trace:",
            "x:1",
        ] {
            assert!(!is_process(bad), "{bad}");
        }
        let mean = |text| process(text, 50.0).map(|p| p.mean_rate_rps());
        assert_eq!(mean("onoff:3:0:100:200"), Some(50.0));
    }

    #[test]
    fn arrivals_are_paired_and_as_many_as_asked_for() {
        let lab = fixture::lab("");
        let few = lab.arrivals(100.0, 0.5, 1).unwrap();
        assert_eq!(few.len(), 40);
        assert_eq!(few, lab.arrivals(100.0, 0.5, 1).unwrap());
        assert_ne!(few, lab.arrivals(100.0, 0.5, 2).unwrap());
        // 0.05 s at 2000/s.
        assert_eq!(lab.arrivals(2000.0, 0.5, 1).unwrap().len(), 100);
        let longer = fixture::lab("seconds_near_capacity = 0.2\n");
        for (load, num) in [(0.89, 100), (0.9, 400), (1.1, 400), (1.11, 100)] {
            assert_eq!(longer.arrivals(2000.0, load, 1).unwrap().len(), num);
        }
    }

    #[test]
    fn no_run_has_more_arrivals_than_a_grid_may_ask_for() {
        for (extra, key) in [("seconds = 1e4", "seconds"), ("", "seconds_near_capacity")] {
            let near = "seconds_near_capacity = 1e4\n";
            let (mut grid, _folder) =
                fixture::grid("'chain'", &format!("lengths = 'fixed:0:0'\n{near}"));
            if !extra.is_empty() {
                grid.seconds = 1e4;
            }
            // 44,444/s is the capacity.
            grid.offered = Offered::Rates(vec![10.0, 44_000.0]);
            let lab = Lab::open(&grid, &grid.settings[0], &grid.models[0], None);
            let Opened::Lab(lab) = lab.unwrap() else {
                panic!("nothing is missing");
            };
            let message = lab.cases(&grid).unwrap_err().to_string();
            let got = "expected at most 10000000 arrivals a run, got 44000.0/s for 10000 s";
            assert!(
                message.ends_with(&format!("column {key}: {got}")),
                "{message}"
            );
        }
    }

    #[test]
    fn whatever_changes_of_an_arrival_the_fingerprint_does() {
        let lab = fixture::lab("");
        let plain = || Arrival::new(Time(5), "chain", 1, 2);
        let changed: [fn(&mut Arrival); 9] = [
            |a| a.at = Time(6),
            |a| a.model = "loop".into(),
            |a| a.input_len = 7,
            |a| a.output_len = 7,
            |a| a.sla = Some(Nanos(7)),
            |a| a.priority = 7,
            |a| a.samples = 7,
            |a| a.sequence_id = Some(7),
            |a| a.class = Some("gold".into()),
        ];
        let mut prints = vec![lab.fingerprint(&[plain()])];
        for change in changed {
            let mut arrival = plain();
            change(&mut arrival);
            let print = lab.fingerprint(&[arrival]);
            assert!(!prints.contains(&print), "change {}", prints.len());
            prints.push(print);
        }
    }

    #[test]
    fn coverage_is_the_quantile_of_the_distribution() {
        let counts = [((1, 5), 5), ((2, 7), 4), ((3, 2), 1)];
        let lengths = Lengths::from_counts("l", counts).unwrap();
        let at = |coverage| covering(&lengths, coverage);
        assert_eq!(
            [at(0.05), at(0.1), at(0.11), at(0.6), at(0.61), at(1.0)],
            [2, 2, 5, 5, 7, 7]
        );
    }

    #[test]
    fn capacity_is_that_of_full_batches_on_a_chain() {
        // 10 + 20 us at batch 1, 10 + 80 us at batch 4: 4 / 90 us.
        let lab = fixture::lab("");
        let capacity = lab.capacity().unwrap();
        assert!((capacity / (4.0 / 90e-6) - 1.0).abs() < 1e-6, "{capacity}");
    }

    #[test]
    fn max_batch_and_coverage_reach_the_profile() {
        let lab = fixture::lab("max_batch = 2\ncoverage = 0.5\n");
        assert_eq!(lab.profile.models[0].max_batch, 2);
        assert_eq!(lab.profile.models[0].output_len_p90, Some(1));
    }
}
