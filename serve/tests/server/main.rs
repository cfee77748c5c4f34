//! A server as its clients see it: too many of them, some that leave, and its end.

mod answers;
mod bounds;
mod brought;
mod budget;
mod chain_calls;
mod chains;
mod common;
mod edge;
mod ensembles;
mod figures;
mod files;
mod front;
mod full;
mod hostile;
mod hostile_messages;
mod metadata;
mod models;
mod order;
mod raw;
mod readers;
mod readiness;
mod reload;
mod sampling;
mod security;
mod sequences;
mod shared;
mod spans;
mod steps;
mod texts;
mod tls;
mod traces;
mod watch;

use common::{add, call, is_sum, start, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const INFER: &str = "/v2/models/add/infer";

#[tokio::test]
async fn more_than_the_queue_holds_is_refused_at_once_and_the_rest_is_answered() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    server.gate.shut();
    let served = server.state.repository.get("add", "").unwrap();
    // One is held in its launch, two wait; whoever comes then finds no room.
    let mut taken = Vec::new();
    let mut refused = 0;
    while refused == 0 {
        let before = served.stats.failures()[0];
        let value = taken.len() as u8;
        let one = tokio::spawn(async move { call(at, "POST", INFER, &add(value)).await });
        let pending = || {
            served
                .stats
                .pending
                .load(std::sync::atomic::Ordering::SeqCst)
        };
        until(|| pending() > taken.len() as i64 || served.stats.failures()[0] > before).await;
        if served.stats.failures()[0] > before {
            let (status, text) = one.await.unwrap();
            assert_eq!(status, 503, "{text}");
            assert!(text.contains("Exceeds maximum queue size"), "{text}");
            refused += 1;
        } else {
            taken.push(one);
            // The first one leaves the queue for its launch.
            until(|| server.gate.holding() == 1).await;
        }
        assert!(taken.len() <= 8, "the queue has no bound");
    }
    assert_eq!(call(at, "GET", "/v2/health/ready", "").await.0, 200);
    // The one in its launch waits no more.
    let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
    for line in [
        r#"nv_inference_pending_request_count{model="add",version="1"} 2"#,
        r#"lazybatch_requests_open{model="add",version="1"} 3"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    server.gate.open();
    for (value, one) in taken.into_iter().enumerate() {
        let (status, text) = one.await.unwrap();
        assert!(status == 200 && is_sum(&text, value as u8), "{text}");
    }
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn more_calls_than_the_server_takes_are_refused_on_both_protocols() {
    let mut server = start(|o| o.max_in_flight = 1).await;
    let at = server.http();
    server.gate.shut();
    let first = tokio::spawn(async move { call(at, "POST", INFER, &add(5)).await });
    until(|| server.state.in_flight() == 1).await;
    let (status, text) = call(at, "POST", INFER, &add(6)).await;
    assert!(status == 503 && text.contains("in flight"), "{text}");
    let mut grpc = server.grpc().await;
    let refused = grpc
        .model_infer(lazybatch_serve::proto::ModelInferRequest::default())
        .await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unavailable);
    // Over gRPC it named no model.
    let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
    for line in [
        r#"lazybatch_calls_refused_total{cause="in_flight"} 2"#,
        r#"lazybatch_calls_refused_total{cause="memory"} 0"#,
        r#"nv_inference_request_failure{model="add",version="1",reason="REJECTED"} 1"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    server.gate.open();
    let (status, text) = first.await.unwrap();
    assert!(status == 200 && is_sum(&text, 5), "{text}");
    server.end();
    drop(grpc);
    server.ended().await;
}

#[tokio::test]
async fn the_end_waits_for_what_was_taken_and_refuses_what_comes() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    server.gate.shut();
    let taken = tokio::spawn(async move { call(at, "POST", INFER, &add(7)).await });
    until(|| server.state.in_flight() == 1).await;
    server.end();
    until(|| !server.state.is_ready()).await;
    assert_eq!(call(at, "GET", "/v2/health/ready", "").await.0, 503);
    assert_eq!(call(at, "GET", "/v2/health/live", "").await.0, 200);
    let (status, text) = call(at, "POST", INFER, &add(8)).await;
    assert!(status == 503 && text.contains("stopping"), "{text}");
    assert!(!taken.is_finished(), "it is held");
    assert_eq!(server.state.in_flight(), 1);
    let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
    assert!(text.contains("\nlazybatch_calls_in_flight 1\n"), "{text}");
    server.gate.open();
    let (status, text) = taken.await.unwrap();
    assert!(status == 200 && is_sum(&text, 7), "{text}");
    server.ended().await;
    assert!(TcpStream::connect(at).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    let served = server.state.repository.get("add", "").unwrap();
    server.gate.shut();
    let stays = tokio::spawn(async move { call(at, "POST", INFER, &add(1)).await });
    until(|| server.state.in_flight() == 1).await;
    let mut leaves = TcpStream::connect(at).await.unwrap();
    let body = add(2);
    leaves
        .write_all(&common::http("POST", INFER, body.as_bytes()))
        .await
        .unwrap();
    until(|| server.state.in_flight() == 2).await;
    drop(leaves);
    until(|| server.state.in_flight() == 1).await;
    assert_eq!(served.stats.failures()[1], 1, "cancelled");
    server.gate.open();
    let (status, text) = stays.await.unwrap();
    assert!(status == 200 && is_sum(&text, 1), "{text}");
    let counts = served.engine().unwrap().stats().counters;
    assert!(counts.finished <= 2);
    drop(served);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn a_request_whose_turn_does_not_come_in_time_is_refused() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    server.gate.shut();
    let first = tokio::spawn(async move { call(at, "POST", INFER, &add(1)).await });
    until(|| server.state.in_flight() == 1).await;
    // The configuration states a queue policy that lets no request state its own time.
    let hasty = add(2).replacen('{', r#"{"parameters":{"timeout":1},"#, 1);
    let second = tokio::spawn(async move { call(at, "POST", INFER, &hasty).await });
    until(|| server.state.in_flight() == 2).await;
    let lstm = r#"{"parameters":{"timeout":0},"inputs":[{"name":"x","datatype":"FP32",
        "shape":[1,1,16],"data":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}]}"#;
    let path = "/v2/models/lstm/infer";
    let held = {
        let body = lstm.to_owned();
        tokio::spawn(async move { call(at, "POST", path, &body).await })
    };
    // One is in its launch, whose end all others wait for, those of the other model too.
    until(|| server.state.in_flight() == 3).await;
    until(|| server.gate.holding() == 1).await;
    let hasty = lstm.replace("\"timeout\":0", "\"timeout\":1000");
    let (status, text) = call(at, "POST", path, &hasty).await;
    assert!(
        status == 503 && text.contains("Request timeout expired"),
        "{text}"
    );
    server.gate.open();
    assert_eq!(first.await.unwrap().0, 200);
    assert_eq!(second.await.unwrap().0, 200);
    assert_eq!(held.await.unwrap().0, 200);
    server.end();
    server.ended().await;
}

