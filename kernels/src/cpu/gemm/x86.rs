//! Register tiles with AVX2 and AVX-512.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::element::Element;
use super::tile::{Clamp, NR, Right, Tile};
use super::unroll::unroll;

/// How far ahead of the multiplication a panel is fetched, in bytes.
const AHEAD: usize = 4096;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Steps of `k` per turn of the loop: as many as the rows of a panel that share a line, or more.
const UNROLL: usize = 4;

/// Fetches a line into the first-level cache. The intrinsic counts as a write to memory: loads may
/// not move across it, and the compiler then keeps loaded elements on the stack.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "a prefetch reads nothing that the program can see"
)]
pub fn fetch(at: *const i8) {
    // SAFETY: a prefetch may point anywhere, and changes nothing that the program can see.
    unsafe {
        asm!("prefetcht0 byte ptr [{}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
}

/// Fetches a line to be written.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "a prefetch reads nothing that the program can see"
)]
pub fn fetch_to_write(at: *const i8) {
    // SAFETY: as above; processors that do not know the instruction do nothing.
    unsafe {
        asm!("prefetchw byte ptr [{}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
}

/// Bytes of a panel's row.
const fn row_bytes<E>() -> usize {
    NR * size_of::<E>()
}

/// Whether row `k` of a panel begins a line.
const fn starts_line<E>(k: usize) -> bool {
    (k * row_bytes::<E>()).is_multiple_of(LINE)
}

/// What step `k` of a segment fetches in its first panel: elements that lie ahead, or of what follows.
#[inline(always)]
fn ahead<E>(right: &Right<E>, k: usize) -> *const i8 {
    let far = k + AHEAD / row_bytes::<E>();
    let row = match far.checked_sub(right.left) {
        None => right.b.wrapping_add(far * NR),
        Some(behind) => right.next.wrapping_add(behind * NR),
    };
    row.cast()
}

/// Rows of the left side that are addressed from one pointer.
const TOGETHER: usize = 3;

/// The pointer. The compiler is kept from knowing how pointers to rows relate: it would hold one for
/// each row, on the stack.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "there is no instruction that could read"
)]
fn hide(mut row: *const f32) -> *const f32 {
    // SAFETY: no instruction.
    unsafe {
        asm!("/* {0} */", inout(reg) row, options(pure, nomem, nostack, preserves_flags));
    }
    row
}

/// Keeps the compiler from loading elements of later steps before this: it would hold more of them
/// than there are registers, on the stack.
#[inline(always)]
fn fence() {
    // SAFETY: no instruction.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

/// `R` rows by `P` panels.
///
/// # Safety
/// AVX-512 F, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx512f")]
unsafe fn tile512<E: Element, const R: usize, const P: usize>(t: &Tile<'_, E>) {
    let lda = t.lda;
    let mut acc: [[__m512; P]; R] = [[_mm512_setzero_ps(); P]; R];
    // SAFETY: the caller vouches for every row, panel and column of the tile.
    unsafe {
        if !t.from.is_null() {
            unroll!(row r < R, {
                unroll!(panel p < P, {
                    acc[r][p] = _mm512_loadu_ps(t.from.add(r * t.ld_from + p * NR));
                });
            });
        }
        macro_rules! add {
            ($bias:expr) => {
                if !$bias.is_null() {
                    unroll!(panel p < P, {
                        let bias = _mm512_loadu_ps($bias.add(p * NR));
                        unroll!(row r < R, {
                            acc[r][p] = _mm512_add_ps(acc[r][p], bias);
                        });
                    });
                }
            };
        }
        add!(t.first_bias);
        for s in t.segments {
            let right = t.right(s);
            let (ldb, mut b) = (right.ldb, right.b);
            let mut rows: [*const f32; R] = [t.a.add(s.a); R];
            unroll!(row g < (R.div_ceil(TOGETHER)), {
                rows[g] = rows[g].add(g * TOGETHER * lda);
            });
            macro_rules! step {
                ($u:expr, $fetch:expr) => {
                    fence();
                    let b = b.add($u * NR);
                    let mut row: [__m512; P] = [_mm512_setzero_ps(); P];
                    unroll!(panel p < P, {
                        row[p] = E::load512(b.add(p * ldb));
                        if let Some(ahead) = $fetch {
                            fetch(ahead.wrapping_add(p * ldb * size_of::<E>()));
                        }
                    });
                    unroll!(row r < R, {
                        let x = _mm512_set1_ps(*rows[r / TOGETHER].add(r % TOGETHER * lda + $u));
                        unroll!(panel p < P, {
                            acc[r][p] = _mm512_fmadd_ps(x, row[p], acc[r][p]);
                        });
                    });
                };
            }
            let mut k = 0;
            while k + UNROLL <= s.k {
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = hide(rows[g]);
                });
                let ahead = ahead(&right, k);
                unroll!(panel u < UNROLL, {
                    let at = ahead.wrapping_add(u * row_bytes::<E>());
                    step!(u, starts_line::<E>(u).then_some(at));
                });
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = rows[g].add(UNROLL);
                });
                b = b.add(UNROLL * NR);
                k += UNROLL;
            }
            while k < s.k {
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = hide(rows[g]);
                });
                step!(0, None::<*const i8>);
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = rows[g].add(1);
                });
                b = b.add(NR);
                k += 1;
            }
        }
        add!(t.last_bias);
        // The second operand is what remains where an element is no number.
        let (zero, six) = (_mm512_setzero_ps(), _mm512_set1_ps(6.0));
        if t.clamp == Clamp::Relu6 {
            unroll!(row r < R, {
                unroll!(panel p < P, {
                    acc[r][p] = _mm512_min_ps(six, acc[r][p]);
                });
            });
        }
        if t.clamp != Clamp::None {
            unroll!(row r < R, {
                unroll!(panel p < P, {
                    acc[r][p] = _mm512_max_ps(zero, acc[r][p]);
                });
            });
        }
        unroll!(row r < R, {
            unroll!(panel p < P, {
                _mm512_storeu_ps(t.c.add(r * t.ldc + p * NR), acc[r][p]);
            });
        });
    }
}

