//! The command line.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use lazybatch_engine::policy;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::import::{AxisSpec, Carried, Fixed, Limit, SizedAxis};
use lazybatch_sla::profile::TARGETS_MS;
use lazybatch_sla::{Class, Nanos};
use lazybatch_workloads::devices::{DEVICES, DeviceModel, FREE};
use lazybatch_workloads::traces;

use crate::failure::BadInput;
use crate::models::{self, Products};
use crate::serve_args::{SERVE_HELP, ServeArgs};

/// Most requests of one launch that can be asked for.
const MAX_BATCH: u32 = 1 << 16;
/// Most positions of a sequence that can be asked for.
const MAX_LEN: usize = 1 << 20;
/// Largest rate, span or target that can be asked for, in its own unit.
const MAX_NUMBER: f64 = 1e9;
/// Smallest target that can be asked for, in milliseconds: a nanosecond.
const MIN_TARGET_MS: f64 = *TARGETS_MS.start();
/// Most random cases of one run.
const MAX_CASES: u64 = 100_000;

/// A number above 0, as the value of an option.
pub fn positive(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0, "a number above 0, at most 1e9")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |x| x >= 0.0, "a number of 0 or more, at most 1e9")
}

/// A part of a whole, as the value of an option.
pub fn part(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

fn below_one(text: &str) -> Result<f64, String> {
    number(
        text,
        |x| (0.0..1.0).contains(&x),
        "a number from 0 to below 1",
    )
}

fn number(text: &str, fits: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&x| fits(x) && x <= MAX_NUMBER)
        .ok_or_else(|| format!("expected {expected}, got {text}"))
}

/// A target in milliseconds, of a nanosecond at the least.
fn target_ms(text: &str) -> Result<f64, String> {
    number(
        text,
        |x| x >= MIN_TARGET_MS,
        "a number of 1e-6 or more, at most 1e9",
    )
}

fn seed(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok();
    parsed.ok_or_else(|| format!("expected a whole number from 0 to {}, got {text}", u64::MAX))
}

fn case_seed(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|&seed| seed < u64::MAX);
    let most = u64::MAX - 1;
    parsed.ok_or_else(|| format!("expected a whole number from 0 to {most}, got {text}"))
}

fn segment(text: &str) -> Result<u32, String> {
    let parsed = text.parse().ok().filter(|&n| n > 0);
    parsed.ok_or_else(|| format!("expected 1 to {} nodes, got {text}", u32::MAX))
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1024).contains(n))
        .ok_or_else(|| format!("expected 1 to 1024 threads, got {text}"))
}

fn draws(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1000).contains(n))
        .ok_or_else(|| format!("expected 1 to 1000 draws, got {text}"))
}

fn models(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=64).contains(n))
        .ok_or_else(|| format!("expected 1 to 64 models, got {text}"))
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let bounds = text.split_once("..").and_then(|(from, to)| {
        let bounds = from.parse::<u64>().ok()?..to.parse::<u64>().ok()?;
        (bounds.start < bounds.end && bounds.end - bounds.start <= MAX_CASES).then_some(bounds)
    });
    bounds.ok_or_else(|| {
        format!("expected FROM..TO with FROM < TO, at most {MAX_CASES} seeds, got {text}")
    })
}

fn sweep_count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=10_000_000).contains(n))
        .ok_or_else(|| format!("expected 1 to 10000000, got {text}"))
}

fn rounds(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1000).contains(n))
        .ok_or_else(|| format!("expected 1 to 1000 rounds, got {text}"))
}

fn max_len(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=MAX_LEN).contains(n))
        .ok_or_else(|| format!("expected 1 to {MAX_LEN} positions, got {text}"))
}

fn max_batch(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=MAX_BATCH).contains(n))
        .ok_or_else(|| format!("expected 1 to {MAX_BATCH} requests, got {text}"))
}

/// The formats of arrivals, for a help text.
fn formats() -> String {
    let all: Vec<_> = traces::FORMATS.iter().map(|f| f.about).collect();
    all.join("; ")
}

fn trace_help() -> String {
    format!(
        "Arrivals from a file instead: {}. On a device that computes each is served with the input of --pool \
         whose length is the nearest, and the output that this has",
        formats()
    )
}

