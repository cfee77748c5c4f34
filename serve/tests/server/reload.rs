//! Models are loaded anew, loaded and unloaded, and found by polling while clients go on: every
//! request that the server takes has its right answer.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::StreamExt;
use lazybatch_serve::Control;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferTensorContents, ModelInferRequest, ModelInferResponse};
use tokio::sync::mpsc;

use super::common::{Running, add, call, is_sum, soon, start, until};

const INFER: &str = "/v2/models/add/infer";
const LSTM: &str = "/v2/models/lstm/infer";
/// Times that a model is loaded anew, and another one loaded and unloaded.
const TIMES: usize = 20;
/// Rooms of its queue: more than there are clients.
const CONFIG: &str = "max_batch_size: 4
dynamic_batching { default_queue_policy { max_queue_size: 64 } }";

/// What the clients of one kind have counted.
#[derive(Default)]
struct Counts {
    sent: AtomicUsize,
    answered: AtomicUsize,
    not_ready: AtomicUsize,
}

/// What a client does, over and over, until nobody wants it.
#[derive(Clone, Default)]
struct Traffic {
    ends: Arc<AtomicBool>,
    adding: Arc<Counts>,
    reading: Arc<Counts>,
}

impl Traffic {
    fn goes_on(&self, counts: &Counts) -> bool {
        let goes_on = !self.ends.load(SeqCst);
        counts.sent.fetch_add(usize::from(goes_on), SeqCst);
        goes_on
    }

    /// Adds over HTTP, each call on a connection of its own. The model is never away.
    async fn http(self, at: SocketAddr, from: u8) {
        let mut value = from;
        while self.goes_on(&self.adding) {
            value = (value + 1) % 100;
            let (status, text) = call(at, "POST", INFER, &add(value)).await;
            assert!(status == 200 && is_sum(&text, value), "{text}");
            self.adding.answered.fetch_add(1, SeqCst);
        }
    }

    /// Reads by a model that comes and goes: the answer of the first time, or that it is not ready.
    async fn comes_and_goes(self, at: SocketAddr) {
        let values = vec!["0.5"; 16 * 6].join(",");
        let body = format!(
            r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,6,16],"data":[{values}]}}]}}"#
        );
        let data = |text: &str| text.split_once(r#""data":"#).unwrap().1.to_owned();
        let mut first = None;
        while self.goes_on(&self.reading) {
            let (status, text) = call(at, "POST", LSTM, &body).await;
            if status == 503 {
                let away = ["has no available versions", "is not at ready state"];
                assert!(away.iter().any(|what| text.contains(what)), "{text}");
                self.reading.not_ready.fetch_add(1, SeqCst);
            } else {
                assert_eq!(status, 200, "{text}");
                let got = data(&text);
                assert_eq!(&got, first.get_or_insert_with(|| got.clone()), "other bits");
                self.reading.answered.fetch_add(1, SeqCst);
            }
        }
    }
}

fn over_grpc(value: f32) -> ModelInferRequest {
    let input = |name: &str, value| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        contents: Some(InferTensorContents {
            fp32_contents: vec![value; 16],
            ..InferTensorContents::default()
        }),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![input("INPUT0", value), input("INPUT1", 1.0)],
        ..ModelInferRequest::default()
    }
}

fn is_answer(response: &ModelInferResponse, value: f32) {
    let sum: Vec<u8> = [value + 1.0; 16]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(response.raw_output_contents[0], sum, "{response:?}");
}

/// Adds over gRPC, all calls on one connection.
async fn unary(server: &Running, traffic: Traffic) {
    let mut client = server.grpc().await;
    let mut value = 0.0;
    while traffic.goes_on(&traffic.adding) {
        value = (value + 1.0) % 100.0;
        let response = client.model_infer(over_grpc(value)).await.unwrap();
        is_answer(&response.into_inner(), value);
        traffic.adding.answered.fetch_add(1, SeqCst);
    }
}

/// Adds on one stream that stays open through all loads.
async fn streamed(server: &Running, traffic: Traffic) {
    let mut client = server.grpc().await;
    let (send, requests) = mpsc::channel(1);
    let requests = futures_util::stream::unfold(requests, |mut requests| async move {
        Some((requests.recv().await?, requests))
    });
    send.send(over_grpc(0.0)).await.unwrap();
    traffic.adding.sent.fetch_add(1, SeqCst);
    let mut answers = client
        .model_stream_infer(requests)
        .await
        .unwrap()
        .into_inner();
    let mut value = 0.0;
    loop {
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(answer.error_message, "");
        is_answer(&answer.infer_response.unwrap(), value);
        traffic.adding.answered.fetch_add(1, SeqCst);
        if !traffic.goes_on(&traffic.adding) {
            return;
        }
        value = (value + 1.0) % 100.0;
        send.send(over_grpc(value)).await.unwrap();
    }
}

