//! Layer and parameter counts of all models, against the published numbers.

use std::collections::BTreeSet;

use lazybatch_graph::{Op, Program, Repeat, verify};

use super::*;
use crate::lengths::Lengths;

fn raw(name: &str) -> Program {
    (find(name).unwrap().build)().unwrap()
}

fn count(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.nodes.iter().filter(|n| is(&n.op)).count()
}

fn convs(program: &Program) -> usize {
    count(program, |op| matches!(op, Op::Conv2d { .. }))
}

fn linears(program: &Program) -> usize {
    count(program, |op| matches!(op, Op::Linear { .. }))
}

fn cells(program: &Program) -> usize {
    count(program, |op| matches!(op, Op::LstmCell { .. }))
}

#[test]
fn every_model_builds_optimizes_and_names_what_exists() {
    let mut seen = BTreeSet::new();
    for entry in ENTRIES {
        assert!(
            seen.insert(entry.name),
            "two models are called {}",
            entry.name
        );
        let program = entry
            .program()
            .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        verify(&program).unwrap();
        assert_eq!(program.name, entry.name);
        let max = program.blocks.iter().find_map(|b| match b.repeat {
            Repeat::UntilStop { max } => Some(max),
            _ => None,
        });
        assert_eq!(max, entry.max_output_len, "{}", entry.name);
        let lengths = Lengths::load(entry.lengths).unwrap();
        let longest = program
            .length_input
            .and_then(|i| program.input(i).max_len)
            .unwrap_or(0);
        assert!(
            lengths.max_input() as usize <= longest,
            "{}: inputs",
            entry.name
        );
        if let Some(max) = max {
            assert!(lengths.max_output() <= max, "{}: outputs", entry.name);
        }
        assert_eq!(find(entry.name).unwrap().name, entry.name);
    }
    assert!(find("no-such-model").is_none());
    assert_eq!(names().count(), ENTRIES.len());
}

#[test]
fn image_models_match_their_publications() {
    let program = raw("resnet50");
    assert_eq!(num_parameters(&program), 25_557_032);
    // 1 + 16 * 3 + 4 shortcuts
    assert_eq!(convs(&program), 53);
    let program = find("resnet50").unwrap().program().unwrap();
    assert_eq!(count(&program, |op| matches!(op, Op::BatchNorm { .. })), 0);
    // input, 53 convolutions, 2 pools, fc, output: everything else is fused.
    assert_eq!(program.nodes.len(), 1 + 53 + 2 + 1 + 1);

    let program = raw("vgg16");
    assert_eq!(num_parameters(&program), 138_357_544);
    assert_eq!((convs(&program), linears(&program)), (13, 3));

    let program = raw("mobilenet-v1");
    assert_eq!(num_parameters(&program), 4_231_976);
    assert_eq!(convs(&program), 27);
    let program = find("mobilenet-v1").unwrap().program().unwrap();
    assert_eq!(program.nodes.len(), 1 + 27 + 1 + 1 + 1);
    let pool = program
        .nodes
        .iter()
        .find(|n| matches!(n.op, Op::GlobalAveragePool))
        .unwrap();
    let dims = program.value(pool.inputs[0]).ty.fixed_dims();
    assert_eq!(dims[..], [1024, 7, 7]);
}

#[test]
fn transformers_match_their_publications() {
    for (name, parameters, layers) in [
        ("bert-base", 109_482_240, 12),
        ("bert-large", 335_141_888, 24),
    ] {
        let program = raw(name);
        assert_eq!(num_parameters(&program), parameters, "{name}");
        assert_eq!(linears(&program), layers * 6 + 1);
        assert_eq!(
            count(&program, |op| matches!(op, Op::Attention { .. })),
            layers
        );
    }
    let program = raw("transformer");
    let (d, ffn) = (512, 2048);
    let attention = 4 * (d * d + d);
    let feed_forward = 2 * d * ffn + ffn + d;
    let encoder = attention + feed_forward + 2 * 2 * d;
    let decoder = 2 * attention + feed_forward + 3 * 2 * d;
    assert_eq!(
        num_parameters(&program),
        37_000 * d + 6 * (encoder + decoder)
    );
    assert_eq!(num_parameters(&program), 63_082_496);
}

