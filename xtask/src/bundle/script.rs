//! `run.sh` itself, with programs in the bundle that do nothing.

use std::path::Path;
use std::process::Command;

use super::{PROGRAMS, STAGES};
use crate::host;

/// Stands for each program: says what `run.sh` looks for, and notes what the archive of results has
/// when the first profile is taken.
const PROGRAM: &str = r#"#!/bin/sh
case $1 in
--environment) echo '{"gpu":true,"device":"a GPU"}' ;;
--verdict) echo '{}' >"$2/verdict.json" ;;
--list) echo 'conformance::the_one: test' ;;
profile) [ -f "$BUNDLE_OUT/seen" ] || tar -tzf "$BUNDLE_OUT/results.tar.gz" >"$BUNDLE_OUT/seen" ;;
*) echo 1 && echo "$CUDA_CACHE_PATH" && mkdir -p "$CUDA_CACHE_PATH" ;;
esac
"#;

fn bundle(folder: &Path) {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in PROGRAMS {
        let to = bin.join(name);
        std::fs::write(&to, PROGRAM).unwrap();
        assert!(Command::new("gzip").arg(&to).status().unwrap().success());
    }
    std::fs::write(folder.join("GLIBC"), "2.0\n").unwrap();
    std::fs::write(folder.join("peers.py"), "").unwrap();
    let script = host::root().join("xtask/bundle/run.sh");
    std::fs::copy(script, folder.join("run.sh")).unwrap();
}

#[test]
fn what_a_run_leaves_is_in_one_file_from_the_first_stage_on() {
    let folder = tempfile::tempdir().unwrap();
    bundle(folder.path());
    let results = folder.path().join("results");
    let run = Command::new(folder.path().join("run.sh"))
        .arg(&results)
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    // That of the stages in front of the one that looked, and the verdict on them.
    let seen = std::fs::read_to_string(results.join("seen")).unwrap();
    for name in ["./kernels.json", "./device.jsonl", "./verdict.json"] {
        assert!(seen.lines().any(|line| line == name), "{name}: {seen}");
    }
    assert!(!seen.contains("profile.json"), "{seen}");
    let archive = results.join("results.tar.gz");
    let listed = Command::new("tar").arg("-tzf").arg(archive).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    for stage in STAGES {
        let name = format!("./{stage}.json");
        assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
    }
    // Not what is large, or can be made again.
    for name in ["./cache", "./libraries", "./programs", "./results.tar.gz"] {
        assert!(!listed.contains(name), "{name}: {listed}");
    }
    assert!(results.join("cache/nv").is_dir() && !results.join("programs").exists());
}
