//! Weights as their publishers pack them are the models that a manifest would make of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use lazybatch_graph::{Manifest, Program, dump};
use tempfile::TempDir;

const BERT: &str = r#"{
"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 8,
"intermediate_size": 16, "layer_norm_eps": 1e-12, "max_position_embeddings": 6,
"num_attention_heads": 2, "num_hidden_layers": 1, "position_embedding_type": "absolute",
"type_vocab_size": 2, "vocab_size": 9, "unheard_of": null
}"#;
const MODULES: &str = r#"[
{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
]"#;
const POOLING: &str = r#"{"word_embedding_dimension": 8, "pooling_mode_cls_token": false,
"pooling_mode_mean_tokens": true}"#;
const BERT_MANIFEST: &str = "format = 'lazybatch-model/1'\nname = 'same'\narchitecture = 'bert'\n\
weights = 'model.safetensors'\ntokenizer = 'tokenizer.json'\n\
[sizes]\nvocab = 9\nhidden = 8\nlayers = 1\nheads = 2\nffn = 16\npositions = 6\nmax_len = 5\n\
[options]\nresult = 'mean'\nnormalise = true\n\
[tensors]\nignore = ['embeddings.position_ids', 'pooler.dense.*']\n";

const LLAMA: &str = r#"{
"model_type": "llama", "hidden_act": "silu", "hidden_size": 8, "intermediate_size": 16,
"max_position_embeddings": 40, "num_attention_heads": 2, "num_key_value_heads": 1,
"num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 500.0,
"tie_word_embeddings": true, "vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2
}"#;
const LLAMA_MANIFEST: &str = "format = 'lazybatch-model/1'\nname = 'same'\narchitecture = 'llama'\n\
weights = 'model.safetensors'\n\
[sizes]\nvocab = 9\nhidden = 8\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 16\npositions = 40\n\
[options]\neps = 1e-5\nrope_theta = 500\ntied = true\n\
[tokens]\nstart = 1\nstop = 2\nmax_steps = 7\n\
[tensors]\nignore = ['*.rotary_emb.inv_freq', 'lm_head.weight']\n";

type Shapes = Vec<(String, Vec<usize>)>;

/// A safetensors file with elements 0, 1/64, 2/64, ... in each tensor.
fn weights(shapes: &Shapes) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dims) in shapes {
        let start = data.len();
        let elements = 0..dims.iter().product::<usize>();
        data.extend(elements.flat_map(|n| (n as f32 / 64.0).to_le_bytes()));
        let end = data.len();
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":{dims:?},\"data_offsets\":[{start},{end}]}}"
        ));
    }
    let header = format!("{{{}}}", header.join(","));
    let len = (header.len() as u64).to_le_bytes();
    [&len, header.as_bytes(), &data].concat()
}

/// Tensors of the BERT, each name behind `prefix`.
fn bert(prefix: &str) -> Shapes {
    let mut all: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![9, 8]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, 8]),
        ("embeddings.position_embeddings.weight".into(), vec![6, 8]),
        ("embeddings.position_ids".into(), vec![1, 6]),
        ("pooler.dense.weight".into(), vec![8, 8]),
        ("pooler.dense.bias".into(), vec![8]),
    ];
    let norms = [
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm",
    ];
    for norm in norms {
        for part in ["weight", "bias"] {
            all.push((format!("{norm}.{part}"), vec![8]));
        }
    }
    for (name, to, from) in [
        ("attention.self.query", 8, 8),
        ("attention.self.key", 8, 8),
        ("attention.self.value", 8, 8),
        ("attention.output.dense", 8, 8),
        ("intermediate.dense", 16, 8),
        ("output.dense", 8, 16),
    ] {
        all.push((format!("encoder.layer.0.{name}.weight"), vec![to, from]));
        all.push((format!("encoder.layer.0.{name}.bias"), vec![to]));
    }
    let named = all.into_iter();
    named
        .map(|(name, dims)| (format!("{prefix}{name}"), dims))
        .collect()
}

fn llama() -> Shapes {
    let mut all: Shapes = vec![
        ("model.embed_tokens.weight".into(), vec![9, 8]),
        ("lm_head.weight".into(), vec![9, 8]),
        ("model.norm.weight".into(), vec![8]),
    ];
    for (name, dims) in [
        ("input_layernorm", vec![8]),
        ("post_attention_layernorm", vec![8]),
        ("self_attn.q_proj", vec![8, 8]),
        ("self_attn.k_proj", vec![4, 8]),
        ("self_attn.v_proj", vec![4, 8]),
        ("self_attn.o_proj", vec![8, 8]),
        ("mlp.gate_proj", vec![16, 8]),
        ("mlp.up_proj", vec![16, 8]),
        ("mlp.down_proj", vec![8, 16]),
    ] {
        all.push((format!("model.layers.0.{name}.weight"), dims));
    }
    all.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        vec![2],
    ));
    all
}

