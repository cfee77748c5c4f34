//! Matrix products with one accumulation order per output element.
//!
//! `C = act(A B + bias) + residual`, row-major, with `B` packed in panels of sixteen columns and
//! blocks of 256 rows. Each element of `C` is one chain of fused multiply-adds in the order of `k`
//! from zero; a later block of `k` continues from the stored accumulator. The chain is the same
//! for every number of rows, position, tile shape, thread count and SIMD level, so a row's bits do
//! not depend on the rows beside it. Work is split over rows and columns, never over `k`.
//!
//! Layout of packed `B [k, n]`: `[k / 256][n / 16][256][16]`, the last column panel padded with
//! zeros, the last row block shorter.

mod driver;
mod portable;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use driver::{Epilogue, gemm, gemm_range};
pub use tile::{A_STRIDE, KC, NR};

use super::buffers::Aligned;

/// A right-hand matrix in panels.
#[derive(Debug)]
pub struct PackedB {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    data: Aligned,
}

/// A borrowed right-hand matrix in panels.
#[derive(Clone, Copy, Debug)]
pub struct BView<'a> {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Panels.
    pub data: &'a [f32],
}

/// A left-hand matrix: row `i`, column `b * 256 + j` lies at `b * block_stride + i * row_stride + j`.
#[derive(Clone, Copy, Debug)]
pub struct AView<'a> {
    /// Elements.
    pub data: &'a [f32],
    /// Distance of rows.
    pub row_stride: usize,
    /// Distance of blocks of 256 columns.
    pub block_stride: usize,
}

/// A left-hand matrix whose blocks of 256 columns are stored one after another, so that its rows
/// do not fall on the same cache set. Used for convolution weights.
#[derive(Debug)]
pub struct PackedA {
    /// Rows.
    pub m: usize,
    /// Inner dimension.
    pub k: usize,
    data: Aligned,
}

/// Elements of a packed `[k, n]` matrix.
pub fn packed_len(k: usize, n: usize) -> usize {
    k * n.div_ceil(NR) * NR
}

impl PackedB {
    /// Packs a row-major `[k, n]` matrix.
    ///
    /// # Panics
    /// If `w` does not have `k * n` elements.
    pub fn pack(w: &[f32], k: usize, n: usize) -> Self {
        assert_eq!(w.len(), k * n, "elements of a [{k}, {n}] matrix");
        let mut data = Aligned::zeroed(packed_len(k, n));
        pack_b(w, n, k, n, &mut data);
        Self { k, n, data }
    }

    /// The matrix.
    pub fn view(&self) -> BView<'_> {
        BView {
            k: self.k,
            n: self.n,
            data: &self.data,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 4
    }
}

/// Packs the `[k, n]` matrix with rows `stride` apart into `out`.
pub fn pack_b(w: &[f32], stride: usize, k: usize, n: usize, out: &mut [f32]) {
    let panels = n.div_ceil(NR);
    let mut at = 0;
    for k0 in (0..k).step_by(KC) {
        let kb = KC.min(k - k0);
        for p in 0..panels {
            let (c0, cols) = (p * NR, NR.min(n - p * NR));
            for kk in 0..kb {
                let row = &w[(k0 + kk) * stride + c0..][..cols];
                let to = &mut out[at..at + NR];
                to[..cols].copy_from_slice(row);
                to[cols..].fill(0.0);
                at += NR;
            }
        }
    }
}

/// Packs the transpose of the `[n, k]` matrix with rows `stride` apart into `out`.
pub fn pack_b_transposed(w: &[f32], stride: usize, k: usize, n: usize, out: &mut [f32]) {
    let panels = n.div_ceil(NR);
    let mut at = 0;
    for k0 in (0..k).step_by(KC) {
        let kb = KC.min(k - k0);
        for p in 0..panels {
            let (c0, cols) = (p * NR, NR.min(n - p * NR));
            let panel = &mut out[at..at + kb * NR];
            for j in 0..NR {
                if j < cols {
                    let row = &w[(c0 + j) * stride + k0..][..kb];
                    for kk in 0..kb {
                        panel[kk * NR + j] = row[kk];
                    }
                } else {
                    (0..kb).for_each(|kk| panel[kk * NR + j] = 0.0);
                }
            }
            at += kb * NR;
        }
    }
}

