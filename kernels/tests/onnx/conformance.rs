//! Every case of a supported op gives its outputs.

use lazybatch_graph::onnx::{Array, Elem, Error};

use crate::cases;

/// Relative and absolute tolerance of ONNX's own runner; integers and booleans are exact.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;

/// Relative tolerance of bf16 results: one step. The files of `Cast` to bf16 cut the lower digits off,
/// the definition rounds to the nearest.
const BF16_STEP: f64 = 1.0 / 128.0;

/// Cases whose answers are others here: their corners are aligned to a length that is no whole number,
/// those of PyTorch and ONNX Runtime to the length that there is.
pub const OTHERWISE: [&str; 2] = [
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
];

/// Cases that pass, and cases with an op or a value that is not supported. There are no others but
/// [`OTHERWISE`].
pub const NUM_PASSED: usize = 871;
pub const NUM_REFUSED: usize = 59;

/// What differs between the arrays, if anything does.
pub fn difference(got: &Array, want: &Array) -> Option<String> {
    if got.elem() != want.elem() || got.dims() != want.dims() {
        return Some(format!("got {got}, want {want}"));
    }
    if !want.elem().is_float() {
        return (got != want).then(|| format!("got {:?}, want {:?}", got.data(), want.data()));
    }
    let rtol = match want.elem() {
        Elem::BF16 => BF16_STEP,
        _ => RTOL,
    };
    let pairs = got.data().to_f64().into_iter().zip(want.data().to_f64());
    for (i, (g, w)) in pairs.enumerate() {
        let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= ATOL + rtol * w.abs();
        if !same {
            return Some(format!("element {i}: got {g}, want {w}"));
        }
    }
    None
}

pub fn unsupported(error: &Error) -> bool {
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
                    Some(_) if OTHERWISE.contains(&&*name) => {}
                    Some(what) => failed.push((name, what)),
                }
            }
        }
    }
    println!(
        "{passed} passed, {} refused, {} failed",
        refused.len(),
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(
        (passed, refused.len()),
        (NUM_PASSED, NUM_REFUSED),
        "refused: {refused:#?}"
    );
}
