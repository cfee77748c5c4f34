//! `cargo xtask nvrtc`: fetches the real CUDA kernel compiler into the ignored folder `.nvrtc`.
//!
//! It runs without a GPU and without a driver. The emulator's tests compile kernels with it; where
//! it is missing they fail and name this command.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::models::{find_python, run_step};

/// The package, with its hash.
const PACKAGE: &str = "xtask/scripts/nvrtc.txt";
/// Where it goes.
const FOLDER: &str = ".nvrtc";
/// The library in it.
const LIBRARY: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";

/// Fetches the compiler if it is not there yet.
///
/// # Errors
/// No Python with pip, or a package that cannot be fetched.
pub fn ensure(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    if folder.join(LIBRARY).is_file() {
        println!("{FOLDER} has it");
        return Ok(());
    }
    println!("fetching NVRTC");
    let mut pip = Command::new(find_python()?);
    // The wheel of the platform that the tests run on, whatever Python runs this.
    let plain = "-m pip install --quiet --no-deps --require-hashes --only-binary :all: \
                 --platform manylinux2010_x86_64 --upgrade --target";
    pip.args(plain.split_whitespace()).arg(&folder);
    run_step(pip.arg("-r").arg(root.join(PACKAGE)))?;
    ensure!(
        folder.join(LIBRARY).is_file(),
        "{PACKAGE}: expected {LIBRARY} in the package, got none"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_pinned_by_hash() {
        let text = std::fs::read_to_string(crate::host::root().join(PACKAGE)).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("==") && lines[0].contains(" --hash=sha256:"));
    }
}
