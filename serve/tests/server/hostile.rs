//! Malformed and hostile messages, with an honest client beside them.
//!
//! `cargo xtask soak --test server` runs more of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lazybatch_graph::folder;
use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{
    InferParameter, InferTensorContents, ModelInferRequest, infer_parameter,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::transport::Channel;

use crate::common::{Running, add, call, http, is_sum, send, soon, speaker, start, status};
use crate::hostile_messages as messages;

/// Messages of a run where `LAZYBATCH_SOAK_CASES` does not say.
const NUM: usize = 300;
/// Clients that have sent a part of a message and neither send the rest nor leave.
const MAX_SLOW: usize = 32;
/// Clients that have asked and do not read.
const MAX_LYING: usize = 8;
/// Messages after which everything that is made once has been made.
const WARM: usize = 200;
/// Most bytes by which memory may grow behind them, and for each further message: connections that
/// are open, and what an allocator keeps.
const MAX_GROWTH: [u64; 2] = [6 << 20, 1 << 10];

/// A message for the port of HTTP.
fn over_http(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let path = "/v2/models/add/infer";
    let honest = http("POST", path, add(9).as_bytes());
    match rng.random_range(0..10) {
        0 => honest[..rng.random_range(0..honest.len())].to_vec(),
        1 => {
            let mut bytes = honest;
            for _ in 0..rng.random_range(1..8) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            bytes
        }
        2 => (0..rng.random_range(1..2000))
            .map(|_| rng.random())
            .collect(),
        3 => {
            let depth = rng.random_range(1..20_000);
            let body = format!(r#"{{"inputs":{}"#, "[".repeat(depth));
            http("POST", path, body.as_bytes())
        }
        4 => {
            let sizes = [
                "-1",
                "0",
                "1e30",
                "18446744073709551615",
                "4611686018427387904",
                "null",
                "NaN",
            ];
            let size = |rng: &mut ChaCha8Rng| *sizes.choose(rng).unwrap_or(&"0");
            let body = format!(
                r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{},{}],"data":[1]}}]}}"#,
                size(rng),
                size(rng)
            );
            http("POST", path, body.as_bytes())
        }
        5 => {
            let length = ["-1", "x", "99999999999999999999", "1", "7"]
                .choose(rng)
                .unwrap_or(&"");
            let body = add(9);
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\
                 inference-header-content-length: {length}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), body.as_bytes()].concat()
        }
        6 => {
            let size: u64 = rng.random();
            let body = format!(
                r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,16],
                "parameters":{{"binary_data_size":{size}}}}}]}}"#
            );
            http("POST", path, body.as_bytes())
        }
        7 => {
            let headers: String = (0..rng.random_range(1..200))
                .map(|i| format!("x-{i}: {}\r\n", "y".repeat(100)))
                .collect();
            format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
                .into_bytes()
        }
        8 => http(
            "POST",
            path,
            &vec![b' '; (1 << 20) + rng.random_range(1..5000)],
        ),
        _ => {
            let paths = [
                "/v2/models/%00/infer",
                "/v2/models/../../etc",
                "/v2/models/add/versions/-1",
                "/v2/models/add/versions/99999999999999999999/infer",
                "//",
                "/v2/repository/models/..%2f/load",
            ];
            let path = *paths.choose(rng).unwrap_or(&"/");
            http("POST", path, b"{}")
        }
    }
}

/// A request for gRPC that keeps to its types and to little else.
fn over_grpc(rng: &mut ChaCha8Rng) -> ModelInferRequest {
    let names = ["INPUT0", "INPUT1", "INPUT2", ""];
    let types = ["FP32", "INT64", "BYTES", "FP16", "", "fp32"];
    let sizes = [-1, 0, 1, 2, 16, i64::MAX, i64::MIN, 1 << 40];
    let num = rng.random_range(0..4);
    let input = |rng: &mut ChaCha8Rng| InferInputTensor {
        name: (*names.choose(rng).unwrap_or(&"")).into(),
        datatype: (*types.choose(rng).unwrap_or(&"")).into(),
        shape: (0..rng.random_range(0..5))
            .filter_map(|_| sizes.choose(rng).copied())
            .collect(),
        contents: rng.random_bool(0.5).then(|| InferTensorContents {
            fp32_contents: vec![1.0; rng.random_range(0..40)],
            int64_contents: vec![7; rng.random_range(0..40)],
            ..InferTensorContents::default()
        }),
        ..InferInputTensor::default()
    };
    let keys = [
        "timeout",
        "priority",
        "sequence_id",
        "sla_ms",
        "sla_class",
        "max_steps",
    ];
    let key = (*keys.choose(rng).unwrap_or(&"")).to_owned();
    let choice = match rng.random_range(0..5) {
        0 => Some(infer_parameter::ParameterChoice::Int64Param(rng.random())),
        1 => Some(infer_parameter::ParameterChoice::DoubleParam(f64::NAN)),
        2 => Some(infer_parameter::ParameterChoice::StringParam(
            "x".repeat(5000),
        )),
        3 => Some(infer_parameter::ParameterChoice::Uint64Param(u64::MAX)),
        _ => None,
    };
    let value = InferParameter {
        parameter_choice: choice,
    };
    ModelInferRequest {
        model_name: if rng.random_bool(0.9) {
            "add".into()
        } else {
            "\u{0}".into()
        },
        inputs: (0..num).map(|_| input(rng)).collect(),
        raw_input_contents: (0..rng.random_range(0..4))
            .map(|_| vec![0; rng.random_range(0..100)].into())
            .collect(),
        parameters: rng
            .random_bool(0.3)
            .then_some((key, value))
            .into_iter()
            .collect(),
        ..ModelInferRequest::default()
    }
}

