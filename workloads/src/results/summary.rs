//! The numbers of a run, from its finished requests.
//!
//! Definitions: a request is *completed* when its outcome is met or violated. Mean, percentiles
//! and throughput are over completed requests; percentiles are nearest-rank. Rates are per second
//! from the first arrival of any request to the last finish of any, however it ended. The violation
//! rate is (violated + shed + failed) / (requests - cancelled).

use std::collections::BTreeMap;

use lazybatch_sla::{Nanos, Outcome};

use super::{Counters, FinishedRequest, RunResult};

impl RunResult {
    /// The summary of one policy on one model.
    ///
    /// `requests` may be in any order. What cannot be computed (a mean of nothing, a rate over no
    /// time) is 0.
    pub fn summarise(
        policy: impl Into<String>,
        model: impl Into<String>,
        rate_rps: f64,
        sla: Nanos,
        requests: &[FinishedRequest],
        counters: &Counters,
    ) -> Self {
        let num =
            |outcome: Outcome| requests.iter().filter(|r| r.outcome == outcome).count() as u64;
        let (met, violated) = (num(Outcome::Met), num(Outcome::Violated));
        let (shed, failed) = (num(Outcome::Shed), num(Outcome::Failed));
        let cancelled = num(Outcome::Cancelled);
        let counted = requests.len() as u64 - cancelled;

        let latencies = completed_latencies(requests);
        let percentile = |percent| nearest_rank(&latencies, percent).as_ms();
        let first_arrival = requests.iter().map(|r| r.arrival).min().unwrap_or_default();
        let last_finish = requests.iter().map(|r| r.finish).max().unwrap_or_default();
        let span = last_finish.since(first_arrival);
        let per_second = |count: u64| ratio(count as f64 * 1e9, span.0 as f64);

        // None to time is no time.
        let decisions = counters.decisions.clone();
        let mut decisions = decisions.filter(|all| !all.is_empty());
        if let Some(decisions) = &mut decisions {
            decisions.sort_unstable();
        }
        let decision_us = |percent| decisions.as_ref().map(|d| nearest_rank(d, percent).as_us());
        Self {
            policy: policy.into(),
            round: None,
            model: model.into(),
            rate_rps,
            sla_ms: sla.as_ms(),
            sla_ms_by_model: BTreeMap::new(),
            requests: requests.len() as u64,
            mean_ms: mean_ms(&latencies),
            p50_ms: percentile(50),
            p90_ms: percentile(90),
            p99_ms: percentile(99),
            max_ms: percentile(100),
            throughput_rps: per_second(met + violated),
            goodput_rps: per_second(met),
            violation_rate: ratio((violated + shed + failed) as f64, counted as f64),
            shed,
            failed,
            cancelled,
            launches: counters.launches,
            mean_batch: ratio(counters.members as f64, counters.launches as f64),
            merges: counters.merges,
            preemptions: counters.preemptions,
            demoted: counters.demoted,
            decision_us_p50: decision_us(50),
            decision_us_p99: decision_us(99),
        }
    }
}

/// Latencies of the completed requests, sorted.
pub fn completed_latencies(requests: &[FinishedRequest]) -> Vec<Nanos> {
    let completed = requests.iter().filter(|r| r.outcome.is_completed());
    let mut latencies: Vec<Nanos> = completed.map(FinishedRequest::latency).collect();
    latencies.sort_unstable();
    latencies
}

