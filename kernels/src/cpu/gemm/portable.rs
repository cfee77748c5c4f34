//! The register tile without SIMD intrinsics.

use super::element::Element;
use super::tile::{Clamp, NR, Tile};
use crate::cpu::math;

/// Computes a tile of `rows` rows and `panels` panels.
///
/// # Safety
/// The pointers of `t` must cover `rows` rows of `t.k` elements, and `panels` panels.
pub unsafe fn run<E: Element>(t: &Tile<'_, E>, rows: usize, panels: usize) {
    for p in 0..panels {
        for r in 0..rows {
            let mut acc = [0.0f32; NR];
            // SAFETY: row `r` and panel `p` are covered by the caller's promise.
            unsafe {
                if !t.from.is_null() {
                    acc = t
                        .from
                        .add(r * t.ld_from + p * NR)
                        .cast::<[f32; NR]>()
                        .read();
                }
                add(&mut acc, t.first_bias, p);
                for s in t.segments {
                    let right = t.right(s);
                    for k in 0..s.k {
                        let a = *t.a.add(r * t.lda + s.a + k);
                        let b = &*right.b.add(p * right.ldb + k * NR).cast::<[E; NR]>();
                        for j in 0..NR {
                            acc[j] = a.mul_add(b[j].widen(), acc[j]);
                        }
                    }
                }
                add(&mut acc, t.last_bias, p);
                let acc = acc.map(|x| clamp(t.clamp, x));
                t.c.add(r * t.ldc + p * NR).cast::<[f32; NR]>().write(acc);
            }
        }
    }
}

/// Adds the `p`-th panel's part of a bias, if there is one.
///
/// # Safety
/// A bias covers that panel.
unsafe fn add(acc: &mut [f32; NR], bias: *const f32, p: usize) {
    if !bias.is_null() {
        // SAFETY: the caller's promise.
        let bias = unsafe { &*bias.add(p * NR).cast::<[f32; NR]>() };
        (0..NR).for_each(|j| acc[j] += bias[j]);
    }
}

fn clamp(clamp: Clamp, x: f32) -> f32 {
    match clamp {
        Clamp::None => x,
        Clamp::Relu => math::max(0.0, x),
        Clamp::Relu6 => math::max(0.0, math::min(6.0, x)),
    }
}
