//! Spans of inference calls, as a collector of OpenTelemetry gets them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazybatch_graph::{DType, Greedy, ProgramBuilder, Repeat, folder};
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest};
use lazybatch_serve::{Control, Options, Otlp};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Request, Response, Status};

use super::common::{Running, add, call, http, is_sum, start, status, until};

const INFER: &str = "/v2/models/add/infer";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// What was sent.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector, and where it listens.
async fn collector() -> (Sink, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let sink = Sink::default();
    let service = TraceServiceServer::new(sink.clone());
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    (sink, at)
}

fn to(at: SocketAddr, sample: f64) -> impl FnOnce(&mut Options) {
    move |options| {
        options.otlp = Some(Otlp {
            endpoint: format!("http://{at}"),
            sample,
            flush: Duration::from_secs(60),
        });
    }
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(value) => value.to_string(),
        Value::IntValue(value) => value.to_string(),
        Value::DoubleValue(value) => value.to_string(),
        other => panic!("of no kind that is used: {other:?}"),
    };
    let value = |a: &KeyValue| a.value.as_ref().unwrap().value.clone().unwrap();
    let all = attributes.iter().map(|a| (a, value(a)));
    // Lists are looked at on their own.
    all.filter(|(_, value)| !matches!(value, Value::ArrayValue(_)))
        .map(|(a, value)| (a.key.clone(), text(&value)))
        .collect()
}

/// A list of whole numbers of a span.
fn numbers(span: &Span, key: &str) -> Vec<i64> {
    let found = span.attributes.iter().find(|a| a.key == key);
    let value = found.and_then(|a| a.value.clone()).and_then(|v| v.value);
    let Some(Value::ArrayValue(list)) = value else {
        panic!("{key}: no list, {value:?}")
    };
    let number = |v: &AnyValue| match v.value {
        Some(Value::IntValue(n)) => n,
        ref other => panic!("{key}: {other:?}"),
    };
    list.values.iter().map(number).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Sink {
    fn all(&self) -> Vec<Span> {
        let sent = self.0.lock().unwrap();
        let resources = sent.iter().flat_map(|one| &one.resource_spans);
        let scopes = resources.flat_map(|one| &one.scope_spans);
        scopes.flat_map(|one| one.spans.clone()).collect()
    }

    /// Spans of calls, in the order of their beginning; the server has ended.
    fn calls(&self) -> Vec<Span> {
        let mut all = self.all();
        all.retain(|span| span.kind() == SpanKind::Server);
        all.sort_by_key(|span| span.start_time_unix_nano);
        all
    }

    fn parts(&self, of: &Span) -> BTreeMap<String, Span> {
        let all = self.all().into_iter();
        let own = all.filter(|span| span.parent_span_id == of.span_id);
        own.map(|span| (span.name.clone(), span)).collect()
    }
}

fn code(span: &Span) -> StatusCode {
    span.status.as_ref().map_or(StatusCode::Unset, |s| s.code())
}

/// A request of HTTP with further headers.
fn with(headers: &str, request: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(request.to_vec()).unwrap();
    let host = "host: localhost\r\n";
    assert!(text.contains(host));
    text.replacen(host, &format!("{host}{headers}"), 1)
        .into_bytes()
}

/// A whole call, as text.
async fn exchange(at: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    status(&answer)
}

fn over_grpc(model: &str) -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![2, 16],
        ..InferInputTensor::default()
    };
    let data: Vec<u8> = [1f32; 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: model.into(),
        id: "mine".into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![data.clone().into(), data.into()],
        ..ModelInferRequest::default()
    }
}

fn child<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{PARENT}-{flags}").parse().unwrap();
    request.metadata_mut().insert("traceparent", parent);
    request
}

