//! `lazybatch serve`: models behind the Open Inference Protocol.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use lazybatch_engine::measure::SegmentLength;
use lazybatch_engine::policy;
use lazybatch_graph::{Program, SharedProgram, Tensor};
use lazybatch_kernels::Device;
use lazybatch_serve::{
    ALL, Control, Cut, Gpus, Host, Options, Otlp, Rounds, Security, Server, Switches, TlsFiles,
    TraceDir,
};
use lazybatch_sla::profile::ModelProfile;
use lazybatch_workloads::text::Text;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::profile::{SEED, measure};
use crate::args::CpuArgs;
use crate::failure::BadInput;
use crate::gpus;
use crate::huge;
use crate::models::{self, DeviceKind, Model};
use crate::output;
use crate::serve_args::{
    ControlMode, LogFormat, OTLP_SAMPLE, REPOSITORY_POLL_SECS, ServeArgs, TRACE_MB,
};

/// Runs the command: until SIGTERM or SIGINT. Files of TLS and tokens are read anew on SIGHUP.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let kind = named_device(args)?;
    policy::find(&args.policy).map_err(|e| BadInput(format!("--policy: {e}")))?;
    if args.print_config {
        return output::text(&args.effective);
    }
    let switches = Arc::new(Switches::default());
    let rounds = Arc::new(match args.device.as_str() {
        "cpu" => Rounds::beside_device(),
        _ => Rounds::default(),
    });
    let options = options(args, switches.clone(), rounds.clone())?;
    check_effects(args)?;
    kind.check(&args.cpu)?;
    kind.is_emulated(args.no_measure, "--no-measure")?;
    let wanted = switches;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // It would say so there, and panic.
        .log_internal_errors(false)
        .with_ansi(false);
    let lines = match args.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let lines = lines.with_filter(filter_fn(move |line| wanted.wants(line)));
    tracing_subscriber::registry().with(lines).try_init()?;
    if !args.no_huge_code {
        let bytes = huge::move_code();
        tracing::debug!(bytes, "code on huge pages");
    }
    let host = Arc::new(Served {
        kind,
        cpu: args.cpu.clone(),
        measure: !args.no_measure,
    });
    let starts = rounds.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(move || starts.start())
        .on_thread_park(move || rounds.park())
        .build()
        .context("runtime")?;
    runtime.block_on(serve(host, options))?;
    // Threads that still load a model are of no use any more.
    runtime.shutdown_background();
    Ok(())
}

/// Refuses options that another one leaves without an effect. Their defaults pass, as --print-config
/// prints them.
fn check_effects(args: &ServeArgs) -> Result<(), BadInput> {
    let mode = args.model_control_mode;
    let got = mode.to_possible_value();
    let got = got.as_ref().map_or("another", |value| value.get_name());
    let none = "none";
    let checks = [
        (
            "--load-model",
            !args.load_model.is_empty(),
            mode == ControlMode::Explicit,
            "--model-control-mode explicit",
            got,
        ),
        (
            "--repository-poll-secs",
            args.repository_poll_secs != REPOSITORY_POLL_SECS,
            mode == ControlMode::Poll,
            "--model-control-mode poll",
            got,
        ),
        (
            "--metrics-open",
            args.metrics_open,
            args.token_file.is_some(),
            "--token-file",
            none,
        ),
        (
            "--otlp-sample",
            args.otlp_sample != OTLP_SAMPLE,
            args.otlp_endpoint.is_some(),
            "--otlp-endpoint",
            none,
        ),
        (
            "--trace-mb",
            args.trace_mb != TRACE_MB,
            args.trace_dir.is_some(),
            "--trace-dir",
            none,
        ),
    ];
    for (option, is_stated, has_effect, expected, got) in checks {
        if is_stated && !has_effect {
            return Err(BadInput(format!(
                "{option}: expected {expected}, got {got}"
            )));
        }
    }
    let names = &args.load_model;
    if names.len() > 1 && names.iter().any(|name| name == ALL) {
        let (expected, got) = (format!("{ALL} alone, or names"), names.join(", "));
        return Err(BadInput(format!(
            "--load-model: expected {expected}, got {got}"
        )));
    }
    Ok(())
}

/// The device that runs all models, whether this machine has it or not.
fn named_device(args: &ServeArgs) -> Result<DeviceKind, BadInput> {
    match args.device.as_str() {
        "cpu" => Ok(DeviceKind::Cpu),
        name => DeviceKind::cuda(name).ok_or_else(|| {
            let expected = "--device: expected cpu, cuda or cuda:N";
            BadInput(format!("{expected}, got {name}"))
        }),
    }
}

