//! PTX: text to modules, modules to instructions that a warp can run.
//!
//! `lex` and `parse` keep the text's own names; `decode` resolves them, inlines calls and looks
//! up every instruction. Whatever is not known fails there, with its line: nothing is skipped.

pub mod ast;
pub mod decode;
pub mod forms;
pub mod lex;
pub mod parse;
pub mod program;
pub mod types;

/// Why a module does not load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct LoadError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub what: String,
}

impl LoadError {
    /// An error at `line`.
    pub fn new(line: u32, what: impl Into<String>) -> Self {
        Self {
            line,
            what: what.into(),
        }
    }
}
