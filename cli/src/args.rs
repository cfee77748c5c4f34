//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::models;

/// Node-level batching of DNN inference: serve a model under several scheduling policies, simulate
/// them, measure latencies.
#[derive(Debug, Parser)]
#[command(name = "lazybatch", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the same arrivals under several policies, in real time on a device
    Compare(CompareArgs),
    /// Run the scheduler in virtual time over a latency profile
    Simulate(SimulateArgs),
    /// Measure a model's latency tables on a device
    Profile(ProfileArgs),
    /// Run one request and print the answer
    Run(RunArgs),
    /// Print the compiled program: blocks, nodes, shapes, costs
    Inspect(InspectArgs),
    /// Feed a journal back through the core and let the checker judge it
    Replay(ReplayArgs),
}

/// Where results go.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write machine-readable results
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML report
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write one line per request
    #[arg(long, value_name = "FILE.csv")]
    pub requests_csv: Option<PathBuf>,
    /// Time decisions that have a real choice
    #[arg(long)]
    pub timing: bool,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Model: a name from the zoo, or `phonemes`, the trained one
    #[arg(long, default_value = "phonemes")]
    pub model: String,
    /// Device: cpu, or sim (needs --profile)
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Threads of the CPU device; all available cores if absent
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Policies, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "serial,graph:5,graph:25,graph:95,greedy,lazy,lazy:late-admits,oracle"
    )]
    pub policies: Vec<String>,
    /// Arrivals per second; 0.6 x measured capacity if absent
    #[arg(long, conflicts_with = "trace")]
    pub rate: Option<f64>,
    /// Arrivals from a file: the project's CSV, Azure LLM CSV or Mooncake JSON lines
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Scale the trace to this mean rate
    #[arg(long, requires = "trace", value_name = "RPS")]
    pub trace_rate: Option<f64>,
    /// Seconds of arrivals per policy
    #[arg(long, default_value_t = 3.0)]
    pub duration: f64,
    /// Most seconds to wait behind the last arrival; what is open then is cancelled
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    pub drain: f64,
    /// SLA target in milliseconds; 100 if absent
    #[arg(long, value_name = "X")]
    pub sla_ms: Option<f64>,
    /// Most requests of one launch
    #[arg(long, default_value_t = 64)]
    pub max_batch: u32,
    /// Latency profile to schedule by; measured at the start if absent
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Write the measured profile
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
    /// Write the arrivals, so that `simulate` can serve the same
    #[arg(long, value_name = "FILE.csv")]
    pub arrivals_out: Option<PathBuf>,
    /// Write a Chrome / Perfetto trace per policy, FILE.POLICY.json
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Seed of arrivals and inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Latency profile, lazybatch-profile/1
    #[arg(long, value_name = "FILE")]
    pub profile: PathBuf,
    /// Arrivals CSV; Poisson arrivals at --rate if absent
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["rate", "duration"])]
    pub arrivals: Option<PathBuf>,
    /// Model of the profile; its first if absent
    #[arg(long)]
    pub model: Option<String>,
    /// Arrivals per second
    #[arg(long, required_unless_present = "arrivals")]
    pub rate: Option<f64>,
    /// Seconds of arrivals
    #[arg(long, default_value_t = 10.0)]
    pub duration: f64,
    /// Length distribution: a name, fixed:IN:OUT, or a histogram CSV; the model's own if absent
    #[arg(long, value_name = "NAME|FILE")]
    pub lengths: Option<String>,
    /// Policies, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "serial,graph:5,graph:25,graph:95,greedy,lazy,oracle"
    )]
    pub policies: Vec<String>,
    /// SLA target in milliseconds of arrivals that state none; the profile's if absent
    #[arg(long, value_name = "X")]
    pub sla_ms: Option<f64>,
    /// Nodes per segment
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub segment: u32,
    /// Cost of a decision in microseconds
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    pub decide_us: f64,
    /// Scale latencies by a factor uniform in 1 - J .. 1 + J
    #[arg(long, default_value_t = 0.0, value_name = "J")]
    pub jitter: f64,
    /// Write the journal of each policy, FILE.POLICY.jsonl
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Print the timeline of each policy (short runs)
    #[arg(long)]
    pub timeline: bool,
    /// Seed of arrivals and noise
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Model: a name from the zoo, or `phonemes`
    #[arg(long)]
    pub model: String,
    /// Device
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Threads of the CPU device; all available cores if absent
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Most requests of one launch
    #[arg(long, default_value_t = 64)]
    pub max_batch: u32,
    /// Shortest segment in microseconds; 0 measures every node alone
    #[arg(long, default_value_t = models::DEFAULT_SEGMENT_US, value_name = "US")]
    pub segment_us: f64,
    /// Where to write the profile
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Model
    #[arg(long, default_value = "phonemes")]
    pub model: String,
    /// Text for models that read text, or a JSON file of input tensors by name
    #[arg(long, value_name = "TEXT|FILE")]
    pub input: Option<String>,
    /// Threads of the CPU device
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Seed of synthetic inputs, for models without an --input
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Model
    #[arg(long, default_value = "phonemes")]
    pub model: String,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Journal, lazybatch-journal/1
    pub journal: PathBuf,
    /// Print the timeline
    #[arg(long)]
    pub timeline: bool,
}
