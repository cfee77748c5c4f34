//! What the scheduler's tests share: worlds of models with integer latencies, random ones from a
//! seed, and a simulation with the checker behind it.
//!
//! A [`World`] states latencies in nanoseconds, so that a reference implementation can work on
//! them with its own arithmetic; [`World::profile`] turns it into what the engine reads.

#![allow(dead_code, missing_docs)]

use std::ops::Range;
use std::sync::Arc;

use lazybatch_engine::core::checker::{Checker, Violation};
use lazybatch_engine::core::{Action, Core, CoreConfig, Counters, Event, ModelSpec};
use lazybatch_engine::driver::virtual_time::{Ended, Script, SimRequest, run, untimed};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::policy::{self, Policy};
#[allow(unused_imports, reason = "each test file takes what it needs")]
pub use lazybatch_engine::policy::{examples, refusing_examples};
use lazybatch_kernels::sim::{Noise, SimDevice};
use lazybatch_sla::profile::{
    BlockProfile, By, FORMAT, ModelProfile, NodeProfile, Profile, RepeatRule,
};
use lazybatch_sla::{Class, ClassId, Launch, ModelId, Nanos, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub mod chaos;
pub mod golden;
pub mod random;
pub mod switching;
pub mod world;

#[allow(unused_imports, reason = "each test file takes what it needs")]
pub use chaos::*;
pub use random::*;
pub use world::*;

/// Something that passed the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Event(Event),
    Launch(Launch),
    Action(Action),
}

/// Remembers everything that passes the driver.
#[derive(Default)]
pub struct Recorder(pub Vec<(Time, Item)>);

impl Observer for Recorder {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.0.push((now, Item::Event(event.clone())));
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.0.push((now, Item::Launch(launch.clone())));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.0.push((now, Item::Action(action.clone())));
    }
}

/// How a simulation differs from the plainest one.
#[derive(Clone)]
pub struct Options {
    /// Printed when the checker objects.
    pub seed: u64,
    /// SLA classes.
    pub classes: Vec<Class>,
    pub lane_depths: Vec<u32>,
    pub max_queue: usize,
    pub notes: bool,
    pub reasons: bool,
    /// Rule 7, which needs notes.
    pub stack: bool,
    /// Rule 10.
    pub delays: bool,
    /// Rule 8: later requests that may end before one, and so many more for each that it finds.
    pub passing: Option<(u64, u64)>,
    pub noise: Noise,
    pub script: Script,
    /// Models whose weights are not on the device at the start.
    pub absent: Vec<usize>,
    /// Keep the transcript.
    pub record: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            classes: vec![Class::default()],
            lane_depths: vec![1],
            max_queue: usize::MAX,
            notes: false,
            reasons: false,
            stack: false,
            delays: false,
            passing: None,
            noise: Noise::default(),
            script: Script::default(),
            absent: Vec::new(),
            record: false,
        }
    }
}

/// What came of a simulation.
pub struct Run {
    pub config: CoreConfig,
    /// By id.
    pub ended: Vec<Ended>,
    pub counters: Counters,
    pub transcript: Vec<(Time, Item)>,
    pub verdict: Result<(), Violation>,
}

impl Run {
    /// Finish times in nanoseconds, by id.
    pub fn finishes(&self) -> Vec<u64> {
        self.ended.iter().map(|e| e.finish.0).collect()
    }

    /// First launches in nanoseconds, by id.
    pub fn starts(&self) -> Vec<Option<u64>> {
        self.ended
            .iter()
            .map(|e| e.first_launch.map(|t| t.0))
            .collect()
    }

    pub fn launches(&self) -> impl Iterator<Item = (Time, &Launch)> {
        self.transcript.iter().filter_map(|(t, i)| match i {
            Item::Launch(l) => Some((*t, l)),
            _ => None,
        })
    }
}

