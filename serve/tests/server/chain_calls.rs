//! Calls to ensembles that one program cannot express: they fail, end, wait and are counted as those to
//! their steps are.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lazybatch_serve::Control;
use lazybatch_serve::model::Served;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;

use super::chains::{
    PAIR, Tensor, ensemble, explicit, floats, infer, infer_with, load, step, sums, why,
    with_rounded, with_told,
};
use super::common::{Running, call, http, soon, start, until};
use super::ensembles::{config, decoder, end, scale, write};

#[tokio::test]
async fn errors_of_a_step_name_it_and_keep_their_code() {
    let server = explicit().await;
    // It reads fewer ids than the decoder may say.
    with_told(&server, 1).await;
    let path = "/v2/models/told/infer";
    let body = r#"{"id":"q","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}"#;
    let (status, text) = call(server.http(), "POST", path, body).await;
    let told = "\"[request id: q] step 1, model mean: ";
    assert!(status == 400 && text.contains(told), "{text}");
    server.gate.fail();
    let (status, text) = call(server.http(), "POST", path, body).await;
    let told = "\"[request id: q] step 0, model decoder: ";
    assert!(status == 500 && text.contains(told), "{text}");
    let served = server.state.repository.get("told", "").unwrap();
    assert_eq!(served.stats.failures(), [0, 0, 1, 1]);
    // What is wrong with a request is told by the ensemble's own names.
    for (body, told) in [
        (
            body.replace("\"x\"", "\"z\""),
            "unexpected inference input 'z' for model 'told'",
        ),
        (
            body.replace("[1,2]", "[1,3]"),
            "input 'x': expected 3 elements",
        ),
        (
            body.replace("[1,2],\"data\":[1,2]", "[1,3],\"data\":[1,2,3]"),
            "Expected [-1, 2], got [1, 3]",
        ),
        (
            body.replace("FP32", "INT32"),
            "data-type is 'INT32', but model 'told' expects 'FP32'",
        ),
        (
            r#"{"inputs":[]}"#.into(),
            "for model 'told': missing required input(s) ['x']",
        ),
        (
            body.replacen('{', r#"{"outputs":[{"name":"w"}],"#, 1),
            "unexpected inference output 'w' for model 'told'",
        ),
    ] {
        let (status, text) = call(server.http(), "POST", path, &body).await;
        assert!(status == 400 && text.contains(told), "{told}: {text}");
    }
    drop(served);
    end(server).await;
}

/// Waits for the counts of a model to be `[success, rejected, cancelled]`.
async fn counted(served: &Served, counts: [u64; 3]) {
    let told = || {
        let failures = served.stats.failures();
        [served.stats.success.count(), failures[0], failures[1]] == counts
    };
    soon(&format!("{} has {counts:?}", served.name), told).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_what_runs_and_nothing_else_begins() {
    let server = explicit().await;
    with_told(&server, 7).await;
    let get = |model: &str| server.state.repository.get(model, "").unwrap();
    let (told, first, second) = (get("told"), get("decoder"), get("mean"));
    server.gate.shut();
    let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}"#;
    let mut stream = TcpStream::connect(server.http()).await.unwrap();
    let bytes = http("POST", "/v2/models/told/infer", body.as_bytes());
    stream.write_all(&bytes).await.unwrap();
    until(|| server.gate.holding() == 1).await;
    drop(stream);
    counted(&told, [0, 0, 1]).await;
    counted(&first, [0, 0, 1]).await;
    server.gate.open();
    infer(&server, "told", &[floats("x", &[1, 2], &[1.0, 2.0])]).await;
    counted(&told, [1, 0, 1]).await;
    counted(&second, [1, 0, 0]).await;
    assert_eq!(told.stats.pending.load(SeqCst), 0);
    assert_eq!(server.state.memory.held(), 0);
    drop((told, first, second));
    end(server).await;
}

#[tokio::test]
async fn the_time_to_wait_is_for_the_policies_of_steps() {
    let server = explicit().await;
    with_told(&server, 7).await;
    let served = server.state.repository.get("told", "").unwrap();
    let first = server.state.repository.get("decoder", "").unwrap();
    server.gate.shut();
    let began = served.now();
    let given = [floats("x", &[1, 2], &[1.0, 2.0])];
    let wait = [("timeout", ParameterChoice::Int64Param(500_000))];
    let call = infer_with(&server, "told", &given, &wait);
    let held = async {
        // Behind the time, of which no step's configuration says anything.
        until(|| server.gate.holding() == 1).await;
        until(|| served.now().since(began).0 > 600_000_000).await;
        server.gate.open();
    };
    let (answer, ()) = tokio::join!(call, held);
    answer.unwrap();
    counted(&first, [1, 0, 0]).await;
    counted(&served, [1, 0, 0]).await;
    drop((served, first));
    end(server).await;
}

#[tokio::test]
async fn chains_wait_for_no_place_that_chains_hold() {
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        o.max_in_flight = 3;
    })
    .await;
    with_rounded(&server).await;
    let narrow = server.models.path().join("back/config.pbtxt");
    let text = fs::read_to_string(&narrow).unwrap();
    let bound = "parameters { key: \"max_queue\" value { string_value: \"1\" } }";
    fs::write(narrow, text + bound).unwrap();
    let steps = [
        step("back", &[("x", "x")], &[("y", "much")]),
        step("third", &[("x", "much")], &[("y", "mid")]),
        step("back", &[("x", "mid")], &[("y", "y")]),
    ];
    let half = "data_type: TYPE_FP16 dims: 2";
    ensemble(&server, "other", &[("x", half)], &[("y", PAIR)], &steps);
    for model in ["back", "rounded", "other"] {
        load(&server, model).await;
    }
    assert!(why(&server, "other").contains("tensor mid: data_type"));
    let one = floats("x", &[1, 2], &[1.0, 2.0]);
    let other = (
        String::from("x"),
        String::from("FP16"),
        vec![1, 2],
        vec![0, 0x3c, 0, 0x40],
    );
    let wanted = [
        infer(&server, "rounded", std::slice::from_ref(&one)).await,
        infer(&server, "other", std::slice::from_ref(&other)).await,
    ];
    let many = async |model: &str, given: &Tensor, wanted: &[Tensor]| {
        for _ in 0..40 {
            match infer_with(&server, model, std::slice::from_ref(given), &[]).await {
                Ok(answer) => assert_eq!(answer, wanted),
                // There are places for one that waits, and for three calls.
                Err(error) => {
                    let told = error.message();
                    let full = "model back: Exceeds maximum queue size";
                    assert_eq!(error.code(), Code::Unavailable);
                    assert!(
                        told.contains(full) || told.contains("calls in flight"),
                        "{told}"
                    );
                }
            }
        }
    };
    tokio::join!(
        many("rounded", &one, &wanted[0]),
        many("other", &other, &wanted[1]),
        many("rounded", &one, &wanted[0]),
        many("other", &other, &wanted[1])
    );
    infer(&server, "other", &[other]).await;
    assert_eq!(server.state.in_flight(), 0);
    assert_eq!(server.state.memory.held(), 0);
    end(server).await;
}

