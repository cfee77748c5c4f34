//! The charts of a report: bars per policy, and latency distributions.
//!
//! Bars start at zero on a linear axis and carry their value, so that a policy that has collapsed
//! does not hide the numbers of the others. Distributions stand on a logarithmic axis for the same
//! reason. A colour belongs to a policy; names stand beside bars, so no bar is told by colour alone.

use serde::Serialize;

use super::RunReport;
use super::svg::Svg;
use crate::results::RunResult;
use crate::results::table::number;

/// Colours in the page's style sheet; later policies repeat them with dashed lines.
const NUM_COLOURS: usize = 8;
/// Width of every bar chart.
const BAR_WIDTH: f64 = 520.0;
/// Height of a bar's row.
const ROW_HEIGHT: f64 = 28.0;
/// Size of the distribution chart.
const CDF_SIZE: (f64, f64) = (1060.0, 380.0);
/// Most points of one distribution's line.
const CDF_POINTS: usize = 400;

/// A policy's entry in the legend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Swatch {
    /// Its name.
    pub policy: String,
    /// Its class in the style sheet.
    pub class: String,
}

/// The legend of some runs with their colours.
pub fn legend(runs: &[(usize, &RunReport)]) -> Vec<Swatch> {
    let swatch = |&(colour, run): &(usize, &RunReport)| Swatch {
        policy: run.result.policy.clone(),
        class: class(colour),
    };
    runs.iter().map(swatch).collect()
}

/// Style sheet class of a colour.
pub fn class(colour: usize) -> String {
    let dash = if colour >= NUM_COLOURS { " dash" } else { "" };
    format!("c{}{dash}", colour % NUM_COLOURS)
}

/// One chart of bars: its title, the value of a run, how it is written, and a line to mark.
struct BarChart {
    title: &'static str,
    value: fn(&RunResult) -> f64,
    show: fn(f64) -> String,
    mark: Option<Mark>,
}

