//! The page of a run over random cases.

use super::{CaseResult, Summary, TOLERANCE};
use crate::report::charts::{Swatch, class};
use crate::report::lines::{Across, LineChart, Series, Up};
use crate::report::{Body, Report};

/// The settings, the summary in words, and on how many cases each policy has at most so many times the
/// least J of all of them (a performance profile: Dolan and Moré 2002).
pub fn report(
    summary: &Summary,
    results: &[CaseResult],
    settings: Vec<(String, String)>,
) -> Report {
    let names = results.first().map(|r| &r.policies[..]).unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|p| p.policy.as_str()).collect();
    let legend = names.iter().enumerate().map(|(i, name)| Swatch {
        policy: (*name).to_owned(),
        class: class(i),
    });
    let charts = Body::Charts {
        legend: legend.collect(),
        charts: vec![(profile(&names, results).draw(), true)],
    };
    Report {
        title: format!("{} on random cases", summary.judge),
        settings,
        runs: Vec::new(),
        sections: vec![
            ("Summary".into(), Body::Pre(summary.text(results))),
            ("All policies".into(), charts),
        ],
    }
}

fn profile(names: &[&str], results: &[CaseResult]) -> LineChart {
    let least = |r: &CaseResult| {
        let all = r.policies.iter().map(|p| p.j_ms);
        all.fold(f64::INFINITY, f64::min)
    };
    let series = names.iter().enumerate().map(|(i, name)| {
        let own = results.iter().map(|r| r.policies[i].j_ms / least(r));
        let mut ratios: Vec<f64> = own.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        let share = |at: usize| (at + 1) as f64 / results.len() as f64;
        let points = ratios
            .iter()
            .enumerate()
            .map(|(at, &ratio)| (ratio, share(at)));
        Series {
            name: (*name).to_owned(),
            class: class(i),
            points: points.collect(),
        }
    });
    LineChart {
        title: "Share of cases with J at most so many times the least of all policies".into(),
        across_title: "J over the least".into(),
        across: Across::Log,
        up: Up::Share,
        series: series.collect(),
        mark_across: Some((format!("+{:.0} %", 100.0 * TOLERANCE), 1.0 + TOLERANCE)),
        mark_up: None,
    }
}
