//! Runs the simulations of a grid, in parallel.
//!
//! Cases are independent. Within a case seeds follow one another, so that the case can end early;
//! within a seed policies and targets are independent. A policy that does not look at deadlines is
//! simulated once per seed and scored at every target.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lazybatch_sla::Nanos;
use rayon::prelude::*;

use super::cases::{self, Case, Lab, Opened};
use super::grid::Grid;
use super::resume::{Journal, Key};
use super::score::{self, Run, ignores_sla};
use super::{bound, moments, points, text};
use crate::arrivals::Arrival;
use crate::error::{Error, Result};
use crate::experiment::Detail;

/// Seeds that a case takes at the least before it may end early.
pub const MIN_SEEDS: usize = 3;

/// How a sweep is run; nothing here changes its results.
#[derive(Default)]
pub struct Options {
    /// Threads; all available cores if absent.
    pub threads: Option<usize>,
    /// Where traces are looked for that do not lie beside the grid.
    pub traces: Option<PathBuf>,
    /// Where finished simulations are kept while the sweep runs.
    pub journal: Option<Journal>,
    /// Points that there have to be, as [`moments::find`] takes them.
    pub points: Vec<String>,
}

/// What a sweep ran.
pub struct Ran {
    /// Rows by case, seed, policy and target, in the grid's order.
    pub runs: Vec<Run>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// Labels of workloads with a model that decodes in a loop or reads one step at a time: those that
    /// node-level batching is about.
    pub with_loops: BTreeSet<String>,
    /// Simulations that ran now, without those taken from a journal.
    pub num_simulated: u64,
    /// Requests in them.
    pub num_requests: u64,
    /// Simulations that were taken from a journal.
    pub num_taken: u64,
}

/// Runs a grid. `tick` is called with how many simulations have just been dealt with, out of
/// [`Grid::num_simulations`].
///
/// # Errors
/// What makes a case impossible, a grid without a case that can be run, a point that it does not have,
/// or a simulation in which the checker finds a broken rule.
pub fn run(grid: &Grid, options: Options, tick: &(dyn Fn(usize) + Sync)) -> Result<Ran> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = options.threads {
        pool = pool.num_threads(threads);
    }
    let pool = pool
        .build()
        .map_err(|e| Error::run("threads of the sweep", e))?;
    pool.install(|| Runner::new(grid, options, tick).run())
}

struct Runner<'a> {
    grid: &'a Grid,
    traces: Option<PathBuf>,
    journal: Option<Mutex<Journal>>,
    points: Vec<String>,
    tick: &'a (dyn Fn(usize) + Sync),
    /// Seeds that were left out, and runs that a trace is too short for.
    repeated: Mutex<Vec<String>>,
    num_simulated: AtomicU64,
    num_requests: AtomicU64,
    num_taken: AtomicU64,
}

impl<'a> Runner<'a> {
    fn new(grid: &'a Grid, options: Options, tick: &'a (dyn Fn(usize) + Sync)) -> Self {
        Self {
            grid,
            traces: options.traces,
            journal: options.journal.map(Mutex::new),
            points: options.points,
            tick,
            repeated: Mutex::default(),
            num_simulated: AtomicU64::new(0),
            num_requests: AtomicU64::new(0),
            num_taken: AtomicU64::new(0),
        }
    }

    fn run(self) -> Result<Ran> {
        let grid = self.grid;
        let mut skipped = grid.skipped.clone();
        let both = |setting| grid.models.iter().map(move |model| (setting, model));
        let wanted: Vec<_> = grid.settings.iter().flat_map(both).collect();
        let opened: Vec<Result<Opened>> = wanted
            .par_iter()
            .map(|(setting, model)| Lab::open(grid, setting, model, self.traces.as_deref()))
            .collect();
        let mut labs = Vec::new();
        for (opened, (setting, model)) in opened.into_iter().zip(&wanted) {
            match opened? {
                Opened::Lab(lab) => labs.push(lab),
                Opened::Missing(why) => {
                    skipped.push(text::cell_label(setting, &model.label, &why));
                }
            }
        }
        if labs.is_empty() {
            let what = format!("grid {}", grid.name);
            let got = format!("none ({})", skipped.join("; "));
            return Err(Error::parameter(what, "a case that can be run", got));
        }
        let per_lab = grid.num_simulations() / wanted.len().max(1);
        (self.tick)(per_lab * (wanted.len() - labs.len()));
        let cases: Vec<Result<Vec<Case>>> = labs.par_iter().map(|lab| lab.cases(grid)).collect();
        let mut work: Vec<(&Lab, Case)> = Vec::new();
        for (lab, cases) in labs.iter().zip(cases) {
            work.extend(cases?.into_iter().map(|case| (&**lab, case)));
        }
        self.check_points(&work)?;
        if let Some(journal) = &self.journal {
            journal.lock().expect("no holder panics").start()?;
        }
        let runs: Result<Vec<Vec<Run>>> = work
            .par_iter()
            .map(|(lab, case)| self.run_case(lab, case))
            .collect();
        let mut repeated = self.repeated.into_inner().expect("no holder panics");
        // Cases end in any order.
        repeated.sort();
        skipped.append(&mut repeated);
        let have_loops = labs.iter().filter(|lab| lab.has_loop());
        Ok(Ran {
            with_loops: have_loops.map(|l| l.workload.label.clone()).collect(),
            runs: runs?.into_iter().flatten().collect(),
            skipped,
            num_simulated: self.num_simulated.into_inner(),
            num_requests: self.num_requests.into_inner(),
            num_taken: self.num_taken.into_inner(),
        })
    }

