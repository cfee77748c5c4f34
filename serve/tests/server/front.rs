//! Inference calls that go past the router get what the router would answer.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::time::Duration;

use lazybatch_graph::folder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{add, call, http, is_sum, speaker, start, status};

/// Status and body of the answer to a request that closes its connection.
async fn answer(at: SocketAddr, request: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.expect("an answer with a head");
    (status(&answer).0, answer[end + 4..].to_vec())
}

/// A request that the router takes, for its layers pack nothing that does not ask for gzip or
/// deflate.
fn through_router(request: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(request.to_vec()).unwrap();
    let host = "host: localhost\r\n";
    let routed = text.replacen(host, &format!("{host}accept-encoding: br\r\n"), 1);
    assert_ne!(routed, text);
    routed.into_bytes()
}

#[tokio::test]
async fn both_ways_answer_alike() {
    let server = start(|_| {}).await;
    let at = server.http();
    let named = add(1).replacen('{', r#"{"id":"first","#, 1);
    let bytes = add(2).replacen('{', r#"{"parameters":{"binary_data_output":true},"#, 1);
    let cases = [
        ("/v2/models/add/infer", &*add(1), 200),
        ("/v2/models/add/versions/1/infer", &*add(1), 200),
        ("/v2/models/add/infer", &*named, 200),
        ("/v2/models/add/infer", &*bytes, 200),
        ("/v2/models/add/versions/2/infer", &*add(1), 404),
        ("/v2/models/add/versions/x/infer", &*add(1), 400),
        ("/v2/models/none/infer", &*add(1), 404),
        ("/v2/models/add/infer", "{", 400),
        ("/v2/models/add/infer", "", 400),
    ];
    for (path, body, expected) in cases {
        let request = http("POST", path, body.as_bytes());
        let past = answer(at, &request).await;
        let routed = answer(at, &through_router(&request)).await;
        let shown = String::from_utf8_lossy(&past.1).into_owned();
        assert_eq!(past.0, expected, "{path}: {shown}");
        assert_eq!(past, routed, "{path}: {shown}");
    }
}

/// A call to `add` with so many bytes of elements behind JSON that says 128: the first input is `value`,
/// the second, by that name, 1. The JSON of the answer has elements, or they are behind it.
fn behind_json(value: u8, num_bytes: usize, second: &str, all_behind: bool) -> Vec<u8> {
    let input = |name: &str| {
        format!(
            r#"{{"name":"{name}","datatype":"FP32","shape":[1,16],"parameters":{{"binary_data_size":64}}}}"#
        )
    };
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":{all_behind}}},"inputs":[{},{}]}}"#,
        input("INPUT0"),
        input(second)
    );
    let elements = [f32::from(value), 1.0].map(|v| [v.to_le_bytes(); 16].concat());
    let elements = elements.concat();
    let behind = elements.iter().copied().cycle().take(num_bytes);
    let body = [json.as_bytes(), &behind.collect::<Vec<_>>()].concat();
    let request = String::from_utf8(http("POST", "/v2/models/add/infer", b"")).unwrap();
    let head = request.replacen(
        "content-length: 0\r\n",
        &format!(
            "content-length: {}\r\ninference-header-content-length: {}\r\n",
            body.len(),
            json.len()
        ),
        1,
    );
    [head.as_bytes(), &body].concat()
}

#[tokio::test]
async fn calls_that_say_the_same_have_their_own_elements() {
    let server = start(|_| {}).await;
    let ask = async |request: Vec<u8>| {
        let (code, body) = answer(server.http(), &request).await;
        (code, String::from_utf8_lossy(&body).into_owned(), body)
    };
    let mut heads = Vec::new();
    for value in 0..40 {
        let (code, text, _) = ask(behind_json(value, 128, "INPUT1", false)).await;
        assert!(code == 200 && is_sum(&text, value), "{value}: {text}");
        let (code, text, body) = ask(behind_json(value, 128, "INPUT1", true)).await;
        assert_eq!(code, 200, "{text}");
        // Sum and difference.
        let (head, elements) = body.split_at(body.len() - 128);
        let expected = [1.0, -1.0].map(|by| [(f32::from(value) + by).to_le_bytes(); 16].concat());
        assert_eq!(elements, expected.concat(), "{value}");
        heads.push(head.to_vec());
        for (num, told) in [
            (127, "64 bytes behind the JSON"),
            (129, "1 bytes that no input"),
        ] {
            let (code, text, _) = ask(behind_json(value, num, "INPUT1", false)).await;
            assert!(code == 400 && text.contains(told), "{num}: {text}");
        }
        // What is wrong with one is with all that say it.
        let (code, text, _) = ask(behind_json(value, 128, "INPUT2", false)).await;
        assert!(code == 400 && text.contains("INPUT2"), "{text}");
    }
    heads.dedup();
    let head = String::from_utf8(heads.remove(0)).unwrap();
    assert!(
        heads.is_empty() && head.contains("\"binary_data_size\":64"),
        "{head}"
    );
}

#[tokio::test]
async fn a_body_that_comes_in_parts_is_waited_for_but_not_for_ever() {
    let server = start(|o| o.body_timeout = Duration::from_millis(300)).await;
    let request = http("POST", "/v2/models/add/infer", add(3).as_bytes());
    let (first, rest) = request.split_at(request.len() - 20);
    let mut whole = TcpStream::connect(server.http()).await.unwrap();
    whole.write_all(first).await.unwrap();
    whole.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    whole.write_all(rest).await.unwrap();
    let mut answer = Vec::new();
    whole.read_to_end(&mut answer).await.unwrap();
    let (code, text) = status(&answer);
    assert!(code == 200 && is_sum(&text, 3), "{text}");

    let mut stalled = TcpStream::connect(server.http()).await.unwrap();
    stalled.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    // Ends because the server closes the connection; the client keeps its side open.
    stalled.read_to_end(&mut answer).await.unwrap();
    let (code, text) = status(&answer);
    assert!(code == 400 && text.contains("designated timeout"), "{text}");
}

#[tokio::test]
async fn a_body_that_drips_has_to_be_whole_by_its_deadline_both_ways() {
    let server = start(|o| o.body_timeout = Duration::from_millis(300)).await;
    let past = http("POST", "/v2/models/add/infer", add(3).as_bytes());
    let mut told = Vec::new();
    for request in [past.clone(), through_router(&past)] {
        let (first, rest) = request.split_at(request.len() - 60);
        let stream = TcpStream::connect(server.http()).await.unwrap();
        let (mut reads, mut writes) = stream.into_split();
        writes.write_all(first).await.unwrap();
        let rest = rest.to_vec();
        // Never silent for as long as the whole may take; the server closes before the end.
        let drips = tokio::spawn(async move {
            for byte in rest {
                tokio::time::sleep(Duration::from_millis(25)).await;
                if writes.write_all(&[byte]).await.is_err() {
                    break;
                }
            }
        });
        let mut answer = Vec::new();
        // A byte that comes behind the answer may reset the connection.
        let _ = reads.read_to_end(&mut answer).await;
        drips.abort();
        let (code, text) = status(&answer);
        assert!(code == 400 && text.contains("designated timeout"), "{text}");
        told.push(text.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn decoupled_models_are_told_apart_alike_over_both_protocols() {
    let mut server = start(|o| {
        for (model, num) in [("one", 1), ("two", 2)] {
            folder::save(&speaker(10, num), &o.models.join(model).join("1")).unwrap();
            let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
            std::fs::write(o.models.join(model).join("config.pbtxt"), config).unwrap();
        }
    })
    .await;
    let at = server.http();
    let infer = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}"#;
    let policy = "doesn't support models with decoupled transaction policy";
    let (code, text) = call(at, "POST", "/v2/models/one/infer", infer).await;
    let told = format!("HTTP end point {policy}");
    assert!(code == 501 && text.contains(&told), "{text}");
    let mut grpc = server.grpc().await;
    let asked = lazybatch_serve::proto::ModelInferRequest {
        model_name: "one".into(),
        ..Default::default()
    };
    let refused = grpc.model_infer(asked).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert_eq!(refused.message(), format!("ModelInfer RPC {policy}"));
    // One response is an answer; of several only a stream is.
    let asks = r#"{"text_input":"go on"}"#;
    let (code, text) = call(at, "POST", "/v2/models/one/generate", asks).await;
    assert!(
        code == 200 && text.contains(r#""text_output":"xxxxxxxxxx""#),
        "{text}"
    );
    let (code, text) = call(at, "POST", "/v2/models/two/generate", asks).await;
    let told = "generate expects model to produce exactly 1 response";
    assert!(code == 501 && text.contains(told), "{text}");
    let (code, text) = call(at, "POST", "/v2/models/two/generate_stream", asks).await;
    assert!(
        code == 200 && text.matches("xxxxxxxxxx").count() == 2,
        "{text}"
    );
    drop(grpc);
    server.end();
    server.ended().await;
}
