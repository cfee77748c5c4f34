//! Type rules, one line per case: op, operands, place, then the result or a piece of the message.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod general;

use lazybatch_graph::infer::{Context, infer};
use lazybatch_graph::{
    Act, At, Bin, CustomOp, DType, Dim, Heads, Op, Pool, Program, ProgramBuilder, Repeat, Seen,
    TensorType, Window,
};

const ONCE: Repeat = Repeat::Once;
const STEP: Repeat = Repeat::PerInputStep { stride: 2 };
const LOOP: Repeat = Repeat::UntilStop { max: 9 };

/// `rows f32 4 5`: an activation or, with `w`, a weight.
fn ty(text: &str) -> TensorType {
    let mut words = text.split(' ');
    let lead = words.next().unwrap();
    let dtype = match words.next().unwrap() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "i32" => DType::I32,
        other => panic!("dtype {other}"),
    };
    let dims: Vec<usize> = words.map(|w| w.parse().unwrap()).collect();
    match lead {
        "w" => TensorType::fixed(dtype, &dims),
        "rows" => TensorType::activation(dtype, Dim::Rows, &dims),
        "batch" => TensorType::activation(dtype, Dim::Batch, &dims),
        other => panic!("lead {other}"),
    }
}

/// Inputs: in0 image, in1 tokens of at most 16. Outputs: out0 `[3]`, out1 `[len]` i32.
/// States: s0 vector `[4]`, s1 sequence of 6, s2 vector i32, s3 vector `[3]`, s4 sequence of 4.
fn declarations() -> Program {
    let mut b = ProgramBuilder::new("test");
    b.input("image", DType::F32, &[3, 8, 8]);
    b.sequence_ids("tokens", 16, 10);
    let y = b.output("y", DType::F32, &[3]);
    let z = b.output_sequence("z", DType::I32, &[]);
    b.vector_state("h", DType::F32, &[4], 0.0);
    b.sequence_state("keys", 6, 32);
    b.vector_state("token", DType::I32, &[], 1.0);
    b.vector_state("p", DType::F32, &[3], 0.0);
    b.sequence_state("values", 4, 32);
    b.begin_block("main", ONCE);
    let x = b.read_input("x", lazybatch_graph::InputId::new(1));
    let table = b.constant("table", &[10, 3], 0.0);
    let e = b.embedding("e", x, table);
    let m = b.mean_rows("m", e);
    b.emit("y", y, m);
    b.emit("z", z, x);
    b.finish().unwrap()
}

fn check(repeat: Repeat, op: Op, operands: &[&str], expected: &str) {
    let program = declarations();
    let cx = Context {
        program: &program,
        repeat,
        node: "n",
    };
    let types: Vec<TensorType> = operands.iter().map(|t| ty(t)).collect();
    let operands: Vec<&TensorType> = types.iter().collect();
    match infer(&op, &operands, &cx) {
        Ok(got) => {
            let got: Vec<String> = got.iter().map(ToString::to_string).collect();
            assert_eq!(got.join(" "), expected, "{op:?}");
        }
        Err(error) => {
            let message = error.to_string();
            assert!(expected.starts_with('!'), "{op:?}: {message}");
            assert!(message.starts_with("node n: "), "{message}");
            assert!(
                message.contains(&expected[1..]),
                "{op:?}: {message} lacks {expected}"
            );
        }
    }
}

fn linear(bias: bool, residual: bool) -> Op {
    Op::Linear {
        bias,
        act: Some(Act::Relu),
        residual,
    }
}

fn conv(kernel: usize, stride: usize, pad: usize, groups: usize, bias: bool) -> Op {
    let window = Window::square(kernel, stride, pad);
    Op::Conv2d {
        window,
        groups,
        bias,
        residual: false,
        act: None,
    }
}

const HEADS: Heads = Heads {
    query: 4,
    kv: 2,
    dim: 3,
    scale: 1.0,
};
const S: fn(usize) -> lazybatch_graph::StateId = lazybatch_graph::StateId::new;

