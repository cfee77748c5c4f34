//! What the reader takes and what it refuses.

use prost::Message;

use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto,
};
use super::{Array, Attr, Data, Elem, Limits, Model, decode_tensor};
use crate::DType;

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_owned(),
        r#type: None,
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.to_owned(),
        input: inputs.iter().map(|&s| s.to_owned()).collect(),
        output: outputs.iter().map(|&s| s.to_owned()).collect(),
        ..NodeProto::default()
    }
}

/// A model of `nodes` from `x` to `y`.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    ModelProto {
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 17,
        }],
        graph: Some(GraphProto {
            name: "g".to_owned(),
            node: nodes,
            input: vec![value("x")],
            output: vec![value("y")],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn read(m: &ModelProto) -> Result<Model, String> {
    Model::decode("m.onnx", &m.encode_to_vec(), &Limits::default()).map_err(|e| e.to_string())
}

#[test]
fn a_model_is_read() {
    let mut relu = node("Relu", &["x"], &["y"]);
    relu.attribute.push(AttributeProto {
        name: "n".to_owned(),
        kind: 2,
        i: 3,
        ..AttributeProto::default()
    });
    let read = read(&model(vec![relu])).unwrap();
    assert_eq!(read.opsets[""], 17);
    assert_eq!(read.graph.nodes[0].name, "Relu#0");
    assert!(matches!(read.graph.nodes[0].attrs["n"], Attr::Int(3)));
}

#[test]
fn errors_name_file_place_and_what() {
    let check = |m: ModelProto, want: &str| assert_eq!(read(&m).unwrap_err(), want);
    check(
        model(vec![node("Relu", &["z"], &["y"])]),
        "m.onnx: node Relu#0: input \"z\": expected a value defined before, got none",
    );
    check(
        model(vec![node("Relu", &["x"], &["x"])]),
        "m.onnx: node Relu#0: output \"x\": expected a new name, got a value defined before",
    );
    check(
        model(Vec::new()),
        "m.onnx: graph \"g\": output \"y\": expected a value defined in it, got none",
    );
    let mut later = model(vec![node("Relu", &["x"], &["y"])]);
    later.opset_import[0].version = 26;
    check(
        later,
        "m.onnx: model: opset version: expected 1 to 25, got 26",
    );
    let mut none = model(Vec::new());
    none.graph = None;
    check(none, "m.onnx: model: graph: expected one, got none");
    let e = Model::decode("m.onnx", &[0xff; 9], &Limits::default()).unwrap_err();
    assert!(
        e.to_string()
            .starts_with("m.onnx: file: content: expected an ONNX protobuf"),
        "{e}"
    );
}

#[test]
fn nodes_are_put_in_order() {
    let names = |m: &ModelProto| -> Result<Vec<String>, String> {
        let nodes = read(m)?.graph.nodes;
        Ok(nodes.into_iter().map(|n| n.name).collect())
    };
    let nodes = vec![
        node("Add", &["a", "b"], &["y"]),
        node("Relu", &["x"], &["a"]),
        node("Neg", &["a"], &["b"]),
    ];
    assert_eq!(names(&model(nodes)).unwrap(), ["Relu#1", "Neg#2", "Add#0"]);
    // A body reads what is computed around it.
    let mut outer = node("If", &["x"], &["y"]);
    outer.attribute.push(AttributeProto {
        name: "then_branch".to_owned(),
        kind: 5,
        g: Some(Box::new(GraphProto {
            node: vec![
                node("Relu", &["inner"], &["y"]),
                node("Neg", &["a"], &["inner"]),
            ],
            output: vec![value("y")],
            ..GraphProto::default()
        })),
        ..AttributeProto::default()
    });
    let nodes = vec![outer, node("Relu", &["x"], &["a"])];
    assert_eq!(names(&model(nodes)).unwrap(), ["Relu#1", "If#0"]);
    let nodes = vec![
        node("Add", &["x", "b"], &["a"]),
        node("Neg", &["a"], &["b"]),
        node("Relu", &["b"], &["y"]),
    ];
    assert_eq!(
        names(&model(nodes)).unwrap_err(),
        "m.onnx: graph \"g\": nodes: expected an order in which values come before those that read \
         them, got nodes that wait for each other: Add#0, Neg#1, Relu#2"
    );
}

/// A model that keeps the two numbers of `w` at `location` beside it.
fn beside(location: &str, more: &[(&str, &str)]) -> ModelProto {
    let mut m = model(vec![node("Add", &["x", "w"], &["y"])]);
    let entries = [("location", location)]
        .into_iter()
        .chain(more.iter().copied());
    let external_data = entries.map(|(key, value)| StringStringEntryProto {
        key: key.to_owned(),
        value: value.to_owned(),
    });
    let w = TensorProto {
        name: "w".to_owned(),
        dims: vec![2],
        data_type: 1,
        data_location: 1,
        external_data: external_data.collect(),
        ..TensorProto::default()
    };
    m.graph.as_mut().unwrap().initializer.push(w);
    m
}

#[test]
fn data_beside_the_model_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    std::fs::create_dir_all(dir.join("deep")).unwrap();
    let file = dir.join("m.onnx");
    let bytes: Vec<u8> = [0.0_f32, 1.0, 2.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    for path in ["model/w.data", "model/deep/w.data", "out.data"] {
        std::fs::write(folder.path().join(path), &bytes).unwrap();
    }
    let open = |m: &ModelProto, limits: &Limits| {
        std::fs::write(&file, m.encode_to_vec()).unwrap();
        let model = Model::open(&file, limits).map_err(|e| e.to_string())?;
        Ok(model.graph.initializers["w"].data().to_f64())
    };
    let some = Limits::default();
    let at = [("offset", "4"), ("length", "8")];
    for location in ["w.data", "./w.data", "deep/w.data"] {
        assert_eq!(open(&beside(location, &at), &some).unwrap(), [1.0, 2.0]);
    }
    assert_eq!(open(&beside("w.data", &[]), &some).unwrap(), [0.0, 1.0]);
    let refused = |location: &str, more: &[(&str, &str)], want: &str| {
        let e: String = open(&beside(location, more), &some).unwrap_err();
        assert!(
            e.contains("tensor \"w\": external ") && e.contains(want),
            "{e}"
        );
    };
    let outside = folder.path().join("out.data");
    refused(
        outside.to_str().unwrap(),
        &at,
        "not a relative path below it",
    );
    refused("../out.data", &at, "not a relative path below it");
    refused("", &at, "not a relative path below it");
    refused("deep", &at, "not a file");
    refused(
        "none.data",
        &at,
        "expected a file within the folder of the model",
    );
    refused(
        "w.data",
        &[("offset", "8")],
        "expected 8 bytes from byte 8 on, got 12 bytes in all",
    );
    refused(
        "w.data",
        &[("offset", &usize::MAX.to_string())],
        "got 12 bytes in all",
    );
    refused(
        "w.data",
        &[("offset", "-4")],
        "expected a number of bytes, got -4",
    );
    refused(
        "w.data",
        &[("length", "4")],
        "expected 8, the bytes of its elements, got 4",
    );
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&outside, dir.join("link.data")).unwrap();
        refused("link.data", &at, "a link out of it");
    }
    // Bytes that many tensors name are counted for each.
    let mut m = beside("w.data", &at);
    let w = &mut m.graph.as_mut().unwrap().initializer;
    w[0].dims = vec![200];
    w[0].external_data.truncate(1);
    std::fs::write(dir.join("w.data"), [0; 800]).unwrap();
    let one = m.encoded_len();
    assert!(one < 400);
    let few = Limits {
        file_bytes: 1000,
        ..some
    };
    assert!(open(&m, &few).is_ok());
    let w = &mut m.graph.as_mut().unwrap().initializer;
    let name = "v".to_owned();
    w.push(TensorProto {
        name,
        ..w[0].clone()
    });
    let e: String = open(&m, &few).unwrap_err();
    assert!(
        e.ends_with("bytes in external files so far: expected at most 1000, got 1600"),
        "{e}"
    );
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let mut m = model(vec![node("Relu", &["x"], &["y"])]);
        for _ in 1..depth {
            let mut body = m.graph.take().unwrap();
            body.input.clear();
            let mut outer = node("If", &["x"], &["y"]);
            // The names of a body are its own and those around it.
            outer.attribute.push(AttributeProto {
                name: "then_branch".to_owned(),
                kind: 5,
                g: Some(Box::new(body)),
                ..AttributeProto::default()
            });
            m = model(vec![outer]);
        }
        m
    };
    assert!(read(&nested(16)).is_ok());
    let e = read(&nested(17)).unwrap_err();
    assert!(e.contains("nested graphs: expected at most 16"), "{e}");
    assert!(read(&nested(60)).is_err());
}

