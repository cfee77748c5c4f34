//! Every form of every instruction that loads, against a computation on the host that shares no
//! code with it: on edge values and on random ones.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod floats;
mod host;
mod matrix;
mod memory;
mod warp;

use lazybatch_emulator::exec::{Launch, Memory, Options, launch};
use lazybatch_emulator::module::Module;
use lazybatch_emulator::ptx::forms::{self, Form};
use lazybatch_emulator::ptx::types::Type;

/// Blocks of 32 lanes per form.
const BLOCKS: usize = 12;
const VALUES: usize = BLOCKS * 32;

/// Random numbers that repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Bits of a type.
pub fn mask(ty: Type) -> u64 {
    if ty == Type::Pred {
        1
    } else {
        u64::MAX >> (64 - 8 * ty.bytes())
    }
}

/// A value of a type: an edge, a small one, or any.
fn value(ty: Type, random: &mut Random) -> u64 {
    let pick = random.word();
    let half = |edges: [u64; 12], any: u64, one: u64| match pick % 4 {
        0 => edges[(pick >> 8) as usize % 12],
        // Around one, where results are neither tiny nor infinite.
        1 | 2 => one.wrapping_add((any & 0x3ff) << 2) ^ (pick >> 20 & 1) << 15,
        _ => any & 0xffff,
    };
    let any = random.word();
    match ty {
        Type::F16 => half(
            [
                0, 0x8000, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0xbc00, 0x8001,
            ],
            any,
            0x3800,
        ),
        Type::Bf16 => half(
            [
                0, 0x8000, 1, 0x7f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0xbf80, 0x8001,
            ],
            any,
            0x3c00,
        ),
        Type::F16x2 => value(Type::F16, random) | value(Type::F16, random) << 16,
        Type::Bf16x2 => value(Type::Bf16, random) | value(Type::Bf16, random) << 16,
        Type::F32 => {
            let edges = [
                0,
                1 << 31,
                1,
                0x7f_ffff,
                0x80_0000,
                0x7f7f_ffff,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_0000,
                0x3f80_0000,
                0x4f00_0000,
                0xcf00_0000,
            ];
            match pick % 4 {
                0 => edges[(pick >> 8) as usize % 12],
                1 | 2 => (0x3c00_0000 + (any & 0x7ff_ffff)) | ((pick >> 20 & 1) << 31),
                _ => any & 0xffff_ffff,
            }
        }
        Type::F64 => {
            let edges = [
                0.0,
                -0.0,
                1.0,
                f64::MIN_POSITIVE,
                f64::MAX,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                5e-324,
                -1.0,
                9.3e18,
                4e9,
            ];
            match pick % 4 {
                0 => edges[(pick >> 8) as usize % 12].to_bits(),
                1 | 2 => (0x3f80_0000_0000_0000 + (any & 0xff_ffff_ffff_ffff)) | (pick >> 20 << 63),
                _ => any,
            }
        }
        _ => {
            let all = mask(ty);
            let edges = [0, 1, 2, all, all >> 1, (all >> 1) + 1, all - 1, 31];
            match pick % 3 {
                0 => edges[(pick >> 8) as usize % 8] & all,
                1 => any & 0xff & all,
                _ => any & all,
            }
        }
    }
}

/// Letters of a register class, and the type that loads and stores it.
fn register(ty: Type) -> (&'static str, &'static str) {
    match ty.bytes() {
        _ if ty == Type::Pred => ("p", "u32"),
        1 | 2 => ("h", "u16"),
        4 => ("r", "u32"),
        _ => ("d", "u64"),
    }
}

/// Whether a form takes the carry as its last source, and gives it as its second result.
fn carries(form: &Form) -> (bool, bool) {
    let base = form.name.split('.').next().unwrap();
    (
        ["addc", "subc", "madc"].contains(&base),
        form.name.contains(".cc"),
    )
}

