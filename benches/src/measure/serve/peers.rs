//! The front end beside Triton: the same ONNX models, the same open-loop client, the same arrivals.
//!
//! A server of each kind runs in turn on the same cores. Rates climb until one is not
//! sustained: an answer that is missing, or a p99 beyond the limit.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use lazybatch_benches::record::merge;
use lazybatch_benches::serving::call::{self, Caller, Message, Status};
use lazybatch_benches::serving::child::Server;
use lazybatch_benches::serving::{Way, drive};
use lazybatch_workloads::arrivals::{Arrival, transform};
use lazybatch_workloads::traces;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Settings;
use super::ladder::{self, Climb, Compared, Ladder};
use crate::measure::args::{above_0, positive, read};

/// Where the scripts lie, from the root of the repository.
pub const SCRIPTS: &str = "benches/peers";
/// Kinds of servers, by the repository that each serves. The first is ours.
const KINDS: [&str; 4] = ["lazybatch", "triton-0", "triton-2000", "triton-iterative"];
/// Models, features of a position, shortest and longest request.
const MODELS: [(&str, Features, usize, usize); 3] = [
    ("lstm", Features::Fixed(16), 5, 40),
    ("decoder", Features::Fixed(16), 5, 40),
    ("encoder", Features::Width, 16, 128),
];
/// Messages that arrivals draw from.
const POOL: usize = 48;

#[derive(Clone, Copy)]
enum Features {
    Fixed(usize),
    Width,
}

/// What the command line says.
pub struct Options {
    /// What all of them take.
    pub settings: Settings,
    /// The interpreter of the peers' environment.
    pub python: PathBuf,
    hidden: usize,
    width: usize,
    /// Rates, and when one is sustained.
    pub ladder: Ladder,
    models: Vec<String>,
    arrivals: Arrivals,
    kinds: Option<Vec<String>>,
}

/// When requests come.
enum Arrivals {
    Poisson,
    /// As in a file: stretches of what it holds, at the rate that is asked for.
    Trace(String, Vec<Arrival>),
}

impl Arrivals {
    /// `poisson`, or `trace:FILE`.
    fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "poisson" {
            return Ok(Self::Poisson);
        }
        let Some(file) = text.strip_prefix("trace:") else {
            bail!("--arrivals: expected poisson or trace:FILE, got {text}");
        };
        let read = traces::Options {
            format: None,
            model: Some("any".into()),
        };
        let all = traces::read(file.as_ref(), &read).context("--arrivals")?;
        Ok(Self::Trace(text.to_owned(), all))
    }

    /// As it was stated.
    fn name(&self) -> &str {
        match self {
            Self::Poisson => "poisson",
            Self::Trace(name, _) => name,
        }
    }

    /// Times at a mean of `rate` a second over `span`, others for each seed.
    fn times(&self, rate: f64, span: Duration, seed: u64) -> anyhow::Result<Vec<Duration>> {
        match self {
            Self::Poisson => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                Ok(drive::poisson(rate, span, &mut rng))
            }
            Self::Trace(_, all) => {
                let num = (rate * span.as_secs_f64()).ceil() as usize;
                let drawn = transform::stretch(all, num, rate, seed)?;
                Ok(drawn.iter().map(|a| Duration::from_nanos(a.at.0)).collect())
            }
        }
    }
}

/// A model that is measured.
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Features of a position.
    pub features: usize,
    /// Requests that arrivals draw from.
    pub pool: Vec<Item>,
}

