//! Whether a waiting request can still meet its deadline.
//!
//! What it needs is what the latency tables say of a request of the output length that such inputs
//! have had (`outputs.rs`), if it shares the device with as many of its model as there are, but no
//! more than fill a batch well (the knee of `sizes.rs`), times the *stretch*: the ratio that recent
//! requests took between admission and end against what was predicted in this way. Batches may be
//! larger, and rules let others run between: the stretch has that, so whether someone is predicted to
//! be late must not depend on how many happen to be in flight. Who is only demoted goes by the mean
//! ratio; who would be refused by one that three of four requests keep to, or nearly all where others
//! wait that fill a batch. When it could start
//! follows from Little's law: those in flight leave at a rate of their number over the time each
//! needs.

use lazybatch_sla::{ModelId, Nanos, OutputLen, RequestId, Time};
use rustc_hash::FxHashMap;

use super::host::Host;
use super::outputs::Outputs;
use super::rule::Rule;
use super::sizes::Sizes;
use crate::core::{Ending, Request, RequestState, SubBatch, View};

/// Share that the newest request has in the mean ratio.
const MEAN_WEIGHT: f64 = 0.02;
/// Share of the requests that keep to [`By::Most`].
const MOST: f64 = 0.75;
/// How fast that follows them: a ratio above it raises it by so much times the share, one below
/// lowers it by the rest.
const MOST_STEP: f64 = 0.1;
/// The same for [`By::NearlyAll`].
const NEARLY_ALL: f64 = 0.98;
const NEARLY_ALL_STEP: f64 = 0.02;
/// Most that one request counts.
const MAX_STRETCH: f64 = 20.0;

/// Parts of the prediction that may be left out, to see what they are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Without {
    /// Times of batches: a batch is thought to take as long as its requests one by one.
    pub batched: bool,
    /// The stretch.
    pub stretch: bool,
}

/// What recent requests took between admission and end, over what was predicted.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Exponentially weighted mean.
    mean: f64,
    /// The share [`MOST`] of them took no more.
    most: f64,
    /// The share [`NEARLY_ALL`] of them took no more.
    nearly_all: f64,
}

impl Default for Stretch {
    fn default() -> Self {
        Self {
            mean: 1.0,
            most: 1.0,
            nearly_all: 1.0,
        }
    }
}

impl Stretch {
    fn learn(&mut self, ratio: f64) {
        self.mean += MEAN_WEIGHT * (ratio.min(MAX_STRETCH) - self.mean);
        let follow = |at: f64, share: f64, step: f64| {
            let direction = match ratio > at {
                true => share,
                false => share - 1.0,
            };
            (at * (step * direction).exp()).clamp(1.0 / MAX_STRETCH, MAX_STRETCH)
        };
        self.most = follow(self.most, MOST, MOST_STEP);
        self.nearly_all = follow(self.nearly_all, NEARLY_ALL, NEARLY_ALL_STEP);
    }

    fn by(&self, by: By) -> f64 {
        match by {
            By::Mean => self.mean,
            By::Most => self.most,
            // It follows more slowly.
            By::NearlyAll => self.nearly_all.max(self.most),
        }
    }
}

/// Ratios of one model.
#[derive(Clone, Copy, Debug, Default)]
struct Stretches {
    /// Against a batch that is filled well.
    filled: Stretch,
    /// Against the batch that a request was admitted to.
    among: Stretch,
}

/// What was predicted of a request in flight.
#[derive(Clone, Copy, Debug)]
struct Promise {
    admitted: Time,
    /// Nanoseconds in a batch that is filled well.
    filled: u64,
    /// In the batch that it was admitted to.
    among: u64,
}

/// Which ratio a prediction goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The mean of recent requests.
    Mean,
    /// One that most of them kept to.
    Most,
    /// One that nearly all of them kept to.
    NearlyAll,
}

