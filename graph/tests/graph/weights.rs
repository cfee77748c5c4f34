//! Safetensors files, sound and broken.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lazybatch_graph::weights::{load_as, load_into};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, WeightFile};

/// A file of header text and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn sound() -> Vec<u8> {
    let header = r#"{"fc.weight":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},
        "fc.bias":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},
        "ids":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},
        "odd":{"dtype":"F64","shape":[1],"data_offsets":[20,28]}}"#;
    let mut data = Vec::new();
    for x in [1.0, -2.0, 0.5, 4.0] {
        data.extend(half::f16::from_f32(x).to_le_bytes());
    }
    data.extend(1.5f32.to_le_bytes());
    data.extend((-0.25f32).to_le_bytes());
    data.extend(7i32.to_le_bytes());
    data.extend(0f64.to_le_bytes());
    file(header, &data)
}

fn model(n: usize) -> Program {
    let mut b = ProgramBuilder::new("model");
    let x = b.input("x", DType::F32, &[2]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    b.dense("fc", x, n, None);
    b.finish().unwrap()
}

#[test]
fn a_mapped_file_fills_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, sound()).unwrap();
    let file = WeightFile::open(&path).unwrap();
    assert_eq!(file.names(), ["fc.weight", "fc.bias", "ids", "odd"]);
    let mut program = model(2);
    load_into(&mut program, &file).unwrap();
    let filled: Vec<Vec<f32>> = program.weights.iter().map(|w| w.source.to_f32(4)).collect();
    let by_name = |name: &str| {
        let at = program.weights.iter().position(|w| w.name == name).unwrap();
        filled[at].clone()
    };
    assert_eq!(by_name("fc.weight"), [1.0, -2.0, 0.5, 4.0]);
    assert_eq!(by_name("fc.bias"), [1.5, -0.25]);
    lazybatch_graph::verify(&program).unwrap();
    assert_eq!(file.tensor("ids").unwrap().to_i32(), [7]);
}

#[test]
fn what_is_wrong_is_named() {
    let open = |bytes: &[u8]| {
        WeightFile::from_bytes("m.st", bytes)
            .map(|_| ())
            .unwrap_err()
    };
    let cut = open(&sound()[..sound().len() - 3]).to_string();
    let expected = "weight file m.st: expected a safetensors file, got ";
    assert!(cut.starts_with(expected), "{cut}");
    for (bytes, got) in [
        (&sound()[..sound().len() - 3], "not as many as its header"),
        (&sound()[..5], "5 bytes, too few for the length of a header"),
        (&sound()[..30], "30 bytes, fewer than its header says"),
        (
            &file("{\"a\":", &[]),
            "a header that does not list tensors: ",
        ),
        (&[0xff; 16], "a header that says to be longer than any"),
    ] {
        let message = open(bytes).to_string();
        assert!(
            message.starts_with(expected) && message.contains(got),
            "{message}"
        );
    }

    let missing = WeightFile::open("/nowhere/m.st").unwrap_err().to_string();
    assert!(
        missing.starts_with("weight file /nowhere/m.st: expected a safetensors file, got No such"),
        "{missing}"
    );

    let file = WeightFile::from_bytes("m.st", &sound()).unwrap();
    let message = load_into(&mut model(3), &file).unwrap_err().to_string();
    assert!(message.starts_with("tensor fc."), "{message}");
    assert!(
        message.contains("of m.st: expected a float tensor ["),
        "{message}"
    );
    let rename = |name: &str| name.replace("fc", "head");
    let message = load_as(&mut model(2), &file, rename)
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("weight file m.st: expected a tensor head."),
        "{message}"
    );
    let message = file.float("ids", &[1]).unwrap_err().to_string();
    assert_eq!(
        message,
        "tensor ids of m.st: expected a float tensor [1], got i32[1]"
    );
    let message = file.tensor("odd").unwrap_err().to_string();
    assert!(message.contains("got F64"), "{message}");
}
