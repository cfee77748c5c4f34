//! Packing of right sides.

use super::tile::{KC, NR};

/// Elements of a packed `[k, n]` matrix.
pub fn packed_len(k: usize, n: usize) -> usize {
    k * n.div_ceil(NR) * NR
}

/// Packs the `[k, n]` matrix with rows `stride` apart into `out`.
pub fn pack_b<E: Copy + Default>(w: &[E], stride: usize, k: usize, n: usize, out: &mut [E]) {
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
                to[cols..].fill(E::default());
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
