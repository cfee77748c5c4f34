//! Our side of every family, without a peer.

use std::path::Path;

use super::*;
use crate::measure::fetched;

fn setup(threads: usize) -> Setup {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models");
    Setup { threads, models }
}

fn elems(own: &Own) {
    for t in &own.tensors {
        let elems: usize = t.dims.iter().product();
        assert_eq!(t.data.len(), elems, "{}", t.name);
    }
}

#[test]
fn every_programs_own_side_runs_without_a_peer() {
    let [encoder, decoder] = [layers::ENCODER[0], layers::DECODER[0]];
    for (row, num) in [
        (gemm::row(2, 300, 40), 80),
        (recurrent::row("lstm", 2, 3), 2 * 3 * recurrent::HIDDEN),
        (recurrent::row("gru", 1, 1), recurrent::HIDDEN),
        (layers::encoder_row(2, 3), 2 * 3 * encoder),
        (layers::decoder_row(2), 2 * decoder),
        (elementwise::row(2, 3, true), 2 * 3 * elementwise::SIZES[0]),
        (elementwise::row(2, 3, false), 2 * 3 * elementwise::SIZES[0]),
    ] {
        let mut own = row.own(&setup(1)).unwrap();
        assert!(own.call_ns().unwrap() > 0.0);
        let output = own.output().unwrap();
        assert_eq!(output.len(), num, "{}", row.figures());
        assert!(output.iter().all(|y| y.is_finite()) && output.iter().any(|y| *y != 0.0));
        elems(&own);
    }
}

#[test]
fn fetched_models_run_without_a_peer() {
    let small = |row: &&Row| {
        let sizes = &row.sizes;
        sizes["batch"] == 4 && sizes["model"] != "bert-base" && sizes["len"] != 128
    };
    for row in all().iter().filter(small) {
        let Some(model) = row.model else { continue };
        let setup = setup(2);
        if fetched::check(&setup.models, model).is_err() {
            assert!(
                std::env::var_os("LAZYBATCH_REQUIRE_MODELS").is_none(),
                "not fetched: run `cargo xtask models`"
            );
            println!(
                "not run: {} is not fetched (cargo xtask models)",
                row.family
            );
            continue;
        }
        let mut own = row.own(&setup).unwrap();
        elems(&own);
        let output = own.output().unwrap();
        assert!(output.len() >= 4 && output.iter().all(|y| y.is_finite()));
    }
}

#[test]
fn a_request_has_the_same_answer_in_any_batch() {
    let output = |batch, threads| {
        let mut own = layers::decoder_row(batch).own(&setup(threads)).unwrap();
        own.output().unwrap()
    };
    let (one, two) = (output(1, 1), output(2, 2));
    assert_eq!(one, two[..one.len()]);
}

#[test]
fn shorter_sequences_are_padded_for_the_peer() {
    let program = lazybatch_workloads::zoo::find("bert-tiny")
        .unwrap()
        .program()
        .unwrap();
    let request = |ids: &[i32]| vec![Tensor::from_i32(&[ids.len()], ids); 2];
    let named = inputs(&program, &[request(&[5, 6, 7]), request(&[9])]);
    assert_eq!(named[0].name, "input.ids");
    assert_eq!(named[0].dims, [2, 3]);
    assert_eq!(named[0].data, [5.0, 6.0, 7.0, 9.0, 0.0, 0.0]);
}
