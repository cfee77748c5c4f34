//! Who gets in: TLS, certificates of clients, tokens, and what is read anew.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{
    InferTensorContents, ModelInferRequest, ModelMetadataRequest, RepositoryIndexRequest,
    ServerLiveRequest, ServerReadyRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::common::{add, is_sum, start, until};
use super::raw::{Raw, ended, framed, taken};
use super::tls::{Authority, exchange, request};

const INFER: &str = "/v2/models/add/infer";

fn one() -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        contents: Some(InferTensorContents {
            fp32_contents: vec![2.0; 16],
            ..InferTensorContents::default()
        }),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        ..ModelInferRequest::default()
    }
}

/// A call over HTTP without TLS, with what the header authorization says.
async fn call(at: SocketAddr, path: &str, authorization: Option<&str>) -> (u16, String) {
    let stream = TcpStream::connect(at).await.unwrap();
    let (method, body) = if path == INFER {
        ("POST", add(3))
    } else if path.starts_with("/v2/repository") {
        ("POST", String::new())
    } else {
        ("GET", String::new())
    };
    exchange(stream, &request(method, path, authorization, &body))
        .await
        .unwrap()
}

fn with_token<T>(message: T, authorization: Option<&str>) -> tonic::Request<T> {
    let mut call = tonic::Request::new(message);
    if let Some(text) = authorization {
        let value = text.parse().unwrap();
        call.metadata_mut().insert("authorization", value);
    }
    call
}

