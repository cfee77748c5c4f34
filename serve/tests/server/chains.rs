//! Ensembles that one program cannot express: they answer what their steps do, called one after
//! another, and come, change and go with those.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;

use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat};
use lazybatch_serve::Control;
use lazybatch_serve::model::Runs;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest};
use tonic::Status;

use super::common::{Running, call, soon, speaker, start, until};
use super::ensembles::{config, decoder, end, ready, repository, scale, write};

/// A tensor of the protocol: name, type, shape and bytes.
pub type Tensor = (String, String, Vec<i64>, Vec<u8>);

pub fn floats(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name.into(), "FP32".into(), shape.to_vec(), bytes)
}

fn ids(name: &str, shape: &[i64], values: &[i32]) -> Tensor {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name.into(), "INT32".into(), shape.to_vec(), bytes)
}

fn texts(name: &str, values: &[&str]) -> Tensor {
    let one = |text: &&str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let bytes = values.iter().flat_map(one).collect();
    (
        name.into(),
        "BYTES".into(),
        vec![values.len() as i64, 1],
        bytes,
    )
}

/// The same tensor under another name.
fn renamed(tensor: &Tensor, name: &str) -> Tensor {
    let mut tensor = tensor.clone();
    tensor.0 = name.into();
    tensor
}

/// What a model answers, over gRPC as bytes.
pub async fn infer_with(
    server: &Running,
    model: &str,
    inputs: &[Tensor],
    parameters: &[(&str, ParameterChoice)],
) -> Result<Vec<Tensor>, Status> {
    let stated = inputs
        .iter()
        .map(|(name, datatype, shape, _)| InferInputTensor {
            name: name.clone(),
            datatype: datatype.clone(),
            shape: shape.clone(),
            ..InferInputTensor::default()
        });
    let parameter = |(key, choice): &(&str, ParameterChoice)| {
        let parameter_choice = Some(choice.clone());
        ((*key).to_owned(), InferParameter { parameter_choice })
    };
    let request = ModelInferRequest {
        model_name: model.into(),
        inputs: stated.collect(),
        raw_input_contents: inputs.iter().map(|t| t.3.clone().into()).collect(),
        parameters: parameters.iter().map(parameter).collect(),
        ..ModelInferRequest::default()
    };
    let answer = server.grpc().await.model_infer(request).await?.into_inner();
    let outputs = answer.outputs.into_iter().zip(answer.raw_output_contents);
    let outputs = outputs.map(|(o, bytes)| (o.name, o.datatype, o.shape, bytes.to_vec()));
    Ok(outputs.collect())
}

pub async fn infer(server: &Running, model: &str, inputs: &[Tensor]) -> Vec<Tensor> {
    infer_with(server, model, inputs, &[]).await.unwrap()
}

/// A step of an ensemble: its model, and its inputs and outputs with their tensors.
pub fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let maps = |way: &str, all: &[(&str, &str)]| -> String {
        let one = |(key, value): &(&str, &str)| {
            format!("{way}_map {{ key: \"{key}\" value: \"{value}\" }} ")
        };
        all.iter().map(one).collect()
    };
    let (inputs, outputs) = (maps("input", inputs), maps("output", outputs));
    format!("step {{ model_name: \"{model}\" {inputs}{outputs} }}\n")
}

/// Writes an ensemble of these inputs and outputs, each with what is said of it.
pub fn ensemble(
    server: &Running,
    name: &str,
    inputs: &[(&str, &str)],
    outputs: &[(&str, &str)],
    steps: &[String],
) {
    let edge = |way: &str, all: &[(&str, &str)]| -> String {
        let one = |(name, what): &(&str, &str)| format!("{way} {{ name: \"{name}\" {what} }}\n");
        all.iter().map(one).collect()
    };
    let text = format!(
        "platform: \"ensemble\" max_batch_size: 4\n{}{}ensemble_scheduling {{ {} }}",
        edge("input", inputs),
        edge("output", outputs),
        steps.concat()
    );
    config(server, name, &text);
}

