//! Malformed and hostile messages, with an honest client beside them.

use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{
    InferParameter, InferTensorContents, ModelInferRequest, infer_parameter,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{Running, add, call, http, is_sum, send, start, status};

/// Messages of a run.
const NUM: usize = 300;

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
                "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\
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
            format!("GET /v2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
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

async fn is_honest(server: &Running, value: u8) {
    let (code, text) = call(server.http(), "POST", "/v2/models/add/infer", &add(value)).await;
    assert!(
        code == 200 && is_sum(&text, value),
        "an honest client got {text}"
    );
}

#[tokio::test]
async fn hostile_messages_get_errors_and_harm_nobody() {
    let mut server = start(|_| {}).await;
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let mut grpc = server.grpc().await;
    let (mut refused, mut codes) = (0, std::collections::BTreeSet::new());
    for i in 0..NUM {
        match i % 3 {
            0 | 1 => {
                let message = over_http(&mut rng);
                let answer = send(server.http(), &message).await;
                let (code, text) = status(&answer);
                assert_ne!(code, 500, "message {i}: {text}");
                codes.insert(code);
                refused += usize::from(code != 200);
            }
            _ if rng.random_bool(0.3) => {
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
        if i % 10 == 0 {
            is_honest(&server, (i / 10) as u8).await;
        }
    }
    assert!(refused > NUM / 2, "{refused} of {NUM} were refused");
    assert!(codes.contains(&400) && codes.contains(&404), "{codes:?}");
    is_honest(&server, 42).await;
    drop(grpc);
    server.end();
    server.ended().await;
}
