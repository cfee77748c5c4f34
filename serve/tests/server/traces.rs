//! Traces of inference calls in files, and their settings.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::trace_setting_request::SettingValue;
use lazybatch_serve::proto::{ModelInferRequest, TraceSettingRequest};
use lazybatch_serve::{Options, TraceDir};
use serde_json::{Value as Json, json};

use super::common::{Running, add, call, is_sum, start};

const INFER: &str = "/v2/models/add/infer";
const GLOBAL: &str = "/v2/trace/setting";
const OWN: &str = "/v2/models/add/trace/setting";

fn into(folder: &Path, max_bytes: u64) -> impl FnOnce(&mut Options) {
    move |options| {
        options.traces = Some(TraceDir {
            folder: folder.to_owned(),
            max_bytes,
        });
    }
}

/// Changes settings, or only looks if `body` is empty: what they are then.
async fn set(server: &Running, path: &str, body: &Json) -> Json {
    let (status, text) = call(server.http(), "POST", path, &body.to_string()).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

async fn ask(server: &Running, value: u8) {
    let named = add(value).replacen('{', &format!(r#"{{"id":"n{value}","#), 1);
    let (status, text) = call(server.http(), "POST", INFER, &named).await;
    assert!(status == 200 && is_sum(&text, value), "{text}");
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// Names of the files of a folder.
fn files(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir(folder).unwrap();
    let mut all: Vec<_> = all
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

/// A trace of a file: its head, its times by name, and its tensors by activity and name.
#[derive(Default)]
struct Told {
    head: Json,
    times: BTreeMap<String, u64>,
    tensors: BTreeMap<(String, String), Json>,
}

/// Traces of a file by id.
fn told(file: &Path) -> BTreeMap<u64, Told> {
    let all: Vec<Json> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut traces = BTreeMap::<u64, Told>::new();
    for member in all {
        let trace = traces.entry(member["id"].as_u64().unwrap()).or_default();
        let text = |json: &Json| json.as_str().unwrap().to_owned();
        if let Some(times) = member["timestamps"].as_array() {
            for time in times {
                let ns = time["ns"].as_u64().unwrap();
                assert!(trace.times.insert(text(&time["name"]), ns).is_none());
            }
        } else if let Some(activity) = member.get("activity") {
            let tensor = member["tensor"].clone();
            let key = (text(activity), text(&tensor["name"]));
            trace.tensors.insert(key, tensor);
        } else {
            trace.head = member;
        }
    }
    traces
}

/// Names of times in the order in which they come.
fn passes(reads: &str, sends: &str) -> [String; 11] {
    let names = [
        &format!("{reads}_START"),
        &format!("{reads}_END"),
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
        &format!("{sends}_START"),
        &format!("{sends}_END"),
    ];
    names.map(str::to_owned)
}

fn over_grpc() -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![1, 16],
        ..InferInputTensor::default()
    };
    let data: Vec<u8> = [1f32; 16].iter().flat_map(|v| v.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![data.clone().into(), data.into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn calls_of_both_protocols_are_traced_with_times_and_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 1 << 20)).await;
    ask(&server, 1).await;
    let on = json!({"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1"});
    let told_on = set(&server, GLOBAL, &on).await;
    assert_eq!(told_on["trace_level"], on["trace_level"]);
    assert_eq!(told_on["trace_file"], "trace.json");
    ask(&server, 2).await;
    let mut grpc = server.grpc().await;
    grpc.model_infer(over_grpc()).await.unwrap();
    drop(grpc);
    // A request that cannot be read is nobody's.
    assert_eq!(call(server.http(), "POST", INFER, "{").await.0, 400);
    let state = server.state.clone();
    end(server).await;
    let counts = state.traces.counts().unwrap();
    assert_eq!((counts.written(), counts.dropped()), (2, 0));

    assert_eq!(files(folder.path()), ["trace.json"]);
    let traces = told(&folder.path().join("trace.json"));
    assert_eq!(traces.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let head = json!({"id": 1, "model_name": "add", "model_version": 1, "request_id": "n2"});
    assert_eq!(traces[&1].head, head);
    assert_eq!(traces[&2].head.get("request_id"), None);
    let protocols = [("HTTP_RECV", "HTTP_SEND"), ("GRPC_WAITREAD", "GRPC_SEND")];
    for (trace, (reads, sends)) in traces.values().zip(protocols) {
        let names = passes(reads, sends);
        let times = names.each_ref().map(|name| trace.times[name]);
        assert!(times.is_sorted(), "{:?}", trace.times);
        // One more is when the answer came.
        assert_eq!(trace.times.len(), names.len() + 1, "{:?}", trace.times);
        assert!(trace.times["INFER_RESPONSE_COMPLETE"] >= trace.times["COMPUTE_OUTPUT_START"]);
        assert_eq!(trace.tensors.len(), 4, "{:?}", trace.tensors.keys());
    }
    let tensor = |activity: &str, name: &str| {
        let key = (activity.to_owned(), name.to_owned());
        traces[&1].tensors[&key].clone()
    };
    let all = |value: u8| vec![value.to_string(); 16].join(",");
    let given = json!({"name": "INPUT0", "data": all(2), "shape": "1,16", "dtype": "FP32"});
    assert_eq!(tensor("TENSOR_QUEUE_INPUT", "INPUT0"), given);
    assert_eq!(tensor("TENSOR_BACKEND_OUTPUT", "OUTPUT0")["data"], all(3));
}

#[tokio::test]
async fn one_of_so_many_calls_is_traced_until_enough_were() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 1 << 20)).await;
    let own = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3",
        "log_frequency": "2", "trace_file": "own.json"});
    set(&server, OWN, &own).await;
    for value in 1..=4 {
        ask(&server, value).await;
    }
    let left = set(&server, OWN, &json!({})).await;
    assert_eq!(left["trace_count"], "1", "two of three were made");
    for value in 5..=9 {
        ask(&server, value).await;
    }
    assert_eq!(
        set(&server, GLOBAL, &json!({})).await["trace_level"][0],
        "OFF"
    );
    // Used up, they have a file of their own although all go to one.
    let few = json!({"trace_rate": "1", "trace_count": "1", "log_frequency": null,
        "trace_file": "few.json"});
    set(&server, OWN, &few).await;
    for value in [10, 11] {
        ask(&server, value).await;
    }
    end(server).await;
    let written = ["few.json.0", "own.json.0", "own.json.1"];
    assert_eq!(files(folder.path()), written);
    let ids = |file: &str| -> Vec<String> {
        let traces = told(&folder.path().join(file)).into_values();
        traces
            .map(|t| t.head["request_id"].as_str().unwrap().into())
            .collect()
    };
    assert_eq!(ids("own.json.0"), ["n2", "n4"]);
    assert_eq!(ids("own.json.1"), ["n6"]);
}