#[tokio::test]
async fn a_chain_has_figures_of_its_own_and_its_steps_theirs() {
    let server = explicit().await;
    with_rounded(&server).await;
    let classes = "parameters { key: \"classes\" value { string_value: \"gold:sla=60000\" } }";
    let path = server.models.path().join("back/config.pbtxt");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, text + classes).unwrap();
    for model in ["back", "rounded"] {
        load(&server, model).await;
    }
    let get = |model: &str| server.state.repository.get(model, "").unwrap();
    let (whole, first, second) = (get("rounded"), get("third"), get("back"));
    let given = floats("x", &[3, 2], &[1.0; 6]);
    let gold = [
        ("sla_class", ParameterChoice::StringParam("gold".into())),
        ("explain", ParameterChoice::BoolParam(true)),
    ];
    for _ in 0..2 {
        infer_with(&server, "rounded", std::slice::from_ref(&given), &gold)
            .await
            .unwrap();
    }
    let told = [&whole, &first, &second].map(|m| m.statistics());
    for model in &told {
        assert_eq!(model.inference_count, 6, "{model:?}");
        assert_eq!(
            model
                .inference_stats
                .as_ref()
                .unwrap()
                .success
                .unwrap()
                .count,
            2
        );
        assert!(model.last_inference > 0);
    }
    assert_eq!(told[0].execution_count, 2, "one for each request");
    let stages = told.each_ref().map(|m| {
        let s = m.inference_stats.as_ref().unwrap();
        [s.queue, s.compute_input, s.compute_infer, s.compute_output].map(|d| d.unwrap().ns)
    });
    for at in 0..4 {
        assert_eq!(stages[0][at], stages[1][at] + stages[2][at], "stage {at}");
    }
    let classes = |m: &Served| {
        m.stats
            .outcomes()
            .into_keys()
            .map(|(class, _)| class)
            .collect::<Vec<_>>()
    };
    assert_eq!(classes(&whole), ["gold"]);
    assert_eq!(classes(&first), ["default"], "it knows no other");
    assert_eq!(classes(&second), ["gold"]);
    let nobody = [("sla_class", ParameterChoice::StringParam("lead".into()))];
    let error = infer_with(&server, "rounded", &[given], &nobody)
        .await
        .unwrap_err();
    assert!(
        error.message().contains("unknown class \"lead\""),
        "{error}"
    );
    let (_, metrics) = call(server.metrics(), "GET", "/metrics", "").await;
    for line in [
        "nv_inference_count{model=\"rounded\",version=\"1\"} 6",
        "nv_inference_exec_count{model=\"rounded\",version=\"1\"} 2",
        "lazybatch_requests_total{class=\"gold\",model=\"rounded\",outcome=\"met\",version=\"1\"} 2",
    ] {
        let sorted = |line: &str| {
            let mut parts: Vec<_> = line.split(['{', ',', '}']).map(str::to_owned).collect();
            parts.sort();
            parts
        };
        assert!(
            metrics.lines().any(|own| sorted(own) == sorted(line)),
            "{line}\n{metrics}"
        );
    }
    let (status, text) = call(server.http(), "GET", "/v2/models/rounded", "").await;
    assert!(
        status == 200 && text.contains("\"platform\":\"ensemble\""),
        "{text}"
    );
    assert!(
        text.contains(r#"{"datatype":"FP32","name":"x","shape":[-1,2]}"#),
        "{text}"
    );
    let (status, text) = call(server.http(), "GET", "/v2/models/rounded/config", "").await;
    assert!(
        status == 200 && text.contains("ensemble_scheduling"),
        "{text}"
    );
    drop((whole, first, second));
    end(server).await;
}

