//! Rates that climb until one is not sustained, and what is recorded of them.

use anyhow::ensure;
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::spread::Spread;
use serde_json::{Value, json};

/// Most rates of a climb.
const MAX_STEPS: usize = 40;

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
    /// The next rate and its place; none behind one that was not sustained.
    pub fn next(&self) -> Option<(usize, f64)> {
        match self.points.last() {
            None => Some((0, self.ladder.first_rate)),
            Some(last) if last.sustained && self.points.len() < MAX_STEPS => {
                Some((self.points.len(), last.rate * self.ladder.step))
            }
            Some(_) => None,
        }
    }

    /// Milliseconds of the requests at the next rate, `None` of those without an answer.
    ///
    /// # Errors
    /// No answer at all.
    pub fn put(&mut self, sent: Vec<Option<f64>>) -> anyhow::Result<()> {
        let Some((_, rate)) = self.next() else {
            return Ok(());
        };
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
        });
        Ok(())
    }

    /// The highest rate that was sustained; 0 if none was.
    fn sustained(&self) -> f64 {
        let held = self.points.iter().filter(|p| p.sustained);
        held.map(|p| p.rate).fold(0.0, f64::max)
    }
}

/// Writes the lines of `repeats` climbs of each of `kinds`, and of the rates that the first of them
/// sustains over the best of the others, as `over`. `figures` is what lines say of the run.
///
/// # Errors
/// Lines that cannot be written.
pub fn record(
    recorder: &Recorder,
    climbs: &[Climb],
    (kinds, over): (&[&'static str], &str),
    repeats: usize,
    figures: impl Fn(&str) -> Value,
) -> anyhow::Result<()> {
    let mut models: Vec<&str> = climbs.iter().map(|c| c.model).collect();
    models.dedup();
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
            for step in 0..MAX_STEPS {
                let points: Vec<&Point> = own.iter().filter_map(|c| c.points.get(step)).collect();
                let Some(first) = points.first() else { break };
                let rate = Some(first.rate);
                let of = |f: fn(&Point) -> f64| points.iter().map(|p| f(p)).collect();
                line(kind, rate, "p50 ms", of(|p| p.p50_ms))?;
                line(kind, rate, "p99 ms", of(|p| p.p99_ms))?;
                let held = of(|p| f64::from(u8::from(p.sustained)));
                line(kind, rate, "sustained", held)?;
            }
            let rates: Vec<f64> = own.iter().map(|c| c.sustained()).collect();
            line(kind, None, "sustained/s", rates.clone())?;
            sustained.push(rates);
        }
        let below = climbs.first().map(|c| c.ladder.first_rate / c.ladder.step);
        let ratio = |turn: usize| {
            let others = sustained[1..].iter().map(|rates| rates[turn]);
            let best = others.fold(0.0, f64::max);
            // One that sustains no rate is taken to sustain the one before the first.
            sustained[0][turn] / best.max(below.unwrap_or(1.0))
        };
        if sustained.len() > 1 {
            let ratios = (0..repeats).map(ratio).collect();
            line(over, None, "sustained ratio", ratios)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_climb_until_one_is_not_sustained() {
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
        assert_eq!((climb.next(), climb.sustained()), (None, 100.0));
        let mut slow = ladder.climb("a", "m");
        slow.put(vec![Some(11.0)]).unwrap();
        assert_eq!((slow.next(), slow.sustained()), (None, 0.0));
        assert!(ladder.climb("a", "m").put(vec![None]).is_err());
    }
}
