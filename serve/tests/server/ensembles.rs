//! Ensembles: what they compute, and how they come, change and go with their steps.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;

use lazybatch_graph::{DType, Greedy, Program, ProgramBuilder, Repeat, WeightSource, folder};
use lazybatch_serve::Control;

use super::common::{Running, call, soon, start};

/// `y = factor x`, of two numbers.
pub fn scale(factor: f32) -> Program {
    let mut b = ProgramBuilder::new("scale");
    let x = b.input("x", DType::F32, &[2]);
    let y = b.output("y", DType::F32, &[2]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("read", x);
    let v = b.scale("times", v, factor);
    b.emit("emit", y, v);
    b.finish().unwrap()
}

/// Two numbers to at most five tokens; 4 stops.
pub fn decoder() -> Program {
    let mut b = ProgramBuilder::new("decoder").with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    let greedy = Greedy::new(&mut b, 1, 4);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: 5 });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 7, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 7, None);
    greedy.choose(&mut b, v);
    b.finish().unwrap()
}

pub fn write(server: &Running, model: &str, program: &Program) {
    let folder = server.models.path().join(model);
    fs::create_dir_all(&folder).unwrap();
    let version = folder.join("1");
    let _ = fs::remove_dir_all(&version);
    folder::save(program, &version).unwrap();
}

