//! Makes plans: simulates candidate rules over the arrivals of the past.
//!
//! Each candidate runs in a core of its own over a [`SimDevice`], from an empty system; what the
//! first arrivals cost, before queues have built up, does not count. A request counts by the weight
//! of its class. Short pasts are repeated. Where the budget does not allow all candidates the
//! whole, they see the first part, and only those near the best of it go on.

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
/// Most arrivals that measure what an arrival takes, and that a candidate is judged by at the
/// least; a past of less than half is taken twice.
const PROBE: usize = 128;
/// Percent of the budget that the part for all candidates takes.
const SHORT_SHARE: u64 = 40;
/// Gaps of a past that is repeated are scaled by these, in turn: a rate that is known from few
/// arrivals may as well be another.
const PACES: [f64; 3] = [1.0, 0.8, 1.25];
/// One in so many arrivals, the first ones, warm a simulation up.
const WARM_UP: usize = 3;
/// Candidates dearer than this times the best of the short part are dropped.
const NEAR: f64 = 1.4;
/// Growth of the backlog, as a share of arrivals, from which on load is beyond capacity.
const OVERLOAD: f64 = 0.15;
/// What a missed deadline costs in addition then, as a multiple of its SLA target.
const OVERLOAD_WEIGHT: f64 = 30.0;

/// Simulates. Between two candidates it asks whether to stop; a plan that was stopped is empty.
pub fn make(request: &PlanRequest, stopped: &dyn Fn() -> bool) -> Plan {
    let arrivals = script(request);
    let mut launches = 0;
    let Some(incumbent) = request.candidates.first() else {
        return Plan::default();
    };
    // How many launches an arrival takes says how many arrivals the budget allows.
    let probe = &arrivals[..PROBE.min(2 * request.arrivals.len()).min(arrivals.len())];
    let each = run(request, incumbent, probe).map_or(1, |r| r.launches.max(1));
    launches += each;
    let affordable = |share: u64, num_candidates: usize| {
        let budget = share * request.budget / 100 / num_candidates.max(1) as u64;
        let num = budget * probe.len() as u64 / each;
        &arrivals[..(num as usize).clamp(probe.len(), arrivals.len())]
    };
    let mut trials = |names: &[&String], arrivals: &[SimRequest]| -> Vec<Trial> {
        let names = names.iter().filter(|_| !stopped());
        let trials: Vec<Trial> = names
            .filter_map(|name| Some((name, run(request, name, arrivals)?)))
            .map(|(name, ran)| Trial::new(request, name, arrivals, &ran))
            .collect();
        launches += trials.iter().map(|t| t.launches).sum::<u64>();
        match arrivals.len() <= request.arrivals.len() {
            true => judge(trials),
            // A past that is repeated at other paces says nothing of capacity.
            false => trials,
        }
    };
    let names: Vec<&String> = request.candidates.iter().collect();
    let mut kept;
    if affordable(100, names.len()).len() == arrivals.len() {
        kept = trials(&names, &arrivals);
    } else {
        let short = affordable(SHORT_SHARE, names.len());
        let short = &short[..short.len().min(SHORT)];
        kept = trials(&names, short);
        let least = kept.iter().map(|t| t.cost).fold(f64::INFINITY, f64::min);
        kept.retain(|t| t.cost <= NEAR * least || t.name == *incumbent);
        let is_kept = |n: &&&String| kept.iter().any(|t| t.name == ***n);
        let names: Vec<&String> = names.iter().filter(is_kept).copied().collect();
        let whole = affordable(100 - SHORT_SHARE, names.len());
        if short.len() < whole.len() {
            kept = trials(&names, whole);
        }
    }
    if stopped() {
        kept.clear();
    }
    kept.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    Plan {
        costs: kept.into_iter().map(|t| (t.name, t.cost as u64)).collect(),
        launches,
        rest: Nanos::ZERO,
    }
}

/// What came of one candidate.
struct Trial {
    name: String,
    launches: u64,
    /// Mean cost of a request: latency plus weighted misses, in nanoseconds.
    cost: f64,
    /// Mean cost of missed deadlines alone, unweighted.
    missed: f64,
    /// Growth of the backlog, as a share of the arrivals meanwhile.
    growth: f64,
}

impl Trial {
    fn new(plan: &PlanRequest, name: &str, arrivals: &[SimRequest], ran: &Ran) -> Self {
        let first = arrivals.len() / WARM_UP;
        let open_at = |i: usize| {
            let now = arrivals[i].request.arrival;
            let ended = |e: &&virtual_time::Ended| e.id.index() < i && e.finish > now;
            ran.ended.iter().filter(ended).count() as f64
        };
        let last = arrivals.len() - 1;
        let mut trial = Self {
            name: name.to_string(),
            launches: ran.launches,
            cost: 0.0,
            missed: 0.0,
            growth: (open_at(last) - open_at(first)) / (last - first).max(1) as f64,
        };
        let counted = || ran.ended.iter().filter(|e| e.id.index() >= first);
        let num = counted().count().max(1) as f64;
        for e in counted() {
            let request = &arrivals[e.id.index()].request;
            let weight = plan.config.classes[request.class.index()].weight / num;
            let mut latency = e.finish.since(request.arrival).0 as f64;
            if let Some(sla) = request.sla.map(|s| s.0 as f64) {
                let refused = !e.outcome.is_completed();
                if refused || latency > sla {
                    trial.missed += weight * sla;
                    trial.cost += weight * plan.miss_weight * sla;
                }
                if refused {
                    latency = latency.max(sla);
                }
            }
            trial.cost += weight * latency;
        }
        trial
    }
}

/// Beyond capacity latencies grow for as long as one looks, and all that can be had is requests in
/// time: where the backlog grows under every candidate, misses count for more.
fn judge(mut trials: Vec<Trial>) -> Vec<Trial> {
    let growth = trials.iter().map(|t| t.growth);
    if growth.fold(f64::INFINITY, f64::min) > OVERLOAD {
        for trial in &mut trials {
            trial.cost += OVERLOAD_WEIGHT * trial.missed;
        }
    }
    trials
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

/// A simulation of one candidate.
struct Ran {
    ended: Vec<virtual_time::Ended>,
    launches: u64,
}

/// Simulates a candidate; `None` for one that is not registered.
fn run(plan: &PlanRequest, spec: &str, arrivals: &[SimRequest]) -> Option<Ran> {
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
    Some(Ran {
        ended,
        launches: launches.0,
    })
}
