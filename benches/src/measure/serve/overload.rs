//! The front end under more than it can do: answers in time, refusals, and health meanwhile.
//!
//! The capacity is what a closed loop gets. Then requests come at multiples of it, as an open loop;
//! the queue is bounded to what is answered in time. Echo servers get the same requests, so that the
//! client's and the machine's own delays are known.
//!
//! With `--high-turns` the highest load alone is measured, in many turns of servers that both run.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::serving::call::{self, Message, Status};
use lazybatch_benches::serving::child::Server;
use lazybatch_benches::serving::drive::{self, Sent};
use lazybatch_benches::serving::{Way, models};
use lazybatch_benches::spread::Spread;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::Settings;
use crate::measure::args::{above_0, positive};

/// Offered rates as multiples of the capacity.
const LOADS: [f64; 6] = [0.5, 0.8, 1.0, 1.5, 2.0, 3.0];
/// Between two questions for health.
const HEALTH_EVERY: Duration = Duration::from_millis(5);
/// Connections that are there before the first request.
const READY: usize = 192;
/// Features of a step, and of the state.
const SIZES: (usize, usize) = (16, 256);

/// What the command line says.
pub struct Options {
    settings: Settings,
    /// Steps of a request.
    steps: usize,
    /// Milliseconds in which an answer counts.
    target_ms: f64,
    /// Turns of the highest load alone; every load once a repeat if `None`.
    high_turns: Option<usize>,
}

impl Options {
    /// Reads the arguments behind `serve-overload`.
    ///
    /// # Errors
    /// An option that is not there, or a value that it cannot have.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (mut steps, mut target_ms, mut high_turns) = (64, 100.0, None);
        let settings = Settings::parse(args, command, |key, value| {
            match key {
                "--steps" => steps = positive(key, value)?,
                "--target-ms" => target_ms = above_0(key, value)?,
                "--high-turns" => high_turns = Some(positive(key, value)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            settings,
            steps,
            target_ms,
            high_turns,
        })
    }

    fn message(&self, way: Way) -> Message {
        let dims = [1, self.steps, SIZES.0];
        let num: usize = dims.iter().product();
        let values: Vec<f32> = (0..num).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
        call::infer(way, "lstm", "x", &dims, &values)
    }
}

/// What became of the requests at one load.
struct Load {
    /// Answers in time, a second.
    goodput: f64,
    refused: usize,
    sent: usize,
    /// Milliseconds at p99; 0 if there were none.
    answer_ms: f64,
    refusal_ms: f64,
    health_ms: f64,
}

/// Runs the measurement.
///
/// # Errors
/// A server that does not start, or answers that are neither right nor refusals.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let settings = &options.settings;
    let recorder = settings.recorder("serve-overload")?;
    let models = tempfile::tempdir()?;
    let program = models::lstm(SIZES.0, SIZES.1, options.steps)?;
    for &way in &settings.ways {
        // What waits is answered within half of the target.
        models::add(models.path(), &program, "max_batch_size: 16\n")?;
        let capacity = capacity(options, &settings.front_end(models.path())?, way)?;
        let queue = ((capacity * options.target_ms / 2e3) as usize).max(1);
        let config = format!(
            "max_batch_size: 16\ndynamic_batching {{ default_queue_policy {{ max_queue_size: {queue} }} }}\n\
             parameters {{ key: \"sla_ms\" value {{ string_value: \"{}\" }} }}\n",
            options.target_ms
        );
        models::add(models.path(), &program, &config)?;
        if let Some(turns) = options.high_turns {
            high(
                options,
                &recorder,
                models.path(),
                way,
                (capacity, queue),
                turns,
            )?;
            continue;
        }
        let (mut front, mut echo) = (Vec::new(), Vec::new());
        for turn in 0..settings.repeats {
            let server = settings.front_end(models.path())?;
            let seed = settings.seed + 100 * turn as u64;
            let at = |load: f64| drive::run(offered(options, &server, way, load * capacity, seed));
            front.push(
                LOADS
                    .iter()
                    .map(|&l| at(l))
                    .collect::<Result<Vec<_>, _>>()?,
            );
            drop(server);
            let server = settings.echo()?;
            let rate = LOADS[LOADS.len() - 1] * capacity;
            echo.push(drive::run(offered(options, &server, way, rate, seed))?);
        }
        record(options, &recorder, way, (capacity, queue), &front, &echo)?;
    }
    Ok(())
}

/// Answers a second of a closed loop.
fn capacity(options: &Options, server: &Server, way: Way) -> anyhow::Result<f64> {
    let settings = &options.settings;
    let at = (way, server.at(way));
    let message = options.message(way);
    let (num, span) = (settings.connections, settings.span);
    let closed = drive::closed(at, &message, num, span, || Ok(()));
    Ok(drive::run(closed)?.rate)
}

/// Offers requests at `rate` a second, and asks for health meanwhile.
async fn offered(
    options: &Options,
    server: &Server,
    way: Way,
    rate: f64,
    seed: u64,
) -> anyhow::Result<Load> {
    let span = options.settings.span;
    let times = drive::poisson(rate, span, &mut ChaCha8Rng::seed_from_u64(seed));
    let num_health = (span.as_secs_f64() / HEALTH_EVERY.as_secs_f64()) as u32;
    let health_times: Vec<_> = (0..num_health).map(|i| i * HEALTH_EVERY).collect();
    let messages = [options.message(way)];
    let health = [call::get("/v2/health/ready")];
    let (sent, health) = tokio::try_join!(
        drive::open((way, server.at(way)), &messages, &times, READY),
        drive::open((Way::Http, server.http), &health, &health_times, 4),
    )?;
    let wrong = |s: &&Sent| matches!(s.status, Status::Failed(_) | Status::Broken);
    let unwell = health.iter().find(|s| s.status != Status::Done);
    if let Some(wrong) = sent.iter().find(wrong).or(unwell) {
        bail!("expected an answer or a refusal, got {wrong:?}");
    }
    let of = |status: Status| sent.iter().filter(move |s| s.status == status);
    let limit = options.target_ms * 1e3;
    let good = of(Status::Done).filter(|s| s.latency_us <= limit).count();
    Ok(Load {
        goodput: good as f64 / span.as_secs_f64(),
        refused: of(Status::Refused).count(),
        sent: sent.len(),
        answer_ms: p99_ms(of(Status::Done)),
        refusal_ms: p99_ms(of(Status::Refused)),
        health_ms: p99_ms(health.iter()),
    })
}