fn code<T>(answer: Result<T, tonic::Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn infers(channel: Channel) -> bool {
    let mut client = GrpcInferenceServiceClient::new(channel);
    let answer = client.model_infer(one()).await.unwrap().into_inner();
    let bytes = &answer.raw_output_contents;
    let typed = answer.outputs.iter().filter_map(|o| o.contents.as_ref());
    let typed = typed.map(|c| c.fp32_contents.clone()).next();
    let raw = bytes.first().map(|b| {
        let floats = b.chunks_exact(4).map(|c| c.try_into().unwrap());
        floats.map(f32::from_le_bytes).collect()
    });
    typed.filter(|t| !t.is_empty()).or(raw) == Some(vec![4.0; 16])
}

#[tokio::test]
async fn tls_carries_both_protocols_and_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let mut server = start(|o| o.security.tls = Some(ours.server(folder.path()))).await;
    let client = ours.client(None);
    let (status, text) = client
        .call(server.http(), "POST", INFER, &add(3))
        .await
        .unwrap();
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    let metrics = server.at.metrics.unwrap();
    let (status, text) = client.call(metrics, "GET", "/metrics", "").await.unwrap();
    assert!(
        status == 200 && text.contains("nv_inference_count"),
        "{text}"
    );
    let grpc = server.at.grpc.unwrap();
    assert!(infers(client.grpc(grpc).await.unwrap()).await);

    // Each port speaks its own protocol.
    let (both, http, h2) = (["h2", "http/1.1"], Some(&b"http/1.1"[..]), Some(&b"h2"[..]));
    let agreed = client.connect(server.http(), &both).await.unwrap();
    assert_eq!(agreed.get_ref().1.alpn_protocol(), http);
    let agreed = client.connect(grpc, &both).await.unwrap();
    assert_eq!(agreed.get_ref().1.alpn_protocol(), h2);
    drop(agreed);
    client.connect(grpc, &["http/1.1"]).await.unwrap_err();

    // Those who trust somebody else stay away, and those without TLS get no answer.
    let theirs = Authority::new("theirs").client(None);
    for at in [server.http(), grpc, metrics] {
        let refused = theirs.connect(at, &[]).await.unwrap_err();
        assert!(
            refused.to_string().contains("invalid peer certificate"),
            "{refused}"
        );
    }
    theirs.grpc(grpc).await.unwrap_err();
    let answer = super::common::send(server.http(), &super::common::http("GET", "/v2", b"")).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn with_a_ca_of_clients_only_those_it_signed_get_in() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, clients) = (Authority::new("ours"), Authority::new("clients"));
    let mut files = ours.server(folder.path());
    files.client_ca = Some(clients.write(&folder.path().join("clients.pem")));
    let mut server = start(|o| o.security.tls = Some(files)).await;
    let known = ours.client(Some(clients.sign(folder.path(), "known")));
    let strange = ours.client(Some(
        Authority::new("strange").sign(folder.path(), "strange"),
    ));
    let (http, grpc) = (server.http(), server.at.grpc.unwrap());
    let (status, text) = known.call(http, "POST", INFER, &add(3)).await.unwrap();
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    assert!(infers(known.grpc(grpc).await.unwrap()).await);
    for client in [ours.client(None), strange] {
        for at in [http, server.at.metrics.unwrap()] {
            let health = client.call(at, "GET", "/v2/health/live", "").await;
            assert!(health.is_err(), "{health:?}");
        }
        // With TLS 1.3 a client learns of it behind its own last word.
        if let Ok(channel) = client.grpc(grpc).await {
            let mut grpc = GrpcInferenceServiceClient::new(channel);
            grpc.server_live(ServerLiveRequest {}).await.unwrap_err();
        }
    }
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn calls_need_a_token_on_both_protocols_and_health_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "# two\nops:first-token\nsecond-token\n").unwrap();
    let mut server = start(|o| o.security.tokens = Some(file)).await;
    let (http, metrics) = (server.http(), server.at.metrics.unwrap());
    let right = ["Bearer first-token", "bearer second-token"];
    let missing = [
        None,
        Some("Basic b3BzOng="),
        Some("Bearer"),
        Some("first-token"),
    ];
    let wrong = [Some("Bearer first"), Some("Bearer ops:first-token")];
    for (at, path) in [
        (http, INFER),
        (http, "/v2"),
        (http, "/v2/models/add"),
        (http, "/v2/models/add/ready"),
        (http, "/v2/models/stats"),
        (http, "/v2/repository/index"),
        (http, "/v2/logging"),
        (metrics, "/metrics"),
    ] {
        for token in right {
            let (status, text) = call(at, path, Some(token)).await;
            assert_eq!(status, 200, "{path} {token}: {text}");
        }
        for token in missing.into_iter().chain(wrong) {
            let (status, text) = call(at, path, token).await;
            assert_eq!(status, 401, "{path} {token:?}: {text}");
            assert!(
                text.contains(r#"{"error":"expected a bearer token "#),
                "{text}"
            );
            let challenge = "www-authenticate: Bearer realm=\"lazybatch\"";
            assert!(text.contains(challenge), "{text}");
            let known = missing.contains(&token);
            assert_eq!(!known, text.contains("error=\"invalid_token\""), "{text}");
        }
    }
    // Whoever may not ask learns nothing of which paths there are.
    assert_eq!(call(http, "/nowhere", None).await.0, 401);
    assert_eq!(call(http, "/v2/health/live/", None).await.0, 401);
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(call(http, path, None).await.0, 200);
    }

    let at = format!("http://{}", server.at.grpc.unwrap());
    let channel = Channel::from_shared(at).unwrap().connect().await.unwrap();
    let mut grpc = GrpcInferenceServiceClient::new(channel.clone());
    let all = right.into_iter().map(|t| (Some(t), Code::Ok));
    let none = missing.into_iter().chain(wrong);
    for (token, want) in all.chain(none.map(|t| (t, Code::Unauthenticated))) {
        let infer = grpc.model_infer(with_token(one(), token)).await;
        assert_eq!(code(infer), want, "{token:?}");
        let index = RepositoryIndexRequest::default();
        let index = grpc.repository_index(with_token(index, token)).await;
        assert_eq!(code(index), want, "{token:?}");
        let stream = with_token(futures_util::stream::iter([one()]), token);
        let stream = grpc.model_stream_infer(stream).await;
        assert_eq!(code(stream), want, "{token:?}");
    }
    let refused = grpc.model_metadata(ModelMetadataRequest::default()).await;
    let text = refused.unwrap_err().message().to_owned();
    assert!(text.contains("got none"), "{text}");
    assert!(grpc.server_live(ServerLiveRequest {}).await.is_ok());
    assert!(grpc.server_ready(ServerReadyRequest {}).await.is_ok());
    let health = HealthCheckRequest::default();
    let health = HealthClient::new(channel.clone()).check(health).await;
    assert_eq!(health.unwrap().into_inner().status, 1, "serving");
    drop((grpc, channel));
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn metrics_are_open_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "token").unwrap();
    let mut server = start(|o| {
        o.security.tokens = Some(file);
        o.security.metrics_open = true;
    })
    .await;
    assert_eq!(
        call(server.at.metrics.unwrap(), "/metrics", None).await.0,
        200
    );
    assert_eq!(call(server.http(), "/v2", None).await.0, 401);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn tokens_and_certificates_are_read_anew_and_connections_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let token = |text: &str| std::fs::write(&file, text).unwrap();
    token("old-token");
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let tls = old.server(folder.path());
    let mut server = start(|o| {
        o.security.tls = Some(tls.clone());
        o.security.tokens = Some(file.clone());
    })
    .await;
    let at = server.http();
    let whole = |token: &str| request("GET", "/v2", Some(&format!("Bearer {token}")), "");
    let kept = |token: &str| whole(token).replace("connection: close\r\n", "");
    // A connection, open from before all changes to behind them.
    let mut stays = old.client(None).connect(at, &[]).await.unwrap();
    let ask = async |stream: &mut tokio_rustls::client::TlsStream<TcpStream>, token: &str| {
        stream.write_all(kept(token).as_bytes()).await.unwrap();
        let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
        while !answer.ends_with(b"}") {
            let n = stream.read(&mut piece).await.unwrap();
            assert!(n > 0, "the connection was closed");
            answer.extend_from_slice(&piece[..n]);
        }
        super::common::status(&answer).0
    };
    let fresh = async |authority: &Authority, token: &str| {
        let stream = authority.client(None).connect(at, &[]).await?;
        exchange(stream, &whole(token))
            .await
            .map(|(status, _)| status)
    };
    assert_eq!(ask(&mut stays, "old-token").await, 200);
    assert_eq!(ask(&mut stays, "new-token").await, 401);

    new.server(folder.path());
    token("new-token");
    assert_eq!(
        ask(&mut stays, "old-token").await,
        200,
        "nothing is read unasked"
    );
    assert!(server.guard.reload());
    assert_eq!(ask(&mut stays, "new-token").await, 200);
    assert_eq!(ask(&mut stays, "old-token").await, 401);
    assert_eq!(fresh(&new, "new-token").await.unwrap(), 200);
    fresh(&old, "new-token").await.unwrap_err();
    let channel = new
        .client(None)
        .grpc(server.at.grpc.unwrap())
        .await
        .unwrap();
    let mut grpc = GrpcInferenceServiceClient::new(channel);
    let infer = with_token(one(), Some("Bearer new-token"));
    assert_eq!(code(grpc.model_infer(infer).await), Code::Ok);

    // What is wrong changes nothing, whichever of the files it is.
    let key = std::fs::read(&tls.key).unwrap();
    Authority::new("third").server(folder.path());
    std::fs::write(&tls.key, &key).unwrap();
    token("newest-token");
    assert!(!server.guard.reload(), "a key of another certificate");
    assert_eq!(
        fresh(&new, "newest-token").await.unwrap(),
        200,
        "tokens are read all the same"
    );
    token("not a token");
    std::fs::remove_file(&tls.cert).unwrap();
    assert!(!server.guard.reload(), "no certificate, no token");
    assert_eq!(fresh(&new, "newest-token").await.unwrap(), 200);
    assert_eq!(ask(&mut stays, "newest-token").await, 200);
    drop((grpc, stays));
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn clients_that_do_not_agree_on_keys_hold_up_nobody_and_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let mut server = start(|o| {
        o.security.tls = Some(ours.server(folder.path()));
        o.header_timeout = Duration::from_secs(3);
    })
    .await;
    let (http, grpc) = (server.http(), server.at.grpc.unwrap());
    let mut stalled = Vec::new();
    for i in 0..40 {
        let mut one = TcpStream::connect(if i % 2 == 0 { http } else { grpc })
            .await
            .unwrap();
        // Some say nothing, some begin.
        if i % 4 < 2 {
            one.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        }
        stalled.push(one);
    }
    let client = ours.client(None);
    // Others agree, and then say nothing or too little.
    let mut silent = Vec::new();
    for at in [http, grpc, grpc] {
        silent.push(client.connect(at, &[]).await.unwrap());
    }
    silent[2].write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    let (status, text) = client.call(http, "POST", INFER, &add(3)).await.unwrap();
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    assert!(infers(client.grpc(grpc).await.unwrap()).await);
    for mut one in silent {
        let _ = one.read_to_end(&mut Vec::new()).await;
    }
    for mut one in stalled {
        // Ends when the server closes it.
        let _ = one.read_to_end(&mut Vec::new()).await;
    }
    let (status, _) = client.call(http, "GET", "/v2", "").await.unwrap();
    assert_eq!(status, 200);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn without_tls_too_a_client_of_grpc_has_to_begin() {
    let mut server = start(|o| o.header_timeout = Duration::from_secs(2)).await;
    let at = server.at.grpc.unwrap();
    let mut silent = TcpStream::connect(at).await.unwrap();
    let uri = format!("http://{at}");
    let channel = Channel::from_shared(uri).unwrap().connect().await.unwrap();
    // Ends when the server closes it; those who have begun stay.
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!(infers(channel).await);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn a_client_of_grpc_that_does_not_call_is_closed_until_it_was_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "secret\n").unwrap();
    for has_tokens in [false, true] {
        let mut server = start(|o| {
            o.idle_timeout = Duration::from_secs(2);
            o.security.tokens = has_tokens.then(|| tokens.clone());
        })
        .await;
        let at = server.at.grpc.unwrap();
        let call = async |method: &str, token: Option<&str>| {
            let mut raw = Raw::connect(at).await;
            let (response, mut body) = raw.begin_bearing(method, token).await;
            body.send_data(framed(&[]), true).unwrap();
            (ended(response).await.0, raw)
        };
        let (status, mut admitted) = call("ServerMetadata", Some("secret")).await;
        assert_eq!(status, "0");
        // One that says nothing, and those whose calls everybody may make, or nobody without a token.
        let silent = Raw::connect(at).await;
        let (status, lives) = call("ServerLive", None).await;
        assert_eq!(status, "0");
        let (status, unknown) = call("ServerMetadata", None).await;
        assert_eq!(status, if has_tokens { "16" } else { "0" });
        for closed in [Some(silent), Some(lives), has_tokens.then_some(unknown)] {
            let Some(closed) = closed else { continue };
            let ended = tokio::time::timeout(Duration::from_secs(30), closed.task).await;
            drop(ended.expect("it is closed"));
        }
        assert!(!admitted.task.is_finished());
        let (response, mut body) = admitted.begin_bearing("ServerLive", None).await;
        body.send_data(framed(&[]), true).unwrap();
        assert_eq!(ended(response).await.0, "0");
        drop(admitted);
        server.end();
        server.ended().await;
    }
}

