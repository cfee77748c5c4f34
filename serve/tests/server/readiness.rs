//! Models that cannot be loaded: what is told of them, and whether the server is ready without them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use lazybatch_serve::repository::Brought;
use lazybatch_serve::state::State;
use lazybatch_serve::{ALL, Control};
use serde_json::{Value as Json, json};

use crate::common::{Running, add, call, is_sum, soon, start};
use crate::spans::Lines;

const INFER: &str = "/v2/models/add/infer";

/// The line of the index for a model.
fn indexed(state: &State, name: &str) -> Option<(&'static str, String)> {
    let index = state.repository.index(false).into_iter();
    let mut own = index.filter(|line| line.name == name);
    own.next().map(|line| (line.state, line.reason))
}

/// Writes the configuration of a model, whose version is a copy of `add`.
fn write(models: &Path, name: &str, config: &str) {
    let version = models.join(name).join("1");
    fs::create_dir_all(&version).unwrap();
    fs::copy(models.join("add/1/model.onnx"), version.join("model.onnx")).unwrap();
    fs::write(models.join(name).join("config.pbtxt"), config).unwrap();
}

async fn serves(server: &Running, value: u8) {
    let (status, text) = call(server.http(), "POST", INFER, &add(value)).await;
    assert!(status == 200 && is_sum(&text, value), "{text}");
}