/// Measures the highest load alone: a line for each start of both servers, over their turns.
fn high(
    options: &Options,
    recorder: &Recorder,
    models: &Path,
    way: Way,
    (capacity, queue): (f64, usize),
    turns: usize,
) -> anyhow::Result<()> {
    let settings = &options.settings;
    let load = LOADS[LOADS.len() - 1];
    for start in 0..settings.repeats {
        let servers = [settings.front_end(models)?, settings.echo()?];
        let mut loads = [Vec::new(), Vec::new()];
        for turn in 0..turns {
            let seed = settings.seed + (start * turns + turn) as u64;
            // Each goes first in every other turn.
            for which in [turn % 2, 1 - turn % 2] {
                let offered = offered(options, &servers[which], way, load * capacity, seed);
                loads[which].push(drive::run(offered)?);
            }
        }
        let [front, echo] = &loads;
        let line = |what: &str, metric: &str, of: &dyn Fn(&Load, &Load) -> f64| {
            let mut figures = settings.figures(way, what);
            let own = json!({
                "capacity": capacity.round(), "max_queue": queue, "target_ms": options.target_ms,
                "steps": options.steps, "load": load, "start": start,
            });
            merge(&mut figures, own);
            let values = front.iter().zip(echo).map(|(front, echo)| of(front, echo));
            recorder.line(figures, metric, &Spread::of(values.collect()))
        };
        line("lazybatch", "goodput/s", &|own, _| own.goodput)?;
        line("lazybatch", "refusal p99 ms", &|own, _| own.refusal_ms)?;
        line("lazybatch", "health p99 ms", &|own, _| own.health_ms)?;
        line("echo", "answer p99 ms", &|_, echo| echo.answer_ms)?;
        line("echo", "health p99 ms", &|_, echo| echo.health_ms)?;
        let beyond = "lazybatch beyond echo";
        line(beyond, "refusal p99 ms", &|own, echo| {
            own.refusal_ms - echo.answer_ms
        })?;
        line(beyond, "health p99 ms", &|own, echo| {
            own.health_ms - echo.health_ms
        })?;
    }
    Ok(())
}

fn p99_ms<'a>(sent: impl Iterator<Item = &'a Sent>) -> f64 {
    let latencies: Vec<_> = sent.map(|s| s.latency_us / 1e3).collect();
    if latencies.is_empty() {
        return 0.0;
    }
    Spread::of(latencies).percentile(99)
}

fn record(
    options: &Options,
    recorder: &Recorder,
    way: Way,
    (capacity, queue): (f64, usize),
    front: &[Vec<Load>],
    echo: &[Load],
) -> anyhow::Result<()> {
    let line = |what: &str, load: Option<f64>, metric: &str, values: Vec<f64>| {
        let mut figures = options.settings.figures(way, what);
        let own = json!({
            "capacity": capacity.round(), "max_queue": queue, "target_ms": options.target_ms,
            "steps": options.steps, "load": load,
        });
        merge(&mut figures, own);
        recorder.line(figures, metric, &Spread::of(values))
    };
    for (i, &load) in LOADS.iter().enumerate() {
        let of = |f: &dyn Fn(&Load) -> f64| front.iter().map(|loads| f(&loads[i])).collect();
        let load = Some(load);
        line("lazybatch", load, "goodput/s", of(&|l| l.goodput))?;
        let refused = of(&|l| l.refused as f64 / l.sent as f64);
        line("lazybatch", load, "refused share", refused)?;
        line("lazybatch", load, "answer p99 ms", of(&|l| l.answer_ms))?;
        line("lazybatch", load, "refusal p99 ms", of(&|l| l.refusal_ms))?;
        line("lazybatch", load, "health p99 ms", of(&|l| l.health_ms))?;
    }
    let last = LOADS.len() - 1;
    let most = Some(LOADS[last]);
    let of = |f: &dyn Fn(&Load) -> f64| echo.iter().map(f).collect();
    line("echo", most, "answer p99 ms", of(&|l| l.answer_ms))?;
    line("echo", most, "health p99 ms", of(&|l| l.health_ms))?;
    let both = |f: &dyn Fn(&[Load], &Load) -> f64| {
        let pairs = front.iter().zip(echo);
        pairs.map(|(front, echo)| f(front, echo)).collect()
    };
    let kept = both(&|front, _| {
        let peak = front.iter().map(|l| l.goodput).fold(0.0, f64::max);
        front[last].goodput / peak
    });
    line("lazybatch", most, "goodput over peak", kept)?;
    let refusal = both(&|front, echo| front[last].refusal_ms - echo.answer_ms);
    line("lazybatch beyond echo", most, "refusal p99 ms", refusal)?;
    let health = both(&|front, echo| front[last].health_ms - echo.health_ms);
    line("lazybatch beyond echo", most, "health p99 ms", health)
}
