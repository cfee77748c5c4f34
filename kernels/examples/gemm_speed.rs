//! Prints the speed of `y = x W` against the measured peak of fused multiply-adds.
//!
//! `cargo run --release -p lazybatch-kernels --example gemm_speed [K N]`
#![allow(unsafe_code, reason = "the peak is measured with intrinsics")]

use std::hint::black_box;
use std::time::Instant;

use lazybatch_graph::WeightSource;
use lazybatch_kernels::cpu::gemm::{AView, Epilogue, PackedB, gemm};
use lazybatch_kernels::cpu::level::{Kind, Level};
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

#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps,
        _mm512_fmadd_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };

    /// Sixteen independent chains of `n` steps, 8 lanes.
    #[target_feature(enable = "avx2,fma")]
    pub fn chains256(n: usize, a: f32, b: f32) -> f32 {
        let (va, vb) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
        let mut acc = [_mm256_set1_ps(0.5); 12];
        for _ in 0..n {
            for c in &mut acc {
                *c = _mm256_fmadd_ps(va, *c, vb);
            }
        }
        let mut out = [0.0f32; 8];
        let sum = acc.into_iter().fold(va, |s, c| _mm256_add_ps(s, c));
        // SAFETY: eight elements.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
        out[0]
    }

    /// Sixteen independent chains of `n` steps, 16 lanes.
    #[target_feature(enable = "avx512f")]
    pub fn chains512(n: usize, a: f32, b: f32) -> f32 {
        let (va, vb) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
        let mut acc = [_mm512_set1_ps(0.5); 12];
        for _ in 0..n {
            for c in &mut acc {
                *c = _mm512_fmadd_ps(va, *c, vb);
            }
        }
        let mut out = [0.0f32; 16];
        let sum = acc.into_iter().fold(va, |s, c| _mm512_add_ps(s, c));
        // SAFETY: sixteen elements.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        out[0]
    }
}

/// Fused multiply-adds per second of one thread, times two, in units of 1e9.
fn peak_gflops(level: Level) -> f64 {
    let n = 200_000;
    let lanes = match level.kind() {
        Kind::Portable => return f64::NAN,
        Kind::Avx2 => 8,
        Kind::Avx512 => 16,
    };
    let (a, b) = (black_box(0.999f32), black_box(0.001f32));
    let secs = best(20, || {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level proves the instructions.
        unsafe {
            black_box(if lanes == 8 {
                peak::chains256(n, a, b)
            } else {
                peak::chains512(n, a, b)
            });
        }
    });
    (2 * n * 12 * lanes) as f64 / secs / 1e9
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
                    let a = AView::rows(&x, k);
                    let epi = Epilogue::default();
                    gemm(
                        &mut pool,
                        level,
                        true,
                        a,
                        m,
                        packed.view(),
                        &mut c,
                        n,
                        false,
                        &epi,
                    );
                    black_box(&c);
                });
                print!("  M={m} {:.0}", (2 * m * k * n) as f64 / secs / 1e9);
            }
            println!();
        }
    }
}
