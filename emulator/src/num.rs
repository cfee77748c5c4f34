//! Rounding to the float formats of PTX, in every direction, and the few exact sums that it needs.
//!
//! A value is handed over as an `f64` and the sign of what that `f64` lacks, so that a result is
//! rounded once. Results that are not a number get the one pattern that the hardware makes.

/// Direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even (`.rn`).
    Nearest,
    /// Towards zero (`.rz`).
    Zero,
    /// Down (`.rm`).
    Down,
    /// Up (`.rp`).
    Up,
}

impl Round {
    /// All directions with their names in PTX.
    pub const ALL: [(&'static str, Self); 4] = [
        ("rn", Self::Nearest),
        ("rz", Self::Zero),
        ("rm", Self::Down),
        ("rp", Self::Up),
    ];
}

/// A binary float format of at most 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the exponent.
    exponent_bits: u32,
    /// Bits of the fraction.
    fraction_bits: u32,
    /// The pattern of results that are not a number.
    nan: u64,
}

/// IEEE half precision.
pub const F16: Format = Format {
    exponent_bits: 5,
    fraction_bits: 10,
    nan: 0x7fff,
};
/// The upper half of single precision.
pub const BF16: Format = Format {
    exponent_bits: 8,
    fraction_bits: 7,
    nan: 0x7fff,
};
/// IEEE single precision.
pub const F32: Format = Format {
    exponent_bits: 8,
    fraction_bits: 23,
    nan: 0x7fff_ffff,
};

impl Format {
    /// The bits of `value + rest` rounded once, where `rest` is far smaller than `value` and only
    /// its sign matters.
    pub fn round(self, value: f64, rest: f64, round: Round) -> u64 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = u64::from(value.is_sign_negative()) << (self.exponent_bits + self.fraction_bits);
        let max_exponent = (1u64 << self.exponent_bits) - 1;
        let infinity = max_exponent << self.fraction_bits;
        if value.is_infinite() {
            return sign | infinity;
        }
        if value == 0.0 {
            return sign;
        }
        let (mantissa, exponent) = split(value.abs());
        // Two more bits hold on which side of `value` the exact result lies.
        let side = if rest == 0.0 {
            0
        } else if (rest < 0.0) == (value < 0.0) {
            1
        } else {
            -1
        };
        let mantissa = ((mantissa << 2) as i64 + side) as u64;
        let exponent = exponent - 2;
        let leading = 63 - mantissa.leading_zeros() as i32 + exponent;
        let least = 2 - (1 << (self.exponent_bits - 1));
        let quantum = leading.max(least) - self.fraction_bits as i32;
        let shift = (quantum - exponent) as u32;
        let (mut kept, lost, half) = if shift > 63 {
            (0, 1, 2)
        } else {
            (
                mantissa >> shift,
                mantissa & ((1 << shift) - 1),
                1u64 << (shift - 1),
            )
        };
        let is_negative = sign != 0;
        let up = match round {
            Round::Nearest => lost > half || (lost == half && kept & 1 == 1),
            Round::Zero => false,
            Round::Down => is_negative && lost > 0,
            Round::Up => !is_negative && lost > 0,
        };
        kept += u64::from(up);
        let bits = if leading < least {
            kept
        } else {
            (((leading - least) as u64) << self.fraction_bits) + kept
        };
        if bits < infinity {
            return sign | bits;
        }
        let is_away = match round {
            Round::Nearest => true,
            Round::Zero => false,
            Round::Down => is_negative,
            Round::Up => !is_negative,
        };
        sign | (infinity - u64::from(!is_away))
    }
}

/// Mantissa of 53 bits at most and exponent of a positive finite number: `m * 2^e`, `m >= 2^52`.
fn split(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let exponent = (bits >> 52) as i32;
    let fraction = bits & ((1 << 52) - 1);
    if exponent == 0 {
        let shift = fraction.leading_zeros() - 11;
        return (fraction << shift, -1074 - shift as i32);
    }
    (fraction | 1 << 52, exponent - 1075)
}

/// `a + b` as a rounded sum and what it lacks.
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// `a * b + c`, rounded once to `format`; the operands have at most 24 bits of precision.
pub fn fma(format: Format, a: f64, b: f64, c: f64, round: Round) -> u64 {
    let (sum, rest) = two_sum(a * b, c);
    format.round(signed_zero(sum, a * b, c, round), rest, round)
}

/// `a + b`, rounded once to `format`.
pub fn add(format: Format, a: f64, b: f64, round: Round) -> u64 {
    let (sum, rest) = two_sum(a, b);
    format.round(signed_zero(sum, a, b, round), rest, round)
}

/// A sum of two numbers that cancel is -0 where rounding is down.
fn signed_zero(sum: f64, a: f64, b: f64, round: Round) -> f64 {
    let cancels = sum == 0.0 && round == Round::Down;
    if cancels && (a.is_sign_negative() || b.is_sign_negative()) {
        return -0.0;
    }
    sum
}

/// `a / b`, rounded once to `format`.
pub fn div(format: Format, a: f64, b: f64, round: Round) -> u64 {
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a) * b.signum();
    let rest = if rest.is_nan() { 0.0 } else { rest };
    format.round(quotient, rest, round)
}

/// The square root, rounded once to `format`.
pub fn sqrt(format: Format, a: f64, round: Round) -> u64 {
    let root = a.sqrt();
    let rest = (-root).mul_add(root, a);
    format.round(root, if rest.is_nan() { 0.0 } else { rest }, round)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(format: Format, value: f64) -> u64 {
        format.round(value, 0.0, Round::Nearest)
    }

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            let half = half::f16::from_bits(bits);
            if !half.is_nan() {
                assert_eq!(nearest(F16, half.to_f64()), u64::from(bits));
            }
            let brain = half::bf16::from_bits(bits);
            if !brain.is_nan() {
                assert_eq!(nearest(BF16, brain.to_f64()), u64::from(bits));
            }
        }
    }

    #[test]
    fn single_precision_rounds_as_the_processor_does() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Exponents around those of single precision, with its subnormals and overflow.
            let exponent = 860 + (state >> 54) % 300;
            let value = f64::from_bits((state << 11 >> 12) | (exponent << 52));
            assert_eq!(nearest(F32, value), u64::from((value as f32).to_bits()));
        }
    }

    #[test]
    fn directions_differ_by_one_step() {
        for (value, zero, down, up) in [
            (1.000_000_01, 1.0f32, 1.0, 1.000_000_1),
            (-1.000_000_01, -1.0, -1.000_000_1, -1.0),
            (1e39, f32::MAX, f32::MAX, f32::INFINITY),
        ] {
            for (round, want) in [(Round::Zero, zero), (Round::Down, down), (Round::Up, up)] {
                let got = F32.round(value, 0.0, round);
                assert_eq!(got, u64::from(want.to_bits()), "{value} {round:?}");
            }
        }
        // What the sum lacks decides.
        assert_eq!(F32.round(1.0, -1e-30, Round::Down), 0x3f7f_ffff);
        assert_eq!(F32.round(1.0, 1e-30, Round::Up), 0x3f80_0001);
        assert_eq!(F32.round(1.0, -1e-30, Round::Nearest), 0x3f80_0000);
    }
}
