//! `continuous`: iteration-level scheduling.
//!
//! One pass of a model's last loop that runs until a stop is an *iteration*. Requests join and
//! leave between iterations: whoever has stopped leaves at once (what follows the loop runs
//! first), then the longest prefix of the queue that fits max batch together with those in flight
//! joins. The newcomers' own prefix, all blocks before the loop, runs as one batch while the
//! others are parked, then everyone is one batch again and the pass runs. There is one admission
//! an iteration, so that those in flight advance however many arrive.
//!
//! A model without such a loop is one iteration from start to end: it starts whatever waits, up
//! to max batch, as `greedy` does, but packed. Several models take turns, an iteration each.
//!
//! Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative
//! Models", OSDI 2022; the first scheduler of vLLM (Kwon et al., SOSP 2023), which runs the prompts
//! of newcomers before the next decoding step. Orca puts prompts and single steps into one pass;
//! here they are different nodes, so the prefix is a pass of its own.

use lazybatch_sla::ModelId;

use super::entries::{Stage, in_turn, last_launched, last_loop, merge_equals, stage};
use super::{Decision, Entry, Pick, Policy};
use crate::core::{ModelSpec, SubBatch, View};

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "continuous",
    usage: "continuous",
    summary: "iteration-level batching: join and leave between passes of the last loop",
    examples: &["continuous"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        argument
            .is_none()
            .then(|| Box::new(Continuous::default()) as Box<dyn Policy>)
    },
};

#[derive(Default)]
struct Continuous {
    /// Index of the model whose iteration is next.
    next: usize,
    /// By model: newcomers joined, and the pass that they joined for has not run.
    joined: Vec<bool>,
    /// By model: its last loop.
    loops: Vec<Option<u32>>,
}

impl Policy for Continuous {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if self.loops.is_empty() {
            self.loops = view.models().iter().map(last_loop).collect();
            self.joined = vec![false; self.loops.len()];
        }
        if let Some(merge) = merge_equals(view) {
            return merge;
        }
        // Within a stage those furthest behind run, so that who parted ways meets again.
        let begun = view
            .table()
            .iter()
            .filter(|e| view.is_launchable(e))
            .map(|e| (stage(e, self.loops[e.model.index()]), e))
            .filter(|(stage, _)| *stage != Stage::Head)
            .min_by_key(|(stage, e)| (*stage, e.block, e.segment, last_launched(e), e.id));
        if let Some((_, entry)) = begun {
            return Decision::Launch(entry.id);
        }
        let num = self.loops.len();
        in_turn(self.next, num)
            .find_map(|m| self.iterate(view, m))
            .unwrap_or(Decision::Wait { until: None })
    }

    fn on_model(&mut self, model: ModelId, models: &[ModelSpec]) {
        self.loops = models.iter().map(last_loop).collect();
        self.joined.resize(models.len(), false);
        self.joined[model.index()] = false;
    }
}

impl Continuous {
    /// The first step of a model's next iteration, if it has one.
    fn iterate(&mut self, view: &View<'_>, m: usize) -> Option<Decision> {
        let model = ModelId(m as u32);
        let here = |e: &&SubBatch| e.model == model && view.is_launchable(e);
        let waiting_longest = view
            .table()
            .iter()
            .filter(here)
            .min_by_key(|e| (last_launched(e), e.id));
        if !(self.joined[m] && waiting_longest.is_some()) {
            let in_flight: u32 = view.table().iter().filter(here).map(|e| e.samples).sum();
            let n = joining(view, model, in_flight);
            if n > 0 {
                self.joined[m] = self.loops[m].is_some();
                // A static model is done with its turn, another one's pass is still to run.
                self.next = if self.joined[m] { m } else { m + 1 };
                return Some(Decision::Admit {
                    model,
                    pick: Pick::First(n),
                    padded: false,
                });
            }
        }
        waiting_longest.map(|e| {
            self.joined[m] = false;
            self.next = m + 1;
            Decision::Launch(e.id)
        })
    }
}

/// How many waiting requests fit max batch beside `in_flight` samples.
fn joining(view: &View<'_>, model: ModelId, in_flight: u32) -> usize {
    if !view.is_ready(model) {
        return 0;
    }
    let room = view.model(model).max_batch.saturating_sub(in_flight);
    view.fitting_prefix(model, room)
}
