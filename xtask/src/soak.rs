//! `cargo xtask soak`: long runs of the property tests.
//!
//! An integration test (`CRATE/tests/NAME.rs` or `CRATE/tests/NAME/main.rs`) takes part by asking
//! `num_cases` of its `common` module, or `LAZYBATCH_SOAK_CASES` itself, how many cases to run;
//! without the variable it keeps to the short budget of the normal tests. A test that asks for
//! `soak_seeds` can be run part by part, as `--seeds FIRST..END`. Figures that a test prints as
//! `soak: {JSON}` are kept.
//! What was run, where and how it ended is appended as one JSON line to
//! `benches/results/DATE-MACHINE/soak.jsonl`.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::host;

/// Cases per property without `--seeds`.
pub const DEFAULT_CASES: u64 = 10_000;
/// The variable that the tests read.
const VARIABLE: &str = "LAZYBATCH_SOAK_CASES";
/// What marks a test that takes part, and that may be run part by part.
const MARKS: [&str; 3] = [VARIABLE, "num_cases(", PART];
const PART: &str = "soak_seeds(";

/// Runs the soak tests, or only the one of that name (`TEST`, or `TEST::MODULE` for a part of it), with
/// the cases of those seeds each; `false` when one fails or none ran.
pub fn run(root: &Path, seeds: Range<u64>, only: Option<&str>) -> Result<bool> {
    let is_part = seeds.start > 0;
    let mut targets = targets(root, if is_part { &[PART] } else { &MARKS })?;
    let (only, module) = match only.and_then(|only| only.split_once("::")) {
        Some((only, module)) => (Some(only), Some(module)),
        None => (only, None),
    };
    if let Some(only) = only {
        let names: Vec<String> = targets.iter().map(|t| t.1.clone()).collect();
        targets.retain(|t| t.1 == only);
        let expected = names.join(", ");
        ensure!(
            !targets.is_empty(),
            "--test: expected one of {expected}, got `{only}`"
        );
    }
    if targets
        .iter()
        .any(|(package, _)| package == "lazybatch-cuda")
    {
        crate::nvrtc::ensure(root)?;
    }
    let args = arguments(&targets, module);
    let cases = seeds.end - seeds.start;
    let asked = match is_part {
        true => format!("{}..{}", seeds.start, seeds.end),
        false => cases.to_string(),
    };
    let command = format!("{VARIABLE}={asked} cargo {}", args.join(" "));
    println!("{command}");
    let start = host::now();
    // Of what is built now, whatever is committed while it runs.
    let environment = environment(root);
    let mut child = host::cargo()
        .args(&args)
        .env(VARIABLE, asked)
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let mut num_passed = 0;
    let mut num_failed = 0;
    let mut figures = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context("reading what cargo prints")?;
            println!("{line}");
            let (passed, failed) = counts(&line).unwrap_or_default();
            num_passed += passed;
            num_failed += failed;
            figures.extend(figures_of(&line));
        }
    }
    let succeeded = child.wait().context("waiting for cargo")?.success();
    let result = match (succeeded, num_passed) {
        (false, _) => "failed",
        (true, 0) => "no test ran",
        (true, _) => "passed",
    };
    let record = json!({
        "environment": environment,
        "command": command,
        "cases": cases,
        "tests_passed": num_passed,
        "tests_failed": num_failed,
        "seconds": (start.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        "result": result,
        "figures": figures,
    });
    let folder =
        root.join("benches/results")
            .join(format!("{}-{}", host::today(), host::machine_slug()));
    append(&folder, &record)?;
    println!("soak: {result}, {num_passed} passed, {num_failed} failed, {cases} cases each");
    Ok(result == "passed")
}

/// Reads `N`, from 0 on, or `FIRST..END`.
pub fn seeds(text: &str) -> Result<Range<u64>> {
    let (first, end) = text.split_once("..").unwrap_or(("0", text));
    let ends = (first.parse::<u64>().ok(), end.parse::<u64>().ok());
    match ends {
        (Some(first), Some(end)) if first < end => Ok(first..end),
        _ => bail!("--seeds: expected a number or FIRST..END, got `{text}`"),
    }
}

/// A test that takes part: its package and its name.
type Target = (String, String);

/// The tests that bear one of the marks, by folder and name.
fn targets(root: &Path, marks: &[&str]) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    // Crates, and those within a crate's folder.
    let mut folders = Vec::new();
    for folder in sorted(root)? {
        if folder.join("Cargo.toml").is_file() {
            folders.extend(sorted(&folder)?);
        }
        folders.push(folder);
    }
    for folder in folders {
        let tests = folder.join("tests");
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = "));
        let (Some(name), true) = (name, tests.is_dir()) else {
            continue;
        };
        for path in sorted(&tests)? {
            let is_rust = |path: &Path| path.extension().is_some_and(|e| e == "rs");
            // `tests/NAME.rs`, or `tests/NAME/main.rs` with its modules beside it.
            let files = match path.join("main.rs").is_file() {
                true => sorted(&path)?,
                false => vec![path.clone()],
            };
            let mut takes_part = false;
            for file in files.into_iter().filter(|f| is_rust(f)) {
                let text = std::fs::read_to_string(&file);
                let text = text.with_context(|| file.display().to_string())?;
                takes_part |= marks.iter().any(|mark| text.contains(mark));
            }
            if takes_part {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                targets.push((name.trim_matches('"').to_owned(), stem.into_owned()));
            }
        }
    }
    ensure!(
        !targets.is_empty(),
        "expected tests that mention {}, got none",
        marks.join(" or ")
    );
    Ok(targets)
}

/// What a folder holds, in order.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths: std::io::Result<Vec<PathBuf>> = entries.map(|e| Ok(e?.path())).collect();
    let mut paths = paths.with_context(|| folder.display().to_string())?;
    paths.sort();
    Ok(paths)
}

