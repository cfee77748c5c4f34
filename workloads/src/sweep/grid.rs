//! Grid files: what a sweep covers. TOML, flat, every key documented in docs/sweeps.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lazybatch_engine::policy;
use lazybatch_sla::profile::TARGETS_MS;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Grids that are part of the program: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("paper", include_str!("../../grids/paper.toml")),
    ("paper-quick", include_str!("../../grids/paper-quick.toml")),
    ("max-batch", include_str!("../../grids/max-batch.toml")),
    ("sla", include_str!("../../grids/sla.toml")),
    ("windows", include_str!("../../grids/windows.toml")),
    ("coverage", include_str!("../../grids/coverage.toml")),
    ("co-located", include_str!("../../grids/co-located.toml")),
    ("overload", include_str!("../../grids/overload.toml")),
    ("bursts", include_str!("../../grids/bursts.toml")),
    ("traces", include_str!("../../grids/traces.toml")),
    ("segments", include_str!("../../grids/segments.toml")),
    (
        "around-capacity",
        include_str!("../../grids/around-capacity.toml"),
    ),
];

/// Most arrivals of one run.
pub const MAX_REQUESTS: usize = 10_000_000;
/// Most seeds of a grid.
const MAX_SEEDS: usize = 10_000;
/// Largest rate, load, target or time that a grid may state, in its own unit.
const MAX_NUMBER: f64 = 1e9;

/// A value or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a value or a list of values of one kind")]
enum OneOrMany<T> {
    Many(Vec<T>),
    One(T),
}

impl<T> OneOrMany<T> {
    fn list(self) -> Vec<T> {
        match self {
            Self::Many(list) => list,
            Self::One(one) => vec![one],
        }
    }
}

/// Seeds by number or by list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a number of seeds or a list of seeds")]
enum Seeds {
    Num(u64),
    List(Vec<u64>),
}

impl Seeds {
    /// The seeds; else what is wrong with them.
    fn list(self) -> Result<Vec<u64>, String> {
        let list = match self {
            Self::Num(n) if n > MAX_SEEDS as u64 => return Err(n.to_string()),
            Self::Num(n) => (1..=n).collect(),
            Self::List(list) if list.len() > MAX_SEEDS => {
                return Err(format!("a list of {}", list.len()));
            }
            Self::List(list) => list,
        };
        let mut seen = BTreeSet::new();
        match list.iter().find(|&&seed| !seen.insert(seed)) {
            Some(seed) => Err(format!("`{seed}` twice")),
            None if list.is_empty() => Err("none".into()),
            None => Ok(list),
        }
    }
}

/// A grid file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    about: Option<String>,
    device: Option<String>,
    profile: Option<PathBuf>,
    models: Vec<String>,
    rates: Option<Vec<f64>>,
    loads: Option<Vec<f64>>,
    slas_ms: Vec<f64>,
    policies: Vec<String>,
    skip_unknown_policies: Option<bool>,
    windows: Option<Vec<f64>>,
    seeds: Option<Seeds>,
    requests: usize,
    seconds: Option<f64>,
    seconds_near_capacity: Option<f64>,
    settle: Option<f64>,
    arrivals: Option<OneOrMany<String>>,
    lengths: Option<String>,
    overheads: Option<OneOrMany<bool>>,
    decide_us: Option<f64>,
    segment: Option<OneOrMany<u32>>,
    max_batch: Option<OneOrMany<u32>>,
    coverage: Option<OneOrMany<f64>>,
    bound: Option<bool>,
}

/// What is simulated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// An analytic device model, by name.
    Device(String),
    /// A profile file.
    Profile(PathBuf),
}

/// How much is offered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offered {
    /// Requests per second.
    Rates(Vec<f64>),
    /// Shares of the capacity of the case ([`super::cases::Lab::capacity`]).
    Loads(Vec<f64>),
}

/// A model, or several on one device, as `NAME` or `NAME:SHARE+NAME:SHARE`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Workload {
    /// Models with their shares of the rate, which add up to 1.
    pub parts: Vec<(String, f64)>,
    /// As the grid writes it.
    pub label: String,
}

impl From<Workload> for String {
    fn from(workload: Workload) -> Self {
        workload.label
    }
}

impl TryFrom<String> for Workload {
    type Error = String;

