//! Runs of `adaptive` in virtual time, with what it planned.

use std::collections::BTreeSet;

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Core, CoreConfig, Event, ModelSpec};
use lazybatch_engine::driver::virtual_time::{self, Script, SimRequest};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::policy;
use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{LatencyTable, ModelId, Nanos, Outcome, Profile, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Two loops, the first over the input: a step costs about the same at any batch.
pub const TRANSLATOR: &str = r#"{"format":"lazybatch-profile/1","device":"d","models":[
  {"name":"m","max_batch":8,"output_len_p90":14,"blocks":[
    {"name":"enc","repeat":"per_input_step","nodes":[{"name":"e","latency_us":[[1,100.0],[8,120.0]]}]},
    {"name":"dec","repeat":"until_stop","nodes":[{"name":"d","latency_us":[[1,150.0],[8,180.0]]}]}]}]}"#;

pub fn config(text: &str) -> CoreConfig {
    config_of(&[text])
}

pub fn config_of(texts: &[&str]) -> CoreConfig {
    let spec = |text: &&str| {
        let profile = Profile::parse("-", text).expect("a valid profile");
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 1)
    };
    CoreConfig::new(texts.iter().map(spec).collect())
}

/// Poisson arrivals; outputs about as long as inputs.
pub fn arrivals(num: usize, rate_rps: f64, sla_ms: u64, seed: u64) -> Vec<SimRequest> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut now = 0.0;
    (0..num as u64)
        .map(|i| {
            now += -(1.0 - rng.random::<f64>()).ln() * 1e9 / rate_rps;
            let input = rng.random_range(2..14);
            let output = input + rng.random_range(0..3) - 1;
            let sla = Some(Nanos::from_ms(sla_ms));
            SimRequest::new(i, ModelId(0), Time(now as u64), sla, input, output)
        })
        .collect()
}

/// Counts plans, remembers the last, and what any of them compared.
#[derive(Default)]
pub struct Plans {
    pub num: usize,
    pub last: Vec<(String, u64)>,
    pub compared: BTreeSet<String>,
}

impl Observer for Plans {
    fn on_event(&mut self, _now: Time, event: &Event) {
        if let Event::Planned(plan) = event {
            self.num += 1;
            self.last = plan.costs.clone();
            self.compared.extend(plan.costs.iter().map(|c| c.0.clone()));
        }
    }
}

pub struct Ran {
    pub mean_ms: f64,
    /// Of those that were answered.
    pub answered_ms: f64,
    pub met: usize,
    pub shed: usize,
    pub finishes: Vec<Time>,
    pub plans: Plans,
}

pub fn run(config: &CoreConfig, spec: &str, arrivals: &[SimRequest]) -> Ran {
    run_on(config, config, spec, arrivals)
}

/// On a device whose launches take what the tables of another configuration say.
pub fn run_on(
    device: &CoreConfig,
    config: &CoreConfig,
    spec: &str,
    arrivals: &[SimRequest],
) -> Ran {
    let tables: Vec<std::sync::Arc<LatencyTable>> =
        device.models.iter().map(|m| m.table.clone()).collect();
    let mut device = SimDevice::new("sim", 1, tables, Nanos::ZERO, Noise::default());
    let mut core = Core::new(config.clone(), policy::build(spec).expect("registered"));
    let mut judge = Judge::new(Checker::new(config, false));
    let mut plans = Plans::default();
    let ended = virtual_time::run(
        &mut core,
        &mut device,
        arrivals,
        &Script::default(),
        &mut (&mut judge, &mut plans),
        &mut virtual_time::untimed,
    );
    let mut finishes = vec![Time::ZERO; arrivals.len()];
    let (mut sum, mut answered, mut met, mut shed) = (0.0, 0.0, 0, 0);
    for e in &ended {
        let request = &arrivals[e.id.index()].request;
        finishes[e.id.index()] = e.finish;
        let latency = e.finish.since(request.arrival);
        sum += latency.as_ms();
        if e.outcome.is_completed() {
            answered += latency.as_ms();
        }
        met += usize::from(e.outcome == Outcome::Met);
        shed += usize::from(e.outcome == Outcome::Shed);
    }
    assert_eq!(judge.finish().map_err(|v| v.to_string()), Ok(()), "{spec}");
    Ran {
        mean_ms: sum / ended.len() as f64,
        answered_ms: answered / (ended.len() - shed) as f64,
        met,
        shed,
        finishes,
        plans,
    }
}

/// Mean latency plus three SLA targets for each that is missed.
pub fn cost(ran: &Ran, sla_ms: u64, num: usize) -> f64 {
    ran.mean_ms + 3.0 * sla_ms as f64 * (num - ran.met) as f64 / num as f64
}
