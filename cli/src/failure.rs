//! Tells bad input (exit status 2) from everything else.

use std::fmt;

/// Wrong usage or bad input, in one sentence.
#[derive(Debug)]
pub struct BadInput(pub String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Whether an error is the user's to mend.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<BadInput>()
            || cause.is::<lazybatch_sla::ProfileError>()
            || cause.is::<lazybatch_workloads::Error>()
            || cause.is::<lazybatch_engine::policy::UnknownPolicy>()
            || cause.is::<lazybatch_engine::journal::JournalError>()
            || cause.is::<lazybatch_engine::RequestError>()
            || cause.is::<lazybatch_graph::Error>()
    })
}
