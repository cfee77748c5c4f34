//! One file a command.

pub mod compare;
pub mod inspect;
pub mod profile;
pub mod replay;
pub mod run;
pub mod simulate;

use std::path::Path;

use anyhow::Context;
use lazybatch_workloads::results::{FinishedRequest, Results, requests_csv, table};

use crate::args::OutputArgs;

/// One policy's part of a command's results.
pub struct PolicyRun {
    /// As the user wrote it.
    pub policy: String,
    /// Its requests.
    pub requests: Vec<FinishedRequest>,
}

/// Prints the table and writes JSON and requests as asked.
fn emit(results: &Results, runs: &[PolicyRun], output: &OutputArgs) -> anyhow::Result<()> {
    print!("{}", table::render(&results.runs));
    if let Some(path) = &output.json {
        results.save(path)?;
    }
    if let Some(path) = &output.requests_csv {
        let file = create(path)?;
        let rows = runs
            .iter()
            .map(|r| (r.policy.as_str(), r.requests.as_slice()));
        requests_csv::write(std::io::BufWriter::new(file), rows)?;
    }
    Ok(())
}

/// Creates a file that the user named.
pub fn create(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path)
        .map_err(|e| crate::failure::BadInput(format!("{}: {e}", path.display())))
        .context("cannot write")
}

/// `FILE.POLICY.EXT` with the colons of a policy made dashes.
pub fn suffixed(path: &Path, policy: &str, extension: &str) -> std::path::PathBuf {
    let name = format!(
        "{}.{}.{extension}",
        path.display(),
        policy.replace(':', "-")
    );
    name.into()
}
