//! The command line of the comparison with another runtime.

use std::path::PathBuf;

use anyhow::{Context, bail};

use super::nodes;
use super::rows::{self, Row, Setup};
use crate::measure::args::{all_cores, folder, pairs, positive};

/// What is compared, and how.
pub struct Options {
    /// Where lines go.
    pub folder: PathBuf,
    /// Threads on each side.
    pub threads: usize,
    /// Pairs of turns.
    pub repeats: usize,
    /// The rows.
    pub rows: Vec<Row>,
    /// The folder of fetched models.
    pub models: PathBuf,
    /// Whether our nodes are measured one by one instead, without the peer.
    pub nodes: Option<nodes::Lines>,
    /// A Python with the peer's packages.
    pub python: PathBuf,
    /// The command line that repeats this.
    pub command: String,
}

impl Options {
    /// Reads a folder, then pairs of option and value.
    ///
    /// # Errors
    /// An option that is unknown, missing, or has a bad value.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (folder, args) = folder(args)?;
        let mut options = Self {
            folder,
            threads: all_cores(),
            repeats: 7,
            rows: rows::all(),
            models: ".models".into(),
            nodes: None,
            python: PathBuf::new(),
            command: command.into(),
        };
        let mut python = None;
        for (key, value) in pairs(args)? {
            match key {
                "--threads" => options.threads = positive(key, value)?,
                "--repeats" => options.repeats = positive(key, value)?,
                "--rows" => options.rows = of_families(value)?,
                "--models" => options.models = value.into(),
                "--nodes" => options.nodes = nodes::Lines::named(key, value)?,
                "--python" => python = Some(PathBuf::from(value)),
                _ => bail!("{key} {value}: no such option"),
            }
        }
        let expected = "--python: expected a Python with the peer's packages, got nothing";
        if options.nodes.is_none() {
            options.python = python.context(expected)?;
        }
        Ok(options)
    }

    /// What our side runs on, and from.
    pub fn setup(&self) -> Setup {
        Setup {
            threads: self.threads,
            models: self.models.clone(),
        }
    }
}

/// All rows of the families that are listed.
fn of_families(list: &str) -> anyhow::Result<Vec<Row>> {
    let all = rows::all();
    let mut families: Vec<_> = all.iter().map(|row| row.family).collect();
    families.dedup();
    for name in list.split(',') {
        if !families.contains(&name) {
            let families = families.join(", ");
            bail!("--rows: expected some of {families}, got {name}");
        }
    }
    let listed = |row: &Row| list.split(',').any(|name| name == row.family);
    Ok(all.into_iter().filter(listed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Options::parse(&args, "toy")
    }

    #[test]
    fn options_are_read() {
        let options = parse("out --rows lstm,gru --python py --threads 3").unwrap();
        let mut families: Vec<_> = options.rows.iter().map(|r| r.family).collect();
        families.dedup();
        assert_eq!(families, ["lstm", "gru"]);
        assert_eq!(options.nodes, None);
        for (value, lines) in [
            ("false", None),
            ("true", Some(nodes::Lines::Kinds)),
            ("each", Some(nodes::Lines::Each)),
        ] {
            let line = format!("out --python py --nodes {value}");
            assert_eq!(parse(&line).unwrap().nodes, lines, "{line}");
        }
        assert_eq!((options.threads, options.repeats), (3, 7));
        assert_eq!(
            parse("out --python py").unwrap().rows.len(),
            rows::all().len()
        );
    }

    #[test]
    fn bad_options_are_named() {
        for (line, told) in [
            ("", "expected a folder"),
            ("--help", "expected a folder for results first, got --help"),
            ("out", "--python: expected a Python"),
            ("out --python", "--python: expected a value behind it"),
            ("out --rows gemm,x", "--rows: expected some of gemm, lstm"),
            ("out --repeats 0", "--repeats: expected a whole number"),
            ("out --speed 3", "--speed 3: no such option"),
            ("out --nodes 1", "--nodes: expected true, false or each"),
        ] {
            let message = format!("{:#}", parse(line).err().unwrap());
            assert!(message.starts_with(told), "{line}: {message}");
        }
    }
}