/// An ensemble that runs `steps` (model, input, output) one behind the other on `x`.
fn chain(server: &Running, name: &str, steps: &[(&str, &str, &str)], output: &str) {
    let mut text = format!(
        "platform: \"ensemble\" max_batch_size: 4
        input {{ name: \"x\" data_type: TYPE_FP32 dims: 2 }}
        output {{ name: \"t{}\" {output} }} ensemble_scheduling {{\n",
        steps.len()
    );
    for (i, (model, from, to)) in steps.iter().enumerate() {
        let tensor = |i: usize| {
            if i == 0 {
                "x".to_owned()
            } else {
                format!("t{i}")
            }
        };
        text += &format!(
            "step {{ model_name: \"{model}\" input_map {{ key: \"{from}\" value: \"{}\" }}
            output_map {{ key: \"{to}\" value: \"{}\" }} }}\n",
            tensor(i),
            tensor(i + 1)
        );
    }
    config(server, name, &(text + "}"));
}

pub fn config(server: &Running, model: &str, text: &str) {
    let folder = server.models.path().join(model);
    fs::create_dir_all(folder.join("1")).unwrap();
    fs::write(folder.join("config.pbtxt"), text).unwrap();
}

const FLOATS: &str = "data_type: TYPE_FP32 dims: 2";

/// What a model answers to `[1, 2]` at its input `x`: the data of its output.
pub async fn ask(server: &Running, model: &str) -> String {
    let path = format!("/v2/models/{model}/infer");
    let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}"#;
    let (status, text) = call(server.http(), "POST", &path, body).await;
    assert_eq!(status, 200, "{text}");
    let (_, data) = text.split_once("\"data\":[").unwrap();
    data.split_once(']').unwrap().0.to_owned()
}

pub async fn repository(server: &Running, model: &str, verb: &str, body: &str) -> (u16, String) {
    let path = format!("/v2/repository/models/{model}/{verb}");
    call(server.http(), "POST", &path, body).await
}

pub fn ready(server: &Running, model: &str) -> bool {
    server.state.repository.get(model, "").is_ok()
}

pub async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn an_ensemble_follows_the_files_of_its_steps() {
    let server = start(|o| o.control = Control::Poll).await;
    write(&server, "zz_step", &scale(2.0));
    write(&server, "a_step", &scale(5.0));
    // Named before its steps, and a step itself of another.
    chain(
        &server,
        "middle",
        &[("zz_step", "x", "y"), ("a_step", "x", "y")],
        FLOATS,
    );
    chain(
        &server,
        "again",
        &[("middle", "x", "t2"), ("zz_step", "x", "y")],
        FLOATS,
    );
    let repository = &server.state.repository;
    repository.poll();
    assert_eq!(ask(&server, "middle").await, "10.0,20.0");
    assert_eq!(ask(&server, "again").await, "20.0,40.0");
    let program = |model: &str| repository.get(model, "").unwrap().generation;
    let before = ["middle", "again", "a_step", "zz_step"].map(program);
    repository.poll();
    assert_eq!(
        before,
        ["middle", "again", "a_step", "zz_step"].map(program),
        "nothing changed"
    );
    write(&server, "zz_step", &scale(3.0));
    repository.poll();
    assert_eq!(ask(&server, "zz_step").await, "3.0,6.0");
    assert_eq!(ask(&server, "middle").await, "15.0,30.0");
    assert_eq!(ask(&server, "again").await, "45.0,90.0");
    assert_eq!(program("a_step"), before[2], "this one did not change");
    // A step that goes leaves the ensembles as they are.
    fs::remove_dir_all(server.models.path().join("a_step")).unwrap();
    repository.poll();
    assert!(!ready(&server, "a_step"));
    assert_eq!(ask(&server, "middle").await, "15.0,30.0");
    end(server).await;
}

#[tokio::test]
async fn steps_come_and_go_with_their_ensemble() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "two", &scale(2.0));
    write(&server, "three", &scale(3.0));
    chain(
        &server,
        "six",
        &[("two", "x", "y"), ("three", "x", "y")],
        FLOATS,
    );
    chain(
        &server,
        "four",
        &[("two", "x", "y"), ("two", "x", "y")],
        FLOATS,
    );
    for model in ["six", "four"] {
        let (status, text) = repository(&server, model, "load", "").await;
        assert_eq!(status, 200, "{text}");
    }
    assert!(ready(&server, "two") && ready(&server, "three"));
    assert_eq!(ask(&server, "six").await, "6.0,12.0");
    let four = server.state.repository.get("four", "").unwrap();
    assert_eq!(
        four.program().unwrap().blocks.len(),
        1,
        "one block of both steps"
    );
    assert_eq!(four.platform, "ensemble");
    drop(four);
    let dependents = r#"{"parameters": {"unload_dependents": true}}"#;
    let (status, text) = repository(&server, "six", "unload", dependents).await;
    assert_eq!(status, 200, "{text}");
    // The other ensemble still has this step.
    assert!(ready(&server, "two") && !ready(&server, "three") && !ready(&server, "six"));
    assert_eq!(ask(&server, "four").await, "4.0,8.0");
    let wrong = r#"{"parameters": {"unload_dependents": "yes"}}"#;
    let (status, text) = repository(&server, "four", "unload", wrong).await;
    assert!(
        status == 400 && text.contains("unload_dependents"),
        "{text}"
    );
    // A step on its own may go; the ensemble holds its program.
    assert_eq!(repository(&server, "two", "unload", "").await.0, 200);
    assert_eq!(ask(&server, "four").await, "4.0,8.0");
    end(server).await;
}

#[tokio::test]
async fn ensembles_follow_a_step_that_a_client_loads() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "two", &scale(2.0));
    write(&server, "three", &scale(3.0));
    let steps = [("two", "x", "y"), ("three", "x", "y")];
    chain(&server, "six", &steps, FLOATS);
    let steps = [("six", "x", "t2"), ("two", "x", "y")];
    chain(&server, "twelve", &steps, FLOATS);
    for model in ["twelve", "six"] {
        assert_eq!(repository(&server, model, "load", "").await.0, 200);
    }
    let generation = |model: &str| {
        let served = server.state.repository.get(model, "").unwrap();
        served.generation
    };
    let three = generation("three");
    assert_eq!(ask(&server, "twelve").await, "12.0,24.0");
    write(&server, "two", &scale(5.0));
    assert_eq!(ask(&server, "twelve").await, "12.0,24.0");
    assert_eq!(repository(&server, "two", "load", "").await.0, 200);
    assert_eq!(ask(&server, "two").await, "5.0,10.0");
    assert_eq!(ask(&server, "six").await, "15.0,30.0");
    assert_eq!(ask(&server, "twelve").await, "75.0,150.0");
    assert_eq!(generation("three"), three, "it did not change");
    // One that is not served stays so, and one that does not fit any more is served as it was.
    assert_eq!(repository(&server, "twelve", "unload", "").await.0, 200);
    write(&server, "two", &decoder());
    assert_eq!(repository(&server, "two", "load", "").await.0, 200);
    assert!(!ready(&server, "twelve"));
    assert_eq!(ask(&server, "six").await, "15.0,30.0");
    end(server).await;
}

/// Requests, samples, executions, and the nanoseconds of all stages.
fn figures(server: &Running, model: &str) -> ([u64; 4], u64) {
    let served = server.state.repository.get(model, "").unwrap();
    let told = served.statistics();
    let of = told.inference_stats.unwrap();
    let stages = [
        of.queue,
        of.compute_input,
        of.compute_infer,
        of.compute_output,
    ];
    let stages = stages.map(Option::unwrap);
    assert!(stages.iter().all(|s| s.count == stages[0].count));
    let counts = [
        of.success.unwrap().count,
        stages[0].count,
        told.inference_count,
        told.execution_count,
    ];
    (counts, stages.iter().map(|s| s.ns).sum())
}

#[tokio::test]
async fn requests_to_an_ensemble_count_at_the_models_of_its_steps() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "two", &scale(2.0));
    write(&server, "three", &scale(3.0));
    let steps = [("two", "x", "y"), ("three", "x", "y")];
    chain(&server, "six", &steps, FLOATS);
    let steps = [("six", "x", "t2"), ("two", "x", "y")];
    chain(&server, "twelve", &steps, FLOATS);
    assert_eq!(repository(&server, "twelve", "load", "").await.0, 200);
    for _ in 0..3 {
        ask(&server, "twelve").await;
    }
    ask(&server, "six").await;
    ask(&server, "two").await;
    // Every step counts, one that two of them are twice.
    for (model, num) in [
        ("twelve", 3),
        ("six", 3 + 1),
        ("three", 4),
        ("two", 3 + 4 + 1),
    ] {
        assert_eq!(figures(&server, model).0, [num; 4], "{model}");
    }
    let (_, text) = call(server.metrics(), "GET", "/metrics", "").await;
    for line in [
        r#"nv_inference_request_success{model="two",version="1"} 8"#,
        r#"nv_inference_count{model="three",version="1"} 4"#,
        r#"nv_inference_exec_count{model="two",version="1"} 8"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    // What is refused counts at the ensemble alone.
    let wrong = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}"#;
    let path = "/v2/models/six/infer";
    assert_eq!(call(server.http(), "POST", path, wrong).await.0, 400);
    assert_eq!(figures(&server, "three").0, [4; 4]);
    // Time is shared: the steps have no more than the whole.
    let (_, before) = figures(&server, "twelve");
    let (_, shared) = figures(&server, "three");
    let (_, own) = figures(&server, "six");
    assert!(shared > 0 && shared <= own && own <= before + own);
    end(server).await;
}

