//! What nodes are lowered to, where the nearest native form would not give what ONNX says.

use std::sync::Arc;

use lazybatch_graph::onnx::{
    Array, Attr, Data, Dim, Elem, Graph, Model, Node, ValueInfo, ValueType,
};
use lazybatch_graph::{DType, Op, Tensor};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::import::{Options, import_model};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, ReferenceDevice};
use lazybatch_sla::ModelId;

use super::refusals::{model, named, node, refusal};

fn fixed(dims: &[usize]) -> Vec<Dim> {
    let dims = dims.iter().map(|&n| Dim::Fixed(n));
    std::iter::once(named("batch")).chain(dims).collect()
}

fn with(mut model: Model, constants: &[(&str, Array)]) -> Model {
    for (name, array) in constants {
        let initializers = &mut model.graph.initializers;
        initializers.insert((*name).to_owned(), array.clone());
    }
    model
}

fn of(v: f32, dims: &[usize]) -> Array {
    let num = dims.iter().product();
    Array::new(dims.to_vec(), Data::F32(vec![v; num]))
}

/// The first output for one sample.
fn answer(model: &Model, x: Tensor) -> Tensor {
    let program = Arc::new(import_model(model, &Options::default()).unwrap());
    let mut device = CpuDevice::new(CpuOptions::default());
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    let requests = [Request {
        inputs: vec![x],
        len: 0,
        samples: 1,
    }];
    let results = run(&mut device, &program, &requests, Schedule::Alone).unwrap();
    results[0][0].clone().unwrap()
}

#[test]
fn quotients_are_not_products_with_a_rounded_number() {
    let by = |divisor: Array| {
        let nodes = vec![
            node("Div", &["x", "divisor"], "quotient", &[]),
            node("Floor", &["quotient"], "y", &[]),
        ];
        let m = with(model(&fixed(&[4]), nodes, &["y"]), &[("divisor", divisor)]);
        answer(&m, Tensor::from_f32(&[1, 4], &[41.0, 82.0, 40.0, 0.0])).to_f32()
    };
    assert_eq!(by(of(41.0, &[])), [1.0, 2.0, 0.0, 0.0]);
    assert_eq!(by(of(41.0, &[4])), [1.0, 2.0, 0.0, 0.0]);
    // Where nothing is rounded behind it, or one over a power of two is exact, a product is as good.
    let nodes = vec![node("Div", &["x", "six"], "y", &[])];
    let m = with(model(&fixed(&[4]), nodes, &["y"]), &[("six", of(6.0, &[]))]);
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(super::count(&program, |op| matches!(op, Op::Scale(_))), 1);
    let nodes = vec![node("Div", &["x", "eight"], "y", &[])];
    let m = with(
        model(&fixed(&[4]), nodes, &["y"]),
        &[("eight", of(8.0, &[]))],
    );
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(super::count(&program, |op| *op == Op::Scale(0.125)), 1);
}

#[test]
fn quotients_that_are_rounded_behind_other_ops_are_none_either() {
    let behind = |nodes: Vec<Node>| {
        let mut all = vec![node("Div", &["x", "by"], "quotient", &[])];
        all.extend(nodes);
        all.push(node("Floor", &["moved"], "y", &[]));
        let m = model(&fixed(&[4]), all, &["y"]);
        with(m, &[("by", of(41.0, &[])), ("zero", of(0.0, &[]))])
    };
    let check = |m: &Model, what: &str| {
        let y = answer(m, Tensor::from_f32(&[1, 4], &[41.0, 82.0, 123.0, 40.0]));
        assert_eq!(y.to_f32(), [1.0, 2.0, 3.0, 0.0], "{what}");
    };
    for op in ["Dropout", "Sum", "Mean", "LeakyRelu", "Celu"] {
        let moved = node(op, &["quotient"], "moved", &[]);
        check(&behind(vec![moved]), op);
    }
    let chosen = vec![
        node("Greater", &["x", "zero"], "above", &[]),
        node("Where", &["above", "quotient", "x"], "moved", &[]),
    ];
    check(&behind(chosen), "Where");
    let padded = vec![
        node("Pad", &["quotient", "pads"], "padded", &[]),
        node("Tile", &["padded", "ones"], "moved", &[]),
    ];
    let constants = [
        ("pads", Array::vector(vec![0; 4])),
        ("ones", Array::vector(vec![1; 2])),
    ];
    check(&with(behind(padded), &constants), "Pad and Tile");
    let roots = vec![
        node("Sqrt", &["quotient"], "root", &[]),
        node("Mul", &["root", "root"], "moved", &[]),
    ];
    let scales = |m: &Model| {
        let program = import_model(m, &Options::default()).unwrap();
        super::count(&program, |op| matches!(op, Op::Scale(_)))
    };
    assert_eq!(scales(&behind(roots)), 0);
    // A product with weights is a sum in some order: its last bits decide nothing that a quotient had.
    let product = node("MatMul", &["quotient", "w"], "moved", &[]);
    assert_eq!(scales(&behind(vec![product])), 1);
    for op in ["ThresholdedRelu", "Shrink", "Hardmax"] {
        let nodes = vec![
            node("Div", &["x", "by"], "quotient", &[]),
            node(op, &["quotient"], "y", &[]),
        ];
        let m = with(model(&fixed(&[4]), nodes, &["y"]), &[("by", of(41.0, &[]))]);
        assert_eq!(scales(&m), 0, "{op}");
    }
}

