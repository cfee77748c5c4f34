//! Loads, stores and atomics.

use lazybatch_emulator::ptx::decode::{atomic_forms, load_forms};
use lazybatch_emulator::ptx::program::AtomicOp;
use lazybatch_emulator::ptx::types::Type;

use super::floats::{Direction, exact, round, sum};
use super::{Random, mask, run, value};

const HEAD: &str = ".version 8.8\n.target sm_80\n.address_size 64\n";
const START: &str = ".reg .pred %p<4>; .reg .b32 %i<4>; .reg .b64 %from, %to, %at, %x<8>; .reg .b128 %q;\n\
     ld.param.u64 %from, [from];\nld.param.u64 %to, [to];\nmov.u32 %i0, %tid.x;\n\
     mul.wide.u32 %at, %i0, 16;\nadd.u64 %from, %from, %at;\nmul.wide.u32 %at, %i0, 32;\nadd.u64 %to, %to, %at;\n";

/// Each load of each type and width, and the store of the same type: from device memory through
/// the space of the form.
#[test]
fn loads_and_stores() {
    let mut random = Random::new(2);
    for form in load_forms() {
        let parts: Vec<&str> = form.split('.').collect();
        let ty = Type::parse(parts[parts.len() - 1]).unwrap();
        let lanes = if form.contains(".v4") {
            4
        } else if form.contains(".v2") {
            2
        } else {
            1
        };
        let registers: Vec<String> = (0..lanes).map(|i| format!("%x{i}")).collect();
        let list = if lanes == 1 {
            registers[0].clone()
        } else {
            format!("{{{}}}", registers.join(", "))
        };
        let bytes = ty.bytes() * lanes;
        let store = form.replacen("ld", "st", 1);
        let generic = form.replacen(".global", "", 1);
        // Through the space and back out of it, then as whole registers.
        let (variables, through) = match parts[1] {
            "shared" => (
                ".shared .align 16 .b8 room[512];",
                format!(
                    "mul.lo.u32 %i1, %i0, 16;\nmov.u32 %i2, room;\nadd.u32 %i1, %i1, %i2;\n{} {list}, [%from];\n{store} [%i1], {list};\n{form} {list}, [%i1];\n",
                    form.replacen(".shared", ".global", 1)
                ),
            ),
            "local" => (
                ".local .align 16 .b8 room[32];",
                format!(
                    "mov.u64 %at, room;\n{} {list}, [%from];\n{store} [%at+16], {list};\n{form} {list}, [%at+16];\n",
                    form.replacen(".local", ".global", 1)
                ),
            ),
            "const" => ("", format!("{form} {list}, [%from];\n")),
            "param" => ("", format!("{form} {list}, [from];\n")),
            "global" => (
                "",
                format!(
                    "{form} {list}, [%from];\n{store} [%to], {list};\n{generic} {list}, [%to];\n"
                ),
            ),
            _ => (
                "",
                format!("{form} {list}, [%from];\n{store} [%to], {list};\n{form} {list}, [%to];\n"),
            ),
        };
        let mut text = format!(
            "{HEAD}.visible .entry k(.param .u64 from, .param .u64 to)\n{{\n{variables}\n{START}{through}"
        );
        for (i, register) in registers.iter().enumerate() {
            text += &format!("st.global.u64 [%to+{}], {register};\n", 8 * i);
        }
        text += "ret;\n}\n";
        let input: Vec<u8> = (0..64).flat_map(|_| random.word().to_le_bytes()).collect();
        let output = run(&text, &input, 1024, 1);
        for lane in 0..32 {
            for i in 0..lanes {
                let got = u64::from_le_bytes(output[lane * 32 + 8 * i..][..8].try_into().unwrap());
                if parts[1] == "param" {
                    // The parameters are addresses: the first bytes of `from`.
                    continue;
                }
                let mut raw = [0; 8];
                raw[..ty.bytes()]
                    .copy_from_slice(&input[lane * 16 + ty.bytes() * i..][..ty.bytes()]);
                let raw = u64::from_le_bytes(raw);
                let sign = ty.is_signed() && raw >> (8 * ty.bytes() - 1) == 1;
                let want = if sign { raw | !mask(ty) } else { raw };
                assert_eq!(
                    got, want,
                    "{form}, lane {lane}, element {i} of {bytes} bytes"
                );
            }
        }
    }
}

/// What is left in memory, by the text of PTX.
fn after(op: AtomicOp, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    let width = 8 * ty.bytes() as u32;
    let signed = |v: u64| (v << (64 - width)) as i64 >> (64 - width);
    let less = if ty.is_signed() {
        signed(b) < signed(old)
    } else {
        b < old
    };
    match op {
        AtomicOp::Add => match ty {
            Type::F16x2 | Type::Bf16x2 => {
                let one = if ty == Type::F16x2 {
                    Type::F16
                } else {
                    Type::Bf16
                };
                let half =
                    |shift: u32| after(op, one, old >> shift & 0xffff, b >> shift & 0xffff, 0);
                half(0) | half(16) << 16
            }
            ty if ty.is_float() => {
                let (x, rest) = sum(exact(ty, old), exact(ty, b));
                round(ty, x, rest, Direction::Nearest)
            }
            ty => old.wrapping_add(b) & mask(ty),
        },
        AtomicOp::Min => {
            if less {
                b
            } else {
                old
            }
        }
        AtomicOp::Max => {
            if less {
                old
            } else {
                b
            }
        }
        AtomicOp::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Exch => b,
        AtomicOp::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
    }
}