/// The arguments of cargo that run them, or those of one module of theirs.
fn arguments(targets: &[Target], module: Option<&str>) -> Vec<String> {
    let mut args: Vec<String> = ["test", "--release", "--no-fail-fast"]
        .map(Into::into)
        .into();
    for (i, (package, test)) in targets.iter().enumerate() {
        if targets[..i].iter().all(|(earlier, _)| earlier != package) {
            args.extend(["--package".into(), package.clone()]);
        }
        args.extend(["--test".into(), test.clone()]);
    }
    args.push("--".into());
    args.extend(module.map(|module| format!("{module}::")));
    // One after another: what a test says of the memory of its process is its own then.
    args.extend(["--nocapture".into(), "--test-threads=1".into()]);
    args
}

/// Passed and failed tests in a summary line of the test runner.
fn counts(line: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix("test result: ")?;
    let count = |word: &str| {
        let before = rest.split(word).next()?.trim_end();
        before.rsplit([' ', '.']).next()?.parse().ok()
    };
    Some((count("passed")?, count("failed;")?))
}

/// Figures in a line that a test prints. The runner may print its own text before them.
fn figures_of(line: &str) -> Option<Value> {
    let (_, json) = line.split_once("soak: {")?;
    serde_json::from_str(&format!("{{{json}")).ok()
}

/// What the numbers depend on.
fn environment(root: &Path) -> Value {
    let line = |command: &mut Command| host::first_line(command).unwrap_or_default();
    json!({
        "cpu": host::cpu_name(),
        "cores": host::num_cores(),
        "os": std::env::consts::OS,
        "rustc": line(Command::new("rustc").arg("--version")),
        "commit": line(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root)),
        "date": host::today(),
    })
}

/// Appends a record to `soak.jsonl` in `folder`.
fn append(folder: &Path, record: &Value) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join("soak.jsonl");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path);
    let written = file.and_then(|mut file| writeln!(file, "{record}"));
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_are_counted() {
        let line = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s";
        assert_eq!(counts(line), Some((3, 0)));
        let line =
            "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(counts(line), Some((12, 1)));
        assert_eq!(counts("running 3 tests"), None);
    }

    #[test]
    fn figures_are_kept() {
        let line = r#"test hostile ... soak: {"messages":3}"#;
        assert_eq!(figures_of(line), Some(json!({"messages": 3})));
        assert_eq!(figures_of("soak: passed, 3 passed"), None);
    }

    #[test]
    fn those_of_this_project_are_found() {
        let targets = targets(&host::root(), &MARKS).unwrap();
        let names: Vec<String> = targets.into_iter().map(|t| t.1).collect();
        // The last two are those of a crate within a crate's folder.
        for name in ["starving", "onnx", "server", "bitwise", "device", "kernels"] {
            assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
        }
    }

    #[test]
    fn tests_that_ask_for_their_cases_take_part() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (path, text) in [
            (
                "engine/Cargo.toml",
                "[package]\nname = \"lazybatch-engine\"\n",
            ),
            ("engine/tests/exact.rs", "for seed in 0..num_cases(400) {}"),
            ("engine/tests/swarm.rs", "env(\"LAZYBATCH_SOAK_CASES\")"),
            ("engine/tests/short.rs", "fn quick() {}"),
            ("engine/tests/large/main.rs", "mod part;"),
            ("engine/tests/large/part.rs", "num_cases(300)"),
            ("engine/tests/common/mod.rs", "pub fn num_cases(n: u64) {}"),
            (
                "graph/Cargo.toml",
                "[package]\nname = \"lazybatch-graph\"\n",
            ),
        ] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), text).unwrap();
        }
        let found = targets(root, &MARKS).unwrap();
        let args = arguments(&found, None).join(" ");
        let want = "test --release --no-fail-fast --package lazybatch-engine --test exact --test large --test swarm -- --nocapture --test-threads=1";
        assert_eq!(args, want);
        let args = arguments(&found, Some("part")).join(" ");
        let (before, behind) = want.split_once(" -- ").unwrap();
        assert_eq!(args, format!("{before} -- part:: {behind}"));
        std::fs::remove_dir_all(root.join("engine")).unwrap();
        assert!(
            targets(root, &MARKS)
                .unwrap_err()
                .to_string()
                .contains("got none")
        );
    }

    #[test]
    fn seeds_are_a_number_or_a_part() {
        assert_eq!(seeds("300").unwrap(), 0..300);
        assert_eq!(seeds("5..8").unwrap(), 5..8);
        for bad in ["0", "x", "8..5", "5..", "-1"] {
            assert!(seeds(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
    }

    #[test]
    fn those_that_run_part_by_part_ask_for_seeds() {
        let targets = targets(&host::root(), &[PART]).unwrap();
        let names: Vec<String> = targets.into_iter().map(|t| t.1).collect();
        assert!(names.contains(&"starving".to_owned()), "{names:?}");
        assert!(!names.contains(&"verify".to_owned()), "{names:?}");
    }

    #[test]
    fn records_are_appended_as_lines() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("2024-01-01-x");
        append(&inner, &json!({"cases": 1})).unwrap();
        append(&inner, &json!({"cases": 2})).unwrap();
        let text = std::fs::read_to_string(inner.join("soak.jsonl")).unwrap();
        assert_eq!(text, "{\"cases\":1}\n{\"cases\":2}\n");
    }

    #[test]
    fn the_environment_is_complete() {
        let environment = environment(&host::root());
        for key in ["cpu", "rustc", "os", "date"] {
            assert!(!environment[key].as_str().unwrap().is_empty(), "{key}");
        }
        assert!(environment["cores"].as_u64().unwrap() > 0);
    }
}
