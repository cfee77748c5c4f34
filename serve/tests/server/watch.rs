//! What a server tells of itself: metrics, explanations, traces, and what the dashboard is made of.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use lazybatch_serve::Control;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest};
use lazybatch_serve::watch::MOST_VIEWERS;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::common::{Running, add, call, is_sum, start, until};

const INFER: &str = "/v2/models/add/infer";

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

fn json(answer: &str) -> Json {
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(body).unwrap()
}

/// All series of `/metrics` by name and labels. Every name has its help and kind before it.
async fn metrics(server: &Running) -> BTreeMap<String, f64> {
    let (status, text) = call(server.at.metrics.unwrap(), "GET", "/metrics", "").await;
    assert_eq!(status, 200, "{text}");
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let (mut series, mut known) = (BTreeMap::new(), Vec::new());
    for line in body.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            known.push(declared.split_once(' ').unwrap().0.to_owned());
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let plain = name.split('{').next().unwrap();
            let ours = |k: &String| {
                ["", "_bucket", "_sum", "_count"]
                    .iter()
                    .any(|s| plain == format!("{k}{s}"))
            };
            assert!(known.iter().any(ours), "{line}");
            assert_eq!(
                series.insert(name.to_owned(), value.parse().unwrap()),
                None,
                "{line}"
            );
        }
    }
    series
}

/// Buckets of a histogram in order of their bounds; they never fall, and the last one holds all.
fn buckets(series: &BTreeMap<String, f64>, name: &str, labels: &str) -> Vec<f64> {
    let start = format!("{name}_bucket{{{labels},le=\"");
    let own = series.iter().filter_map(|(k, v)| {
        let bound = k.strip_prefix(&start)?.strip_suffix("\"}")?;
        Some((bound.parse::<f64>().unwrap(), *v))
    });
    let mut own: Vec<_> = own.collect();
    own.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(own.is_sorted_by(|a, b| a.1 <= b.1), "{own:?}");
    assert_eq!(own.last().unwrap().0, f64::INFINITY);
    assert_eq!(
        own.last().unwrap().1,
        series[&format!("{name}_count{{{labels}}}")]
    );
    own.into_iter().map(|(_, v)| v).collect()
}

