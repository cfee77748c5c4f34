//! What `sweep` promises: results and report, the same ones after an interruption and for any
//! number of threads, and clear messages about bad grids.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::common::Place;
use serde_json::Value;

/// Two models over a profile of a chain and a loop.
const PROFILE: &str = r#"{ "format": "lazybatch-profile/1", "device": "d", "models": [
  { "name": "chain", "max_batch": 4, "blocks": [ { "name": "main", "repeat": "once", "nodes": [
    { "name": "a", "latency_us": [[1, 10.0]] }, { "name": "b", "latency_us": [[1, 20.0], [4, 80.0]] } ] } ] },
  { "name": "loop", "max_batch": 8, "output_len_p90": 3, "blocks": [
    { "name": "in", "repeat": "once", "nodes": [ { "name": "e", "latency_us": [[1, 50.0]] } ] },
    { "name": "out", "repeat": "until_stop", "nodes": [ { "name": "d", "latency_us": [[1, 40.0]] } ] } ] } ] }"#;

const GRID: &str = "about = 'a test'
profile = 'p.json'
models = ['chain', 'loop', 'chain:1+loop:3']
rates = [2000, 30000]
slas_ms = [0.5, 2]
policies = ['serial', 'greedy', 'lazy', 'oracle']
windows = [0.2]
lengths = 'fixed:2:3'
seeds = 3
requests = 60
";

fn place() -> Place {
    let place = Place::new();
    place.write("p.json", PROFILE);
    place.write("g.toml", GRID);
    place
}

#[test]
fn results_and_report_are_written() {
    let place = place();
    let done = place.succeed("sweep --grid g.toml --judge lazy --json s.json --report s.html");
    for part in [
        "g: 12 points",
        "Gain in J",
        "Reproduction row",
        "lazy judged",
        "mean latency of lazy over the lower bound: median",
        "mean/bound",
    ] {
        assert!(done.out.contains(part), "{part:?} missing in {}", done.out);
    }
    let sweep = place.json("s.json");
    assert_eq!(sweep["format"], "lazybatch-sweep/1");
    let list = |key: &str| sweep[key].as_array().unwrap().clone();
    // 3 models x 2 rates x 2 targets; 5 policies; 3 seeds.
    assert_eq!(list("points").len(), 12);
    let runs = list("runs");
    assert_eq!(runs.len(), 12 * 5 * 3);
    for run in &runs {
        let number = |key: &str| run[key].as_f64().unwrap();
        // Nothing is shed here, so J follows from the numbers of the results file.
        let want = number("mean_ms") + 3.0 * number("sla_ms") * number("violation_rate");
        assert!((number("j_ms") - want).abs() < 1e-9 * want, "{run}");
    }
    for point in list("points") {
        let policies = point["policies"].as_array().unwrap();
        let j = |spec: &str| {
            let own = policies.iter().find(|p| p["policy"] == spec).unwrap();
            own["j_ms"].as_f64().unwrap()
        };
        let bound = |key: &str| point["bound"][key].as_f64().unwrap();
        let sla_ms = point["sla_ms"].as_f64().unwrap();
        let want = bound("mean_ms") + 3.0 * sla_ms * bound("violation_rate");
        assert!((bound("j_ms") - want).abs() < 1e-9 * want, "{point}");
        for policy in policies {
            let mean = policy["mean_ms"].as_f64().unwrap() / bound("mean_ms");
            assert!(mean >= 1.0, "{policy}");
            assert_eq!(policy["over_bound"]["mean"].as_f64(), Some(mean));
            assert!(policy["over_bound"]["j"].as_f64().unwrap() >= 1.0);
        }
        let best = point["best"].as_str().unwrap();
        let online = ["serial", "greedy", "lazy", "graph:0.2"];
        assert!(
            online.iter().all(|p| j(best) <= j(p)) && best != "oracle",
            "{point}"
        );
    }
    let page = place.read("s.html");
    assert!(page.contains("<svg") && page.contains("batch table over time"));
    assert!(!page.contains("http://") && !page.contains("<script"));
    assert!(!place.path("s.json.partial").exists());
}

