//! Policies that were served in several rounds: each once in each, compared within rounds.
//!
//! What a machine does beside the one that is measured changes over minutes, and who is served first in
//! a process may be some percent faster or slower; a ratio of two runs of one round has less of the
//! former, and rounds in both orders of the latter.

use super::RunResult;
use super::table::{align, number};

/// The order of so many policies in a round, from 0: as they are given, then the reverse, in turns.
pub fn order(num: usize, round: u32) -> Vec<usize> {
    match round % 2 {
        0 => (0..num).collect(),
        _ => (0..num).rev().collect(),
    }
}

/// The policy that others are held against: `adaptive`, or else the first.
fn reference(runs: &[RunResult]) -> Option<&str> {
    let names = || runs.iter().map(|run| run.policy.as_str());
    names().find(|name| *name == "adaptive").or(names().next())
}

/// Median, least and most of the numbers, of which there are some.
fn spread(mut of: Vec<f64>) -> Option<[f64; 3]> {
    of.sort_by(f64::total_cmp);
    let (&least, &most) = (of.first()?, of.last()?);
    let half = of.len() / 2;
    let median = match of.len() % 2 {
        0 => (of[half - 1] + of[half]) / 2.0,
        _ => of[half],
    };
    Some([median, least, most])
}

fn told(of: Vec<f64>, as_text: impl Fn(f64) -> String) -> String {
    let Some([median, least, most]) = spread(of) else {
        return "-".into();
    };
    let [median, least, most] = [median, least, most].map(as_text);
    format!("{median} ({least} to {most})")
}

/// A table with one row for each policy, in the order of its first run: median, least and most over
/// its rounds of mean latency and p99, and of their ratios to those of the reference in the same round. Runs
/// in which nobody was answered are left out. `None` where there are no runs.
pub fn render(runs: &[RunResult]) -> Option<String> {
    let reference = reference(runs)?;
    let mut policies: Vec<&str> = Vec::new();
    for run in runs {
        if !policies.contains(&run.policy.as_str()) {
            policies.push(&run.policy);
        }
    }
    let of = |policy: &str| -> Vec<&RunResult> {
        let own = runs.iter().filter(|r| r.policy == policy);
        own.filter(|r| r.completed() > 0).collect()
    };
    let held_against = of(reference);
    let over = |policy: &str, what: fn(&RunResult) -> f64| {
        let ratio = |run: &&RunResult| {
            let same = held_against.iter().find(|other| other.round == run.round)?;
            (what(same) > 0.0).then(|| what(run) / what(same))
        };
        told(of(policy).iter().filter_map(ratio).collect(), |r| {
            format!("{r:.2}")
        })
    };
    let figures: [fn(&RunResult) -> f64; 2] = [|r| r.mean_ms, |r| r.p99_ms];
    let row = |policy: &&str| {
        let mut cells = vec![(*policy).to_owned()];
        for what in figures {
            cells.push(told(of(policy).into_iter().map(what).collect(), number));
            cells.push(match *policy == reference {
                true => String::new(),
                false => over(policy, what),
            });
        }
        let violated = of(policy).into_iter();
        let violated = violated.map(|r| 100.0 * r.violation_rate).collect();
        cells.push(told(violated, |v| format!("{v:.1}%")));
        cells
    };
    let rows: Vec<Vec<String>> = policies.iter().map(row).collect();
    let over = format!("over {reference}");
    let headings = ["policy", "mean ms", &over, "p99 ms", &over, "violated"];
    Some(align(&headings, &rows))
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::run;
    use super::*;

    fn served(policy: &str, round: u32, mean_ms: f64) -> RunResult {
        RunResult {
            round: Some(round),
            ..run(policy, "toy", mean_ms)
        }
    }

    #[test]
    fn every_second_round_is_in_the_reverse_order() {
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
        assert_eq!(order(3, 2), order(3, 0));
    }

    #[test]
    fn ratios_are_those_of_runs_of_the_same_round() {
        let runs = [
            served("greedy", 1, 30.0),
            served("adaptive", 1, 10.0),
            served("adaptive", 2, 100.0),
            served("greedy", 2, 200.0),
            served("greedy", 3, 50.0),
            served("adaptive", 3, 20.0),
        ];
        let text = render(&runs).expect("there are runs");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let of = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            of(lines[0]),
            "policy mean ms over adaptive p99 ms over adaptive violated"
        );
        // The median of the ratios 3, 2 and 2.5 is not the ratio of the medians, 50 to 20.
        assert_eq!(
            of(lines[1]),
            "greedy 50.00 (30.00 to 200.0) 2.50 (2.00 to 3.00) 200.0 (120.0 to 800.0) \
             2.50 (2.00 to 3.00) 12.5% (12.5% to 12.5%)"
        );
        assert!(
            of(lines[2]).starts_with("adaptive 20.00 (10.00 to 100.0) 80.00"),
            "{text}"
        );
        assert!(render(&[]).is_none());
    }

    #[test]
    fn who_answers_nobody_has_no_ratio() {
        let mut none = served("adaptive", 1, 0.0);
        none.shed = none.requests;
        let text = render(&[served("greedy", 1, 30.0), none]).expect("there are runs");
        let lines: Vec<Vec<&str>> =
            (text.lines().map(|l| l.split_whitespace().collect())).collect();
        assert_eq!(
            lines[1][..6],
            ["greedy", "30.00", "(30.00", "to", "30.00)", "-"]
        );
        assert_eq!(lines[2], ["adaptive", "-", "-", "-"]);
    }
}
