//! Model folders: what is written is read back; damaged ones give errors.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use lazybatch_graph::folder::{self, FORMAT, PROGRAM_FILE, WEIGHTS_FILE};
use lazybatch_graph::onnx::Elem;
use lazybatch_graph::{
    Act, At, Attribute, DType, Heads, Layout, Op, Operand, Part, Produced, Program, ProgramBuilder,
    Repeat, Seen, Tensor, TensorOp, Window, dump, optimize,
};
use proptest::prelude::*;

/// A program with every kind of declaration.
fn program() -> Program {
    let mut b = ProgramBuilder::new("all-kinds").with_seed(7);
    let ids = b.sequence_ids("ids", 6, 5);
    let image = b.input("image", DType::F32, &[1, 4, 4]);
    let y = b.output_sequence("y", DType::F32, &[3]);
    let z = b.output("z", DType::F32, &[2]);
    let rows = b.sequence_state("rows", 4, 6);
    b.begin_block("first", Repeat::Once);
    let i = b.read_input("ids", ids);
    let table: Vec<f32> = (0..20).map(|i| i as f32 / 7.0).collect();
    let table = b.data("table", Tensor::from_f32(&[5, 4], &table));
    let x = b.embedding("embed", i, table);
    b.seq_write("keep", rows, At::All, x);
    let p = b.read_input("image", image);
    let c = b.conv("conv", p, 2, Window::square(3, 1, 0), 1, Default::default());
    let c = b.global_average_pool("pool", c);
    let c = b.unary("gelu", Act::Gelu, c);
    b.emit("z", z, c);
    b.begin_block("each", Repeat::PerInputStep { stride: 1 });
    let x = b.seq_read("row", rows, At::Reverse);
    let h = b.lstm("lstm", x, 3);
    b.emit("y", y, h);
    b.metadata("about", "a test");
    b.finish().unwrap()
}

fn saved(dir: &Path) {
    folder::save(&program(), dir).unwrap();
}

fn refusal(dir: &Path) -> String {
    folder::load(dir).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    saved(&to);
    let (had, got) = (program(), folder::load(&to).unwrap());
    assert_eq!(dump(&had, None), dump(&got, None));
    assert_eq!(had.metadata, got.metadata);
    assert_eq!(had.length_input, got.length_input);
    for (a, b) in had.weights.iter().zip(&got.weights) {
        let num = a.ty.row_elems();
        assert_eq!(a.source.to_f32(num), b.source.to_f32(num), "{}", a.name);
    }
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["model"], "nothing is left beside it");
}

#[test]
fn a_model_folder_is_replaced_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    fs::create_dir(&to).unwrap();
    saved(&to);
    saved(&to);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("notes.txt"), "mine").unwrap();
    let e = folder::save(&program(), &other).unwrap_err().to_string();
    assert!(e.contains("a folder with other files"), "{e}");
    assert_eq!(fs::read_to_string(other.join("notes.txt")).unwrap(), "mine");
    let file = other.join("notes.txt");
    let e = folder::save(&program(), &file).unwrap_err().to_string();
    assert!(e.contains("got a file"), "{e}");
}

#[test]
fn a_model_folder_with_other_files_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    saved(&to);
    // The tokenizer that the program names is the folder's own.
    let mut program = program();
    program.metadata.insert("tokenizer".into(), "t.bin".into());
    folder::save(&program, &to).unwrap();
    fs::write(to.join("t.bin"), "pieces").unwrap();
    folder::save(&program, &to).unwrap();
    assert!(!to.join("t.bin").exists());
    fs::write(to.join("t.json"), "another").unwrap();
    let e = folder::save(&program, &to).unwrap_err().to_string();
    assert!(e.ends_with("got one with \"t.json\" in it"), "{e}");
    fs::remove_file(to.join("t.json")).unwrap();
    fs::create_dir(to.join("t.bin")).unwrap();
    let e = folder::save(&program, &to).unwrap_err().to_string();
    assert!(e.ends_with("got one with \"t.bin\" in it"), "{e}");
    folder::load(&to).unwrap();
}

#[test]
fn files_that_are_missing_or_foreign_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    assert!(refusal(&to).contains("program.json: file: expected the program"));
    saved(&to);
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    let with = |from: &str, by: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(to.join(PROGRAM_FILE), text.replace(from, by)).unwrap();
        refusal(&to)
    };
    let e = with(FORMAT, "lazybatch-program/9");
    assert!(
        e.ends_with("format: expected lazybatch-program/1, got lazybatch-program/9"),
        "{e}"
    );
    let e = with("\"max_len\":6", "\"max_len\":99999999999");
    assert!(e.contains("number: expected at most"), "{e}");
    let e = with("\"name\":\"table\"", "\"name\":\"tab1e\"");
    assert!(
        e.contains("weights.safetensors: expected a tensor tab1e, got none"),
        "{e}"
    );
    let e = with("\"stride\":1}", "\"stride\":0}");
    assert!(e.contains("no stride"), "{e}");
    let place = to.join(PROGRAM_FILE).display().to_string();
    assert!(e.starts_with(&format!("{place}: program ")), "{e}");
    let e = with("\"gelu\"", "\"jelu\"");
    assert!(e.contains("jelu"), "{e}");
    fs::write(to.join(PROGRAM_FILE), &text).unwrap();
    folder::load(&to).unwrap();
    let weights = fs::read(to.join(WEIGHTS_FILE)).unwrap();
    fs::write(to.join(WEIGHTS_FILE), &weights[..weights.len() - 1]).unwrap();
    assert!(refusal(&to).contains("expected a safetensors file, got "));
    fs::remove_file(to.join(WEIGHTS_FILE)).unwrap();
    assert!(refusal(&to).contains(WEIGHTS_FILE));
}

