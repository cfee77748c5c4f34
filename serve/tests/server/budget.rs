//! What requests may hold: each, and all together.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;

use lazybatch_graph::folder;
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Running, add, ask, call, http, is_sum, soon, speaker, start, status};
use crate::raw::{self, Raw};

const INFER: &str = "/v2/models/add/infer";

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn bodies_together_stay_within_the_budget_and_free_it_again() {
    let server = start(|o| o.max_request_memory = 1_000_000).await;
    let at = server.http();
    let held = || server.state.memory.held();
    // Three that come slowly, before any of them is a call.
    let large = http("POST", INFER, &vec![b' '; 400_000]);
    let mut slow = Vec::new();
    for i in 1..=3 {
        let mut one = TcpStream::connect(at).await.unwrap();
        one.write_all(&large[..300_000]).await.unwrap();
        soon("what came is counted", || held() > i * 290_000).await;
        slow.push(one);
    }
    assert_eq!(server.state.in_flight(), 0);
    let (code, text) = ask(at, &large).await;
    assert!(
        code == 503 && text.contains("all requests may hold 1000000 bytes"),
        "{text}"
    );
    let packed = String::from_utf8(large.clone()).unwrap();
    let routed = packed.replacen("host", "accept-encoding: br\r\nhost", 1);
    let (code, text) = ask(at, routed.as_bytes()).await;
    assert!(
        code == 503 && text.contains("all requests may hold"),
        "the other way: {text}"
    );
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    for method in ["ModelInfer", "ModelStreamInfer"] {
        let (answer, mut asks) = client.begin(method).await;
        asks.send_data(raw::framed(&vec![0; 200_000]), false)
            .unwrap();
        assert_eq!(raw::ended(answer).await.0, "14", "{method}: UNAVAILABLE");
    }
    // Each counts once; of those over gRPC nobody knows whose requests they would have been.
    assert_eq!(server.state.refused(), [("in_flight", 0), ("memory", 4)]);
    let served = server.state.repository.get("add", "").unwrap();
    assert_eq!(served.stats.failures()[0], 2);
    drop(served);
    // Small ones find room.
    let (code, text) = call(at, "POST", INFER, &add(4)).await;
    assert!(code == 200 && is_sum(&text, 4), "{text}");
    drop(slow);
    soon("all is free again", || held() == 0).await;
    end(server).await;
}

