//! Line charts: a number of each policy over a rate, a target or a setting.

use super::charts::LogAxis;
use super::svg::Svg;

/// Size of a chart.
const SIZE: (f64, f64) = (520.0, 330.0);
/// Room around the plot: left, right, top, bottom.
const ROOM: (f64, f64, f64, f64) = (52.0, 20.0, 34.0, 46.0);

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Whose.
    pub name: String,
    /// Its class in the style sheet.
    pub class: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Logarithmic.
    Log,
    /// Named positions 0, 1, 2, ...
    Names(Vec<String>),
}

/// The vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// Logarithmic.
    Log,
    /// Shares from 0 to 1, as percentages.
    Share,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// What it shows, with the unit of the vertical axis.
    pub title: String,
    /// What the horizontal axis is, with its unit.
    pub across_title: String,
    /// The horizontal axis.
    pub across: Across,
    /// The vertical axis.
    pub up: Up,
    /// The lines, the last one on top.
    pub series: Vec<Series>,
    /// A vertical line, with its name.
    pub mark_across: Option<(String, f64)>,
    /// A horizontal line, with its name.
    pub mark_up: Option<(String, f64)>,
}

/// Where values of an axis stand, and its ticks.
struct Axis {
    position: Box<dyn Fn(f64) -> f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn log(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let positive = values.filter(|v| v.is_finite() && *v > 0.0);
        let low = positive.clone().fold(f64::MAX, f64::min);
        let high = positive.fold(0.0, f64::max);
        if high <= 0.0 {
            return None;
        }
        let axis = LogAxis::new(low, high);
        let mut ticks = axis.ticks();
        if ticks.len() > 9 {
            ticks.retain(|(v, _)| (v.log10() - v.log10().round()).abs() < 1e-9);
        }
        Some(Self {
            ticks,
            position: Box::new(move |v| axis.position(v)),
        })
    }

    fn shares() -> Self {
        let ticks = [0.0, 0.25, 0.5, 0.75, 1.0];
        Self {
            ticks: ticks.map(|s| (s, format!("{:.0}%", 100.0 * s))).to_vec(),
            position: Box::new(|v| v.clamp(0.0, 1.0)),
        }
    }

    fn names(names: &[String]) -> Self {
        let num = names.len().max(1) as f64;
        let ticks = names.iter().enumerate().map(|(i, n)| (i as f64, n.clone()));
        Self {
            ticks: ticks.collect(),
            position: Box::new(move |v| (v + 0.5) / num),
        }
    }
}

