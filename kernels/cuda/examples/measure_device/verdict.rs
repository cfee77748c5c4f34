//! What results say of the figures that were asked for: met, missed, or not measured, with the
//! number. Reads the files of a run of the GPU bundle, of which any may be missing.

use std::path::Path;

use serde_json::{Value, json};

use crate::Failure;

/// Rows at which products are held against PyTorch's: all buckets.
const BUCKETS: [u64; 13] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Requests from which on a p99 is one.
const ENOUGH: u64 = 2000;

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    AtMost(f64),
    AtLeast(f64),
    /// The figure alone.
    Reported,
}

/// A figure that was asked for, and what came of it.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    what: String,
    asked: Asked,
    got: Option<f64>,
    /// Where the figure is from, or what is missing.
    note: String,
}

impl Entry {
    fn verdict(&self) -> &'static str {
        match (self.got, self.asked) {
            (None, _) => "not measured",
            (Some(got), Asked::AtMost(most)) if got <= most => "met",
            (Some(got), Asked::AtLeast(least)) if got >= least => "met",
            (Some(_), Asked::Reported) => "measured",
            (Some(_), _) => "missed",
        }
    }

    fn asked(&self) -> String {
        match self.asked {
            Asked::AtMost(most) => format!("at most {most}"),
            Asked::AtLeast(least) => format!("at least {least}"),
            Asked::Reported => "to be reported".into(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "asked": self.asked(),
            "got": self.got,
            "verdict": self.verdict(),
            "note": self.note,
        })
    }
}

/// Results of a run.
#[derive(Default)]
struct Results {
    gpu: bool,
    /// Name of the GPU.
    card: String,
    device: Vec<Value>,
    peers: Vec<Value>,
    /// Results of `compare`, the named policies on each model.
    compared: Vec<Value>,
}

/// Lines of JSON; none if the file is missing, and a line that was cut off is left out.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let parsed = text.lines().map(|line| serde_json::from_str(line).ok());
    parsed.flatten().collect()
}

impl Results {
    fn read(folder: &Path) -> Result<Self, Failure> {
        let environment = lines(&folder.join("environment.json"));
        let mut compared = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let file = entry?.path();
            let name = file.file_name().and_then(|n| n.to_str()).unwrap_or("");
            if name.starts_with("compare-") && name.ends_with(".json") {
                let text = std::fs::read_to_string(&file)?;
                compared.extend(serde_json::from_str::<Value>(&text));
            }
        }
        compared.sort_by_key(|c| c["runs"][0]["model"].to_string());
        Ok(Self {
            gpu: environment.first().is_some_and(|e| e["gpu"] == true),
            card: environment
                .first()
                .and_then(|e| e["device"].as_str())
                .unwrap_or_default()
                .to_owned(),
            device: lines(&folder.join("device.jsonl")),
            peers: lines(&folder.join("peers.jsonl")),
            compared,
        })
    }

    /// Figures `key` of the lines about `what` that have all of these entries.
    fn figures(&self, what: &str, entries: &[(&str, Value)], key: &str) -> Vec<f64> {
        of(&self.device, what, entries, key)
    }

    /// The one figure, or the worst of several.
    fn most(&self, what: &str, entries: &[(&str, Value)], key: &str) -> Option<f64> {
        let all = self.figures(what, entries, key).into_iter();
        all.max_by(f64::total_cmp)
    }

    /// The largest ratio of ours to PyTorch's faster form over all buckets, and at which rows.
    fn over_pytorch(&self, out: &str) -> Result<(f64, u64), String> {
        let mut worst = (0.0, 0);
        for rows in BUCKETS {
            let same = [("rows", rows.into())];
            let ours = self.figures("bare product, bf16 to f32, cuBLASLt", &same, "us");
            let same = [("rows", rows.into()), ("out", out.into())];
            let theirs = of(&self.peers, "linear layer, bf16", &same, "us");
            let fastest = theirs.into_iter().min_by(f64::total_cmp);
            let (Some(ours), Some(theirs)) = (ours.first(), fastest) else {
                return Err(format!("no figures of both at {rows} rows"));
            };
            if ours / theirs > worst.0 {
                worst = (ours / theirs, rows);
            }
        }
        Ok(worst)
    }
}

fn of(all: &[Value], what: &str, entries: &[(&str, Value)], key: &str) -> Vec<f64> {
    let is_about = |line: &&Value| {
        line["what"] == what && entries.iter().all(|(key, value)| line[*key] == *value)
    };
    let figures = all.iter().filter(is_about).map(|line| line[key].as_f64());
    figures.flatten().collect()
}