#[tokio::test]
async fn what_a_request_becomes_is_counted_before_it_is_made() {
    let server = start(|o| {
        o.max_request_memory = 4 << 20;
        o.max_tensor = 2 << 20;
    })
    .await;
    let at = server.http();
    // Two bytes of text become four of a tensor, and as many of the engine's.
    let body = |num: usize, order: &str| {
        let data = format!(r#""data":[{}1]"#, "1,".repeat(num - 1));
        let input = order.replace("DATA", &data);
        format!(r#"{{"inputs":[{input}]}}"#)
    };
    let usual = r#"{"name":"INPUT0","shape":[1,16],"datatype":"FP32",DATA}"#;
    let sorted = r#"{DATA,"datatype":"FP32","name":"INPUT0","shape":[1,16]}"#;
    for order in [usual, sorted] {
        let (code, text) = call(at, "POST", INFER, &body(500_000, order)).await;
        assert!(
            code == 400 && text.contains("expected 16 elements"),
            "{text}"
        );
    }
    let wide = usual.replace("FP32", "FP64");
    let (code, text) = call(at, "POST", INFER, &body(500_000, &wide)).await;
    let limit = "input 'INPUT0': expected at most 2097152 bytes, the server's limit for one tensor";
    assert!(code == 400 && text.contains(limit), "{text}");
    let many = format!(
        r#"{{"inputs":[{}{{}}]}}"#,
        r#"{"name":"","datatype":"","shape":[]},"#.repeat(2000)
    );
    let (code, text) = call(at, "POST", INFER, &many).await;
    assert!(
        code == 400 && text.contains("inputs: expected at most 1024"),
        "{text}"
    );
    let keys: String = (0..2000).map(|i| format!(r#""{i}":1,"#)).collect();
    let many = format!(r#"{{"parameters":{{{keys}"a":1}},"inputs":[]}}"#);
    let (code, text) = call(at, "POST", INFER, &many).await;
    assert!(
        code == 400 && text.contains("parameters: expected at most 1024"),
        "{text}"
    );
    // A megabyte of inputs of two bytes each would be hundreds.
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let bomb = [0x2a, 0].repeat(400_000);
    // An empty group that no field has, which the decoder skips.
    let hidden = [&[0xa3, 6, 0xa4, 6], &bomb[..]].concat();
    for bomb in [raw::framed(&bomb), raw::framed(&hidden)] {
        for method in ["ModelInfer", "ModelStreamInfer"] {
            let (answer, mut asks) = client.begin(method).await;
            asks.send_data(bomb.clone(), true).unwrap();
            assert_eq!(raw::ended(answer).await.0, "14", "{method}: UNAVAILABLE");
        }
    }
    soon("all is free again", || server.state.memory.held() == 0).await;
    end(server).await;
}

#[tokio::test]
async fn an_answer_that_waits_for_its_turn_is_counted() {
    let server = start(|o| {
        let model = o.models.join("speaker");
        folder::save(&speaker(50_000, 9), &model.join("1")).unwrap();
        let config = "max_batch_size: 4 response_cache { enable: true }";
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
    })
    .await;
    let held = || server.state.memory.held();
    let asks = ModelInferRequest {
        model_name: "speaker".into(),
        inputs: vec![InferInputTensor {
            name: "text_input".into(),
            datatype: "BYTES".into(),
            shape: vec![1, 1],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![b"\x02\0\0\0hi".to_vec().into()],
        ..ModelInferRequest::default()
    };
    let mut grpc = server.grpc().await;
    grpc.model_infer(asks.clone()).await.unwrap();
    soon("its answer was taken", || held() == 0).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (answer, mut sends) = client.begin("ModelStreamInfer").await;
    server.gate.shut();
    sends.send_data(raw::lstm("first"), false).unwrap();
    soon("the first one runs", || server.gate.holding() == 1).await;
    // The second one's answer is there already.
    let second = raw::framed(&asks.encode_to_vec());
    sends.send_data(second, true).unwrap();
    soon("what waits is counted", || held() > 450_000).await;
    server.gate.open();
    let (code, bytes) = raw::ended(answer).await;
    assert!(code == "0" && bytes.len() > 450_000, "{code}");
    soon("all is free again", || held() == 0).await;
    drop((grpc, client));
    end(server).await;
}

#[tokio::test]
async fn a_stream_holds_as_much_as_its_longest_message_until_it_ends() {
    let server = start(|_| {}).await;
    let held = || server.state.memory.held();
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (answer, mut sends) = client.begin("ModelStreamInfer").await;
    let long = ModelInferRequest {
        model_name: "nobody".into(),
        raw_input_contents: vec![vec![0; 500_000].into()],
        ..ModelInferRequest::default()
    };
    sends
        .send_data(raw::framed(&long.encode_to_vec()), false)
        .unwrap();
    let mut body = answer.await.unwrap().into_body();
    let told = raw::taken(&mut body).await.unwrap();
    assert!(told.len() > 5, "it is answered");
    for _ in 0..3 {
        sends.send_data(raw::lstm("short"), false).unwrap();
        raw::taken(&mut body).await.unwrap();
        let is_kept = || (500_000..520_000).contains(&held());
        soon("what the longest one took is kept", is_kept).await;
    }
    sends.send_data(bytes::Bytes::new(), true).unwrap();
    while raw::taken(&mut body).await.is_some() {}
    soon("all is free again", || held() == 0).await;
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn elements_before_their_type_are_read_alike() {
    let server = start(|_| {}).await;
    let ones = vec!["1"; 16].join(",");
    let ways = [
        format!(r#"{{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[{ones}]}}"#),
        format!(r#"{{"data":[[{ones}]],"shape":[1,16],"datatype":"FP32","name":"INPUT0"}}"#),
    ];
    for first in &ways {
        for second in &ways {
            let second = second.replace("INPUT0", "INPUT1");
            let body = format!(r#"{{"inputs":[{first},{second}]}}"#);
            let (code, text) = call(server.http(), "POST", INFER, &body).await;
            assert!(code == 200 && is_sum(&text, 1), "{text}");
        }
    }
    let wrong = ways[1].replacen('1', "true", 1);
    let body = format!(r#"{{"inputs":[{wrong}]}}"#);
    let (code, text) = call(server.http(), "POST", INFER, &body).await;
    let told = "input 'INPUT0': expected elements of FP32, got true";
    assert!(code == 400 && text.contains(told), "{text}");
    end(server).await;
}

#[tokio::test]
async fn regions_are_bounded_as_other_tensors_are() {
    let server = start(|o| o.max_tensor = 1000).await;
    let mut file = tempfile::Builder::new()
        .prefix("lazybatch")
        .tempfile_in("/dev/shm")
        .unwrap();
    file.write_all(&[0; 4096]).unwrap();
    let key = file
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let register = format!(r#"{{"key":"{key}","byte_size":4096}}"#);
    let path = "/v2/systemsharedmemory/region/r/register";
    assert_eq!(call(server.http(), "POST", path, &register).await.0, 200);
    let input = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,16],
        "parameters":{"shared_memory_region":"r","shared_memory_byte_size":4096}}]}"#;
    let (code, text) = call(server.http(), "POST", INFER, input).await;
    assert!(
        code == 400 && text.contains("limit for one tensor, got 4096 bytes"),
        "{text}"
    );
    let mut grpc = server.grpc().await;
    let raw = ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "FP32".into(),
            shape: vec![1, 300],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![vec![0; 1200].into()],
        ..ModelInferRequest::default()
    };
    let told = grpc.model_infer(raw).await.unwrap_err();
    assert_eq!(told.code(), tonic::Code::InvalidArgument);
    assert!(
        told.message()
            .contains("limit for one tensor, got 1200 bytes"),
        "{told}"
    );
    drop(grpc);
    end(server).await;
}

#[tokio::test]
async fn a_body_that_is_too_long_is_taken_and_refused_both_ways() {
    let server = start(|_| {}).await;
    let at = server.http();
    // Half as long again as one may be, all of it sent before anything is read.
    let body = vec![b' '; 3 << 19];
    let announced = http("POST", INFER, &body);
    let routed = String::from_utf8(announced.clone()).unwrap();
    let routed = routed.replacen("host", "accept-encoding: br\r\nhost", 1);
    let mut chunked = format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\n").into_bytes();
    chunked.extend(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    chunked.extend(format!("{:x}\r\n", body.len()).into_bytes());
    chunked.extend(&body);
    chunked.extend(b"\r\n0\r\n\r\n");
    for (what, sent) in [
        ("announced", &announced[..]),
        ("by the router", routed.as_bytes()),
        ("chunked", &chunked),
    ] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let (code, text) = status(&answer);
        let is_told = text.contains("length limit exceeded");
        assert!(code == 400 && is_told, "{what}: {code} {text}");
    }
    soon("nothing is held", || server.state.memory.held() == 0).await;
    end(server).await;
}
