//! Every case of a supported op gives its outputs.

use lazybatch_graph::onnx::{Array, Error};

use crate::cases;

/// Relative and absolute tolerance of ONNX's own runner; integers and booleans are exact.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;

/// Cases that pass, and cases with an op that is refused.
const NUM_PASSED: usize = 868;
const NUM_REFUSED: usize = 55;

/// Cases that fail for a reason of their own.
const KNOWN: &[(&str, &[&str])] = &[
    (
        "training mode drops at random",
        &[
            "test_training_dropout",
            "test_training_dropout_default",
            "test_training_dropout_default_mask",
            "test_training_dropout_mask",
        ],
    ),
    (
        "the inputs have other dimensions than the model states",
        &[
            "test_castlike_BFLOAT16_to_FLOAT",
            "test_castlike_BFLOAT16_to_FLOAT_expanded",
            "test_castlike_FLOAT_to_BFLOAT16",
            "test_castlike_FLOAT_to_BFLOAT16_expanded",
        ],
    ),
    (
        "the file cuts f32 to bf16, the definition rounds to the nearest",
        &["test_cast_FLOAT_to_BFLOAT16"],
    ),
];

/// What differs between the arrays, if anything does.
fn difference(got: &Array, want: &Array) -> Option<String> {
    if got.elem() != want.elem() || got.dims() != want.dims() {
        return Some(format!("got {got}, want {want}"));
    }
    if !want.elem().is_float() {
        return (got != want).then(|| format!("got {:?}, want {:?}", got.data(), want.data()));
    }
    let pairs = got.data().to_f64().into_iter().zip(want.data().to_f64());
    for (i, (g, w)) in pairs.enumerate() {
        let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= ATOL + RTOL * w.abs();
        if !same {
            return Some(format!("element {i}: got {g}, want {w}"));
        }
    }
    None
}

fn unsupported(error: &Error) -> bool {
    match error {
        Error::Unsupported { .. } => true,
        Error::InFile { source, .. } => unsupported(source),
        Error::Invalid { .. } => false,
    }
}

#[test]
fn node_cases_give_their_outputs() {
    let folders = cases::folders();
    if folders.is_empty() {
        return;
    }
    let (mut passed, mut refused, mut failed) = (0, Vec::new(), Vec::new());
    for folder in &folders {
        let name = cases::name(folder);
        let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
        match cases::run(folder, &bytes, &cases::LIMITS) {
            Err(e) if unsupported(&e) => refused.push(e.to_string()),
            Err(e) => failed.push((name, e.to_string())),
            Ok(got) => {
                let want = cases::expected(folder, &bytes).unwrap();
                let wrong = if got.len() == want.len() {
                    got.iter().zip(&want).find_map(|(g, w)| difference(g, w))
                } else {
                    Some(format!("{} outputs, want {}", got.len(), want.len()))
                };
                match wrong {
                    None => passed += 1,
                    Some(what) => failed.push((name, what)),
                }
            }
        }
    }
    let known: Vec<&str> = KNOWN
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let failing: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    let surprises: Vec<_> = failed
        .iter()
        .filter(|(n, _)| !known.contains(&n.as_str()))
        .collect();
    println!(
        "{passed} passed, {} refused, {} failed",
        refused.len(),
        failed.len()
    );
    assert!(surprises.is_empty(), "{surprises:#?}");
    assert_eq!(failing, sorted(known), "cases known to fail");
    assert_eq!(
        (passed, refused.len()),
        (NUM_PASSED, NUM_REFUSED),
        "refused: {refused:#?}"
    );
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}
