//! Answers of decoupled models, which come step by step over a stream.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lazybatch_graph::{DType, Greedy, Program, ProgramBuilder, Repeat, folder};
use lazybatch_serve::model::Served;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use lazybatch_serve::proto::{InferParameter, ModelInferRequest, ModelStreamInferResponse};

use crate::common::{Running, call, soon, speaker, start};

/// Tokens that the decoder says.
const NUM: usize = 5;

/// A decoder: `head` once, then a token and the scores that it was chosen by, [`NUM`] times. It has the
/// text of the tests' speakers.
fn decoder() -> Program {
    let mut b = ProgramBuilder::new("speaker").with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    // No score is that of the token that stops.
    let greedy = Greedy::new(&mut b, 1, 9);
    let head = b.output("head", DType::F32, &[2]);
    let scores = b.output_sequence("scores", DType::F32, &[7]);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.emit("head.emit", head, v);
    b.begin_block("loop", Repeat::UntilStop { max: NUM as u32 });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 7, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 7, None);
    b.emit("scores.emit", scores, v);
    greedy.choose(&mut b, v);
    b.finish().unwrap()
}

async fn server() -> Running {
    start(|o| {
        let model = o.models.join("speaker");
        folder::save(&decoder(), &model.join("1")).unwrap();
        let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
    })
    .await
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

fn choice(choice: ParameterChoice) -> InferParameter {
    InferParameter {
        parameter_choice: Some(choice),
    }
}

/// A request that wants an answer for its end.
fn asks(outputs: Vec<InferRequestedOutputTensor>) -> ModelInferRequest {
    let wants_final = "triton_enable_empty_final_response".to_owned();
    let yes = choice(ParameterChoice::BoolParam(true));
    ModelInferRequest {
        model_name: "speaker".into(),
        parameters: [(wants_final, yes)].into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, 2],
            ..InferInputTensor::default()
        }],
        outputs,
        raw_input_contents: vec![[0.5f32, 0.25].map(f32::to_le_bytes).concat().into()],
        ..ModelInferRequest::default()
    }
}

/// All that comes of one request, whose stream then ends.
async fn told(server: &Running, request: ModelInferRequest) -> Vec<ModelStreamInferResponse> {
    let mut grpc = server.grpc().await;
    let asked = futures_util::stream::iter([request]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        all.push(answer);
    }
    all
}

/// Name, shape and contents of all outputs of all answers, which end with an empty one.
fn outputs(answers: Vec<ModelStreamInferResponse>) -> Vec<(String, Vec<i64>, Vec<u8>)> {
    let mut all = Vec::new();
    let mut is_over = false;
    for answer in answers {
        assert_eq!(answer.error_message, "");
        assert!(!is_over, "nothing comes behind the end");
        let response = answer.infer_response.unwrap();
        let last = &response.parameters["triton_final_response"];
        is_over = *last == choice(ParameterChoice::BoolParam(true));
        assert_eq!(response.outputs.is_empty(), is_over);
        let contents = response.raw_output_contents.iter();
        for (output, bytes) in response.outputs.iter().zip(contents) {
            let shape = output.shape.clone();
            all.push((output.name.clone(), shape, bytes.to_vec()));
        }
    }
    assert!(is_over);
    all
}

#[tokio::test]
async fn an_output_of_fixed_size_comes_once() {
    let server = server().await;
    let all = outputs(told(&server, asks(Vec::new())).await);
    let of = |name: &str| all.iter().filter(|o| o.0 == name).collect::<Vec<_>>();
    let head = [0.5f32, 0.25].map(f32::to_le_bytes).concat();
    assert_eq!(of("head"), [&("head".to_owned(), vec![1, 2], head)]);
    for (name, shape) in [("tokens", vec![1, 1]), ("scores", vec![1, 1, 7])] {
        let steps = of(name);
        assert_eq!(steps.len(), NUM, "{name}");
        assert!(steps.iter().all(|(_, own, _)| *own == shape), "{steps:?}");
    }
    end(server).await;
}

#[tokio::test]
async fn a_stream_counts_once_with_its_own_times() {
    let server = server().await;
    outputs(told(&server, asks(Vec::new())).await);
    let served = server.state.repository.get("speaker", "").unwrap();
    let stats = served.statistics().inference_stats.unwrap();
    let success = stats.success.unwrap();
    let stages = [
        stats.queue,
        stats.compute_input,
        stats.compute_infer,
        stats.compute_output,
    ];
    let stages = stages.map(Option::unwrap);
    assert_eq!((success.count, stages.map(|s| s.count)), (1, [1; 4]));
    let sum: u64 = stages.iter().map(|s| s.ns).sum();
    assert!(stages[2].ns > 0 && sum <= success.ns, "{stages:?}");
    drop(served);
    end(server).await;
}

