//! One file a command.

mod answers;
pub mod compare;
mod dry;
pub mod generalise;
pub mod import;
pub mod inspect;
mod offer;
pub mod profile;
pub mod replay;
mod report;
pub mod run;
pub mod serve;
pub mod simulate;
pub mod sweep;

use std::path::{Path, PathBuf};

use anyhow::Context;
use lazybatch_workloads::results::{FinishedRequest, Results, requests_csv, table};

use crate::args::OutputArgs;
use crate::output::{self, Files, Growing};

/// One policy's part of a command's results.
pub struct PolicyRun {
    /// As the user wrote it.
    pub policy: String,
    /// Its requests.
    pub requests: Vec<FinishedRequest>,
}

/// Writes JSON and requests as asked.
fn save(results: &Results, runs: &[PolicyRun], args: &OutputArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        Growing::new("--json", path).whole(&results.to_json())?;
    }
    if let Some(path) = &args.requests_csv {
        let file = output::create("--requests-csv", path)?;
        let rows = runs
            .iter()
            .map(|r| (r.policy.as_str(), r.requests.as_slice()));
        requests_csv::write(std::io::BufWriter::new(file), rows)
            .with_context(|| output::place("--requests-csv", path))?;
    }
    Ok(())
}

/// Prints the tables, behind all that is written: standard output can fail too.
fn show(results: &Results) -> anyhow::Result<()> {
    output::text(table::render(&results.runs))?;
    if !results.classes.is_empty() {
        output::text(table::render_classes(&results.classes))?;
    }
    Ok(())
}

/// The outputs that every long command can write.
fn outputs(args: &OutputArgs) -> Files {
    let mut files = Files::default();
    files
        .writes("--json", args.json.as_deref())
        .writes("--report", args.report.as_deref())
        .writes("--requests-csv", args.requests_csv.as_deref())
        .writes("--json", args.json.as_deref().and_then(output::partial));
    files
}

/// `FILE.POLICY.EXT` with the colons and slashes of a policy made dashes.
fn suffixed(path: &Path, policy: &str, extension: &str) -> PathBuf {
    let policy = policy.replace([':', '/'], "-");
    // A path need not be text.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{policy}.{extension}"));
    name.into()
}
