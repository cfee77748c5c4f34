//! What is so at the small sizes at which a graph is looked at, and otherwise at larger ones.

use std::sync::Arc;

use lazybatch_graph::onnx::{
    Array, Attr, Data, Dim, Elem, Graph, Model, Node, ValueInfo, ValueType,
};
use lazybatch_graph::{Op, Seen, Tensor};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::import::{Options, import_model};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::ModelId;

use super::refusals::{model, named, node, refusal};

fn sequence() -> [Dim; 3] {
    [named("batch"), named("seq"), Dim::Fixed(4)]
}

fn whole(v: Vec<i64>) -> Array {
    Array::vector(v)
}

fn number(v: i64) -> Array {
    Array::scalar(Data::I64(vec![v]))
}

/// The model with these constants.
fn with(mut model: Model, constants: &[(&str, Array)]) -> Model {
    for (name, array) in constants {
        model
            .graph
            .initializers
            .insert((*name).to_owned(), array.clone());
    }
    model
}

fn up_to(max_len: usize) -> Options {
    Options {
        max_len: Some(max_len),
        ..Options::default()
    }
}

/// Attention of `x` over itself, with a mask of those that are further apart than 64.
fn windowed() -> Model {
    let turn = [("perm", Attr::Ints(vec![0, 2, 1]))];
    let nodes = vec![
        node("Transpose", &["x"], "k", &turn),
        node("MatMul", &["x", "k"], "raw", &[]),
        node("Shape", &["x"], "shape", &[]),
        node("Gather", &["shape", "one"], "len", &[]),
        node("Range", &["zero", "len", "one"], "row", &[]),
        node("Unsqueeze", &["row", "axis"], "column", &[]),
        node("Sub", &["column", "row"], "signed", &[]),
        node("Abs", &["signed"], "apart", &[]),
        node("Greater", &["apart", "window"], "far", &[]),
        node("Where", &["far", "hidden", "shown"], "mask", &[]),
        node("Add", &["raw", "mask"], "scores", &[]),
        node(
            "Softmax",
            &["scores"],
            "weights",
            &[("axis", Attr::Int(-1))],
        ),
        node("MatMul", &["weights", "x"], "y", &[]),
    ];
    with(
        model(&sequence(), nodes, &["y"]),
        &[
            ("zero", number(0)),
            ("one", number(1)),
            ("axis", whole(vec![1])),
            ("window", number(64)),
            ("hidden", Array::scalar(Data::F32(vec![-1e4]))),
            ("shown", Array::scalar(Data::F32(vec![0.0]))),
        ],
    )
}

#[test]
fn a_mask_that_hides_in_long_sequences_alone_is_a_window() {
    let seen = |model: &Model, options: &Options| {
        let program = import_model(model, options).unwrap();
        let seen = program.nodes.iter().find_map(|n| match n.op {
            Op::Attention { seen, bias, .. } => Some((seen, bias)),
            _ => None,
        });
        super::check_bits(program, 3, 200.min(options.max_len.unwrap_or(200)));
        seen.unwrap()
    };
    let window = Some(64);
    let near = Seen {
        window,
        ..Seen::ALL
    };
    assert_eq!(seen(&windowed(), &Options::default()), (near, false));
    assert_eq!(seen(&windowed(), &up_to(65)), (Seen::ALL, false));
    // One that hides the first position from those that are far behind it depends on more than that.
    let mut first = windowed();
    let far = first.graph.nodes.iter_mut().find(|n| n.op == "Greater");
    far.unwrap().inputs[0] = "row".into();
    let e = refusal(&first, &Options::default());
    assert!(
        e.contains("its mask mask depends on more than the head and how far a key is behind its query, at length 128"),
        "{e}"
    );
    let near = import_model(&first, &up_to(65)).unwrap();
    assert_eq!(
        super::count(&near, |op| matches!(op, Op::Attention { .. })),
        1
    );
}

/// `x` from `start` to `end` along `axis`.
fn sliced(start: i64, end: i64, axis: i64) -> Model {
    let nodes = vec![
        node("Slice", &["x", "starts", "ends", "axes"], "cut", &[]),
        node("Relu", &["cut"], "y", &[]),
    ];
    with(
        model(&sequence(), nodes, &["y"]),
        &[
            ("starts", whole(vec![start])),
            ("ends", whole(vec![end])),
            ("axes", whole(vec![axis])),
        ],
    )
}

