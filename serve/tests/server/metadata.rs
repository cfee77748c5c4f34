//! What a server says of itself and its models is what it does.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;

use lazybatch_serve::proto::{ModelStatisticsRequest, ServerMetadataRequest, StatisticDuration};
use lazybatch_serve::{Control, Options, TraceDir};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::{Running, add, add_samples, call, http, soon, start};

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// The answer to a call that has one, as JSON.
async fn json(server: &Running, path: &str) -> Value {
    let (code, text) = call(server.http(), "GET", path, "").await;
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// Extensions that a server lists over HTTP, which are those over gRPC.
async fn extensions(server: &Running) -> BTreeSet<String> {
    let listed: Vec<String> =
        serde_json::from_value(json(server, "/v2").await["extensions"].take()).unwrap();
    let mut grpc = server.grpc().await;
    let asked = grpc.server_metadata(ServerMetadataRequest {}).await;
    assert_eq!(asked.unwrap().into_inner().extensions, listed);
    let names: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(names.len(), listed.len(), "each once: {listed:?}");
    names
}

#[tokio::test]
async fn extensions_are_listed_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let traces = |o: &mut Options| {
        o.traces = Some(TraceDir {
            folder: folder.path().to_owned(),
            max_bytes: 1 << 20,
        });
    };
    let unloads = |o: &mut Options| o.control = Control::Explicit(vec!["add".into()]);
    let always = [
        "binary_tensor_data",
        "classification",
        "generate",
        "logging",
        "model_configuration",
        "model_repository",
        "parameters",
        "schedule_policy",
        "sequence",
        "sequence(string_id)",
        "statistics",
        "system_shared_memory",
    ];
    let unload = (
        "/v2/repository/models/add/unload",
        r#"{"parameters":{"unload_dependents":true}}"#,
        "model_repository(unload_dependents)",
    );
    let trace = (
        "/v2/trace/setting",
        r#"{"trace_level":["TIMESTAMPS"]}"#,
        "trace",
    );
    for (is_traced, is_explicit) in [(false, false), (true, false), (false, true)] {
        let server = start(|o| {
            if is_traced {
                traces(o);
            }
            if is_explicit {
                unloads(o);
            }
        })
        .await;
        let listed = extensions(&server).await;
        let mut expected: BTreeSet<String> = always.map(String::from).into();
        // What is listed is done, and what is not is refused.
        for ((path, body, name), is_there) in [(unload, is_explicit), (trace, is_traced)] {
            let (code, text) = call(server.http(), "POST", path, body).await;
            assert_eq!(code == 200, is_there, "{name}: {text}");
            expected.extend(is_there.then(|| name.to_owned()));
        }
        assert_eq!(listed, expected);
        end(server).await;
    }
}

#[tokio::test]
async fn statistics_have_no_figures_that_nobody_measured() {
    let server = start(|_| {}).await;
    let (code, text) = call(server.http(), "POST", "/v2/models/add/infer", &add(1)).await;
    assert_eq!(code, 200, "{text}");
    let stats = json(&server, "/v2/models/add/stats").await;
    let stats = &stats["model_stats"][0];
    assert_eq!(stats["inference_count"], 1);
    assert_eq!(stats["execution_count"], 1);
    assert_eq!(stats["memory_usage"], Value::Array(Vec::new()));
    let mut grpc = server.grpc().await;
    let asked = grpc.model_statistics(ModelStatisticsRequest {
        name: "add".into(),
        version: String::new(),
    });
    let stats = asked.await.unwrap().into_inner().model_stats.remove(0);
    assert_eq!((stats.inference_count, stats.execution_count), (1, 1));
    assert!(stats.memory_usage.is_empty());
    // One launch had one sample; what reading and writing took is not known by size.
    let [batch] = &stats.batch_stats[..] else {
        panic!("{stats:?}");
    };
    let of = |span: &Option<StatisticDuration>| span.map(|s| (s.count, s.ns > 0)).unwrap();
    assert_eq!(batch.batch_size, 1);
    assert_eq!(of(&batch.compute_infer), (1, true));
    assert_eq!(of(&batch.compute_input), (0, false));
    assert_eq!(of(&batch.compute_output), (0, false));
    drop(grpc);
    end(server).await;
}

