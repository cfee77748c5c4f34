//! Fetches the node cases that ONNX publishes, from Debian's package `libonnx-testdata`, into the
//! ignored folder `.models/onnx-testdata/node`.
//!
//! The package is architecture-independent data of which nothing is installed or run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const PACKAGE: &str = "libonnx-testdata";
/// The version whose cases the tests count.
const VERSION: &str = "1.12.";
const NUM_CASES: usize = 932;

/// Fetches the cases if they are not there yet.
pub fn ensure(root: &Path) -> Result<()> {
    let cases = folder(root).join("node");
    if num_entries(&cases) == NUM_CASES {
        println!(".models/onnx-testdata/node is there");
        return Ok(());
    }
    run(root)
}

/// Fetches the cases.
pub fn run(root: &Path) -> Result<()> {
    let folder = folder(root);
    let (download, unpacked) = (folder.join("download"), folder.join("unpacked"));
    for path in [&download, &unpacked] {
        if path.exists() {
            std::fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
        }
        std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
    }
    println!("fetching {PACKAGE}");
    let fetch = || {
        step(
            "apt-get",
            Command::new("apt-get")
                .args(["download", "-q", PACKAGE])
                .current_dir(&download),
        )
    };
    if let Err(error) = fetch() {
        println!("{error:#}; trying again with fresh package lists");
        step("apt-get", Command::new("apt-get").args(["update", "-q"]))?;
        fetch()?;
    }
    let package = only_entry(&download)?;
    let name = package
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    ensure!(
        name.starts_with(&format!("{PACKAGE}_{VERSION}")),
        "{PACKAGE}: expected version {VERSION}x (Debian bookworm), got {name}"
    );
    step(
        "dpkg-deb",
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(&package)
            .arg(&unpacked),
    )?;
    let from = unpacked.join("usr/share/libonnx-testdata/data/node");
    let found = num_entries(&from);
    ensure!(
        found == NUM_CASES,
        "{name}: expected {NUM_CASES} node cases, got {found}"
    );
    let to = folder.join("node");
    if to.exists() {
        std::fs::remove_dir_all(&to).with_context(|| to.display().to_string())?;
    }
    std::fs::rename(&from, &to).with_context(|| to.display().to_string())?;
    std::fs::remove_dir_all(&unpacked).with_context(|| unpacked.display().to_string())?;
    println!("wrote .models/onnx-testdata/node");
    Ok(())
}

fn folder(root: &Path) -> PathBuf {
    root.join(".models/onnx-testdata")
}

fn num_entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths: Vec<PathBuf> = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    match &paths[..] {
        [path] => Ok(path.clone()),
        others => bail!(
            "{}: expected one package, got {}",
            folder.display(),
            others.len()
        ),
    }
}

fn step(program: &str, command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| {
        format!(
            "`{program}`: expected Debian's package tools to fetch {PACKAGE}, got no such program"
        )
    })?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let e = step("apt-get", &mut Command::new("no-such-program")).unwrap_err();
        assert!(
            e.to_string()
                .starts_with("`apt-get`: expected Debian's package tools"),
            "{e}"
        );
        assert!(step("false", &mut Command::new("false")).is_err());
    }

    #[test]
    fn one_package_is_expected() {
        let folder = tempfile::tempdir().unwrap();
        assert!(only_entry(folder.path()).is_err());
        std::fs::write(folder.path().join("a.deb"), "").unwrap();
        assert!(only_entry(folder.path()).unwrap().ends_with("a.deb"));
    }
}
