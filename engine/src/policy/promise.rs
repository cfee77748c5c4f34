//! Whether a waiting request can still meet its deadline.
//!
//! What it needs is what the latency tables say of a request of the output length that such inputs
//! have had (`outputs.rs`), if it shares the device with as many of its model as there are, but no
//! more than fill a batch well (the knee of `sizes.rs`), times the *stretch*: the ratio that recent
//! requests took between admission and end against what was predicted in this way. When it could
//! start follows from Little's law: those in flight leave at a rate of their number over the time
//! each needs.

use lazybatch_sla::{ModelId, Nanos, OutputLen, RequestId, Time};
use rustc_hash::FxHashMap;

use super::outputs::Outputs;
use super::sizes::Sizes;
use crate::core::{Ending, Request, RequestState, View};

/// Share that the newest request has in the stretch.
const STRETCH_WEIGHT: f64 = 0.02;
/// Share of the highest throughput at which a batch is filled well.
pub(super) const WELL_FILLED: f64 = 0.9;
/// Most that one request counts.
const MAX_STRETCH: f64 = 20.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Promises {
    /// Admission and predicted nanoseconds of requests in flight.
    open: FxHashMap<RequestId, (Time, u64)>,
    /// Exponentially weighted mean of actual over predicted time.
    stretch: f64,
    sizes: Sizes,
    outputs: Outputs,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            open: FxHashMap::default(),
            stretch: 1.0,
            sizes: Sizes::default(),
            outputs: Outputs::default(),
        }
    }
}

impl Promises {
    /// Whether a waiting request would be late if it were admitted now, in a batch that is filled
    /// well.
    pub fn is_late(&mut self, view: &View<'_>, state: &RequestState) -> bool {
        state.deadline != Time::MAX && view.now + self.needs(view, state) > state.deadline
    }

    /// Whether a waiting request would be late if it were admitted now and ran with `batch`
    /// samples.
    pub fn is_late_among(&self, view: &View<'_>, state: &RequestState, batch: u32) -> bool {
        let needs = self.stretched(self.alone(view, state, batch));
        state.deadline != Time::MAX && view.now + needs > state.deadline
    }

    /// Whether a waiting request will be late behind the `ahead` samples that wait before it.
    pub fn will_be_late(&mut self, view: &View<'_>, state: &RequestState, ahead: u32) -> bool {
        if state.deadline == Time::MAX {
            return false;
        }
        let needs = self.needs(view, state);
        let in_flight = view.num_in_flight(state.request.model).max(1);
        let wait = needs.0 as f64 * f64::from(ahead) / f64::from(in_flight);
        view.now + needs + Nanos(wait as u64) > state.deadline
    }

    /// Whether a waiting request would be in time if it were admitted now and its outputs were as
    /// short as they can be.
    pub fn may_be_in_time(&mut self, view: &View<'_>, state: &RequestState) -> bool {
        let batch = self.batch(view, state);
        let needs = self.stretched(needs_with(view, state, batch, 1));
        view.now + needs <= state.deadline
    }

    /// Whether a request was predicted to be late when it arrived, even on a device of its own.
    pub fn was_hopeless(&self, view: &View<'_>, state: &RequestState) -> bool {
        state.request.arrival + self.alone(view, state, 1) > state.deadline
    }

    fn needs(&mut self, view: &View<'_>, state: &RequestState) -> Nanos {
        let batch = self.batch(view, state);
        self.stretched(self.alone(view, state, batch))
    }

    /// Time that a waiting request needs on a device of its own, among `batch` samples.
    fn alone(&self, view: &View<'_>, state: &RequestState, batch: u32) -> Nanos {
        let Request {
            model, input_len, ..
        } = state.request;
        let output_len = self.outputs.predict(view.model(model), model, input_len);
        needs_with(view, state, batch, output_len)
    }

    fn stretched(&self, needs: Nanos) -> Nanos {
        Nanos((needs.0 as f64 * self.stretch) as u64)
    }

    /// Samples that it is thought to run with.
    fn batch(&mut self, view: &View<'_>, state: &RequestState) -> u32 {
        let model = state.request.model;
        let in_flight = view.num_in_flight(model);
        let there = in_flight.saturating_add(view.queue(model).len() as u32);
        let knee = self.knee(view, model, WELL_FILLED);
        there
            .min(knee.max(in_flight + 1))
            .min(view.model(model).max_batch)
    }

    /// The smallest batch that reaches a share of the highest throughput.
    pub fn knee(&mut self, view: &View<'_>, model: ModelId, share: f64) -> u32 {
        self.sizes.knee(view, model, share)
    }

    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        self.sizes.on_model(model);
        self.outputs.on_model(model);
    }

    pub fn on_arrive(&mut self, request: &Request) {
        self.sizes.on_arrive(request);
    }

    /// A waiting request is admitted.
    pub fn on_admit(&mut self, view: &View<'_>, state: &RequestState) {
        let batch = self.batch(view, state);
        let promise = (view.now, self.alone(view, state, batch).0);
        self.open.insert(state.request.id, promise);
    }

    pub fn on_end(&mut self, now: Time, ending: &Ending) {
        self.sizes.on_end(ending);
        self.outputs.on_end(ending);
        let Some((admitted, predicted)) = self.open.remove(&ending.id) else {
            return;
        };
        if ending.outcome.is_completed() && predicted > 0 {
            let ratio = now.since(admitted).0 as f64 / predicted as f64;
            self.stretch += STRETCH_WEIGHT * (ratio.min(MAX_STRETCH) - self.stretch);
        }
    }
}

/// Time that a waiting request needs on a device of its own, among `batch` samples, for so many
/// passes of loops whose length is not known.
fn needs_with(view: &View<'_>, state: &RequestState, batch: u32, output_len: u32) -> Nanos {
    let spec = view.model(state.request.model);
    let batch = batch.min(spec.max_batch);
    let output_len = OutputLen::known(output_len).predict();
    let progress = view.progress(state, None, output_len);
    let rows = u64::from(batch) * u64::from(state.request.input_len);
    spec.table.remaining(&progress, batch, rows)
}
