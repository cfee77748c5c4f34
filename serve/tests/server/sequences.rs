//! Sequences: how many a model keeps, what configurations say of their states, and what breaks them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::time::Duration;

use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat, folder};
use lazybatch_serve::Control;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest};

use crate::common::{Running, call, soon, start};

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

/// A parameter that bounds how many sequences are open.
fn most(num: usize) -> String {
    format!("parameters {{ key: \"max_sequences\" value {{ string_value: \"{num}\" }} }}")
}

/// A server that has `sums` in its repository, and its answer to a load of it with `batching`.
async fn loaded(server: &Running, batching: &str) -> (u16, String) {
    loaded_with(server, batching, "").await
}

async fn loaded_with(server: &Running, batching: &str, more: &str) -> (u16, String) {
    let model = server.models.path().join("sums");
    folder::save(&sums(), &model.join("1")).unwrap();
    // A machine that is busy may be slow.
    let idle = match batching.contains("_idle_") {
        true => "",
        false => "max_sequence_idle_microseconds: 60000000",
    };
    let config = format!(
        "max_batch_size: 1 sequence_batching {{ {idle} {batching} }}
         parameters {{ key: \"max_queue\" value {{ string_value: \"2\" }} }} {more}"
    );
    fs::write(model.join("config.pbtxt"), config).unwrap();
    call(server.http(), "POST", "/v2/repository/models/sums/load", "").await
}

async fn explicit() -> Running {
    // Sequences that a test leaves open are not waited for.
    lasting(Duration::from_millis(1)).await
}

/// A server that drains for so long.
async fn lasting(drain: Duration) -> Running {
    start(|o| {
        o.control = Control::Explicit(Vec::new());
        o.drain = drain;
    })
    .await
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

const INFER: &str = "/v2/models/sums/infer";

fn body(place: Place) -> String {
    let Place { id, starts, ends } = place;
    format!(
        r#"{{"parameters":{{"sequence_id":{id},"sequence_start":{starts},"sequence_end":{ends}}},
        "inputs":[{{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}}]}}"#
    )
}

async fn over_http(server: &Running, place: Place) -> (u16, String) {
    call(server.http(), "POST", INFER, &body(place)).await
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
    let (status, text) = loaded_with(&server, STATE, &most(2)).await;
    assert_eq!(status, 200, "{text}");
    let mut grpc = server.grpc().await;
    for id in [1, 2] {
        let (status, text) = over_http(&server, starts(id)).await;
        assert_eq!(status, 200, "{text}");
    }
    let served = server.state.repository.get("sums", "").unwrap();
    let rejected = || served.stats.failures()[0];
    let told =
        "inference request for sequence 3 to model 'sums': expected at most 2 open sequences";
    let (status, text) = over_http(&server, starts(3)).await;
    assert!(status == 503 && text.contains(told), "{status}: {text}");
    let refused = grpc.model_infer(over_grpc(starts(3))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    assert_eq!(refused.message(), told);
    assert_eq!(rejected(), 2, "both count as REJECTED");
    // What no room would make right is the caller's fault.
    let told = "inference request for sequence 4 to model 'sums' must specify the START flag on the \
                first request of the sequence: expected the start of a sequence, for none";
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

/// Begins sequence 1, whose first answer is 1, 2.
async fn begun(server: &Running) {
    let (status, text) = over_http(server, starts(1)).await;
    assert!(
        status == 200 && text.contains(r#""data":[1.0,2.0]"#),
        "{text}"
    );
}

/// Looks whether sequence 1 is broken by what was refused with `cause`.
async fn fails(server: &Running, cause: &str) {
    for _ in 0..2 {
        let (status, text) = over_http(server, goes_on(1)).await;
        let told = "a request before it in sequence 1 was refused (";
        let is_told = text.contains(told) && text.contains(cause);
        assert!(status == 400 && is_told, "{cause}: {status} {text}");
    }
}

/// The same, until it is started again.
async fn is_broken(server: &Running, cause: &str) {
    fails(server, cause).await;
    begun(server).await;
    let (status, text) = over_http(server, goes_on(1)).await;
    assert!(
        status == 200 && text.contains(r#""data":[2.0,4.0]"#),
        "{text}"
    );
}

#[tokio::test]
async fn a_request_that_is_refused_breaks_its_sequence() {
    let server = explicit().await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    let mut grpc = server.grpc().await;
    begun(&server).await;
    // Whether it would have gone on or started: what was before is over.
    for place in [goes_on(1), starts(1)] {
        for (from, to, cause) in [
            // Wrong as it is read, for its model, and for what it wants.
            ("[1,2]}", "[1,2,3]}", "expected 2 elements"),
            ("FP32", "FP23", "a data-type of"),
            ("[1,2],", "[1,1,2],", "unexpected shape for input 'x'"),
            (
                "{\"param",
                "{\"outputs\":[{\"name\":\"z\"}],\"param",
                "unexpected inference output 'z'",
            ),
        ] {
            let wrong = body(place).replacen(from, to, 1);
            let (status, text) = call(server.http(), "POST", INFER, &wrong).await;
            assert!(status == 400 && text.contains(cause), "{text}");
            is_broken(&server, cause).await;
        }
        let short = ModelInferRequest {
            raw_input_contents: vec![vec![0; 7].into()],
            ..over_grpc(place)
        };
        let refused = grpc.model_infer(short.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        is_broken(&server, "expected 8 bytes, got 7 bytes").await;
        // In a stream what follows is behind it, too.
        let none = ModelInferRequest {
            raw_input_contents: Vec::new(),
            ..over_grpc(place)
        };
        let asked = [over_grpc(goes_on(1)), none, over_grpc(goes_on(1))];
        let asked = futures_util::stream::iter(asked);
        let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
        for told in [
            "",
            "elements in the field",
            "a request before it in sequence 1",
        ] {
            let answer = answers.message().await.unwrap().unwrap();
            let error = answer.error_message;
            assert!(
                error.is_empty() == told.is_empty() && error.contains(told),
                "{error}"
            );
        }
        is_broken(&server, "elements in the field").await;
    }
    // What cannot be read, or is of no sequence, breaks none.
    let cut = &body(goes_on(1))[1..];
    assert_eq!(call(server.http(), "POST", INFER, cut).await.0, 400);
    let of_none = body(goes_on(1)).replacen("\"sequence_id\":1,", "", 1);
    assert_eq!(call(server.http(), "POST", INFER, &of_none).await.0, 400);
    let (status, text) = over_http(&server, goes_on(1)).await;
    assert_eq!(status, 200, "{text}");
    drop(grpc);
    end(server).await;
}

#[tokio::test]
async fn an_answer_that_goes_nowhere_does_not_advance_its_sequence() {
    let server = explicit().await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    let file = tempfile::Builder::new()
        .prefix("lazybatch")
        .tempfile_in("/dev/shm")
        .unwrap();
    file.as_file().set_len(64).unwrap();
    let key = file.path().file_name().unwrap().to_str().unwrap();
    let region = format!(r#"{{"key":"{key}","offset":0,"byte_size":64}}"#);
    let path = "/v2/systemsharedmemory/region/r/register";
    let (status, text) = call(server.http(), "POST", path, &region).await;
    assert_eq!(status, 200, "{text}");
    let wants = |place: Place, params: &str| {
        let output = format!(r#"{{"outputs":[{{"name":"y","parameters":{{{params}}}}}],"param"#);
        body(place).replacen("{\"param", &output, 1)
    };
    let part =
        |size: u32| format!(r#""shared_memory_region":"r","shared_memory_byte_size":{size}"#);
    let served = server.state.repository.get("sums", "").unwrap();
    for place in [goes_on(1), starts(1)] {
        // Two numbers, and the texts of two classes, whose size nobody knows before.
        for (params, cause, is_known) in [
            (part(7), "at least 8 bytes for the output, got 7", true),
            (
                part(8) + r#","classification":2"#,
                "at least 28 bytes for the output, got 8",
                false,
            ),
        ] {
            begun(&server).await;
            let launches = || server.gate.order().len();
            let (before, failed) = (launches(), served.stats.fail.count());
            let body = wants(place, &params);
            let (status, text) = call(server.http(), "POST", INFER, &body).await;
            assert!(status == 400 && text.contains(cause), "{status}: {text}");
            assert_eq!(launches() == before, is_known, "{cause}");
            assert_eq!(served.stats.fail.count(), failed + 1);
            is_broken(&server, cause).await;
        }
    }
    // Behind the last request of a sequence there is none to be broken.
    let body = wants(ends(1), &(part(8) + r#","classification":2"#));
    assert_eq!(call(server.http(), "POST", INFER, &body).await.0, 400);
    begun(&server).await;
    let (status, text) = call(server.http(), "POST", INFER, &wants(goes_on(1), &part(8))).await;
    assert_eq!(status, 200, "{text}");
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn one_that_broke_is_not_waited_for_by_a_server_that_drains() {
    let mut server = lasting(FOREVER).await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    begun(&server).await;
    assert_eq!(server.state.num_sequences(), 1);
    let wrong = body(goes_on(1)).replace("[1,2]}", "[1,2,3]}");
    assert_eq!(call(server.http(), "POST", INFER, &wrong).await.0, 400);
    fails(&server, "expected 2 elements").await;
    assert_eq!(server.state.num_sequences(), 0);
    server.end();
    has_ended(server).await;
}

#[tokio::test]
async fn a_request_that_finds_no_room_breaks_its_sequence() {
    let server = start(|o| {
        o.control = Control::Explicit(Vec::new());
        o.drain = Duration::from_millis(1);
        o.max_in_flight = 3;
    })
    .await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    let mut grpc = server.grpc().await;
    let served = server.state.repository.get("sums", "").unwrap();
    let at = server.http();
    for (num, cause) in [
        (2, "the queue of 2 requests is full"),
        (3, "the server has 3 inference calls in flight"),
    ] {
        for is_grpc in [false, true] {
            begun(&server).await;
            server.gate.shut();
            // One runs, others wait; if they are not as many as may be in flight, more wait beside them
            // that are in no call.
            let mut taken = Vec::new();
            for id in 2..2 + num {
                let body = body(Place {
                    id,
                    starts: true,
                    ends: true,
                });
                taken.push(tokio::spawn(
                    async move { call(at, "POST", INFER, &body).await },
                ));
                soon("it is taken", || {
                    let waiting = served.engine().unwrap().figures().waiting;
                    server.gate.holding() == 1 && waiting == id as usize - 2
                })
                .await;
            }
            let own = (num == 2).then(|| {
                let x = lazybatch_graph::Tensor::from_f32(&[1, 2], &[0.0; 2]);
                let options = lazybatch_engine::Options::default();
                served
                    .engine()
                    .unwrap()
                    .try_submit(vec![x], options)
                    .unwrap()
            });
            let told = match is_grpc {
                false => {
                    let (status, text) = over_http(&server, goes_on(1)).await;
                    assert_eq!(status, 503, "{text}");
                    text
                }
                true => {
                    let refused = grpc.model_infer(over_grpc(goes_on(1))).await.unwrap_err();
                    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
                    refused.message().to_owned()
                }
            };
            assert!(told.contains(cause), "{told}");
            server.gate.open();
            for one in taken {
                assert_eq!(one.await.unwrap().0, 200);
            }
            drop(own);
            is_broken(&server, cause).await;
        }
    }
    drop((grpc, served));
    end(server).await;
}

#[tokio::test]
async fn ids_that_are_texts_are_told_as_they_are() {
    let server = explicit().await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    let named = |place: Place, id: &str| {
        body(place).replacen("\"sequence_id\":1", &format!("\"sequence_id\":\"{id}\""), 1)
    };
    let infer = async |body: &str| call(server.http(), "POST", INFER, body).await;
    let told = "inference request for sequence abc to model 'sums' must specify the START flag on the \
                first request of the sequence";
    let (status, text) = infer(&named(goes_on(1), "abc")).await;
    assert!(status == 400 && text.contains(told), "{text}");
    // A long one is cut.
    let long = "n".repeat(5000);
    let (status, text) = infer(&named(goes_on(1), &long)).await;
    assert!(status == 400 && text.contains(&long[..128]), "{text}");
    assert!(!text.contains(&long[..129]), "{text}");
    // So it is told of a sequence that is broken.
    assert_eq!(infer(&named(starts(1), "abc")).await.0, 200);
    let wrong = named(goes_on(1), "abc").replacen("[1,2],\"data", "[1,1,2],\"data", 1);
    assert_eq!(infer(&wrong).await.0, 400);
    let (status, text) = infer(&named(goes_on(1), "abc")).await;
    let told = "a request before it in sequence abc was refused (";
    assert!(status == 400 && text.contains(told), "{text}");
    end(server).await;
}

/// A model without state whose requests are of sequences.
async fn stateless(server: &Running, batching: &str) {
    let config = format!(
        "max_batch_size: 4 sequence_batching {{ {batching} }} {}",
        most(2)
    );
    let path = server.models.path().join("add/config.pbtxt");
    fs::write(path, config).unwrap();
    let path = "/v2/repository/models/add/load";
    let (status, text) = call(server.http(), "POST", path, "").await;
    assert_eq!(status, 200, "{text}");
}

#[tokio::test]
async fn sequences_without_state_have_starts_ends_and_bounds() {
    let server = explicit().await;
    let batching = "max_sequence_idle_microseconds: 60000000 oldest {}";
    stateless(&server, batching).await;
    let infer = async |place: Place| {
        let Place { id, starts, ends } = place;
        let parameters = format!(
            r#"{{"parameters":{{"sequence_id":{id},"sequence_start":{starts},"sequence_end":{ends}}},"#
        );
        let body = crate::common::add(1).replacen('{', &parameters, 1);
        call(server.http(), "POST", "/v2/models/add/infer", &body).await
    };
    let told = "inference request for sequence 1 to model 'add' must specify the START flag on the \
                first request of the sequence";
    let is_refused = async |place: Place| {
        let (status, text) = infer(place).await;
        assert!(status == 400 && text.contains(told), "{text}");
    };
    is_refused(goes_on(1)).await;
    is_refused(ends(1)).await;
    for place in [starts(1), goes_on(1), starts(2), goes_on(1), goes_on(2)] {
        let (status, text) = infer(place).await;
        assert_eq!(status, 200, "{text}");
    }
    let (status, text) = infer(starts(3)).await;
    let full = "inference request for sequence 3 to model 'add': expected at most 2 open sequences";
    assert!(status == 503 && text.contains(full), "{status}: {text}");
    assert_eq!(infer(ends(1)).await.0, 200);
    is_refused(goes_on(1)).await;
    is_refused(ends(1)).await;
    assert_eq!(infer(starts(3)).await.0, 200);
    end(server).await;
}

#[tokio::test]
async fn sequences_beyond_the_candidates_wait_until_others_end() {
    let server = explicit().await;
    let batching = format!("{STATE} oldest {{ max_candidate_sequences: 1 }}");
    assert_eq!(loaded(&server, &batching).await.0, 200);
    begun(&server).await;
    let at = server.http();
    let infer = |place| {
        let body = body(place);
        tokio::spawn(async move { call(at, "POST", INFER, &body).await })
    };
    let served = server.state.repository.get("sums", "").unwrap();
    let waiting = || served.engine().unwrap().figures().waiting;
    let second = infer(starts(2));
    soon("it waits", || waiting() == 1).await;
    // Half of the queue of two is for those that are open.
    let (status, text) = over_http(&server, starts(3)).await;
    assert!(
        status == 503 && text.contains("the queue of 1 requests is full"),
        "{text}"
    );
    // A client that goes makes room.
    second.abort();
    soon("it has gone", || waiting() == 0).await;
    let third = infer(starts(3));
    soon("it waits", || waiting() == 1).await;
    let (status, text) = over_http(&server, goes_on(1)).await;
    assert!(
        status == 200 && text.contains(r#""data":[2.0,4.0]"#),
        "{text}"
    );
    let (status, text) = over_http(&server, ends(1)).await;
    assert!(
        status == 200 && text.contains(r#""data":[3.0,6.0]"#),
        "{text}"
    );
    let (status, text) = third.await.unwrap();
    assert!(
        status == 200 && text.contains(r#""data":[1.0,2.0]"#),
        "{text}"
    );
    let (status, _) = over_http(&server, goes_on(2)).await;
    assert_eq!(status, 400, "it never began");
    drop(served);
    end(server).await;
}

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(3600);

/// A server that was told to end has ended soon.
async fn has_ended(server: Running) {
    let ended = tokio::time::timeout(Duration::from_secs(30), server.ended()).await;
    ended.expect("it ends within half a minute");
}

#[tokio::test]
async fn behind_the_end_of_the_server_sequences_that_began_go_on_and_nothing_else() {
    let mut server = lasting(FOREVER).await;
    assert_eq!(loaded(&server, STATE).await.0, 200);
    let (status, _) = call(server.http(), "POST", "/v2/repository/models/add/load", "").await;
    assert_eq!(status, 200);
    begun(&server).await;
    let mut grpc = server.grpc().await;
    grpc.model_infer(over_grpc(starts(2))).await.unwrap();
    let metrics = server.metrics();
    let has_open = async |num: u32| {
        let (_, text) = call(metrics, "GET", "/metrics", "").await;
        let told = format!(r#"lazybatch_sequences_open{{model="sums",version="1"}} {num}"#);
        assert!(text.contains(&told), "{told}: {text}");
    };
    has_open(2).await;
    server.end();
    soon("it stops", || server.state.is_stopping()).await;
    let is_stopping = |(status, text): (u16, String)| {
        assert!(status == 503 && text.contains("stopping"), "{text}");
    };
    is_stopping(over_http(&server, starts(3)).await);
    is_stopping(over_http(&server, starts(1)).await);
    let of_none = body(goes_on(1)).replace("\"sequence_id\":1,", "");
    is_stopping(call(server.http(), "POST", INFER, &of_none).await);
    let other = body(goes_on(1)).replace("\"x\"", "\"INPUT0\"");
    is_stopping(call(server.http(), "POST", "/v2/models/add/infer", &other).await);
    let refused = grpc.model_infer(over_grpc(starts(3))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    // A start that is refused breaks its sequence, as anywhere; the other one goes on to its end.
    fails(&server, "stopping").await;
    let (status, text) = over_http(&server, goes_on(9)).await;
    assert!(
        status == 400 && text.contains("START"),
        "it never began: {text}"
    );
    let answer = grpc.model_infer(over_grpc(goes_on(2))).await.unwrap();
    assert_eq!(answer.into_inner().raw_output_contents[0], pair([2.0, 4.0]));
    has_open(1).await;
    assert_eq!(over_http(&server, ends(1)).await.0, 400, "it is broken");
    has_open(1).await;
    let answer = grpc.model_infer(over_grpc(ends(2))).await.unwrap();
    assert_eq!(answer.into_inner().raw_output_contents[0], pair([3.0, 6.0]));
    drop(grpc);
    has_ended(server).await;
}

fn pair(of: [f32; 2]) -> Vec<u8> {
    of.map(f32::to_le_bytes).concat()
}

#[tokio::test]
async fn a_server_that_ends_waits_for_a_sequence_no_longer_than_that_may_be_idle() {
    let mut server = lasting(FOREVER).await;
    let batching = format!("max_sequence_idle_microseconds: 300000 {STATE}");
    assert_eq!(loaded(&server, &batching).await.0, 200);
    begun(&server).await;
    server.end();
    has_ended(server).await;
}

#[tokio::test]
async fn a_sequence_is_idle_for_a_second_unless_its_model_says_otherwise() {
    let server = explicit().await;
    for (batching, us) in [
        ("direct {}", 1_000_000),
        ("max_sequence_idle_microseconds: 5", 5),
    ] {
        stateless(&server, batching).await;
        let (status, text) = call(server.http(), "GET", "/v2/models/add/config", "").await;
        let told = format!("\"max_sequence_idle_microseconds\":{us}");
        assert!(status == 200 && text.contains(&told), "{told}: {text}");
        let served = server.state.repository.get("add", "").unwrap();
        let idle = served.settings.sequences.unwrap().idle;
        assert_eq!(idle.0, us * 1000);
    }
    end(server).await;
}
