//! `lazybatch-measure`: writes the figures that `benches/results/` keeps.
//!
//! `lazybatch-measure COMMAND FOLDER [--threads N] [--seed N] [--requests N] [--repeats N]`,
//! `lazybatch-measure realtime --model NAME ...`, `lazybatch-measure mixes --mix MIX ...`,
//! `lazybatch-measure peers FOLDER --python PATH`, or `lazybatch-measure weights FOLDER`; see [`USAGE`].

mod measure;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::bail;
use lazybatch_benches::record::{self, Recorder};
use lazybatch_benches::serving::echo;

use measure::args::{all_cores, folder, pairs, positive, read};
use measure::{mixes, peers, realtime, serve, weights};

/// What the command line says without arguments.
const USAGE: &str = "\
usage: lazybatch-measure COMMAND FOLDER [--threads N] [--seed N] [--requests N] [--repeats N]

  sim-vs-real  mean latency simulated over the measured profile against served, by policy
  window       how late the 5 ms window of graph:5 fires on an idle engine
  decision     time of a step and of a decision of the core under load, by policy
  steady       decisions in steady state, with several sub-batches and plans, by policy
  instructions instructions of a decision in steady state, by policy; needs valgrind, not in `all`
  dispatch     time of a launch of one tiny node, and of a round trip through the engine
  joining      throughput of an imported LSTM whose requests of 1 to 50 positions join and leave its
               loop at any step, over that of one at a time and of the best batches
  load         time to load BERT-base and ResNet-50 from files: without a cache of packed weights,
               with an empty one, with a full one; and that of a short request behind it
  first        the first request of a fresh engine and those behind it, where memory for launches is
               made ready at load and where it is found when they come
  gemm         speed of the packed matrix product against the peak of multiply-adds,
               and by how the weights are stored, from the caches and from memory
  all          the others

Lines are appended to FOLDER/COMMAND.jsonl, and FOLDER/environment.json is written.
--threads N    threads of the CPU device in sim-vs-real and joining; all cores if absent
--seed N       seed of inputs and arrivals in sim-vs-real and joining; 1 if absent
--requests N   arrivals of each run in sim-vs-real and joining; 1500 if absent
--repeats N    repetitions of every measurement; 5 if absent

usage: lazybatch-measure realtime --model NAME --out FILE.jsonl --requests N | --seconds S [OPTION VALUE]...

  Policies compared in real time on the CPU device, each over the same arrivals of the same inputs,
  beside the simulation of these arrivals over the profile that is measured first.

--model NAME       a model of the zoo
--out FILE         lines are appended to it, and environment.json is written beside it
--requests N       arrivals of each run; the first tenth of them is not counted
--seconds S        the same as a time, at the load's rate
--loads A,B,...    offered rates as shares of the capacity; 0.6,0.9 if absent
--pairs N          times that every policy serves at each load; 7 if absent
--policies P,Q,... the first is compared to each of the others; adaptive,greedy if absent
--arrivals SPEC    poisson, constant, gamma:CV, onoff:ON:OFF:ON_MS:OFF_MS or trace:FILE; poisson if absent
--sla X            SLA target as a multiple of the mean time of a request alone; 5 if absent
--max-batch N      most requests of one launch; 64 if absent
--threads N        threads of the CPU device; all cores if absent
--seed N           seed of inputs, and of the first pair's arrivals; 1 if absent

usage: lazybatch-measure mixes --mix A:SHARE+B:SHARE --out FILE.jsonl --seconds S --sla-ms MS [OPTION VALUE]...

  The same of several models on one device, at shares of what `greedy` or `continuous` drains of them,
  measured before each pair. Takes --loads, --pairs, --policies, --max-batch, --threads and --seed, as
  realtime does.

usage: lazybatch-measure peers FOLDER --python PATH [OPTION VALUE]...

  Our kernels and ONNX Runtime in turns of 30 ms, on the same weights and inputs and as many threads;
  their outputs are compared first. `ratio` is the peer's time over ours: above 1 we are faster.
  Its least possible call is given too, and the ratio without it. `cargo xtask peers-env` makes a
  Python with the runtime: .peers/bin/python. Lines are appended to FOLDER/peers.jsonl.

