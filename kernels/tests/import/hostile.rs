//! Files that ask for too much: an import refuses them, and says which value, its dimensions and the
//! bound. None of these may take long or hold much.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{
    Array, Attr, Data, Dim, Elem, Graph, Limits, Model, Node, ValueInfo, ValueType,
};
use lazybatch_kernels::import::{Options, import, import_model};

use super::path;

fn info(name: &str, elem: Elem, dims: &[usize]) -> ValueInfo {
    ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            elem,
            dims: Some(dims.iter().map(|&n| Dim::Fixed(n)).collect()),
        },
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str], attrs: &[(&str, Attr)]) -> Node {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    Node {
        name: format!("the {}", outputs[0]),
        domain: String::new(),
        op: op.into(),
        inputs: owned(inputs),
        outputs: owned(outputs),
        attrs: attrs
            .iter()
            .map(|(n, a)| ((*n).to_owned(), a.clone()))
            .collect(),
    }
}

fn graph(inputs: Vec<ValueInfo>, nodes: Vec<Node>, outputs: &[&str]) -> Graph {
    Graph {
        name: "g".into(),
        inputs,
        outputs: outputs.iter().map(|o| info(o, Elem::F32, &[])).collect(),
        initializers: BTreeMap::new(),
        nodes,
    }
}

fn model(graph: Graph) -> Model {
    Model {
        file: "test.onnx".into(),
        opsets: BTreeMap::from([(String::new(), 17)]),
        graph,
    }
}

fn relu(dims: &[usize]) -> Model {
    let nodes = vec![node("Relu", &["x"], &["y"], &[])];
    model(graph(vec![info("x", Elem::F32, dims)], nodes, &["y"]))
}

fn refusal(model: &Model, options: &Options) -> String {
    import_model(model, options).unwrap_err().to_string()
}

#[test]
fn dimensions_that_a_file_states_are_bounded() {
    let most = Limits::default().elems;
    for dims in [
        &[1 << 62, 1 << 62][..],
        &[1 << 36],
        &[1, usize::MAX],
        &[3, most / 2],
    ] {
        let e = refusal(&relu(dims), &Options::default());
        let shown = dims.last().unwrap().to_string();
        assert!(
            e.starts_with(
                "test.onnx: input x: number of elements: expected at most 67108864, got ["
            ),
            "{e}"
        );
        assert!(e.contains(&shown), "{e}");
    }
    let e = refusal(&relu(&[4, 0]), &Options::default());
    assert_eq!(
        e,
        "test.onnx: input x: size of axis 1: expected at least 1, got 0"
    );
    let e = refusal(&relu(&[1; 65]), &Options::default());
    assert!(
        e.contains("number of dimensions: expected at most 64, got 65"),
        "{e}"
    );
}

#[test]
fn a_fixed_input_and_the_longest_sequence_are_bounded() {
    let mut huge = relu(&[2]);
    huge.graph
        .inputs
        .push(info("sr", Elem::I64, &[1 << 40, 1 << 40]));
    let options = Options {
        fixed: vec!["sr=1".parse().unwrap()],
        ..Options::default()
    };
    let e = refusal(&huge, &options);
    assert!(
        e.contains("input sr: number of elements: expected at most 67108864, got [1099511627776"),
        "{e}"
    );
    let options = Options {
        max_len: Some(usize::MAX),
        ..Options::default()
    };
    let e = import(&path("lstm.onnx"), &options)
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("--max-len: length: expected a length that"),
        "{e}"
    );
}

#[test]
fn limits_come_from_the_caller() {
    let with = |limit: &str| Options {
        limits: Limits::default().with(&[limit.parse().unwrap()]),
        ..Options::default()
    };
    let e = refusal(&relu(&[2, 50]), &with("elems=99"));
    assert!(e.contains("expected at most 99, got [2, 50]"), "{e}");
    assert!(import_model(&relu(&[2, 50]), &with("elems=100")).is_ok());
    let e = refusal(&relu(&[2, 50]), &with("work=1000"));
    assert!(e.contains("number of steps: expected at most 1000"), "{e}");
    let e = refusal(&relu(&[2, 50]), &with("held=100"));
    assert!(
        e.contains("elements held: expected at most 100, got 200"),
        "{e}"
    );
    let e = import(&path("bert.onnx"), &with("messages=10")).unwrap_err();
    assert!(
        e.to_string().contains("messages: expected at most 10"),
        "{e}"
    );
    let e = import(&path("speller.toml"), &with("work=100000")).unwrap_err();
    assert!(
        e.to_string()
            .contains("number of steps: expected at most 100000"),
        "{e}"
    );
}

/// A loop of 64 passes around `inner`, whose result is `name`.
fn looped(inner: Node, name: &str) -> Node {
    let result = inner.outputs[0].clone();
    let (at, go, on) = (
        format!("{name}.at"),
        format!("{name}.go"),
        format!("{name}.on"),
    );
    let nodes = vec![inner, node("Identity", &[&go], &[&on], &[])];
    let inputs = vec![info(&at, Elem::I64, &[]), info(&go, Elem::Bool, &[])];
    let body = graph(inputs, nodes, &[&on, &result]);
    let attrs = [("body", Attr::Graph(Box::new(body)))];
    node("Loop", &["passes", ""], &[name], &attrs)
}

