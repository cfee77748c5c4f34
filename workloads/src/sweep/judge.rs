//! Judgements on one policy: is it at least as good as the best other one, everywhere?

use serde::{Deserialize, Serialize};

use super::aggregate::{Cells, Means, judged_means};
use super::bound::{Over, OverBound};
use super::kept::Kept;
use super::points::{Point, Standing, name, paired};

/// How much worse than the best other policy passes.
pub const TOLERANCE: f64 = 0.02;
/// How many paired standard errors pass as well.
pub const ERRORS: f64 = 2.0;
/// Gain over `lazy` that is asked for at half load and more.
pub const GAIN_OVER_LAZY: f64 = 2.0;
/// Most exceptions that are listed.
const MAX_LISTED: usize = 500;

/// A point named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The setting in a few words; empty for defaults.
    pub setting: String,
    /// The model or models.
    pub model: String,
    /// Requests per second offered.
    pub rate_rps: f64,
    /// Offered rate over capacity.
    pub load: f64,
    /// Latency target, milliseconds.
    pub sla_ms: f64,
}

impl Place {
    /// Where a point is.
    pub fn of(point: &Point) -> Self {
        Self {
            setting: point.setting.label(),
            model: point.model.clone(),
            rate_rps: point.rate_rps,
            load: point.load,
            sla_ms: point.sla_ms,
        }
    }
}

/// A policy against the best other one at a point, in one number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// The best other policy.
    pub best_other: String,
    /// The judged policy's number.
    pub own: f64,
    /// The best other's.
    pub other: f64,
    /// How far it is behind: 0.05 is 5 % worse, negative is better.
    pub behind: f64,
    /// Paired standard error of that.
    pub behind_se: f64,
    /// Mean latency of both, milliseconds.
    pub mean_ms: (f64, f64),
    /// 99th percentile of both, milliseconds.
    pub p99_ms: (f64, f64),
    /// Violation rate of both.
    pub violation_rate: (f64, f64),
    /// Both over the lower bound.
    #[serde(default)]
    pub over_bound: (Option<Over>, Option<Over>),
}

impl Case {
    fn new(
        point: &Point,
        own: &Standing,
        other: &Standing,
        (a, b): (f64, f64),
        behind: f64,
        behind_se: f64,
    ) -> Self {
        Self {
            place: Place::of(point),
            best_other: other.policy.clone(),
            own: a,
            other: b,
            behind,
            behind_se,
            mean_ms: (own.mean_ms, other.mean_ms),
            p99_ms: (own.p99_ms, other.p99_ms),
            violation_rate: (own.violation_rate, other.violation_rate),
            over_bound: (own.over_bound, other.over_bound),
        }
    }

    fn passes(&self) -> bool {
        self.behind <= TOLERANCE || self.behind <= ERRORS * self.behind_se
    }
}

/// A count of points, and those that fail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Points judged.
    pub points: usize,
    /// Of these, within the tolerance.
    pub within_tolerance: usize,
    /// Of these, beyond the tolerance but within the paired standard errors.
    pub within_errors: usize,
    /// The others, the worst first, up to 500 of them.
    pub exceptions: Vec<Case>,
}

impl Tally {
    fn of(cases: Vec<Case>) -> Self {
        let within = |c: &&Case| c.behind <= TOLERANCE;
        let within_tolerance = cases.iter().filter(within).count();
        let passing = cases.iter().filter(|c| c.passes()).count();
        let points = cases.len();
        let mut exceptions: Vec<Case> = cases.into_iter().filter(|c| !c.passes()).collect();
        exceptions.sort_by(|a, b| b.behind.total_cmp(&a.behind));
        exceptions.truncate(MAX_LISTED);
        Self {
            points,
            within_tolerance,
            within_errors: passing - within_tolerance,
            exceptions,
        }
    }

    /// How many points fail.
    pub fn num_failed(&self) -> usize {
        self.points - self.within_tolerance - self.within_errors
    }

