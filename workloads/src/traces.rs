//! Traces: arrivals read from files.
//!
//! One format, one file, one line in [`FORMATS`]. [`read`] recognises a file by its first line;
//! gzip is undone on the way. Reading is strict: what does not parse is an error that names file,
//! line and column, never a guess.

pub mod arrivals_csv;
pub mod azure;
pub mod mooncake;
pub mod rates;
pub mod source;

use std::path::Path;
use std::sync::Arc;

use crate::arrivals::Arrival;
use crate::error::{Error, Result};
use source::Source;

/// A format that arrivals can be read from.
#[derive(Debug)]
pub struct Format {
    /// How the command line names it.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Whether a file with this first line is of this format.
    pub recognises: fn(first_line: &str) -> bool,
    /// Reads the file.
    pub read: fn(&Source, &Options) -> Result<Vec<Arrival>>,
    /// The line of an arrival, counted from 0.
    pub line_of: fn(&Source, usize) -> Option<u64>,
    /// What it calls an arrival's input length, output length and time.
    pub columns: [&'static str; 3],
}

/// The formats, in the order in which they are tried.
pub const FORMATS: &[Format] = &[arrivals_csv::FORMAT, azure::FORMAT, mooncake::FORMAT];

/// What a reader cannot find in the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Format by name; recognised by the first line if absent.
    pub format: Option<String>,
    /// The model that requests of a trace without a model column ask for.
    pub model: Option<Arc<str>>,
}

impl Options {
    /// The model for a trace that names none.
    fn model_for(&self, source: &Source) -> Result<Arc<str>> {
        self.model.clone().ok_or_else(|| {
            let what = format!("model for {}", source.name);
            Error::parameter(
                what,
                "a model name, as the trace has no model column",
                "none",
            )
        })
    }
}

/// Reads the arrivals of a trace, in order of time.
///
/// # Errors
/// [`Error::Io`], an unknown format, or a fault in the file with its line and column.
pub fn read(path: &Path, options: &Options) -> Result<Vec<Arrival>> {
    read_source(&Source::open(path)?, options)
}