/// As [`tile512`], a panel being two vectors (`V = 2 * P`).
///
/// # Safety
/// AVX2, FMA and F16C, and the pointers of `t` cover the tile.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile256<E: Element, const R: usize, const V: usize>(t: &Tile<'_, E>) {
    let lda = t.lda;
    let mut acc: [[__m256; V]; R] = [[_mm256_setzero_ps(); V]; R];
    // SAFETY: as in `tile512`.
    unsafe {
        if !t.from.is_null() {
            unroll!(row r < R, {
                unroll!(half v < V, {
                    acc[r][v] = _mm256_loadu_ps(t.from.add(r * t.ld_from + v * 8));
                });
            });
        }
        macro_rules! add {
            ($bias:expr) => {
                if !$bias.is_null() {
                    unroll!(half v < V, {
                        let bias = _mm256_loadu_ps($bias.add(v * 8));
                        unroll!(row r < R, {
                            acc[r][v] = _mm256_add_ps(acc[r][v], bias);
                        });
                    });
                }
            };
        }
        add!(t.first_bias);
        for s in t.segments {
            let right = t.right(s);
            let (ldb, mut b) = (right.ldb, right.b);
            let mut rows: [*const f32; R] = [t.a.add(s.a); R];
            unroll!(row g < (R.div_ceil(TOGETHER)), {
                rows[g] = rows[g].add(g * TOGETHER * lda);
            });
            macro_rules! step {
                ($u:expr, $fetch:expr) => {
                    fence();
                    let b = b.add($u * NR);
                    if let Some(ahead) = $fetch {
                        unroll!(panel p < (V / 2), {
                            fetch(ahead.wrapping_add(p * ldb * size_of::<E>()));
                        });
                    }
                    // The smaller side stays in registers over the step.
                    if R < V {
                        let mut x: [__m256; R] = [_mm256_setzero_ps(); R];
                        unroll!(row r < R, {
                            x[r] = _mm256_set1_ps(*rows[r / TOGETHER].add(r % TOGETHER * lda + $u));
                        });
                        unroll!(half v < V, {
                            let row = E::load256(b.add((v / 2) * ldb + (v % 2) * 8));
                            unroll!(row r < R, {
                                acc[r][v] = _mm256_fmadd_ps(x[r], row, acc[r][v]);
                            });
                        });
                    } else {
                        let mut row: [__m256; V] = [_mm256_setzero_ps(); V];
                        unroll!(half v < V, {
                            row[v] = E::load256(b.add((v / 2) * ldb + (v % 2) * 8));
                        });
                        unroll!(row r < R, {
                            let x = _mm256_set1_ps(*rows[r / TOGETHER].add(r % TOGETHER * lda + $u));
                            unroll!(half v < V, {
                                acc[r][v] = _mm256_fmadd_ps(x, row[v], acc[r][v]);
                            });
                        });
                    }
                };
            }
            let mut k = 0;
            while k + UNROLL <= s.k {
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = hide(rows[g]);
                });
                let ahead = ahead(&right, k);
                unroll!(panel u < UNROLL, {
                    let at = ahead.wrapping_add(u * row_bytes::<E>());
                    step!(u, starts_line::<E>(u).then_some(at));
                });
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = rows[g].add(UNROLL);
                });
                b = b.add(UNROLL * NR);
                k += UNROLL;
            }
            while k < s.k {
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = hide(rows[g]);
                });
                step!(0, None::<*const i8>);
                unroll!(row g < (R.div_ceil(TOGETHER)), {
                    rows[g] = rows[g].add(1);
                });
                b = b.add(NR);
                k += 1;
            }
        }
        add!(t.last_bias);
        let (zero, six) = (_mm256_setzero_ps(), _mm256_set1_ps(6.0));
        if t.clamp == Clamp::Relu6 {
            unroll!(row r < R, {
                unroll!(half v < V, {
                    acc[r][v] = _mm256_min_ps(six, acc[r][v]);
                });
            });
        }
        if t.clamp != Clamp::None {
            unroll!(row r < R, {
                unroll!(half v < V, {
                    acc[r][v] = _mm256_max_ps(zero, acc[r][v]);
                });
            });
        }
        unroll!(row r < R, {
            unroll!(half v < V, {
                _mm256_storeu_ps(t.c.add(r * t.ldc + v * 8), acc[r][v]);
            });
        });
    }
}

