//! Answers in the order of their requests: those of a stream over gRPC, and those of a model that is
//! told to keep it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use lazybatch_serve::proto::infer_parameter::ParameterChoice;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;
use lazybatch_serve::proto::{InferParameter, ModelInferRequest, ModelInferResponse};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::common::{Running, soon, start};

/// A request to `lstm` of so many steps.
fn steps(id: usize, steps: usize) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "lstm".into(),
        id: id.to_string(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, steps as i64, 16],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![vec![0; steps * 64].into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn answers_and_errors_of_a_stream_keep_the_order_of_its_requests() {
    const NUM: usize = 90;
    let server = start(|_| {}).await;
    let mut grpc = server.grpc().await;
    // Long ones before short ones, and some that are refused as soon as they are read.
    let requests = (0..NUM).map(|i| match i % 3 {
        0 => steps(i, 40),
        1 => steps(i, 1),
        _ => ModelInferRequest {
            model_name: "nobody".into(),
            ..steps(i, 1)
        },
    });
    let requests: Vec<_> = requests.collect();
    let answers = grpc.model_stream_infer(futures_util::stream::iter(requests));
    let mut answers = answers.await.unwrap().into_inner();
    for i in 0..NUM {
        let answer = answers.message().await.unwrap().unwrap();
        let is_error = !answer.error_message.is_empty();
        let id = answer.infer_response.unwrap().id;
        assert_eq!((id, is_error), (i.to_string(), i % 3 == 2));
    }
    assert!(answers.message().await.unwrap().is_none());
}

/// A server whose `lstm` is answered in order, and has two levels.
async fn in_order() -> Running {
    start(|o| {
        o.policy = "adaptive".into();
        let config = "max_batch_size: 1 parameters { key: \"max_len\" value { string_value: \"4096\" } }
            dynamic_batching { priority_levels: 2 default_priority_level: 2 preserve_ordering: true }";
        std::fs::write(o.models.join("lstm/config.pbtxt"), config).unwrap();
    })
    .await
}

type Asked = JoinHandle<Result<Response<ModelInferResponse>, Status>>;

/// A request of so many steps, and of that name, on a level.
fn asked(grpc: &GrpcInferenceServiceClient<Channel>, num: usize, priority: i64) -> Asked {
    let mut request = steps(num, num);
    let priority = InferParameter {
        parameter_choice: Some(ParameterChoice::Int64Param(priority)),
    };
    request.parameters.insert("priority".into(), priority);
    let mut grpc = grpc.clone();
    tokio::spawn(async move { grpc.model_infer(request).await })
}

/// Later ones that end first wait for those before them, unless these go.
#[tokio::test]
async fn a_model_that_preserves_the_order_of_its_requests_answers_so() {
    let server = in_order().await;
    let served = server.state.repository.get("lstm", "").unwrap();
    let waiting = || served.engine().unwrap().figures().waiting;
    let grpc = server.grpc().await;
    let of = |num, priority| asked(&grpc, num, priority);
    for leaves in [false, true] {
        let before = served.stats.success.count();
        server.gate.shut();
        let first = of(2, 2);
        soon("it runs", || server.gate.holding() == 1).await;
        // Long, and behind the one that comes later but is of a higher level.
        let long = of(4096, 2);
        soon("the long one waits", || waiting() == 1).await;
        let quick = of(1, 1);
        soon("both wait", || waiting() == 2).await;
        if leaves {
            long.abort();
            soon("it has gone", || served.stats.failures()[1] == 1).await;
        }
        server.gate.open();
        let answer = quick.await.unwrap().unwrap();
        assert_eq!(answer.into_inner().id, "1");
        let ended = served.stats.success.count() - before;
        assert_eq!(ended, if leaves { 2 } else { 3 });
        first.await.unwrap().unwrap();
        if !leaves {
            long.await.unwrap().unwrap();
        }
    }
}

/// It was computed, and counts so, although nobody hears of it.
#[tokio::test]
async fn a_client_that_leaves_when_its_answer_waits_for_its_turn_counts_once() {
    let server = in_order().await;
    let served = server.state.repository.get("lstm", "").unwrap();
    let waiting = || served.engine().unwrap().figures().waiting;
    let grpc = server.grpc().await;
    let of = |num, priority| asked(&grpc, num, priority);
    server.gate.shut();
    let first = of(2, 2);
    soon("it runs", || server.gate.holding() == 1).await;
    let long = of(4096, 2);
    soon("the long one waits", || waiting() == 1).await;
    let quick = of(1, 1);
    soon("both wait", || waiting() == 2).await;
    // Until the first and the quick one are done, and the long one is in its midst.
    server.gate.shut_behind(100);
    server.gate.open();
    let inferences = || served.statistics().inference_count;
    soon("two were computed", || inferences() == 2).await;
    soon("the long one is held", || server.gate.holding() == 1).await;
    first.await.unwrap().unwrap();
    assert_eq!(served.stats.success.count(), 1);
    quick.abort();
    soon("it has gone", || served.stats.success.count() == 2).await;
    assert_eq!(served.stats.failures(), [0; 4]);
    server.gate.open();
    long.await.unwrap().unwrap();
    assert_eq!(served.stats.success.count(), 3);
    assert_eq!((inferences(), served.stats.failures()), (3, [0; 4]));
}