#[tokio::test]
async fn steps_that_no_wanted_output_comes_from_are_not_called() {
    let server = explicit().await;
    with_rounded(&server).await;
    write(&server, "twice", &scale(2.0));
    write(&server, "sums", &sums());
    let state = "sequence_batching { state { input_name: \"h\" output_name: \"h_next\" } }";
    config(&server, "sums", &format!("max_batch_size: 4 {state}"));
    let mut steps = vec![
        step("third", &[("x", "x")], &[("y", "mid")]),
        step("back", &[("x", "mid")], &[("y", "y")]),
        step("twice", &[("x", "z")], &[("y", "double")]),
    ];
    let (inputs, outputs) = ([("x", PAIR), ("z", PAIR)], [("y", PAIR), ("double", PAIR)]);
    ensemble(&server, "forked", &inputs, &outputs, &steps);
    steps.push(step("sums", &[("x", "double")], &[("y", "total")]));
    let outputs = [("y", PAIR), ("total", PAIR)];
    ensemble(&server, "keeping", &inputs, &outputs, &steps);
    for model in ["forked", "keeping"] {
        load(&server, model).await;
    }
    let counts = || {
        ["third", "back", "twice", "sums"].map(|model| {
            let served = server.state.repository.get(model, "").unwrap();
            served.stats.success.count()
        })
    };
    let ask = async |model: &str, params: &str, wanted: &[&str]| {
        let wanted = wanted.iter().map(|name| format!(r#"{{"name":"{name}"}}"#));
        let wanted = wanted.collect::<Vec<_>>().join(",");
        let input = |name: &str| {
            format!(r#"{{"name":"{name}","datatype":"FP32","shape":[1,2],"data":[3,6]}}"#)
        };
        let (x, z) = (input("x"), input("z"));
        let body =
            format!(r#"{{"parameters":{{{params}}},"outputs":[{wanted}],"inputs":[{x},{z}]}}"#);
        let path = format!("/v2/models/{model}/infer");
        let (status, text) = call(server.http(), "POST", &path, &body).await;
        assert_eq!(status, 200, "{text}");
        text
    };
    let double = r#""name":"double""#;
    let text = ask("forked", "", &["double"]).await;
    assert!(
        text.contains(double) && text.contains("[6.0,12.0]"),
        "{text}"
    );
    assert_eq!(counts(), [0, 0, 1, 0]);
    let text = ask("forked", "", &["y"]).await;
    assert!(
        text.contains(r#""name":"y""#) && !text.contains(double),
        "{text}"
    );
    assert_eq!(counts(), [1, 1, 1, 0]);
    // Who names none wants all.
    let text = ask("forked", "", &[]).await;
    assert!(
        text.contains(r#""name":"y""#) && text.contains(double),
        "{text}"
    );
    assert_eq!(counts(), [2, 2, 2, 0]);
    // What a step keeps goes on, whatever is wanted.
    let start = r#""sequence_id":5,"sequence_start":true"#;
    let text = ask("keeping", start, &["y"]).await;
    assert!(!text.contains("total"), "{text}");
    assert_eq!(counts(), [3, 3, 3, 1]);
    let text = ask("keeping", r#""sequence_id":5"#, &["total"]).await;
    assert!(text.contains("[12.0,24.0]"), "{text}");
    assert_eq!(counts(), [3, 3, 4, 2]);
    assert_eq!(server.state.memory.held(), 0);
    end(server).await;
}

/// Configuration of [`sums`].
const KEEPS: &str = "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 60000000
    state { input_name: \"h\" output_name: \"h_next\" } }";

fn one_at_a_time(server: &Running, model: &str) {
    let path = server.models.path().join(model).join("config.pbtxt");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("max_batch_size: 4", "max_batch_size: 1"),
    )
    .unwrap();
}

/// A chain has the version of its step, whatever became of that since.
#[tokio::test]
async fn behind_the_end_of_a_server_sequences_go_on_in_steps_that_chains_alone_have() {
    let mut server = explicit().await;
    write(&server, "sums", &sums());
    config(&server, "sums", KEEPS);
    write(&server, "twice", &scale(2.0));
    let steps = [
        step("twice", &[("x", "x")], &[("y", "mid")]),
        step("sums", &[("x", "mid")], &[("y", "y")]),
    ];
    ensemble(&server, "running", &[("x", PAIR)], &[("y", PAIR)], &steps);
    one_at_a_time(&server, "running");
    load(&server, "sums").await;
    load(&server, "running").await;
    let body = |more: &str| {
        format!(
            r#"{{"parameters":{{"sequence_id":1{more}}},"inputs":[{{"name":"x",
            "datatype":"FP32","shape":[1,2],"data":[1,2]}}]}}"#
        )
    };
    let path = "/v2/models/running/infer";
    let start = body(r#","sequence_start":true"#);
    assert_eq!(call(server.http(), "POST", path, &start).await.0, 200);
    assert_eq!(server.state.num_sequences(), 1, "in one model, and once");
    let unload = "/v2/repository/models/sums/unload";
    assert_eq!(call(server.http(), "POST", unload, "").await.0, 200);
    assert_eq!(server.state.num_sequences(), 1);
    server.end();
    soon("it stops", || server.state.is_stopping()).await;
    let (status, text) = call(server.http(), "POST", path, &body("")).await;
    assert!(status == 200 && text.contains("[4.0,8.0]"), "{text}");
    let last = body(r#","sequence_end":true"#);
    let (status, text) = call(server.http(), "POST", path, &last).await;
    assert!(status == 200 && text.contains("[6.0,12.0]"), "{text}");
    server.ended().await;
}

/// Loads `chat`, an ensemble of texts whose second step keeps a sequence.
async fn with_chat(server: &Running) {
    const TEXT: &str = "data_type: TYPE_STRING dims: 1";
    let mut ears = scale(1.0);
    ears.name = "reader".into();
    write(server, "ears", &ears);
    write(server, "sums", &sums());
    config(server, "sums", KEEPS);
    let mut mouth = decoder();
    mouth.name = "speaker".into();
    write(server, "mouth", &mouth);
    let steps = [
        step("ears", &[("text_input", "text_input")], &[("y", "heard")]),
        step("sums", &[("x", "heard")], &[("y", "so_far")]),
        step(
            "mouth",
            &[("x", "so_far")],
            &[("text_output", "text_output")],
        ),
    ];
    let (input, output) = ([("text_input", TEXT)], [("text_output", TEXT)]);
    ensemble(server, "chat", &input, &output, &steps);
    one_at_a_time(server, "chat");
    load(server, "chat").await;
}

/// Calls `chat` by one of its paths for sequence 1.
async fn say(at: SocketAddr, path: &str, text: &str, params: &str) -> (u16, String) {
    let path = format!("/v2/models/chat/{path}");
    let body = format!(r#"{{"text_input":{text},"parameters":{{"sequence_id":1{params}}}}}"#);
    call(at, "POST", &path, &body).await
}

const STARTS: &str = r#","sequence_start":true"#;

async fn is_broken(server: &Running, path: &str) {
    let (status, text) = say(server.http(), path, r#""c""#, "").await;
    let told = "in sequence 1 was refused";
    assert!(status == 400 && text.contains(told), "{path}: {text}");
}

#[tokio::test]
async fn a_call_of_text_that_is_refused_breaks_its_sequence() {
    let server = explicit().await;
    with_chat(&server).await;
    let at = server.http();
    for path in ["generate", "generate_stream"] {
        let (status, text) = say(at, path, r#""a""#, STARTS).await;
        assert_eq!(status, 200, "{text}");
        assert_eq!(say(at, path, r#""b""#, "").await.0, 200);
        let (status, text) = say(at, path, "7", "").await;
        assert!(status == 400 && text.contains("'text_input'"), "{text}");
        is_broken(&server, path).await;
    }
    end(server).await;
}

#[tokio::test]
async fn a_call_of_text_that_finds_no_room_breaks_its_sequence() {
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        o.max_in_flight = 1;
        o.drain = Duration::from_millis(1);
    })
    .await;
    with_chat(&server).await;
    let at = server.http();
    for path in ["generate", "generate_stream"] {
        assert_eq!(say(at, path, r#""a""#, STARTS).await.0, 200);
        server.gate.shut();
        // Another sequence of the same model.
        let body = r#"{"text_input":"a","parameters":{"sequence_id":2,"sequence_start":true}}"#;
        let other = format!("/v2/models/chat/{path}");
        let running = tokio::spawn(async move { call(at, "POST", &other, body).await });
        soon("it runs", || server.gate.holding() == 1).await;
        let (status, text) = say(at, path, r#""b""#, "").await;
        let told = "the server has 1 inference calls in flight";
        assert!(status == 503 && text.contains(told), "{text}");
        server.gate.open();
        assert_eq!(running.await.unwrap().0, 200);
        is_broken(&server, path).await;
    }
    end(server).await;
}

#[tokio::test]
async fn a_start_of_text_that_a_draining_server_refuses_breaks_its_sequence() {
    for path in ["generate", "generate_stream"] {
        let mut server = start(|o| {
            o.control = Control::Explicit(Vec::new());
            o.drain = Duration::from_secs(3600);
        })
        .await;
        with_chat(&server).await;
        let at = server.http();
        assert_eq!(say(at, path, r#""a""#, STARTS).await.0, 200);
        // Another one that keeps the server.
        let body = r#"{"text_input":"a","parameters":{"sequence_id":2,"sequence_start":true}}"#;
        let other = format!("/v2/models/chat/{path}");
        assert_eq!(call(at, "POST", &other, body).await.0, 200);
        server.end();
        soon("it stops", || server.state.is_stopping()).await;
        assert_eq!(say(at, path, r#""b""#, "").await.0, 200, "it goes on");
        let (status, text) = say(at, path, r#""b""#, STARTS).await;
        assert!(status == 503 && text.contains("stopping"), "{text}");
        is_broken(&server, path).await;
        assert_eq!(server.state.num_sequences(), 1);
        let end = body.replace("sequence_start", "sequence_end");
        assert_eq!(call(at, "POST", &other, &end).await.0, 200);
        let in_time = tokio::time::timeout(Duration::from_secs(30), server.ended()).await;
        in_time.expect("no sequence can go on");
    }
}