#[test]
fn a_slice_that_cuts_long_sequences_alone_is_refused() {
    for (start, end) in [(0, 100), (-16, i64::MAX)] {
        let e = refusal(&sliced(start, end, 1), &Options::default());
        assert!(
            e.contains("the cut (Slice: result cut at batch 1, length"),
            "{e}"
        );
    }
    // Where sequences are never that long, it cuts nothing.
    for (start, end) in [(0, 100), (-100, i64::MAX)] {
        let program = import_model(&sliced(start, end, 1), &up_to(100)).unwrap();
        assert!(super::general(&program).is_empty());
    }
    assert!(import_model(&sliced(0, i64::MAX, 1), &Options::default()).is_ok());
}

#[test]
fn a_slice_of_the_first_samples_is_refused() {
    for end in [3, 10_000] {
        let e = refusal(&sliced(0, end, 0), &Options::default());
        assert!(e.contains("the cut (Slice: result cut at batch"), "{e}");
    }
    assert!(import_model(&sliced(0, i64::MAX, 0), &Options::default()).is_ok());
}

/// A branch by whether `axis` of `x` is larger than `most`.
fn branching(axis: i64, most: i64) -> Model {
    let branch = |op: &str| {
        let name = format!("by {op}");
        Attr::Graph(Box::new(Graph {
            name: op.into(),
            inputs: Vec::new(),
            outputs: vec![ValueInfo {
                name: name.clone(),
                ty: ValueType::Unknown,
            }],
            initializers: Default::default(),
            nodes: vec![node(op, &["x"], &name, &[])],
        }))
    };
    let nodes = vec![
        node("Shape", &["x"], "shape", &[]),
        node("Gather", &["shape", "axis"], "size", &[]),
        node("Greater", &["size", "most"], "is_large", &[]),
        node(
            "If",
            &["is_large"],
            "y",
            &[
                ("then_branch", branch("Neg")),
                ("else_branch", branch("Relu")),
            ],
        ),
    ];
    with(
        model(&sequence(), nodes, &["y"]),
        &[("axis", number(axis)), ("most", number(most))],
    )
}

#[test]
fn a_branch_by_a_size_beyond_the_small_ones_is_refused() {
    for most in [100, 511] {
        let e = refusal(&branching(1, most), &Options::default());
        assert!(
            e.contains("node the y (If): is_large at batch 1, length") && e.contains("got 1"),
            "{e}"
        );
        assert!(import_model(&branching(1, most), &up_to(most as usize)).is_ok());
    }
    let e = refusal(&branching(1, 2), &Options::default());
    assert!(
        e.contains("length 1: expected 1 as at smaller ones, got 0"),
        "{e}"
    );
    let e = refusal(&branching(0, 100), &Options::default());
    assert!(e.contains("is_large at batch 256"), "{e}");
    assert!(import_model(&branching(1, 1 << 20), &Options::default()).is_ok());
}

/// `x` times the larger of `axis` of it and `least`.
fn at_least(axis: i64, least: i64, op: &str) -> Model {
    let nodes = vec![
        node("Shape", &["x"], "shape", &[]),
        node("Gather", &["shape", "axis"], "size", &[]),
        node(op, &["size", "least"], "whole", &[]),
        node("Cast", &["whole"], "factor", &[("to", Attr::Int(1))]),
        node("Mul", &["x", "factor"], "y", &[]),
    ];
    with(
        model(&sequence(), nodes, &["y"]),
        &[("axis", number(axis)), ("least", number(least))],
    )
}

#[test]
fn a_number_that_grows_in_long_sequences_alone_is_refused() {
    for op in ["Max", "Min"] {
        let e = refusal(&at_least(1, 32, op), &Options::default());
        assert!(
            e.contains("the y (Mul: operand factor depends on the length"),
            "{e}"
        );
    }
    let e = refusal(&at_least(0, 32, "Max"), &Options::default());
    assert!(
        e.contains("the y (Mul: operand factor is another at batch 256"),
        "{e}"
    );
    assert!(import_model(&at_least(1, 32, "Max"), &up_to(32)).is_ok());
}

