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
            || cause.is::<lazybatch_engine::policy::UnknownPolicy>()
            || cause.is::<lazybatch_engine::journal::JournalError>()
            || cause.is::<lazybatch_graph::Error>()
            || cause.is::<lazybatch_graph::onnx::Error>()
            || cause.downcast_ref().is_some_and(|e| {
                use lazybatch_workloads::Error as E;
                !matches!(
                    e,
                    E::Run { .. } | E::Save { .. } | E::Write { .. } | E::Render(_)
                )
            })
            || cause.downcast_ref().is_some_and(|e| {
                use lazybatch_serve::Error as E;
                matches!(e, E::Invalid(_) | E::NotFound(_) | E::Unsupported(_))
            })
            || cause.downcast_ref().is_some_and(|e| {
                use lazybatch_engine::RequestError as E;
                matches!(e, E::UnknownModel { .. } | E::Input(_) | E::Samples { .. })
            })
    })
}

/// The parts of an error, from where to why, each said once.
pub fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain() {
        let part = cause.to_string();
        if message.ends_with(&part) {
            continue;
        }
        if !message.is_empty() {
            message.push_str(": ");
        }
        message.push_str(&part);
    }
    message
}
