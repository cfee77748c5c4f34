//! The peak that matrix products are measured against: fused multiply-adds between registers.
//!
//! Twelve independent chains, enough to hide the latency of the units; no memory is touched.

use super::level::{Kind, Level};

/// Chains that run side by side.
const CHAINS: usize = 12;

/// Floating-point operations of one step of [`multiply_adds`].
pub const fn flops_per_step(level: Level) -> usize {
    let lanes = match level.kind() {
        // Chains of single numbers, whatever the target makes of them.
        Kind::Portable | Kind::Neon => 1,
        Kind::Avx2 => 8,
        Kind::Avx512 => 16,
    };
    2 * CHAINS * lanes
}

/// Runs `steps` steps of `c = a * c + b` in every chain; the result depends on all of them.
pub fn multiply_adds(level: Level, steps: usize, a: f32, b: f32) -> f32 {
    match level.kind() {
        // SAFETY: a level of this kind exists only where the processor has AVX2 and FMA.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::chains256(steps, a, b) },
        // SAFETY: a level of this kind exists only where the processor has AVX-512.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { x86::chains512(steps, a, b) },
        _ => {
            let mut chains = [0.5f32; CHAINS];
            for _ in 0..steps {
                chains.iter_mut().for_each(|c| *c = a * *c + b);
            }
            chains.iter().sum()
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps,
        _mm512_fmadd_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };

    use super::CHAINS;

    #[target_feature(enable = "avx2,fma")]
    pub fn chains256(steps: usize, a: f32, b: f32) -> f32 {
        let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
        let mut chains = [_mm256_set1_ps(0.5); CHAINS];
        for _ in 0..steps {
            for c in &mut chains {
                *c = _mm256_fmadd_ps(a, *c, b);
            }
        }
        let mut out = [0.0f32; 8];
        let sum = chains.into_iter().fold(a, |s, c| _mm256_add_ps(s, c));
        // SAFETY: eight elements.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
        out[0]
    }

    #[target_feature(enable = "avx512f")]
    pub fn chains512(steps: usize, a: f32, b: f32) -> f32 {
        let (a, b) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
        let mut chains = [_mm512_set1_ps(0.5); CHAINS];
        for _ in 0..steps {
            for c in &mut chains {
                *c = _mm512_fmadd_ps(a, *c, b);
            }
        }
        let mut out = [0.0f32; 16];
        let sum = chains.into_iter().fold(a, |s, c| _mm512_add_ps(s, c));
        // SAFETY: sixteen elements.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        out[0]
    }
}