#[test]
fn the_decoder_matches_its_publication() {
    let program = raw("decoder-1b");
    assert_eq!(num_parameters(&program), 1_100_048_384);
    assert_eq!(linears(&program), 2 * (22 * 7 + 1), "two blocks share them");
    let weights = program.weights.iter().map(|w| w.ty.row_elems());
    assert_eq!(weights.sum::<usize>(), 1_100_048_384, "each is there once");
    let attentions = |is: fn(&Op) -> bool| count(&program, is);
    assert_eq!(attentions(|op| matches!(op, Op::Attention { .. })), 22);
    assert_eq!(attentions(|op| matches!(op, Op::StateAttention { .. })), 22);
}

/// Parameters of an LSTM layer with one bias per gate.
fn lstm(k: usize, h: usize) -> usize {
    4 * h * (k + h + 1)
}

#[test]
fn recurrent_models_match_their_layer_tables() {
    let program = raw("gnmt");
    let (d, vocab) = (1024, 32_000);
    let encoder = vocab * d + 2 * lstm(d, d) + lstm(2 * d, d) + 6 * lstm(d, d);
    let attention = d * d + (d * d + d) + d;
    let decoder = vocab * d + lstm(d, d) + 7 * lstm(2 * d, d) + (d + 1) * vocab;
    assert_eq!(num_parameters(&program), encoder + attention + decoder);
    assert_eq!(cells(&program), 9 + 8);
    let adds = count(&program, |op| matches!(op, Op::Binary(_)));
    assert_eq!(adds, 6 + 6, "residuals from layer 3 on");

    let program = raw("las");
    let listener = 2 * lstm(40, 256) + 3 * 2 * lstm(1024, 256);
    let speller = las::VOCAB * 512 + lstm(1024, 512) + lstm(512, 512);
    let attention = 2 * (512 * 512 + 512);
    let out = 1024 * 512 + 512 + 512 * las::VOCAB + las::VOCAB;
    assert_eq!(
        num_parameters(&program),
        listener + speller + attention + out
    );
    // Eight, four, two and one cells in each direction, then the speller's.
    assert_eq!(cells(&program), 2 * (8 + 4 + 2 + 1) + 2);

    let program = raw("rnnt");
    let encoder = lstm(240, 1024) + lstm(1024, 1024) + lstm(2048, 1024) + 2 * lstm(1024, 1024);
    let prediction = 29 * 320 + 2 * lstm(320, 320);
    let joint = (1024 + 320) * 512 + 512 + 512 * 29 + 29;
    assert_eq!(num_parameters(&program), encoder + prediction + joint);
}

#[test]
fn dlrm_matches_the_reference() {
    let mlp = |widths: &[usize]| -> usize { widths.windows(2).map(|w| (w[0] + 1) * w[1]).sum() };
    let dense = mlp(&[13, 512, 256, 64, 16]) + mlp(&[16 + 27 * 26 / 2, 512, 256, 1]);
    let program = raw("dlrm-kaggle");
    assert_eq!(num_parameters(&program), 33_762_577 * 16 + dense);
    let rows: usize = dlrm::TABLES.iter().map(|&n| n.min(100_000)).sum();
    assert_eq!(num_parameters(&raw("dlrm")), rows * 16 + dense);
}

#[test]
fn phonemes_spell_and_load() {
    assert_eq!(phonemes::encode("az").unwrap(), [3, 28, 2]);
    assert!(phonemes::encode("").is_none());
    assert!(phonemes::encode("it's").is_none());
    assert!(phonemes::encode(&"a".repeat(25)).is_none());
    assert_eq!(phonemes::encode(&"a".repeat(24)).unwrap().len(), 25);
    assert_eq!(phonemes::decode(&[3, 41, 2, 5]), ["AA", "ZH"]);
    assert_eq!(phonemes::decode(&[0, 42]), ["<0>", "<42>"]);
    let message = phonemes::program_from_bytes(&[0; 4])
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("weight file phonemes: expected a safetensors file, got 4 bytes"),
        "{message}"
    );
    let program = phonemes::synthetic().unwrap();
    let layer = 4 * (192 * 192 + 192);
    let ffn = 2 * 192 * 768 + 768 + 192;
    let norms = (3 * (2 + 3) + 2) * 2 * 192;
    let tables = (29 + 42 + 2 * 32) * 192;
    let out = 192 * 42 + 42;
    assert_eq!(
        num_parameters(&program),
        3 * 3 * layer + 6 * ffn + norms + tables + out
    );
}
