//! Rates that climb until one is not sustained, then are halved in between, and what is recorded of
//! them.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::ensure;
use lazybatch_benches::clock;
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
    /// Rates that are tried between the highest that was sustained and the first that was not, each
    /// in the geometric middle of what is left.
    pub between: usize,
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
    kind: String,
    model: &'static str,
    points: Vec<Point>,
    /// When it began, and how long it took until the last rate was over.
    start: Instant,
    took: Duration,
}

impl Ladder {
    /// A climb that has not begun.
    pub fn climb(self, kind: &str, model: &'static str) -> Climb {
        Climb {
            ladder: self,
            kind: kind.to_owned(),
            model,
            points: Vec::new(),
            start: clock::now(),
            took: Duration::ZERO,
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
            (Some(_), Some(at)) if at > 0 && place - at <= self.ladder.between => {
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
        let (kind, model) = (&self.kind, self.model);
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
        self.took = self.start.elapsed();
        Ok(())
    }

    /// What became of a rate.
    fn at(&self, rate: f64) -> Option<&Point> {
        let is_it = |p: &&Point| p.rate.to_bits() == rate.to_bits();
        self.points.iter().find(is_it)
    }

    /// Seconds from its begin to the end of its last rate.
    pub fn took_s(&self) -> f64 {
        self.took.as_secs_f64()
    }

    /// The highest rate that was sustained; 0 if none was.
    fn sustained(&self) -> f64 {
        let held = self.points.iter().filter(|p| p.sustained);
        held.map(|p| p.rate).fold(0.0, f64::max)
    }
}

impl fmt::Display for Climb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, model, rates) = (&self.kind, self.model, self.points.len());
        let (sustained, took) = (self.sustained(), self.took_s());
        write!(
            f,
            "{kind} {model} sustains {sustained:.0}/s, {rates} rates in {took:.0} s"
        )
    }
}

/// What is compared: kinds, and labels each with the kinds that `ours` is held against.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    /// All of them, in order.
    pub kinds: &'a [String],
    /// The one that is held against others.
    pub ours: &'a str,
    /// Labels, and those others.
    pub over: &'a [(&'a str, &'a [&'a str])],
}

/// Writes the lines of the climbs, those of each kind and model one behind another by turn: of each
/// rate, and of each label of `compared` the rates that ours sustains over the best of those, and its
/// latencies over the least of theirs at each rate that both sustain; none where it was not measured.
/// `figures` is what lines say of the run.
///
/// # Errors
/// Lines that cannot be written.
pub fn record(
    recorder: &Recorder,
    climbs: &[Climb],
    compared: Compared<'_>,
    figures: impl Fn(&str) -> Value,
) -> anyhow::Result<()> {
    let mut models: Vec<&str> = climbs.iter().map(|c| c.model).collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        let line = |what: &str, (rate, metric, values): Line| {
            let mut figures = figures(what);
            merge(&mut figures, json!({ "model": model, "rate": rate }));
            recorder.line(figures, metric, &Spread::of(values))
        };
        let of = |kind: &str| -> Vec<&Climb> {
            let is_own = |c: &&Climb| c.kind == kind && c.model == model;
            climbs.iter().filter(is_own).collect()
        };
        for kind in compared.kinds {
            for one in of_kind(&of(kind)) {
                line(kind, one)?;
            }
        }
        let ours = of(compared.ours);
        for (label, rivals) in compared.over {
            let rivals: Vec<_> = rivals.iter().map(|kind| of(kind)).collect();
            for one in beside(&ours, &rivals) {
                line(label, one)?;
            }
        }
    }
    Ok(())
}