#[tokio::test]
async fn no_request_is_lost_while_models_are_loaded_and_unloaded() {
    let first = ["add", "lstm"].map(String::from).to_vec();
    let mut server = start(|o| o.control = Control::Explicit(first)).await;
    let at = server.http();
    fs::write(server.models.path().join("add/config.pbtxt"), CONFIG).unwrap();
    let change = |model: &'static str, what: &'static str| async move {
        let path = format!("/v2/repository/models/{model}/{what}");
        let (status, text) = call(at, "POST", &path, "").await;
        assert_eq!(status, 200, "{text}");
    };
    change("add", "load").await;
    let traffic = Traffic::default();
    let clients: Vec<_> = [
        tokio::spawn(traffic.clone().http(at, 0)),
        tokio::spawn(traffic.clone().http(at, 30)),
        tokio::spawn(traffic.clone().http(at, 60)),
        tokio::spawn(traffic.clone().comes_and_goes(at)),
        tokio::spawn(traffic.clone().comes_and_goes(at)),
    ]
    .into();
    let changes = async {
        let mut past = Vec::new();
        let num = |counter: &AtomicUsize| counter.load(SeqCst);
        // A client that fails must not be waited for.
        let failed = || clients.iter().any(tokio::task::JoinHandle::is_finished);
        for _ in 0..TIMES {
            let before = server.state.repository.get("add", "").unwrap();
            past.push(Arc::downgrade(&before));
            drop(before);
            let (adding, reading) = (&traffic.adding, &traffic.reading);
            change("add", "load").await;
            change("lstm", "unload").await;
            // Between two changes somebody notices each of them.
            let (seen, answered) = (num(&reading.not_ready), num(&adding.answered));
            until(|| {
                let noticed = num(&reading.not_ready) > seen && num(&adding.answered) > answered;
                noticed || failed()
            })
            .await;
            change("lstm", "load").await;
            let answered = num(&reading.answered);
            until(|| num(&reading.answered) > answered || failed()).await;
        }
        traffic.ends.store(true, SeqCst);
        past
    };
    let (past, (), ()) = tokio::join!(
        changes,
        unary(&server, traffic.clone()),
        streamed(&server, traffic.clone())
    );
    for client in clients {
        client.await.unwrap();
    }
    for counts in [&traffic.adding, &traffic.reading] {
        let [sent, answered, not_ready] =
            [&counts.sent, &counts.answered, &counts.not_ready].map(|counter| counter.load(SeqCst));
        assert_eq!(sent, answered + not_ready, "each has one end");
        assert!(answered >= TIMES, "{answered} of {sent}");
    }
    assert_eq!(traffic.adding.not_ready.load(SeqCst), 0);
    // What was replaced is gone with the last request that it took.
    until(|| past.iter().all(|served| served.strong_count() == 0)).await;
    assert_eq!(server.state.in_flight(), 0);
    server.end();
    server.ended().await;
}

/// Versions of `add` that polling finds one after another.
const VERSIONS: std::ops::RangeInclusive<u64> = 2..=8;

/// Puts a version of `add` with that file where polling finds it: whole, or not there.
fn deploy(server: &Running, version: u64, file: &[u8]) {
    // A name that begins with a dot is no model's.
    let hidden = server.models.path().join(".new");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("model.onnx"), file).unwrap();
    let place = server.models.path().join("add").join(version.to_string());
    fs::rename(hidden, place).unwrap();
}

