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

/// Whether a device or an engine has refused a model for what it is.
pub fn is_of_model(error: &anyhow::Error) -> bool {
    use lazybatch_engine::BuildError;
    use lazybatch_kernels::Error as E;
    let of_device = |e: &E| matches!(e, E::Unsupported { .. } | E::Weight { .. });
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(of_device)
            || match cause.downcast_ref() {
                Some(BuildError::Device(e)) => of_device(e),
                Some(BuildError::Model { .. }) => true,
                _ => false,
            }
    })
}

/// Whether an error is the user's to mend.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    let of_parts = |cause: &(dyn std::error::Error + 'static)| {
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
                    E::Run { .. } | E::Engine(_) | E::Save { .. } | E::Write { .. } | E::Render(_)
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
    };
    is_of_model(error) || error.chain().any(of_parts)
}

/// The parts of an error, from where to why, each said once. What a terminal would obey, as text of
/// files may have it, is escaped.
pub fn message(error: &anyhow::Error) -> String {
    let mut shown = String::new();
    for c in parts(error).chars() {
        match c.is_control() && c != '\n' {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

fn parts(error: &anyhow::Error) -> String {
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
