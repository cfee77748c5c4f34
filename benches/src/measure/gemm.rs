//! GFLOP/s of the packed product by rows and threads, peak measured in the same repetition.

use lazybatch_benches::clock;
use lazybatch_benches::matmul::{K, N, Product, ROWS};
use lazybatch_benches::record::rounded;
use lazybatch_benches::spread::Spread;
use lazybatch_kernels::cpu::level::Level;
use serde_json::json;

use crate::Settings;

/// Nanoseconds of products per row count and repetition.
const BUDGET_NS: f64 = 60e6;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("gemm")?;
    let level = Level::detect();
    for threads in [1, 2] {
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
    }
    Ok(())
}

/// Median time of a call, over as many as fit the budget.
fn typical_ns(mut f: impl FnMut()) -> f64 {
    let (first, ()) = clock::time(&mut f);
    let calls = (BUDGET_NS / first).clamp(5.0, 2000.0) as usize;
    Spread::of((0..calls).map(|_| clock::time(&mut f).0).collect()).median()
}
