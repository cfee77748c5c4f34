//! The tables in `docs/onnx.md`: cases as the tests count them, ops as the registry has them.
//!
//! `UPDATE_DOCS=1 cargo test -p lazybatch-kernels --test onnx table` writes it anew.

use std::fmt::Write;
use std::path::Path;

use lazybatch_kernels::tensor::{FAMILIES, REFUSED};

use crate::conformance::{NUM_PASSED, NUM_REFUSED, OTHERWISE};
use crate::device::{NUM_NATIVE, NUM_ON_DEVICE};

const BEGIN: &str = "<!-- ops: begin -->\n";
const END: &str = "<!-- ops: end -->\n";

fn table() -> String {
    let (all, otherwise) = (NUM_PASSED + NUM_REFUSED + OTHERWISE.len(), OTHERWISE.len());
    let general = NUM_ON_DEVICE - NUM_NATIVE;
    let mut text = format!(
        "\nNode cases of ONNX 1.12, {all} in all:\n\n| | cases |\n|---|---|\n\
         | pass by the interpreter | {NUM_PASSED} |\n\
         | of these, imported, and pass on the CPU device | {NUM_ON_DEVICE} |\n\
         | by native nodes alone | {NUM_NATIVE} |\n\
         | with general nodes | {general} |\n\
         | of these, not imported | {} |\n\
         | with other answers: Resize that aligns corners to a length that is no whole number, as \
         PyTorch and ONNX Runtime do not | {otherwise} |\n\
         | refused: an op or a value that is not supported | {NUM_REFUSED} |\n\n\
         | op | definitions of opsets | types of the first input |\n|---|---|---|\n",
        NUM_PASSED - NUM_ON_DEVICE,
    );
    for family in FAMILIES {
        let _ = writeln!(text, "| *{}* | | |", family.name);
        for op in family.ops {
            let versions: Vec<String> = op.versions.iter().map(i64::to_string).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                op.name,
                versions.join(", "),
                op.types
            );
        }
    }
    text.push_str("| *subgraphs* | | |\n| If | 1, 11, 13, 16, 19, 21, 23, 24, 25 | bool |\n");
    text.push_str("| Loop | 1, 11, 13, 16, 19, 21, 23, 24, 25 | i64 |\n| Scan | 9, 11, 16, 19, 21, 23, 24, 25 | all |\n");
    text.push_str("\nRefused:\n\n| why | ops |\n|---|---|\n");
    for (why, names) in REFUSED {
        let _ = writeln!(text, "| {why} | {} |", names.join(", "));
    }
    text.push('\n');
    text
}

#[test]
fn the_table_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/onnx.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (old, tail) = rest.split_once(END).unwrap();
    let new = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{new}{END}{tail}")).unwrap();
    } else {
        assert_eq!(old, new, "docs/onnx.md: rewrite with UPDATE_DOCS=1");
    }
}

#[test]
fn every_op_is_listed_once() {
    let mut names: Vec<&str> = FAMILIES
        .iter()
        .flat_map(|f| f.ops)
        .map(|op| op.name)
        .collect();
    names.extend(REFUSED.iter().flat_map(|(_, names)| *names));
    let num = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), num);
    for op in FAMILIES.iter().flat_map(|f| f.ops) {
        assert!(
            op.versions.is_sorted() && !op.versions.is_empty(),
            "{}",
            op.name
        );
    }
}