#[tokio::test]
async fn calls_of_both_protocols_are_spans_of_their_callers_traces() {
    let (sink, at) = collector().await;
    let server = start(to(at, 0.0)).await;
    let headers = format!(
        "traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: vendor=1\r\nuser-agent: test\r\n"
    );
    let named = add(1).replacen('{', r#"{"id":"mine","parameters":{"explain":true},"#, 1);
    let past = with(&headers, &http("POST", INFER, named.as_bytes()));
    // This one is the router's.
    let path = "/v2/models/add/versions/1/infer";
    let routed = format!("{headers}accept-encoding: gzip;q=0\r\n");
    let routed = with(&routed, &http("POST", path, add(2).as_bytes()));
    for (request, value) in [(past, 1), (routed, 2)] {
        let (status, text) = exchange(server.http(), &request).await;
        assert!(status == 200 && is_sum(&text, value), "{text}");
    }
    let mut grpc = server.grpc().await;
    grpc.model_infer(child(over_grpc("add"), "01"))
        .await
        .unwrap();
    drop(grpc);
    let state = server.state.clone();
    end(server).await;

    let calls = sink.calls();
    let names: Vec<&str> = calls.iter().map(|span| span.name.as_str()).collect();
    let method = "inference.GRPCInferenceService/ModelInfer";
    let routes = [
        "/v2/models/{model}/infer",
        "/v2/models/{model}/versions/{version}/infer",
    ];
    let posts = routes.map(|route| format!("POST {route}"));
    assert_eq!(names, [&*posts[0], &*posts[1], method]);
    for (i, span) in calls.iter().enumerate() {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(hex(&span.parent_span_id), PARENT);
        assert_eq!(code(span), StatusCode::Unset);
        assert!(span.events.is_empty());
        let told = texts(&span.attributes);
        let (protocol, samples) = match i {
            2 => (
                vec![
                    ("rpc.system.name", "grpc"),
                    ("rpc.method", method),
                    ("rpc.response.status_code", "OK"),
                    ("lazybatch.request.id", "mine"),
                ],
                "2",
            ),
            i => (
                vec![
                    ("http.request.method", "POST"),
                    ("http.route", routes[i]),
                    ("url.path", [INFER, path][i]),
                    ("url.scheme", "http"),
                    ("http.response.status_code", "200"),
                    ("user_agent.original", "test"),
                ],
                "1",
            ),
        };
        let own = [
            ("lazybatch.model.name", "add"),
            ("lazybatch.model.version", "1"),
            ("lazybatch.class", "default"),
            ("lazybatch.priority", "0"),
            ("lazybatch.outcome", "met"),
            ("lazybatch.requests", "1"),
            ("lazybatch.samples", samples),
        ];
        for (key, value) in protocol.into_iter().chain(own) {
            assert_eq!(
                told.get(key).map(String::as_str),
                Some(value),
                "{key} of {told:?}"
            );
        }
        assert!(!told.contains_key("error.type"), "{told:?}");
        assert_eq!(
            told.contains_key("lazybatch.explanation"),
            i == 0,
            "{told:?}"
        );
        // It waits and is computed within the call, one behind the other.
        let parts = sink.parts(span);
        assert_eq!(parts.len(), 2, "{parts:?}");
        let times = |s: &Span| (s.start_time_unix_nano, s.end_time_unix_nano);
        let (queue, compute) = (times(&parts["queue"]), times(&parts["compute"]));
        assert!(queue.0 <= queue.1 && queue.1 == compute.0 && compute.0 <= compute.1);
        assert!(parts.values().all(|part| part.trace_id == span.trace_id));
        let seconds = (compute.1 - compute.0) as f64 / 1e9;
        let stated: f64 = told["lazybatch.compute_seconds"].parse().unwrap();
        assert!((seconds - stated).abs() < 1e-6, "{seconds} {stated}");
    }
    assert_eq!(
        [0, 1, 2].map(|i| &*calls[i].trace_state),
        ["vendor=1", "vendor=1", ""]
    );
    // Nobody else was there; `add` is one segment a node.
    for (span, samples) in calls.iter().zip([1, 1, 2]) {
        let told = numbers(span, "lazybatch.launch.samples");
        assert!(
            !told.is_empty() && told.iter().all(|&n| n == samples),
            "{told:?}"
        );
        let texts = texts(&span.attributes);
        assert_eq!(texts["lazybatch.launches"], told.len().to_string());
        assert_eq!(texts["lazybatch.launch.mean_samples"], samples.to_string());
        assert_eq!(texts["lazybatch.joined"], "0");
        assert_eq!(texts["lazybatch.interrupted"], "0");
    }
    let counts = state.telemetry.as_ref().unwrap().counts();
    assert_eq!((counts.sent(), counts.dropped()), (9, 0));

    let sent = sink.0.lock().unwrap();
    let resource = sent[0].resource_spans[0].resource.as_ref().unwrap();
    let resource = texts(&resource.attributes);
    assert_eq!(resource["service.name"], "lazybatch");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(resource["service.instance.id"].len(), 36);
}

#[tokio::test]
async fn the_caller_decides_of_its_trace_and_the_ratio_of_the_others() {
    for (sample, alone) in [(0.0, 0), (1.0, 1)] {
        let (sink, at) = collector().await;
        let server = start(to(at, sample)).await;
        let body = http("POST", INFER, add(1).as_bytes());
        let mut grpc = server.grpc().await;
        for flags in ["00", "01"] {
            let header = format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n");
            assert_eq!(exchange(server.http(), &with(&header, &body)).await.0, 200);
            grpc.model_infer(child(over_grpc("add"), flags))
                .await
                .unwrap();
        }
        // Neither is one: such a call is the first of a trace.
        let wrong = with("traceparent: 00-none-of-this\r\n", &body);
        for request in [body, wrong] {
            assert_eq!(exchange(server.http(), &request).await.0, 200);
        }
        grpc.model_infer(over_grpc("add")).await.unwrap();
        drop(grpc);
        end(server).await;
        let calls = sink.calls();
        let (children, first): (Vec<_>, Vec<_>) =
            calls.iter().partition(|span| hex(&span.trace_id) == TRACE);
        assert_eq!((children.len(), first.len()), (2, 3 * alone));
        assert!(
            first.iter().all(|span| span.parent_span_id.is_empty()),
            "{first:?}"
        );
    }
}

#[tokio::test]
async fn errors_are_told_and_those_of_the_server_are_its_spans_status() {
    let (sink, at) = collector().await;
    let mut server = start(to(at, 1.0)).await;
    let http_at = server.http();
    assert_eq!(
        call(http_at, "POST", "/v2/models/none/infer", "{}").await.0,
        404
    );
    assert_eq!(call(http_at, "POST", INFER, "{").await.0, 400);
    server.gate.fail();
    let long = "n".repeat(500);
    let named = add(1).replacen('{', &format!(r#"{{"id":"{long}","#), 1);
    assert_eq!(call(http_at, "POST", INFER, &named).await.0, 500);
    let mut grpc = server.grpc().await;
    let refused = grpc.model_infer(over_grpc("none")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    server.gate.fail();
    let failed = grpc.model_infer(over_grpc("add")).await.unwrap_err();
    assert_eq!(failed.code(), tonic::Code::Internal);
    // Its client leaves one in the middle, and what comes when the server ends is refused.
    server.gate.shut();
    let mut leaves = TcpStream::connect(http_at).await.unwrap();
    let request = http("POST", INFER, add(2).as_bytes());
    leaves.write_all(&request).await.unwrap();
    until(|| server.state.in_flight() == 1).await;
    drop(leaves);
    until(|| server.state.in_flight() == 0).await;
    let stays = tokio::spawn(async move { call(http_at, "POST", INFER, &add(3)).await });
    until(|| server.state.in_flight() == 1).await;
    server.end();
    until(|| !server.state.is_ready()).await;
    assert_eq!(call(http_at, "POST", INFER, &add(4)).await.0, 503);
    server.gate.open();
    assert_eq!(stays.await.unwrap().0, 200);
    drop(grpc);
    server.ended().await;

    let calls = sink.calls();
    let told: Vec<_> = calls.iter().map(|span| texts(&span.attributes)).collect();
    let get = |key: &str| -> Vec<&str> {
        let all = told.iter();
        all.map(|t| t.get(key).map_or("", String::as_str)).collect()
    };
    let status = ["404", "400", "500", "", "", "", "200", "503"];
    assert_eq!(get("http.response.status_code"), status);
    let status = ["", "", "", "NOT_FOUND", "INTERNAL", "", "", ""];
    assert_eq!(get("rpc.response.status_code"), status);
    let kinds = [
        "404",
        "400",
        "500",
        "NOT_FOUND",
        "INTERNAL",
        "cancelled",
        "",
        "503",
    ];
    assert_eq!(get("error.type"), kinds);
    let outcomes = ["", "", "failed", "", "failed", "cancelled", "met", "shed"];
    assert_eq!(get("lazybatch.outcome"), outcomes);
    let (unset, error) = (StatusCode::Unset, StatusCode::Error);
    let codes: Vec<_> = calls.iter().map(code).collect();
    assert_eq!(
        codes,
        [unset, unset, error, unset, error, unset, unset, error]
    );
    let message = &calls[4].status.as_ref().unwrap().message;
    assert!(message.contains("it was told to"), "{message}");
    assert_eq!(told[4]["error.message"], *message);
    assert!(told[0]["error.message"].contains("none"), "{:?}", told[0]);
    assert_eq!(told[2]["lazybatch.request.id"], long[..128]);
    assert!(sink.parts(&calls[2]).is_empty(), "it did not run");
}

/// Sets up a model that reads text and writes eight letters, for it has no word for its stop token.
fn speaker(server: &Running) {
    let mut b = ProgramBuilder::new("speaker").with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    let greedy = Greedy::new(&mut b, 1, 25);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: 8 });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 7, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 7, None);
    greedy.choose(&mut b, v);
    let model = server.models.path().join("speaker");
    fs::create_dir_all(&model).unwrap();
    folder::save(&b.finish().unwrap(), &model.join("1")).unwrap();
}

/// Events of a stream of HTTP.
fn events(answer: &str) -> Vec<Json> {
    let datas = answer.split("data: ").skip(1);
    let texts = datas.map(|rest| rest.split_once("\n\n").unwrap().0);
    texts
        .map(|text| serde_json::from_str(text).unwrap())
        .collect()
}

#[tokio::test]
async fn streams_are_one_span_with_an_event_and_tell_why_at_their_end() {
    let (sink, at) = collector().await;
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        to(at, 1.0)(o);
    });
    let server = server.await;
    let http_at = server.http();
    speaker(&server);
    let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
    fs::write(server.models.path().join("add/config.pbtxt"), config).unwrap();
    for model in ["speaker", "add"] {
        let path = format!("/v2/repository/models/{model}/load");
        let (status, text) = call(http_at, "POST", &path, "").await;
        assert_eq!(status, 200, "{text}");
    }
    let path = "/v2/models/speaker/generate";
    let plain = r#"{"text_input":"abc","id":"mine"}"#;
    let asks = r#"{"text_input":"abc","id":"mine","explain":true}"#;
    let (status, whole) = call(http_at, "POST", path, asks).await;
    assert_eq!(status, 200, "{whole}");
    let whole: Json = serde_json::from_str(whole.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert!(
        whole["lazybatch_explanation"]
            .as_str()
            .unwrap()
            .ends_with("; met")
    );
    let path = format!("{path}_stream");
    for (body, is_told) in [(plain, false), (asks, true)] {
        let (status, text) = call(http_at, "POST", &path, body).await;
        assert_eq!(status, 200, "{text}");
        let events = events(&text);
        assert!(events.len() > 2, "{text}");
        let pieces = events.iter().map(|e| e["text_output"].as_str().unwrap());
        assert_eq!(pieces.collect::<String>(), whole["text_output"], "{text}");
        let (last, others) = events.split_last().unwrap();
        assert!(others.iter().all(|e| e["lazybatch_explanation"].is_null()));
        match &last["lazybatch_explanation"] {
            Json::String(why) => assert!(is_told && why.ends_with("; met"), "{text}"),
            none => assert!(!is_told && none.is_null(), "{text}"),
        }
    }
    assert_eq!(call(http_at, "POST", &path, "{").await.0, 400);
    server.gate.fail();
    let (status, text) = call(http_at, "POST", &path, plain).await;
    assert!(status == 500 && text.contains("it was told to"), "{text}");
    let mut grpc = server.grpc().await;
    let one = ModelInferRequest {
        inputs: over_grpc("add")
            .inputs
            .into_iter()
            .map(|i| InferInputTensor {
                shape: vec![1, 16],
                ..i
            })
            .collect(),
        raw_input_contents: vec![vec![0; 64].into(), vec![0; 64].into()],
        parameters: [(
            "triton_enable_empty_final_response".to_owned(),
            InferParameter {
                parameter_choice: Some(ParameterChoice::BoolParam(true)),
            },
        )]
        .into(),
        ..over_grpc("add")
    };
    let asked = futures_util::stream::iter([one, over_grpc("none")]);
    let mut answers = grpc
        .model_stream_infer(child(asked, "01"))
        .await
        .unwrap()
        .into_inner();
    while answers.message().await.unwrap().is_some() {}
    drop((grpc, answers));
    end(server).await;

    let calls = sink.calls();
    let names: Vec<&str> = calls.iter().map(|span| span.name.as_str()).collect();
    let generate = "POST /v2/models/{model}/generate";
    let stream = "POST /v2/models/{model}/generate_stream";
    let method = "inference.GRPCInferenceService/ModelStreamInfer";
    assert_eq!(
        names,
        [generate, stream, stream, stream, stream, method, method]
    );
    let told: Vec<_> = calls.iter().map(|span| texts(&span.attributes)).collect();
    for (i, span) in calls.iter().enumerate() {
        let events: Vec<&str> = span.events.iter().map(|e| e.name.as_str()).collect();
        let streams =
            [1, 2].contains(&i) || told[i].get("rpc.response.status_code") == Some(&"OK".into());
        let want: &[&str] = if streams {
            &["lazybatch.first_response"]
        } else {
            &[]
        };
        assert_eq!(events, want, "{i}");
        if streams {
            let time = span.events[0].time_unix_nano;
            assert!(time >= span.start_time_unix_nano && time <= span.end_time_unix_nano);
            assert_eq!(told[i]["lazybatch.outcome"], "met");
            assert_eq!(sink.parts(span).len(), 2);
        }
    }
    assert_eq!(told[3]["http.response.status_code"], "400");
    assert_eq!(told[4]["http.response.status_code"], "500");
    assert_eq!(
        (&*told[4]["error.type"], code(&calls[4])),
        ("500", StatusCode::Error)
    );
    let mut codes = [5, 6].map(|i| &*told[i]["rpc.response.status_code"]);
    codes.sort_unstable();
    assert_eq!(codes, ["NOT_FOUND", "OK"]);
    for span in &calls[5..] {
        assert_eq!(
            (hex(&span.trace_id), hex(&span.parent_span_id)),
            (TRACE.into(), PARENT.into())
        );
    }
}

