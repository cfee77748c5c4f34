//! Bounds on what a client may send of a call: its head and metadata, the time for them, its messages;
//! and what is kept of those that were refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use futures_util::StreamExt;
use lazybatch_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use lazybatch_serve::proto::{InferParameter, ModelInferRequest, ServerLiveRequest};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;

use crate::common::{Running, add, call, is_sum, soon, start, status};
use crate::full::{kept, next};
use crate::hostile::{is_alone, memory};
use crate::raw::{self, Raw};

const INFER: &str = "/v2/models/add/infer";
/// As long as anything may take that the server does by itself.
const LONG: Duration = Duration::from_secs(30);

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// Status of the answer to a head with `num` fields, one of which has `len` bytes.
async fn head(server: &Running, num: usize, len: usize) -> u16 {
    let long = format!("x-long: {}\r\n", "y".repeat(len));
    let others: String = (3..num).map(|i| format!("x-{i}: y\r\n")).collect();
    let head =
        format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{long}{others}\r\n");
    let mut stream = TcpStream::connect(server.http()).await.unwrap();
    // A server that refuses early may close before all was sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    status(&answer).0
}

#[tokio::test]
async fn a_head_has_only_so_many_fields_and_bytes() {
    let server = start(|_| {}).await;
    for (num, len, expected) in [
        (64, 1, 200),
        (65, 1, 431),
        (4, 60_000, 200),
        (4, 70_000, 431),
        (200, 100, 431),
    ] {
        let got = head(&server, num, len).await;
        assert_eq!(got, expected, "{num} fields, one of {len} bytes");
    }
    let (code, text) = call(server.http(), "POST", INFER, &add(1)).await;
    assert!(code == 200 && is_sum(&text, 1), "{text}");
    end(server).await;
}

#[tokio::test]
async fn a_head_has_to_be_whole_in_time_and_an_answer_has_not() {
    let server = start(|o| {
        o.header_timeout = Duration::from_millis(300);
        o.keep_alive = Duration::from_secs(1);
    })
    .await;
    let at = server.http();
    server.gate.shut();
    let runs = tokio::spawn(async move { call(at, "POST", INFER, &add(2)).await });
    soon("it is in its launch", || server.gate.holding() == 1).await;
    // One says nothing more, one an end of its head that never comes, and one nothing behind an answer.
    let mut silent = TcpStream::connect(at).await.unwrap();
    silent.write_all(b"GET /v2 HTTP/1.1\r\nho").await.unwrap();
    let (mut reads, mut writes) = TcpStream::connect(at).await.unwrap().into_split();
    let drips = tokio::spawn(async move {
        let begin = b"GET /v2 HTTP/1.1\r\nhost: localhost\r\nx: ";
        let mut sent = writes.write_all(begin).await;
        while sent.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            sent = writes.write_all(b"y").await;
        }
    });
    let mut idle = TcpStream::connect(at).await.unwrap();
    let ready = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    idle.write_all(ready).await.unwrap();
    assert_eq!(next(&mut idle).await.0, 200);
    let mut rest = Vec::new();
    for (what, closed) in [
        ("silent", timeout(LONG, silent.read_to_end(&mut rest)).await),
        ("idle", timeout(LONG, idle.read_to_end(&mut rest)).await),
    ] {
        closed
            .unwrap_or_else(|_| panic!("{what}: still open"))
            .unwrap();
        assert!(rest.is_empty(), "{what}: closed without a word");
    }
    // A byte that comes behind the end may reset the connection.
    let closed = timeout(LONG, reads.read_to_end(&mut rest)).await;
    assert!(closed.is_ok() && rest.is_empty(), "dripping: still open");
    timeout(LONG, drips).await.unwrap().unwrap();
    assert!(!runs.is_finished(), "it has not been answered yet");
    server.gate.open();
    let (code, text) = runs.await.unwrap();
    assert!(code == 200 && is_sum(&text, 2), "{text}");
    end(server).await;
}

#[tokio::test]
async fn an_answer_may_go_on_for_longer_than_a_connection_may_lie_idle() {
    const KEEP_ALIVE: Duration = Duration::from_millis(400);
    let server = start(|o| o.keep_alive = KEEP_ALIVE).await;
    let mut viewer = TcpStream::connect(server.http()).await.unwrap();
    let ask = b"GET /lazybatch/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    viewer.write_all(ask).await.unwrap();
    let until = tokio::time::Instant::now() + 4 * KEEP_ALIVE;
    let mut bytes = [0; 1 << 16];
    while tokio::time::Instant::now() < until {
        let came = timeout(LONG, viewer.read(&mut bytes)).await.unwrap();
        assert!(came.unwrap() > 0, "events go on");
    }
    drop(viewer);
    end(server).await;
}