#[tokio::test]
async fn a_connection_that_watches_health_alone_is_idle_until_it_was_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "secret\n").unwrap();
    let mut server = start(|o| {
        o.idle_timeout = Duration::from_secs(2);
        o.security.tokens = Some(tokens);
    })
    .await;
    let at = server.at.grpc.unwrap();
    let watch = async |token: Option<&str>| {
        let mut raw = Raw::connect(at).await;
        let watch = "grpc.health.v1.Health/Watch";
        let (response, mut body) = raw.begin_bearing(watch, token).await;
        body.send_data(framed(&[]), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let first = taken(&mut body).await.unwrap();
        assert_eq!(first[..], framed(&[8, 1])[..], "serving");
        (raw, body)
    };
    let (known, stays) = watch(Some("secret")).await;
    let (unknown, _goes) = watch(None).await;
    let closed = tokio::time::timeout(Duration::from_secs(30), unknown.task).await;
    drop(closed.expect("it is closed"));
    assert!(!known.task.is_finished());
    drop((known, stays));
    server.end();
    server.ended().await;
}

/// A call with just those headers, and what is answered.
async fn with(at: SocketAddr, method: &str, path: &str, headers: &[&str]) -> (u16, String) {
    let headers: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    let text = format!(
        "{method} {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: 0\r\n\r\n"
    );
    let stream = TcpStream::connect(at).await.unwrap();
    exchange(stream, &text).await.unwrap()
}

