//! What can be wrong with an ONNX file or with running it.

use std::fmt;

/// Error of reading or evaluating an ONNX model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something is not what its place asks for.
    #[error("{place}: {what}: expected {expected}, got {got}")]
    Invalid {
        /// Where: a graph, node or tensor by name.
        place: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// Nodes that this version cannot run, all of them.
    #[error("{} unsupported nodes: {}", nodes.len(), list(nodes))]
    Unsupported {
        /// Each with its reason.
        nodes: Vec<Refused>,
    },
    /// An error, with the file it is in.
    #[error("{file}: {source}")]
    InFile {
        /// Path of the file.
        file: String,
        /// What is wrong.
        source: Box<Error>,
    },
}

/// One node that cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The node's name.
    pub node: String,
    /// Its op.
    pub op: String,
    /// Why not.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}: {})", self.node, self.op, self.why)
    }
}

fn list(nodes: &[Refused]) -> String {
    let texts: Vec<String> = nodes.iter().map(Refused::to_string).collect();
    texts.join(", ")
}

impl Error {
    /// An [`Error::Invalid`] from its parts.
    pub fn invalid(
        place: impl fmt::Display,
        what: impl fmt::Display,
        expected: impl fmt::Display,
        got: impl fmt::Display,
    ) -> Self {
        Self::Invalid {
            place: place.to_string(),
            what: what.to_string(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    /// This error with the file it is in.
    #[must_use]
    pub fn in_file(self, file: impl fmt::Display) -> Self {
        Self::InFile {
            file: file.to_string(),
            source: Box::new(self),
        }
    }
}
