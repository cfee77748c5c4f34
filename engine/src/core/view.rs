//! What a policy sees.

use lazybatch_sla::{Class, LaneId, ModelId, Progress, RequestId, Time};

use super::config::ModelSpec;
use super::queue::ArrivalQueue;
use super::request::{Key, RequestState, Stage};
use super::state::{Residency, State};
use super::table::{BatchTable, SubBatch};

/// The state of the core at a decision, read-only.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Now.
    pub now: Time,
    /// The lane that has room for a launch.
    pub lane: LaneId,
    models: &'a [ModelSpec],
    pub(crate) state: &'a State,
}

impl<'a> View<'a> {
    pub(super) fn new(now: Time, lane: LaneId, state: &'a State) -> Self {
        Self {
            now,
            lane,
            models: &state.config.models,
            state,
        }
    }

    /// The same with latency tables that the policy knows better: `models` are those that there are,
    /// but for these.
    pub(crate) fn with_tables<'b>(self, models: &'b [ModelSpec]) -> View<'b>
    where
        'a: 'b,
    {
        View { models, ..self }
    }

    /// Models by id.
    pub fn models(&self) -> &'a [ModelSpec] {
        self.models
    }

    /// The model of that id.
    pub fn model(&self, id: ModelId) -> &'a ModelSpec {
        &self.models[id.index()]
    }

    /// Nodes that all entries together have been launched for; as [`SubBatch::ran_at`] counts them.
    pub fn num_nodes(&self) -> u64 {
        self.state.num_nodes
    }

    /// Whether launches run on the thread of the driver.
    pub fn is_in_place(&self) -> bool {
        self.state.config.is_in_place
    }

    /// SLA classes by id.
    pub fn classes(&self) -> &'a [Class] {
        &self.state.config.classes
    }

    /// Arrival queue of a model.
    pub fn queue(&self, model: ModelId) -> &'a ArrivalQueue {
        &self.state.queues[model.index()]
    }

    /// Models that have someone waiting, their weights resident and a slot free, by id.
    pub fn ready(&self) -> impl Iterator<Item = ModelId> + 'a {
        let view = *self;
        (0..self.state.queues.len())
            .map(|m| ModelId(m as u32))
            .filter(move |&m| view.is_ready(m))
    }

    /// Whether a model has someone waiting, its weights resident and a slot free.
    pub fn is_ready(&self, model: ModelId) -> bool {
        let (state, m) = (self.state, model.index());
        !state.queues[m].is_empty()
            && matches!(
                state.residency[m],
                Residency::Resident | Residency::Retiring
            )
            && state.in_flight[m] < state.config.models[m].max_in_flight
    }

    /// Whether more requests of a model may come: not while the engine drains, or the model goes.
    pub fn may_come(&self, model: ModelId) -> bool {
        !self.state.is_draining && self.state.takes(model)
    }

    /// The ready model whose oldest request has waited longest; ties by model id.
    pub fn oldest_head(&self) -> Option<(ModelId, &'a RequestState)> {
        let head = |m| self.request(self.queue(m).front().expect("ready queues hold someone"));
        self.ready()
            .min_by_key(|&m| (head(m).request.arrival, m))
            .map(|m| (m, head(m)))
    }

    /// Requests of a model in the batch table or ending.
    pub fn num_in_flight(&self, model: ModelId) -> u32 {
        self.state.in_flight[model.index()]
    }

    /// Their samples.
    pub fn num_samples_in_flight(&self, model: ModelId) -> u32 {
        self.state.samples_in_flight[model.index()]
    }

    /// The longest prefix of a queue that fits `max_samples` samples and the free slots.
    pub fn fitting_prefix(&self, model: ModelId, max_samples: u32) -> usize {
        let mut samples = 0;
        self.queue(model)
            .iter()
            .take(self.num_free(model))
            .take_while(|&k| {
                samples += self.request(k).request.samples;
                samples <= max_samples
            })
            .count()
    }

    /// Slots that requests of a model may have beside those in flight.
    pub fn num_free(&self, model: ModelId) -> usize {
        (self.model(model).max_in_flight - self.num_in_flight(model)) as usize
    }

    /// The batch table.
    pub fn table(&self) -> &'a BatchTable {
        &self.state.table
    }

    /// The request at `key`.
    pub fn request(&self, key: Key) -> &'a RequestState {
        &self.state.requests[key as usize]
    }

    /// The entry that a request is a member of, if it is in the batch table.
    pub fn entry_of(&self, id: RequestId) -> Option<&'a SubBatch> {
        let key = *self.state.by_id.get(&id)?;
        match self.request(key).stage {
            Stage::InFlight(entry) => self.state.table.get(entry),
            _ => None,
        }
    }

    /// Whether a request is open and its last pass is in flight.
    pub fn is_finishing(&self, id: RequestId) -> bool {
        let key = self.state.by_id.get(&id);
        key.is_some_and(|&k| self.request(k).stage == Stage::Finishing)
    }

    /// Whether the request at `key` is that of `id` and waits in an arrival queue. Keys are
    /// reused, so a policy asks before it trusts one that it remembered.
    pub fn is_waiting(&self, key: Key, id: RequestId) -> bool {
        let state = self.state.requests.get(key as usize);
        state.is_some_and(|r| r.request.id == id && r.stage == Stage::Queued)
    }

    /// Members of an entry, in batch order.
    pub fn members(&self, entry: &'a SubBatch) -> impl Iterator<Item = &'a RequestState> + 'a {
        let state = self.state;
        entry
            .members
            .iter()
            .map(move |&k| &state.requests[k as usize])
    }

    /// Whether an entry may be launched on this lane now.
    pub fn is_launchable(&self, entry: &SubBatch) -> bool {
        self.state.is_launchable(entry, self.lane)
    }

    /// Whether two entries may merge now.
    pub fn can_merge(&self, a: &SubBatch, b: &SubBatch) -> bool {
        self.state.can_merge(a, b)
    }

    /// Cursor of a request in flight (`Some(entry)`) or waiting (`None`), with an output length
    /// from the policy's predictor.
    pub fn progress(
        &self,
        request: &RequestState,
        entry: Option<&SubBatch>,
        output_len: u32,
    ) -> Progress {
        // Nobody passes its loop oftener than it asks for. None at all is how simulated arrivals of no
        // output are, which policies are not to know.
        let most = request.request.max_steps.filter(|&most| most > 0);
        Progress {
            block: entry.map_or(0, |e| e.block),
            segment: entry.map_or(0, |e| e.segment),
            step: request.step,
            input_len: request.request.input_len,
            output_len: output_len.min(most.unwrap_or(u32::MAX)),
        }
    }
}
