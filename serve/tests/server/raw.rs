//! gRPC as a client that keeps to HTTP/2 and to little else speaks it: it decides what it sends of a
//! message, and how much of an answer it takes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;

use axum::http::request::Builder;
use axum::http::{HeaderMap, Method, Request};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A connection.
pub struct Raw {
    calls: SendRequest<Bytes>,
    /// Ends with the connection; answers pings until then.
    pub task: JoinHandle<Result<(), h2::Error>>,
}

impl Raw {
    pub async fn connect(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).await.unwrap();
        // Wider than that of a call: one that is not read does not stop the others.
        let mut client = h2::client::Builder::new();
        let client = client.initial_connection_window_size(16 << 20);
        let (calls, connection) = client.handshake(stream).await.unwrap();
        let task = tokio::spawn(connection);
        Self { calls, task }
    }

    /// Begins a call.
    pub async fn begin(&mut self, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
        self.begin_with(method, "none").await
    }

    /// The same, with a text of metadata.
    pub async fn begin_with(
        &mut self,
        method: &str,
        text: &str,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.begin_by(head(method).header("x-text", text)).await
    }

    /// The same, with the time in which the answer is wanted.
    pub async fn begin_within(
        &mut self,
        method: &str,
        within: &str,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.begin_by(head(method).header("grpc-timeout", within))
            .await
    }

    /// The same, with a token or without.
    pub async fn begin_bearing(
        &mut self,
        method: &str,
        token: Option<&str>,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let head = head(method);
        self.begin_by(match token {
            Some(token) => head.header("authorization", format!("Bearer {token}")),
            None => head,
        })
        .await
    }

    async fn begin_by(&mut self, head: Builder) -> (ResponseFuture, SendStream<Bytes>) {
        let mut calls = self.calls.clone().ready().await.unwrap();
        calls.send_request(head.body(()).unwrap(), false).unwrap()
    }
}

/// The head of a call, of the service of inference if it names none.
fn head(method: &str) -> Builder {
    let uri = match method.contains('/') {
        true => format!("http://localhost/{method}"),
        false => format!("http://localhost/inference.GRPCInferenceService/{method}"),
    };
    let head = Request::builder().method(Method::POST).uri(uri);
    head.header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// A message as it goes over the wire.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}

/// A request to `lstm` with that id, framed.
pub fn lstm(id: &str) -> Bytes {
    let message = ModelInferRequest {
        model_name: "lstm".into(),
        id: id.into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, 1, 16],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![vec![0; 64].into()],
        ..ModelInferRequest::default()
    };
    framed(&message.encode_to_vec())
}

fn status_of(headers: &HeaderMap) -> Option<String> {
    Some(headers.get("grpc-status")?.to_str().unwrap().to_owned())
}

/// The `grpc-status` of a call, and its answer's bytes, all of which are taken.
pub async fn ended(response: ResponseFuture) -> (String, Vec<u8>) {
    let response = response.await.unwrap();
    if let Some(status) = status_of(response.headers()) {
        return (status, Vec::new());
    }
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(data) = taken(&mut body).await {
        bytes.extend(data);
    }
    let trailers = body.trailers().await.unwrap().unwrap_or_default();
    (status_of(&trailers).unwrap_or_default(), bytes)
}

/// The next bytes of an answer, which are taken.
pub async fn taken(body: &mut RecvStream) -> Option<Bytes> {
    let data = body.data().await?.unwrap();
    body.flow_control().release_capacity(data.len()).unwrap();
    Some(data)
}