    /// Whether all pass, and there are some.
    pub fn holds(&self) -> bool {
        self.points > 0 && self.num_failed() == 0
    }
}

/// The judgements on a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Who is judged.
    pub policy: String,
    /// At every stable point: J within the tolerance of the best other online policy's, or within
    /// the paired standard errors of it.
    pub stable: Tally,
    /// At every other point: goodput likewise.
    pub beyond: Tally,
    /// At stable points of half load and more: geometric mean of the gain in J over `lazy`, and
    /// over `lazy:late-admits`; at least 2 is asked for.
    pub over_lazy: Vec<(String, Means)>,
    /// The same over `greedy`; reported.
    pub over_greedy: Means,
    /// At stable points: mean latency and J over what no schedule can beat; a median of at most
    /// 1.25 is asked for of the former.
    pub over_bound: Option<OverBound>,
    /// The stable points with the largest J over the best other's, the worst first.
    pub worst: Vec<Case>,
    /// The other points with the least goodput over the best other's, the worst first.
    #[serde(default)]
    pub worst_beyond: Vec<Case>,
    /// What is answered in time beyond capacity, beside what is at it.
    #[serde(default)]
    pub kept: Vec<Kept>,
}

impl Judgement {
    /// Judges `policy`; `None` if it is at no point. `has_loop` tells models with loops.
    pub fn new(
        points: &[Point],
        policy: &str,
        num_worst: usize,
        has_loop: &dyn Fn(&str) -> bool,
    ) -> Option<Self> {
        points.iter().find(|p| p.policy(policy).is_some())?;
        let by_j = |p: &Point| {
            let own = p.policy(policy)?;
            let other = p.policy(own.best_other.as_deref()?)?;
            let behind = own.ratio? - 1.0;
            let both = (own.j_ms, other.j_ms);
            Some(Case::new(p, own, other, both, behind, own.ratio_se?))
        };
        let by_goodput = |p: &Point| {
            let own = p.policy(policy)?;
            let others = p.others(policy);
            let other = others.max_by(|a, b| a.goodput_rps.total_cmp(&b.goodput_rps))?;
            let (difference, se) = paired(&other.goodput_by_seed, &own.goodput_by_seed);
            // Nobody answers anything in time: nothing to be behind of.
            let unit = if other.goodput_rps > 0.0 {
                other.goodput_rps
            } else {
                1.0
            };
            let both = (own.goodput_rps, other.goodput_rps);
            Some(Case::new(p, own, other, both, difference / unit, se / unit))
        };
        let stable: Vec<Case> = points
            .iter()
            .filter(|p| p.stable)
            .filter_map(by_j)
            .collect();
        let beyond = points.iter().filter(|p| !p.stable);
        let beyond: Vec<Case> = beyond.filter_map(by_goodput).collect();
        let worst = |cases: &[Case]| {
            let mut worst = cases.to_vec();
            worst.sort_by(|a, b| b.behind.total_cmp(&a.behind));
            worst.truncate(num_worst);
            worst
        };
        let gain = |base: &str| judged_means(points, Cells::StableHalfLoad, policy, base);
        let lazy = ["lazy", "lazy:late-admits"]
            .into_iter()
            .filter(|l| *l != policy);
        Some(Self {
            policy: policy.into(),
            worst: worst(&stable),
            worst_beyond: worst(&beyond),
            kept: Kept::of(points, policy, has_loop),
            stable: Tally::of(stable),
            beyond: Tally::of(beyond),
            over_lazy: lazy
                .map(|l| (l.to_owned(), gain(l)))
                .filter(|(_, m)| m.points > 0)
                .collect(),
            over_greedy: gain("greedy"),
            over_bound: OverBound::new(points, policy),
        })
    }

    /// Whether every variant of `lazy` that ran is beaten by as much as is asked for.
    pub fn beats_lazy(&self) -> bool {
        let enough = |(_, m): &(String, Means)| m.geometric >= GAIN_OVER_LAZY;
        !self.over_lazy.is_empty() && self.over_lazy.iter().all(enough)
    }
}