async fn is_honest(at: SocketAddr, value: u8) {
    let (code, text) = call(at, "POST", "/v2/models/add/infer", &add(value)).await;
    assert!(
        code == 200 && is_sum(&text, value),
        "an honest client got {text}"
    );
}

/// The right request to `add` over gRPC, and its answer.
fn honest_over_grpc(value: u8) -> (ModelInferRequest, Vec<u8>) {
    let data = |value: f32| value.to_le_bytes().repeat(16);
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        ..InferInputTensor::default()
    };
    let value = f32::from(value);
    let request = ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![data(value).into(), data(1.0).into()],
        ..ModelInferRequest::default()
    };
    (request, data(value + 1.0))
}

/// Clients over both protocols that ask on and on beside the hostile ones, until they are told to
/// stop; they say how often they were answered right.
fn honest_clients(
    server: &Running,
    grpc: &GrpcInferenceServiceClient<Channel>,
    stop: &Arc<AtomicBool>,
) -> [tokio::task::JoinHandle<usize>; 2] {
    let (at, stopped) = (server.http(), stop.clone());
    let over_http = tokio::spawn(async move {
        let mut num = 0;
        while !stopped.load(Ordering::SeqCst) {
            is_honest(at, (num % 200) as u8).await;
            num += 1;
        }
        num
    });
    let (mut grpc, stopped) = (grpc.clone(), stop.clone());
    let over_grpc = tokio::spawn(async move {
        let mut num = 0;
        while !stopped.load(Ordering::SeqCst) {
            let (request, sum) = honest_over_grpc((num % 200) as u8);
            let answer = grpc.model_infer(request).await;
            let answer = answer.expect("an honest client is answered").into_inner();
            assert_eq!(answer.raw_output_contents[0], sum);
            num += 1;
        }
        num
    });
    [over_http, over_grpc]
}

/// Messages of this run.
fn num_messages() -> usize {
    let cases = std::env::var("LAZYBATCH_SOAK_CASES").ok();
    cases.and_then(|n| n.parse().ok()).unwrap_or(NUM)
}

/// Bytes of memory that this process, server and clients, has in use.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kb = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kb.unwrap_or(0) << 10
}

/// Whether no other test runs in this process, whose memory would be in it too.
pub fn is_alone() -> bool {
    let is_one_by_one = std::env::args().any(|a| a == "--test-threads=1");
    std::env::var_os("NEXTEST").is_some() || is_one_by_one
}

/// Sends a part of a message and keeps the connection; the longest kept one breaks off where there
/// are too many.
async fn is_slow(server: &Running, slow: &mut Vec<TcpStream>, rng: &mut ChaCha8Rng) {
    let message = over_http(rng);
    let at = if rng.random_bool(0.5) {
        server.http()
    } else {
        server.at.grpc.unwrap()
    };
    let mut stream = TcpStream::connect(at).await.unwrap();
    // A server that refuses early may have closed before all was sent.
    let _ = stream.write_all(&message[..message.len() / 2]).await;
    slow.push(stream);
    if slow.len() > MAX_SLOW {
        slow.remove(0);
    }
}

/// Descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Panics of the server so far: of a connection's task, too, which its client hears nothing of. Those of
/// tests, some of which are meant, are not among them.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Counts panics from now on.
fn watch_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let of_test = |l: &std::panic::Location<'_>| l.file().contains("tests/");
        if !panic.location().is_some_and(of_test) {
            PANICS.lock().unwrap().push(panic.to_string());
        }
        before(panic);
    }));
}

