//! Comparisons.

use std::cmp::Ordering;

use half::{bf16, f16};

use super::{Lane, Table};
use crate::ptx::types::Type::{
    self, B16, B32, B64, Bf16, F16, F32, F64, Pred, S16, S32, S64, U16, U32, U64,
};

/// Comparisons by what they accept: less, equal, greater, unordered.
const ORDERED: [(&str, [bool; 4]); 14] = [
    ("eq", [false, true, false, false]),
    ("ne", [true, false, true, false]),
    ("lt", [true, false, false, false]),
    ("le", [true, true, false, false]),
    ("gt", [false, false, true, false]),
    ("ge", [false, true, true, false]),
    ("equ", [false, true, false, true]),
    ("neu", [true, false, true, true]),
    ("ltu", [true, false, false, true]),
    ("leu", [true, true, false, true]),
    ("gtu", [false, false, true, true]),
    ("geu", [false, true, true, true]),
    ("num", [true, true, true, false]),
    ("nan", [false, false, false, true]),
];
/// Unsigned comparisons have names of their own.
const UNSIGNED: [(&str, &str); 4] = [("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")];

fn accepts(table: [bool; 4], ordering: Option<Ordering>) -> bool {
    match ordering {
        Some(Ordering::Less) => table[0],
        Some(Ordering::Equal) => table[1],
        Some(Ordering::Greater) => table[2],
        None => table[3],
    }
}

/// How values of a type compare; packed halves are compared one by one elsewhere.
fn order(ty: Type) -> fn(u64, u64) -> Option<Ordering> {
    fn by<T: Lane + PartialOrd>(a: u64, b: u64) -> Option<Ordering> {
        T::of(a).partial_cmp(&T::of(b))
    }
    match ty {
        S16 => by::<i16>,
        S32 => by::<i32>,
        S64 => by::<i64>,
        F16 => by::<f16>,
        Bf16 => by::<bf16>,
        F32 => by::<f32>,
        F64 => by::<f64>,
        _ => by::<u64>,
    }
}

/// Comparisons that a type has, by name.
fn comparisons(ty: Type) -> Vec<(&'static str, [bool; 4])> {
    let mut list: Vec<_> = match ty {
        B16 | B32 | B64 => ORDERED[..2].to_vec(),
        _ if ty.is_float() => ORDERED.to_vec(),
        _ => ORDERED[..6].to_vec(),
    };
    if matches!(ty, U16 | U32 | U64) {
        for (name, same) in UNSIGNED {
            list.extend(
                ORDERED
                    .iter()
                    .filter(|(n, _)| *n == same)
                    .map(|(_, t)| (name, *t)),
            );
        }
    }
    list
}

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    for ty in [
        B16, B32, B64, U16, U32, U64, S16, S32, S64, F16, Bf16, F32, F64,
    ] {
        for (name, accepted) in comparisons(ty) {
            compare(table, ty, name, accepted);
        }
    }
    for ty in [Type::F16x2, Type::Bf16x2] {
        let one = if ty == Type::F16x2 { F16 } else { Bf16 };
        let order = order(one);
        for (name, accepted) in comparisons(one) {
            table.general(
                format!("setp.{name}.{}", ty.name()),
                &[Pred, Pred],
                &[ty, ty],
                move |s| {
                    let half = |i: u32| {
                        let ordering = order(s[0] >> i & 0xffff, s[1] >> i & 0xffff);
                        u64::from(accepts(accepted, ordering))
                    };
                    [half(0), half(16)]
                },
            );
        }
    }
}

fn compare(table: &mut Table, ty: Type, name: &str, accepted: [bool; 4]) {
    let order = order(ty);
    let n = ty.name();
    let ftz: &[&str] = if ty == F32 { &["", ".ftz"] } else { &[""] };
    for suffix in ftz {
        let is_ftz = !suffix.is_empty();
        let holds = move |a: u64, b: u64| {
            let flush = |bits: u64| {
                if is_ftz && bits & 0x7f80_0000 == 0 {
                    bits & 1 << 31
                } else {
                    bits
                }
            };
            accepts(accepted, order(flush(a), flush(b)))
        };
        table.general(
            format!("setp.{name}{suffix}.{n}"),
            &[Pred, Pred],
            &[ty, ty],
            move |s| {
                let holds = holds(s[0], s[1]);
                [u64::from(holds), u64::from(!holds)]
            },
        );
        type Join = fn(bool, bool) -> bool;
        let joins: [(&str, Join); 3] = [
            ("and", |a, b| a & b),
            ("or", |a, b| a | b),
            ("xor", |a, b| a ^ b),
        ];
        for (join, op) in joins {
            let full = format!("setp.{name}.{join}{suffix}.{n}");
            table.general(full, &[Pred, Pred], &[ty, ty, Pred], move |s| {
                let (holds, with) = (holds(s[0], s[1]), s[2] & 1 == 1);
                [u64::from(op(holds, with)), u64::from(op(!holds, with))]
            });
        }
        for dest in [U32, S32, F32] {
            let yes = if dest == F32 {
                u64::from(1f32.to_bits())
            } else {
                0xffff_ffff
            };
            let full = format!("set.{name}{suffix}.{}.{n}", dest.name());
            table.general(full, &[dest], &[ty, ty], move |s| {
                [if holds(s[0], s[1]) { yes } else { 0 }, 0]
            });
        }
    }
}