/// Its requests that have not ended.
fn pending(served: &Served) -> i64 {
    served
        .stats
        .pending
        .load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn responses_of_a_stream_count_by_their_place() {
    let server = server().await;
    // Only what is wanted is a response: a token each, and the end.
    let tokens = || {
        vec![InferRequestedOutputTensor {
            name: "tokens".into(),
            ..InferRequestedOutputTensor::default()
        }]
    };
    let launches = || server.gate.order().len();
    let mut before = 0;
    for _ in 0..2 {
        before = launches();
        assert_eq!(outputs(told(&server, asks(tokens())).await).len(), NUM);
    }
    // One whose client leaves behind its first response, and before its last launch.
    server.gate.shut_behind(launches() - before - 1);
    let mut grpc = server.grpc().await;
    let asked = futures_util::stream::iter([asks(tokens())]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let served = server.state.repository.get("speaker", "").unwrap();
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.error_message, "");
    drop((answers, grpc));
    crate::common::soon("it is left", || pending(&served) == 0).await;
    server.gate.open();
    let told = served.statistics().response_stats;
    assert_eq!(told.len(), NUM + 1);
    let num = |place: usize| {
        let own = &told[&place.to_string()];
        let all = [&own.success, &own.empty_response, &own.fail, &own.cancel];
        all.map(|span| span.as_ref().unwrap().count)
    };
    for place in 1..NUM {
        assert!((2..=3).contains(&num(place)[0]), "{told:?}");
    }
    assert_eq!(num(0), [3, 0, 0, 0]);
    assert_eq!(num(NUM)[1], 2);
    let cancelled: u64 = (0..=NUM).map(|place| num(place)[3]).sum();
    assert_eq!(cancelled, 1, "{told:?}");
    for place in 0..NUM {
        let own = &told[&place.to_string()];
        let ns = |span: &Option<lazybatch_serve::proto::StatisticDuration>| {
            let span = span.as_ref().unwrap();
            (span.count, span.ns)
        };
        let (infer, output) = (ns(&own.compute_infer), ns(&own.compute_output));
        assert_eq!(ns(&own.success), (infer.0, infer.1 + output.1));
        assert_eq!(infer.0, output.0);
        assert!(infer.1 > 0, "{own:?}");
    }
    // Models that answer once have none.
    let (status, text) = call(server.http(), "GET", "/v2/models/add/stats", "").await;
    assert!(
        status == 200 && text.contains(r#""response_stats":{}"#),
        "{text}"
    );
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn a_stream_of_several_samples_counts_all_of_them() {
    let server = start(|o| {
        let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
        std::fs::write(o.models.join("add/config.pbtxt"), config).unwrap();
    })
    .await;
    let input = |name: &str| InferInputTensor {
        name: name.into(),
        datatype: "FP32".into(),
        shape: vec![3, 16],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "add".into(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![vec![0; 3 * 64].into(); 2],
        ..ModelInferRequest::default()
    };
    let answers = told(&server, request).await;
    assert_eq!(answers[0].error_message, "");
    let served = server.state.repository.get("add", "").unwrap();
    let stats = served.statistics();
    let success = stats.inference_stats.unwrap().success.unwrap();
    assert_eq!((success.count, stats.inference_count), (1, 3));
    drop(served);
    end(server).await;
}

/// A wish for an output, with such parameters.
fn wanted(name: &str, parameters: &[(&str, ParameterChoice)]) -> InferRequestedOutputTensor {
    let parameters = parameters.iter();
    InferRequestedOutputTensor {
        name: name.into(),
        parameters: parameters
            .map(|(key, value)| ((*key).to_owned(), choice(value.clone())))
            .collect(),
    }
}

/// The place and the value of the largest of seven numbers.
fn largest(scores: &[u8]) -> String {
    let (scores, _) = scores.as_chunks::<4>();
    let scores = scores.iter().map(|&b| f32::from_le_bytes(b)).enumerate();
    let (at, value) = scores.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    format!("{value:.6}:{at}")
}

#[tokio::test]
async fn each_step_has_its_own_classes() {
    let server = server().await;
    let plain = outputs(told(&server, asks(vec![wanted("scores", &[])])).await);
    let expected: Vec<_> = plain.iter().map(|(_, _, bytes)| largest(bytes)).collect();
    let classes = wanted(
        "scores",
        &[("classification", ParameterChoice::Int64Param(1))],
    );
    let classes = outputs(told(&server, asks(vec![classes])).await);
    let texts = classes.iter().map(|(name, shape, bytes)| {
        assert_eq!((name.as_str(), &shape[..]), ("scores", &[1, 1][..]));
        String::from_utf8(bytes[4..].to_vec()).unwrap()
    });
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), NUM);
    end(server).await;
}

#[tokio::test]
async fn what_steps_cannot_have_is_refused_before_anything_runs() {
    let server = server().await;
    let object = tempfile::Builder::new()
        .prefix("lazybatch")
        .tempfile_in("/dev/shm")
        .unwrap();
    object.as_file().set_len(4096).unwrap();
    let key = object.path().file_name().unwrap().to_str().unwrap();
    server.state.regions.register("r", key, 0, 4096).unwrap();
    let region = [
        (
            "shared_memory_region",
            ParameterChoice::StringParam("r".into()),
        ),
        ("shared_memory_byte_size", ParameterChoice::Int64Param(4096)),
    ];
    let steps = "of model 'speaker', which answers step by step: expected";
    let in_region = "its elements in the answers, got a shared memory region";
    for (name, parameters, told_of) in [
        ("tokens", &region[..], in_region),
        ("head", &region[..], in_region),
        (
            "text_output",
            &[],
            "one of the program, or generate_stream, got the text",
        ),
    ] {
        let outputs = vec![wanted("scores", &[]), wanted(name, parameters)];
        let all = told(&server, asks(outputs)).await;
        let expected = format!("output '{name}' {steps} {told_of}");
        assert_eq!(all.len(), 1, "one answer, and the stream ends");
        assert_eq!(all[0].error_message, expected);
    }
    let served = server.state.repository.get("speaker", "").unwrap();
    assert_eq!(served.engine().unwrap().stats().counters.arrivals, 0);
    let written = std::fs::read(object.path()).unwrap();
    assert!(written.iter().all(|&b| b == 0), "nothing is written");
    drop(served);
    end(server).await;
}

/// Asks for the status of the first error as that of the stream.
fn fails(
    requests: Vec<ModelInferRequest>,
) -> tonic::Request<futures_util::stream::BoxStream<'static, ModelInferRequest>> {
    use futures_util::StreamExt;
    // The client's side stays open.
    let asked = futures_util::stream::iter(requests);
    let asked = asked.chain(futures_util::stream::pending()).boxed();
    let mut request = tonic::Request::new(asked);
    let yes = "true".parse().unwrap();
    request.metadata_mut().insert("triton_grpc_error", yes);
    request
}

#[tokio::test]
async fn a_stream_that_asks_for_it_ends_with_its_first_error() {
    let server = server().await;
    let served = server.state.repository.get("speaker", "").unwrap();
    let pending = || pending(&served);
    let mut grpc = server.grpc().await;
    let unknown = ModelInferRequest {
        model_name: "nobody".into(),
        ..ModelInferRequest::default()
    };
    // Without it the stream goes on.
    let asked = futures_util::stream::iter([unknown.clone(), unknown.clone()]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap();
        assert!(answer.error_message.contains("nobody"));
    }
    assert!(answers.message().await.unwrap().is_none());
    // With it, what went well before is answered.
    let asked = fails(vec![asks(Vec::new())]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.error_message, "");
    drop(answers);
    crate::common::soon("it is over", || pending() == 0).await;
    // What runs is dropped with the stream.
    server.gate.shut();
    let asked = fails(vec![asks(Vec::new()), unknown, asks(Vec::new())]);
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
    assert!(status.message().contains("nobody"), "{status}");
    assert!(
        answers.message().await.unwrap_or(None).is_none(),
        "it has ended"
    );
    crate::common::soon("all is dropped", || pending() == 0).await;
    server.gate.open();
    drop((grpc, served));
    end(server).await;
}

#[tokio::test]
async fn a_name_that_each_step_would_bring_is_short() {
    let server = server().await;
    let named = |len: usize| ModelInferRequest {
        id: "n".repeat(len),
        ..asks(Vec::new())
    };
    let told = told(&server, named(1024)).await;
    assert!(told.iter().all(|one| one.error_message.is_empty()));
    let launches = server.gate.order().len();
    let [refused] = &self::told(&server, named(1025)).await[..] else {
        panic!("an error alone");
    };
    let why = "answered step by step: expected at most 1024 bytes, got 1025 bytes";
    assert!(refused.error_message.ends_with(why), "{refused:?}");
    assert_eq!(server.gate.order().len(), launches, "it did not run");
    end(server).await;
}

/// A server with `speaker`, decoupled, which says so many words.
async fn speaks(num: u32) -> Running {
    start(|o| {
        let model = o.models.join("speaker");
        folder::save(&speaker(1, num), &model.join("1")).unwrap();
        let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }";
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
    })
    .await
}

