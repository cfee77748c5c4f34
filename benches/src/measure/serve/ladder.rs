//! Rates that climb until one is not sustained, then are halved in between, and what is recorded of
//! them.

use anyhow::ensure;
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::spread::Spread;
use serde_json::{Value, json};

/// Most rates of a climb.
const MAX_STEPS: usize = 40;
/// Rates that are tried between the highest that was sustained and the first that was not, each in
/// the geometric middle of what is left.
const BETWEEN: usize = 2;

/// Where climbs begin, and when a rate is sustained.
#[derive(Clone, Copy, Debug)]
pub struct Ladder {
    /// Requests a second.
    pub first_rate: f64,
    /// From one rate to the next, above 1.
    pub step: f64,
    /// All are answered, and the p99 is at most so many milliseconds.
    pub limit_ms: f64,
}

/// What became of one rate.
#[derive(Clone, Copy, Debug)]
struct Point {
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
    sustained: bool,
    /// Share of the time at work that the peer's runtime took, if it tells.
    in_runtime: Option<f64>,
}

/// What became of the requests at one rate.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Milliseconds of each, `None` of those without an answer.
    pub ms: Vec<Option<f64>>,
    /// Share of the time at work that the peer's runtime took, if it tells.
    pub in_runtime: Option<f64>,
}

impl From<Vec<Option<f64>>> for Sent {
    fn from(ms: Vec<Option<f64>>) -> Self {
        let in_runtime = None;
        Self { ms, in_runtime }
    }
}

/// The climb of one server with one model.
#[derive(Clone, Debug)]
pub struct Climb {
    ladder: Ladder,
    kind: &'static str,
    model: &'static str,
    points: Vec<Point>,
}

impl Ladder {
    /// A climb that has not begun.
    pub fn climb(self, kind: &'static str, model: &'static str) -> Climb {
        Climb {
            ladder: self,
            kind,
            model,
            points: Vec::new(),
        }
    }
}

impl Climb {
    /// The next rate and its place.
    pub fn next(&self) -> Option<(usize, f64)> {
        let place = self.points.len();
        let failed = self.points.iter().position(|p| !p.sustained);
        let rate = match (self.points.last(), failed) {
            (None, _) => self.ladder.first_rate,
            (Some(last), None) => last.rate * self.ladder.step,
            (Some(_), Some(at)) if at > 0 && place - at <= BETWEEN => {
                let not = self.points.iter().filter(|p| !p.sustained);
                let lowest = not.map(|p| p.rate).fold(f64::INFINITY, f64::min);
                (self.sustained() * lowest).sqrt()
            }
            (Some(_), Some(_)) => return None,
        };
        (place < MAX_STEPS).then_some((place, rate))
    }

    /// What became of the requests at the next rate.
    ///
    /// # Errors
    /// No answer at all.
    pub fn put(&mut self, sent: impl Into<Sent>) -> anyhow::Result<()> {
        let Some((_, rate)) = self.next() else {
            return Ok(());
        };
        let Sent {
            ms: sent,
            in_runtime,
        } = sent.into();
        let answered: Vec<f64> = sent.iter().copied().flatten().collect();
        let (kind, model) = (self.kind, self.model);
        ensure!(
            !answered.is_empty(),
            "{kind} {model} at {rate}/s: expected answers, got none"
        );
        let all = answered.len() == sent.len();
        let spread = Spread::of(answered);
        let p99_ms = spread.percentile(99);
        self.points.push(Point {
            rate,
            p50_ms: spread.median(),
            p99_ms,
            sustained: all && p99_ms <= self.ladder.limit_ms,
            in_runtime,
        });
        Ok(())
    }

    /// The highest rate that was sustained; 0 if none was.
    fn sustained(&self) -> f64 {
        let held = self.points.iter().filter(|p| p.sustained);
        held.map(|p| p.rate).fold(0.0, f64::max)
    }
}

