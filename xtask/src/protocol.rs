//! The step `protocol`: the serving front end, driven by the clients that its users have.
//!
//! The clients are pinned packages in an environment of their own in the ignored folder `.protocol`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::models::{find_python, run_step};

/// The packages, pinned: the clients, and what drives a browser.
const REQUIREMENTS: [&str; 2] = [
    "serve/conformance/requirements.txt",
    "serve/dashboard/requirements.txt",
];
/// The checks.
const CHECKS: &str = "serve/conformance/check.py";
/// A mixed load in which every request is accounted for, and so much of it.
const MIXED: &str = "serve/conformance/mixed.py";
const SOME: [&str; 6] = ["--models", "small", "--requests", "400", "--rate", "80"];
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
    let python = ensure(root)?;
    let server = host::built(root, "lazybatch")?;
    let mut checks = Command::new(&python);
    checks.arg(root.join(CHECKS)).arg(&server);
    // Nothing but this run's own files belongs into the tree.
    checks.env("PYTHONDONTWRITEBYTECODE", "1");
    // A step before has fetched the pretrained models, so their absence is a failure here.
    checks.env("LAZYBATCH_REQUIRE_MODELS", "1");
    let passed = checks.status().context("cannot run the checks")?.success();
    let mut mixed = Command::new(&python);
    mixed.arg(root.join(MIXED)).arg(&server).args(SOME);
    mixed.env("PYTHONDONTWRITEBYTECODE", "1");
    let is_whole = mixed.status().context("cannot run the mixed load")?;
    Ok(passed && is_whole.success())
}

/// Makes the environment if it is not there; its Python.
///
/// # Errors
/// No Python with pip and venv, or packages that cannot be fetched.
pub fn ensure(root: &Path) -> Result<PathBuf> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).context(file.to_owned());
    let wanted = REQUIREMENTS.iter().map(|file| read(file));
    let wanted = wanted.collect::<Result<String>>()?;
    let folder = root.join(FOLDER);
    let (stamp, own) = (folder.join(STAMP), folder.join("bin/python"));
    if std::fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) {
        return Ok(own);
    }
    println!("fetching the clients");
    let python = find_python()?;
    run_step(Command::new(python).args(["-m", "venv"]).arg(&folder))
        .context("making a virtual environment (on Debian it needs the package python3-venv)")?;
    let mut pip = Command::new(&own);
    pip.args(["-m", "pip", "install", "--quiet"]);
    for file in REQUIREMENTS {
        pip.arg("-r").arg(root.join(file));
    }
    run_step(&mut pip)?;
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned() {
        for (file, package) in REQUIREMENTS.iter().zip(["tritonclient==", "selenium=="]) {
            let text = std::fs::read_to_string(crate::host::root().join(file)).unwrap();
            assert!(text.contains(package));
            assert!(text.lines().all(|line| line.contains("==")), "{text}");
        }
    }
}
