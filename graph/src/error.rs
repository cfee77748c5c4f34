//! What can be wrong with a program, a pass or a weight file.

/// Error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A node's operands do not fit its op.
    #[error("node {node}: {what}: expected {expected}, got {got}")]
    Node {
        /// The node's name.
        node: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The program's structure is broken.
    #[error("program {program}: {what}")]
    Structure {
        /// The program's name.
        program: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor is not what its place asks for.
    #[error("{what}: expected {expected}, got {got}")]
    Tensor {
        /// Which tensor.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A model folder cannot be read or written.
    #[error("{path}: {what}: expected {expected}, got {got}")]
    Folder {
        /// The folder, or the file in it.
        path: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A file of a model folder holds a program that is broken.
    #[error("{path}: {source}")]
    Within {
        /// The file.
        path: String,
        /// What is wrong with the program.
        source: Box<Error>,
    },
    /// A key of a manifest is missing, unknown, or does not fit.
    #[error("{file}: {key}: expected {expected}, got {got}")]
    Manifest {
        /// The manifest's path.
        file: String,
        /// The key, with its tables.
        key: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// Tensors of weight files are not those of the model: all that is wrong.
    #[error("{files}: tensors are not those of {manifest}: {}", problems.join("; "))]
    Tensors {
        /// Paths of the files.
        files: String,
        /// Path of the manifest.
        manifest: String,
        /// What is wrong, each with what was expected and what is there.
        problems: Vec<String>,
    },
    /// Steps are wired in a way that is not sound, whatever runs them.
    #[error("ensemble {ensemble}: {place}: expected {expected}, got {got}")]
    Join {
        /// Name of the whole.
        ensemble: String,
        /// The step or tensor.
        place: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// Steps are wired soundly, but one program cannot express what they are together.
    #[error("ensemble {ensemble}: {place}: expected {expected}, got {got}")]
    Apart {
        /// Name of the whole.
        ensemble: String,
        /// The step or tensor.
        place: String,
        /// What one program could express.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A weight file cannot be read.
    #[error("weight file {path}: {what}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong.
        what: String,
    },
}