fn entry(what: impl Into<String>, asked: Asked, got: Option<f64>, note: &str) -> Entry {
    Entry {
        what: what.into(),
        asked,
        got: got.map(|v| format!("{v:.3e}").parse().unwrap_or(v)),
        note: note.into(),
    }
}

/// What a copy in TB/s and a large product in TFLOP/s have to reach for the measuring to be believed,
/// by the card: five sixths of its memory's rate, and 700 of the 989 that its tensor cores have at
/// most. Of a card that is not known nothing is asked.
fn asked_of(card: &str) -> [Asked; 2] {
    let [copy, product] = match card {
        "NVIDIA H200" => [4.0, 700.0],
        "NVIDIA H100 80GB HBM3" => [2.8, 700.0],
        _ => return [Asked::Reported; 2],
    };
    [copy, product].map(Asked::AtLeast)
}

/// All figures that were asked for.
fn entries(results: &Results) -> Vec<Entry> {
    use Asked::{AtMost, Reported};
    let mut all = Vec::new();
    let [copy, product] = asked_of(&results.card);
    let of_card = match copy {
        Reported => "device.jsonl; what the card can do is not known".to_owned(),
        _ => format!("device.jsonl; of {}", results.card),
    };
    for by in ["cuBLASLt", "own", "own, matrix instructions"] {
        let at = [("rows", 128.into()), ("by", by.into())];
        all.push(entry(
            format!("linear layer, bf16 4096 x 4096, 128 rows over one row, {by}"),
            AtMost(1.3),
            results.most("linear layer, bf16", &at, "over_one_row"),
            "device.jsonl",
        ));
    }
    all.push(entry(
        "copy, TB/s read and written",
        copy,
        results.most("copy", &[], "tb_per_s"),
        &of_card,
    ));
    all.push(entry(
        "large product, bf16, TFLOP/s",
        product,
        results.most("large product, bf16, cuBLASLt", &[], "tflop_per_s"),
        &of_card,
    ));
    // The same types on both sides where PyTorch has them.
    let (ratio, note) = match (results.over_pytorch("f32"), results.over_pytorch("bf16")) {
        (Ok((ratio, rows)), _) => (Some(ratio), format!("worst at {rows} rows; f32 results")),
        (Err(_), Ok((ratio, rows))) => {
            let note = format!("worst at {rows} rows; ours has f32 results, PyTorch's bf16");
            (Some(ratio), note)
        }
        (Err(_), Err(why)) => (None, why),
    };
    let what = "product, bf16 4096 x 4096, over PyTorch's at every bucket of rows";
    all.push(entry(what, AtMost(1.05), ratio, &note));
    all.push(entry(
        "merge of two sub-batches, of a segment",
        AtMost(0.05),
        results.most("merge of two sub-batches", &[], "of_segment"),
        "device.jsonl",
    ));
    all.push(entry(
        "host time of a segment's launch, us, median",
        AtMost(10.0),
        results.most("host time of a segment's launch", &[], "us"),
        "device.jsonl; the larger of 1 and 128 rows",
    ));
    for in_flight in [1, 2] {
        let at = [("in_flight", in_flight.into())];
        all.push(entry(
            format!("GPU idle between segments under load, {in_flight} in flight"),
            AtMost(0.03),
            results.most("idle between segments, served", &at, "idle_share"),
            "device.jsonl; engine and adaptive, the larger of 1 and 128 rows",
        ));
        all.push(entry(
            format!("wait of one that preempts, p99 in segments, {in_flight} in flight"),
            AtMost(2.0),
            results.most("wait of one that preempts, served", &at, "segments_p99"),
            "device.jsonl; engine and lazy",
        ));
    }
    for rows in [1, 128] {
        all.push(entry(
            format!("deterministic linear layer over cuBLASLt's, {rows} rows"),
            Reported,
            results.most(
                "cost of determinism, linear layer",
                &[("rows", rows.into())],
                "own_over_cublaslt",
            ),
            "device.jsonl",
        ));
    }
    all.push(entry(
        "deterministic stack of layers over cuBLASLt's",
        Reported,
        results.most(
            "cost of determinism, stack of layers",
            &[],
            "own_over_cublaslt",
        ),
        "device.jsonl; the worst of all rows",
    ));
    all.extend(compared(results));
    all
}

