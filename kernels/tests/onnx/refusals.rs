//! What the interpreter refuses, on graphs made by hand.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Data, Graph, Limits, Model, Node, ValueInfo, ValueType};
use lazybatch_kernels::onnx::Interpreter;

fn infos(names: &[&str]) -> Vec<ValueInfo> {
    let info = |name: &&str| ValueInfo {
        name: (*name).to_owned(),
        ty: ValueType::Unknown,
    };
    names.iter().map(info).collect()
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Node {
    let owned = |names: &[&str]| names.iter().map(|&s| s.to_owned()).collect();
    Node {
        name: format!("{}_1", op.to_lowercase()),
        domain: String::new(),
        op: op.to_owned(),
        inputs: owned(inputs),
        outputs: owned(outputs),
        attrs: BTreeMap::new(),
    }
}

fn graph(inputs: &[&str], nodes: Vec<Node>, outputs: &[&str]) -> Graph {
    Graph {
        name: "g".to_owned(),
        inputs: infos(inputs),
        outputs: infos(outputs),
        initializers: BTreeMap::new(),
        nodes,
    }
}

fn model(graph: Graph) -> Model {
    Model {
        file: "m.onnx".to_owned(),
        opsets: BTreeMap::from([(String::new(), 13)]),
        graph,
    }
}

fn number(v: f32) -> Option<Array> {
    Some(Array::scalar(Data::F32(vec![v])))
}

#[test]
fn unsupported_nodes_are_listed_all_at_once() {
    let mut foreign = node("Fancy", &["a"], &["b"]);
    foreign.domain = "com.example".to_owned();
    let nodes = vec![
        node("RandomNormalLike", &["x"], &["a"]),
        foreign,
        node("Gelu", &["b"], &["y"]),
    ];
    let model = model(graph(&["x"], nodes, &["y"]));
    let e = Interpreter::new(&model, Limits::default()).err().unwrap();
    assert_eq!(
        e.to_string(),
        "m.onnx: 3 unsupported nodes: randomnormallike_1 (RandomNormalLike: random: outputs would \
         differ from run to run), fancy_1 (Fancy: of the domain com.example), gelu_1 (Gelu: from \
         opset 20 on, the model has 13)"
    );
}

#[test]
fn a_loop_without_end_is_stopped() {
    let body = graph(
        &["i", "go"],
        vec![node("Identity", &["go"], &["on"])],
        &["on"],
    );
    let mut endless = node("Loop", &["", ""], &[]);
    endless
        .attrs
        .insert("body".to_owned(), Attr::Graph(Box::new(body)));
    let model = model(graph(&["x"], vec![endless], &["x"]));
    let limits = Limits {
        node_runs: 1000,
        ..Limits::default()
    };
    let e = Interpreter::new(&model, limits)
        .unwrap()
        .run(vec![number(1.0)])
        .unwrap_err();
    assert!(
        e.to_string().contains("expected at most 1000, got more"),
        "{e}"
    );
}

#[test]
fn a_run_holds_no_more_than_its_limit() {
    let nodes = vec![
        node("ConstantOfShape", &["n"], &["a"]),
        node("Add", &["a", "a"], &["b"]),
        node("Add", &["b", "b"], &["y"]),
    ];
    let model = model(graph(&["n"], nodes, &["y"]));
    let run = |held: usize, n: i64| {
        let limits = Limits {
            held,
            elems: 100,
            ..Limits::default()
        };
        let input = Some(Array::vector(vec![n]));
        Interpreter::new(&model, limits).unwrap().run(vec![input])
    };
    assert_eq!(run(300, 100).unwrap()[0].len(), 100);
    let e = run(299, 100).unwrap_err().to_string();
    assert!(
        e.contains("elements held by the run: expected at most 299, got 300"),
        "{e}"
    );
    let e = run(1000, 1 << 40).unwrap_err().to_string();
    assert!(e.contains("constantofshape_1"), "{e}");
}

#[test]
fn wrong_operands_are_named() {
    let model = model(graph(
        &["x", "y"],
        vec![node("MatMul", &["x", "y"], &["z"])],
        &["z"],
    ));
    let interpreter = Interpreter::new(&model, Limits::default()).unwrap();
    let e = interpreter.run(vec![number(1.0), number(1.0)]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "m.onnx: node matmul_1 (MatMul): inputs: expected dimensions of a matrix product, got [], []"
    );
    let e = interpreter.run(vec![number(1.0)]).unwrap_err();
    assert!(e.to_string().contains("value \"y\""), "{e}");
    let booleans = Some(Array::scalar(Data::Bool(vec![true])));
    let e = interpreter.run(vec![booleans, number(1.0)]).unwrap_err();
    assert!(
        e.to_string()
            .contains("expected elements: numbers, got bool[]"),
        "{e}"
    );
}
