//! A sweep as one page: judgements, tables, curves, distributions, timelines.

use super::aggregate::{Cells, Metric, policies};
use super::bound::Bound;
use super::file::Sweep;
use super::grid::Setting;
use super::moments::Moment;
use super::points::{Point, Standing, is_online, name};
use super::text::{case_table, judgements, ratio_tables, reproduction_table};
use crate::report::charts::{self, Swatch};
use crate::report::lines::{Across, LineChart, Series, Up};
use crate::report::{Body, Report, RunReport};
use crate::results::table::plain;

/// What the page's numbers mean, in a few sentences; docs/sweeps.md has the whole.
const DEFINITIONS: &str = "\
All policies of a point see the same arrivals; numbers are means over seeds.
J = mean latency + 3 x SLA x violation rate; refused and lost requests count as violated, with the
larger of the SLA and the time to their refusal.
Stable: some online policy keeps up with this rate or a higher one of the grid; it keeps up if at
most 5 % of the arrivals pile up between the second and the last quarter of the run.
Load: offered rate over the rate at which the best of greedy, lazy, cellular and continuous drains
a long queue.
Lower bound: what no schedule of the same arrivals can beat that answers every request, with all
arrivals and lengths known from the start.
Best other: the least J among the online policies of another name. oracle knows output lengths; it
is shown, never compared against.
";

/// Name and class of the line of the lower bounds.
const BOUND: (&str, &str) = ("lower bound", "w dash");

/// A policy's class in the style sheet: windows of graph batching share one, thin and grey.
fn class_of(policy: &str, all: &[&str]) -> String {
    if name(policy) == "graph" {
        return "w thin".into();
    }
    let others: Vec<&&str> = all.iter().filter(|p| name(p) != "graph").collect();
    let at = others.iter().position(|p| **p == policy).unwrap_or(0);
    charts::class(at)
}

fn legend(all: &[&str], has_bound: bool) -> Vec<Swatch> {
    let named = all.iter().filter(|p| name(p) != "graph");
    let mut swatches: Vec<Swatch> = named
        .map(|p| Swatch {
            policy: p.to_string(),
            class: class_of(p, all),
        })
        .collect();
    let windows: Vec<&str> = all.iter().copied().filter(|p| name(p) == "graph").collect();
    if !windows.is_empty() {
        swatches.push(Swatch {
            policy: windows.join(", "),
            class: "w thin".into(),
        });
    }
    if has_bound {
        swatches.push(Swatch {
            policy: BOUND.0.into(),
            class: BOUND.1.into(),
        });
    }
    swatches
}

/// The report of a sweep with the moments that were looked at.
pub fn report(sweep: &Sweep, moments: &[Moment]) -> Report {
    let mut sections: Vec<(String, Body)> = Vec::new();
    if let Some(judged) = &sweep.judgement {
        let lines = Body::Lines(judgements(judged));
        sections.push((format!("{} judged", judged.policy), lines));
        let tables = [
            ("The worst stable points, by J", "J ms", &judged.worst),
            (
                "Exceptions at stable points",
                "J ms",
                &judged.stable.exceptions,
            ),
            (
                "The worst points beyond capacity, by goodput",
                "goodput",
                &judged.worst_beyond,
            ),
            (
                "Exceptions beyond capacity, by goodput",
                "goodput",
                &judged.beyond.exceptions,
            ),
        ];
        let tables = tables.into_iter().filter(|(_, _, cases)| !cases.is_empty());
        let tables: Vec<_> = tables
            .map(|(caption, what, cases)| {
                let caption = format!("{caption}; pairs are {} / best other", judged.policy);
                case_table(caption, what, cases)
            })
            .collect();
        if !tables.is_empty() {
            sections.push(("Worst points".into(), Body::Tables(tables)));
        }
    }
    let cells = [Cells::StableHalfLoad, Cells::Stable, Cells::All];
    let metrics = [Metric::J, Metric::Mean, Metric::P99, Metric::Goodput];
    sections.push((
        "Aggregates".into(),
        Body::Tables(ratio_tables(sweep, &metrics, &cells)),
    ));
    if let Some(table) = reproduction_table(sweep) {
        sections.push(("Reproduction row".into(), Body::Tables(vec![table])));
    }
    let all = policies(&sweep.points);
    sections.extend(curves(sweep, &all));
    for moment in moments {
        sections.push(distribution(moment, &all));
        sections.push(timelines(moment));
    }
    sections.push((
        "What the numbers mean".into(),
        Body::Pre(DEFINITIONS.into()),
    ));
    Report {
        title: format!("lazybatch sweep {}", sweep.grid.name),
        settings: settings(sweep),
        runs: Vec::new(),
        sections,
    }
}