/// Who comes while another is in the second step runs the first alone, catches up, and both are in
/// one launch from there: batches are those of the whole, not of a step.
#[tokio::test]
async fn requests_at_different_steps_of_an_ensemble_meet_in_one_launch() {
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        o.policy = "lazy".into();
    })
    .await;
    write(&server, "two", &scale(2.0));
    write(&server, "three", &scale(3.0));
    let steps = ["two", "three", "two", "three"].map(|step| (step, "x", "y"));
    chain(&server, "many", &steps, FLOATS);
    let (status, text) = repository(&server, "many", "load", "").await;
    assert_eq!(status, 200, "{text}");
    let samples = |from: usize| {
        let order = server.gate.order();
        order[from..].iter().map(|l| l.1).collect::<Vec<_>>()
    };
    let before = server.gate.order().len();
    assert_eq!(ask(&server, "many").await, "36.0,72.0");
    let nodes = samples(before).len();
    assert_eq!(samples(before), vec![1; nodes], "alone");
    assert!(nodes > steps.len(), "a launch a node");
    // The third launch is one of the second step: the input is read, and multiplied once.
    let behind = before + nodes;
    server.gate.shut_behind(2);
    let served = server.state.repository.get("many", "").unwrap();
    let requests = async {
        tokio::join!(ask(&server, "many"), async {
            soon("the first is held", || server.gate.holding() == 1).await;
            let second = ask(&server, "many");
            let open = async {
                let waits = || served.engine().unwrap().figures().waiting == 1;
                soon("the second came", waits).await;
                server.gate.open();
            };
            tokio::join!(second, open).0
        })
    };
    let (first, second) = requests.await;
    assert_eq!([&*first, &*second], ["36.0,72.0"; 2]);
    // Three of the first alone, the same three of the second, and what is left of both.
    let mut expected = vec![1; 6];
    expected.extend(vec![2; nodes - 3]);
    assert_eq!(samples(behind), expected);
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn a_step_that_was_loaded_as_itself_stays_without_its_ensemble() {
    let server = start(|o| {
        o.control = Control::Explicit(vec!["own".into()]);
        folder::save(&scale(2.0), &o.models.join("own/1")).unwrap();
    })
    .await;
    for step in ["asked", "brought"] {
        write(&server, step, &scale(2.0));
    }
    let steps = ["own", "asked", "brought"].map(|step| (step, "x", "y"));
    chain(&server, "all", &steps, FLOATS);
    let call = async |model: &str, verb: &str, body: &str| {
        let (status, text) = repository(&server, model, verb, body).await;
        assert_eq!(status, 200, "{text}");
    };
    call("all", "load", "").await;
    // Behind the ensemble, which has loaded it.
    call("asked", "load", "").await;
    assert!(
        ["own", "asked", "brought", "all"]
            .iter()
            .all(|m| ready(&server, m))
    );
    let dependents = r#"{"parameters":{"unload_dependents":true}}"#;
    call("all", "unload", dependents).await;
    let there = ["own", "asked", "brought", "all"].map(|m| ready(&server, m));
    assert_eq!(there, [true, true, false, false]);
    // Who unloads it does not want it as itself any more.
    call("asked", "unload", "").await;
    call("all", "load", "").await;
    call("all", "unload", dependents).await;
    let there = ["own", "asked", "brought", "all"].map(|m| ready(&server, m));
    assert_eq!(there, [true, false, false, false]);
    end(server).await;
}

