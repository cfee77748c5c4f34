//! `cargo xtask nvrtc` and `cuda-check`: fetch the real CUDA kernel compiler into ignored folders,
//! and compile the CUDA device's kernels for GPUs that are not there.
//!
//! It runs without a GPU and without a driver. Tests that need it compile kernels with it; where it
//! is missing they fail and name the first command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::models::{find_python, run_step};

/// A version of the compiler.
struct Compiler {
    /// The package, with its hash.
    package: &'static str,
    /// Where it goes.
    folder: &'static str,
    /// The folder of the library in it.
    libraries: &'static str,
    /// The library.
    file: &'static str,
    /// Architectures that the kernels are compiled for with it.
    archs: &'static [&'static str],
}

/// What tests use, for the GPUs of today.
const COMPILER: Compiler = Compiler {
    package: "xtask/scripts/nvrtc.txt",
    folder: ".nvrtc",
    libraries: "nvidia/cuda_nvrtc/lib",
    file: "libnvrtc.so.12",
    archs: &["80", "90"],
};

/// One that knows newer GPUs.
const NEWER: Compiler = Compiler {
    package: "xtask/scripts/nvrtc13.txt",
    folder: ".nvrtc13",
    libraries: "nvidia/cu13/lib",
    file: "libnvrtc.so.13",
    archs: &["100"],
};

impl Compiler {
    /// The folder of the library, fetched if it is not there yet.
    fn ensure(&self, root: &Path) -> Result<PathBuf> {
        let folder = root.join(self.folder);
        let libraries = folder.join(self.libraries);
        if libraries.join(self.file).is_file() {
            println!("{} has it", self.folder);
            return Ok(libraries);
        }
        println!("fetching NVRTC into {}", self.folder);
        let mut pip = Command::new(find_python()?);
        // The wheel of the platform that the tests run on, whatever Python runs this.
        let plain = "-m pip install --quiet --no-deps --require-hashes --only-binary :all: \
                     --platform manylinux2010_x86_64 --upgrade --target";
        pip.args(plain.split_whitespace()).arg(&folder);
        run_step(pip.arg("-r").arg(root.join(self.package)))?;
        ensure!(
            libraries.join(self.file).is_file(),
            "{}: expected {} in the package, got none",
            self.package,
            self.file
        );
        Ok(libraries)
    }

    /// Compiles all kernels; `false` when one does not.
    fn check(&self, root: &Path) -> Result<bool> {
        let libraries = self.ensure(root)?;
        // Programs look for the library without its version.
        let plain = libraries.join("libnvrtc.so");
        if !plain.exists() {
            std::os::unix::fs::symlink(self.file, &plain)
                .with_context(|| plain.display().to_string())?;
        }
        let program = host::built(root, "examples/check_kernels")?;
        let status = Command::new(program)
            .args(self.archs)
            .env("LD_LIBRARY_PATH", &libraries)
            .current_dir(root)
            .status()
            .context("cannot run the check")?;
        Ok(status.success())
    }
}

/// Fetches the compiler that the tests use, if it is not there yet.
///
/// # Errors
/// No Python with pip, or a package that cannot be fetched.
pub fn ensure(root: &Path) -> Result<()> {
    COMPILER.ensure(root).map(|_| ())
}

/// The folder that [`ensure()`] makes, in which Python finds the compiler's package.
pub fn python_path(root: &Path) -> PathBuf {
    root.join(COMPILER.folder)
}

/// Compiles every kernel of the CUDA device for every architecture; `false` when one does not
/// compile, spills registers, or is missing.
///
/// # Errors
/// A compiler that cannot be fetched.
pub fn check(root: &Path) -> Result<bool> {
    let checks = [COMPILER, NEWER].map(|compiler| compiler.check(root));
    let results: Result<Vec<bool>> = checks.into_iter().collect();
    Ok(results?.into_iter().all(|passed| passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_are_pinned_by_hash() {
        for compiler in [COMPILER, NEWER] {
            let text = std::fs::read_to_string(host::root().join(compiler.package)).unwrap();
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(lines.len(), 1);
            assert!(lines[0].contains("==") && lines[0].contains(" --hash=sha256:"));
        }
    }
}
