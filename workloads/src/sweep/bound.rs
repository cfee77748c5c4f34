//! Lower bounds beside the points of a sweep, and how far a policy is from them.
//!
//! The bounds are those of [`crate::bound`], of the very arrivals that the policies saw. They are
//! about schedules that complete every request: a policy that sheds or loses one is not compared.

use std::fmt;

use lazybatch_sla::Nanos;
use serde::{Deserialize, Serialize};

use super::cases::Lab;
use super::points::{Point, Standing};
use super::score::VIOLATION_WEIGHT;
use crate::arrivals::Arrival;
use crate::bound::LowerBound;
use crate::error::Result;

/// Largest median of mean latency over the bound that is asked for.
pub const MOST_OVER_BOUND: f64 = 1.25;

/// What no schedule of some arrivals can beat at some target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Bound on the mean latency, milliseconds.
    pub mean_ms: f64,
    /// Bound on the share of requests that are not answered in time.
    pub violation_rate: f64,
    /// Bound on J, milliseconds: of both at once, so that a schedule may reach each of them and
    /// not this.
    pub j_ms: f64,
}

/// The bounds of some arrivals at each target, with the target in milliseconds.
///
/// # Errors
/// As [`LowerBound::at_slas`].
pub fn bounds(lab: &Lab, arrivals: &[Arrival], slas_ms: &[f64]) -> Result<Vec<(f64, Bound)>> {
    let slas: Vec<Nanos> = slas_ms.iter().map(|&ms| Nanos::from_ms_f64(ms)).collect();
    let simulation = lab.simulation(arrivals, Nanos::ZERO);
    let found = LowerBound::at_slas(&simulation, &slas)?;
    let bound = |(sla, found): (&Nanos, &LowerBound)| {
        let violation_rate = found.violations as f64 / found.requests.max(1) as f64;
        let bound = Bound {
            mean_ms: found.mean_ms,
            violation_rate,
            j_ms: found.mean_ms + VIOLATION_WEIGHT * sla.as_ms() * violation_rate,
        };
        (sla.as_ms(), bound)
    };
    Ok(slas.iter().zip(&found).map(bound).collect())
}

/// A number at many points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub points: usize,
    /// The median; the mean of the middle two of an even number, 0 of nothing.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of some numbers, in any order.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = numbers.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (all.first(), all.last()) else {
            return Self::default();
        };
        let points = all.len();
        Self {
            points,
            median: f64::midpoint(all[(points - 1) / 2], all[points / 2]),
            least,
            most,
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, .. } = self;
        write!(f, "{median:.2} ({:.2}..{:.2})", self.least, self.most)
    }
}

/// A policy over the bounds, at the stable points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverBound {
    /// Mean latency over its bound.
    pub mean: Spread,
    /// J over its bound.
    pub j: Spread,
    /// Both, model by model.
    pub by_model: Vec<(String, Spread, Spread)>,
}

impl OverBound {
    /// Of a policy; `None` where no stable point has a bound to compare it with.
    pub fn new(points: &[Point], policy: &str) -> Option<Self> {
        let with =
            |p: &&Point| p.stable && p.policy(policy).is_some_and(|s| s.over_bound.is_some());
        let stable: Vec<&Point> = points.iter().filter(with).collect();
        let spread = |model: Option<&str>, number: fn(&Over) -> f64| {
            let own = stable.iter().filter(|p| model.is_none_or(|m| p.model == m));
            let over = own.filter_map(|p| p.policy(policy)?.over_bound.as_ref().map(number));
            Spread::of(over)
        };
        let mut models: Vec<&str> = Vec::new();
        for point in &stable {
            if !models.contains(&&*point.model) {
                models.push(&point.model);
            }
        }
        let row = |model: &str| {
            let both = (
                spread(Some(model), |o| o.mean),
                spread(Some(model), |o| o.j),
            );
            (model.to_owned(), both.0, both.1)
        };
        (!stable.is_empty()).then(|| Self {
            mean: spread(None, |o| o.mean),
            j: spread(None, |o| o.j),
            by_model: models.into_iter().map(row).collect(),
        })
    }

