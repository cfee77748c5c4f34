//! The problems, as data.

use lazybatch_graph::chain::{Step, With};
use lazybatch_graph::onnx::Elem;
use lazybatch_graph::{
    Act, At, Attribute, Bin, DType, Fused, Heads, Layout, MultiHead, Op, Operand, Part, Pool,
    Produced, Program, ProgramBuilder, Repeat, Seen, TensorOp, ValueId, Window,
};

use super::attention;
use crate::custom::KernelRegistry;

/// Most positions of a problem's sequences: more than a page, not a multiple of lanes.
pub(super) const LONGEST: usize = 37;

/// One problem.
pub struct Problem {
    /// Name.
    pub name: String,
    /// Makes its program.
    pub build: Box<dyn Fn() -> Program>,
    /// Largest difference from the reference, relative to `1 + |x|`.
    pub tolerance: f64,
    /// Seed of requests.
    pub seed: u64,
    /// Requests.
    pub num_requests: usize,
    /// Random schedules tried.
    pub num_schedules: u64,
    /// Kernels of its custom nodes.
    pub registry: KernelRegistry,
}

/// Where an op stands, and what its rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A model without sequences: rows are samples.
    Static,
    /// Rows are positions.
    Rows,
    /// One row per pass over the input.
    Steps,
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// An activation with these fixed dims.
    X(&'static [usize]),
    /// Ids below a bound with these fixed dims.
    Ids(&'static [usize], usize),
    /// A weight.
    W(&'static [usize]),
    /// A weight of positive elements (variances).
    Positive(&'static [usize]),
}

use Arg::{Ids, Positive, W, X};
use Place::{Rows, Static, Steps};

pub(super) fn problem(
    name: impl Into<String>,
    tolerance: f64,
    build: impl Fn() -> Program + 'static,
) -> Problem {
    let name = name.into();
    let seed = name
        .bytes()
        .fold(7, |h: u64, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    Problem {
        name,
        build: Box::new(build),
        tolerance,
        seed,
        num_requests: 5,
        num_schedules: 2,
        registry: KernelRegistry::new(),
    }
}

/// A program of one op whose operands are read from inputs and whose results are emitted.
pub(super) fn op(place: Place, op: Op, args: &'static [Arg]) -> Problem {
    let kind = format!("{op:?}");
    let kind = kind
        .split([' ', '('])
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let name = format!("{kind}-{place:?}-{}", shapes(args)).to_lowercase();
    problem(name, 2e-5, move || {
        let mut b = ProgramBuilder::new("op").with_seed(3);
        let mut inputs = Vec::new();
        for (i, arg) in args.iter().enumerate() {
            let name = format!("x{i}");
            inputs.push(match (*arg, place) {
                (X(dims), Static) => Some(b.input(&name, DType::F32, dims)),
                (Ids(dims, bound), Static) => Some(b.input_ids(&name, dims, bound)),
                (X(dims), _) => Some(b.sequence(&name, DType::F32, dims, LONGEST)),
                (Ids(_, bound), _) => Some(b.sequence_ids(&name, LONGEST, bound)),
                _ => None,
            });
        }
        let repeat = if place == Steps {
            Repeat::PerInputStep { stride: 1 }
        } else {
            Repeat::Once
        };
        b.begin_block("block", repeat);
        let operands: Vec<ValueId> = args
            .iter()
            .zip(&inputs)
            .enumerate()
            .map(|(i, (arg, input))| match (*arg, input) {
                (_, Some(input)) => b.read_input(&format!("read{i}"), *input),
                (Positive(dims), _) => b.constant(&format!("w{i}"), dims, 0.7),
                (W(dims), _) => b.seeded_within(&format!("w{i}"), dims, 1.0),
                _ => unreachable!("activations have inputs"),
            })
            .collect();
        let results = b.node("op", op.clone(), &operands);
        for (i, value) in results.into_iter().enumerate() {
            let ty = b.ty(value);
            let (name, dims) = (format!("y{i}"), ty.fixed_dims());
            let pooled = ty.lead() == Some(lazybatch_graph::Dim::Batch) && place != Steps;
            let output = if pooled {
                b.output(&name, ty.dtype, &dims)
            } else {
                b.output_sequence(&name, ty.dtype, &dims)
            };
            b.emit(&format!("emit{i}"), output, value);
        }
        b.finish().expect("a valid problem")
    })
}

fn shapes(args: &[Arg]) -> String {
    let parts = args.iter().map(|a| {
        let (X(d) | Ids(d, _) | W(d) | Positive(d)) = a;
        d.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("x")
    });
    parts.collect::<Vec<_>>().join("_")
}

pub(super) fn heads(query: usize, kv: usize, dim: usize) -> Heads {
    Heads {
        query,
        kv,
        dim,
        scale: 1.0 / (dim as f32).sqrt(),
    }
}

fn top_k(k: usize, largest: bool) -> Op {
    Op::TopK { k, largest }
}

/// All problems.
pub fn problems() -> Vec<Problem> {
    let mut all = row_problems();
    all.extend(attention::problems());
    all.extend(general_problems());
    all.extend(image_problems());
    all.extend(sequence_problems());
    all.extend([
        transformer(),
        decoder(),
        prompted_decoder(false),
        prompted_decoder(true),
        sampled(Static, 700),
        sampled(Static, 3),
        sampled(Steps, 35),
    ]);
    // Units that fill vectors, and some that do not.
    all.push(recurrent("model-recurrent", 18, 30));
    all.push(recurrent("model-recurrent-32", 32, 48));
    all.push(shared_states());
    all
}

fn linear(bias: bool, act: Option<Act>, residual: bool) -> Op {
    Op::Linear {
        bias,
        act,
        residual,
    }
}

/// Every kind of step, on operands of all kinds.
fn chain(name: &str, place: Place, args: &'static [Arg]) -> Problem {
    let at = With::Operand;
    let steps = vec![
        Step::Binary(Bin::Mul, With::Itself),
        Step::Scale(0.25),
        Step::Binary(Bin::Add, at(1)),
        Step::Unary(Act::Tanh),
        Step::SubFrom(at(2)),
        Step::Binary(Bin::Mul, at(0)),
        Step::Binary(Bin::Sub, at(1)),
        Step::Unary(Act::Silu),
        Step::Binary(Bin::Add, With::Itself),
    ];
    let mut p = op(place, Op::Elementwise(steps), args);
    p.name = format!("elementwise-{name}");
    p
}

fn row_problems() -> Vec<Problem> {
    let mut all = vec![
        op(Static, linear(false, None, false), &[X(&[7]), W(&[7, 5])]),
        op(
            Static,
            linear(false, None, false),
            &[X(&[300]), W(&[300, 65])],
        ),
        op(
            Rows,
            linear(true, Some(Act::Gelu), false),
            &[X(&[33]), W(&[33, 70]), W(&[70])],
        ),
        op(
            Rows,
            linear(true, None, true),
            &[X(&[64]), W(&[64, 48]), W(&[48]), X(&[48])],
        ),
        op(
            Steps,
            linear(false, Some(Act::Tanh), true),
            &[X(&[20]), W(&[20, 17]), X(&[17])],
        ),
        op(Rows, Op::Binary(Bin::Add), &[X(&[19]), X(&[19])]),
        op(Static, Op::Binary(Bin::Sub), &[X(&[3, 5]), W(&[3, 5])]),
        op(Static, Op::Binary(Bin::Mul), &[X(&[3, 5]), W(&[5])]),
        op(Rows, Op::Scale(-1.75), &[X(&[21])]),
        chain("rows", Rows, &[X(&[19]), X(&[19]), W(&[19])]),
        chain("last", Static, &[X(&[3, 5]), W(&[5]), X(&[3, 5])]),
        chain("pieces", Static, &[X(&[2100]), W(&[2100]), X(&[2100])]),
        chain("image", Static, &[X(&[40, 9, 7]), W(&[7]), X(&[40, 9, 7])]),
        chain("one", Static, &[X(&[70, 1]), W(&[1]), W(&[70, 1])]),
        chain(
            "long-last",
            Static,
            &[X(&[2, 1100]), W(&[1100]), X(&[2, 1100])],
        ),
        chain("steps", Steps, &[X(&[7]), X(&[7]), W(&[7])]),
        op(
            Rows,
            Op::LayerNorm { eps: 1e-5 },
            &[X(&[50]), W(&[50]), W(&[50])],
        ),
        op(
            Steps,
            Op::LayerNorm { eps: 1e-5 },
            &[X(&[16]), W(&[16]), W(&[16])],
        ),
        op(
            Rows,
            Op::AddLayerNorm { eps: 1e-5 },
            &[X(&[37]), X(&[37]), W(&[37]), W(&[37])],
        ),
        op(Rows, Op::RmsNorm { eps: 1e-6 }, &[X(&[70]), W(&[70])]),
        op(
            Static,
            linear(true, Some(Act::Relu), true),
            &[X(&[6, 20]), W(&[20, 33]), W(&[33]), X(&[6, 33])],
        ),
        op(
            Static,
            Op::AddLayerNorm { eps: 1e-5 },
            &[X(&[6, 37]), X(&[6, 37]), W(&[37]), W(&[37])],
        ),
        op(Static, Op::Softmax, &[X(&[2, 3, 18])]),
        op(Rows, Op::Softmax, &[X(&[45])]),
        op(Static, Op::Softmax, &[X(&[3])]),
        op(Rows, Op::Embedding, &[Ids(&[], 11), W(&[11, 9])]),
        op(Steps, Op::Embedding, &[Ids(&[], 11), W(&[11, 9])]),
        op(Rows, Op::AddPosition, &[X(&[18]), W(&[40, 18])]),
        op(Steps, Op::AddPosition, &[X(&[18]), W(&[40, 18])]),
        op(
            Rows,
            Op::Rope {
                heads: 3,
                dim: 8,
                theta: 1e4,
                past: None,
            },
            &[X(&[24])],
        ),
        op(
            Steps,
            Op::Rope {
                heads: 1,
                dim: 6,
                theta: 1e4,
                past: None,
            },
            &[X(&[6])],
        ),
        op(Static, Op::Reshape { dims: vec![2, 6] }, &[X(&[3, 4])]),
        op(Rows, Op::Concat, &[X(&[3]), X(&[5]), X(&[1])]),
        op(Static, Op::Concat, &[X(&[2, 3, 3]), X(&[1, 3, 3])]),
        op(Rows, Op::Slice { start: 2, len: 5 }, &[X(&[9])]),
        op(Static, Op::Interaction, &[X(&[5, 18])]),
        op(Static, Op::EmbeddingBag, &[Ids(&[4], 13), W(&[13, 7])]),
        op(Rows, Op::MeanRows, &[X(&[23])]),
        op(Rows, Op::FirstRow, &[X(&[23])]),
        op(Rows, Op::LastRow, &[X(&[23])]),
        op(Rows, Op::ArgMax, &[X(&[35])]),
        op(Static, Op::ArgMax, &[X(&[1])]),
        op(Rows, top_k(4, true), &[X(&[35])]),
        op(Steps, top_k(1, false), &[X(&[2, 5])]),
        op(Static, top_k(7, false), &[X(&[3, 7])]),
        op(Static, top_k(3, true), &[X(&[700])]),
    ];
    for act in [
        Act::Relu,
        Act::Relu6,
        Act::Gelu,
        Act::Tanh,
        Act::Sigmoid,
        Act::Silu,
    ] {
        let mut p = op(Rows, Op::Unary(act), &[X(&[29])]);
        p.name = format!("unary-{act:?}").to_lowercase();
        all.push(p);
    }
    all
}

/// General nodes: a softmax over positions between two other axes, a product of each sample with
/// a matrix, integers.
fn general_problems() -> Vec<Problem> {
    let node = |name: &str, axis: Option<i64>, seen: Vec<Layout>, made: Layout| {
        let operands = seen.into_iter().map(|layout| Operand::Next {
            layout,
            elem: Elem::F32,
        });
        let elem = if name == "ArgMin" {
            Elem::I64
        } else {
            Elem::F32
        };
        Op::Tensor(Box::new(TensorOp {
            op: name.into(),
            opset: 13,
            attrs: axis
                .map(|a| ("axis".to_owned(), Attribute::Int(a)))
                .into_iter()
                .collect(),
            operands: operands.collect(),
            outputs: vec![Produced { layout: made, elem }],
            flops_per_row: 1,
        }))
    };
    let axes = |parts: &[Part]| Layout(parts.iter().map(|p| vec![*p]).collect());
    let (batch, len) = (Part::Batch, Part::Len);
    let between = axes(&[batch, Part::Fixed(3), len, Part::Fixed(4)]);
    let matrix = axes(&[batch, Part::Fixed(2), Part::Fixed(5)]);
    let made = axes(&[batch, Part::Fixed(2), Part::Fixed(3)]);
    let weight = axes(&[Part::Fixed(5), Part::Fixed(3)]);
    let row = axes(&[batch, Part::Fixed(7)]);
    vec![
        op(
            Rows,
            node("Softmax", Some(2), vec![between.clone()], between),
            &[X(&[3, 4])],
        ),
        op(
            Static,
            node("MatMul", None, vec![matrix, weight], made),
            &[X(&[10]), W(&[5, 3])],
        ),
        op(
            Steps,
            node("ArgMin", Some(1), vec![row], axes(&[batch, Part::Fixed(1)])),
            &[X(&[7])],
        ),
    ]
}

fn conv(window: Window, groups: usize, bias: bool, residual: bool, act: Option<Act>) -> Op {
    Op::Conv2d {
        window,
        groups,
        bias,
        residual,
        act,
    }
}

fn image_problems() -> Vec<Problem> {
    let uneven = Window {
        kernel: [3, 2],
        stride: [2, 1],
        pad: [1, 0, 0, 1],
    };
    vec![
        op(
            Static,
            conv(Window::square(3, 1, 1), 1, true, false, Some(Act::Relu)),
            &[X(&[3, 9, 7]), W(&[8, 3, 3, 3]), W(&[8])],
        ),
        op(
            Static,
            conv(Window::square(1, 1, 0), 1, true, true, Some(Act::Relu)),
            &[X(&[40, 5, 5]), W(&[33, 40, 1, 1]), W(&[33]), X(&[33, 5, 5])],
        ),
        op(
            Static,
            conv(Window::square(7, 2, 3), 1, false, false, None),
            &[X(&[3, 33, 33]), W(&[12, 3, 7, 7])],
        ),
        op(
            Static,
            conv(uneven, 2, true, false, Some(Act::Relu6)),
            &[X(&[4, 8, 8]), W(&[6, 2, 3, 2]), W(&[6])],
        ),
        op(
            Static,
            conv(Window::square(3, 1, 1), 1, false, true, None),
            &[X(&[32, 6, 6]), W(&[20, 32, 3, 3]), X(&[20, 6, 6])],
        ),
        op(
            Static,
            conv(Window::square(3, 2, 1), 6, true, false, Some(Act::Relu6)),
            &[X(&[6, 9, 9]), W(&[6, 1, 3, 3]), W(&[6])],
        ),
        op(
            Static,
            conv(Window::square(3, 1, 1), 6, false, true, None),
            &[X(&[6, 9, 9]), W(&[6, 1, 3, 3]), X(&[6, 9, 9])],
        ),
        op(
            Static,
            Op::BatchNorm { eps: 1e-5 },
            &[X(&[5, 4, 3]), W(&[5]), W(&[5]), W(&[5]), Positive(&[5])],
        ),
        op(
            Static,
            Op::Pool2d {
                pool: Pool::Max,
                window: Window::square(3, 2, 1),
            },
            &[X(&[4, 9, 9])],
        ),
        op(
            Static,
            Op::Pool2d {
                pool: Pool::Average,
                window: uneven,
            },
            &[X(&[4, 8, 8])],
        ),
        op(Static, Op::GlobalAveragePool, &[X(&[6, 7, 7])]),
    ]
}

/// Problems of ops that need states.
fn sequence_problems() -> Vec<Problem> {
    let attend = |query: usize, kv: usize, dim: usize| {
        problem(
            format!("stateattention-{query}x{kv}x{dim}"),
            2e-5,
            move || {
                let mut b = ProgramBuilder::new("op").with_seed(3);
                let k = b.sequence("k", DType::F32, &[kv * dim], LONGEST);
                let v = b.sequence("v", DType::F32, &[kv * dim], LONGEST);
                let q = b.sequence("q", DType::F32, &[query * dim], LONGEST);
                let y = b.output_sequence("y", DType::F32, &[query * dim]);
                let cached = b.output_sequence("cached", DType::F32, &[query * dim]);
                let memory = b.memory(kv * dim, LONGEST);
                let cache = b.scope("cache", |b| b.memory(kv * dim, LONGEST));
                b.begin_block("write", Repeat::Once);
                let (kx, vx) = (b.read_input("k", k), b.read_input("v", v));
                b.seq_write("k.keep", memory.keys, At::All, kx);
                b.seq_write("v.keep", memory.values, At::All, vx);
                b.begin_block("read", Repeat::PerInputStep { stride: 1 });
                let qx = b.read_input("q", q);
                let x = b.state_attention(
                    "attend",
                    qx,
                    heads(query, kv, dim),
                    memory.keys,
                    memory.values,
                );
                b.emit("emit", y, x);
                let (kx, vx) = (b.read_input("k.step", k), b.read_input("v.step", v));
                b.seq_write("k.append", cache.keys, At::End, kx);
                b.seq_write("v.append", cache.values, At::End, vx);
                let x = b.state_attention(
                    "cached",
                    qx,
                    heads(query, kv, dim),
                    cache.keys,
                    cache.values,
                );
                b.emit("emit.cached", cached, x);
                b.finish().expect("a valid problem")
            },
        )
    };
    let additive = problem("additiveattention", 2e-5, || {
        let mut b = ProgramBuilder::new("op").with_seed(3);
        let k = b.sequence("k", DType::F32, &[21], LONGEST);
        let v = b.sequence("v", DType::F32, &[10], LONGEST);
        let y = b.output_sequence("y", DType::F32, &[10]);
        let (keys, values) = (
            b.sequence_state("k", 21, LONGEST),
            b.sequence_state("v", 10, LONGEST),
        );
        b.begin_block("write", Repeat::Once);
        let (kx, vx) = (b.read_input("k", k), b.read_input("v", v));
        b.seq_write("k.keep", keys, At::All, kx);
        b.seq_write("v.keep", values, At::All, vx);
        b.begin_block("read", Repeat::PerInputStep { stride: 1 });
        let q = b.read_input_at("q", k, At::Reverse);
        let w = b.seeded_within("score", &[21], 1.0);
        let x = b.additive_attention("attend", q, w, keys, values);
        b.emit("emit", y, x);
        b.finish().expect("a valid problem")
    });
    vec![
        attend(2, 2, 16),
        attend(6, 2, 5),
        attend(1, 1, 33),
        additive,
    ]
}

fn transformer() -> Problem {
    problem("model-transformer", 1e-4, || {
        let mut b = ProgramBuilder::new("transformer").with_seed(5);
        let ids = b.sequence_ids("ids", LONGEST, 50);
        let logits = b.output("logits", DType::F32, &[10]);
        let each = b.output_sequence("each", DType::F32, &[24]);
        b.begin_block("encoder", Repeat::Once);
        let i = b.read_input("ids", ids);
        let x = b.embed("embed", i, 50, 24);
        let table = b.seeded_within("positions", &[LONGEST, 24], 0.5);
        let mut x = b.add_position("position", x, table);
        for layer in 0..2 {
            x = b.scope(&format!("layer{layer}"), |b| {
                let n = b.norm("norm1", x, 1e-5);
                let x = b.self_attention("attention", n, MultiHead::new(3), Some(x));
                let n = b.norm("norm2", x, 1e-5);
                b.ffn("ffn", n, 60, Act::Gelu, Some(x))
            });
        }
        b.emit("emit.each", each, x);
        let mean = b.mean_rows("mean", x);
        let y = b.dense("head", mean, 10, None);
        b.emit("emit", logits, y);
        b.finish().expect("a valid problem")
    })
}

/// Recurrent cells of `hidden` units, one of `wide` units that are projected to as many.
fn recurrent(name: &str, hidden: usize, wide: usize) -> Problem {
    problem(name, 1e-4, move || {
        let mut b = ProgramBuilder::new("recurrent").with_seed(5);
        let input = b.sequence("frames", DType::F32, &[9], LONGEST);
        let last = b.output("last", DType::F32, &[hidden]);
        let each = b.output_sequence("each", DType::F32, &[hidden]);
        let finals = ["h", "c", "gru"].map(|name| b.output(name, DType::F32, &[hidden]));
        let (fwd, bwd) = (
            b.sequence_state("fwd", hidden, LONGEST),
            b.sequence_state("bwd", hidden, LONGEST),
        );
        let h = b.vector_state("gru.h", DType::F32, &[hidden], 0.25);
        let keep = b.vector_state("keep", DType::F32, &[hidden], 0.0);
        b.begin_block("forward", Repeat::PerInputStep { stride: 1 });
        let x = b.read_input("x", input);
        let w = b.lstm_weights("lstm", 9, hidden);
        let state = b.lstm_state("lstm", hidden);
        let y = b.lstm_cell("lstm", x, w, None, state.h, state.c);
        b.seq_write("write", fwd, At::Step, y);
        b.begin_block("backward", Repeat::PerInputStep { stride: 1 });
        let x = b.read_input_at("x.back", input, At::Reverse);
        let w = b.lstm_weights("proj", 9, wide);
        let back = b.vector_state("proj.h", DType::F32, &[hidden], 0.0);
        let cell = b.vector_state("proj.c", DType::F32, &[wide], 0.0);
        let w_hh = b.seeded("proj.recurrent", &[hidden, 4 * wide], 48);
        let proj = b.seeded("proj.w", &[wide, hidden], 30);
        let y = b.lstm_cell("lstm.back", x, [w[0], w_hh, w[2]], Some(proj), back, cell);
        b.seq_write("write.back", bwd, At::Reverse, y);
        b.begin_block("merge", Repeat::PerInputStep { stride: 1 });
        let f = b.seq_read("read", fwd, At::Step);
        let r = b.seq_read("read.back", bwd, At::Step);
        let both = b.concat("both", &[f, r]);
        let y = b.gru("gru", both, hidden, h);
        b.vec_write("keep.write", keep, y);
        b.begin_block("pooled", Repeat::PerInputStep { stride: 3 });
        let x = b.read_input("x.pooled", input);
        let x = b.dense("x.wide", x, hidden, None);
        b.emit("emit.pooled", each, x);
        b.begin_block("head", Repeat::Once);
        let all = b.seq_read("all", fwd, At::All);
        b.emit("emit.each", each, all);
        let y = b.vec_read("keep.read", keep);
        b.emit("emit", last, y);
        // What a padded batch must not change behind the end of a sequence.
        for (i, state) in [state.h, state.c, h].into_iter().enumerate() {
            let y = b.vec_read(&format!("state{i}.read"), state);
            b.emit(&format!("state{i}.emit"), finals[i], y);
        }
        b.finish().expect("a valid problem")
    })
}

fn decoder() -> Problem {
    let mut p = problem("model-decoder", 1e-4, || {
        let mut b = ProgramBuilder::new("decoder").with_seed(11);
        let ids = b.sequence_ids("ids", LONGEST, 30);
        let tokens = b.output_sequence("tokens", DType::I32, &[]);
        let hidden = b.output_sequence("hidden", DType::F32, &[16]);
        let last = b.vector_state("last", DType::I32, &[], 1.0);
        b.begin_block("encoder", Repeat::Once);
        let i = b.read_input("ids", ids);
        let x = b.embed("embed", i, 30, 16);
        let x = b.self_attention("encoder", x, MultiHead::new(2), Some(x));
        let memory = b.cross_memory("memory", x, 16, LONGEST);
        b.begin_block("decoder", Repeat::UntilStop { max: 20 });
        let token = b.vec_read("token", last);
        let x = b.embed("embed.out", token, 30, 16);
        let table = b.seeded_within("positions", &[20, 16], 1.0);
        let x = b.add_position("position", x, table);
        let x = b.cached_self_attention("self", x, 2, 20, Some(x));
        let x = b.cross_attention("cross", x, 4, memory, Some(x));
        b.emit("emit.hidden", hidden, x);
        let logits = b.dense("head", x, 30, None);
        let token = b.arg_max("argmax", logits);
        b.vec_write("token.keep", last, token);
        b.emit("emit", tokens, token);
        b.stop("stop", token, 7);
        b.finish().expect("a valid problem")
    });
    p.num_requests = 8;
    p.num_schedules = 6;
    p
}

/// A decoder that goes on behind its prompt: what it keeps of the prompt is written in one block
/// and grows in the next, and positions count through both. With `samples` requests say how tokens are chosen.
fn prompted_decoder(samples: bool) -> Problem {
    let kind = if samples { "sampling" } else { "decoder" };
    let mut p = problem(format!("model-prompted-{kind}"), 1e-4, move || {
        let mut b = ProgramBuilder::new("prompted").with_seed(13);
        let (d, rope, max) = (16, (2, 8, 1e4), 20);
        let prompt = b.sequence_ids("prompt", LONGEST, 30);
        let how = samples.then(|| b.sampling());
        let choose = |b: &mut ProgramBuilder, name: &str, x| match how {
            None => b.arg_max(name, x),
            Some(how) => {
                let how = b.read_input(&format!("{name}.how"), how);
                let x = b.scale(&format!("{name}.scores"), x, 4.0);
                b.sample(name, x, how)
            }
        };
        let tokens = b.output_sequence("tokens", DType::I32, &[]);
        let hidden = b.output_sequence("hidden", DType::F32, &[d]);
        let last = b.vector_state("last", DType::I32, &[], 0.0);
        let memory = b.memory(d, LONGEST + max);
        let table = b.seeded_within("embed.table", &[30, d], 1.0);
        let w = ["q", "k", "v"].map(|name| b.seeded(name, &[d, d], d));
        b.begin_block("prefill", Repeat::Once);
        let ids = b.read_input("prompt", prompt);
        let x = b.embedding("embed", ids, table);
        let [q, k, v] = w.map(|w| b.linear(&format!("{w}.prefill"), x, w, Fused::default()));
        let q = b.rope("q.rope", q, rope.0, rope.1, rope.2);
        let k = b.rope("k.rope", k, rope.0, rope.1, rope.2);
        b.seq_write("k.keep", memory.keys, At::All, k);
        b.seq_write("v.keep", memory.values, At::All, v);
        let x = b.attention("attend", [q, k, v], heads(2, 2, 8), Seen::CAUSAL, None);
        let x = b.last_row("last", x);
        let best = choose(&mut b, "first", x);
        b.vec_write("first.keep", last, best);
        b.begin_block("decode", Repeat::UntilStop { max: max as u32 });
        let token = b.vec_read("token", last);
        b.emit("emit", tokens, token);
        let x = b.embedding("embed.out", token, table);
        let [q, k, v] = w.map(|w| b.linear(&format!("{w}.decode"), x, w, Fused::default()));
        let q = b.rope_behind("q.behind", q, rope, memory.keys);
        let k = b.rope_behind("k.behind", k, rope, memory.keys);
        b.seq_write("k.append", memory.keys, At::End, k);
        b.seq_write("v.append", memory.values, At::End, v);
        let x = b.state_attention("attend.all", q, heads(2, 2, 8), memory.keys, memory.values);
        b.emit("emit.hidden", hidden, x);
        let best = choose(&mut b, "best", x);
        b.vec_write("keep", last, best);
        b.stop("stop", best, 7);
        b.finish().expect("a valid problem")
    });
    p.num_requests = 8;
    p.num_schedules = 6;
    p
}

/// Tokens of rows of scores, a row a sample or a pass over the input.
fn sampled(place: Place, width: usize) -> Problem {
    let name = format!("sample-{place:?}-{width}").to_lowercase();
    let mut p = problem(name, 0.0, move || {
        let mut b = ProgramBuilder::new("op").with_seed(3);
        let scores = match place {
            Static => b.input("scores", DType::F32, &[width]),
            _ => b.sequence("scores", DType::F32, &[width], LONGEST),
        };
        let how = b.sampling();
        let tokens = match place {
            Static => b.output("tokens", DType::I32, &[]),
            _ => b.output_sequence("tokens", DType::I32, &[]),
        };
        let repeat = match place {
            Steps => Repeat::PerInputStep { stride: 1 },
            _ => Repeat::Once,
        };
        b.begin_block("block", repeat);
        let scores = b.read_input("read.scores", scores);
        let how = b.read_input("read.how", how);
        let token = b.sample("op", scores, how);
        b.emit("emit", tokens, token);
        b.finish().expect("a valid problem")
    });
    p.num_requests = 12;
    p
}

/// A static model whose blocks share vector states.
fn shared_states() -> Problem {
    problem("model-static-states", 2e-5, || {
        let mut b = ProgramBuilder::new("states").with_seed(3);
        let x = b.input("x", DType::F32, &[3, 4]);
        let y = b.output("y", DType::F32, &[3, 4]);
        let state = b.vector_state("s", DType::F32, &[3, 4], 0.5);
        b.begin_block("first", Repeat::Once);
        let x = b.read_input("x", x);
        let s = b.vec_read("old", state);
        let s = b.add("sum", x, s);
        b.vec_write("write", state, s);
        b.begin_block("second", Repeat::Once);
        let s = b.vec_read("read", state);
        let s = b.unary("tanh", Act::Tanh, s);
        b.emit("emit", y, s);
        b.finish().expect("a valid problem")
    })
}