/// A rate if it is of one, a metric and its values by turn.
type Line = (Option<f64>, &'static str, Vec<f64>);

/// The rates of climbs, ascending.
fn rates(climbs: &[&Climb]) -> Vec<f64> {
    let points = climbs.iter().flat_map(|c| &c.points);
    let mut rates: Vec<f64> = points.map(|p| p.rate).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    rates
}

/// Lines of the climbs of one kind.
fn of_kind(climbs: &[&Climb]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    if climbs.is_empty() {
        return lines;
    }
    for rate in rates(climbs) {
        let points = || climbs.iter().filter_map(|c| c.at(rate));
        let of = |f: fn(&Point) -> f64| points().map(f).collect();
        lines.push((Some(rate), "p50 ms", of(|p| p.p50_ms)));
        lines.push((Some(rate), "p99 ms", of(|p| p.p99_ms)));
        let held = of(|p| f64::from(u8::from(p.sustained)));
        lines.push((Some(rate), "sustained", held));
        let shares: Vec<f64> = points().filter_map(|p| p.in_runtime).collect();
        if !shares.is_empty() {
            lines.push((Some(rate), "share in runtime", shares));
        }
    }
    let of = |f: fn(&Climb) -> f64| climbs.iter().map(|c| f(c)).collect();
    lines.push((None, "sustained/s", of(Climb::sustained)));
    lines.push((None, "climb s", of(Climb::took_s)));
    lines
}

/// Lines of `ours` beside the best of `rivals`, by turn.
fn beside(ours: &[&Climb], rivals: &[Vec<&Climb>]) -> Vec<Line> {
    let mut lines = Vec::new();
    if ours.is_empty() || rivals.iter().all(Vec::is_empty) {
        return lines;
    }
    let in_turn = |turn: usize| rivals.iter().filter_map(move |r| r.get(turn).copied());
    let turns = || ours.iter().enumerate();
    for rate in rates(ours) {
        let of = |f: fn(&Point) -> f64| -> Vec<f64> {
            let ratio = |(turn, own): (usize, &&Climb)| {
                let held = in_turn(turn).filter_map(|c| c.at(rate).filter(|p| p.sustained));
                let best = held.map(f).min_by(f64::total_cmp)?;
                Some(f(own.at(rate).filter(|p| p.sustained)?) / best)
            };
            turns().filter_map(ratio).collect()
        };
        let (p50, p99) = (of(|p| p.p50_ms), of(|p| p.p99_ms));
        if !p50.is_empty() {
            lines.push((Some(rate), "p50 ratio", p50));
            lines.push((Some(rate), "p99 ratio", p99));
        }
    }
    let ratio = |(turn, own): (usize, &&Climb)| {
        let best = in_turn(turn).map(Climb::sustained).fold(0.0, f64::max);
        // One that sustains no rate is taken to sustain the one before the first.
        let least = own.ladder.first_rate / own.ladder.step;
        own.sustained() / if best > 0.0 { best } else { least }
    };
    lines.push((None, "sustained ratio", turns().map(ratio).collect()));
    lines
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
            between: 2,
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

    #[test]
    fn latencies_are_compared_where_both_sustain_a_rate() {
        let ladder = Ladder {
            first_rate: 100.0,
            step: 2.0,
            limit_ms: 10.0,
            between: 0,
        };
        // Milliseconds of each rate; beyond 10 it is not sustained.
        let climb = |kind, all: &[f64]| {
            let mut climb = ladder.climb(kind, "m");
            for &ms in all {
                climb.put(vec![Some(ms)]).unwrap();
            }
            climb
        };
        let ours = [
            climb("ours", &[1.0, 2.0, 3.0, 11.0]),
            climb("ours", &[2.0, 8.0]),
        ];
        let slow = [climb("slow", &[4.0, 11.0]), climb("slow", &[11.0])];
        let fast = [climb("fast", &[2.0, 8.0, 11.0]), climb("fast", &[1.0, 4.0])];
        let [ours, slow, fast] = [&ours, &slow, &fast].map(|c| c.iter().collect::<Vec<_>>());
        let lines = beside(&ours, &[slow.clone(), fast]);
        let at = |rate, metric| {
            let mut found = lines.iter().filter(|l| (l.0, l.1) == (rate, metric));
            found.next().map(|l| l.2.clone())
        };
        assert_eq!(at(Some(100.0), "p50 ratio"), Some(vec![0.5, 2.0]));
        assert_eq!(at(Some(200.0), "p99 ratio"), Some(vec![0.25, 2.0]));
        assert_eq!(at(Some(400.0), "p99 ratio"), None, "only ours sustains it");
        assert_eq!(at(None, "sustained ratio"), Some(vec![2.0, 1.0]));
        // One that sustains nothing counts with the rate before the first.
        let lines = beside(&ours, &[slow]);
        assert_eq!(lines.last().map(|l| l.2.clone()), Some(vec![4.0, 4.0]));
        assert!(
            beside(&ours, &[Vec::new()]).is_empty(),
            "nothing to compare with"
        );
        let lines = of_kind(&ours);
        let of = |metric| lines.iter().filter(|l| l.1 == metric).collect::<Vec<_>>();
        let runs: Vec<usize> = of("p50 ms").iter().map(|l| l.2.len()).collect();
        assert_eq!(runs, [2, 2, 1, 1], "of each rate the turns that came to it");
        assert_eq!((of("sustained/s").len(), of("climb s").len()), (1, 1));
    }
}
