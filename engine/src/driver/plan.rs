//! Makes plans: simulates candidate rules over the arrivals of the past.
//!
//! Each candidate runs in a core of its own over a [`SimDevice`], from an empty system; what the
//! first arrivals cost, before queues have built up, does not count. A request counts by the weight
//! of its class. Short pasts are repeated. All
//! candidates see the first part; only those near the best of it are run over the whole.

use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{Launch, Nanos, RequestId, Time};

use super::Observer;
use super::virtual_time::{self, Script, SimRequest};
use crate::core::{Core, Past, Plan, PlanRequest, Request};
use crate::policy;

/// Arrivals of a simulation; a shorter past is repeated.
const MIN_ARRIVALS: usize = 384;
/// Most arrivals of the part that all candidates see.
const SHORT: usize = 768;
/// Arrivals that measure what an arrival takes, and the least that a candidate is judged by.
const PROBE: usize = 128;
/// Percent of the budget that the part for all candidates takes.
const SHORT_SHARE: u64 = 40;
/// Gaps of a past that is repeated are scaled by these, in turn: a rate that is known from few
/// arrivals may as well be another.
const PACES: [f64; 3] = [1.0, 0.8, 1.25];
/// One in so many arrivals, the first ones, warm a simulation up.
const WARM_UP: usize = 3;
/// Candidates dearer than this times the best of the short part are dropped.
const NEAR: f64 = 1.25;

/// Simulates. Between two candidates it asks whether to stop; a plan that was stopped is empty.
pub fn make(request: &PlanRequest, stopped: &dyn Fn() -> bool) -> Plan {
    let arrivals = script(request);
    let mut launches = 0;
    let Some(incumbent) = request.candidates.first() else {
        return Plan::default();
    };
    // How many launches an arrival takes says how many arrivals the budget allows.
    let probe = &arrivals[..PROBE.min(arrivals.len())];
    let each = run(request, incumbent, probe).map_or(1, |r| r.1.max(1));
    launches += each;
    let affordable = |share: u64, num_candidates: usize| {
        let budget = share * request.budget / 100 / num_candidates.max(1) as u64;
        let num = budget * probe.len() as u64 / each;
        &arrivals[..(num as usize).clamp(probe.len(), arrivals.len())]
    };
    let mut costs = |names: &[String], arrivals: &[SimRequest]| -> Vec<(String, u64)> {
        let names = names.iter().filter(|_| !stopped());
        let mut cost = |c: &String| {
            let (cost, num) = run(request, c, arrivals)?;
            launches += num;
            Some((c.clone(), cost))
        };
        names.filter_map(&mut cost).collect()
    };
    let num = request.candidates.len();
    let short = affordable(SHORT_SHARE, num);
    let short = &short[..short.len().min(SHORT)];
    let mut kept = costs(&request.candidates, short);
    let least = kept.iter().map(|c| c.1).min().unwrap_or(0) as f64;
    kept.retain(|(name, c)| *c as f64 <= NEAR * least || name == incumbent);
    let names: Vec<String> = kept.iter().map(|c| c.0.clone()).collect();
    let whole = affordable(100 - SHORT_SHARE, names.len());
    if short.len() < whole.len() {
        kept = costs(&names, whole);
    }
    if stopped() {
        kept.clear();
    }
    kept.sort_by_key(|c| c.1);
    Plan {
        costs: kept,
        launches,
    }
}

/// The past as requests to simulate.
fn script(request: &PlanRequest) -> Vec<SimRequest> {
    let past = &request.arrivals;
    let num = past.len().max(MIN_ARRIVALS);
    let mut now = Time::ZERO;
    let mut arrivals = Vec::with_capacity(num);
    for (i, p) in past.iter().cycle().take(num).enumerate() {
        if i > 0 {
            let pace = PACES[(i / past.len()) % PACES.len()];
            now = now + Nanos((p.gap.0 as f64 * pace) as u64);
        }
        arrivals.push(sim_request(i, now, p));
    }
    arrivals
}

fn sim_request(i: usize, arrival: Time, p: &Past) -> SimRequest {
    SimRequest {
        request: Request {
            id: RequestId(i as u64),
            model: p.model,
            arrival,
            sla: p.sla,
            class: p.class,
            priority: p.priority,
            samples: p.samples,
            input_len: p.input_len,
            sequence: None,
            max_steps: (p.output_len == 0).then_some(0),
            known_output_len: None,
        },
        output_len: p.output_len,
    }
}

/// Counts launches.
#[derive(Default)]
struct Launches(u64);

impl Observer for Launches {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        self.0 += 1;
    }
}

/// Mean cost of a rule in nanoseconds, and its launches; `None` for one that is not registered.
fn run(plan: &PlanRequest, spec: &str, arrivals: &[SimRequest]) -> Option<(u64, u64)> {
    let rule = policy::build(spec).ok()?;
    let tables = plan.config.models.iter().map(|m| m.table.clone()).collect();
    let mut device = SimDevice::new("plan", 1, tables, Nanos::ZERO, Noise::default());
    let mut core = Core::new(plan.config.clone(), rule);
    let mut launches = Launches::default();
    let ended = virtual_time::run(
        &mut core,
        &mut device,
        arrivals,
        &Script::default(),
        &mut launches,
        &mut virtual_time::untimed,
    );
    let counted = ended
        .iter()
        .filter(|e| e.id.index() >= arrivals.len() / WARM_UP);
    let cost = |e: &virtual_time::Ended| {
        let request = &arrivals[e.id.index()].request;
        let latency = e.finish.since(request.arrival).0 as f64;
        let refused = !e.outcome.is_completed();
        let weight = plan.config.classes[request.class.index()].weight;
        weight
            * match request.sla {
                Some(sla) if refused => latency.max(sla.0 as f64) + plan.miss_weight * sla.0 as f64,
                Some(sla) if latency > sla.0 as f64 => latency + plan.miss_weight * sla.0 as f64,
                _ => latency,
            }
    };
    let (num, total) = counted.fold((0, 0.0), |(n, sum), e| (n + 1, sum + cost(e)));
    Some(((total / f64::from(num.max(1))) as u64, launches.0))
}
