//! Bare servers that answer what they are sent: axum over HTTP/1.1 and tonic over gRPC, with the
//! connection settings of the front end and none of its layers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lazybatch_serve::proto::model_infer_response::InferOutputTensor;
use lazybatch_serve::proto::{ModelInferRequest, ModelInferResponse};
use tokio::net::TcpListener;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic_prost::ProstCodec;

/// Listens on two free ports of loopback, prints where, then `ready`, and answers for ever.
///
/// # Errors
/// No ports.
pub fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (http, grpc) = (bind().await?, bind().await?);
        println!("http {}", http.local_addr()?);
        println!("grpc {}", grpc.local_addr()?);
        println!("ready");
        tokio::spawn(over_http(http));
        over_grpc(grpc).await
    })
}

async fn bind() -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await
}

/// Answers `POST` of any path with its body.
async fn over_http(listener: TcpListener) {
    let router = Router::new()
        .route(
            "/v2/models/{model}/infer",
            post(|body: bytes::Bytes| async { body }),
        )
        .route("/v2/health/ready", get(|| async {}));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .max_headers(64)
        .max_buf_size(64 << 10);
    while let Ok((stream, _)) = listener.accept().await {
        drop(stream.set_nodelay(true));
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // A client that breaks off is no error.
            drop(connection.await);
        });
    }
}

/// Answers `ModelInfer` with the request's tensors.
async fn over_grpc(listener: TcpListener) -> anyhow::Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .max_concurrent_streams(1024)
        .http2_keepalive_interval(Some(Duration::from_secs(60)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .http2_max_header_list_size(16 << 10)
        .add_service(Echo)
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// The service: one call.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl Service<http::Request<tonic::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
            Ok(Grpc::new(codec).unary(Echo, request).await)
        })
    }
}

impl UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = std::future::Ready<Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        });
        std::future::ready(Ok(tonic::Response::new(ModelInferResponse {
            model_name: request.model_name,
            model_version: "1".into(),
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..ModelInferResponse::default()
        })))
    }
}
