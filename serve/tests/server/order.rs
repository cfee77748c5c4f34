//! Answers of a stream over gRPC come in the order of its requests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;

use crate::common::start;

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
