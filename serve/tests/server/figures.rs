//! What statistics and metrics count: answers from the cache, calls that were wrong, labels.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::Ordering::SeqCst;

use lazybatch_serve::proto::ModelInferRequest;

use crate::common::{Running, add, call, start};

const INFER: &str = "/v2/models/add/infer";

/// A server whose model `add` has `more` in its configuration.
async fn with(more: &str) -> Running {
    let config = format!("max_batch_size: 4 {more}");
    start(move |o| std::fs::write(o.models.join("add/config.pbtxt"), config).unwrap()).await
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn answers_from_the_cache_count_in_the_queue() {
    let server = with("response_cache { enable: true }").await;
    for value in [1, 1, 1, 2] {
        let (status, text) = call(server.http(), "POST", INFER, &add(value)).await;
        assert_eq!(status, 200, "{text}");
    }
    let served = server.state.repository.get("add", "").unwrap();
    let told = served.statistics();
    let of = told.inference_stats.unwrap();
    let count = |span: Option<lazybatch_serve::proto::StatisticDuration>| span.unwrap().count;
    assert_eq!((count(of.cache_hit), count(of.cache_miss)), (2, 2));
    assert_eq!((count(of.success), count(of.queue)), (4, 4));
    let computed = [of.compute_input, of.compute_infer, of.compute_output];
    assert_eq!(computed.map(count), [2; 3]);
    assert_eq!((told.inference_count, told.execution_count), (2, 2));
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn calls_that_are_wrong_count_as_requests_that_failed() {
    let server = with("").await;
    let at = server.http();
    let served = server.state.repository.get("add", "").unwrap();
    let failed = || (served.stats.fail.count(), served.stats.failures()[3]);
    let mut num = 0;
    let good = add(1);
    for (from, to) in [
        // No JSON, other elements than the shape says, an unknown type, a region that is not there.
        ("{", "["),
        (",1]", "]"),
        ("FP32", "FP33"),
        (
            r#""inputs""#,
            r#""outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":"none",
            "shared_memory_byte_size":64}}],"inputs""#,
        ),
        ("[1,16]", "[1,15]"),
        ("INPUT1", "INPUT7"),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good);
        let (status, text) = call(at, "POST", INFER, &wrong).await;
        assert!((400..=404).contains(&status), "{from}: {text}");
        num += 1;
        assert_eq!(failed(), (num, num), "{from}: {text}");
    }
    let mut grpc = server.grpc().await;
    let wrong = ModelInferRequest {
        model_name: "add".into(),
        raw_input_contents: vec![vec![0; 3].into()],
        ..ModelInferRequest::default()
    };
    grpc.model_infer(wrong).await.unwrap_err();
    assert_eq!(failed(), (num + 1, num + 1));
    // A call that is not for the model, or that it does not answer, is none of its requests.
    assert_eq!(
        call(at, "POST", "/v2/models/none/infer", &good).await.0,
        404
    );
    assert_eq!(call(at, "GET", INFER, "").await.0, 405);
    assert_eq!(failed(), (num + 1, num + 1));
    assert_eq!(served.stats.pending.load(SeqCst), 0);
    assert!(
        served.stats.outcomes().is_empty(),
        "an SLA is not missed by them"
    );
    drop((grpc, served));
    end(server).await;
}

#[tokio::test]
async fn tags_are_labels_of_the_models_metrics() {
    let tags =
        r#"metric_tags { key: "team" value: "a \"b\"" } metric_tags { key: "cell" value: "7" }"#;
    let server = with(tags).await;
    let (status, text) = call(server.metrics(), "GET", "/metrics", "").await;
    assert_eq!(status, 200, "{text}");
    let tags = r#"_cell="7",_team="a \"b\"""#;
    for line in [
        format!(r#"nv_inference_request_success{{model="add",version="1",{tags}}} 0"#),
        format!(
            r#"nv_inference_request_failure{{model="add",version="1",{tags},reason="OTHER"}} 0"#
        ),
        r#"nv_inference_request_success{model="lstm",version="1"} 0"#.to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    end(server).await;
}
