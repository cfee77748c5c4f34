//! `cargo xtask peers-env`: makes the Python environment `.peers` with the runtimes that
//! `lazybatch-measure peers` compares with, at the versions of `benches/peers/requirements.txt`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::models::{find_python, run_step};

/// The packages, pinned.
const REQUIREMENTS: &str = "benches/peers/requirements.txt";
/// The environment, ignored by git.
const FOLDER: &str = ".peers";

/// Makes or completes the environment.
///
/// # Errors
/// No Python with pip and venv, or packages that cannot be fetched.
pub fn run(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let python = find_python()?;
    run_step(Command::new(python).args(["-m", "venv"]).arg(&folder))
        .context("making a virtual environment (on Debian it needs the package python3-venv)")?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "-r"]);
    run_step(pip.arg(root.join(REQUIREMENTS)))?;
    println!("{FOLDER}/bin/python is ready");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned() {
        // The others are those of programs that make their environments themselves.
        for (file, package) in [
            (REQUIREMENTS, "onnxruntime=="),
            ("benches/peers/triton-requirements.txt", "nvidia-pytriton=="),
            (
                "benches/peers/loadgen-requirements.txt",
                "mlcommons-loadgen==",
            ),
            ("benches/peers/kserve-requirements.txt", "kserve=="),
        ] {
            let text = std::fs::read_to_string(crate::host::root().join(file)).unwrap();
            assert!(text.lines().any(|line| line.starts_with(package)), "{file}");
            assert!(text.lines().all(|line| line.contains("==")), "{text}");
        }
    }
}
