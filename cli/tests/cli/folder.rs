//! Model folders on the command line: `import`, and `--model DIR`.

use std::path::Path;

use crate::common::Place;

/// A model that the tests of the importer use.
fn model(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../kernels/tests/import/models").join(name);
    path.display().to_string()
}

#[test]
fn a_model_is_imported_and_served() {
    let place = Place::new();
    let import = format!("import {} --out m --max-len 40", model("lstm.onnx"));
    let done = place.succeed(&import);
    assert!(done.out.starts_with("m: lstm, "), "{}", done.out);
    let done = place.succeed("inspect --model m");
    assert!(done.out.contains("per input step"), "{}", done.out);
    assert!(done.out.contains("len <= 40"), "{}", done.out);
    let frames = r#"{ "frames": [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0.5]] }"#;
    place.write("x.json", frames);
    let one = place.succeed("run --model m --input x.json --threads 1");
    assert!(one.out.contains("class f32[1, 3]:"), "{}", one.out);
    assert!(one.out.contains("states f32[2, 8]:"), "{}", one.out);
    // Importing again replaces the folder; the answers stay.
    place.succeed(&import);
    let again = place.succeed("run --model m --input x.json --threads 1");
    assert_eq!(again.out, one.out);
    place.succeed("profile --model m --device npu --out p.json");
    place.succeed("simulate --profile npu --model m --rate 50 --duration 0.5 --policies lazy");
    let args = "compare --model m --policies serial,lazy --rate 40 --duration 0.3 --threads 1";
    let done = place.succeed(args);
    let same = "answers bit-identical to those alone";
    assert_eq!(done.out.matches(same).count(), 2, "{}", done.out);
}

#[test]
fn folders_and_files_that_do_not_fit_are_bad_input() {
    let place = Place::new();
    std::fs::create_dir(place.path("notes")).unwrap();
    place.write("notes/n.txt", "mine");
    let mlp = model("mlp.onnx");
    place.refuse(
        &format!("import {mlp} --out notes"),
        &["notes: folder: expected", "got a folder with other files"],
    );
    place.refuse("import no.onnx --out m", &["no.onnx"]);
    // What cannot be written is found before any work is done.
    place.refuse(
        "import no.onnx --out notes/n.txt/m",
        &["--out: expected a folder that can be written, got notes/n.txt/m: "],
    );
    for name in ["", "a/b", "a\tb"] {
        place.refuse_args(
            &["import", "no.onnx", "--out", "n", "--name", name],
            &["--name: expected a name without / and control characters"],
        );
    }
    place.refuse(
        &format!("import {mlp} --out m --batch-axis rows"),
        &["--batch-axis: axis: expected one of batch, got rows"],
    );
    place.refuse("run --model notes", &["program.json"]);
    place.succeed(&format!("import {mlp} --out m"));
    place.write("m/weights.safetensors", "short");
    place.refuse("run --model m", &["weights.safetensors", "safetensors"]);
    place.write("m/program.json", "{\"format\": \"lazybatch-program/2\"}");
    place.refuse(
        "run --model m",
        &["expected lazybatch-program/1", "lazybatch-program/2"],
    );
}

#[test]
fn what_was_imported_is_told_as_json() {
    let place = Place::new();
    let import = format!("import {} --out m", model("lstm.onnx"));
    let done = place.succeed(&format!("{import} --json i.json"));
    let json: serde_json::Value = serde_json::from_str(&place.read("i.json")).unwrap();
    assert_eq!(json["format"], "lazybatch-import/1");
    assert_eq!([&json["out"], &json["model"]], ["m", "lstm"]);
    assert_eq!(json["agrees_within"], 1e-4);
    let told = format!(
        "m: lstm, {} nodes in {} blocks, {} parameters;",
        json["nodes"], json["blocks"], json["parameters"]
    );
    assert!(done.out.starts_with(&told), "{told}: {}", done.out);
    let notes = json["notes"].as_array().unwrap();
    assert_eq!(
        notes.len(),
        done.out.matches("note: ").count(),
        "{}",
        done.out
    );
    // A folder with a file of another kind would not be replaced again.
    for inside in ["m/i.json", "./m/i.json", "m/../m/i.json"] {
        place.refuse(
            &format!("{import} --json {inside}"),
            &["--json: expected a file outside the folder of --out, got "],
        );
    }
    place.refuse(
        &format!("{import} --json no/i.json"),
        &["--json: expected a file that can be written, got no/i.json: "],
    );
}

