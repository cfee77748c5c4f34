//! How answers are given: packed or not, as classes, and with which status.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write as _;

use lazybatch_graph::onnx::Elem;
use lazybatch_graph::tensor_op::{Layout, Operand, Part, Produced, TensorOp};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, folder};

use super::common::{Running, add, add_samples, ask, call, http, is_sum, speaker, start};

const INFER: &str = "/v2/models/add/infer";

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

#[tokio::test]
async fn an_answer_is_packed_for_who_asks_and_an_error_is_not() {
    let server = start(|_| {}).await;
    let asks = |body: &str| {
        let request = String::from_utf8(http("POST", INFER, body.as_bytes())).unwrap();
        request.replacen("host", "accept-encoding: gzip\r\nhost", 1)
    };
    let (status, text) = ask(server.http(), asks(&add(1)).as_bytes()).await;
    assert!(status == 200 && text.contains("content-encoding: gzip"));
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(add(1).as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    for coding in ["gzip", "GZip", "x-gzip"] {
        let length = packed.len();
        let head = format!(
            "POST {INFER} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-encoding: {coding}\r\ncontent-length: {length}\r\n\r\n"
        );
        let (status, text) = ask(server.http(), &[head.as_bytes(), &packed].concat()).await;
        assert!(status == 200 && is_sum(&text, 1), "{coding}: {text}");
    }
    let wrong = add(1).replacen("FP32", "FP64", 1);
    let (status, text) = ask(server.http(), asks(&wrong).as_bytes()).await;
    assert!(status == 400 && !text.contains("content-encoding"));
    assert!(text.contains(r#"{"error":"inference input"#), "{text}");
    end(server).await;
}

#[tokio::test]
async fn classes_are_of_each_sample_where_the_model_batches_and_of_all_elements_where_not() {
    for (config, shape) in [
        ("max_batch_size: 4", "[3,2]"),
        (
            "max_batch_size: 0
             input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [-1, 16] }
             input { name: \"INPUT1\" data_type: TYPE_FP32 dims: [-1, 16] }
             output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [-1, 16] }
             output { name: \"OUTPUT1\" data_type: TYPE_FP32 dims: [-1, 16] }",
            "[2]",
        ),
    ] {
        let server = start(|o| {
            std::fs::write(o.models.join("add/config.pbtxt"), config).unwrap();
        })
        .await;
        let wish = r#"{"outputs":[{"name":"OUTPUT0","parameters":{"classification":2}}],"#;
        let mut body = add_samples(1, 3).replacen('{', wish, 1);
        // The last element is the largest.
        let last = body.find("]},{\"name\":\"INPUT1\"").unwrap();
        body.replace_range(last - 1..last, "9");
        let (status, text) = call(server.http(), "POST", INFER, &body).await;
        let told = format!("\"shape\":{shape}");
        assert!(status == 200 && text.contains(&told), "{told}: {text}");
        let last = if shape == "[2]" { 47 } else { 15 };
        assert!(text.contains(&format!("\"10.000000:{last}\"")), "{text}");
        end(server).await;
    }
}

#[tokio::test]
async fn a_text_that_fails_before_its_first_piece_has_the_status_of_its_error() {
    let server = start(|o| {
        let speaker = speaker(1, 4);
        folder::save(&speaker, &o.models.join("speaker/1")).unwrap();
    })
    .await;
    let path = "/v2/models/speaker/generate_stream";
    server.gate.fail();
    let (status, text) = call(server.http(), "POST", path, r#"{"text_input":"a"}"#).await;
    assert!(status == 500 && text.contains(r#"{"error":""#), "{text}");
    assert!(text.contains("content-type: application/json"), "{text}");
    let (status, text) = call(server.http(), "POST", path, r#"{"text_input":"a"}"#).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(text.matches(r#""text_output":"x""#).count(), 4, "{text}");
    end(server).await;
}

/// Whole numbers times 100,000.
fn products() -> Program {
    let mut b = ProgramBuilder::new("products");
    let x = b.input("x", DType::I32, &[1]);
    let y = b.output("y", DType::I32, &[1]);
    b.begin_block("all", Repeat::Once);
    let v = b.read_input("read", x);
    let layout = Layout(vec![vec![Part::Batch], vec![Part::Fixed(1)]]);
    let elem = Elem::I64;
    let times = TensorOp {
        op: "Mul".into(),
        opset: 14,
        attrs: Default::default(),
        operands: vec![
            Operand::Next {
                layout: layout.clone(),
                elem,
            },
            Operand::Numbers {
                dims: Vec::new(),
                elem,
                base: vec![100_000],
                per_len: Vec::new(),
            },
        ],
        outputs: vec![Produced { layout, elem }],
        flops_per_row: 1,
    };
    let v = b.tensor("times", times, &[v])[0];
    b.emit("emit", y, v);
    b.finish().unwrap()
}

#[tokio::test]
async fn what_a_request_computes_to_no_result_is_its_own_fault() {
    let server = start(|o| folder::save(&products(), &o.models.join("products/1")).unwrap()).await;
    let body = |x: i32| {
        let x = format!(r#"{{"name":"x","datatype":"INT32","shape":[1,1],"data":[{x}]}}"#);
        format!(r#"{{"inputs":[{x}]}}"#)
    };
    let path = "/v2/models/products/infer";
    let (status, text) = call(server.http(), "POST", path, &body(30_000)).await;
    assert_eq!(status, 400, "{text}");
    let told = "node times (Mul): result 0: expected whole numbers of 32 bits, got 3000000000";
    assert!(text.contains(told), "{text}");
    let (status, text) = call(server.http(), "POST", path, &body(20_000)).await;
    assert!(status == 200 && text.contains("2000000000"), "{text}");
    server.gate.fail();
    let (status, text) = call(server.http(), "POST", path, &body(20_000)).await;
    assert_eq!(status, 500, "{text}");
    let (_, figures) = call(server.metrics(), "GET", "/metrics", "").await;
    for reason in ["OTHER", "BACKEND"] {
        let told =
            |l: &&str| l.contains("failure{") && l.contains(reason) && l.contains("products");
        let line = figures
            .lines()
            .find(told)
            .unwrap_or_else(|| panic!("{figures}"));
        assert!(line.ends_with(" 1"), "{line}");
    }
    end(server).await;
}
