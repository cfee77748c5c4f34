//! The pretrained `g2p_en` model gives the phonemes of its own Python code.
//!
//! `cargo xtask models` fetches the checkpoint and has the package answer 1,000 words; without the
//! files the test says so and passes, unless `LAZYBATCH_REQUIRE_MODELS` is set, as
//! `cargo xtask test` does.

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Tensor, optimize};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_workloads::zoo::g2p_en;

#[test]
fn same_phonemes_as_the_package() {
    let Some((folder, golden)) = crate::fetched::model("g2p_en") else {
        return;
    };
    let phonemes: Vec<&str> = golden["phonemes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p.as_str().unwrap())
        .collect();
    let program = g2p_en::program_from_npz(folder.join("checkpoint20.npz")).unwrap();
    let engine = Engine::builder()
        .device(CpuDevice::new(CpuOptions::default()))
        .model(
            "g2p_en",
            Arc::new(optimize(program).unwrap()),
            ModelOptions::default(),
        )
        .policy("lazy")
        .build()
        .unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 1000);
    let handles: Vec<_> = cases
        .iter()
        .map(|case| {
            let ids = g2p_en::encode(case["word"].as_str().unwrap());
            let inputs = vec![Tensor::from_i32(&[ids.len()], &ids)];
            engine
                .try_submit("g2p_en", inputs, Options::default())
                .unwrap()
        })
        .collect();
    for (case, handle) in cases.iter().zip(handles) {
        let ids = handle.wait().unwrap().outputs[0].to_i32();
        let answer: Vec<&str> = ids
            .iter()
            .take_while(|&&id| id != g2p_en::EOS)
            .map(|&id| phonemes[id as usize])
            .collect();
        let expected: Vec<&str> = case["phonemes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_str().unwrap())
            .collect();
        assert_eq!(answer, expected, "{}", case["word"]);
    }
}