#[test]
fn linear_rules() {
    check(
        ONCE,
        linear(false, false),
        &["rows f32 4", "w f32 4 7"],
        "f32[rows, 7]",
    );
    check(
        ONCE,
        linear(true, false),
        &["batch f32 4", "w f16 4 7", "w f32 7"],
        "f32[batch, 7]",
    );
    let all = ["rows f32 4", "w f32 4 7", "w f32 7", "rows f32 7"];
    check(ONCE, linear(true, true), &all, "f32[rows, 7]");
    check(
        ONCE,
        linear(true, false),
        &all,
        "!number of operands: expected 3, got 4",
    );
    check(
        ONCE,
        linear(false, false),
        &["rows f32 5", "w f32 4 7"],
        "!expected 5 rows",
    );
    check(
        ONCE,
        linear(false, false),
        &["rows f32 4", "rows f32 7"],
        "!w: expected a float weight",
    );
    check(
        ONCE,
        linear(false, false),
        &["rows f32 4", "w i32 4 7"],
        "!w: expected a float weight",
    );
    check(
        ONCE,
        linear(false, false),
        &["rows f32 2 2", "w f32 4 7"],
        "!w: expected 2 rows, the features of x",
    );
    check(
        ONCE,
        linear(false, false),
        &["w f32 2 4", "w f32 4 7"],
        "!expected an activation",
    );
    check(
        ONCE,
        linear(true, false),
        &["rows f32 4", "w f32 4 7", "w f32 6"],
        "!bias: expected",
    );
    let other = ["rows f32 4", "w f32 4 7", "batch f32 7"];
    check(
        ONCE,
        linear(false, true),
        &other,
        "!residual: expected f32[rows, 7], got f32[batch, 7]",
    );
}

#[test]
fn elementwise_rules() {
    let add = || Op::Binary(Bin::Add);
    check(
        ONCE,
        add(),
        &["rows f32 2 3", "rows f32 2 3"],
        "f32[rows, 2, 3]",
    );
    check(
        ONCE,
        add(),
        &["rows f32 2 3", "w f32 2 3"],
        "f32[rows, 2, 3]",
    );
    check(ONCE, add(), &["rows f32 2 3", "w f32 3"], "f32[rows, 2, 3]");
    check(ONCE, add(), &["w f32 3", "w f32 3"], "f32[3]");
    check(
        ONCE,
        add(),
        &["rows f32 2 3", "w f32 2"],
        "!b: expected f32[rows, 2, 3]",
    );
    check(
        ONCE,
        add(),
        &["rows f32 3", "batch f32 3"],
        "!got f32[batch, 3]",
    );
    check(ONCE, add(), &["w f32 3", "rows f32 3"], "!b: expected");
    check(
        ONCE,
        add(),
        &["rows i32 3", "rows i32 3"],
        "!a: expected dtype f32",
    );
    check(ONCE, Op::Unary(Act::Gelu), &["rows f32 2"], "f32[rows, 2]");
    check(ONCE, Op::Scale(2.0), &["rows i32"], "!dtype f32");
    check(ONCE, Op::Softmax, &["rows f32 2"], "f32[rows, 2]");
    check(ONCE, Op::Softmax, &["rows f32 3 2"], "f32[rows, 3, 2]");
    check(ONCE, Op::Softmax, &["rows f32"], "!1 or more dimensions");
}

