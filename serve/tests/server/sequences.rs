//! Sequences: how many a model keeps, and what configurations say of their states.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;

use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat, folder};
use lazybatch_serve::Control;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest};

use crate::common::{Running, call, start};

/// `y` is the sum of all `x` of the sequence, each a pair.
fn sums() -> Program {
    let mut b = ProgramBuilder::new("sums");
    let x = b.input("x", DType::F32, &[2]);
    let h = b.input("h", DType::F32, &[2]);
    let y_out = b.output("y", DType::F32, &[2]);
    let h_out = b.output("h_next", DType::F32, &[2]);
    b.carry(h_out, h);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("x.read", x);
    let h = b.read_input("h.read", h);
    let sum = b.binary("sum", Bin::Add, x, h);
    b.emit("y.emit", y_out, sum);
    b.emit("h.emit", h_out, sum);
    b.finish().unwrap()
}

/// A server that has `sums` in its repository, and its answer to a load of it with `batching`.
async fn loaded(server: &Running, batching: &str) -> (u16, String) {
    let model = server.models.path().join("sums");
    folder::save(&sums(), &model.join("1")).unwrap();
    let config = format!("max_batch_size: 1 sequence_batching {{ {batching} }}");
    fs::write(model.join("config.pbtxt"), config).unwrap();
    call(server.http(), "POST", "/v2/repository/models/sums/load", "").await
}

async fn explicit() -> Running {
    start(|o| o.control = Control::Explicit(Vec::new())).await
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

/// Where a request stands in its sequence.
#[derive(Clone, Copy)]
struct Place {
    id: u32,
    starts: bool,
    ends: bool,
}

const fn starts(id: u32) -> Place {
    let (starts, ends) = (true, false);
    Place { id, starts, ends }
}

const fn goes_on(id: u32) -> Place {
    let (starts, ends) = (false, false);
    Place { id, starts, ends }
}

const fn ends(id: u32) -> Place {
    let (starts, ends) = (false, true);
    Place { id, starts, ends }
}

async fn over_http(server: &Running, place: Place) -> (u16, String) {
    let Place { id, starts, ends } = place;
    let body = format!(
        r#"{{"parameters":{{"sequence_id":{id},"sequence_start":{starts},"sequence_end":{ends}}},
        "inputs":[{{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}}]}}"#
    );
    call(server.http(), "POST", "/v2/models/sums/infer", &body).await
}

fn over_grpc(place: Place) -> ModelInferRequest {
    let parameter = |key: &str, choice| {
        let parameter_choice = Some(choice);
        (key.to_owned(), InferParameter { parameter_choice })
    };
    ModelInferRequest {
        model_name: "sums".into(),
        parameters: [
            parameter(
                "sequence_id",
                ParameterChoice::Int64Param(i64::from(place.id)),
            ),
            parameter("sequence_start", ParameterChoice::BoolParam(place.starts)),
            parameter("sequence_end", ParameterChoice::BoolParam(place.ends)),
        ]
        .into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, 2],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![[1f32, 2.0].map(f32::to_le_bytes).concat().into()],
        ..ModelInferRequest::default()
    }
}

const STATE: &str =
    "state { input_name: \"h\" output_name: \"h_next\" data_type: TYPE_FP32 dims: 2 }";

#[tokio::test]
async fn a_sequence_beyond_the_most_is_overload_and_one_out_of_order_is_wrong() {
    let server = explicit().await;
    let batching = format!("oldest {{ max_candidate_sequences: 2 }} {STATE}");
    let (status, text) = loaded(&server, &batching).await;
    assert_eq!(status, 200, "{text}");
    let mut grpc = server.grpc().await;
    for id in [1, 2] {
        let (status, text) = over_http(&server, starts(id)).await;
        assert_eq!(status, 200, "{text}");
    }
    let served = server.state.repository.get("sums", "").unwrap();
    let rejected = || served.stats.failures()[0];
    let told = "sequence 3: expected at most 2 open sequences";
    let (status, text) = over_http(&server, starts(3)).await;
    assert!(status == 503 && text.contains(told), "{status}: {text}");
    let refused = grpc.model_infer(over_grpc(starts(3))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    assert_eq!(refused.message(), told);
    assert_eq!(rejected(), 2, "both count as REJECTED");
    // What no room would make right is the caller's fault.
    let told = "sequence 4: expected the start of a sequence";
    let (status, text) = over_http(&server, goes_on(4)).await;
    assert!(status == 400 && text.contains(told), "{status}: {text}");
    let refused = grpc.model_infer(over_grpc(goes_on(4))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    assert_eq!(rejected(), 2);
    // Those that are open go on, and one that ends makes room for another.
    let (status, text) = over_http(&server, ends(1)).await;
    assert!(
        status == 200 && text.contains(r#""data":[2.0,4.0]"#),
        "{text}"
    );
    let answer = grpc.model_infer(over_grpc(starts(3))).await.unwrap();
    let sum = [1f32, 2.0].map(f32::to_le_bytes).concat();
    assert_eq!(answer.into_inner().raw_output_contents[0], sum);
    drop((grpc, served));
    end(server).await;
}

#[tokio::test]
async fn states_that_are_not_the_models_refuse_the_load() {
    let server = explicit().await;
    for fits in [
        STATE,
        "state { input_name: \"h\" output_name: \"h_next\" }",
        "state { input_name: \"h\" output_name: \"h_next\" data_type: TYPE_FP16 dims: [1, 2] }",
    ] {
        let (status, text) = loaded(&server, fits).await;
        assert_eq!(status, 200, "{fits}: {text}");
    }
    for (from, to, told) in [
        (
            "TYPE_FP32",
            "TYPE_INT32",
            "model sums: state h: data_type: expected a type that goes into f32, as h is, got INT32",
        ),
        (
            "dims: 2",
            "dims: [3]",
            "model sums: state h: dims: expected [2] of h, or those with 1 or -1 for samples, got [3]",
        ),
        (
            "\"h_next\"",
            "\"y\"",
            "model sums: state h: output_name: expected one of those that the model carries, h_next, \
             got y",
        ),
        (
            "\"h\"",
            "\"x\"",
            "model sums: state x: input_name: expected one of those that the model carries, h, got x",
        ),
    ] {
        let (status, text) = loaded(&server, &STATE.replacen(from, to, 1)).await;
        assert!(status == 400 && text.contains(told), "{told}: {text}");
    }
    // What is served stays so.
    let (status, text) = over_http(&server, starts(1)).await;
    assert_eq!(status, 200, "{text}");
    end(server).await;
}
