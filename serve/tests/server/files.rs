//! Files that configurations name: within the model's folder, whoever brings the configuration.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::symlink;

use lazybatch_serve::Control;
use serde_json::{Value as Json, json};

use crate::common::{Running, add, call, start};

/// Loads `add` with a configuration that the call brings.
async fn load(server: &Running, config: Json) -> (u16, String) {
    let body = json!({ "parameters": { "config": config.to_string() } }).to_string();
    let path = "/v2/repository/models/add/load";
    call(server.http(), "POST", path, &body).await
}

fn labelled(file: &str) -> Json {
    json!({ "max_batch_size": 4, "output": [
        { "name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [16], "label_filename": file },
        { "name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [16] },
    ] })
}

#[tokio::test]
async fn no_configuration_reads_files_outside_its_models_folder() {
    let mut server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret\n".repeat(16)).unwrap();
    let secret = secret.to_str().unwrap();
    // The same from the folder, and a model that could be served.
    let beside = "../lstm/1/model.onnx";
    fs::write(server.models.path().join("lstm/labels.txt"), "secret").unwrap();
    for (what, file, config) in [
        ("label_filename", secret, labelled(secret)),
        (
            "label_filename",
            "../lstm/labels.txt",
            labelled("../lstm/labels.txt"),
        ),
        (
            "default_model_filename",
            "../../lstm/1/model.onnx",
            json!({ "default_model_filename": "../../lstm/1/model.onnx" }),
        ),
        (
            "default_model_filename",
            secret,
            json!({ "default_model_filename": secret }),
        ),
        (
            "parameter profile",
            secret,
            json!({ "parameters": { "profile": { "string_value": secret } } }),
        ),
        (
            "parameter profile",
            beside,
            json!({ "parameters": { "profile": { "string_value": beside } } }),
        ),
    ] {
        let (status, text) = load(&server, config).await;
        let told = format!("expected a name, got '{file}'");
        assert_eq!(status, 400, "{what}: {text}");
        assert!(text.contains(what) && text.contains(&told), "{text}");
    }
    // A link in the folder is its owner's.
    let folder = server.models.path().join("add");
    symlink(secret, folder.join("linked.txt")).unwrap();
    fs::create_dir(folder.join("texts")).unwrap();
    fs::write(folder.join("texts/labels.txt"), "zero\none\n").unwrap();
    for (file, label) in [("linked.txt", "secret"), ("texts/labels.txt", "zero")] {
        let (status, text) = load(&server, labelled(file)).await;
        assert_eq!(status, 200, "{text}");
        let wants = r#"{"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}],"#;
        let body = add(1).replacen('{', wants, 1);
        let (status, text) = call(server.http(), "POST", "/v2/models/add/infer", &body).await;
        let told = format!("2.000000:0:{label}");
        assert!(status == 200 && text.contains(&told), "{text}");
    }
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn nothing_is_computed_for_an_answer_that_json_has_no_form_for() {
    let mut server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let config = json!({ "max_batch_size": 4, "output": [
        { "name": "OUTPUT0", "data_type": "TYPE_FP16", "dims": [16] },
        { "name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [16] },
    ] });
    let (status, text) = load(&server, config).await;
    assert_eq!(status, 200, "{text}");
    let infer = async |wants: &str| {
        let body = add(1).replacen('{', &format!("{{{wants}"), 1);
        call(server.http(), "POST", "/v2/models/add/infer", &body).await
    };
    for wants in [
        "",
        r#""outputs":[{"name":"OUTPUT0"}],"#,
        r#""parameters":{"binary_data_output":true},
            "outputs":[{"name":"OUTPUT0","parameters":{"binary_data":false}}],"#,
    ] {
        let (status, text) = infer(wants).await;
        let told = "output 'OUTPUT0' of data-type FP16: expected binary_data";
        assert!(status == 400 && text.contains(told), "{wants}: {text}");
    }
    assert!(server.gate.order().is_empty(), "something was computed");
    for wants in [
        r#""parameters":{"binary_data_output":true},"#,
        r#""outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}],"#,
        r#""outputs":[{"name":"OUTPUT1"}],"#,
    ] {
        let (status, text) = infer(wants).await;
        assert_eq!(status, 200, "{wants}: {text}");
    }
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn a_batch_beyond_all_bounds_refuses_the_load() {
    let mut server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let (status, text) = load(&server, json!({ "max_batch_size": 2_000_000_000 })).await;
    let told = "max_batch_size: expected 0 to 65536, got 2000000000";
    assert!(status == 400 && text.contains(told), "{text}");
    let parameter = json!({ "max_batch": { "string_value": "65537" } });
    let (status, text) = load(&server, json!({ "parameters": parameter })).await;
    let told = "parameter max_batch: expected 1 to 65536, got 65537";
    assert!(status == 400 && text.contains(told), "{text}");
    server.end();
    server.ended().await;
}
