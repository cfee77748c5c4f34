//! Predictors: how long outputs will be, and whether everyone still meets their target.
//!
//! A slack test asks about a set of requests, those in flight and some candidates: is
//! deadline - now - predicted time >= 0 for all of them? [`SerialisedSlack`] predicts as
//! LazyBatching does, [`BatchedSlack`] as its oracle. Neither knows what is running; the policy
//! adds the requests.
//!
//! Source: Choi, Kim, Rhu, "LazyBatching", HPCA 2021 (arXiv 2010.13103), as reconstructed in
//! `docs/scheduling.md`.

use crate::latency::{LatencyTable, Progress};
use crate::time::{Nanos, SlackNs, Time};

/// Predicts one output length for every request: the smallest that covers a share of training
/// outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLen(u32);

impl OutputLen {
    /// LazyBatching's coverage.
    pub const COVERAGE: f64 = 0.9;

    /// The smallest length that is at least as long as `coverage` of `lengths` (nearest rank); 1
    /// without any.
    pub fn covering(coverage: f64, lengths: impl IntoIterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = lengths.into_iter().collect();
        sorted.sort_unstable();
        let rank = (coverage.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        Self(sorted.get(rank.max(1) - 1).copied().unwrap_or(1))
    }

    /// A length known from elsewhere.
    pub const fn known(len: u32) -> Self {
        Self(len)
    }

    /// The prediction, at least one step.
    pub fn predict(self) -> u32 {
        self.0.max(1)
    }
}

/// The serialised, conservative estimate: everyone's remaining time at batch 1, added.
#[derive(Clone, Copy, Debug)]
pub struct SerialisedSlack {
    now: Time,
    deadline: Time,
    total: Nanos,
}

impl SerialisedSlack {
    /// Nobody yet.
    pub const fn new(now: Time) -> Self {
        Self {
            now,
            deadline: Time::MAX,
            total: Nanos::ZERO,
        }
    }

    /// Adds a request.
    pub fn add(&mut self, table: &LatencyTable, progress: &Progress, samples: u32, deadline: Time) {
        let rows = u64::from(samples) * u64::from(progress.input_len);
        self.total = self
            .total
            .saturating_add(table.remaining(progress, samples, rows));
        self.deadline = self.deadline.min(deadline);
    }

    /// The least slack of those added.
    pub fn least(&self) -> SlackNs {
        slack(self.now, self.deadline, self.total)
    }
}

/// The batched estimate: the longest remaining time of a model's requests, with every launch at
/// the size that all of them merged would have; models one after another.
#[derive(Clone, Debug)]
pub struct BatchedSlack {
    now: Time,
    deadline: Time,
    /// Samples and rows of all requests, by model.
    sizes: Vec<(u32, u64)>,
    longest: Vec<Nanos>,
}

impl BatchedSlack {
    /// For requests of `num_models` models, none counted yet.
    pub fn new(now: Time, num_models: usize) -> Self {
        Self {
            now,
            deadline: Time::MAX,
            sizes: vec![(0, 0); num_models],
            longest: vec![Nanos::ZERO; num_models],
        }
    }

    /// First pass: counts a request of the `model`-th model into the merged size.
    pub fn count(&mut self, model: usize, samples: u32, input_len: u32) {
        let (all, rows) = &mut self.sizes[model];
        *all += samples;
        *rows += u64::from(samples) * u64::from(input_len);
    }

    /// Second pass, when everyone is counted: adds a request.
    pub fn add(&mut self, model: usize, table: &LatencyTable, progress: &Progress, deadline: Time) {
        let (samples, rows) = self.sizes[model];
        self.longest[model] = self.longest[model].max(table.remaining(progress, samples, rows));
        self.deadline = self.deadline.min(deadline);
    }

    /// The least slack of those added.
    pub fn least(&self) -> SlackNs {
        slack(self.now, self.deadline, self.longest.iter().copied().sum())
    }
}

fn slack(now: Time, deadline: Time, predicted: Nanos) -> SlackNs {
    let ns = i128::from(deadline.0) - i128::from(now.0) - i128::from(predicted.0);
    SlackNs(ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::segments_of;
    use crate::profile::Profile;

    #[test]
    fn coverage_is_nearest_rank_and_at_least_one_step() {
        let predict = |c, lens: &[u32]| OutputLen::covering(c, lens.iter().copied()).predict();
        assert_eq!(predict(0.9, &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]), 9);
        assert_eq!(predict(0.9, &[5]), 5);
        assert_eq!(predict(1.0, &[3, 1]), 3);
        assert_eq!(predict(0.9, &[]), 1);
        assert_eq!(OutputLen::known(0).predict(), 1);
    }

    #[test]
    fn serialised_adds_and_batched_takes_the_longest_at_the_merged_size() {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m",
          "blocks":[{"name":"b","repeat":"until_stop","nodes":[
          {"name":"n","latency_us":[[1,10.0],[2,12.0]]}]}]}]}"#;
        let profile = Profile::parse("-", text).expect("valid");
        let model = &profile.models[0];
        let table = LatencyTable::new(model, &segments_of(model, 1), 0.0, 0.0);
        let at = |output_len| Progress {
            block: 0,
            segment: 0,
            step: 0,
            input_len: 1,
            output_len,
        };
        let now = Time(1_000);
        let mut serial = SerialisedSlack::new(now);
        serial.add(&table, &at(3), 1, Time(90_000));
        assert_eq!(serial.least(), SlackNs(90_000 - 1_000 - 30_000));
        serial.add(&table, &at(5), 1, Time(80_000));
        assert_eq!(
            serial.least(),
            SlackNs(80_000 - 1_000 - 80_000),
            "30 and 50 us, added"
        );
        let mut batched = BatchedSlack::new(now, 1);
        batched.count(0, 1, 1);
        batched.count(0, 1, 1);
        batched.add(0, &table, &at(3), Time(90_000));
        batched.add(0, &table, &at(5), Time(80_000));
        assert_eq!(
            batched.least(),
            SlackNs(80_000 - 1_000 - 60_000),
            "5 steps of 12 us"
        );
        assert_eq!(
            SerialisedSlack::new(now).least(),
            SlackNs(i64::MAX),
            "nobody is never late"
        );
    }
}