impl<'a> AView<'a> {
    /// A row-major matrix with rows `row_stride` apart.
    pub fn rows(data: &'a [f32], row_stride: usize) -> Self {
        Self {
            data,
            row_stride,
            block_stride: KC,
        }
    }
}

impl PackedA {
    /// Packs a row-major `[m, k]` matrix.
    ///
    /// # Panics
    /// If `w` does not have `m * k` elements.
    pub fn pack(w: &[f32], m: usize, k: usize) -> Self {
        assert_eq!(w.len(), m * k, "elements of a [{m}, {k}] matrix");
        let mut data = Aligned::zeroed(k.div_ceil(KC) * m * A_STRIDE);
        for (b, k0) in (0..k).step_by(KC).enumerate() {
            let kb = KC.min(k - k0);
            for i in 0..m {
                let at = (b * m + i) * A_STRIDE;
                data[at..at + kb].copy_from_slice(&w[i * k + k0..][..kb]);
            }
        }
        Self { m, k, data }
    }

    /// The rows from `first` on.
    pub fn view(&self, first: usize) -> AView<'_> {
        AView {
            data: &self.data[first * A_STRIDE..],
            row_stride: A_STRIDE,
            block_stride: self.m * A_STRIDE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::level::Level;
    use crate::cpu::pool::Pool;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        lazybatch_graph::WeightSource::Seeded { seed, bound: 1.0 }.to_f32(n)
    }

    /// The one chain per element that every product must have.
    fn chain(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f32> {
        let mut c = vec![0.0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).fold(0.0, |s, x| a[i * k + x].mul_add(b[x * n + j], s));
            }
        }
        c
    }

    #[test]
    fn every_shape_thread_count_and_level_has_the_bits_of_one_chain() {
        for (k, n) in [(1, 1), (7, 5), (64, 16), (300, 33), (513, 100), (256, 161)] {
            let b = noise(k * n, 1);
            let packed = PackedB::pack(&b, k, n);
            for m in [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25, 100] {
                let a = noise(m * k, 2);
                let want = chain(&a, &b, m, k, n);
                for level in Level::available() {
                    for threads in [1, 2, 3] {
                        let mut pool = Pool::new(threads);
                        let mut c = vec![f32::NAN; m * n];
                        gemm(
                            &mut pool,
                            level,
                            true,
                            AView::rows(&a, k),
                            m,
                            packed.view(),
                            &mut c,
                            n,
                            false,
                            &Epilogue::default(),
                        );
                        let same = c.iter().zip(&want).all(|(x, y)| x.to_bits() == y.to_bits());
                        assert!(same, "{m}x{k}x{n}, {threads} threads, {level:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn packed_left_sides_and_transposed_right_sides_agree() {
        let (m, k, n) = (17, 530, 40);
        let (a, b) = (noise(m * k, 3), noise(k * n, 4));
        let want = chain(&a, &b, m, k, n);
        let mut bt = vec![0.0; n * k];
        for i in 0..k {
            for j in 0..n {
                bt[j * k + i] = b[i * n + j];
            }
        }
        let mut panels = vec![f32::NAN; packed_len(k, n)];
        pack_b_transposed(&bt, k, k, n, &mut panels);
        let left = PackedA::pack(&a, m, k);
        let mut c = vec![f32::NAN; m * n];
        let view = BView {
            k,
            n,
            data: &panels,
        };
        let mut pool = Pool::new(1);
        let epi = Epilogue::default();
        gemm(
            &mut pool,
            Level::detect(),
            false,
            left.view(0),
            m,
            view,
            &mut c,
            n,
            false,
            &epi,
        );
        assert_eq!(c, want);
    }
}
