//! Each rule on planted text: what it finds, and what it leaves alone.

use super::*;

/// What a rule finds in one file, as `line: what`.
fn check(rule: &str, path: &str, text: &str) -> Vec<String> {
    let tree = vec![SourceFile::new(path, text)];
    let rule = RULES.iter().find(|r| r.name == rule).unwrap();
    (rule.check)(&tree)
        .into_iter()
        .map(|f| format!("{}: {}", f.line, f.what))
        .collect()
}

const NONE: [&str; 0] = [];

#[test]
fn core_imports_are_found_in_core_and_policy_alone() {
    let text = "//! Uses no tokio.\nuse std::time::{Duration, Instant};\nuse tokio::sync;\n\
                use rand::Rng;\nfn f() { lazybatch_kernels::go(\"tokio\") }\n";
    let want = [
        "3: `tokio`",
        "5: `lazybatch_kernels`",
        "2: `Instant`",
        "4: `rand`",
    ];
    for path in [
        "engine/src/core.rs",
        "engine/src/core/mod.rs",
        "engine/src/policy/lazy.rs",
    ] {
        assert_eq!(check("core-imports", path, text), want, "{path}");
    }
    for path in [
        "engine/src/driver/mod.rs",
        "engine/src/core_driver.rs",
        "cli/src/core/x.rs",
    ] {
        assert_eq!(check("core-imports", path, text), NONE, "{path}");
    }
}

#[test]
fn core_imports_leave_comments_tests_and_longer_words_alone() {
    let text = "//! tokio\nlet operand = random;\n// rand::Rng\n#[cfg(test)]\nmod tests { use rand::Rng; }\n";
    assert_eq!(
        check("core-imports", "engine/src/core/table.rs", text),
        NONE
    );
    assert_eq!(
        check(
            "core-imports",
            "engine/src/core/table_tests.rs",
            "use rand::Rng;"
        ),
        NONE
    );
}

#[test]
fn modules_without_docs_are_found() {
    assert_eq!(
        check("module-docs", "a/b.rs", "use x;\n//! late\n"),
        ["1: no `//!` at the start"]
    );
    assert_eq!(
        check("module-docs", "a/b.rs", ""),
        ["1: no `//!` at the start"]
    );
    assert_eq!(check("module-docs", "a/b.rs", "\n//! What it is.\n"), NONE);
    assert_eq!(check("module-docs", "a/b.py", "import x\n"), NONE);
}

#[test]
fn leftover_macros_are_found() {
    let text = "fn f() {\n    todo!();\n    dbg!(1);\n    unimplemented!(\"x\")\n}\n";
    assert_eq!(
        check("leftovers", "a.rs", text),
        ["2: `todo!`", "3: `dbg!`", "4: `unimplemented!`"]
    );
    let fine = "// todo!()\nlet todo = \"dbg!\"; my_dbg!(todo); if dbg != 1 {}\n";
    assert_eq!(check("leftovers", "a.rs", fine), NONE);
}

#[test]
fn long_files_are_found() {
    assert_eq!(
        check("file-length", "a.rs", &"x\n".repeat(801)),
        ["801: 801 lines"]
    );
    assert_eq!(check("file-length", "a.rs", &"x\n".repeat(800)), NONE);
    assert_eq!(
        check("file-length", "Cargo.lock", &"x\n".repeat(2000)),
        NONE
    );
}

#[test]
fn machine_paths_are_found_in_any_text() {
    for (folder, rest) in [
        ("home", "/ada/x"),
        ("root", "/x"),
        ("Users", "/ada"),
        ("work", ""),
        ("work", "/x"),
    ] {
        for lead in ["", "see ", "\"", "`", "=", "("] {
            let text = format!("first\n{lead}/{folder}{rest}\"\n");
            for path in ["a.md", "benches/results/x.jsonl", ".ci/run", "b.rs"] {
                assert_eq!(
                    check("machine-paths", path, &text),
                    [format!("2: `/{folder}`")],
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn other_paths_are_left_alone() {
    for text in [
        "../shared/traces",
        "/workloads/x",
        "frame/work",
        "docs/home/x",
        "https://x.org/home/x",
        "$ROOT/root/x",
        "a /root of the tree",
        "GET /home",
        "./work/x",
        "${DIR}/work/x",
    ] {
        assert_eq!(check("machine-paths", "a.md", text), NONE, "{text}");
    }
}

#[test]
fn other_registries_are_found() {
    let lock = "[[package]]\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
                source = \"registry+https://mirror.example/index\"\nsource = \"git+https://x.example/y\"\n";
    assert_eq!(
        check("registries", "Cargo.lock", lock),
        [
            "3: `source = \"registry+https://mirror.example/index\"`",
            "4: `source = \"git+https://x.example/y\"`"
        ]
    );
    let config = "[alias]\n[source.crates-io]\nreplace-with = \"mirror\"\n[registries.mirror]\n";
    assert_eq!(
        check("registries", ".cargo/config.toml", config),
        ["2: `[source.crates-io]`", "4: `[registries.mirror]`"]
    );
    assert_eq!(check("registries", "docs/x.md", config), NONE);
}

#[test]
fn raw_integer_ids_are_found_in_public_functions_of_the_core() {
    let text = "//! Core.\npub fn a(request: u64) {}\npub fn b(\n    &self,\n    mut slot: usize,\n    \
                num: u32,\n) -> u64 {\n}\nimpl T { pub fn c(x: &[u8], model_id: u32) -> Option<u32> {} }\n";
    let want = [
        "2: `request: u64`",
        "3: `slot: usize`",
        "9: `model_id: u32`",
    ];
    assert_eq!(check("raw-ids", "engine/src/core/a.rs", text), want);
    assert_eq!(check("raw-ids", "engine/src/driver/a.rs", text), NONE);
}

#[test]
fn newtype_ids_and_private_functions_are_left_alone() {
    let text = "//! Core.\npub fn a(request: RequestId, num_rows: u64, len: usize) {}\n\
                fn b(slot: usize) {}\npub(super) fn c(slot: usize) {}\n";
    assert_eq!(check("raw-ids", "engine/src/core/a.rs", text), NONE);
}
