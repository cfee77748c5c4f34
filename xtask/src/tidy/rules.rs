//! The rules.

use super::lexer::is_word;
use super::references::references;
use super::{Finding, SourceFile, Tree};

/// A rule about the whole tree.
pub struct Rule {
    /// Short name, printed with each finding.
    pub name: &'static str,
    /// What holds where it is kept.
    pub about: &'static str,
    /// What breaks it.
    pub(super) check: fn(&Tree) -> Vec<Finding>,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "core-imports",
        about: "the scheduler core knows no runtime, device, clock or random numbers",
        check: core_imports,
    },
    Rule {
        name: "module-docs",
        about: "every module opens with //!",
        check: module_docs,
    },
    Rule {
        name: "leftovers",
        about: "no unfinished or debugging macros",
        check: leftovers,
    },
    Rule {
        name: "file-length",
        about: "a file is one concept",
        check: file_length,
    },
    Rule {
        name: "machine-paths",
        about: "files speak of no developer's machine",
        check: machine_paths,
    },
    Rule {
        name: "registries",
        about: "packages come from crates.io alone",
        check: registries,
    },
    Rule {
        name: "raw-ids",
        about: "ids in the core are newtypes",
        check: raw_ids,
    },
    Rule {
        name: "references",
        about: "what documents refer to is there",
        check: references,
    },
];

/// Names that the scheduler core does not mention.
const FORBIDDEN_IN_CORE: [&str; 4] = ["tokio", "lazybatch_kernels", "Instant", "rand"];
/// Macros that are not committed.
const LEFTOVERS: [&str; 3] = ["todo", "dbg", "unimplemented"];
/// Most lines of a file that people read.
const MAX_LINES: usize = 800;
/// The one registry.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Home folders and the like. Joined from parts, so that this file does not break its own rule.
const MACHINE_FOLDERS: [&str; 4] = [
    concat!("/", "home"),
    concat!("/", "root"),
    concat!("/", "Users"),
    concat!("/", "work"),
];
/// Parameters that are ids by their name.
const ID_NAMES: [&str; 8] = [
    "id",
    "request",
    "ticket",
    "model",
    "lane",
    "slot",
    "sub_batch",
    "node",
];
/// Types that an id in the core does not have.
const RAW_INTEGERS: [&str; 12] = [
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
];

pub(super) fn finding(file: &SourceFile, line: usize, what: impl Into<String>) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        what: what.into(),
    }
}

/// Files of the scheduler core and its policies.
fn core(tree: &Tree) -> impl Iterator<Item = &SourceFile> {
    let in_core = |path: &str| {
        let parts = ["engine/src/core", "engine/src/policy"];
        parts.iter().any(|p| {
            path.strip_prefix(p)
                .is_some_and(|r| r.starts_with(['/', '.']))
        })
    };
    tree.iter()
        .filter(move |file| file.is_rust() && in_core(&file.path))
}

/// The code before a file's own tests, which by convention come last. Files of tests have none.
fn shipped_code(file: &SourceFile) -> &str {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    if name.ends_with("tests.rs") || file.path.contains("/tests/") {
        return "";
    }
    file.code.split("#[cfg(test)]").next().unwrap_or_default()
}

/// Positions of `word` in `text` where it stands alone.
fn whole_words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn core_imports(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in core(tree) {
        let code = shipped_code(file);
        for word in FORBIDDEN_IN_CORE {
            for at in whole_words(code, word) {
                findings.push(finding(file, line_of(code, at), format!("`{word}`")));
            }
        }
    }
    findings
}

fn module_docs(tree: &Tree) -> Vec<Finding> {
    let opens = |file: &SourceFile| {
        file.text
            .lines()
            .find(|line| !line.trim().is_empty())
            .is_some_and(|l| l.starts_with("//!"))
    };
    let bare = tree.iter().filter(|file| file.is_rust() && !opens(file));
    bare.map(|file| finding(file, 1, "no `//!` at the start"))
        .collect()
}

fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.iter().filter(|file| file.is_rust()) {
        for name in LEFTOVERS {
            for at in whole_words(&file.code, name) {
                if file.code[at + name.len()..].starts_with('!') {
                    findings.push(finding(file, line_of(&file.code, at), format!("`{name}!`")));
                }
            }
        }
    }
    findings
}

fn file_length(tree: &Tree) -> Vec<Finding> {
    let is_source = |file: &&SourceFile| {
        let extension = file.path.rsplit('.').next().unwrap_or_default();
        ["rs", "py", "cu", "cuh", "html", "css", "js", "sh"].contains(&extension)
    };
    let lines = |file: &SourceFile| file.text.lines().count();
    let long = tree
        .iter()
        .filter(is_source)
        .filter(|file| lines(file) > MAX_LINES);
    long.map(|file| finding(file, MAX_LINES + 1, format!("{} lines", lines(file))))
        .collect()
}

fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree {
        for folder in MACHINE_FOLDERS {
            for (at, _) in file.text.match_indices(folder) {
                // Part of a longer path or word: `docs/home`, `/workloads`.
                let before = file.text[..at].chars().next_back();
                let after = file.text[at + folder.len()..].chars().next();
                let joined = |c: char| is_word(c) || c == '-';
                let inside =
                    before.is_some_and(|c| joined(c) || matches!(c, '.' | '/' | '}' | ')' | '*'));
                let first_part_only = folder.ends_with("root") || folder.ends_with("home");
                let ends = after != Some('/') && first_part_only;
                if !inside && !after.is_some_and(joined) && !ends {
                    let line = line_of(&file.text, at);
                    findings.push(finding(file, line, format!("`{folder}`")));
                }
            }
        }
    }
    findings
}

fn registries(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree {
        for (i, line) in file.text.lines().enumerate() {
            let bad = if file.path.ends_with("Cargo.lock") {
                let source = line
                    .trim()
                    .strip_prefix("source = ")
                    .map(|s| s.trim_matches('"'));
                source.is_some_and(|source| source != CRATES_IO)
            } else if file.path.ends_with(".cargo/config.toml") {
                ["[source", "[registr"]
                    .iter()
                    .any(|section| line.trim_start().starts_with(section))
            } else {
                false
            };
            if bad {
                findings.push(finding(file, i + 1, format!("`{}`", line.trim())));
            }
        }
    }
    findings
}

fn raw_ids(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in core(tree) {
        let code = shipped_code(file);
        for at in whole_words(code, "fn") {
            // Visibility narrower than the crate's ends in a parenthesis and is left alone.
            if !code[..at].trim_end().ends_with("pub") {
                continue;
            }
            for (name, ty) in parameters(&code[at..]) {
                let is_id = ID_NAMES.contains(&name) || name.ends_with("_id");
                if is_id && RAW_INTEGERS.contains(&ty) {
                    findings.push(finding(file, line_of(code, at), format!("`{name}: {ty}`")));
                }
            }
        }
    }
    findings
}

/// Names and types of the parameters of the function that `code` starts with. Split at every
/// comma: a parameter with commas in its type gives pieces that look like no integer.
fn parameters(code: &str) -> Vec<(&str, &str)> {
    let signature = code.split(['{', ';']).next().unwrap_or_default();
    let list = signature.split_once('(').map_or("", |(_, rest)| rest);
    let list = list.split("->").next().unwrap_or_default();
    list.trim_end()
        .trim_end_matches(')')
        .split(',')
        .filter_map(|p| p.split_once(':'))
        .map(|(name, ty)| {
            (
                name.trim().trim_start_matches("mut "),
                ty.trim().trim_end_matches(')'),
            )
        })
        .collect()
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