/// The nearest-rank percentile of sorted values: that of rank ceil(percent / 100 * n), computed in
/// integers; zero for no values.
///
/// # Panics
/// When `percent` is above 100.
pub fn nearest_rank(sorted: &[Nanos], percent: u64) -> Nanos {
    assert!(percent <= 100, "a percentile of {percent}");
    let rank = (percent as u128 * sorted.len() as u128).div_ceil(100) as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

fn mean_ms(latencies: &[Nanos]) -> f64 {
    let total: u128 = latencies.iter().map(|l| u128::from(l.0)).sum();
    ratio(total as f64, latencies.len() as f64 * 1e6)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::Time;

    /// A request with times in milliseconds.
    fn request(id: u64, arrival: u64, finish: u64, outcome: Outcome) -> FinishedRequest {
        let ms = |t: u64| Time(t * 1_000_000);
        FinishedRequest {
            id,
            model: "toy".into(),
            arrival: ms(arrival),
            first_launch: None,
            finish: ms(finish),
            outcome,
            input_len: 0,
            output_len: 0,
            class: None,
        }
    }

    fn summary(requests: &[FinishedRequest], counters: &Counters) -> RunResult {
        RunResult::summarise("lazy", "toy", 5.0, Nanos::from_ms(100), requests, counters)
    }

    #[test]
    fn a_run_worked_out_by_hand() {
        let requests = [
            request(0, 1000, 1010, Outcome::Met),
            request(1, 1000, 1200, Outcome::Violated),
            request(2, 1500, 1530, Outcome::Met),
            request(3, 1600, 1601, Outcome::Shed),
            request(4, 1700, 1900, Outcome::Failed),
            request(5, 1800, 9000, Outcome::Cancelled),
            request(6, 2980, 3000, Outcome::Met),
        ];
        let counters = Counters {
            launches: 4,
            members: 10,
            merges: 2,
            preemptions: 1,
            ..Counters::default()
        };
        let run = summary(&requests, &counters);
        assert_eq!(run.requests, 7);
        assert_eq!((run.shed, run.failed, run.cancelled), (1, 1, 1));
        // Latencies 10, 20, 30 and 200 ms, over 8 s from the arrival at 1 s to the end at 9 s.
        assert_eq!(run.mean_ms, 65.0);
        assert_eq!(
            (run.p50_ms, run.p90_ms, run.p99_ms, run.max_ms),
            (20.0, 200.0, 200.0, 200.0)
        );
        assert_eq!(run.throughput_rps, 0.5);
        assert_eq!(run.goodput_rps, 0.375);
        assert_eq!(run.violation_rate, 0.5);
        assert_eq!(run.mean_batch, 2.5);
        assert_eq!((run.merges, run.preemptions, run.launches), (2, 1, 4));
        assert_eq!(run.decision_us_p50, None);
    }

    #[test]
    fn nothing_gives_zeros_and_no_nan() {
        let run = summary(&[], &Counters::default());
        let zeros = [
            run.mean_ms,
            run.p99_ms,
            run.throughput_rps,
            run.violation_rate,
            run.mean_batch,
        ];
        assert_eq!(zeros, [0.0; 5]);
        let only_cancelled = summary(
            &[request(0, 0, 1, Outcome::Cancelled)],
            &Counters::default(),
        );
        assert_eq!(only_cancelled.violation_rate, 0.0);
    }

    #[test]
    fn ranks_are_those_of_the_definition() {
        let values: Vec<Nanos> = (1..=10).map(Nanos).collect();
        for (percent, want) in [
            (0, 1),
            (10, 1),
            (11, 2),
            (50, 5),
            (51, 6),
            (90, 9),
            (91, 10),
            (100, 10),
        ] {
            assert_eq!(nearest_rank(&values, percent), Nanos(want), "p{percent}");
        }
        // Exactly 0.99 * 700 = 693, where floating point would come out above it.
        let values: Vec<Nanos> = (1..=700).map(Nanos).collect();
        assert_eq!(nearest_rank(&values, 99), Nanos(693));
        assert_eq!(nearest_rank(&[], 50), Nanos::ZERO);
    }

    #[test]
    fn where_no_decision_was_timed_there_is_no_time() {
        let counters = Counters {
            decisions: Some(Vec::new()),
            ..Counters::default()
        };
        let run = summary(&[], &counters);
        assert_eq!((run.decision_us_p50, run.decision_us_p99), (None, None));
    }

    #[test]
    fn decisions_are_sorted_before_ranking() {
        let decisions = Some([9000, 1000, 5000].map(Nanos).to_vec());
        let run = summary(
            &[],
            &Counters {
                decisions,
                ..Counters::default()
            },
        );
        assert_eq!(
            (run.decision_us_p50, run.decision_us_p99),
            (Some(5.0), Some(9.0))
        );
    }
}
