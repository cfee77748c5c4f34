//! The packed matrix product beside the peak of fused multiply-adds.

use std::hint::black_box;

use lazybatch_graph::WeightSource;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::cpu::gemm::{Epilogue, PackedB, gemm_packed};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::cpu::peak::{flops_per_step, multiply_adds};
use lazybatch_kernels::cpu::pool::Pool;

/// Inner dimension and columns.
pub const K: usize = 1024;
/// Columns of the product.
pub const N: usize = 1024;
/// Numbers of rows that are measured.
pub const ROWS: [usize; 5] = [1, 4, 16, 64, 256];
/// Inner dimension and columns of a product in the first-level cache.
const NEAR: [usize; 2] = [112, 48];
/// Its rows.
pub const NEAR_ROWS: usize = 9;
/// Inner dimension and columns of a step of an LSTM of 256, one of its two products.
const STEP: [usize; 2] = [256, 1024];
/// Its rows: a full batch of `serve-in-process`.
pub const STEP_ROWS: usize = 16;
/// Steps of one peak measurement.
const PEAK_STEPS: usize = 100_000;
/// Bytes of the matrices that cold products take in turns: more than the caches hold.
const COLD_BYTES: usize = 96 << 20;

/// `y = x W`.
pub struct Product {
    level: Level,
    pool: Pool,
    /// Matrices that calls take in turns.
    packed: Vec<PackedB>,
    turn: usize,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Product {
    /// `W: [1024, 1024]`, for up to the largest of [`ROWS`].
    pub fn new(level: Level, threads: usize) -> Self {
        Self::stored(level, threads, WeightType::F32)
    }

    /// As [`Product::new`], with `W` stored as `weights`.
    ///
    /// # Panics
    /// If `weights` cannot hold numbers up to 1.
    pub fn stored(level: Level, threads: usize, weights: WeightType) -> Self {
        let noise = |seed, num| WeightSource::Seeded { seed, bound: 1.0 }.to_f32(num);
        let packed = PackedB::pack_as(weights, &noise(1, K * N), K, N);
        let packed = packed.expect("every type holds numbers up to 1");
        let x = noise(2, ROWS[ROWS.len() - 1] * K);
        Self::packed(level, threads, packed, x)
    }

    /// Of `x: [rows, k]` and `w: [k, n]`, packed and ready.
    ///
    /// # Panics
    /// If `w` does not have `k * n` elements.
    pub fn of(level: Level, threads: usize, w: &[f32], [k, n]: [usize; 2], x: Vec<f32>) -> Self {
        Self::packed(level, threads, PackedB::pack(w, k, n), x)
    }

    fn packed(level: Level, threads: usize, packed: PackedB, x: Vec<f32>) -> Self {
        Self {
            level,
            pool: Pool::new(threads),
            y: vec![0.0; x.len() / packed.k * packed.n],
            packed: vec![packed],
            turn: 0,
            x,
        }
    }

    /// The same with weights that no cache holds: each call takes the next of many copies.
    pub fn cold(mut self) -> Self {
        let first = &self.packed[0];
        let copies = COLD_BYTES.div_ceil(first.bytes());
        self.packed = vec![first.clone(); copies];
        self
    }

    /// One tile of [`NEAR_ROWS`] rows, whose operands stay in the first-level cache: what is left of
    /// the peak when nothing comes from further away.
    pub fn near(level: Level) -> Self {
        Self::one(level, NEAR, NEAR_ROWS)
    }

    /// Of a step of an LSTM, for [`STEP_ROWS`] rows: its weights stay in the second-level cache.
    pub fn step(level: Level) -> Self {
        Self::one(level, STEP, STEP_ROWS)
    }

    fn one(level: Level, [k, n]: [usize; 2], rows: usize) -> Self {
        let noise = |seed, num| WeightSource::Seeded { seed, bound: 1.0 }.to_f32(num);
        Self::of(level, 1, &noise(1, k * n), [k, n], noise(2, rows * k))
    }

    /// Inner dimension and columns.
    pub fn size(&self) -> [usize; 2] {
        [self.packed[0].k, self.packed[0].n]
    }

    /// Floating-point operations of [`Product::run`].
    pub fn flops(&self, rows: usize) -> f64 {
        let [k, n] = self.size();
        (2 * rows * k * n) as f64
    }

    /// The product of the first `rows` rows.
    pub fn run(&mut self, rows: usize) {
        let w = &self.packed[self.turn];
        self.turn = (self.turn + 1) % self.packed.len();
        gemm_packed(
            &mut self.pool,
            self.level,
            true,
            &self.x[..rows * w.k],
            w,
            &mut self.y,
            false,
            &Epilogue::default(),
        );
        black_box(&self.y);
    }

    /// The first `rows` rows of the result.
    pub fn result(&self, rows: usize) -> &[f32] {
        &self.y[..rows * self.packed[0].n]
    }

    /// Floating-point operations of [`Product::run_peak`].
    pub fn peak_flops(&self) -> f64 {
        (PEAK_STEPS * flops_per_step(self.level) * self.pool.threads()) as f64
    }

    /// Independent chains of multiply-adds in registers, on every thread.
    pub fn run_peak(&mut self) {
        let level = self.level;
        self.pool.run(self.pool.threads(), |_| {
            black_box(multiply_adds(
                level,
                PEAK_STEPS,
                black_box(0.999),
                black_box(0.001),
            ));
        });
    }
}
