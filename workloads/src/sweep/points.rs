//! Points: the policies of one cell (setting, model, rate, target) side by side, over its seeds.
//!
//! Numbers of a policy are arithmetic means over its seeds. Policies are compared by J over paired
//! arrivals: the standard error of a difference is that of the seeds' differences, their sample
//! standard deviation over the square root of their number.

use lazybatch_engine::policy;
use serde::{Deserialize, Serialize};

use super::bound::{Bound, Over};
use super::grid::Setting;
use super::score::Run;

/// Share of the arrivals that may pile up in a run of a policy that keeps up with them.
pub const SUSTAINED_GROWTH: f64 = 0.05;

/// One policy at a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The policy.
    pub policy: String,
    /// Whether it is compared with others; `oracle` is not.
    pub online: bool,
    /// J of each seed, milliseconds.
    pub j_by_seed: Vec<f64>,
    /// Mean J, milliseconds.
    pub j_ms: f64,
    /// Mean latency, milliseconds.
    pub mean_ms: f64,
    /// 99th percentile of each seed, averaged, milliseconds.
    pub p99_ms: f64,
    /// Share of requests that were not answered in time.
    pub violation_rate: f64,
    /// Completed requests per second.
    pub throughput_rps: f64,
    /// Requests answered in time per second.
    pub goodput_rps: f64,
    /// Goodput of each seed.
    pub goodput_by_seed: Vec<f64>,
    /// Mean members of a launch.
    pub mean_batch: f64,
    /// Share of the arrivals that piled up.
    pub backlog_growth: f64,
    /// Whether it keeps up with the arrivals: growth at most [`SUSTAINED_GROWTH`], and no request
    /// refused or given up.
    pub sustained: bool,
    /// Whether it refused or gave up requests: latencies are then of those it chose to serve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sheds: bool,
    /// The best online policy of another name, by J.
    pub best_other: Option<String>,
    /// J over that of the best other.
    pub ratio: Option<f64>,
    /// Paired standard error of that ratio: of the difference, over the best other's J.
    pub ratio_se: Option<f64>,
    /// Its numbers over the bounds on them; absent where there are none, or where it did not
    /// complete every request.
    pub over_bound: Option<Over>,
}

/// A cell with its policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What is varied besides.
    pub setting: Setting,
    /// The model or models.
    pub model: String,
    /// Requests per second offered.
    pub rate_rps: f64,
    /// Offered rate over the capacity of the case.
    pub load: f64,
    /// Latency target, milliseconds.
    pub sla_ms: f64,
    /// Whether some online policy keeps up with this rate or a higher one of the grid.
    pub stable: bool,
    /// Seeds that ran.
    pub seeds: Vec<u64>,
    /// What no schedule can beat, the mean over seeds; absent where the grid does without.
    pub bound: Option<Bound>,
    /// The online policy with the least J.
    pub best: String,
    /// Its policies, in the grid's order.
    pub policies: Vec<Standing>,
}

impl Point {
    /// A policy of the point.
    pub fn policy(&self, spec: &str) -> Option<&Standing> {
        self.policies.iter().find(|s| s.policy == spec)
    }

    /// Its online policies.
    pub fn online(&self) -> impl Iterator<Item = &Standing> {
        self.policies.iter().filter(|s| s.online)
    }

    /// Its online policies of another name than `spec`: parameters make no other policy.
    pub fn others<'a>(&'a self, spec: &'a str) -> impl Iterator<Item = &'a Standing> {
        self.online().filter(move |s| name(&s.policy) != name(spec))
    }
}

/// What stands before the parameters of a specification.
pub fn name(spec: &str) -> &str {
    spec.split(':').next().unwrap_or(spec)
}

/// Whether a policy needs to know only what a scheduler can know.
pub fn is_online(spec: &str) -> bool {
    policy::find(spec).is_ok_and(|entry| !entry.needs_output_len)
}

/// The points of some rows, in order of first appearance, targets ascending.
pub fn points(runs: &[Run]) -> Vec<Point> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    // Rows of one case follow one another, so a cell is among the last few groups.
    for run in runs {
        let same = |group: &&mut Vec<&Run>| {
            let first = group[0];
            first.result.sla_ms == run.result.sla_ms
                && first.result.rate_rps == run.result.rate_rps
                && first.result.model == run.result.model
                && first.setting == run.setting
        };
        match groups.iter_mut().rev().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    let mut points: Vec<Point> = groups.iter().map(|group| point(group)).collect();
    mark_stable(&mut points);
    points
}