    /// In lines for a summary, about `policy`.
    pub fn lines(&self, policy: &str) -> Vec<String> {
        let verdict = match self.mean.median <= MOST_OVER_BOUND {
            true => "holds",
            false => "does not hold",
        };
        let by_model = |number: fn(&(String, Spread, Spread)) -> Spread| {
            let model = |m: &(String, Spread, Spread)| format!("{} {}", m.0, number(m));
            let all: Vec<String> = self.by_model.iter().map(model).collect();
            all.join(", ")
        };
        let line = |what: &str, all: &Spread, models: String| {
            let Spread { median, points, .. } = all;
            format!(
                "{what} of {policy} over the lower bound: median {median:.2} over {points} stable \
                 points ({:.2}..{:.2}), by model {models}",
                all.least, all.most
            )
        };
        vec![
            format!(
                "{verdict}: median at most {MOST_OVER_BOUND}: {}",
                line("mean latency", &self.mean, by_model(|m| m.1))
            ),
            format!("reported: {}", line("J", &self.j, by_model(|m| m.2))),
        ]
    }
}

/// A policy's numbers over the bounds on them, at a point; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// Mean latency over its bound.
    pub mean: f64,
    /// J over its bound.
    pub j: f64,
}

impl Over {
    /// Of a policy that completed every request; `None` if the bound is nothing.
    pub fn new(standing: &Standing, bound: &Bound) -> Option<Self> {
        (bound.mean_ms > 0.0).then(|| Self {
            mean: standing.mean_ms / bound.mean_ms,
            j: standing.j_ms / bound.j_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::run::{Options, run};
    use crate::sweep::{Sweep, text};

    #[test]
    fn spreads_by_hand() {
        let spread = Spread::of([3.0, 1.0, 10.0, 2.0]);
        assert_eq!(spread.to_string(), "2.50 (1.00..10.00)");
        assert_eq!(Spread::of([7.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn every_policy_is_above_the_bounds_of_its_arrivals() {
        let (grid, _folder) = fixture::grid(
            "'chain', 'loop', 'chain:1+loop:3'",
            "lengths = 'translation-short'\n",
        );
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let mut late = 0;
        for run in &ran.runs {
            let bound = run.bound.unwrap();
            let result = &run.result;
            assert!(
                bound.mean_ms > 0.0 && bound.mean_ms <= result.mean_ms,
                "{run:?}"
            );
            assert!(bound.violation_rate <= result.violation_rate, "{run:?}");
            assert!(bound.j_ms <= run.j_ms, "{run:?}");
            late += usize::from(bound.violation_rate > 0.0);
        }
        assert!(late > 0, "the bound on violations is nothing everywhere");
        let sweep = Sweep::new(&grid, ran, Some("greedy")).unwrap();
        for point in &sweep.points {
            let bound = point.bound.unwrap();
            for standing in &point.policies {
                let over = standing.over_bound.unwrap();
                assert!(over.mean >= 1.0 && over.j >= 1.0, "{standing:?}");
                assert_eq!(over.mean, standing.mean_ms / bound.mean_ms);
            }
        }
        let over = sweep
            .judgement
            .as_ref()
            .unwrap()
            .over_bound
            .as_ref()
            .unwrap();
        let stable = sweep.points.iter().filter(|p| p.stable).count();
        assert_eq!(over.mean.points, stable);
        assert_eq!(
            over.by_model.iter().map(|m| m.1.points).sum::<usize>(),
            stable
        );
        let text = text::summary(&sweep);
        let line = format!(
            "mean latency of greedy over the lower bound: median {:.2} over",
            over.mean.median
        );
        assert!(
            text.contains(&line) && text.contains("mean/bound"),
            "{text}"
        );
    }

    #[test]
    fn a_grid_can_do_without() {
        let (grid, _folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\nbound = false\n");
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        assert!(ran.runs.iter().all(|r| r.bound.is_none()));
        let sweep = Sweep::new(&grid, ran, Some("greedy")).unwrap();
        assert_eq!(sweep.judgement.as_ref().unwrap().over_bound, None);
        let text = text::summary(&sweep);
        assert!(!text.contains("bound"), "{text}");
        assert!(!sweep.to_json().contains("over_bound\":{"));
    }

    #[test]
    fn a_policy_that_sheds_is_not_compared() {
        let (grid, _folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let mut ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let own = |r: &&mut crate::sweep::Run| r.result.policy == "greedy" && r.seed == 2;
        ran.runs
            .iter_mut()
            .filter(own)
            .for_each(|r| r.result.shed = 1);
        let sweep = Sweep::new(&grid, ran, Some("greedy")).unwrap();
        assert_eq!(sweep.judgement.as_ref().unwrap().over_bound, None);
        let point = &sweep.points[0];
        assert_eq!(point.policy("greedy").unwrap().over_bound, None);
        assert!(point.policy("lazy").unwrap().over_bound.is_some());
    }
}
