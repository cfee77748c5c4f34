//! Aggregates: ratios between policies over many points, and the reproduction row.
//!
//! A ratio is taken at each point first, then averaged: arithmetically (a mean of ratios, as the
//! papers quote) and geometrically (which does not depend on which of the two is on top). Above 1
//! the policy named first is better. Policies are compared with shedding off: ratios of latencies, and
//! of J, leave out points at which either of the two refused a request; goodput is what shedding is
//! compared by.

use serde::{Deserialize, Serialize};

use super::points::{Point, Standing, is_online, mean, name};

/// Least satisfaction and goodput, as a share, in a ratio: a policy that satisfies nobody would
/// make it infinite.
pub const FLOOR: f64 = 0.01;

/// Which points an aggregate is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cells {
    /// All.
    All,
    /// The stable ones.
    Stable,
    /// The stable ones at half the capacity and more.
    StableHalfLoad,
}

impl Cells {
    /// All of them.
    pub const EACH: [Self; 3] = [Self::All, Self::Stable, Self::StableHalfLoad];

    /// In words.
    pub fn label(self) -> &'static str {
        match self {
            Self::All => "all points",
            Self::Stable => "stable points",
            Self::StableHalfLoad => "stable points at half load and more",
        }
    }

    /// Whether a point is one of them.
    pub fn has(self, point: &Point) -> bool {
        match self {
            Self::All => true,
            Self::Stable => point.stable,
            Self::StableHalfLoad => point.stable && point.load >= 0.5,
        }
    }
}

/// What a ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The objective.
    J,
    /// Mean latency.
    Mean,
    /// 99th percentile of latency.
    P99,
    /// Requests answered in time per second, at least 1 % of those offered.
    Goodput,
}

impl Metric {
    /// All of them.
    pub const EACH: [Self; 4] = [Self::J, Self::Mean, Self::P99, Self::Goodput];

    /// In words.
    pub fn label(self) -> &'static str {
        match self {
            Self::J => "J",
            Self::Mean => "mean latency",
            Self::P99 => "p99 latency",
            Self::Goodput => "goodput",
        }
    }

    /// How much better `own` is than `base`: above 1 if it is.
    fn gain(self, point: &Point, own: &Standing, base: &Standing) -> f64 {
        let least = FLOOR * point.rate_rps;
        match self {
            Self::J => base.j_ms / own.j_ms,
            Self::Mean => base.mean_ms / own.mean_ms,
            Self::P99 => base.p99_ms / own.p99_ms,
            Self::Goodput => own.goodput_rps.max(least) / base.goodput_rps.max(least),
        }
    }
}

/// Means of ratios over points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Points with a finite ratio.
    pub points: usize,
    /// Arithmetic mean of the ratios; 0 without points.
    pub arithmetic: f64,
    /// Geometric mean; 0 without points.
    pub geometric: f64,
}

impl Means {
    /// The means of some ratios; those that are not finite and positive (a policy that completed
    /// nothing) are left out.
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Self {
        let fits = |r: &f64| r.is_finite() && *r > 0.0;
        let kept: Vec<f64> = ratios.into_iter().filter(fits).collect();
        let logs: Vec<f64> = kept.iter().map(|r| r.ln()).collect();
        Self {
            points: kept.len(),
            arithmetic: mean(&kept),
            geometric: if kept.is_empty() {
                0.0
            } else {
                mean(&logs).exp()
            },
        }
    }
}

/// One cell of the aggregate table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Over which points.
    pub cells: Cells,
    /// Of what.
    pub metric: Metric,
    /// Whose gain.
    pub policy: String,
    /// Over whom: a policy, or [`BEST_WINDOW`].
    pub over: String,
    /// How much.
    #[serde(flatten)]
    pub means: Means,
}

/// The best of the windows `graph:W` at each point, chosen with hindsight for each metric.
pub const BEST_WINDOW: &str = "best graph:W";

fn is_window(spec: &str) -> bool {
    name(spec) == "graph"
}

/// Policies of some points, in order of first appearance.
pub fn policies(points: &[Point]) -> Vec<&str> {
    let mut specs: Vec<&str> = Vec::new();
    for standing in points.iter().flat_map(|p| &p.policies) {
        if !specs.contains(&standing.policy.as_str()) {
            specs.push(&standing.policy);
        }
    }
    specs
}

/// Baselines of the table: each window, the best of them, greedy, both variants of lazy, adaptive.
pub fn baselines(points: &[Point]) -> Vec<String> {
    let specs = policies(points);
    let windows = specs.iter().filter(|s| is_window(s));
    let mut list: Vec<String> = windows.map(|s| s.to_string()).collect();
    if !list.is_empty() {
        list.push(BEST_WINDOW.into());
    }
    let others = ["greedy", "lazy", "lazy:late-admits", "adaptive"];
    list.extend(
        others
            .iter()
            .filter(|s| specs.contains(s))
            .map(|s| s.to_string()),
    );
    list
}

