//! Matrix products and matrix loads, spread over the lanes by the tables of PTX.

use lazybatch_emulator::ptx::types::Type;

use super::floats::{Direction, exact, round};
use super::{Random, run};

const HEAD: &str = ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u64 to)\n{\n\
     .shared .align 16 .b8 room[512];\n.reg .b32 %r<40>; .reg .b64 %from, %to, %at;\n\
     ld.param.u64 %from, [from];\nld.param.u64 %to, [to];\nmov.u32 %r0, %tid.x;\n\
     mul.wide.u32 %at, %r0, 64;\nadd.u64 %from, %from, %at;\nmul.wide.u32 %at, %r0, 16;\nadd.u64 %to, %to, %at;\n";

/// A small value: sums of them are exact in every order.
fn small(ty: Type, random: &mut Random) -> u64 {
    round(
        ty,
        (random.word() % 17) as f64 / 4.0 - 2.0,
        0.0,
        Direction::Nearest,
    )
}

/// Row and column of value `i` of a lane, for `a`, `b` and the sums; `per` values a word.
fn place(which: char, lane: usize, i: usize, per: usize) -> (usize, usize) {
    let (group, within) = (lane >> 2, lane & 3);
    match which {
        'a' => {
            let word = i / per;
            (
                group + if word & 1 == 1 { 8 } else { 0 },
                within * per + i % per + if word >= 2 { 4 * per } else { 0 },
            )
        }
        'b' => (
            within * per + i % per + if i / per == 1 { 4 * per } else { 0 },
            group,
        ),
        _ => (group + if i < 2 { 0 } else { 8 }, within * 2 + (i & 1)),
    }
}

#[test]
fn products() {
    let mut random = Random::new(9);
    let forms = [
        ("m16n8k8", "f32", "f16", 8),
        ("m16n8k8", "f16", "f16", 8),
        ("m16n8k16", "f32", "f16", 16),
        ("m16n8k16", "f16", "f16", 16),
        ("m16n8k8", "f32", "bf16", 8),
        ("m16n8k16", "f32", "bf16", 16),
        ("m16n8k4", "f32", "tf32", 4),
        ("m16n8k8", "f32", "tf32", 8),
    ];
    for (shape, sum, ty, k) in forms {
        let element = if ty == "tf32" {
            Type::F32
        } else {
            Type::parse(ty).unwrap()
        };
        let sum_type = Type::parse(sum).unwrap();
        let per = 4 / element.bytes();
        let sums_per = 4 / sum_type.bytes();
        let words = [16 * k / 32 / per, 8 * k / 32 / per, 4 / sums_per];
        let (mut a, mut b, mut c) = ([[0.0; 16]; 16], [[0.0; 8]; 16], [[0.0; 8]; 16]);
        let mut input = vec![0u8; 32 * 64];
        for lane in 0..32 {
            let mut at = lane * 64;
            for (which, count, ty) in [
                ('a', words[0] * per, element),
                ('b', words[1] * per, element),
                ('c', 4, sum_type),
            ] {
                let per = 4 / ty.bytes();
                for i in 0..count {
                    let bits = small(ty, &mut random);
                    input[at..at + ty.bytes()].copy_from_slice(&bits.to_le_bytes()[..ty.bytes()]);
                    at += ty.bytes();
                    let (row, col) = place(which, lane, i, per);
                    match which {
                        'a' => a[row][col] = exact(ty, bits),
                        'b' => b[row][col] = exact(ty, bits),
                        _ => c[row][col] = exact(ty, bits),
                    }
                }
            }
        }
        let list = |first: usize, count: usize| {
            let names: Vec<String> = (first..first + count).map(|i| format!("%r{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let mut text = HEAD.to_owned();
        for i in 0..words.iter().sum() {
            text += &format!("ld.global.u32 %r{}, [%from+{}];\n", 1 + i, 4 * i);
        }
        text += &format!(
            "mma.sync.aligned.{shape}.row.col.{sum}.{ty}.{ty}.{sum} {}, {}, {}, {};\n",
            list(30, words[2]),
            list(1, words[0]),
            list(1 + words[0], words[1]),
            list(1 + words[0] + words[1], words[2])
        );
        for i in 0..words[2] {
            text += &format!("st.global.u32 [%to+{}], %r{};\n", 4 * i, 30 + i);
        }
        let output = run(&(text + "ret;\n}\n"), &input, 512, 1);
        for lane in 0..32 {
            for i in 0..4 {
                let (row, col) = place('c', lane, i, sums_per);
                let want = (0..k).map(|p| a[row][p] * b[p][col]).sum::<f64>() + c[row][col];
                let bytes = sum_type.bytes();
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(&output[lane * 16 + i * bytes..][..bytes]);
                let got = exact(sum_type, u64::from_le_bytes(word));
                assert_eq!(got, want, "{shape} {ty} {sum}: row {row}, column {col}");
            }
        }
    }
}

#[test]
fn matrix_loads() {
    let mut random = Random::new(10);
    // Lane l puts row l of 8 values into shared memory; matrix m is rows 8m to 8m+7.
    let input: Vec<u8> = (0..32 * 64).map(|_| random.word() as u8).collect();
    let value = |row: usize, col: usize| {
        u16::from_le_bytes([input[row * 64 + 2 * col], input[row * 64 + 2 * col + 1]])
    };
    for (count, trans, space) in [
        (1, "", ".shared"),
        (2, "", ".shared"),
        (4, "", ".shared"),
        (1, ".trans", ".shared"),
        (2, ".trans", ""),
        (4, ".trans", ""),
    ] {
        let names: Vec<String> = (10..10 + count).map(|i| format!("%r{i}")).collect();
        let convert = if space.is_empty() {
            "cvta.shared.u64 %at, %at;\n"
        } else {
            ""
        };
        let text = format!(
            "{HEAD}ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%from];\nmul.wide.u32 %at, %r0, 16;\nmov.u64 %from, room;\nadd.u64 %at, %at, %from;\n\
             st.shared.v4.u32 [%at], {{%r1, %r2, %r3, %r4}};\nbar.warp.sync -1;\n{convert}\
             mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0;\n\
             ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {{{}}}, [%at];\nst.global.v4.u32 [%to], {{%r10, %r11, %r12, %r13}};\nret;\n}}\n",
            names.join(", ")
        );
        let output = run(&text, &input, 512, 1);
        for lane in 0..32 {
            for m in 0..count {
                for half in 0..2 {
                    let (row, col) = (lane / 4, 2 * (lane % 4) + half);
                    let want = if trans.is_empty() {
                        value(8 * m + row, col)
                    } else {
                        value(8 * m + col, row)
                    };
                    let at = lane * 16 + 4 * m + 2 * half;
                    let got = u16::from_le_bytes([output[at], output[at + 1]]);
                    assert_eq!(got, want, "x{count}{trans}: matrix {m}, lane {lane}");
                }
            }
        }
    }
}

/// Copies of all sizes, one of which reads fewer bytes than it writes.
#[test]
fn asynchronous_copies() {
    let mut random = Random::new(11);
    let input: Vec<u8> = (0..32 * 64).map(|_| random.word() as u8).collect();
    for (mode, bytes, read) in [
        ("ca", 4, 4),
        ("ca", 8, 8),
        ("ca", 16, 16),
        ("cg", 16, 16),
        ("ca", 16, 6),
        ("cg", 16, 0),
    ] {
        let reads = if read == bytes {
            String::new()
        } else {
            format!(", {read}")
        };
        for wait in [
            "cp.async.wait_all;",
            "cp.async.commit_group;\ncp.async.wait_group 0;",
        ] {
            let text = format!(
                "{HEAD}mul.wide.u32 %at, %r0, 16;\nmov.u64 %to, room;\nadd.u64 %at, %at, %to;\n\
                 mov.u32 %r1, 0;\nst.shared.v4.u32 [%at], {{%r1, %r1, %r1, %r1}};\n\
                 cp.async.{mode}.shared.global [%at], [%from], {bytes}{reads};\n{wait}\n\
                 ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%at];\nld.param.u64 %to, [to];\nmul.wide.u32 %at, %r0, 16;\nadd.u64 %to, %to, %at;\n\
                 st.global.v4.u32 [%to], {{%r1, %r2, %r3, %r4}};\nret;\n}}\n"
            );
            let output = run(&text, &input, 512, 1);
            for (lane, out) in output.chunks(16).enumerate() {
                let mut want = [0; 16];
                want[..read].copy_from_slice(&input[lane * 64..][..read]);
                assert_eq!(out, want, "{mode} {bytes} bytes, {read} read");
            }
        }
    }
}

/// What only moves, orders or asks: vectors in registers, addresses of spaces, fences, counters.
#[test]
fn the_rest() {
    let text = format!(
        "{HEAD}.reg .b16 %h<4>; .reg .b64 %x<4>; .reg .pred %p<4>;
ld.global.u32 %r1, [%from];
mov.b32 {{%h0, %h1}}, %r1;
mov.b32 %r2, {{%h1, %h0}};
mov.b64 %x0, {{%r1, %r2}};
mov.b64 {{%r3, %r4}}, %x0;
add.u32 %r5, %r3, %r4;
st.global.u32 [%to], %r5;
mov.u64 %x1, room;
cvta.shared.u64 %x2, %x1;
isspacep.shared %p0, %x2; isspacep.global %p1, %x2; isspacep.global %p2, %to; isspacep.local %p3, %to;
selp.u32 %r6, 1, 0, %p0; selp.u32 %r7, 2, 0, %p1; selp.u32 %r8, 4, 0, %p2; selp.u32 %r9, 8, 0, %p3;
add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8; add.u32 %r6, %r6, %r9;
st.global.u32 [%to+4], %r6;
cvta.to.shared.u64 %x2, %x2;
sub.u64 %x2, %x2, %x1;
st.global.u64 [%to+8], %x2;
membar.cta; membar.gl; membar.sys; fence.acq_rel.gpu; fence.sc.cta; fence.acq_rel.sys;
mov.u32 %r20, %clock; mov.u64 %x3, %clock64; mov.u64 %x3, %globaltimer;
prefetch.global.L2 [%to]; nanosleep.u32 20;
barrier.sync 1, 32; bar.arrive 2, 64; barrier.cta.sync.aligned 0;
ret;
}}
"
    );
    let mut random = Random::new(12);
    let input: Vec<u8> = (0..32 * 64).map(|_| random.word() as u8).collect();
    let output = run(&text, &input, 512, 1);
    for (lane, out) in output.chunks(16).enumerate() {
        let word = u32::from_le_bytes(input[lane * 64..][..4].try_into().unwrap());
        let want = word.wrapping_add(word.rotate_left(16));
        let want: Vec<u8> = [want, 5, 0, 0]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(out, want, "lane {lane}");
    }
}
