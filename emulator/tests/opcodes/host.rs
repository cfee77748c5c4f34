//! What an instruction's name says, computed on the host with wide integers and exact floats.

use lazybatch_emulator::ptx::forms::Form;
use lazybatch_emulator::ptx::types::Type;

use super::floats::{Direction, exact, nan, round, sum};
use super::{Random, mask};

/// What results have to be.
#[derive(Debug)]
pub enum Expected {
    /// These bits.
    Bits([u64; 2]),
    /// About this number.
    About(f64),
}

impl Expected {
    pub fn matches(&self, ty: Type, got: [u64; 2], count: usize) -> bool {
        match self {
            Self::Bits(want) => {
                let both_nan =
                    ty == Type::F64 && exact(ty, want[0]).is_nan() && exact(ty, got[0]).is_nan();
                (both_nan || got[0] == want[0]) && (count == 1 || got[1] == want[1])
            }
            Self::About(want) => {
                let got = exact(ty, got[0]);
                let scale = if ty == Type::F32 || ty == Type::F64 {
                    1e-6
                } else {
                    1e-2
                };
                got == *want
                    || (got.is_nan() && want.is_nan())
                    || (got - want).abs() <= scale * want.abs() + 1e-37
            }
        }
    }
}

/// Makes sources of some forms more telling than random ones are.
pub fn adjust(name: &str, s: &mut [u64; 4], random: &mut Random) {
    let base = name.split('.').next().unwrap_or_default();
    match base {
        "bfe" => (s[1], s[2]) = (random.word() % 70, random.word() % 70),
        "bfi" => (s[2], s[3]) = (random.word() % 70, random.word() % 70),
        "shl" | "shr" => s[1] = random.word() % 70,
        "shf" => s[2] = random.word() % 70,
        "lop3" => s[3] &= 0xff,
        _ => {}
    }
}

fn signed(ty: Type, bits: u64) -> i128 {
    let bits = bits & mask(ty);
    let width = 8 * ty.bytes() as u32;
    if ty.is_signed() && bits >> (width - 1) & 1 == 1 {
        i128::from(bits) - (1i128 << width)
    } else {
        bits.into()
    }
}

/// The form's results; `None` for a form that nothing here computes.
pub fn expected(form: &Form, s: [u64; 4]) -> Option<Expected> {
    let parts: Vec<&str> = form.name.split('.').collect();
    let (dest, ty) = (form.dests[0], *form.sources.first()?);
    let is_float = |ty: Type| ty.is_float() || matches!(ty, Type::F16x2 | Type::Bf16x2);
    let bits = |v: u64| Some(Expected::Bits([v & mask(dest), 0]));
    match parts[0] {
        "mov" => bits(s[0]),
        "selp" => bits(if s[2] == 1 { s[0] } else { s[1] }),
        "slct" => bits(if signed(Type::S32, s[2]) >= 0 {
            s[0]
        } else {
            s[1]
        }),
        "setp" | "set" => compare(&parts, dest, ty, s),
        "cvt" => convert(&parts, form, s),
        "testp" => {
            let v = exact(ty, s[0]);
            let least = if ty == Type::F32 {
                f64::from(f32::MIN_POSITIVE)
            } else {
                f64::MIN_POSITIVE
            };
            bits(u64::from(match parts[1] {
                "finite" => v.is_finite(),
                "infinite" => v.is_infinite(),
                "number" => !v.is_nan(),
                "notanumber" => v.is_nan(),
                "normal" => v.is_finite() && v.abs() >= least,
                _ => v != 0.0 && v.abs() < least,
            }))
        }
        _ if is_float(dest) => float(&parts, dest, s),
        _ => integer(&parts, form, s).map(Expected::Bits),
    }
}

