//! Bitwise operations, shifts and bit fields.

use super::Table;
use crate::ptx::types::Type::{B16, B32, B64, Pred, S32, S64, U32, U64};

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    logic(table);
    shifts(table);
    fields(table);
    counts(table);
    carries(table);
}

fn logic(table: &mut Table) {
    for ty in [Pred, B16, B32, B64] {
        let n = ty.name();
        let mask = if ty == Pred {
            1
        } else {
            u64::MAX >> (64 - 8 * ty.bytes())
        };
        table.binary(format!("and.{n}"), [ty; 3], |a: u64, b: u64| a & b);
        table.binary(format!("or.{n}"), [ty; 3], |a: u64, b: u64| a | b);
        table.binary(format!("xor.{n}"), [ty; 3], |a: u64, b: u64| a ^ b);
        table.unary(format!("not.{n}"), [ty; 2], move |a: u64| !a & mask);
        if ty != Pred {
            table.unary(format!("cnot.{n}"), [ty; 2], |a: u64| u64::from(a == 0));
        }
    }
    table.general(
        "lop3.b32",
        &[B32],
        &[B32, B32, B32, B32],
        |[a, b, c, table]| {
            let mut result = 0;
            for i in 0..8u64 {
                let pick = |word: u64, bit: u64| if i & bit == 0 { !word } else { word };
                if table >> i & 1 == 1 {
                    result |= pick(a, 4) & pick(b, 2) & pick(c, 1);
                }
            }
            [result & 0xffff_ffff, 0]
        },
    );
}

/// Shifts by a value, with the amount clamped to the width as PTX says.
macro_rules! shift {
    ($table:ident, $ty:ident, $bits:expr, $left:expr, $right:expr) => {
        $table.binary($left, [$bits, $bits, U32], |a: $ty, by: u32| {
            a.checked_shl(by).unwrap_or(0)
        });
        $table.binary($right, [$bits, $bits, U32], |a: $ty, by: u32| {
            a.checked_shr(by).unwrap_or(0)
        });
    };
}

fn shifts(table: &mut Table) {
    shift!(table, u16, B16, "shl.b16", "shr.u16");
    shift!(table, u32, B32, "shl.b32", "shr.u32");
    shift!(table, u64, B64, "shl.b64", "shr.u64");
    table.binary("shr.b16", [B16, B16, U32], |a: u16, by: u32| {
        a.checked_shr(by).unwrap_or(0)
    });
    table.binary("shr.b32", [B32, B32, U32], |a: u32, by: u32| {
        a.checked_shr(by).unwrap_or(0)
    });
    table.binary("shr.b64", [B64, B64, U32], |a: u64, by: u32| {
        a.checked_shr(by).unwrap_or(0)
    });
    table.binary("shr.s16", [B16, B16, U32], |a: i16, by: u32| {
        a >> by.min(15)
    });
    table.binary("shr.s32", [S32, S32, U32], |a: i32, by: u32| {
        a >> by.min(31)
    });
    table.binary("shr.s64", [S64, S64, U32], |a: i64, by: u32| {
        a >> by.min(63)
    });
    for (mode, is_clamped) in [("wrap", false), ("clamp", true)] {
        let amount = move |by: u32| if is_clamped { by.min(32) } else { by & 31 };
        let types = [B32, B32, B32, U32];
        table.ternary(
            format!("shf.l.{mode}.b32"),
            types,
            move |low: u32, high: u32, by: u32| {
                let both = u64::from(high) << 32 | u64::from(low);
                ((both << amount(by)) >> 32) as u32
            },
        );
        table.ternary(
            format!("shf.r.{mode}.b32"),
            types,
            move |low: u32, high: u32, by: u32| {
                let both = u64::from(high) << 32 | u64::from(low);
                (both >> amount(by)) as u32
            },
        );
    }
}

