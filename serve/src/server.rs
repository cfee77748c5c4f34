//! Ports, connections, and the way from start to a drained end.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;
use tonic_health::pb::health_server::HealthServer;

use crate::grpc::Service;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::repository::{Control, Repository};
use crate::settings::Switches;
use crate::state::State;
use crate::{Host, error, http, metrics};

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
    /// Where HTTP listens; not at all if `None`.
    pub http: Option<SocketAddr>,
    /// Where gRPC listens; not at all if `None`.
    pub grpc: Option<SocketAddr>,
    /// Where `/metrics` listens; not at all if `None`.
    pub metrics: Option<SocketAddr>,
    /// Most bytes of a request.
    pub max_body: usize,
    /// Most inference calls at once.
    pub max_in_flight: usize,
    /// Most connections of each port.
    pub max_connections: usize,
    /// Most calls at once of one gRPC connection.
    pub max_streams: u32,
    /// How long a client may take to send the headers of a request.
    pub header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub body_timeout: Duration,
    /// How long calls that were taken may go on once the server is told to end.
    pub drain: Duration,
    /// Logging settings, which whoever prints log lines looks at.
    pub switches: Arc<Switches>,
    /// Whether HTTP has a page at `/`.
    pub dashboard: bool,
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
    options: Options,
    http: Option<TcpListener>,
    grpc: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

async fn bind(at: Option<SocketAddr>) -> error::Result<Option<TcpListener>> {
    let Some(at) = at else { return Ok(None) };
    let bound = TcpListener::bind(at).await;
    let bound = bound.map_err(|e| error::Error::expected(at, "an address to listen on", e))?;
    Ok(Some(bound))
}

impl Server {
    /// Opens the ports and loads the models.
    ///
    /// # Errors
    /// A port that is taken, a folder that is not there, models that cannot be loaded.
    pub async fn start(host: Arc<dyn Host>, options: Options) -> error::Result<Self> {
        let (http, grpc) = (bind(options.http).await?, bind(options.grpc).await?);
        let metrics = bind(options.metrics).await?;
        let (models, control) = (options.models.clone(), options.control.clone());
        let (policy, cache_bytes) = (options.policy.clone(), options.cache_bytes);
        let repository = tokio::task::spawn_blocking(move || {
            let repository = Repository::open(&models, host, control, &policy, cache_bytes)?;
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
                options.max_in_flight,
            )),
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

    /// Serves until `end` comes, then takes no more inference calls, waits for those that it has,
    /// and closes its ports. Health and metrics are answered until the last of them has ended.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self {
            state,
            options,
            http,
            grpc,
            metrics,
        } = self;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        if let Some(listener) = http {
            let router = http::router(state.clone(), options.max_body, options.dashboard);
            let router = router.layer(tower_http::timeout::RequestBodyTimeoutLayer::new(
                options.body_timeout,
            ));
            tasks.spawn(serve_http(
                listener,
                router,
                options.clone(),
                stopped.clone(),
            ));
        }
        if let Some(listener) = metrics {
            let router = metrics::router(state.clone());
            tasks.spawn(serve_http(
                listener,
                router,
                options.clone(),
                stopped.clone(),
            ));
        }
        let (health, health_service) = tonic_health::server::health_reporter();
        if let Some(listener) = grpc {
            let service = Service::new(state.clone());
            tasks.spawn(serve_grpc(
                listener,
                service,
                health_service,
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
        health
            .set_serving::<GrpcInferenceServiceServer<Service>>()
            .await;
        state.set_ready(true);
        end.await;
        state.close();
        let not_serving = tonic_health::ServingStatus::NotServing;
        health.set_service_status("", not_serving).await;
        health
            .set_not_serving::<GrpcInferenceServiceServer<Service>>()
            .await;
        tracing::info!(in_flight = state.in_flight(), "draining");
        if timeout(options.drain, state.idle()).await.is_err() {
            tracing::warn!(in_flight = state.in_flight(), "ended with calls in flight");
        }
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
    }
}

/// Accepts connections of HTTP/1.1 until told to stop; answers what was asked by then.
async fn serve_http(
    listener: TcpListener,
    router: Router,
    options: Options,
    mut stopped: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(options.max_connections));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_headers(64)
        .max_buf_size(64 << 10);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|&s| s) => break,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, or a client that has gone: others may be accepted.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        // One connection too many is closed at once.
        let Ok(permit) = room.clone().try_acquire_owned() else {
            continue;
        };
        drop(stream.set_nodelay(true));
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A client that breaks off is no error of the server.
            drop(connection.await);
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn serve_grpc<H>(
    listener: TcpListener,
    service: Service,
    health: HealthServer<H>,
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
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(options.max_streams)
        .http2_keepalive_interval(Some(Duration::from_secs(60)))
        .http2_keepalive_timeout(Some(options.header_timeout))
        .http2_max_header_list_size(16 << 10)
        .add_service(health)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, async move {
            drop(stopped.wait_for(|&s| s).await);
        });
    if let Err(error) = served.await {
        tracing::error!(%error, "gRPC ended");
    }
}
