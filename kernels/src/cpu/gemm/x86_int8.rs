//! Register tiles of integers with AVX2 and AVX-512 VNNI.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_cvtepu8_epi16, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_add_epi32,
    _mm256_broadcastq_epi64, _mm256_cvtepi8_epi16, _mm256_hadd_epi32, _mm256_madd_epi16,
    _mm256_permute4x64_epi64, _mm256_setzero_si256, _mm256_storeu_si256, _mm512_dpbusd_epi32,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
};

use super::dynamic::{QUAD, Tile, WIDEST};
use super::tile::NR;
use super::unroll::unroll;
use super::x86::fetch;

/// How far ahead panels are fetched, in bytes.
const AHEAD: usize = 1024;

/// Whether the processor multiplies bytes in one instruction.
pub fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// `R` rows by `P` panels.
///
/// # Safety
/// AVX-512 F and VNNI, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn tile512<const R: usize, const P: usize>(t: &Tile) {
    let mut acc: [[__m512i; P]; R] = [[_mm512_setzero_si512(); P]; R];
    let ldb = t.quads * NR * QUAD;
    // SAFETY: the caller vouches for rows and panels.
    unsafe {
        for quad in 0..t.quads {
            let b = t.b.add(quad * NR * QUAD);
            let mut panel: [__m512i; P] = [_mm512_setzero_si512(); P];
            unroll!(panel p < P, {
                panel[p] = _mm512_loadu_si512(b.add(p * ldb).cast());
                fetch(b.wrapping_add(p * ldb + AHEAD));
            });
            unroll!(row r < R, {
                let a = t.a.add(r * t.lda + quad * QUAD).cast::<i32>();
                let x = _mm512_set1_epi32(a.read_unaligned());
                unroll!(panel p < P, {
                    acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], x, panel[p]);
                });
            });
        }
        unroll!(row r < R, {
            unroll!(panel p < P, {
                _mm512_storeu_si512(t.c.add(r * WIDEST + p * NR).cast(), acc[r][p]);
            });
        });
    }
}

/// `R` rows by one panel: bytes are widened to 16 bits, so that no product or sum is cut.
///
/// # Safety
/// AVX2, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx2")]
unsafe fn tile256<const R: usize>(t: &Tile) {
    // Each vector has two sums per column, of four columns.
    let mut acc: [[__m256i; 4]; R] = [[_mm256_setzero_si256(); 4]; R];
    // SAFETY: the caller vouches for rows and panel.
    unsafe {
        for quad in 0..t.quads {
            let b = t.b.add(quad * NR * QUAD);
            let mut panel: [__m256i; 4] = [_mm256_setzero_si256(); 4];
            for v in 0..4 {
                panel[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(v * 16).cast()));
            }
            for r in 0..R {
                let a = t.a.add(r * t.lda + quad * QUAD).cast::<i32>();
                let wide = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(a.read_unaligned()));
                let x = _mm256_broadcastq_epi64(wide);
                for v in 0..4 {
                    acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(x, panel[v]));
                }
            }
        }
        for r in 0..R {
            for half in 0..2 {
                // Adds neighbours; columns come out as 0 1 4 5 2 3 6 7 in pairs of lanes.
                let sums = _mm256_hadd_epi32(acc[r][2 * half], acc[r][2 * half + 1]);
                let sums = _mm256_permute4x64_epi64::<0b11_01_10_00>(sums);
                _mm256_storeu_si256(t.c.add(r * WIDEST + half * 8).cast(), sums);
            }
        }
    }
}

/// Computes a tile with AVX-512 VNNI.
///
/// # Safety
/// AVX-512 F and VNNI, and the pointers of `t` cover `rows` rows and `panels` panels.
pub unsafe fn run512(t: &Tile, rows: usize, panels: usize) {
    macro_rules! shapes {
        ($($r:literal x $p:literal),*) => {
            match (rows, panels) {
                $(($r, $p) => tile512::<$r, $p>(t),)*
                _ => unreachable!("no tile of {rows} x {panels}"),
            }
        };
    }
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        shapes!(
            1 x 1, 2 x 1, 3 x 1, 4 x 1, 5 x 1, 6 x 1, 7 x 1, 8 x 1, 9 x 1, 10 x 1, 11 x 1, 12 x 1, 13 x 1, 14 x 1,
            1 x 2, 2 x 2, 3 x 2, 4 x 2, 5 x 2, 6 x 2, 7 x 2, 8 x 2, 9 x 2, 10 x 2, 11 x 2, 12 x 2, 13 x 2, 14 x 2,
            1 x 3, 2 x 3, 3 x 3, 4 x 3, 5 x 3, 6 x 3, 7 x 3, 8 x 3, 9 x 3,
            1 x 4, 2 x 4, 3 x 4, 4 x 4, 5 x 4, 6 x 4
        );
    }
}

/// Computes a tile with AVX2.
///
/// # Safety
/// AVX2, and the pointers of `t` cover `rows` rows and `panels` panels.
pub unsafe fn run256(t: &Tile, rows: usize, panels: usize) {
    for p in 0..panels {
        for r in (0..rows).step_by(2) {
            let part = Tile {
                // SAFETY: row `r` and panel `p` are covered by the caller's promise.
                a: unsafe { t.a.add(r * t.lda) },
                // SAFETY: as above.
                b: unsafe { t.b.add(p * t.quads * NR * QUAD) },
                // SAFETY: as above.
                c: unsafe { t.c.add(r * WIDEST + p * NR) },
                ..*t
            };
            // SAFETY: the level has AVX2; one or two rows are left.
            unsafe {
                if r + 1 < rows {
                    tile256::<2>(&part);
                } else {
                    tile256::<1>(&part);
                }
            }
        }
    }
}