#[test]
fn normalisation_rules() {
    let norm = Op::LayerNorm { eps: 1e-5 };
    check(
        ONCE,
        norm.clone(),
        &["rows f32 4", "w f32 4", "w f32 4"],
        "f32[rows, 4]",
    );
    check(
        ONCE,
        norm,
        &["rows f32 4", "w f32 4", "w f32 3"],
        "!beta: expected a float weight [4]",
    );
    let add = Op::AddLayerNorm { eps: 1e-5 };
    let operands = ["rows f32 4", "rows f32 4", "w f32 4", "w f32 4"];
    check(ONCE, add.clone(), &operands, "f32[rows, 4] f32[rows, 4]");
    let operands = ["rows f32 4", "batch f32 4", "w f32 4", "w f32 4"];
    check(ONCE, add, &operands, "!y: expected f32[rows, 4]");
    check(
        ONCE,
        Op::RmsNorm { eps: 0.0 },
        &["batch f32 4", "w f32 4"],
        "f32[batch, 4]",
    );
    let bn = [
        "batch f32 3 8 8",
        "w f32 3",
        "w f32 3",
        "w f32 3",
        "w f32 3",
    ];
    check(ONCE, Op::BatchNorm { eps: 0.0 }, &bn, "f32[batch, 3, 8, 8]");
    let bn = [
        "batch f32 3 8 8",
        "w f32 3",
        "w f32 3",
        "w f32 8",
        "w f32 3",
    ];
    check(ONCE, Op::BatchNorm { eps: 0.0 }, &bn, "!mean");
}

#[test]
fn lookup_rules() {
    check(
        ONCE,
        Op::Embedding,
        &["rows i32", "w f32 10 4"],
        "f32[rows, 4]",
    );
    check(
        ONCE,
        Op::Embedding,
        &["rows f32", "w f32 10 4"],
        "!ids: expected dtype i32",
    );
    check(
        ONCE,
        Op::Embedding,
        &["rows i32 2", "w f32 10 4"],
        "!0 dimensions behind rows",
    );
    check(
        ONCE,
        Op::EmbeddingBag,
        &["batch i32 2", "w f32 10 4"],
        "f32[batch, 4]",
    );
    check(
        ONCE,
        Op::AddPosition,
        &["rows f32 4", "w f32 16 4"],
        "f32[rows, 4]",
    );
    check(
        ONCE,
        Op::AddPosition,
        &["rows f32 4", "w f32 15 4"],
        "!a row for each of 16 positions",
    );
    check(
        ONCE,
        Op::AddPosition,
        &["batch f32 4", "w f32 16 4"],
        "!only those have positions",
    );
    check(
        LOOP,
        Op::AddPosition,
        &["batch f32 4", "w f32 9 4"],
        "f32[batch, 4]",
    );
    check(
        STEP,
        Op::AddPosition,
        &["batch f32 4", "w f32 8 4"],
        "f32[batch, 4]",
    );
    check(
        STEP,
        Op::AddPosition,
        &["batch f32 4", "w f32 7 4"],
        "!8 positions",
    );
    let rope = |heads, dim| Op::Rope {
        past: None,
        heads,
        dim,
        theta: 1e4,
    };
    check(LOOP, rope(2, 4), &["batch f32 8"], "f32[batch, 8]");
    check(
        LOOP,
        rope(2, 3),
        &["batch f32 6"],
        "!2 heads of 3 features, even",
    );
    check(ONCE, Op::ArgMax, &["rows f32 7"], "i32[rows]");
    check(
        LOOP,
        Op::Sample,
        &["batch f32 7", "batch i32 4"],
        "i32[batch]",
    );
    check(
        ONCE,
        Op::Sample,
        &["rows f32 7", "batch i32 4"],
        "!i32[rows, 4]",
    );
    check(
        ONCE,
        Op::Sample,
        &["batch f32 7", "batch i32 3"],
        "!i32[batch, 4]",
    );
    check(ONCE, Op::Sample, &["batch f32 7"], "!2");
    let top_k = |k| Op::TopK { k, largest: true };
    check(ONCE, top_k(7), &["rows f32 7"], "f32[rows, 7] i32[rows, 7]");
    check(
        LOOP,
        top_k(2),
        &["batch f32 3 7"],
        "f32[batch, 3, 2] i32[batch, 3, 2]",
    );
    check(ONCE, top_k(0), &["rows f32 7"], "!1 to 7");
    check(ONCE, top_k(8), &["rows f32 7"], "!1 to 7");
    check(ONCE, top_k(1), &["rows f32"], "!1 or more dimensions");
}