#[tokio::test]
async fn a_model_has_what_it_does_not_state_from_all() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 1 << 20)).await;
    set(&server, OWN, &json!({"trace_rate": "7"})).await;
    set(
        &server,
        GLOBAL,
        &json!({"trace_rate": "1", "trace_level": ["TIMESTAMPS"]}),
    )
    .await;
    let now = set(&server, OWN, &json!({})).await;
    assert_eq!(
        (&now["trace_rate"], &now["trace_level"][0]),
        (&json!("7"), &json!("TIMESTAMPS"))
    );
    ask(&server, 1).await;
    // Taken back, it is traced as all are.
    let now = set(&server, OWN, &json!({"trace_rate": null})).await;
    assert_eq!(now["trace_rate"], "1");
    ask(&server, 2).await;
    // Switched off, those that there are get written, and written on behind them.
    set(&server, GLOBAL, &json!({"trace_level": ["OFF"]})).await;
    ask(&server, 3).await;
    set(&server, GLOBAL, &json!({"trace_level": ["TIMESTAMPS"]})).await;
    ask(&server, 4).await;
    end(server).await;
    let traces = told(&folder.path().join("trace.json"));
    let ids: Vec<_> = traces
        .values()
        .map(|t| t.head["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["n2", "n4"]);
}

#[tokio::test]
async fn a_count_that_is_used_up_stays_so_until_it_is_stated_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 1 << 20)).await;
    let on = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"});
    set(&server, GLOBAL, &on).await;
    // The count is that of all models, and counted for this one.
    set(&server, OWN, &json!({"trace_file": "own.json"})).await;
    ask(&server, 1).await;
    set(&server, GLOBAL, &json!({"trace_rate": "2"})).await;
    let now = set(&server, OWN, &json!({})).await;
    assert_eq!(
        (&now["trace_rate"], &now["trace_count"]),
        (&json!("2"), &json!("0"))
    );
    set(&server, GLOBAL, &json!({"trace_count": "3"})).await;
    assert_eq!(set(&server, OWN, &json!({})).await["trace_count"], "3");
    end(server).await;
    assert_eq!(files(folder.path()), ["own.json.0"]);
}

