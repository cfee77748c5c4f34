//! What an import takes beside what it was shown, and what it tells of it.

use lazybatch_graph::onnx::{Array, Attr, Data, Dim, Elem, Model, Node, ValueInfo, ValueType};
use lazybatch_graph::{Program, Tensor};
use lazybatch_kernels::import::{Options, import_model};
use lazybatch_kernels::validate_inputs;

use super::refusals::{model, named, node, refusal};

fn notes(program: &Program) -> String {
    program.notes().collect::<Vec<_>>().join("\n")
}

fn imported(model: &Model) -> Program {
    import_model(model, &Options::default()).unwrap()
}

fn input(name: &str, elem: Elem, dims: &[Dim]) -> ValueInfo {
    ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            elem,
            dims: Some(dims.to_vec()),
        },
    }
}

/// `x` of one sample as one row, as `view(1, -1)` traces.
fn viewed() -> Model {
    let mut m = model(
        &[Dim::Fixed(1), Dim::Fixed(2), Dim::Fixed(2)],
        vec![
            node("Reshape", &["x", "row"], "flat", &[]),
            node("MatMul", &["flat", "w"], "y", &[]),
        ],
        &["y"],
    );
    let all = &mut m.graph.initializers;
    all.insert("row".into(), Array::vector(vec![1, -1]));
    m
}

#[test]
fn a_graph_for_one_sample_has_no_batch_axis() {
    let program = imported(&viewed());
    assert_eq!(program.inputs[0].ty.to_string(), "f32[1, 2, 2]");
    assert!(notes(&program).contains("exported for a batch of 1"));
    // A size that the user says is one, not the batch; there is nothing to tell then.
    let options = Options {
        sizes: vec!["x:0=1".parse().unwrap()],
        ..Options::default()
    };
    let program = import_model(&viewed(), &options).unwrap();
    assert_eq!(program.inputs[0].ty.to_string(), "f32[1, 2, 2]");
    assert_eq!(notes(&program), "");
    // Where any batch will do, an axis of one is it.
    let mut m = viewed();
    m.graph.nodes = vec![node("Relu", &["x"], "y", &[])];
    let program = imported(&m);
    assert_eq!(program.inputs[0].ty.to_string(), "f32[2, 2]");
}

#[test]
fn types_of_the_graph_are_kept() {
    let dims = [named("batch"), Dim::Fixed(2)];
    for elem in [
        Elem::I64,
        Elem::U8,
        Elem::Bool,
        Elem::F64,
        Elem::F32,
        Elem::I32,
    ] {
        let nodes = vec![node("Identity", &["x"], "y", &[])];
        let mut m = model(&dims, nodes, &["y"]);
        m.graph.inputs = vec![input("x", elem, &dims)];
        let program = imported(&m);
        let own = matches!(elem, Elem::F32 | Elem::I32);
        for name in ["x", "y"] {
            assert_eq!(program.stated_type(name), (!own).then_some(elem), "{name}");
        }
        assert_eq!(
            notes(&program).contains("computes in f64"),
            elem == Elem::F64
        );
    }
}

#[test]
fn numbers_that_f32_does_not_have_are_told_of() {
    let dims = [named("batch"), Dim::Fixed(8)];
    let told = |op: &str| {
        let mut m = model(&dims, vec![node(op, &["x"], "y", &[])], &["y"]);
        m.graph.inputs = vec![input("x", Elem::F64, &dims)];
        notes(&imported(&m)).contains("with inputs up to 1000, f32 is not f64: output y")
    };
    assert!(told("Exp"));
    assert!(!told("Tanh"));
}

#[test]
fn axes_that_became_one_sequence_are_named() {
    let dims = |name: &str| [named("batch"), named(name), Dim::Fixed(4)];
    let told = |second: &str| {
        let nodes = vec![node("Add", &["x", "z"], "y", &[])];
        let mut m = model(&dims("src_len"), nodes, &["y"]);
        m.graph.inputs.push(input("z", Elem::F32, &dims(second)));
        notes(&imported(&m))
    };
    assert_eq!(told("src_len"), "");
    assert!(told("tgt_len").contains("the axes src_len, tgt_len count as one sequence"));
}