/// Who is judged where nobody says: `adaptive` if it ran, else the online policy that is best at
/// the most points.
pub fn default_policy(points: &[Point]) -> Option<String> {
    let ran = |spec: &str| points.iter().any(|p| p.policy(spec).is_some());
    if ran("adaptive") {
        return Some("adaptive".into());
    }
    let specs = super::aggregate::policies(points).into_iter();
    let online = specs.filter(|s| super::points::is_online(s) && name(s) != "graph");
    let wins = |spec: &&str| points.iter().filter(|p| p.best == *spec).count();
    // The first of equals.
    let mut best: Option<&str> = None;
    for spec in online {
        if best.is_none_or(|b| wins(&spec) > wins(&b)) {
            best = Some(spec);
        }
    }
    best.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::points::{points, tests::row};

    #[test]
    fn judgements_by_hand() {
        let mut runs = Vec::new();
        // Rates 50 to 80 are stable, 100 is beyond capacity; two seeds.
        for (rate, own, greedy, growth) in [
            (50.0, [10.1, 20.2], [10.0, 20.0], 0.0),
            (60.0, [12.0, 20.0], [10.0, 20.0], 0.0),
            (70.0, [12.0, 22.0], [10.0, 20.0], 0.0),
            (80.0, [5.0, 5.0], [10.0, 20.0], 0.0),
            (100.0, [5.0, 5.0], [10.0, 20.0], 0.4),
        ] {
            for seed in 0..2 {
                let mut lazy = row("lazy", rate, seed as u64 + 1, own[seed], growth);
                if rate == 100.0 {
                    lazy.result.goodput_rps = 80.0;
                }
                runs.push(lazy);
                runs.push(row("greedy", rate, seed as u64 + 1, greedy[seed], growth));
            }
        }
        let judged = Judgement::new(&points(&runs), "lazy", 2, &|_| false).unwrap();
        // 1 % behind; 1 +- 1 behind at 15, within two errors; 2 +- 0 behind; ahead.
        assert_eq!(
            (judged.stable.points, judged.stable.within_tolerance),
            (4, 2)
        );
        assert_eq!(judged.stable.within_errors, 1);
        assert_eq!(judged.stable.exceptions.len(), 1);
        let worst = &judged.stable.exceptions[0];
        assert_eq!(worst.place.rate_rps, 70.0);
        assert!((worst.behind - 2.0 / 15.0).abs() < 1e-12);
        assert_eq!((judged.beyond.points, judged.beyond.num_failed()), (1, 1));
        assert!((judged.beyond.exceptions[0].behind - 0.2).abs() < 1e-12);
        assert_eq!(judged.worst.len(), 2);
        assert_eq!(judged.worst[0].place.rate_rps, 70.0);
        assert_eq!(judged.worst_beyond, judged.beyond.exceptions);
        assert!(!judged.stable.holds() && !judged.beats_lazy());
        assert!(Judgement::new(&points(&runs), "adaptive", 2, &|_| false).is_none());
    }

    #[test]
    fn greedy_is_judged_against_lazy() {
        let mut runs = vec![
            row("lazy", 60.0, 1, 50.0, 0.0),
            row("greedy", 60.0, 1, 10.0, 0.0),
        ];
        runs.push(row("oracle", 60.0, 1, 1.0, 0.0));
        let points = points(&runs);
        assert_eq!(default_policy(&points).as_deref(), Some("greedy"));
        let judged = Judgement::new(&points, "greedy", 5, &|_| false).unwrap();
        assert!(judged.stable.holds() && judged.beats_lazy());
        let (name, means) = &judged.over_lazy[0];
        assert_eq!(
            (name.as_str(), means.points, means.arithmetic),
            ("lazy", 1, 5.0)
        );
        assert!((judged.over_lazy[0].1.geometric - 5.0).abs() < 1e-9);
    }
}
