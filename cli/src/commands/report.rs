//! The HTML report of a command.

use anyhow::Context;
use lazybatch_workloads::report::{Body, Report, RunReport};
use lazybatch_workloads::results::Results;
use lazybatch_workloads::results::summary::completed_latencies;

use super::PolicyRun;

/// Writes the report to `path`.
///
/// # Errors
/// A file that cannot be written.
pub fn write(
    path: &std::path::Path,
    results: &Results,
    runs: &[PolicyRun],
    settings: Vec<(String, String)>,
    sections: Vec<(String, Body)>,
) -> anyhow::Result<()> {
    let latencies = |r: &PolicyRun| {
        completed_latencies(&r.requests)
            .into_iter()
            .map(|n| n.0)
            .collect()
    };
    let report = Report {
        title: format!("lazybatch {}", results.command),
        settings,
        runs: results
            .runs
            .iter()
            .zip(runs)
            .map(|(result, run)| RunReport {
                result: result.clone(),
                latencies_ns: latencies(run),
            })
            .collect(),
        sections,
    };
    report.write(path).context("--report")
}
