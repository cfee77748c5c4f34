//! What requests bring and configurations say at the edge: types, dimensions, parameters.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, folder};
use lazybatch_serve::Control;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, InferTensorContents, ModelInferRequest};
use serde_json::{Value as Json, json};

use crate::common::{Running, add, ask, call, is_sum, start, until};

/// Four numbers, and the same again.
fn same(dtype: DType) -> Program {
    let mut b = ProgramBuilder::new("same");
    let x = b.input("x", dtype, &[4]);
    let y = b.output("y", dtype, &[4]);
    b.begin_block("net", Repeat::Once);
    let v = b.read_input("read", x);
    b.emit("emit", y, v);
    b.finish().unwrap()
}

async fn explicit() -> Running {
    start(|o| o.control = Control::Explicit(Vec::new())).await
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// Loads `same` with a configuration.
async fn load(server: &Running, dtype: DType, config: &str) -> (u16, String) {
    let model = server.models.path().join("same");
    drop(fs::remove_dir_all(&model));
    folder::save(&same(dtype), &model.join("1")).unwrap();
    fs::write(model.join("config.pbtxt"), config).unwrap();
    call(server.http(), "POST", "/v2/repository/models/same/load", "").await
}

/// Tensors of the configuration.
fn tensors(input: &str, dims_in: &str, output: &str, dims_out: &str) -> String {
    format!(
        "input {{ name: \"x\" data_type: TYPE_{input} dims: {dims_in} }}
         output {{ name: \"y\" data_type: TYPE_{output} dims: {dims_out} }} "
    )
}

async fn infer(server: &Running, request: &Json) -> (u16, String) {
    let path = "/v2/models/same/infer";
    call(server.http(), "POST", path, &request.to_string()).await
}

/// A request of four numbers.
fn four(data_type: &str, shape: &[usize], data: [f64; 4]) -> Json {
    let data: Vec<Json> = match data_type.starts_with('F') {
        true => data.map(Json::from).into(),
        false => data.map(|x| Json::from(x as i64)).into(),
    };
    json!({ "inputs": [{ "name": "x", "datatype": data_type, "shape": shape, "data": data }] })
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_as_all_is() {
    let mut server = start(|_| {}).await;
    let (status, text) = call(server.http(), "GET", "/v2/models/%FF", "").await;
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let told: serde_json::Value = serde_json::from_str(body).unwrap();
    let why = told["error"].as_str().unwrap();
    assert!(status == 400 && why.contains("UTF-8"), "{text}");
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn floats_beyond_the_configurations_type_are_infinite() {
    let server = explicit().await;
    for (output, finite) in [("FP16", 0x7bff_u16), ("BF16", 0x4780)] {
        let config = "max_batch_size: 4 ".to_owned() + &tensors("FP32", "4", output, "4");
        assert_eq!(load(&server, DType::F32, &config).await.0, 200);
        let mut grpc = server.grpc().await;
        let given = [65504.0, f32::MAX, f32::MIN, f32::INFINITY];
        let request = ModelInferRequest {
            model_name: "same".into(),
            inputs: vec![InferInputTensor {
                name: "x".into(),
                datatype: "FP32".into(),
                shape: vec![1, 4],
                ..InferInputTensor::default()
            }],
            raw_input_contents: vec![given.map(f32::to_le_bytes).concat().into()],
            ..ModelInferRequest::default()
        };
        let answer = grpc.model_infer(request).await.unwrap().into_inner();
        let infinite = if output == "FP16" { 0x7c00 } else { 0x7f80 };
        let expected = [finite, infinite, 0x8000 | infinite, infinite];
        let expected = expected.map(u16::to_le_bytes).concat();
        assert_eq!(answer.raw_output_contents[0], expected, "{output}");
    }
    end(server).await;
}

#[tokio::test]
async fn what_the_configurations_type_does_not_hold_is_refused_with_its_place() {
    let server = explicit().await;
    for (output, value) in [
        ("INT8", 300.0),
        ("UINT64", -1.0),
        ("UINT32", -1.0),
        ("INT16", 40000.0),
    ] {
        let config = "max_batch_size: 4 ".to_owned() + &tensors("INT32", "4", output, "4");
        assert_eq!(load(&server, DType::I32, &config).await.0, 200);
        let (status, text) = infer(&server, &four("INT32", &[1, 4], [1.0, 2.0, 3.0, 4.0])).await;
        assert_eq!(status, 200, "{text}");
        let mut wide = four("INT32", &[1, 4], [1.0, 2.0, value, 4.0]);
        for classes in [false, true] {
            if classes {
                wide["outputs"] = json!([{ "name": "y", "parameters": { "classification": 2 } }]);
            }
            let (status, text) = infer(&server, &wide).await;
            let told = format!("element 2: expected a number that {output} holds, got {value}");
            assert!(status == 400 && text.contains(&told), "{text}");
        }
        // An answer that could not be written is none.
        let served = server.state.repository.get("same", "").unwrap();
        let stats = &served.stats;
        assert_eq!(stats.inferences.load(SeqCst), 1);
        assert_eq!((stats.success.count(), stats.fail.count()), (1, 2));
        let outcomes: Vec<u64> = stats.outcomes().into_values().collect();
        assert_eq!(
            outcomes,
            [1],
            "one met, and nobody's fault but the client's"
        );
    }
    let config = "max_batch_size: 4 ".to_owned() + &tensors("FP64", "4", "FP64", "4");
    assert_eq!(load(&server, DType::F32, &config).await.0, 200);
    let (status, text) = infer(&server, &four("FP64", &[1, 4], [1.0, 1e300, 0.0, 0.0])).await;
    assert!(
        status == 400 && text.contains("element 1: expected a number that FP32 holds, got 1e300"),
        "{text}"
    );
    end(server).await;
}

#[tokio::test]
async fn null_is_a_number_that_is_none() {
    let server = explicit().await;
    let config = "max_batch_size: 4 ".to_owned() + &tensors("FP32", "4", "FP32", "4");
    assert_eq!(load(&server, DType::F32, &config).await.0, 200);
    let mut request = four("FP32", &[1, 4], [1.0; 4]);
    request["inputs"][0]["data"][2] = Json::Null;
    let (status, text) = infer(&server, &request).await;
    assert!(
        status == 200 && text.contains("[1.0,1.0,null,1.0]"),
        "{text}"
    );
    let request = request.to_string().replace("null", "-Infinity");
    let path = "/v2/models/same/infer";
    let (status, text) = call(server.http(), "POST", path, &request).await;
    assert!(
        status == 200 && text.contains("[1.0,1.0,null,1.0]"),
        "{text}"
    );
    end(server).await;
}

#[tokio::test]
async fn dimensions_of_the_configuration_hold() {
    let server = explicit().await;
    let request = |shape: &[usize]| four("FP32", shape, [1.0, 2.0, 3.0, 4.0]);
    // Without a size of batches the first axis may be fixed.
    let config = tensors("FP32", "[1, 4]", "FP32", "[-1, 4]");
    assert_eq!(load(&server, DType::F32, &config).await.0, 200);
    assert_eq!(infer(&server, &request(&[1, 4])).await.0, 200);
    let mut two = request(&[2, 4]);
    two["inputs"][0]["data"] = vec![1.0; 8].into();
    let (status, text) = infer(&server, &two).await;
    assert!(
        status == 400 && text.contains("Expected [1, 4], got [2, 4]"),
        "{text}"
    );
    // Where it is open, it is as open as can be.
    let config = tensors("FP32", "[-1, 4]", "FP32", "[-1, 4]");
    assert_eq!(load(&server, DType::F32, &config).await.0, 200);
    let mut many = request(&[130, 4]);
    many["inputs"][0]["data"] = vec![1.0; 520].into();
    let (status, text) = infer(&server, &many).await;
    assert!(
        status == 200 && text.contains(r#""shape":[130,4]"#),
        "{text}"
    );
    // Positions that the model leaves open.
    let lstm = "max_batch_size: 4
        input { name: \"x\" data_type: TYPE_FP32 dims: [5, 16] }";
    fs::write(server.models.path().join("lstm/config.pbtxt"), lstm).unwrap();
    let loads = "/v2/repository/models/lstm/load";
    assert_eq!(call(server.http(), "POST", loads, "").await.0, 200);
    for (len, expected) in [(5, 200), (7, 400)] {
        let data = vec![0.5; len * 16];
        let body = json!({ "inputs": [
            { "name": "x", "datatype": "FP32", "shape": [1, len, 16], "data": data },
        ] });
        let path = "/v2/models/lstm/infer";
        let (status, text) = call(server.http(), "POST", path, &body.to_string()).await;
        assert_eq!(status, expected, "{text}");
    }
    end(server).await;
}

#[tokio::test]
async fn tensors_may_have_other_dimensions_at_the_edge() {
    let server = explicit().await;
    let reshaped = |name: &str, dims: &str| {
        format!(
            "{{ name: \"{name}\" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: [4] }} }} "
        )
    };
    let config = format!(
        "max_batch_size: 4 input {} output {}",
        reshaped("x", "[2, 2]"),
        reshaped("y", "[4, 1]")
    );
    let (status, text) = load(&server, DType::F32, &config).await;
    assert_eq!(status, 200, "{text}");
    let data = [1.0, 2.0, 3.0, 4.0];
    let (status, text) = infer(&server, &four("FP32", &[1, 2, 2], data)).await;
    assert!(
        status == 200 && text.contains(r#""shape":[1,4,1]"#),
        "{text}"
    );
    assert!(text.contains("[1.0,2.0,3.0,4.0]"), "{text}");
    let (status, text) = infer(&server, &four("FP32", &[1, 4], data)).await;
    assert!(
        status == 400 && text.contains("Expected [-1, 2, 2]"),
        "{text}"
    );
    let (status, text) = load(&server, DType::F32, &config.replace("[2, 2]", "[2, 3]")).await;
    assert!(status == 400 && text.contains("reshape"), "{text}");
    end(server).await;
}

#[tokio::test]
async fn elements_come_from_one_place() {
    let server = start(|_| {}).await;
    for (parameters, told) in [
        (
            json!({ "binary_data_size": 64 }),
            "'data' and 'binary_data_size'",
        ),
        (
            json!({ "shared_memory_region": "r", "shared_memory_byte_size": 64 }),
            "'data' and a region",
        ),
    ] {
        let mut request: Json = serde_json::from_str(&add(1)).unwrap();
        request["inputs"][0]["parameters"] = parameters;
        let path = "/v2/models/add/infer";
        let (status, text) = call(server.http(), "POST", path, &request.to_string()).await;
        assert!(status == 400 && text.contains(told), "{text}");
    }
    let contents = InferTensorContents {
        fp32_contents: vec![1.0; 16],
        fp64_contents: vec![1.0; 16],
        ..InferTensorContents::default()
    };
    let request = over_grpc("add", "INPUT0", &[1, 16], contents);
    let refused = server.grpc().await.model_infer(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(
        refused
            .message()
            .contains("fp32_contents and fp64_contents"),
        "{refused}"
    );
    end(server).await;
}

fn over_grpc(
    model: &str,
    input: &str,
    shape: &[i64],
    contents: InferTensorContents,
) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![InferInputTensor {
            name: input.into(),
            datatype: "FP32".into(),
            shape: shape.to_vec(),
            contents: Some(contents),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn ids_of_sequences_have_64_bits_over_grpc() {
    let server = explicit().await;
    let config = "max_batch_size: 4 sequence_batching { }";
    assert_eq!(load(&server, DType::F32, config).await.0, 200);
    let contents = InferTensorContents {
        fp32_contents: vec![1.0; 4],
        ..InferTensorContents::default()
    };
    let mut request = over_grpc("same", "x", &[1, 4], contents);
    for (key, choice) in [
        ("sequence_id", ParameterChoice::Int64Param(-7)),
        ("sequence_start", ParameterChoice::BoolParam(true)),
    ] {
        let parameter_choice = Some(choice);
        let parameter = InferParameter { parameter_choice };
        request.parameters.insert(key.into(), parameter);
    }
    let answer = server.grpc().await.model_infer(request.clone()).await;
    assert!(answer.is_ok(), "{answer:?}");
    let choice = Some(ParameterChoice::Int64Param(-1));
    let parameter = InferParameter {
        parameter_choice: choice,
    };
    request.parameters.insert("priority".into(), parameter);
    let refused = server.grpc().await.model_infer(request).await.unwrap_err();
    assert!(refused.message().ends_with("got -1"), "{refused}");
    end(server).await;
}

#[tokio::test]
async fn a_time_to_wait_shortens_that_of_the_configuration_and_no_other() {
    let server = explicit().await;
    let at = server.http();
    let body = add(1).replacen('{', r#"{"parameters":{"timeout":1},"#, 1);
    let queue = |policy: &str| {
        format!("max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {policy} }} }}")
    };
    let loads = "/v2/repository/models/add/load";
    for (config, expected) in [
        ("max_batch_size: 1".to_owned(), 200),
        ("max_batch_size: 1 dynamic_batching { }".to_owned(), 200),
        (queue("allow_timeout_override: true"), 200),
        (
            queue("allow_timeout_override: true default_timeout_microseconds: 600000000"),
            503,
        ),
    ] {
        fs::write(server.models.path().join("add/config.pbtxt"), &config).unwrap();
        assert_eq!(call(at, "POST", loads, "").await.0, 200);
        let served = server.state.repository.get("add", "").unwrap();
        server.gate.shut();
        let path = "/v2/models/add/infer";
        let first = tokio::spawn(async move { call(at, "POST", path, &add(1)).await });
        until(|| server.gate.holding() == 1).await;
        let body = body.clone();
        let second = tokio::spawn(async move { call(at, "POST", path, &body).await });
        if expected == 200 {
            until(|| served.stats.pending.load(SeqCst) == 2).await;
            // Twenty times what it states.
            tokio::time::sleep(std::time::Duration::from_micros(20)).await;
            server.gate.open();
        }
        let (status, text) = second.await.unwrap();
        assert_eq!(status, expected, "{config}: {text}");
        server.gate.open();
        assert_eq!(first.await.unwrap().0, 200);
    }
    end(server).await;
}

#[tokio::test]
async fn requests_that_clients_leave_are_among_those_that_failed() {
    let server = start(|_| {}).await;
    let at = server.http();
    let served = server.state.repository.get("add", "").unwrap();
    server.gate.shut();
    let path = "/v2/models/add/infer";
    let leaves = tokio::spawn(async move { call(at, "POST", path, &add(1)).await });
    until(|| served.stats.pending.load(SeqCst) == 1).await;
    leaves.abort();
    until(|| served.stats.failures()[1] == 1).await;
    let all: u64 = served.stats.failures().iter().sum();
    until(|| served.stats.fail.count() == all).await;
    server.gate.open();
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn what_cannot_be_unpacked_is_told() {
    let server = start(|_| {}).await;
    let head = "POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-encoding: zstd\r\ncontent-length: 2\r\n\r\n{}";
    let (status, text) = ask(server.http(), head.as_bytes()).await;
    assert!(
        status == 415 && text.contains(r#"{"error":"content-encoding"#),
        "{text}"
    );
    // The answer was computed: it goes as it is to who takes nothing that it could be.
    for accepted in ["identity;q=0", "*;q=0", "br, identity;q=0"] {
        let body = add(1);
        let head = format!(
            "POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             accept-encoding: {accepted}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, text) = ask(server.http(), head.as_bytes()).await;
        assert!(status == 200 && is_sum(&text, 1), "{accepted}: {text}");
    }
    let versions = "/v2/models/add/versions";
    for (version, expected) in [("1", 200), ("+1", 400), ("x", 400)] {
        let path = format!("{versions}/{version}");
        assert_eq!(
            call(server.http(), "GET", &path, "").await.0,
            expected,
            "{version}"
        );
    }
    let refused = server.state.regions.register("", "/x", 0, 1).unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");
    end(server).await;
}