/// Those of the device models that are wanted, for a help text.
fn device_models(is_wanted: impl Fn(&DeviceModel) -> bool) -> String {
    let wanted = DEVICES.iter().filter(|d| is_wanted(d));
    let all: Vec<_> = wanted
        .map(|d| format!("{} ({})", d.name, d.about))
        .collect();
    all.join(", ")
}

fn profile_help() -> String {
    format!(
        "Latency profile, lazybatch-profile/1; or a device model, whose profile of --model is made: {}; \
         with {FREE} behind the name launches and merges cost nothing",
        device_models(|_| true)
    )
}

fn device_help() -> String {
    format!(
        "Device: cpu, cuda and cuda:N are measured; computed are {}; with {FREE} behind the name \
         launches and merges cost nothing",
        device_models(|d| d.name != "cpu")
    )
}

fn policies_help() -> String {
    let rules: Vec<&str> = policy::base_rules().collect();
    format!(
        "Policies, separated by commas; oracle and adaptive's own rules ({}) are shown, but the judged \
         policy is not compared with them",
        rules.join(", ")
    )
}

/// Node-level batching of DNN inference: serve a model under several scheduling policies, simulate
/// them, measure latencies.
///
/// Exit status: 0 done, 2 wrong usage or bad input, 1 anything else.
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
    /// Run a grid of simulations and compare the policies over it
    Sweep(SweepArgs),
    /// Compare policies on random models under random arrivals
    Generalise(GeneraliseArgs),
    /// Measure a model's latency tables on a device
    Profile(ProfileArgs),
    /// Run one request and print the answer
    Run(RunArgs),
    /// Print the compiled program: blocks, nodes, shapes, costs
    Inspect(InspectArgs),
    /// Compile an ONNX model to a folder that --model takes
    Import(ImportArgs),
    /// Feed a journal back through the core and let the checker judge it
    Replay(ReplayArgs),
    /// Serve a folder of models over HTTP and gRPC
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
}

impl Command {
    /// Refuses classes of which two have one name, and such as nobody can name.
    pub fn check_classes(&self) -> Result<(), BadInput> {
        let (classes, named_by, is_named) = match self {
            Self::Compare(args) => (&args.classes, "--trace", args.trace.is_some()),
            Self::Simulate(args) => (&args.classes, "--arrivals", args.arrivals.is_some()),
            _ => return Ok(()),
        };
        for (i, class) in classes.iter().enumerate() {
            let name = &class.name;
            let least = Nanos(1);
            let most = Nanos::from_ms_f64(MAX_NUMBER);
            if let Some(sla) = class.sla.filter(|sla| !(least..=most).contains(sla)) {
                let got = match sla < least {
                    true => "less",
                    false => "more",
                };
                return Err(BadInput(format!(
                    "--class {name}: sla: expected {MIN_TARGET_MS:e} to {MAX_NUMBER:e} milliseconds, got {got}"
                )));
            }
            if classes[..i].iter().any(|c| c.name == *name) {
                let message = format!("--class: expected each name once, got {name} twice");
                return Err(BadInput(message));
            }
            if !is_named && *name != Class::default().name {
                let expected = format!("{named_by}, whose arrivals name classes");
                return Err(BadInput(format!(
                    "--class: expected {expected}, got none for {name}"
                )));
            }
        }
        Ok(())
    }

    /// Puts policies with several parameters together again, which the list was cut within. One that
    /// is named twice, however its numbers are written, runs once.
    pub fn join_policies(&mut self) {
        let policies = match self {
            Self::Compare(args) => &mut args.policies,
            Self::Simulate(args) => &mut args.policies,
            Self::Generalise(args) => &mut args.policies,
            Self::Sweep(SweepArgs {
                policies: Some(policies),
                ..
            }) => policies,
            _ => return,
        };
        for spec in policies.iter_mut() {
            *spec = spec.trim().to_owned();
        }
        let mut seen = BTreeSet::new();
        *policies = policy::join_list(policies);
        policies.retain(|spec| seen.insert(policy::canonical(spec)));
    }
}