#[tokio::test]
async fn the_rule_that_decides_is_told_and_since_when() {
    let server = start(|o| o.policy = "adaptive".into()).await;
    let told = metrics(&server).await;
    let of = |name: &str| told[&format!(r#"{name}{{engine="shared"}}"#)];
    let held =
        |k: &&String| k.starts_with(r#"lazybatch_rule_seconds_total{engine="shared",rule=""#);
    let num_rules = told.keys().filter(held).count() as f64;
    assert!(num_rules >= 1.0 && num_rules <= of("lazybatch_rule_changes_total") + 1.0);
    assert!(of("lazybatch_plans_total") >= 0.0);
    end(server).await;
}

#[tokio::test]
async fn metrics_count_what_happened_and_begin_anew_with_a_load() {
    let server = start(|o| o.control = Control::Explicit(vec!["add".into()])).await;
    let at = server.http();
    for value in 1..=3 {
        assert!(is_sum(&call(at, "POST", INFER, &add(value)).await.1, value));
    }
    let served = server.state.repository.get("add", "").unwrap();
    until(|| served.engine().unwrap().figures().counters.finished == 3).await;
    drop(served);
    let labels = r#"model="add",version="1""#;
    let told = metrics(&server).await;
    let of = |name: &str| told[&format!("{name}{{{labels}}}")];
    assert_eq!(
        of("lazybatch_node_batch_count"),
        of("lazybatch_node_launches_total")
    );
    assert_eq!(
        of("lazybatch_node_batch_sum"),
        of("lazybatch_node_samples_total")
    );
    let batches = buckets(&told, "lazybatch_node_batch", labels);
    assert!(
        batches[0] > 0.0 && batches.iter().all(|&n| n == batches[0]),
        "one each"
    );
    let by_class = r#"model="add",version="1",class="default""#;
    let latencies = buckets(&told, "lazybatch_request_latency_seconds", by_class);
    assert_eq!(latencies.last(), Some(&3.0));
    let sum = told[&format!("lazybatch_request_latency_seconds_sum{{{by_class}}}")];
    assert!(sum * 1e6 >= of("nv_inference_request_duration_us"), "{sum}");
    assert_eq!(of("lazybatch_waiting") + of("lazybatch_in_flight"), 0.0);
    assert_eq!(of("lazybatch_queue_age_seconds"), 0.0);
    buckets(&told, "lazybatch_decision_seconds", r#"engine="shared""#);
    assert!(
        !told
            .keys()
            .any(|k| k.starts_with("nv_inference_first_response")),
        "not decoupled"
    );
    assert!(
        !told.keys().any(|k| k.starts_with("nv_gpu")),
        "there is none"
    );
    let of_rules = ["lazybatch_plans", "lazybatch_rule"];
    let has_rules = |k: &String| of_rules.iter().any(|of| k.starts_with(of));
    assert!(!told.keys().any(has_rules), "it has one");
    if cfg!(target_os = "linux") {
        let (total, used) = (
            told["nv_cpu_memory_total_bytes"],
            told["nv_cpu_memory_used_bytes"],
        );
        let own = told["lazybatch_process_resident_bytes"];
        assert!(
            own > 1e6 && used > own && total > used,
            "{own} {used} {total}"
        );
    }
    assert_eq!(
        call(at, "POST", "/v2/repository/models/add/load", "")
            .await
            .0,
        200
    );
    let told = metrics(&server).await;
    assert_eq!(
        told[&format!("lazybatch_node_batch_count{{{labels}}}")],
        0.0
    );
    assert!(!told.contains_key(&format!(
        "lazybatch_request_latency_seconds_count{{{by_class}}}"
    )));
    end(server).await;
}

/// A request to `lstm` of so many steps, with parameters.
fn over_steps(steps: usize, parameters: Json) -> String {
    let x = vec![0.5; steps * 16];
    let input =
        serde_json::json!({"name": "x", "datatype": "FP32", "shape": [1, steps, 16], "data": x});
    serde_json::json!({"inputs": [input], "parameters": parameters}).to_string()
}

#[tokio::test]
async fn metrics_tell_merges_preemptions_and_what_became_of_each_class() {
    let server = start(|o| o.policy = "balance:0/round".into()).await;
    let at = server.http();
    let call_lstm = move |steps, parameters| {
        let body = over_steps(steps, parameters);
        tokio::spawn(async move { call(at, "POST", "/v2/models/lstm/infer", &body).await })
    };
    server.gate.shut();
    let long = call_lstm(50, serde_json::json!({}));
    until(|| server.gate.holding() == 1).await;
    // It is in flight; two come, one of which is late from the start, and one that does not wait.
    let late = call_lstm(3, serde_json::json!({"sla_ms": 0.001}));
    let other = call_lstm(2, serde_json::json!({}));
    let served = server.state.repository.get("lstm", "").unwrap();
    until(|| served.engine().unwrap().figures().waiting == 2).await;
    // Another model takes turns with it.
    let sum = tokio::spawn(async move { call(at, "POST", INFER, &add(1)).await });
    let adds = server.state.repository.get("add", "").unwrap();
    until(|| adds.engine().unwrap().figures().waiting == 1).await;
    drop(adds);
    let hasty = call_lstm(4, serde_json::json!({"timeout": 1}));
    let (status, text) = hasty.await.unwrap();
    assert_eq!(status, 503, "{text}");
    server.gate.open();
    for one in [long, late, other, sum] {
        let (status, text) = one.await.unwrap();
        assert_eq!(status, 200, "{text}");
    }
    let told = metrics(&server).await;
    let of = |name: &str| told[&format!(r#"{name}{{model="lstm",version="1"}}"#)];
    let counters = served.engine().unwrap().figures().counters;
    assert!(
        counters.merges > 0 && counters.preemptions > 0,
        "{counters:?}"
    );
    assert_eq!(of("lazybatch_merges_total"), counters.merges as f64);
    assert_eq!(
        of("lazybatch_preemptions_total"),
        counters.preemptions as f64
    );
    let ended = |outcome: &str| {
        let labels = format!(r#"model="lstm",version="1",class="default",outcome="{outcome}""#);
        told.get(&format!("lazybatch_requests_total{{{labels}}}"))
            .copied()
    };
    let all = ["met", "violated", "shed", "failed"].map(ended);
    assert_eq!(all, [Some(2.0), Some(1.0), Some(1.0), None]);
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn who_waits_and_who_is_in_flight_is_told_while_a_launch_runs() {
    let server = start(|_| {}).await;
    let at = server.http();
    server.gate.shut();
    let mut calls = vec![tokio::spawn(async move {
        call(at, "POST", INFER, &add(0)).await
    })];
    until(|| server.gate.holding() == 1).await;
    for value in 1..=2 {
        calls.push(tokio::spawn(async move {
            call(at, "POST", INFER, &add(value)).await
        }));
    }
    let served = server.state.repository.get("add", "").unwrap();
    until(|| served.engine().unwrap().figures().waiting == 2).await;
    drop(served);
    let told = metrics(&server).await;
    let of = |name: &str| told[&format!(r#"{name}{{model="add",version="1"}}"#)];
    assert_eq!(
        (of("lazybatch_waiting"), of("lazybatch_in_flight")),
        (2.0, 1.0)
    );
    let before = of("lazybatch_queue_age_seconds");
    assert!(before > 0.0);
    let told = metrics(&server).await;
    let later = told[r#"lazybatch_queue_age_seconds{model="add",version="1"}"#];
    assert!(later > before, "it goes on: {before} {later}");
    server.gate.open();
    for one in calls {
        assert_eq!(one.await.unwrap().0, 200);
    }
    end(server).await;
}

#[tokio::test]
async fn a_decoupled_model_tells_when_its_first_response_came() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let at = server.http();
    let folder = server.models.path().join("add");
    let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
    fs::write(folder.join("config.pbtxt"), config).unwrap();
    assert_eq!(
        call(at, "POST", "/v2/repository/models/add/load", "")
            .await
            .0,
        200
    );
    let mut grpc = server.grpc().await;
    let asked = futures_util::stream::iter([over_grpc(1, false), over_grpc(2, true)]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let mut told = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        told.extend(answer.infer_response.unwrap().parameters.into_keys());
    }
    let why = told.iter().filter(|key| *key == "lazybatch_explanation");
    assert_eq!(
        why.count(),
        1,
        "the one that asks for it, at its end: {told:?}"
    );
    let told = metrics(&server).await;
    let labels = r#"model="add",version="1""#;
    let first = buckets(&told, "nv_inference_first_response_histogram_ms", labels);
    assert_eq!((first.len(), first.last()), (5, Some(&2.0)));
    drop((grpc, answers));
    // Bounds of its own, and latencies with theirs.
    let bounds = |family: &str, bounds: &str| {
        format!(
            "metric_control {{ metric_identifier {{ family: \"{family}\" }}
             histogram_options {{ buckets: [{bounds}] }} }}"
        )
    };
    let first = bounds(
        "nv_inference_first_response_histogram_ms",
        "0.001, 86400000",
    );
    let latency = bounds("lazybatch_request_latency_seconds", "3, 60, 3600");
    let config = format!("{config} model_metrics {{ {first} {latency} }}");
    fs::write(folder.join("config.pbtxt"), config).unwrap();
    let load = "/v2/repository/models/add/load";
    assert_eq!(call(at, "POST", load, "").await.0, 200);
    let mut grpc = server.grpc().await;
    let asked = futures_util::stream::iter([over_grpc(1, false)]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    while answers.message().await.unwrap().is_some() {}
    let told = metrics(&server).await;
    let first = buckets(&told, "nv_inference_first_response_histogram_ms", labels);
    assert_eq!(first, [0.0, 1.0, 1.0]);
    let labels = r#"model="add",version="1",class="default""#;
    let latency = buckets(&told, "lazybatch_request_latency_seconds", labels);
    assert_eq!(latency, [1.0; 4]);
    drop((grpc, answers));
    end(server).await;
}

fn over_grpc(value: u8, explain: bool) -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        ..InferInputTensor::default()
    };
    let yes = InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(true)),
    };
    // Of a stream only the answer for the end has it.
    let asks = ["explain", "triton_enable_empty_final_response"];
    let parameters = asks.map(|key| (key.to_owned(), yes.clone())).into_iter();
    let data: Vec<u8> = [f32::from(value); 16]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    ModelInferRequest {
        model_name: "add".into(),
        id: format!("request {value}"),
        parameters: parameters.filter(|_| explain).collect(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![data.clone().into(), data.into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn requests_that_ask_for_it_are_told_why_they_took_their_time() {
    let server = start(|_| {}).await;
    let at = server.http();
    let long = "n".repeat(1000);
    let asks = r#"{"id":"ID","parameters":{"explain":true},"#;
    let named = add(4).replacen('{', &asks.replace("ID", &long), 1);
    let (status, text) = call(at, "POST", INFER, &named).await;
    assert!(status == 200 && text.contains(&long), "{text}");
    let asks = add(4).replacen('{', &asks.replace("ID", "mine"), 1);
    let (status, text) = call(at, "POST", INFER, &asks).await;
    assert!(status == 200 && is_sum(&text, 4), "{text}");
    let why = json(&text)["parameters"]["lazybatch_explanation"].clone();
    let why = why.as_str().unwrap();
    assert!(
        why.contains("in its queue") && why.ends_with("; met"),
        "{why}"
    );
    let (_, text) = call(at, "POST", INFER, &add(5)).await;
    assert!(!text.contains("explanation"), "{text}");
    let mut grpc = server.grpc().await;
    let answer = grpc
        .model_infer(over_grpc(6, true))
        .await
        .unwrap()
        .into_inner();
    let told = answer.parameters["lazybatch_explanation"]
        .parameter_choice
        .clone();
    let Some(ParameterChoice::StringParam(told)) = told else {
        panic!("no text: {told:?}");
    };
    assert!(told.ends_with("; met"), "{told}");
    let (_, text) = call(at, "GET", "/lazybatch/explain?last=9", "").await;
    let last = json(&text)["explanations"].clone();
    let ids: Vec<_> = last
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["id"].clone())
        .collect();
    assert_eq!(ids, ["request 6", "mine", &long[..128]]);
    assert_eq!(
        (&last[1]["model"], &last[1]["explanation"]),
        (&"add".into(), &why.into())
    );
    let (_, text) = call(at, "GET", "/lazybatch/explain?last=1", "").await;
    assert_eq!(json(&text)["explanations"].as_array().unwrap().len(), 1);
    let wrong = add(4).replacen('{', r#"{"parameters":{"explain":7},"#, 1);
    for (method, path, body) in [
        ("POST", INFER, &wrong[..]),
        ("GET", "/lazybatch/explain?last=x", ""),
    ] {
        assert_eq!(call(at, method, path, body).await.0, 400);
    }
    drop(grpc);
    end(server).await;
}

#[tokio::test]
async fn a_trace_has_what_was_launched_while_it_was_made() {
    let server = start(|_| {}).await;
    let at = server.http();
    assert!(is_sum(&call(at, "POST", INFER, &add(1)).await.1, 1));
    let (_, engine) = server.state.repository.engines().remove(0);
    let trace = tokio::spawn(async move { call(at, "GET", "/lazybatch/trace?ms=1500", "").await });
    until(|| engine.num_watchers() == 1).await;
    let (status, text) = call(at, "GET", "/lazybatch/trace", "").await;
    assert!(status == 503 && text.contains("another trace"), "{text}");
    assert!(is_sum(&call(at, "POST", INFER, &add(2)).await.1, 2));
    let (status, text) = trace.await.unwrap();
    assert_eq!(status, 200, "{text}");
    let trace = json(&text);
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |e: &&Json| e["ph"] == "M" && e["args"]["name"] == "shared: launches";
    assert_eq!(events.iter().filter(named).count(), 1);
    let launches = events
        .iter()
        .filter(|e| e["ph"] == "X" && e["args"]["model"] == "add");
    assert!(launches.count() > 0, "{trace}");
    assert_eq!(
        events.iter().filter(|e| e["ph"] == "b").count(),
        1,
        "only the second"
    );
    assert_eq!(engine.num_watchers(), 0);
    for query in ["ms=0", "ms=10001", "ms=-1", "ms=x"] {
        let path = format!("/lazybatch/trace?{query}");
        assert_eq!(call(at, "GET", &path, "").await.0, 400, "{query}");
    }
    drop(engine);
    end(server).await;
}

/// A viewer of the dashboard's events.
struct Viewer(TcpStream, String);

impl Viewer {
    async fn new(at: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let ask = "GET /lazybatch/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.unwrap();
        Self(stream, String::new())
    }

    /// The next frame; `None` behind the last.
    async fn frame(&mut self) -> Option<Json> {
        loop {
            if let Some(from) = self.1.find("data: ")
                && let Some(end) = self.1[from..].find("\n\n")
            {
                let frame = serde_json::from_str(&self.1[from + 6..from + end]).unwrap();
                self.1.drain(..from + end);
                return Some(frame);
            }
            let mut bytes = [0; 4096];
            let num = self.0.read(&mut bytes).await.unwrap_or(0);
            if num == 0 {
                return None;
            }
            // Chunks of HTTP begin with their length on a line, and frames are chunks.
            self.1.push_str(&String::from_utf8_lossy(&bytes[..num]));
        }
    }

    async fn frame_where(&mut self, holds: impl Fn(&Json) -> bool) -> Json {
        loop {
            let frame = self.frame().await.unwrap();
            if holds(&frame) {
                return frame;
            }
        }
    }
}

#[tokio::test]
async fn viewers_see_the_batch_table_and_without_them_nothing_is_made() {
    let server = start(|_| {}).await;
    let at = server.http();
    let (_, engine) = server.state.repository.engines().remove(0);
    assert!(!server.state.hub.is_running() && engine.num_watchers() == 0);
    let mut viewer = Viewer::new(at).await;
    let idle = viewer.frame().await.unwrap();
    assert_eq!(idle["engines"][0]["table"], Json::Array(Vec::new()));
    server.gate.shut();
    let mut calls = Vec::new();
    for value in 0..2 {
        calls.push(tokio::spawn(async move {
            call(at, "POST", INFER, &add(value)).await
        }));
        until(|| server.gate.holding() == 1 && server.state.in_flight() > usize::from(value)).await;
    }
    let is_busy = |f: &Json| f["engines"][0]["table"][0]["is_running"] == true;
    let busy = viewer.frame_where(is_busy).await;
    let row = &busy["engines"][0]["table"][0];
    assert_eq!((&row["model"], &row["samples"]), (&"add".into(), &1.into()));
    assert!(row["at"].as_str().unwrap().contains('.'), "{row}");
    assert_eq!(row["members"].as_array().unwrap().len(), 1);
    let model = viewer.frame_where(|f| f["models"][0]["waiting"] == 1).await["models"][0].clone();
    assert_eq!(
        (&model["name"], &model["in_flight"]),
        (&"add".into(), &1.into())
    );
    server.gate.open();
    for one in calls {
        assert_eq!(one.await.unwrap().0, 200);
    }
    let mut slices = Vec::new();
    loop {
        let frame = viewer.frame().await.unwrap();
        slices.extend(frame["engines"][0]["slices"].as_array().unwrap().clone());
        let model = &frame["models"][0];
        if model["met"] == 2 && !slices.is_empty() {
            assert_eq!(
                (&model["answered"], &model["failed"]),
                (&2.into(), &0.into())
            );
            break;
        }
    }
    assert!(
        slices
            .iter()
            .all(|s| s["model"] == "add" && s["to"].as_f64() > s["from"].as_f64())
    );
    viewer
        .frame_where(|f| f["engines"][0]["table"][0].is_null())
        .await;
    let mut more = Vec::new();
    for _ in 1..MOST_VIEWERS {
        let mut one = Viewer::new(at).await;
        one.frame().await.unwrap();
        more.push(one);
    }
    let (status, text) = call(at, "GET", "/lazybatch/events", "").await;
    assert!(status == 503 && text.contains("its most"), "{text}");
    drop((viewer, more));
    until(|| !server.state.hub.is_running() && engine.num_watchers() == 0).await;
    drop(engine);
    end(server).await;
}

#[tokio::test]
async fn a_viewer_who_reads_nothing_holds_nobody_up() {
    let mut server = start(|o| o.header_timeout = std::time::Duration::from_millis(200)).await;
    let at = server.http();
    let _stuck = Viewer::new(at).await;
    let mut viewer = Viewer::new(at).await;
    viewer.frame().await.unwrap();
    assert!(is_sum(&call(at, "POST", INFER, &add(1)).await.1, 1));
    viewer
        .frame_where(|f| f["models"][0]["answered"] == 1)
        .await;
    server.end();
    server.ended().await;
    while viewer.frame().await.is_some() {}
}

#[tokio::test]
async fn an_engine_that_is_busy_keeps_no_other_from_telling() {
    let server = start(|o| o.control = Control::Explicit(vec!["add".into()])).await;
    let at = server.http();
    let own = r#"parameters { key: "engine" value { string_value: "own" } }"#;
    fs::write(server.models.path().join("lstm").join("config.pbtxt"), own).unwrap();
    let load = "/v2/repository/models/lstm/load";
    assert_eq!(call(at, "POST", load, "").await.0, 200);
    server.gate.shut();
    let held = tokio::spawn(async move { call(at, "POST", INFER, &add(1)).await });
    until(|| server.gate.holding() == 1).await;
    let mut viewer = Viewer::new(at).await;
    let told = |frame: &Json| {
        assert_eq!(frame["engines"][0]["name"], "shared");
        assert_eq!(frame["engines"][1]["name"], "lstm/1");
        frame["engines"][1]["at"].as_f64()
    };
    let mut looks = Vec::new();
    while looks.len() < 20 && looks.first() == looks.last() {
        looks.extend(told(&viewer.frame().await.unwrap()));
    }
    assert!(looks.first() < looks.last(), "{looks:?}");
    server.gate.open();
    assert_eq!(held.await.unwrap().0, 200);
    drop(viewer);
    end(server).await;
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let server = start(|_| {}).await;
    let at = server.http();
    for (path, kind) in [
        ("/", "text/html"),
        ("/lazybatch/page.js", "text/javascript"),
        ("/lazybatch/page.css", "text/css"),
    ] {
        let (status, text) = call(at, "GET", path, "").await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            status == 200 && head.contains(&format!("content-type: {kind}")),
            "{head}"
        );
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
        assert!(
            !body.contains("https:") && !body.contains("innerHTML"),
            "{path}"
        );
        assert!(
            !body
                .replace("http://www.w3.org/2000/svg", "")
                .contains("http:"),
            "{path}"
        );
    }
    end(server).await;
    let server = start(|o| o.dashboard = false).await;
    for path in ["/", "/lazybatch/page.js", "/lazybatch/events"] {
        assert_eq!(call(server.http(), "GET", path, "").await.0, 404, "{path}");
    }
    end(server).await;
}
