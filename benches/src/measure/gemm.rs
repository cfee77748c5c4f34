//! GFLOP/s of the packed product: by rows and threads beside the peak, which is measured in the same
//! repetition, and by how the weights are stored, from the caches and from memory.

use lazybatch_benches::clock;
use lazybatch_benches::matmul::{K, N, NEAR_ROWS, Product, ROWS, STEP_ROWS};
use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::cpu::level::Level;
use serde_json::json;

use crate::Settings;

/// Nanoseconds of products per row count and repetition.
const BUDGET_NS: f64 = 60e6;

/// Pairs of a peak and a product in a repetition.
const TURNS: usize = 8;

/// Floating-point operations of a product's turn: as long as the peak's, roughly.
const TURN_FLOPS: f64 = 4e8;

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
    let mut products = vec![("product", ROWS.to_vec(), Product::new(level, threads))];
    if threads == 1 {
        let what = "product in the first-level cache";
        products.push((what, vec![NEAR_ROWS], Product::near(level)));
        let what = "product of an LSTM step";
        products.push((what, vec![STEP_ROWS], Product::step(level)));
    }
    let mut found = Vec::new();
    for (what, all_rows, product) in &mut products {
        for &rows in all_rows.iter() {
            let (mut peak, mut speed, mut shares) = (Vec::new(), Vec::new(), Vec::new());
            // In turns: a processor's clock changes from one moment to the next.
            for _ in 0..settings.repeats * TURNS {
                peak.push(product.peak_flops() / clock::time(|| product.run_peak()).0);
                let calls = (TURN_FLOPS / product.flops(rows)).ceil().max(1.0);
                product.run(rows);
                let (ns, ()) = clock::time(|| (0..calls as usize).for_each(|_| product.run(rows)));
                speed.push(calls * product.flops(rows) / ns);
                shares.push(speed[speed.len() - 1] / peak[peak.len() - 1]);
            }
            found.push((rows, product.size(), *what, peak, speed, shares));
        }
    }
    let peaks = found.iter().flat_map(|f| f.3.clone()).collect();
    let figures = json!({ "what": "peak", "simd": level.name(), "threads": threads });
    recorder.line(figures, "gflops", &Spread::of(peaks))?;
    for (rows, [k, n], what, _, speed, shares) in found {
        let shares = Spread::of(shares);
        let figures = json!({
            "what": what,
            "simd": level.name(), "threads": threads, "rows": rows, "k": k, "n": n,
            "share_of_peak_median": rounded(shares.median()),
            "share_of_peak_range": [rounded(shares.min()), rounded(shares.max())],
        });
        recorder.line(figures, "gflops", &Spread::of(speed))?;
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
                    speed[i].push(product.flops(rows) / typical_ns(|| product.run(rows)));
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
