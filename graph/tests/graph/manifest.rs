//! Manifests and their weight files, sound and broken.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use lazybatch_graph::manifest::Store;
use lazybatch_graph::{DType, Manifest, Tensor};
use proptest::prelude::*;

const GRU: &str = "format = 'lazybatch-model/1'\n\
name = 'small'\n\
architecture = 'gru-encoder-decoder'\n\
weights = 'model.safetensors'\n\
tensors.ignore = ['*.ids']\n\
[sizes]\n\
hidden = 3\n\
embed = 2\n\
source_vocab = 5\n\
target_vocab = 4\n\
max_len = 6\n\
[tokens]\n\
start = 1\n\
stop = 2\n\
max_steps = 7\n";

/// Names and dims of its tensors.
fn shapes() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("enc_emb", vec![5, 2]),
        ("enc_w_ih", vec![9, 2]),
        ("enc_w_hh", vec![9, 3]),
        ("enc_b_ih", vec![9]),
        ("enc_b_hh", vec![9]),
        ("dec_emb", vec![4, 2]),
        ("dec_w_ih", vec![9, 2]),
        ("dec_w_hh", vec![9, 3]),
        ("dec_b_ih", vec![9]),
        ("dec_b_hh", vec![9]),
        ("fc_w", vec![4, 3]),
        ("fc_b", vec![4]),
    ]
}

/// A safetensors file of tensors by name, safetensors' dtype, dims and bytes.
fn file(tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, dims, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{dims:?},\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat()
}

/// Elements 0, 1, 2, ... of each tensor.
fn sound() -> Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)> {
    let bytes = |dims: &Vec<usize>| {
        let elements = 0..dims.iter().product::<usize>();
        elements.flat_map(|n| (n as f32).to_le_bytes()).collect()
    };
    shapes()
        .into_iter()
        .map(|(name, dims)| (name, "F32", dims.clone(), bytes(&dims)))
        .collect()
}

