//! Waiting requests whose time passes: from then on they stand behind all others of their model.
//!
//! A request that states [`super::Request::delay_after`] is *delayed* once it has waited for longer
//! than that. It changes its flow, and so its place in the queue, before the next decision; nothing
//! but its arrival says so, and a journal that holds that replays.

use std::collections::BTreeSet;

use lazybatch_sla::{RequestId, Time};

use super::queue::FlowKey;
use super::request::{Key, RequestState, Stage};
use super::state::State;

/// Requests that have not started and are not delayed, by when they will be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delays(BTreeSet<(Time, RequestId)>);

fn passes(state: &RequestState) -> Option<(Time, RequestId)> {
    let request = &state.request;
    let after = request.delay_after?;
    Some((request.arrival + after, request.id))
}

impl Delays {
    /// One that has arrived.
    pub fn begin(&mut self, state: &RequestState) {
        self.0.extend(passes(state));
    }

    /// One that starts, or ends before that.
    pub fn end(&mut self, state: &RequestState) {
        if let Some(passes) = passes(state) {
            self.0.remove(&passes);
        }
    }

    /// One whose time has passed at `now`.
    fn pop(&mut self, now: Time) -> Option<RequestId> {
        let &(at, id) = self.0.first()?;
        if at >= now {
            return None;
        }
        self.0.pop_first();
        Some(id)
    }
}

impl State {
    /// Delays those whose time has passed.
    pub(super) fn delay(&mut self, now: Time) {
        while let Some(id) = self.delays.pop(now) {
            let key: Key = self.by_id[&id];
            let state = &mut self.requests[key as usize];
            state.is_delayed = true;
            let (model, stage) = (state.request.model, state.stage);
            if stage == Stage::Queued {
                let queue = &mut self.queues[model.index()];
                let flow = queue.remove(id);
                let flow = flow.unwrap_or_else(|| panic!("{id} is not waiting"));
                let is_delayed = true;
                queue.insert(FlowKey { is_delayed, ..flow }, id, key, state.waiter());
            }
            self.tally(model, |c| c.delayed += 1);
        }
    }
}
