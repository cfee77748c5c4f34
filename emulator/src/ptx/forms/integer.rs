//! Integer arithmetic.

use super::Table;
use crate::ptx::types::Type::{self, B16, B32, B64, S16, S32, S64, U16, U32, U64};

/// Quotient and remainder of one integer type, with the answers of the hardware for zero.
macro_rules! division {
    ($table:ident, $ty:ident, $name:ident) => {
        $table.binary(
            format!("div.{}", $name.name()),
            [$name; 3],
            |a: $ty, b: $ty| {
                // The hardware answers all ones.
                if b == 0 { !0 } else { a.wrapping_div(b) }
            },
        );
        $table.binary(
            format!("rem.{}", $name.name()),
            [$name; 3],
            |a: $ty, b: $ty| {
                if b == 0 { a } else { a.wrapping_rem(b) }
            },
        );
    };
}

/// The operations that each width has, signed and unsigned.
macro_rules! arithmetic {
    ($table:ident, $ty:ident, $name:ident) => {{
        let n = $name.name();
        $table.binary(format!("add.{n}"), [$name; 3], |a: $ty, b: $ty| {
            a.wrapping_add(b)
        });
        $table.binary(format!("sub.{n}"), [$name; 3], |a: $ty, b: $ty| {
            a.wrapping_sub(b)
        });
        $table.binary(format!("mul.lo.{n}"), [$name; 3], |a: $ty, b: $ty| {
            a.wrapping_mul(b)
        });
        $table.binary(format!("min.{n}"), [$name; 3], |a: $ty, b: $ty| a.min(b));
        $table.binary(format!("max.{n}"), [$name; 3], |a: $ty, b: $ty| a.max(b));
        $table.ternary(
            format!("mad.lo.{n}"),
            [$name; 4],
            |a: $ty, b: $ty, c: $ty| a.wrapping_mul(b).wrapping_add(c),
        );
        division!($table, $ty, $name);
        let high = |a: $ty, b: $ty| ((a as i128 * b as i128) >> <$ty>::BITS) as $ty;
        $table.binary(format!("mul.hi.{n}"), [$name; 3], high);
        $table.ternary(
            format!("mad.hi.{n}"),
            [$name; 4],
            move |a: $ty, b: $ty, c: $ty| high(a, b).wrapping_add(c),
        );
    }};
}

/// Products of twice the width.
macro_rules! wide {
    ($table:ident, $from:ident, $to:ident, $name:ident, $wide:ident) => {{
        let n = $name.name();
        $table.binary(
            format!("mul.wide.{n}"),
            [$wide, $name, $name],
            |a: $from, b: $from| a as $to * b as $to,
        );
        $table.ternary(
            format!("mad.wide.{n}"),
            [$wide, $name, $name, $wide],
            |a: $from, b: $from, c: $to| (a as $to * b as $to).wrapping_add(c),
        );
    }};
}

macro_rules! signed {
    ($table:ident, $ty:ident, $name:ident) => {{
        let n = $name.name();
        $table.unary(format!("abs.{n}"), [$name; 2], |a: $ty| a.wrapping_abs());
        $table.unary(format!("neg.{n}"), [$name; 2], |a: $ty| a.wrapping_neg());
    }};
}

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    arithmetic!(table, u16, U16);
    arithmetic!(table, i16, S16);
    arithmetic!(table, u32, U32);
    arithmetic!(table, i32, S32);
    table.binary("add.u64", [U64; 3], u64::wrapping_add);
    arithmetic!(table, i64, S64);
    unsigned_64(table);
    wide!(table, u16, u32, U16, U32);
    wide!(table, i16, i32, S16, S32);
    wide!(table, u32, u64, U32, U64);
    wide!(table, i32, i64, S32, S64);
    signed!(table, i16, S16);
    signed!(table, i32, S32);
    signed!(table, i64, S64);
    table.binary("add.sat.s32", [S32; 3], i32::saturating_add);
    table.binary("sub.sat.s32", [S32; 3], i32::saturating_sub);
    table.ternary("sad.u32", [U32; 4], |a: u32, b: u32, c: u32| {
        c.wrapping_add(a.abs_diff(b))
    });
    table.ternary("sad.s32", [S32; 4], |a: i32, b: i32, c: u32| {
        c.wrapping_add(a.abs_diff(b))
    });
    moves(table);
}

/// The widest unsigned type, whose products do not fit the signed wide type.
fn unsigned_64(table: &mut Table) {
    let high = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    table.binary("sub.u64", [U64; 3], u64::wrapping_sub);
    table.binary("mul.lo.u64", [U64; 3], u64::wrapping_mul);
    table.binary("min.u64", [U64; 3], |a: u64, b: u64| a.min(b));
    table.binary("max.u64", [U64; 3], |a: u64, b: u64| a.max(b));
    table.ternary("mad.lo.u64", [U64; 4], |a: u64, b: u64, c: u64| {
        a.wrapping_mul(b).wrapping_add(c)
    });
    table.binary("mul.hi.u64", [U64; 3], high);
    table.ternary("mad.hi.u64", [U64; 4], move |a: u64, b: u64, c: u64| {
        high(a, b).wrapping_add(c)
    });
    division!(table, u64, U64);
}

/// Copies of a register, by type.
fn moves(table: &mut Table) {
    let types = [
        Type::Pred,
        B16,
        B32,
        B64,
        U16,
        U32,
        U64,
        S16,
        S32,
        S64,
        Type::F16,
        Type::Bf16,
        Type::F32,
        Type::F64,
    ];
    for ty in types {
        table.unary(format!("mov.{}", ty.name()), [ty; 2], |a: u64| a);
        if ty != Type::Pred && ty.bytes() > 1 {
            table.general(
                format!("selp.{}", ty.name()),
                &[ty],
                &[ty, ty, Type::Pred],
                |s| [if s[2] & 1 == 1 { s[0] } else { s[1] }, 0],
            );
        }
    }
}
