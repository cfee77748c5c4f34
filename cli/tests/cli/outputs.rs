//! The files that commands write: all that were asked for, each its own, and what is said where one
//! cannot be written.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Stdio};

use crate::common::Place;

/// Runs the binary with a standard output that nobody reads; it must succeed and say nothing.
#[cfg(unix)]
fn run_unread(place: &Place, arguments: &str) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(arguments.split_whitespace())
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(0), "{arguments}: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_takes_no_files_with_it() {
    let place = Place::with_example();
    run_unread(
        &place,
        "simulate --profile p.json --arrivals a.csv --policies serial,lazy --timeline --bound \
         --json r.json --requests-csv r.csv --report r.html --journal j",
    );
    assert_eq!(place.json("r.json")["runs"].as_array().unwrap().len(), 2);
    assert!(place.read("r.csv").lines().count() == 9);
    assert!(place.read("r.html").contains("<svg"));
    assert!(!place.read("j.lazy.jsonl").is_empty());

    place.write(
        "g.toml",
        "profile = 'p.json'\nmodels = ['toy']\nrates = [100]\nslas_ms = [50]\nseeds = 1\n\
         policies = ['serial', 'greedy']\nlengths = 'fixed:2:3'\nrequests = 9\n",
    );
    run_unread(&place, "sweep --grid g.toml --json s.json --report s.html");
    assert_eq!(place.json("s.json")["points"].as_array().unwrap().len(), 1);
    assert!(place.path("s.html").exists());
    assert!(!place.path("s.json.partial").exists());

    run_unread(
        &place,
        "generalise --seeds 3..4 --policies greedy,adaptive --json g.jsonl",
    );
    assert_eq!(place.read("g.jsonl").lines().count(), 3);
    run_unread(
        &place,
        "compare --model cnn-tiny --max-batch 2 --rate 100 --duration 0.1 --policies greedy \
         --json c.json --requests-csv c.csv --report c.html",
    );
    for file in ["c.json", "c.csv", "c.html"] {
        assert!(!place.read(file).is_empty(), "{file}");
    }
}

#[cfg(unix)]
#[test]
fn a_full_standard_output_is_a_failure_behind_the_files() {
    use std::process::Command;
    let place = Place::with_example();
    let full = std::fs::File::create("/dev/full").unwrap();
    let simulate = "simulate --profile p.json --arrivals a.csv --policies lazy --json r.json \
                    --requests-csv r.csv --report r.html";
    let done = Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(simulate.split_whitespace())
        .current_dir(place.path(""))
        .stdout(full)
        .output()
        .unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{err}");
    let part = "lazybatch: standard output: No space left on device";
    assert!(err.contains(part), "{err}");
    for file in ["r.json", "r.csv", "r.html"] {
        assert!(!place.read(file).is_empty(), "{file}");
    }
}

