//! The step `protocol`: the serving front end, driven by the clients that its users have.
//!
//! The clients are pinned packages in an environment of their own in the ignored folder `.protocol`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::models::{find_python, run_step};

/// The packages, pinned.
const REQUIREMENTS: &str = "serve/conformance/requirements.txt";
/// The checks.
const CHECKS: &str = "serve/conformance/check.py";
/// The environment, ignored by git.
const FOLDER: &str = ".protocol";
/// In it, the packages that it was made of.
const STAMP: &str = "requirements.txt";

/// Makes the environment if it is not there, builds the server, and runs the checks; `false` when
/// one fails.
///
/// # Errors
/// No Python with pip and venv, packages that cannot be fetched, or no server.
pub fn run(root: &Path) -> Result<bool> {
    ensure(root)?;
    let server = host::built(root, "lazybatch")?;
    let mut checks = Command::new(root.join(FOLDER).join("bin/python"));
    checks.arg(root.join(CHECKS)).arg(server);
    // Nothing but this run's own files belongs into the tree.
    checks.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(checks.status().context("cannot run the checks")?.success())
}

/// Makes the environment if it is not there.
fn ensure(root: &Path) -> Result<()> {
    let wanted = std::fs::read_to_string(root.join(REQUIREMENTS)).context(REQUIREMENTS)?;
    let folder = root.join(FOLDER);
    let stamp = folder.join(STAMP);
    if std::fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) {
        return Ok(());
    }
    println!("fetching the clients");
    let python = find_python()?;
    run_step(Command::new(python).args(["-m", "venv"]).arg(&folder))
        .context("making a virtual environment (on Debian it needs the package python3-venv)")?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "-r"]);
    run_step(pip.arg(root.join(REQUIREMENTS)))?;
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned() {
        let text = std::fs::read_to_string(crate::host::root().join(REQUIREMENTS)).unwrap();
        assert!(text.contains("tritonclient=="));
        assert!(text.lines().all(|line| line.contains("==")), "{text}");
    }
}