#[test]
fn integers_are_subtracted_from_a_constant() {
    for (elem, one) in [
        (Elem::I64, Data::I64(vec![1])),
        (Elem::I32, Data::I32(vec![1])),
        (Elem::U8, Data::U8(vec![1])),
    ] {
        let nodes = vec![node("Sub", &["one", "x"], "y", &[])];
        let mut m = with(
            model(&fixed(&[3]), nodes, &["y"]),
            &[("one", Array::scalar(one))],
        );
        m.graph.inputs[0].ty = ValueType::Tensor {
            elem,
            dims: Some(fixed(&[3])),
        };
        let program = import_model(&m, &Options::default()).unwrap();
        assert_eq!(super::general(&program), ["Sub"], "{elem}");
        if elem != Elem::U8 {
            let y = answer(&m, Tensor::from_i32(&[1, 3], &[1, -2, 3]));
            assert_eq!(y.to_i32(), [0, 3, -2], "{elem}");
        }
    }
}

#[test]
fn the_largest_of_a_window_with_no_number_is_none() {
    let attrs = [("kernel_shape", Attr::Ints(vec![2, 2]))];
    let nodes = vec![node("MaxPool", &["x"], "y", &attrs)];
    let m = model(&fixed(&[1, 2, 2]), nodes, &["y"]);
    let program = import_model(&m, &Options::default()).unwrap();
    assert!(super::general(&program).is_empty());
    for at in 0..4 {
        let mut x = [1.0, 4.0, 2.0, 3.0];
        x[at] = f32::NAN;
        let y = answer(&m, Tensor::from_f32(&[1, 1, 2, 2], &x)).to_f32();
        assert!(y[0].is_nan(), "{at}: {y:?}");
    }
}

#[test]
fn tables_of_integers_give_integers() {
    let nodes = vec![node("Gather", &["table", "x"], "y", &[])];
    let table = (0..8).map(|v| 16_777_217 + v).collect();
    let table = Array::new(vec![4, 2], Data::I64(table));
    let mut m = with(model(&fixed(&[1]), nodes, &["y"]), &[("table", table)]);
    m.graph.inputs[0].ty = ValueType::Tensor {
        elem: Elem::I64,
        dims: Some(fixed(&[1])),
    };
    let y = answer(&m, Tensor::from_i32(&[1, 1], &[2]));
    assert_ne!(y.dtype, DType::F32);
    assert_eq!(y.to_i32(), [16_777_221, 16_777_222]);
}

#[test]
fn planes_of_samples_in_samples_have_a_mean() {
    let nodes = vec![
        node("Reshape", &["x", "frames"], "folded", &[]),
        node(
            "ReduceMean",
            &["folded"],
            "means",
            &[("axes", Attr::Ints(vec![2, 3]))],
        ),
        node("Reshape", &["means", "samples"], "y", &[]),
    ];
    let m = with(
        model(&fixed(&[4, 3, 8, 8]), nodes, &["y"]),
        &[
            ("frames", Array::vector(vec![-1, 3, 8, 8])),
            ("samples", Array::vector(vec![-1, 4, 3])),
        ],
    );
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(super::general(&program), ["ReduceMean"]);
    super::check_bits(program, 3, 0);
}

