//! Random small kernels, from a grammar, compared with the host: straight code, branches, loops,
//! shared memory behind barriers, and shuffles.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;

use lazybatch_emulator::exec::{Launch, Memory, Options, launch};
use lazybatch_emulator::module::Module;

/// Kernels that are made and compared.
const CASES: u64 = 2000;
/// Threads of a block: two warps, one of them not full.
const THREADS: usize = 48;
/// Registers that the grammar uses.
const REGISTERS: usize = 6;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n) as usize
    }
}

/// A statement over 32-bit registers.
enum Statement {
    /// `r[d] = r[a] op r[b]`, or with a number for `r[b]`.
    Binary(usize, usize, usize, Option<u32>, usize),
    /// Single precision, on whole numbers of 8 bits, so that every order is exact.
    Float(usize, usize, usize, usize),
    /// If the low bits of `r[a]` are below a number.
    If(usize, u32, Vec<Statement>, Vec<Statement>),
    /// As often as the low bits of `r[a]` say.
    Loop(usize, Vec<Statement>),
    /// Every thread stores `r[a]`, then reads what thread `(tid + by) % THREADS` stored.
    Exchange(usize, usize, u32),
    /// `r[d]` from the lane that differs in the bits `by`; only in the first, full warp.
    Shuffle(usize, usize, u32),
}

const OPS: [&str; 10] = [
    "add.u32",
    "sub.u32",
    "mul.lo.u32",
    "and.b32",
    "or.b32",
    "xor.b32",
    "min.s32",
    "max.u32",
    "shl.b32",
    "mul.hi.u32",
];
const FLOAT_OPS: [&str; 3] = ["add.f32", "mul.f32", "max.f32"];

/// A list of statements; those for all threads of a block only where all come.
fn statements(random: &mut Random, depth: usize, is_uniform: bool) -> Vec<Statement> {
    let count = 1 + random.below(4);
    let mut out = Vec::new();
    for _ in 0..count {
        let [d, a, b] = [0; 3].map(|_: u8| random.below(REGISTERS as u64));
        out.push(match random.below(if depth == 0 { 5 } else { 8 }) {
            0..=2 => {
                let number = (random.below(2) == 0).then(|| random.below(1 << 20) as u32);
                Statement::Binary(d, a, b, number, random.below(OPS.len() as u64))
            }
            3 => Statement::Float(d, a, b, random.below(FLOAT_OPS.len() as u64)),
            4 if is_uniform && random.below(2) == 0 => {
                Statement::Exchange(d, a, random.below(THREADS as u64) as u32)
            }
            4 if is_uniform => Statement::Shuffle(d, a, random.below(32) as u32),
            5 | 6 => {
                let then = statements(random, depth - 1, false);
                let other = statements(random, depth - 1, false);
                Statement::If(a, random.below(8) as u32, then, other)
            }
            7 => Statement::Loop(a, statements(random, depth - 1, false)),
            _ => Statement::Binary(d, a, b, None, 0),
        });
    }
    out
}

/// The statements as PTX; `next` numbers labels and counters.
fn emit(list: &[Statement], text: &mut String, next: &mut usize) {
    for statement in list {
        *next += 1;
        let n = *next;
        match statement {
            Statement::Binary(d, a, b, number, op) => {
                let b = number.map_or(format!("%r{b}"), |number| number.to_string());
                writeln!(text, "{} %r{d}, %r{a}, {b};", OPS[*op])
            }
            Statement::Float(d, a, b, op) => writeln!(
                text,
                "and.b32 %t0, %r{a}, 255; and.b32 %t1, %r{b}, 255; cvt.rn.f32.u32 %f0, %t0; cvt.rn.f32.u32 %f1, %t1;\n\
                 {} %f0, %f0, %f1; cvt.rzi.u32.f32 %r{d}, %f0;",
                FLOAT_OPS[*op]
            ),
            Statement::If(a, bound, then, other) => {
                writeln!(text, "and.b32 %t0, %r{a}, 7; setp.ge.u32 %p0, %t0, {bound}; @%p0 bra $E{n};").unwrap();
                emit(then, text, next);
                writeln!(text, "bra.uni $M{n};\n$E{n}:").unwrap();
                emit(other, text, next);
                writeln!(text, "$M{n}:")
            }
            Statement::Loop(a, body) => {
                writeln!(text, "{{ .reg .u32 count; and.b32 count, %r{a}, 3;\n$L{n}: setp.eq.u32 %p0, count, 0; @%p0 bra $D{n};").unwrap();
                emit(body, text, next);
                writeln!(text, "sub.u32 count, count, 1; bra.uni $L{n};\n$D{n}: }}")
            }
            Statement::Exchange(d, a, by) => writeln!(
                text,
                "shl.b32 %t0, %tid0, 2; mov.u32 %t1, room; add.u32 %t0, %t0, %t1; bar.sync 0; st.shared.u32 [%t0], %r{a}; bar.sync 0;\n\
                 add.u32 %t0, %tid0, {by}; rem.u32 %t0, %t0, {THREADS}; shl.b32 %t0, %t0, 2; add.u32 %t0, %t0, %t1; ld.shared.u32 %r{d}, [%t0];"
            ),
            Statement::Shuffle(d, a, by) => writeln!(
                text,
                "setp.lt.u32 %p0, %tid0, 32; @!%p0 bra $S{n}; shfl.sync.bfly.b32 %r{d}, %r{a}, {by}, 31, -1;\n$S{n}:"
            ),
        }
        .unwrap();
    }
}