--python PATH  a Python with the packages of benches/peers/requirements.txt
--rows A,B     some of gemm (1 to 256 rows times 1024 x 1024 and 768 x 3072), lstm and gru (a layer of
               1024 over 16 steps, and one step), encoder (a layer of BERT-base), decoder (a step of a
               layer of Transformer-base behind 32 others), resnet50, mobilenet-v1, and of trained
               weights mobilenet-v2; bert-base and minilm (whole, 16 and 128 positions), mixed
               (sentences of different lengths: ours packed, the peer's padded to the longest),
               silero-vad (a chunk of audio, the ONNX file on both sides); all if absent
--nodes B      true: no peer, but what our nodes take one by one, by the kind of their op, beside their
               arithmetic and traffic; lines go to FOLDER/nodes.jsonl
--models PATH  the folder of fetched models (cargo xtask models); .models if absent
--threads N    threads of each side; all cores if absent
--repeats N    pairs of turns; 7 if absent

usage: lazybatch-measure weights FOLDER [OPTION VALUE]...

  Accuracy and speed of weight types on models with trained weights (docs/weights.md). Lines are
  appended to FOLDER/weights.jsonl; the table of all its lines is printed.

--part P       accuracy (the same on every run), speed, or table (measures nothing); both if absent
--docs FILE    the document whose table is rewritten
--models PATH  the folder of fetched models (cargo xtask models); .models if absent
--threads N    threads of the device; all cores if absent
--repeats N    turns of each type; 7 if absent

usage: lazybatch-measure serve-load FOLDER [OPTION VALUE]...
       lazybatch-measure serve-overload FOLDER [OPTION VALUE]...
       lazybatch-measure serve-peers FOLDER [OPTION VALUE]...
       lazybatch-measure serve-in-process FOLDER [OPTION VALUE]...

  The serving front end as its clients see it, in turns with bare echo servers of axum and tonic, on
  the same cores under the same client. serve-load: a model without work, requests a second of a closed
  loop and latency at a low rate. serve-overload: an LSTM at up to three times what it can do; answers
  in time, refusals and health meanwhile. serve-peers: the same ONNX models in the front end and in
  Triton (its dynamic batcher without and with a delay, and iterative sequences), at rates that climb
  until one is not sustained; run it from the root of the repository, with a Python that
  `python3 benches/peers/triton.py --install` made. serve-in-process: the same models and arrivals
  without servers, the engine beside loops around ONNX Runtime that pad or batch steps; it takes the
  options of serve-peers. Lines are appended to FOLDER/COMMAND.jsonl.

--server PATH      the binary lazybatch; target/release/lazybatch if absent
--server-cores A,B cores of the servers; 0 if absent
--client-cores A,B cores of the client; 1 if absent
--over W           http or grpc; both if absent
--connections N    connections of closed loops; 32 if absent
--seconds S        length of a run; 3 if absent
--repeats N        runs of each; 5 if absent
--seed N           seed of arrivals; 1 if absent
--floats N         serve-load: floats of a request; 256 if absent
--rate R           serve-load: requests a second at low load; 200 if absent
--low-turns N      serve-load: low load alone, N turns of both servers for each of REPEATS starts
--steps N          serve-overload: steps of a request; 64 if absent
--target-ms MS     serve-overload: an answer within it counts; 100 if absent
--high-turns N     serve-overload: three times the capacity alone, N turns of both servers for each of
                   REPEATS starts
--python PATH      serve-peers, serve-in-process: that Python; .triton/bin/python if absent
--models A,B       serve-peers: some of lstm, decoder, encoder; all if absent
--kinds A,B        serve-peers: some of lazybatch, triton-0, triton-2000, triton-iterative; all if
                   absent; serve-in-process: padded, steps and any policies; these two, adaptive,
                   triton:pad and cellular if absent
--arrivals SPEC    serve-peers: poisson, or trace:FILE, the gaps of stretches of a trace, squeezed to
                   the rate; poisson if absent
--first-rate R     serve-peers: requests a second of the first rate; 25 if absent
--step F           serve-peers: from one rate to the next; 1.5 if absent
--between N        serve-peers: rates between the last that was sustained and the first that was not;
                   2 if absent
--limit-ms MS      serve-peers: highest p99 of a rate that is sustained; 250 if absent
--hidden N         serve-peers: state of lstm and decoder; 256 if absent
--width N          serve-peers: features of the encoder; 256 if absent";

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

const COMMANDS: [(&str, Measurement); 10] = [
    ("gemm", measure::gemm::run),
    ("decision", measure::decision::run),
    ("steady", measure::steady::run),
    ("instructions", measure::instructions::run),
    ("dispatch", measure::dispatch::run),
    ("load", measure::load::run),
    ("first", measure::first::run),
    ("window", measure::window::run),
    ("joining", measure::joining::run),
    ("sim-vs-real", measure::sim_vs_real::run),
];

/// As of the program `lazybatch`: what is measured beside it has the same means.
#[global_allocator]
static ALLOCATOR: lazybatch_serve::Allocator = lazybatch_serve::Allocator;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        // Who reads it may be gone (`| head`).
        drop(writeln!(std::io::stdout(), "{USAGE}"));
        return Ok(());
    }
    if let [walk, table, net, policy] = &args[..]
        && walk == "walk"
    {
        return measure::instructions::walk(table, net, policy);
    }
    if let [name, options @ ..] = &args[..]
        && name == "realtime"
    {
        let options = or_usage(realtime::Options::parse(options, &command(&args)));
        record::environment(record::folder_of(&options.out))?;
        return realtime::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "mixes"
    {
        let options = or_usage(mixes::Options::parse(options, &command(&args)));
        record::environment(record::folder_of(&options.out))?;
        return mixes::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "peers"
    {
        let options = or_usage(peers::Options::parse(options, &command(&args)));
        record::environment(&options.folder)?;
        return peers::run(&options);
    }
    if args == ["serve-echo"] {
        return echo::run();
    }
    if let [name, options @ ..] = &args[..]
        && name == "serve-load"
    {
        let options = or_usage(serve::load::Options::parse(options, &command(&args)));
        return serve::load::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "serve-overload"
    {
        let options = or_usage(serve::overload::Options::parse(options, &command(&args)));
        return serve::overload::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "serve-peers"
    {
        let options = or_usage(serve::peers::Options::parse(options, &command(&args)));
        return serve::peers::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "serve-in-process"
    {
        let options = or_usage(serve::peers::Options::parse(options, &command(&args)));
        return serve::in_process::run(&options);
    }
    if let [name, options @ ..] = &args[..]
        && name == "weights"
    {
        let options = or_usage(weights::Options::parse(options, &command(&args)));
        record::environment(&options.folder)?;
        return weights::run(&options);
    }
    let (name, settings) = or_usage(parse(&args));
    record::environment(&settings.folder)?;
    for (command, run) in COMMANDS {
        if name == command || (name == "all" && command != "instructions") {
            run(&settings)?;
        }
    }
    Ok(())
}

/// What was parsed; else says what is wrong and how it is done, and ends the process.
fn or_usage<T>(parsed: anyhow::Result<T>) -> T {
    parsed.unwrap_or_else(|error| {
        eprintln!("{error:#}\n\n{USAGE}");
        std::process::exit(2)
    })
}

/// The command line that repeats this.
fn command(args: &[String]) -> String {
    let binary = "cargo run --release -p lazybatch-benches --";
    format!("{binary} {}", args.join(" "))
}

fn parse(args: &[String]) -> anyhow::Result<(&str, Settings)> {
    let [name, rest @ ..] = args else {
        bail!("expected a command and a folder");
    };
    if name != "all" && COMMANDS.iter().all(|(command, _)| command != name) {
        bail!("unknown command {name}");
    }
    let (folder, options) = folder(rest)?;
    let mut settings = Settings {
        folder,
        threads: all_cores(),
        seed: 1,
        requests: 1500,
        repeats: 5,
        command: command(args),
    };
    for (key, value) in pairs(options)? {
        match key {
            "--threads" => settings.threads = positive(key, value)?,
            "--seed" => settings.seed = read(key, value, "a whole number")?,
            "--requests" => settings.requests = positive(key, value)?,
            "--repeats" => settings.repeats = positive(key, value)?,
            _ => bail!("{key} {value}: no such option"),
        }
    }
    Ok((name, settings))
}
