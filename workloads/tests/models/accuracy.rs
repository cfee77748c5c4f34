//! The trained model is as good under every policy, and as good as its card says.

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::Tensor;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_workloads::experiment::words;
use lazybatch_workloads::zoo;

const POLICIES: [&str; 7] = [
    "serial",
    "graph:1",
    "greedy",
    "lazy",
    "lazy:late-admits",
    "oracle",
    "graph:0.1",
];

#[test]
fn word_accuracy_is_the_same_under_every_policy() {
    let program = Arc::new(zoo::find("phonemes").unwrap().program().unwrap());
    let words = words::sample(400, 11);
    let mut reference: Option<Vec<Vec<Tensor>>> = None;
    for policy in POLICIES {
        let engine = Engine::builder()
            .device(CpuDevice::new(CpuOptions::default()))
            .model("phonemes", program.clone(), ModelOptions::default())
            .policy(policy)
            .build()
            .unwrap();
        let handles: Vec<_> = words
            .iter()
            .map(|w| {
                let inputs = words::item(w.spelling).unwrap().inputs;
                let known = Options {
                    known_output_len: Some(8),
                    ..Options::default()
                };
                engine.try_submit("phonemes", inputs, known).unwrap()
            })
            .collect();
        let answers: Vec<Vec<Tensor>> = handles
            .into_iter()
            .map(|h| h.wait().unwrap().outputs)
            .collect();
        let right = words
            .iter()
            .zip(&answers)
            .filter(|(w, a)| w.accepts(&words::answer(a)))
            .count();
        // The share on all test words is in the model's card; 400 of them lie within four standard
        // errors of any share above the required 65 %.
        assert!(
            right * 100 >= 56 * words.len(),
            "{right} of {} right",
            words.len()
        );
        let bits = |a: &[Vec<Tensor>]| -> Vec<Vec<u8>> {
            a.iter().map(|t| t[0].data.as_slice().to_vec()).collect()
        };
        match &reference {
            None => reference = Some(answers),
            Some(first) => assert_eq!(bits(&answers), bits(first), "{policy}"),
        }
    }
}

#[test]
fn golden_words_are_those_of_the_training_framework() {
    const GOLDEN: &str = include_str!("../../models/phonemes/golden.json");
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    let program = zoo::find("phonemes").unwrap().program().unwrap();
    let engine = Engine::builder()
        .device(CpuDevice::new(CpuOptions::default()))
        .model("phonemes", program, ModelOptions::default())
        .policy("lazy")
        .build()
        .unwrap();
    let words = golden["words"].as_array().unwrap();
    assert_eq!(words.len(), 200);
    for case in words {
        let word = case["word"].as_str().unwrap();
        let inputs = words::item(word).unwrap().inputs;
        let handle = engine
            .try_submit("phonemes", inputs, Options::default())
            .unwrap();
        let expected: Vec<&str> = case["phonemes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_str().unwrap())
            .collect();
        assert_eq!(
            words::answer(&handle.wait().unwrap().outputs),
            expected,
            "{word}"
        );
    }
}