#[test]
fn attention_rules() {
    let attention = Op::Attention {
        heads: HEADS,
        seen: Seen::CAUSAL,
        cap: None,
        bias: false,
    };
    let qkv = ["rows f32 12", "rows f32 6", "rows f32 6"];
    check(ONCE, attention.clone(), &qkv, "f32[rows, 12]");
    check(LOOP, attention.clone(), &qkv, "!a block that runs once");
    check(
        ONCE,
        attention,
        &["rows f32 12", "rows f32 12", "rows f32 6"],
        "!k: expected f32[rows, 6]",
    );
    let bad = Op::Attention {
        heads: Heads { kv: 3, ..HEADS },
        seen: Seen::CAUSAL,
        cap: None,
        bias: false,
    };
    check(
        ONCE,
        bad,
        &["rows f32 12", "rows f32 9", "rows f32 9"],
        "!key heads dividing",
    );
    for cap in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let capped = Op::Attention {
            heads: HEADS,
            seen: Seen::ALL,
            cap: Some(cap),
            bias: false,
        };
        check(ONCE, capped, &qkv, "!cap: expected a positive number");
    }
    let biased = Op::Attention {
        heads: HEADS,
        seen: Seen::ALL,
        cap: Some(50.0),
        bias: true,
    };
    check(ONCE, biased.clone(), &qkv, "!number of operands");
    let with = |bias| [&qkv[..], &[bias]].concat();
    for (bias, expected) in [
        ("w f32 4 31", "f32[rows, 12]"),
        ("w f32 4 41", "f32[rows, 12]"),
        (
            "w f32 4 32",
            "!bias: expected 4 rows with a column for each distance of 16 positions",
        ),
        ("w f32 4 29", "!each distance of 16 positions"),
        ("w f32 1 31", "!bias: expected 4 rows"),
        ("rows f32 31", "!bias: expected a float weight"),
    ] {
        check(ONCE, biased.clone(), &with(bias), expected);
    }
    let on = |keys, values| Op::StateAttention {
        heads: HEADS,
        keys: S(keys),
        values: S(values),
    };
    check(LOOP, on(1, 1), &["batch f32 12"], "f32[batch, 12]");
    check(ONCE, on(1, 1), &["rows f32 12"], "f32[rows, 12]");
    check(
        LOOP,
        on(1, 4),
        &["batch f32 12"],
        "!values: expected an f32 sequence state of 6",
    );
    check(
        LOOP,
        on(0, 1),
        &["batch f32 12"],
        "!keys: expected a sequence state, got vector state h",
    );
    check(LOOP, on(99, 1), &["batch f32 12"], "!a declared state");
    let additive = Op::AdditiveAttention {
        keys: S(1),
        values: S(4),
    };
    check(
        LOOP,
        additive.clone(),
        &["batch f32 6", "w f32 6"],
        "f32[batch, 4]",
    );
    check(LOOP, additive, &["batch f32 4", "w f32 4"], "!keys");
}

#[test]
fn cell_rules() {
    let lstm = |proj, h| Op::LstmCell {
        h: S(h),
        c: S(0),
        proj,
        ahead: false,
    };
    let w = ["batch f32 5", "w f32 5 16", "w f32 4 16", "w f32 16"];
    check(STEP, lstm(false, 0), &w, "f32[batch, 4]");
    check(
        STEP,
        lstm(false, 3),
        &w,
        "!h: expected an f32 vector state [4]",
    );
    let rows = ["rows f32 5", "w f32 5 16", "w f32 4 16", "w f32 16"];
    check(ONCE, lstm(false, 0), &rows, "!one row updates the state");
    let odd = ["batch f32 5", "w f32 5 15", "w f32 4 15", "w f32 15"];
    check(STEP, lstm(false, 0), &odd, "!4 gates");
    let proj = [
        "batch f32 5",
        "w f32 5 16",
        "w f32 3 16",
        "w f32 16",
        "w f32 4 3",
    ];
    check(STEP, lstm(true, 3), &proj, "f32[batch, 3]");
    let gru = [
        "batch f32 5",
        "w f32 5 12",
        "w f32 4 12",
        "w f32 12",
        "w f32 12",
    ];
    check(
        LOOP,
        Op::GruCell {
            h: S(0),
            ahead: false,
        },
        &gru,
        "f32[batch, 4]",
    );
    check(
        LOOP,
        Op::GruCell {
            h: S(2),
            ahead: false,
        },
        &gru,
        "!h: expected an f32 vector state [4]",
    );
}