#[tokio::test]
async fn a_call_over_grpc_whose_time_is_over_is_told_so() {
    let server = start(|_| {}).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    // One in time, in each unit; what is no time is none.
    for within in ["1H", "99M", "30S", "30000m", "30000000u", "1", "m", "+1S"] {
        let (answer, mut asks) = client.begin_within("ModelInfer", within).await;
        asks.send_data(raw::lstm("a"), true).unwrap();
        assert_eq!(raw::ended(answer).await.0, "0", "{within}");
    }
    server.gate.shut();
    for within in ["100m", "100000u", "1n"] {
        let (answer, mut asks) = client.begin_within("ModelInfer", within).await;
        // It may be over before anything came.
        let _ = asks.send_data(raw::lstm("a"), true);
        assert_eq!(raw::ended(answer).await.0, "4", "{within}");
    }
    server.gate.open();
    end(server).await;
}

#[tokio::test]
async fn a_connection_may_lie_idle_for_longer_than_a_head_takes() {
    let server = start(|o| {
        o.header_timeout = Duration::from_millis(100);
        o.keep_alive = LONG;
    })
    .await;
    let mut idle = TcpStream::connect(server.http()).await.unwrap();
    let ready = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..2 {
        idle.write_all(ready).await.unwrap();
        assert_eq!(next(&mut idle).await.0, 200);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // From its first byte on a head has its time.
    idle.write_all(b"GET /v2").await.unwrap();
    let mut rest = Vec::new();
    let closed = timeout(LONG, idle.read_to_end(&mut rest)).await;
    assert!(closed.is_ok() && rest.is_empty(), "still open");
    end(server).await;
}

/// A request to `model` whose first input has `len` bytes, which it says to be those of `add`.
fn message(model: &str, len: usize) -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![vec![0; len].into(), vec![0; 64].into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn a_message_is_no_longer_than_a_request_may_be_packed_or_not() {
    let server = start(|_| {}).await;
    let mut client = server.grpc().await;
    let told = |refused: tonic::Status, code, text: &str| {
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(text), "{refused}");
    };
    let refused = client.model_infer(message("add", 1 << 20)).await;
    let limit = "the limit is: 1048576 bytes";
    told(refused.unwrap_err(), tonic::Code::OutOfRange, limit);
    let requests = futures_util::stream::iter([message("add", 64), message("add", 1 << 20)]);
    let answers = client.model_stream_infer(requests).await.unwrap();
    let answers: Vec<_> = answers.into_inner().collect().await;
    let [Ok(first), Err(refused)] = &answers[..] else {
        panic!("expected an answer and an error, got {answers:?}");
    };
    assert_eq!(first.error_message, "");
    told(refused.clone(), tonic::Code::OutOfRange, limit);
    let mut packs = server
        .grpc()
        .await
        .send_compressed(CompressionEncoding::Gzip);
    let refused = packs.model_infer(message("add", 2 << 20)).await;
    let limit = "size limit, of 1048576 bytes";
    told(refused.unwrap_err(), tonic::Code::ResourceExhausted, limit);
    // What is as long as it may be is read.
    let refused = packs.model_infer(message("add", (1 << 20) - 1000)).await;
    let told_by_us = "input 'INPUT0'";
    told(
        refused.unwrap_err(),
        tonic::Code::InvalidArgument,
        told_by_us,
    );
    for client in [&mut client, &mut packs] {
        client.model_infer(message("add", 64)).await.unwrap();
    }
    soon("nothing is held", || server.state.memory.held() == 0).await;
    drop((client, packs));
    end(server).await;
}

#[tokio::test]
async fn a_message_that_is_no_request_for_inference_is_refused_by_its_head() {
    let server = start(|o| {
        o.max_body = 64 << 20;
        // Longer than the test waits.
        o.body_timeout = Duration::from_secs(600);
    })
    .await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let free = [
        "ServerLive",
        "ServerReady",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
    ];
    let cases = free.map(|method| (method, 4096));
    let others = [("RepositoryIndex", 1 << 20), ("ModelReady", 1 << 20)];
    for (method, most) in cases.into_iter().chain(others) {
        let (answer, mut asks) = client.begin(method).await;
        let mut head = vec![0];
        head.extend((most as u32 + 1).to_be_bytes());
        asks.send_data(head.into(), false).unwrap();
        let ended = timeout(Duration::from_secs(30), raw::ended(answer)).await;
        let code = ended.expect("it is refused by its head").0;
        assert_eq!(code, "3", "{method}: INVALID_ARGUMENT");
    }
    // Nor do many short ones come to more.
    for method in &free[..3] {
        let (answer, mut asks) = client.begin(method).await;
        asks.send_data(raw::framed(&[]).repeat(2000).into(), false)
            .unwrap();
        let ended = timeout(Duration::from_secs(30), raw::ended(answer)).await;
        let code = ended.expect("it is refused by their heads").0;
        assert_eq!(code, "3", "{method}: INVALID_ARGUMENT");
    }
    soon("nothing is held", || server.state.memory.held() == 0).await;
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn bytes_that_are_no_message_are_told_and_harm_no_other_call() {
    let server = start(|_| {}).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let whole = raw::lstm("");
    let unknown_packing = [&[7][..], &whole[1..]].concat();
    for (what, sent) in [
        ("a field that has no end", raw::framed(&[0xff; 20])),
        ("a message that has no end", whole.slice(..40)),
        ("a packing that there is not", unknown_packing.into()),
    ] {
        let (answer, mut asks) = client.begin("ModelInfer").await;
        asks.send_data(sent, true).unwrap();
        assert_eq!(raw::ended(answer).await.0, "13", "INTERNAL for {what}");
    }
    let (answer, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(whole, true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "0", "OK");
    soon("nothing is held", || server.state.memory.held() == 0).await;
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn metadata_of_a_call_has_only_so_many_bytes() {
    let server = start(|_| {}).await;
    let mut client = Raw::connect(server.at.grpc.unwrap()).await;
    let request = raw::lstm("");
    let (answer, mut asks) = client.begin_with("ModelInfer", &"y".repeat(15_000)).await;
    asks.send_data(request.clone(), true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "0", "OK");
    let (answer, _asks) = client.begin_with("ModelInfer", &"y".repeat(17_000)).await;
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 431);
    // The connection goes on.
    let (answer, mut asks) = client.begin("ModelInfer").await;
    asks.send_data(request, true).unwrap();
    assert_eq!(raw::ended(answer).await.0, "0", "OK");
    drop(client);
    end(server).await;
}

/// Clients of each kind of [`what_was_refused_is_not_kept`].
const CLIENTS: usize = 24;
/// Most bytes by which memory may grow while they stay: what their connections are read into. They
/// sent six times as much.
const MAX_GROWTH: u64 = 20 << 20;

/// Bodies over HTTP that are refused, most of a megabyte each, and what is said of them.
fn refused_bodies() -> [(String, &'static str, &'static str); 3] {
    let numbers = vec!["1"; 450_000].join(",");
    let shape = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[{numbers}]}}]}}"#
    );
    [
        (" ".repeat(3 << 19), "", "length limit exceeded"),
        (shape, "", "expected 16 elements"),
        (
            "x".repeat(900_000),
            "inference-header-content-length: 899000\r\n",
            "failed to parse",
        ),
    ]
}