#[test]
fn an_import_takes_no_file_away() {
    let place = Place::new();
    let mlp = model("mlp.onnx");
    place.succeed(&format!("import {mlp} --out m"));
    std::fs::copy(&mlp, place.path("m/model.onnx")).unwrap();
    place.write("m/NOTES", "mine");
    place.refuse(
        "import m/model.onnx --out m",
        &["--out: expected a folder that the input does not lie in, got m"],
    );
    // An input that is the folder itself, and one that a link leads to.
    std::os::unix::fs::symlink("m/model.onnx", place.path("link.onnx")).unwrap();
    for input in ["m", "link.onnx"] {
        place.refuse(&format!("import {input} --out ./m/"), &["--out: expected"]);
    }
    place.refuse(
        &format!("import {mlp} --out m"),
        &[
            "--out: ",
            "m: folder: expected",
            "got one with \"NOTES\" in it",
        ],
    );
    assert_eq!(place.read("m/NOTES"), "mine");
    assert!(place.path("m/model.onnx").exists());
    std::fs::remove_file(place.path("m/NOTES")).unwrap();
    std::fs::rename(place.path("m/model.onnx"), place.path("model.onnx")).unwrap();
    place.succeed("import model.onnx --out m");
    assert!(place.path("model.onnx").exists());
}

#[test]
fn what_no_request_could_run_by_is_refused_with_the_programs_file() {
    let place = Place::new();
    place.succeed(&format!("import {} --out m", model("mlp.onnx")));
    let sound = place.read("m/program.json");
    let changed = |from: &str, to: &str| {
        assert!(sound.contains(from), "{from}");
        place.write("m/program.json", sound.replacen(from, to, 1));
    };
    changed("\"id_bound\":null", "\"id_bound\":10");
    let parts = "m/program.json: program mlp: input x, id bound: expected i32 and ";
    place.refuse("run --model m", &[parts, "got f32[12] and 10"]);
    changed("\"name\":\"mlp\"", "\"name\":\"\"");
    let part = "m/program.json: program \"\": expected a name";
    place.refuse("run --model m", &[part]);

    // What the verifier leaves to devices: kernels that are not there.
    use lazybatch_graph::{CustomOp, DType, ProgramBuilder, Repeat, folder};
    let mut b = ProgramBuilder::new("own");
    let x = b.input("x", DType::F32, &[2]);
    let y = b.output("y", DType::F32, &[2]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let op = CustomOp {
        name: "mine".into(),
        output_dims: vec![2],
        flops_per_row: 1,
        batchable: true,
    };
    let v = b.custom("twist", op, &[v]);
    b.emit("emit", y, v);
    let program = b.finish().expect("a sound program");
    folder::save(&program, &place.path("own")).expect("a folder");
    let parts = [
        "own/program.json: ",
        "node twist: op mine is not supported: a kernel of this name in the registry",
    ];
    for command in [
        "run --model own",
        "compare --model own --duration 0.1",
        "profile --model own --out p.json",
    ] {
        place.refuse(command, &parts);
    }
    place.succeed("profile --model own --device npu --out p.json");
    place.refuse(
        "compare --model own --profile p.json --duration 0.1",
        &parts,
    );
}

/// A model of the importer's tests in which some bytes stand in the place of as many others.
fn changed(place: &Place, name: &str, [from, to]: [&[u8]; 2], as_name: &str) {
    let bytes = std::fs::read(model(name)).expect("a model of the tests");
    let mut left = &bytes[..];
    let mut changed = Vec::new();
    while let Some(at) = left.windows(from.len()).position(|w| w == from) {
        changed.extend_from_slice(&left[..at]);
        changed.extend_from_slice(to);
        left = &left[at + from.len()..];
    }
    assert!(from.len() == to.len() && left.len() < bytes.len());
    changed.extend_from_slice(left);
    place.write(as_name, changed);
}

#[test]
fn what_a_user_should_know_of_an_import_is_told_then_and_later() {
    let place = Place::new();
    let hides = [-1e9_f32, -1e4].map(f32::to_le_bytes);
    changed(
        &place,
        "causal.onnx",
        hides.each_ref().map(|v| &v[..]),
        "c.onnx",
    );
    let note = "note: a mask adds -10000 to scores that it hides: they count as hidden, however large \
                they are\n";
    let told = |done: &crate::common::Done| done.out.matches(note).count();
    assert_eq!(told(&place.succeed("import c.onnx --out m --max-len 8")), 1);
    assert_eq!(told(&place.succeed("inspect --model m")), 1);
    let plain = format!("import {} --out n --max-len 8", model("causal.onnx"));
    assert!(!place.succeed(&plain).out.contains("note: "));
    assert!(!place.succeed("inspect --model n").out.contains("note: "));
}

#[test]
fn a_mask_of_another_name_is_asked_for() {
    let place = Place::new();
    let names = [&b"attention_mask"[..], b"attention_seen"];
    changed(&place, "bert.onnx", names, "b.onnx");
    place.refuse(
        "import b.onnx --out m",
        &[
            "b.onnx: 1 unsupported nodes: ",
            "comes with the request; --mask INPUT names an input that only tells padding",
        ],
    );
    place.succeed("import b.onnx --out m --mask attention_seen");
}
