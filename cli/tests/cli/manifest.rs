//! Published weights on the command line: `import model.toml`, then text in and out.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::common::Place;

const MANIFEST: &str = "format = 'lazybatch-model/1'\n\
name = 'tales'\n\
architecture = 'llama'\n\
weights = 'w.safetensors'\n\
tokenizer = 'pieces.bin'\n\
[sizes]\n\
vocab = 262\n\
hidden = 4\n\
layers = 1\n\
heads = 2\n\
ffn = 4\n\
positions = 40\n\
[options]\n\
tied = true\n\
[tokens]\n\
start = 1\n\
stop = 2\n\
max_steps = 8\n";

/// Three special pieces, single bytes, and three pieces of text.
fn pieces() -> Vec<u8> {
    let mut bytes = 5i32.to_le_bytes().to_vec();
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let single = (0..256).map(|b| format!("<0x{b:02X}>"));
    let text = [" ", "a", " a"].map(str::to_owned);
    for piece in special.into_iter().chain(single).chain(text) {
        bytes.extend(0f32.to_le_bytes());
        bytes.extend((piece.len() as i32).to_le_bytes());
        bytes.extend(piece.as_bytes());
    }
    bytes
}

/// Weights that differ from each other.
fn weights() -> Vec<u8> {
    let tensors: [(&str, Vec<usize>); 12] = [
        ("model.embed_tokens.weight", vec![262, 4]),
        ("model.layers.0.input_layernorm.weight", vec![4]),
        ("model.layers.0.post_attention_layernorm.weight", vec![4]),
        ("model.layers.0.self_attn.q_proj.weight", vec![4, 4]),
        ("model.layers.0.self_attn.k_proj.weight", vec![4, 4]),
        ("model.layers.0.self_attn.v_proj.weight", vec![4, 4]),
        ("model.layers.0.self_attn.o_proj.weight", vec![4, 4]),
        ("model.layers.0.mlp.gate_proj.weight", vec![4, 4]),
        ("model.layers.0.mlp.up_proj.weight", vec![4, 4]),
        ("model.layers.0.mlp.down_proj.weight", vec![4, 4]),
        ("model.norm.weight", vec![4]),
        ("spare", vec![1]),
    ];
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dims) in tensors {
        let start = data.len();
        for n in 0..dims.iter().product::<usize>() {
            let value = ((n * 37 + start) % 101) as f32 / 50.0 - 1.0;
            data.extend(value.to_le_bytes());
        }
        let end = data.len();
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":{dims:?},\"data_offsets\":[{start},{end}]}}"
        ));
    }
    let header = format!("{{{}}}", header.join(","));
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat()
}

fn place(manifest: &str) -> Place {
    let place = Place::new();
    place.write("model.toml", manifest);
    std::fs::write(place.path("pieces.bin"), pieces()).unwrap();
    std::fs::write(place.path("w.safetensors"), weights()).unwrap();
    place
}

/// The manifest with the tensor that no layer uses set aside.
fn sound() -> String {
    format!("{MANIFEST}[tensors]\nignore = 'spare'\n")
}

#[test]
fn a_manifest_that_states_no_format_is_told_so() {
    let place = Place::new();
    let format = "format: expected `lazybatch-model/1`, got nothing";
    for text in [
        "",
        "name = 'tales'",
        &MANIFEST.replacen("format", "# format", 1),
    ] {
        place.write("model.toml", text);
        place.refuse("import model.toml --out m", &["model.toml", format]);
    }
    // Those that tie two graphs together have none.
    place.write("model.toml", "[encoder]\nfile = 'e.onnx'");
    place.refuse("import model.toml --out m", &["missing field `decoder`"]);
}

#[test]
fn text_goes_in_and_comes_out() {
    let place = place(&sound());
    let done = place.succeed("import model.toml --out m");
    assert!(done.out.starts_with("m: tales, "), "{}", done.out);
    let told = place.succeed("run --model m --input a").out;
    assert!(!told.trim_end_matches('\n').is_empty(), "{told:?}");
    assert_eq!(place.succeed("run --model m --input a").out, told);
    let ids = r#"{ "prompt": [1, 261] }"#;
    place.write("x.json", ids);
    assert_eq!(place.succeed("run --model m --input x.json").out, told);
    // The folder stands on its own, and another import replaces it.
    std::fs::remove_file(place.path("w.safetensors")).unwrap();
    std::fs::remove_file(place.path("pieces.bin")).unwrap();
    assert_eq!(place.succeed("run --model m --input a").out, told);
    let args = "compare --model m --policies serial,lazy --rate 40 --duration 0.3 --threads 1";
    let done = place.succeed(args);
    let same = "answers bit-identical to those alone";
    assert_eq!(done.out.matches(same).count(), 2, "{}", done.out);
}

#[test]
fn what_does_not_fit_is_bad_input() {
    let place = place(MANIFEST);
    let import = "import model.toml --out m";
    place.refuse(import, &["w.safetensors", "not used, 1 in all: spare"]);
    place.write("model.toml", sound().replace("heads = 2", "heads = 'two'"));
    place.refuse(
        import,
        &["model.toml: sizes.heads: expected", "got \"two\""],
    );
    place.write("model.toml", sound());
    place.refuse(
        "import model.toml --out m --max-len 4",
        &["--max-len: expected an ONNX model, got model.toml"],
    );
    std::fs::write(place.path("pieces.bin"), &pieces()[..50]).unwrap();
    place.refuse(import, &["pieces.bin: expected"]);
    std::fs::write(place.path("pieces.bin"), pieces()).unwrap();
    place.succeed(import);
    place.refuse(
        "run --model m --input aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        &["text for tales: expected 1 to 32 tokens"],
    );
    std::fs::remove_file(place.path("m/pieces.bin")).unwrap();
    place.refuse("run --model m --input a", &["pieces.bin"]);
}
