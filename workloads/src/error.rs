//! What can be wrong with a workload, a trace or a results file.
//!
//! Every variant says where the fault is, what was expected and what came.

use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bad input or a file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A cell or value of a file does not parse, or lies outside its range.
    #[error("{file}: line {line}, column {column}: expected {expected}, got {got}")]
    Field {
        /// The file, as it was named.
        file: String,
        /// Line, from 1.
        line: u64,
        /// The column or key.
        column: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// An arrival that does not fit what it is to be served by.
    #[error("arrival {row}, column {column}: expected {expected}, got {got}")]
    Arrival {
        /// Which, from 0.
        row: usize,
        /// What of it.
        column: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A whole line of a file is not what it should be.
    #[error("{file}: line {line}: expected {expected}, got {got}")]
    Line {
        /// The file, as it was named.
        file: String,
        /// Line, from 1.
        line: u64,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A file as a whole is not what it should be.
    #[error("{file}: expected {expected}, got {got}")]
    File {
        /// The file, as it was named.
        file: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A parameter handed in by the caller or on the command line.
    #[error("{what}: expected {expected}, got {got}")]
    Parameter {
        /// The parameter.
        what: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A run went wrong by itself: a device that failed, or a bug.
    #[error("{what}: {why}")]
    Run {
        /// Which run.
        what: String,
        /// What happened.
        why: String,
    },
    /// An engine that cannot be built: the model, its options or the device.
    #[error("engine: {0}")]
    Engine(#[source] lazybatch_engine::BuildError),
    /// A file cannot be read.
    #[error("{}: expected a file that can be read, got {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
    /// Writing to an open stream failed.
    #[error("writing {what}: {source}")]
    Write {
        /// What was being written.
        what: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// The report template did not render: a bug, reported as a value because a report comes last
    /// and must not take the results with it.
    #[error("rendering the report: {0}")]
    Render(#[from] minijinja::Error),
}

impl Error {
    /// A [`Error::Parameter`].
    pub fn parameter(
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self::Parameter {
            what: what.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// A [`Error::Run`].
    pub fn run(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Run {
            what: what.into(),
            why: why.to_string(),
        }
    }

    /// A [`Error::Io`] about `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    /// A [`Error::Save`] about `path`.
    pub fn save(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Save {
            path: path.into(),
            source,
        }
    }
}
