//! Ports, and the way from start to a drained end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::poll_fn;
use futures_util::{FutureExt, TryFutureExt};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthReporter;
use tower::{Layer, Service as TowerService};
use tower_http::timeout::RequestBodyDeadlineLayer;

use crate::closing::Closing;
use crate::grpc::{CallLayer, Service};
use crate::heads::{Answer, Calls};
use crate::http::Front;
use crate::listen::{Connection, Listen};
use crate::memory::Memory;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::repository::{Control, Repository};
use crate::rounds::Rounds;
use crate::security::auth::AuthLayer;
use crate::security::{Guard, Port, Security};
use crate::settings::Switches;
use crate::state::State;
use crate::telemetry::{Otlp, Telemetry};
use crate::traces::{TraceDir, Traces};
use crate::{Host, descriptors, error, http, metrics};

/// Most fields of the head of a request over HTTP/1.1.
const HEAD_FIELDS: usize = 64;
/// Most bytes of one, and of what is read of a connection at once.
const HEAD_BYTES: usize = 64 << 10;
/// Most bytes of the metadata of a call over gRPC, as HTTP/2 counts them.
const METADATA_BYTES: u32 = 16 << 10;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of models.
    pub models: std::path::PathBuf,
    /// Who decides which models are served.
    pub control: Control,
    /// Scheduling policy over all models.
    pub policy: String,
    /// Most bytes of answers that are kept for models with a response cache.
    pub cache_bytes: u64,
    /// How often [`Control::Poll`] looks.
    pub poll_every: Duration,
    /// Whether a model that cannot be loaded at the start ends the server.
    pub exit_on_error: bool,
    /// Whether the server is not ready while a model that was asked for at the start is not.
    pub strict_readiness: bool,
    /// Where HTTP listens; not at all if `None`.
    pub http: Option<SocketAddr>,
    /// Where gRPC listens; not at all if `None`.
    pub grpc: Option<SocketAddr>,
    /// Where `/metrics` listens; not at all if `None`.
    pub metrics: Option<SocketAddr>,
    /// Most bytes of a request.
    pub max_body: usize,
    /// Most bytes that requests hold together: their messages, and the tensors made of them.
    pub max_request_memory: usize,
    /// Most bytes of one tensor of a request.
    pub max_tensor: usize,
    /// Most inference calls at once.
    pub max_in_flight: usize,
    /// Most connections of each port.
    pub max_connections: usize,
    /// Most calls at once of one gRPC connection.
    pub max_streams: u32,
    /// How long a client may take to agree on keys, and to send the head of a request.
    pub header_timeout: Duration,
    /// How long a connection over HTTP may lie idle behind an answer.
    pub keep_alive: Duration,
    /// How long a connection over gRPC may have no call before the first one that not everybody may make.
    pub idle_timeout: Duration,
    /// How long a client may take to send the whole body of a request, or a message of a stream.
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub stall_timeout: Duration,
    /// How long calls that were taken may go on once the server is told to end.
    pub drain: Duration,
    /// Who may call.
    pub security: Security,
    /// Logging settings, which whoever prints log lines looks at.
    pub switches: Arc<Switches>,
    /// Refusals, behind which whoever runs the server may wait ([`Rounds::park`]).
    pub rounds: Arc<Rounds>,
    /// Whether HTTP has a page at `/`.
    pub dashboard: bool,
    /// Where spans of inference calls go; nowhere if `None`.
    pub otlp: Option<Otlp>,
    /// Where traces of inference calls may be written; nowhere if `None`.
    pub traces: Option<TraceDir>,
}

/// Addresses of a server that runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// Of HTTP.
    pub http: Option<SocketAddr>,
    /// Of gRPC.
    pub grpc: Option<SocketAddr>,
    /// Of `/metrics`.
    pub metrics: Option<SocketAddr>,
}