async fn ready(server: &Running) -> u16 {
    let (status, _) = call(server.http(), "GET", "/v2/health/ready", "").await;
    status
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn what_cannot_be_loaded_is_told_and_the_others_are_served() {
    let server = start(|o| {
        o.exit_on_error = false;
        symlink("loop", o.models.join("loop")).unwrap();
        write(&o.models, "wrong", "input [ { colour: 3 } ]");
        fs::create_dir(o.models.join("empty")).unwrap();
    })
    .await;
    serves(&server, 3).await;
    for (name, why) in [
        ("loop", "expected a folder"),
        ("wrong", "colour"),
        ("empty", "a folder named by a number"),
    ] {
        let (state, reason) = indexed(&server.state, name).unwrap();
        assert!(
            state == "UNAVAILABLE" && reason.contains(why),
            "{name}: {reason}"
        );
    }
    assert_eq!(
        ready(&server).await,
        503,
        "models of the start are not there"
    );
    end(server).await;
}

#[tokio::test]
async fn readiness_is_of_all_models_of_the_start_if_it_is_strict() {
    let load = "/v2/repository/models/late/load";
    for strict in [true, false] {
        let server = start(|o| {
            o.exit_on_error = false;
            o.strict_readiness = strict;
            let names = ["add", "late", "typo"].map(str::to_owned);
            o.control = Control::Explicit(names.into());
            write(&o.models, "late", "max_batch_size: -1");
        })
        .await;
        serves(&server, 4).await;
        let expected = if strict { 503 } else { 200 };
        assert_eq!(ready(&server).await, expected);
        for (model, status) in [("add", 200), ("late", 503), ("typo", 503)] {
            let path = format!("/v2/models/{model}/ready");
            let (own, _) = call(server.http(), "GET", &path, "").await;
            assert_eq!(own, status, "a model is as ready as it is: {model}");
        }
        let (_, reason) = indexed(&server.state, "typo").unwrap();
        assert!(reason.contains("no folder of that name"), "{reason}");
        // Names of clients are not kept.
        let (status, _) = call(server.http(), "POST", &load.replace("late", "x"), "").await;
        assert_eq!(status, 400);
        assert_eq!(indexed(&server.state, "x"), None);
        write(server.models.path(), "late", "");
        assert_eq!(call(server.http(), "POST", load, "").await.0, 200);
        assert_eq!(ready(&server).await, expected, "one is missing still");
        let unload = "/v2/repository/models/typo/unload";
        assert_eq!(call(server.http(), "POST", unload, "").await.0, 200);
        assert_eq!(ready(&server).await, 200);
        // What was never there is not served, as is wanted.
        let unload = unload.replace("typo", "nothing");
        assert_eq!(call(server.http(), "POST", &unload, "").await.0, 200);
        end(server).await;
    }
}

#[tokio::test]
async fn a_server_whose_engine_has_failed_is_not_ready() {
    let server = start(|o| o.strict_readiness = false).await;
    serves(&server, 1).await;
    assert_eq!(ready(&server).await, 200);
    server.gate.panic();
    let (status, text) = call(server.http(), "POST", INFER, &add(2)).await;
    assert_eq!(status, 500, "{text}");
    assert_eq!(ready(&server).await, 503);
    let (own, _) = call(server.http(), "GET", "/v2/models/add/ready", "").await;
    assert_eq!(own, 503);
    end(server).await;
}

#[tokio::test]
async fn polling_goes_on_beside_what_cannot_be_looked_at() {
    let server = start(|o| {
        o.control = Control::Poll;
        o.poll_every = std::time::Duration::from_secs(3600);
    })
    .await;
    let models = server.models.path();
    let poll = async || {
        let state = server.state.clone();
        tokio::task::spawn_blocking(move || state.repository.poll())
            .await
            .unwrap();
    };
    // A model that is served stays so while nobody can tell what has become of it.
    fs::rename(models.join("lstm"), models.join(".lstm")).unwrap();
    symlink("lstm", models.join("lstm")).unwrap();
    write(models, "new", "");
    poll().await;
    assert!(server.state.repository.get("new", "").is_ok());
    assert!(server.state.repository.get("lstm", "").is_ok());
    assert_eq!(ready(&server).await, 200);
    fs::remove_file(models.join("lstm")).unwrap();
    poll().await;
    assert!(server.state.repository.get("lstm", "").is_err());
    assert_eq!(ready(&server).await, 200, "it is wanted no more");
    end(server).await;
}

#[tokio::test]
async fn clients_may_load_and_all_are_there_at_the_start() {
    let server = start(|o| o.control = Control::Explicit(vec![ALL.into()])).await;
    let has = |name: &str| server.state.repository.get(name, "").is_ok();
    assert!(has("add") && has("lstm"));
    let unload = "/v2/repository/models/lstm/unload";
    assert_eq!(call(server.http(), "POST", unload, "").await.0, 200);
    assert!(has("add") && !has("lstm"));
    end(server).await;
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_holds_up_nobody() {
    let server = start(|o| o.control = Control::Explicit(vec!["add".into()])).await;
    let config = server.models.path().join("lstm/config.pbtxt");
    fs::remove_file(&config).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&config).status();
    assert!(made.unwrap().success());
    let load = "/v2/repository/models/lstm/load";
    let (status, text) = call(server.http(), "POST", load, "").await;
    assert!(status == 400 && text.contains("no regular file"), "{text}");
    end(server).await;
}

#[tokio::test]
async fn the_index_tells_while_a_load_runs_and_requests_of_what_was_unloaded() {
    let server = start(|o| o.control = Control::Explicit(vec!["add".into()])).await;
    let index = async || {
        let (_, text) = call(server.http(), "POST", "/v2/repository/index", "").await;
        let index: Json = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        let of_add = index.as_array().unwrap().iter();
        let of_add = of_add.clone().find(|line| line["name"] == "add").unwrap();
        of_add["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(index().await, "READY");
    server.gate.shut();
    let at = server.http();
    let runs = tokio::spawn(async move { call(at, "POST", "/v2/models/add/infer", &add(3)).await });
    soon("it runs", || server.gate.holding() == 1).await;
    let unload = "/v2/repository/models/add/unload";
    assert_eq!(call(at, "POST", unload, "").await.0, 200);
    assert_eq!(index().await, "UNLOADING");
    server.gate.open();
    let (status, text) = runs.await.unwrap();
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    let gone = async || index().await == "UNAVAILABLE";
    while !gone().await {
        tokio::task::yield_now().await;
    }
    // A load that waits for the launch of its warm-up.
    let sample = |name: &str| {
        let input = json!({ "data_type": "TYPE_FP32", "dims": [16], "zero_data": true });
        json!({ "name": name, "batch_size": 1, "inputs": { "INPUT0": input, "INPUT1": input } })
    };
    let config = json!({ "max_batch_size": 4, "model_warmup": [sample("w")] });
    let body = json!({ "parameters": { "config": config.to_string() } }).to_string();
    server.gate.shut();
    let loads =
        tokio::spawn(
            async move { call(at, "POST", "/v2/repository/models/add/load", &body).await },
        );
    soon("its warm-up runs", || server.gate.holding() == 1).await;
    assert_eq!(index().await, "LOADING");
    server.gate.open();
    let (status, text) = loads.await.unwrap();
    assert_eq!(status, 200, "{text}");
    assert_eq!(index().await, "READY");
    end(server).await;
}

#[tokio::test]
async fn a_name_that_a_client_makes_up_is_one_line_of_the_log() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let name = "x\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J";
    tracing::subscriber::with_default(subscriber, || {
        assert!(
            server
                .state
                .repository
                .load(name, Brought::default())
                .is_err()
        );
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("forged") && !text.contains('\u{1b}'),
        "{text}"
    );
    end(server).await;
}

#[tokio::test]
async fn warm_up_is_bounded() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    let load = async |count: u32, batch: Json, config: Json| {
        let input = json!({ "data_type": "TYPE_FP32", "dims": [16], "zero_data": true });
        let mut sample = json!({ "count": count, "inputs": { "INPUT0": input, "INPUT1": input } });
        if !batch.is_null() {
            sample["batch_size"] = batch;
        }
        let mut config = config;
        config["model_warmup"] = json!([sample]);
        let body = json!({ "parameters": { "config": config.to_string() } }).to_string();
        let path = "/v2/repository/models/add/load";
        call(server.http(), "POST", path, &body).await
    };
    let batches = json!({ "max_batch_size": 4 });
    for (count, batch) in [(u32::MAX, 1), (16385, 4)] {
        let (status, text) = load(count, batch.into(), batches.clone()).await;
        assert!(
            status == 400 && text.contains("at most 65536 in all"),
            "{text}"
        );
    }
    assert_eq!(load(3, 4.into(), batches.clone()).await.0, 200);
    let (status, text) = load(1, Json::Null, batches).await;
    assert!(status == 400 && text.contains("1 or more"), "{text}");
    // What does not batch has no size to state.
    let tensors = |names: [&str; 2]| {
        let tensor = |name| json!({ "name": name, "data_type": "TYPE_FP32", "dims": [16] });
        names.map(tensor)
    };
    let one = json!({
        "input": tensors(["INPUT0", "INPUT1"]), "output": tensors(["OUTPUT0", "OUTPUT1"]),
    });
    let (status, text) = load(1, Json::Null, one).await;
    assert_eq!(status, 200, "{text}");
    end(server).await;
}
