//! Elements of packed weights, and how they become f32. Each conversion is exact.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _mm_loadl_epi64, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_slli_epi32, _mm512_castsi512_ps, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_slli_epi32,
};

use half::{bf16, f16};

/// What a panel consists of.
pub trait Element: Copy {
    /// As f32.
    fn widen(self) -> f32;

    /// Sixteen elements from `at` on.
    ///
    /// # Safety
    /// AVX-512 F; `at` points to sixteen elements.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load512(at: *const Self) -> __m512;

    /// Eight elements from `at` on.
    ///
    /// # Safety
    /// AVX2 and F16C; `at` points to eight elements.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load256(at: *const Self) -> __m256;
}

impl Element for f32 {
    fn widen(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load512(at: *const Self) -> __m512 {
        // SAFETY: the caller vouches for the elements.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load256(at: *const Self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(at) }
    }
}

impl Element for f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load512(at: *const Self) -> __m512 {
        // SAFETY: the caller vouches for the elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load256(at: *const Self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

impl Element for bf16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load512(at: *const Self) -> __m512 {
        // SAFETY: the caller vouches for the elements.
        let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load256(at: *const Self) -> __m256 {
        // SAFETY: as above.
        let bits = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

impl Element for i8 {
    fn widen(self) -> f32 {
        f32::from(self)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load512(at: *const Self) -> __m512 {
        // SAFETY: the caller vouches for the elements.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load256(at: *const Self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }
}