/// What was launched before, in batches of another size, counts for what was answered before.
#[tokio::test]
async fn executions_between_two_looks_are_those_of_that_time() {
    let server = start(|_| {}).await;
    let told = async || {
        let stats = json(&server, "/v2/models/add/stats").await["model_stats"][0].take();
        let of = |name: &str| stats[name].as_u64().unwrap();
        (of("inference_count"), of("execution_count"))
    };
    let mut before = told().await;
    assert_eq!(before, (0, 0));
    for (samples, times) in [(1, 12), (4, 3), (1, 1), (4, 2), (1, 5)] {
        for value in 0..times {
            let body = add_samples(value, samples);
            let (code, text) = call(server.http(), "POST", "/v2/models/add/infer", &body).await;
            assert_eq!(code, 200, "{text}");
        }
        let now = told().await;
        let times = u64::from(times);
        let expected = (before.0 + samples as u64 * times, before.1 + times);
        assert_eq!(now, expected, "{samples}");
        assert_eq!(told().await, now, "nothing happened");
        before = now;
    }
    let stats = json(&server, "/v2/models/add/stats").await["model_stats"][0].take();
    let by_size = stats["batch_stats"].as_array().unwrap().iter();
    let by_size = by_size.map(|b| {
        assert!(b["compute_infer"]["ns"].as_u64().unwrap() > 0, "{b}");
        let count = |what: &str| b[what]["count"].as_u64().unwrap();
        (b["batch_size"].as_u64().unwrap(), count("compute_infer"))
    });
    assert_eq!(by_size.collect::<Vec<_>>(), [(1, 12 + 1 + 5), (4, 3 + 2)]);
    end(server).await;
}