#[test]
fn weights_that_are_made_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    let side = 1 << 8;
    let mut b = ProgramBuilder::new("made").with_seed(7);
    let x = b.input("x", DType::F32, &[side]);
    let y = b.output("y", DType::F32, &[side]);
    b.begin_block("once", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("wide", v, side, None);
    b.emit("y", y, v);
    folder::save(&b.finish().unwrap(), &to).unwrap();
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    // A square of 2^20 numbers on each side is 4 TiB.
    let huge = text.replace("256", &(1 << 20).to_string());
    fs::write(to.join(PROGRAM_FILE), huge).unwrap();
    let e = refusal(&to);
    assert!(
        e.contains("expected at most 68719476736 bytes of all constant and seeded weights, got"),
        "{e}"
    );
    let large = text.replace("256", &(1 << 16).to_string());
    fs::write(to.join(PROGRAM_FILE), large).unwrap();
    folder::load(&to).unwrap();
}

/// A loaded program goes to a device as it is.
#[test]
fn constants_that_are_not_folded_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    let mut b = ProgramBuilder::new("constants");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("once", Repeat::Once);
    let v = b.read_input("x", x);
    let w = b.constant("w", &[4], 2.0);
    let w = b.unary("constant", Act::Gelu, w);
    let v = b.add("sum", v, w);
    b.emit("y", y, v);
    let program = b.finish().unwrap();
    let told = "node constant: result 0: expected [batch or rows, ...]: constants are to be \
                folded, got f32[4]";
    assert_eq!(folder::save(&program, &to).unwrap_err().to_string(), told);
    assert!(!to.exists());
    folder::save(&optimize(program).unwrap(), &to).unwrap();
    // The same, written by hand: the sum's first operand is the weight.
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let node = json["program"]["nodes"].as_array().unwrap().iter();
    let sum = node.clone().position(|n| n["name"] == "sum").unwrap();
    let (sum, program) = (sum, &mut json["program"]);
    let weight = program["nodes"][sum]["inputs"][1].clone();
    program["nodes"][sum]["op"] = serde_json::json!({"scale": 2.0});
    program["nodes"][sum]["inputs"] = serde_json::json!([weight]);
    let result = program["nodes"][sum]["outputs"][0].as_u64().unwrap() as usize;
    program["values"][result]["ty"] =
        program["values"][weight.as_u64().unwrap() as usize]["ty"].clone();
    let emit = program["nodes"].as_array().unwrap().len() - 1;
    program["nodes"][emit]["inputs"] = serde_json::json!([program["nodes"][0]["outputs"][0]]);
    fs::write(to.join(PROGRAM_FILE), json.to_string()).unwrap();
    let e = refusal(&to);
    assert!(
        e.contains("node sum: result 0: expected [batch or rows, ...]"),
        "{e}"
    );
}

#[test]
fn floats_that_are_no_numbers_of_json_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    let mut b = ProgramBuilder::new("floats");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    let state = b.vector_state("best", DType::F32, &[4], f32::NEG_INFINITY);
    b.begin_block("once", Repeat::Once);
    let v = b.read_input("x", x);
    let low = b.constant("low", &[4], f32::NEG_INFINITY);
    let none = b.constant("none", &[4], f32::NAN);
    let v = b.add("sum", v, low);
    let v = b.add("sum2", v, none);
    let v = b.scale("scale", v, f32::INFINITY);
    let best = b.vec_read("read", state);
    let v = b.add("sum3", v, best);
    let layout = || Layout(vec![vec![Part::Batch], vec![Part::Fixed(4)]]);
    let pad = TensorOp {
        op: "Pad".to_owned(),
        opset: 10,
        attrs: [
            ("value".to_owned(), Attribute::Float(f32::NEG_INFINITY)),
            (
                "more".to_owned(),
                Attribute::Floats(vec![f32::INFINITY, 0.1]),
            ),
        ]
        .into(),
        operands: vec![Operand::Next {
            layout: layout(),
            elem: Elem::F32,
        }],
        outputs: vec![Produced {
            layout: layout(),
            elem: Elem::F32,
        }],
        flops_per_row: 0,
    };
    let v = b.tensor("pad", pad, &[v])[0];
    b.emit("y", y, v);
    let had = b.finish().unwrap();
    folder::save(&had, &to).unwrap();
    let got = folder::load(&to).unwrap();
    assert_eq!(dump(&had, None), dump(&got, None));
    let ops = |p: &Program| p.nodes.iter().map(|n| n.op.clone()).collect::<Vec<_>>();
    assert_eq!(ops(&had), ops(&got));
    assert_eq!(had.states[0].kind, got.states[0].kind);
    assert_eq!(got.weights[0].source.to_f32(1), [f32::NEG_INFINITY]);
    assert!(got.weights[1].source.to_f32(1)[0].is_nan());
}

