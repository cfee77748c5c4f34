//! Dot products of small integers that are packed into a word.

use super::Table;
use crate::ptx::types::Type::{B32, S32, U32};

/// Byte `i` of a word, with or without its sign.
fn byte(word: u32, i: u32, is_signed: bool) -> i64 {
    let byte = (word >> (8 * i)) as u8;
    if is_signed {
        i64::from(byte as i8)
    } else {
        i64::from(byte)
    }
}

/// Half `i` of a word, with or without its sign.
fn half(word: u32, i: u32, is_signed: bool) -> i64 {
    let half = (word >> (16 * i)) as u16;
    if is_signed {
        i64::from(half as i16)
    } else {
        i64::from(half)
    }
}

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    for (a_ty, b_ty) in [(U32, U32), (U32, S32), (S32, U32), (S32, S32)] {
        let ty = if a_ty == U32 && b_ty == U32 { U32 } else { S32 };
        let names = format!("{}.{}", a_ty.name(), b_ty.name());
        let types = [ty, B32, B32, ty];
        table.ternary(
            format!("dp4a.{names}"),
            types,
            move |a: u32, b: u32, c: u32| {
                let products =
                    (0..4).map(|i| byte(a, i, a_ty.is_signed()) * byte(b, i, b_ty.is_signed()));
                c.wrapping_add(products.sum::<i64>() as u32)
            },
        );
        for (part, first) in [("lo", 0), ("hi", 2)] {
            table.ternary(
                format!("dp2a.{part}.{names}"),
                types,
                move |a: u32, b: u32, c: u32| {
                    let products = (0..2).map(|i| {
                        half(a, i, a_ty.is_signed()) * byte(b, first + i, b_ty.is_signed())
                    });
                    c.wrapping_add(products.sum::<i64>() as u32)
                },
            );
        }
    }
}
