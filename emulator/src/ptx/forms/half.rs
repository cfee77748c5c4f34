//! Arithmetic of the two 16-bit float formats, alone and packed by two.

use super::Table;
use crate::num::{self, Format, Round};
use crate::ptx::types::Type;

/// One of the two formats.
#[derive(Clone, Copy)]
struct Half {
    format: Format,
    one: Type,
    two: Type,
    to_f64: fn(u16) -> f64,
}

const F16: Half = Half {
    format: num::F16,
    one: Type::F16,
    two: Type::F16x2,
    to_f64: |bits| half::f16::from_bits(bits).to_f64(),
};
const BF16: Half = Half {
    format: num::BF16,
    one: Type::Bf16,
    two: Type::Bf16x2,
    to_f64: |bits| half::bf16::from_bits(bits).to_f64(),
};

/// What is done with a result.
#[derive(Clone, Copy, PartialEq)]
enum Finish {
    Plain,
    /// Into [0, 1], zero for no number.
    Saturate,
    /// Not below zero; no number stays one.
    Relu,
}

impl Half {
    /// Adds a form for one value and for two; `op` takes bits and answers bits.
    fn push(
        self,
        table: &mut Table,
        name: &str,
        num_sources: usize,
        op: impl Fn([u16; 3]) -> u16 + Copy + Send + Sync + 'static,
    ) {
        let one = [self.one; 3];
        let pick = |s: [u64; 4], shift: u32| {
            [
                (s[0] >> shift) as u16,
                (s[1] >> shift) as u16,
                (s[2] >> shift) as u16,
            ]
        };
        let (n1, n2) = (self.one.name(), self.two.name());
        table.general(
            format!("{name}.{n1}"),
            &one[..1],
            &one[..num_sources],
            move |s| [u64::from(op(pick(s, 0))), 0],
        );
        let two = [self.two; 3];
        table.general(
            format!("{name}.{n2}"),
            &two[..1],
            &two[..num_sources],
            move |s| {
                let high = u64::from(op(pick(s, 16))) << 16;
                [u64::from(op(pick(s, 0))) | high, 0]
            },
        );
    }

    fn finish(self, bits: u64, finish: Finish) -> u16 {
        let bits = bits as u16;
        let value = (self.to_f64)(bits);
        match finish {
            Finish::Plain => bits,
            Finish::Saturate if value >= 1.0 => self.format.round(1.0, 0.0, Round::Nearest) as u16,
            Finish::Saturate if value > 0.0 => bits,
            Finish::Saturate => 0,
            Finish::Relu if value.is_nan() || value > 0.0 => bits,
            Finish::Relu => 0,
        }
    }

    fn add(self, table: &mut Table) {
        let of = self.to_f64;
        let sum = move |a: f64, b: f64| num::add(self.format, a, b, Round::Nearest);
        let product = move |a: f64, b: f64| self.format.round(a * b, 0.0, Round::Nearest);
        let fused = move |a: f64, b: f64, c: f64| num::fma(self.format, a, b, c, Round::Nearest);
        for rn in ["", ".rn"] {
            for (suffix, finish) in [("", Finish::Plain), (".sat", Finish::Saturate)] {
                if self.one == Type::Bf16 && finish == Finish::Saturate {
                    continue;
                }
                self.push(table, &format!("add{rn}{suffix}"), 2, move |s| {
                    self.finish(sum(of(s[0]), of(s[1])), finish)
                });
                self.push(table, &format!("sub{rn}{suffix}"), 2, move |s| {
                    self.finish(sum(of(s[0]), -of(s[1])), finish)
                });
                self.push(table, &format!("mul{rn}{suffix}"), 2, move |s| {
                    self.finish(product(of(s[0]), of(s[1])), finish)
                });
            }
        }
        let finishes = [
            ("", Finish::Plain),
            (".relu", Finish::Relu),
            (".sat", Finish::Saturate),
        ];
        for (suffix, finish) in finishes {
            if self.one == Type::Bf16 && finish == Finish::Saturate {
                continue;
            }
            self.push(table, &format!("fma.rn{suffix}"), 3, move |s| {
                self.finish(fused(of(s[0]), of(s[1]), of(s[2])), finish)
            });
        }
        self.push(table, "neg", 1, |s| s[0] ^ 0x8000);
        self.push(table, "abs", 1, |s| s[0] & 0x7fff);
        self.extremes(table);
        let curve = |op: fn(f64) -> f64| {
            move |s: [u16; 3]| self.format.round(op(of(s[0])), 0.0, Round::Nearest) as u16
        };
        self.push(table, "tanh.approx", 1, curve(f64::tanh));
        let ex2 = if self.one == Type::F16 {
            "ex2.approx"
        } else {
            "ex2.approx.ftz"
        };
        self.push(table, ex2, 1, curve(f64::exp2));
    }

    fn extremes(self, table: &mut Table) {
        let of = self.to_f64;
        // -0 is below 0: compare as integers that are ordered like the numbers.
        let key = |bits: u16| {
            let magnitude = i32::from(bits & 0x7fff);
            if bits & 0x8000 == 0 {
                magnitude
            } else {
                -magnitude - 1
            }
        };
        for (name, is_min) in [("min", true), ("max", false)] {
            for (suffix, propagates) in [("", false), (".NaN", true)] {
                self.push(table, &format!("{name}{suffix}"), 2, move |s| {
                    let (a, b) = (s[0], s[1]);
                    match (of(a).is_nan(), of(b).is_nan()) {
                        (true, true) => 0x7fff,
                        (true, _) | (_, true) if propagates => 0x7fff,
                        (true, false) => b,
                        (false, true) => a,
                        (false, false) if (key(a) < key(b)) == is_min => a,
                        (false, false) => b,
                    }
                });
            }
        }
    }
}

/// Adds the family.
pub(super) fn add(table: &mut Table) {
    F16.add(table);
    BF16.add(table);
}
