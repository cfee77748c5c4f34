//! Results: finished requests, their summary, and the files and tables they end up in.
//!
//! A driver hands over one [`FinishedRequest`] per accepted request and its [`Counters`];
//! [`RunResult::summarise`] turns them into the numbers of the `lazybatch-results/1` file. Times
//! stay integer nanoseconds up to the last division.

pub mod requests_csv;
pub mod rounds;
pub mod summary;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use lazybatch_sla::{Nanos, Outcome, Time};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The value of `format` in a results file.
pub const FORMAT: &str = "lazybatch-results/1";

/// A request that has ended, in whichever way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    /// The row number of its arrival, from 0.
    pub id: u64,
    /// The model it asked for.
    pub model: Arc<str>,
    /// When it was scheduled to arrive.
    pub arrival: Time,
    /// When its first launch was issued; `None` if it never ran.
    pub first_launch: Option<Time>,
    /// When it ended.
    pub finish: Time,
    /// How it ended.
    pub outcome: Outcome,
    /// Its input length.
    pub input_len: u32,
    /// Its true output length.
    pub output_len: u32,
    /// Name of its SLA class, if it stated one.
    pub class: Option<Arc<str>>,
}

impl FinishedRequest {
    /// From arrival to end.
    pub fn latency(&self) -> Nanos {
        self.finish.since(self.arrival)
    }
}

/// What a driver counted during a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Node executions: a launch of several nodes has as many.
    pub launches: u64,
    /// Samples of all of them together.
    pub members: u64,
    /// Merges of sub-batches.
    pub merges: u64,
    /// Preemptions of sub-batches.
    pub preemptions: u64,
    /// Requests that were demoted because they were too late.
    pub demoted: u64,
    /// How long each decision with two or more legal actions took; `None` without `--timing`.
    pub decisions: Option<Vec<Nanos>>,
}

/// One row of a results file: a policy on a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The policy.
    pub policy: String,
    /// Which time it was served, from 1; `None` where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// The model.
    pub model: String,
    /// Mean rate at which requests were offered.
    pub rate_rps: f64,
    /// Latency target; where models have different ones, that of the first.
    pub sla_ms: f64,
    /// The latency target of each model, where they differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sla_ms_by_model: BTreeMap<String, f64>,
    /// Requests that arrived.
    pub requests: u64,
    /// Mean latency of completed requests; this and the percentiles are 0 where none completed.
    pub mean_ms: f64,
    /// Median latency, nearest rank.
    pub p50_ms: f64,
    /// 90th percentile, nearest rank.
    pub p90_ms: f64,
    /// 99th percentile, nearest rank.
    pub p99_ms: f64,
    /// Largest latency.
    pub max_ms: f64,
    /// Completed requests per second.
    pub throughput_rps: f64,
    /// Requests within their target per second.
    pub goodput_rps: f64,
    /// Share of requests, cancelled ones left out, that were not answered in time.
    pub violation_rate: f64,
    /// Requests refused or given up by the scheduler.
    pub shed: u64,
    /// Requests lost to a device failure.
    pub failed: u64,
    /// Requests withdrawn by their client.
    #[serde(default)]
    pub cancelled: u64,
    /// Node executions: a launch of several nodes has as many.
    pub launches: u64,
    /// Mean samples of a node execution: its members, where each has one.
    pub mean_batch: f64,
    /// Merges of sub-batches.
    pub merges: u64,
    /// Preemptions of sub-batches.
    pub preemptions: u64,
    /// Requests that had to let others pass because they were too late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub demoted: u64,
    /// Median time of a decision; under `--timing` only, and where there was one to time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_us_p50: Option<f64>,
    /// 99th percentile of the time of a decision, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_us_p99: Option<f64>,
}

