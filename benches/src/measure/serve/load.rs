//! The front end against bare echo servers: requests a second with as many connections, and latency
//! at a low rate.
//!
//! Front end and echo run in turns, on the same cores, under the same client. The model hands its
//! input on.
//!
//! With `--low-turns` low load alone is measured, in many short turns of servers that both run: what
//! one start of a server differs from the next by is told from what a turn does.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::bail;
use lazybatch_benches::record::{Recorder, merge};
use lazybatch_benches::serving::call::{self, Message, Status};
use lazybatch_benches::serving::child::Server;
use lazybatch_benches::serving::{Way, drive, models};
use lazybatch_benches::spread::Spread;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::Settings;
use crate::measure::args::{above_0, positive};

/// What the command line says.
pub struct Options {
    settings: Settings,
    /// Floats of a request.
    floats: usize,
    /// Requests a second at low load.
    rate: f64,
    /// Turns of low load alone for each start of both servers; everything once a start if `None`.
    low_turns: Option<usize>,
}

impl Options {
    /// Reads the arguments behind `serve-load`.
    ///
    /// # Errors
    /// An option that is not there, or a value that it cannot have.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (mut floats, mut rate, mut low_turns) = (256, 200.0, None);
        let settings = Settings::parse(args, command, |key, value| {
            match key {
                "--floats" => floats = positive(key, value)?,
                "--rate" => rate = above_0(key, value)?,
                "--low-turns" => low_turns = Some(positive(key, value)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            settings,
            floats,
            rate,
            low_turns,
        })
    }
}

/// What one run of one server gave.
struct Run {
    rate: f64,
    /// Microseconds of the server's processor time a request.
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Runs the measurement.
///
/// # Errors
/// A server that does not start, or answers that are wrong.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let models = tempfile::tempdir()?;
    let program = models::identity(options.floats)?;
    models::add(models.path(), &program, "max_batch_size: 64\n")?;
    let settings = &options.settings;
    let recorder = settings.recorder("serve-load")?;
    for &way in &settings.ways {
        if let Some(turns) = options.low_turns {
            low(options, &recorder, models.path(), way, turns)?;
            continue;
        }
        let mut runs = [Vec::new(), Vec::new()];
        for turn in 0..settings.repeats {
            // Each goes first in every other turn.
            for which in [turn % 2, 1 - turn % 2] {
                let server = match which {
                    0 => settings.front_end(models.path())?,
                    _ => settings.echo()?,
                };
                let seed = settings.seed + turn as u64;
                runs[which].push(drive::run(one(options, &server, way, seed))?);
            }
        }
        record(options, &recorder, way, &runs)?;
    }
    Ok(())
}

/// Asks once, and whether the answer is the input.
async fn is_right(at: (Way, &Server), message: &Message, values: &[f32]) -> anyhow::Result<()> {
    let mut caller = call::Caller::connect(at.0, at.1.at(at.0)).await?;
    let answer = caller.call(message).await?;
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    if answer.status != Status::Done || !answer.body.ends_with(&bytes) {
        bail!("expected the input as the answer, got {answer:?}");
    }
    Ok(())
}

/// The request, once the server has answered it as it should.
async fn message(options: &Options, server: &Server, way: Way) -> anyhow::Result<Message> {
    let values: Vec<f32> = (0..options.floats).map(|i| i as f32).collect();
    let message = call::infer(way, "identity", "x", &[1, options.floats], &values);
    is_right((way, server), &message, &values).await?;
    Ok(message)
}

async fn one(options: &Options, server: &Server, way: Way, seed: u64) -> anyhow::Result<Run> {
    let settings = &options.settings;
    let message = message(options, server, way).await?;
    let at = (way, server.at(way));
    let mut before = server.usage()?;
    let counting = || {
        before = server.usage()?;
        Ok(())
    };
    let (num, span) = (settings.connections, settings.span);
    let closed = drive::closed(at, &message, num, span, counting).await?;
    let cpu_us = (server.usage()?.cpu_us - before.cpu_us) as f64 / closed.answers.max(1) as f64;
    let latency = at_low_load(options, at, &message, seed).await?;
    Ok(Run {
        rate: closed.rate,
        cpu_us,
        p50_us: latency.median(),
        p99_us: latency.percentile(99),
    })
}

/// Microseconds to answers at the low rate, over the span of a run.
async fn at_low_load(
    options: &Options,
    at: (Way, SocketAddr),
    message: &Message,
    seed: u64,
) -> anyhow::Result<Spread> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let times = drive::poisson(options.rate, options.settings.span, &mut rng);
    let sent = drive::open(at, std::slice::from_ref(message), &times, 8).await?;
    if let Some(wrong) = sent.iter().find(|s| s.status != Status::Done) {
        bail!("expected answers, got {wrong:?}");
    }
    Ok(Spread::of(sent.iter().map(|s| s.latency_us).collect()))
}

/// Measures low load alone: a line for each start of both servers, over their turns.
fn low(
    options: &Options,
    recorder: &Recorder,
    models: &Path,
    way: Way,
    turns: usize,
) -> anyhow::Result<()> {
    let settings = &options.settings;
    for start in 0..settings.repeats {
        let servers = [settings.front_end(models)?, settings.echo()?];
        let mut p50s = [Vec::new(), Vec::new()];
        for turn in 0..turns {
            let seed = settings.seed + (start * turns + turn) as u64;
            // Each goes first in every other turn.
            for which in [turn % 2, 1 - turn % 2] {
                let server = &servers[which];
                let latency = drive::run(async {
                    let message = message(options, server, way).await?;
                    at_low_load(options, (way, server.at(way)), &message, seed).await
                });
                p50s[which].push(latency?.median());
            }
        }
        let beyond = p50s[0].iter().zip(&p50s[1]).map(|(own, echo)| own - echo);
        let beyond = beyond.collect();
        let [own, echo] = p50s;
        let lines = [
            ("lazybatch", own),
            ("echo", echo),
            ("lazybatch beyond echo", beyond),
        ];
        for (what, values) in lines {
            let mut figures = settings.figures(way, what);
            let own = json!({
                "floats": options.floats, "low_rate": options.rate, "start": start,
            });
            merge(&mut figures, own);
            recorder.line(figures, "p50 us", &Spread::of(values))?;
        }
    }
    Ok(())
}

fn record(
    options: &Options,
    recorder: &Recorder,
    way: Way,
    [front, echo]: &[Vec<Run>; 2],
) -> anyhow::Result<()> {
    let settings = &options.settings;
    let line = |what: &str, metric: &str, of: &dyn Fn(usize) -> f64| {
        let mut figures = settings.figures(way, what);
        let own = json!({
            "connections": settings.connections, "floats": options.floats, "low_rate": options.rate,
        });
        merge(&mut figures, own);
        let values = (0..settings.repeats).map(of).collect();
        recorder.line(figures, metric, &Spread::of(values))
    };
    for (what, runs) in [("lazybatch", front), ("echo", echo)] {
        line(what, "requests/s", &|i| runs[i].rate)?;
        line(what, "server us/request", &|i| runs[i].cpu_us)?;
        line(what, "p50 us", &|i| runs[i].p50_us)?;
        line(what, "p99 us", &|i| runs[i].p99_us)?;
    }
    let ratio = |i: usize| front[i].rate / echo[i].rate;
    line("lazybatch over echo", "requests/s ratio", &ratio)?;
    let beyond = |i: usize| front[i].p50_us - echo[i].p50_us;
    line("lazybatch beyond echo", "p50 us", &beyond)
}