/// Reads the server's answer to a message over HTTP; whether it was refused.
async fn told(
    server: &Running,
    i: usize,
    message: &[u8],
    codes: &mut BTreeMap<u16, usize>,
) -> bool {
    let (code, text) = status(&send(server.http(), message).await);
    assert_ne!(code, 500, "message {i}: {text}");
    *codes.entry(code).or_insert(0) += 1;
    code != 200
}

#[tokio::test]
async fn hostile_messages_get_errors_and_harm_nobody() {
    watch_panics();
    let mut server = start(|o| {
        folder::save(&speaker(1 << 16, 2), &o.models.join("speaker/1")).unwrap();
        // Nobody is refused for the queue's length.
        std::fs::write(o.models.join("add/config.pbtxt"), "max_batch_size: 4").unwrap();
        o.stall_timeout = std::time::Duration::from_secs(1);
    })
    .await;
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let mut grpc = server.grpc().await;
    let stop = Arc::new(AtomicBool::new(false));
    let honest = honest_clients(&server, &grpc, &stop);
    let num = num_messages();
    let (mut refused, mut codes) = (0, BTreeMap::new());
    let (mut slow, mut lie, mut before) = (Vec::new(), Vec::new(), (0, 0));
    for i in 0..num {
        if i == WARM {
            // What the largest of them needs, an allocator may keep for others; that is no growth.
            messages::most_inputs(&server).await;
            before = (memory(), descriptors());
        }
        match i % 20 {
            7 => is_slow(&server, &mut slow, &mut rng).await,
            13 => {
                lie.push(messages::never_reads(&mut rng, &server).await);
                if lie.len() > MAX_LYING {
                    lie.remove(0);
                }
            }
            kind @ 0..=9 => {
                let message = match kind {
                    0 | 5 => messages::tensors(&mut rng),
                    1 => messages::packed(&mut rng),
                    2 | 6 => messages::text(&mut rng),
                    3 => messages::regions(&mut rng),
                    _ => over_http(&mut rng),
                };
                refused += usize::from(told(&server, i, &message, &mut codes).await);
            }
            10 | 11 | 16 => {
                refused += usize::from(messages::garbage_over_grpc(&mut rng, &server).await);
            }
            12 => {
                refused += usize::from(messages::region_over_grpc(&mut rng, &mut grpc).await);
            }
            14 | 15 => {
                let noise: Vec<u8> = (0..rng.random_range(1..500))
                    .map(|_| rng.random())
                    .collect();
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
                let message = [&preface[..], &noise].concat();
                send(server.at.grpc.unwrap(), &message).await;
            }
            _ => {
                let answer = grpc.model_infer(over_grpc(&mut rng)).await;
                if let Err(error) = answer {
                    assert_ne!(error.code(), tonic::Code::Internal, "message {i}: {error}");
                    assert_ne!(error.code(), tonic::Code::Unknown, "message {i}: {error}");
                    refused += 1;
                }
            }
        }
    }
    let after = memory();
    stop.store(true, Ordering::SeqCst);
    let mut answered = Vec::new();
    for client in honest {
        answered.push(client.await.expect("honest clients are answered right"));
    }
    println!(
        "soak: {}",
        serde_json::json!({
            "what": "hostile messages", "messages": num, "refused": refused,
            "http_statuses": codes,
            "honest_answers_http": answered[0], "honest_answers_grpc": answered[1],
            "rss_bytes_before": before.0, "rss_bytes_after": after,
        })
    );
    assert!(answered.iter().all(|&n| n > 0), "{answered:?}");
    assert!(refused > num / 2, "{refused} of {num} were refused");
    assert!(
        codes.contains_key(&400) && codes.contains_key(&404),
        "{codes:?}"
    );
    let is_alone = is_alone();
    let max_growth = MAX_GROWTH[0] + MAX_GROWTH[1] * num as u64;
    assert!(
        !is_alone || after < before.0 + max_growth,
        "memory grew from {} to {after} bytes",
        before.0
    );
    is_honest(server.http(), 42).await;
    drop((grpc, slow, lie));
    soon("no call is left", || server.state.in_flight() == 0).await;
    soon("nothing is held", || server.state.memory.held() == 0).await;
    if is_alone {
        soon("connections are closed", || descriptors() <= before.1).await;
    }
    server.end();
    server.ended().await;
    // Those of other tests in this process are not told apart from what follows of theirs.
    let panics = PANICS.lock().unwrap();
    assert!(!is_alone || panics.is_empty(), "{panics:#?}");
}