impl Options {
    /// Reads the arguments behind `serve-peers`.
    ///
    /// # Errors
    /// An option that is not there, or a value that it cannot have.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let mut python = ".triton/bin/python".into();
        let (mut hidden, mut width) = (256, 256);
        let (mut first_rate, mut step, mut limit_ms) = (25.0, 1.5, 250.0);
        let mut between = 2;
        let mut models: Vec<String> = MODELS.iter().map(|m| m.0.to_owned()).collect();
        let mut arrivals = Arrivals::Poisson;
        let mut kinds = None;
        let settings = Settings::parse(args, command, |key, value| {
            match key {
                "--python" => python = value.into(),
                "--hidden" => hidden = positive(key, value)?,
                "--width" => width = positive(key, value)?,
                "--first-rate" => first_rate = above_0(key, value)?,
                "--step" => step = above_0(key, value)?,
                "--between" => between = read(key, value, "a whole number")?,
                "--limit-ms" => limit_ms = above_0(key, value)?,
                "--models" => models.retain(|m| value.split(',').any(|v| v == m)),
                "--arrivals" => arrivals = Arrivals::parse(value)?,
                "--kinds" => kinds = Some(value.split(',').map(str::to_owned).collect()),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        ensure!(
            !models.is_empty(),
            "--models: expected some of lstm, decoder, encoder"
        );
        ensure!(step > 1.0, "--step: expected a number above 1, got {step}");
        Ok(Self {
            settings,
            python,
            hidden,
            width,
            ladder: Ladder {
                first_rate,
                step,
                limit_ms,
                between,
            },
            models,
            arrivals,
            kinds,
        })
    }

    /// Those that are measured: `all`, or those that `--kinds` names, each of `all` or another that there
    /// `is_too`.
    ///
    /// # Errors
    /// `--kinds` names another.
    pub fn kinds(&self, all: &[&str], is_too: fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
        let Some(named) = &self.kinds else {
            return Ok(all.iter().map(ToString::to_string).collect());
        };
        for name in named {
            let expected = all.join(", ");
            let is_known = all.contains(&name.as_str()) || is_too(name);
            ensure!(is_known, "--kinds: expected some of {expected}, got {name}");
        }
        Ok(named.clone())
    }

    /// Those that are measured.
    pub fn models(&self) -> Vec<Model> {
        let chosen = MODELS
            .into_iter()
            .filter(|m| self.models.iter().any(|c| c == m.0));
        let model = |(name, features, shortest, longest)| {
            let features = match features {
                Features::Fixed(num) => num,
                Features::Width => self.width,
            };
            Model {
                name,
                features,
                pool: pool(features, shortest..=longest),
            }
        };
        chosen.map(model).collect()
    }

    /// Writes the models, and repositories of them, to a folder.
    ///
    /// # Errors
    /// A script that does not run.
    pub fn write_models(&self) -> anyhow::Result<TempDir> {
        let place = tempfile::tempdir()?;
        let mut write = Command::new(&self.python);
        write
            .arg(format!("{SCRIPTS}/serving_models.py"))
            .arg(place.path())
            .args(["--hidden", &self.hidden.to_string()])
            .args(["--width", &self.width.to_string()]);
        let status = write.status();
        let status = status.with_context(|| format!("cannot run {}", self.python.display()))?;
        ensure!(status.success(), "writing the models: {status}");
        Ok(place)
    }

    /// What every line says of the run, beside `own`.
    pub fn figures(&self, mut own: Value) -> Value {
        let more = json!({
            "arrivals": self.arrivals.name(), "limit_ms": self.ladder.limit_ms, "hidden": self.hidden,
            "width": self.width,
        });
        merge(&mut own, more);
        own
    }

    /// Times of arrivals at a mean of `rate` a second, in step `step` of a climb of turn `turn`.
    ///
    /// # Errors
    /// A trace without a rate.
    pub fn times(&self, rate: f64, turn: usize, step: usize) -> anyhow::Result<Vec<Duration>> {
        let seed = self.settings.seed + (100 * turn + step) as u64;
        self.arrivals.times(rate, self.settings.span, seed)
    }

    fn start(&self, kind: &str, root: &Path) -> anyhow::Result<Server> {
        if kind == KINDS[0] {
            return self.settings.front_end(&root.join(kind));
        }
        let start = || {
            let mut command = self.settings.server_cores.run(&self.python);
            command
                .arg(format!("{SCRIPTS}/triton.py"))
                .arg(root.join(kind));
            Server::start(&mut command)
        };
        // Its processes find each other by locks that time out on a machine that is held up.
        start().or_else(|error| {
            eprintln!("{kind}, once more: {error:#}");
            start()
        })
    }
}

/// Runs the measurement.
///
/// # Errors
/// Scripts or servers that do not run, or requests without an answer.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let settings = &options.settings;
    let place = options.write_models()?;
    let recorder = settings.recorder("serve-peers")?;
    let models = options.models();
    let kinds = options.kinds(&KINDS, |_| false)?;
    for &way in &settings.ways {
        let mut climbs = Vec::new();
        for turn in 0..settings.repeats {
            for i in 0..kinds.len() {
                let kind = kinds[(turn + i) % kinds.len()].as_str();
                let server = options.start(kind, place.path())?;
                for model in &models {
                    if kind != "triton-iterative" || model.name != "encoder" {
                        let climb = climb(options, &server, (way, kind), model, turn);
                        let climb = drive::run(climb)?;
                        told(way, turn, settings.repeats, &climb);
                        climbs.push(climb);
                    }
                }
            }
        }
        let figures = |what: &str| options.figures(settings.figures(way, what));
        let compared = Compared {
            kinds: &kinds,
            ours: KINDS[0],
            over: &[("lazybatch over best of triton", &KINDS[1..])],
        };
        ladder::record(&recorder, &climbs, compared, figures)?;
    }
    Ok(())
}

/// Says how far the run is: lines are written when all turns are over.
fn told(way: Way, turn: usize, repeats: usize, climb: &Climb) {
    let way = way.name();
    eprintln!("{way}, turn {} of {repeats}: {climb}", turn + 1);
}

/// Values of a request, and its length.
#[derive(Clone, Debug)]
pub struct Item {
    /// Positions.
    pub len: usize,
    /// `[len, features]`.
    pub values: Vec<f32>,
}

/// Requests of mixed lengths.
fn pool(features: usize, lengths: RangeInclusive<usize>) -> Vec<Item> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut item = || {
        let len = rng.random_range(lengths.clone());
        let values = (0..len * features).map(|_| rng.random_range(-1.0..1.0));
        Item {
            len,
            values: values.collect(),
        }
    };
    (0..POOL).map(|_| item()).collect()
}