    fn try_from(label: String) -> Result<Self, String> {
        let mut parts: Vec<(String, f64)> = Vec::new();
        for part in label.split('+') {
            let (name, share) = match part.split_once(':') {
                Some((name, share)) => (name, share.parse().unwrap_or(f64::NAN)),
                None => (part, 1.0),
            };
            let name = name.trim().to_owned();
            let again = parts.iter().any(|(n, _)| *n == name);
            if name.is_empty() || again || !(share > 0.0 && share <= MAX_NUMBER) {
                return Err(format!("`{label}`"));
            }
            parts.push((name, share));
        }
        let total: f64 = parts.iter().map(|(_, share)| share).sum();
        for (_, share) in &mut parts {
            *share /= total;
        }
        Ok(Self { parts, label })
    }
}

/// What is varied besides models, rates, targets, policies and seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Arrival process, `poisson`, `constant`, `gamma:CV`, `onoff:ON:OFF:ON_MS:OFF_MS` with the
    /// two rates as multiples of the mean, or `trace:FILE`.
    pub arrivals: String,
    /// Whether dispatch and merge copies cost what the device says.
    pub overheads: bool,
    /// Nodes per segment.
    pub segment: u32,
    /// Max batch of every model, where it is not the profile's.
    pub max_batch: Option<u32>,
    /// Share of output lengths that the predictor covers, where it is not the profile's.
    pub coverage: Option<f64>,
}

impl Setting {
    /// What differs from the defaults, in a few words; empty for a setting of defaults.
    pub fn label(&self) -> String {
        let mut parts = Vec::new();
        if self.arrivals != "poisson" {
            parts.push(self.arrivals.clone());
        }
        if !self.overheads {
            parts.push("free overheads".into());
        }
        if self.segment != 1 {
            parts.push(format!("segments of {}", self.segment));
        }
        if let Some(max_batch) = self.max_batch {
            parts.push(format!("max batch {max_batch}"));
        }
        if let Some(coverage) = self.coverage {
            parts.push(format!("coverage {coverage}"));
        }
        parts.join(", ")
    }
}

/// What files from before there were bounds mean by their silence.
fn yes() -> bool {
    true
}

/// A checked grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Its name: of a built-in grid, or the stem of its file.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// What is simulated on.
    pub source: Source,
    /// Models and sets of models.
    pub models: Vec<Workload>,
    /// How much is offered.
    pub offered: Offered,
    /// Latency targets in milliseconds, ascending.
    pub slas_ms: Vec<f64>,
    /// Policies in the order shown, windows included.
    pub policies: Vec<String>,
    /// Windows in milliseconds; each is a policy `graph:W`.
    pub windows: Vec<f64>,
    /// Seeds in the order in which they run.
    pub seeds: Vec<u64>,
    /// Arrivals of a run at the least.
    pub requests: usize,
    /// Seconds of arrivals of a run at the least.
    pub seconds: f64,
    /// The same at loads of 0.9 to 1.1, if more.
    #[serde(default)]
    pub seconds_near_capacity: f64,
    /// Relative paired standard error at which a case takes no further seeds; 0 takes all.
    pub settle: f64,
    /// Length distribution; each model's own if absent, `trace` for those of a trace.
    pub lengths: Option<String>,
    /// Microseconds that a decision takes.
    pub decide_us: f64,
    /// What else is varied.
    pub settings: Vec<Setting>,
    /// Whether every point gets the bounds that no schedule can beat.
    #[serde(default = "yes")]
    pub bound: bool,
    /// What was left out on the way here, and why.
    pub skipped: Vec<String>,
    /// Folder that relative file names start from.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The file that it was read from.
    #[serde(skip)]
    origin: Origin,
}

/// The file that a grid was read from, for faults that only show once it runs.
#[derive(Clone, Debug, Default)]
struct Origin {
    file: String,
    text: String,
}