/// Gain of `policy` over `base` at a point; `None` where either did not run.
fn gain(point: &Point, metric: Metric, policy: &str, base: &str) -> Option<f64> {
    let own = point.policy(policy)?;
    if base == BEST_WINDOW {
        let windows = point.policies.iter().filter(|s| is_window(&s.policy));
        return windows
            .map(|w| metric.gain(point, own, w))
            .min_by(f64::total_cmp);
    }
    Some(metric.gain(point, own, point.policy(base)?))
}

/// Whether a comparison of two policies by `metric` leaves out a point, as one of them shed there.
fn left_out(point: &Point, metric: Metric, policy: &str, base: &str) -> bool {
    let sheds = |spec: &str| point.policy(spec).is_some_and(|s| s.sheds);
    // Windows never shed.
    metric != Metric::Goodput && (sheds(policy) || sheds(base))
}

/// Means of a policy's gains over a baseline, without points that are left out.
pub fn means(points: &[Point], cells: Cells, metric: Metric, policy: &str, base: &str) -> Means {
    let within = points.iter().filter(|p| cells.has(p));
    let within = within.filter(|p| !left_out(p, metric, policy, base));
    Means::of(within.filter_map(|p| gain(p, metric, policy, base)))
}

/// Means of a policy's gains in J over a baseline at all of these points: J counts who was refused.
pub fn judged_means(points: &[Point], cells: Cells, policy: &str, base: &str) -> Means {
    let within = points.iter().filter(|p| cells.has(p));
    Means::of(within.filter_map(|p| gain(p, Metric::J, policy, base)))
}

/// The whole table: every policy that is no window against every baseline but itself.
pub fn ratios(points: &[Point]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for cells in Cells::EACH {
        for metric in Metric::EACH {
            for policy in policies(points).into_iter().filter(|s| !is_window(s)) {
                for base in baselines(points).into_iter().filter(|b| b != policy) {
                    ratios.push(Ratio {
                        cells,
                        metric,
                        policy: policy.into(),
                        means: means(points, cells, metric, policy, &base),
                        over: base,
                    });
                }
            }
        }
    }
    ratios
}

/// The abstract's three headlines, as this grid has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// Whose gains over graph batching.
    pub policy: String,
    /// Mean response time: per point the ratio graph:W / policy of mean latencies, averaged
    /// arithmetically over the windows; then over all points.
    pub response: Means,
    /// The same over the stable points.
    pub response_stable: Means,
    /// Satisfaction (share of requests within the SLA, at least 1 %): policy / graph:W, averaged
    /// likewise, over all points.
    pub satisfaction: Means,
    /// Throughput at saturation of models with loops: the highest throughput over the grid's
    /// rates, policy / graph:W, averaged likewise, over settings, models and targets.
    pub throughput_loops: Means,
    /// The same over all models.
    pub throughput_all: Means,
}

/// The reproduction row of every online policy that is no window; none without windows.
/// `has_loop` tells models with loops.
pub fn reproduction(points: &[Point], has_loop: &dyn Fn(&str) -> bool) -> Vec<Reproduction> {
    let all = policies(points);
    let windows: Vec<&str> = all.iter().copied().filter(|s| is_window(s)).collect();
    if windows.is_empty() {
        return Vec::new();
    }
    let subjects = all.iter().filter(|s| !is_window(s) && is_online(s));
    let row = |policy: &&str| {
        let over_windows = |point: &Point, ratio: &dyn Fn(&Standing, &Standing) -> f64| {
            let own = point.policy(policy)?;
            let ratios: Option<Vec<f64>> = windows
                .iter()
                .map(|w| Some(ratio(own, point.policy(w)?)))
                .collect();
            ratios.map(|r| mean(&r))
        };
        let response = |p: &Point| {
            let own = p.policy(policy).filter(|own| !own.sheds);
            own.and_then(|_| over_windows(p, &|own, w| w.mean_ms / own.mean_ms))
        };
        let satisfied = |s: &Standing| (1.0 - s.violation_rate).max(FLOOR);
        let satisfaction = |p: &Point| over_windows(p, &|own, w| satisfied(own) / satisfied(w));
        let stable = points.iter().filter(|p| p.stable);
        Reproduction {
            policy: policy.to_string(),
            response: Means::of(points.iter().filter_map(response)),
            response_stable: Means::of(stable.filter_map(response)),
            satisfaction: Means::of(points.iter().filter_map(satisfaction)),
            throughput_loops: saturation(points, policy, &windows, has_loop),
            throughput_all: saturation(points, policy, &windows, &|_| true),
        }
    };
    subjects.map(row).collect()
}

