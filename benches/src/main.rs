//! `lazybatch-measure`: writes the figures that `benches/results/` keeps.
//!
//! `lazybatch-measure COMMAND FOLDER [--threads N] [--seed N] [--requests N] [--repeats N]`; see
//! [`USAGE`].

mod measure;

use std::path::PathBuf;

use anyhow::{Context, bail};
use lazybatch_benches::record::{self, Recorder};

/// What the command line says without arguments.
const USAGE: &str = "\
usage: lazybatch-measure COMMAND FOLDER [--threads N] [--seed N] [--requests N] [--repeats N]

  sim-vs-real  mean latency simulated over the measured profile against served, by policy
  window       how late the 5 ms window of graph:5 fires on an idle engine
  decision     time of a step and of a decision of the core under load, by policy
  steady       decisions in steady state, with several sub-batches and plans, by policy
  instructions instructions of a decision in steady state, by policy; needs valgrind, not in `all`
  dispatch     time of a launch of one tiny node, and of a round trip through the engine
  gemm         speed of the packed matrix product against the peak of multiply-adds
  all          the others

Lines are appended to FOLDER/COMMAND.jsonl, and FOLDER/environment.json is written.
--threads N    threads of the CPU device in sim-vs-real; all cores if absent
--seed N       seed of inputs and arrivals in sim-vs-real; 1 if absent
--requests N   arrivals of each run in sim-vs-real; 1500 if absent
--repeats N    repetitions of every measurement; 5 if absent";

/// What every measurement takes.
pub struct Settings {
    /// Where lines go.
    pub folder: PathBuf,
    /// Threads of the CPU device.
    pub threads: usize,
    /// Seed of inputs and arrivals.
    pub seed: u64,
    /// Arrivals of a run.
    pub requests: usize,
    /// Repetitions.
    pub repeats: usize,
    /// The command line that repeats this.
    pub command: String,
}

impl Settings {
    /// Where the lines of `bench` go.
    pub fn recorder(&self, bench: &str) -> anyhow::Result<Recorder> {
        Recorder::new(&self.folder, bench, &self.command)
    }
}

type Measurement = fn(&Settings) -> anyhow::Result<()>;

const COMMANDS: [(&str, Measurement); 7] = [
    ("gemm", measure::gemm::run),
    ("decision", measure::decision::run),
    ("steady", measure::steady::run),
    ("instructions", measure::instructions::run),
    ("dispatch", measure::dispatch::run),
    ("window", measure::window::run),
    ("sim-vs-real", measure::sim_vs_real::run),
];

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [walk, table, net, policy] = &args[..]
        && walk == "walk"
    {
        return measure::instructions::walk(table, net, policy);
    }
    let (name, settings) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error:#}\n\n{USAGE}");
            std::process::exit(2);
        }
    };
    record::environment(&settings.folder)?;
    for (command, run) in COMMANDS {
        if name == command || (name == "all" && command != "instructions") {
            run(&settings)?;
        }
    }
    Ok(())
}

fn parse(args: &[String]) -> anyhow::Result<(&str, Settings)> {
    let [name, folder, options @ ..] = args else {
        bail!("expected a command and a folder");
    };
    if name != "all" && COMMANDS.iter().all(|(command, _)| command != name) {
        bail!("unknown command {name}");
    }
    let binary = "cargo run --release -p lazybatch-benches --";
    let mut settings = Settings {
        folder: folder.into(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        seed: 1,
        requests: 1500,
        repeats: 5,
        command: format!("{binary} {}", args.join(" ")),
    };
    for option in options.chunks(2) {
        let [key, value] = option else {
            bail!("{}: expected a number behind it", option[0]);
        };
        let number: usize = value
            .parse()
            .with_context(|| format!("{key}: expected a number, got {value}"))?;
        match key.as_str() {
            "--threads" if number > 0 => settings.threads = number,
            "--seed" => settings.seed = number as u64,
            "--requests" if number > 0 => settings.requests = number,
            "--repeats" if number > 0 => settings.repeats = number,
            _ => bail!("{key} {value}: no such option"),
        }
    }
    Ok((name, settings))
}