fn integer(parts: &[&str], form: &Form, s: [u64; 4]) -> Option<[u64; 2]> {
    let (dest, ty) = (form.dests[0], form.sources[0]);
    let width = 8 * ty.bytes() as u32;
    let all = mask(dest);
    let v = |i: usize| signed(form.sources.get(i).copied().unwrap_or(ty), s[i]);
    let (a, b) = (v(0), v(1));
    let wrap = |x: i128| Some([x as u64 & all, 0]);
    // With a carry: unsigned words, the carry last.
    let plain = |i: usize| i128::from(s[i] & mask(ty));
    let with_carry = |x: i128| Some([x as u64 & mask(ty), (x >> width) as u64 & 1]);
    let takes = i128::from(*s[..form.sources.len()].last()? & 1);
    match (parts[0], parts[1]) {
        ("add", "cc") => with_carry(plain(0) + plain(1)),
        ("addc", _) => with_carry(plain(0) + plain(1) + takes),
        ("sub", "cc") => with_carry(plain(0) - plain(1)),
        ("subc", _) => with_carry(plain(0) - plain(1) - takes),
        ("mad" | "madc", part) if parts[0] == "madc" || parts.contains(&"cc") => {
            let product = (a * b) as u64;
            let part = if part == "hi" {
                product >> 32
            } else {
                product & 0xffff_ffff
            };
            with_carry(i128::from(part) + plain(2) + if parts[0] == "madc" { takes } else { 0 })
        }
        ("add", "sat") => wrap((a + b).clamp(-(1 << 31), (1 << 31) - 1)),
        ("sub", "sat") => wrap((a - b).clamp(-(1 << 31), (1 << 31) - 1)),
        ("add", _) => wrap(a + b),
        ("sub", _) => wrap(a - b),
        ("mul", "lo" | "wide") => wrap(a.wrapping_mul(b)),
        ("mul" | "mad", "hi") => {
            let high = if ty == Type::U64 {
                ((u128::from(s[0]) * u128::from(s[1])) >> 64) as i128
            } else {
                (a * b) >> width
            };
            wrap(high + if parts[0] == "mad" { v(2) } else { 0 })
        }
        ("mad", _) => wrap(a.wrapping_mul(b).wrapping_add(v(2))),
        ("div", _) => wrap(if b == 0 { -1 } else { a / b }),
        ("rem", _) => wrap(if b == 0 { a } else { a % b }),
        ("min", _) => wrap(a.min(b)),
        ("max", _) => wrap(a.max(b)),
        ("abs", _) => wrap(a.abs()),
        ("neg", _) => wrap(-a),
        ("sad", _) => wrap((a - b).abs() + v(2)),
        ("and", _) => wrap(i128::from(s[0] & s[1])),
        ("or", _) => wrap(i128::from(s[0] | s[1])),
        ("xor", _) => wrap(i128::from(s[0] ^ s[1])),
        ("not", _) => wrap(i128::from(all) - plain_of(dest, s[0])),
        ("cnot", _) => wrap(i128::from(s[0] == 0)),
        _ => bitwise(parts, form, s).map(|x| [x & all, 0]),
    }
}

fn plain_of(ty: Type, bits: u64) -> i128 {
    i128::from(bits & mask(ty))
}

