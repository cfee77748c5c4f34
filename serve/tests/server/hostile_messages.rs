//! Hostile messages by kind, beside those of `hostile`: tensors as bytes, packed bodies, text, regions,
//! streams, and clients that do not read.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;

use axum::http::HeaderMap;
use bytes::Bytes;
use lazybatch_serve::proto::SystemSharedMemoryRegisterRequest;
use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::transport::Channel;

use crate::common::{Running, http};
use crate::raw::{self, Raw, framed};

fn one<'a>(rng: &mut ChaCha8Rng, of: &[&'a str]) -> &'a str {
    of.choose(rng).copied().unwrap_or_default()
}

fn bytes(rng: &mut ChaCha8Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..most)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn with_headers(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\
         {headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Tensors as bytes behind JSON, with lengths that lie.
pub fn tensors(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let data_type = one(rng, &["FP32", "FP16", "BYTES", "BOOL", "INT64", "NAN"]);
    let sizes = [
        "64",
        "63",
        "0",
        "-1",
        "1e9",
        "18446744073709551615",
        "\"64\"",
        "null",
    ];
    let (first, second) = (one(rng, &sizes), one(rng, &sizes));
    let dim = one(rng, &["16", "0", "-1", "4611686018427387904", "17", "[16]"]);
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"{data_type}","shape":[1,{dim}],
        "parameters":{{"binary_data_size":{first}}}}},{{"name":"INPUT1","datatype":"FP32",
        "shape":[1,16],"parameters":{{"binary_data_size":{second}}}}}]}}"#
    );
    let body = [json.as_bytes(), &bytes(rng, 200)].concat();
    let length = match rng.random_range(0..5) {
        0 => json.len().to_string(),
        1 => (json.len() + rng.random_range(1..50)).to_string(),
        2 => (json.len() - rng.random_range(1..50)).to_string(),
        3 => (body.len() + 1).to_string(),
        _ => one(rng, &["-1", "0", "", "x", "99999999999999999999999"]).to_owned(),
    };
    let header = format!("inference-header-content-length: {length}\r\n");
    with_headers("/v2/models/add/infer", &header, &body)
}

