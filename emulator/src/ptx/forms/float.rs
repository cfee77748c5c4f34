//! Arithmetic of single and double precision.
//!
//! Approximate instructions answer the correctly rounded result (their `.ftz` forms with
//! subnormals as zero), which no hardware does: a tolerance that passes here proves nothing about
//! their error on a GPU.

use super::Table;
use crate::num::{self, Round};
use crate::ptx::types::Type::{B32, F32, F64, Pred, S32, U32};

/// Zero of the same sign for a subnormal.
fn flush(a: f32) -> f32 {
    if a.is_subnormal() {
        0.0f32.copysign(a)
    } else {
        a
    }
}

/// The value in [0, 1], zero for no number.
fn saturate(a: f32) -> f32 {
    // Not `clamp`, which keeps what is no number and the sign of zero.
    if a > 0.0 { a.min(1.0) } else { 0.0 }
}

/// The smaller number; one that is no number gives way, and -0 is below 0.
fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// The larger number; one that is no number gives way, and 0 is above -0.
fn max(a: f64, b: f64) -> f64 {
    -min(-a, -b)
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// A form of single precision with its `.ftz` and `.sat` variants.
/// `name` has `{}` where the suffixes go; `op` takes three sources.
fn single(
    table: &mut Table,
    name: &str,
    num_sources: usize,
    suffixes: &[&str],
    op: impl Fn(f32, f32, f32) -> f32 + Copy + Send + Sync + 'static,
) {
    let types = &[F32; 3][..num_sources];
    for suffix in suffixes {
        let name = name.replace("{}", suffix);
        let (ftz, sat) = (suffix.contains("ftz"), suffix.contains("sat"));
        if !ftz && !sat {
            match num_sources {
                1 => table.unary(name, [F32; 2], move |a: f32| op(a, 0.0, 0.0)),
                2 => table.binary(name, [F32; 3], move |a: f32, b: f32| op(a, b, 0.0)),
                _ => table.ternary(name, [F32; 4], op),
            }
            continue;
        }
        table.general(name, &[F32], types, move |s| {
            let of = |i: usize| {
                if ftz {
                    flush(f32_of(s[i]))
                } else {
                    f32_of(s[i])
                }
            };
            let result = op(of(0), of(1), of(2));
            let result = if ftz { flush(result) } else { result };
            let result = if sat { saturate(result) } else { result };
            [super::Lane::bits(result), 0]
        });
    }
}

const FTZ_SAT: [&str; 4] = ["", ".ftz", ".sat", ".ftz.sat"];
const FTZ: [&str; 2] = ["", ".ftz"];

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    singles(table);
    rounded_singles(table);
    approximations(table);
    doubles(table);
    for (ty, name) in [(F32, "f32"), (F64, "f64")] {
        tests(table, ty, name);
    }
    let types = [F32, F32, F32, S32];
    table.ternary(
        "slct.f32.s32",
        types,
        |a: u32, b: u32, c: i32| if c >= 0 { a } else { b },
    );
    for ty in [B32, U32, S32] {
        let types = [ty, ty, ty, S32];
        table.ternary(
            format!("slct.{}.s32", ty.name()),
            types,
            |a: u32, b: u32, c: i32| {
                if c >= 0 { a } else { b }
            },
        );
    }
}

fn singles(table: &mut Table) {
    for rn in ["", ".rn"] {
        single(
            table,
            &format!("add{rn}{{}}.f32"),
            2,
            &FTZ_SAT,
            |a, b, _| a + b,
        );
        single(
            table,
            &format!("sub{rn}{{}}.f32"),
            2,
            &FTZ_SAT,
            |a, b, _| a - b,
        );
        single(
            table,
            &format!("mul{rn}{{}}.f32"),
            2,
            &FTZ_SAT,
            |a, b, _| a * b,
        );
    }
    for name in ["fma.rn", "mad.rn"] {
        single(table, &format!("{name}{{}}.f32"), 3, &FTZ_SAT, |a, b, c| {
            a.mul_add(b, c)
        });
    }
    single(table, "div.rn{}.f32", 2, &FTZ, |a, b, _| a / b);
    single(table, "rcp.rn{}.f32", 1, &FTZ, |a, _, _| 1.0 / a);
    single(table, "sqrt.rn{}.f32", 1, &FTZ, |a, _, _| a.sqrt());
    single(table, "abs{}.f32", 1, &FTZ, |a, _, _| a.abs());
    single(table, "neg{}.f32", 1, &FTZ, |a, _, _| -a);
    single(table, "min{}.f32", 2, &FTZ, |a, b, _| {
        min(a.into(), b.into()) as f32
    });
    single(table, "max{}.f32", 2, &FTZ, |a, b, _| {
        max(a.into(), b.into()) as f32
    });
    let propagated = |a: f32, b: f32, picked: f64| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            picked as f32
        }
    };
    single(table, "min{}.NaN.f32", 2, &FTZ, move |a, b, _| {
        propagated(a, b, min(a.into(), b.into()))
    });
    single(table, "max{}.NaN.f32", 2, &FTZ, move |a, b, _| {
        propagated(a, b, max(a.into(), b.into()))
    });
    // PTX names the source of the sign first.
    table.binary("copysign.f32", [F32; 3], |a: u32, b: u32| {
        a & 0x8000_0000 | b & 0x7fff_ffff
    });
}

