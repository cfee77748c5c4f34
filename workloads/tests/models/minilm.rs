//! MiniLM-L6, a sentence encoder: ids as the `tokenizers` package has them, embeddings as a BERT in
//! double precision and ONNX Runtime have them, in batches bit for bit as alone.
//!
//! `cargo xtask models` fetches the model; without it the tests say so and pass, unless
//! `LAZYBATCH_REQUIRE_MODELS` is set.

#![cfg(feature = "tokenizers")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Manifest, optimize};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_workloads::text::Text;

/// Cosines that the documentation of Sentence Transformers gives for this model.
/// Source: <https://sbert.net/docs/sentence_transformer/usage/usage.html>.
const SIMILARITIES: [(&str, &str, f64); 3] = [
    (
        "The weather is lovely today.",
        "It's so sunny outside!",
        0.6660,
    ),
    (
        "The weather is lovely today.",
        "He drove to the stadium.",
        0.1046,
    ),
    ("It's so sunny outside!", "He drove to the stadium.", 0.1411),
];

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn embeddings_of_sentences_are_those_of_the_reference() {
    let Some((folder, golden)) = crate::fetched::model("minilm-l6") else {
        return;
    };
    let manifest = Manifest::open(folder.join("model.toml")).unwrap();
    let program = Arc::new(optimize(manifest.program().unwrap()).unwrap());
    let text = Text::of(&program, &folder).unwrap().unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 100);
    let mut items = Vec::new();
    for case in cases {
        let item = text.item(case["text"].as_str().unwrap()).unwrap();
        let ids = item.inputs[0].to_i32();
        let expected: Vec<i32> = crate::fetched::numbers(&case["ids"])
            .iter()
            .map(|&id| id as i32)
            .collect();
        assert_eq!(ids, expected, "{}", case["text"]);
        items.push(item);
    }
    let lengths: Vec<u32> = items.iter().map(|item| item.input_len).collect();
    assert_eq!(lengths.iter().max(), Some(&256), "one is cut off");
    assert!(lengths.iter().min() < Some(&4), "{lengths:?}");

    let serve = |policy: &str| -> Vec<Vec<f32>> {
        let engine = Engine::builder()
            .device(CpuDevice::new(CpuOptions::default()))
            .model("minilm", program.clone(), ModelOptions::default())
            .policy(policy)
            .build()
            .unwrap();
        let submit = |item: &lazybatch_workloads::experiment::inputs::Item| {
            engine
                .try_submit("minilm", item.inputs.clone(), Options::default())
                .unwrap()
        };
        let handles: Vec<_> = items.iter().map(submit).collect();
        handles
            .into_iter()
            .map(|h| h.wait().unwrap().outputs[0].to_f32())
            .collect()
    };
    let alone = serve("serial");
    for (i, (a, b)) in alone.iter().zip(serve("lazy")).enumerate() {
        let bits = |x: &[f32]| -> Vec<u32> { x.iter().map(|x| x.to_bits()).collect() };
        assert_eq!(bits(a), bits(&b), "{}", cases[i]["text"]);
    }
    let by_runtime = crate::fetched::runtime(&folder);
    assert_eq!(by_runtime.len(), cases.len());
    let off = alone.iter().zip(&by_runtime);
    let off = off.map(|(got, want)| crate::fetched::difference(got, want));
    let off = off.fold(0.0, f64::max);
    println!("{off:e} of the largest element off ONNX Runtime's");
    assert!(
        off < 1e-4,
        "{off:e} of the largest element off ONNX Runtime's"
    );
    let mut wide = Vec::new();
    let mut worst: f64 = 0.0;
    for (got, case) in alone.iter().zip(cases) {
        let got: Vec<f64> = got.iter().map(|&x| f64::from(x)).collect();
        let want = crate::fetched::numbers(&case["embedding"]);
        assert_eq!(got.len(), want.len());
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
        worst = worst.max(off.fold(0.0, f64::max));
        wide.push(got);
    }
    // Embeddings have length 1.
    assert!(worst < 1e-5, "an element is {worst} off");
    println!("the furthest element is {worst:e} off");
    for (a, b, similarity) in SIMILARITIES {
        let at = |text: &str| cases.iter().position(|c| c["text"] == text).unwrap();
        let cosine = dot(&wide[at(a)], &wide[at(b)]);
        assert!((cosine - similarity).abs() < 1e-4, "{a} {b} {cosine}");
    }
}