#[test]
fn image_rules() {
    check(
        ONCE,
        conv(3, 2, 1, 1, false),
        &["batch f32 3 8 8", "w f32 5 3 3 3"],
        "f32[batch, 5, 4, 4]",
    );
    let depthwise = ["batch f32 4 8 8", "w f32 4 1 3 3", "w f32 4"];
    check(
        ONCE,
        conv(3, 1, 1, 4, true),
        &depthwise,
        "f32[batch, 4, 8, 8]",
    );
    check(
        ONCE,
        conv(3, 1, 1, 2, true),
        &depthwise,
        "!w: expected [4, 2, 3, 3]",
    );
    check(
        ONCE,
        conv(3, 1, 1, 3, true),
        &depthwise,
        "!groups: expected a divisor of 4 and 4",
    );
    check(
        ONCE,
        conv(9, 1, 0, 1, false),
        &["batch f32 1 8 8", "w f32 1 1 9 9"],
        "!a kernel that fits",
    );
    let residual = Op::Conv2d {
        window: Window::square(1, 1, 0),
        groups: 1,
        bias: false,
        residual: true,
        act: None,
    };
    let skip = ["batch f32 3 8 8", "w f32 5 3 1 1", "batch f32 5 8 8"];
    check(ONCE, residual.clone(), &skip, "f32[batch, 5, 8, 8]");
    let skip = ["batch f32 3 8 8", "w f32 5 3 1 1", "batch f32 3 8 8"];
    check(
        ONCE,
        residual,
        &skip,
        "!residual: expected f32[batch, 5, 8, 8]",
    );
    let pool = |window| Op::Pool2d {
        pool: Pool::Max,
        window,
    };
    check(
        ONCE,
        pool(Window::square(3, 2, 1)),
        &["batch f32 3 8 8"],
        "f32[batch, 3, 4, 4]",
    );
    check(
        ONCE,
        pool(Window::square(2, 2, 2)),
        &["batch f32 3 8 8"],
        "!padding below",
    );
    let lopsided = Window {
        kernel: [3, 2],
        stride: [1, 1],
        pad: [2, 1, 2, 1],
    };
    check(
        ONCE,
        pool(lopsided),
        &["batch f32 3 8 8"],
        "f32[batch, 3, 10, 9]",
    );
    check(
        ONCE,
        Op::GlobalAveragePool,
        &["batch f32 3 8 8"],
        "f32[batch, 3]",
    );
}

#[test]
fn shape_rules() {
    check(
        ONCE,
        Op::Reshape { dims: vec![2, 6] },
        &["rows f32 12"],
        "f32[rows, 2, 6]",
    );
    check(
        ONCE,
        Op::Reshape { dims: vec![] },
        &["batch i32 1"],
        "i32[batch]",
    );
    check(
        ONCE,
        Op::Reshape { dims: vec![5] },
        &["rows f32 12"],
        "!as many elements",
    );
    check(
        ONCE,
        Op::Concat,
        &["rows f32 2 3", "rows f32 4 3"],
        "f32[rows, 6, 3]",
    );
    check(ONCE, Op::Concat, &["rows f32 2 3"], "!two or more");
    check(
        ONCE,
        Op::Concat,
        &["rows f32 2 3", "rows f32 2 4"],
        "!operand 1",
    );
    check(
        ONCE,
        Op::Concat,
        &["rows f32 2", "batch f32 2"],
        "!operand 1",
    );
    check(
        ONCE,
        Op::Slice { start: 2, len: 3 },
        &["rows f32 5"],
        "f32[rows, 3]",
    );
    check(
        ONCE,
        Op::Slice { start: 3, len: 3 },
        &["rows f32 5"],
        "!features 3..6",
    );
    check(ONCE, Op::Interaction, &["batch f32 4 16"], "f32[batch, 6]");
    check(ONCE, Op::MeanRows, &["rows f32 4"], "f32[batch, 4]");
    check(ONCE, Op::LastRow, &["rows f32 4"], "f32[batch, 4]");
    check(
        ONCE,
        Op::FirstRow,
        &["batch f32 4"],
        "!x: expected [rows, d]",
    );
}