fn point(runs: &[&Run]) -> Point {
    let first = runs[0];
    let mut specs: Vec<&str> = Vec::new();
    let mut seeds: Vec<u64> = Vec::new();
    for run in runs {
        if !specs.contains(&run.result.policy.as_str()) {
            specs.push(&run.result.policy);
        }
        if !seeds.contains(&run.seed) {
            seeds.push(run.seed);
        }
    }
    let mut policies: Vec<Standing> = specs.into_iter().map(|s| standing(s, runs)).collect();
    let bound = bound(runs, &seeds);
    for policy in &mut policies {
        let mut own = runs
            .iter()
            .map(|r| &r.result)
            .filter(|r| r.policy == policy.policy);
        let completed = own.all(|r| r.shed + r.failed + r.cancelled == 0);
        policy.over_bound = bound
            .filter(|_| completed)
            .and_then(|b| Over::new(policy, &b));
    }
    let least = |it: &mut dyn Iterator<Item = &Standing>| -> Option<usize> {
        let best = it.min_by(|a, b| a.j_ms.total_cmp(&b.j_ms))?;
        policies.iter().position(|s| s.policy == best.policy)
    };
    let best = least(&mut policies.iter().filter(|s| s.online)).unwrap_or(0);
    let best = policies[best].policy.clone();
    let best_other: Vec<Option<usize>> = policies
        .iter()
        .map(|p| {
            let other = |s: &&Standing| s.online && name(&s.policy) != name(&p.policy);
            least(&mut policies.iter().filter(other))
        })
        .collect();
    for (i, other) in best_other.into_iter().enumerate() {
        let Some(other) = other.map(|o| policies[o].clone()) else {
            continue;
        };
        let (difference, se) = paired(&policies[i].j_by_seed, &other.j_by_seed);
        let own = &mut policies[i];
        own.ratio = Some(1.0 + over(difference, other.j_ms));
        own.ratio_se = Some(over(se, other.j_ms));
        own.best_other = Some(other.policy);
    }
    Point {
        setting: first.setting.clone(),
        model: first.result.model.clone(),
        rate_rps: first.result.rate_rps,
        load: over(first.result.rate_rps, first.capacity_rps),
        sla_ms: first.result.sla_ms,
        stable: false,
        seeds,
        bound,
        best,
        policies,
    }
}

/// The mean over seeds of their bounds, if every seed has one.
fn bound(runs: &[&Run], seeds: &[u64]) -> Option<Bound> {
    let of_seed = |seed: &u64| runs.iter().find(|r| r.seed == *seed)?.bound;
    let all: Option<Vec<Bound>> = seeds.iter().map(of_seed).collect();
    let average = |number: fn(&Bound) -> f64| {
        let numbers = all
            .as_ref()
            .map(|all| all.iter().map(number).collect::<Vec<f64>>());
        numbers.map(|n| mean(&n))
    };
    Some(Bound {
        mean_ms: average(|b| b.mean_ms)?,
        violation_rate: average(|b| b.violation_rate)?,
        j_ms: average(|b| b.j_ms)?,
    })
}

fn standing(spec: &str, runs: &[&Run]) -> Standing {
    let own: Vec<&&Run> = runs.iter().filter(|r| r.result.policy == spec).collect();
    let each = |value: &dyn Fn(&Run) -> f64| own.iter().map(|r| value(r)).collect::<Vec<f64>>();
    let average = |value: &dyn Fn(&Run) -> f64| mean(&each(value));
    let backlog_growth = average(&|r| r.backlog_growth);
    let sheds = own.iter().any(|r| r.result.shed > 0);
    Standing {
        policy: spec.into(),
        online: is_online(spec),
        j_by_seed: each(&|r| r.j_ms),
        j_ms: average(&|r| r.j_ms),
        mean_ms: average(&|r| r.result.mean_ms),
        p99_ms: average(&|r| r.result.p99_ms),
        violation_rate: average(&|r| r.result.violation_rate),
        throughput_rps: average(&|r| r.result.throughput_rps),
        goodput_rps: average(&|r| r.result.goodput_rps),
        goodput_by_seed: each(&|r| r.result.goodput_rps),
        mean_batch: average(&|r| r.result.mean_batch),
        backlog_growth,
        sustained: backlog_growth <= SUSTAINED_GROWTH && !sheds,
        sheds,
        best_other: None,
        ratio: None,
        ratio_se: None,
        over_bound: None,
    }
}

/// A point is stable if an online policy keeps up with its rate, or with a higher one of the same
/// setting, model and target.
fn mark_stable(points: &mut [Point]) {
    let kept_up: Vec<bool> = points
        .iter()
        .map(|p| p.online().any(|s| s.sustained))
        .collect();
    let stable = |p: &Point| {
        let reaches = |(q, kept_up): (&Point, &bool)| {
            *kept_up
                && q.rate_rps >= p.rate_rps
                && q.sla_ms == p.sla_ms
                && q.model == p.model
                && q.setting == p.setting
        };
        points.iter().zip(&kept_up).any(reaches)
    };
    let marks: Vec<bool> = points.iter().map(stable).collect();
    for (point, mark) in points.iter_mut().zip(marks) {
        point.stable = mark;
    }
}

/// Whether the policies of these cells are told apart: the paired standard error of each online
/// policy's J against the best's is at most `share` of its own.
pub fn settled(runs: &[Run], share: f64) -> bool {
    points(runs).iter().all(|point| {
        let Some(best) = point.policy(&point.best) else {
            return true;
        };
        let told = |s: &Standing| paired(&s.j_by_seed, &best.j_by_seed).1 <= share * s.j_ms;
        point.online().all(told)
    })
}

