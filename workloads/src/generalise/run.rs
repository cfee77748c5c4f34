//! Simulates policies on random cases, in parallel over cases and policies.

use std::ops::Range;

use lazybatch_engine::policy;
use lazybatch_kernels::Noise;
use lazybatch_sla::Nanos;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::case::{ArrivalKind, Case, Cost, LengthKind};
use super::{GOODPUT_TOLERANCE, TOLERANCE};
use crate::arrivals::Arrival;
use crate::error::{Error, Result};
use crate::experiment::{Detail, Simulation};
use crate::results::{FinishedRequest, RunResult};
use crate::sweep::judge::ERRORS;
use crate::sweep::points::{SUSTAINED_GROWTH, is_online, name, paired};
use crate::sweep::score::{backlog_growth, objective_ms};

/// What a case is, in a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// What it was drawn from.
    pub seed: u64,
    /// See [`Case::blocks`].
    pub blocks: Vec<String>,
    /// Shape of the cost.
    pub cost: Cost,
    /// Whether a block is a loop.
    pub has_loops: bool,
    /// Most samples of one launch.
    pub max_batch: u32,
    /// Cost of a launch, microseconds.
    pub dispatch_us: f64,
    /// Kind of lengths.
    pub lengths: LengthKind,
    /// Mean input length.
    pub mean_input: f64,
    /// Mean output length.
    pub mean_output: f64,
    /// Kind of arrivals.
    pub arrivals: ArrivalKind,
    /// Requests that arrive.
    pub requests: usize,
    /// Mean time that so many arrivals take, seconds.
    pub span_s: f64,
    /// Arrival rate over the capacity.
    pub load: f64,
    /// See [`Case::capacity_rps`].
    pub capacity_rps: f64,
    /// Time of a request of mean lengths alone, milliseconds.
    pub alone_ms: f64,
    /// SLA target, milliseconds.
    pub sla_ms: f64,
    /// The same of the other models on the device, each of its own. Beside them, `load`, `has_loops` and
    /// `span_s` of this one are those of all together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Facts>,
}

impl Facts {
    /// Of a case.
    pub fn new(case: &Case) -> Self {
        Self {
            seed: case.seed,
            blocks: case.blocks(),
            cost: case.cost,
            has_loops: case.models().any(Case::has_loops),
            max_batch: case.model().max_batch,
            dispatch_us: case.profile.dispatch_us,
            lengths: case.length_kind,
            mean_input: case.lengths.mean_input(),
            mean_output: case.lengths.mean_output(),
            arrivals: case.arrival_kind,
            requests: case.num_requests,
            span_s: case.num_requests as f64 / case.rate_of_all(),
            load: case.models().map(|c| c.load).sum(),
            capacity_rps: case.capacity_rps,
            alone_ms: case.alone_ms,
            sla_ms: case.sla().as_ms(),
            beside: case.beside.iter().map(Self::new).collect(),
        }
    }
}

/// One policy on a case: means over the draws of arrivals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The policy.
    pub policy: String,
    /// Mean latency + 3 x SLA x violation rate, milliseconds.
    pub j_ms: f64,
    /// Mean latency, milliseconds.
    pub mean_ms: f64,
    /// 99th percentile of the latency, milliseconds.
    pub p99_ms: f64,
    /// Share of requests not answered in time.
    pub violation_rate: f64,
    /// Requests answered in time per second.
    pub goodput_rps: f64,
    /// Mean members of a launch.
    pub mean_batch: f64,
    /// Share of the arrivals that piled up.
    pub backlog_growth: f64,
    /// It refused somebody, so that it sustains nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sheds: bool,
    /// J of each draw, milliseconds; empty if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub j_by_draw: Vec<f64>,
    /// Goodput of each draw; empty if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goodput_by_draw: Vec<f64>,
}

impl Standing {
    /// Means over draws of one policy; `draws` is not empty.
    fn over(draws: &[Standing]) -> Self {
        if let [only] = draws {
            return only.clone();
        }
        let mean = |of: fn(&Standing) -> f64| {
            let sum: f64 = draws.iter().map(of).sum();
            sum / draws.len() as f64
        };
        Self {
            policy: draws[0].policy.clone(),
            j_ms: mean(|s| s.j_ms),
            mean_ms: mean(|s| s.mean_ms),
            p99_ms: mean(|s| s.p99_ms),
            violation_rate: mean(|s| s.violation_rate),
            goodput_rps: mean(|s| s.goodput_rps),
            mean_batch: mean(|s| s.mean_batch),
            backlog_growth: mean(|s| s.backlog_growth),
            sheds: draws.iter().any(|s| s.sheds),
            j_by_draw: draws.iter().map(|s| s.j_ms).collect(),
            goodput_by_draw: draws.iter().map(|s| s.goodput_rps).collect(),
        }
    }
}