/// A server whose ports are open and whose models are loaded.
pub struct Server {
    state: Arc<State>,
    guard: Arc<Guard>,
    options: Options,
    http: Option<TcpListener>,
    grpc: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

/// Most connections that wait to be accepted, or what the system allows: one more is only tried again
/// by its client's system a second later.
const BACKLOG: u32 = 4096;

fn bind(at: Option<SocketAddr>) -> error::Result<Option<TcpListener>> {
    let Some(at) = at else { return Ok(None) };
    let open = || -> std::io::Result<TcpListener> {
        let socket = match at {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // So that one that was just closed is no reason to refuse.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(at)?;
        socket.listen(BACKLOG)
    };
    let bound = open().map_err(|e| error::Error::expected(at, "an address to listen on", e))?;
    Ok(Some(bound))
}

impl Server {
    /// Opens the ports and loads the models.
    ///
    /// # Errors
    /// An address that others reach without what [`Security::check`] asks for, a port that is taken,
    /// a file or a folder that is not there, models that cannot be loaded, an endpoint of
    /// [`Options::otlp`] that is none, a folder of [`Options::traces`] that is not there.
    pub async fn start(host: Arc<dyn Host>, options: Options) -> error::Result<Self> {
        let addresses = [options.http, options.grpc, options.metrics];
        options.security.check(addresses.into_iter().flatten())?;
        descriptors::provide(addresses.iter().flatten().count(), options.max_connections);
        let guard = Arc::new(Guard::open(&options.security)?);
        let is_encrypted = options.security.tls.is_some();
        let telemetry = options.otlp.as_ref();
        let telemetry = telemetry.map(|otlp| Telemetry::open(otlp, is_encrypted));
        let telemetry = telemetry.transpose()?;
        let traces = Traces::open(options.traces.as_ref())?;
        let (http, grpc) = (bind(options.http)?, bind(options.grpc)?);
        let metrics = bind(options.metrics)?;
        let gpus = host.gpus();
        let (models, control) = (options.models.clone(), options.control.clone());
        let (policy, cache_bytes) = (options.policy.clone(), options.cache_bytes);
        let memory = Memory::new(options.max_request_memory, options.max_tensor);
        let memory = Arc::new(memory);
        let of_repository = memory.clone();
        let repository = tokio::task::spawn_blocking(move || {
            let (policy, memory) = (&*policy, of_repository);
            let repository = Repository::open(&models, host, control, policy, cache_bytes, memory)?;
            let loaded = repository.load_first();
            Ok::<_, error::Error>((repository, loaded))
        });
        let repository = repository.await;
        let (repository, loaded) =
            repository.unwrap_or_else(|e| Err(error::Error::Internal(e.to_string())))?;
        if options.exit_on_error {
            loaded?;
        }
        Ok(Self {
            state: Arc::new(State::new(
                repository,
                options.switches.clone(),
                options.rounds.clone(),
                memory,
                options.max_in_flight,
                options.strict_readiness,
                telemetry,
                traces,
                gpus,
            )),
            guard,
            options,
            http,
            grpc,
            metrics,
        })
    }

    /// Where it listens.
    pub fn bound(&self) -> Bound {
        let at = |l: &Option<TcpListener>| l.as_ref().and_then(|l| l.local_addr().ok());
        Bound {
            http: at(&self.http),
            grpc: at(&self.grpc),
            metrics: at(&self.metrics),
        }
    }

    /// What its calls share.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Who may call, which can be read anew.
    pub fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Serves until `end` comes, then takes no more inference calls, waits for those that it has,
    /// and closes its ports. Health and metrics are answered until the last of them has ended.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let at = self.bound();
        let Self {
            state,
            guard,
            options,
            http,
            grpc,
            metrics,
        } = self;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        // Its models are there; whoever was told so and asks at once is not to hear anything else.
        state.set_ready(true);
        let mut open = |port, listener| {
            let listen = Listen {
                port,
                guard: guard.clone(),
                max_connections: options.max_connections,
                handshake_timeout: options.header_timeout,
                idle_timeout: options.idle_timeout,
                keep_alive: options.keep_alive,
                stall_timeout: options.stall_timeout,
            };
            let (accept, connections) = listen.start(listener, stopped.clone());
            tasks.spawn(accept);
            connections
        };
        let http = http.map(|listener| open(Port::Http, listener));
        let grpc = grpc.map(|listener| open(Port::Grpc, listener));
        let metrics = metrics.map(|listener| open(Port::Metrics, listener));
        if let Some(connections) = http {
            let (most, within) = (options.max_body, options.body_timeout);
            let router = http::router(state.clone(), most, options.dashboard);
            let router = router.layer(RequestBodyDeadlineLayer::new(within));
            let front = Front::new(state.clone(), router, most, within);
            let auth = AuthLayer::http(guard.clone(), Port::Http, at.http);
            tasks.spawn(serve_http(connections, auth.layer(front)));
        }
        if let Some(connections) = metrics {
            let router = metrics::router(state.clone());
            let auth = AuthLayer::http(guard.clone(), Port::Metrics, at.metrics);
            tasks.spawn(serve_http(connections, auth.layer(router)));
        }
        let (health, health_service) = tonic_health::server::health_reporter();
        if let Some(connections) = grpc {
            let service = Service::new(state.clone());
            tasks.spawn(serve_grpc(
                connections,
                service,
                health_service,
                CallLayer::new(state.clone(), options.body_timeout),
                AuthLayer::grpc(guard),
                options.clone(),
                stopped,
            ));
        }
        if options.control == Control::Poll {
            let (state, every) = (state.clone(), options.poll_every);
            tasks.spawn(async move {
                loop {
                    tokio::time::sleep(every).await;
                    let state = state.clone();
                    drop(tokio::task::spawn_blocking(move || state.repository.poll()).await);
                }
            });
        }
        let told = tokio::spawn(tell_health(state.clone(), health.clone()));
        end.await;
        state.close();
        told.abort();
        // It is told no more when that has ended.
        drop(told.await);
        set_health(&health, false).await;
        let left = || (state.in_flight(), state.num_sequences());
        let (in_flight, sequences) = left();
        tracing::info!(in_flight, sequences, "draining");
        if timeout(options.drain, state.idle()).await.is_err() {
            let (in_flight, sequences) = left();
            tracing::warn!(in_flight, sequences, "ended before these did");
        }
        // Streams that wait for a client's next call, and for changes of health, would do so for ever.
        state.end();
        clear_health(&health).await;
        // A receiver that has gone has nothing left to stop.
        let _ = stop.send(true);
        if timeout(options.header_timeout, async {
            while let Some(ended) = tasks.join_next().await {
                drop(ended);
                if tasks.len() <= usize::from(options.control == Control::Poll) {
                    break;
                }
            }
        })
        .await
        .is_err()
        {
            tracing::warn!("ended with connections open");
        }
        tasks.shutdown().await;
        if let Some(telemetry) = &state.telemetry {
            telemetry.end().await;
        }
        state.traces.end().await;
    }
}

/// How often the health service of gRPC, which is told and does not ask, is told whether the server is
/// ready.
const TOLD_EVERY: Duration = Duration::from_millis(500);

async fn tell_health(state: Arc<State>, health: HealthReporter) {
    let mut told = None;
    loop {
        let is_ready = state.is_ready();
        if told.replace(is_ready) != Some(is_ready) {
            set_health(&health, is_ready).await;
        }
        tokio::time::sleep(TOLD_EVERY).await;
    }
}

async fn set_health(health: &HealthReporter, is_ready: bool) {
    use tonic_health::ServingStatus::{NotServing, Serving};
    let status = if is_ready { Serving } else { NotServing };
    for service in HEALTH_OF {
        health.set_service_status(service, status).await;
    }
}

/// Services whose health is told: all together, and the protocol's.
const HEALTH_OF: [&str; 2] = [
    "",
    <GrpcInferenceServiceServer<Service> as tonic::server::NamedService>::NAME,
];

/// Ends the streams of those who watch it.
async fn clear_health(health: &HealthReporter) {
    let mut health = health.clone();
    for service in HEALTH_OF {
        health.clear_service_status(service).await;
    }
}

/// A service that is always ready, as hyper calls one, and its calls.
struct Ready<S>(S, Arc<Calls>);

impl<S> hyper::service::Service<Request<Incoming>> for Ready<S>
where
    S: TowerService<Request<Incoming>, Response = Response> + Clone,
    S::Future: Send + 'static,
{
    type Response = hyper::Response<Answer>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = self.1.begin();
        let answer = |answer: Response| answer.map(|body| Answer::new(body, call));
        self.0.clone().call(request).map_ok(answer).boxed()
    }
}