/// The field of `len` bits from `start`; a signed one is filled with its top bit.
fn extract(value: u64, start: u64, len: u64, width: u64, is_signed: bool) -> u64 {
    let (start, len) = (start & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    // The top bit of the field, or that of the word where the field passes its end.
    let top = value >> (start + len - 1).min(width - 1) & 1;
    let mut result = 0;
    for i in 0..width {
        let bit = if i < len && start + i < width {
            value >> (start + i) & 1
        } else {
            u64::from(is_signed) & top
        };
        result |= bit << i;
    }
    result
}

/// `base` with the low `len` bits of `field` at `start`.
fn insert(field: u64, base: u64, start: u64, len: u64, width: u64) -> u64 {
    let (start, len) = (start & 0xff, len & 0xff);
    let mut result = base;
    for i in 0..len {
        if start + i < width {
            let at = start + i;
            result = result & !(1 << at) | (field >> i & 1) << at;
        }
    }
    result
}

fn fields(table: &mut Table) {
    for (ty, width) in [(U32, 32), (S32, 32), (U64, 64), (S64, 64)] {
        let sources = [ty, U32, U32];
        table.general(
            format!("bfe.{}", ty.name()),
            &[ty],
            &sources,
            move |[a, start, len, _]| [extract(a, start, len, width, ty.is_signed()), 0],
        );
    }
    for (ty, width) in [(B32, 32), (B64, 64)] {
        let sources = [ty, ty, U32, U32];
        table.general(
            format!("bfi.{}", ty.name()),
            &[ty],
            &sources,
            move |[a, b, start, len]| [insert(a, b, start, len, width), 0],
        );
    }
    table.ternary("prmt.b32", [B32; 4], |a: u32, b: u32, selector: u32| {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let mut result = 0u32;
        for i in 0..4 {
            let pick = selector >> (4 * i) & 0xf;
            let byte = (bytes >> (8 * (pick & 7))) as u8;
            let byte = if pick & 8 == 0 {
                byte
            } else {
                ((byte as i8) >> 7) as u8
            };
            result |= u32::from(byte) << (8 * i);
        }
        result
    });
}

fn counts(table: &mut Table) {
    table.unary("popc.b32", [U32, B32], u32::count_ones);
    table.unary("popc.b64", [U32, B64], u64::count_ones);
    table.unary("clz.b32", [U32, B32], u32::leading_zeros);
    table.unary("clz.b64", [U32, B64], u64::leading_zeros);
    table.unary("brev.b32", [B32; 2], u32::reverse_bits);
    table.unary("brev.b64", [B64; 2], u64::reverse_bits);
    // Position of the highest bit that differs from the sign, all ones for none.
    let position = |leading: u32, width: u32| (width - 1).wrapping_sub(leading);
    table.unary("bfind.u32", [U32, U32], move |a: u32| {
        position(a.leading_zeros(), 32)
    });
    table.unary("bfind.u64", [U32, U64], move |a: u64| {
        position(a.leading_zeros(), 64)
    });
    table.unary("bfind.s32", [U32, S32], move |a: i32| {
        position((a ^ (a >> 31)).leading_zeros(), 32)
    });
    table.unary("bfind.s64", [U32, S64], move |a: i64| {
        position((a ^ (a >> 63)).leading_zeros(), 64)
    });
    for ty in [U32, S32] {
        table.unary(
            format!("bfind.shiftamt.{}", ty.name()),
            [U32, ty],
            move |a: u32| {
                let a = if ty.is_signed() {
                    a ^ ((a as i32) >> 31) as u32
                } else {
                    a
                };
                if a == 0 { u32::MAX } else { a.leading_zeros() }
            },
        );
    }
}

/// Sums of many words. The carry is a register of its own: last source and second result.
fn carries(table: &mut Table) {
    for ty in [U32, S32, U64, S64] {
        let width = 8 * ty.bytes() as u32;
        let mask = u128::from(u64::MAX >> (64 - width));
        let n = ty.name();
        let add = move |a: u64, b: u64, carry: u64| {
            let sum = u128::from(a) + u128::from(b) + u128::from(carry & 1);
            [(sum & mask) as u64, (sum >> width) as u64 & 1]
        };
        let sub = move |a: u64, b: u64, borrow: u64| {
            let taken = u128::from(b) + u128::from(borrow & 1);
            let difference = u128::from(a).wrapping_sub(taken);
            [(difference & mask) as u64, u64::from(taken > u128::from(a))]
        };
        for (name, op) in [("add", true), ("sub", false)] {
            let run = move |a, b, c| if op { add(a, b, c) } else { sub(a, b, c) };
            table.general(format!("{name}.cc.{n}"), &[ty, Pred], &[ty, ty], move |s| {
                run(s[0], s[1], 0)
            });
            table.general(
                format!("{name}c.cc.{n}"),
                &[ty, Pred],
                &[ty, ty, Pred],
                move |s| run(s[0], s[1], s[2]),
            );
            table.general(format!("{name}c.{n}"), &[ty], &[ty, ty, Pred], move |s| {
                [run(s[0], s[1], s[2])[0], 0]
            });
        }
    }
    for ty in [U32, S32] {
        let n = ty.name();
        let product = move |a: u64, b: u64| {
            if ty.is_signed() {
                (i64::from(a as i32) * i64::from(b as i32)) as u64
            } else {
                a * b
            }
        };
        for (part, shift) in [("lo", 0), ("hi", 32)] {
            let sum = move |a: u64, b: u64, c: u64, carry: u64| {
                let sum = (product(a, b) >> shift & 0xffff_ffff) + c + (carry & 1);
                [sum & 0xffff_ffff, sum >> 32]
            };
            let types = [ty, ty, ty, Pred];
            table.general(
                format!("mad.{part}.cc.{n}"),
                &[ty, Pred],
                &types[..3],
                move |s| sum(s[0], s[1], s[2], 0),
            );
            table.general(
                format!("madc.{part}.cc.{n}"),
                &[ty, Pred],
                &types,
                move |s| sum(s[0], s[1], s[2], s[3]),
            );
            table.general(format!("madc.{part}.{n}"), &[ty], &types, move |s| {
                [sum(s[0], s[1], s[2], s[3])[0], 0]
            });
        }
    }
}