fn message(text: &str) -> String {
    let manifest = match Manifest::parse("model.toml", "", text) {
        Ok(manifest) => manifest,
        Err(error) => return error.to_string(),
    };
    let all = shapes().into_iter().map(|(name, dims)| {
        let num = dims.iter().product();
        (name.to_owned(), Tensor::from_f32(&dims, &vec![0.0; num]))
    });
    match manifest.program_with(&Store::from_tensors("w.st", all)) {
        Ok(_) => "sound".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_key_that_is_wrong_is_named() {
    assert_eq!(message(GRU), "sound");
    for (from, to, expected) in [
        (
            "hidden = 3",
            "hidden = 'three'",
            "model.toml: sizes.hidden: expected a whole number from 1 to 16777216, got \"three\"",
        ),
        (
            "hidden = 3",
            "",
            "model.toml: sizes.hidden: expected a whole number from 1 to 16777216, got nothing",
        ),
        (
            "hidden = 3",
            "hidden = -3",
            "model.toml: sizes.hidden: expected a whole number from 1 to 16777216, got -3",
        ),
        (
            "hidden = 3",
            "hidden = 3\nhiden = 4",
            "model.toml: sizes.hiden: expected keys among embed, hidden, max_len, source_vocab, \
             target_vocab, got hiden",
        ),
        (
            "stop = 2",
            "stop = 4",
            "model.toml: tokens.stop: expected a whole number from 0 to 3, got 4",
        ),
        (
            "[tokens]",
            "[options]\neps = 1.0\n[tokens]",
            "model.toml: options.eps: expected no keys here, got eps",
        ),
        (
            "'gru-encoder-decoder'",
            "'gru'",
            "model.toml: architecture: expected one of bert, llama, encoder-decoder, \
             gru-encoder-decoder, mobilenet-v2, got `gru`",
        ),
        (
            "name = 'small'",
            "name = 3",
            "model.toml: name: expected a text, got 3",
        ),
        (
            "'model.safetensors'",
            "'../model.safetensors'",
            "model.toml: weights or tokenizer: expected the name of a file beside the manifest, \
             got `../model.safetensors`",
        ),
        (
            "'model.safetensors'",
            "[]",
            "model.toml: weights: expected a text or a list of texts, got nothing",
        ),
        (
            "lazybatch-model/1",
            "lazybatch-model/9",
            "model.toml: format: expected `lazybatch-model/1`, got `lazybatch-model/9`",
        ),
        (
            "format = 'lazybatch-model/1'",
            "",
            "model.toml: format: expected `lazybatch-model/1`, got nothing",
        ),
        (
            "name = 'small'",
            "nam = 'small'",
            "model.toml: name: expected a text, got nothing",
        ),
        (
            "name = 'small'",
            "name = 'small'\nsize = 1",
            "model.toml: size: expected keys among architecture, container, format, name, options, \
             sizes, tensors, tokenizer, tokens, weights, got size",
        ),
        (
            "tensors.ignore = ['*.ids']",
            "tensors.rename.fc_w = 7",
            "model.toml: tensors.rename.fc_w: expected a text, got 7",
        ),
        (
            "tensors.ignore = ['*.ids']",
            "tensors = 7",
            "model.toml: tensors: expected a table, got 7",
        ),
    ] {
        assert_eq!(GRU.matches(from).count(), 1, "{from}");
        assert_eq!(message(&GRU.replace(from, to)), expected, "{to}");
    }
    let broken = message(&GRU.replace("[sizes]", "[sizes"));
    assert!(
        broken.starts_with("model.toml: line 6: expected TOML, got "),
        "{broken}"
    );
}

#[test]
fn all_tensors_that_do_not_fit_are_told_at_once() {
    let manifest = Manifest::parse("model.toml", "", GRU).unwrap();
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for (name, dims) in shapes() {
        let dims = match name {
            "enc_emb" => vec![2, 5],
            "fc_w" => vec![12],
            _ => dims,
        };
        let num = dims.iter().product::<usize>();
        let tensor = match name {
            "dec_b_ih" => Tensor::from_i32(&dims, &vec![0; num]),
            _ => Tensor::from_f32(&dims, &vec![0.0; num]),
        };
        match name {
            "dec_w_hh" | "enc_b_hh" => {}
            _ => tensors.push((name.to_owned(), tensor)),
        }
    }
    for extra in ["more", "embedding.ids", "odd"] {
        tensors.push((extra.to_owned(), Tensor::from_f32(&[1], &[0.0])));
    }
    let store = Store::from_tensors("w.st", tensors);
    let message = manifest.program_with(&store).unwrap_err().to_string();
    assert_eq!(
        message,
        "w.st: tensors are not those of model.toml: \
         tensor enc_emb: expected floats [5, 2], got f32[2, 5]; \
         tensor dec_b_ih: expected floats [9], got i32[9]; \
         tensor fc_w: expected floats [4, 3], got f32[12]; \
         missing, 2 in all: enc_b_hh [9], dec_w_hh [9, 3]; \
         not used, 2 in all: more, odd"
    );
}

/// The program of `GRU` with the file's bytes, from a folder.
fn load(bytes: &[u8]) -> Result<lazybatch_graph::Program, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.toml"), GRU).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let manifest = Manifest::open(dir.path().join("model.toml")).map_err(|e| e.to_string())?;
    manifest.program().map_err(|e| e.to_string())
}

#[test]
fn matrices_are_turned_and_the_rest_is_as_stored() {
    let program = load(&file(&sound())).unwrap();
    let weight = |name: &str| {
        let found = program.weights.iter().find(|w| w.name == name).unwrap();
        (
            found.ty.to_string(),
            found.source.to_f32(found.ty.row_elems()),
        )
    };
    let (ty, data) = weight("fc_w");
    assert_eq!(ty, "f32[3, 4]");
    assert_eq!(data[..5], [0.0, 3.0, 6.0, 9.0, 1.0]);
    let (ty, data) = weight("enc_emb");
    assert_eq!(ty, "f32[5, 2]");
    assert_eq!(data[..3], [0.0, 1.0, 2.0]);
    assert_eq!(program.metadata["architecture"], "gru-encoder-decoder");
    assert_eq!(program.metadata["stop_token"], "2");
}

#[test]
fn narrow_floats_are_read_and_other_dtypes_refused() {
    let halves = |dims: &Vec<usize>| -> Vec<u8> {
        let elements = 0..dims.iter().product::<usize>();
        elements
            .flat_map(|n| half::f16::from_f32(n as f32).to_le_bytes())
            .collect()
    };
    let mut tensors = sound();
    let (_, dtype, dims, bytes) = &mut tensors[10];
    (*dtype, *bytes) = ("F16", halves(dims));
    let program = load(&file(&tensors)).unwrap();
    let found = program.weights.iter().find(|w| w.name == "fc_w").unwrap();
    assert_eq!(found.source.to_f32(12)[..3], [0.0, 3.0, 6.0]);
    let lazybatch_graph::WeightSource::Data(tensor) = &found.source else {
        panic!("it comes from the file")
    };
    assert_eq!(tensor.dtype, DType::F16);

    for (dtype, size) in [("F64", 8), ("I32", 4), ("BOOL", 1), ("U8", 1)] {
        let mut tensors = sound();
        let (_, name, dims, bytes) = &mut tensors[10];
        (*name, *bytes) = (dtype, vec![0; dims.iter().product::<usize>() * size]);
        let message = load(&file(&tensors)).unwrap_err();
        assert!(message.contains("tensor fc_w"), "{message}");
        assert!(message.contains("expected f"), "{message}");
    }
}

#[test]
fn files_that_are_missing_or_cut_are_named() {
    let whole = file(&sound());
    for len in [0, 1, 7, 8, 9, 200, whole.len() - 4, whole.len() - 1] {
        let message = load(&whole[..len]).unwrap_err();
        assert!(message.contains("model.safetensors: "), "{len}: {message}");
    }
    let longer = [&whole[..], &[0; 4]].concat();
    assert!(load(&longer).is_err());
    let message = Manifest::parse("model.toml", "/nowhere", GRU)
        .unwrap()
        .program()
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with(
            "weight file /nowhere/model.safetensors: expected a safetensors file, got No such"
        ),
        "{message}"
    );
    let kind = GRU.replace("model.safetensors", "model.pt");
    let message = Manifest::parse("model.toml", "/nowhere", &kind)
        .unwrap()
        .program()
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        "model.toml: container: expected one of safetensors, npz, llama2.c, said or as the end of \
         model.pt, got `pt`"
    );
    let error = Manifest::open(Path::new("/nowhere/model.toml")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/nowhere/model.toml: expected a manifest, got No such file")
    );
}

