//! `cellular`: a batch per cell.
//!
//! A *cell* is one pass of a block: a step of a loop, or the whole of a block that runs once.
//! Within a cell nobody joins or leaves; between cells everybody does. When the lane is free the
//! *cell type* (a block of a model) is chosen among those with requests ready for it, in the table
//! at its head or, for the first block, waiting:
//! 1. a type with at least max batch ready; the later in the graph first;
//! 2. else a type of which no cell runs on another lane; the one that ran longest ago first, of
//!    those that never did the later;
//! 3. else any, in the same order.
//!
//! So types that cannot fill a batch take turns.
//!
//! All that stand at its head merge as far as they fit max batch, waiting requests fill the room
//! that the smallest batch leaves, and the batch that has waited longest runs one cell. Several models take turns, a cell each. In flight
//! are as many as the device has memory for, not max batch.
//!
//! Source: Gao et al., "Low Latency RNN Inference with Cellular Batching" (BatchMaker), EuroSys
//! 2018. The three criteria are recalled, not quoted: a full batch, no running cell, any; ties by a
//! priority that puts decoders before encoders. BatchMaker feeds a worker while its last cells run,
//! so that a type that was just served counts as running and others come first. On a lane that
//! runs one launch at a time nothing runs when it is free; taking turns is our reading of it.
//! BatchMaker hands a worker several cells of a type at once to save host work; here it is one, as
//! the next is decided while a cell runs.

use std::cmp::Reverse;

use lazybatch_sla::{ModelId, SubBatchId};

use super::entries::{in_turn, is_at_head, last_launched, merge_equals, oldest_member};
use super::{Decision, Entry, Pick, Policy};
use crate::core::{ModelSpec, SubBatch, View};

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "cellular",
    usage: "cellular",
    summary: "cellular batching: join and leave between passes of any block",
    examples: &["cellular"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        argument
            .is_none()
            .then(|| Box::new(Cellular::default()) as Box<dyn Policy>)
    },
};

#[derive(Default)]
struct Cellular {
    /// Index of the model whose cell is next.
    next: usize,
    /// By block of the model looked at: what is ready for it.
    types: Vec<CellType>,
    /// By model and block: the number of its last cell.
    ran: Vec<Vec<u64>>,
    /// Cells so far.
    num_cells: u64,
}

#[derive(Clone, Copy, Default)]
struct CellType {
    /// Samples that could run this cell now.
    ready: u32,
    /// A cell of it runs elsewhere.
    is_running: bool,
    /// Samples of the smallest batch at its head; 0 without one.
    smallest: u32,
}

impl Policy for Cellular {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(merge) = merge_equals(view) {
            return merge;
        }
        // A cell that has begun runs to its end.
        let begun = |e: &&SubBatch| !is_at_head(e) && view.is_launchable(e);
        let begun = view.table().iter().filter(begun);
        if let Some(entry) = begun.max_by_key(|e| (last_launched(e), e.id)) {
            return Decision::Launch(entry.id);
        }
        let num = view.models().len();
        in_turn(self.next, num)
            .find_map(|m| self.cell(view, ModelId(m as u32)))
            .unwrap_or(Decision::Wait { until: None })
    }

    fn on_model(&mut self, model: ModelId, _models: &[ModelSpec]) {
        if let Some(ran) = self.ran.get_mut(model.index()) {
            ran.clear();
        }
    }
}

impl Cellular {
    /// The next step of a model: newcomers join the chosen type, or a batch of it runs.
    fn cell(&mut self, view: &View<'_>, model: ModelId) -> Option<Decision> {
        let max_batch = view.model(model).max_batch;
        self.count(view, model);
        let room = max_batch.saturating_sub(self.types[0].smallest);
        let joining = match view.is_ready(model) {
            true => view.fitting_prefix(model, room),
            false => 0,
        };
        let waiting = view.queue(model).iter().take(joining);
        let waiting: u32 = waiting.map(|k| view.request(k).request.samples).sum();
        self.types[0].ready += waiting;
        let criterion = |t: &CellType| match t {
            t if t.ready >= max_batch => 1,
            t if !t.is_running => 2,
            _ => 3,
        };
        let num = self.ran.len().max(model.index() + 1);
        self.ran.resize(num, Vec::new());
        let ran = &mut self.ran[model.index()];
        ran.resize(self.types.len(), 0);
        let turn = |t: &CellType, block: usize| match criterion(t) {
            1 => 0,
            _ => ran[block],
        };
        let types = self.types.iter().enumerate();
        let (block, _) = types
            .filter(|(_, t)| t.ready > 0)
            .min_by_key(|(b, t)| (criterion(t), turn(t, *b), Reverse(*b)))?;
        if block == 0 && joining > 0 {
            return Some(Decision::Admit {
                model,
                pick: Pick::First(joining),
                padded: false,
            });
        }
        self.num_cells += 1;
        ran[block] = self.num_cells;
        self.next = model.index() + 1;
        Some(Decision::Launch(longest_waiting(view, model, block as u32)))
    }

    fn count(&mut self, view: &View<'_>, model: ModelId) {
        self.types.clear();
        let num = view.model(model).blocks.len();
        self.types.resize(num.max(1), CellType::default());
        for entry in view.table().iter().filter(|e| e.model == model) {
            let cell = &mut self.types[entry.block as usize];
            if !view.is_launchable(entry) {
                cell.is_running = true;
            } else if is_at_head(entry) {
                cell.ready += entry.samples;
                cell.smallest = match cell.smallest {
                    0 => entry.samples,
                    least => least.min(entry.samples),
                };
            }
        }
    }
}

/// The batch at the head of a block that was launched least recently.
fn longest_waiting(view: &View<'_>, model: ModelId, block: u32) -> SubBatchId {
    let here = |e: &&SubBatch| {
        (e.model, e.block) == (model, block) && is_at_head(e) && view.is_launchable(e)
    };
    let ready = view.table().iter().filter(here);
    ready
        .min_by(|a, b| {
            let waited = last_launched(a).cmp(&last_launched(b));
            waited.then_with(|| oldest_member(view, a).cmp(&oldest_member(view, b)))
        })
        .expect("who is ready and not waiting stands here")
        .id
}
