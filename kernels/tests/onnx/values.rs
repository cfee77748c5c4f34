//! What ops give where the node cases do not look: worked out by hand from what ONNX says, and from what
//! ONNX Runtime does where that says nothing.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Data, Elem, Limits, Node};
use lazybatch_kernels::tensor::{self, Call, Meter};

/// The outputs of `op` by `opset`.
fn outputs(op: &str, opset: i64, attrs: &[(&str, Attr)], inputs: &[Option<Array>]) -> Vec<Array> {
    let attrs = attrs.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
    let node = Node {
        name: "node".into(),
        domain: String::new(),
        op: op.to_owned(),
        inputs: Vec::new(),
        outputs: vec!["y".into()],
        attrs: attrs.collect::<BTreeMap<_, _>>(),
    };
    let call = Call {
        node: &node,
        opset,
        inputs: inputs.iter().map(Option::as_ref).collect(),
        meter: &Meter::new(Limits::default()),
    };
    let entry = tensor::find(op).expect("a known op");
    (entry.eval)(&call).expect("a good call")
}

/// The first of them.
fn eval(op: &str, opset: i64, attrs: &[(&str, Attr)], inputs: &[Option<Array>]) -> Array {
    outputs(op, opset, attrs, inputs).swap_remove(0)
}

fn floats(dims: &[usize], v: &[f32]) -> Option<Array> {
    Some(Array::new(dims.to_vec(), Data::F32(v.to_vec())))
}

fn ints(v: &[i64]) -> Option<Array> {
    Some(Array::vector(v.to_vec()))
}

#[test]
fn sizes_by_scales_are_products_of_single_precision() {
    // 0.7 of single precision is a little below: the product is 7 only if it is rounded.
    let x = floats(&[1, 10], &[1.0; 10]);
    let scales = floats(&[2], &[1.0, 0.7]);
    let resized = eval("Resize", 13, &[], &[x.clone(), None, scales.clone()]);
    assert_eq!(resized.dims(), [1, 7]);
    let sampled = eval("Upsample", 9, &[], &[x, scales]);
    assert_eq!(sampled.dims(), [1, 7]);
    // A scale of 1 keeps a size that single precision does not have.
    let long = Some(Array::new(vec![16_777_217, 0], Data::F32(Vec::new())));
    let scales = floats(&[2], &[1.0, 1.0]);
    let kept = eval("Resize", 13, &[], &[long, None, scales]);
    assert_eq!(kept.dims(), [16_777_217, 0]);
}