/// A manifest of each architecture, complete but for tensors.
const ALL: [&str; 5] = [
    GRU,
    "format = 'lazybatch-model/1'\nname = 'b'\narchitecture = 'bert'\nweights = 'w.npz'\n[sizes]\n\
     vocab = 9\nhidden = 8\nlayers = 2\nheads = 2\nffn = 16\npositions = 6\n[options]\n\
     result = 'mean'\nnormalise = true\n",
    "format = 'lazybatch-model/1'\nname = 'l'\narchitecture = 'llama'\nweights = ['a', 'b']\n\
     container = 'safetensors'\n[sizes]\nvocab = 9\nhidden = 8\nlayers = 1\nheads = 2\nkv_heads = 1\n\
     ffn = 16\npositions = 12\n[options]\nrope_pairs = 'halves'\n[tokens]\nstop = 1\nmax_steps = 6\n",
    "format = 'lazybatch-model/1'\nname = 'e'\narchitecture = 'encoder-decoder'\nweights = 'w'\n\
     [sizes]\nvocab = 9\nhidden = 8\nencoder_layers = 1\ndecoder_layers = 1\nheads = 2\nffn = 16\n\
     max_len = 12\n[options]\nnorm = 'pre'\n[tokens]\nstart = 0\nstop = 1\nmax_steps = 6\n\
     never = [0]\n",
    "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'mobilenet-v2'\nweights = 'w'\n\
     [sizes]\nside = 32\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Damage gives an error or, where it hits a number or a name, another model; never a panic.
    #[test]
    fn damaged_manifests_do_not_panic(which in 0..ALL.len(), at in any::<prop::sample::Index>(),
                                      byte in 32u8..127, times in 1..4usize) {
        let mut text = ALL[which].as_bytes().to_vec();
        for i in 0..times {
            let at = (at.index(text.len()) + 31 * i) % text.len();
            text[at] = byte;
        }
        let text = String::from_utf8(text).unwrap();
        if let Ok(manifest) = Manifest::parse("model.toml", "", &text) {
            prop_assert!(manifest.program_with(&Store::default()).is_err());
        }
    }

    #[test]
    fn damaged_weights_do_not_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = file(&sound());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(program) = load(&bytes) {
            for weight in &program.weights {
                prop_assert_eq!(weight.source.to_f32(0).len(), weight.ty.row_elems());
            }
        }
    }
}