#[test]
fn numbers_that_divide_are_not_zero_when_they_are_tried() {
    let dims = [named("batch"), Dim::Fixed(2)];
    for op in ["Div", "Mod"] {
        let mut m = model(&dims, vec![node(op, &["x", "by"], "y", &[])], &["y"]);
        m.graph.inputs = vec![input("x", Elem::I64, &dims), input("by", Elem::I64, &dims)];
        imported(&m);
    }
}

#[test]
fn a_scale_of_all_samples_is_refused_by_node() {
    let mut quantize = node("DynamicQuantizeLinear", &["x"], "y", &[]);
    quantize.outputs.extend(["scale".into(), "zero".into()]);
    let dims = [named("batch"), Dim::Fixed(4)];
    let e = refusal(&model(&dims, vec![quantize], &["y"]), &Options::default());
    assert!(
        e.contains("the y (DynamicQuantizeLinear: takes its scale from all samples of a batch"),
        "{e}"
    );
}

#[test]
fn a_least_length_is_found_and_kept_to() {
    // The last three positions: fewer have none such.
    let nodes: Vec<Node> = vec![
        node("Slice", &["x", "starts", "ends", "axes"], "last", &[]),
        node("Relu", &["last"], "y", &[]),
    ];
    let dims = [named("batch"), named("seq"), Dim::Fixed(2)];
    let mut m = model(&dims, nodes, &["y"]);
    for (name, v) in [("starts", -3), ("ends", i64::MAX), ("axes", 1)] {
        let all = &mut m.graph.initializers;
        all.insert(name.into(), Array::vector(vec![v]));
    }
    let program = imported(&m);
    assert_eq!(program.least_len(), Some(3));
    let of = |len: usize| {
        let x = Tensor::from_f32(&[len, 2], &vec![0.5; len * 2]);
        validate_inputs(&program, &[x])
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    let e = of(2).unwrap_err();
    assert!(e.contains("a length of at least 3"), "{e}");
    of(3).unwrap();
}

#[test]
fn refusals_name_the_option_that_helps() {
    let nodes = || vec![node("Relu", &["x"], "y", &[])];
    let dims = [
        named("batch"),
        Dim::Fixed(3),
        named("height"),
        named("width"),
    ];
    let e = refusal(&model(&dims, nodes(), &["y"]), &Options::default());
    assert!(e.contains("say its size with --size width=N"), "{e}");
    let dims = [named("batch"), named("seq"), Dim::Unknown];
    let e = refusal(&model(&dims, nodes(), &["y"]), &Options::default());
    assert!(e.contains("--size x:2=N says which"), "{e}");
    // Steps first, and nobody says so.
    let size = [("hidden_size", Attr::Int(2))];
    let lstm = vec![node("LSTM", &["x", "wide", "deep"], "y", &size)];
    let mut m = model(&[named("i"), named("j"), Dim::Fixed(4)], lstm, &["y"]);
    for (name, width) in [("wide", 4), ("deep", 2)] {
        let weights = Data::F32(vec![0.1; 8 * width]);
        let all = &mut m.graph.initializers;
        all.insert(name.into(), Array::new(vec![1, 8, width], weights));
    }
    let e = refusal(&m, &Options::default());
    assert!(
        e.contains("say --batch-axis INPUT:1 and --sequence-axis INPUT:0"),
        "{e}"
    );
    // A table of positions that a request's data look up: 20 rows, and no known value says so.
    let mut table = model(
        &[named("batch"), named("seq")],
        vec![
            node("Mul", &["x", "nothing"], "zeros", &[]),
            node("Add", &["zeros", "unit"], "ones", &[]),
            node("CumSum", &["ones", "axis"], "places", &[]),
            node("Gather", &["table", "places"], "y", &[]),
        ],
        &["y"],
    );
    table.graph.inputs = vec![input("x", Elem::I64, &[named("batch"), named("seq")])];
    let all = &mut table.graph.initializers;
    all.insert("nothing".into(), Array::scalar(Data::I64(vec![0])));
    all.insert("unit".into(), Array::scalar(Data::I64(vec![1])));
    all.insert("axis".into(), Array::scalar(Data::I64(vec![1])));
    let rows = Array::new(vec![20, 2], Data::F32(vec![0.5; 40]));
    all.insert("table".into(), rows);
    let e = refusal(&table, &Options::default());
    assert!(e.contains("or a smaller --max-len"), "{e}");
}
