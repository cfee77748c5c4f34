//! On how many cases the judged policy came close to the best other one, and where it did not.

use serde::{Deserialize, Serialize};

use super::run::{CaseResult, Facts};
use super::{GOODPUT_TOLERANCE, TOLERANCE};
use crate::report::Table;
use crate::results::table::number;
use crate::sweep::text::aligned;

/// Most exceptions that are printed.
const MAX_PRINTED: usize = 20;

/// Some of the cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Which.
    pub label: String,
    /// How many.
    pub cases: usize,
    /// Of them those with J at most 5 % above the best other policy's.
    pub within: usize,
    /// Of them those that the rule of sweeps accepts: J likewise where a case is stable, beyond
    /// capacity goodput at most 2 % below the highest of the others; where there are several
    /// draws, two paired standard errors pass as well.
    #[serde(default)]
    pub within_by_rule: usize,
    /// Geometric mean over them of J over the best other policy's.
    pub ratio: f64,
    /// Geometric mean over them of each other policy's J over the judged one's, in the order of
    /// the policies; above 1 where the judged one is better.
    pub gains: Vec<(String, f64)>,
}

/// The judgement over all cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The judged policy.
    pub judge: String,
    /// All cases, then those of a kind.
    pub groups: Vec<Group>,
    /// Seeds of the cases that are not within 5 %, the worst first.
    pub exceptions: Vec<u64>,
}

impl Summary {
    /// Of some cases under the same policies.
    pub fn new(judge: &str, results: &[CaseResult]) -> Self {
        let groups = GROUPS.iter().filter_map(|(label, fits)| {
            let of: Vec<&CaseResult> = results.iter().filter(|r| fits(r)).collect();
            (!of.is_empty()).then(|| group(label, judge, &of))
        });
        let mut exceptions: Vec<&CaseResult> = results.iter().filter(|r| !r.is_within()).collect();
        exceptions.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        Self {
            judge: judge.into(),
            groups: groups.collect(),
            exceptions: exceptions.iter().map(|r| r.case.seed).collect(),
        }
    }

    /// The summary in words; `results` are those that it was made of.
    pub fn text(&self, results: &[CaseResult]) -> String {
        let others: Vec<&str> = match self.groups.first() {
            Some(group) => group.gains.iter().map(|g| g.0.as_str()).collect(),
            None => return "no cases\n".into(),
        };
        let row = |g: &Group| {
            let share = |num: usize| format!("{:.1} %", 100.0 * num as f64 / g.cases as f64);
            let mut row = vec![g.label.clone(), g.cases.to_string()];
            row.extend([share(g.within), share(g.within_by_rule)]);
            row.push(format!("{:.3}", g.ratio));
            row.extend(g.gains.iter().map(|g| format!("{:.2}", g.1)));
            row
        };
        let headings = ["cases", "", "within 5 %", "by rule", "J / best"].into_iter();
        let table = Table {
            caption: format!(
                "{}: share of cases with J at most {:.0} % above the best other policy's; by rule: the \
                 same where stable, beyond capacity goodput at most {:.0} % below the highest, or two \
                 paired standard errors; geometric mean of J over the best other's, and of the \
                 others' J over its own",
                self.judge,
                100.0 * TOLERANCE,
                100.0 * GOODPUT_TOLERANCE
            ),
            headings: headings.chain(others).map(str::to_owned).collect(),
            rows: self.groups.iter().map(row).collect(),
        };
        let mut text = aligned(&table);
        let find = |seed: &u64| results.iter().find(|r| r.case.seed == *seed);
        for result in self.exceptions.iter().filter_map(find).take(MAX_PRINTED) {
            text += &exception(&self.judge, result);
        }
        if self.exceptions.len() > MAX_PRINTED {
            let more = self.exceptions.len() - MAX_PRINTED;
            text += &format!("and {more} more\n");
        }
        text
    }
}