#[tokio::test]
async fn what_was_refused_is_not_kept_while_its_client_stays() {
    let server = start(|_| {}).await;
    let unknown = raw::framed(&message("none", 900_000).encode_to_vec());
    let wrong = raw::framed(&message("add", 900_000).encode_to_vec());
    let bodies = refused_bodies();
    let (mut over_http, mut over_grpc) = (Vec::new(), Vec::new());
    let mut before = 0;
    for i in 0..=CLIENTS {
        // The first of each kind are not counted: what is made once is made for them.
        if i == 1 {
            before = memory();
        }
        for (body, fields, told) in &bodies {
            let mut stream = TcpStream::connect(server.http()).await.unwrap();
            let sent = kept(INFER, fields, body);
            stream.write_all(&sent).await.unwrap();
            let (code, text) = next(&mut stream).await;
            assert!(code == 400 && text.contains(told), "{code} {told}: {text}");
            over_http.push(stream);
        }
        for (message, code) in [(&unknown, "5"), (&wrong, "3")] {
            let mut client = Raw::connect(server.at.grpc.unwrap()).await;
            let (answer, mut asks) = client.begin("ModelInfer").await;
            asks.send_data(message.clone(), true).unwrap();
            assert_eq!(raw::ended(answer).await.0, code);
            over_grpc.push(client);
        }
        let held = || server.state.memory.held();
        soon("what was refused is not held", || held() == 0).await;
    }
    let after = memory();
    println!("memory: {before} bytes, then {after}");
    assert!(
        !is_alone() || after < before + MAX_GROWTH,
        "memory grew from {before} to {after} bytes while refused clients stayed"
    );
    // They were there all the while.
    for mut stream in over_http.drain(..).take(3) {
        stream.write_all(&kept(INFER, "", &add(3))).await.unwrap();
        let (code, text) = next(&mut stream).await;
        assert!(code == 200 && is_sum(&text, 3), "{text}");
    }
    assert!(over_grpc.iter().all(|client| !client.task.is_finished()));
    drop(over_grpc);
    end(server).await;
}

