//! What one run is worth: the objective J, growth of the backlog, and the same run at other
//! targets.

use lazybatch_sla::{Nanos, Outcome};
use serde::{Deserialize, Serialize};

use super::bound::Bound;
use super::cases::Case;
use super::grid::Setting;
use crate::results::{Counters, FinishedRequest, RunResult};

/// Weight of a violation in J, in units of the SLA target.
/// Source: the project's objective, docs/sweeps.md.
pub const VIOLATION_WEIGHT: f64 = 3.0;

/// One simulation at one target: a policy, a seed, a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seed of its arrivals.
    pub seed: u64,
    /// What is varied besides.
    pub setting: Setting,
    /// Capacity of its case, requests/s.
    pub capacity_rps: f64,
    /// Mean latency + 3 x SLA x violation rate, in milliseconds.
    pub j_ms: f64,
    /// Share of the arrivals that piled up; see [`backlog_growth`].
    pub backlog_growth: f64,
    /// What no schedule of these arrivals can beat; absent where the grid does without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// The numbers of `lazybatch-results/1`.
    #[serde(flatten)]
    pub result: RunResult,
}

/// Whether a policy decides without looking at deadlines, so that one simulation can be scored at
/// every target. Wrong only on the safe side: policies not known here are simulated per target.
pub fn ignores_sla(spec: &str) -> bool {
    let (name, argument) = spec.split_once(':').unwrap_or((spec, ""));
    match name {
        "serial" | "graph" | "greedy" | "cellular" | "continuous" => true,
        // Queue policies of Triton can refuse or demote by timeout, counted from the arrival and
        // stated in the specification, not by the SLA; kept apart all the same.
        "triton" => !argument.contains("timeout"),
        _ => false,
    }
}

/// The same requests with outcomes by another target.
pub fn rescore(requests: &mut [FinishedRequest], sla: Nanos) {
    for request in requests {
        if request.outcome.is_completed() {
            request.outcome = match request.latency() <= sla {
                true => Outcome::Met,
                false => Outcome::Violated,
            };
        }
    }
}

/// The row of a run whose outcomes are by `sla`, without a bound.
pub fn score(
    case: &Case,
    policy: &str,
    seed: u64,
    sla: Nanos,
    requests: &[FinishedRequest],
    counters: &Counters,
) -> Run {
    let label = case.model.label.as_str();
    Run {
        seed,
        setting: case.setting.clone(),
        capacity_rps: case.capacity_rps,
        j_ms: objective_ms(requests, sla),
        backlog_growth: backlog_growth(requests),
        bound: None,
        result: RunResult::summarise(policy, label, case.rate_rps, sla, requests, counters),
    }
}

/// J in milliseconds: the mean over requests, cancelled ones left out, of the latency plus 3 x SLA
/// for each that was not answered in time. One that was refused or lost counts with the larger of
/// the SLA and the time until it was.
pub fn objective_ms(requests: &[FinishedRequest], sla: Nanos) -> f64 {
    let mut total_ns = 0_u128;
    let (mut num, mut violated) = (0_u64, 0_u64);
    for request in requests {
        let latency = match request.outcome {
            Outcome::Cancelled => continue,
            Outcome::Met | Outcome::Violated => request.latency(),
            Outcome::Shed | Outcome::Failed => request.latency().max(sla),
        };
        num += 1;
        violated += u64::from(request.outcome != Outcome::Met);
        total_ns += u128::from(latency.0);
    }
    if num == 0 {
        return 0.0;
    }
    let num = num as f64;
    total_ns as f64 / num / 1e6 + VIOLATION_WEIGHT * sla.as_ms() * violated as f64 / num
}

/// How many more requests were open, on average over the last quarter of the arrivals' span than
/// over its second quarter, as a share of the half of the arrivals that came between the middles
/// of the two. 0 where the backlog stays; 1 - capacity / rate where it grows at that rate.
pub fn backlog_growth(requests: &[FinishedRequest]) -> f64 {
    let arrivals = || requests.iter().map(|r| r.arrival);
    let (Some(first), Some(last)) = (arrivals().min(), arrivals().max()) else {
        return 0.0;
    };
    let span = last.since(first).0;
    let quarter = span / 4;
    if quarter == 0 {
        return 0.0;
    }
    let open_in = |from: u64| {
        let (from, to) = (first.0 + from, first.0 + from + quarter);
        let overlap =
            |r: &FinishedRequest| r.finish.0.min(to).saturating_sub(r.arrival.0.max(from));
        let total: u128 = requests.iter().map(|r| u128::from(overlap(r))).sum();
        total as f64 / quarter as f64
    };
    let half = requests.len() as f64 / 2.0;
    (open_in(span - quarter) - open_in(quarter)) / half
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::Time;

    fn request(arrival_ms: u64, finish_ms: u64, outcome: Outcome) -> FinishedRequest {
        FinishedRequest {
            id: 0,
            model: "m".into(),
            arrival: Time(arrival_ms * 1_000_000),
            first_launch: None,
            finish: Time(finish_ms * 1_000_000),
            outcome,
            input_len: 0,
            output_len: 0,
            class: None,
        }
    }

    #[test]
    fn the_objective_by_hand() {
        let requests = [
            request(0, 4, Outcome::Met),
            request(0, 30, Outcome::Violated),
            request(5, 6, Outcome::Shed),
            request(0, 50, Outcome::Failed),
            request(0, 900, Outcome::Cancelled),
        ];
        // Latencies 4, 30, 10 (the SLA, larger than 1) and 50; three of four violated.
        let want = (4.0 + 30.0 + 10.0 + 50.0) / 4.0 + 3.0 * 10.0 * 0.75;
        assert_eq!(objective_ms(&requests, Nanos::from_ms(10)), want);
        assert_eq!(objective_ms(&[], Nanos::from_ms(10)), 0.0);
    }

    #[test]
    fn backlog_grows_where_service_is_slower_than_arrivals() {
        // One arrival a millisecond; one finish every `gap` milliseconds.
        let growth = |gap: u64| {
            let requests: Vec<_> = (0..1000)
                .map(|i| request(i, (i + 1).max((i + 1) * gap / 10), Outcome::Met))
                .collect();
            backlog_growth(&requests)
        };
        assert!(growth(10).abs() < 0.01, "{}", growth(10));
        // Served at 2/3 of the rate: a third of the arrivals piles up.
        assert!((growth(15) - 1.0 / 3.0).abs() < 0.01, "{}", growth(15));
        assert_eq!(backlog_growth(&[]), 0.0);
    }

    #[test]
    fn rescoring_moves_only_completed_requests() {
        let mut requests = [
            request(0, 4, Outcome::Violated),
            request(0, 5, Outcome::Met),
            request(0, 1, Outcome::Shed),
        ];
        rescore(&mut requests, Nanos::from_ms(4));
        let outcomes = requests.each_ref().map(|r| r.outcome);
        assert_eq!(outcomes, [Outcome::Met, Outcome::Violated, Outcome::Shed]);
    }
}