/// Where results go.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write results as JSON, lazybatch-results/1; what there is of them until then is in FILE.partial
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML page with tables and charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write one line per request and policy: arrival, first launch, finish, outcome
    #[arg(long, value_name = "FILE.csv")]
    pub requests_csv: Option<PathBuf>,
    /// Also measure how long the policy takes over decisions that have a real choice
    #[arg(long)]
    pub timing: bool,
}

/// How the device that computes is set up.
#[derive(Clone, Debug, Default, Args)]
pub struct CpuArgs {
    /// Threads of the CPU device; all available cores if absent
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
    /// How the CPU device stores the weights of linear layers and recurrent cells: f32 (if absent),
    /// f16, bf16, int8, or int8-dynamic, which rounds what is multiplied with them too
    #[arg(long, value_name = "TYPE")]
    pub weights: Option<WeightType>,
    /// Keep packed weights in this folder and map them at the next load; it may be shared, and
    /// deleted at any time. Nothing is kept if absent
    #[arg(long, value_name = "DIR")]
    pub weight_cache: Option<PathBuf>,
    /// How a GPU multiplies matrices; its own kernels if absent
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub products: Option<Products>,
}

impl CpuArgs {
    /// Refuses options of devices that compute for a device that `is`.
    pub fn expect_none(&self, is: &str) -> Result<(), BadInput> {
        self.expect_no_products(is)?;
        let threads = self.threads.map(|n| ("--threads", n.to_string()));
        let weights = self.weights.map(|w| ("--weights", w.to_string()));
        let cache = self.weight_cache.as_ref();
        let cache = cache.map(|dir| ("--weight-cache", dir.display().to_string()));
        threads
            .or(weights)
            .or(cache)
            .map_or(Ok(()), |(option, got)| {
                Err(BadInput(format!(
                    "{option}: expected none for a device that {is}, got {got}"
                )))
            })
    }

