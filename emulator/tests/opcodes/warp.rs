//! Shuffles, votes, matches, reductions, barriers that reduce, and matrix instructions.

use super::{Random, run};

const HEAD: &str = ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u64 to)\n{\n\
     .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %from, %to, %at, %x<4>;\n\
     ld.param.u64 %from, [from];\nld.param.u64 %to, [to];\nmov.u32 %r0, %tid.x;\n\
     mul.wide.u32 %at, %r0, 16;\nadd.u64 %from, %from, %at;\nadd.u64 %to, %to, %at;\n\
     ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%from];\nsetp.ne.u32 %p1, %r4, 0;\nmov.u32 %r10, 0;\nmov.u32 %r11, 0;\n";
const TAIL: &str = "st.global.v2.u32 [%to], {%r10, %r11};\nret;\n}\n";

/// Runs code on four words a lane and answers two.
fn words(code: &str, input: &[[u32; 4]]) -> Vec<[u32; 2]> {
    let bytes: Vec<u8> = input
        .iter()
        .flatten()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let output = run(&format!("{HEAD}{code}\n{TAIL}"), &bytes, 512, 1);
    let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
    output
        .chunks(16)
        .map(|o| [word(&o[..4]), word(&o[4..8])])
        .collect()
}

fn inputs(random: &mut Random, any: u32) -> Vec<[u32; 4]> {
    (0..32)
        .map(|_| [0; 4].map(|_: u32| random.word() as u32 % any))
        .collect()
}

#[test]
fn shuffles() {
    let mut random = Random::new(4);
    for mode in ["up", "down", "bfly", "idx"] {
        for width in [32i64, 16, 8, 4, 1] {
            let clamp = (32 - width) << 8 | if mode == "up" { 0 } else { 31 };
            let input = inputs(&mut random, 32);
            let code = format!(
                "shfl.sync.{mode}.b32 %r10|%p2, %r1, %r2, {clamp}, -1;\nselp.u32 %r11, 1, 0, %p2;"
            );
            // One amount for all lanes, as up, down and bfly are used, and one each.
            let got = words(&code, &input);
            for lane in 0..32i64 {
                let by = i64::from(input[lane as usize][1]);
                let start = lane / width * width;
                let from = match mode {
                    "up" => lane - by,
                    "down" => lane + by,
                    "bfly" => lane ^ by,
                    _ => start + by % width,
                };
                // Lanes of lower segments may be read by bfly, as in CUDA.
                let is_in = if mode == "up" {
                    from >= start
                } else {
                    from < start + width
                };
                let want = if is_in { from } else { lane };
                let want = [input[want as usize][0], u32::from(is_in)];
                assert_eq!(
                    got[lane as usize], want,
                    "{mode} {width} lane {lane} by {by}"
                );
            }
        }
    }
}

#[test]
fn votes_and_matches() {
    let mut random = Random::new(5);
    for round in 0..20 {
        let mut input = inputs(&mut random, 3);
        if round % 4 == 0 {
            input
                .iter_mut()
                .for_each(|words| *words = [7, 0, 0, u32::from(round % 8 == 0)]);
        }
        let ayes = (0..32).fold(0, |m, lane| m | u32::from(input[lane][3] != 0) << lane);
        let all = |code: &str, want: u32| {
            for [got, _] in words(code, &input) {
                assert_eq!(got, want, "{code}");
            }
        };
        all("vote.sync.ballot.b32 %r10, %p1, -1;", ayes);
        all("vote.sync.ballot.b32 %r10, !%p1, -1;", !ayes);
        all(
            "vote.sync.all.pred %p2, %p1, -1;\nselp.u32 %r10, 1, 0, %p2;",
            u32::from(ayes == u32::MAX),
        );
        all(
            "vote.sync.any.pred %p2, %p1, -1;\nselp.u32 %r10, 1, 0, %p2;",
            u32::from(ayes != 0),
        );
        all(
            "vote.sync.uni.pred %p2, %p1, -1;\nselp.u32 %r10, 1, 0, %p2;",
            u32::from(ayes == 0 || ayes == u32::MAX),
        );
        all("activemask.b32 %r10;", u32::MAX);
        let pred = "selp.u32 %r10, 1, 0, %p2;";
        all(
            &format!("bar.red.and.pred %p2, 0, %p1;\n{pred}"),
            u32::from(ayes == u32::MAX),
        );
        all(
            &format!("bar.red.or.pred %p2, 0, %p1;\n{pred}"),
            u32::from(ayes != 0),
        );
        all("bar.red.popc.u32 %r10, 0, %p1;", ayes.count_ones());

        let same = |lane: usize| {
            (0..32)
                .filter(|l| input[*l][0] == input[lane][0])
                .fold(0, |m, l| m | 1u32 << l)
        };
        let wide = "cvt.u64.u32 %x0, %r1;\nshl.b64 %x0, %x0, 32;\n";
        for code in [
            "match.any.sync.b32 %r10, %r1, -1;".to_owned(),
            format!("{wide}match.any.sync.b64 %r10, %x0, -1;"),
        ] {
            for (lane, got) in words(&code, &input).iter().enumerate() {
                assert_eq!(got[0], same(lane), "{code}");
            }
        }
        let agree = same(0) == u32::MAX;
        for code in [
            "match.all.sync.b32 %r10|%p2, %r1, -1;".to_owned(),
            format!("{wide}match.all.sync.b64 %r10|%p2, %x0, -1;"),
        ] {
            let code = format!("{code}\nselp.u32 %r11, 1, 0, %p2;");
            for got in words(&code, &input) {
                assert_eq!(got, if agree { [u32::MAX, 1] } else { [0, 0] }, "{code}");
            }
        }
    }
}