/// A kernel that loads the sources, runs the form and stores the results.
fn kernel(form: &Form) -> String {
    let (takes_carry, gives_carry) = carries(form);
    let mut text = String::from(
        ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u64 to)\n{\n\
         .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<12>; .reg .b64 %d<8>; .reg .b64 %from, %to, %at;\n\
         ld.param.u64 %from, [from];\nld.param.u64 %to, [to];\n\
         mov.u32 %r8, %ctaid.x;\nmov.u32 %r9, %tid.x;\nmad.lo.u32 %r8, %r8, 32, %r9;\n\
         mul.wide.u32 %at, %r8, 32;\nadd.u64 %from, %from, %at;\nmul.wide.u32 %at, %r8, 16;\nadd.u64 %to, %to, %at;\n",
    );
    let mut names = Vec::new();
    for (i, ty) in form.sources.iter().enumerate() {
        let (class, memory) = register(*ty);
        if takes_carry && i + 1 == form.sources.len() {
            text += &format!("ld.global.u32 %r10, [%from+{}];\n", 8 * i);
            // The carry of 1 + ffffffff, or of 0 + ffffffff.
            text += "and.b32 %r10, %r10, 1;\nadd.cc.u32 %r11, %r10, -1;\n";
        } else if *ty == Type::Pred {
            text += &format!(
                "ld.global.u32 %r{i}, [%from+{}];\nsetp.ne.u32 %p{i}, %r{i}, 0;\n",
                8 * i
            );
            names.push(format!("%p{i}"));
        } else {
            text += &format!("ld.global.{memory} %{class}{i}, [%from+{}];\n", 8 * i);
            names.push(format!("%{class}{i}"));
        }
    }
    let (class, memory) = register(form.dests[0]);
    let mut results = format!("%{class}5");
    let has_pair = form.dests.len() == 2 && !gives_carry;
    if has_pair {
        results += "|%p6";
    }
    text += &format!("{} {results}, {};\n", form.name, names.join(", "));
    if gives_carry {
        text += "addc.u32 %r6, 0, 0;\nst.global.u32 [%to+8], %r6;\n";
    }
    if form.dests[0] == Type::Pred {
        text += "selp.u32 %r5, 1, 0, %p5;\n";
    }
    if has_pair {
        text += "selp.u32 %r6, 1, 0, %p6;\nst.global.u32 [%to+8], %r6;\n";
    }
    let class = if form.dests[0] == Type::Pred {
        "r"
    } else {
        class
    };
    text + &format!("st.global.{memory} [%to], %{class}5;\nret;\n}}\n")
}

/// Runs one warp a block of a kernel over a buffer in and one out.
pub fn run(text: &str, input: &[u8], output_bytes: usize, blocks: usize) -> Vec<u8> {
    let mut memory = Memory::new();
    let module = Module::load(text, &mut memory).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let (from, to) = (memory.alloc(input.len()), memory.alloc(output_bytes));
    memory.write(from, input).unwrap();
    memory.write(to, &vec![0; output_bytes]).unwrap();
    let params = [from.to_le_bytes(), to.to_le_bytes()].concat();
    let shape = Launch {
        grid: [blocks as u32, 1, 1],
        block: [32, 1, 1],
        dynamic_shared: 0,
        max_dynamic_shared: 0,
        params,
    };
    let program = module.kernel("k").unwrap();
    launch(&module, program, &mut memory, &shape, 0, Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    memory.read(to, output_bytes).unwrap().to_vec()
}

#[test]
fn forms_on_registers() {
    let mut random = Random::new(1);
    let mut wrong = Vec::new();
    for form in forms::all() {
        let sources: Vec<[u64; 4]> = (0..VALUES)
            .map(|_| {
                let mut out = [0; 4];
                for (to, ty) in out.iter_mut().zip(&form.sources) {
                    *to = value(*ty, &mut random);
                }
                host::adjust(&form.name, &mut out, &mut random);
                out
            })
            .collect();
        let input: Vec<u8> = sources
            .iter()
            .flatten()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let output = run(&kernel(form), &input, VALUES * 16, BLOCKS);
        for (s, out) in sources.iter().zip(output.chunks(16)) {
            let got = [0, 8].map(|at| u64::from_le_bytes(out[at..at + 8].try_into().unwrap()));
            let want = host::expected(form, *s);
            let Some(want) = want else {
                wrong.push(format!("{}: no computation on the host", form.name));
                break;
            };
            if !want.matches(form.dests[0], got, form.dests.len()) {
                wrong.push(format!(
                    "{} of {s:x?}: expected {want:x?}, got {got:x?}",
                    form.name
                ));
                break;
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} forms:\n{}",
        wrong.len(),
        forms::all().len(),
        wrong.join("\n")
    );
}