async fn climb(
    options: &Options,
    server: &Server,
    (way, kind): (Way, &str),
    model: &Model,
    turn: usize,
) -> anyhow::Result<Climb> {
    let at = (way, server.at(way));
    let message = |item: &Item| {
        let dims = [1, item.len, model.features];
        call::infer(way, model.name, "x", &dims, &item.values)
    };
    let messages: Vec<Message> = model.pool.iter().map(message).collect();
    let mut caller = Caller::connect(way, at.1).await?;
    // Once for what is made at the first use.
    for message in &messages {
        let answer = caller.call(message).await?;
        ensure!(
            answer.status == Status::Done,
            "{kind} {}: {answer:?}",
            model.name
        );
    }
    let mut climb = options.ladder.climb(kind, model.name);
    while let Some((step, rate)) = climb.next() {
        let times = options.times(rate, turn, step)?;
        let sent = drive::open(at, &messages, &times, 8).await?;
        let done = |s: &drive::Sent| (s.status == Status::Done).then_some(s.latency_us / 1e3);
        climb.put(sent.iter().map(done).collect::<Vec<_>>())?;
    }
    Ok(climb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_of_a_trace_keep_its_gaps_at_the_rate_that_is_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("trace.csv");
        // Gaps of 0, 1 and 3 s, again and again.
        let lines = (0..90).map(|i| {
            let at = i / 3 * 4 + [0, 0, 1][i % 3];
            let (minutes, seconds) = (at / 60, at % 60);
            format!("2023-11-16 18:{minutes:02}:{seconds:02}.0000000,10,20\n")
        });
        let text = format!(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n{}",
            lines.collect::<String>()
        );
        std::fs::write(&file, text).unwrap();
        let arrivals = Arrivals::parse(&format!("trace:{}", file.display())).unwrap();
        let span = Duration::from_millis(100);
        let times = |seed| arrivals.times(90.0, span, seed).unwrap();
        let first = times(1);
        assert_eq!(first.len(), 9);
        let gaps: Vec<f64> = first
            .windows(2)
            .map(|w| (w[1] - w[0]).as_secs_f64())
            .collect();
        let unit = gaps[1];
        for (gap, of) in gaps.iter().zip([0.0, 1.0, 3.0].iter().cycle()) {
            assert!((gap - of * unit).abs() < 1e-6, "{gaps:?}");
        }
        let rate = 8.0 / first[8].as_secs_f64();
        assert!((rate - 90.0).abs() < 1e-3, "{rate}");
        assert_eq!(times(1), times(1));
        let parts = (times(2).len(), times(11), times(1));
        assert_eq!(
            (parts.0, parts.1),
            (9, parts.2),
            "ten stretches, then again"
        );
        for (bad, part) in [
            (
                "even",
                "--arrivals: expected poisson or trace:FILE, got even",
            ),
            ("trace:nowhere.csv", "--arrivals"),
        ] {
            let message = Arrivals::parse(bad).err().unwrap().to_string();
            assert!(message.starts_with(part), "{message}");
        }
    }
}
