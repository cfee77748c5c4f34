//! Register tiles with NEON, which every 64-bit ARM processor has.

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vbslq_f32, vcgtq_f32, vcltq_f32, vdupq_n_f32, vfmaq_f32, vld1q_f32,
    vst1q_f32,
};

use super::element::Element;
use super::tile::{Clamp, NR, Tile};
use super::unroll::unroll;

/// Elements of a vector.
const LANES: usize = 4;

/// Vectors of a panel.
const VECTORS: usize = NR / LANES;

/// Four elements from `at` on.
///
/// # Safety
/// `at` points to four elements.
#[inline(always)]
unsafe fn load<E: Element>(at: *const E) -> float32x4_t {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        let four: [f32; LANES] = std::array::from_fn(|i| (*at.add(i)).widen());
        vld1q_f32(four.as_ptr())
    }
}

/// `R` rows by one panel.
///
/// # Safety
/// The pointers of `t` cover the tile.
#[target_feature(enable = "neon")]
unsafe fn tile<E: Element, const R: usize>(t: &Tile<'_, E>) {
    let mut acc = [[vdupq_n_f32(0.0); VECTORS]; R];
    // SAFETY: the caller vouches for every row and column of the tile.
    unsafe {
        if !t.from.is_null() {
            unroll!(row r < R, {
                unroll!(panel v < VECTORS, {
                    acc[r][v] = vld1q_f32(t.from.add(r * t.ld_from + v * LANES));
                });
            });
        }
        macro_rules! add {
            ($bias:expr) => {
                if !$bias.is_null() {
                    unroll!(panel v < VECTORS, {
                        let bias = vld1q_f32($bias.add(v * LANES));
                        unroll!(row r < R, {
                            acc[r][v] = vaddq_f32(acc[r][v], bias);
                        });
                    });
                }
            };
        }
        add!(t.first_bias);
        for s in t.segments {
            let (a, right) = (t.a.add(s.a), t.right(s));
            for k in 0..s.k {
                let b = right.b.add(k * NR);
                let mut row = [vdupq_n_f32(0.0); VECTORS];
                unroll!(panel v < VECTORS, {
                    row[v] = load(b.add(v * LANES));
                });
                unroll!(row r < R, {
                    let x = vdupq_n_f32(*a.add(r * t.lda + k));
                    unroll!(panel v < VECTORS, {
                        acc[r][v] = vfmaq_f32(acc[r][v], row[v], x);
                    });
                });
            }
        }
        add!(t.last_bias);
        // Comparisons rather than minima and maxima, which differ where an element is no number.
        let (zero, six) = (vdupq_n_f32(0.0), vdupq_n_f32(6.0));
        if t.clamp == Clamp::Relu6 {
            unroll!(row r < R, {
                unroll!(panel v < VECTORS, {
                    acc[r][v] = vbslq_f32(vcltq_f32(six, acc[r][v]), six, acc[r][v]);
                });
            });
        }
        if t.clamp != Clamp::None {
            unroll!(row r < R, {
                unroll!(panel v < VECTORS, {
                    acc[r][v] = vbslq_f32(vcgtq_f32(zero, acc[r][v]), zero, acc[r][v]);
                });
            });
        }
        unroll!(row r < R, {
            unroll!(panel v < VECTORS, {
                vst1q_f32(t.c.add(r * t.ldc + v * LANES), acc[r][v]);
            });
        });
    }
}

/// Computes a tile of one panel.
///
/// # Safety
/// The pointers of `t` cover `rows` rows and a panel.
pub unsafe fn run<E: Element>(t: &Tile<'_, E>, rows: usize) {
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        match rows {
            1 => tile::<E, 1>(t),
            2 => tile::<E, 2>(t),
            3 => tile::<E, 3>(t),
            4 => tile::<E, 4>(t),
            5 => tile::<E, 5>(t),
            6 => tile::<E, 6>(t),
            _ => unreachable!("no tile of {rows} rows"),
        }
    }
}