/// Its samples are requests of the engine, of which the second has its turn behind the first.
#[tokio::test]
async fn of_a_request_of_several_samples_the_turn_of_each_has_to_come_in_time() {
    let mut server = start(|_| {}).await;
    let at = server.http();
    server.gate.shut();
    let zeros = ["0"; 2 * 16].join(",");
    let body = |timeout: u64| {
        format!(
            r#"{{"parameters":{{"timeout":{timeout}}},"inputs":[{{"name":"x","datatype":"FP32",
            "shape":[2,1,16],"data":[{zeros}]}}]}}"#
        )
    };
    let path = "/v2/models/lstm/infer";
    // It is refused while its first sample is in a launch.
    let of_300_ms = body(300_000);
    let hasty = call(at, "POST", path, &of_300_ms);
    let hasty = tokio::time::timeout(std::time::Duration::from_secs(30), hasty);
    let (status, text) = hasty.await.expect("it does not wait for the first");
    assert!(
        status == 503 && text.contains("Request timeout expired"),
        "{text}"
    );
    assert_eq!(server.gate.holding(), 1);
    server.gate.open();
    assert_eq!(call(at, "POST", path, &body(60_000_000)).await.0, 200);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn models_go_and_come_under_traffic() {
    let mut server =
        start(|o| o.control = lazybatch_serve::Control::Explicit(vec!["add".into()])).await;
    let at = server.http();
    server.gate.shut();
    let before = tokio::spawn(async move { call(at, "POST", INFER, &add(3)).await });
    until(|| server.state.in_flight() == 1).await;
    assert_eq!(
        call(at, "POST", "/v2/repository/models/add/unload", "")
            .await
            .0,
        200
    );
    assert_eq!(call(at, "POST", INFER, &add(4)).await.0, 503);
    server.gate.open();
    let (status, text) = before.await.unwrap();
    assert!(
        status == 200 && is_sum(&text, 3),
        "taken before it went: {text}"
    );
    assert_eq!(
        call(at, "POST", "/v2/repository/models/add/load", "")
            .await
            .0,
        200
    );
    let (status, text) = call(at, "POST", INFER, &add(5)).await;
    assert!(status == 200 && is_sum(&text, 5), "{text}");
    server.end();
    server.ended().await;
}
