//! What `generalise` promises: a file that adds up, cases that `simulate` takes and agrees on, and
//! clear messages.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::common::Place;
use serde_json::Value;

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

#[test]
fn five_cases_end_to_end() {
    let place = Place::new();
    let command = "generalise --policies greedy,edf,adaptive";
    let done = place.succeed(&format!(
        "{command} --seeds 3..8 --json a.jsonl --threads 2"
    ));
    let lines = lines(&place.read("a.jsonl"));
    assert_eq!(lines.len(), 1 + 5 + 1);
    assert_eq!(lines[0]["format"], "lazybatch-generalise/1");
    let mut within = 0;
    for (line, seed) in lines[1..6].iter().zip(3..) {
        assert_eq!(line["case"]["seed"], seed);
        let j = |i: usize| line["policies"][i]["j_ms"].as_f64().unwrap();
        let ratio = j(2) / j(0).min(j(1));
        assert!((line["ratio"].as_f64().unwrap() - ratio).abs() < 1e-12);
        within += u64::from(ratio <= 1.05);
    }
    let summary = &lines[6]["summary"];
    assert_eq!(summary["groups"][0]["within"], within);
    let exceptions = summary["exceptions"].as_array().unwrap().len() as u64;
    assert_eq!(exceptions, 5 - within);
    assert_eq!(done.out.matches("seed ").count() as u64, exceptions);
}

#[test]
fn one_seed_alone_and_a_page() {
    let place = Place::new();
    let command = "generalise --policies greedy,edf,adaptive --threads 2";
    place.succeed(&format!("{command} --seeds 3..5 --json both.jsonl"));
    place.succeed(&format!(
        "{command} --seed 4 --json one.jsonl --report one.html"
    ));
    let [both, one] = ["both.jsonl", "one.jsonl"].map(|file| lines(&place.read(file)));
    assert_eq!(one[1], both[2]);
    assert_eq!(one.len(), 3);
    let page = place.read("one.html");
    for part in [
        "adaptive on random cases",
        "<svg",
        "J over the least",
        "4..5",
    ] {
        assert!(page.contains(part), "{part:?}");
    }
    place.refuse(&format!("{command} --seed 4 --seeds 3..5"), &["--seed"]);
}

#[test]
fn a_written_case_is_what_was_simulated() {
    let place = Place::new();
    place.succeed(
        "generalise --seeds 5..6 --draws 2 --policies greedy,lazy --judge lazy --json a.jsonl \
         --cases new/cases",
    );
    let runs = ["5", "5.1"].map(|draw| {
        place.succeed(&format!(
            "simulate --profile new/cases/5.profile.json --arrivals new/cases/{draw}.arrivals.csv \
             --policies greedy,lazy --json {draw}.json"
        ));
        place.json(&format!("{draw}.json"))["runs"].clone()
    });
    let lines = lines(&place.read("a.jsonl"));
    assert_eq!(lines[0]["draws"], 2);
    for i in 0..2 {
        for key in ["mean_ms", "p99_ms", "violation_rate"] {
            // Arrival files have whole nanoseconds, so the runs are the same.
            let of = |run: &Value| run[i][key].as_f64().unwrap();
            let mean = (of(&runs[0]) + of(&runs[1])) / 2.0;
            assert_eq!(lines[1]["policies"][i][key], mean, "{key}");
        }
    }
}

#[test]
fn wrong_usage_is_refused() {
    let place = Place::new();
    place.write("file", "mine");
    for (arguments, parts) in [
        ("--seeds 5..5", ["--seeds", "FROM..TO", "5..5"]),
        ("--seeds 5", ["--seeds", "FROM..TO", "got 5"]),
        ("--draws 0", ["--draws", "1 to 1000", "got 0"]),
        ("--models 0", ["--models", "1 to 64", "got 0"]),
        ("--models 65", ["--models", "1 to 64", "got 65"]),
        ("--seeds 0..200000", ["--seeds", "at most 100000", "200000"]),
        (
            "--policies greedi,adaptive",
            ["policies", "graph:W", "greedi"],
        ),
        (
            "--policies greedy,lazy",
            ["judge", "greedy, lazy", "adaptive"],
        ),
        (
            "--policies adaptive,join:0",
            ["policies", "online", "join:0"],
        ),
        ("--json none/a.jsonl", ["--json", "written", "none/a.jsonl"]),
        ("--cases file/b", ["--cases", "a folder", "got file/b"]),
        (
            "--seeds 0..1 --policies greedy,graph:1e300,adaptive",
            ["case of seed 0", "graph:1e300", "an end within 2^63 ns"],
        ),
    ] {
        place.refuse(&format!("generalise {arguments}"), &parts);
    }
}