#[tokio::test]
async fn settings_over_grpc_are_those_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 1 << 20)).await;
    let mut grpc = server.grpc().await;
    let request = |model: &str, settings: &[(&str, &[&str])]| {
        let settings = settings.iter().map(|(key, values)| {
            let value = values.iter().map(|&v| v.to_owned()).collect();
            ((*key).to_owned(), SettingValue { value })
        });
        TraceSettingRequest {
            model_name: model.into(),
            settings: settings.collect::<HashMap<_, _>>(),
        }
    };
    let asked = request(
        "lstm",
        &[("trace_rate", &["3"]), ("trace_level", &["TENSORS"])],
    );
    let told = grpc.trace_setting(asked).await.unwrap().into_inner();
    assert_eq!(told.settings["trace_level"].value, ["TENSORS"]);
    let of_all = grpc
        .trace_setting(request("", &[]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(of_all.settings["trace_rate"].value, ["1000"]);
    let over_http = set(&server, "/v2/models/lstm/trace/setting", &json!({})).await;
    assert_eq!(over_http["trace_rate"], "3");
    let refused = |code| move |e: tonic::Status| assert_eq!(e.code(), code, "{e}");
    let unknown = grpc.trace_setting(request("none", &[])).await;
    unknown
        .map(drop)
        .map_err(refused(tonic::Code::NotFound))
        .unwrap_err();
    let escapes = request("", &[("trace_file", &["../x"])]);
    let escapes = grpc.trace_setting(escapes).await;
    escapes
        .map(drop)
        .map_err(refused(tonic::Code::InvalidArgument))
        .unwrap_err();
    // All changes are made, or none.
    let half = json!({"trace_rate": "9", "trace_count": "many"}).to_string();
    let (status, text) = call(server.http(), "POST", GLOBAL, &half).await;
    assert!(status == 400 && text.contains("trace_count"), "{text}");
    assert_eq!(set(&server, GLOBAL, &json!({})).await["trace_rate"], "1000");
    let (status, text) = call(server.http(), "GET", "/v2/models/none/trace/setting", "").await;
    assert_eq!(status, 404, "{text}");
    drop(grpc);
    end(server).await;
    assert!(files(folder.path()).is_empty());
}

#[tokio::test]
async fn what_a_run_writes_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(into(folder.path(), 2000)).await;
    let on = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"});
    set(&server, GLOBAL, &on).await;
    for value in 1..=5 {
        ask(&server, value).await;
    }
    let metrics = server.metrics();
    let state = server.state.clone();
    let (_, text) = call(metrics, "GET", "/metrics", "").await;
    assert!(text.contains("lazybatch_traces_written_total "), "{text}");
    end(server).await;
    let counts = state.traces.counts().unwrap();
    assert_eq!(counts.written() + counts.dropped(), 5);
    assert!(counts.dropped() > 0);
    let written = files(folder.path());
    assert_eq!(written.len() as u64, counts.written());
    let size = |file: &String| folder.path().join(file).metadata().unwrap().len();
    let bytes: u64 = written.iter().map(size).sum();
    assert!(bytes > 0 && bytes <= 2000, "{bytes}");
}

#[tokio::test]
async fn without_a_folder_nothing_can_be_traced() {
    let server = start(|_| {}).await;
    let at = server.http();
    for (body, status) in [
        (json!({"trace_level": ["TIMESTAMPS"]}), 501),
        (json!({"trace_file": "x"}), 501),
        (json!({"trace_level": ["OFF"], "trace_rate": "1000"}), 200),
        (json!({"trace_level": null}), 200),
        (json!({"trace_colour": "1"}), 400),
    ] {
        let (got, text) = call(at, "POST", GLOBAL, &body.to_string()).await;
        assert_eq!(got, status, "{body}: {text}");
    }
    assert!(server.state.traces.counts().is_none());
    end(server).await;
}