#[test]
fn state_and_edge_rules() {
    let input = |i, at| Op::Input {
        input: lazybatch_graph::InputId::new(i),
        at,
    };
    check(ONCE, input(0, At::All), &[], "f32[batch, 3, 8, 8]");
    check(ONCE, input(1, At::All), &[], "i32[rows]");
    check(STEP, input(1, At::Reverse), &[], "i32[batch]");
    check(STEP, input(1, At::All), &[], "!position");
    check(STEP, input(0, At::Step), &[], "f32[batch, 3, 8, 8]");
    check(LOOP, input(0, At::Step), &[], "f32[batch, 3, 8, 8]");
    check(LOOP, input(0, At::All), &[], "!position");
    check(LOOP, input(1, At::Step), &[], "!input tokens");
    check(ONCE, input(1, At::End), &[], "!position");
    check(ONCE, input(7, At::All), &[], "!a declared input");
    check(LOOP, Op::VecRead { state: S(2) }, &[], "i32[batch]");
    check(LOOP, Op::VecWrite { state: S(2) }, &["batch i32"], "");
    check(
        LOOP,
        Op::VecWrite { state: S(2) },
        &["batch f32"],
        "!x: expected i32[batch]",
    );
    check(
        ONCE,
        Op::SeqRead {
            state: S(1),
            at: At::All,
        },
        &[],
        "f32[rows, 6]",
    );
    check(
        STEP,
        Op::SeqRead {
            state: S(1),
            at: At::Reverse,
        },
        &[],
        "f32[batch, 6]",
    );
    check(
        LOOP,
        Op::SeqRead {
            state: S(1),
            at: At::Reverse,
        },
        &[],
        "!position",
    );
    check(
        LOOP,
        Op::SeqRead {
            state: S(1),
            at: At::End,
        },
        &[],
        "!End",
    );
    check(
        LOOP,
        Op::SeqWrite {
            state: S(1),
            at: At::End,
        },
        &["batch f32 6"],
        "",
    );
    check(
        ONCE,
        Op::SeqWrite {
            state: S(1),
            at: At::All,
        },
        &["batch f32 6"],
        "!expected f32[rows, 6]",
    );
    let emit = |i| Op::Emit {
        output: lazybatch_graph::OutputId::new(i),
    };
    check(ONCE, emit(0), &["batch f32 3"], "");
    check(ONCE, emit(0), &["rows f32 3"], "!rows of output y");
    check(ONCE, emit(1), &["rows i32"], "");
    check(LOOP, emit(1), &["batch i32"], "");
    check(LOOP, emit(1), &["batch f32"], "!rows of output z");
    check(LOOP, Op::Stop { token: 2 }, &["batch i32"], "");
    check(
        STEP,
        Op::Stop { token: 2 },
        &["batch i32"],
        "!runs until it stops",
    );
    let custom = CustomOp {
        name: "mine".to_owned(),
        output_dims: vec![2],
        flops_per_row: 1,
        batchable: true,
    };
    check(
        ONCE,
        Op::Custom(custom.clone()),
        &["rows i32"],
        "f32[rows, 2]",
    );
    check(ONCE, Op::Custom(custom), &[], "!at least one operand");
}