/// A layer normalisation of `[batch, 3, 4]` in parts.
fn normalisation(gamma: Array, beta: Array) -> Model {
    let last = [("axes", Attr::Ints(vec![-1]))];
    let nodes: Vec<Node> = vec![
        node("ReduceMean", &["x"], "mean", &last),
        node("Sub", &["x", "mean"], "centred", &[]),
        node("Pow", &["centred", "two"], "square", &[]),
        node("ReduceMean", &["square"], "variance", &last),
        node("Add", &["variance", "eps"], "above", &[]),
        node("Sqrt", &["above"], "deviation", &[]),
        node("Div", &["centred", "deviation"], "normed", &[]),
        node("Mul", &["normed", "gamma"], "scaled", &[]),
        node("Add", &["scaled", "beta"], "y", &[]),
    ];
    with(
        model(&fixed(&[3, 4]), nodes, &["y"]),
        &[
            ("two", of(2.0, &[])),
            ("eps", of(1e-5, &[])),
            ("gamma", gamma),
            ("beta", beta),
        ],
    )
}

#[test]
fn a_normalisation_is_one_node_where_its_scale_lies_on_the_last_axis() {
    let norms = |gamma: &[usize], beta: &[usize]| {
        let m = normalisation(of(0.75, gamma), of(0.5, beta));
        let program = import_model(&m, &Options::default()).unwrap();
        let num = super::count(&program, |op| matches!(op, Op::LayerNorm { .. }));
        super::check_bits(program, 3, 0);
        num
    };
    assert_eq!(norms(&[4], &[4]), 1);
    assert_eq!(norms(&[1, 1, 4], &[1, 4]), 1);
    assert_eq!(norms(&[3, 4], &[4]), 0);
    // What is scaled alone is a normalisation too; the shift stands behind it.
    assert_eq!(norms(&[4], &[3, 1]), 1);
    assert_eq!(norms(&[1], &[]), 0);
}

#[test]
fn a_constant_may_hold_what_is_no_number() {
    let nodes = vec![
        node("Greater", &["x", "zero"], "above", &[]),
        node("Where", &["above", "x", "none"], "y", &[]),
    ];
    for dims in [&[][..], &[3], &[1, 3]] {
        let constants = [("zero", of(0.0, &[])), ("none", of(f32::NAN, dims))];
        let m = with(model(&fixed(&[3]), nodes.clone(), &["y"]), &constants);
        let y = answer(&m, Tensor::from_f32(&[1, 3], &[1.0, -2.0, 3.0])).to_f32();
        assert_eq!((y[0], y[2]), (1.0, 3.0), "{dims:?}");
        assert!(y[1].is_nan(), "{dims:?}: {y:?}");
    }
}

#[test]
fn a_product_adds_what_a_request_brings() {
    let product = || vec![node("Gemm", &["x", "ones", "c"], "y", &[])];
    let mut m = with(
        model(&fixed(&[4]), product(), &["y"]),
        &[("ones", of(1.0, &[4, 3]))],
    );
    let mut info = m.graph.inputs[0].clone();
    info.name = "c".into();
    info.ty = ValueType::Tensor {
        elem: Elem::F32,
        dims: Some(fixed(&[3])),
    };
    m.graph.inputs.push(info);
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(super::general(&program), ["Gemm"]);
    super::check_bits(program, 3, 0);
    // A constant of one number is added by a node of its own.
    let constants = [("ones", of(1.0, &[4, 3])), ("c", of(2.0, &[1, 1]))];
    let m = with(model(&fixed(&[4]), product(), &["y"]), &constants);
    let y = answer(&m, Tensor::from_f32(&[1, 4], &[1.0; 4])).to_f32();
    assert_eq!(y, [6.0; 3]);
}

#[test]
fn the_largest_of_a_row_that_starts_with_no_number_is_its_first() {
    let on = |axis: i64, x: Tensor| {
        let dims = match axis {
            1 => vec![4],
            _ => vec![4, 1],
        };
        let attrs = [("axis", Attr::Int(axis)), ("keepdims", Attr::Int(0))];
        let nodes = vec![node("ArgMax", &["x"], "y", &attrs)];
        let m = model(&fixed(&dims), nodes, &["y"]);
        let program = Arc::new(import_model(&m, &Options::default()).unwrap());
        let is_native = super::general(&program).is_empty();
        let requests = [Request {
            inputs: vec![x],
            len: 0,
            samples: 1,
        }];
        let mut all = Vec::new();
        let cpu = CpuDevice::new(CpuOptions::default());
        let reference = ReferenceDevice::new(Default::default());
        let devices: [Box<dyn Device>; 2] = [Box::new(cpu), Box::new(reference)];
        for mut device in devices {
            device.load(ModelId(0), Arc::clone(&program)).unwrap();
            let y = run(&mut *device, &program, &requests, Schedule::Alone).unwrap();
            all.extend(y[0][0].as_ref().unwrap().to_i32());
        }
        (is_native, all)
    };
    let nan = f32::NAN;
    for (x, want) in [
        ([nan, 1.0, 3.0, 2.0], 0),
        ([1.0, nan, 3.0, 2.0], 2),
        ([1.0, nan, nan, nan], 0),
        ([nan; 4], 0),
    ] {
        let native = on(1, Tensor::from_f32(&[1, 4], &x));
        assert_eq!(native, (true, vec![want; 2]), "{x:?}");
        let general = on(-2, Tensor::from_f32(&[1, 4, 1], &x));
        assert_eq!(general, (false, vec![want; 2]), "{x:?}");
    }
}

