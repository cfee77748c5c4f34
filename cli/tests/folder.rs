//! Model folders on the command line: `import`, and `--model DIR`.

mod common;

use std::path::Path;

use common::Place;

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
