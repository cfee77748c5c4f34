//! The command line of the comparison with another runtime.

use std::path::PathBuf;

use anyhow::{Context, bail};

use super::rows::Row;

/// What is compared, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where lines go.
    pub folder: PathBuf,
    /// Threads on each side.
    pub threads: usize,
    /// Pairs of turns.
    pub repeats: usize,
    /// The rows.
    pub rows: Vec<Row>,
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
        let [folder, args @ ..] = args else {
            bail!("expected a folder, got nothing");
        };
        let mut options = Self {
            folder: folder.into(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            repeats: 7,
            rows: Row::all(),
            python: PathBuf::new(),
            command: command.into(),
        };
        let mut python = None;
        for option in args.chunks(2) {
            let [key, value] = option else {
                bail!("{}: expected a value behind it", option[0]);
            };
            match key.as_str() {
                "--threads" => options.threads = positive(key, value)?,
                "--repeats" => options.repeats = positive(key, value)?,
                "--rows" => options.rows = rows(value)?,
                "--python" => python = Some(PathBuf::from(value)),
                _ => bail!("{key} {value}: no such option"),
            }
        }
        let expected = "--python: expected a Python with the peer's packages, got nothing";
        options.python = python.context(expected)?;
        Ok(options)
    }
}

/// All rows of the families that are listed.
fn rows(list: &str) -> anyhow::Result<Vec<Row>> {
    let all = Row::all();
    let mut families: Vec<_> = all.iter().map(|row| row.family()).collect();
    families.dedup();
    for name in list.split(',') {
        if !families.contains(&name) {
            let families = families.join(", ");
            bail!("--rows: expected some of {families}, got {name}");
        }
    }
    let listed = |row: &Row| list.split(',').any(|name| name == row.family());
    Ok(all.into_iter().filter(listed).collect())
}

fn positive(key: &str, value: &str) -> anyhow::Result<usize> {
    let number = value.parse().ok().filter(|&n| n > 0);
    number.with_context(|| format!("{key}: expected a whole number above 0, got {value}"))
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
        let mut families: Vec<_> = options.rows.iter().map(|r| r.family()).collect();
        families.dedup();
        assert_eq!(families, ["lstm", "gru"]);
        assert_eq!((options.threads, options.repeats), (3, 7));
        assert_eq!(parse("out --python py").unwrap().rows, Row::all());
    }

    #[test]
    fn bad_options_are_named() {
        for (line, told) in [
            ("", "expected a folder"),
            ("out", "--python: expected a Python"),
            ("out --python", "--python: expected a value behind it"),
            ("out --rows gemm,x", "--rows: expected some of gemm, lstm"),
            ("out --repeats 0", "--repeats: expected a whole number"),
            ("out --speed 3", "--speed 3: no such option"),
        ] {
            let message = format!("{:#}", parse(line).unwrap_err());
            assert!(message.starts_with(told), "{line}: {message}");
        }
    }
}
