//! `cargo xtask tidy`: style rules that neither the compiler nor clippy knows.
//!
//! A [`rules::Rule`] looks at the [`Tree`] of the project's files and returns findings. What ignored
//! folders hold (build output, downloaded models) is not looked at.

mod lexer;
mod references;
mod rules;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders that hold no source of the project.
const SKIPPED_FOLDERS: [&str; 2] = ["target", "shared"];
/// Hidden folders that do.
const HIDDEN_FOLDERS: [&str; 4] = [".ci", ".cargo", ".config", ".github"];
/// Larger files are data, not text that anybody wrote.
const MAX_BYTES: u64 = 4 << 20;

/// One file.
#[derive(Clone, Debug)]
struct SourceFile {
    /// Path from the root, with `/` between its parts.
    path: String,
    /// Its text; empty where it has none, or is data.
    text: String,
    /// For Rust, its text with comments and literals blanked; else empty.
    code: String,
}

impl SourceFile {
    fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") {
            lexer::code_only(&text)
        } else {
            String::new()
        };
        Self { path, text, code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The project's files, by path.
type Tree = Vec<SourceFile>;

/// A place where a rule does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Line, from 1.
    line: usize,
    what: String,
}

/// Checks all rules and prints what they find; `false` when they find anything.
pub fn run(root: &Path) -> Result<bool> {
    let mut tree = Tree::new();
    collect(root, root, &mut tree)?;
    let mut num_findings = 0;
    for rule in rules::RULES {
        for Finding { path, line, what } in (rule.check)(&tree) {
            eprintln!("{path}:{line}: {what} [{}: {}]", rule.name, rule.about);
            num_findings += 1;
        }
    }
    println!(
        "tidy: {} files, {} rules, {num_findings} findings",
        tree.len(),
        rules::RULES.len()
    );
    Ok(num_findings == 0)
}

/// Adds the files below `folder`, in order of their names.
fn collect(root: &Path, folder: &Path, tree: &mut Tree) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        paths.push(entry.with_context(|| folder.display().to_string())?.path());
    }
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let meta = std::fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        // A folder, or in a linked working tree a file that says where the folder is.
        if name == ".git" {
            continue;
        }
        if meta.is_dir() {
            let hidden = name.starts_with('.') && !HIDDEN_FOLDERS.contains(&name.as_str());
            if !hidden && !SKIPPED_FOLDERS.contains(&name.as_str()) {
                collect(root, &path, tree)?;
            }
        } else if meta.is_file() {
            let bytes = match meta.len() <= MAX_BYTES {
                true => std::fs::read(&path).with_context(|| path.display().to_string())?,
                false => Vec::new(),
            };
            let relative = path.strip_prefix(root).unwrap_or(&path);
            tree.push(SourceFile::new(
                relative.to_string_lossy().replace('\\', "/"),
                String::from_utf8(bytes).unwrap_or_default(),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_sees_source_and_skips_output() {
        let folder = tempfile::tempdir().unwrap();
        for path in [
            "src/b.rs",
            "src/a.rs",
            "target/x.rs",
            ".models/y.rs",
            ".ci/run",
            "blob.bin",
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "//! text\n").unwrap();
        }
        std::fs::write(folder.path().join("blob.bin"), [0xff, 0xfe]).unwrap();
        std::fs::write(folder.path().join(".git"), "elsewhere").unwrap();
        let mut tree = Tree::new();
        collect(folder.path(), folder.path(), &mut tree).unwrap();
        let paths: Vec<&str> = tree.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", "blob.bin", "src/a.rs", "src/b.rs"]);
        assert_eq!(tree[1].text, "", "no text");
    }

    #[test]
    fn a_finding_fails_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rs");
        std::fs::write(&path, "//! Says what it is.\nfn a() {}\n").unwrap();
        assert!(run(folder.path()).unwrap());
        std::fs::write(&path, "fn a() {}\n").unwrap();
        assert!(!run(folder.path()).unwrap());
    }
}
