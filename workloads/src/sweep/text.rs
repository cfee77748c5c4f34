//! A sweep in words, for a terminal.

use std::fmt::Write as _;

use super::aggregate::{Cells, Means, Metric, Reproduction, baselines, means, policies};
use super::bound::Over;
use super::file::Sweep;
use super::grid::Setting;
use super::judge::{Case, ERRORS, Judgement, TOLERANCE, Tally};
use super::kept;
use super::points::{is_online, name};
use crate::report::Table;
use crate::results::table::{number, plain};

/// Most exceptions that are printed.
const MAX_PRINTED: usize = 25;

/// A model in a setting, and something about it.
pub fn cell_label(setting: &Setting, model: &str, what: &str) -> String {
    match setting.label().as_str() {
        "" => format!("{model}: {what}"),
        label => format!("{model} ({label}): {what}"),
    }
}

/// Aligned text; the first column to the left, the others to the right.
pub fn aligned(table: &Table) -> String {
    let width = |i: usize| {
        let lines = table.rows.iter().chain([&table.headings]);
        lines.map(|l| l[i].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.headings.len()).map(width).collect();
    let mut text = format!("{}\n", table.caption);
    for line in [&table.headings].into_iter().chain(&table.rows) {
        let mut out = String::from(" ");
        for (i, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            match i {
                0 => out += &format!(" {cell:<width$} "),
                _ => out += &format!(" {cell:>width$} "),
            }
        }
        text += out.trim_end();
        text.push('\n');
    }
    text
}

/// Arithmetic and geometric mean.
fn both(means: Means) -> String {
    match means.points {
        0 => "-".into(),
        _ => format!("{} / {}", factor(means.arithmetic), factor(means.geometric)),
    }
}

/// The same of a cell that may be over fewer than `num` points; it says so then.
fn both_of(means: Means, num: usize) -> String {
    match means.points {
        0 => both(means),
        n if n == num => both(means),
        n => format!("{} ({n})", both(means)),
    }
}

/// A factor to three significant digits or so.
fn factor(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

fn percent(x: f64) -> String {
    format!("{:.1} %", 100.0 * x)
}

/// The tables of ratios: one per metric and set of points.
pub fn ratio_tables(sweep: &Sweep, metrics: &[Metric], cells: &[Cells]) -> Vec<Table> {
    let points = &sweep.points;
    let bases = baselines(points);
    let mut tables = Vec::new();
    for &cells in cells {
        let num = points.iter().filter(|p| cells.has(p)).count();
        for &metric in metrics.iter().filter(|_| num > 0) {
            let subjects = policies(points).into_iter().filter(|s| name(s) != "graph");
            let row = |policy: &str| {
                let cell = |base: &String| match base == policy {
                    true => String::new(),
                    false => both_of(means(points, cells, metric, policy, base), num),
                };
                let mut row = vec![policy.to_owned()];
                row.extend(bases.iter().map(cell));
                row
            };
            let mut headings = vec!["policy".to_owned()];
            headings.extend(bases.iter().cloned());
            let rows: Vec<Vec<String>> = subjects.map(row).collect();
            let within = || points.iter().filter(|p| cells.has(p));
            let any_sheds = within().any(|p| p.policies.iter().any(|s| s.sheds));
            let without = match any_sheds && metric != Metric::Goodput {
                true => "; without those at which either shed",
                false => "",
            };
            let fewer = match rows.iter().flatten().any(|cell| cell.ends_with(')')) {
                true => ", where (n) stands behind over n of them",
                false => "",
            };
            tables.push(Table {
                caption: format!(
                    "Gain in {} of the policy in the row over that in the column, {num} points \
                     ({}{without}): per point the ratio, above 1 where the row is better; \
                     arithmetic / geometric mean over points{fewer}",
                    metric.label(),
                    cells.label()
                ),
                headings,
                rows,
            });
        }
    }
    tables
}

/// The reproduction rows; `None` for a grid without windows.
pub fn reproduction_table(sweep: &Sweep) -> Option<Table> {
    if sweep.reproduction.is_empty() {
        return None;
    }
    let row = |r: &Reproduction| {
        vec![
            r.policy.clone(),
            both(r.response),
            both(r.response_stable),
            both(r.satisfaction),
            both(r.throughput_loops),
            both(r.throughput_all),
        ]
    };
    let mut rows = vec![
        ["abstract of LazyBatching", "15", "", "5.5", "", "1.5"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(sweep.reproduction.iter().map(row));
    let windows: Vec<String> = sweep.grid.windows.iter().map(f64::to_string).collect();
    Some(Table {
        caption: format!(
            "Reproduction row, over graph batching: per cell the ratio to each graph:W, W = {}, \
             arithmetic mean over the windows, then arithmetic / geometric over cells; \
             satisfaction with a floor of 1 %; throughput: the highest over the grid's rates",
            windows.join(", ")
        ),
        headings: [
            "policy",
            "response, all points",
            "response, stable",
            "satisfaction",
            "throughput, loops",
            "throughput, all",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    })
}

/// Points as a table: `what` names the numbers compared.
pub fn case_table(caption: String, what: &str, cases: &[Case]) -> Table {
    let over = |c: &Case, number: fn(&Over) -> f64| {
        let one = |o: Option<Over>| o.map_or("-".into(), |o| factor(number(&o)));
        match c.over_bound {
            (None, None) => String::new(),
            (own, other) => format!("{} / {}", one(own), one(other)),
        }
    };
    let row = |c: &Case| {
        vec![
            c.place.model.clone(),
            c.place.setting.clone(),
            plain(c.place.rate_rps),
            factor(c.place.load),
            plain(c.place.sla_ms),
            c.best_other.clone(),
            number(c.own),
            number(c.other),
            format!("{:+.1} %", 100.0 * c.behind),
            format!("{:.1} %", 100.0 * c.behind_se),
            format!("{} / {}", number(c.mean_ms.0), number(c.mean_ms.1)),
            format!("{} / {}", number(c.p99_ms.0), number(c.p99_ms.1)),
            format!(
                "{} / {}",
                percent(c.violation_rate.0),
                percent(c.violation_rate.1)
            ),
            over(c, |o| o.mean),
            over(c, |o| o.j),
        ]
    };
    let headings = [
        "model",
        "setting",
        "rate/s",
        "load",
        "SLA ms",
        "best other",
        what,
        "its",
        "behind",
        "error",
        "mean ms",
        "p99 ms",
        "violated",
        "mean/bound",
        "J/bound",
    ];
    let mut table = Table {
        caption,
        headings: headings.map(str::to_owned).to_vec(),
        rows: cases.iter().map(row).collect(),
    };
    // Settings that are all defaults, bounds that nobody asked for.
    for column in (1..table.headings.len()).rev() {
        if table.rows.iter().all(|r| r[column].is_empty()) {
            table.headings.remove(column);
            for row in &mut table.rows {
                row.remove(column);
            }
        }
    }
    table
}

fn tally(t: &Tally, what: &str) -> String {
    let verdict = match (t.points, t.num_failed()) {
        (0, _) => "nothing to judge",
        (_, 0) => "holds",
        _ => "does not hold",
    };
    format!(
        "{verdict}: {what}: {} points, {} within {:.0} %, {} more within {ERRORS} paired standard \
         errors, {} exceptions",
        t.points,
        t.within_tolerance,
        100.0 * TOLERANCE,
        t.within_errors,
        t.num_failed()
    )
}

/// The judgements, one line each.
pub fn judgements(judged: &Judgement) -> Vec<String> {
    let over = |(base, m): &(String, Means)| format!("{} over {base}", both(*m));
    let lazy: Vec<String> = judged.over_lazy.iter().map(over).collect();
    let verdict = match (judged.over_lazy.is_empty(), judged.beats_lazy()) {
        (true, _) => "nothing to judge",
        (_, true) => "holds",
        _ => "does not hold",
    };
    let mut lines = vec![
        tally(
            &judged.stable,
            "J against the best other policy at stable points",
        ),
        tally(
            &judged.beyond,
            "goodput against the best other policy beyond capacity",
        ),
        format!(
            "{verdict}: gain in J at stable points of half load and more, geometric mean at least \
             2 over lazy: {}",
            if lazy.is_empty() {
                "-".into()
            } else {
                lazy.join(", ")
            }
        ),
        format!(
            "reported: the same over greedy: {}",
            both(judged.over_greedy)
        ),
    ];
    lines.extend(kept::lines(&judged.kept));
    let bound = judged.over_bound.iter();
    lines.extend(bound.flat_map(|over| over.lines(&judged.policy)));
    lines
}

/// Everything that the command prints.
pub fn summary(sweep: &Sweep) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |l: &str| writeln!(text, "{l}").expect("a string takes all");
    let stable = sweep.points.iter().filter(|p| p.stable).count();
    line(&format!(
        "{}: {} points, {stable} stable, {} runs",
        sweep.grid.name,
        sweep.points.len(),
        sweep.runs.len()
    ));
    for skipped in &sweep.skipped {
        line(&format!("skipped: {skipped}"));
    }
    // The points that matter most, or what there is.
    let order = [Cells::StableHalfLoad, Cells::Stable, Cells::All];
    let there_is = |c: &Cells| sweep.points.iter().any(|p| c.has(p));
    let cells: Vec<Cells> = order.into_iter().find(there_is).into_iter().collect();
    let table = ratio_tables(sweep, &[Metric::J, Metric::Mean], &cells);
    for table in table.iter().chain(&reproduction_table(sweep)) {
        line("");
        line(aligned(table).trim_end());
    }
    if let Some(judged) = &sweep.judgement {
        line(&format!("\n{} judged", judged.policy));
        for judgement in judgements(judged) {
            line(&format!("  {judgement}"));
        }
        let cut = |cases: &[Case]| cases[..cases.len().min(MAX_PRINTED)].to_vec();
        let mut cases = |caption: &str, what: &str, list: &[Case]| {
            if !list.is_empty() {
                let shown = cut(list);
                let caption = format!("{caption}, {} of {}", shown.len(), list.len());
                line("");
                line(aligned(&case_table(caption, what, &shown)).trim_end());
            }
        };
        cases("Worst stable points", "J ms", &judged.worst);
        cases(
            "Exceptions at stable points",
            "J ms",
            &judged.stable.exceptions,
        );
        cases(
            "Worst points beyond capacity",
            "goodput",
            &judged.worst_beyond,
        );
        cases(
            "Exceptions beyond capacity",
            "goodput",
            &judged.beyond.exceptions,
        );
    }
    let oracle = policies(&sweep.points)
        .into_iter()
        .filter(|s| !is_online(s));
    let oracle: Vec<&str> = oracle.collect();
    if !oracle.is_empty() {
        let names = oracle.join(", ");
        line(&format!(
            "\n{names}: shown, never compared against: knows output lengths"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::run::{Options, run};

    #[test]
    fn the_summary_has_tables_judgements_and_worst_points() {
        let (grid, _folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let text = summary(&Sweep::new(&grid, ran, Some("lazy")).unwrap());
        for part in [
            "tiny: 4 points",
            "Gain in J of",
            "graph:0.2",
            "best graph:W",
            "abstract of LazyBatching",
            "lazy judged",
            "J against the best other policy at stable points",
            "Worst stable points",
            "oracle: shown, never compared against",
        ] {
            assert!(text.contains(part), "{part:?} missing in\n{text}");
        }
        let width = text.lines().map(|l| l.chars().count()).max();
        assert!(width < Some(260), "{width:?}");
    }

    #[test]
    fn cells_over_fewer_points_than_the_table_say_so() {
        let (grid, _folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let mut sweep = Sweep::new(&grid, ran, Some("lazy")).unwrap();
        let table = |sweep: &Sweep, metric| {
            let tables = ratio_tables(sweep, &[metric], &[Cells::All]);
            aligned(&tables[0])
        };
        let whole = table(&sweep, Metric::J);
        assert!(
            !whole.contains("shed") && !whole.contains("fewer"),
            "{whole}"
        );
        let lazy = sweep.points[0].policies.iter_mut();
        lazy.for_each(|s| s.sheds = s.policy == "lazy");
        let text = table(&sweep, Metric::J);
        let caption = text.lines().next().unwrap();
        for part in [
            "4 points (all points; without",
            "either shed)",
            "over n of them",
        ] {
            assert!(caption.contains(part), "{caption}");
        }
        // Whoever is compared with `lazy`: over three of four.
        assert!(text.matches(" (3)").count() > 3, "{text}");
        assert_eq!(table(&sweep, Metric::Goodput).matches(" (3)").count(), 0);
    }

    #[test]
    fn tables_are_aligned() {
        let table = Table {
            caption: "c".into(),
            headings: vec!["policy".into(), "x".into()],
            rows: vec![vec!["a".into(), "10.5".into()]],
        };
        assert_eq!(aligned(&table), "c\n  policy     x\n  a       10.5\n");
    }
}