#[tokio::test]
async fn pages_of_other_sites_get_nothing_where_nobody_is_asked_who_they_are() {
    let add = vec!["add".to_owned()];
    let mut server = start(|o| o.control = lazybatch_serve::Control::Explicit(add)).await;
    let (at, metrics) = (server.http(), server.at.metrics.unwrap());
    let unload = "/v2/repository/models/add/unload";
    for headers in [
        &["host: localhost:8000", "sec-fetch-site: cross-site"][..],
        &["host: localhost:8000", "origin: http://evil.example"],
        &["host: localhost:8000", "origin: http://localhost:3000"],
        &["host: evil.example:8000"],
        &[
            "host: evil.example:8000",
            "origin: http://evil.example:8000",
        ],
    ] {
        for (at, method, path) in [
            (at, "POST", unload),
            (at, "GET", "/lazybatch/events"),
            (at, "POST", INFER),
            (metrics, "GET", "/metrics"),
        ] {
            let (status, text) = with(at, method, path, headers).await;
            assert_eq!(status, 403, "{path} {headers:?}: {text}");
            let body = text.split_once("\r\n\r\n").unwrap().1;
            let told: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(told["error"].as_str().unwrap().starts_with("expected"));
        }
        assert_eq!(with(at, "GET", "/v2/health/live", headers).await.0, 200);
    }
    let ready = "/v2/models/add/ready";
    let local = format!("host: {at}");
    assert_eq!(
        with(at, "GET", ready, &[&local]).await.0,
        200,
        "it is there"
    );
    assert_eq!(with(metrics, "GET", "/metrics", &[&local]).await.0, 200);
    // Its own page may do all that it shows, and so may what is no browser.
    let origin = format!("origin: http://{at}");
    let own = [&local[..], &origin, "sec-fetch-site: same-origin"];
    assert_eq!(with(at, "POST", unload, &own).await.0, 200);
    server.end();
    server.ended().await;
    // Who has a token is known, by whatever name it calls.
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "secret").unwrap();
    let mut server = start(|o| o.security.tokens = Some(tokens)).await;
    let known = ["host: other.example", "authorization: Bearer secret"];
    assert_eq!(with(server.http(), "GET", ready, &known).await.0, 200);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn connections_count_from_before_they_agree_on_keys() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let mut server = start(|o| {
        o.security.tls = Some(ours.server(folder.path()));
        o.max_connections = 1;
        o.header_timeout = Duration::from_secs(60);
    })
    .await;
    let client = ours.client(None);
    for at in [server.http(), server.at.grpc.unwrap()] {
        let stalled = TcpStream::connect(at).await.unwrap();
        // Connections are accepted in their order.
        client.connect(at, &[]).await.unwrap_err();
        drop(stalled);
        while client.connect(at, &[]).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn the_end_under_tls_waits_for_what_was_taken() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    let mut server = start(|o| o.security.tls = Some(ours.server(folder.path()))).await;
    let at = server.http();
    let client = ours.client(None);
    let channel = client.grpc(server.at.grpc.unwrap()).await.unwrap();
    server.gate.shut();
    let over_http = {
        let client = client.clone();
        tokio::spawn(async move { client.call(at, "POST", INFER, &add(7)).await })
    };
    let over_grpc = tokio::spawn(infers(channel));
    until(|| server.state.in_flight() == 2).await;
    let stalled = TcpStream::connect(at).await.unwrap();
    server.end();
    until(|| !server.state.is_ready()).await;
    let ask = |path| client.call(at, "GET", path, "");
    assert_eq!(ask("/v2/health/ready").await.unwrap().0, 503);
    assert_eq!(ask("/v2/health/live").await.unwrap().0, 200);
    let (status, text) = client.call(at, "POST", INFER, &add(8)).await.unwrap();
    assert!(status == 503 && text.contains("stopping"), "{text}");
    server.gate.open();
    let (status, text) = over_http.await.unwrap().unwrap();
    assert!(status == 200 && is_sum(&text, 7), "{text}");
    assert!(over_grpc.await.unwrap());
    server.ended().await;
    assert!(TcpStream::connect(at).await.is_err(), "the port is closed");
    drop(stalled);
}

