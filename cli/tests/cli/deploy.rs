//! The files of `serve/deploy`, by the tools that know them, where these are.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_lazybatch");

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// What a program says; `None`, and a line that says so, where it is not installed.
fn run(program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).output();
    if output.is_err() {
        eprintln!("not run: {program} is not installed");
    }
    output.ok()
}

fn told(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("lazybatch.service");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let unit = read("serve/deploy/lazybatch.service").replace("/usr/bin/lazybatch", BINARY);
    write(&unit);
    let verify = || run("systemd-analyze", &["verify", "--man=no", path]);
    let security = || {
        // Of 10: in tenths.
        let args = ["security", "--offline=true", "--no-pager", "--threshold=15"];
        run("systemd-analyze", &[&args[..], &[path]].concat())
    };
    let Some(verified) = verify() else {
        return;
    };
    // What it says of other units is the machine's.
    let ours = |text: &str| text.lines().filter(|l| l.contains("lazybatch")).count();
    assert_eq!(ours(&told(&verified)), 0, "{}", told(&verified));
    let secure = security().unwrap();
    if told(&secure).contains("unrecognized option") {
        eprintln!("not run: systemd-analyze security knows no --offline");
        return;
    }
    assert!(secure.status.success(), "{}", told(&secure));

    // Both tell when there is something.
    write(&unit.replace("ProtectHome=yes", "ProtectHme=yes"));
    let verified = told(&verify().unwrap());
    assert!(verified.contains("ProtectHme"), "{verified}");
    write(&unit.replace("CapabilityBoundingSet=\n", ""));
    assert!(!security().unwrap().status.success());
}

#[test]
fn the_containerfile_is_sound() {
    let text = read("serve/deploy/Containerfile").replace("\\\n", " ");
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let steps: Vec<(&str, &str)> = lines.map(|l| l.split_once(' ').unwrap()).collect();
    let named = |name: &str| -> Vec<&str> {
        let own = steps.iter().filter(|s| s.0 == name);
        own.map(|s| s.1).collect()
    };
    let stages = named("FROM");
    assert_eq!(steps[0].0, "FROM");
    for stage in &stages {
        let image = stage.split(' ').next().unwrap();
        let tag = image.rsplit('/').next().unwrap().split_once(':');
        assert!(tag.is_some_and(|t| t.1 != "latest"), "{stage}");
    }
    // The last stage has what an earlier one built, no shell, a user by number and all in exec form.
    let last = steps.iter().rposition(|s| s.0 == "FROM").unwrap();
    for (name, value) in &steps[last + 1..] {
        match *name {
            "COPY" => {
                let from = value.strip_prefix("--from=").unwrap();
                let (stage, _) = from.split_once(' ').unwrap();
                let ending = format!(" AS {stage}");
                assert!(stages.iter().any(|s| s.ends_with(&ending)), "{value}");
            }
            "USER" => {
                let ids: Vec<u32> = value.split(':').map(|id| id.parse().unwrap()).collect();
                assert!(ids.len() == 2 && !ids.contains(&0), "{value}");
            }
            "ENTRYPOINT" | "CMD" => drop(serde_json::from_str::<Vec<String>>(value).unwrap()),
            "EXPOSE" | "STOPSIGNAL" => {}
            _ => panic!("{name} {value} in the last stage"),
        }
    }
    let is_locked = |run: &&str| !run.contains("cargo") || run.contains("--locked");
    assert!(named("RUN").iter().all(is_locked));
    // What git does not know does not belong into an image either.
    let kept_out = read(".containerignore");
    let kept_out: Vec<&str> = kept_out.lines().collect();
    for line in read(".gitignore").lines().filter(|l| !l.is_empty()) {
        let name = line.trim_matches('/');
        let any = format!("**/{name}");
        let is_out = |l: &&str| *l == name || *l == any;
        assert!(kept_out.iter().any(is_out), "{name} in .containerignore");
    }
}

#[test]
fn image_and_unit_serve_confined_as_they_say() {
    if !Path::new("/proc/self/ns/net").exists() {
        eprintln!("not run: no namespaces");
        return;
    }
    let namespaces = [
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--mount-proc",
        "true",
    ];
    let can = run("unshare", &namespaces).is_some_and(|o| o.status.success());
    let tools = [
        ("openssl", "version"),
        ("ip", "-V"),
        ("setpriv", "--version"),
        ("systemd-analyze", "--version"),
        ("python3", "--version"),
    ];
    if !can || !tools.iter().all(|(tool, arg)| run(tool, &[arg]).is_some()) {
        eprintln!("not run: namespaces need root, or a tool is missing");
        return;
    }
    let library = "import ctypes; ctypes.CDLL('libseccomp.so.2')";
    if !run("python3", &["-c", library]).unwrap().status.success() {
        eprintln!("not run: no libseccomp");
        return;
    }
    let script = root().join("serve/deploy/check.py");
    let done = run("python3", &[script.to_str().unwrap(), BINARY]).unwrap();
    assert!(done.status.success(), "{}", told(&done));
    let checks = told(&done).matches("ok      ").count();
    assert!(checks > 20, "{}", told(&done));
}
