//! Runs the built binary in a folder of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

pub mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The example of the profile format.
pub const PROFILE: &str = r#"{ "format": "lazybatch-profile/1", "device": "npu-128x128-700mhz",
  "models": [ { "name": "toy", "max_batch": 64, "sla_ms": 100.0, "output_len_p90": 35,
    "blocks": [
      { "name": "encoder", "repeat": "once",
        "nodes": [ { "name": "qkv0", "by": "rows", "latency_us": [[1, 12.0], [24, 12.5], [1536, 310.0]] } ] },
      { "name": "decoder", "repeat": "until_stop",
        "nodes": [ { "name": "ffn0", "by": "members", "latency_us": [[1, 9.0], [64, 11.0]] } ] } ] } ] }"#;

/// Arrivals for it: alone, two at once, one without output.
pub const ARRIVALS: &str =
    "arrival_us,model,input_len,output_len\n0,toy,3,4\n5.5,toy,24,2\n5.5,toy,0,3\n300,toy,7,0\n";

/// What a run of the binary left.
#[derive(Debug)]
pub struct Done {
    /// Exit status; `None` after a signal.
    pub status: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A folder in which the binary runs.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// An empty folder.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A folder with the example profile `p.json` and its arrivals `a.csv`.
    pub fn with_example() -> Self {
        let place = Self::new();
        place.write("p.json", PROFILE);
        place.write("a.csv", ARRIVALS);
        place
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Reads a file in it.
    pub fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Reads a JSON file in it.
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// Runs the binary with arguments separated by spaces.
    pub fn run(&self, arguments: &str) -> Done {
        self.run_args(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs the binary with arguments separated by spaces and variables of the environment.
    pub fn run_with(&self, arguments: &str, vars: &[(&str, &str)]) -> Done {
        self.run_in(&arguments.split_whitespace().collect::<Vec<_>>(), vars)
    }

    /// Runs the binary.
    pub fn run_args(&self, arguments: &[&str]) -> Done {
        self.run_in(arguments, &[])
    }

    fn run_in(&self, arguments: &[&str], vars: &[(&str, &str)]) -> Done {
        let output = Command::new(env!("CARGO_BIN_EXE_lazybatch"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("RUST_BACKTRACE", "0")
            .envs(vars.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Done {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs the binary, which must succeed.
    pub fn succeed(&self, arguments: &str) -> Done {
        let done = self.run(arguments);
        assert_eq!(done.status, Some(0), "{arguments}: {}", done.err);
        done
    }

    /// Runs the binary, which must refuse with status 2 and one message that holds all of `parts`.
    pub fn refuse(&self, arguments: &str, parts: &[&str]) {
        self.refuse_args(&arguments.split_whitespace().collect::<Vec<_>>(), parts);
    }

    /// As [`Place::refuse`].
    pub fn refuse_args(&self, arguments: &[&str], parts: &[&str]) {
        let done = self.run_args(arguments);
        assert_eq!(done.status, Some(2), "{arguments:?}: {}", done.err);
        let messages = done
            .err
            .lines()
            .filter(|l| l.starts_with("lazybatch: ") || l.starts_with("error: "));
        assert_eq!(messages.count(), 1, "{arguments:?}: {}", done.err);
        assert!(!done.err.contains("panicked"), "{}", done.err);
        for part in parts {
            let err = &done.err;
            assert!(err.contains(part), "{arguments:?}: no {part:?} in {err}");
        }
    }
}

/// A row of a requests file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Row number of the arrival.
    pub id: u64,
    /// Model.
    pub model: String,
    /// Nanoseconds.
    pub arrival: u64,
    /// Nanoseconds; `None` for a request that never ran.
    pub first_launch: Option<u64>,
    /// Nanoseconds.
    pub finish: u64,
    /// How it ended.
    pub outcome: String,
    /// Policy.
    pub policy: String,
}

/// Reads a requests file strictly: header, order of columns, three decimals.
pub fn requests(text: &str) -> Vec<Row> {
    let mut lines = text.lines();
    let header =
        "id,model,arrival_us,first_launch_us,finish_us,outcome,input_len,output_len,policy";
    assert_eq!(lines.next(), Some(header));
    let ns = |cell: &str| -> u64 {
        let (whole, decimals) = cell.split_once('.').expect("a decimal point");
        assert_eq!(decimals.len(), 3, "{cell}");
        whole.parse::<u64>().unwrap() * 1000 + decimals.parse::<u64>().unwrap()
    };
    let row = |line: &str| {
        let cells: Vec<&str> = line.splitn(9, ',').collect();
        assert_eq!(cells.len(), 9, "{line}");
        Row {
            id: cells[0].parse().unwrap(),
            model: cells[1].into(),
            arrival: ns(cells[2]),
            first_launch: (!cells[3].is_empty()).then(|| ns(cells[3])),
            finish: ns(cells[4]),
            outcome: cells[5].into(),
            policy: cells[8].trim_matches('"').into(),
        }
    };
    lines.map(row).collect()
}

/// Checks one run of a results file against its rows by the definitions of the format.
pub fn check_run(run: &Value, rows: &[Row]) {
    let near = |key: &str, want: f64| {
        let got = run[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key} in {run}"));
        assert!(
            (got - want).abs() <= 1e-9 * want.abs(),
            "{key}: {got}, not {want}"
        );
    };
    let num = |outcome: &str| rows.iter().filter(|r| r.outcome == outcome).count() as f64;
    let completed: Vec<&Row> = rows
        .iter()
        .filter(|r| r.outcome == "met" || r.outcome == "violated")
        .collect();
    let mut latencies: Vec<u64> = completed.iter().map(|r| r.finish - r.arrival).collect();
    latencies.sort_unstable();
    let n = latencies.len();
    let rank = |percent: usize| latencies[(percent * n).div_ceil(100).max(1) - 1] as f64 / 1e6;
    near("requests", rows.len() as f64);
    near(
        "mean_ms",
        latencies.iter().sum::<u64>() as f64 / n as f64 / 1e6,
    );
    for (key, percent) in [
        ("p50_ms", 50),
        ("p90_ms", 90),
        ("p99_ms", 99),
        ("max_ms", 100),
    ] {
        near(key, rank(percent));
    }
    let first = rows.iter().map(|r| r.arrival).min().unwrap();
    let last = rows.iter().map(|r| r.finish).max().unwrap();
    let seconds = (last - first) as f64 / 1e9;
    near("throughput_rps", n as f64 / seconds);
    near("goodput_rps", num("met") / seconds);
    let bad = num("violated") + num("shed") + num("failed");
    near(
        "violation_rate",
        bad / (rows.len() as f64 - num("cancelled")),
    );
    near("shed", num("shed"));
    near("failed", num("failed"));
}

/// The folder of public traces, if it lies beside the checkout.
pub fn shared_traces() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
    if !folder.is_dir() {
        println!("not run: no folder of public traces beside the checkout");
        return None;
    }
    Some(folder)
}