#[test]
fn one_seed_alone_may_be_any() {
    let place = place();
    place.succeed("sweep --grid g.toml --seed 77 --json s.json");
    let sweep = place.json("s.json");
    let runs = sweep["runs"].as_array().unwrap();
    assert!(!runs.is_empty() && runs.iter().all(|r| r["seed"] == 77));
    place.refuse("sweep --grid g.toml --seed 7 --seeds 2", &["--seed"]);
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_sweep_goes_on_to_the_same_bytes() {
    let place = place();
    place.succeed("sweep --grid g.toml --json whole.json --report whole.html --threads 1");
    // What an interruption leaves: the journal of a run that could not end, cut in a line.
    place.succeed("sweep --grid g.toml --json other.json --threads 2");
    assert_eq!(place.read("whole.json"), place.read("other.json"));
    let partial = partial(&place);
    let done = place.succeed("sweep --grid g.toml --json again.json --resume");
    let told =
        "lazybatch: --resume: no again.json.partial: nothing was kept, the sweep starts anew\n";
    assert!(done.err.contains(told), "{}", done.err);
    place.write("again.json.partial", &partial);
    let done = place.succeed("sweep --grid g.toml --json again.json --report again.html --resume");
    assert!(
        done.err.contains("taken from the earlier run"),
        "{}",
        done.err
    );
    assert_eq!(place.read("whole.json"), place.read("again.json"));
    assert_eq!(place.read("whole.html"), place.read("again.html"));

    place.write("g2.toml", GRID.replace("requests = 60", "requests = 61"));
    place.write("again.json.partial", &partial);
    let parts = [
        "again.json.partial: line 1: expected a journal of this grid, g2, with requests `61`",
        "got one of grid g with requests `60`",
        "or delete the file",
    ];
    place.refuse("sweep --grid g2.toml --json again.json --resume", &parts);
    // Hours of work are not thrown away by a repeated command.
    let parts = [
        "again.json.partial: expected no finished simulations of an interrupted sweep",
        "--resume, or delete the file",
        "got 10",
    ];
    place.refuse("sweep --grid g.toml --json again.json", &parts);
    assert_eq!(place.read("again.json.partial"), partial);
    // Rows of a profile that has changed since are of no use, and do not count as taken.
    let profile = place.read("p.json");
    place.write("p.json", profile.replace("[[1, ", "[[1, 1"));
    let done = place.succeed("sweep --grid g.toml --json again.json --resume");
    assert!(!done.err.contains("taken"), "{}", done.err);
}

#[test]
fn targets_and_arrivals_that_do_not_fit_name_the_key() {
    let place = place();
    let header = "arrival_us,model,input_len,output_len\n";
    place.write("one.csv", format!("{header}5,loop,1,1\n"));
    place.write("two.csv", format!("{header}5,loop,1,1\n\n6,chain,1,1\n"));
    let long = "lengths = 'fixed:4000000000:4000000000'";
    for (from, to, part) in [
        (
            "slas_ms = [0.5, 2]",
            "slas_ms = [0.5, 1e-9]",
            "line 5, column slas_ms: expected numbers of 1e-6 or more, got 1e-9",
        ),
        (
            "rates = [2000, 30000]",
            "rates = [1e-9]",
            "line 4, column rates: expected an arrival by 4611686018427387.904, got ",
        ),
        (
            "lengths = 'fixed:2:3'",
            long,
            "line 8, column lengths: expected at most 16777216 node executions a request, got ",
        ),
        (
            "seeds = 3",
            "arrivals = 'trace:one.csv'",
            "line 9, column arrivals: expected at least two arrivals at different times, got 1 ",
        ),
    ] {
        let text = GRID.replace(from, to);
        let text = text.replace("'chain', 'loop', 'chain:1+loop:3'", "'loop'");
        place.write("bad.toml", text);
        place.refuse("sweep --grid bad.toml", &[&format!("bad.toml: {part}")]);
    }
    let text = GRID.replace("seeds = 3", "arrivals = 'trace:two.csv'");
    let text = text.replace("'chain', 'loop', 'chain:1+loop:3'", "'loop'");
    place.write("bad.toml", text);
    let part = "two.csv: line 4, column model: expected loop, got `chain`";
    place.refuse("sweep --grid bad.toml", &[part]);
}

#[test]
fn a_sweep_that_cannot_run_leaves_no_journal() {
    let place = place();
    let run = "sweep --grid bad.toml --json s.json";
    for (from, to, parts) in [
        (
            "'chain', 'loop'",
            "'chian', 'loop'",
            ["chian", "one of chain, loop"],
        ),
        (
            "seeds = 3",
            "arrivals = 'trace:t.csv'",
            [
                "grid bad: expected a case that can be run, got none (",
                "t.csv",
            ],
        ),
    ] {
        let text = GRID.replace(from, to);
        place.write("bad.toml", text.replace(", 'chain:1+loop:3'", ""));
        place.refuse(run, &parts);
        assert!(!place.path("s.json.partial").exists());
    }
    let parts = ["--traces: expected a folder, got none/here"];
    place.refuse("sweep --grid traces --traces none/here", &parts);
    let point = "sweep --grid g.toml --json s.json --report s.html --point";
    let parts = ["MODEL@RATE@SLA_MS, such as", "got `bogus`"];
    place.refuse(&format!("{point} bogus"), &parts);
    assert!(!place.path("s.json.partial").exists());
    place.succeed(&format!("{point} loop@2000@2"));
    // What is no file has no place beside it for a journal.
    #[cfg(unix)]
    {
        place.succeed("sweep --grid g.toml --json /dev/null");
        assert!(!std::path::Path::new("/dev/null.partial").exists());
        let parts = ["--resume: expected a file", "got /dev/null"];
        place.refuse("sweep --grid g.toml --json /dev/null --resume", &parts);
    }
}

/// A journal with the first simulations of the grid, cut off in a line: that of a run which could not
/// print, by the program itself, as rows of another build are of no use.
#[cfg(target_os = "linux")]
fn partial(place: &Place) -> String {
    let run = "sweep --grid g.toml --json cut.json --threads 1";
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(run.split(' '))
        .current_dir(place.path(""))
        .stdout(full.unwrap())
        .stderr(std::process::Stdio::null())
        .status();
    assert_eq!(status.unwrap().code(), Some(1));
    let text = place.read("cut.json.partial");
    let lines: Vec<&str> = text.lines().take(12).collect();
    let (last, whole) = lines.split_last().unwrap();
    format!("{}\n{}", whole.join("\n"), &last[..last.len() / 2])
}

#[test]
fn bad_grids_are_refused_with_line_and_key() {
    let place = place();
    for (from, to, parts) in [
        (
            "seeds = 3",
            "sedes = 3",
            ["bad.toml: line 9", "sedes", "unknown field"],
        ),
        (
            "rates = [2000, 30000]",
            "rates = [-1]",
            ["bad.toml: line 4", "rates", "got -1"],
        ),
        (
            "'greedy'",
            "'greedi'",
            ["bad.toml: line 6", "policies", "`greedi`"],
        ),
        (
            "['chain', 'loop'",
            "['chian', 'loop'",
            ["chian", "one of chain, loop", "model"],
        ),
        (
            "'p.json'",
            "'q.json'",
            ["q.json", "No such file", "lazybatch"],
        ),
        (
            "profile = 'p.json'",
            "device = 'abacus'",
            ["device", "npu", "abacus"],
        ),
        (
            "fixed:2:3",
            "fixed:2",
            ["lengths", "fixed:IN:OUT", "`fixed:2`"],
        ),
    ] {
        place.write("bad.toml", GRID.replace(from, to));
        place.refuse("sweep --grid bad.toml", &parts);
    }
    place.refuse("sweep --grid papers", &["paper-quick", "`papers`"]);
    place.refuse("sweep --grid g.toml --resume", &["--json"]);
    place.refuse(
        "sweep --grid g.toml --judge edf",
        &["--judge", "serial, greedy"],
    );
    place.refuse(
        "sweep --grid g.toml --models gnmt",
        &["chain, loop", "`gnmt`"],
    );
    place.refuse(
        "sweep --grid g.toml --seeds 4",
        &["--seeds", "at most the grid's 3"],
    );
    place.refuse(
        "sweep --grid g.toml --report s.html --point loop@1@2",
        &["point", "MODEL@RATE@SLA_MS", "`loop@1@2`"],
    );
}

#[test]
fn a_part_of_the_quick_grid_runs() {
    let place = Place::new();
    place.succeed(
        "sweep --grid paper-quick --models resnet50,transformer --seeds 1 --json s.json \
         --policies greedy,lazy,cellular,adaptive,graph:5,graph:95",
    );
    let sweep = place.json("s.json");
    let points = sweep["points"].as_array().unwrap();
    assert_eq!(points.len(), 20);
    // A window of 95 ms costs about that where nobody waits.
    let mean_ms = |policy: &str| {
        let mut all = points[0]["policies"].as_array().unwrap().iter();
        let own = all.find(|p| p["policy"] == policy).unwrap();
        own["mean_ms"].as_f64().unwrap()
    };
    assert!(mean_ms("graph:95") > mean_ms("greedy") + 50.0);
    // `adaptive` is nowhere far behind the best other, over one seed, and far ahead where it counts.
    let judged = &sweep["judgement"];
    assert_eq!(judged["policy"], "adaptive");
    assert_eq!(judged["stable"]["points"], 20);
    let worst = &judged["worst"][0];
    assert!(worst["behind"].as_f64().unwrap() < 0.06, "{worst}");
    let gain = |means: &Value| means["geometric"].as_f64().unwrap();
    assert!(gain(&judged["over_lazy"][0][1]) > 4.0, "{judged}");
    assert!(gain(&judged["over_greedy"]) > 2.5, "{judged}");
}
