//! Models whose files and configuration come with the call that loads them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazybatch_graph::{Program, folder};
use lazybatch_serve::proto::model_repository_parameter::ParameterChoice;
use lazybatch_serve::proto::{ModelRepositoryParameter, RepositoryModelLoadRequest};
use serde_json::json;

use super::chains::explicit;
use super::common::{Running, call, start};
use super::ensembles::{ask, end, ready, repository, scale, write};

const CONFIG: &str = r#"{"max_batch_size":4}"#;

/// The files of version 1 as they come with a call: names of parameters and contents.
fn files(program: &Program) -> Vec<(String, Vec<u8>)> {
    let version = tempfile::tempdir().unwrap();
    folder::save(program, version.path()).unwrap();
    let all = fs::read_dir(version.path()).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (format!("file:1/{name}"), fs::read(entry.path()).unwrap())
    });
    all.collect()
}

/// The body of a call over HTTP that brings these.
fn body(config: Option<&str>, files: &[(String, Vec<u8>)]) -> String {
    let mut parameters = serde_json::Map::new();
    if let Some(config) = config {
        parameters.insert("config".into(), config.into());
    }
    for (name, content) in files {
        parameters.insert(name.clone(), STANDARD.encode(content).into());
    }
    json!({ "parameters": parameters }).to_string()
}

async fn over_grpc(server: &Running, model: &str, files: &[(String, Vec<u8>)]) {
    let parameter = |choice| ModelRepositoryParameter {
        parameter_choice: Some(choice),
    };
    let config = ParameterChoice::StringParam(CONFIG.into());
    let mut parameters = vec![("config".to_owned(), parameter(config))];
    for (name, content) in files {
        let content = ParameterChoice::BytesParam(content.clone().into());
        parameters.push((name.clone(), parameter(content)));
    }
    let call = RepositoryModelLoadRequest {
        model_name: model.into(),
        parameters: parameters.into_iter().collect(),
        ..RepositoryModelLoadRequest::default()
    };
    server
        .grpc()
        .await
        .repository_model_load(call)
        .await
        .unwrap();
}

/// How many folders hold what came with a call: those whose program is this one's.
fn folders(files: &[(String, Vec<u8>)]) -> usize {
    let (name, content) = files
        .iter()
        .find(|f| f.0.ends_with("program.json"))
        .unwrap();
    let file = name.strip_prefix("file:").unwrap();
    let all = fs::read_dir(std::env::temp_dir()).unwrap();
    let all = all.filter_map(|entry| fs::read(entry.ok()?.path().join(file)).ok());
    all.filter(|there| there == content).count()
}

#[tokio::test]
async fn files_take_the_place_of_the_folder_until_the_next_load() {
    let server = explicit().await;
    write(&server, "twice", &scale(2.0));
    super::chains::load(&server, "twice").await;
    assert_eq!(ask(&server, "twice").await, "2.0,4.0");
    let first = files(&scale(3.125));
    let brought = body(Some(CONFIG), &first);
    let (status, text) = repository(&server, "twice", "load", &brought).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(ask(&server, "twice").await, "3.125,6.25");
    assert_eq!(folders(&first), 1);
    over_grpc(&server, "twice", &files(&scale(7.0))).await;
    assert_eq!(ask(&server, "twice").await, "7.0,14.0");
    assert_eq!(folders(&first), 0);
    // The folder was not touched, and is what a load without files takes.
    super::chains::load(&server, "twice").await;
    assert_eq!(ask(&server, "twice").await, "2.0,4.0");
    end(server).await;
}

