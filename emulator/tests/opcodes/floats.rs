//! Floats on the host: exact values, and rounding by search instead of by bits.

use lazybatch_emulator::ptx::types::Type;

/// Directions as PTX abbreviates them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Direction {
    /// That of a suffix: `rn`, `rzi`.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "rn" | "rni" => Some(Self::Nearest),
            "rz" | "rzi" => Some(Self::Zero),
            "rm" | "rmi" => Some(Self::Down),
            "rp" | "rpi" => Some(Self::Up),
            _ => None,
        }
    }
}

/// The value of a float's bits.
pub fn exact(ty: Type, bits: u64) -> f64 {
    let small = |fraction: u32, bias: i32| {
        let sign = if bits >> 15 & 1 == 1 { -1.0 } else { 1.0 };
        let scale = (bits & ((1 << fraction) - 1)) as f64 / f64::from(1u32 << fraction);
        let exponent = (bits >> fraction) as i32 & ((1 << (15 - fraction)) - 1);
        let top = (1 << (15 - fraction)) - 1;
        match exponent {
            0 => sign * scale * 2f64.powi(1 - bias),
            e if e == top && scale == 0.0 => sign * f64::INFINITY,
            e if e == top => f64::NAN,
            e => sign * (1.0 + scale) * 2f64.powi(e - bias),
        }
    };
    match ty {
        Type::F16 => small(10, 15),
        Type::Bf16 => small(7, 127),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// The bits of infinity.
fn infinity(ty: Type) -> u64 {
    match ty {
        Type::F16 => 0x7c00,
        Type::Bf16 => 0x7f80,
        _ => 0x7f80_0000,
    }
}

/// What is no number.
pub fn nan(ty: Type) -> u64 {
    match ty {
        Type::F32 => 0x7fff_ffff,
        Type::F64 => f64::NAN.to_bits(),
        _ => 0x7fff,
    }
}

/// The bits of the float next to `value` in a direction, found among all by bisection; `rest` is
/// what `value` lacks.
pub fn round(ty: Type, value: f64, rest: f64, direction: Direction) -> u64 {
    if ty == Type::F64 {
        return value.to_bits();
    }
    if value.is_nan() {
        return nan(ty);
    }
    let negative = value.is_sign_negative();
    let sign = if negative {
        1 << (8 * ty.bytes() - 1)
    } else {
        0
    };
    let (size, rest) = if negative {
        (-value, -rest)
    } else {
        (value, rest)
    };
    if size.is_infinite() {
        return sign | infinity(ty);
    }
    let is_above = |x: f64| x > size || (x == size && rest < 0.0);
    // The largest float that is not above; infinity stands for one step beyond the largest.
    let (mut low, mut high) = (0, infinity(ty));
    while high - low > 1 {
        let middle = (low + high) / 2;
        if is_above(exact(ty, middle)) {
            high = middle
        } else {
            low = middle
        }
    }
    let below = exact(ty, low);
    if below == size && rest == 0.0 {
        return sign | low;
    }
    let above = if high == infinity(ty) {
        2.0 * below - exact(ty, low - 1)
    } else {
        exact(ty, high)
    };
    let middle = below + (above - below) / 2.0;
    let up = match direction {
        Direction::Nearest => {
            let is_past = size > middle || (size == middle && rest > 0.0);
            let is_tie = size == middle && rest == 0.0;
            is_past || (is_tie && low & 1 == 1)
        }
        Direction::Zero => false,
        Direction::Down => negative,
        Direction::Up => !negative,
    };
    sign | if up { high } else { low }
}

/// A sum and what it lacks.
pub fn sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let (large, small) = if a.abs() > b.abs() { (a, b) } else { (b, a) };
    let rest = small - (sum - large);
    (sum, if rest.is_finite() { rest } else { 0.0 })
}