impl RunResult {
    /// Requests that were answered, in time or not.
    pub fn completed(&self) -> u64 {
        let others = self.shed + self.failed + self.cancelled;
        self.requests.saturating_sub(others)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The part of a run that is one SLA class: what of a [`RunResult`] is of single requests, about its
/// own. Launches, merges and preemptions are those of all classes together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are those of a run")]
pub struct ClassResult {
    /// Name of the class.
    pub class: String,
    pub policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    pub model: String,
    pub rate_rps: f64,
    /// Latency target that its requests were judged by; `None` where those of one model differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sla_ms_by_model: BTreeMap<String, f64>,
    pub requests: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub throughput_rps: f64,
    pub goodput_rps: f64,
    pub violation_rate: f64,
    pub shed: u64,
    pub failed: u64,
    #[serde(default)]
    pub cancelled: u64,
}

impl ClassResult {
    /// That of the class `class`, whose requests alone `run` is about.
    fn of(class: &str, run: RunResult, sla_ms: Option<f64>) -> Self {
        Self {
            class: class.into(),
            policy: run.policy,
            round: run.round,
            model: run.model,
            rate_rps: run.rate_rps,
            sla_ms,
            sla_ms_by_model: run.sla_ms_by_model,
            requests: run.requests,
            mean_ms: run.mean_ms,
            p50_ms: run.p50_ms,
            p90_ms: run.p90_ms,
            p99_ms: run.p99_ms,
            max_ms: run.max_ms,
            throughput_rps: run.throughput_rps,
            goodput_rps: run.goodput_rps,
            violation_rate: run.violation_rate,
            shed: run.shed,
            failed: run.failed,
            cancelled: run.cancelled,
        }
    }

    /// As a run of its requests alone, of which nobody counted launches.
    pub fn to_run(&self) -> RunResult {
        let (sla, none) = (Nanos::ZERO, Counters::default());
        RunResult {
            sla_ms: self.sla_ms.unwrap_or_default(),
            sla_ms_by_model: self.sla_ms_by_model.clone(),
            round: self.round,
            requests: self.requests,
            mean_ms: self.mean_ms,
            p50_ms: self.p50_ms,
            p90_ms: self.p90_ms,
            p99_ms: self.p99_ms,
            max_ms: self.max_ms,
            throughput_rps: self.throughput_rps,
            goodput_rps: self.goodput_rps,
            violation_rate: self.violation_rate,
            shed: self.shed,
            failed: self.failed,
            cancelled: self.cancelled,
            ..RunResult::summarise(&self.policy, &self.model, self.rate_rps, sla, &[], &none)
        }
    }
}

/// The target that all go by; `None` where they differ, and of none.
pub fn common(mut targets: impl Iterator<Item = Nanos>) -> Option<Nanos> {
    let first = targets.next()?;
    targets.all(|sla| sla == first).then_some(first)
}

/// A results file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Always [`FORMAT`].
    pub format: String,
    /// The command that produced it.
    pub command: String,
    /// Its seed.
    pub seed: u64,
    /// The device, real or simulated.
    pub device: String,
    /// One row per policy and model.
    pub runs: Vec<RunResult>,
    /// The same by SLA class, where requests state theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassResult>,
}

impl RunResult {
    /// The one latency target; `None` where models have different ones.
    pub fn common_sla_ms(&self) -> Option<f64> {
        self.sla_ms_by_model.is_empty().then_some(self.sla_ms)
    }
}

/// What requests were judged by: the target of the first model, and of each where they differ;
/// nothing where those of one model do.
fn judged_by(
    requests: &[FinishedRequest],
    targets: &[Nanos],
) -> (Option<Nanos>, BTreeMap<String, f64>) {
    let target = |r: &FinishedRequest| targets.get(r.id as usize).copied();
    let mut by_model: Vec<(&str, Option<Nanos>)> = Vec::new();
    for request in requests {
        match by_model
            .iter_mut()
            .find(|(name, _)| *name == &*request.model)
        {
            Some((_, sla)) if *sla == target(request) => {}
            Some((_, sla)) => *sla = None,
            None => by_model.push((&*request.model, target(request))),
        }
    }
    let known: Option<Vec<(&str, Nanos)>> = by_model
        .into_iter()
        .map(|(name, sla)| Some((name, sla?)))
        .collect();
    let Some(known) = known else {
        return (None, BTreeMap::new());
    };
    let each = known.iter().map(|(_, sla)| *sla);
    let one = common(each.clone());
    let sla = each.clone().next();
    let pairs = known
        .iter()
        .map(|(name, sla)| (name.to_string(), sla.as_ms()));
    (
        sla,
        one.map_or_else(|| pairs.collect(), |_| BTreeMap::new()),
    )
}

impl Results {
    /// A results file without rows yet.
    pub fn new(command: impl Into<String>, seed: u64, device: impl Into<String>) -> Self {
        let (command, device) = (command.into(), device.into());
        Self {
            format: FORMAT.into(),
            command,
            seed,
            device,
            runs: Vec::new(),
            classes: Vec::new(),
        }
    }