/// `[success, empty, failed, cancelled]` of responses, by place.
fn responses(served: &Served) -> Vec<[u64; 4]> {
    let told = served.statistics().response_stats;
    let of = |place: usize| {
        let own = &told[&place.to_string()];
        let all = [&own.success, &own.empty_response, &own.fail, &own.cancel];
        all.map(|span| span.as_ref().unwrap().count)
    };
    (0..told.len()).map(of).collect()
}

const MADE: [u64; 4] = [1, 0, 0, 0];
const EMPTY: [u64; 4] = [0, 1, 0, 0];

/// Each that tells something: of a character of several tokens the last one.
#[tokio::test]
async fn steps_of_text_are_responses_too() {
    let body = r#"{"text_input":"hi"}"#;
    let server = speaks(3).await;
    let path = "/v2/models/speaker/generate_stream";
    let (status, text) = call(server.http(), "POST", path, body).await;
    assert!(
        status == 200 && text.matches("text_output").count() == 3,
        "{text}"
    );
    let served = server.state.repository.get("speaker", "").unwrap();
    soon("it has ended", || served.stats.success.count() == 1).await;
    assert_eq!(responses(&served), [MADE, MADE, MADE, EMPTY]);
    drop(served);
    end(server).await;
    let server = speaks(1).await;
    let path = "/v2/models/speaker/generate";
    assert_eq!(call(server.http(), "POST", path, body).await.0, 200);
    let served = server.state.repository.get("speaker", "").unwrap();
    assert_eq!(responses(&served), [MADE, EMPTY]);
    assert_eq!(served.stats.success.count(), 1);
    drop(served);
    end(server).await;
}

