//! Register tiles with AVX2 and AVX-512.

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_prefetch, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_storeu_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::tile::{A_STRIDE, NR, Tile};

/// How far ahead of the multiplication a panel is fetched, in elements: 1 KiB.
const AHEAD: usize = 256;

/// `R` rows by `P` panels; `LDA` is the distance of left rows, or 0 to take it from the tile.
///
/// # Safety
/// AVX-512 F, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx512f")]
unsafe fn tile512<const R: usize, const P: usize, const LDA: usize>(t: &Tile) {
    let lda = if LDA == 0 { t.lda } else { LDA };
    let mut acc: [[__m512; P]; R] = [[_mm512_setzero_ps(); P]; R];
    // SAFETY: the caller vouches for every row, panel and column of the tile; prefetches may point
    // anywhere.
    unsafe {
        if t.resume {
            for r in 0..R {
                for p in 0..P {
                    acc[r][p] = _mm512_loadu_ps(t.c.add(r * t.ldc + p * NR));
                }
            }
        }
        let mut b_at = t.b;
        let mut a_at = t.a;
        for _ in 0..t.k {
            let mut b: [__m512; P] = [_mm512_setzero_ps(); P];
            for p in 0..P {
                b[p] = _mm512_loadu_ps(b_at.add(p * t.ldb));
                _mm_prefetch::<_MM_HINT_T0>(b_at.wrapping_add(p * t.ldb + AHEAD).cast());
            }
            for r in 0..R {
                let a = _mm512_set1_ps(*a_at.add(r * lda));
                for p in 0..P {
                    acc[r][p] = _mm512_fmadd_ps(a, b[p], acc[r][p]);
                }
            }
            b_at = b_at.add(NR);
            a_at = a_at.add(1);
        }
        for r in 0..R {
            for p in 0..P {
                _mm512_storeu_ps(t.c.add(r * t.ldc + p * NR), acc[r][p]);
            }
        }
    }
}

/// As [`tile512`], a panel being two vectors (`V = 2 * P`).
///
/// # Safety
/// AVX2 and FMA, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile256<const R: usize, const V: usize, const LDA: usize>(t: &Tile) {
    let lda = if LDA == 0 { t.lda } else { LDA };
    let mut acc: [[__m256; V]; R] = [[_mm256_setzero_ps(); V]; R];
    // SAFETY: as in `tile512`.
    unsafe {
        if t.resume {
            for r in 0..R {
                for v in 0..V {
                    acc[r][v] = _mm256_loadu_ps(t.c.add(r * t.ldc + v * 8));
                }
            }
        }
        let mut b_at = t.b;
        let mut a_at = t.a;
        for _ in 0..t.k {
            let mut b: [__m256; V] = [_mm256_setzero_ps(); V];
            for v in 0..V {
                b[v] = _mm256_loadu_ps(b_at.add((v / 2) * t.ldb + (v % 2) * 8));
            }
            for p in 0..V / 2 {
                _mm_prefetch::<_MM_HINT_T0>(b_at.wrapping_add(p * t.ldb + AHEAD).cast());
            }
            for r in 0..R {
                let a = _mm256_set1_ps(*a_at.add(r * lda));
                for v in 0..V {
                    acc[r][v] = _mm256_fmadd_ps(a, b[v], acc[r][v]);
                }
            }
            b_at = b_at.add(NR);
            a_at = a_at.add(1);
        }
        for r in 0..R {
            for v in 0..V {
                _mm256_storeu_ps(t.c.add(r * t.ldc + v * 8), acc[r][v]);
            }
        }
    }
}

/// Calls the instance for the tile's shape.
macro_rules! shapes {
    ($kernel:ident, $width:literal, $t:ident, $rows:ident, $panels:ident; $($r:literal x $p:literal),*) => {
        match ($rows, $panels) {
            $(
                ($r, $p) => if $t.lda == A_STRIDE {
                    $kernel::<$r, { $p * $width }, A_STRIDE>($t)
                } else {
                    $kernel::<$r, { $p * $width }, 0>($t)
                },
            )*
            _ => unreachable!("no tile of {} x {}", $rows, $panels),
        }
    };
}

/// Computes a tile with AVX-512.
///
/// # Safety
/// AVX-512 F, and the pointers of `t` cover `rows` rows and `panels` panels.
pub unsafe fn run512(t: &Tile, rows: usize, panels: usize) {
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        shapes!(tile512, 1, t, rows, panels;
            1 x 4, 2 x 4, 3 x 4, 4 x 4, 5 x 4, 6 x 4, 7 x 2, 8 x 2, 9 x 2, 10 x 2, 11 x 2, 12 x 2,
            1 x 2, 2 x 2, 3 x 2, 4 x 2, 5 x 2, 6 x 2,
            1 x 1, 2 x 1, 3 x 1, 4 x 1, 5 x 1, 6 x 1, 7 x 1, 8 x 1, 9 x 1, 10 x 1, 11 x 1, 12 x 1
        );
    }
}

/// Computes a tile with AVX2.
///
/// # Safety
/// AVX2 and FMA, and the pointers of `t` cover `rows` rows and `panels` panels.
pub unsafe fn run256(t: &Tile, rows: usize, panels: usize) {
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        shapes!(tile256, 2, t, rows, panels;
            1 x 4, 2 x 2, 3 x 2, 1 x 2, 1 x 1, 2 x 1, 3 x 1, 4 x 1, 5 x 1, 6 x 1
        );
    }
}