/// A packed body that is no packed body, or far more than it seems.
pub fn packed(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let part = match rng.random_bool(0.5) {
        true => vec![b' '; 1 << 20],
        false => b"1,".repeat(1 << 19),
    };
    packer
        .write_all(br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":["#)
        .unwrap();
    for _ in 0..rng.random_range(1..4) {
        packer.write_all(&part).unwrap();
    }
    let mut body = packer.finish().unwrap();
    if rng.random_bool(0.3) {
        body.truncate(rng.random_range(0..body.len()));
    }
    let coding = one(rng, &["gzip", "deflate", "gzip, gzip", "br"]);
    let path = one(
        rng,
        &["/v2/models/add/infer", "/v2/models/speaker/generate"],
    );
    with_headers(path, &format!("content-encoding: {coding}\r\n"), &body)
}

/// Text that is none.
pub fn text(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let (open, shut) = *[("[", "]"), (r#"{"a":"#, "}")].choose(rng).unwrap();
    let depth = rng.random_range(1..3000);
    let deep = format!("{}1{}", open.repeat(depth), shut.repeat(depth));
    let many: String = (0..rng.random_range(0..3000))
        .map(|i| format!(r#""{i}":1,"#))
        .collect();
    let value = match rng.random_range(0..5) {
        0 => deep.clone(),
        1 => r#""\ud800""#.into(),
        2 => "null".into(),
        3 => "[\"a\",\"b\"]".into(),
        _ => "1e999".into(),
    };
    let body = match rng.random_range(0..4) {
        0 => format!(r#"{{"text_input":{value}}}"#),
        1 => format!(r#"{{"text_input":"a","parameters":{deep}}}"#),
        2 => format!(r#"{{{many}"text_input":{value}}}"#),
        _ => format!(r#"{{"text_input":"a","text_input":{value}}}"#),
    };
    let end = one(rng, &["generate", "generate_stream"]);
    let model = one(rng, &["speaker", "add", "nobody"]);
    http(
        "POST",
        &format!("/v2/models/{model}/{end}"),
        body.as_bytes(),
    )
}

/// Regions that are not there, too large, or beyond all numbers; and requests that read them.
pub fn regions(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let numbers = [
        "0",
        "1",
        "4096",
        "-1",
        "1.5",
        "18446744073709551615",
        "null",
    ];
    let (size, offset) = (one(rng, &numbers), one(rng, &numbers));
    if rng.random_bool(0.5) {
        let key = one(rng, &["/nothing", "..", "", "/a/b", "/\u{0}", "/hostile"]);
        let key = serde_json::to_string(key).unwrap();
        let body = format!(r#"{{"key":{key},"offset":{offset},"byte_size":{size}}}"#);
        let path = "/v2/systemsharedmemory/region/r/register";
        return http("POST", path, body.as_bytes());
    }
    let body = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,16],"parameters":{{
        "shared_memory_region":"r","shared_memory_offset":{offset},
        "shared_memory_byte_size":{size}}}}}]}}"#
    );
    http("POST", "/v2/models/add/infer", body.as_bytes())
}

/// The same over gRPC; true if it was refused.
pub async fn region_over_grpc(
    rng: &mut ChaCha8Rng,
    grpc: &mut GrpcInferenceServiceClient<Channel>,
) -> bool {
    let numbers = [0, 1, 4096, u64::MAX, u64::MAX - 4095];
    let asked = SystemSharedMemoryRegisterRequest {
        name: "r".into(),
        key: one(rng, &["/nothing", "..", "", "/a/b"]).into(),
        offset: *numbers.choose(rng).unwrap(),
        byte_size: *numbers.choose(rng).unwrap(),
    };
    let told = grpc.system_shared_memory_register(asked).await;
    let told = told.expect_err("there is no such object");
    assert_eq!(told.code(), tonic::Code::InvalidArgument, "{told}");
    true
}

/// Most inputs of two bytes each in a message that is garbage.
const MOST_INPUTS: usize = 100_000;

/// The message that needs the most memory, sent once.
pub async fn most_inputs(server: &Running) {
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (answer, mut asks) = client.begin("ModelInfer").await;
    let message = framed(&[0x2a, 0].repeat(MOST_INPUTS));
    asks.send_data(message, true).unwrap();
    assert_ne!(raw::ended(answer).await.0, "0");
}

/// Bytes that a stream or a call of gRPC is sent in place of messages.
fn garbage(rng: &mut ChaCha8Rng) -> Bytes {
    match rng.random_range(0..5) {
        // A length that is not kept, or beyond all bounds.
        0 => [&[0][..], &rng.next_u32().to_be_bytes(), &bytes(rng, 100)]
            .concat()
            .into(),
        // Said to be packed, or to be nothing that is known.
        1 => [
            &[rng.random_range(1..4)][..],
            &[0, 0, 0, 9],
            &bytes(rng, 10),
        ]
        .concat()
        .into(),
        2 => framed(&bytes(rng, 300)),
        3 => framed(&[0x2a, 0].repeat(rng.random_range(1..MOST_INPUTS))),
        _ => {
            let mut whole = raw::lstm("whole").to_vec();
            let at = rng.random_range(5..whole.len());
            whole[at] = rng.random();
            whole.into()
        }
    }
}

/// A client whose answers nobody takes, for as long as this is kept.
pub type Lies = Box<dyn std::any::Any>;

/// A client that asks and does not read.
pub async fn never_reads(rng: &mut ChaCha8Rng, server: &Running) -> Lies {
    if rng.random_bool(0.5) {
        let mut stream = TcpStream::connect(server.http()).await.unwrap();
        let body = br#"{"text_input":"a"}"#;
        let asks = http("POST", "/v2/models/speaker/generate_stream", body);
        // A server that refuses may have closed.
        let _ = stream.write_all(&asks).await;
        return Box::new(stream);
    }
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let mut calls = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        let stream = rng.random_bool(0.5);
        let method = if stream {
            "ModelStreamInfer"
        } else {
            "ModelInfer"
        };
        let (answer, mut asks) = client.begin(method).await;
        let id = "x".repeat(100_000);
        asks.send_data(raw::lstm(&id), !stream).unwrap();
        calls.push((answer, asks));
    }
    Box::new((client, calls))
}

/// Garbage in calls of gRPC; true if it was refused.
pub async fn garbage_over_grpc(rng: &mut ChaCha8Rng, server: &Running) -> bool {
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let methods = [
        "ModelStreamInfer",
        "ModelInfer",
        "RepositoryModelLoad",
        "TraceSetting",
    ];
    let (answer, mut asks) = client.begin(one(rng, &methods)).await;
    // One that ends early may have reset the call.
    let _ = asks.send_data(garbage(rng), false);
    if rng.random_bool(0.2) {
        // Its answer is not read.
        return false;
    }
    let _ = match rng.random_bool(0.8) {
        true => asks.send_data(Bytes::new(), true),
        false => asks.send_trailers(HeaderMap::new()),
    };
    let (status, _) = raw::ended(answer).await;
    assert_ne!(status, "2", "UNKNOWN");
    status != "0"
}