fn bitwise(parts: &[&str], form: &Form, s: [u64; 4]) -> Option<u64> {
    let ty = form.sources[0];
    let width = 8 * ty.bytes() as u64;
    let bit = |v: u64, i: u64| if i < 64 { v >> i & 1 } else { 0 };
    let gather = |f: &dyn Fn(u64) -> u64, count: u64| (0..count).fold(0, |x, i| x | f(i) << i);
    Some(match parts[0] {
        "lop3" => gather(
            &|i| bit(s[3], bit(s[0], i) * 4 + bit(s[1], i) * 2 + bit(s[2], i)),
            32,
        ),
        "shl" => gather(&|i| if i >= s[1] { bit(s[0], i - s[1]) } else { 0 }, width),
        "shr" => {
            let top = if parts[1].starts_with('s') {
                bit(s[0], width - 1)
            } else {
                0
            };
            gather(
                &|i| {
                    if i + s[1] < width {
                        bit(s[0], i + s[1])
                    } else {
                        top
                    }
                },
                width,
            )
        }
        "shf" => {
            let by = if parts[2] == "clamp" {
                s[2].min(32)
            } else {
                s[2] % 32
            };
            let both = |i: u64| {
                if i < 32 {
                    bit(s[0], i)
                } else {
                    bit(s[1], i - 32)
                }
            };
            gather(
                &|i| {
                    if parts[1] == "l" {
                        both(i + 32 - by)
                    } else {
                        if i + by < 64 { both(i + by) } else { 0 }
                    }
                },
                32,
            )
        }
        "bfe" => {
            let (start, len) = (s[1], s[2]);
            let last = (start + len).saturating_sub(1).min(width - 1);
            let fill = if ty.is_signed() && len > 0 {
                bit(s[0], last)
            } else {
                0
            };
            gather(
                &|i| {
                    if i < len && i + start < width {
                        bit(s[0], i + start)
                    } else {
                        fill
                    }
                },
                width,
            )
        }
        "bfi" => {
            let (start, len) = (s[2], s[3]);
            gather(
                &|i| {
                    if i >= start && i - start < len {
                        bit(s[0], i - start)
                    } else {
                        bit(s[1], i)
                    }
                },
                width,
            )
        }
        "prmt" => {
            let bytes: Vec<u64> = (0..8)
                .map(|i| (if i < 4 { s[0] } else { s[1] }) >> (8 * (i % 4)) & 0xff)
                .collect();
            let pick = |i: u64| {
                let selector = s[2] >> (4 * i) & 15;
                let byte = bytes[selector as usize % 8];
                if selector < 8 {
                    byte
                } else {
                    0xff * (byte >> 7)
                }
            };
            (0..4).fold(0, |x, i| x | pick(i) << (8 * i))
        }
        "popc" => (0..width).map(|i| bit(s[0], i)).sum(),
        "clz" => (0..width).rev().take_while(|i| bit(s[0], *i) == 0).count() as u64,
        "brev" => gather(&|i| bit(s[0], width - 1 - i), width),
        "bfind" => {
            let sign = if ty.is_signed() {
                bit(s[0], width - 1)
            } else {
                0
            };
            match (0..width).rev().find(|i| bit(s[0], *i) != sign) {
                None => u64::MAX,
                Some(at) if parts[1] == "shiftamt" => width - 1 - at,
                Some(at) => at,
            }
        }
        "dp4a" | "dp2a" => {
            let (ta, tb) = (parts[parts.len() - 2], parts[parts.len() - 1]);
            let part = |ty: &str, v: u64, i: u64, bits: u64| {
                let v = v >> (bits * i) & ((1 << bits) - 1);
                let negative = ty.starts_with('s') && v >> (bits - 1) == 1;
                v as i64 - if negative { 1 << bits } else { 0 }
            };
            let first = if parts[1] == "hi" { 2 } else { 0 };
            let products = |i| match parts[0] {
                "dp4a" => part(ta, s[0], i, 8) * part(tb, s[1], i, 8),
                _ if i < 2 => part(ta, s[0], i, 16) * part(tb, s[1], first + i, 8),
                _ => 0,
            };
            ((0..4).map(products).sum::<i64>() + s[2] as i64) as u64
        }
        _ => return None,
    })
}

/// A subnormal of single precision as zero.
fn flushed(ty: Type, bits: u64) -> u64 {
    if ty == Type::F32 && bits & 0x7f80_0000 == 0 {
        bits & 1 << 31
    } else {
        bits
    }
}

fn float(parts: &[&str], ty: Type, s: [u64; 4]) -> Option<Expected> {
    let one = match ty {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        ty => ty,
    };
    if one != ty {
        let half = |shift: u32| match float(parts, one, s.map(|v| v >> shift & 0xffff)) {
            Some(Expected::Bits([bits, _])) => Some(bits),
            Some(Expected::About(v)) => Some(round(one, v, 0.0, Direction::Nearest)),
            None => None,
        };
        return Some(Expected::Bits([half(0)? | half(16)? << 16, 0]));
    }
    let ftz = parts.contains(&"ftz") && ty == Type::F32;
    let flush = |bits: u64| if ftz { flushed(ty, bits) } else { bits };
    let direction = parts
        .iter()
        .find_map(|p| Direction::of(p))
        .unwrap_or(Direction::Nearest);
    let bits = s.map(flush);
    let v = bits.map(|b| exact(ty, b));
    let exact_zero = |x: f64, a: f64, b: f64| {
        let signs_differ = a.is_sign_negative() != b.is_sign_negative();
        if x == 0.0 && signs_differ && direction == Direction::Down {
            -0.0
        } else {
            x
        }
    };
    let add = |a: f64, b: f64| {
        let (x, rest) = sum(a, b);
        round(ty, exact_zero(x, a, b), rest, direction)
    };
    let is_nan = v[0].is_nan() || v[1].is_nan();
    let result = match parts[0] {
        "add" => add(v[0], v[1]),
        "sub" => add(v[0], -v[1]),
        "mul" if ty == Type::F64 => (v[0] * v[1]).to_bits(),
        "mul" => round(ty, v[0] * v[1], 0.0, direction),
        // The host's own, checked against the correctly rounded one of the C library.
        "fma" | "mad" if ty == Type::F64 => v[0].mul_add(v[1], v[2]).to_bits(),
        "fma" | "mad" => add(v[0] * v[1], v[2]),
        "div" | "rcp" if parts[1] != "approx" && parts[1] != "full" => {
            let (a, b) = if parts[0] == "div" {
                (v[0], v[1])
            } else {
                (1.0, v[0])
            };
            let q = a / b;
            // The remainder's sign is on which side the exact quotient lies.
            let rest = (-q).mul_add(b, a) / b;
            let rest = if rest.is_finite() { rest } else { 0.0 };
            round(ty, q, rest, direction)
        }
        "sqrt" if parts[1] != "approx" => {
            let q = v[0].sqrt();
            let rest = (-q).mul_add(q, v[0]);
            round(ty, q, if rest.is_finite() { rest } else { 0.0 }, direction)
        }
        "abs" | "neg" if exact(ty, bits[0]).is_nan() && ty == Type::F32 => nan(ty),
        "abs" => bits[0] & mask(ty) >> 1,
        "neg" => bits[0] ^ ((mask(ty) >> 1) + 1),
        "copysign" => {
            let sign = (mask(ty) >> 1) + 1;
            bits[0] & sign | bits[1] & !sign & mask(ty)
        }
        "min" | "max" if is_nan => match (v[0].is_nan(), v[1].is_nan(), parts.contains(&"NaN")) {
            (true, true, _) | (_, _, true) => nan(ty),
            (true, false, _) => bits[1],
            _ => bits[0],
        },
        "min" | "max" => {
            let less = match v[0].partial_cmp(&v[1])? {
                std::cmp::Ordering::Equal => v[0].is_sign_negative(),
                other => other.is_lt(),
            };
            if less == (parts[0] == "min") {
                bits[0]
            } else {
                bits[1]
            }
        }
        _ => return approximate(parts, ty, v, ftz),
    };
    let result = flush(result);
    let value = exact(ty, result);
    let result = match () {
        () if parts.contains(&"sat") && (value.is_nan() || value <= 0.0) => 0,
        () if parts.contains(&"sat") && value > 1.0 => round(ty, 1.0, 0.0, Direction::Nearest),
        () if parts.contains(&"relu") && value <= 0.0 => 0,
        () => result,
    };
    Some(Expected::Bits([result, 0]))
}