/// What the marked line stands for, and where it is.
type Mark = (&'static str, fn(&RunResult) -> Option<f64>);

/// The bar charts, in the order shown.
const BARS: &[BarChart] = &[
    BarChart {
        title: "Mean latency (ms)",
        value: |r| r.mean_ms,
        show: number,
        mark: Some(("SLA", RunResult::common_sla_ms)),
    },
    BarChart {
        title: "99th percentile latency (ms)",
        value: |r| r.p99_ms,
        show: number,
        mark: Some(("SLA", RunResult::common_sla_ms)),
    },
    BarChart {
        title: "Goodput (requests/s within the SLA)",
        value: |r| r.goodput_rps,
        show: number,
        mark: Some(("offered", |r| Some(r.rate_rps))),
    },
    BarChart {
        title: "Throughput (completed requests/s)",
        value: |r| r.throughput_rps,
        show: number,
        mark: Some(("offered", |r| Some(r.rate_rps))),
    },
    BarChart {
        title: "SLA violations (% of requests)",
        value: |r| 100.0 * r.violation_rate,
        show: |v| format!("{v:.1}"),
        mark: None,
    },
    BarChart {
        title: "Mean batch (members of a launch)",
        value: |r| r.mean_batch,
        show: |v| format!("{v:.2}"),
        mark: None,
    },
];

/// The bar charts of some runs with their colours, as SVG.
pub fn bars(runs: &[(usize, &RunReport)]) -> Vec<String> {
    BARS.iter().map(|chart| chart.draw(runs)).collect()
}

impl BarChart {
    fn draw(&self, runs: &[(usize, &RunReport)]) -> String {
        const TOP: f64 = 34.0;
        const VALUE_ROOM: f64 = 64.0;
        let height = TOP + ROW_HEIGHT * runs.len() as f64 + 20.0;
        let mut svg = Svg::new(BAR_WIDTH, height, self.title);
        svg.text("title", "start", (0.0, 16.0), self.title);

        let longest = runs
            .iter()
            .map(|(_, run)| run.result.policy.chars().count())
            .max();
        let left = (7.4 * longest.unwrap_or(0) as f64 + 12.0).clamp(60.0, 220.0);
        let room = BAR_WIDTH - left - VALUE_ROOM;
        let value = |run: &RunReport| finite((self.value)(&run.result));
        let largest = runs.iter().map(|(_, run)| value(run)).fold(0.0, f64::max);
        // A mark far beyond all bars would flatten them, and one at their base says nothing.
        let mark = self.mark.and_then(|(name, at)| {
            let at = runs.first().and_then(|(_, run)| at(&run.result))?;
            (at >= 0.08 * largest && at <= 1.5 * largest && at > 0.0).then_some((name, at))
        });
        let top_value = largest.max(mark.map_or(0.0, |(_, at)| at));
        let scale = if top_value > 0.0 {
            room / top_value
        } else {
            0.0
        };

        let bottom = TOP + ROW_HEIGHT * runs.len() as f64;
        if let Some((name, at)) = mark {
            let x = left + at * scale;
            svg.line("mark", (x, TOP - 2.0), (x, bottom + 2.0));
            let text = format!("{name} {}", mark_label(at));
            svg.text(
                "note",
                if x > BAR_WIDTH - 90.0 {
                    "end"
                } else {
                    "middle"
                },
                (x, bottom + 15.0),
                &text,
            );
        }
        for (row, (colour, run)) in runs.iter().enumerate() {
            let y = TOP + ROW_HEIGHT * row as f64;
            let (shown, policy) = ((self.show)(value(run)), &run.result.policy);
            let width = (value(run) * scale).max(1.5);
            let base = y + ROW_HEIGHT / 2.0 + 4.5;
            svg.text("label", "end", (left - 8.0, base), policy);
            let tip = format!("{policy}: {shown}");
            svg.bar(
                &format!("bar {}", class(*colour)),
                (left, y + 4.0),
                width,
                ROW_HEIGHT - 8.0,
                &tip,
            );
            svg.text("value", "start", (left + width + 6.0, base), &shown);
        }
        svg.line("axis", (left, TOP - 2.0), (left, bottom + 2.0));
        svg.finish()
    }
}

/// Latency distributions of some runs with their colours, as SVG.
pub fn latency_cdf(runs: &[(usize, &RunReport)]) -> String {
    let (width, height) = CDF_SIZE;
    let (left, right, top, bottom) = (52.0, 28.0, 34.0, 46.0);
    let mut svg = Svg::new(width, height, "Distribution of latency");
    svg.text(
        "title",
        "start",
        (0.0, 16.0),
        "Share of requests answered within a latency",
    );

    let lines: Vec<Vec<(f64, f64)>> = runs
        .iter()
        .map(|(_, run)| quantiles(&run.latencies_ns))
        .collect();
    let all = || lines.iter().flatten().map(|(ms, _)| *ms);
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    if high <= 0.0 {
        svg.text(
            "note",
            "middle",
            (width / 2.0, height / 2.0),
            "no request was completed",
        );
        return svg.finish();
    }
    let axis = LogAxis::new(low, high);
    let x = |ms: f64| left + (width - left - right) * axis.position(ms);
    let y = |share: f64| height - bottom - (height - top - bottom) * share;

    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line("grid", (left, y(share)), (width - right, y(share)));
        svg.text(
            "tick",
            "end",
            (left - 8.0, y(share) + 4.0),
            &format!("{:.0}%", 100.0 * share),
        );
    }
    for (ms, label) in axis.ticks() {
        svg.line("grid", (x(ms), y(0.0)), (x(ms), y(1.0)));
        svg.text("tick", "middle", (x(ms), y(0.0) + 18.0), &label);
    }
    svg.text(
        "note",
        "middle",
        (left + (width - left - right) / 2.0, height - 6.0),
        "latency (ms)",
    );

    let sla_ms = runs.first().and_then(|(_, run)| run.result.common_sla_ms());
    if let Some(sla_ms) = sla_ms.filter(|at| (axis.low..=axis.high).contains(at)) {
        svg.line("mark", (x(sla_ms), y(0.0)), (x(sla_ms), y(1.0) - 6.0));
        let anchor = if x(sla_ms) > width - 80.0 {
            "end"
        } else {
            "middle"
        };
        svg.text(
            "note",
            anchor,
            (x(sla_ms), y(1.0) - 10.0),
            &format!("SLA {}", mark_label(sla_ms)),
        );
    }
    for ((colour, run), line) in runs.iter().zip(&lines) {
        let Some(&(first, _)) = line.first() else {
            continue;
        };
        let mut points = vec![(x(first), y(0.0))];
        points.extend(line.iter().map(|&(ms, share)| (x(ms), y(share))));
        svg.polyline(
            &format!("line {}", class(*colour)),
            &points,
            &run.result.policy,
        );
    }
    svg.finish()
}

/// Points (latency in ms, share of requests at or below it) of a distribution: all of a small
/// one, else evenly spaced ranks with the last one among them.
fn quantiles(latencies_ns: &[u64]) -> Vec<(f64, f64)> {
    let mut sorted = latencies_ns.to_vec();
    sorted.sort_unstable();
    let num = sorted.len().min(CDF_POINTS);
    let rank = |i: usize| (i + 1) * sorted.len() / num;
    let point = |rank: usize| {
        (
            sorted[rank - 1] as f64 / 1e6,
            rank as f64 / sorted.len() as f64,
        )
    };
    (0..num).map(|i| point(rank(i))).collect()
}

