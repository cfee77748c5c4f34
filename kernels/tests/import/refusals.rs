//! What an import refuses, and how it says so.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{
    Array, Attr, Data, Dim, Elem, Graph, Model, Node, ValueInfo, ValueType,
};
use lazybatch_kernels::import::{AxisSpec, Fixed, Options, import, import_model};

use super::path;

fn info(name: &str, dims: &[Dim]) -> ValueInfo {
    ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            elem: Elem::F32,
            dims: Some(dims.to_vec()),
        },
    }
}

pub fn named(name: &str) -> Dim {
    Dim::Named(name.into())
}

pub fn node(op: &str, inputs: &[&str], output: &str, attrs: &[(&str, Attr)]) -> Node {
    Node {
        name: format!("the {output}"),
        domain: String::new(),
        op: op.into(),
        inputs: inputs.iter().map(ToString::to_string).collect(),
        outputs: vec![output.into()],
        attrs: attrs
            .iter()
            .map(|(n, a)| (n.to_string(), a.clone()))
            .collect(),
    }
}

pub fn model(input: &[Dim], nodes: Vec<Node>, outputs: &[&str]) -> Model {
    let ones = Array::new(vec![4, 4], Data::F32(vec![0.5; 16]));
    Model {
        file: "test.onnx".into(),
        opsets: BTreeMap::from([(String::new(), 17)]),
        graph: Graph {
            name: "test".into(),
            inputs: vec![info("x", input)],
            outputs: outputs.iter().map(|o| info(o, &[])).collect(),
            initializers: BTreeMap::from([("w".to_string(), ones)]),
            nodes,
        },
    }
}

pub fn refusal(model: &Model, options: &Options) -> String {
    import_model(model, options).unwrap_err().to_string()
}

#[test]
fn all_nodes_that_cannot_run_are_listed_at_once() {
    let nodes = vec![
        node("RandomNormalLike", &["x"], "noise", &[]),
        node("Frobnicate", &["noise"], "frob", &[]),
        node("Relu", &["frob"], "y", &[]),
    ];
    let e = refusal(
        &model(&[named("batch"), Dim::Fixed(4)], nodes, &["y"]),
        &Options::default(),
    );
    assert!(e.contains("2 unsupported nodes"), "{e}");
    assert!(
        e.contains("the noise (RandomNormalLike") && e.contains("the frob (Frobnicate"),
        "{e}"
    );
}

#[test]
fn lengths_that_change_are_refused_by_node() {
    let pads = [
        ("kernel_shape", Attr::Ints(vec![2])),
        ("strides", Attr::Ints(vec![2])),
    ];
    let nodes = vec![node("MaxPool", &["x"], "y", &pads)];
    let dims = [named("batch"), Dim::Fixed(4), named("time")];
    let e = refusal(&model(&dims, nodes, &["y"]), &Options::default());
    assert!(e.contains("the y (MaxPool: result y: expected axes"), "{e}");
}

#[test]
fn sizes_that_values_of_a_request_decide_are_refused() {
    let nodes = vec![
        node("NonZero", &["x"], "places", &[]),
        node("Cast", &["places"], "y", &[("to", Attr::Int(1))]),
    ];
    // Random floats are not zero: every run of the import sees the same size.
    let e = refusal(&model(&[Dim::Fixed(4)], nodes, &["y"]), &Options::default());
    assert!(
        e.contains("the places (NonZero: its result has as many elements as the values of x say"),
        "{e}"
    );
}

#[test]
fn a_program_that_mixes_requests_is_refused() {
    // A softmax over the batch axis: each sample depends on the others.
    let nodes = vec![node("Softmax", &["x"], "y", &[("axis", Attr::Int(0))])];
    let dims = [named("batch"), Dim::Fixed(4)];
    let e = refusal(&model(&dims, nodes, &["y"]), &Options::default());
    assert!(
        e.contains("output y: at batch 3, length 0, sample 0, element"),
        "{e}"
    );
    assert!(e.contains("of the largest magnitude"), "{e}");
}

#[test]
fn a_program_that_mixes_requests_is_refused_where_most_numbers_give_none() {
    // Half of the logarithms are no numbers, and so are all of the sums of four.
    let logs = || {
        vec![
            node("Log", &["x"], "logs", &[]),
            node("MatMul", &["logs", "w"], "sums", &[]),
        ]
    };
    let dims = [named("batch"), Dim::Fixed(4)];
    import_model(&model(&dims, logs(), &["sums"]), &Options::default()).unwrap();
    // Neither do elements beside them, which are, hide it.
    let mut nodes = logs();
    nodes.push(node(
        "Softmax",
        &["sums"],
        "mixed",
        &[("axis", Attr::Int(0))],
    ));
    nodes.push(node(
        "Concat",
        &["mixed", "x"],
        "y",
        &[("axis", Attr::Int(1))],
    ));
    let e = refusal(&model(&dims, nodes, &["y"]), &Options::default());
    assert!(e.contains("output y: at batch 3, length 0"), "{e}");
}

#[test]
fn outputs_that_are_never_finite_are_refused() {
    let nodes = vec![
        node("Abs", &["x"], "size", &[]),
        node("Neg", &["size"], "below", &[]),
        node("Log", &["below"], "y", &[]),
    ];
    let dims = [named("batch"), Dim::Fixed(4)];
    let e = refusal(&model(&dims, nodes, &["y"]), &Options::default());
    assert!(
        e.contains("output y: elements: expected a finite one for some of the inputs"),
        "{e}"
    );
}

