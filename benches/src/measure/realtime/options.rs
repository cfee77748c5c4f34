//! The command line of the comparison in real time.

use std::path::PathBuf;

use anyhow::{Context, bail};
use lazybatch_engine::policy;
use lazybatch_workloads::sweep::cases;
use lazybatch_workloads::zoo;

use crate::measure::args::{above_0, all_cores, pairs, positive, read};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// So many arrivals.
    Requests(usize),
    /// So many seconds of arrivals.
    Seconds(f64),
}

impl Span {
    /// Arrivals of a run at `rate_rps`, at least 10.
    pub fn requests(self, rate_rps: f64) -> usize {
        let num = match self {
            Self::Requests(num) => num,
            Self::Seconds(seconds) => (seconds * rate_rps).round() as usize,
        };
        num.max(10)
    }
}

/// What is compared, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model.
    pub entry: &'static zoo::Entry,
    /// Where lines go.
    pub out: PathBuf,
    /// Length of a run.
    pub span: Span,
    /// Offered rates as shares of the capacity.
    pub loads: Vec<f64>,
    /// Runs of each policy at each load.
    pub pairs: usize,
    /// The first is compared to each of the others.
    pub policies: Vec<String>,
    /// The arrival process, as grids spell it.
    pub arrivals: String,
    /// SLA target as a multiple of the mean time of a request alone.
    pub sla: f64,
    /// Most requests of one launch.
    pub max_batch: u32,
    /// Threads of the device.
    pub threads: usize,
    /// Seed of inputs, and of the first pair's arrivals.
    pub seed: u64,
    /// The command line that repeats this.
    pub command: String,
}

impl Options {
    /// Reads pairs of option and value.
    ///
    /// # Errors
    /// An option that is unknown, missing, or has a bad value.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (mut model, mut out, mut span) = (None, None, None);
        let mut options = Self {
            entry: &zoo::ENTRIES[0],
            out: PathBuf::new(),
            span: Span::Requests(0),
            loads: vec![0.6, 0.9],
            pairs: 7,
            policies: vec!["adaptive".into(), "greedy".into()],
            arrivals: "poisson".into(),
            sla: 5.0,
            max_batch: 64,
            threads: all_cores(),
            seed: 1,
            command: command.into(),
        };
        for (key, value) in pairs(args)? {
            match key {
                "--model" => {
                    let names: Vec<_> = zoo::names().collect();
                    model = Some(zoo::find(value).with_context(|| {
                        format!("--model: expected one of {}, got {value}", names.join(", "))
                    })?);
                }
                "--out" => out = Some(PathBuf::from(value)),
                "--requests" => span = Some(Span::Requests(positive(key, value)?)),
                "--seconds" => span = Some(Span::Seconds(above_0(key, value)?)),
                "--loads" => {
                    let loads = value.split(',').map(|load| above_0(key, load));
                    options.loads = loads.collect::<Result<_, _>>()?;
                }
                "--pairs" => options.pairs = positive(key, value)?,
                "--policies" => {
                    options.policies = value.split(',').map(str::to_string).collect();
                    for policy in &options.policies {
                        policy::find(policy).with_context(|| key.to_string())?;
                    }
                }
                "--arrivals" if cases::is_process(value) => options.arrivals = value.into(),
                "--arrivals" => bail!("{key}: expected {}, got {value}", cases::PROCESSES),
                "--sla" => options.sla = above_0(key, value)?,
                "--max-batch" => options.max_batch = positive(key, value)?,
                "--threads" => options.threads = positive(key, value)?,
                "--seed" => options.seed = read(key, value, "a whole number")?,
                _ => bail!("{key} {value}: no such option"),
            }
        }
        options.entry = model.context("--model: expected a model, got nothing")?;
        options.out = out.context("--out: expected a file, got nothing")?;
        let expected = "--requests or --seconds: expected a length of runs, got nothing";
        options.span = span.context(expected)?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Options::parse(&args, "toy")
    }

    #[test]
    fn options_are_read() {
        let line =
            "--model gnmt-tiny --out x.jsonl --seconds 2.5 --loads 0.5,0.8 --arrivals gamma:3";
        let options = parse(line).unwrap();
        assert_eq!(options.entry.name, "gnmt-tiny");
        assert_eq!(options.loads, [0.5, 0.8]);
        assert_eq!(options.span.requests(100.0), 250);
        assert_eq!(options.span.requests(0.1), 10);
        assert_eq!(options.policies, ["adaptive", "greedy"]);
    }

    #[test]
    fn bad_options_are_named() {
        let ok = "--model gnmt-tiny --out x --requests 20";
        for (line, told) in [
            ("--out x --requests 5", "--model: expected a model"),
            ("--model gnmt-tiny --requests 5", "--out: expected a file"),
            ("--model gnmt-tiny --out x", "--requests or --seconds"),
            ("--model x", "--model: expected one of"),
            (
                &format!("{ok} --loads 0.5,x"),
                "--loads: expected a number above 0, got x",
            ),
            (
                &format!("{ok} --loads inf"),
                "--loads: expected a number above 0, got inf",
            ),
            (
                &format!("{ok} --pairs 0"),
                "--pairs: expected a whole number above 0, got 0",
            ),
            (&format!("{ok} --policies fast"), "--policies"),
            (
                &format!("{ok} --arrivals now"),
                "--arrivals: expected poisson",
            ),
            (&format!("{ok} --speed 3"), "--speed 3: no such option"),
            (
                &format!("{ok} --pairs"),
                "--pairs: expected a value behind it",
            ),
        ] {
            let message = format!("{:#}", parse(line).unwrap_err());
            assert!(message.starts_with(told), "{line}: {message}");
        }
    }
}