#[tokio::test]
async fn files_that_are_not_what_they_should_be_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let good = Authority::new("ours").server(folder.path());
    std::fs::write(path("empty"), "").unwrap();
    let wrong = |change: fn(&mut lazybatch_serve::TlsFiles, &Path), parts: &[&str]| {
        let mut tls = good.clone();
        change(&mut tls, folder.path());
        let security = lazybatch_serve::Security {
            tls: Some(tls),
            ..lazybatch_serve::Security::default()
        };
        let opened = lazybatch_serve::security::Guard::open(&security);
        let error = opened.err().map(|e| e.to_string()).unwrap_or_default();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error:?}");
        }
    };
    wrong(
        |tls, folder| tls.cert = folder.join("none"),
        &["none: expected certificates in PEM, got"],
    );
    wrong(
        |tls, folder| tls.cert = folder.join("empty"),
        &["empty: expected certificates in PEM, got none"],
    );
    wrong(
        |tls, _| tls.key = tls.cert.clone(),
        &["server.pem: expected a private key in PEM, got"],
    );
    wrong(
        |tls, folder| tls.client_ca = Some(folder.join("empty")),
        &["empty: expected certificates in PEM that sign those of clients, got none"],
    );
    let other = Authority::new("other").sign(folder.path(), "other").1;
    assert!(other.ends_with("other.key"));
    wrong(
        |tls, folder| tls.key = folder.join("other.key"),
        &["server.pem: expected a certificate of the key", "other.key"],
    );
}
