//! The front end beside Triton: the same ONNX models, the same open-loop client, the same arrivals.
//!
//! A server of each kind runs in turn on the same cores. Rates climb by half until one is not
//! sustained: an answer that is missing, or a p99 beyond the limit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::serving::call::{self, Caller, Message, Status};
use lazybatch_benches::serving::child::Server;
use lazybatch_benches::serving::{Way, drive};
use lazybatch_benches::spread::Spread;
use lazybatch_workloads::arrivals::transform;
use lazybatch_workloads::traces;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::Settings;
use crate::measure::args::{above_0, positive};

/// Where the scripts lie, from the root of the repository.
const SCRIPTS: &str = "benches/peers";
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
/// From one rate to the next.
const STEP: f64 = 1.5;
/// Most rates of a climb.
const MAX_STEPS: usize = 16;

#[derive(Clone, Copy)]
enum Features {
    Fixed(usize),
    Width,
}

/// What the command line says.
pub struct Options {
    settings: Settings,
    python: PathBuf,
    hidden: usize,
    width: usize,
    first_rate: f64,
    limit_ms: f64,
    models: Vec<String>,
    arrivals: String,
}

impl Options {
    /// Reads the arguments behind `serve-peers`.
    ///
    /// # Errors
    /// An option that is not there, or a value that it cannot have.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let mut python = ".triton/bin/python".into();
        let (mut hidden, mut width) = (256, 256);
        let (mut first_rate, mut limit_ms) = (25.0, 250.0);
        let mut models: Vec<String> = MODELS.iter().map(|m| m.0.to_owned()).collect();
        let mut arrivals = "poisson".to_owned();
        let settings = Settings::parse(args, command, |key, value| {
            match key {
                "--python" => python = value.into(),
                "--hidden" => hidden = positive(key, value)?,
                "--width" => width = positive(key, value)?,
                "--first-rate" => first_rate = above_0(key, value)?,
                "--limit-ms" => limit_ms = above_0(key, value)?,
                "--models" => models.retain(|m| value.split(',').any(|v| v == m)),
                "--arrivals" => arrivals = value.into(),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        ensure!(
            !models.is_empty(),
            "--models: expected some of lstm, decoder, encoder"
        );
        if arrivals != "poisson" && !arrivals.starts_with("trace:") {
            bail!("--arrivals: expected poisson or trace:FILE, got {arrivals}");
        }
        Ok(Self {
            settings,
            python,
            hidden,
            width,
            first_rate,
            limit_ms,
            models,
            arrivals,
        })
    }

    fn features(&self, of: Features) -> usize {
        match of {
            Features::Fixed(num) => num,
            Features::Width => self.width,
        }
    }

    /// Times of arrivals at a mean of `rate` a second.
    fn times(&self, rate: f64, seed: u64) -> anyhow::Result<Vec<Duration>> {
        let span = self.settings.span;
        let Some(file) = self.arrivals.strip_prefix("trace:") else {
            return Ok(drive::poisson(
                rate,
                span,
                &mut ChaCha8Rng::seed_from_u64(seed),
            ));
        };
        let read = traces::Options {
            format: None,
            model: Some("any".into()),
        };
        let all = traces::read(file.as_ref(), &read)?;
        let num = (rate * span.as_secs_f64()).ceil() as usize;
        let drawn = transform::stretch(&all, num, rate, seed)?;
        Ok(drawn.iter().map(|a| Duration::from_nanos(a.at.0)).collect())
    }

    fn start(&self, kind: &str, root: &Path) -> anyhow::Result<Server> {
        if kind == KINDS[0] {
            return self.settings.front_end(&root.join(kind));
        }
        let mut command = self.settings.server_cores.run(&self.python);
        command
            .arg(format!("{SCRIPTS}/triton.py"))
            .arg(root.join(kind));
        Server::start(&mut command)
    }
}

/// What became of one rate.
#[derive(Clone, Copy)]
struct Point {
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
    sustained: bool,
}

/// One server's climb with one model.
struct Climb {
    kind: &'static str,
    model: String,
    points: Vec<Point>,
}

impl Climb {
    /// The highest rate that was sustained; 0 if none was.
    fn sustained(&self) -> f64 {
        let held = self.points.iter().filter(|p| p.sustained);
        held.map(|p| p.rate).fold(0.0, f64::max)
    }
}

/// Runs the measurement.
///
/// # Errors
/// Scripts or servers that do not run, or requests without an answer.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let settings = &options.settings;
    let place = tempfile::tempdir()?;
    let mut write = Command::new(&options.python);
    write
        .arg(format!("{SCRIPTS}/serving_models.py"))
        .arg(place.path());
    write.args([
        "--hidden",
        &options.hidden.to_string(),
        "--width",
        &options.width.to_string(),
    ]);
    let status = write
        .status()
        .with_context(|| format!("cannot run {}", options.python.display()))?;
    ensure!(status.success(), "writing the models: {status}");
    let recorder = settings.recorder("serve-peers")?;
    for &way in &settings.ways {
        let mut climbs = Vec::new();
        for turn in 0..settings.repeats {
            for i in 0..KINDS.len() {
                let kind = KINDS[(turn + i) % KINDS.len()];
                let server = options.start(kind, place.path())?;
                for (model, features, shortest, longest) in MODELS {
                    let has_steps = kind != "triton-iterative" || model != "encoder";
                    if !has_steps || !options.models.iter().any(|m| m == model) {
                        continue;
                    }
                    let pool = pool(way, model, options.features(features), shortest..=longest);
                    let climb = climb(options, &server, (way, kind, model), &pool, turn);
                    climbs.push(drive::run(climb)?);
                }
            }
        }
        record(options, &recorder, way, &climbs)?;
    }
    Ok(())
}

/// Requests of mixed lengths.
fn pool(
    way: Way,
    model: &str,
    features: usize,
    lengths: std::ops::RangeInclusive<usize>,
) -> Vec<Message> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut message = || {
        let len = rng.random_range(lengths.clone());
        let values: Vec<f32> = (0..len * features)
            .map(|_| rng.random_range(-1.0..1.0))
            .collect();
        call::infer(way, model, "x", &[1, len, features], &values)
    };
    (0..POOL).map(|_| message()).collect()
}