    /// Refuses points that are of none of the cases.
    fn check_points(&self, work: &[(&Lab, Case)]) -> Result<()> {
        let of_case = |(_, case): &(&Lab, Case)| {
            let point = |&sla| (case.model.label.clone(), case.rate_rps, sla);
            self.grid.slas_ms.iter().map(point).collect::<Vec<_>>()
        };
        let all: Vec<(String, f64, f64)> = work.iter().flat_map(of_case).collect();
        for spec in &self.points {
            let is_it = |(model, rate, sla): &(String, f64, f64)| {
                moments::is_point(spec, model, *rate, *sla)
            };
            if !all.iter().any(is_it) {
                let example = all
                    .last()
                    .map(|(model, rate, sla)| (model.as_str(), *rate, *sla));
                return Err(moments::no_point(spec, example));
            }
        }
        Ok(())
    }

    /// All seeds of a case, or as many as it takes.
    fn run_case(&self, lab: &Lab, case: &Case) -> Result<Vec<Run>> {
        let grid = self.grid;
        let jobs: Vec<(&str, &[f64])> = grid.policies.iter().flat_map(|p| self.jobs(p)).collect();
        let mut runs: Vec<Run> = Vec::new();
        let mut seen: Vec<u64> = Vec::new();
        if let Some((has, num)) = lab.cut_short(case.rate_rps, case.load()) {
            let why = format!(
                "at {:.1}/s runs have {has} arrivals, of {num}: the trace has no more",
                case.rate_rps
            );
            self.leave_out(lab, &why);
        }
        for (num_done, &seed) in grid.seeds.iter().enumerate() {
            if num_done >= MIN_SEEDS && grid.settle > 0.0 && points::settled(&runs, grid.settle) {
                (self.tick)(jobs.len() * (grid.seeds.len() - num_done));
                break;
            }
            let arrivals = lab.arrivals(case.rate_rps, case.load(), seed);
            let arrivals = arrivals.map_err(|e| grid.blame("arrivals", e))?;
            let over = lab.fingerprint(&arrivals);
            if seen.contains(&over) {
                // Where a trace has no more stretches, and says all of a request.
                let why = format!(
                    "seed {seed} at {:.1}/s repeats an earlier one",
                    case.rate_rps
                );
                self.leave_out(lab, &why);
                (self.tick)(jobs.len());
                continue;
            }
            seen.push(over);
            let simulations = || -> Vec<Result<Vec<Run>>> {
                let key = |policy, slas| Key::new(case, seed, over, policy, slas);
                jobs.par_iter()
                    .map(|(policy, slas)| self.run_job(lab, case, key(policy, slas), &arrivals))
                    .collect()
            };
            let bounds = || match grid.bound {
                true => bound::bounds(lab, &arrivals, &grid.slas_ms),
                false => Ok(Vec::new()),
            };
            let (of_seed, bounds) = rayon::join(simulations, bounds);
            let bounds = bounds.map_err(|e| cases::blame(grid, e))?;
            for done in of_seed {
                for mut run in done.map_err(|e| cases::blame(grid, e))? {
                    let own = bounds.iter().find(|(sla, _)| *sla == run.result.sla_ms);
                    run.bound = own.map(|(_, bound)| *bound);
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    /// Tells of what is left out of a case.
    fn leave_out(&self, lab: &Lab, why: &str) {
        let label = text::cell_label(&lab.setting, &lab.workload.label, why);
        self.repeated.lock().expect("no holder panics").push(label);
    }

    /// The simulations of a policy: which targets each is scored at.
    fn jobs<'p>(&'p self, policy: &'p str) -> Vec<(&'p str, &'p [f64])> {
        let slas = &self.grid.slas_ms;
        match ignores_sla(policy) {
            true => vec![(policy, slas)],
            false => slas.chunks(1).map(|sla| (policy, sla)).collect(),
        }
    }

    fn run_job(&self, lab: &Lab, case: &Case, key: Key, arrivals: &[Arrival]) -> Result<Vec<Run>> {
        let lock = |journal: &Mutex<Journal>| journal.lock().map(|mut j| j.take(&key)).ok();
        if let Some(runs) = self.journal.as_ref().and_then(lock).flatten() {
            self.num_taken.fetch_add(1, Ordering::Relaxed);
            (self.tick)(1);
            return Ok(runs);
        }
        let runs = simulate(lab, case, key.seed, &key.policy, &key.slas_ms, arrivals)?;
        self.num_simulated.fetch_add(1, Ordering::Relaxed);
        let num = arrivals.len() as u64;
        self.num_requests.fetch_add(num, Ordering::Relaxed);
        if let Some(journal) = &self.journal {
            let mut journal = journal.lock().expect("no holder panics");
            journal.append(&key, &runs)?;
        }
        (self.tick)(1);
        Ok(runs)
    }
}

/// Simulates a policy under the last of `slas_ms` and scores it at each of them.
///
/// # Errors
/// As [`crate::experiment::Simulation::run`].
pub fn simulate(
    lab: &Lab,
    case: &Case,
    seed: u64,
    policy: &str,
    slas_ms: &[f64],
    arrivals: &[Arrival],
) -> Result<Vec<Run>> {
    let sla_of = |ms: &f64| Nanos::from_ms_f64(*ms);
    let sla = slas_ms.last().map_or(Nanos::ZERO, sla_of);
    let done = lab
        .simulation(arrivals, sla)
        .run(policy, None, &mut (), Detail::Launches)?;
    let mut requests = done.requests;
    let at = |sla: Nanos| {
        score::rescore(&mut requests, sla);
        score::score(case, policy, seed, sla, &requests, &done.counters)
    };
    Ok(slas_ms.iter().map(sla_of).map(at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use lazybatch_engine::policy::REGISTRY;

    fn tiny(extra: &str) -> (Grid, tempfile::TempDir) {
        fixture::grid(
            "'chain', 'loop'",
            &format!("lengths = 'fixed:2:3'\n{extra}"),
        )
    }

    fn ran(grid: &Grid, threads: usize) -> Ran {
        let options = Options {
            threads: Some(threads),
            ..Options::default()
        };
        run(grid, options, &|_| {}).unwrap()
    }

    #[test]
    fn results_do_not_depend_on_threads() {
        let (grid, _folder) = tiny("");
        let one = ran(&grid, 1);
        assert_eq!(one.runs, ran(&grid, 4).runs);
        // 2 models x 2 rates x 3 seeds x 5 policies x 2 targets.
        assert_eq!(one.runs.len(), 120);
        // serial, greedy and graph once; lazy and oracle per target.
        assert_eq!(one.num_simulated, 2 * 2 * 3 * 7);
        assert_eq!(grid.num_simulations(), 2 * 2 * 3 * 7);
    }

    #[test]
    fn every_simulation_is_ticked_even_where_a_case_ends_early() {
        let (mut grid, _folder) = tiny("settle = 1.0\n");
        grid.seeds = (1..=9).collect();
        let ticks = AtomicU64::new(0);
        let tick = |n: usize| {
            ticks.fetch_add(n as u64, Ordering::Relaxed);
        };
        let done = run(&grid, Options::default(), &tick).unwrap();
        assert_eq!(ticks.into_inner(), grid.num_simulations() as u64);
        assert!(done.num_simulated < grid.num_simulations() as u64);
        assert!(done.runs.iter().any(|r| r.seed == 3));
    }

    #[test]
    fn rescoring_equals_simulating_again() {
        let (grid, _folder) = tiny("");
        for model in &grid.models {
            let Opened::Lab(lab) = Lab::open(&grid, &grid.settings[0], model, None).unwrap() else {
                panic!("no file is missing");
            };
            let specs: Vec<&str> = ["graph:0.2", "graph:1"]
                .into_iter()
                .chain(REGISTRY.iter().map(|e| e.usage))
                .filter(|spec| ignores_sla(spec) && lazybatch_engine::policy::find(spec).is_ok())
                .collect();
            assert!(specs.contains(&"serial") && specs.contains(&"greedy"));
            for case in lab.cases(&grid).unwrap() {
                let arrivals = lab.arrivals(case.rate_rps, case.load(), 1).unwrap();
                for policy in &specs {
                    let all = [0.1, 0.5, 2.0];
                    let once = simulate(&lab, &case, 1, policy, &all, &arrivals).unwrap();
                    for (run, sla) in once.iter().zip(all) {
                        let again = simulate(&lab, &case, 1, policy, &[sla], &arrivals).unwrap();
                        assert_eq!(*run, again[0], "{policy}");
                    }
                }
            }
        }
    }

    #[test]
    fn co_located_models_share_the_rate() {
        let (mut grid, _folder) = fixture::grid("'chain:1+loop:3'", "lengths = 'fixed:2:3'\n");
        grid.requests = 2000;
        let Opened::Lab(lab) = Lab::open(&grid, &grid.settings[0], &grid.models[0], None).unwrap()
        else {
            panic!("no file is missing");
        };
        let arrivals = lab.arrivals(1000.0, 0.5, 1).unwrap();
        let chain = arrivals.iter().filter(|a| &*a.model == "chain").count() as f64;
        assert!((chain / arrivals.len() as f64 - 0.25).abs() < 0.05);
        let done = ran(&grid, 2);
        assert!(done.runs.iter().all(|r| r.result.model == "chain:1+loop:3"));
    }

    #[test]
    fn seeds_that_repeat_a_stretch_of_a_trace_are_left_out_and_said_so() {
        let extra = "lengths = 'trace'\narrivals = ['trace:t.csv']\n";
        let (mut grid, folder) = fixture::grid("'loop'", extra);
        grid.seconds = 0.0;
        grid.folder = folder.path().into();
        // Two stretches of 40.
        let row = |i: u64| format!("{},loop,2,{}\n", 100 * i + i % 7, 1 + i % 5);
        let rows: String = (0..90).map(row).collect();
        let text = format!("arrival_us,model,input_len,output_len\n{rows}");
        std::fs::write(folder.path().join("t.csv"), text).unwrap();
        let done = ran(&grid, 1);
        let seeds: BTreeSet<u64> = done.runs.iter().map(|r| r.seed).collect();
        assert_eq!(seeds, [1, 2].into());
        // At two rates.
        assert_eq!(done.skipped.len(), 2, "{:?}", done.skipped);
        let repeats = |s: &String| s.contains("seed 3 at ") && s.contains("repeats an earlier one");
        assert!(done.skipped.iter().all(repeats), "{:?}", done.skipped);
        // One arrival fewer than the grid asks for.
        grid.requests = 91;
        let done = ran(&grid, 1);
        let short = "at 2000.0/s runs have 90 arrivals, of 91: the trace has no more";
        let told = done.skipped.iter().filter(|s| s.contains(short));
        assert_eq!(told.count(), 1, "{:?}", done.skipped);
    }

    #[test]
    fn a_missing_trace_is_skipped_and_said_so() {
        let (grid, _folder) = fixture::grid(
            "'chain'",
            "lengths = 'fixed:2:3'\narrivals = ['trace:none.csv', 'poisson']\n",
        );
        let done = ran(&grid, 1);
        assert_eq!(done.skipped.len(), 1);
        assert!(done.skipped[0].contains("none.csv"), "{}", done.skipped[0]);
        assert!(!done.runs.is_empty());
        let alone = "lengths = 'fixed:2:3'\narrivals = 'trace:none.csv'\n";
        let (grid, _folder) = fixture::grid("'chain'", alone);
        let message = run(&grid, Options::default(), &|_| {}).err().unwrap();
        let message = message.to_string();
        let part = "grid tiny: expected a case that can be run, got none (";
        assert!(
            message.starts_with(part) && message.contains("none.csv"),
            "{message}"
        );
    }

    #[test]
    fn points_that_a_grid_does_not_have_are_found_before_it_runs() {
        let (grid, folder) = tiny("");
        let path = folder.path().join("j");
        let with = |point: &str| Options {
            journal: Some(Journal::create(&path, &grid).unwrap()),
            points: vec![point.into()],
            ..Options::default()
        };
        let message = run(&grid, with("loop@2000@7"), &|_| {}).err().unwrap();
        let message = message.to_string();
        let example = "MODEL@RATE@SLA_MS, such as loop@30000@2, got `loop@2000@7`";
        assert!(message.contains(example), "{message}");
        assert!(!path.exists());
        run(&grid, with("loop@2000@0.5"), &|_| {}).unwrap();
    }
}
