//! MobileNetV2 with its trained weights classifies pictures as a reference in double precision, and
//! as ONNX Runtime.
//!
//! `cargo xtask models` fetches the model; without it the test says so and passes, unless
//! `LAZYBATCH_REQUIRE_MODELS` is set.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Manifest, Tensor, WeightFile, optimize};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

/// ImageNet's "Egyptian cat".
const EGYPTIAN_CAT: u64 = 285;

#[test]
fn pictures_are_what_the_reference_says() {
    let Some((folder, golden)) = crate::fetched::model("mobilenet-v2") else {
        return;
    };
    let manifest = Manifest::open(folder.join("model.toml")).unwrap();
    let program = Arc::new(optimize(manifest.program().unwrap()).unwrap());
    let images = WeightFile::open(folder.join("images.safetensors")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 5);
    let inputs: Vec<Tensor> = cases
        .iter()
        .map(|case| {
            let image = images.tensor(case["image"].as_str().unwrap()).unwrap();
            Tensor::from_f32(&[1, 3, 224, 224], &image.to_f32())
        })
        .collect();
    let serve = |policy: &str| -> Vec<Vec<f32>> {
        let engine = Engine::builder()
            .device(CpuDevice::new(CpuOptions::default()))
            .model("mobilenet", program.clone(), ModelOptions::default())
            .policy(policy)
            .build()
            .unwrap();
        let submit = |image: &Tensor| {
            engine
                .try_submit("mobilenet", vec![image.clone()], Options::default())
                .unwrap()
        };
        let handles: Vec<_> = inputs.iter().map(submit).collect();
        handles
            .into_iter()
            .map(|h| h.wait().unwrap().outputs[0].to_f32())
            .collect()
    };
    let alone = serve("serial");
    assert_eq!(alone, serve("greedy"), "a batch answers otherwise");
    let by_runtime = crate::fetched::runtime(&folder);
    assert_eq!(by_runtime.len(), cases.len());
    for (got, want) in alone.iter().zip(&by_runtime) {
        let off = crate::fetched::difference(got, want);
        println!("off by {off:e} of ONNX Runtime's largest logit");
        assert!(off < 1e-4, "{off}");
    }
    for (got, case) in alone.iter().zip(cases) {
        let want = crate::fetched::numbers(&case["logits"]);
        let largest = want.iter().fold(0.0f64, |a, x| a.max(x.abs()));
        let off = got
            .iter()
            .zip(&want)
            .map(|(a, b)| (f64::from(*a) - b).abs());
        let worst = off.fold(0.0, f64::max);
        let name = case["image"].as_str().unwrap();
        println!("{name}: off by {:e} of the largest logit", worst / largest);
        assert!(worst < 1e-4 * largest, "{name}: {worst} of {largest}");
        let top = got.iter().copied().fold(f32::MIN, f32::max);
        let best = got.iter().position(|&x| x == top).unwrap() as u64;
        assert_eq!(best, case["class"].as_u64().unwrap(), "{name}");
        if name == "chelsea.png" {
            assert_eq!(best, EGYPTIAN_CAT);
            let total: f32 = got.iter().map(|x| (x - top).exp()).sum();
            assert!((1.0 / total - 0.717).abs() < 2e-3, "{}", 1.0 / total);
        }
    }
}