    /// Adds a run, and its classes by name. `targets` are what requests were judged by, by id.
    pub fn push(&mut self, run: RunResult, requests: &[FinishedRequest], targets: &[Nanos]) {
        let names: BTreeSet<&str> = requests.iter().filter_map(|r| r.class.as_deref()).collect();
        for class in names {
            let own = requests
                .iter()
                .filter(|r| r.class.as_deref() == Some(class));
            let own: Vec<FinishedRequest> = own.cloned().collect();
            let rate = run.rate_rps * own.len() as f64 / requests.len() as f64;
            let (sla, by_model) = judged_by(&own, targets);
            let (policy, model, none) = (&run.policy, &run.model, Counters::default());
            let told = sla.unwrap_or_default();
            let mut of_class = RunResult::summarise(policy, model, rate, told, &own, &none);
            of_class.sla_ms_by_model = by_model;
            of_class.round = run.round;
            let row = ClassResult::of(class, of_class, sla.map(Nanos::as_ms));
            self.classes.push(row);
        }
        self.runs.push(run);
    }

    /// What there was but for later rounds: one run for each policy and model.
    pub fn first_round(&self) -> Self {
        let is_first = |round: Option<u32>| round.is_none_or(|r| r == 1);
        let mut first = self.clone();
        first.runs.retain(|run| is_first(run.round));
        first.classes.retain(|class| is_first(class.round));
        first
    }

