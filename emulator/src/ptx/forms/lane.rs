//! Values of a lane as Rust types.

use half::{bf16, f16};

/// A type that the low bits of a lane can hold.
pub trait Lane: Copy + 'static {
    /// Reads the low bits.
    fn of(bits: u64) -> Self;
    /// The value in the low bits, zeros above.
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($signed:ty as $unsigned:ty),*) => {$(
        impl Lane for $signed {
            #[inline(always)]
            fn of(bits: u64) -> Self { bits as $signed }
            #[inline(always)]
            fn bits(self) -> u64 { self as $unsigned as u64 }
        }
        impl Lane for $unsigned {
            #[inline(always)]
            fn of(bits: u64) -> Self { bits as $unsigned }
            #[inline(always)]
            fn bits(self) -> u64 { self as u64 }
        }
    )*};
}
integers!(i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Lane for bool {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        bits & 1 == 1
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl Lane for f32 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        if self.is_nan() {
            0x7fff_ffff
        } else {
            u64::from(self.to_bits())
        }
    }
}

impl Lane for f64 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Lane for $half {
            #[inline(always)]
            fn of(bits: u64) -> Self { Self::from_bits(bits as u16) }
            #[inline(always)]
            fn bits(self) -> u64 {
                if self.is_nan() { 0x7fff } else { u64::from(self.to_bits()) }
            }
        }
    )*};
}
halves!(f16, bf16);