#[tokio::test]
async fn a_collector_that_takes_nothing_holds_nobody_up() {
    // One accepts and never says a word, the other is not there.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let places = [silent.local_addr().unwrap(), gone.local_addr().unwrap()];
    drop(gone);
    for at in places {
        let server = start(|o| {
            to(at, 1.0)(o);
            o.otlp.as_mut().unwrap().flush = Duration::from_millis(200);
        });
        let server = server.await;
        let (status, text) = call(server.metrics(), "GET", "/metrics", "").await;
        assert!(
            status == 200 && text.contains("lazybatch_spans_dropped_total 0"),
            "{text}"
        );
        for value in 1..=20 {
            let (status, text) = call(server.http(), "POST", INFER, &add(value)).await;
            assert!(status == 200 && is_sum(&text, value), "{text}");
        }
        let state = server.state.clone();
        end(server).await;
        let counts = state.telemetry.as_ref().unwrap().counts();
        assert_eq!((counts.sent(), counts.dropped()), (0, 60));
    }
}

#[tokio::test]
async fn without_a_collector_there_are_no_spans_and_no_figures_of_them() {
    let server = start(|_| {}).await;
    assert!(server.state.telemetry.is_none());
    let header = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    let request = with(&header, &http("POST", INFER, add(1).as_bytes()));
    assert_eq!(exchange(server.http(), &request).await.0, 200);
    let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
    assert!(
        text.contains("lazybatch_waiting") && !text.contains("lazybatch_spans"),
        "{text}"
    );
    end(server).await;
}