/// What a case is judged by where the rule of sweeps is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JudgedBy {
    /// J, of a stable case.
    J,
    /// Goodput, of one beyond capacity.
    Goodput,
}

/// All policies on a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case.
    pub case: Facts,
    /// Whether the arrivals of some online policy do not pile up.
    pub stable: bool,
    /// What the rule of sweeps judges it by.
    pub judged_by: JudgedBy,
    /// The policy with the least J of those that the judged one is compared with.
    pub best_other: String,
    /// J of the judged policy over that of the best other.
    pub ratio: f64,
    /// Paired standard error of that, over the draws; 0 if there is one.
    #[serde(default)]
    pub ratio_se: f64,
    /// Goodput of the judged policy over the highest of those that it is compared with; 1 where
    /// none has any.
    pub goodput_ratio: f64,
    /// Paired standard error of that, over the draws; 0 if there is one.
    #[serde(default)]
    pub goodput_ratio_se: f64,
    /// The policies, in the order asked for.
    pub policies: Vec<Standing>,
}

impl CaseResult {
    /// Whether the judged policy is close to the best other one in J.
    pub fn is_within(&self) -> bool {
        self.ratio <= 1.0 + TOLERANCE
    }

    /// The same by the rule of sweeps: in J where the case is stable, in goodput beyond capacity;
    /// where there are several draws, two paired standard errors pass as well.
    pub fn is_within_by_rule(&self) -> bool {
        let (behind, tolerance, se) = match self.judged_by {
            JudgedBy::J => (self.ratio - 1.0, TOLERANCE, self.ratio_se),
            JudgedBy::Goodput => (
                1.0 - self.goodput_ratio,
                GOODPUT_TOLERANCE,
                self.goodput_ratio_se,
            ),
        };
        behind <= tolerance.max(ERRORS * se)
    }

    /// A policy.
    pub fn policy(&self, spec: &str) -> Option<&Standing> {
        self.policies.iter().find(|s| s.policy == spec)
    }

    fn new(case: &Case, judge: &str, policies: Vec<Standing>) -> Self {
        let others = || policies.iter().filter(|s| is_bar(&s.policy, judge));
        let best = others().min_by(|a, b| a.j_ms.total_cmp(&b.j_ms));
        let best = best.expect("checked: there is another online policy");
        let own = policies.iter().find(|s| s.policy == judge);
        let own = own.expect("checked: the judged policy runs");
        let most = others().max_by(|a, b| a.goodput_rps.total_cmp(&b.goodput_rps));
        let most = most.expect("checked: there is another online policy");
        let error = |of: fn(&Standing) -> &Vec<f64>, other: &Standing, unit: f64| match unit > 0.0 {
            true => paired(of(own), of(other)).1 / unit,
            false => 0.0,
        };
        let mut online = policies.iter().filter(|s| is_online(&s.policy));
        let stable = online.any(|s| s.backlog_growth <= SUSTAINED_GROWTH && !s.sheds);
        Self {
            case: Facts::new(case),
            stable,
            judged_by: match stable {
                true => JudgedBy::J,
                false => JudgedBy::Goodput,
            },
            best_other: best.policy.clone(),
            ratio: over(own.j_ms, best.j_ms),
            ratio_se: error(|s| &s.j_by_draw, best, best.j_ms),
            goodput_ratio: over(own.goodput_rps, most.goodput_rps),
            goodput_ratio_se: error(|s| &s.goodput_by_draw, most, most.goodput_rps),
            policies,
        }
    }
}

/// Whether a policy is one that the judged one is compared with: it knows only what a scheduler
/// can know, has another name, and is none of the rules that `adaptive` chooses from, which are parts
/// of it.
pub fn is_bar(spec: &str, judge: &str) -> bool {
    is_online(spec) && name(spec) != name(judge) && !policy::is_base_rule(spec)
}