/// A folder of files by name.
fn folder(shapes: &Shapes, files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), weights(shapes)).unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn sentences() -> TempDir {
    let length = r#"{"max_seq_length": 5, "do_lower_case": false}"#;
    folder(
        &bert(""),
        &[
            ("config.json", BERT),
            ("modules.json", MODULES),
            ("1_Pooling/config.json", POOLING),
            ("sentence_bert_config.json", length),
            ("tokenizer.json", "{}"),
        ],
    )
}

fn open(dir: &Path) -> Result<Program, String> {
    let manifest = Manifest::open(dir.join("model.safetensors")).map_err(|e| e.to_string())?;
    manifest.program().map_err(|e| e.to_string())
}

/// What a manifest makes of the same weights.
fn by_manifest(dir: &Path, text: &str) -> Program {
    let manifest = Manifest::parse("model.toml", dir, text).unwrap();
    manifest.program().unwrap()
}

/// Whether the two compute the same, but for their names.
fn same(mut got: Program, want: &Program) {
    got.name.clone_from(&want.name);
    assert_eq!(dump(&got, None), dump(want, None));
    assert_eq!(got.metadata, want.metadata);
    for (a, b) in got.weights.iter().zip(&want.weights) {
        let elems = a.ty.row_elems();
        assert_eq!(a.source.to_f32(elems), b.source.to_f32(elems), "{}", a.name);
    }
}

#[test]
fn sentence_transformers_are_what_their_files_say() {
    let dir = sentences();
    same(
        open(dir.path()).unwrap(),
        &by_manifest(dir.path(), BERT_MANIFEST),
    );
    // The first row, as it is.
    let two = MODULES.rsplit_once(",\n{").unwrap().0;
    fs::write(dir.path().join("modules.json"), format!("{two}]")).unwrap();
    let first = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
    fs::write(dir.path().join("1_Pooling/config.json"), first).unwrap();
    let text = BERT_MANIFEST
        .replace("'mean'", "'first'")
        .replace("normalise = true", "");
    same(open(dir.path()).unwrap(), &by_manifest(dir.path(), &text));
}

#[test]
fn a_bert_alone_answers_its_rows_whatever_its_tensors_are_called() {
    let want = BERT_MANIFEST
        .replace("tokenizer = 'tokenizer.json'\n", "")
        .replace("max_len = 5\n", "")
        .replace("'mean'\nnormalise = true", "'rows'");
    for prefix in ["", "bert."] {
        let dir = folder(&bert(prefix), &[("config.json", BERT)]);
        let text = want.replace("['embeddings", &format!("['{prefix}embeddings"));
        let text = text.replace("'pooler", &format!("'{prefix}pooler"));
        let text = format!("{text}prefix = '{prefix}'\n").replace("prefix = ''\n", "");
        same(open(dir.path()).unwrap(), &by_manifest(dir.path(), &text));
    }
}

#[test]
fn a_llama_is_what_its_files_say() {
    let steps = r#"{"max_new_tokens": 7, "eos_token_id": [2]}"#;
    let dir = folder(
        &llama(),
        &[("config.json", LLAMA), ("generation_config.json", steps)],
    );
    same(
        open(dir.path()).unwrap(),
        &by_manifest(dir.path(), LLAMA_MANIFEST),
    );
    // As transformers 5 writes it: what a rotation turns by stands in a table of its own.
    let five = LLAMA.replace(
        "\"rope_scaling\": null, \"rope_theta\": 500.0,",
        "\"rope_parameters\": {\"rope_theta\": 500.0, \"rope_type\": \"default\"},",
    );
    assert_ne!(five, LLAMA);
    fs::write(dir.path().join("config.json"), five).unwrap();
    same(
        open(dir.path()).unwrap(),
        &by_manifest(dir.path(), LLAMA_MANIFEST),
    );
    // A tokenizer that begins texts itself; half of the positions, as nobody says how many steps.
    let begins = r#"{"post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}]}}"#;
    let dir = folder(
        &llama(),
        &[("config.json", LLAMA), ("tokenizer.json", begins)],
    );
    let text = LLAMA_MANIFEST
        .replace("start = 1\n", "")
        .replace("max_steps = 7", "max_steps = 20")
        .replace("[sizes]", "tokenizer = 'tokenizer.json'\n[sizes]");
    same(open(dir.path()).unwrap(), &by_manifest(dir.path(), &text));
}

