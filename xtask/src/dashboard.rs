//! The step `dashboard`: the page of the serving front end, in a real browser.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::models::run_step;
use crate::{host, protocol};

/// The checks.
const CHECKS: &str = "serve/dashboard/test.py";
/// Where screenshots go, ignored by git.
const PICTURES: &str = "target/dashboard";
/// Programs that have to be there, each with Debian's package.
const BROWSER: [(&str, &str); 2] = [
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];

/// Sees to a browser, builds the server, and runs the checks; `false` when one fails.
///
/// # Errors
/// No browser and no way to install one, no Python environment, or no server.
pub fn run(root: &Path) -> Result<bool> {
    ensure_browser()?;
    let python = protocol::ensure(root)?;
    let server = host::built(root, "lazybatch")?;
    let mut checks = Command::new(python);
    checks.arg(root.join(CHECKS)).arg(server);
    checks.arg(root.join(PICTURES));
    checks.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(checks.status().context("cannot run the checks")?.success())
}

/// Installs the browser and its driver by apt where they are not there.
fn ensure_browser() -> Result<()> {
    let is_missing =
        |program: &str| host::first_line(Command::new(program).arg("--version")).is_err();
    let missing = BROWSER.iter().filter(|(program, _)| is_missing(program));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    let names = missing.join(" and ");
    let help = format!(
        "the dashboard is tested in Chromium: expected the programs chromium and chromedriver, or \
         Debian and root to install {names} by apt-get"
    );
    if host::first_line(Command::new("apt-get").arg("--version")).is_err() {
        bail!(help);
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        run_step(command.args(args))
    };
    apt(&["update", "--quiet"]).with_context(|| help.clone())?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt(&[&install, &missing[..]].concat()).with_context(|| help.clone())?;
    if BROWSER.iter().any(|(program, _)| is_missing(program)) {
        bail!(help);
    }
    Ok(())
}