/// Checks what [`run`] is asked for.
///
/// # Errors
/// An unknown policy, one that is asked for twice, no seeds, a judged policy that does not run or
/// has nothing to be compared with.
pub fn check(seeds: &Range<u64>, policies: &[String], judge: &str) -> Result<()> {
    if seeds.is_empty() {
        let got = format!("{}..{}", seeds.start, seeds.end);
        return Err(Error::parameter("seeds", "FROM..TO with FROM < TO", got));
    }
    for (i, spec) in policies.iter().enumerate() {
        policy::find(spec).map_err(|e| Error::parameter("policies", e.expected, e.got))?;
        if policies[..i].contains(spec) {
            let got = format!("{spec} twice");
            return Err(Error::parameter("policies", "each policy once", got));
        }
    }
    if !policies.iter().any(|p| p == judge) {
        let expected = format!("one of the policies: {}", policies.join(", "));
        return Err(Error::parameter("judge", expected, judge));
    }
    if !policies.iter().any(|p| is_bar(p, judge)) {
        let expected = format!("an online policy to compare {judge} with, no rule of its own");
        return Err(Error::parameter("policies", expected, policies.join(",")));
    }
    Ok(())
}

/// Simulates `policies` on the cases of `seeds` with so many models each, in the order of seeds, each
/// under `draws` (at least one) sets of its arrivals. `threads` is the number of threads, all cores if
/// absent; `tick` is called after each simulation.
///
/// # Errors
/// As [`check`]; a simulation in which the checker finds a broken rule.
pub fn run(
    seeds: Range<u64>,
    num_models: usize,
    draws: u32,
    policies: &[String],
    judge: &str,
    threads: Option<usize>,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<CaseResult>> {
    check(&seeds, policies, judge)?;
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads {
        pool = pool.num_threads(threads);
    }
    let pool = pool.build().map_err(|e| Error::run("threads", e))?;
    let of_seed = |seed| {
        run_case(
            &Case::shared(seed, num_models),
            draws,
            policies,
            judge,
            tick,
        )
    };
    pool.install(|| seeds.into_par_iter().map(of_seed).collect())
}

/// Simulates `policies`, which [`check`] accepts, on one case under `draws` sets of its arrivals.
///
/// # Errors
/// A simulation in which the checker finds a broken rule.
pub fn run_case(
    case: &Case,
    draws: u32,
    policies: &[String],
    judge: &str,
    tick: &(dyn Fn() + Sync),
) -> Result<CaseResult> {
    let arrivals: Result<Vec<_>> = (0..draws).map(|d| case.arrivals(d)).collect();
    let arrivals = arrivals?;
    let one = |spec: &String| {
        let draw = |arrivals: &Vec<Arrival>| {
            let standing = simulate(case, arrivals, spec);
            tick();
            let place = format!("case of seed {}", case.seed);
            standing.map_err(|e| match e {
                // A policy's, a time-window without an end say.
                Error::Parameter {
                    what,
                    expected,
                    got,
                } => Error::parameter(format!("{place}: {what}"), expected, got),
                e => Error::run(place, e),
            })
        };
        let draws: Result<Vec<Standing>> = arrivals.par_iter().map(draw).collect();
        Ok(Standing::over(&draws?))
    };
    let policies: Result<Vec<Standing>> = policies.par_iter().map(one).collect();
    Ok(CaseResult::new(case, judge, policies?))
}

fn simulate(case: &Case, arrivals: &[Arrival], spec: &str) -> Result<Standing> {
    let device = case.device();
    let simulation = Simulation {
        profile: &device,
        arrivals,
        sla: None,
        classes: &[],
        segment: 1,
        decide: Nanos::ZERO,
        max_queue: usize::MAX,
        noise: Noise::default(),
        timing: false,
    };
    let done = simulation.run(spec, None, &mut (), Detail::Launches)?;
    let (requests, sla) = (&done.requests, case.sla());
    let model = case.model().name.as_str();
    let rate = case.rate_of_all();
    let row = RunResult::summarise(spec, model, rate, sla, requests, &done.counters);
    Ok(Standing {
        policy: spec.into(),
        j_ms: objective_of_all(case, requests),
        mean_ms: row.mean_ms,
        p99_ms: row.p99_ms,
        violation_rate: row.violation_rate,
        goodput_rps: row.goodput_rps,
        mean_batch: row.mean_batch,
        backlog_growth: backlog_growth(requests),
        sheds: row.shed > 0,
        j_by_draw: Vec::new(),
        goodput_by_draw: Vec::new(),
    })
}

/// J over the requests of all models, each with its model's target.
fn objective_of_all(case: &Case, requests: &[FinishedRequest]) -> f64 {
    if case.beside.is_empty() {
        return objective_ms(requests, case.sla());
    }
    let of_model = |case: &Case| {
        let is_own = |r: &&FinishedRequest| *r.model == *case.model().name;
        let own: Vec<_> = requests.iter().filter(is_own).cloned().collect();
        objective_ms(&own, case.sla()) * own.len() as f64
    };
    let sum: f64 = case.models().map(of_model).sum();
    sum / requests.len().max(1) as f64
}

/// a / b; 1 for 0 / 0.
fn over(a: f64, b: f64) -> f64 {
    if a == b { 1.0 } else { a / b }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn specs(list: &str) -> Vec<String> {
        list.split(',').map(str::to_owned).collect()
    }

    /// A result with given J and goodput, `(policy, J, goodput)`.
    pub(crate) fn result(seed: u64, judge: &str, rows: &[(&str, f64, f64)]) -> CaseResult {
        let standing = |&(policy, j_ms, goodput_rps): &(&str, f64, f64)| Standing {
            policy: policy.into(),
            j_ms,
            mean_ms: j_ms,
            p99_ms: j_ms,
            violation_rate: 0.0,
            goodput_rps,
            mean_batch: 1.0,
            backlog_growth: if goodput_rps > 0.0 { 0.0 } else { 0.5 },
            sheds: policy.contains("reject"),
            j_by_draw: Vec::new(),
            goodput_by_draw: Vec::new(),
        };
        CaseResult::new(&Case::new(seed), judge, rows.iter().map(standing).collect())
    }

    #[test]
    fn who_sheds_sustains_nothing() {
        let stable = |rows| result(3, "adaptive", rows).stable;
        assert!(stable(&[("adaptive", 1.0, 0.0), ("greedy", 1.0, 1.0)]));
        assert!(!stable(&[
            ("adaptive", 1.0, 0.0),
            ("triton:timeout=25,action=reject", 1.0, 1.0)
        ]));
    }

    #[test]
    fn parts_and_those_who_know_more_are_no_bar() {
        let rows = [
            ("oracle", 1.0, 90.0),
            ("join:0", 2.0, 80.0),
            ("adaptive:join:0", 3.0, 80.0),
            ("lazy", 10.0, 40.0),
            ("greedy", 8.0, 50.0),
            ("adaptive", 8.3, 25.0),
        ];
        let result = result(1, "adaptive", &rows);
        assert_eq!(result.best_other, "greedy");
        assert_eq!(result.ratio, 8.3 / 8.0);
        assert_eq!(result.goodput_ratio, 0.5);
        assert!(result.is_within() && result.stable);
    }

    #[test]
    fn beyond_capacity_the_rule_of_sweeps_looks_at_goodput() {
        // Nothing of what has goodput piles up here, everything of what has none.
        let judged = |rows: &[(&str, f64, f64)]| {
            let mut result = result(1, "adaptive", rows);
            let stable = (result.judged_by, result.is_within_by_rule());
            result.judged_by = JudgedBy::Goodput;
            (stable, result.is_within(), result.is_within_by_rule())
        };
        let far_in_j = [("greedy", 8.0, 50.0), ("adaptive", 9.0, 49.5)];
        assert_eq!(judged(&far_in_j), ((JudgedBy::J, false), false, true));
        let far_in_goodput = [("greedy", 8.0, 50.0), ("adaptive", 8.0, 48.0)];
        assert_eq!(judged(&far_in_goodput), ((JudgedBy::J, true), true, false));
        let collapsed = [("greedy", 8.0, 0.0), ("adaptive", 9.0, 0.0)];
        let collapsed = result(1, "adaptive", &collapsed);
        assert_eq!(collapsed.judged_by, JudgedBy::Goodput);
        assert!(!collapsed.is_within() && collapsed.is_within_by_rule());
    }

    #[test]
    fn several_draws_are_judged_by_their_means_and_paired_errors() {
        let draw = |policy: &str, j_ms: f64, goodput_rps: f64| {
            let rows = [(policy, j_ms, goodput_rps), ("lazy", 100.0, 0.1)];
            result(1, policy, &rows).policies.remove(0)
        };
        let own = [("adaptive", 11.0, 45.0), ("adaptive", 14.0, 40.0)];
        let other = [("greedy", 10.0, 50.0), ("greedy", 12.0, 42.0)];
        let mean = |rows: &[(&str, f64, f64)]| {
            let draws: Vec<Standing> = rows.iter().map(|&(p, j, g)| draw(p, j, g)).collect();
            Standing::over(&draws)
        };
        let mut result = CaseResult::new(&Case::new(1), "adaptive", vec![mean(&own), mean(&other)]);
        // J: 12.5 over 11; differences 1 and 2: deviation 1/sqrt 2, error 1/2 of J 11.
        assert!((result.ratio - 12.5 / 11.0).abs() < 1e-12);
        assert!((result.ratio_se - 0.5 / 11.0).abs() < 1e-12);
        // Goodput: 42.5 over 46; differences 5 and 2: deviation 3/sqrt 2, error 3/2 of 46.
        assert!((result.goodput_ratio - 42.5 / 46.0).abs() < 1e-12);
        assert!((result.goodput_ratio_se - 1.5 / 46.0).abs() < 1e-12);
        // 13.6 % behind with errors of 4.5 %; 7.6 % behind with errors of 3.3 %.
        assert!(!result.is_within() && !result.is_within_by_rule());
        result.ratio_se = 0.07;
        assert!(!result.is_within() && result.is_within_by_rule());
        result.judged_by = JudgedBy::Goodput;
        assert!(!result.is_within_by_rule());
        result.goodput_ratio_se = 0.04;
        assert!(result.is_within_by_rule());
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        for (seeds, policies, judge, part) in [
            (3..3, "greedy,adaptive", "adaptive", "3..3"),
            (0..1, "greedy,adaptve", "adaptive", "adaptve"),
            (0..1, "greedy,greedy,adaptive", "adaptive", "twice"),
            (0..1, "greedy,lazy", "adaptive", "greedy, lazy"),
            (0..1, "oracle,join:0,adaptive", "adaptive", "compare"),
        ] {
            let error = check(&seeds, &specs(policies), judge).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(check(&(0..1), &specs("greedy,adaptive"), "adaptive").is_ok());
    }

    #[test]
    fn results_depend_neither_on_threads_nor_on_the_other_seeds() {
        let policies = specs("greedy,continuous,oracle,adaptive");
        let ran = |seeds, draws, threads| {
            run(
                seeds,
                1,
                draws,
                &policies,
                "adaptive",
                Some(threads),
                &|| {},
            )
        };
        let three = ran(20..23, 1, 2).unwrap();
        assert_eq!(three[1..2], ran(21..22, 1, 1).unwrap());
        let drawn = ran(21..22, 2, 2).unwrap().remove(0);
        for (s, alone) in drawn.policies.iter().zip(&three[1].policies) {
            // The first draw is the only one of the run with one.
            assert_eq!(s.j_by_draw[0], alone.j_ms);
            assert_ne!(s.j_by_draw[0], s.j_by_draw[1]);
            assert_eq!(s.j_ms, s.j_by_draw.iter().sum::<f64>() / 2.0);
        }
        let seeds: Vec<u64> = three.iter().map(|r| r.case.seed).collect();
        assert_eq!(seeds, [20, 21, 22]);
        for result in &three {
            let all: Vec<&str> = result.policies.iter().map(|s| &*s.policy).collect();
            assert_eq!(all, ["greedy", "continuous", "oracle", "adaptive"]);
            let j = |spec: &str| result.policy(spec).unwrap().j_ms;
            let best = j("greedy").min(j("continuous"));
            assert_eq!(result.ratio, j("adaptive") / best);
            for s in &result.policies {
                // Nothing is shed: J follows from the other numbers.
                let want = s.mean_ms + 3.0 * result.case.sla_ms * s.violation_rate;
                assert!((s.j_ms - want).abs() < 1e-6 * want, "{s:?}");
                assert!(s.mean_ms > 0.0 && s.p99_ms >= s.mean_ms * 0.5, "{s:?}");
            }
        }
    }
}