#[tokio::test]
async fn no_request_is_lost_while_polling_replaces_versions() {
    let mut server = start(|o| {
        fs::write(o.models.join("add/config.pbtxt"), CONFIG).unwrap();
        o.control = Control::Poll;
        o.poll_every = Duration::from_millis(10);
    })
    .await;
    let at = server.http();
    let (status, text) = call(at, "POST", "/v2/repository/models/add/load", "").await;
    assert!(status == 503 && text.contains("not explicit"), "{text}");
    let folder = server.models.path().join("add");
    let file = fs::read(folder.join("1/model.onnx")).unwrap();
    let traffic = Traffic::default();
    let clients: Vec<_> = [0, 30, 60]
        .map(|from| tokio::spawn(traffic.clone().http(at, from)))
        .into();
    let repository = &server.state.repository;
    // A client that fails must not be waited for.
    let failed = || clients.iter().any(tokio::task::JoinHandle::is_finished);
    let answered = || traffic.adding.answered.load(SeqCst);
    let serves = async |version: u64| {
        let what = format!("version {version} is served alone");
        soon(&what, || {
            repository.versions("add") == [version] || failed()
        })
        .await;
        let (status, text) = call(at, "POST", INFER, &add(7)).await;
        let named = format!(r#""model_version":"{version}""#);
        assert!(status == 200 && is_sum(&text, 7), "{text}");
        assert!(text.contains(&named), "{named}: {text}");
        let before = answered();
        soon("the others go on", || answered() > before || failed()).await;
    };
    let changes = async {
        let mut past = Vec::new();
        serves(1).await;
        for version in VERSIONS {
            let before = repository.get("add", "").unwrap();
            past.push(Arc::downgrade(&before));
            drop(before);
            deploy(&server, version, &file);
            serves(version).await;
            fs::remove_dir_all(folder.join((version - 1).to_string())).unwrap();
        }
        // A file that is not whole is found and not served; when it is, it is.
        let (last, next) = (*VERSIONS.end(), *VERSIONS.end() + 1);
        deploy(&server, next, &file[..file.len() / 2]);
        let is_refused = || {
            let index = repository.index(false).into_iter();
            let mut lines = index.filter(|i| i.name == "add" && i.version == next.to_string());
            lines.any(|i| i.state == "UNAVAILABLE")
        };
        soon("a part of a file is refused", || is_refused() || failed()).await;
        serves(last).await;
        fs::write(folder.join(next.to_string()).join("model.onnx"), &file).unwrap();
        serves(next).await;
        traffic.ends.store(true, SeqCst);
        past
    };
    let (past, (), ()) = tokio::join!(
        changes,
        unary(&server, traffic.clone()),
        streamed(&server, traffic.clone())
    );
    for client in clients {
        client.await.unwrap();
    }
    let sent = traffic.adding.sent.load(SeqCst);
    assert_eq!(sent, traffic.adding.answered.load(SeqCst), "none is lost");
    let is_gone = || past.iter().all(|served| served.strong_count() == 0);
    soon("what was replaced goes with its last request", is_gone).await;
    assert_eq!(server.state.in_flight(), 0);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn a_load_that_fails_leaves_all_versions_that_were_served() {
    let mut server = start(|o| {
        let all = format!("version_policy {{ all {{ }} }} {CONFIG}");
        fs::write(o.models.join("add/config.pbtxt"), all).unwrap();
        o.control = Control::Explicit(vec!["add".into()]);
    })
    .await;
    let repository = &server.state.repository;
    let at = server.http();
    let load = async || call(at, "POST", "/v2/repository/models/add/load", "").await;
    let before = repository.get("add", "1").unwrap();
    let file = fs::read(server.models.path().join("add/1/model.onnx")).unwrap();
    deploy(&server, 2, &file);
    deploy(&server, 3, &file[..file.len() / 2]);
    let (status, text) = load().await;
    assert_eq!(status, 400, "{text}");
    // The first one is as it was, and the second, which could be loaded, is not there alone.
    assert_eq!(repository.versions("add"), [1]);
    assert!(Arc::ptr_eq(&before, &repository.get("add", "1").unwrap()));
    let index = repository.index(false).into_iter();
    let reasons: Vec<_> = index.map(|i| (i.version, i.reason)).collect();
    assert_eq!(reasons[1].0, "2", "{reasons:?}");
    assert_eq!(reasons[1].1, "another version could not be loaded with it");
    assert!(reasons[2].1.contains("model.onnx"), "{reasons:?}");
    fs::write(server.models.path().join("add/3/model.onnx"), &file).unwrap();
    let (status, text) = load().await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(repository.versions("add"), [1, 2, 3]);
    let (status, text) = call(at, "POST", INFER, &add(7)).await;
    assert!(
        status == 200 && text.contains(r#""model_version":"3""#),
        "{text}"
    );
    drop(before);
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn polling_lists_a_model_whose_configuration_cannot_be_read() {
    let mut server = start(|o| {
        o.control = Control::Poll;
        // It is told to look, below.
        o.poll_every = Duration::from_secs(3600);
    })
    .await;
    let repository = &server.state.repository;
    let folder = server.models.path().join("broken");
    fs::create_dir_all(folder.join("1")).unwrap();
    fs::write(folder.join("config.pbtxt"), "max_batch: 4").unwrap();
    repository.poll();
    let line = || {
        let index = repository.index(false).into_iter();
        index.filter(|i| i.name == "broken").collect::<Vec<_>>()
    };
    let [told] = &line()[..] else {
        panic!("expected one line, got {:?}", line());
    };
    assert_eq!((told.version.as_str(), told.state), ("", "UNAVAILABLE"));
    assert!(told.reason.contains("broken/config.pbtxt:1"), "{told:?}");
    let file = server.models.path().join("add/1/model.onnx");
    fs::copy(file, folder.join("1/model.onnx")).unwrap();
    fs::write(folder.join("config.pbtxt"), "max_batch_size: 4").unwrap();
    repository.poll();
    let [told] = &line()[..] else {
        panic!("expected one line, got {:?}", line());
    };
    assert_eq!((told.version.as_str(), told.state), ("1", "READY"));
    assert_eq!(told.reason, "");
    fs::write(folder.join("config.pbtxt"), "max_batch: 4").unwrap();
    repository.poll();
    assert_eq!(line().len(), 1, "what is served stays so");
    assert_eq!(line()[0].state, "READY");
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn a_repository_that_cannot_be_read_for_a_moment_unloads_nothing() {
    let mut server = start(|o| {
        o.control = Control::Poll;
        // It is told to look, below.
        o.poll_every = Duration::from_secs(3600);
    })
    .await;
    let repository = &server.state.repository;
    let before = repository.get("add", "").unwrap();
    let away = server.models.path().with_extension("away");
    fs::rename(server.models.path(), &away).unwrap();
    repository.poll();
    let index = repository.index(true);
    fs::rename(&away, server.models.path()).unwrap();
    assert_eq!(index.len(), 2, "{index:?}");
    // Behind that nothing has changed either, and what goes does.
    repository.poll();
    let now = repository.get("add", "").unwrap();
    assert!(Arc::ptr_eq(&before, &now), "it was loaded anew");
    fs::remove_dir_all(server.models.path().join("lstm")).unwrap();
    repository.poll();
    let left = repository.index(false);
    assert!(left.len() == 1 && left[0].name == "add", "{left:?}");
    let (status, text) = call(server.http(), "POST", INFER, &add(7)).await;
    assert!(status == 200 && is_sum(&text, 7), "{text}");
    drop((before, now));
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn what_models_that_have_gone_were_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(|o| {
        o.control = Control::Explicit(vec!["add".into()]);
        o.traces = Some(lazybatch_serve::TraceDir {
            folder: folder.path().to_owned(),
            max_bytes: 1 << 20,
        });
    })
    .await;
    let at = server.http();
    let root = server.models.path();
    let file = fs::read(root.join("add/1/model.onnx")).unwrap();
    let traces = &server.state.traces;
    let post = async |path: String, body: &str| {
        let (status, text) = call(at, "POST", &path, body).await;
        assert_eq!(status, 200, "{path}: {text}");
    };
    let of = |name: &str| {
        let index = server.state.repository.index(false).into_iter();
        let lines = index.filter(|i| i.name == name);
        lines.map(|i| (i.version, i.state)).collect::<Vec<_>>()
    };
    // One after another comes, has settings of its own, and goes with its folder.
    for i in 0..5 {
        let name = format!("passing{i}");
        fs::create_dir_all(root.join(&name).join("1")).unwrap();
        fs::write(root.join(&name).join("1/model.onnx"), &file).unwrap();
        fs::write(root.join(&name).join("config.pbtxt"), CONFIG).unwrap();
        post(format!("/v2/repository/models/{name}/load"), "").await;
        let settings = r#"{"trace_rate": "7"}"#;
        post(format!("/v2/models/{name}/trace/setting"), settings).await;
        assert_eq!(traces.settings(&name)["trace_rate"], ["7"]);
        post(format!("/v2/repository/models/{name}/unload"), "").await;
        assert_eq!(of(&name), [("1".to_owned(), "UNAVAILABLE")]);
        fs::remove_dir_all(root.join(&name)).unwrap();
    }
    // So do versions.
    for version in VERSIONS {
        deploy(&server, version, &file);
        fs::remove_dir_all(root.join("add").join((version - 1).to_string())).unwrap();
        post("/v2/repository/models/add/load".into(), "").await;
        assert_eq!(of("add"), [(version.to_string(), "READY")]);
    }
    for name in (0..5).map(|i| format!("passing{i}")) {
        assert_eq!(of(&name), [], "{name}");
    }
    post(
        "/v2/models/add/trace/setting".into(),
        r#"{"trace_rate": "9"}"#,
    )
    .await;
    assert_eq!(traces.settings("passing0")["trace_rate"], ["1000"]);
    // One that comes again is new.
    assert_eq!(traces.settings("add")["trace_rate"], ["9"]);
    server.end();
    server.ended().await;
}
