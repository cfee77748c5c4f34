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

/// Runs one node of opset `opset` on `inputs`.
fn run_node(node: Node, opset: i64, inputs: Vec<Array>) -> Result<Vec<Array>, String> {
    let names: Vec<String> = node.inputs.clone();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let outputs = node.outputs.clone();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let mut model = model(graph(&names, vec![node], &outputs));
    model.opsets.insert(String::new(), opset);
    let interpreter = Interpreter::new(&model, Limits::default()).map_err(|e| e.to_string())?;
    let inputs = inputs.into_iter().map(Some).collect();
    interpreter.run(inputs).map_err(|e| e.to_string())
}

fn floats(dims: &[usize], v: &[f32]) -> Array {
    Array::new(dims.to_vec(), Data::F32(v.to_vec()))
}

#[test]
fn an_output_label_twice_is_refused() {
    let mut einsum = node("Einsum", &["x"], &["y"]);
    einsum
        .attrs
        .insert("equation".into(), Attr::Str("ij->ii".into()));
    let e = run_node(einsum, 13, vec![floats(&[2, 2], &[1.0; 4])]).unwrap_err();
    assert!(
        e.contains("attribute \"equation\": expected each label of the output once, got ij->ii"),
        "{e}"
    );
}

#[test]
fn an_axis_without_elements_is_not_resized_to_some() {
    let resize = node("Resize", &["x", "roi", "scales", "sizes"], &["y"]);
    let none = || floats(&[0], &[]);
    let inputs = |to| vec![floats(&[0, 0], &[]), none(), none(), Array::vector(to)];
    let e = run_node(resize.clone(), 13, inputs(vec![0, 5])).unwrap_err();
    assert!(e.contains("input 0: expected elements along axis 1"), "{e}");
    let y = run_node(resize, 13, inputs(vec![0, 0])).unwrap();
    assert_eq!(y[0].dims(), [0, 0]);
}

#[test]
fn quantizing_goes_by_the_stated_type() {
    let quantize = |code: i64, with_zero: bool| {
        let names = ["x", "scale", "zero"];
        let mut node = node(
            "QuantizeLinear",
            &names[..2 + usize::from(with_zero)],
            &["y"],
        );
        node.attrs.insert("output_dtype".into(), Attr::Int(code));
        let mut inputs = vec![floats(&[3], &[-2.0, 0.0, 300.0]), floats(&[], &[1.0])];
        if with_zero {
            inputs.push(Array::scalar(Data::I8(vec![0])));
        }
        run_node(node, 21, inputs).map(|mut y| y.remove(0).data().clone())
    };
    // 3 is i8, 5 i16, 2 u8, 1 a float.
    assert_eq!(quantize(3, false), Ok(Data::I8(vec![-2, 0, 127])));
    assert_eq!(quantize(5, false), Ok(Data::I16(vec![-2, 0, 300])));
    assert_eq!(quantize(0, false), Ok(Data::U8(vec![0, 0, 255])));
    assert_eq!(quantize(3, true), Ok(Data::I8(vec![-2, 0, 127])));
    let e = quantize(2, true).unwrap_err();
    assert!(e.contains("expected i8 as the zero points, got u8"), "{e}");
    let e = quantize(1, false).unwrap_err();
    assert!(
        e.contains("expected integers of 8 or 16 bits, got f32"),
        "{e}"
    );
}

#[test]
fn the_axis_of_a_transform_is_counted_over_all_axes() {
    let x = || floats(&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 5.0]);
    let rows = [3.0, 0.0, -1.0, 0.0, 8.0, 0.0, -2.0, 0.0];
    let columns = [4.0, 0.0, 7.0, 0.0, -2.0, 0.0, -3.0, 0.0];
    let by_attribute = |axis: Option<i64>| {
        let mut dft = node("DFT", &["x"], &["y"]);
        if let Some(axis) = axis {
            dft.attrs.insert("axis".into(), Attr::Int(axis));
        }
        run_node(dft, 17, vec![x()])
    };
    let by_operand = |axis: i64| {
        let dft = node("DFT", &["x", "", "axis"], &["y"]);
        let mut model = model(graph(&["x", "axis"], vec![dft], &["y"]));
        model.opsets.insert(String::new(), 20);
        let axis = Array::scalar(Data::I64(vec![axis]));
        let interpreter = Interpreter::new(&model, Limits::default()).unwrap();
        interpreter
            .run(vec![Some(x()), Some(axis)])
            .map_err(|e| e.to_string())
    };
    let check = |y: Result<Vec<Array>, String>, wanted: [f64; 8]| {
        let y = y.unwrap()[0].data().to_f64();
        assert!(
            y.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6),
            "{y:?}"
        );
    };
    check(by_attribute(None), columns);
    check(by_attribute(Some(-2)), rows);
    check(by_attribute(Some(-3)), columns);
    check(run_node(node("DFT", &["x"], &["y"]), 20, vec![x()]), rows);
    check(by_operand(-3), columns);
    check(by_operand(1), columns);
    check(by_operand(2), rows);
    for e in [by_attribute(Some(-1)), by_operand(3)] {
        assert!(
            e.unwrap_err()
                .contains("axis: expected another than the last, got 3")
        );
    }
}

