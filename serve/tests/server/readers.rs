//! Clients that read slowly or not at all, and those that send slowly.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use lazybatch_graph::folder;
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tonic::transport::Endpoint;

use crate::common::{Running, add, ask, call, http, is_sum, soon, speaker, start};
use crate::raw::{self, Raw, taken};

const INFER: &str = "/v2/models/add/infer";
const STALL: Duration = Duration::from_millis(300);
/// Bytes of a text: more than sockets hold.
const WORD: usize = 12 << 20;

async fn is_served(server: &Running) {
    let (status, text) = call(server.http(), "POST", INFER, &add(3)).await;
    assert!(status == 200 && is_sum(&text, 3), "{text}");
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// A client whose windows are small, so that what it does not read stays with the server.
async fn narrow(server: &Running) -> GrpcInferenceServiceClient<tonic::transport::Channel> {
    let at = format!("http://{}", server.at.grpc.unwrap());
    let endpoint = Endpoint::from_shared(at).unwrap();
    let endpoint = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

/// A request to `lstm` whose answer has a kilobyte.
fn long(i: usize) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "lstm".into(),
        id: format!("{i:01000}"),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, 1, 16],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![vec![0; 64].into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn a_stream_that_nobody_reads_takes_no_room_from_others() {
    const NUM: usize = 2000;
    // The stream alone does not take all of them.
    let server = start(|o| o.max_in_flight = 300).await;
    let mut grpc = narrow(&server).await;
    let asked = futures_util::stream::iter((0..NUM).map(long));
    let answers = grpc.model_stream_infer(asked).await.unwrap();
    let mut answers = answers.into_inner();
    let lstm = server.state.repository.get("lstm", "").unwrap();
    let ended = || {
        lstm.statistics()
            .inference_stats
            .unwrap()
            .success
            .unwrap()
            .count
    };
    // Of these some are in the client's windows, and the others lie.
    soon("answers that nobody takes", || ended() >= 250).await;
    for _ in 0..10 {
        is_served(&server).await;
    }
    soon("no call in the engine", || server.state.in_flight() == 0).await;
    assert!(ended() < 1000, "it was not held back: {}", ended());
    // Once it reads, all goes on.
    let mut num = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.error_message, "");
        num += 1;
    }
    assert_eq!(num, NUM);
    drop((grpc, answers, lstm));
    end(server).await;
}

#[tokio::test]
async fn streams_and_answers_that_lie_are_dropped_and_their_requests_cancelled() {
    let server = start(|o| o.stall_timeout = STALL).await;
    let lstm = server.state.repository.get("lstm", "").unwrap();
    let failed = || lstm.stats.failures()[1];
    let id = "x".repeat(200_000);
    // A stream with answers that nobody takes, and requests in the engine.
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (answers, mut asks) = client.begin("ModelStreamInfer").await;
    asks.send_data(raw::lstm(&id), false).unwrap();
    let ended = || {
        lstm.statistics()
            .inference_stats
            .unwrap()
            .success
            .unwrap()
            .count
    };
    soon("an answer", || ended() >= 1).await;
    server.gate.shut();
    for _ in 0..3 {
        asks.send_data(raw::lstm(""), false).unwrap();
    }
    soon("the connection ends", || client.task.is_finished()).await;
    soon("they are cancelled", || failed() == 3).await;
    soon("no call is left", || server.state.in_flight() == 0).await;
    server.gate.open();
    drop((answers, asks));

    // Single calls.
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let mut lie = Vec::new();
    for _ in 0..8 {
        let (answer, mut asks) = client.begin("ModelInfer").await;
        asks.send_data(raw::lstm(&id), true).unwrap();
        lie.push((answer, asks));
    }
    soon("the connection ends", || client.task.is_finished()).await;
    is_served(&server).await;
    drop((lie, lstm));
    end(server).await;
}