impl PartialEq for Origin {
    /// Where a grid was read makes no other grid of it.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Text of a grid with what is needed to name a place in it.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    /// A fault of the value of `key`.
    fn fault(&self, key: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
        let states = |line: &str| {
            let rest = line.trim_start().strip_prefix(key);
            rest.is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        let line = self.text.lines().position(states);
        Error::Field {
            file: self.file.into(),
            line: line.map_or(1, |l| l as u64 + 1),
            column: key.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    fn syntax(&self, error: &toml::de::Error) -> Error {
        let start = error.span().map_or(0, |span| span.start);
        let before = self.text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count();
        let text = self.text.lines().nth(line).unwrap_or_default();
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        let missing = error.message().strip_prefix("missing field ");
        let key = missing.map_or(key.trim(), |name| name.trim_matches('`'));
        let wanted = match key {
            "seeds" => Some("a number of seeds, or a list of seeds of 0 or more"),
            "segment" | "max_batch" => Some("a whole number of 1 or more, or a list of such"),
            // What a list of several kinds is refused with says what was expected.
            _ => Some(error.message()).filter(|told| told.starts_with("a value or a list")),
        };
        let (expected, got) = match wanted.filter(|_| !value.trim().is_empty()) {
            Some(wanted) => (wanted, format!("`{}`", value.trim())),
            None => (
                "a grid as docs/sweeps.md describes it",
                error.message().into(),
            ),
        };
        Error::Field {
            file: self.file.into(),
            line: line as u64 + 1,
            column: if key.is_empty() { "(none)" } else { key }.into(),
            expected: expected.into(),
            got,
        }
    }

    /// Checks a list of values: there are some, none is there twice.
    fn each_once<T: PartialEq + std::fmt::Display>(&self, key: &str, list: &[T]) -> Result<()> {
        let expected = "at least one value, each once";
        if list.is_empty() {
            return Err(self.fault(key, expected, "an empty list"));
        }
        for (i, x) in list.iter().enumerate() {
            if list[..i].contains(x) {
                return Err(self.fault(key, expected, format!("`{x}` twice")));
            }
        }
        Ok(())
    }

    /// Checks a list of numbers: there are some, each fits, none is there twice.
    fn numbers(&self, key: &str, list: &[f64], low: f64, high: f64) -> Result<()> {
        let expected = format!("numbers above {low}, at most {high:e}, each once");
        if list.is_empty() {
            return Err(self.fault(key, expected, "an empty list"));
        }
        for (i, &x) in list.iter().enumerate() {
            if !(x > low && x <= high) || list[..i].contains(&x) {
                return Err(self.fault(key, expected, x.to_string()));
            }
        }
        Ok(())
    }
}

impl Grid {
    /// The built-in grid of that name, or the grid in a file of that name.
    ///
    /// # Errors
    /// A file that cannot be read, or a fault in it with line and key.
    pub fn load(spec: &str) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == spec) {
            return Self::parse(name, name, text);
        }
        let path = Path::new(spec);
        if !path.exists() {
            let names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            let expected = format!("a file or one of {}", names.join(", "));
            return Err(Error::parameter("grid", expected, format!("`{spec}`")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut grid = Self::parse(&stem, spec, &text)?;
        grid.folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(grid)
    }

    /// Parses and checks the text of a grid, called `file` in messages.
    ///
    /// # Errors
    /// The first fault, with line and key.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Self> {
        let place = Place { file, text };
        let raw: Raw = toml::from_str(text).map_err(|e| place.syntax(&e))?;
        let source = match (raw.device, raw.profile) {
            (Some(device), None) => Source::Device(device),
            (None, Some(path)) => Source::Profile(path),
            (None, None) => {
                return Err(place.fault("device", "`device` or `profile`", "neither"));
            }
            (Some(_), Some(_)) => {
                return Err(place.fault("profile", "`device` or `profile`", "both"));
            }
        };
        let offered = match (raw.rates, raw.loads) {
            (Some(rates), None) => {
                place.numbers("rates", &rates, 0.0, MAX_NUMBER)?;
                Offered::Rates(rates)
            }
            (None, Some(loads)) => {
                place.numbers("loads", &loads, 0.0, 100.0)?;
                Offered::Loads(loads)
            }
            (None, None) => return Err(place.fault("rates", "`rates` or `loads`", "neither")),
            (Some(_), Some(_)) => return Err(place.fault("loads", "`rates` or `loads`", "both")),
        };
        place.numbers("slas_ms", &raw.slas_ms, 0.0, MAX_NUMBER)?;
        let mut slas_ms = raw.slas_ms;
        slas_ms.sort_by(f64::total_cmp);
        if slas_ms[0] < *TARGETS_MS.start() {
            let expected = format!("numbers of {:e} or more", TARGETS_MS.start());
            return Err(place.fault("slas_ms", expected, format!("{:e}", slas_ms[0])));
        }

        let mut models: Vec<Workload> = Vec::new();
        for label in raw.models {
            let expected = "NAME, or NAME:SHARE+NAME:SHARE for several on one device, each once";
            let workload =
                Workload::try_from(label).map_err(|got| place.fault("models", expected, got))?;
            if models.iter().any(|m| m.label == workload.label) {
                let got = format!("`{}` twice", workload.label);
                return Err(place.fault("models", expected, got));
            }
            models.push(workload);
        }
        if models.is_empty() {
            return Err(place.fault("models", "at least one model", "none"));
        }

        let windows = raw.windows.unwrap_or_default();
        if !windows.is_empty() {
            place.numbers("windows", &windows, 0.0, MAX_NUMBER)?;
        }
        let mut wanted: Vec<String> = raw.policies;
        wanted.extend(windows.iter().map(|w| format!("graph:{w}")));
        let mut policies = Vec::new();
        let mut skipped = Vec::new();
        for spec in wanted.iter().map(|spec| policy::canonical(spec)) {
            match policy::find(&spec) {
                Ok(_) if policies.contains(&spec) => {}
                Ok(_) => policies.push(spec),
                Err(e) if raw.skip_unknown_policies == Some(true) => {
                    skipped.push(format!("policy {}: expected {}", e.got, e.expected));
                }
                Err(e) => return Err(place.fault("policies", e.expected, format!("`{spec}`"))),
            }
        }
        if policies.is_empty() {
            return Err(place.fault("policies", "at least one policy", "none"));
        }

        let seeds = raw.seeds.unwrap_or(Seeds::Num(1)).list().map_err(|got| {
            let expected = format!("1 to {MAX_SEEDS} seeds, each once");
            place.fault("seeds", expected, got)
        })?;
        if !(1..=MAX_REQUESTS).contains(&raw.requests) {
            let expected = format!("1 to {MAX_REQUESTS} arrivals a run");
            return Err(place.fault("requests", expected, raw.requests.to_string()));
        }
        let between = |key, value: Option<f64>, low: f64, high: f64| match value {
            Some(x) if !(low..=high).contains(&x) => {
                let expected = format!("a number from {low} to {high:e}");
                Err(place.fault(key, expected, x.to_string()))
            }
            value => Ok(value.unwrap_or(0.0)),
        };

        let mut settings = Vec::new();
        let all = |list: Option<OneOrMany<u32>>| list.map(OneOrMany::list);
        let (segments, batches) = (all(raw.segment), all(raw.max_batch));
        for (key, list) in [("segment", &segments), ("max_batch", &batches)] {
            if let Some(list) = list {
                place.each_once(key, list)?;
            }
            for x in list.iter().flatten() {
                if !(1..=1 << 16).contains(x) {
                    return Err(place.fault(key, "1 to 65536", x.to_string()));
                }
            }
        }
        let coverages = raw.coverage.map(OneOrMany::list);
        if let Some(list) = &coverages {
            place.numbers("coverage", list, 0.0, 1.0)?;
        }
        let processes = raw.arrivals.map_or(vec!["poisson".into()], OneOrMany::list);
        place.each_once("arrivals", &processes)?;
        for process in &processes {
            if !super::cases::is_process(process) {
                let got = format!("`{process}`");
                return Err(place.fault("arrivals", super::cases::PROCESSES, got));
            }
        }
        let optional = |list: Option<Vec<u32>>| -> Vec<Option<u32>> {
            list.map_or(vec![None], |l| l.into_iter().map(Some).collect())
        };
        let coverages = coverages.map_or(vec![None], |l| l.into_iter().map(Some).collect());
        let overheads = raw.overheads.map_or(vec![true], OneOrMany::list);
        place.each_once("overheads", &overheads)?;
        for overheads in overheads {
            for arrivals in &processes {
                for &segment in segments.as_deref().unwrap_or(&[1]) {
                    for &max_batch in &optional(batches.clone()) {
                        for &coverage in &coverages {
                            settings.push(Setting {
                                arrivals: arrivals.clone(),
                                overheads,
                                segment,
                                max_batch,
                                coverage,
                            });
                        }
                    }
                }
            }
        }
        Ok(Self {
            name: name.into(),
            about: raw.about.unwrap_or_default(),
            source,
            models,
            offered,
            slas_ms,
            policies,
            windows,
            seeds,
            requests: raw.requests,
            seconds: between("seconds", raw.seconds, 0.0, 1e6)?,
            seconds_near_capacity: between(
                "seconds_near_capacity",
                raw.seconds_near_capacity,
                0.0,
                1e6,
            )?,
            settle: between("settle", raw.settle, 0.0, 1.0)?,
            lengths: raw.lengths,
            decide_us: between("decide_us", raw.decide_us, 0.0, 1e9)?,
            settings,
            bound: raw.bound.unwrap_or(true),
            skipped,
            folder: PathBuf::new(),
            origin: Origin {
                file: file.into(),
                text: text.into(),
            },
        })
    }

    /// A fault of the value of `key` that shows only now.
    pub fn fault(&self, key: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
        let Origin { file, text } = &self.origin;
        match file.is_empty() {
            // One that results hold.
            true => Error::parameter(key, expected, got),
            false => Place { file, text }.fault(key, expected, got),
        }
    }

    /// What is wrong with a parameter as a fault of the value of `key`.
    pub fn blame(&self, key: &str, error: Error) -> Error {
        match error {
            Error::Parameter { expected, got, .. } => self.fault(key, expected, got),
            other => other,
        }
    }

    /// Keeps only these models, in the grid's order.
    ///
    /// # Errors
    /// A model that the grid does not have.
    pub fn keep_models(&mut self, labels: &[String]) -> Result<()> {
        let known: Vec<&str> = self.models.iter().map(|m| m.label.as_str()).collect();
        if let Some(other) = labels.iter().find(|l| !known.contains(&l.as_str())) {
            let expected = format!("some of {}", known.join(", "));
            return Err(Error::parameter("models", expected, format!("`{other}`")));
        }
        self.models.retain(|m| labels.contains(&m.label));
        Ok(())
    }

    /// Runs these policies instead, numbers written in one way, and no windows but those among them.
    ///
    /// # Errors
    /// A policy that is not registered.
    pub fn set_policies(&mut self, specs: &[String]) -> Result<()> {
        for spec in specs {
            policy::find(spec).map_err(|e| Error::parameter("policies", e.expected, e.got))?;
        }
        self.policies.clear();
        for spec in specs.iter().map(|spec| policy::canonical(spec)) {
            if !self.policies.contains(&spec) {
                self.policies.push(spec);
            }
        }
        self.windows
            .retain(|w| self.policies.contains(&format!("graph:{w}")));
        Ok(())
    }

    /// How many simulations there are at most.
    pub fn num_simulations(&self) -> usize {
        let of_policy = |p: &String| match super::score::ignores_sla(p) {
            true => 1,
            false => self.slas_ms.len(),
        };
        let num_offered = match &self.offered {
            Offered::Rates(list) | Offered::Loads(list) => list.len(),
        };
        let per_seed: usize = self.policies.iter().map(of_policy).sum();
        per_seed * self.seeds.len() * self.settings.len() * self.models.len() * num_offered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = "profile = 'p.json'\nmodels = ['toy', 'a:1+b:3']\nrates = [10, 20.5]\n\
        slas_ms = [100, 20]\npolicies = ['serial', 'greedy', 'graph:5']\nwindows = [5, 25]\n\
        seeds = 2\nrequests = 50\n";

    fn message(text: &str) -> String {
        Grid::parse("g", "g.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_grid_is_read_with_its_defaults() {
        let grid = Grid::parse("g", "g.toml", TINY).unwrap();
        assert_eq!(grid.policies, ["serial", "greedy", "graph:5", "graph:25"]);
        assert_eq!(grid.slas_ms, [20.0, 100.0]);
        assert_eq!(grid.seeds, [1, 2]);
        assert_eq!(
            grid.models[1].parts,
            [("a".into(), 0.25), ("b".into(), 0.75)]
        );
        assert_eq!(grid.settings.len(), 1);
        assert_eq!(grid.settings[0].label(), "");
        assert_eq!(grid.num_simulations(), 4 * 2 * 2 * 2);
    }

    #[test]
    fn lists_multiply_into_settings() {
        let text =
            format!("{TINY}max_batch = [1, 64]\noverheads = [false, true]\narrivals = 'gamma:2'\n");
        let grid = Grid::parse("g", "g.toml", &text).unwrap();
        let labels: Vec<_> = grid.settings.iter().map(Setting::label).collect();
        assert_eq!(
            labels,
            [
                "gamma:2, free overheads, max batch 1",
                "gamma:2, free overheads, max batch 64",
                "gamma:2, max batch 1",
                "gamma:2, max batch 64"
            ]
        );
    }

    #[test]
    fn faults_name_line_and_key() {
        for (from, to, parts) in [
            (
                "rates = [10, 20.5]",
                "rates = [10, 0]",
                ["line 3", "rates", "got 0"],
            ),
            (
                "rates = [10, 20.5]",
                "rates = []",
                ["line 3", "rates", "an empty list"],
            ),
            (
                "rates = [10, 20.5]",
                "rates = 'x'",
                ["line 3", "rates", "string"],
            ),
            (
                "rates = [10, 20.5]",
                "loads = [1]\nrates = [1]",
                ["line 3", "loads", "both"],
            ),
            (
                "seeds = 2",
                "seeds = -1",
                [
                    "line 7, column seeds",
                    "expected a number of seeds, or a list",
                    "got `-1`",
                ],
            ),
            (
                "seeds = 2",
                "segment = -1",
                [
                    "line 7, column segment",
                    "expected a whole number of 1 or more",
                    "got `-1`",
                ],
            ),
            (
                "seeds = 2",
                "sedes = 2",
                ["line 7", "sedes", "unknown field"],
            ),
            (
                "seeds = 2",
                "seeds = [1, 1]",
                ["line 7", "seeds", "each once"],
            ),
            (
                "seeds = 2",
                "seeds = 4294967295",
                ["line 7", "seeds", "got 4294967295"],
            ),
            (
                "seeds = 2",
                "segment = [1, 1]",
                ["line 7", "column segment", "got `1` twice"],
            ),
            (
                "seeds = 2",
                "overheads = []",
                ["line 7", "column overheads", "got an empty list"],
            ),
            ("'greedy'", "'greedi'", ["line 5", "policies", "`greedi`"]),
            ("'a:1+b:3'", "'a:1+a:3'", ["line 2", "models", "`a:1+a:3`"]),
            (
                "requests = 50",
                "requests = 0",
                ["line 8", "requests", "got 0"],
            ),
            (
                "requests = 50\n",
                "",
                ["line 1", "column requests", "missing field"],
            ),
            (
                "slas_ms = [100, 20]",
                "slas_ms = [100, nan]",
                ["line 4", "slas_ms", "NaN"],
            ),
            (
                "windows",
                "arrivals = 'gamma'\nwindows",
                ["line 6", "arrivals", "gamma:CV"],
            ),
        ] {
            let text = TINY.replace(from, to);
            let message = message(&text);
            for part in parts {
                assert!(message.contains(part), "{part:?} missing in {message}");
            }
            assert!(message.starts_with("g.toml: "), "{message}");
        }
        let seeds: Vec<String> = (0..20_000).map(|n: u32| n.to_string()).collect();
        let seeds = format!("seeds = [{}]", seeds.join(", "));
        let message = message(&TINY.replace("seeds = 2", &seeds));
        assert!(message.ends_with("got a list of 20000"), "{message}");
    }

    #[test]
    fn a_policy_that_is_named_twice_runs_once() {
        let mut grid = Grid::load("paper-quick").unwrap();
        let specs = ["lazy", "graph:05", "lazy", "graph:5.0"].map(String::from);
        grid.set_policies(&specs).unwrap();
        assert_eq!(grid.policies, ["lazy", "graph:5"]);
    }

    #[test]
    fn built_in_grids_are_valid() {
        for (name, text) in BUILT_IN {
            let grid = Grid::parse(name, name, text).unwrap();
            assert!(
                !grid.about.is_empty() && grid.num_simulations() > 0,
                "{name}"
            );
        }
        assert!(
            Grid::load("papers")
                .unwrap_err()
                .to_string()
                .contains("paper-quick")
        );
    }

    #[test]
    fn unknown_policies_are_skipped_only_where_the_grid_says_so() {
        let text = TINY.replace("'greedy'", "'someday'");
        assert!(message(&text).contains("`someday`"));
        let grid = Grid::parse("g", "g", &format!("{text}skip_unknown_policies = true\n")).unwrap();
        assert_eq!(grid.policies, ["serial", "graph:5", "graph:25"]);
        assert!(grid.skipped[0].contains("someday"));
    }
}