impl LineChart {
    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let (width, height) = SIZE;
        let (left, right, top, bottom) = ROOM;
        let mut svg = Svg::new(width, height, &self.title);
        svg.text("title", "start", (0.0, 16.0), &self.title);
        let all = || self.series.iter().flat_map(|s| s.points.iter().copied());
        let across = match &self.across {
            Across::Log => Axis::log(all().map(|p| p.0).collect::<Vec<_>>().into_iter()),
            Across::Names(names) => Some(Axis::names(names)),
        };
        let up = match self.up {
            Up::Log => Axis::log(all().map(|p| p.1).collect::<Vec<_>>().into_iter()),
            Up::Share => Some(Axis::shares()),
        };
        let (Some(across), Some(up)) = (across, up) else {
            let middle = (width / 2.0, height / 2.0);
            svg.text("note", "middle", middle, "nothing to show");
            return svg.finish();
        };
        let x = |v: f64| left + (width - left - right) * (across.position)(v);
        let y = |v: f64| height - bottom - (height - top - bottom) * (up.position)(v);
        let (floor, ceiling) = (height - bottom, top);
        for (value, label) in &up.ticks {
            svg.line("grid", (left, y(*value)), (width - right, y(*value)));
            svg.text("tick", "end", (left - 8.0, y(*value) + 4.0), label);
        }
        // Named positions that would run into each other are staggered over two lines.
        let step = (width - left - right) / across.ticks.len().max(1) as f64;
        let longest = across.ticks.iter().map(|(_, l)| l.chars().count()).max();
        let stagger = 6.6 * longest.unwrap_or(0) as f64 > step;
        for (i, (value, label)) in across.ticks.iter().enumerate() {
            svg.line("grid", (x(*value), floor), (x(*value), ceiling));
            let down = if stagger && i % 2 == 1 { 31.0 } else { 17.0 };
            svg.text("tick", "middle", (x(*value), floor + down), label);
        }
        if !(stagger && matches!(self.across, Across::Names(_))) {
            let middle = left + (width - left - right) / 2.0;
            svg.text("note", "middle", (middle, height - 6.0), &self.across_title);
        }
        let inside = |p: f64| (0.0..=1.0).contains(&p);
        if let Some((name, value)) = &self.mark_across
            && inside((across.position)(*value))
            && (across.position)(*value) < 1.0
        {
            svg.line("mark", (x(*value), floor), (x(*value), ceiling));
            let anchor = if x(*value) > width - 90.0 {
                "end"
            } else {
                "middle"
            };
            svg.text("note", anchor, (x(*value), ceiling - 5.0), name);
        }
        for series in &self.series {
            let fits = |p: &&(f64, f64)| p.1.is_finite() && (self.up == Up::Share || p.1 > 0.0);
            let points: Vec<(f64, f64)> = series
                .points
                .iter()
                .filter(fits)
                .map(|p| (x(p.0), y(p.1)))
                .collect();
            svg.polyline(&format!("line {}", series.class), &points, &series.name);
            for point in points {
                svg.dot(&format!("dot {}", series.class), point, &series.name);
            }
        }
        if let Some((name, value)) = &self.mark_up
            && (up.position)(*value) > 0.0
            && (up.position)(*value) < 1.0
        {
            svg.line("mark", (left, y(*value)), (width - right, y(*value)));
            svg.text("note", "start", (left + 4.0, y(*value) - 4.0), name);
        }
        svg.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(up: Up) -> LineChart {
        LineChart {
            title: "Mean latency (ms)".into(),
            across_title: "requests/s".into(),
            across: Across::Log,
            up,
            series: vec![Series {
                name: "greedy".into(),
                class: "c0".into(),
                points: vec![(10.0, 1.0), (100.0, 10.0), (1000.0, 100.0)],
            }],
            mark_across: Some(("capacity".into(), 200.0)),
            mark_up: Some(("SLA 20".into(), 20.0)),
        }
    }

    #[test]
    fn points_stand_where_their_values_are() {
        let svg = chart(Up::Log).draw();
        // From 52 to 500 across three decades, from 284 up to 34.
        let points = "points=\"52.0,284.0 276.0,159.0 500.0,34.0\"";
        assert!(svg.contains(points), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains(">SLA 20</text>") && svg.contains(">capacity</text>"));
    }

    #[test]
    fn marks_outside_are_left_out_and_nothing_is_said_to_be_nothing() {
        let mut chart = chart(Up::Log);
        chart.mark_up = Some(("SLA 500".into(), 500.0));
        chart.mark_across = Some(("capacity".into(), 5000.0));
        let svg = chart.draw();
        assert!(!svg.contains("SLA 500") && !svg.contains("capacity"));
        chart.series.clear();
        assert!(chart.draw().contains("nothing to show"));
    }

    #[test]
    fn shares_reach_from_none_to_all() {
        let mut chart = chart(Up::Share);
        chart.series[0].points = vec![(10.0, 0.0), (1000.0, 1.0)];
        assert!(chart.draw().contains("points=\"52.0,284.0 500.0,34.0\""));
        assert!(chart.draw().contains(">75%</text>"));
    }

    #[test]
    fn long_names_are_staggered() {
        let mut chart = chart(Up::Log);
        chart.across = Across::Names(
            ["onoff:3:0.5:200:800", "poisson", "gamma:2"]
                .map(String::from)
                .into(),
        );
        chart.series[0].points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)];
        let svg = chart.draw();
        assert!(svg.contains("y=\"301.0\">onoff") || svg.contains("y=\"301.0\">poisson"));
        chart.across = Across::Names((0..8).map(|i| format!("max batch {i}")).collect());
        assert!(chart.draw().contains("y=\"315.0\">max batch 1<"));
    }
}