impl By {
    /// How sure of being in time one must be that would be refused if it is not, where so many samples
    /// of its model wait: where they fill a batch, others take its place.
    pub fn surely(view: &View<'_>, model: ModelId, waiting: u32) -> Self {
        match waiting >= view.model(model).max_batch {
            true => Self::NearlyAll,
            false => Self::Most,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Promises {
    without: Without,
    /// Share of the highest throughput at which a batch is filled well.
    fill: f64,
    open: FxHashMap<RequestId, Promise>,
    /// By model: another one's requests may take many times as long as predicted, or no longer.
    stretches: Vec<Stretches>,
    sizes: Sizes,
    outputs: Outputs,
}

impl Promises {
    /// Goes by what a rule says of predictions, with what has been learned.
    pub fn follow(&mut self, rule: &Rule) {
        (self.without, self.fill) = (rule.without, rule.fill);
    }

    /// Whether a waiting request would be late if it were admitted now, in a batch that is filled
    /// well.
    pub fn is_late(&mut self, view: &View<'_>, state: &RequestState, by: By) -> bool {
        self.takes_longer(view, state, 1.0, by)
    }

    /// Whether a waiting request would take longer than a share of its target if it were admitted
    /// now, in a batch that is filled well.
    pub fn takes_longer(
        &mut self,
        view: &View<'_>,
        state: &RequestState,
        share: f64,
        by: By,
    ) -> bool {
        if state.deadline == Time::MAX {
            return false;
        }
        let rest = state.deadline.since(state.request.arrival).0 as f64 * (1.0 - share);
        view.now + self.needs(view, state, by) + Nanos(rest as u64) > state.deadline
    }

    /// Whether a waiting request would be late if it were admitted now and ran with `batch`
    /// samples. By the mean it takes the ratio against a batch that is filled well, which counts
    /// what a larger one takes twice: where those that are late only wait behind others, batches that
    /// are smaller than they need be do no harm; where they are refused, it would cost throughput.
    pub fn is_late_among(&self, view: &View<'_>, state: &RequestState, batch: u32, by: By) -> bool {
        let stretches = self.stretches(state.request.model);
        let stretch = match by {
            By::Mean => stretches.filled,
            By::Most | By::NearlyAll => stretches.among,
        };
        let needs = self.stretched(self.alone(view, state, batch), stretch.by(by));
        state.deadline != Time::MAX && view.now + needs > state.deadline
    }

    /// Whether a waiting request will be late behind the `ahead` samples that wait before it. They
    /// leave as those in flight do, or as the batch that they are themselves, if that is larger; and on
    /// an idle device the first batch of them does not wait at all, with this one if it fits.
    pub fn will_be_late(
        &mut self,
        view: &View<'_>,
        state: &RequestState,
        ahead: u32,
        by: By,
    ) -> bool {
        if state.deadline == Time::MAX {
            return false;
        }
        let needs = self.needs(view, state, by);
        let batch = self.batch(view, state).max(1);
        let in_flight = view.num_samples_in_flight(state.request.model);
        let batches = if view.table().is_empty() && in_flight == 0 {
            f64::from((ahead + state.request.samples).saturating_sub(1) / batch)
        } else {
            let leave = in_flight.max(ahead.min(batch)).max(1);
            f64::from(ahead) / f64::from(leave)
        };
        let wait = needs.0 as f64 * batches;
        view.now + needs + Nanos(wait as u64) > state.deadline
    }

    /// Whether a waiting request would be in time if it were admitted now, alone on an idle device, and
    /// its outputs were as short as they can be. What others took is left out: that is learned from who
    /// is served, and where nobody is any more it would stay as it is for ever.
    pub fn may_be_in_time(&self, view: &View<'_>, state: &RequestState) -> bool {
        view.now + needs_with(view, state, 1, 1) <= state.deadline
    }

    /// Whether a request was predicted to be late when it arrived, even on a device of its own.
    pub fn was_hopeless(&self, view: &View<'_>, state: &RequestState) -> bool {
        state.request.arrival + self.alone(view, state, 1) > state.deadline
    }

    fn needs(&mut self, view: &View<'_>, state: &RequestState, by: By) -> Nanos {
        let batch = self.batch(view, state);
        let stretch = self.stretches(state.request.model).filled;
        self.stretched(self.alone(view, state, batch), stretch.by(by))
    }

    /// Time that a waiting request needs on a device of its own, among `batch` samples.
    fn alone(&self, view: &View<'_>, state: &RequestState, batch: u32) -> Nanos {
        let Request {
            model, input_len, ..
        } = state.request;
        let output_len = self.outputs.predict(view.model(model), model, input_len);
        match self.without.batched {
            true => Nanos(needs_with(view, state, 1, output_len).0 * u64::from(batch.max(1))),
            false => needs_with(view, state, batch, output_len),
        }
    }

    fn stretches(&self, model: ModelId) -> Stretches {
        let known = self.stretches.get(model.index());
        known.copied().unwrap_or_default()
    }

    fn stretched(&self, needs: Nanos, stretch: f64) -> Nanos {
        match self.without.stretch {
            true => needs,
            false => Nanos((needs.0 as f64 * stretch) as u64),
        }
    }

    /// Samples that it is thought to run with: all that are there, or a batch that is filled well.
    fn batch(&mut self, view: &View<'_>, state: &RequestState) -> u32 {
        let model = state.request.model;
        let in_flight = view.num_samples_in_flight(model);
        let there = in_flight.saturating_add(view.queue(model).num_samples());
        there.min(self.filled(view, state))
    }

    /// The batch that is filled well for a request's target.
    pub fn filled(&mut self, view: &View<'_>, state: &RequestState) -> u32 {
        let target = state.deadline.since(state.request.arrival);
        let model = state.request.model;
        self.sizes.filled(view, model, self.fill, target)
    }

    /// Whether a request is longer than the mean of those so far.
    pub fn is_long(&mut self, request: &Request) -> bool {
        f64::from(request.input_len) > self.sizes.mean_input_len(request.model)
    }

    /// The smallest batch that reaches a share of the highest throughput, or the one from there on that
    /// costs its members and all who wait least.
    pub fn knee(&mut self, view: &View<'_>, model: ModelId, share: f64) -> u32 {
        let waiting = view.queue(model).num_samples();
        self.sizes.knee(view, model, share, waiting)
    }

    /// Time of a batch of so many samples, of requests of the mean lengths so far.
    pub fn whole(&mut self, view: &View<'_>, model: ModelId, samples: u32) -> Nanos {
        self.sizes.whole(view, model, samples)
    }

    /// Time that a member of an entry needs to its end, on a device of its own, by how far it is.
    pub fn rest(
        &self,
        view: &View<'_>,
        entry: &SubBatch,
        (member, rows): (&RequestState, u64),
    ) -> Nanos {
        let spec = view.model(entry.model);
        let so_far = (member.request.input_len, member.step);
        let len = self.outputs.predict_beyond(spec, entry.model, so_far);
        let progress = view.progress(member, Some(entry), OutputLen::known(len).predict());
        spec.table.remaining(&progress, entry.samples, rows)
    }

    /// A launch took the device `took`, and `ran` with what the host did.
    pub fn on_done(&mut self, took: Nanos, ran: Nanos) {
        self.sizes.on_done(took, ran);
    }

    /// What launches and requests take of the host.
    pub fn host(&self) -> &Host {
        self.sizes.host()
    }

    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        self.sizes.on_model(model);
        self.outputs.on_model(model);
        if let Some(of) = self.stretches.get_mut(model.index()) {
            *of = Stretches::default();
        }
    }

    pub fn on_arrive(&mut self, request: &Request) {
        self.sizes.on_arrive(request);
    }

    /// A waiting request is admitted, to run with `batch` samples.
    pub fn on_admit(&mut self, view: &View<'_>, state: &RequestState, batch: u32) {
        let well_filled = self.batch(view, state);
        let filled = self.alone(view, state, well_filled).0;
        let promise = Promise {
            admitted: view.now,
            filled,
            among: match batch == well_filled {
                true => filled,
                false => self.alone(view, state, batch).0,
            },
        };
        self.open.insert(state.request.id, promise);
    }

    pub fn on_end(&mut self, now: Time, ending: &Ending) {
        self.sizes.on_end(ending);
        self.outputs.on_end(ending);
        let Some(promise) = self.open.remove(&ending.id) else {
            return;
        };
        if ending.outcome.is_completed() && promise.filled > 0 {
            let took = now.since(promise.admitted).0 as f64;
            let m = ending.model.index();
            if self.stretches.len() <= m {
                self.stretches.resize(m + 1, Stretches::default());
            }
            let of = &mut self.stretches[m];
            of.filled.learn(took / promise.filled as f64);
            of.among.learn(took / promise.among.max(1) as f64);
        }
    }
}

/// Time that a waiting request needs on a device of its own, among `batch` samples, for so many
/// passes of loops whose length is not known.
fn needs_with(view: &View<'_>, state: &RequestState, batch: u32, output_len: u32) -> Nanos {
    let spec = view.model(state.request.model);
    let batch = batch.min(spec.max_batch).max(state.request.samples);
    let output_len = OutputLen::known(output_len).predict();
    let progress = view.progress(state, None, output_len);
    let rows = u64::from(batch) * u64::from(state.request.input_len);
    spec.table.remaining(&progress, batch, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixtures;

    #[test]
    fn what_a_model_takes_longer_is_not_another_ones() {
        let mut promises = Promises::default();
        for i in 0..50 {
            let promise = Promise {
                admitted: Time(0),
                filled: 100,
                among: 50,
            };
            promises.open.insert(RequestId(i), promise);
            let ending = Ending {
                model: ModelId(1),
                ..fixtures::ending(i)
            };
            promises.on_end(Time(400), &ending);
        }
        let means = |m| {
            let of = promises.stretches(ModelId(m));
            [of.filled, of.among].map(|s| s.by(By::Mean))
        };
        assert_eq!([means(0), means(2)], [[1.0; 2]; 2]);
        assert!(means(1)[0] > 2.0 && means(1)[1] > 4.0);
        promises.on_model(ModelId(1));
        assert_eq!(promises.stretches(ModelId(1)).filled.by(By::Mean), 1.0);
    }
}