async fn climb(
    options: &Options,
    server: &Server,
    (way, kind, model): (Way, &'static str, &str),
    pool: &[Message],
    turn: usize,
) -> anyhow::Result<Climb> {
    let at = (way, server.at(way));
    let mut caller = Caller::connect(way, at.1).await?;
    // Once for what is made at the first use.
    for message in pool {
        let answer = caller.call(message).await?;
        ensure!(answer.status == Status::Done, "{kind} {model}: {answer:?}");
    }
    let mut points = Vec::new();
    let mut rate = options.first_rate;
    for step in 0..MAX_STEPS {
        let seed = options.settings.seed + (100 * turn + step) as u64;
        let times = options.times(rate, seed)?;
        let sent = drive::open(at, pool, &times, 8).await?;
        let done = sent.iter().filter(|s| s.status == Status::Done);
        let latencies: Vec<f64> = done.map(|s| s.latency_us / 1e3).collect();
        let all = latencies.len() == sent.len();
        ensure!(
            !latencies.is_empty(),
            "{kind} {model} at {rate}/s: no answer"
        );
        let latency = Spread::of(latencies);
        let point = Point {
            rate,
            p50_ms: latency.median(),
            p99_ms: latency.percentile(99),
            sustained: all && latency.percentile(99) <= options.limit_ms,
        };
        points.push(point);
        if !point.sustained {
            break;
        }
        rate *= STEP;
    }
    Ok(Climb {
        kind,
        model: model.to_owned(),
        points,
    })
}

fn record(
    options: &Options,
    recorder: &Recorder,
    way: Way,
    climbs: &[Climb],
) -> anyhow::Result<()> {
    let line = |what: &str, model: &str, rate: Option<f64>, metric: &str, values: Vec<f64>| {
        let mut figures = options.settings.figures(way, what);
        let own = json!({
            "model": model, "rate": rate, "arrivals": options.arrivals,
            "limit_ms": options.limit_ms, "hidden": options.hidden, "width": options.width,
        });
        merge(&mut figures, own);
        recorder.line(figures, metric, &Spread::of(values))
    };
    for model in &options.models {
        let mut sustained = Vec::new();
        for kind in KINDS {
            let own: Vec<&Climb> = climbs
                .iter()
                .filter(|c| c.kind == kind && c.model == *model)
                .collect();
            if own.is_empty() {
                continue;
            }
            for step in 0..MAX_STEPS {
                let points: Vec<&Point> = own.iter().filter_map(|c| c.points.get(step)).collect();
                let Some(first) = points.first() else { break };
                let rate = Some(first.rate);
                let of = |f: fn(&Point) -> f64| points.iter().map(|p| f(p)).collect();
                line(kind, model, rate, "p50 ms", of(|p| p.p50_ms))?;
                line(kind, model, rate, "p99 ms", of(|p| p.p99_ms))?;
                line(
                    kind,
                    model,
                    rate,
                    "sustained",
                    of(|p| f64::from(p.sustained)),
                )?;
            }
            let rates: Vec<f64> = own.iter().map(|c| c.sustained()).collect();
            line(kind, model, None, "sustained/s", rates.clone())?;
            sustained.push(rates);
        }
        let ratio = |turn: usize| {
            let best = sustained[1..]
                .iter()
                .map(|rates| rates[turn])
                .fold(0.0, f64::max);
            sustained[0][turn] / best.max(options.first_rate / STEP)
        };
        let ratios = (0..options.settings.repeats).map(ratio).collect();
        line(
            "lazybatch over best of triton",
            model,
            None,
            "sustained ratio",
            ratios,
        )?;
    }
    Ok(())
}