#[tokio::test]
async fn an_output_is_made_once_and_lists_are_bounded() {
    let server = start(|_| {}).await;
    let mut client = server.grpc().await;
    let once = |num: usize| {
        let wants = vec![r#"{"name":"OUTPUT0"}"#; num].join(",");
        add(1).replacen('{', &format!(r#"{{"outputs":[{wants}],"#), 1)
    };
    let wants = |num: usize| ModelInferRequest {
        outputs: vec![
            InferRequestedOutputTensor {
                name: "OUTPUT0".into(),
                ..InferRequestedOutputTensor::default()
            };
            num
        ],
        ..message("add", 64)
    };
    let (code, text) = call(server.http(), "POST", INFER, &once(1)).await;
    assert!(code == 200 && !text.contains("OUTPUT1"), "{text}");
    assert_eq!(
        client
            .model_infer(wants(1))
            .await
            .unwrap()
            .into_inner()
            .outputs
            .len(),
        1
    );
    let twice = "output 'OUTPUT0' of model 'add': expected it once, got it twice";
    for (num, told) in [
        (2, twice),
        (1024, twice),
        (1025, "outputs: expected at most 1024, got "),
    ] {
        let (code, text) = call(server.http(), "POST", INFER, &once(num)).await;
        assert!(code == 400 && text.contains(told), "{num}: {text}");
        let refused = client.model_infer(wants(num)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(told), "{num}: {refused}");
    }
    let many = ModelInferRequest {
        inputs: vec![InferInputTensor::default(); 1025],
        ..message("add", 64)
    };
    let refused = client.model_infer(many).await.unwrap_err();
    let told = "inputs: expected at most 1024, got 1025";
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::InvalidArgument, told)
    );
    let parameters = (0..1025).map(|i| (i.to_string(), InferParameter::default()));
    let many = ModelInferRequest {
        parameters: parameters.collect(),
        ..message("add", 64)
    };
    let refused = client.model_infer(many).await.unwrap_err();
    let told = "parameters: expected at most 1024, got 1025";
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::InvalidArgument, told)
    );
    drop(client);
    end(server).await;
}

#[tokio::test]
async fn a_server_may_have_as_many_descriptors_as_the_system_lets_it_have() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(before.maximum.map_or(4096, |most| most.min(4096))),
        ..before
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut server = start(|_| {}).await;
    assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    server.end();
    server.ended().await;
}

/// So many streams of a connection are served at once; one more waits until one of them has ended.
#[tokio::test]
async fn a_connection_has_no_more_streams_than_it_may() {
    let server = start(|o| o.max_streams = 4).await;
    let mut grpc = server.grpc().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (asks, asked) = tokio::sync::mpsc::unbounded_channel::<ModelInferRequest>();
        let asked = futures_util::stream::unfold(asked, |mut asked| async {
            Some((asked.recv().await?, asked))
        });
        let answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
        streams.push((asks, answers));
    }
    let mut fifth = grpc.clone();
    let fifth = tokio::spawn(async move { fifth.server_live(ServerLiveRequest {}).await });
    // Others are served meanwhile.
    let mut other = server.grpc().await;
    for _ in 0..20 {
        other.server_live(ServerLiveRequest {}).await.unwrap();
    }
    assert!(!fifth.is_finished());
    let (asks, mut answers) = streams.pop().unwrap();
    drop(asks);
    assert!(answers.message().await.unwrap().is_none());
    let live = timeout(LONG, fifth).await.unwrap().unwrap().unwrap();
    assert!(live.into_inner().live);
    drop((streams, grpc, other));
    end(server).await;
}