/// The directions other than to nearest.
fn rounded_singles(table: &mut Table) {
    for (name, round) in Round::ALL.into_iter().filter(|(_, r)| *r != Round::Nearest) {
        let of = move |bits: u64| f32::from_bits(bits as u32);
        single(
            table,
            &format!("add.{name}{{}}.f32"),
            2,
            &FTZ,
            move |a, b, _| of(num::add(num::F32, a.into(), b.into(), round)),
        );
        single(
            table,
            &format!("sub.{name}{{}}.f32"),
            2,
            &FTZ,
            move |a, b, _| of(num::add(num::F32, a.into(), -f64::from(b), round)),
        );
        single(
            table,
            &format!("mul.{name}{{}}.f32"),
            2,
            &FTZ,
            move |a, b, _| of(num::F32.round(f64::from(a) * f64::from(b), 0.0, round)),
        );
        single(
            table,
            &format!("fma.{name}{{}}.f32"),
            3,
            &FTZ,
            move |a, b, c| of(num::fma(num::F32, a.into(), b.into(), c.into(), round)),
        );
        single(
            table,
            &format!("div.{name}{{}}.f32"),
            2,
            &FTZ,
            move |a, b, _| of(num::div(num::F32, a.into(), b.into(), round)),
        );
        single(
            table,
            &format!("rcp.{name}{{}}.f32"),
            1,
            &FTZ,
            move |a, _, _| of(num::div(num::F32, 1.0, a.into(), round)),
        );
        single(
            table,
            &format!("sqrt.{name}{{}}.f32"),
            1,
            &FTZ,
            move |a, _, _| of(num::sqrt(num::F32, a.into(), round)),
        );
    }
}

fn approximations(table: &mut Table) {
    type Curve = fn(f64) -> f64;
    let ops: [(&str, Curve); 8] = [
        ("rcp.approx", |a| 1.0 / a),
        ("sqrt.approx", f64::sqrt),
        ("rsqrt.approx", |a| 1.0 / a.sqrt()),
        ("sin.approx", f64::sin),
        ("cos.approx", f64::cos),
        ("lg2.approx", f64::log2),
        ("ex2.approx", f64::exp2),
        ("tanh.approx", f64::tanh),
    ];
    for (name, op) in ops {
        let suffixes: &[&str] = if name.starts_with("tanh") {
            &[""]
        } else {
            &FTZ
        };
        single(
            table,
            &format!("{name}{{}}.f32"),
            1,
            suffixes,
            move |a, _, _| op(a.into()) as f32,
        );
    }
    for name in ["div.approx", "div.full"] {
        single(table, &format!("{name}{{}}.f32"), 2, &FTZ, |a, b, _| a / b);
    }
    table.unary("rcp.approx.ftz.f64", [F64; 2], |a: f64| 1.0 / a);
    table.unary("rsqrt.approx.f64", [F64; 2], |a: f64| 1.0 / a.sqrt());
    table.unary("rsqrt.approx.ftz.f64", [F64; 2], |a: f64| 1.0 / a.sqrt());
}

fn doubles(table: &mut Table) {
    for rn in ["", ".rn"] {
        table.binary(format!("add{rn}.f64"), [F64; 3], |a: f64, b: f64| a + b);
        table.binary(format!("sub{rn}.f64"), [F64; 3], |a: f64, b: f64| a - b);
        table.binary(format!("mul{rn}.f64"), [F64; 3], |a: f64, b: f64| a * b);
    }
    table.ternary("fma.rn.f64", [F64; 4], |a: f64, b: f64, c: f64| {
        a.mul_add(b, c)
    });
    table.ternary("mad.rn.f64", [F64; 4], |a: f64, b: f64, c: f64| {
        a.mul_add(b, c)
    });
    table.binary("div.rn.f64", [F64; 3], |a: f64, b: f64| a / b);
    table.unary("rcp.rn.f64", [F64; 2], |a: f64| 1.0 / a);
    table.unary("sqrt.rn.f64", [F64; 2], f64::sqrt);
    table.unary("abs.f64", [F64; 2], f64::abs);
    table.unary("neg.f64", [F64; 2], |a: f64| -a);
    table.binary("min.f64", [F64; 3], min);
    table.binary("max.f64", [F64; 3], max);
    table.binary("copysign.f64", [F64; 3], |a: u64, b: u64| {
        a & 1 << 63 | b & !(1 << 63)
    });
}

/// Questions about one number.
fn tests(table: &mut Table, ty: crate::ptx::types::Type, name: &str) {
    type Ask = fn(f64, bool) -> bool;
    let asks: [(&str, Ask); 6] = [
        ("finite", |a, _| a.is_finite()),
        ("infinite", |a, _| a.is_infinite()),
        ("number", |a, _| !a.is_nan()),
        ("notanumber", |a, _| a.is_nan()),
        ("normal", |a, small| a.is_finite() && a != 0.0 && !small),
        ("subnormal", |_, small| small),
    ];
    for (ask, op) in asks {
        table.general(format!("testp.{ask}.{name}"), &[Pred], &[ty], move |s| {
            let answer = if ty == F32 {
                let a = f32_of(s[0]);
                op(a.into(), a.is_subnormal())
            } else {
                let a = f64::from_bits(s[0]);
                op(a, a.is_subnormal())
            };
            [u64::from(answer), 0]
        });
    }
}
