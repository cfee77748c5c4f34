//! Options of `serve`: the one table of them.
//!
//! Each field is a flag, a variable of the environment and a key of the file, all by
//! [`crate::layers`] from its name.

use std::path::PathBuf;

use clap::Args;

use crate::args::{CpuArgs, part, positive};

/// What stands below the options.
pub const SERVE_HELP: &str = "\
Every option can also be a variable of the environment (--http-port: LAZYBATCH_HTTP_PORT) and a key \
of the file --config (http-port = 8000). A flag comes before the environment, that before the file. \
Lists are separated by commas, or arrays of the file.";

/// Defaults of options that others leave without an effect.
pub const REPOSITORY_POLL_SECS: f64 = 15.0;
/// See [`REPOSITORY_POLL_SECS`].
pub const OTLP_SAMPLE: f64 = 1.0;
/// See [`REPOSITORY_POLL_SECS`].
pub const TRACE_MB: f64 = 1024.0;

/// Who decides which models are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ControlMode {
    /// All that are there at the start
    None,
    /// Those of --load-model, and those that clients load
    Explicit,
    /// All that are there, looked for again and again
    Poll,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// A JSON object a line
    Json,
}

fn endpoint(text: &str) -> Result<String, String> {
    let checked = lazybatch_serve::telemetry::check_endpoint(text);
    checked.map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

fn address(text: &str) -> Result<std::net::IpAddr, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("expected an IP address, got {text}"))
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Folder of models: MODEL/config.pbtxt and MODEL/VERSION/ with the model's file
    #[arg(long, value_name = "DIR")]
    pub models: PathBuf,
    /// Address to listen on. One that other machines reach needs --tls-cert and --tls-key, and
    /// --token-file or --tls-client-ca, or else --insecure
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = address)]
    pub host: std::net::IpAddr,
    /// Port of HTTP; 0 for any that is free
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    pub http_port: u16,
    /// Port of gRPC; 0 for any that is free
    #[arg(long, default_value_t = 8001, value_name = "PORT")]
    pub grpc_port: u16,
    /// Port of /metrics; 0 for any that is free
    #[arg(long, default_value_t = 8002, value_name = "PORT")]
    pub metrics_port: u16,
    /// Who decides which models are served
    #[arg(long, value_enum, default_value_t = ControlMode::None)]
    pub model_control_mode: ControlMode,
    /// A model to load at the start, in mode explicit. Can be repeated
    #[arg(long, value_name = "MODEL")]
    pub load_model: Vec<String>,
    /// How often mode poll looks, in seconds
    #[arg(long, default_value_t = REPOSITORY_POLL_SECS, value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub repository_poll_secs: f64,
    /// Serve the other models if some cannot be loaded at the start
    #[arg(long)]
    pub keep_going: bool,
    /// Whether the server is not ready while a model that was asked for at the start is not
    #[arg(
        long,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "true",
        default_missing_value = "true",
        value_name = "true|false",
        hide_possible_values = true
    )]
    pub strict_readiness: bool,
    /// Scheduling policy over all models
    #[arg(long, default_value = "adaptive", value_name = "POLICY")]
    pub policy: String,
    /// Most megabytes of answers that are kept for models with a response cache
    #[arg(long, default_value = "64", value_name = "MB", allow_negative_numbers = true, value_parser = positive)]
    pub response_cache_mb: f64,
    /// Do not measure latencies of models at load: the scheduler then takes all nodes to cost the
    /// same, unless a model's configuration names a profile
    #[arg(long)]
    pub no_measure: bool,
    /// Most megabytes of a request
    #[arg(long, default_value = "64", value_name = "MB", allow_negative_numbers = true, value_parser = positive)]
    pub max_request_mb: f64,
    /// Most megabytes that all requests hold together, as they came and as tensors; a request that
    /// finds no room is refused at once
    #[arg(long, default_value = "1024", value_name = "MB", allow_negative_numbers = true, value_parser = positive)]
    pub max_request_memory_mb: f64,
    /// Most megabytes of one tensor of a request, wherever it comes from
    #[arg(long, default_value = "256", value_name = "MB", allow_negative_numbers = true, value_parser = positive)]
    pub max_tensor_mb: f64,
    /// Most inference calls at once; more are refused at once
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Most connections of each port; more are closed at once
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// How long a client may take nothing of an answer before it is dropped, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub stall_secs: f64,
    /// How long a connection over HTTP may lie idle behind an answer before it is closed, in seconds
    #[arg(long, default_value = "120", value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub keep_alive_secs: f64,
    /// Do not show what the engine does on a page at `/` of HTTP
    #[arg(long)]
    pub no_dashboard: bool,
    /// Leave the program's code on the pages of its file, for profilers that go by them
    #[arg(long)]
    pub no_huge_code: bool,
    /// How long calls may go on behind SIGTERM, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub drain_secs: f64,
    /// The server's certificates in PEM, its own first: all ports speak TLS. Read anew on SIGHUP, as
    /// are the files of the next three options
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Certificates in PEM: clients have to show one that these have signed
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Bearer tokens, TOKEN or NAME:TOKEN a line: calls have to bring one of them, but those that
    /// ask whether the server lives and is ready
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Answer /metrics to those without a token too
    #[arg(long)]
    pub metrics_open: bool,
    /// Listen where other machines reach it though not everything is there that --host asks for
    #[arg(long)]
    pub insecure: bool,
    /// Device that runs all models: `cpu`; `cuda` or `cuda:N`, an NVIDIA GPU
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: String,
    /// Send spans of inference calls by OTLP over gRPC to this collector of OpenTelemetry
    #[arg(long, value_name = "http://HOST:PORT", value_parser = endpoint)]
    pub otlp_endpoint: Option<String>,
    /// The part of the calls that get a span, 0 to 1, where their callers have not decided that
    #[arg(long, default_value_t = OTLP_SAMPLE, value_name = "RATIO", allow_negative_numbers = true, value_parser = part)]
    pub otlp_sample: f64,
    /// Folder in which traces of inference calls may be written: clients switch them on, and name
    /// files in it. Without it there are none
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Most megabytes of traces that are written; those beyond that are dropped
    #[arg(long, default_value_t = TRACE_MB, value_name = "MB", allow_negative_numbers = true, value_parser = positive)]
    pub trace_mb: f64,
    /// How log lines are written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Read options from this file
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Print all options, as a file for --config that says where each came from, and end
    #[arg(long)]
    pub print_config: bool,
    /// What --print-config prints.
    #[arg(skip)]
    pub effective: String,
}