#[test]
fn nearest_pixels_of_opset_10_are_those_above_where_there_are_fewer() {
    let x = floats(&[1, 1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let resized = |scales: [f32; 4]| {
        let y = eval("Resize", 10, &[], &[x.clone(), floats(&[4], &scales)]);
        y.data().to_f64()
    };
    assert_eq!(resized([1.0, 1.0, 0.6, 0.6]), [1.0, 3.0]);
    assert_eq!(
        resized([1.0, 1.0, 0.5, 1.5]),
        [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]
    );
}

#[test]
fn nearest_pixels_are_those_of_positions_in_single_precision() {
    // 0.6 and 1.1 of single precision are a little above: positions that are whole by real numbers stay
    // so only if the division rounds as single precision does.
    for (n, scale) in [(20, 1.1_f32), (50, 0.6), (30, 3.3), (64, 0.7)] {
        let row: Vec<f32> = (0..n).map(|v| v as f32).collect();
        let attrs = [
            ("mode", Attr::Str("nearest".into())),
            (
                "coordinate_transformation_mode",
                Attr::Str("asymmetric".into()),
            ),
            ("nearest_mode", Attr::Str("floor".into())),
        ];
        let operands = [floats(&[1, n], &row), None, floats(&[2], &[1.0, scale])];
        let y = eval("Resize", 13, &attrs, &operands).data().to_f64();
        let wanted = (0..y.len()).map(|i| (i as f32 / scale).floor().min(n as f32 - 1.0));
        assert_eq!(y, wanted.map(f64::from).collect::<Vec<_>>(), "{scale}");
    }
}

#[test]
fn the_middle_of_a_crop_is_a_position_in_single_precision() {
    // 0.2 and 0.8 of single precision are a little above 1 together: rounded, the middle is whole.
    let attrs = [
        ("mode", Attr::Str("nearest".into())),
        (
            "coordinate_transformation_mode",
            Attr::Str("tf_crop_and_resize".into()),
        ),
        ("nearest_mode", Attr::Str("ceil".into())),
    ];
    let operands = [
        floats(&[1, 1, 3], &[1.0, 2.0, 4.0]),
        floats(&[6], &[0.0, 0.0, 0.2, 1.0, 1.0, 0.8]),
        floats(&[3], &[1.0, 1.0, 0.4]),
    ];
    let y = eval("Resize", 18, &attrs, &operands).data().to_f64();
    assert_eq!(y, [2.0]);
}

#[test]
fn aligned_corners_are_the_first_and_the_last() {
    // 5 times 1.5 is 7.5, of which 7 are there: the last of them is the last of the input.
    let attrs = [
        ("mode", Attr::Str("linear".into())),
        (
            "coordinate_transformation_mode",
            Attr::Str("align_corners".into()),
        ),
    ];
    let x = floats(&[1, 5], &[0.0, 3.0, 6.0, 9.0, 12.0]);
    let y = eval("Resize", 13, &attrs, &[x, None, floats(&[2], &[1.0, 1.5])]);
    assert_eq!(y.data().to_f64(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

#[test]
fn what_is_no_number_is_the_largest_of_a_window() {
    for at in 0..3 {
        let mut x = [1.0, 3.0, 2.0];
        x[at] = f32::NAN;
        let attrs = [("kernel_shape", Attr::Ints(vec![3]))];
        let y = eval("MaxPool", 12, &attrs, &[floats(&[1, 1, 3], &x)]);
        assert!(y.data().to_f64()[0].is_nan(), "{at}");
    }
}

#[test]
fn beside_an_infinity_no_weight_is_a_number() {
    for op in ["Softmax", "LogSoftmax"] {
        let x = floats(&[1, 3], &[1.0, f32::INFINITY, -2.0]);
        let y = eval(op, 13, &[], &[x]);
        assert!(y.data().to_f64().iter().all(|v| v.is_nan()), "{op}: {y}");
        let x = floats(&[1, 2], &[1.0, f32::NEG_INFINITY]);
        let y = eval(op, 13, &[], &[x]);
        assert_eq!(
            y.data().to_f64()[0],
            if op == "Softmax" { 1.0 } else { 0.0 }
        );
    }
}

#[test]
fn slices_backwards_start_within_the_axis() {
    let slice = |n: usize, start: i64, end: i64, step: i64| {
        let x = Array::vector((0..n as i64).collect());
        let operands = [
            Some(x),
            ints(&[start]),
            ints(&[end]),
            ints(&[0]),
            ints(&[step]),
        ];
        let y = eval("Slice", 13, &[], &operands);
        y.data().to_i128()
    };
    for (n, start, end, step, want) in [
        (5, -7, -100, -1, &[0][..]),
        (5, -7, i64::MIN, -2, &[0]),
        (5, 9, 1, -1, &[4, 3, 2]),
        (5, -1, -100, -2, &[4, 2, 0]),
        (5, -7, 0, -1, &[]),
        (0, -7, -100, -1, &[]),
        (0, 3, -100, -1, &[]),
        (0, -1, 5, 1, &[]),
        (5, -7, 2, 1, &[0, 1]),
        (5, 7, 9, 1, &[]),
    ] {
        assert_eq!(
            slice(n, start, end, step),
            want,
            "{n}: {start} to {end} by {step}"
        );
    }
}

/// A GRU cell of zero weights on one step: its gates are activations of their biases.
fn gru(attrs: &[(&str, Attr)], bias: [f32; 3]) -> f32 {
    let [z, r, h] = bias;
    let operands = [
        floats(&[1, 1, 1], &[0.0]),
        floats(&[1, 3, 1], &[0.0; 3]),
        floats(&[1, 3, 1], &[0.0; 3]),
        floats(&[1, 6], &[z, r, h, 0.0, 0.0, 0.0]),
        None,
        floats(&[1, 1, 1], &[1.0]),
    ];
    match eval("GRU", 14, attrs, &operands).data() {
        Data::F32(y) => y[0],
        other => panic!("{other:?}"),
    }
}

fn texts(names: &[&str]) -> Attr {
    Attr::Strs(names.iter().map(|&s| s.to_owned()).collect())
}

#[test]
fn parameters_of_activations_go_to_those_that_take_one() {
    let names = |names: &[&str]| ("activations", texts(names));
    let alpha = |v: &[f32]| ("activation_alpha", Attr::Floats(v.to_vec()));
    let beta = |v: &[f32]| ("activation_beta", Attr::Floats(v.to_vec()));
    // z = sigmoid(0) = 0.5, the candidate 0.5 * -2: 0.5 * -1 + 0.5 * 1.
    let leaky = [names(&["Sigmoid", "LeakyRelu"]), alpha(&[0.5])];
    assert_eq!(gru(&leaky, [0.0, 0.0, -2.0]), 0.0);
    // A value for each of them is that of its place.
    let placed = [names(&["Sigmoid", "LeakyRelu"]), alpha(&[9.0, 0.5])];
    assert_eq!(gru(&placed, [0.0, 0.0, -2.0]), 0.0);
    // LeakyRelu takes an alpha and no beta: z = 0.5 * -1, the candidate 2 * 1 + 3.
    let affine = [
        names(&["LeakyRelu", "Affine"]),
        alpha(&[0.5, 2.0]),
        beta(&[3.0]),
    ];
    assert_eq!(gru(&affine, [-1.0, 0.0, 1.0]), 1.5 * 5.0 - 0.5);
    // Without values, the defaults: z = 0.5, the candidate 0.2 * 0 + 0.5.
    let hard = [names(&["Sigmoid", "HardSigmoid"])];
    assert_eq!(gru(&hard, [0.0; 3]), 0.75);
}

#[test]
fn extremes_of_nothing_are_the_ends_of_the_type() {
    for elem in [Elem::I32, Elem::U8, Elem::I64, Elem::Bool] {
        let (least, most) = elem.int_range().expect("a type of integers");
        for (op, want) in [("ReduceMax", least), ("ReduceMin", most)] {
            let x = Array::new(vec![2, 0], Data::zeros(elem, 0));
            let y = eval(op, 20, &[], &[Some(x), ints(&[1])]);
            assert_eq!(y.data().to_i128(), [want, want], "{op} of {elem}");
        }
    }
}

#[test]
fn no_activation_loses_nan() {
    let nan = || floats(&[1], &[f32::NAN]);
    for (op, opset) in [
        ("Celu", 12),
        ("Elu", 6),
        ("Relu", 14),
        ("LeakyRelu", 16),
        ("Selu", 6),
    ] {
        let y = eval(op, opset, &[], &[nan()]);
        assert!(y.data().to_f64()[0].is_nan(), "{op}");
    }
    for name in [
        "Relu",
        "LeakyRelu",
        "Elu",
        "Tanh",
        "HardSigmoid",
        "Softplus",
    ] {
        let activations = ("activations", texts(&["Sigmoid", name]));
        assert!(gru(&[activations], [0.0, 0.0, f32::NAN]).is_nan(), "{name}");
    }
}

#[test]
fn large_integers_are_told_apart() {
    const LARGE: i64 = 1 << 53;
    let x = || ints(&[LARGE, LARGE + 1, LARGE]);
    let all = outputs("Unique", 11, &[], &[x()]);
    assert_eq!(all[0], Array::vector(vec![LARGE, LARGE + 1]));
    assert_eq!(all[3], Array::vector(vec![2, 1]));
    assert_eq!(eval("ArgMax", 13, &[], &[x()]), Array::vector(vec![1]));
    let low = ints(&[LARGE + 1, LARGE]);
    assert_eq!(eval("ArgMin", 13, &[], &[low]), Array::vector(vec![1]));
}

#[test]
fn zeros_are_equal_and_so_are_numbers_that_are_none() {
    let nan = f32::NAN;
    let x = floats(&[6], &[0.0, nan, -0.0, -nan, 0.0, -1.0]);
    let all = outputs("Unique", 11, &[], &[x]);
    assert_eq!(all[1], Array::vector(vec![5, 0, 1]));
    assert_eq!(all[2], Array::vector(vec![1, 2, 1, 2, 1, 0]));
    assert_eq!(all[3], Array::vector(vec![1, 3, 2]));
}

#[test]
fn means_of_narrow_floats_have_the_stated_type() {
    let type_of = |elem: Elem, attrs: &[(&str, Attr)]| {
        let x = Array::from_f64(elem, vec![1, 4], vec![1.0, 2.0, 3.0, 4.5]);
        let scale = Array::from_f64(elem, vec![4], vec![1.0; 4]);
        let all = outputs("LayerNormalization", 17, attrs, &[Some(x), Some(scale)]);
        assert_eq!(all[0].elem(), elem);
        assert_eq!(all[1].data().to_f64(), [2.625], "{elem}");
        assert_eq!(all[1].elem(), all[2].elem());
        all[1].elem()
    };
    for elem in [Elem::F16, Elem::BF16, Elem::F32] {
        assert_eq!(type_of(elem, &[]), Elem::F32);
    }
    let stated = [("stash_type", Attr::Int(16))];
    assert_eq!(type_of(Elem::F16, &stated), Elem::BF16);
}

#[test]
fn what_a_pad_cuts_off_is_not_repeated() {
    let padded = |mode: &str, pads: [i64; 2]| {
        let mode = [("mode", Attr::Str(mode.into()))];
        eval("Pad", 19, &mode, &[ints(&[1, 2, 3, 4]), ints(&pads)])
    };
    for (mode, pads, want) in [
        ("wrap", [-1, 2], &[2, 3, 4, 2, 3][..]),
        ("wrap", [2, -1], &[2, 3, 1, 2, 3]),
        ("wrap", [5, -2], &[2, 1, 2, 1, 2, 1, 2]),
        ("wrap", [-3, 2], &[4, 4, 4]),
        ("wrap", [-1, -1], &[2, 3]),
        ("wrap", [3, 0], &[2, 3, 4, 1, 2, 3, 4]),
        ("reflect", [-1, 2], &[2, 3, 4, 3, 2]),
        ("reflect", [2, -1], &[3, 2, 1, 2, 3]),
        ("edge", [5, -2], &[1, 1, 1, 1, 1, 1, 2]),
        ("constant", [-1, 2], &[2, 3, 4, 0, 0]),
        ("constant", [2, -1], &[0, 0, 1, 2, 3]),
        ("constant", [-5, 2], &[0]),
    ] {
        assert_eq!(
            padded(mode, pads),
            Array::vector(want.to_vec()),
            "{mode} {pads:?}"
        );
    }
}