/// Writes `from` as f32 to `to`; both are whole panels.
///
/// # Safety
/// AVX-512 F.
#[target_feature(enable = "avx512f")]
pub unsafe fn widen512<E: Element>(from: &[E], to: &mut [f32]) {
    for (from, to) in from.chunks_exact(NR).zip(to.chunks_exact_mut(NR)) {
        // SAFETY: sixteen elements each.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), E::load512(from.as_ptr())) };
    }
}

/// As [`widen512`].
///
/// # Safety
/// AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn widen256<E: Element>(from: &[E], to: &mut [f32]) {
    for (from, to) in from.chunks_exact(NR / 2).zip(to.chunks_exact_mut(NR / 2)) {
        // SAFETY: eight elements each.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), E::load256(from.as_ptr())) };
    }
}

/// Calls the instance for the tile's shape.
macro_rules! shapes {
    ($kernel:ident, $width:literal, $t:ident, $rows:ident, $panels:ident; $($r:literal x $p:literal),*) => {
        match ($rows, $panels) {
            $(($r, $p) => $kernel::<E, $r, { $p * $width }>($t),)*
            _ => unreachable!("no tile of {} x {}", $rows, $panels),
        }
    };
}

/// Computes a tile with AVX-512.
///
/// # Safety
/// AVX-512 F; the pointers of `t` cover `rows` rows and `panels` panels.
pub unsafe fn run512<E: Element>(t: &Tile<'_, E>, rows: usize, panels: usize) {
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        shapes!(tile512, 1, t, rows, panels;
            1 x 4, 2 x 4, 3 x 4, 4 x 4, 5 x 4, 6 x 4,
            1 x 3, 2 x 3, 3 x 3, 4 x 3, 5 x 3, 6 x 3, 7 x 3, 8 x 3, 9 x 3,
            1 x 2, 2 x 2, 3 x 2, 4 x 2, 5 x 2, 6 x 2, 7 x 2, 8 x 2, 9 x 2, 10 x 2, 11 x 2, 12 x 2, 13 x 2, 14 x 2,
            1 x 1, 2 x 1, 3 x 1, 4 x 1, 5 x 1, 6 x 1, 7 x 1, 8 x 1, 9 x 1, 10 x 1, 11 x 1, 12 x 1, 13 x 1, 14 x 1
        );
    }
}

/// Computes a tile with AVX2.
///
/// # Safety
/// AVX2, FMA and F16C; else as [`run512`].
pub unsafe fn run256<E: Element>(t: &Tile<'_, E>, rows: usize, panels: usize) {
    // SAFETY: the caller's promise is that of the instances.
    unsafe {
        shapes!(tile256, 2, t, rows, panels;
            1 x 4, 1 x 2, 2 x 2, 3 x 2, 1 x 1, 2 x 1, 3 x 1, 4 x 1, 5 x 1, 6 x 1
        );
    }
}