/// `adaptive` over the better of the other named policies: mean, p99, and throughput.
fn compared(results: &Results) -> Vec<Entry> {
    let mut all = Vec::new();
    for compared in &results.compared {
        let runs = compared["runs"].as_array().map_or(&[][..], Vec::as_slice);
        let model = runs.first().and_then(|r| r["model"].as_str());
        let Some(model) = model else { continue };
        let (mine, others): (Vec<&Value>, Vec<&Value>) =
            runs.iter().partition(|r| r["policy"] == "adaptive");
        let requests = runs.iter().filter_map(|r| r["requests"].as_u64());
        let requests = requests.min().unwrap_or(0);
        for (key, is_rate) in [
            ("mean_ms", false),
            ("p99_ms", false),
            ("throughput_rps", true),
        ] {
            let figure = |run: &&&Value| run[key].as_f64();
            let theirs = others.iter().filter_map(|r| figure(&r));
            let best = match is_rate {
                true => theirs.max_by(f64::total_cmp),
                false => theirs.min_by(f64::total_cmp),
            };
            let mine = mine.first().and_then(|r| figure(&r));
            let is_enough = key != "p99_ms" || requests >= ENOUGH;
            let got = mine.zip(best).filter(|(_, best)| *best > 0.0 && is_enough);
            let note = match is_enough {
                true => format!("{requests} requests a policy"),
                false => format!("a p99 wants {ENOUGH} requests, got {requests}"),
            };
            let what = format!("{model}: adaptive over the better of greedy and graph:5, {key}");
            all.push(entry(what, Asked::Reported, got.map(|(a, b)| a / b), &note));
        }
    }
    if all.is_empty() {
        let what = "adaptive over the better of greedy and graph:5";
        all.push(entry(what, Asked::Reported, None, "no results of compare"));
    }
    all
}

/// The verdict as JSON, and as a table.
fn verdict(results: &Results) -> (Value, String) {
    let mut all = entries(results);
    if !results.gpu {
        // Whatever the files say, it is none of a GPU's.
        for entry in &mut all {
            entry.got = None;
        }
    }
    let mut table = String::new();
    for entry in &all {
        let got = entry.got.map_or("-".to_owned(), |v| v.to_string());
        table += &format!(
            "{:<12} {got:>9}  {}: {} ({})\n",
            entry.verdict(),
            entry.what,
            entry.asked(),
            entry.note
        );
    }
    let asked: Vec<Value> = all.iter().map(Entry::json).collect();
    (json!({ "gpu": results.gpu, "asked": asked }), table)
}