#[test]
fn what_we_would_compute_otherwise_is_refused() {
    let changed = |file: &str, text: String, dir: TempDir| -> String {
        fs::write(dir.path().join(file), text).unwrap();
        let shown = dir.path().display().to_string();
        open(dir.path()).unwrap_err().replace(&shown, "DIR")
    };
    for (from, to, told) in [
        (
            "\"bert\"",
            "\"t5\"",
            "DIR/config.json: model_type: expected one of bert, llama, got `t5`",
        ),
        (
            "\"gelu\"",
            "\"gelu_new\"",
            "DIR/config.json: hidden_act: expected one of gelu, relu, got `gelu_new`",
        ),
        (
            "\"absolute\"",
            "\"relative_key\"",
            "DIR/config.json: position_embedding_type: expected `absolute`, got `relative_key`",
        ),
        (
            "\"num_attention_heads\": 2",
            "\"num_attention_heads\": 3",
            "DIR/config.json: sizes.heads: expected a number that divides 8 features, got 3",
        ),
        (
            "\"num_hidden_layers\": 1,",
            "",
            "DIR/config.json: num_hidden_layers: expected a whole number from 1 to 1000, got nothing",
        ),
        (
            "}",
            "",
            "DIR/config.json: expected a JSON object, got EOF while",
        ),
    ] {
        let text = changed("config.json", BERT.replacen(from, to, 1), sentences());
        assert!(text.contains(told), "{text}");
    }
    let text = changed("config.json", "[]".into(), sentences());
    assert!(
        text.contains("DIR/config.json: expected a JSON object, got another value"),
        "{text}"
    );
    let dense = MODULES.replace("models.Normalize", "models.Dense");
    let text = changed("modules.json", dense, sentences());
    assert!(
        text.contains("modules.json: expected a list of modules Transformer, Pooling")
            && text.ends_with("got Transformer, Pooling, Dense"),
        "{text}"
    );
    let outside = MODULES.replace("1_Pooling", "../1_Pooling");
    let text = changed("modules.json", outside, sentences());
    assert!(text.ends_with("got the path ../1_Pooling"), "{text}");
    let none = POOLING.replace("mean_tokens", "max_tokens");
    let text = changed("1_Pooling/config.json", none, sentences());
    assert!(text.ends_with("got [pooling_mode_max_tokens]"), "{text}");
    for (from, to, told) in [
        (
            "\"rope_scaling\": null",
            "\"rope_scaling\": {\"factor\": 8.0}",
            "rope_scaling: expected null, got a table",
        ),
        (
            "\"rope_scaling\": null",
            "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",
            "rope_parameters.rope_type: expected `default`, got `llama3`",
        ),
        (
            "\"rope_scaling\": null",
            "\"rope_parameters\": {\"type\": \"linear\", \"factor\": 8.0}",
            "rope_parameters.type: expected `default`, got `linear`",
        ),
        (
            "\"rope_scaling\": null",
            "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 500.0}}",
            "rope_parameters.full_attention: expected keys among",
        ),
        (
            "\"rope_scaling\": null",
            "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
            "rope_parameters.partial_rotary_factor: expected 1, got 0.5",
        ),
        (
            "\"rope_scaling\": null",
            "\"partial_rotary_factor\": 0.25",
            "config.json: partial_rotary_factor: expected 1, got 0.25",
        ),
        (
            "\"eos_token_id\": 2",
            "\"eos_token_id\": [2, 3]",
            "eos_token_id: expected a whole number from 0 to 8, got [2, 3]",
        ),
        (
            "\"silu\"",
            "\"gelu\"",
            "hidden_act: expected `silu`, got `gelu`",
        ),
    ] {
        let dir = folder(&llama(), &[("config.json", LLAMA)]);
        let text = changed("config.json", LLAMA.replacen(from, to, 1), dir);
        assert!(text.contains(told), "{text}");
    }
    for (stop, told) in [
        ("[2, 3]", "eos_token_id: expected 2 alone, got [2, 3]"),
        ("[3]", "eos_token_id: expected 2 alone, got [3]"),
        ("3", "eos_token_id: expected 2 alone, got 3"),
    ] {
        let dir = folder(&llama(), &[("config.json", LLAMA)]);
        let said = format!("{{\"eos_token_id\": {stop}}}");
        let text = changed("generation_config.json", said, dir);
        let told = format!("DIR/generation_config.json: {told}");
        assert!(text.contains(&told), "{text}");
    }
}

#[test]
fn weights_alone_are_refused_unless_their_tensors_tell() {
    let dir = folder(&bert(""), &[]);
    let text = open(dir.path()).unwrap_err();
    assert!(
        text.contains("model.safetensors: expected a manifest model.toml or the publisher's")
            && text.ends_with("got weights alone"),
        "{text}"
    );
    // Torchvision's names, but not all of its tensors: what is missing is told.
    let some: Shapes = vec![
        ("features.18.0.weight".into(), vec![1280, 320, 1, 1]),
        ("classifier.1.weight".into(), vec![7, 1280]),
        ("classifier.1.bias".into(), vec![7]),
    ];
    let dir = folder(&some, &[]);
    let text = open(dir.path()).unwrap_err();
    assert!(
        text.contains("missing, ") && !text.contains("classifier"),
        "{text}"
    );
}

#[test]
fn a_tensor_that_nobody_takes_is_refused() {
    let mut more = bert("bert.");
    more.push(("classifier.weight".into(), vec![2, 8]));
    let dir = folder(&more, &[("config.json", BERT)]);
    let text = open(dir.path()).unwrap_err();
    assert!(
        text.contains("not used, 1 in all: classifier.weight"),
        "{text}"
    );
}