#[tokio::test]
async fn a_model_that_is_in_no_folder_comes_and_goes() {
    let server = explicit().await;
    let brought = files(&scale(3.25));
    over_grpc(&server, "new", &brought).await;
    assert_eq!(ask(&server, "new").await, "3.25,6.5");
    let index = "/v2/repository/index";
    let (_, text) = call(server.http(), "POST", index, "").await;
    assert!(
        text.contains(r#"{"name":"new","state":"READY","version":"1"}"#),
        "{text}"
    );
    // There is no folder to load it from: it is served on.
    let (status, text) = repository(&server, "new", "load", "").await;
    assert_eq!(status, 400, "{text}");
    assert_eq!(ask(&server, "new").await, "3.25,6.5");
    assert_eq!(folders(&brought), 1);
    let (status, text) = repository(&server, "new", "unload", "").await;
    assert_eq!(status, 200, "{text}");
    assert!(!ready(&server, "new") && !server.state.repository.is_known("new"));
    assert_eq!(folders(&brought), 0);
    end(server).await;
}

#[tokio::test]
async fn an_ensemble_has_the_files_that_its_step_is_served_from() {
    let server = explicit().await;
    write(&server, "step", &scale(2.0));
    let step =
        r#"{"model_name":"step","model_version":-1,"input_map":{"x":"x"},"output_map":{"y":"z"}}"#;
    let config = format!(
        r#"{{"platform":"ensemble","max_batch_size":4,
        "input":[{{"name":"x","data_type":"TYPE_FP32","dims":[2]}}],
        "output":[{{"name":"z","data_type":"TYPE_FP32","dims":[2]}}],
        "ensemble_scheduling":{{"step":[{step}]}}}}"#
    );
    over_grpc(&server, "step", &files(&scale(5.0))).await;
    fs::create_dir_all(server.models.path().join("both/1")).unwrap();
    let brought = body(Some(&config), &[]);
    let (status, text) = repository(&server, "both", "load", &brought).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(ask(&server, "both").await, "5.0,10.0");
    // It follows each load of its step, by the configuration that it was loaded with.
    super::chains::load(&server, "step").await;
    assert_eq!(ask(&server, "both").await, "2.0,4.0");
    over_grpc(&server, "step", &files(&scale(7.0))).await;
    assert_eq!(ask(&server, "both").await, "7.0,14.0");
    end(server).await;
}

#[tokio::test]
async fn what_cannot_be_brought_leaves_what_is_served() {
    let server = explicit().await;
    write(&server, "twice", &scale(2.0));
    super::chains::load(&server, "twice").await;
    let good = files(&scale(3.0));
    let named = |name: &str| vec![(name.to_owned(), good[0].1.clone())];
    let file = |name: &str, text: &str| {
        json!({ "parameters": { "config": CONFIG, name: text } }).to_string()
    };
    let refused = [
        (
            body(None, &good),
            "expected parameter 'config' beside it, got none",
        ),
        (body(Some("{"), &good), "parameter 'config'"),
        (
            body(Some(CONFIG), &named("file:../twice/1/program.json")),
            "expected a name",
        ),
        (
            body(Some(CONFIG), &named("file:/1/program.json")),
            "expected a name",
        ),
        (body(Some(CONFIG), &named("file:")), "expected a name"),
        (body(Some(CONFIG), &named("file:1/other")), "program.json"),
        (
            body(Some(CONFIG), &named("file:program.json")),
            "a folder named by a number",
        ),
        (
            body(Some(CONFIG), &named("files")),
            "parameter: expected 'config', a string, or 'file:PATH'",
        ),
        (
            file("file:1/program.json", "no base64!"),
            "parameter 'file:1/program.json': expected base64",
        ),
        (file("file:1/program.json", "e30="), "program.json"),
        (
            json!({ "parameters": { "file:1/program.json": 1 } }).to_string(),
            "parameter: expected",
        ),
    ];
    for (body, expected) in refused {
        let (status, text) = repository(&server, "twice", "load", &body).await;
        assert!(
            status == 400 && text.contains(expected),
            "{expected}: {status} {text}"
        );
        let (status, text) = repository(&server, "other", "load", &body).await;
        assert!(
            status == 400 && !server.state.repository.is_known("other"),
            "{status} {text}"
        );
        assert_eq!(ask(&server, "twice").await, "2.0,4.0");
    }
    end(server).await;
}

#[tokio::test]
async fn only_who_may_load_may_bring_files_and_they_count_as_memory() {
    let server = start(|_| {}).await;
    let brought = body(Some(CONFIG), &files(&scale(3.0)));
    let (status, text) = repository(&server, "add", "load", &brought).await;
    assert!(
        status == 503 && text.contains("not explicit"),
        "{status} {text}"
    );
    // Of what is refused in any case no more is taken than of other calls.
    let long = vec![("file:1/model.onnx".to_owned(), vec![0; 1 << 20])];
    let (status, text) = repository(&server, "add", "load", &body(Some(CONFIG), &long)).await;
    assert!(
        status == 400 && text.contains("at most 1048576 bytes"),
        "{status} {text}"
    );
    end(server).await;
    let server = start(|o| {
        o.control = lazybatch_serve::Control::Explicit(Vec::new());
        o.max_body = 8 << 20;
        o.max_request_memory = 1 << 20;
    })
    .await;
    let long = vec![("file:1/model.onnx".to_owned(), vec![0; 1 << 20])];
    let (status, text) = repository(&server, "new", "load", &body(Some(CONFIG), &long)).await;
    assert!(status == 503 && text.contains("memory"), "{status} {text}");
    assert_eq!(server.state.memory.held(), 0);
    end(server).await;
}