/// Nobody left: the call is none that there is an answer to.
#[tokio::test]
async fn what_generate_does_not_answer_is_no_request() {
    let server = speaks(3).await;
    let (path, body) = ("/v2/models/speaker/generate", r#"{"text_input":"hi"}"#);
    let (status, text) = call(server.http(), "POST", path, body).await;
    assert!(
        status == 501 && text.contains("exactly 1 response"),
        "{text}"
    );
    let served = server.state.repository.get("speaker", "").unwrap();
    assert_eq!(served.stats.success.count(), 0);
    assert_eq!(served.stats.failures(), [0; 4]);
    assert_eq!(responses(&served), [[0; 4]; 0]);
    assert_eq!(pending(&served), 0);
    drop(served);
    end(server).await;
}

/// A model whose ids are more than its configuration's type has room for.
#[tokio::test]
async fn a_step_that_cannot_be_written_fails_its_request() {
    let mut b = ProgramBuilder::new("many").with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    let greedy = Greedy::new(&mut b, 1, 99_999);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: NUM as u32 });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 9000, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 9000, None);
    greedy.choose(&mut b, v);
    let many = b.finish().unwrap();
    let server = start(|o| {
        let model = o.models.join("speaker");
        folder::save(&many, &model.join("1")).unwrap();
        let config = "max_batch_size: 4 model_transaction_policy { decoupled: true }
            input { name: \"x\" data_type: TYPE_FP32 dims: 2 }
            output { name: \"tokens\" data_type: TYPE_UINT8 dims: -1 }";
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
    })
    .await;
    let request = ModelInferRequest {
        id: "mine".into(),
        ..asks(Vec::new())
    };
    let answers = told(&server, request).await;
    let error = &answers.last().unwrap().error_message;
    assert!(error.starts_with("[request id: mine] "), "{error}");
    let served = server.state.repository.get("speaker", "").unwrap();
    soon("it has ended", || pending(&served) == 0).await;
    // Of a reason of its own, and not as one whose client left.
    assert_eq!(served.stats.failures(), [0, 0, 0, 1], "{error}");
    assert_eq!(served.stats.success.count(), 0);
    drop(served);
    end(server).await;
}

/// Nothing runs of it, so nothing is waited for.
#[tokio::test]
async fn a_stream_that_waits_for_its_client_ends_with_the_server() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    const LONG: std::time::Duration = std::time::Duration::from_secs(3600);
    let mut server = start(|o| o.header_timeout = LONG).await;
    let mut grpc = server.grpc().await;
    let asked = futures_util::stream::pending();
    let mut answers = grpc.model_stream_infer(asked).await.unwrap().into_inner();
    let at = format!("http://{}", server.at.grpc.unwrap());
    let channel = tonic::transport::Endpoint::new(at).unwrap().connect().await;
    let mut health = HealthClient::new(channel.unwrap());
    let request = HealthCheckRequest::default();
    let mut watched = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    server.end();
    let ends = async {
        let error = answers.message().await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
        assert!(error.message().contains("stopping"), "{error}");
        assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
        assert!(watched.message().await.unwrap().is_none());
        drop((grpc, health));
        server.ended().await;
    };
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(60), ends).await;
    in_time.expect("nobody is waited for");
}