pub const PAIR: &str = "data_type: TYPE_FP32 dims: 2";
const THREE: &str = "data_type: TYPE_FP32 dims: 3";
const IDS: &str = "data_type: TYPE_INT32 dims: -1";
const TEXT: &str = "data_type: TYPE_STRING dims: 1";

/// Ids below `bound`, as many as there are, to the mean of their rows of a table.
fn mean(bound: usize) -> Program {
    let mut b = ProgramBuilder::new("mean").with_seed(7);
    let ids = b.sequence_ids("ids", 20, bound);
    let y = b.output("y", DType::F32, &[3]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("ids", ids);
    let v = b.embed("table", v, bound, 3);
    let v = b.mean_rows("mean", v);
    b.emit("y", y, v);
    b.finish().unwrap()
}

/// `z = x + y`, of three numbers.
fn adder() -> Program {
    let mut b = ProgramBuilder::new("adder");
    let (x, y) = (
        b.input("x", DType::F32, &[3]),
        b.input("y", DType::F32, &[3]),
    );
    let z = b.output("z", DType::F32, &[3]);
    b.begin_block("main", Repeat::Once);
    let (x, y) = (b.read_input("x", x), b.read_input("y", y));
    let sum = b.binary("sum", Bin::Add, x, y);
    b.emit("z", z, sum);
    b.finish().unwrap()
}

/// `y` is the sum of all `x` of the sequence.
pub fn sums() -> Program {
    let mut b = ProgramBuilder::new("sums");
    let (x, h) = (
        b.input("x", DType::F32, &[2]),
        b.input("h", DType::F32, &[2]),
    );
    let y = b.output("y", DType::F32, &[2]);
    let next = b.output("h_next", DType::F32, &[2]);
    b.carry(next, h);
    b.begin_block("net", Repeat::Once);
    let (x, h) = (b.read_input("x", x), b.read_input("h", h));
    let sum = b.binary("sum", Bin::Add, x, h);
    b.emit("y", y, sum);
    b.emit("h_next", next, sum);
    b.finish().unwrap()
}

pub async fn explicit() -> Running {
    start(|o| o.control = Control::Explicit(Vec::new())).await
}

pub async fn load(server: &Running, model: &str) {
    let (status, text) = repository(server, model, "load", "").await;
    assert_eq!(status, 200, "{text}");
}

/// Why a model that is loaded is a chain.
pub fn why(server: &Running, model: &str) -> String {
    match &server.state.repository.get(model, "").unwrap().runs {
        Runs::Chain(chain) => chain.why.clone(),
        Runs::Program(_) => panic!("{model} is one program"),
    }
}

/// The ensemble `told`, whose second step reads what a decoder wrote.
pub async fn with_told(server: &Running, bound: usize) {
    write(server, "decoder", &decoder());
    write(server, "mean", &mean(bound));
    let steps = [
        step("decoder", &[("x", "x")], &[("tokens", "words")]),
        step("mean", &[("ids", "words")], &[("y", "y")]),
    ];
    ensemble(server, "told", &[("x", PAIR)], &[("y", THREE)], &steps);
    load(server, "told").await;
}

#[tokio::test]
async fn what_a_decoder_wrote_is_read_by_a_second_model() {
    let server = explicit().await;
    with_told(&server, 7).await;
    let told = why(&server, "told");
    assert!(told.contains("a row for each pass of a loop"), "{told}");
    for samples in 1..=4 {
        let values: Vec<f32> = (0..2 * samples).map(|i| i as f32 * 0.7 - 1.0).collect();
        let given = floats("x", &[samples, 2], &values);
        let words = infer(&server, "decoder", std::slice::from_ref(&given)).await;
        let words = words.iter().find(|t| t.0 == "tokens").unwrap();
        let wanted = infer(&server, "mean", &[renamed(words, "ids")]).await;
        assert_eq!(infer(&server, "told", &[given]).await, wanted);
    }
    end(server).await;
}

#[tokio::test]
async fn text_goes_from_step_to_step() {
    let server = explicit().await;
    let mut speaks = decoder();
    speaks.name = "speaker".into();
    write(&server, "first", &speaks);
    write(&server, "second", &speaks);
    write(&server, "long", &speaker(3, 4));
    let (read, written) = ("text_input", "text_output");
    let steps = [
        step("first", &[(read, read)], &[(written, "words")]),
        step("second", &[(read, "words")], &[(written, written)]),
    ];
    ensemble(&server, "chat", &[(read, TEXT)], &[(written, TEXT)], &steps);
    // Under names of its own at the edge, and read by two.
    let steps = [
        step("long", &[(read, "QUESTION")], &[(written, "said")]),
        step("first", &[(read, "said")], &[(written, "ANSWER")]),
        step("second", &[(read, "QUESTION")], &[(written, "OTHER")]),
    ];
    let outputs = [("ANSWER", TEXT), ("OTHER", TEXT), ("said", TEXT)];
    ensemble(&server, "both", &[("QUESTION", TEXT)], &outputs, &steps);
    for model in ["chat", "both"] {
        load(&server, model).await;
    }
    let told = why(&server, "chat");
    assert!(
        told.contains("step 0, model first: text_output: expected the ensemble's own"),
        "{told}"
    );
    let given = texts(read, &["four", "seventh"]);
    let one = |answer: Vec<Tensor>, name: &str| answer.into_iter().find(|t| t.0 == name).unwrap();
    let say = async |model: &str, text: &Tensor| {
        one(infer(&server, model, &[renamed(text, read)]).await, written)
    };
    let words = say("first", &given).await;
    let wanted = say("second", &words).await;
    assert_eq!(
        infer(&server, "chat", std::slice::from_ref(&given)).await,
        std::slice::from_ref(&wanted)
    );
    let said = say("long", &given).await;
    let wanted_both = [
        renamed(&say("first", &said).await, "ANSWER"),
        renamed(&say("second", &given).await, "OTHER"),
        renamed(&said, "said"),
    ];
    assert_eq!(
        infer(&server, "both", &[renamed(&given, "QUESTION")]).await,
        wanted_both
    );
    // As text, whole and at the end of a stream.
    let (len, text) = wanted.3.split_at(4);
    let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
    let first = std::str::from_utf8(&text[..len]).unwrap();
    for how in ["generate", "generate_stream"] {
        let path = format!("/v2/models/chat/{how}");
        let (status, answer) = call(server.http(), "POST", &path, r#"{"text_input":"four"}"#).await;
        let told = format!("\"text_output\":\"{first}\"");
        assert!(
            status == 200 && answer.matches(&told).count() == 1,
            "{answer}"
        );
    }
    end(server).await;
}

#[tokio::test]
async fn sequences_of_an_ensemble_differ_in_length() {
    let server = explicit().await;
    write(&server, "decoder", &decoder());
    write(&server, "mean", &mean(7));
    write(&server, "adder", &adder());
    let steps = [
        step("adder", &[("x", "both"), ("y", "c")], &[("z", "z")]),
        step("adder", &[("x", "a"), ("y", "b")], &[("z", "both")]),
        step("mean", &[("ids", "left")], &[("y", "a")]),
        step("mean", &[("ids", "right")], &[("y", "b")]),
        step("decoder", &[("x", "x")], &[("tokens", "words")]),
        step("mean", &[("ids", "words")], &[("y", "c")]),
    ];
    let inputs = [("x", PAIR), ("left", IDS), ("right", IDS)];
    ensemble(&server, "whole", &inputs, &[("z", THREE)], &steps);
    load(&server, "whole").await;
    let (left, right) = (
        ids("ids", &[1, 2], &[1, 5]),
        ids("ids", &[1, 7], &[6, 0, 3, 2, 1, 4, 4]),
    );
    let x = floats("x", &[1, 2], &[0.25, -2.0]);
    let tokens = infer(&server, "decoder", std::slice::from_ref(&x)).await;
    let mean = async |of: &Tensor| {
        infer(&server, "mean", &[renamed(of, "ids")])
            .await
            .remove(0)
    };
    let add = async |x: &Tensor, y: &Tensor| {
        infer(&server, "adder", &[renamed(x, "x"), renamed(y, "y")])
            .await
            .remove(0)
    };
    let both = add(&mean(&left).await, &mean(&right).await).await;
    let wanted = add(&both, &mean(&tokens[0]).await).await;
    let given = [x, renamed(&left, "left"), renamed(&right, "right")];
    assert_eq!(infer(&server, "whole", &given).await, [wanted]);
    end(server).await;
}

/// Two models between which numbers are rounded to FP16, and the ensemble `rounded` of them.
pub async fn with_rounded(server: &Running) {
    for (name, factor, types) in [
        ("third", 1.0 / 3.0, ["FP32", "FP16"]),
        ("back", 3.0, ["FP16", "FP32"]),
    ] {
        write(server, name, &scale(factor));
        let edge =
            |name: &str, of: &str| format!("{{ name: \"{name}\" data_type: TYPE_{of} dims: 2 }}");
        let (x, y) = (edge("x", types[0]), edge("y", types[1]));
        config(
            server,
            name,
            &format!("max_batch_size: 8 input {x} output {y}"),
        );
    }
    let steps = [
        step("third", &[("x", "x")], &[("y", "mid")]),
        step("back", &[("x", "mid")], &[("y", "y")]),
    ];
    ensemble(server, "rounded", &[("x", PAIR)], &[("y", PAIR)], &steps);
    load(server, "rounded").await;
}

#[tokio::test]
async fn what_is_handed_on_may_be_rounded() {
    let server = explicit().await;
    with_rounded(&server).await;
    assert!(why(&server, "rounded").contains("tensor mid: data_type: expected a type that holds"));
    let given = floats("x", &[2, 2], &[1.0, 2.0, 0.1, -7.7]);
    let mid = infer(&server, "third", std::slice::from_ref(&given)).await;
    assert_eq!(mid[0].1, "FP16");
    let wanted = infer(&server, "back", &[renamed(&mid[0], "x")]).await;
    assert_ne!(wanted[0].3, given.3, "it was rounded");
    assert_eq!(infer(&server, "rounded", &[given]).await, wanted);
    end(server).await;
}

#[tokio::test]
async fn chains_are_steps_as_well() {
    let server = explicit().await;
    with_rounded(&server).await;
    write(&server, "twice", &scale(2.0));
    let pair = [
        step("twice", &[("x", "x")], &[("y", "m")]),
        step("twice", &[("x", "m")], &[("y", "y")]),
    ];
    ensemble(&server, "joined", &[("x", PAIR)], &[("y", PAIR)], &pair);
    let steps = [
        step("rounded", &[("x", "x")], &[("y", "a")]),
        step("joined", &[("x", "a")], &[("y", "y")]),
    ];
    ensemble(&server, "outer", &[("x", PAIR)], &[("y", PAIR)], &steps);
    // Its step is loaded with it, and what that is made of.
    load(&server, "outer").await;
    assert!(ready(&server, "joined") && ready(&server, "twice"));
    assert!(
        server
            .state
            .repository
            .get("joined", "")
            .unwrap()
            .program()
            .is_some()
    );
    let told = why(&server, "outer");
    assert!(
        told.contains("step 0, model rounded: expected one program, got a chain"),
        "{told}"
    );
    let given = floats("x", &[1, 2], &[0.3, 5.0]);
    let mid = infer(&server, "rounded", std::slice::from_ref(&given)).await;
    let wanted = infer(&server, "joined", &[renamed(&mid[0], "x")]).await;
    assert_eq!(
        infer(&server, "outer", std::slice::from_ref(&given)).await,
        wanted
    );
    // Errors lead down to the step.
    server.gate.fail();
    let error = infer_with(&server, "outer", &[given], &[])
        .await
        .unwrap_err();
    let told = "step 0, model rounded: step 0, model third: ";
    assert!(error.message().starts_with(told), "{error}");
    end(server).await;
}

#[tokio::test]
async fn a_chain_is_served_on_without_its_steps() {
    let server = explicit().await;
    with_rounded(&server).await;
    let given = floats("x", &[1, 2], &[1.0, 2.0]);
    let wanted = infer(&server, "rounded", std::slice::from_ref(&given)).await;
    server.gate.shut();
    let call = infer(&server, "rounded", std::slice::from_ref(&given));
    let unload = async {
        until(|| server.gate.holding() == 1).await;
        for model in ["third", "back"] {
            assert_eq!(repository(&server, model, "unload", "").await.0, 200);
            assert!(!ready(&server, model));
        }
        server.gate.open();
    };
    let (answer, ()) = tokio::join!(call, unload);
    assert_eq!(answer, wanted);
    assert_eq!(infer(&server, "rounded", &[given]).await, wanted);
    // Loaded anew it brings its steps again, and takes them along.
    load(&server, "rounded").await;
    assert!(ready(&server, "third") && ready(&server, "back"));
    let dependents = r#"{"parameters": {"unload_dependents": true}}"#;
    assert_eq!(
        repository(&server, "rounded", "unload", dependents).await.0,
        200
    );
    assert!(!ready(&server, "third") && !ready(&server, "rounded"));
    end(server).await;
}

#[tokio::test]
async fn a_chain_follows_the_files_of_its_steps() {
    let server = start(|o| o.control = Control::Poll).await;
    let write_all = |factor| {
        write(&server, "zz_step", &scale(factor));
        let half = "max_batch_size: 8 input { name: \"x\" data_type: TYPE_FP16 dims: 2 }
            output { name: \"y\" data_type: TYPE_FP16 dims: 2 }";
        config(&server, "zz_step", half);
    };
    write_all(2.0);
    let steps = [
        step("zz_step", &[("x", "x")], &[("y", "mid")]),
        step("zz_step", &[("x", "mid")], &[("y", "y")]),
    ];
    let half = "data_type: TYPE_FP16 dims: 2";
    ensemble(&server, "again", &[("x", half)], &[("y", half)], &steps);
    let repository = &server.state.repository;
    repository.poll();
    let one = (
        String::from("x"),
        String::from("FP16"),
        vec![1, 2],
        vec![0, 0x3c, 0, 0x40],
    );
    let ask = async || {
        infer(&server, "again", std::slice::from_ref(&one))
            .await
            .remove(0)
            .3
    };
    assert_eq!(ask().await, [0, 0x44, 0, 0x48], "4 and 8");
    let before = repository.get("again", "").unwrap().generation;
    repository.poll();
    assert_eq!(repository.get("again", "").unwrap().generation, before);
    write_all(0.5);
    repository.poll();
    assert_eq!(ask().await, [0, 0x34, 0, 0x38], "a quarter and a half");
    fs::remove_dir_all(server.models.path().join("zz_step")).unwrap();
    repository.poll();
    assert!(!ready(&server, "zz_step"));
    assert_eq!(ask().await, [0, 0x34, 0, 0x38]);
    end(server).await;
}

#[tokio::test]
async fn steps_of_sequences_are_told_where_a_request_stands() {
    let server = explicit().await;
    write(&server, "sums", &sums());
    config(
        &server,
        "sums",
        "max_batch_size: 1 sequence_batching { state { input_name: \"h\" output_name: \"h_next\" } }",
    );
    write(&server, "twice", &scale(2.0));
    let steps = [
        step("twice", &[("x", "x")], &[("y", "mid")]),
        step("sums", &[("x", "mid")], &[("y", "y")]),
    ];
    ensemble(&server, "running", &[("x", PAIR)], &[("y", PAIR)], &steps);
    let path = server.models.path().join("running/config.pbtxt");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("max_batch_size: 4", "max_batch_size: 1"),
    )
    .unwrap();
    load(&server, "running").await;
    assert!(why(&server, "running").contains("expected a model without sequences"));
    let given = [floats("x", &[1, 2], &[1.0, 0.5])];
    let ask = async |id: i64, starts: bool, ends: bool, params: &[(&str, ParameterChoice)]| {
        let mut all = params.to_vec();
        all.extend([
            ("sequence_id", ParameterChoice::Int64Param(id)),
            ("sequence_start", ParameterChoice::BoolParam(starts)),
            ("sequence_end", ParameterChoice::BoolParam(ends)),
        ]);
        infer_with(&server, "running", &given, &all).await
    };
    let sum = |of: f32| floats("y", &[1, 2], &[2.0 * of, of]);
    assert_eq!(ask(1, true, false, &[]).await.unwrap(), [sum(1.0)]);
    assert_eq!(ask(2, true, false, &[]).await.unwrap(), [sum(1.0)]);
    assert_eq!(ask(1, false, false, &[]).await.unwrap(), [sum(2.0)]);
    // Behind one that did not come to its step nothing goes on.
    server.gate.fail();
    ask(1, false, false, &[]).await.unwrap_err();
    let error = ask(1, false, false, &[]).await.unwrap_err();
    let told =
        "step 1, model sums: failed: a request before it in sequence 1 was refused (step 0, ";
    assert!(error.message().starts_with(told), "{error}");
    let wrong = [("sla_class", ParameterChoice::StringParam("none".into()))];
    ask(2, false, false, &wrong).await.unwrap_err();
    let error = ask(2, false, false, &[]).await.unwrap_err();
    assert!(
        error.message().contains("in sequence 2 was refused"),
        "{error}"
    );
    assert_eq!(ask(1, true, true, &[]).await.unwrap(), [sum(1.0)]);
    let error = infer_with(&server, "running", &given, &[])
        .await
        .unwrap_err();
    assert!(
        error
            .message()
            .contains("to model 'running' must specify a non-zero"),
        "{error}"
    );
    end(server).await;
}

#[tokio::test]
async fn chains_that_cannot_be_are_refused_and_others_are_warmed_up() {
    let server = explicit().await;
    with_rounded(&server).await;
    write(&server, "mean", &mean(7));
    write(&server, "decoder", &decoder());
    let path = server.models.path().join("rounded/config.pbtxt");
    let good = fs::read_to_string(&path).unwrap();
    let warmup = |what: &str| {
        format!(
            "{good} model_warmup {{ name: \"w\" batch_size: 2 count: 2
            inputs {{ key: \"x\" value {{ data_type: TYPE_FP32 dims: {what} random_data: true }} }} }}
            response_cache {{ enable: true }}"
        )
    };
    for (text, told) in [
        (
            good.replace(
                "\"mid\" } output_map",
                "\"mid\" } output_map { key: \"z\" value: \"w\" } output_map",
            ),
            "step back: tensor w: expected one of the outputs y, got z",
        ),
        (
            good.replacen("output { name: \"y\"", "output { name: \"w\"", 1),
            "output w: expected a tensor that a step makes, got nothing makes it",
        ),
        (
            good.replace("input { name: \"x\"", "input { name: \"y\""),
            "tensor y: expected one place that it comes from, got the ensemble's input y and output y of \
             step back",
        ),
        (
            good.replacen("dims: 2", "dims: 3", 1),
            "step 0, model third: input x: tensor x: dims: expected [-1, 3], as input x, got [-1, 2]",
        ),
        (
            good.replacen("TYPE_FP32", "TYPE_FP16", 1),
            "step 0, model third: input x: tensor x: data_type: expected FP16, as input x, got FP32",
        ),
        (
            format!("{good} model_transaction_policy {{ decoupled: true }}"),
            "model_transaction_policy.decoupled: expected steps that are one program, got steps that are \
             not: step 0, model third: output y: tensor mid: data_type",
        ),
        (
            warmup("3"),
            "model_warmup sample 'w': unexpected shape for input 'x' for model 'bad'. Expected [-1, 2]",
        ),
    ] {
        config(&server, "bad", &text);
        let (status, answer) = repository(&server, "bad", "load", "").await;
        assert!(status == 400 && answer.contains(told), "{told}: {answer}");
    }
    config(&server, "warm", &warmup("2"));
    load(&server, "warm").await;
    for model in ["third", "back"] {
        let step = server.state.repository.get(model, "").unwrap();
        let ran = || step.engine().unwrap().stats().counters.finished == 2;
        soon(&format!("{model} ran both"), ran).await;
        assert_eq!(step.stats.success.count(), 0, "nobody asked");
    }
    let warm = server.state.repository.get("warm", "").unwrap();
    assert_eq!(warm.stats.success.count(), 0, "nobody asked");
    let given = floats("x", &[1, 2], &[1.0, 2.0]);
    let wanted = infer(&server, "rounded", std::slice::from_ref(&given)).await;
    assert_eq!(infer(&server, "warm", &[given]).await, wanted);
    drop(warm);
    end(server).await;
}