fn settings(sweep: &Sweep) -> Vec<(String, String)> {
    let grid = &sweep.grid;
    let join = |list: &[f64]| {
        list.iter()
            .map(f64::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let source = match &grid.source {
        super::grid::Source::Device(name) => ("device", name.clone()),
        super::grid::Source::Profile(path) => ("profile", path.display().to_string()),
    };
    let offered = match &grid.offered {
        super::grid::Offered::Rates(list) => ("requests/s", join(list)),
        super::grid::Offered::Loads(list) => ("load", join(list)),
    };
    let mut list = vec![
        ("about", grid.about.clone()),
        source,
        offered,
        ("SLA ms", join(&grid.slas_ms)),
        (
            "seeds",
            grid.seeds
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        ),
        (
            "arrivals of a run",
            format!("at least {}, {} s", grid.requests, grid.seconds),
        ),
        (
            "at 0.9 to 1.1 of the capacity",
            format!(
                "at least {} s",
                grid.seconds.max(grid.seconds_near_capacity)
            ),
        ),
        ("points", sweep.points.len().to_string()),
        ("runs", sweep.runs.len().to_string()),
    ];
    if !sweep.skipped.is_empty() {
        list.push(("skipped", sweep.skipped.join("; ")));
    }
    list.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

/// The families of points that differ in rate and target only: setting and model.
fn families(points: &[Point]) -> Vec<(&Setting, &str)> {
    let mut families: Vec<(&Setting, &str)> = Vec::new();
    for point in points {
        let family = (&point.setting, point.model.as_str());
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

fn curves(sweep: &Sweep, all: &[&str]) -> Vec<(String, Body)> {
    let mut sections = Vec::new();
    let points = &sweep.points;
    for (setting, model) in families(points) {
        let own: Vec<&Point> = points
            .iter()
            .filter(|p| &p.setting == setting && p.model == model)
            .collect();
        let charts = family_curves(&own, all);
        if !charts.is_empty() {
            let label = setting.label();
            let heading = if label.is_empty() {
                model.to_owned()
            } else {
                format!("{model}, {label}")
            };
            let has_bound = own.iter().any(|p| p.bound.is_some());
            sections.push((heading, charts_body(charts, all, has_bound)));
        }
    }
    let charts = setting_curves(points, all);
    if !charts.is_empty() {
        sections.push(("Across settings".into(), charts_body(charts, all, false)));
    }
    sections
}

fn charts_body(charts: Vec<String>, all: &[&str], has_bound: bool) -> Body {
    Body::Charts {
        legend: legend(all, has_bound),
        charts: charts.into_iter().map(|svg| (svg, false)).collect(),
    }
}

/// One line per policy over some points; windows first, so that they lie below.
fn series(
    points: &[&Point],
    all: &[&str],
    at: &dyn Fn(&Point) -> f64,
    value: &dyn Fn(&Standing) -> f64,
) -> Vec<Series> {
    let (windows, others): (Vec<&str>, Vec<&str>) = all.iter().partition(|p| name(p) == "graph");
    let line = |policy: &str| {
        let point = |p: &&Point| Some((at(p), value(p.policy(policy)?)));
        let mut points: Vec<(f64, f64)> = points.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series {
            name: policy.to_owned(),
            class: class_of(policy, all),
            points,
        }
    };
    let lines = windows.into_iter().chain(others).map(line);
    lines.filter(|s| !s.points.is_empty()).collect()
}

/// A chart's title, its axis, a policy's number and the bound on it.
type Shown = (&'static str, Up, fn(&Standing) -> f64, fn(&Bound) -> f64);

/// The line of the bounds of some points; none where they have no bounds.
fn bound_series(points: &[&Point], at: fn(&Point) -> f64, value: fn(&Bound) -> f64) -> Vec<Series> {
    let point = |p: &&Point| Some((at(p), value(p.bound.as_ref()?)));
    let mut points: Vec<(f64, f64)> = points.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let line = Series {
        name: BOUND.0.into(),
        class: BOUND.1.into(),
        points,
    };
    [line]
        .into_iter()
        .filter(|s| !s.points.is_empty())
        .collect()
}

/// Latency and violations over the rate at the loosest target, violations over the rate at the
/// tightest, and over the target at the highest stable rate.
fn family_curves(points: &[&Point], all: &[&str]) -> Vec<String> {
    let distinct = |value: &dyn Fn(&Point) -> f64| {
        let mut list: Vec<f64> = points.iter().map(|p| value(p)).collect();
        list.sort_by(f64::total_cmp);
        list.dedup();
        list
    };
    let (rates, slas) = (distinct(&|p| p.rate_rps), distinct(&|p| p.sla_ms));
    let (Some(&tight), Some(&loose)) = (slas.first(), slas.last()) else {
        return Vec::new();
    };
    let capacity = points
        .first()
        .filter(|p| p.load > 0.0)
        .map(|p| p.rate_rps / p.load);
    let over_rates = |title: String,
                      sla: f64,
                      up: Up,
                      mark: Option<(String, f64)>,
                      value: &dyn Fn(&Standing) -> f64,
                      bound: Option<fn(&Bound) -> f64>| {
        let own: Vec<&Point> = points.iter().copied().filter(|p| p.sla_ms == sla).collect();
        let mut lines = series(&own, all, &|p| p.rate_rps, value);
        lines.extend(
            bound
                .into_iter()
                .flat_map(|b| bound_series(&own, |p| p.rate_rps, b)),
        );
        let chart = LineChart {
            title,
            across_title: "requests/s offered".into(),
            across: Across::Log,
            up,
            series: lines,
            mark_across: capacity.map(|c| ("capacity".into(), c)),
            mark_up: mark,
        };
        chart.draw()
    };
    let mut charts = Vec::new();
    if rates.len() > 1 {
        let mark = || Some((format!("SLA {}", plain(loose)), loose));
        let title = |what: &str, sla: f64| format!("{what}, SLA {sla} ms");
        charts.push(over_rates(
            title("Mean latency (ms)", loose),
            loose,
            Up::Log,
            mark(),
            &|s| s.mean_ms,
            Some(|b| b.mean_ms),
        ));
        charts.push(over_rates(
            title("99th percentile latency (ms)", loose),
            loose,
            Up::Log,
            mark(),
            &|s| s.p99_ms,
            None,
        ));
        let violations = |sla| {
            over_rates(
                title("SLA violations", sla),
                sla,
                Up::Share,
                None,
                &|s| s.violation_rate,
                Some(|b| b.violation_rate),
            )
        };
        charts.push(violations(loose));
        if tight < loose {
            charts.push(violations(tight));
        }
    }
    let stable = points
        .iter()
        .filter(|p| p.stable)
        .map(|p| p.rate_rps)
        .fold(0.0, f64::max);
    let rate = if stable > 0.0 {
        stable
    } else {
        rates.first().copied().unwrap_or(0.0)
    };
    if slas.len() > 1 {
        let own: Vec<&Point> = points
            .iter()
            .copied()
            .filter(|p| p.rate_rps == rate)
            .collect();
        let shown: [Shown; 2] = [
            (
                "SLA violations",
                Up::Share,
                |s| s.violation_rate,
                |b| b.violation_rate,
            ),
            ("J (ms)", Up::Log, |s| s.j_ms, |b| b.j_ms),
        ];
        for (what, up, value, bound) in shown {
            let mut lines = series(&own, all, &|p| p.sla_ms, &value);
            lines.extend(bound_series(&own, |p| p.sla_ms, bound));
            let chart = LineChart {
                title: format!("{what} at {} requests/s", plain(rate)),
                across_title: "SLA, ms".into(),
                across: Across::Log,
                up,
                series: lines,
                mark_across: None,
                mark_up: None,
            };
            charts.push(chart.draw());
        }
    }
    charts
}

/// J over the settings, for every model, at its middle rate and loosest target.
fn setting_curves(points: &[Point], all: &[&str]) -> Vec<String> {
    let mut settings: Vec<&Setting> = Vec::new();
    let mut models: Vec<&str> = Vec::new();
    for point in points {
        if !settings.contains(&&point.setting) {
            settings.push(&point.setting);
        }
        if !models.contains(&point.model.as_str()) {
            models.push(&point.model);
        }
    }
    if settings.len() < 2 {
        return Vec::new();
    }
    let names: Vec<String> = settings
        .iter()
        .map(|s| match s.label() {
            label if label.is_empty() => "default".into(),
            label => short(&label),
        })
        .collect();
    let position = |p: &Point| settings.iter().position(|s| **s == p.setting).unwrap_or(0) as f64;
    let chart = |model: &&str| {
        // By position among the rates of a setting: where rates are loads, they differ.
        let of_setting = |setting: &&Setting| -> Option<&Point> {
            let own = points
                .iter()
                .filter(|p| p.setting == **setting && p.model == **model);
            let loosest = own.clone().map(|p| p.sla_ms).fold(0.0, f64::max);
            let mut own: Vec<&Point> = own.filter(|p| p.sla_ms == loosest).collect();
            own.sort_by(|a, b| a.rate_rps.total_cmp(&b.rate_rps));
            own.get(own.len() / 2).copied()
        };
        let own: Vec<&Point> = settings.iter().filter_map(of_setting).collect();
        let load = own.first().map_or(0.0, |p| 100.0 * p.load);
        let chart = LineChart {
            title: format!("{model}: J (ms) at the middle rate, {load:.0} % load"),
            across_title: "setting".into(),
            across: Across::Names(names.clone()),
            up: Up::Log,
            series: series(&own, all, &position, &|s| s.j_ms),
            mark_across: None,
            mark_up: None,
        };
        chart.draw()
    };
    models.iter().map(chart).collect()
}

/// A label without the folders and endings of a trace's name.
fn short(label: &str) -> String {
    let label = label.strip_prefix("trace:").unwrap_or(label);
    let file = label.rsplit('/').next().unwrap_or(label);
    let stem = file.split('.').next().unwrap_or(file);
    let is_file = file.ends_with(".csv") || file.ends_with(".gz") || file.ends_with(".jsonl");
    if is_file { stem.into() } else { label.into() }
}

fn distribution(moment: &Moment, all: &[&str]) -> (String, Body) {
    // The colours of the curves: windows have none of their own, so the best of them stands in.
    let others: Vec<&&str> = all.iter().filter(|p| name(p) != "graph").collect();
    let colour = |run: &RunReport| {
        let policy = run.result.policy.as_str();
        others
            .iter()
            .position(|p| **p == policy)
            .unwrap_or(others.len())
    };
    let is_window = |r: &&RunReport| name(&r.result.policy) == "graph";
    let windows = moment.runs.iter().filter(is_window);
    let best = windows.min_by(|a, b| a.result.mean_ms.total_cmp(&b.result.mean_ms));
    let shown = moment.runs.iter().filter(|r| !is_window(r)).chain(best);
    let runs: Vec<(usize, &RunReport)> = shown.map(|r| (colour(r), r)).collect();
    let body = Body::Charts {
        legend: charts::legend(&runs),
        charts: vec![(charts::latency_cdf(&runs), true)],
    };
    (moment.title.clone(), body)
}

fn timelines(moment: &Moment) -> (String, Body) {
    let swatch = |(i, block): (usize, &String)| Swatch {
        policy: block.clone(),
        class: charts::class(i),
    };
    let heading = moment.title.split(':').next().unwrap_or_default();
    let body = Body::Charts {
        legend: moment.blocks.iter().enumerate().map(swatch).collect(),
        charts: moment.lanes.iter().map(|l| (l.draw(), true)).collect(),
    };
    (format!("Timelines, {heading}"), body)
}

/// Policies of a page that are never compared against.
pub fn shown_only(sweep: &Sweep) -> Vec<String> {
    let specs = policies(&sweep.points).into_iter();
    specs.filter(|p| !is_online(p)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::moments;
    use crate::sweep::run::{Options, run};

    #[test]
    fn the_page_has_every_part_and_is_the_same_again() {
        let (grid, _folder) = fixture::grid(
            "'chain', 'loop'",
            "lengths = 'fixed:2:3'\nmax_batch = [2, 4]\n",
        );
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let sweep = Sweep::new(&grid, ran, Some("greedy")).unwrap();
        let chosen = moments::choose(&sweep);
        let moments: Vec<Moment> = chosen
            .iter()
            .map(|(why, point)| Moment::new(&sweep, point, why, None).unwrap())
            .collect();
        let page = report(&sweep, &moments).render().unwrap();
        for part in [
            "greedy judged",
            "The worst stable points",
            "greedy over the lower bound: median",
            "class=\"line w dash\"",
            "Aggregates",
            "Reproduction row",
            "<h2>loop, max batch 4</h2>",
            "Mean latency (ms), SLA 2 ms",
            "SLA violations, SLA 0.5 ms",
            "Across settings",
            "Share of requests answered within a latency",
            "batch table over time",
            "What the numbers mean",
        ] {
            assert!(page.contains(part), "{part:?} missing");
        }
        for part in ["http://", "https://", "<script", "NaN", "inf"] {
            assert!(!page.contains(&format!("\"{part}")), "{part:?} in the page");
        }
        assert_eq!(page, report(&sweep, &moments).render().unwrap());
        assert_eq!(shown_only(&sweep), ["oracle"]);
    }

    #[test]
    fn trace_names_are_shortened() {
        assert_eq!(short("trace:a/b/conv.jsonl.gz"), "conv");
        assert_eq!(short("gamma:2, max batch 4"), "gamma:2, max batch 4");
    }
}
