//! Makes plans: simulates candidate rules over the arrivals of the past.
//!
//! Each candidate runs in a core of its own over a [`SimDevice`], from an empty system. Short
//! pasts are repeated. All candidates see the first part; only those near the best of it are run
//! over the whole.

use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{Nanos, RequestId, Time};

use super::virtual_time::{self, Script, SimRequest};
use crate::core::{Core, Past, Plan, PlanRequest, Request};
use crate::policy;

/// Arrivals of a simulation; a shorter past is repeated.
const MIN_ARRIVALS: usize = 1024;
/// Arrivals of the part that all candidates see.
const SHORT: usize = 512;
/// Candidates dearer than this times the best of the short part are dropped.
const NEAR: f64 = 1.25;

/// Simulates. Between two candidates it asks whether to stop; a plan that was stopped is empty.
pub fn make(request: &PlanRequest, stopped: &dyn Fn() -> bool) -> Plan {
    let arrivals = script(request);
    let cost = |spec: &str, arrivals: &[SimRequest]| {
        let cost = if stopped() {
            None
        } else {
            run(request, spec, arrivals)
        };
        cost.map(|c| (spec.to_string(), c))
    };
    let short = &arrivals[..SHORT.min(arrivals.len())];
    let mut costs: Vec<(String, u64)> = request
        .candidates
        .iter()
        .filter_map(|c| cost(c, short))
        .collect();
    let least = costs.iter().map(|c| c.1).min().unwrap_or(0) as f64;
    let incumbent = request.candidates.first();
    costs.retain(|(name, c)| *c as f64 <= NEAR * least || Some(name) == incumbent);
    if short.len() < arrivals.len() {
        costs = costs
            .iter()
            .filter_map(|(c, _)| cost(c, &arrivals))
            .collect();
    }
    if stopped() {
        costs.clear();
    }
    costs.sort_by_key(|c| c.1);
    Plan { costs }
}

/// The past as requests to simulate.
fn script(request: &PlanRequest) -> Vec<SimRequest> {
    let past = &request.arrivals;
    let num = past.len().max(MIN_ARRIVALS);
    let mut now = Time::ZERO;
    let mut arrivals = Vec::with_capacity(num);
    for (i, p) in past.iter().cycle().take(num).enumerate() {
        if i > 0 {
            now = now + p.gap;
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

/// Mean cost of a rule in nanoseconds; `None` for one that is not registered.
fn run(plan: &PlanRequest, spec: &str, arrivals: &[SimRequest]) -> Option<u64> {
    let rule = policy::build(spec).ok()?;
    let tables = plan.config.models.iter().map(|m| m.table.clone()).collect();
    let mut device = SimDevice::new("plan", 1, tables, Nanos::ZERO, Noise::default());
    let mut core = Core::new(plan.config.clone(), rule);
    let ended = virtual_time::run(
        &mut core,
        &mut device,
        arrivals,
        &Script::default(),
        &mut (),
        &mut virtual_time::untimed,
    );
    let cost = |e: &virtual_time::Ended| {
        let request = &arrivals[e.id.index()].request;
        let latency = e.finish.since(request.arrival).0 as f64;
        match request.sla {
            Some(sla) if latency > sla.0 as f64 => latency + plan.miss_weight * sla.0 as f64,
            _ => latency,
        }
    };
    let total: f64 = ended.iter().map(cost).sum();
    Some((total / ended.len().max(1) as f64) as u64)
}