#[test]
fn outputs_without_data_are_refused() {
    let nodes = vec![
        node("Relu", &["x"], "y", &[]),
        node("Relu", &["w"], "z", &[]),
    ];
    let dims = [named("batch"), Dim::Fixed(4)];
    let e = refusal(&model(&dims, nodes, &["y", "z"]), &Options::default());
    assert!(
        e.contains("output z: value: expected one that depends"),
        "{e}"
    );
}

#[test]
fn axes_and_inputs_that_are_not_there_are_named() {
    let nodes = || vec![node("MatMul", &["x", "w"], "y", &[])];
    let dims = [named("rows"), named("columns"), Dim::Fixed(4)];
    let m = model(&dims, nodes(), &["y"]);
    let with = |options: Options| refusal(&m, &options);
    let e = with(Options {
        batch: vec![AxisSpec::Named("samples".into())],
        ..Options::default()
    });
    assert!(
        e.contains("--batch-axis: axis: expected one of columns, rows, got samples"),
        "{e}"
    );
    let e = with(Options {
        sequence: vec!["x:7".parse().unwrap()],
        ..Options::default()
    });
    assert!(e.contains("expected one of x:0 to 2, got x:7"), "{e}");
    let nameless = model(&[Dim::Fixed(2), Dim::Fixed(4)], nodes(), &["y"]);
    let options = Options {
        sizes: vec!["foo=3".parse().unwrap()],
        ..Options::default()
    };
    let e = refusal(&nameless, &options);
    let told = "--size: axis: expected INPUT:AXIS, no axis has a name, got foo";
    assert!(e.contains(told), "{e}");
    let e = with(Options {
        fixed: vec![Fixed {
            input: "sr".into(),
            value: 1.0,
        }],
        ..Options::default()
    });
    assert!(
        e.contains("fixed input: name: expected one of x, got sr"),
        "{e}"
    );
    let e = with(Options {
        masks: vec!["mask".into()],
        ..Options::default()
    });
    assert!(e.contains("mask: name: expected one of x, got mask"), "{e}");
    // Batch and sequence the other way round serve as well.
    let turned = Options {
        batch: vec![AxisSpec::Named("columns".into())],
        sequence: vec![AxisSpec::Named("rows".into())],
        ..Options::default()
    };
    let program = import_model(&m, &turned).unwrap();
    assert_eq!(program.inputs[0].ty.to_string(), "f32[len, 4]");
}

#[test]
fn a_longest_sequence_beyond_the_tables_is_refused() {
    let options = Options {
        max_len: Some(65),
        ..Options::default()
    };
    let e = import(&path("causal.onnx"), &options)
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("--max-len: length: expected a length that the tables"),
        "{e}"
    );
    assert!("x=".parse::<Fixed>().is_err() && "x:".parse::<AxisSpec>().is_err());
}

#[test]
fn damaged_files_are_refused() {
    let bytes = std::fs::read(path("bert.onnx")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut.onnx");
    for cut in [0, 10, bytes.len() / 2, bytes.len() - 3] {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        assert!(import(&file, &Options::default()).is_err(), "{cut} bytes");
    }
}

#[test]
fn manifests_that_do_not_fit_their_graphs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["speller-encoder.onnx", "speller-step.onnx"] {
        std::fs::copy(path(file), dir.path().join(file)).unwrap();
    }
    let sound = std::fs::read_to_string(path("speller.toml")).unwrap();
    let with = |from: &str, by: &str| {
        assert!(sound.contains(from), "{from}");
        let file = dir.path().join("m.toml");
        std::fs::write(&file, sound.replace(from, by)).unwrap();
        import(&file, &Options::default()).unwrap_err().to_string()
    };
    let check = |from: &str, by: &str, part: &str| {
        let e = with(from, by);
        assert!(e.contains(part), "{part:?} is not in {e}");
    };
    check(
        "[decoder]",
        "[decoder",
        "manifest: text: expected a manifest",
    );
    check(
        "max_steps = 15",
        "max_steps = 0",
        "max_steps: expected 1 to",
    );
    check("stop = 2", "stop = 2\nhalt = 3", "halt");
    let token = "stop: expected a token, 0 or more, got -3";
    check("stop = 2", "stop = -3", token);
    let token = "start: expected a token, 0 or more, got -1";
    check("start = 1", "start = -1", token);
    let token = "decoder: stop: expected one of the 9 tokens that `choose` has scores of, got 9";
    check("stop = 2", "stop = 9", token);
    check("speller-step.onnx", "missing.onnx", "missing.onnx");
    check(
        "token = \"token\"",
        "token = \"word\"",
        "decoder: input: expected one of token, h, memory, got word",
    );
    check(
        "feed = { h = \"next_h\" }",
        "feed = {}",
        "first: expected inputs that `feed` names, got h",
    );
    check("{ h = \"next_h\" }", "{ h = \"last_h\" }", "decoder feed h");
    // A value in the graph that is none of its outputs.
    check(
        "choose = \"logits\"",
        "choose = \"token\"",
        "decoder choose: output: expected an output that depends on the request, got token",
    );
    check(
        "{ h = \"state\" }",
        "{ h = \"memory\" }",
        "decoder input h: first value",
    );
    check(
        "{ memory = \"memory\" }",
        "{}",
        "decoder input memory: value: expected an input that",
    );
    check(
        "{ memory = \"memory\" }",
        "{ memory = \"state\" }",
        "decoder input memory: encoder's output",
    );
    check(
        "choose = \"logits\"",
        "choose = \"scores\"",
        "decoder choose: output: expected an output that depends",
    );
    let cached = "read = { memory = \"memory\" }\ncache = { h = \"next_h\" }";
    check(
        "read = { memory = \"memory\" }",
        cached,
        "decoder input h: cache",
    );
}
