//! What a policy still answers in time beyond capacity, over what it answers at capacity.
//!
//! Known only of a grid whose rates are shares of the capacity, or happen to be: each point of at
//! least [`BEYOND`] times the capacity is held against the point of the same setting, model and
//! target whose load is within [`NEAR`] of 1.

use serde::{Deserialize, Serialize};

use super::bound::Spread;
use super::judge::Place;
use super::points::Point;

/// Least load of a point that is looked at.
pub const BEYOND: f64 = 1.5;
/// How far from 1 the load at capacity may be.
pub const NEAR: f64 = 0.05;
/// Least share that is asked for of models without loops.
pub const SHARE: f64 = 0.9;

/// The goodput of a policy at a point beyond capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// Whether a model of the point has a loop.
    pub has_loop: bool,
    /// Requests answered in time per second there.
    pub goodput_rps: f64,
    /// The same at capacity.
    pub at_capacity_rps: f64,
}

impl Kept {
    /// Of a policy, at every point beyond capacity that has one at capacity beside it.
    pub fn of(points: &[Point], policy: &str, has_loop: &dyn Fn(&str) -> bool) -> Vec<Self> {
        let beyond = points.iter().filter(|p| p.load >= BEYOND);
        let kept = beyond.filter_map(|point| {
            let beside = |p: &&Point| {
                (p.load - 1.0).abs() <= NEAR
                    && p.sla_ms == point.sla_ms
                    && p.model == point.model
                    && p.setting == point.setting
            };
            let at_capacity = points.iter().find(beside)?;
            Some(Self {
                place: Place::of(point),
                has_loop: has_loop(&point.model),
                goodput_rps: point.policy(policy)?.goodput_rps,
                at_capacity_rps: at_capacity.policy(policy)?.goodput_rps,
            })
        });
        kept.collect()
    }

    /// The first over the second; infinite where nothing is answered in time at capacity.
    pub fn share(&self) -> f64 {
        self.goodput_rps / self.at_capacity_rps
    }
}

/// What there is to say of them, a line each for models without loops and with.
pub fn lines(kept: &[Kept]) -> Vec<String> {
    let line = |has_loop: bool| {
        let own = kept.iter().filter(|k| k.has_loop == has_loop);
        let shares: Vec<f64> = own.map(Kept::share).filter(|s| s.is_finite()).collect();
        let least = shares.iter().copied().reduce(f64::min)?;
        let what = format!("goodput at {BEYOND} times the capacity and more over that at capacity");
        let spread = Spread::of(shares);
        Some(match (has_loop, least >= SHARE) {
            (true, _) => format!("reported: {what}, models with loops: median {spread}"),
            (false, true) => {
                format!("holds: at least {SHARE}: {what}, models without loops: median {spread}")
            }
            (false, false) => format!(
                "does not hold: at least {SHARE}: {what}, models without loops: median {spread}"
            ),
        })
    };
    [false, true].into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::points::{points, tests::row};

    /// Goodput at loads 0.5, 1 and 2, where rows have a capacity of 100.
    fn kept(goodput: [f64; 3], has_loop: bool) -> Vec<Kept> {
        let rates = [50.0, 100.0, 200.0];
        let runs = rates.into_iter().zip(goodput).map(|(rate, goodput)| {
            let mut run = row("greedy", rate, 1, 5.0, 0.0);
            run.result.goodput_rps = goodput;
            run
        });
        let runs: Vec<_> = runs.collect();
        Kept::of(&points(&runs), "greedy", &|_| has_loop)
    }

    #[test]
    fn points_beyond_capacity_are_held_against_those_at_it() {
        let some = kept([50.0, 80.0, 76.0], false);
        assert_eq!(some.len(), 1);
        assert_eq!((some[0].place.load, some[0].share()), (2.0, 0.95));
        assert!(lines(&some)[0].starts_with("holds: at least 0.9: goodput"));
        let less = lines(&kept([50.0, 80.0, 60.0], false));
        assert!(
            less[0].starts_with("does not hold") && less[0].contains("0.75"),
            "{less:?}"
        );
        let loops = lines(&kept([50.0, 80.0, 60.0], true));
        assert!(loops[0].starts_with("reported: "), "{loops:?}");
        assert!(lines(&kept([50.0, 0.0, 60.0], false)).is_empty());
        assert!(lines(&[]).is_empty());
    }
}
