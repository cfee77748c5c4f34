//! Calls to a model whose queue is full: refused before anything is made of them, in the right order,
//! on connections that go on.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use lazybatch_serve::Rounds;
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::common::{Running, add, call, is_sum, soon, start, status};
use crate::raw::{self, Raw};

const INFER: &str = "/v2/models/add/infer";
const FULL: &str = "Exceeds maximum queue size: the queue of 2 requests is full";

/// Shuts the gate, and fills the queue of `add` behind it.
async fn fill(server: &Running) -> Vec<JoinHandle<(u16, String)>> {
    let at = server.http();
    let served = server.state.repository.get("add", "").unwrap();
    server.gate.shut();
    let mut taken = Vec::new();
    // One is in its launch, and two wait for theirs.
    for value in 1..=3 {
        taken.push(tokio::spawn(async move {
            call(at, "POST", INFER, &add(value)).await
        }));
        let waiting = usize::from(value - 1);
        soon("it is taken", || {
            server.gate.holding() == 1 && served.engine().unwrap().figures().waiting == waiting
        })
        .await;
    }
    assert!(served.engine().unwrap().check_room().is_err());
    taken
}

async fn end(mut server: Running, taken: Vec<JoinHandle<(u16, String)>>) {
    server.gate.open();
    for (value, one) in (1..).zip(taken) {
        let (code, text) = one.await.unwrap();
        assert!(code == 200 && is_sum(&text, value), "{text}");
    }
    let held = || server.state.memory.held();
    soon("all is free again", || held() == 0).await;
    server.end();
    server.ended().await;
}

/// A request on a connection that lives on.
pub fn kept(path: &str, head: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len}\r\n\r\n");
    [head.as_bytes(), body.as_bytes()].concat()
}

/// The next answer on a connection.
pub async fn next(stream: &mut TcpStream) -> (u16, String) {
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).to_lowercase();
        let length = text.split("content-length: ").nth(1);
        let length = length.and_then(|l| l.split("\r\n").next()?.parse::<usize>().ok());
        let head = text.find("\r\n\r\n").map(|at| at + 4);
        if let (Some(head), Some(length)) = (head, length)
            && answer.len() >= head + length
        {
            return status(&answer);
        }
        let num = stream.read_buf(&mut answer).await.unwrap();
        assert!(num > 0, "the connection ended: {text}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_calls_unread_and_their_connections_live_on() {
    let server = start(|_| {}).await;
    let taken = fill(&server).await;
    let served = server.state.repository.get("add", "").unwrap();
    let refused = || served.stats.failures()[0];
    let mut stream = TcpStream::connect(server.http()).await.unwrap();
    assert!(!server.state.rounds.is_due(), "nothing was refused");
    // What is wrong with a body is not looked for.
    stream.write_all(&kept(INFER, "", "{")).await.unwrap();
    let (code, text) = next(&mut stream).await;
    assert!(code == 503 && text.contains(FULL), "{text}");
    assert_eq!(refused(), 1);
    assert!(server.state.rounds.is_due(), "this was");
    // One that comes in parts is thrown away; the answer comes behind it.
    let long = kept(INFER, "", &"x".repeat(300_000));
    for part in long.chunks(100_000) {
        stream.write_all(part).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (code, text) = next(&mut stream).await;
    assert!(code == 503 && text.contains(FULL), "{text}");
    // Others are told first what they would be told else.
    let unknown = kept("/v2/models/none/infer", "", "{");
    stream.write_all(&unknown).await.unwrap();
    assert_eq!(next(&mut stream).await.0, 404);
    let unknown = kept("/v2/models/add/versions/7/infer", "", "{");
    stream.write_all(&unknown).await.unwrap();
    assert_eq!(next(&mut stream).await.0, 404);
    assert_eq!(refused(), 2);
    assert!(server.state.rounds.is_due(), "the second was");
    server.gate.open();
    soon("there is room", || {
        served.engine().unwrap().check_room().is_ok()
    })
    .await;
    stream.write_all(&kept(INFER, "", &add(9))).await.unwrap();
    let (code, text) = next(&mut stream).await;
    assert!(code == 200 && is_sum(&text, 9), "{text}");
    assert!(!server.state.rounds.is_due(), "not for want of room");
    drop((stream, served));
    end(server, taken).await;
}

#[tokio::test]
async fn who_waits_to_be_asked_for_a_body_is_not_asked() {
    let server = start(|_| {}).await;
    let taken = fill(&server).await;
    let request = kept(INFER, "expect: 100-continue\r\n", &add(4));
    let head = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let mut stream = TcpStream::connect(server.http()).await.unwrap();
    stream.write_all(&request[..head]).await.unwrap();
    let mut answer = Vec::new();
    // Ends with the connection: what would come on it may be the body or another call.
    stream.read_to_end(&mut answer).await.unwrap();
    let (code, text) = status(&answer);
    assert!(code == 503 && text.contains(FULL), "{text}");
    end(server, taken).await;
}

fn message(model: &str) -> Vec<u8> {
    let message = ModelInferRequest {
        model_name: model.into(),
        model_version: "1".into(),
        id: "i".repeat(2000),
        inputs: vec![InferInputTensor {
            datatype: "NONE".into(),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    };
    message.encode_to_vec()
}

#[tokio::test]
async fn a_full_queue_refuses_messages_by_their_first_bytes() {
    let server = start(|_| {}).await;
    let taken = fill(&server).await;
    let served = server.state.repository.get("add", "").unwrap();
    let refused = || served.stats.failures()[0];
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let whole = raw::framed(&message("add"));
    // Also where the rest never comes.
    for (i, sent) in [&whole[..], &whole[..40]].into_iter().enumerate() {
        let (answer, mut asks) = client.begin("ModelInfer").await;
        let sent = bytes::Bytes::copy_from_slice(sent);
        asks.send_data(sent, i == 0).unwrap();
        let response = answer.await.unwrap();
        let text = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(text("grpc-status"), "14", "UNAVAILABLE");
        assert_eq!(text("grpc-message").replace("%20", " "), FULL);
        assert_eq!(refused(), i as u64 + 1);
        assert!(server.state.rounds.is_due());
    }
    let (answer, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(raw::framed(&message("none")), true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "5", "NOT_FOUND");
    server.gate.open();
    soon("there is room", || {
        served.engine().unwrap().check_room().is_ok()
    })
    .await;
    let (answer, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(whole, true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "3", "INVALID_ARGUMENT");
    assert_eq!(refused(), 2);
    drop((client, served));
    end(server, taken).await;
}

#[test]
fn a_server_that_waits_behind_refusals_answers_all_that_came_meanwhile() {
    let rounds = Arc::new(Rounds::default());
    let (waits, theirs) = (rounds.clone(), rounds.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_park(move || waits.park())
        .build()
        .unwrap();
    runtime.block_on(async move {
        let server = start(|options| options.rounds = theirs).await;
        let taken = fill(&server).await;
        let at = server.http();
        let calls: Vec<_> = (0..40)
            .map(|value| tokio::spawn(async move { call(at, "POST", INFER, &add(value)).await }))
            .collect();
        for one in calls {
            let (code, text) = one.await.unwrap();
            assert!(code == 503 && text.contains(FULL), "{text}");
        }
        assert!(rounds.is_due(), "they are told of");
        end(server, taken).await;
    });
}