#[tokio::test]
async fn statistics_of_a_model_are_those_of_all_its_versions() {
    let server = start(|o| {
        let model = o.models.join("add");
        std::fs::create_dir(model.join("2")).unwrap();
        std::fs::copy(model.join("1/model.onnx"), model.join("2/model.onnx")).unwrap();
        let config = "max_batch_size: 4 version_policy { all {} }";
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
    })
    .await;
    let (code, text) = call(
        server.http(),
        "POST",
        "/v2/models/add/versions/1/infer",
        &add(1),
    )
    .await;
    assert_eq!(code, 200, "{text}");
    let of = |name: &str, version: &str| ModelStatisticsRequest {
        name: name.into(),
        version: version.into(),
    };
    // A model is asked for with all of its versions, or with that which is named.
    for (path, versions) in [("", vec!["1", "2"]), ("/versions/1", vec!["1"])] {
        let told = json(&server, &format!("/v2/models/add{path}")).await;
        assert_eq!(told["versions"], serde_json::json!(versions), "{path}");
    }
    let mut grpc = server.grpc().await;
    for (version, path, expected) in [
        ("", "/v2/models/add/stats", vec![("1", 1), ("2", 0)]),
        ("2", "/v2/models/add/versions/2/stats", vec![("2", 0)]),
    ] {
        let told = json(&server, path).await;
        let told = told["model_stats"].as_array().unwrap().iter();
        let told = told.map(|s| {
            let num = s["inference_count"].as_u64().unwrap();
            (s["version"].as_str().unwrap(), num)
        });
        assert_eq!(told.collect::<Vec<_>>(), expected);
        let told = grpc.model_statistics(of("add", version)).await.unwrap();
        let told = told.into_inner().model_stats;
        let told = told.iter().map(|s| (s.version.as_str(), s.inference_count));
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
    for (name, version, path) in [
        ("nobody", "", "/v2/models/nobody/stats"),
        ("add", "3", "/v2/models/add/versions/3/stats"),
    ] {
        assert_eq!(call(server.http(), "GET", path, "").await.0, 404);
        let refused = grpc.model_statistics(of(name, version)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::NotFound);
    }
    drop(grpc);
    end(server).await;
}

/// Count and nanoseconds of a figure of a model.
fn span(stats: &Value, name: &str) -> (u64, u64) {
    let span = &stats["model_stats"][0]["inference_stats"][name];
    let of = |key: &str| span[key].as_u64().unwrap();
    (of("count"), of("ns"))
}

#[tokio::test]
async fn a_request_of_several_samples_counts_once_with_its_own_times() {
    let server = start(|_| {}).await;
    let at = server.http();
    let path = "/v2/models/lstm/infer";
    let zeros = vec!["0"; 3 * 2 * 16].join(",");
    let body = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[3,2,16],"data":[{zeros}]}}]}}"#
    );
    server.gate.shut();
    let held = tokio::spawn(async move { call(at, "POST", path, &body).await });
    soon("it runs", || server.gate.holding() == 1).await;
    // All that waits meanwhile waits for as long.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    server.gate.open();
    let (code, text) = held.await.unwrap();
    assert_eq!(code, 200, "{text}");
    let stats = json(&server, "/v2/models/lstm/stats").await;
    assert_eq!(stats["model_stats"][0]["inference_count"], 3);
    let (success, all) = span(&stats, "success");
    let stages = ["queue", "compute_input", "compute_infer", "compute_output"];
    let stages = stages.map(|name| span(&stats, name));
    assert_eq!((success, stages.map(|s| s.0)), (1, [1; 4]));
    let sum: u64 = stages.iter().map(|s| s.1).sum();
    assert!(sum <= all, "{stages:?} of {all}");
    let served = server.state.repository.get("lstm", "").unwrap();
    let outcomes: Vec<u64> = served.stats.outcomes().into_values().collect();
    assert_eq!(outcomes, [1]);
    // What is refused has no times but that it failed.
    let wrong = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1,16],"data":[0]}]}"#;
    assert_eq!(call(at, "POST", path, wrong).await.0, 400);
    let after = json(&server, "/v2/models/lstm/stats").await;
    assert_eq!(span(&after, "compute_input"), stages[1]);
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn executions_do_not_become_fewer() {
    let server = start(|_| {}).await;
    let at = server.http();
    let executions = async || {
        let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
        let name = "nv_inference_exec_count{model=\"add\",version=\"1\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    let infer = async |body: &str| call(at, "POST", "/v2/models/add/infer", body).await;
    for value in 0..4 {
        let (status, text) = infer(&add(value)).await;
        assert_eq!(status, 200, "{text}");
    }
    assert_eq!(executions().await.as_deref(), Some("4"));
    // Launches of more samples, whose clients leave, make the mean batch greater.
    let served = server.state.repository.get("add", "").unwrap();
    let body = add_samples(1, 4);
    for _ in 0..4 {
        let batched = || served.engine().unwrap().figures().counters.batched;
        let before = batched();
        server.gate.shut();
        let mut leaves = TcpStream::connect(at).await.unwrap();
        let call = http("POST", "/v2/models/add/infer", body.as_bytes());
        leaves.write_all(&call).await.unwrap();
        soon("it runs", || server.gate.holding() == 1).await;
        drop(leaves);
        soon("it is left", || server.state.in_flight() == 0).await;
        server.gate.open();
        // Before the gate is shut again, which would hold it.
        soon("it goes on", || server.gate.holding() == 0).await;
        soon("its launch counts", || batched() > before).await;
    }
    drop(served);
    assert_eq!(executions().await.as_deref(), Some("4"));
    let stats = json(&server, "/v2/models/add/stats").await["model_stats"][0].take();
    assert_eq!(stats["execution_count"], 4);
    end(server).await;
}
