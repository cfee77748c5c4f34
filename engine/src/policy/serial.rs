//! `serial`: one request at a time, in arrival order, each alone from start to end.

use super::{Decision, Entry, Pick, Policy};
use crate::core::View;

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "serial",
    usage: "serial",
    summary: "one request at a time, in arrival order",
    examples: &["serial"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        argument
            .is_none()
            .then(|| Box::new(Serial) as Box<dyn Policy>)
    },
};

struct Serial;

impl Policy for Serial {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(running) = view.table().iter().find(|e| view.is_launchable(e)) {
            return Decision::Launch(running.id);
        }
        match view.oldest_head() {
            Some((model, _)) => Decision::Admit {
                model,
                pick: Pick::First(1),
                padded: false,
            },
            None => Decision::Wait { until: None },
        }
    }
}