#[test]
fn messages_are_counted_before_decoding() {
    let limits = Limits {
        messages: 10,
        ..Limits::default()
    };
    // Opset, graph, input, output, and of each node itself and two names.
    let chain = |num: usize| {
        let names: Vec<String> = (1..num).map(|i| format!("v{i}")).collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.insert(0, "x");
        all.push("y");
        model(
            all.windows(2)
                .map(|p| node("Relu", &p[..1], &p[1..]))
                .collect(),
        )
    };
    let read = |num| Model::decode("m", &chain(num).encode_to_vec(), &limits);
    assert!(read(2).is_ok());
    let e = read(3).unwrap_err().to_string();
    assert_eq!(e, "m: file: messages: expected at most 10, got more");
}

#[test]
fn tensors_are_read_from_raw_and_typed_fields() {
    let tensor = |t: &TensorProto| decode_tensor("t.pb", &t.encode_to_vec(), &Limits::default());
    let mut t = TensorProto {
        dims: vec![2],
        data_type: 1,
        float_data: vec![1.0, 2.0],
        ..TensorProto::default()
    };
    let want = Array::new(vec![2], Data::F32(vec![1.0, 2.0]));
    assert_eq!(tensor(&t).unwrap(), want);
    assert_eq!(want.to_tensor().unwrap().dtype, DType::F32);
    t.float_data.clear();
    t.raw_data = [1.0_f32, 2.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(tensor(&t).unwrap(), want);
    t.data_type = 10;
    t.raw_data = Vec::new();
    t.int32_data = vec![0x3c00, 0x4000];
    assert_eq!(tensor(&t).unwrap().data().to_f64(), [1.0, 2.0]);

    t.dims = vec![3];
    let e = tensor(&t).unwrap_err().to_string();
    assert_eq!(
        e,
        "t.pb: file: tensor \"\": number of elements: expected 3 of [3], got 2"
    );
    t.dims = vec![1 << 40, 1 << 40];
    assert!(
        tensor(&t)
            .unwrap_err()
            .to_string()
            .contains("number of elements")
    );
    t.dims = vec![-1];
    assert!(
        tensor(&t)
            .unwrap_err()
            .to_string()
            .contains("expected none below zero")
    );
    t.data_type = 8;
    assert!(tensor(&t).unwrap_err().to_string().ends_with("got string"));
    (t.data_type, t.dims, t.data_location) = (1, vec![2], 1);
    assert!(
        tensor(&t)
            .unwrap_err()
            .to_string()
            .ends_with("got an external file")
    );
}

/// Each type has a field, of which the number of elements is looked at before they are converted.
#[test]
fn typed_fields_hold_all_types() {
    let read = |code: i32, num: i64| {
        let t = TensorProto {
            dims: vec![num],
            data_type: code,
            float_data: vec![0.5, -1.0],
            double_data: vec![0.25, -2.0],
            int32_data: vec![-1, 0x0100_3c00],
            int64_data: vec![-5, 1 << 40],
            uint64_data: vec![7, u64::MAX],
            ..TensorProto::default()
        };
        decode_tensor("t.pb", &t.encode_to_vec(), &Limits::default())
    };
    for (code, want) in [
        (1, Data::F32(vec![0.5, -1.0])),
        (2, Data::U8(vec![255, 0])),
        (3, Data::I8(vec![-1, 0])),
        (4, Data::U16(vec![65_535, 0x3c00])),
        (5, Data::I16(vec![-1, 0x3c00])),
        (6, Data::I32(vec![-1, 0x0100_3c00])),
        (7, Data::I64(vec![-5, 1 << 40])),
        (9, Data::Bool(vec![true, true])),
        (11, Data::F64(vec![0.25, -2.0])),
        (12, Data::U32(vec![7, u32::MAX])),
        (13, Data::U64(vec![7, u64::MAX])),
    ] {
        assert_eq!(*read(code, 2).unwrap().data(), want);
        let e = read(code, 1).unwrap_err().to_string();
        assert!(
            e.ends_with("number of elements: expected 1 of [1], got 2"),
            "{e}"
        );
    }
    assert_eq!(read(10, 2).unwrap().data().to_f64()[1], 1.0);
    assert_eq!(read(16, 2).unwrap().data().to_f64()[1], 0.007_812_5);
}

#[test]
fn conversions_round_wrap_and_saturate() {
    assert_eq!(
        Data::from_i128(Elem::U8, vec![-1, 256]),
        Data::U8(vec![255, 0])
    );
    assert_eq!(
        Data::from_f64(Elem::I8, vec![-1.9, 300.0]),
        Data::I8(vec![-1, 127])
    );
    assert_eq!(
        Data::from_f64(Elem::Bool, vec![0.5, 0.0]),
        Data::Bool(vec![true, false])
    );
    let taken = Data::I64(vec![5, 6]).take(&[1, super::NONE]);
    assert_eq!(taken, Data::I64(vec![6, 0]));
    assert!(Array::scalar(Data::U64(vec![1])).to_tensor().is_err());
}

#[test]
fn narrow_floats_are_rounded_once() {
    fn check(elem: Elem, digits: i32, most: f64) {
        let ulp = 2.0_f64.powi(-digits);
        let tiny = 2.0_f64.powi(-45);
        let rounded = |x: f64| Data::from_f64(elem, vec![x, -x]).to_f64();
        for (x, want) in [
            (1.0 + ulp / 2.0, 1.0),
            (1.0 + ulp / 2.0 + tiny, 1.0 + ulp),
            (1.0 + ulp / 2.0 - tiny, 1.0),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
            (1.0 + 1.5 * ulp - tiny, 1.0 + ulp),
            (1.0 + 1.5 * ulp + tiny, 1.0 + 2.0 * ulp),
            (0.1, (0.1 / ulp * 16.0).round() * ulp / 16.0),
            (most * (1.0 + ulp / 4.0) - most * tiny, most),
            (f64::MAX, f64::INFINITY),
            (f64::INFINITY, f64::INFINITY),
            (f64::MIN_POSITIVE, 0.0),
            (0.0, 0.0),
        ] {
            let got = rounded(x);
            assert_eq!(got, [want, -want], "{x:e} as {elem}");
            assert!(got[1].is_sign_negative());
        }
        assert!(rounded(f64::NAN)[0].is_nan());
    }
    check(Elem::F16, 10, 65504.0);
    check(Elem::BF16, 7, 3.3895313892515355e38);
}

#[test]
fn the_smallest_narrow_floats_are_rounded_once() {
    for (elem, least) in [
        (Elem::F16, 2.0_f64.powi(-24)),
        (Elem::BF16, 2.0_f64.powi(-133)),
    ] {
        let above = least / 2.0 * (1.0 + 2.0_f64.powi(-40));
        let got = Data::from_f64(elem, vec![least / 2.0, above, 2.5 * least, 5.0 * above]);
        let want = [0.0, least, 2.0 * least, 3.0 * least];
        assert_eq!(got.to_f64(), want, "{elem}");
    }
}

#[test]
fn what_is_no_number_is_the_same_as_itself() {
    for elem in [Elem::F16, Elem::BF16, Elem::F32, Elem::F64] {
        let of = |v: f64| Array::from_f64(elem, vec![2], vec![1.0, v]);
        assert!(of(f64::NAN).is_same(&of(f64::NAN)), "{elem}");
        assert!(!of(f64::NAN).is_same(&of(1.0)), "{elem}");
        assert!(!of(0.0).is_same(&of(-0.0)), "{elem}");
    }
    let row = Array::vector(vec![1, 2]);
    assert!(row.is_same(&row.clone()) && !row.is_same(&row.reshaped(vec![2, 1])));
    assert!(!row.is_same(&Array::new(vec![2], Data::U8(vec![1, 2]))));
}