    /// Refuses the choice of products for a device that `is`.
    pub fn expect_no_products(&self, is: &str) -> Result<(), BadInput> {
        self.products.map_or(Ok(()), |got| {
            Err(BadInput(format!(
                "--products: expected none for a device that {is}, got {got}"
            )))
        })
    }
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Model by name, or a folder that `import` wrote; `phonemes` is trained, the others have
    /// synthetic weights
    #[arg(long, default_value = "phonemes")]
    pub model: String,
    /// Device: `cpu`; `cuda` or `cuda:N`, an NVIDIA GPU; or `sim`, which computes nothing and takes
    /// the time that --profile says, that of the npu if absent
    #[arg(long, default_value = "cpu")]
    pub device: String,
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Policies, separated by commas; graph:W waits up to W milliseconds for a batch
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "serial,graph:5,graph:25,graph:95,greedy,continuous,lazy,oracle,adaptive"
    )]
    pub policies: Vec<String>,
    /// Poisson arrivals per second; 0.6 x measured capacity if absent
    #[arg(long, value_name = "RPS", conflicts_with = "trace", allow_negative_numbers = true, value_parser = positive)]
    pub rate: Option<f64>,
    #[arg(long, value_name = "FILE", help = trace_help())]
    pub trace: Option<PathBuf>,
    /// Scale the gaps of the trace so that this is its mean rate, its first arrival at 0; if absent they arrive
    /// when it says
    #[arg(long, requires = "trace", value_name = "RPS", allow_negative_numbers = true, value_parser = positive)]
    pub trace_rate: Option<f64>,
    /// Seconds of arrivals under each policy; 3 if absent, of a trace at its own times 60
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = positive)]
    pub duration: Option<f64>,
    /// Most arrivals under each policy; the run is shorter than --duration where they come sooner
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = sweep_count)]
    pub requests: Option<usize>,
    /// Serve each policy so many times, every second time in the reverse order, over arrivals of another
    /// seed each time (those of a trace stay), and tell medians and ranges, also of the ratios to
    /// `adaptive`, or else the first policy, in the same round. Charts are of the first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds, conflicts_with_all = ["dry", "requests_csv", "trace_out", "arrivals_out"])]
    pub rounds: Option<u32>,
    /// Different inputs, of which arrivals take one after another: each is also run alone, to
    /// compare answers with. 512 if absent, fewer in a dry run
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = sweep_count)]
    pub pool: Option<usize>,
    /// Most seconds to wait after the last arrival; requests still open then count as shed
    #[arg(long, default_value_t = 2.0, value_name = "S", allow_negative_numbers = true, value_parser = positive)]
    pub drain: f64,
    /// SLA target in milliseconds; the profile's or the model's own if absent
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = target_ms)]
    pub sla_ms: Option<f64>,
    /// An SLA class: NAME[:sla=MS,priority=N,weight=W,late=keep|demote|shed|refuse,patience=MS]; may
    /// be repeated. Arrivals name theirs in the column `class`
    #[arg(long = "class", value_name = "CLASS")]
    pub classes: Vec<Class>,
    /// Most requests of one launch; that of --profile, or 64, if absent
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = max_batch)]
    pub max_batch: Option<u32>,
    /// Launches in flight: with 2 a GPU has the next one when one ends, and loops end one pass late.
    /// If absent 2 on a GPU, 1 on other devices, which take no other
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub depth: Option<u32>,
    /// Latency profile to schedule by, or a device model as `simulate` takes them; measured first if absent
    #[arg(long, value_name = "FILE|DEVICE")]
    pub profile: Option<PathBuf>,
    /// Write the profile that was scheduled by
    #[arg(long, value_name = "FILE")]
    pub profile_out: Option<PathBuf>,
    /// Write the arrivals, for `simulate --arrivals`
    #[arg(long, value_name = "FILE.csv")]
    pub arrivals_out: Option<PathBuf>,
    /// Write a Chrome / Perfetto trace of each policy, FILE.POLICY.json
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Seed of arrivals and inputs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = seed
    )]
    pub seed: u64,
    /// Serve and judge the answers, and report no figures: how an emulated GPU is served from. An
    /// answer that is wrong then ends the command with status 1
    #[arg(long, conflicts_with_all = ["report", "requests_csv", "timing", "profile_out", "trace_out"])]
    pub dry: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct SimulateArgs {
    #[arg(long, value_name = "FILE|DEVICE", help = profile_help())]
    pub profile: PathBuf,
    #[arg(long, value_name = "FILE", help = format!("Arrivals: {}; excludes --rate, --duration and --lengths", formats()), conflicts_with_all = ["rate", "duration", "lengths"])]
    pub arrivals: Option<PathBuf>,
    /// Keep only this model of the profile; without --arrivals, its first if absent
    #[arg(long)]
    pub model: Option<String>,
    /// Poisson arrivals per second, where there is no --arrivals
    #[arg(long, value_name = "RPS", required_unless_present = "arrivals", allow_negative_numbers = true, value_parser = positive)]
    pub rate: Option<f64>,
    /// Seconds of arrivals
    #[arg(long, value_name = "S", default_value_t = 10.0, allow_negative_numbers = true, value_parser = positive)]
    pub duration: f64,
    /// Length distribution: a name, fixed:IN:OUT, or a histogram, CSV with the columns src_len, tgt_len and
    /// count; the model's own if absent
    #[arg(long, value_name = "NAME|FILE")]
    pub lengths: Option<String>,
    /// Policies, separated by commas; graph:W waits up to W milliseconds for a batch
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "serial,graph:5,graph:25,graph:95,greedy,continuous,lazy,oracle,adaptive"
    )]
    pub policies: Vec<String>,
    /// SLA target in milliseconds of arrivals that state none; the profile's, or 100, if absent
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = target_ms)]
    pub sla_ms: Option<f64>,
    /// An SLA class: NAME[:sla=MS,priority=N,weight=W,late=keep|demote|shed|refuse,patience=MS]; may
    /// be repeated. Arrivals name theirs in the column `class`
    #[arg(long = "class", value_name = "CLASS")]
    pub classes: Vec<Class>,
    /// Nodes per launch: consecutive nodes of a block that run as one
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = segment)]
    pub segment: u32,
    /// Microseconds that a decision takes, added to its launch
    #[arg(long, default_value_t = 0.0, value_name = "US", allow_negative_numbers = true, value_parser = not_negative)]
    pub decide_us: f64,
    /// Scale each launch's latency by a factor drawn from 1 - J to 1 + J
    #[arg(long, default_value_t = 0.0, value_name = "J", allow_negative_numbers = true, value_parser = below_one)]
    pub jitter: f64,
    /// Write the journal of each policy, FILE.POLICY.jsonl, for `replay`; with .partial behind it until
    /// it is whole
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Write each decision of each policy with its candidates and reasons, and each plan with the
    /// predicted cost of its rules, as JSON lines, FILE.POLICY.jsonl
    #[arg(long, value_name = "FILE")]
    pub explain: Option<PathBuf>,
    /// Print the timeline of each policy (for short runs)
    #[arg(long)]
    pub timeline: bool,
    /// Also print a mean latency and a number of violations that no schedule can beat
    #[arg(long, conflicts_with = "jitter")]
    pub bound: bool,
    /// Seed of arrivals and jitter
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = seed
    )]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// A grid file, or a built-in grid: paper, paper-quick, max-batch, sla, windows, coverage, segments,
    /// co-located, overload, bursts, traces, around-capacity
    #[arg(long, value_name = "FILE.toml|NAME")]
    pub grid: String,
    /// Write results as JSON, lazybatch-sweep/1; finished simulations are kept in FILE.partial
    /// until then
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML page with curves, tables and timelines
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Go on with what an interrupted run of the same grid left beside --json
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// Policy to judge against the best of the others; `adaptive` if it is in the grid
    #[arg(long, value_name = "POLICY")]
    pub judge: Option<String>,
    /// Point that the report looks at closely; chosen by the judgement if absent. Can be repeated
    #[arg(long, value_name = "MODEL@RATE@SLA", requires = "report")]
    pub point: Vec<String>,
    /// Keep only these models of the grid
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub models: Option<Vec<String>>,
    /// Run these policies instead of the grid's
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub policies: Option<Vec<String>>,
    /// Keep only the first N seeds of the grid
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = sweep_count)]
    pub seeds: Option<usize>,
    /// Run this seed alone instead of the grid's
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "seeds",
        allow_negative_numbers = true,
        value_parser = seed
    )]
    pub seed: Option<u64>,
    /// Arrivals of a run at the least, instead of the grid's
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = sweep_count)]
    pub requests: Option<usize>,
    /// Folder of public traces, for grids that name some
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Threads; all available cores if absent. Results do not depend on it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
}