/// Serves connections by HTTP/1.1 until there come no more; answers what was asked by then.
async fn serve_http<S>(mut connections: mpsc::Receiver<Connection>, service: S)
where
    S: TowerService<Request<Incoming>, Response = Response, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let closing = Closing::default();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        // Of the time that heads take the connection takes care.
        .header_read_timeout(None)
        .max_headers(HEAD_FIELDS)
        // The bound on what is read says nothing of a head that comes whole in one read.
        .max_header_size(HEAD_BYTES)
        .max_buf_size(HEAD_BYTES);
    while let Some(connection) = connections.recv().await {
        let service = Ready(service.clone(), connection.calls());
        let connection = builder.serve_connection(TokioIo::new(connection), service);
        let connection = closing.watch(connection);
        // A client that breaks off is no error of the server.
        tokio::spawn(async move { drop(connection.await) });
    }
    closing.close().await;
}

async fn serve_grpc<H>(
    mut connections: mpsc::Receiver<Connection>,
    service: Service,
    health: HealthServer<H>,
    calls: CallLayer,
    auth: AuthLayer<tonic::body::Body>,
    options: Options,
    mut stopped: watch::Receiver<bool>,
) where
    H: tonic_health::pb::health_server::Health,
{
    let service = GrpcInferenceServiceServer::new(service)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(options.max_body)
        .max_encoding_message_size(usize::MAX);
    let incoming = poll_fn(move |context| {
        let connection = connections.poll_recv(context);
        connection.map(|c| c.map(Ok::<_, Infallible>))
    });
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(options.max_streams)
        .http2_keepalive_interval(Some(Duration::from_secs(60)))
        .http2_keepalive_timeout(Some(options.header_timeout))
        .http2_max_header_list_size(METADATA_BYTES)
        .layer(calls)
        .layer(auth)
        .add_service(health)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, async move {
            drop(stopped.wait_for(|&s| s).await);
        });
    if let Err(error) = served.await {
        let error = error.to_string();
        tracing::error!(error, "gRPC ended");
    }
}