/// A logarithmic axis whose ends are ticks.
pub(super) struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    /// The axis around positive values; a value of 0 is drawn at its left end.
    pub fn new(low: f64, high: f64) -> Self {
        let low = low.max(high / 1e6);
        let ticks: Vec<f64> = one_two_five(low, high).collect();
        let below = ticks
            .iter()
            .copied()
            .filter(|t| *t <= low)
            .fold(f64::MIN_POSITIVE, f64::max);
        let above = ticks
            .iter()
            .copied()
            .filter(|t| *t >= high)
            .fold(f64::MAX, f64::min);
        Self {
            low: below,
            high: above.max(2.0 * below),
        }
    }

    /// Where a value stands, from 0 to 1.
    pub fn position(&self, value: f64) -> f64 {
        ((value.max(self.low) / self.low).ln() / (self.high / self.low).ln()).min(1.0)
    }

    /// Values to mark, with their labels: 1, 2, 5 of each decade, or only 1 when they are many.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let eps = 1e-9;
        let inside = |t: &f64| *t >= self.low * (1.0 - eps) && *t <= self.high * (1.0 + eps);
        let all: Vec<f64> = one_two_five(self.low, self.high).filter(inside).collect();
        let decades_only = all.len() > 13;
        let is_decade = |t: f64| (t.log10() - t.log10().round()).abs() < eps;
        let kept = all.into_iter().filter(|t| !decades_only || is_decade(*t));
        kept.map(|t| (t, plain(t))).collect()
    }
}

/// 1, 2 and 5 times each power of ten around a range.
fn one_two_five(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10.0_f64.powi(power)))
}

/// The value of a marked line: whole where it is whole, else as in the table.
fn mark_label(value: f64) -> String {
    if value.fract() == 0.0 {
        plain(value)
    } else {
        number(value)
    }
}

/// A tick's value, without needless zeros.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn finite(value: f64) -> f64 {
    if value.is_finite() {
        value.max(0.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::table::tests::run;

    fn report(policy: &str, mean_ms: f64, latencies_ns: Vec<u64>) -> RunReport {
        RunReport {
            result: run(policy, "toy", mean_ms),
            latencies_ns,
        }
    }

    #[test]
    fn bars_are_proportional_and_labelled() {
        let (a, b) = (report("serial", 80.0, vec![]), report("lazy", 20.0, vec![]));
        let svg = BARS[0].draw(&[(0, &a), (1, &b)]);
        // The SLA of 100 ms takes the room; bars end 3 units before a rounded corner.
        let room = BAR_WIDTH - 60.0 - 64.0;
        for part in [
            format!("h{:.1}a", 0.8 * room - 3.0),
            format!("h{:.1}a", 0.2 * room - 3.0),
            ">80.00</text>".into(),
            ">SLA 100</text>".into(),
            "<title>lazy: 20.00</title>".into(),
        ] {
            assert!(svg.contains(&part), "{part} missing in\n{svg}");
        }
    }

    #[test]
    fn marks_are_labelled_shortly() {
        assert_eq!(
            [100.0, 2000.0, 389.431929, 0.5].map(mark_label),
            ["100", "2000", "389.4", "0.500"]
        );
    }

    #[test]
    fn a_far_mark_is_left_out() {
        for mean_ms in [5.0, 5000.0] {
            let a = report("serial", mean_ms, vec![]);
            assert!(!BARS[0].draw(&[(0, &a)]).contains("SLA"), "{mean_ms}");
        }
    }

    #[test]
    fn quantiles_end_at_all_requests() {
        assert_eq!(quantiles(&[3_000_000, 1_000_000]), [(1.0, 0.5), (3.0, 1.0)]);
        assert_eq!(quantiles(&[]), []);
        let many: Vec<u64> = (1..=100_001).collect();
        let points = quantiles(&many);
        assert_eq!(points.len(), CDF_POINTS);
        assert_eq!(points.last(), Some(&(0.100_001, 1.0)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1));
    }

    #[test]
    fn axes_end_at_round_values() {
        let axis = LogAxis::new(0.7, 33.0);
        let labels: Vec<String> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.5", "1", "2", "5", "10", "20", "50"]);
        assert_eq!((axis.position(0.5), axis.position(50.0)), (0.0, 1.0));
        assert!((axis.position(5.0) - 0.5).abs() < 1e-9);
        let wide = LogAxis::new(0.0, 5_000.0);
        assert!(wide.ticks().len() <= 13 && wide.position(0.0) == 0.0);
        let narrow = LogAxis::new(5.0, 5.0);
        assert!(narrow.high > narrow.low);
    }

    #[test]
    fn distributions_are_drawn_or_said_to_be_missing() {
        let a = report("serial", 5.0, vec![1_000_000, 2_000_000]);
        let svg = latency_cdf(&[(9, &a)]);
        assert!(svg.contains("class=\"line c1 dash\"") && svg.contains("<title>serial</title>"));
        let none = report("serial", 0.0, vec![]);
        assert!(latency_cdf(&[(0, &none)]).contains("no request was completed"));
    }
}