/// Mean of the differences a - b, and its standard error (0 for a single pair).
pub fn paired(a: &[f64], b: &[f64]) -> (f64, f64) {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let centre = mean(&differences);
    let num = differences.len() as f64;
    if num < 2.0 {
        return (centre, 0.0);
    }
    let squares: f64 = differences.iter().map(|d| (d - centre).powi(2)).sum();
    (centre, (squares / (num - 1.0) / num).sqrt())
}

/// Arithmetic mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    over(values.iter().sum(), values.len() as f64)
}

fn over(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::{Counters, RunResult};
    use lazybatch_sla::Nanos;

    /// A row whose mean latency is its J.
    pub(crate) fn row(policy: &str, rate_rps: f64, seed: u64, j_ms: f64, growth: f64) -> Run {
        let sla = Nanos::from_ms(100);
        let none = Counters::default();
        let mut result = RunResult::summarise(policy, "toy", rate_rps, sla, &[], &none);
        result.mean_ms = j_ms;
        result.p99_ms = 2.0 * j_ms;
        result.goodput_rps = rate_rps;
        result.throughput_rps = rate_rps;
        Run {
            seed,
            setting: Setting {
                arrivals: "poisson".into(),
                overheads: true,
                segment: 1,
                max_batch: None,
                coverage: None,
            },
            capacity_rps: 100.0,
            j_ms,
            backlog_growth: growth,
            bound: None,
            result,
        }
    }

    #[test]
    fn differences_are_paired() {
        // Differences 1, 3, 2: mean 2, deviation 1, standard error 1 / sqrt 3.
        let (difference, se) = paired(&[11.0, 103.0, 1002.0], &[10.0, 100.0, 1000.0]);
        assert_eq!(difference, 2.0);
        assert!((se - 1.0 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(paired(&[5.0], &[3.0]), (2.0, 0.0));
    }

    #[test]
    fn the_best_other_is_online_and_of_another_name() {
        let mut runs = Vec::new();
        for (seed, shift) in [(1, 0.0), (2, 10.0)] {
            for (policy, j) in [
                ("oracle", 1.0),
                ("lazy", 20.0),
                ("lazy:late-admits", 19.0),
                ("greedy", 30.0),
                ("serial", 40.0),
            ] {
                runs.push(row(policy, 50.0, seed, j + shift, 0.0));
            }
        }
        let points = points(&runs);
        assert_eq!(points.len(), 1);
        let point = &points[0];
        assert_eq!((point.best.as_str(), point.load), ("lazy:late-admits", 0.5));
        assert_eq!(point.seeds, [1, 2]);
        let against = |spec: &str| {
            let s = point.policy(spec).unwrap();
            (
                s.best_other.clone().unwrap(),
                s.ratio.unwrap(),
                s.ratio_se.unwrap(),
            )
        };
        assert_eq!(against("lazy"), ("greedy".into(), 25.0 / 35.0, 0.0));
        assert_eq!(against("greedy").0, "lazy:late-admits");
        assert!((against("greedy").1 - 35.0 / 24.0).abs() < 1e-12);
        assert_eq!(against("oracle").0, "lazy:late-admits");
        assert!(!point.policy("oracle").unwrap().online);
    }

    #[test]
    fn stability_goes_by_the_highest_rate_that_an_online_policy_keeps_up_with() {
        let mut runs = Vec::new();
        for (rate, greedy, oracle) in [(10.0, 0.2, 0.0), (20.0, 0.05, 0.0), (40.0, 0.3, 0.0)] {
            runs.push(row("greedy", rate, 1, 5.0, greedy));
            runs.push(row("oracle", rate, 1, 5.0, oracle));
        }
        let stable: Vec<bool> = points(&runs).iter().map(|p| p.stable).collect();
        assert_eq!(stable, [true, true, false]);
    }

    #[test]
    fn who_sheds_does_not_keep_up() {
        let mut runs = vec![
            row("greedy", 10.0, 1, 5.0, 0.0),
            row("greedy", 40.0, 1, 5.0, 0.0),
        ];
        runs[1].result.shed = 1;
        let stable: Vec<bool> = points(&runs).iter().map(|p| p.stable).collect();
        assert_eq!(stable, [true, false]);
    }

    #[test]
    fn a_cell_is_settled_when_the_differences_agree() {
        let runs = |jitter: f64| {
            let mut runs = Vec::new();
            for (seed, shift) in [(1, 0.0), (2, 50.0), (3, 20.0)] {
                runs.push(row("greedy", 10.0, seed, 100.0 + shift, 0.0));
                let own = 120.0 + shift + jitter * seed as f64;
                runs.push(row("serial", 10.0, seed, own, 0.0));
            }
            runs
        };
        assert!(settled(&runs(0.0), 0.01));
        assert!(!settled(&runs(10.0), 0.01));
    }
}
