//! Results as an aligned text table.

use super::{ClassResult, RunResult};

/// A column: its heading, and its cell for a run.
type Column = (&'static str, fn(&RunResult) -> String);

/// Whether a run has something to show in a column.
type Used = fn(&RunResult) -> bool;

/// Columns of the table after policy and model.
const NUMBERS: &[Column] = &[
    ("mean ms", |r| latency(r, r.mean_ms)),
    ("p50 ms", |r| latency(r, r.p50_ms)),
    ("p90 ms", |r| latency(r, r.p90_ms)),
    ("p99 ms", |r| latency(r, r.p99_ms)),
    ("max ms", |r| latency(r, r.max_ms)),
    ("violated", |r| format!("{:.1}%", 100.0 * r.violation_rate)),
    ("goodput/s", |r| number(r.goodput_rps)),
    ("thru/s", |r| number(r.throughput_rps)),
];

/// Columns shown when some run has something in them.
const IF_ANY: &[(Column, Used)] = &[
    (("batch", |r| format!("{:.2}", r.mean_batch)), |r| {
        r.launches > 0
    }),
    (("merges", |r| r.merges.to_string()), |r| r.launches > 0),
    (("preempt", |r| r.preemptions.to_string()), |r| {
        r.launches > 0
    }),
    (("shed", |r| r.shed.to_string()), |r| r.shed > 0),
    (("demoted", |r| r.demoted.to_string()), |r| r.demoted > 0),
    (("failed", |r| r.failed.to_string()), |r| r.failed > 0),
    (("cancelled", |r| r.cancelled.to_string()), |r| {
        r.cancelled > 0
    }),
    (("decide us p50", |r| optional(r.decision_us_p50)), |r| {
        r.decision_us_p50.is_some()
    }),
    (("decide us p99", |r| optional(r.decision_us_p99)), |r| {
        r.decision_us_p99.is_some()
    }),
];

/// Headings and cells of the table: policy, the model if there are several, then the numbers.
pub fn cells(runs: &[RunResult]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut columns: Vec<Column> = vec![("policy", |r| r.policy.clone())];
    if runs.iter().any(|r| r.model != runs[0].model) {
        columns.push(("model", |r| r.model.clone()));
    }
    columns.extend(NUMBERS);
    columns.extend(
        IF_ANY
            .iter()
            .filter(|(_, used)| runs.iter().any(used))
            .map(|(c, _)| *c),
    );
    let rows = runs
        .iter()
        .map(|run| columns.iter().map(|(_, cell)| cell(run)).collect());
    (
        columns.iter().map(|(heading, _)| *heading).collect(),
        rows.collect(),
    )
}

/// Classes of runs as lines of text, under a line of headings.
pub fn render_classes(classes: &[ClassResult]) -> String {
    let named = classes.iter().map(|c| RunResult {
        policy: format!("{} ({})", c.class, c.policy),
        ..c.to_run()
    });
    render(&named.collect::<Vec<_>>())
}

/// The runs as lines of text, one per run under a line of headings; names are aligned left,
/// numbers right.
pub fn render(runs: &[RunResult]) -> String {
    let (headings, rows) = cells(runs);
    align(&headings, &rows)
}

/// Cells as lines of text, names aligned left, numbers right.
pub(super) fn align(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(|h| (*h).to_owned()).collect();
    let width = |i: usize| {
        let lines = rows.iter().chain([&headings]);
        lines.map(|line| line[i].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for line in [&headings].into_iter().chain(rows) {
        let mut out = String::new();
        for (i, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            if matches!(headings[i].as_str(), "policy" | "model") {
                out += &format!("{cell:<width$}  ");
            } else {
                out += &format!("{cell:>width$}  ");
            }
        }
        text += out.trim_end();
        text.push('\n');
    }
    text
}

/// A latency of a run; where nothing completed there is none.
fn latency(run: &RunResult, ms: f64) -> String {
    match run.completed() {
        0 => "-".into(),
        _ => number(ms),
    }
}

/// About four significant digits, as people read latencies.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 10.0 => 3,
        v if v < 100.0 => 2,
        v if v < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A setting as it was written: whole numbers whole, others as [`number`].
pub fn plain(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value}"),
        false => number(value),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map(number).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::Counters;
    use lazybatch_sla::Nanos;

    /// A run with some numbers in it.
    pub(crate) fn run(policy: &str, model: &str, mean_ms: f64) -> RunResult {
        let sla = Nanos::from_ms(100);
        let mut run = RunResult::summarise(policy, model, 500.0, sla, &[], &Counters::default());
        run.requests = 20;
        run.mean_ms = mean_ms;
        run.p99_ms = mean_ms * 4.0;
        run.goodput_rps = 400.0;
        run.violation_rate = 0.125;
        run.mean_batch = 3.5;
        run
    }

    #[test]
    fn columns_line_up() {
        let text = render(&[
            run("greedy", "toy", 34.71),
            run("lazy:late-admits", "toy", 1234.5),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].starts_with("policy            mean ms  p50 ms"),
            "{text}"
        );
        assert!(
            lines[1].starts_with("greedy              34.71   0.000"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("lazy:late-admits     1234   0.000"),
            "{text}"
        );
        assert!(lines[1].contains(" 12.5% "), "{text}");
        assert!(!text.contains("model") && !text.contains("shed"), "{text}");
    }

    #[test]
    fn columns_appear_when_they_are_needed() {
        let mut runs = [run("a", "toy", 1.0), run("a", "gnmt", 2.0)];
        runs[1].shed = 17;
        runs[1].decision_us_p99 = Some(2.5);
        let text = render(&runs);
        for word in ["model", "gnmt", "shed", "17", "decide us p99", "2.500"] {
            assert!(text.contains(word), "{word} missing in\n{text}");
        }
        assert!(!text.contains("failed"));
        assert_eq!(render(&[]).lines().count(), 1);
    }

    #[test]
    fn where_nothing_completed_there_is_no_latency() {
        let mut none = run("shed", "toy", 0.0);
        none.shed = none.requests;
        let text = render(&[none]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[1..6], ["-"; 5], "{text}");
    }

    #[test]
    fn numbers_keep_about_four_digits() {
        let shown = [0.1234, 9.99, 12.345, 123.45, 1234.5].map(number);
        assert_eq!(shown, ["0.123", "9.990", "12.35", "123.5", "1234"]);
    }
}
