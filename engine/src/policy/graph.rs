//! `graph:W` and `greedy`: whole-graph batches.
//!
//! When the lane has nothing to run and requests wait: if a full batch waits, or the oldest has
//! waited `W`, or nobody may come who could join them, the first `max_batch` start in arrival order as
//! one padded batch that nobody joins or leaves until it ends. `greedy` is `graph:0`.

use lazybatch_sla::{ModelId, Nanos, Time};

use super::{Decision, Entry, Pick, Policy};
use crate::core::View;

/// Registry line of `graph:W`.
pub const GRAPH: Entry = Entry {
    name: "graph",
    usage: "graph:W",
    summary: "whole-graph batches with a batching time-window of W milliseconds",
    examples: &["graph:0.005", "graph:0.2"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        let ms: f64 = argument?.parse().ok()?;
        (ms.is_finite() && ms >= 0.0).then(|| graph(Nanos::from_ms_f64(ms)))
    },
};

/// Registry line of `greedy`.
pub const GREEDY: Entry = Entry {
    name: "greedy",
    usage: "greedy",
    summary: "whole-graph batches of whatever waits when the device is idle (graph:0)",
    examples: &["greedy"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| argument.is_none().then(|| graph(Nanos::ZERO)),
};

fn graph(window: Nanos) -> Box<dyn Policy> {
    Box::new(Graph { window })
}

struct Graph {
    window: Nanos,
}

impl Policy for Graph {
    fn pads(&self) -> bool {
        true
    }

    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(running) = view.table().iter().find(|e| view.is_launchable(e)) {
            return Decision::Launch(running.id);
        }
        let full = |m: ModelId| {
            let max = view.model(m).max_batch;
            view.queue(m).num_samples() >= max
        };
        let due = |m: ModelId| -> Time {
            let head = view.queue(m).oldest().expect("ready queues hold someone");
            view.request(head).request.arrival + self.window
        };
        let start = view
            .ready()
            .filter(|&m| full(m) || due(m) <= view.now || !view.may_come(m))
            .min_by_key(|&m| (due(m), m));
        match start {
            Some(model) => {
                let n = view.fitting_prefix(model, view.model(model).max_batch);
                Decision::Admit {
                    model,
                    pick: Pick::First(n),
                    padded: true,
                }
            }
            None => Decision::Wait {
                until: view.ready().map(due).min(),
            },
        }
    }
}