#[test]
fn windows_that_are_one_in_short_sequences_are_refused() {
    let attrs = [
        ("kernel_shape", Attr::Ints(vec![1])),
        ("strides", Attr::Ints(vec![16])),
    ];
    let nodes = vec![node("MaxPool", &["x"], "y", &attrs)];
    let dims = [named("batch"), Dim::Fixed(4), named("seq")];
    let e = refusal(&model(&dims, nodes, &["y"]), &Options::default());
    assert!(
        e.contains("the y (MaxPool: axis 2 of its result does not grow with the sequence"),
        "{e}"
    );
}

#[test]
fn a_long_sequence_is_compared_too() {
    // An end that depends on the data by its form alone: no known value tells it.
    let nodes = vec![
        node("ReduceMax", &["x"], "most", &[("keepdims", Attr::Int(0))]),
        node("Mul", &["most", "nothing"], "none", &[]),
        node("Add", &["none", "hundred"], "end", &[]),
        node("Cast", &["end"], "whole", &[("to", Attr::Int(7))]),
        node("Unsqueeze", &["whole", "front"], "ends", &[]),
        node("Slice", &["x", "starts", "ends", "axes"], "cut", &[]),
        node("Relu", &["cut"], "y", &[]),
    ];
    let m = with(
        model(&sequence(), nodes, &["y"]),
        &[
            ("nothing", Array::scalar(Data::F32(vec![0.0]))),
            ("hundred", Array::scalar(Data::F32(vec![100.0]))),
            ("front", whole(vec![0])),
            ("starts", whole(vec![0])),
            ("axes", whole(vec![1])),
        ],
    );
    let e = refusal(&m, &Options::default());
    assert!(
        e.contains("at batch 1, length 512: expected a run, got"),
        "{e}"
    );
    assert!(e.contains("the cut: "), "{e}");
    import_model(&m, &up_to(100)).unwrap();
}

/// A model of whole numbers.
fn of_integers(nodes: Vec<Node>, constants: &[(&str, Array)]) -> Model {
    let mut m = model(&[named("batch"), Dim::Fixed(1)], nodes, &["y"]);
    let dims = Some(vec![named("batch"), Dim::Fixed(1)]);
    m.graph.inputs[0].ty = ValueType::Tensor {
        elem: Elem::I64,
        dims,
    };
    with(m, constants)
}

#[test]
fn whole_numbers_beyond_32_bits_are_refused_by_node() {
    let nodes = || {
        vec![
            node("Mul", &["x", "factor"], "product", &[]),
            node("Mod", &["product", "divisor"], "y", &[]),
        ]
    };
    let constants = [("factor", number(1_000_003)), ("divisor", number(1000))];
    let m = of_integers(nodes(), &constants);
    let program = Arc::new(import_model(&m, &Options::default()).unwrap());
    let mut device = CpuDevice::new(CpuOptions::default());
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    let mut at = |x: i32| {
        let requests = [Request {
            inputs: vec![Tensor::from_i32(&[1, 1], &[x])],
            len: 0,
            samples: 1,
        }];
        run(&mut device, &program, &requests, Schedule::Together)
    };
    let y = at(2000).unwrap()[0][0].as_ref().unwrap().to_i32();
    assert_eq!(y, [0]);
    let e = at(5000).unwrap_err().to_string();
    assert!(
        e.contains(
            "the product (Mul): result 0: expected whole numbers of 32 bits, got 5000015000"
        ),
        "{e}"
    );
}

#[test]
fn ids_without_a_known_bound_stay_within_their_table() {
    // The interpreter refuses larger ids; the import goes by those that it takes.
    let nodes = vec![
        node("Add", &["x", "five"], "ids", &[]),
        node("Gather", &["table", "ids"], "y", &[]),
    ];
    let table = Array::new(vec![10, 4], Data::F32((0..40).map(|v| v as f32).collect()));
    let m = of_integers(nodes, &[("five", number(5)), ("table", table)]);
    import_model(&m, &Options::default()).unwrap();
}

#[test]
fn an_equal_split_along_an_inner_axis_is_a_general_node() {
    let mut split = node("Split", &["x"], "a", &[("axis", Attr::Int(2))]);
    split.outputs.push("b".into());
    let nodes = vec![split, node("Sub", &["a", "b"], "y", &[])];
    let dims = [named("batch"), Dim::Fixed(4), Dim::Fixed(6)];
    let program = import_model(&model(&dims, nodes, &["y"]), &Options::default()).unwrap();
    assert!(super::general(&program).contains(&"Split"));
    super::check_bits(program, 4, 0);
}
