//! Register tiles with AVX2 and AVX-512.

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_prefetch, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_storeu_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::tile::{A_STRIDE, NR, Tile};

/// How far ahead of the multiplication a panel is fetched, in elements: 1 KiB.
const AHEAD: usize = 256;

/// Steps of `k` per turn of the loop.
const UNROLL: usize = 4;

/// How far ahead step `k` of a cold tile of `panels` panels fetches: within each panel, and from its
/// end on in the tile that follows.
#[inline(always)]
fn near(t: &Tile, k: usize, panels: usize) -> Option<usize> {
    let behind = k + AHEAD / NR >= t.k;
    let far = if behind { (panels - 1) * t.ldb } else { 0 };
    t.cold.then_some(AHEAD + far)
}

/// One step of the chains of a tile: column `k` of the left side times row `k` of the panels. What
/// lies `near` elements ahead is fetched.
///
/// # Safety
/// AVX-512 F; `a` and `b` point to `R` rows `lda` apart and `P` panels `ldb` apart.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn step512<const R: usize, const P: usize>(
    acc: &mut [[__m512; P]; R],
    a: *const f32,
    lda: usize,
    b: *const f32,
    ldb: usize,
    near: Option<usize>,
) {
    // SAFETY: the caller vouches for rows and panels; prefetches may point anywhere.
    unsafe {
        let mut row: [__m512; P] = [_mm512_setzero_ps(); P];
        for p in 0..P {
            row[p] = _mm512_loadu_ps(b.add(p * ldb));
            if let Some(near) = near {
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(p * ldb + near).cast());
            }
        }
        for r in 0..R {
            let x = _mm512_set1_ps(*a.add(r * lda));
            for p in 0..P {
                acc[r][p] = _mm512_fmadd_ps(x, row[p], acc[r][p]);
            }
        }
    }
}

/// As [`step512`], a panel being two vectors.
///
/// # Safety
/// AVX2 and FMA; `a` and `b` point to `R` rows `lda` apart and `V / 2` panels `ldb` apart.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step256<const R: usize, const V: usize>(
    acc: &mut [[__m256; V]; R],
    a: *const f32,
    lda: usize,
    b: *const f32,
    ldb: usize,
    near: Option<usize>,
) {
    // SAFETY: as in `step512`.
    unsafe {
        let mut row: [__m256; V] = [_mm256_setzero_ps(); V];
        for v in 0..V {
            row[v] = _mm256_loadu_ps(b.add((v / 2) * ldb + (v % 2) * 8));
        }
        if let Some(near) = near {
            for p in 0..V / 2 {
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(p * ldb + near).cast());
            }
        }
        if R < V {
            // The left column is the smaller side to keep in registers.
            let mut x: [__m256; R] = [_mm256_setzero_ps(); R];
            for r in 0..R {
                x[r] = _mm256_set1_ps(*a.add(r * lda));
            }
            for v in 0..V {
                for r in 0..R {
                    acc[r][v] = _mm256_fmadd_ps(x[r], row[v], acc[r][v]);
                }
            }
            return;
        }
        for r in 0..R {
            let x = _mm256_set1_ps(*a.add(r * lda));
            for v in 0..V {
                acc[r][v] = _mm256_fmadd_ps(x, row[v], acc[r][v]);
            }
        }
    }
}

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
        let mut k = 0;
        while k + UNROLL <= t.k {
            let near = near(t, k, P);
            for u in 0..UNROLL {
                let (a, b) = (t.a.add(k + u), t.b.add((k + u) * NR));
                step512::<R, P>(&mut acc, a, lda, b, t.ldb, near);
            }
            k += UNROLL;
        }
        while k < t.k {
            step512::<R, P>(&mut acc, t.a.add(k), lda, t.b.add(k * NR), t.ldb, None);
            k += 1;
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
        let mut k = 0;
        while k + UNROLL <= t.k {
            let near = near(t, k, V / 2);
            for u in 0..UNROLL {
                let (a, b) = (t.a.add(k + u), t.b.add((k + u) * NR));
                step256::<R, V>(&mut acc, a, lda, b, t.ldb, near);
            }
            k += UNROLL;
        }
        while k < t.k {
            step256::<R, V>(&mut acc, t.a.add(k), lda, t.b.add(k * NR), t.ldb, None);
            k += 1;
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