#[test]
fn attention_keeps_what_it_sees_and_is_read_as_it_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    let mut b = ProgramBuilder::new("attention");
    let x = b.sequence("x", DType::F32, &[4], 3);
    let y = b.output_sequence("y", DType::F32, &[4]);
    b.begin_block("once", Repeat::Once);
    let v = b.read_input("x", x);
    let heads = Heads {
        query: 2,
        kv: 2,
        dim: 2,
        scale: 0.1,
    };
    let mut bias = vec![0.5; 10];
    bias[4] = f32::NEG_INFINITY;
    let bias = b.data("bias", Tensor::from_f32(&[2, 5], &bias));
    let v = b.attention("causal", [v, v, v], heads, Seen::CAUSAL, None);
    let near = Seen {
        window: Some(1),
        ..Seen::ALL
    };
    let v = b.attention("near", [v, v, v], heads, near, Some(bias));
    let capped = Op::Attention {
        heads,
        seen: Seen::ALL,
        cap: Some(0.1),
        bias: false,
    };
    let v = b.node("capped", capped, &[v, v, v])[0];
    b.emit("y", y, v);
    let had = b.finish().unwrap();
    folder::save(&had, &to).unwrap();
    let got = folder::load(&to).unwrap();
    assert_eq!(dump(&had, None), dump(&got, None));
    let ops = |p: &Program| p.nodes.iter().map(|n| n.op.clone()).collect::<Vec<_>>();
    assert_eq!(ops(&had), ops(&got));
    assert_eq!(got.weights[0].source.to_f32(10)[4], f32::NEG_INFINITY);
    // Before, there was neither window nor cap nor bias.
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    let before = text.replace(
        "\"causal\":true,\"window\":null,\"cap\":null,\"bias\":false",
        "\"causal\":true",
    );
    assert_ne!(before, text);
    fs::write(to.join(PROGRAM_FILE), before).unwrap();
    assert_eq!(ops(&had), ops(&folder::load(&to).unwrap()));
}

/// Later steps ask the input that drives the lengths for its bound, wherever one is named.
#[test]
fn a_length_input_is_a_sequence_input() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    let mut b = ProgramBuilder::new("fixed");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("once", Repeat::Once);
    let v = b.read_input("x", x);
    b.emit("y", y, v);
    folder::save(&b.finish().unwrap(), &to).unwrap();
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    // One that is not there, and one without positions.
    for got in [7, 0] {
        let named = text.replace("\"length_input\":null", &format!("\"length_input\":{got}"));
        assert_ne!(named, text);
        fs::write(to.join(PROGRAM_FILE), named).unwrap();
        let e = refusal(&to);
        let told = "length input: expected a sequence input if there is one, else none, got in";
        assert!(e.ends_with(&format!("{told}{got}")), "{e}");
    }
}

/// What lives at every node is listed, so a text of some megabytes could ask for any memory.
#[test]
fn numbers_of_parts_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("model");
    saved(&to);
    let text = fs::read_to_string(to.join(PROGRAM_FILE)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (what, most) in [
        ("nodes", 1 << 16),
        ("blocks", 1 << 16),
        ("states", 1 << 16),
        ("inputs", 1 << 16),
        ("outputs", 1 << 16),
        ("values", 1 << 18),
    ] {
        let mut json = json.clone();
        let all = json["program"][what].as_array_mut().unwrap();
        all.resize(most + 1, all[0].clone());
        fs::write(to.join(PROGRAM_FILE), json.to_string()).unwrap();
        let e = refusal(&to);
        let got = most + 1;
        let told = format!("number of {what}: expected at most {most}, got {got}");
        assert!(e.ends_with(&told), "{e}");
    }
}

proptest! {
    /// Any change of digits, letters or length is an error or a program that verifies.
    #[test]
    fn damage_gives_errors(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        digits in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("model");
        saved(&to);
        let mut text = fs::read(to.join(PROGRAM_FILE)).unwrap();
        let numbers: Vec<usize> =
            (0..text.len()).filter(|&i| text[i].is_ascii_digit()).collect();
        for (at, byte) in flips {
            if digits {
                text[*at.get(&numbers)] = b'0' + byte % 10;
            } else {
                let at = at.index(text.len());
                text[at] = byte;
            }
        }
        if let Some(cut) = cut.filter(|_| !digits) {
            text.truncate(cut.index(text.len()));
        }
        fs::write(to.join(PROGRAM_FILE), &text).unwrap();
        let _ = folder::load(&to);
    }
}