#[test]
fn reductions() {
    let mut random = Random::new(6);
    let input = inputs(&mut random, u32::MAX);
    let values = || input.iter().map(|words| words[0]);
    let ops: [(&str, u32); 9] = [
        ("add.u32", values().map(u64::from).sum::<u64>() as u32),
        ("add.s32", values().map(u64::from).sum::<u64>() as u32),
        ("min.u32", values().min().unwrap()),
        ("max.u32", values().max().unwrap()),
        ("min.s32", values().map(|v| v as i32).min().unwrap() as u32),
        ("max.s32", values().map(|v| v as i32).max().unwrap() as u32),
        (
            "and.b32",
            (0..32)
                .filter(|b| values().all(|v| v >> b & 1 == 1))
                .fold(0, |m, b| m | 1 << b),
        ),
        (
            "or.b32",
            (0..32)
                .filter(|b| values().any(|v| v >> b & 1 == 1))
                .fold(0, |m, b| m | 1 << b),
        ),
        (
            "xor.b32",
            (0..32)
                .filter(|b| values().filter(|v| v >> b & 1 == 1).count() % 2 == 1)
                .fold(0, |m, b| m | 1 << b),
        ),
    ];
    for (op, want) in ops {
        for [got, _] in words(&format!("redux.sync.{op} %r10, %r1, -1;"), &input) {
            assert_eq!(got, want, "{op}");
        }
    }
}

/// Lanes that part at a branch meet behind it; those of a half-warp mask do not wait for others.
#[test]
fn divergence() {
    let mut random = Random::new(7);
    let input = inputs(&mut random, 4);
    let code = "
setp.eq.u32 %p2, %r1, 0; @%p2 bra $A;
setp.eq.u32 %p2, %r1, 1; @%p2 bra $B;
mov.u32 %r10, 30; bra.uni $M;
$A: mov.u32 %r10, 10; bra.uni $M;
$B: mov.u32 %r10, 20;
$M: vote.sync.ballot.b32 %r11, %p2, -1;
setp.lt.u32 %p3, %r0, 16; @%p3 bra $C;
shfl.sync.idx.b32 %r11, %r10, 16, 31, 0xffff0000; bra.uni $E;
$C: shfl.sync.idx.b32 %r11, %r10, 0, 31, 0x0000ffff;
$E: bar.warp.sync -1;
brx.idx %r1, $T;
$T: .branchtargets $T0, $T1, $T0, $T1;
$T0: add.u32 %r10, %r10, 1;
$T1: add.u32 %r10, %r10, 1;";
    let own = |lane: usize| match input[lane][0] {
        0 => 10,
        1 => 20,
        _ => 30,
    };
    for (lane, got) in words(code, &input).iter().enumerate() {
        let steps = if input[lane][0].is_multiple_of(2) {
            2
        } else {
            1
        };
        assert_eq!(
            *got,
            [own(lane) + steps, own(lane / 16 * 16)],
            "lane {lane}"
        );
    }
}

/// Loops of different lengths, and the lanes that a lane waits for in a loop without end.
#[test]
fn loops_of_lanes() {
    let mut random = Random::new(8);
    let input = inputs(&mut random, 50);
    let code = "mov.u32 %r5, %r1;\n$L: setp.eq.u32 %p2, %r5, 0; @%p2 bra $D; sub.u32 %r5, %r5, 1; add.u32 %r10, %r10, 3; bra.uni $L;\n$D: mov.u32 %r11, %laneid;";
    for (lane, got) in words(code, &input).iter().enumerate() {
        assert_eq!(*got, [input[lane][0] * 3, lane as u32]);
    }
}
