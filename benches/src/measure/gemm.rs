//! GFLOP/s of the packed product: by rows and threads beside the peak, which is measured in the same
//! repetition, and by how the weights are stored, from the caches and from memory.

use lazybatch_benches::clock;
use lazybatch_benches::matmul::{K, N, Product, ROWS};
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::cpu::level::Level;
use serde_json::json;

use crate::Settings;

/// Nanoseconds of products per row count and repetition.
const BUDGET_NS: f64 = 60e6;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("gemm")?;
    for threads in [1, 2] {
        plain(settings, &recorder, threads)?;
    }
    by_weights(settings, &recorder)
}

fn plain(settings: &Settings, recorder: &Recorder, threads: usize) -> anyhow::Result<()> {
    let level = Level::detect();
    let mut product = Product::new(level, threads);
    let mut peak = Vec::new();
    let mut speed = vec![Vec::new(); ROWS.len()];
    for _ in 0..settings.repeats {
        peak.push(product.peak_flops() / typical_ns(|| product.run_peak()));
        for (i, &rows) in ROWS.iter().enumerate() {
            speed[i].push(Product::flops(rows) / typical_ns(|| product.run(rows)));
        }
    }
    let figures = json!({ "what": "peak", "simd": level.name(), "threads": threads });
    recorder.line(figures, "gflops", &Spread::of(peak.clone()))?;
    for (&rows, speed) in ROWS.iter().zip(&speed) {
        let shares = speed.iter().zip(&peak).map(|(s, p)| s / p).collect();
        let figures = json!({
            "what": "product", "simd": level.name(), "threads": threads,
            "rows": rows, "k": K, "n": N,
            "share_of_peak_median": rounded(Spread::of(shares).median()),
        });
        recorder.line(figures, "gflops", &Spread::of(speed.clone()))?;
    }
    Ok(())
}

/// One thread. Each repetition goes through all types, so that they suffer the same noise.
fn by_weights(settings: &Settings, recorder: &Recorder) -> anyhow::Result<()> {
    let level = Level::detect();
    for cache in ["warm", "cold"] {
        let product = |weights| {
            let product = Product::stored(level, 1, weights);
            if cache == "cold" {
                product.cold()
            } else {
                product
            }
        };
        let mut products = WeightType::ALL.map(product);
        let mut speed = vec![vec![Vec::new(); ROWS.len()]; products.len()];
        for _ in 0..settings.repeats {
            for (i, &rows) in ROWS.iter().enumerate() {
                for (product, speed) in products.iter_mut().zip(&mut speed) {
                    speed[i].push(Product::flops(rows) / typical_ns(|| product.run(rows)));
                }
            }
        }
        let plain = speed[0].clone();
        for (weights, speed) in WeightType::ALL.iter().zip(&speed) {
            for (i, &rows) in ROWS.iter().enumerate() {
                let ratios = speed[i].iter().zip(&plain[i]).map(|(s, p)| s / p).collect();
                let figures = json!({
                    "what": "weights", "simd": level.name(), "threads": 1,
                    "rows": rows, "k": K, "n": N,
                    "weights": weights.name(), "cache": cache,
                    "over_f32_median": rounded(Spread::of(ratios).median()),
                });
                recorder.line(figures, "gflops", &Spread::of(speed[i].clone()))?;
            }
        }
    }
    Ok(())
}

/// Median time of a call, over as many as fit the budget.
fn typical_ns(mut f: impl FnMut()) -> f64 {
    let (first, ()) = clock::time(&mut f);
    let calls = (BUDGET_NS / first).clamp(5.0, 2000.0) as usize;
    Spread::of((0..calls).map(|_| clock::time(&mut f).0).collect()).median()
}