#[tokio::test]
async fn a_decoder_may_be_the_last_step() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "scale", &scale(0.5));
    write(&server, "decoder", &decoder());
    let tokens = "data_type: TYPE_INT32 dims: -1";
    let steps = [("scale", "x", "y"), ("decoder", "x", "tokens")];
    chain(&server, "whole", &steps, tokens);
    let (status, text) = repository(&server, "whole", "load", "").await;
    assert_eq!(status, 200, "{text}");
    let want = {
        let path = "/v2/models/decoder/infer";
        let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[0.5,1]}]}"#;
        let (status, text) = call(server.http(), "POST", path, body).await;
        assert_eq!(status, 200, "{text}");
        let (_, data) = text.split_once("\"data\":[").unwrap();
        data.split_once(']').unwrap().0.to_owned()
    };
    assert_eq!(ask(&server, "whole").await, want);
    let whole = server.state.repository.get("whole", "").unwrap();
    assert_eq!(whole.program().unwrap().metadata["stop_token"], "4");
    assert!(whole.has_steps());
    drop(whole);
    end(server).await;
}

#[tokio::test]
async fn weights_as_they_were_read_are_there_once() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    config(
        &server,
        "reader",
        "platform: \"ensemble\" max_batch_size: 4
        input { name: \"frames\" data_type: TYPE_FP32 dims: [-1, 16] }
        output { name: \"scores\" data_type: TYPE_FP32 dims: [-1, 4] }
        ensemble_scheduling { step { model_name: \"lstm\"
            input_map { key: \"x\" value: \"frames\" }
            output_map { key: \"scores\" value: \"scores\" } } }",
    );
    let (status, text) = repository(&server, "reader", "load", "").await;
    assert_eq!(status, 200, "{text}");
    let whole = server.state.repository.get("reader", "").unwrap();
    let alone = server.state.repository.get("lstm", "").unwrap();
    let bytes = |program: &Program, name: &str| {
        let weight = program.weights.iter().find(|w| w.name == name).unwrap();
        match &weight.source {
            WeightSource::Data(tensor) => Some(tensor.data.as_slice().as_ptr()),
            _ => None,
        }
    };
    let names = alone
        .program()
        .unwrap()
        .weights
        .iter()
        .map(|w| w.name.clone());
    let shared = names.filter(|name| {
        let own = bytes(alone.program().unwrap(), name);
        assert_eq!(
            bytes(whole.program().unwrap(), &format!("lstm/{name}")),
            own
        );
        own.is_some()
    });
    assert!(shared.count() > 0, "the file brings data");
    drop((whole, alone));
    end(server).await;
}

#[tokio::test]
async fn ensembles_that_cannot_be_are_refused_with_their_step() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "scale", &scale(2.0));
    write(&server, "decoder", &decoder());
    config(
        &server,
        "decoder",
        "model_transaction_policy { decoupled: true }",
    );
    write(&server, "small", &scale(2.0));
    config(&server, "small", "max_batch_size: 2");
    chain(&server, "one", &[("two", "x", "t1")], FLOATS);
    chain(&server, "two", &[("one", "x", "t1")], FLOATS);
    let simple = [("scale", "x", "y"), ("scale", "x", "y")];
    chain(&server, "good", &simple, FLOATS);
    let good = fs::read_to_string(server.models.path().join("good/config.pbtxt")).unwrap();
    for (text, told) in [
        (
            good.replace("platform: \"ensemble\"", "platform: \"onnxruntime_onnx\""),
            "platform, beside ensemble_scheduling: expected ensemble, got onnxruntime_onnx",
        ),
        (
            "platform: \"ensemble\"".into(),
            "expected steps, as the platform is ensemble, got none",
        ),
        (
            good.replacen("model_name: \"scale\"", "", 1),
            "step 0: model_name: expected the name of a",
        ),
        (
            good.replacen(
                "model_name: \"scale\"",
                "model_name: \"scale\" model_version: 3",
                1,
            ),
            "step 0, model scale: model_version: expected one of [1], got 3",
        ),
        (
            good.replacen(
                "model_name: \"scale\"",
                "model_name: \"scale\" model_namespace: \"n\"",
                1,
            ),
            "step 0, model scale: model_namespace: expected none, got n",
        ),
        (
            good.replacen("input_map { key: \"x\" value: \"t1\" }", "", 1),
            "step 1, model scale: input_map: expected a tensor or more, got none",
        ),
        (
            good.replacen("key: \"y\"", "key: \"z\"", 1),
            "step scale#0: tensor t1: expected one of the outputs y, got z",
        ),
        (
            good.replacen("\"t1\" }", "\"t2\" }", 1),
            "tensor t2: expected one place that it comes from",
        ),
        (
            good.replacen("\"x\" data_type", "\"u\" data_type", 1),
            "expected an input of the ensemble or a tensor that a step makes, got tensor x",
        ),
        (
            good.replacen("output { name: \"t2\"", "output { name: \"t1\"", 1),
            "tensor t2: expected a step that reads it, or it among the outputs",
        ),
        (
            good.replacen("\"scale\"", "\"small\"", 1),
            "step 0, model small: max_batch_size: expected at least the ensemble's, 4, got 2",
        ),
        (
            good.replace("\"scale\"", "\"one\""),
            "expected none within itself",
        ),
        (
            good.replacen("data_type: TYPE_FP32", "data_type: TYPE_FP64", 1),
            "step 0, model scale: input x: tensor x: data_type: expected FP64, as input x, got FP32",
        ),
        (
            good.replacen("key: \"y\"", "key: \"tokens\"", 1).replacen(
                "\"scale\"",
                "\"decoder\"",
                1,
            ),
            "step 0, model decoder: expected a model that answers once",
        ),
        (
            good.replacen("dims: 2", "dims: 3", 1),
            "input x: dims: expected [2]",
        ),
    ] {
        config(&server, "bad", &text);
        let (status, answer) = repository(&server, "bad", "load", "").await;
        assert_eq!(status, 400, "{told}: {answer}");
        assert!(answer.contains(told), "{told}: {answer}");
    }
    let (status, text) = repository(&server, "good", "load", "").await;
    assert_eq!(status, 200, "{text}");
    end(server).await;
}

/// Text as its length, to two numbers.
fn reader() -> Program {
    let mut b = ProgramBuilder::new("reader");
    let x = b.input("x", DType::F32, &[2]);
    let y = b.output("y", DType::F32, &[2]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("read", x);
    let v = b.scale("twice", v, 2.0);
    b.emit("emit", y, v);
    b.finish().unwrap()
}

/// Writes an ensemble over text.
fn text_ensemble(server: &Running, name: &str, output: &str, steps: &str) {
    let text = format!(
        "platform: \"ensemble\" max_batch_size: 4
        input {{ name: \"text_input\" data_type: TYPE_STRING dims: 1 }}
        output {{ {output} }} ensemble_scheduling {{ {steps} }}"
    );
    config(server, name, &text);
}

fn step(model: &str, input: (&str, &str), output: (&str, &str)) -> String {
    let map = |way: &str, (key, value): (&str, &str)| {
        format!("{way}_map {{ key: \"{key}\" value: \"{value}\" }}")
    };
    let (input, output) = (map("input", input), map("output", output));
    format!("step {{ model_name: \"{model}\" {input} {output} }}\n")
}

/// The data of an answer to two texts.
async fn ask_text(server: &Running, model: &str) -> String {
    let path = format!("/v2/models/{model}/infer");
    let body = r#"{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[2,1],
        "data":["four","seventh"]}]}"#;
    let (status, text) = call(server.http(), "POST", &path, body).await;
    assert_eq!(status, 200, "{text}");
    let (_, data) = text.split_once("\"data\":[").unwrap();
    data.split_once(']').unwrap().0.to_owned()
}

#[tokio::test]
async fn ensembles_read_and_write_the_text_of_their_steps() {
    let server = start(|o| o.control = Control::Explicit(Vec::new())).await;
    write(&server, "reader", &reader());
    write(&server, "scaled", &scale(5.0));
    let mut speaks = decoder();
    speaks.name = "speaker".into();
    write(&server, "speaker", &speaks);
    // Text in, numbers out, over two steps.
    let steps = step("reader", ("text_input", "text_input"), ("y", "read"))
        + &step("scaled", ("x", "read"), ("y", "NUMBERS"));
    text_ensemble(
        &server,
        "measures",
        &format!("name: \"NUMBERS\" {FLOATS}"),
        &steps,
    );
    // Text in and out, and what the words are made of.
    let output = "name: \"TOKENS\" data_type: TYPE_INT32 dims: -1 } output {
        name: \"text_output\" data_type: TYPE_STRING dims: 1";
    let steps = step(
        "speaker",
        ("text_input", "text_input"),
        ("text_output", "text_output"),
    );
    let both = "output_map { key: \"tokens\" value: \"TOKENS\" } output_map {";
    text_ensemble(
        &server,
        "chat",
        output,
        &steps.replacen("output_map {", both, 1),
    );
    for model in ["measures", "chat", "speaker"] {
        let (status, text) = repository(&server, model, "load", "").await;
        assert_eq!(status, 200, "{text}");
    }
    assert_eq!(ask_text(&server, "measures").await, "40.0,10.0,70.0,10.0");
    let at = server.http();
    let said = async |model: &str, how: &str| {
        let path = format!("/v2/models/{model}/{how}");
        let (status, text) = call(at, "POST", &path, r#"{"text_input":"four"}"#).await;
        assert_eq!(status, 200, "{text}");
        let said = text.split("\"text_output\":\"").skip(1);
        said.map(|rest| rest.split_once('"').unwrap().0)
            .collect::<String>()
    };
    let alone = said("speaker", "generate").await;
    assert!(!alone.is_empty());
    assert_eq!(said("chat", "generate").await, alone);
    assert_eq!(said("chat", "generate_stream").await, alone);
    let served = server.state.repository.get("chat", "").unwrap();
    assert_eq!(served.known.outputs[0].name, "TOKENS");
    drop(served);
    for (steps, told) in [
        (
            step(
                "reader",
                ("text_input", "text_input"),
                ("text_output", "words"),
            ) + &step("scaled", ("x", "words"), ("y", "NUMBERS")),
            "step 1, model scaled: input x: tensor words: data_type: expected BYTES, as step 0, model \
             reader: output text_output: tensor words, got FP32",
        ),
        (
            step("scaled", ("text_input", "text_input"), ("y", "NUMBERS")),
            "step 0, model scaled: text_input: expected a model that reads text",
        ),
        (
            step("reader", ("text_input", "text_input"), ("y", "read"))
                + &step("reader", ("text_input", "text_input"), ("y", "NUMBERS")),
            "tensor read: expected a step that reads it, or it among the outputs",
        ),
    ] {
        text_ensemble(
            &server,
            "wrong",
            &format!("name: \"NUMBERS\" {FLOATS}"),
            &steps,
        );
        let (status, text) = repository(&server, "wrong", "load", "").await;
        assert!(status == 400 && text.contains(told), "{text}");
    }
    end(server).await;
}