#[tokio::test]
async fn answers_from_the_cache_say_so_and_have_no_parts() {
    let (sink, at) = collector().await;
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        to(at, 1.0)(o);
    });
    let server = server.await;
    let config = "max_batch_size: 4 response_cache { enable: true }";
    fs::write(server.models.path().join("add/config.pbtxt"), config).unwrap();
    let load = "/v2/repository/models/add/load";
    assert_eq!(call(server.http(), "POST", load, "").await.0, 200);
    for _ in 0..2 {
        let (status, text) = call(server.http(), "POST", INFER, &add(9)).await;
        assert!(status == 200 && is_sum(&text, 9), "{text}");
    }
    end(server).await;
    let calls = sink.calls();
    let hits = calls.iter().map(|span| {
        let hit = texts(&span.attributes).contains_key("lazybatch.cache_hit");
        (hit, sink.parts(span).len())
    });
    assert_eq!(hits.collect::<Vec<_>>(), [(false, 2), (true, 0)]);
}

/// Log lines.
#[derive(Clone, Default)]
pub struct Lines(pub Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_request_that_the_server_fails_is_logged_with_its_id_and_trace() {
    let (_sink, at) = collector().await;
    let server = start(to(at, 1.0)).await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing::Level::ERROR)
        .with_writer(move || writer.clone())
        .finish();
    // All of this server runs on this thread, but its engine.
    let logs = tracing::subscriber::set_default(subscriber);
    server.gate.fail();
    let named = add(1).replacen('{', r#"{"id":"mine\n","#, 1);
    let header = format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n");
    let request = with(&header, &http("POST", INFER, named.as_bytes()));
    assert_eq!(exchange(server.http(), &request).await.0, 500);
    assert_eq!(call(server.http(), "POST", INFER, "{").await.0, 400);
    drop(logs);
    end(server).await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let all: Vec<Json> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let failed: Vec<_> = all
        .iter()
        .filter(|l| l["message"] == "request failed")
        .collect();
    assert_eq!(failed.len(), 1, "{text}");
    assert_eq!(
        (&failed[0]["request_id"], &failed[0]["trace_id"]),
        (&"mine\n".into(), &TRACE.into())
    );
    assert_eq!(
        (&failed[0]["model"], &failed[0]["version"]),
        (&"add".into(), &1.into())
    );
    assert!(
        failed[0]["error"]
            .as_str()
            .unwrap()
            .contains("it was told to"),
        "{text}"
    );
}

#[tokio::test]
async fn an_endpoint_that_is_none_ends_the_start() {
    for (endpoint, sample, told) in [
        (
            "https://collector:4317",
            1.0,
            "got 'https://collector:4317'",
        ),
        ("http://collector:4317", 1.5, "expected 0 to 1, got 1.5"),
    ] {
        let otlp = Otlp {
            endpoint: endpoint.into(),
            sample,
            flush: Duration::from_secs(1),
        };
        let opened = lazybatch_serve::telemetry::Telemetry::open(&otlp, false);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(told), "{error}");
    }
}