fn approximate(parts: &[&str], ty: Type, v: [f64; 4], ftz: bool) -> Option<Expected> {
    let value = match parts[0] {
        "rcp" => v[0].recip(),
        "sqrt" => v[0].sqrt(),
        "rsqrt" => v[0].sqrt().recip(),
        "sin" => v[0].sin(),
        "cos" => v[0].cos(),
        "lg2" => v[0].ln() / std::f64::consts::LN_2,
        "ex2" => (v[0] * std::f64::consts::LN_2).exp(),
        "tanh" => v[0].tanh(),
        "div" => v[0] / v[1],
        _ => return None,
    };
    let bits = round(ty, value, 0.0, Direction::Nearest);
    let bits = if ftz { flushed(ty, bits) } else { bits };
    Some(Expected::About(exact(ty, bits)))
}

fn compare(parts: &[&str], dest: Type, ty: Type, s: [u64; 4]) -> Option<Expected> {
    let one = match ty {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        ty => ty,
    };
    let holds = |a: u64, b: u64| -> Option<bool> {
        let (a, b) = if parts.contains(&"ftz") {
            (flushed(ty, a), flushed(ty, b))
        } else {
            (a, b)
        };
        let ordering = if one.is_float() {
            exact(one, a).partial_cmp(&exact(one, b))
        } else {
            Some(signed(one, a).cmp(&signed(one, b)))
        };
        let name = parts[1];
        Some(match (name, ordering) {
            ("num", o) => o.is_some(),
            ("nan", o) => o.is_none(),
            (name, None) => name.len() == 3 && name.ends_with('u'),
            (name, Some(o)) => match &name[..2] {
                "eq" => o.is_eq(),
                "ne" => o.is_ne(),
                "lt" | "lo" => o.is_lt(),
                "le" | "ls" => o.is_le(),
                "gt" | "hi" => o.is_gt(),
                "ge" | "hs" => o.is_ge(),
                _ => return None,
            },
        })
    };
    if one != ty {
        let half =
            |shift: u32| holds(s[0] >> shift & 0xffff, s[1] >> shift & 0xffff).map(u64::from);
        return Some(Expected::Bits([half(0)?, half(16)?]));
    }
    let holds = holds(s[0], s[1])?;
    if parts[0] == "set" {
        let yes = if dest == Type::F32 {
            0x3f80_0000
        } else {
            0xffff_ffff
        };
        return Some(Expected::Bits([if holds { yes } else { 0 }, 0]));
    }
    let with = s[2] == 1;
    let join = |x: bool| match parts[2] {
        "and" => x && with,
        "or" => x || with,
        "xor" => x != with,
        _ => x,
    };
    Some(Expected::Bits([join(holds).into(), join(!holds).into()]))
}