type State = Vec<[u32; REGISTERS]>;

fn binary(op: usize, a: u32, b: u32) -> u32 {
    match op {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        3 => a & b,
        4 => a | b,
        5 => a ^ b,
        6 => (a as i32).min(b as i32) as u32,
        7 => a.max(b),
        8 => {
            if b < 32 {
                a << b
            } else {
                0
            }
        }
        _ => ((u64::from(a) * u64::from(b)) >> 32) as u32,
    }
}

/// The statements for the threads that are `on`, statement by statement.
fn interpret(list: &[Statement], state: &mut State, on: &[bool]) {
    let threads = || (0..THREADS).filter(|t| on[*t]);
    for statement in list {
        match statement {
            Statement::Binary(d, a, b, number, op) => {
                for t in threads() {
                    state[t][*d] = binary(*op, state[t][*a], number.unwrap_or(state[t][*b]));
                }
            }
            Statement::Float(d, a, b, op) => {
                for t in threads() {
                    let (x, y) = (state[t][*a] & 255, state[t][*b] & 255);
                    state[t][*d] = [x + y, x * y, x.max(y)][*op];
                }
            }
            Statement::If(a, bound, then, other) => {
                let holds: Vec<bool> = state.iter().map(|r| r[*a] & 7 < *bound).collect();
                let both = |wanted: bool| {
                    (0..THREADS)
                        .map(|t| on[t] && holds[t] == wanted)
                        .collect::<Vec<_>>()
                };
                interpret(then, state, &both(true));
                interpret(other, state, &both(false));
            }
            Statement::Loop(a, body) => {
                let counts: Vec<u32> = state.iter().map(|r| r[*a] & 3).collect();
                for i in 0..3 {
                    let on: Vec<bool> = (0..THREADS).map(|t| on[t] && i < counts[t]).collect();
                    interpret(body, state, &on);
                }
            }
            Statement::Exchange(d, a, by) => {
                let old: Vec<u32> = state.iter().map(|r| r[*a]).collect();
                for t in threads() {
                    state[t][*d] = old[(t + *by as usize) % THREADS];
                }
            }
            Statement::Shuffle(d, a, by) => {
                let old: Vec<u32> = state.iter().map(|r| r[*a]).collect();
                for t in threads().filter(|t| *t < 32) {
                    state[t][*d] = old[t ^ *by as usize];
                }
            }
        }
    }
}

fn kernel(list: &[Statement]) -> String {
    let mut text = format!(
        ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 data)\n{{\n.shared .align 4 .b8 room[{}];\n\
         .reg .pred %p<2>; .reg .b32 %r<{REGISTERS}>, %t<2>, %tid0; .reg .f32 %f<2>; .reg .b64 %data, %at;\n\
         ld.param.u64 %data, [data]; mov.u32 %tid0, %tid.x; mul.wide.u32 %at, %tid0, {}; add.u64 %data, %data, %at;\n",
        4 * THREADS,
        4 * REGISTERS
    );
    for i in 0..REGISTERS {
        writeln!(text, "ld.global.u32 %r{i}, [%data+{}];", 4 * i).unwrap();
    }
    emit(list, &mut text, &mut 0);
    for i in 0..REGISTERS {
        writeln!(text, "st.global.u32 [%data+{}], %r{i};", 4 * i).unwrap();
    }
    text + "ret;\n}\n"
}

#[test]
fn random_kernels_do_what_the_host_does() {
    let mut num_words = 0;
    for case in 0..CASES {
        let mut random = Random(case);
        random.below(2);
        let list: Vec<Statement> = (0..3)
            .flat_map(|_| statements(&mut random, 3, true))
            .collect();
        let mut state: State = (0..THREADS)
            .map(|_| [0; REGISTERS].map(|_: u32| random.below(1 << 31) as u32))
            .collect();
        let text = kernel(&list);

        let mut memory = Memory::new();
        let module =
            Module::load(&text, &mut memory).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        let bytes: Vec<u8> = state
            .iter()
            .flatten()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let at = memory.alloc(bytes.len());
        memory.write(at, &bytes).unwrap();
        let shape = Launch {
            grid: [1, 1, 1],
            block: [THREADS as u32, 1, 1],
            dynamic_shared: 0,
            max_dynamic_shared: 0,
            params: at.to_le_bytes().to_vec(),
        };
        let options = Options {
            seed: case,
            ..Options::default()
        };
        let run = launch(
            &module,
            module.kernel("k").unwrap(),
            &mut memory,
            &shape,
            0,
            options,
        );
        run.unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));

        interpret(&list, &mut state, &[true; THREADS]);
        let want: Vec<u8> = state
            .iter()
            .flatten()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert!(
            memory.read(at, bytes.len()).unwrap() == want,
            "case {case}:\n{text}"
        );
        num_words += want.len() / 4;
    }
    assert_eq!(num_words, CASES as usize * THREADS * REGISTERS);
}
