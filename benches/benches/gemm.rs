//! The packed matrix product, 1024 x 1024, by rows and threads, beside the peak of multiply-adds.
//!
//! Throughput is in floating-point operations: `Gelem/s` reads as GFLOP/s.
//!
//! `cargo bench -p lazybatch-benches --bench gemm`

#![allow(missing_docs, reason = "criterion's macros make the public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lazybatch_benches::matmul::{Product, ROWS};
use lazybatch_kernels::cpu::level::Level;

fn products(c: &mut Criterion) {
    let level = Level::detect();
    for threads in [1, 2] {
        let mut product = Product::new(level, threads);
        let mut group = c.benchmark_group(format!("gemm/{}-{threads}t", level.name()));
        group.throughput(Throughput::Elements(product.peak_flops() as u64));
        group.bench_function("peak", |b| b.iter(|| product.run_peak()));
        for rows in ROWS {
            group.throughput(Throughput::Elements(product.flops(rows) as u64));
            group.bench_function(format!("rows-{rows}"), |b| b.iter(|| product.run(rows)));
        }
        group.finish();
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