/// The core's configuration for a world.
pub fn config(world: &World, options: &Options) -> CoreConfig {
    let profile = world.profile();
    let mut models: Vec<ModelSpec> = profile
        .models
        .iter()
        .map(|m| ModelSpec::from_profile(&profile, m, 1, 1))
        .collect();
    for &m in &options.absent {
        models[m].resident = false;
    }
    CoreConfig {
        models,
        classes: options.classes.clone(),
        lane_depths: options.lane_depths.clone(),
        max_queue: options.max_queue,
        is_in_place: false,
        notes: options.notes,
        reasons: options.reasons,
    }
}

/// Runs a policy over arrivals in virtual time, with the checker behind it.
///
/// # Panics
/// If the checker finds a broken rule: the seed is printed first.
pub fn simulate(world: &World, policy: &str, arrivals: &[Arrival], options: &Options) -> Run {
    let run = judge(world, policy, arrivals, options);
    if let Err(violation) = &run.verdict {
        panic!("seed {}: {policy}: {violation}", options.seed);
    }
    run
}

/// As [`simulate`], but the verdict is returned.
pub fn judge(world: &World, policy: &str, arrivals: &[Arrival], options: &Options) -> Run {
    let knows = policy::find(policy).expect("a policy").needs_output_len;
    let policy = policy::build(policy).expect("a policy");
    judge_policy(world, policy, knows, arrivals, options)
}

/// As [`judge`], for a policy that is not registered; `knows` tells it the output lengths.
pub fn judge_policy(
    world: &World,
    policy: Box<dyn Policy>,
    knows: bool,
    arrivals: &[Arrival],
    options: &Options,
) -> Run {
    let config = config(world, options);
    let tables: Vec<Arc<_>> = config.models.iter().map(|m| m.table.clone()).collect();
    let lanes = config.lane_depths.len() as u32;
    let mut device = SimDevice::new("sim", lanes, tables, Nanos::ZERO, options.noise.clone());
    let sims = sim_requests(arrivals, knows);
    let mut core = Core::new(config.clone(), policy);
    let mut checker = Checker::new(&config, options.stack);
    if options.delays {
        checker = checker.with_delays();
    }
    if let Some((bound, each)) = options.passing {
        checker = checker.with_passing_bound(bound, each);
    }
    let mut judge = Judge::new(checker);
    let mut recorder = Recorder::default();
    let script = &options.script;
    let mut ended = if options.record {
        let mut both = (&mut judge, &mut recorder);
        run(
            &mut core,
            &mut device,
            &sims,
            script,
            &mut both,
            &mut untimed,
        )
    } else {
        run(
            &mut core,
            &mut device,
            &sims,
            script,
            &mut judge,
            &mut untimed,
        )
    };
    ended.sort_by_key(|e| e.id);
    Run {
        config,
        ended,
        counters: core.counters(),
        transcript: recorder.0,
        verdict: judge.finish(),
    }
}

/// Arrivals as the driver takes them; `knows` tells the scheduler the output lengths.
pub fn sim_requests(arrivals: &[Arrival], knows: bool) -> Vec<SimRequest> {
    let sim = |(i, a): (usize, &Arrival)| {
        let mut sim = SimRequest::new(
            i as u64,
            ModelId(a.model as u32),
            Time(a.at),
            a.sla.map(Nanos),
            a.input_len,
            a.output_len,
        );
        sim.request.samples = a.samples;
        sim.request.sequence = a.sequence;
        sim.request.class = ClassId(a.class);
        sim.request.priority = a.priority;
        sim.request.delay_after = a.delay.map(Nanos);
        sim.request.known_output_len = knows.then_some(a.output_len);
        sim
    };
    arrivals.iter().enumerate().map(sim).collect()
}

/// Number of cases: `LAZYBATCH_SOAK_CASES`, or `default` so that the suite stays quick.
pub fn num_cases(default: u64) -> u64 {
    std::env::var("LAZYBATCH_SOAK_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// Seeds from 0, as many as [`num_cases`], or the part of them that `LAZYBATCH_SOAK_CASES` names as
/// `FIRST..END`.
pub fn soak_seeds(default: u64) -> Range<u64> {
    let asked = std::env::var("LAZYBATCH_SOAK_CASES").unwrap_or_default();
    let ends = asked.split_once("..");
    let part = ends.and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    part.unwrap_or_else(|| 0..num_cases(default))
}

/// A generator for one seed.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}