/// Writes `verdict.json` into the folder of a run's results and prints the table.
pub fn run(folder: &Path) -> Result<(), Failure> {
    let (file, table) = verdict(&Results::read(folder)?);
    let text = serde_json::to_string_pretty(&file)? + "\n";
    std::fs::write(folder.join("verdict.json"), text)?;
    print!("{table}");
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
mod tests {
    use super::*;

    fn found<'a>(file: &'a Value, what: &str) -> &'a Value {
        let mut all = file["asked"].as_array().unwrap().iter();
        let is_it = |e: &&Value| e["what"].as_str().unwrap().starts_with(what);
        all.find(is_it).unwrap()
    }

    /// Results in which all is well, but idle time with one in flight.
    fn results() -> Results {
        let mut device = vec![
            json!({"what": "linear layer, bf16", "by": "own", "rows": 128, "over_one_row": 1.2}),
            json!({"what": "linear layer, bf16", "by": "cuBLASLt", "rows": 128, "over_one_row": 1.31}),
            json!({"what": "linear layer, bf16", "by": "cuBLASLt", "rows": 64, "over_one_row": 9}),
            json!({"what": "copy", "mib": 1024, "tb_per_s": 4.3}),
            json!({"what": "host time of a segment's launch", "rows": 1, "us": 8.0}),
            json!({"what": "host time of a segment's launch", "rows": 128, "us": 11.0}),
            json!({"what": "idle between segments, served", "in_flight": 1, "idle_share": 0.08}),
            json!({"what": "idle between segments, served", "in_flight": 2, "idle_share": 0.01}),
        ];
        let mut peers = Vec::new();
        for rows in BUCKETS {
            device.push(
                json!({"what": "bare product, bf16 to f32, cuBLASLt", "rows": rows, "us": 10.0}),
            );
            let slow = if rows == 24 { 9.6 } else { 10.0 };
            peers.push(json!({"what": "linear layer, bf16", "by": "eager", "rows": rows, "out": "bf16", "us": 12.0}));
            peers.push(json!({"what": "linear layer, bf16", "by": "graph", "rows": rows, "out": "bf16", "us": slow}));
        }
        let run = |policy: &str, mean: f64, requests: u64| {
            json!({"policy": policy, "model": "m", "requests": requests, "mean_ms": mean,
                   "p99_ms": 2.0 * mean, "throughput_rps": 100.0})
        };
        let compared = |requests| {
            json!({"runs": [run("adaptive", 2.0, requests), run("greedy", 5.0, requests),
                            run("graph:5", 4.0, requests)]})
        };
        Results {
            gpu: true,
            card: "NVIDIA H200".into(),
            device,
            peers,
            compared: vec![compared(2000)],
        }
    }

    #[test]
    fn figures_are_held_against_what_was_asked() {
        let (file, table) = verdict(&results());
        let of = |what: &str| {
            let entry = found(&file, what);
            (
                entry["verdict"].as_str().unwrap().to_owned(),
                entry["got"].as_f64(),
            )
        };
        let linear = "linear layer, bf16 4096 x 4096, 128 rows over one row, ";
        assert_eq!(
            of(&format!("{linear}cuBLASLt")),
            ("missed".into(), Some(1.31))
        );
        assert_eq!(of(&format!("{linear}own")), ("met".into(), Some(1.2)));
        assert_eq!(of("copy"), ("met".into(), Some(4.3)));
        assert_eq!(of("large product"), ("not measured".into(), None));
        assert_eq!(of("host time"), ("missed".into(), Some(11.0)));
        let idle = "GPU idle between segments under load, ";
        assert_eq!(of(&format!("{idle}1")), ("missed".into(), Some(0.08)));
        assert_eq!(of(&format!("{idle}2")), ("met".into(), Some(0.01)));
        // PyTorch's faster form counts, and the worst bucket.
        let product = found(&file, "product, bf16");
        assert_eq!(product["verdict"], "met");
        assert_eq!(product["got"], 1.042);
        assert!(
            product["note"]
                .as_str()
                .unwrap()
                .contains("at 24 rows; ours has f32")
        );
        assert_eq!(
            of("m: adaptive over the better of greedy and graph:5, mean_ms"),
            ("measured".into(), Some(0.5))
        );
        assert_eq!(
            of("m: adaptive over the better of greedy and graph:5, throughput_rps").1,
            Some(1.0)
        );
        assert!(
            table.contains("met                4.3  copy, TB/s read and written: at least 4 ("),
            "{table}"
        );
    }

    #[test]
    fn what_is_asked_of_a_copy_depends_on_the_card() {
        let mut results = results();
        let last = results.device.iter_mut().find(|l| l["what"] == "copy");
        last.unwrap()["tb_per_s"] = 2.9.into();
        for (card, asked, said) in [
            ("NVIDIA H200", "at least 4", "missed"),
            ("NVIDIA H100 80GB HBM3", "at least 2.8", "met"),
            ("NVIDIA GH200 480GB", "to be reported", "measured"),
            ("", "to be reported", "measured"),
        ] {
            results.card = card.into();
            let (file, _) = verdict(&results);
            let copy = found(&file, "copy");
            assert_eq!(
                (&copy["asked"], &copy["verdict"]),
                (&asked.into(), &said.into())
            );
        }
    }

    #[test]
    fn a_bucket_that_is_missing_leaves_the_ratio_open() {
        let mut results = results();
        results.peers.retain(|line| line["rows"] != 48);
        let (file, _) = verdict(&results);
        let product = found(&file, "product, bf16");
        assert_eq!(product["verdict"], "not measured");
        assert_eq!(product["note"], "no figures of both at 48 rows");
    }

    #[test]
    fn a_p99_of_few_requests_is_none() {
        let mut results = results();
        for run in results.compared[0]["runs"].as_array_mut().unwrap() {
            run["requests"] = 1999.into();
        }
        let (file, _) = verdict(&results);
        let p99 = found(
            &file,
            "m: adaptive over the better of greedy and graph:5, p99_ms",
        );
        assert_eq!(p99["verdict"], "not measured");
        assert_eq!(p99["note"], "a p99 wants 2000 requests, got 1999");
    }

    #[test]
    fn without_a_gpu_nothing_was_measured() {
        let mut results = results();
        results.gpu = false;
        for results in [results, Results::default()] {
            let (file, _) = verdict(&results);
            assert_eq!(file["gpu"], false);
            let asked = file["asked"].as_array().unwrap();
            assert!(asked.len() >= 10);
            for entry in asked {
                assert_eq!(entry["verdict"], "not measured");
                assert!(entry["got"].is_null());
            }
        }
    }
}