/// Highest throughput over the rates, policy over window, averaged over the windows; then means
/// over settings, models and targets.
fn saturation(
    points: &[Point],
    policy: &str,
    windows: &[&str],
    wanted: &dyn Fn(&str) -> bool,
) -> Means {
    let mut families: Vec<Vec<&Point>> = Vec::new();
    for point in points.iter().filter(|p| wanted(&p.model)) {
        let same = |f: &&mut Vec<&Point>| {
            f[0].model == point.model
                && f[0].sla_ms == point.sla_ms
                && f[0].setting == point.setting
        };
        match families.iter_mut().find(same) {
            Some(family) => family.push(point),
            None => families.push(vec![point]),
        }
    }
    let highest = |family: &[&Point], spec: &str| {
        let each = family
            .iter()
            .filter_map(|p| Some(p.policy(spec)?.throughput_rps));
        each.fold(0.0, f64::max)
    };
    Means::of(families.iter().map(|family| {
        let own = highest(family, policy);
        let ratios: Vec<f64> = windows.iter().map(|w| own / highest(family, w)).collect();
        mean(&ratios)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::points::{points, tests::row};

    /// Two rates; J and mean latency: greedy 10 and 40, lazy 5 and 80, graph:5 20 and 40,
    /// graph:25 40 and 160. The second point is beyond capacity.
    fn example() -> Vec<Point> {
        let mut runs = Vec::new();
        for (policy, first, second) in [
            ("greedy", 10.0, 40.0),
            ("lazy", 5.0, 80.0),
            ("graph:5", 20.0, 40.0),
            ("graph:25", 40.0, 160.0),
        ] {
            runs.push(row(policy, 20.0, 1, first, 0.0));
            let mut second = row(policy, 60.0, 1, second, 0.5);
            second.result.violation_rate = 0.5;
            second.result.throughput_rps = if policy == "lazy" { 40.0 } else { 50.0 };
            if policy == "graph:25" {
                second.result.violation_rate = 1.0;
                second.result.throughput_rps = 30.0;
                second.result.goodput_rps = 0.0;
            }
            runs.push(second);
        }
        points(&runs)
    }

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-12, "{got}, not {want}");
    }

    #[test]
    fn ratios_by_hand() {
        let points = example();
        let of = |cells, metric, base| means(&points, cells, metric, "lazy", base);
        // 10/5 and 40/80.
        let over_greedy = of(Cells::All, Metric::J, "greedy");
        near(over_greedy.arithmetic, 1.25);
        near(over_greedy.geometric, 1.0);
        assert_eq!(over_greedy.points, 2);
        // The better window is graph:5 at both: 20/5 and 40/80.
        near(of(Cells::All, Metric::Mean, BEST_WINDOW).arithmetic, 2.25);
        near(of(Cells::Stable, Metric::J, "graph:25").geometric, 8.0);
        assert_eq!(of(Cells::StableHalfLoad, Metric::J, "greedy").points, 0);
        // Goodput 20/20, and 60 over the floor of 0.6.
        near(of(Cells::All, Metric::Goodput, "graph:25").arithmetic, 50.5);
        let table = ratios(&points);
        // Two policies; greedy against four others, lazy against four: 3 x 4 x 8.
        assert_eq!(table.len(), 96);
        assert!(table.iter().all(|r| r.policy != r.over));
    }

    #[test]
    fn points_at_which_either_shed_are_compared_by_goodput_alone() {
        let mut points = example();
        let lazy = points[1].policies.iter_mut().find(|s| s.policy == "lazy");
        lazy.unwrap().sheds = true;
        for (policy, base) in [("lazy", "greedy"), ("greedy", "lazy")] {
            for metric in Metric::EACH {
                let means = means(&points, Cells::All, metric, policy, base);
                let num = if metric == Metric::Goodput { 2 } else { 1 };
                assert_eq!(means.points, num, "{metric:?}");
            }
            let judged = judged_means(&points, Cells::All, policy, base);
            assert_eq!(judged.points, 2, "J counts who was refused");
        }
        let rows = reproduction(&points, &|_| false);
        assert_eq!((rows[0].response.points, rows[1].response.points), (2, 1));
        assert_eq!(rows[1].satisfaction.points, 2);
    }

    #[test]
    fn the_reproduction_row_by_hand() {
        let rows = reproduction(&example(), &|_| false);
        assert_eq!(rows.len(), 2);
        let lazy = &rows[1];
        assert_eq!(lazy.policy, "lazy");
        // Over the windows: (20/5 + 40/5) / 2 = 6 and (40/80 + 160/80) / 2 = 1.25.
        near(lazy.response.arithmetic, 3.625);
        near(lazy.response.geometric, 7.5_f64.sqrt());
        near(lazy.response_stable.arithmetic, 6.0);
        // Satisfaction: 1, and (0.5/0.5 + 0.5/0.01) / 2 = 25.5.
        near(lazy.satisfaction.arithmetic, 13.25);
        // Highest throughputs 40 (lazy), 50, 30: (40/50 + 40/30) / 2.
        near(lazy.throughput_all.arithmetic, (0.8 + 4.0 / 3.0) / 2.0);
        assert_eq!(lazy.throughput_loops.points, 0);
    }

    #[test]
    fn ratios_that_are_none_are_left_out() {
        let means = Means::of([2.0, f64::INFINITY, f64::NAN, 8.0, 0.0]);
        assert_eq!((means.points, means.arithmetic), (2, 5.0));
        near(means.geometric, 4.0);
        assert_eq!(Means::of([]).geometric, 0.0);
    }
}