#[tokio::test]
async fn a_connection_whose_other_answers_are_read_lives_on() {
    let server = start(|o| o.stall_timeout = STALL).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (lies, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(raw::lstm(&"x".repeat(200_000)), true)
        .unwrap();
    let mut lies = lies.await.unwrap().into_body();
    let (other, mut talks) = client.begin("ModelStreamInfer").await;
    let (mut other, mut stream) = (Some(other), None);
    // Goes on for longer than anything may lie.
    let until = tokio::time::Instant::now() + 4 * STALL;
    while tokio::time::Instant::now() < until {
        talks.send_data(raw::lstm(""), false).unwrap();
        if let Some(response) = other.take() {
            stream = Some(response.await.unwrap().into_body());
        }
        taken(stream.as_mut().unwrap()).await.unwrap();
        tokio::time::sleep(STALL / 10).await;
    }
    assert!(!client.task.is_finished());
    // What lay was dropped: a part of it had been handed over.
    let mut came = 0;
    let dropped = loop {
        match lies.data().await {
            Some(Ok(data)) => {
                came += data.len();
                lies.flow_control().release_capacity(data.len()).unwrap();
            }
            other => break other.is_some(),
        }
    };
    assert!(dropped && came < 200_000, "{came} bytes came");
    drop((lies, talks, stream));
    end(server).await;
}

#[tokio::test]
async fn answers_over_http_that_nobody_reads_close_the_connection() {
    let server = start(|o| o.stall_timeout = STALL).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let mut client = socket.connect(server.http()).await.unwrap();
    let named = format!(r#"{{"id":"{}","#, "x".repeat(500_000));
    let body = add(1).replacen('{', &named, 1);
    let request = http("POST", INFER, body.as_bytes());
    let request = String::from_utf8(request).unwrap();
    let request = request.replacen("connection: close\r\n", "", 1);
    // Requests on and on, until the server closes.
    let sends = async { while client.write_all(request.as_bytes()).await.is_ok() {} };
    let closed = tokio::time::timeout(Duration::from_secs(30), sends).await;
    closed.expect("the server closes the connection");
    assert_eq!(server.state.in_flight(), 0);
    is_served(&server).await;
    end(server).await;
}

/// A server whose model `speaker` says a word of [`WORD`] bytes.
async fn speaking(stall: Duration) -> Running {
    start(|o| {
        folder::save(&speaker(WORD, 1), &o.models.join("speaker/1")).unwrap();
        o.stall_timeout = stall;
    })
    .await
}

/// A client that has begun to be told a text, and reads nothing of it.
async fn listener(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let mut client = socket.connect(server.http()).await.unwrap();
    let body = br#"{"text_input": "go on"}"#;
    let asks = http("POST", "/v2/models/speaker/generate_stream", body);
    client.write_all(&asks).await.unwrap();
    // It has begun: what is not read lies with the server.
    client.readable().await.unwrap();
    client
}

#[tokio::test]
async fn a_text_that_nobody_reads_takes_no_room_from_others() {
    // It is not dropped meanwhile.
    let server = speaking(Duration::from_secs(600)).await;
    let client = listener(&server).await;
    soon("no call in the engine", || server.state.in_flight() == 0).await;
    is_served(&server).await;
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn a_text_that_nobody_reads_is_dropped() {
    let server = speaking(STALL).await;
    let body = br#"{"text_input": "go on"}"#;
    let whole = call(
        server.http(),
        "POST",
        "/v2/models/speaker/generate",
        std::str::from_utf8(body).unwrap(),
    );
    let (status, text) = whole.await;
    assert!(status == 200 && text.len() > WORD, "{status}");
    let mut client = listener(&server).await;
    // What lies is dropped, so that the whole text never comes.
    let mut came = Vec::new();
    tokio::time::sleep(4 * STALL).await;
    let _ = client.read_to_end(&mut came).await;
    assert!(came.len() < WORD, "{} bytes came", came.len());
    end(server).await;
}

/// Bytes of a name, which an answer has too: more than sockets hold.
const NAME: usize = 12 << 20;

/// A request to `add` whose answer is as long as its name.
fn named() -> Vec<u8> {
    let name = format!(r#"{{"id":"{}","#, "x".repeat(NAME));
    let request = http("POST", INFER, add(1).replacen('{', &name, 1).as_bytes());
    let request = String::from_utf8(request).unwrap();
    request
        .replacen("connection: close\r\n", "", 1)
        .into_bytes()
}

#[tokio::test]
async fn answers_over_http_that_nobody_reads_leave_less_to_requests() {
    let server = start(|o| {
        o.max_body = 16 << 20;
        o.max_request_memory = 30 << 20;
    })
    .await;
    let held = || server.state.memory.held();
    let mut clients = Vec::new();
    for num in 1..=2 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        let mut client = socket.connect(server.http()).await.unwrap();
        client.write_all(&named()).await.unwrap();
        client.readable().await.unwrap();
        soon("the engine is done", || server.state.in_flight() == 0).await;
        assert!(held() >= num * NAME && held() < num * NAME + 4096);
        clients.push(client);
    }
    let large = http("POST", INFER, &vec![b' '; 8 << 20]);
    let (code, text) = ask(server.http(), &large).await;
    let told = "all requests may hold 31457280 bytes";
    assert!(code == 503 && text.contains(told), "{code} {text}");
    // Small ones find room, and larger ones once an answer is taken, or its client has gone.
    is_served(&server).await;
    let mut read = 0;
    let mut client = clients.pop().unwrap();
    while read < NAME {
        let mut bytes = vec![0; 1 << 20];
        let num = client.read(&mut bytes).await.unwrap();
        assert!(num > 0, "it ended after {read} bytes");
        read += num;
    }
    soon("one is taken", || held() < NAME + 4096).await;
    drop(clients);
    soon("all is free again", || held() == 0).await;
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn answers_over_grpc_that_nobody_reads_leave_less_to_requests() {
    const NAME: usize = 100_000;
    let server = start(|o| {
        o.max_request_memory = 4 << 20;
        o.max_body = 2 << 20;
    })
    .await;
    let held = || server.state.memory.held();
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let name = "x".repeat(NAME);
    let (answer, mut asked) = client.begin("ModelInfer").await;
    asked.send_data(raw::lstm(&name), true).unwrap();
    let alone = answer.await.unwrap().into_body();
    soon("one answer lies", || (NAME..NAME + 4096).contains(&held())).await;
    let (answers, mut asks) = client.begin("ModelStreamInfer").await;
    for num in 2..=34 {
        asks.send_data(raw::lstm(&name), false).unwrap();
        // And the buffer that the stream's messages come in.
        let range = (num + 1) * NAME..(num + 1) * (NAME + 4096);
        soon("they lie together", || range.contains(&held())).await;
    }
    // No more than there is room for is made of requests: the stream ends with an error behind them.
    for _ in 0..40 {
        asks.send_data(raw::lstm(&name), false).unwrap();
    }
    // The answers alone leave no room for it.
    let large = http("POST", INFER, &vec![b' '; 1_900_000]);
    let (code, text) = ask(server.http(), &large).await;
    assert!(code == 503 && text.contains("may hold"), "{code} {text}");
    assert!(held() < (5 << 20), "{}", held());
    let (status, bytes) = raw::ended(answers).await;
    assert!(status == "14" && bytes.len() > 33 * NAME, "{status}");
    drop((alone, asked, asks, client));
    soon("all is free again", || held() == 0).await;
    end(server).await;
}

#[tokio::test]
async fn messages_of_grpc_have_to_be_whole_by_their_deadline() {
    let server = start(|o| o.body_timeout = STALL).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    // Waits for its first message, which it may.
    let (idle, mut waits) = client.begin("ModelStreamInfer").await;
    let message = raw::lstm("late");
    for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let (answer, mut asks) = client.begin(method).await;
        asks.send_data(message.slice(..message.len() / 2), false)
            .unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(30), raw::ended(answer)).await;
        let (status, _) = answer.expect("the server answers");
        assert_eq!(status, "4", "{method}: DEADLINE_EXCEEDED");
    }
    // A message that was whole, and a call that does not say that it was the last.
    let (answer, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(message.clone(), false).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), raw::ended(answer)).await;
    assert_eq!(answer.expect("the server answers").0, "4");
    waits.send_data(message, true).unwrap();
    let (status, answer) = raw::ended(idle).await;
    assert!(status == "0" && answer.len() > 64, "{status}");
    assert_eq!(server.state.memory.held(), 0);
    end(server).await;
}

#[tokio::test]
async fn garbage_in_a_stream_is_told() {
    let server = start(|_| {}).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let (answer, mut asks) = client.begin("ModelStreamInfer").await;
    asks.send_data(raw::framed(&[0xff; 40]), true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "13", "INTERNAL, as gRPC has it");
    drop(TcpStream::connect(server.http()).await);
    end(server).await;
}