#[derive(Debug, Args)]
pub struct GeneraliseArgs {
    /// Seeds of the cases, TO left out: 0..100 are for development, 1000..1200 for the final table
    #[arg(long, value_name = "FROM..TO", default_value = "0..100", allow_negative_numbers = true, value_parser = seeds)]
    pub seeds: Range<u64>,
    /// Run the case of this seed alone
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "seeds",
        allow_negative_numbers = true,
        value_parser = case_seed
    )]
    pub seed: Option<u64>,
    /// Models of each case, on one device
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = models)]
    pub models: usize,
    /// Sets of arrivals for each case; figures are means over them, with paired standard errors
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = draws)]
    pub draws: u32,
    #[arg(
        long,
        help = policies_help(),
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "serial,greedy,graph:5,graph:25,graph:55,graph:75,graph:95,lazy,lazy:late-admits,triton,continuous,cellular,edf,adaptive"
    )]
    pub policies: Vec<String>,
    /// Policy to compare with the best of the others
    #[arg(long, value_name = "POLICY", default_value = "adaptive")]
    pub judge: String,
    /// Write results as JSON lines, lazybatch-generalise/1
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML page with the summary and a chart
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write the profile and the arrivals of each case, SEED.profile.json and SEED.arrivals.csv, for
    /// `simulate`, into this folder, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub cases: Option<PathBuf>,
    /// Threads; all available cores if absent. Results do not depend on it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Model by name, or a folder that `import` wrote; `phonemes` is trained, the others have
    /// synthetic weights
    #[arg(long)]
    pub model: String,
    #[arg(long, default_value = "cpu", help = device_help())]
    pub device: String,
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Most requests of one launch
    #[arg(long, value_name = "N", default_value_t = models::DEFAULT_MAX_BATCH, allow_negative_numbers = true, value_parser = max_batch)]
    pub max_batch: u32,
    /// Shortest segment in microseconds; 0 measures every node alone. If absent 50, and on a GPU so
    /// much that issuing a launch takes at most 3 % of it
    #[arg(long, value_name = "US", allow_negative_numbers = true, value_parser = not_negative)]
    pub segment_us: Option<f64>,
    /// Do all the work and write no figures: how an emulated GPU is profiled
    #[arg(long)]
    pub dry: bool,
    /// Seed of the inputs that a device is measured with; nothing is drawn for one that is computed
    #[arg(long, value_name = "N", default_value_t = crate::commands::profile::SEED, allow_negative_numbers = true, value_parser = seed)]
    pub seed: u64,
    /// Where to write the profile
    #[arg(long, visible_alias = "json", value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Model by name, or a folder that `import` wrote; `phonemes` is trained, the others have
    /// synthetic weights
    #[arg(long, default_value = "phonemes")]
    pub model: String,
    /// A word for `phonemes` (`batching` if absent), a text for models with a tokenizer; for the others
    /// a JSON file of number lists by input name, or nothing for synthetic inputs
    #[arg(long, value_name = "TEXT|FILE")]
    pub input: Option<String>,
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Seed of synthetic inputs; 1 if absent
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "input",
        allow_negative_numbers = true,
        value_parser = seed
    )]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Model by name, or a folder that `import` wrote
    #[arg(long, default_value = "phonemes")]
    pub model: String,
    /// Latency profile of the model whose segments are shown, or a device model as `simulate` takes them;
    /// one for each node if absent
    #[arg(long, value_name = "FILE|DEVICE")]
    pub profile: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The model: FILE.onnx, FILE.toml that ties an encoder and a decoder together, published weights
    /// (model.safetensors with its publisher's files beside it), or their manifest model.toml
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Folder to write; a model folder that is there is replaced
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Axes that count samples: their name, or INPUT:AXIS; found by name and place if absent. Can
    /// be repeated
    #[arg(long, value_name = "NAME|INPUT:AXIS")]
    pub batch_axis: Vec<AxisSpec>,
    /// Axes that count positions of a sequence: their name, or INPUT:AXIS; found by name and place
    /// if absent. Can be repeated
    #[arg(long, value_name = "NAME|INPUT:AXIS")]
    pub sequence_axis: Vec<AxisSpec>,
    /// Most positions of a sequence; as many as the tables of the model allow, at most 512, if
    /// absent
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = max_len)]
    pub max_len: Option<usize>,
    /// An input that only tells padding from positions, and counts as ones: there is no padding.
    /// `attention_mask`, `input_mask` and `padding_mask` are such. Can be repeated
    #[arg(long, value_name = "INPUT")]
    pub mask: Vec<String>,
    /// An open axis that always has one size. Can be repeated
    #[arg(long, value_name = "NAME|INPUT:AXIS=N")]
    pub size: Vec<SizedAxis>,
    /// An input that always has one value. Can be repeated
    #[arg(long, value_name = "INPUT=NUMBER", allow_negative_numbers = true)]
    pub set: Vec<Fixed>,
    /// An output that the next request of a sequence has as an input: state of a streaming model.
    /// Can be repeated
    #[arg(long, value_name = "OUTPUT=INPUT")]
    pub carry: Vec<Carried>,
    /// Another bound on what the import of an ONNX model may take: elems, held, stored, nodes,
    /// node_runs, messages, file_bytes or work (docs/onnx.md). Can be repeated
    #[arg(long, value_name = "NAME=N")]
    pub limit: Vec<Limit>,
    /// Name of the model; that of the file if absent
    #[arg(long)]
    pub name: Option<String>,
    /// Write what was imported as JSON, lazybatch-import/1: model, nodes, blocks, parameters, notes, and
    /// agrees_within, how far outputs may differ from those of the graph, null if there is none
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Journal, lazybatch-journal/1, as `simulate --journal` writes it
    pub journal: PathBuf,
    /// Print the timeline
    #[arg(long)]
    pub timeline: bool,
    /// Write what was replayed as JSON, lazybatch-replay/1: policy, events, launches, requests_ended, and
    /// has_end, whether the journal says that it ends there
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
