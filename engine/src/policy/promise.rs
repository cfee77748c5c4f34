//! Whether a waiting request can still meet its deadline.
//!
//! What it needs is what the latency tables say of a request that shares the device with as many
//! of its model as there are, times the *stretch*: the ratio that recent requests took between
//! admission and end against what was predicted in this way. When it could start follows from
//! Little's law: those in flight leave at a rate of their number over the time each needs.

use lazybatch_sla::{ModelId, Nanos, OutputLen, RequestId, Time};
use rustc_hash::FxHashMap;

use crate::core::{Ending, RequestState, View};

/// Share that the newest request has in the stretch.
const STRETCH_WEIGHT: f64 = 0.02;
/// Most that one request counts.
const MAX_STRETCH: f64 = 20.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Promises {
    /// Admission and predicted nanoseconds of requests in flight.
    open: FxHashMap<RequestId, (Time, u64)>,
    /// Exponentially weighted mean of actual over predicted time.
    stretch: f64,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            open: FxHashMap::default(),
            stretch: 1.0,
        }
    }
}

impl Promises {
    /// Whether a waiting request would be late if it were admitted now.
    pub fn is_late(&self, view: &View<'_>, state: &RequestState) -> bool {
        state.deadline != Time::MAX && view.now + self.stretched(view, state) > state.deadline
    }

    /// Whether a waiting request will be late behind the `ahead` samples that wait before it.
    pub fn will_be_late(&self, view: &View<'_>, state: &RequestState, ahead: u32) -> bool {
        if state.deadline == Time::MAX {
            return false;
        }
        let needs = self.stretched(view, state);
        let in_flight = view.num_in_flight(state.request.model).max(1);
        let wait = needs.0 as f64 * f64::from(ahead) / f64::from(in_flight);
        view.now + needs + Nanos(wait as u64) > state.deadline
    }

    fn stretched(&self, view: &View<'_>, state: &RequestState) -> Nanos {
        Nanos((needs(view, state).0 as f64 * self.stretch) as u64)
    }

    /// A waiting request is admitted.
    pub fn on_admit(&mut self, view: &View<'_>, state: &RequestState) {
        let promise = (view.now, needs(view, state).0);
        self.open.insert(state.request.id, promise);
    }

    pub fn on_end(&mut self, now: Time, ending: &Ending) {
        let Some((admitted, predicted)) = self.open.remove(&ending.id) else {
            return;
        };
        if ending.outcome.is_completed() && predicted > 0 {
            let ratio = now.since(admitted).0 as f64 / predicted as f64;
            self.stretch += STRETCH_WEIGHT * (ratio.min(MAX_STRETCH) - self.stretch);
        }
    }
}

/// Time that a waiting request needs on a device of its own, batched with as many as there are.
fn needs(view: &View<'_>, state: &RequestState) -> Nanos {
    let model: ModelId = state.request.model;
    let spec = view.model(model);
    let in_flight = view.num_in_flight(model) as usize;
    let batch = (in_flight + view.queue(model).len()).min(spec.max_batch as usize) as u32;
    let output_len = OutputLen::known(spec.output_len_p90).predict();
    let progress = view.progress(state, None, output_len);
    let rows = u64::from(batch) * u64::from(state.request.input_len);
    spec.table.remaining(&progress, batch, rows)
}
