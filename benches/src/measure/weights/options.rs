//! The command line of the comparison of weight types.

use std::path::PathBuf;

use anyhow::bail;

use crate::measure::args::{all_cores, folder, pairs, positive};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The same on every run.
    Accuracy,
    /// Wants a quiet machine.
    Speed,
}

/// What is measured, and where it goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where lines go.
    pub folder: PathBuf,
    /// Parts to measure; none for a table of what is recorded.
    pub parts: Vec<Part>,
    /// The folder of fetched models.
    pub models: PathBuf,
    /// A document whose table is rewritten.
    pub docs: Option<PathBuf>,
    /// Threads of the device.
    pub threads: usize,
    /// Turns of each type.
    pub repeats: usize,
    /// The command line that repeats this.
    pub command: String,
}

impl Options {
    /// Reads a folder, then pairs of option and value.
    ///
    /// # Errors
    /// An option that is unknown or has a bad value.
    pub fn parse(args: &[String], command: &str) -> anyhow::Result<Self> {
        let (folder, args) = folder(args)?;
        let mut options = Self {
            folder,
            parts: vec![Part::Accuracy, Part::Speed],
            models: ".models".into(),
            docs: None,
            threads: all_cores(),
            repeats: 7,
            command: command.into(),
        };
        for (key, value) in pairs(args)? {
            match (key, value) {
                ("--part", "accuracy") => options.parts = vec![Part::Accuracy],
                ("--part", "speed") => options.parts = vec![Part::Speed],
                ("--part", "table") => options.parts.clear(),
                ("--part", _) => bail!("{key}: expected accuracy, speed or table, got {value}"),
                ("--models", _) => options.models = value.into(),
                ("--docs", _) => options.docs = Some(value.into()),
                ("--threads", _) => options.threads = positive(key, value)?,
                ("--repeats", _) => options.repeats = positive(key, value)?,
                _ => bail!("{key} {value}: no such option"),
            }
        }
        Ok(options)
    }
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
        let options = parse("out --part speed --threads 3 --docs d.md").unwrap();
        assert_eq!(options.parts, [Part::Speed]);
        assert_eq!((options.threads, options.repeats), (3, 7));
        assert_eq!(options.docs, Some("d.md".into()));
        assert_eq!(parse("out").unwrap().parts.len(), 2);
    }

    #[test]
    fn bad_options_are_named() {
        for (line, told) in [
            ("", "expected a folder"),
            (
                "out --part size",
                "--part: expected accuracy, speed or table, got size",
            ),
            ("out --repeats 0", "--repeats: expected a whole number"),
            ("out --speed 3", "--speed 3: no such option"),
        ] {
            let message = format!("{:#}", parse(line).unwrap_err());
            assert!(message.starts_with(told), "{line}: {message}");
        }
    }
}