/// A kind of cases: its name, and which they are.
type Kind = (&'static str, fn(&CaseResult) -> bool);

/// The groups that are shown.
const GROUPS: &[Kind] = {
    use super::case::{ArrivalKind as A, Cost as C, LengthKind as L};
    &[
        ("all", |_| true),
        ("stable", |r| r.stable),
        ("not stable", |r| !r.stable),
        ("load below 0.5", |r| r.case.load < 0.5),
        ("load 0.5 to 1", |r| (0.5..1.0).contains(&r.case.load)),
        ("load 1 and more", |r| r.case.load >= 1.0),
        ("arrivals within 1 s", |r| r.case.span_s < 1.0),
        ("arrivals over 1 s or more", |r| r.case.span_s >= 1.0),
        ("without loops", |r| !r.case.has_loops),
        ("with loops", |r| r.case.has_loops),
        ("compute", |r| r.case.cost == C::Compute),
        ("memory", |r| r.case.cost == C::Memory),
        ("roofline", |r| r.case.cost == C::Roofline),
        ("mixed", |r| r.case.cost == C::Mixed),
        ("poisson", |r| r.case.arrivals == A::Poisson),
        ("gamma", |r| r.case.arrivals == A::Gamma),
        ("on and off", |r| r.case.arrivals == A::OnOff),
        ("correlated lengths", |r| r.case.lengths == L::Correlated),
        ("independent lengths", |r| r.case.lengths == L::Independent),
        ("heavy-tailed lengths", |r| r.case.lengths == L::HeavyTailed),
    ]
};

fn group(label: &str, judge: &str, of: &[&CaseResult]) -> Group {
    let others = of[0].policies.iter().filter(|s| s.policy != judge);
    let gain = |spec: &str| {
        geometric(of.iter().filter_map(|r| {
            let (own, other) = (r.policy(judge)?.j_ms, r.policy(spec)?.j_ms);
            Some(other / own)
        }))
    };
    Group {
        label: label.into(),
        cases: of.len(),
        within: of.iter().filter(|r| r.is_within()).count(),
        within_by_rule: of.iter().filter(|r| r.is_within_by_rule()).count(),
        ratio: geometric(of.iter().map(|r| r.ratio)),
        gains: others
            .map(|s| (s.policy.clone(), gain(&s.policy)))
            .collect(),
    }
}

fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut num) = (0.0, 0.0);
    for value in values {
        sum += value.ln();
        num += 1.0;
    }
    if num == 0.0 { 1.0 } else { f64::exp(sum / num) }
}

/// An exception in three lines.
fn exception(judge: &str, result: &CaseResult) -> String {
    let Facts {
        seed,
        blocks,
        max_batch,
        lengths,
        mean_input,
        mean_output,
        arrivals,
        requests,
        span_s,
        load,
        alone_ms,
        sla_ms,
        ..
    } = &result.case;
    let side = |spec: &str| {
        result.policy(spec).map_or_else(String::new, |s| {
            format!(
                "{spec} J {} mean {} ms, {:.1} % violated, {} met/s",
                number(s.j_ms),
                number(s.mean_ms),
                100.0 * s.violation_rate,
                number(s.goodput_rps)
            )
        })
    };
    format!(
        "seed {seed}: J x {:.3}, load {load:.2} {arrivals:?}, {requests} in {span_s:.2} s, {lengths:?} lengths {mean_input:.1} \
         > {mean_output:.1}, max batch {max_batch}, alone {alone_ms:.3} ms, SLA {sla_ms:.3} ms\n  \
         {}\n  {}; {}\n",
        result.ratio,
        blocks.join("; "),
        side(judge),
        side(&result.best_other)
    )
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::result;
    use super::*;

    #[test]
    fn shares_and_means_by_hand() {
        let case = |seed, greedy, own| {
            result(
                seed,
                "adaptive",
                &[("greedy", greedy, 1.0), ("adaptive", own, 1.0)],
            )
        };
        let results = [case(0, 10.0, 10.4), case(1, 10.0, 12.0), case(2, 9.0, 12.0)];
        let summary = Summary::new("adaptive", &results);
        let all = &summary.groups[0];
        assert_eq!((all.cases, all.within, all.within_by_rule), (3, 1, 1));
        let want = (1.04 * 1.2 * (12.0 / 9.0_f64)).cbrt();
        assert!((all.ratio - want).abs() < 1e-12);
        assert!((all.gains[0].1 - 1.0 / want).abs() < 1e-12);
        assert_eq!(summary.exceptions, [2, 1]);
        let text = summary.text(&results);
        assert!(text.contains("33.3 %"), "{text}");
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        assert!(at("seed 2: J x 1.333") < at("seed 1: J x 1.200"));
        assert!(!text.contains("seed 0"), "{text}");
    }

    #[test]
    fn every_case_is_in_one_group_of_each_kind() {
        let rows = [("greedy", 1.0, 1.0), ("adaptive", 1.0, 1.0)];
        let results: Vec<_> = (0..40).map(|s| result(s, "adaptive", &rows)).collect();
        let summary = Summary::new("adaptive", &results);
        let cases: usize = summary.groups.iter().map(|g| g.cases).sum();
        // All, stability, load, span, loops, cost, arrivals, lengths.
        assert_eq!(cases, 8 * 40);
        assert_eq!(Summary::new("adaptive", &[]).text(&[]), "no cases\n");
    }
}