    /// The file's text: indented JSON with a newline at the end.
    pub fn to_json(&self) -> String {
        // Only a map with keys that are no strings or a failing `Serialize` could go wrong here.
        let mut text = serde_json::to_string_pretty(self).expect("plain fields serialise");
        text.push('\n');
        text
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`Error::Save`].
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_json()).map_err(|e| Error::save(path, e))
    }

    /// Parses the text of a results file, called `name` in messages.
    ///
    /// # Errors
    /// [`Error::File`] when it is not one.
    pub fn from_json(name: &str, text: &str) -> Result<Self> {
        let fault = |got: String| Error::File {
            file: name.to_owned(),
            expected: format!("results in the format {FORMAT}"),
            got,
        };
        let results: Self = serde_json::from_str(text).map_err(|e| fault(e.to_string()))?;
        if results.format != FORMAT {
            return Err(fault(format!("format `{}`", results.format)));
        }
        Ok(results)
    }

    /// Reads a results file.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::File`] when it is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        Self::from_json(&path.display().to_string(), &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the file format, as documented.
    const EXAMPLE: &str = r#"{ "format": "lazybatch-results/1", "command": "simulate", "seed": 1,
      "device": "npu", "runs": [
      { "policy": "greedy", "model": "toy", "rate_rps": 500.0, "sla_ms": 100.0, "requests": 5000,
        "mean_ms": 0.0, "p50_ms": 0.0, "p90_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0,
        "throughput_rps": 0.0, "goodput_rps": 0.0, "violation_rate": 0.0, "shed": 0, "failed": 0,
        "launches": 0, "mean_batch": 0.0, "merges": 0, "preemptions": 0,
        "decision_us_p50": 0.5, "decision_us_p99": 1.5 } ] }"#;

    #[test]
    fn every_documented_key_is_read_and_written() {
        let results = Results::from_json("r.json", EXAMPLE).unwrap();
        assert_eq!(results.runs[0].requests, 5000);
        assert_eq!(results.runs[0].decision_us_p99, Some(1.5));
        let documented: serde_json::Value = serde_json::from_str(EXAMPLE).unwrap();
        let written: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
        for (key, value) in documented["runs"][0].as_object().unwrap() {
            assert_eq!(&written["runs"][0][key], value, "{key}");
        }
        assert_eq!(
            Results::from_json("r.json", &results.to_json()).unwrap(),
            results
        );
    }

    #[test]
    fn decision_times_are_left_out_without_timing() {
        let mut results = Results::from_json("r.json", EXAMPLE).unwrap();
        results.runs[0].decision_us_p50 = None;
        results.runs[0].decision_us_p99 = None;
        assert!(!results.to_json().contains("decision_us"));
        assert_eq!(
            Results::from_json("r.json", &results.to_json()).unwrap(),
            results
        );
    }

    #[test]
    fn classes_say_what_was_judged_and_no_more() {
        let request = |id: u64, model: &str, class: &str| FinishedRequest {
            id,
            model: model.into(),
            arrival: Time::ZERO,
            first_launch: None,
            finish: Time(5),
            outcome: Outcome::Met,
            input_len: 0,
            output_len: 0,
            class: Some(class.into()),
        };
        let requests = [
            request(0, "toy", "own"),
            request(1, "toy", "own"),
            request(2, "toy", "mixed"),
            request(3, "toy", "mixed"),
            request(4, "toy", "two"),
            request(5, "gnmt", "two"),
        ];
        let targets = [7, 7, 7, 8, 7, 9].map(Nanos::from_ms);
        let mut results = Results::from_json("r.json", EXAMPLE).unwrap();
        let run = results.runs.remove(0);
        results.push(run, &requests, &targets);
        let written: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
        let rows = written["classes"].as_array().unwrap();
        let slas: Vec<_> = rows
            .iter()
            .map(|r| (&r["sla_ms"], &r["sla_ms_by_model"]))
            .collect();
        let null = serde_json::Value::Null;
        let by_model = serde_json::json!({ "gnmt": 9.0, "toy": 7.0 });
        let (seven, seven_of_toy) = (serde_json::json!(7.0), serde_json::json!(7.0));
        // By name: mixed, own, two.
        assert_eq!(
            slas,
            [(&null, &null), (&seven, &null), (&seven_of_toy, &by_model)]
        );
        for row in rows {
            for key in ["launches", "mean_batch", "merges", "preemptions"] {
                assert!(row.get(key).is_none(), "{row}");
            }
        }
        assert_eq!(
            Results::from_json("r.json", &results.to_json()).unwrap(),
            results
        );
        // Files of before have those keys.
        let old = results.to_json().replace(
            "\"class\": \"own\",",
            "\"class\": \"own\", \"launches\": 0,",
        );
        assert_eq!(Results::from_json("r.json", &old).unwrap(), results);
    }

    #[test]
    fn other_files_are_refused() {
        let message = |text: &str| Results::from_json("r.json", text).unwrap_err().to_string();
        let other = EXAMPLE.replace("results/1", "results/9");
        let expected = "r.json: expected results in the format lazybatch-results/1, \
                        got format `lazybatch-results/9`";
        assert_eq!(message(&other), expected);
        assert!(message("{}").contains("missing field `format`"));
    }
}
