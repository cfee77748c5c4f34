//! Texts in and out: characters of several tokens, shapes of inputs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use futures_util::StreamExt;
use lazybatch_graph::folder;
use lazybatch_serve::proto::ModelInferRequest;
use lazybatch_serve::proto::model_infer_request::InferInputTensor;

use super::common::{LONG, SPELT, call, soon, speaker, start};
use super::sampling::{end, said};

/// A text with such a shape, as it comes by gRPC.
fn text_of(id: &str, shape: Vec<i64>) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "speaker".into(),
        id: id.into(),
        inputs: vec![InferInputTensor {
            name: "text_input".into(),
            datatype: "BYTES".into(),
            shape,
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![b"\x02\0\0\0hi".to_vec().into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn a_text_without_dimensions_is_refused_and_its_stream_goes_on() {
    let server = start(|o| {
        let speaker = speaker(1, 4);
        folder::save(&speaker, &o.models.join("speaker/1")).unwrap();
    })
    .await;
    let body = r#"{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[],"data":["hi"]}]}"#;
    let (code, text) = call(server.http(), "POST", "/v2/models/speaker/infer", body).await;
    let told = "expected one text a sample, got shape [] with 1 texts";
    assert!(code == 400 && text.contains(told), "{code} {text}");
    let asked = [
        text_of("first", vec![1, 1]),
        text_of("wrong", Vec::new()),
        text_of("last", vec![1, 1]),
    ];
    let mut grpc = server.grpc().await;
    let answers = grpc.model_stream_infer(futures_util::stream::iter(asked));
    let answers: Vec<_> = answers.await.unwrap().into_inner().collect().await;
    let errors = answers.into_iter().map(|a| a.unwrap().error_message);
    let [first, wrong, last] = &errors.collect::<Vec<_>>()[..] else {
        panic!("an answer to each");
    };
    assert!(wrong.contains(told), "{wrong}");
    assert_eq!([first.as_str(), last.as_str()], ["", ""]);
    drop(grpc);
    end(server).await;
}

#[tokio::test]
async fn characters_of_several_tokens_are_told_whole_and_none_is_lost() {
    let server = start(|o| {
        let num = u32::try_from(SPELT.len()).unwrap();
        for (model, num) in [("whole", num), ("cut", num - 1)] {
            let version = o.models.join(model).join("1");
            folder::save(&speaker(0, num), &version).unwrap();
        }
    })
    .await;
    let at = server.http();
    // Nothing is missing where the text ends within a character.
    let cut = SPELT.strip_suffix('\u{e9}').unwrap().to_owned() + "\u{fffd}";
    for (model, all) in [("whole", SPELT), ("cut", &cut)] {
        for how in ["generate", "generate_stream"] {
            assert_eq!(
                said(at, model, how, "go on", "").await,
                all,
                "{model}: {how}"
            );
        }
    }
    end(server).await;
}

#[tokio::test]
async fn parameters_that_nobody_looks_at_may_be_anything() {
    let server = start(|o| {
        let speaker = speaker(1, 4);
        folder::save(&speaker, &o.models.join("speaker/1")).unwrap();
    })
    .await;
    for (more, expected) in [
        (r#""stop":["x"],"options":{"a":1},"none":null"#, 200),
        (r#""parameters":{"stop":["x"],"options":{"a":1}}"#, 200),
        (r#""parameters":{"temperature":[1]}"#, 400),
        (r#""temperature":{"a":1}"#, 400),
        (r#""max_tokens":0"#, 400),
        (r#""max_tokens":2"#, 200),
    ] {
        let body = format!(r#"{{"text_input":"hi",{more}}}"#);
        let path = "/v2/models/speaker/generate";
        let (code, text) = call(server.http(), "POST", path, &body).await;
        assert_eq!(code, expected, "{more}: {text}");
    }
    end(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn others_are_answered_while_a_long_text_is_read() {
    let server = start(|o| {
        let speaker = speaker(1, 4);
        folder::save(&speaker, &o.models.join("speaker/1")).unwrap();
    })
    .await;
    let at = server.http();
    server.gate.shut();
    let body = format!(r#"{{"text_input":"{}"}}"#, "a".repeat(LONG + 1));
    let long = tokio::spawn(async move {
        let path = "/v2/models/speaker/generate";
        call(at, "POST", path, &body).await
    });
    soon("it is read", || server.gate.holding() == 1).await;
    // Here, since there is no other thread for it than the one that the server needs; who looks after it
    // must not need that one either.
    let (answered, is_answered) = std::sync::mpsc::channel();
    let gate = server.gate.clone();
    let is_late = std::thread::spawn(move || {
        let late = is_answered.recv_timeout(std::time::Duration::from_secs(30));
        gate.open();
        late.is_err()
    });
    let (status, _) = call(at, "GET", "/v2/health/ready", "").await;
    answered.send(()).unwrap();
    assert_eq!(status, 200);
    assert!(!is_late.join().unwrap(), "health waited for the text");
    let (code, text) = long.await.unwrap();
    assert!(code == 200 && text.contains("xxxx"), "{code} {text}");
    end(server).await;
}