#[cfg(unix)]
#[test]
fn what_nobody_can_be_told_ends_with_the_same_status() {
    use std::process::Command;
    let place = Place::with_example();
    std::fs::create_dir(place.path("empty")).unwrap();
    let simulate = "simulate --profile p.json --arrivals a.csv --policies lazy";
    for (command, expected) in [
        ("simulate --profile nope --rate 3", 2),
        ("replay nofile", 2),
        ("serve --models nodir", 2),
        (
            "serve --models empty --http-port 0 --grpc-port 0 --metrics-port 0 --policy nope",
            2,
        ),
        (&format!("{simulate} --class gold:sla=1"), 0),
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_lazybatch"));
        let run = run.args(command.split_whitespace()).stderr(full);
        let done = run.current_dir(place.path("")).output().unwrap();
        assert_eq!(done.status.code(), Some(expected), "{command}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text_are_kept() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::with_example();
    let name = std::ffi::OsStr::from_bytes(b"j\xff");
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(["simulate", "--profile", "p.json", "--arrivals", "a.csv"])
        .args(["--policies", "graph:5", "--journal"])
        .arg(name)
        .current_dir(place.path(""))
        .output()
        .unwrap()
        .status;
    assert!(status.success());
    let written = std::ffi::OsStr::from_bytes(b"j\xff.graph-5.jsonl");
    assert!(place.path("").join(written).exists());
}

#[test]
fn outputs_take_no_other_files_place() {
    let place = Place::with_example();
    std::fs::create_dir(place.path("cases")).unwrap();
    place.write(
        "grid.toml",
        "profile = 'p.json'\nmodels = ['toy']\nrates = [100]\nslas_ms = [50]\nseeds = 1\n\
         policies = ['serial', 'greedy']\narrivals = 'trace:a.csv'\nlengths = 'trace'\nrequests = 3\n",
    );
    let simulate = "simulate --profile p.json --policies serial,lazy";
    let fixed = format!("{simulate} --arrivals a.csv");
    for (command, option, got, other) in [
        (
            format!("{fixed} --journal j --explain j"),
            "--explain",
            "j.serial.jsonl",
            "--journal writes",
        ),
        (
            format!("{fixed} --json x --report ./cases/../x"),
            "--report",
            "./cases/../x",
            "--json writes",
        ),
        (
            format!("{fixed} --requests-csv j.lazy.jsonl --journal j"),
            "--journal",
            "j.lazy.jsonl",
            "--requests-csv writes",
        ),
        (
            format!("{fixed} --requests-csv a.csv"),
            "--requests-csv",
            "a.csv",
            "--arrivals reads",
        ),
        (
            format!("{fixed} --json p.json"),
            "--json",
            "p.json",
            "--profile reads",
        ),
        (
            "compare --profile p.json --json p.json".into(),
            "--json",
            "p.json",
            "--profile reads",
        ),
        (
            "compare --trace a.csv --arrivals-out a.csv".into(),
            "--arrivals-out",
            "a.csv",
            "--trace reads",
        ),
        (
            "compare --json lazybatch-compare.html".into(),
            "--report",
            "lazybatch-compare.html",
            "--json writes",
        ),
        (
            "compare --policies lazy --trace-out t --profile-out t.lazy.json".into(),
            "--trace-out",
            "t.lazy.json",
            "--profile-out writes",
        ),
        (
            "sweep --grid grid.toml --json s --report s.partial".into(),
            "--report",
            "s.partial",
            "--json writes",
        ),
        (
            "sweep --grid grid.toml --json grid.toml".into(),
            "--json",
            "grid.toml",
            "--grid reads",
        ),
        (
            "sweep --grid grid.toml --json a.csv".into(),
            "--json",
            "a.csv",
            "--grid reads",
        ),
        (
            "sweep --grid grid.toml --report p.json".into(),
            "--report",
            "p.json",
            "--grid reads",
        ),
        (
            "generalise --seeds 3..5 --cases cases --json cases/4.profile.json".into(),
            "--json",
            "cases/4.profile.json",
            "--cases writes",
        ),
    ] {
        let part = format!("{option}: expected a file of its own, got {got}, which {other}");
        place.refuse(&command, &[&part]);
    }
    for (file, text) in [
        ("p.json", crate::common::PROFILE),
        ("a.csv", crate::common::ARRIVALS),
    ] {
        assert_eq!(place.read(file), text);
    }
    for file in ["x", "j.serial.jsonl", "s.partial", "cases/3.profile.json"] {
        assert!(!place.path(file).exists(), "{file}");
    }
    // Names of devices are no files, and what is no file may be several outputs.
    place.succeed(
        "simulate --profile npu --model gnmt-tiny --rate 50 --duration 0.1 --policies serial \
         --json npu",
    );
    #[cfg(unix)]
    place.succeed(&format!(
        "{fixed} --json /dev/null --requests-csv /dev/null --report /dev/null"
    ));
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_left_where_they_are() {
    use std::os::unix::fs::symlink;
    let place = Place::with_example();
    std::fs::create_dir(place.path("real")).unwrap();
    symlink("real", place.path("other")).unwrap();
    symlink("real/x", place.path("link")).unwrap();
    symlink("none/x", place.path("lost")).unwrap();
    let simulate = "simulate --profile p.json --arrivals a.csv --policies serial";
    for (other, got) in [("other/x", "real/x"), ("link", "real/x")] {
        let part = format!("--report: expected a file of its own, got {got}, which --json writes");
        place.refuse(
            &format!("{simulate} --json {other} --report {got}"),
            &[&part],
        );
    }
    let part = "--report: expected a file that can be written, got lost: No such file";
    place.refuse(&format!("{simulate} --json link --report lost"), &[part]);
    for link in ["link", "lost"] {
        let kind = std::fs::symlink_metadata(place.path(link)).unwrap();
        assert!(kind.is_symlink(), "{link}");
    }
    assert!(!place.path("real/x").exists());
    place.succeed(&format!("{simulate} --json link"));
    assert!(place.path("real/x").is_file() && place.path("link").is_symlink());
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_no_bad_input_and_names_option_and_file() {
    use std::os::unix::fs::symlink;
    let place = Place::with_example();
    for name in ["j.lazy.jsonl", "t.greedy.json"] {
        symlink("/dev/full", place.path(name)).unwrap();
    }
    place.write(
        "g.toml",
        "profile = 'p.json'\nmodels = ['toy']\nrates = [100]\nslas_ms = [50]\nseeds = 1\n\
         policies = ['serial', 'greedy']\nlengths = 'fixed:2:3'\nrequests = 9\n",
    );
    let simulate = "simulate --profile p.json --arrivals a.csv --policies lazy";
    let compare = "compare --model cnn-tiny --max-batch 2 --rate 100 --duration 0.1 \
                   --policies greedy --report c.html";
    let sweep = "sweep --grid g.toml";
    let generalise = "generalise --seeds 3..4 --policies greedy,adaptive";
    let profile = "profile --model gnmt-tiny --device npu";
    for (command, option, file) in [
        (simulate, "--json", "/dev/full"),
        (simulate, "--report", "/dev/full"),
        (simulate, "--requests-csv", "/dev/full"),
        (simulate, "--journal", "j"),
        (simulate, "--explain", "j"),
        (compare, "--arrivals-out", "/dev/full"),
        (compare, "--profile-out", "/dev/full"),
        (compare, "--trace-out", "t"),
        (sweep, "--json", "/dev/full"),
        (sweep, "--report", "/dev/full"),
        (generalise, "--json", "/dev/full"),
        (profile, "--out", "/dev/full"),
    ] {
        let done = place.run(&format!("{command} {option} {file}"));
        assert_eq!(done.status, Some(1), "{command} {option}: {}", done.err);
        let shown = match file {
            "j" => "j.lazy.jsonl",
            "t" => "t.greedy.json",
            file => file,
        };
        let start = format!("lazybatch: {option}: {shown}: ");
        let says = |l: &str| l.starts_with(&start) && l.contains("No space left on device");
        assert!(done.err.lines().any(says), "{start}: {}", done.err);
    }
}

#[test]
fn what_fails_or_is_cut_off_looks_like_nothing_whole() {
    let place = Place::with_example();
    let (journal, explained) = ("j.graph-1e300.jsonl", "e.graph-1e300.jsonl");
    place.write(journal, "of before");
    let simulate = "simulate --profile p.json --arrivals a.csv --policies lazy,graph:1e300";
    place.refuse(
        &format!("{simulate} --journal j --explain e --json r.json"),
        &["simulation of graph:1e300: expected an end within"],
    );
    assert_eq!(place.read(journal), "of before");
    for file in [explained, "r.json", "j.lazy.jsonl.partial"] {
        assert!(!place.path(file).exists(), "{file}");
    }
    for file in [
        &format!("{journal}.partial"),
        &format!("{explained}.partial"),
        "j.lazy.jsonl",
    ] {
        assert!(place.path(file).exists(), "{file}");
    }

    // Killed while the second policy runs.
    let long = "{ \"id\": 0 }\n";
    place.write("r.json", long);
    let compare = "compare --model cnn-tiny --max-batch 2 --rate 20 --duration 3 \
                   --policies serial,greedy --report r.html --json r.json --profile";
    place.succeed("profile --model cnn-tiny --device npu --out npu.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(format!("{compare} npu.json --device sim").split_whitespace())
        .current_dir(place.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = place.path("r.json.partial");
    let whole = |text: String| serde_json::from_str::<serde_json::Value>(&text).ok();
    let kept = loop {
        let text = std::fs::read_to_string(&partial);
        if let Some(kept) = text.ok().and_then(whole) {
            break kept;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        std::thread::yield_now();
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(kept["runs"][0]["policy"], "serial");
    assert_eq!(kept["runs"].as_array().unwrap().len(), 1);
    assert_eq!(place.read("r.json"), long);
    // What comes to its end takes its place.
    place.succeed(&format!("{compare} npu.json --device sim --requests 3"));
    assert_eq!(place.json("r.json")["runs"].as_array().unwrap().len(), 2);
    assert!(!partial.exists());
}

#[test]
fn a_report_that_nobody_asked_for_is_left_out_where_it_cannot_be_written() {
    let place = Place::new();
    std::fs::create_dir(place.path("lazybatch-compare.html")).unwrap();
    let compare = "compare --model cnn-tiny --max-batch 2 --rate 100 --duration 0.1 \
                   --policies greedy --json c.json";
    let done = place.succeed(compare);
    let said = "lazybatch: no report (--report): lazybatch-compare.html: ";
    assert!(done.err.contains(said), "{}", done.err);
    assert!(!done.out.contains("report: "), "{}", done.out);
    assert!(place.path("c.json").exists());
    let parts = ["--report: expected a file that can be written, got lazybatch-compare.html"];
    place.refuse(
        &format!("{compare} --report lazybatch-compare.html"),
        &parts,
    );
}