/// Reads the arrivals of a trace that is already in memory.
///
/// # Errors
/// As [`read`].
pub fn read_source(source: &Source, options: &Options) -> Result<Vec<Arrival>> {
    let names = || {
        FORMATS
            .iter()
            .map(|f| f.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let first_line = source.text.lines().next().unwrap_or_default();
    let format = match &options.format {
        Some(name) => FORMATS
            .iter()
            .find(|format| format.name == name)
            .ok_or_else(|| Error::parameter("trace format", names(), format!("`{name}`")))?,
        None => recognised(first_line).ok_or_else(|| Error::Line {
            file: source.name.clone(),
            line: 1,
            expected: format!("the first line of a known format ({})", names()),
            got: source::excerpt(first_line),
        })?,
    };
    (format.read)(source, options)
}

/// The format of a file whose first line this is.
fn recognised(first_line: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| (f.recognises)(first_line))
}

/// An error about an arrival of a file with the line that this stands in, and the column by the name that
/// the file has for it.
pub fn at_line(path: &Path, error: Error) -> Error {
    let Error::Arrival {
        row,
        column,
        expected,
        got,
    } = error
    else {
        return error;
    };
    let found = || {
        // What a pipe had is read once.
        let source = path.is_file().then(|| Source::open(path).ok())??;
        let format = recognised(source.text.lines().next()?)?;
        let own = ["input_len", "output_len", "arrival_us"].map(|name| name == column);
        let at = own.into_iter().position(|is_it| is_it);
        let column = at.map_or(column, |at| format.columns[at]);
        Some(((format.line_of)(&source, row)?, column))
    };
    let file = path.display().to_string();
    match found() {
        Some((line, column)) => Error::Field {
            file,
            line,
            column: column.into(),
            expected,
            got,
        },
        None => Error::File {
            file: format!("{file}: arrival {row}, {column}"),
            expected,
            got,
        },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;

    /// The folder of public traces that may lie beside the checkout.
    pub(crate) fn shared_traces() -> Option<PathBuf> {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces");
        let folder = std::env::var_os("LAZYBATCH_TRACES").map_or(beside, PathBuf::from);
        if folder.is_dir() {
            return Some(folder);
        }
        eprintln!("not run: no folder of public traces beside the checkout");
        None
    }

    #[test]
    fn the_first_line_chooses_the_format() {
        let options = Options {
            model: Some("m".into()),
            ..Options::default()
        };
        for (text, num_arrivals) in [
            ("arrival_us,model,input_len,output_len\n1,a,2,3\n", 1),
            (
                "\"arrival_us\",\"model\",\"input_len\",\"output_len\"\n\"1\",\"a\",2,3\n",
                1,
            ),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", 0),
            ("\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\r\n", 0),
            (
                "{\"timestamp\": 3, \"input_length\": 5, \"output_length\": 6}",
                1,
            ),
        ] {
            let source = Source::from_text("t", text);
            assert_eq!(
                read_source(&source, &options).unwrap().len(),
                num_arrivals,
                "{text}"
            );
        }
    }

    #[test]
    fn an_arrival_that_does_not_fit_is_found_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let error = || Error::Arrival {
            row: 1,
            column: "model",
            expected: "toy".into(),
            got: "`b`".into(),
        };
        let header = "arrival_us,model,input_len,output_len";
        std::fs::write(&path, format!("{header}\n1,a,2,3\n\n1,b,2,3\n")).unwrap();
        let message = at_line(&path, error()).to_string();
        assert!(
            message.ends_with("a.csv: line 4, column model: expected toy, got `b`"),
            "{message}"
        );
        std::fs::write(&path, "TIMESTAMP,ContextTokens,GeneratedTokens\n").unwrap();
        let message = at_line(&path, error()).to_string();
        assert!(message.contains("a.csv: arrival 1, model: "), "{message}");
        // Public traces name what they have in their own way.
        let long = || Error::Arrival {
            row: 1,
            column: "output_len",
            expected: "fewer".into(),
            got: "9".into(),
        };
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                     2023-11-16 18:17:03,1,2\r\n\r\n2023-11-16 18:17:04,1,9\r\n";
        let one =
            |n| format!("{{\"timestamp\": 1, \"input_length\": 1, \"output_length\": {n}}}\n");
        let mooncake = format!("{}\n \n{}", one(2), one(9));
        for (text, told) in [
            (azure, "line 4, column GeneratedTokens"),
            (&mooncake, "line 4, column output_length"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = at_line(&path, long()).to_string();
            let told = format!("a.csv: {told}: expected fewer, got 9");
            assert!(message.ends_with(&told), "{message}");
        }
    }

    #[test]
    fn an_unknown_format_is_named() {
        let source = Source::from_text("t.csv", "when,what\n");
        let message = read_source(&source, &Options::default())
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "t.csv: line 1: expected the first line of a known format \
             (arrivals, azure-llm, mooncake), got `when,what`"
        );
        let options = Options {
            format: Some("parquet".into()),
            ..Options::default()
        };
        let message = read_source(&source, &options).unwrap_err().to_string();
        assert!(
            message.contains("trace format") && message.contains("`parquet`"),
            "{message}"
        );
    }

    #[test]
    fn public_traces_read_whole() {
        let Some(folder) = shared_traces() else {
            return;
        };
        let options = Options {
            model: Some("llm".into()),
            ..Options::default()
        };
        for (file, num_arrivals, span_s) in [
            (
                "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
                8_819,
                3_436,
            ),
            (
                "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
                19_366,
                3_502,
            ),
            ("mooncake-fast25/conversation_trace.jsonl.gz", 12_031, 3_537),
            ("mooncake-fast25/synthetic_trace.jsonl.gz", 3_993, 1_022),
        ] {
            let arrivals = read(&folder.join(file), &options).unwrap();
            assert_eq!(arrivals.len(), num_arrivals, "{file}");
            let last = arrivals.last().unwrap().at.0;
            assert_eq!((last as f64 / 1e9).round() as u64, span_s, "{file}");
            assert!(arrivals.iter().all(|a| a.input_len > 0), "{file}");
        }
    }
}