fn options(
    args: &ServeArgs,
    switches: Arc<Switches>,
    rounds: Arc<Rounds>,
) -> Result<Options, BadInput> {
    let at = |port| Some(SocketAddr::new(args.host, port));
    Ok(Options {
        models: args.models.clone(),
        control: match args.model_control_mode {
            ControlMode::None => Control::None,
            ControlMode::Explicit => Control::Explicit(args.load_model.clone()),
            ControlMode::Poll => Control::Poll,
        },
        policy: args.policy.clone(),
        cache_bytes: (args.response_cache_mb * 1e6) as u64,
        poll_every: Duration::from_secs_f64(args.repository_poll_secs),
        exit_on_error: !args.keep_going,
        strict_readiness: args.strict_readiness,
        http: at(args.http_port),
        grpc: at(args.grpc_port),
        metrics: at(args.metrics_port),
        max_body: (args.max_request_mb * 1e6) as usize,
        max_request_memory: (args.max_request_memory_mb * 1e6) as usize,
        max_tensor: (args.max_tensor_mb * 1e6) as usize,
        max_in_flight: args.max_in_flight as usize,
        max_connections: args.max_connections as usize,
        max_streams: 1024,
        header_timeout: Duration::from_secs(10),
        keep_alive: Duration::from_secs_f64(args.keep_alive_secs),
        idle_timeout: Duration::from_secs(60),
        body_timeout: Duration::from_secs(30),
        stall_timeout: Duration::from_secs_f64(args.stall_secs),
        drain: Duration::from_secs_f64(args.drain_secs),
        security: security(args)?,
        switches,
        rounds,
        dashboard: !args.no_dashboard,
        otlp: args.otlp_endpoint.clone().map(|endpoint| Otlp {
            endpoint,
            sample: args.otlp_sample,
            flush: Duration::from_secs(5),
        }),
        traces: args.trace_dir.clone().map(|folder| TraceDir {
            folder,
            max_bytes: (args.trace_mb * 1e6) as u64,
        }),
    })
}

fn security(args: &ServeArgs) -> Result<Security, BadInput> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(TlsFiles {
            cert: cert.clone(),
            key: key.clone(),
            client_ca: args.tls_client_ca.clone(),
        }),
        (None, None) if args.tls_client_ca.is_none() => None,
        (cert, key) => {
            let given = [
                ("--tls-cert", cert),
                ("--tls-key", key),
                ("--tls-client-ca", &args.tls_client_ca),
            ];
            let given = given.into_iter().filter(|(_, file)| file.is_some());
            let given: Vec<&str> = given.map(|(name, _)| name).collect();
            let given = given.join(" and ");
            return Err(BadInput(format!(
                "TLS: expected --tls-cert and --tls-key, got {given} alone"
            )));
        }
    };
    Ok(Security {
        tls,
        tokens: args.token_file.clone(),
        metrics_open: args.metrics_open,
        insecure: args.insecure,
    })
}

async fn serve(host: Arc<dyn Host>, options: Options) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hung_up = signal(SignalKind::hangup()).context("SIGHUP")?;
    let server = tokio::select! {
        server = Server::start(host, options) => server?,
        _ = terminated.recv() => return Ok(()),
        _ = interrupted.recv() => return Ok(()),
    };
    let bound = server.bound();
    let ports = [
        ("http", bound.http),
        ("grpc", bound.grpc),
        ("metrics", bound.metrics),
    ];
    for (name, at) in ports {
        if let Some(at) = at {
            output::line(format_args!("{name} {at}"))?;
        }
    }
    output::line("ready")?;
    let guard = server.guard().clone();
    let reloads = tokio::spawn(async move {
        while hung_up.recv().await.is_some() {
            let guard = guard.clone();
            // It logs what it did.
            drop(tokio::task::spawn_blocking(move || guard.reload()).await);
        }
    });
    server
        .run(async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
        })
        .await;
    reloads.abort();
    Ok(())
}

/// What the server is given: the device, our tokenizers, latencies measured at load.
struct Served {
    kind: DeviceKind,
    cpu: CpuArgs,
    measure: bool,
}

impl Host for Served {
    fn device(&self) -> Result<Box<dyn Device>, String> {
        models::device(self.kind, &self.cpu).map_err(|e| format!("{e:#}"))
    }

    fn has_gpu(&self) -> bool {
        matches!(self.kind, DeviceKind::Cuda(_))
    }

    fn gpus(&self) -> Option<Box<dyn Gpus>> {
        self.has_gpu().then(gpus::open).flatten()
    }

    fn text(
        &self,
        program: &Program,
        folder: &Path,
    ) -> Result<Option<Box<dyn lazybatch_serve::Text>>, String> {
        let text = Text::of(program, folder).map_err(|e| e.to_string())?;
        Ok(text.map(|text| Box::new(Codec(text)) as _))
    }

    fn measure(
        &self,
        program: &SharedProgram,
        max_batch: u32,
        cut: Cut,
    ) -> Result<Option<ModelProfile>, String> {
        if !self.measure {
            return Ok(None);
        }
        let model = Model::of(program.clone());
        let length = match cut {
            Cut::ByDevice => SegmentLength::ByDevice,
            Cut::Us(us) => SegmentLength::Us(us),
            Cut::Nodes(num) => SegmentLength::Nodes(num),
        };
        let device = (self.kind, &self.cpu);
        let measured = measure(&model, device, max_batch, length, SEED, false);
        let profile = measured.map_err(|e| format!("{e:#}"))?.into_profile();
        Ok(profile.models.into_iter().next().map(|mut profile| {
            // The target is the configuration's to state.
            profile.sla_ms = None;
            profile
        }))
    }
}

/// A tokenizer as the server takes it.
struct Codec(Text);

impl lazybatch_serve::Text for Codec {
    fn inputs(&self, text: &str) -> Result<Vec<Tensor>, String> {
        let item = self.0.item(text).map_err(|e| e.to_string())?;
        Ok(item.inputs)
    }

    fn answer(&self, outputs: &[Tensor]) -> Result<Option<String>, String> {
        self.0.answer(outputs).map_err(|e| e.to_string())
    }
}
