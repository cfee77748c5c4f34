//! The rule that files which documents refer to are there: links, paths from the root in backticks, and
//! names of raw results with the folder that they lie in.

use std::collections::BTreeSet;

use super::rules::finding;
use super::{Finding, Tree};

/// Where raw results lie.
const RESULTS: &str = "benches/results/";
/// What stands in names that are patterns, ranges or places in a file.
const PATTERN: [char; 9] = ['*', '<', '>', '{', '}', ':', '|', '$', ' '];

/// References in Markdown that lead nowhere.
pub fn references(tree: &Tree) -> Vec<Finding> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for file in tree {
        known.insert(&file.path);
        let folders = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
        known.extend(folders);
    }
    let is_known = |path: &str| known.contains(path.trim_end_matches('/'));
    let has_folder = |path: &str| path.split_once('/').is_some_and(|p| known.contains(p.0));
    let mut findings = Vec::new();
    for file in tree.iter().filter(|f| f.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |p| p.0);
        for (i, line) in file.text.lines().enumerate() {
            let links = links(line).map(|link| resolve(folder, link));
            let paths = quoted(line).filter(|p| has_folder(p) && !p.contains(PATTERN));
            let paths = paths.map(str::to_string);
            let missing = links.chain(paths).chain(results(line));
            for path in missing.filter(|path| !is_known(path)) {
                findings.push(finding(file, i + 1, format!("`{path}`")));
            }
        }
    }
    findings
}

/// Targets of links to files, without the place in them.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1).filter_map(|l| l.split(')').next());
    let files = links.filter(|l| !l.contains(':') && !l.starts_with('#'));
    files.map(|l| l.split('#').next().unwrap_or(l))
}

/// A link in a document of a folder, from the root.
fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What stands in backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Results that are named right before ``in `benches/results/FOLDER/` ``.
fn results(line: &str) -> Vec<String> {
    let parts: Vec<&str> = line.split('`').collect();
    let mut found = Vec::new();
    for at in (3..parts.len()).step_by(2) {
        let (name, between, folder) = (parts[at - 2], parts[at - 1], parts[at]);
        // One that begins with a dot is an ending alone.
        let is_file = name.find('.').is_some_and(|at| at > 0) && !name.contains('/');
        let is_told = folder.starts_with(RESULTS) && between.ends_with(" in ");
        if is_told && is_file && !name.contains(PATTERN) {
            found.push(format!("{}/{name}", folder.trim_end_matches('/')));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::SourceFile;
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let mut tree: Tree = ["benches/results/day/a.txt", "docs/b.md", "docs/c.svg"]
            .map(|path| SourceFile::new(path, ""))
            .to_vec();
        tree.push(SourceFile::new("docs/d.md", text));
        let findings = references(&tree).into_iter();
        findings
            .map(|f| format!("{}:{}: {}", f.path, f.line, f.what))
            .collect()
    }

    #[test]
    fn what_is_there_may_be_referred_to() {
        let text = "[b](b.md#part), ![c](./c.svg), [a](../benches/results/day/a.txt), [d](#here),\n\
                    [far](https://x.org/b.md), `docs/b.md`, `docs/`, `benches/results/day`,\n\
                    `docs/*.md`, `docs/b.md:7`, `other/x.rs`, `x.txt`,\n\
                    `a.txt` in `benches/results/day/`, `docs/<name>.md`";
        assert_eq!(check(text), [""; 0]);
    }

    #[test]
    fn what_is_not_is_found_with_its_line() {
        let text = "[b](x.md#part)\n[a](../a.txt) `docs/x.md`\n\
                    `x.txt` and, point by point, `x.csv` in `benches/results/day/`";
        let want = [
            "docs/d.md:1: `docs/x.md`",
            "docs/d.md:2: `a.txt`",
            "docs/d.md:2: `docs/x.md`",
            "docs/d.md:3: `benches/results/day/x.csv`",
        ];
        assert_eq!(check(text), want);
    }
}