/// Writes the lines of `repeats` climbs of each of `kinds`, and for each of `over`, a label and kinds,
/// the rates that `ours` sustains over the best of those; none where it was not measured. `figures`
/// is what lines say of the run.
///
/// # Errors
/// Lines that cannot be written.
pub fn record(
    recorder: &Recorder,
    climbs: &[Climb],
    (kinds, over): (&[&'static str], &[(&str, &[&str])]),
    ours: &str,
    repeats: usize,
    figures: impl Fn(&str) -> Value,
) -> anyhow::Result<()> {
    let mut models: Vec<&str> = climbs.iter().map(|c| c.model).collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        let line = |what: &str, rate: Option<f64>, metric: &str, values: Vec<f64>| {
            let mut figures = figures(what);
            merge(&mut figures, json!({ "model": model, "rate": rate }));
            recorder.line(figures, metric, &Spread::of(values))
        };
        let mut sustained = Vec::new();
        for &kind in kinds {
            let is_own = |c: &&Climb| c.kind == kind && c.model == model;
            let own: Vec<&Climb> = climbs.iter().filter(is_own).collect();
            if own.is_empty() {
                continue;
            }
            let all = || own.iter().flat_map(|c| &c.points);
            let mut rates: Vec<f64> = all().map(|p| p.rate).collect();
            rates.sort_unstable_by(f64::total_cmp);
            rates.dedup();
            for rate in rates {
                let at = Some(rate);
                let points = || all().filter(|p| p.rate.to_bits() == rate.to_bits());
                let of = |f: fn(&Point) -> f64| points().map(f).collect();
                line(kind, at, "p50 ms", of(|p| p.p50_ms))?;
                line(kind, at, "p99 ms", of(|p| p.p99_ms))?;
                let held = of(|p| f64::from(u8::from(p.sustained)));
                line(kind, at, "sustained", held)?;
                let shares: Vec<f64> = points().filter_map(|p| p.in_runtime).collect();
                if !shares.is_empty() {
                    line(kind, at, "share in runtime", shares)?;
                }
            }
            let rates: Vec<f64> = own.iter().map(|c| c.sustained()).collect();
            line(kind, None, "sustained/s", rates.clone())?;
            sustained.push((kind, rates));
        }
        let Some((_, first)) = sustained.iter().find(|(kind, _)| *kind == ours) else {
            continue;
        };
        let below = climbs.first().map(|c| c.ladder.first_rate / c.ladder.step);
        for (label, rivals) in over {
            let of = || sustained.iter().filter(|(kind, _)| rivals.contains(kind));
            let ratio = |turn: usize| {
                let best = of().map(|(_, rates)| rates[turn]).fold(0.0, f64::max);
                // One that sustains no rate is taken to sustain the one before the first.
                first[turn] / best.max(below.unwrap_or(1.0))
            };
            if of().next().is_some() {
                line(
                    label,
                    None,
                    "sustained ratio",
                    (0..repeats).map(ratio).collect(),
                )?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_climb_until_one_is_not_sustained_and_are_halved_then() {
        let ladder = Ladder {
            first_rate: 100.0,
            step: 1.5,
            limit_ms: 10.0,
        };
        let mut climb = ladder.climb("a", "m");
        assert_eq!(climb.next(), Some((0, 100.0)));
        climb.put(vec![Some(1.0), Some(9.0)]).unwrap();
        assert_eq!(climb.next(), Some((1, 150.0)));
        climb.put(vec![Some(1.0), None]).unwrap();
        let (first, second) = (15_000f64.sqrt(), (15_000f64.sqrt() * 150.0).sqrt());
        assert_eq!(climb.next(), Some((2, first)), "between 100 and 150");
        climb.put(vec![Some(1.0)]).unwrap();
        assert_eq!(climb.next(), Some((3, second)));
        climb.put(vec![Some(11.0)]).unwrap();
        assert_eq!((climb.next(), climb.sustained()), (None, first));
        let mut slow = ladder.climb("a", "m");
        slow.put(vec![Some(11.0)]).unwrap();
        assert_eq!((slow.next(), slow.sustained()), (None, 0.0));
        assert!(ladder.climb("a", "m").put(vec![None]).is_err());
    }
}
