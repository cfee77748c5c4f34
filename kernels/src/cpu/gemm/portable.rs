//! The register tile without SIMD intrinsics.

use super::element::Element;
use super::tile::{NR, Tile};

/// Computes a tile of `rows` rows and `panels` panels.
///
/// # Safety
/// The pointers of `t` must cover `rows` rows of `t.k` elements, and `panels` panels.
pub unsafe fn run<E: Element>(t: &Tile<E>, rows: usize, panels: usize) {
    for p in 0..panels {
        for r in 0..rows {
            let mut acc = [0.0f32; NR];
            // SAFETY: row `r` and panel `p` are covered by the caller's promise.
            unsafe {
                let c = t.c.add(r * t.ldc + p * NR).cast::<[f32; NR]>();
                if t.resume {
                    acc = c.read();
                }
                for k in 0..t.k {
                    let a = *t.a.add(r * t.lda + k);
                    let b = &*t.b.add(p * t.ldb + k * NR).cast::<[E; NR]>();
                    for j in 0..NR {
                        acc[j] = a.mul_add(b[j].widen(), acc[j]);
                    }
                }
                c.write(acc);
            }
        }
    }
}