fn convert(parts: &[&str], form: &Form, s: [u64; 4]) -> Option<Expected> {
    let (to, from) = (form.dests[0], form.sources[0]);
    let direction = parts
        .iter()
        .find_map(|p| Direction::of(p))
        .unwrap_or(Direction::Nearest);
    let (sat, relu, ftz) = (
        parts.contains(&"sat"),
        parts.contains(&"relu"),
        parts.contains(&"ftz"),
    );
    let bits = |v: u64| Some(Expected::Bits([v, 0]));
    if parts[1] == "rna" {
        let v = f32::from_bits(s[0] as u32);
        if !v.is_finite() {
            return bits(if v.is_nan() { nan(Type::F32) } else { s[0] });
        }
        // Half a step of 13 bits away from zero, and cut.
        return bits((s[0] & 1 << 31) | (((s[0] & 0x7fff_ffff) + 0x1000) / 0x2000 * 0x2000));
    }
    let half = |one: Type, v: u64| {
        let x = round(one, exact(Type::F32, v), 0.0, direction);
        if relu && exact(one, x) <= 0.0 { 0 } else { x }
    };
    match to {
        Type::F16x2 => return bits(half(Type::F16, s[0]) << 16 | half(Type::F16, s[1])),
        Type::Bf16x2 => return bits(half(Type::Bf16, s[0]) << 16 | half(Type::Bf16, s[1])),
        _ if relu => return bits(half(to, s[0])),
        _ => {}
    }
    let source = if ftz { flushed(from, s[0]) } else { s[0] };
    let width = 8 * to.bytes() as u32;
    let bounds = if to.is_signed() {
        (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
    } else {
        (0, (1i128 << width) - 1)
    };
    // What a register of 16 bits keeps.
    let pack = |x: i128| {
        x as u64
            & if to.bytes() == 1 {
                if to.is_signed() { 0xffff } else { 0xff }
            } else {
                mask(to)
            }
    };
    match (from.is_float(), to.is_float()) {
        (false, false) => {
            let x = signed(from, s[0]);
            let x = if sat {
                x.clamp(bounds.0, bounds.1)
            } else {
                signed(to, x as u64)
            };
            bits(pack(x))
        }
        (false, true) => {
            let x = signed(from, s[0]);
            let near = x as f64;
            let rest = (x - near as i128) as f64;
            bits(round(to, near, rest, direction))
        }
        (true, false) => {
            let x = exact(from, source);
            if x.is_nan() {
                let wide = from == Type::F64 || to.bytes() == 8;
                let top = if to.is_signed() {
                    bounds.0
                } else {
                    1 << (width - 1)
                };
                return bits(pack(if wide { top } else { 0 }));
            }
            let whole = whole(x, direction);
            bits(pack(if whole <= bounds.0 as f64 {
                bounds.0
            } else if whole >= bounds.1 as f64 {
                bounds.1
            } else {
                whole as i128
            }))
        }
        (true, true) => {
            let x = exact(from, source);
            let is_whole = parts
                .iter()
                .any(|p| p.len() == 3 && p.starts_with('r') && p.ends_with('i'));
            let x = if is_whole { whole(x, direction) } else { x };
            let x = if sat && (x.is_nan() || x <= 0.0) {
                0.0
            } else if sat && x > 1.0 {
                1.0
            } else {
                x
            };
            let result = round(
                to,
                x,
                0.0,
                if is_whole {
                    Direction::Nearest
                } else {
                    direction
                },
            );
            bits(if ftz { flushed(to, result) } else { result })
        }
    }
}

/// The whole number next to `x` in a direction.
fn whole(x: f64, direction: Direction) -> f64 {
    if x.is_infinite() || x.abs() >= 2f64.powi(53) {
        return x;
    }
    let low = x.floor();
    let result = match direction {
        Direction::Down => low,
        Direction::Up => {
            if x == low {
                low
            } else {
                low + 1.0
            }
        }
        Direction::Zero => {
            if x < 0.0 && x != low {
                low + 1.0
            } else {
                low
            }
        }
        Direction::Nearest => match (x - low).partial_cmp(&0.5) {
            Some(std::cmp::Ordering::Less) => low,
            Some(std::cmp::Ordering::Equal) if low % 2.0 == 0.0 => low,
            _ => low + 1.0,
        },
    };
    if result == 0.0 {
        0.0f64.copysign(x)
    } else {
        result
    }
}