/// A loop that doubles `x` and goes on while what `nodes` give as `on` is true; `limit` is one of their
/// operands.
fn doubled(most: Option<i64>, starts: Option<bool>, nodes: &[Node], limit: i64) -> Model {
    let info = |name: &str, elem: Elem, dims: Vec<Dim>| ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            elem,
            dims: Some(dims),
        },
    };
    let mut all = vec![node("Add", &["a", "a"], "twice", &[])];
    all.extend_from_slice(nodes);
    let body = Graph {
        name: "body".into(),
        inputs: vec![
            info("at", Elem::I64, vec![]),
            info("go", Elem::Bool, vec![]),
            info("a", Elem::F32, fixed(&[2])),
        ],
        outputs: vec![
            info("on", Elem::Bool, vec![]),
            info("twice", Elem::F32, fixed(&[2])),
        ],
        initializers: std::collections::BTreeMap::new(),
        nodes: all,
    };
    let inputs = [
        most.map_or("", |_| "most"),
        starts.map_or("", |_| "starts"),
        "x",
    ];
    let attrs = [("body", Attr::Graph(Box::new(body)))];
    let nodes = vec![
        node("Loop", &inputs, "looped", &attrs),
        node("Relu", &["looped"], "y", &[]),
    ];
    with(
        model(&fixed(&[2]), nodes, &["y"]),
        &[
            ("most", Array::scalar(Data::I64(vec![most.unwrap_or(0)]))),
            (
                "starts",
                Array::scalar(Data::Bool(vec![starts == Some(true)])),
            ),
            ("limit", Array::scalar(Data::I64(vec![limit]))),
        ],
    )
}

#[test]
fn a_loop_goes_on_as_its_condition_says() {
    let below = [node("Less", &["at", "limit"], "on", &[])];
    for (most, starts, limit, passes) in [
        (Some(10), Some(true), 2, 3),
        (Some(10), None, 0, 1),
        (None, None, 2, 3),
        (Some(i64::MAX), Some(true), 2, 3),
        (Some(2), None, 5, 2),
        (Some(64), None, 100, 64),
        (None, None, 63, 64),
        (Some(0), None, 5, 0),
        (Some(-1), Some(true), 5, 0),
        (Some(5), Some(false), 5, 0),
    ] {
        let m = doubled(most, starts, &below, limit);
        let y = answer(&m, Tensor::from_f32(&[1, 2], &[1.0, 3.0])).to_f32();
        let factor = 2.0_f32.powi(passes);
        assert_eq!(y, [factor, 3.0 * factor], "{most:?} {starts:?} {limit}");
    }
    let told = "the looped (Loop: the number of its passes is not known, or large)";
    for (most, limit) in [(None, 64), (Some(65), 100)] {
        let e = refusal(&doubled(most, None, &below, limit), &Options::default());
        assert!(e.contains(told), "{e}");
    }
    let endless = [node("Identity", &["go"], "on", &[])];
    let by_data = [
        node("ReduceMax", &["a"], "top", &[("keepdims", Attr::Int(0))]),
        node("Cast", &["top"], "on", &[("to", Attr::Int(9))]),
    ];
    for nodes in [&endless[..], &by_data] {
        let e = refusal(&doubled(None, None, nodes, 0), &Options::default());
        assert!(e.contains(told), "{e}");
    }
}

#[test]
fn rows_of_no_passes_are_refused() {
    let on = [node("Identity", &["go"], "on", &[])];
    let mut m = doubled(Some(0), None, &on, 0);
    let looped = &mut m.graph.nodes[0];
    let Some(Attr::Graph(body)) = looped.attrs.get_mut("body") else {
        panic!("a body");
    };
    let row = body.outputs[1].clone();
    body.outputs.push(row);
    looped.outputs.push("rows".into());
    let e = refusal(&m, &Options::default());
    assert!(
        e.contains("passes: expected at least one, for the rows of its result rows, got none"),
        "{e}"
    );
}
