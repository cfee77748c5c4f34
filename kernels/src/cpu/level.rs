//! SIMD levels, chosen at run time.
//!
//! A [`Level`] is proof that the processor has the instructions it names, so that kernels compiled
//! for them may be called. Row-wise kernels are written once over sixteen lanes and compiled for
//! every level by `simd!`; they use exactly rounded operations only (fused multiply-add, add,
//! multiply, divide, square root), so their bits do not depend on the level either. NEON is part of
//! its target, so there they are compiled for it as they are.

use std::sync::OnceLock;

/// A set of instructions that this processor has. Made by detection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Kind);

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Whatever the target guarantees.
    Portable,
    /// NEON, 4 lanes; part of every 64-bit ARM processor.
    Neon,
    /// AVX2, FMA and F16C, 8 lanes.
    Avx2,
    /// AVX-512 F, VL, DQ and BW, 16 lanes.
    Avx512,
}

impl Level {
    /// The level that works everywhere.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The best level of this processor; detected once per process.
    pub fn detect() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| *Self::available().last().expect("the portable level"))
    }

    /// All levels of this processor, the best one last.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::PORTABLE];
        #[cfg(target_arch = "aarch64")]
        levels.push(Self(Kind::Neon));
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                levels.push(Self(Kind::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                {
                    levels.push(Self(Kind::Avx512));
                }
            }
        }
        levels
    }

    /// Which instructions it names.
    pub const fn kind(self) -> Kind {
        self.0
    }

    /// Lower-case name, as device names carry it.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            Kind::Neon => "neon",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
        }
    }
}

/// Defines a function compiled once per level; its first argument is the [`Level`] to run at.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name(level: $crate::cpu::level::Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            match level.kind() {
                // SAFETY: a level of this kind exists only where the processor has AVX2 and FMA.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::level::Kind::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: a level of this kind exists only where the processor has AVX-512.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::level::Kind::Avx512 => unsafe { avx512($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}

pub(crate) use simd;
