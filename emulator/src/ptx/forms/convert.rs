//! Conversions between types.

use half::{bf16, f16};

use super::Table;
use crate::num::{self, Format, Round};
use crate::ptx::types::Type::{
    self, B32, Bf16, F16, F32, F64, S8, S16, S32, S64, U8, U16, U32, U64,
};

const INTEGERS: [Type; 8] = [U8, U16, U32, U64, S8, S16, S32, S64];
const FLOATS: [Type; 4] = [F16, Bf16, F32, F64];
/// Rounding to an integer.
const TO_INTEGER: [(&str, Round); 4] = [
    ("rni", Round::Nearest),
    ("rzi", Round::Zero),
    ("rmi", Round::Down),
    ("rpi", Round::Up),
];

/// An integer's value.
fn integer(ty: Type, bits: u64) -> i128 {
    match ty {
        U8 => (bits as u8).into(),
        U16 => (bits as u16).into(),
        U32 => (bits as u32).into(),
        S8 => (bits as i8).into(),
        S16 => (bits as i16).into(),
        S32 => (bits as i32).into(),
        S64 => (bits as i64).into(),
        _ => bits.into(),
    }
}

/// Least and greatest value of an integer type.
fn range(ty: Type) -> (i128, i128) {
    let width = 8 * ty.bytes() as u32;
    if ty.is_signed() {
        (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    } else {
        (0, (1 << width) - 1)
    }
}

/// The low bits that a register of the destination holds; narrow signed values are extended to
/// the 32 bits of the narrowest register that takes them.
fn pack(ty: Type, value: i128) -> u64 {
    match ty {
        U8 => u64::from(value as u8),
        S8 => u64::from(value as i8 as u32),
        U16 => u64::from(value as u16),
        S16 => u64::from(value as i16 as u32),
        U32 | S32 => u64::from(value as u32),
        _ => value as u64,
    }
}

/// A float's value, exact.
fn float(ty: Type, bits: u64) -> f64 {
    match ty {
        F16 => f16::from_bits(bits as u16).to_f64(),
        Bf16 => bf16::from_bits(bits as u16).to_f64(),
        F32 => f32::from_bits(bits as u32).into(),
        _ => f64::from_bits(bits),
    }
}

fn format_of(ty: Type) -> Option<Format> {
    match ty {
        F16 => Some(num::F16),
        Bf16 => Some(num::BF16),
        F32 => Some(num::F32),
        _ => None,
    }
}

fn round_integer(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

/// The bits of a float of type `ty`, in [0, 1] if it saturates.
fn float_bits(ty: Type, value: f64, rest: f64, round: Round, sat: bool) -> u64 {
    let (value, rest) = match sat {
        true if value >= 1.0 => (1.0, 0.0),
        true if value > 0.0 => (value, rest),
        true => (0.0, 0.0),
        false => (value, rest),
    };
    format_of(ty).map_or(value.to_bits(), |format| format.round(value, rest, round))
}

fn flush(ty: Type, bits: u64) -> u64 {
    let is_small = ty == F32 && bits & 0x7f80_0000 == 0;
    if is_small { bits & 1 << 31 } else { bits }
}

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    integers(table);
    from_integers(table);
    to_integers(table);
    floats(table);
    pairs(table);
}

fn integers(table: &mut Table) {
    for to in INTEGERS {
        for from in INTEGERS {
            let names = format!("{}.{}", to.name(), from.name());
            table.unary(format!("cvt.{names}"), [to, from], move |a: u64| {
                pack(to, integer(from, a))
            });
            let (low, high) = range(to);
            table.unary(format!("cvt.sat.{names}"), [to, from], move |a: u64| {
                pack(to, integer(from, a).clamp(low, high))
            });
        }
    }
}

fn from_integers(table: &mut Table) {
    for to in FLOATS {
        for from in INTEGERS {
            for (name, round) in Round::ALL {
                if to == F64 && round != Round::Nearest {
                    continue;
                }
                let full = format!("cvt.{name}.{}.{}", to.name(), from.name());
                table.unary(full, [to, from], move |a: u64| {
                    let exact = integer(from, a);
                    let value = exact as f64;
                    let rest = (exact - value as i128) as f64;
                    float_bits(to, value, rest, round, false)
                });
            }
        }
    }
}

fn to_integers(table: &mut Table) {
    for from in FLOATS {
        for to in INTEGERS {
            for (name, round) in TO_INTEGER {
                for ftz in if from == F32 {
                    &["", ".ftz"][..]
                } else {
                    &[""]
                } {
                    for sat in ["", ".sat"] {
                        let full = format!("cvt.{name}{ftz}{sat}.{}.{}", to.name(), from.name());
                        let is_ftz = !ftz.is_empty();
                        table.unary(full, [to, from], move |a: u64| {
                            let a = if is_ftz { flush(from, a) } else { a };
                            let value = float(from, a);
                            let (low, high) = range(to);
                            if value.is_nan() {
                                let is_wide = from == F64 || to.bytes() == 8;
                                let top = 1i128 << (8 * to.bytes() - 1);
                                return pack(to, if is_wide { top } else { 0 });
                            }
                            pack(to, (round_integer(value, round) as i128).clamp(low, high))
                        });
                    }
                }
            }
        }
    }
}

fn floats(table: &mut Table) {
    for from in FLOATS {
        for to in FLOATS {
            let names = format!("{}.{}", to.name(), from.name());
            let is_widening = to.bytes() > from.bytes();
            let has_ftz = from == F32 || to == F32;
            for ftz in if has_ftz { &["", ".ftz"][..] } else { &[""] } {
                for sat in ["", ".sat"] {
                    let convert = move |a: u64, rule: &dyn Fn(f64) -> f64, round: Round| {
                        let is_ftz = !ftz.is_empty();
                        let a = if is_ftz { flush(from, a) } else { a };
                        let bits =
                            float_bits(to, rule(float(from, a)), 0.0, round, !sat.is_empty());
                        if is_ftz { flush(to, bits) } else { bits }
                    };
                    if is_widening || from == to {
                        table.unary(
                            format!("cvt{ftz}{sat}.{names}"),
                            [to, from],
                            move |a: u64| convert(a, &|v| v, Round::Nearest),
                        );
                    } else {
                        for (name, round) in Round::ALL {
                            let full = format!("cvt.{name}{ftz}{sat}.{names}");
                            table.unary(full, [to, from], move |a: u64| convert(a, &|v| v, round));
                        }
                    }
                    if from == to {
                        for (name, round) in TO_INTEGER {
                            let full = format!("cvt.{name}{ftz}{sat}.{names}");
                            table.unary(full, [to, from], move |a: u64| {
                                convert(a, &|v| round_integer(v, round), Round::Nearest)
                            });
                        }
                    }
                }
            }
        }
    }
    for (to, ty) in [(num::F16, F16), (num::BF16, Bf16)] {
        for (name, round) in [("rn", Round::Nearest), ("rz", Round::Zero)] {
            let full = format!("cvt.{name}.relu.{}.f32", ty.name());
            table.unary(full, [ty, F32], move |a: u64| {
                relu(to.round(float(F32, a), 0.0, round))
            });
        }
    }
    // Rounded to 10 bits of fraction, ties away from zero.
    table.unary("cvt.rna.tf32.f32", [B32, F32], |a: u32| {
        if f32::from_bits(a).is_nan() {
            return 0x7fff_ffff;
        }
        if a & 0x7f80_0000 == 0x7f80_0000 {
            a
        } else {
            a.wrapping_add(0x1000) & !0x1fff
        }
    });
}

/// Not below zero; no number stays one. For 16-bit formats.
fn relu(bits: u64) -> u64 {
    if bits & 0x8000 != 0 { 0 } else { bits }
}

/// Two values into one word, the first into its upper half.
fn pairs(table: &mut Table) {
    for (format, two) in [(num::F16, Type::F16x2), (num::BF16, Type::Bf16x2)] {
        for (name, round) in [("rn", Round::Nearest), ("rz", Round::Zero)] {
            for suffix in ["", ".relu"] {
                let full = format!("cvt.{name}{suffix}.{}.f32", two.name());
                let finish = move |bits| if suffix.is_empty() { bits } else { relu(bits) };
                table.general(full, &[two], &[F32, F32], move |s| {
                    let half = |a: u64| finish(format.round(float(F32, a), 0.0, round));
                    [half(s[0]) << 16 | half(s[1]), 0]
                });
            }
        }
    }
}