#[test]
fn many_operands_and_results_are_counted_before_they_are_computed() {
    let limits = Limits {
        work: 200_000,
        ..Limits::default()
    };
    let refusal = |node: Node, x: Array, attrs: &[(&str, Attr)]| {
        let outputs: Vec<&str> = node.outputs.iter().map(String::as_str).collect();
        let mut node = node.clone();
        node.attrs
            .extend(attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())));
        let outputs = outputs[..1].to_vec();
        let mut model = model(graph(&["x"], vec![node], &outputs));
        // The last with sizes of a Split as an attribute.
        model.opsets.insert(String::new(), 12);
        let interpreter = Interpreter::new(&model, limits).unwrap();
        let e = interpreter.run(vec![Some(x)]).unwrap_err().to_string();
        assert!(
            e.contains("number of steps: expected at most 200000"),
            "{e}"
        );
    };
    for op in ["Sum", "Max", "Min", "Mean"] {
        refusal(
            node(op, &["x"; 1000], &["y"]),
            floats(&[1000], &[1.0; 1000]),
            &[],
        );
    }
    let axis = [("axis", Attr::Int(1))];
    refusal(
        node("Concat", &["x"; 1000], &["y"]),
        floats(&[1000, 0], &[]),
        &axis,
    );
    let names: Vec<String> = (0..1000).map(|i| format!("y{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut sizes = vec![0; 1000];
    sizes[0] = 1000;
    let sizes = [("split", Attr::Ints(sizes))];
    refusal(
        node("Split", &["x"], &names),
        floats(&[1000], &[1.0; 1000]),
        &sizes,
    );
}

#[test]
fn attributes_and_operands_that_an_opset_does_not_define_are_refused() {
    let why = |op: &str, opset: i64, operands: &[&str], attrs: &[&str]| {
        let mut one = node(op, operands, &["y"]);
        let attrs = attrs.iter();
        one.attrs = attrs.map(|k| ((*k).to_owned(), Attr::Int(1))).collect();
        let mut model = model(graph(&["x", "z"], vec![one], &["y"]));
        model.opsets.insert(String::new(), opset);
        let refused = Interpreter::new(&model, Limits::default()).err();
        refused.map_or_else(String::new, |e| e.to_string())
    };
    for (op, opset, operands, attrs, told) in [
        (
            "Clip",
            13,
            &["x"][..],
            &["max", "min"][..],
            "clip_1 (Clip: attributes: expected none at opset 13, got max)",
        ),
        (
            "LeakyRelu",
            13,
            &["x"],
            &["alfa"],
            "expected alpha alone at opset 13, got alfa",
        ),
        (
            "Pad",
            13,
            &["x", "z"],
            &["value"],
            "expected mode alone at opset 13, got value",
        ),
        (
            "Unsqueeze",
            13,
            &["x"],
            &["axes"],
            "expected none at opset 13, got axes",
        ),
        (
            "Split",
            13,
            &["x"],
            &["num_outputs"],
            "expected axis alone at opset 13, got num_outputs",
        ),
        (
            "TopK",
            11,
            &["x", "z"],
            &["k"],
            "expected some of axis, largest, sorted at opset 11, got k",
        ),
        (
            "Relu",
            13,
            &["x", "z"],
            &[],
            "relu_1 (Relu: operands: expected at most 1 at opset 13, got 2)",
        ),
        (
            "ReduceSum",
            12,
            &["x", "z"],
            &[],
            "operands: expected at most 1 at opset 12, got 2",
        ),
    ] {
        let e = why(op, opset, operands, attrs);
        assert!(e.contains(told), "{op}: {e}");
    }
    for (op, opset, operands, attrs) in [
        ("Clip", 6, &["x"][..], &["max", "min"][..]),
        ("Unsqueeze", 11, &["x"], &["axes"]),
        ("BatchNormalization", 7, &["x"; 5], &["spatial", "momentum"]),
        ("Relu", 14, &["x", ""], &[]),
        ("Max", 13, &["x"; 20], &[]),
        ("ReduceSum", 13, &["x", "z"], &["noop_with_empty_axes"]),
    ] {
        assert_eq!(why(op, opset, operands, attrs), "", "{op}");
    }
}