/// Each atomic on its own word per lane, in device, shared and generic space, and as a `red`.
#[test]
fn atomics() {
    let mut random = Random::new(3);
    for (form, op, ty) in atomic_forms() {
        for (space, is_red) in [
            ("", false),
            (".global", false),
            (".shared", false),
            (".global", true),
        ] {
            if is_red && matches!(op, AtomicOp::Exch | AtomicOp::Cas) {
                continue;
            }
            let unsigned = match ty.bytes() {
                2 => "u16",
                4 => "u32",
                _ => "u64",
            };
            let other = if op == AtomicOp::Cas { ", %x2" } else { "" };
            let instruction = if is_red {
                format!("red{space}.{form} [%at], %x1{other}")
            } else {
                format!("atom{space}.{form} %x3, [%at], %x1{other}")
            };
            let at = if space == ".shared" {
                format!(
                    "mul.wide.u32 %at, %i0, 8;\nmov.u64 %x4, room;\nadd.u64 %at, %at, %x4;\nst.shared.{unsigned} [%at], %x0;\n"
                )
            } else {
                format!("add.u64 %at, %to, 16;\nst.global.{unsigned} [%at], %x0;\n")
            };
            let text = format!(
                "{HEAD}.visible .entry k(.param .u64 from, .param .u64 to)\n{{\n.shared .align 8 .b8 room[256];\n{START}\
                 mul.wide.u32 %at, %i0, 8;\nadd.u64 %from, %from, %at;\n\
                 ld.global.u64 %x0, [%from];\nld.global.u64 %x1, [%from+8];\nld.global.u64 %x2, [%from+16];\nmov.u64 %x3, 0;\n\
                 {at}{instruction};\nld{space}.{unsigned} %x4, [%at];\nst.global.u64 [%to], %x4;\nst.global.u64 [%to+8], %x3;\nret;\n}}\n"
            );
            let cases: Vec<[u64; 3]> = (0..32)
                .map(|_| {
                    let old = value(ty, &mut random);
                    let b = if random.word().is_multiple_of(3) {
                        old
                    } else {
                        value(ty, &mut random)
                    };
                    [old, b, value(ty, &mut random)]
                })
                .collect();
            let input: Vec<u8> = cases
                .iter()
                .flatten()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            let output = run(&text, &input, 1024, 1);
            for ([old, b, c], out) in cases.iter().zip(output.chunks(32)) {
                let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
                let want = after(op, ty, *old, *b, *c);
                let both_nan =
                    ty == Type::F64 && exact(ty, want).is_nan() && exact(ty, word(0)).is_nan();
                assert!(
                    both_nan || word(0) == want,
                    "{space}.{form} of {old:x}, {b:x}, {c:x}: expected {want:x}, got {:x}",
                    word(0)
                );
                assert_eq!(
                    word(8),
                    if is_red { 0 } else { *old },
                    "{form}: the old value"
                );
            }
        }
    }
}

/// Hints and orders change nothing that one thread sees.
#[test]
fn hints_and_orders() {
    let forms = [
        ("ld.global.nc.u64", "st.global.cg.u64"),
        (
            "ld.global.nc.L1::no_allocate.L2::128B.u64",
            "st.global.L1::no_allocate.u64",
        ),
        ("ld.volatile.global.u64", "st.volatile.global.u64"),
        ("ld.relaxed.gpu.global.u64", "st.relaxed.sys.global.u64"),
        ("ld.acquire.cta.global.u64", "st.release.gpu.global.u64"),
        ("ld.weak.global.ca.u64", "st.weak.global.wb.u64"),
        ("ld.global.cv.u64", "st.global.wt.u64"),
        ("ldu.global.u64", "st.u64"),
    ];
    let mut random = Random::new(13);
    let input: Vec<u8> = (0..64).flat_map(|_| random.word().to_le_bytes()).collect();
    for (load, store) in forms {
        for atomic in [
            "atom.relaxed.gpu.global.add.u64",
            "atom.acq_rel.sys.global.add.u64",
            "atom.global.release.cta.add.u64",
        ] {
            let text = format!(
                "{HEAD}.visible .entry k(.param .u64 from, .param .u64 to)\n{{\n{START}\
                 {load} %x0, [%from];\n{store} [%to], %x0;\n{atomic} %x1, [%to], 1;\n{load} %x2, [%to];\n\
                 st.global.v2.u64 [%to+16], {{%x1, %x2}};\nret;\n}}\n"
            );
            let output = run(&text, &input, 1024, 1);
            for (lane, out) in output.chunks(32).enumerate() {
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                let value = word(&input[lane * 16..][..8]);
                assert_eq!(word(&out[16..24]), value, "{load}, {store}");
                assert_eq!(word(&out[24..]), value.wrapping_add(1), "{atomic}");
            }
        }
    }
}
