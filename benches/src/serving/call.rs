//! Connections that send the same bytes again and again and look at as little of the answers as
//! tells whether they are right: what a client takes of the machine is not the server's.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Way;

/// A request of one tensor of floats, as bytes of the wire.
#[derive(Clone, Debug)]
pub enum Message {
    /// A whole message of HTTP/1.1.
    Http(Bytes),
    /// A message of gRPC with its prefix.
    Grpc(Bytes),
}

/// What is told of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request was answered.
    Done,
    /// It was refused: 503 or `UNAVAILABLE`.
    Refused,
    /// Anything else: the status of HTTP, or of gRPC.
    Failed(u16),
    /// The connection broke, or what came was no answer.
    Broken,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How it ended.
    pub status: Status,
    /// Its body: of HTTP as it is, of gRPC behind the message's prefix.
    pub body: Bytes,
}

/// Input `name` `[dims...]` of `values` for `model`, whose outputs are wanted as bytes.
pub fn infer(way: Way, model: &str, name: &str, dims: &[usize], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    match way {
        Way::Http => {
            let json = format!(
                r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"{name}","shape":{dims:?},"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}]}}"#,
                bytes.len()
            );
            let head = format!(
                "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\
                 inference-header-content-length: {}\r\n\r\n",
                json.len() + bytes.len(),
                json.len()
            );
            Message::Http([head.as_bytes(), json.as_bytes(), &bytes].concat().into())
        }
        Way::Grpc => {
            let input = InferInputTensor {
                name: name.into(),
                datatype: "FP32".into(),
                shape: dims.iter().map(|&d| d as i64).collect(),
                ..InferInputTensor::default()
            };
            let request = ModelInferRequest {
                model_name: model.into(),
                inputs: vec![input],
                raw_input_contents: vec![bytes.into()],
                ..ModelInferRequest::default()
            };
            Message::Grpc(framed(&request))
        }
    }
}

/// A message of gRPC: a byte that says it is not compressed, four of length, itself.
fn framed(message: &impl prost::Message) -> Bytes {
    let len = message.encoded_len();
    let mut framed = Vec::with_capacity(len + 5);
    framed.push(0);
    framed.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message.encode_to_vec());
    framed.into()
}

/// `GET` of a path.
pub fn get(path: &str) -> Message {
    Message::Http(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into())
}

/// A connection on which one call runs at a time.
pub enum Caller {
    /// Of HTTP/1.1, with bytes that were read beyond the last answer.
    Http(TcpStream, BytesMut),
    /// Of gRPC, and where it goes.
    Grpc(SendRequest<Full<Bytes>>, hyper::Uri),
}

impl Caller {
    /// Connects to a server.
    ///
    /// # Errors
    /// A server that cannot be reached.
    pub async fn connect(way: Way, at: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(at)
            .await
            .with_context(|| at.to_string())?;
        stream.set_nodelay(true)?;
        match way {
            Way::Http => Ok(Self::Http(stream, BytesMut::with_capacity(16 << 10))),
            Way::Grpc => {
                let stream = TokioIo::new(stream);
                let (send, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(connection);
                let path = "inference.GRPCInferenceService/ModelInfer";
                Ok(Self::Grpc(send, format!("http://{at}/{path}").parse()?))
            }
        }
    }

    /// Another call at a time on the same connection, where it carries several.
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Http(..) => None,
            Self::Grpc(send, uri) => Some(Self::Grpc(send.clone(), uri.clone())),
        }
    }

    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// A connection that broke, or an answer that is none.
    pub async fn call(&mut self, message: &Message) -> anyhow::Result<Answer> {
        match (self, message) {
            (Self::Http(stream, read), Message::Http(bytes)) => {
                stream.write_all(bytes).await?;
                http_answer(stream, read).await
            }
            (Self::Grpc(send, uri), Message::Grpc(bytes)) => {
                send.ready().await?;
                let request = hyper::Request::post(uri.clone())
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .body(Full::new(bytes.clone()))?;
                grpc_answer(send.send_request(request).await?).await
            }
            _ => bail!("a message for another kind of connection"),
        }
    }
}

async fn http_answer(stream: &mut TcpStream, read: &mut BytesMut) -> anyhow::Result<Answer> {
    let (head, length) = loop {
        if let Some(end) = find_end(read) {
            break (end, head_of(&read[..end])?);
        }
        if stream.read_buf(read).await? == 0 {
            bail!("expected an answer, got the end of the connection");
        }
    };
    let (code, length) = length;
    while read.len() < head + length {
        if stream.read_buf(read).await? == 0 {
            bail!("expected {length} bytes of body, got {}", read.len() - head);
        }
    }
    read.advance(head);
    let body = read.split_to(length).freeze();
    let status = match code {
        200 => Status::Done,
        503 => Status::Refused,
        other => Status::Failed(other),
    };
    Ok(Answer { status, body })
}

/// Where the headers end.
fn find_end(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    Some(at + 4)
}

/// Status and length of the body by the headers.
fn head_of(head: &[u8]) -> anyhow::Result<(u16, usize)> {
    let text = std::str::from_utf8(head).context("headers")?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let code = first.split(' ').nth(1).and_then(|c| c.parse().ok());
    let code = code.with_context(|| format!("expected a status, got {first}"))?;
    let named = lines.filter_map(|line| line.split_once(':'));
    let length = named
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, value)| value.trim().parse().ok());
    Ok((code, length.unwrap_or(0)))
}

async fn grpc_answer(response: hyper::Response<hyper::body::Incoming>) -> anyhow::Result<Answer> {
    let (head, mut body) = response.into_parts();
    // An answer without a message has its trailers at the head.
    let mut status = head.headers.get("grpc-status").cloned();
    let mut all = BytesMut::new();
    let mut first = Bytes::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        match frame.into_data() {
            Ok(data) if first.is_empty() && all.is_empty() => first = data,
            Ok(data) => {
                all.extend_from_slice(&std::mem::take(&mut first));
                all.extend_from_slice(&data);
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    status = trailers.get("grpc-status").cloned();
                }
            }
        }
    }
    let mut body = if all.is_empty() { first } else { all.freeze() };
    body.advance(body.len().min(5));
    let code = status.as_ref().and_then(|s| s.to_str().ok()?.parse().ok());
    let status = match code.context("an answer of gRPC without a status")? {
        0 => Status::Done,
        14 => Status::Refused,
        other => Status::Failed(other),
    };
    Ok(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn heads_say_status_and_length() {
        let head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 12\r\n\r\nrest";
        let end = find_end(head).unwrap();
        assert_eq!(&head[end..], b"rest");
        assert_eq!(head_of(&head[..end]).unwrap(), (503, 12));
        assert!(head_of(b"nothing\r\n\r\n").is_err());
        assert_eq!(find_end(b"HTTP/1.1 200 OK\r\n"), None);
    }

    #[test]
    fn a_message_of_grpc_has_its_length_before_it() {
        let Message::Grpc(bytes) = infer(Way::Grpc, "m", "x", &[1, 2], &[1.0, 2.0]) else {
            panic!("a message of gRPC");
        };
        let len = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
        assert_eq!((bytes[0], bytes.len()), (0, len + 5));
        let request = ModelInferRequest::decode(&bytes[5..]).unwrap();
        assert_eq!(request.inputs[0].shape, [1, 2]);
    }
}