#[test]
fn loops_in_loops_are_bounded() {
    let mut inner = node("Relu", &["x"], &["y"], &[]);
    for depth in 0..8 {
        inner = looped(inner, &format!("y{depth}"));
    }
    let mut model = model(graph(
        vec![info("x", Elem::F32, &[2])],
        vec![inner],
        &["y7"],
    ));
    let passes = Array::scalar(Data::I64(vec![64]));
    model.graph.initializers.insert("passes".into(), passes);
    let e = refusal(&model, &Options::default());
    assert!(
        e.contains("nodes with branches and loops in place: expected at most 65536, got more"),
        "{e}"
    );
}

#[test]
fn values_without_elements_are_refused_by_node() {
    let none = Array::new(vec![2, 0], Data::F32(Vec::new()));
    let nodes = vec![
        node("MatMul", &["x", "none"], &["empty"], &[]),
        node("Relu", &["empty"], &["y"], &[]),
    ];
    let mut model = model(graph(vec![info("x", Elem::F32, &[3, 2])], nodes, &["y"]));
    model.graph.initializers.insert("none".into(), none);
    let e = refusal(&model, &Options::default());
    assert!(
        e.contains("the empty (MatMul: result empty has no elements)"),
        "{e}"
    );
}

#[test]
fn nodes_without_their_operands_are_refused() {
    let refused = |nodes: Vec<Node>| {
        let mut model = model(graph(vec![info("x", Elem::F32, &[3, 2])], nodes, &["y"]));
        let w = Array::new(vec![2], Data::F32(vec![0.5; 2]));
        model.graph.initializers.insert("w".into(), w);
        let e = refusal(&model, &Options::default());
        assert!(e.starts_with("test.onnx: "), "{e}");
    };
    // Beginnings of a layer normalisation and of a Gelu, with an operand too few in each place.
    refused(vec![
        node("Sub", &["x"], &["a"], &[]),
        node("Div", &["a"], &["b"], &[]),
        node("Mul", &["b", "w"], &["y"], &[]),
    ]);
    refused(vec![
        node("Sub", &["x"], &["a"], &[]),
        node("Sqrt", &[], &["r"], &[]),
        node("Div", &["a", "r"], &["b"], &[]),
        node("Mul", &["b", "w"], &["y"], &[]),
    ]);
    for op in [
        "Loop", "Scan", "If", "MatMul", "Gemm", "Conv", "LSTM", "Concat", "Gather", "Split",
    ] {
        refused(vec![node(op, &[], &["y"], &[])]);
        refused(vec![node(op, &["x"], &["y"], &[("axis", Attr::Int(7))])]);
    }
}

#[test]
fn names_that_stand_for_each_other_end() {
    // The input of the body is named as a value in it will be, and the other way round.
    let mut inner = node("Relu", &["x"], &["z"], &[]);
    inner = looped(inner, "y");
    let Some(Attr::Graph(body)) = inner.attrs.get_mut("body") else {
        unreachable!("a loop has a body");
    };
    body.inputs.push(info("the y.1/z", Elem::F32, &[2]));
    inner.inputs.push("z".into());
    let mut model = model(graph(vec![info("x", Elem::F32, &[2])], vec![inner], &["y"]));
    let initializers = &mut model.graph.initializers;
    initializers.insert("passes".into(), Array::scalar(Data::I64(vec![2])));
    initializers.insert("z".into(), Array::new(vec![2], Data::F32(vec![0.5; 2])));
    // Whichever value the names lead to: it ends.
    drop(import_model(&model, &Options::default()));
}

#[test]
fn padding_that_no_plane_has_is_not_computed_around() {
    let attrs = [
        ("kernel_shape", Attr::Ints(vec![1, 1])),
        ("pads", Attr::Ints(vec![1 << 30, 1 << 30, 1 << 30, 1 << 30])),
        ("strides", Attr::Ints(vec![1 << 30, 1 << 30])),
    ];
    let nodes = vec![node("Conv", &["x", "w"], &["y"], &attrs)];
    let x = info("x", Elem::F32, &[1, 2, 4, 4]);
    let mut model = model(graph(vec![x], nodes, &["y"]));
    let w = Array::new(vec![3, 2, 1, 1], Data::F32(vec![0.5; 6]));
    model.graph.initializers.insert("w".into(), w);
    // Three rows and columns of outputs: a general node computes them, and holds no plane of 2^31.
    let program = import_model(&model, &Options::default()).unwrap();
    assert_eq!(super::general(&program), ["Conv"]);
}

#[test]
fn layers_over_many_fixed_steps_are_bounded() {
    let attrs = [
        ("hidden_size", Attr::Int(1)),
        ("direction", Attr::Str("bidirectional".into())),
    ];
    let mut nodes = Vec::new();
    for i in 0..80 {
        let name = format!("layer{i}");
        nodes.push(node("RNN", &["x", "w", "r"], &[&name], &attrs));
    }
    let names: Vec<String> = (0..80).map(|i| format!("layer{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push(node("Sum", &names, &["y"], &[]));
    let mut model = model(graph(
        vec![info("x", Elem::F32, &[256, 1, 1])],
        nodes,
        &["y"],
    ));
    let w = Array::new(vec![2, 1, 1], Data::F32(vec![0.5; 2]));
    model.graph.initializers.insert("w".into(), w.clone());
    model.graph.initializers.insert("r".into(), w);
    let e = refusal(&model, &Options::default());
    assert!(
        e.contains("(RNN: with it, the program has more than 65536 nodes"),
        "{e}"
    );
}
