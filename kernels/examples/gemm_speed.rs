//! Prints the speed of `y = x W` against the measured peak of fused multiply-adds.
//!
//! `cargo run --release -p lazybatch-kernels --example gemm_speed [K N]`
#![allow(unsafe_code, reason = "the peak is measured with intrinsics")]

use std::hint::black_box;
use std::time::Instant;

use lazybatch_graph::WeightSource;
use lazybatch_kernels::cpu::gemm::{Epilogue, PackedB, gemm_packed};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::cpu::peak::{flops_per_step, multiply_adds};
use lazybatch_kernels::cpu::pool::Pool;

/// Best seconds of `repeats` runs.
#[allow(
    clippy::disallowed_methods,
    reason = "a measuring program reads the clock"
)]
fn best(repeats: usize, mut f: impl FnMut()) -> f64 {
    (0..repeats)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// Fused multiply-adds per second of one thread, times two, in units of 1e9.
fn peak_gflops(level: Level) -> f64 {
    let steps = 200_000;
    let (a, b) = (black_box(0.999f32), black_box(0.001f32));
    let secs = best(20, || {
        black_box(multiply_adds(level, steps, a, b));
    });
    (steps * flops_per_step(level)) as f64 / secs / 1e9
}

fn main() {
    let args: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|a| a.parse().ok())
        .collect();
    let (k, n) = if let [k, n, ..] = args[..] {
        (k, n)
    } else {
        (1024, 1024)
    };
    let w = WeightSource::Seeded {
        seed: 1,
        bound: 1.0,
    }
    .to_f32(k * n);
    let packed = PackedB::pack(&w, k, n);
    for level in Level::available().into_iter().skip(1) {
        println!(
            "{}: peak {:.1} GFLOP/s per thread; K {k} N {n}",
            level.name(),
            peak_gflops(level)
        );
        for threads in [1, 2] {
            let mut pool = Pool::new(threads);
            print!("  {threads} thread(s):");
            for m in [1, 2, 4, 8, 16, 32, 64, 256] {
                let x = WeightSource::Seeded {
                    seed: 2,
                    bound: 1.0,
                }
                .to_f32(m * k);
                let mut c = vec![0.0; m * n];
                let secs = best(40 + 400 / m, || {
                    let epi = Epilogue::default();
                    gemm_packed(&mut pool, level, true, &x, &packed, &mut c, false, &epi);
                    black_box(&c);
                });
                print!("  M={m} {:.0}", (2 * m * k * n) as f64 / secs / 1e9);
            }
            println!();
        }
    }
}
