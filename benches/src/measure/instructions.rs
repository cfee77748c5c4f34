//! Instructions of decisions in steady state, counted by valgrind.
//!
//! Times on a shared machine come and go; instructions stay. `lazybatch-measure walk TABLE NET POLICY`
//! steps through the fixture and nothing else; valgrind's callgrind runs it and counts what happens
//! inside the core's decision, those without a real choice included.

use std::process::Command;

use anyhow::{Context, bail};
use lazybatch_benches::spread::Spread;
use lazybatch_benches::steady::{NETS, POLICIES, Steady, Table, WARM_UP};
use serde_json::json;

use crate::Settings;

/// Steps behind the warm-up, which counts, too.
const STEPS: usize = 10_000;
/// What is counted.
const DECIDE: &str = "lazybatch_engine::core::Core::decide";

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("instructions")?;
    for net in NETS {
        for policy in POLICIES {
            let table = Table::Held;
            let text = callgrind(&["walk", table.name(), net, policy])?;
            let collected = text.lines().find_map(|l| l.split_once("Collected :"));
            let collected: f64 = collected
                .and_then(|(_, n)| n.trim().parse().ok())
                .with_context(|| format!("valgrind says no `Collected`: {text}"))?;
            let figures = json!({ "table": table.name(), "net": net, "policy": policy });
            let each = collected / (WARM_UP + STEPS) as f64;
            recorder.line(figures, "decision_instructions", &Spread::of(vec![each]))?;
        }
    }
    Ok(())
}

fn callgrind(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={DECIDE}"))
        .arg(std::env::current_exe()?)
        .args(args)
        .output()
        .context("valgrind: not to be found; it is a package of most systems")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{}: {text}", args.join(" "));
    }
    Ok(text)
}

/// Steps through the fixture.
///
/// # Errors
/// An unknown table, net or policy.
pub fn walk(table: &str, net: &str, policy: &str) -> anyhow::Result<()> {
    let Some(table) = Table::ALL.into_iter().find(|t| t.name() == table) else {
        bail!("{table}: no such table");
    };
    let mut load = Steady::new(net, policy, table)?;
    for _ in 0..STEPS {
        load.deliver();
        load.decide();
        load.take_launch();
    }
    Ok(())
}
