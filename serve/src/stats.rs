//! Running figures of one model version, as `ModelStatistics` and `/metrics` tell them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazybatch_engine::Sizes;
use lazybatch_sla::{Histogram, Nanos, Outcome, Time};

use crate::config::buckets::Buckets;
use crate::error::Error;
use crate::infer::{Passage, Stages};
use crate::responses::Responses;

/// A count and the time that it took together.
#[derive(Debug, Default)]
pub struct Span {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Span {
    /// Adds one.
    pub fn add(&self, took: Nanos) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(took.0, Relaxed);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Nanoseconds of all together.
    pub fn ns(&self) -> u64 {
        self.ns.load(Relaxed)
    }
}

/// Why requests failed, in the protocol's words.
pub const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executions of one number of samples as they were told last, and what had been launched then.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    executions: f64,
    nodes: u64,
}

/// What the protocol calls executions, of one number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executions {
    /// How many samples they had.
    pub samples: u32,
    /// How many there were.
    pub num: u64,
    /// Nanoseconds of their launches.
    pub ns: u64,
}

/// Figures of a model version.
#[derive(Debug, Default)]
pub struct Stats {
    buckets: Buckets,
    /// Requests that were answered, from arrival to answer.
    pub success: Span,
    /// Requests that were not.
    pub fail: Span,
    /// From arrival to the first launch; this and the next three of each request that was answered, but
    /// not from the cache. Those of a chain are sums over its steps.
    pub queue: Span,
    /// Reading of inputs.
    pub compute_input: Span,
    /// From the first launch to the end.
    pub compute_infer: Span,
    /// Writing of outputs.
    pub compute_output: Span,
    /// Answers from the response cache: their lookup and writing.
    pub cache_hit: Span,
    /// Answers that were not there: lookup and keeping.
    pub cache_miss: Span,
    /// Samples that were answered, not from the cache.
    pub inferences: AtomicU64,
    /// Requests to ensembles whose program this one is a part of, which ran there.
    within: AtomicU64,
    /// Samples of those, which are inferences of this one too.
    samples_within: AtomicU64,
    /// Inferences as executions were told last, and those by number of samples.
    told: Mutex<(u64, BTreeMap<u32, Told>)>,
    /// When the last answer came, in nanoseconds of the engine's clock; 0 before the first.
    last_ns: AtomicU64,
    /// Requests that have not ended.
    pub pending: AtomicI64,
    failures: [AtomicU64; 4],
    /// Nanoseconds from arrival to the first rows of answers that come step by step.
    first_response: Mutex<Option<Histogram>>,
    /// Nanoseconds from arrival to answer, by SLA class.
    latencies: Mutex<BTreeMap<String, Histogram>>,
    /// By SLA class, then by outcome.
    outcomes: Mutex<BTreeMap<String, BTreeMap<Outcome, u64>>>,
    /// Of answers that come one behind the other.
    pub responses: Responses,
}

impl Stats {
    /// Figures of a version of which nothing ran, whose histograms have these bounds.
    pub fn new(buckets: Buckets) -> Self {
        Self {
            buckets,
            ..Self::default()
        }
    }

    fn first_histogram(&self) -> Histogram {
        Histogram::new(self.buckets.first_responses.clone())
    }

    /// Requests that failed, by [`REASONS`].
    pub fn failures(&self) -> [u64; 4] {
        self.failures.each_ref().map(|n| n.load(Relaxed))
    }

    /// Where launches of nodes were `sizes` all together: samples that were answered since the last
    /// time, divided among launches by the samples that these had since then, each part over the size
    /// of its launches, added to what was told then. So executions of a size are as many as its launches
    /// over those that a sample takes, their sum times their size is the number of samples, and the
    /// difference of two answers is that of the time between them. In all, and by size. A request that
    /// ran as a part of an ensemble's is one more, of no size.
    pub fn executions(&self, sizes: &Sizes) -> (u64, Vec<Executions>) {
        let mut told = locked(&self.told);
        let (inferences, by_size) = &mut *told;
        let all = self.inferences.load(Relaxed);
        let own = all.saturating_sub(self.samples_within.load(Relaxed));
        let more = own.saturating_sub(*inferences);
        if more > 0 {
            *inferences += more;
            let since = |told: &BTreeMap<u32, Told>, samples, nodes: u64| {
                nodes.saturating_sub(told.get(&samples).map_or(0, |t| t.nodes))
            };
            let new = sizes.iter();
            let new =
                new.map(|(samples, at)| since(by_size, samples, at.nodes) * u64::from(samples));
            let batched = new.sum::<u64>();
            for (samples, at) in sizes.iter() {
                let launched = since(by_size, samples, at.nodes);
                let told = by_size.entry(samples).or_default();
                if batched > 0 {
                    told.executions += more as f64 * launched as f64 / batched as f64;
                }
                told.nodes = at.nodes;
            }
            if batched == 0 {
                // Nothing was launched for them that had not been told: one each.
                by_size.entry(1).or_default().executions += more as f64;
            }
        }
        let num = by_size.values().map(|t| t.executions).sum::<f64>();
        let each = sizes.iter().map(|(samples, at)| Executions {
            samples,
            num: by_size
                .get(&samples)
                .map_or(0, |t| t.executions.round() as u64),
            ns: at.ns,
        });
        // A part of one is one, that of rounding is none.
        let num = (num - 1e-6).ceil().max(0.0) as u64;
        (num + self.within.load(Relaxed), each.collect())
    }

    /// Requests by SLA class and outcome.
    pub fn outcomes(&self) -> BTreeMap<(String, Outcome), u64> {
        let outcomes = locked(&self.outcomes);
        let each = outcomes.iter().flat_map(|(class, nums)| {
            let nums = nums.iter();
            nums.map(|(&outcome, &num)| ((class.clone(), outcome), num))
        });
        each.collect()
    }

    fn outcome(&self, class: &str, outcome: Outcome) {
        let mut outcomes = locked(&self.outcomes);
        match outcomes.get_mut(class) {
            Some(nums) => *nums.entry(outcome).or_default() += 1,
            None => drop(outcomes.insert(class.to_owned(), [(outcome, 1)].into())),
        }
    }

    /// Nanoseconds from arrival to answer, by SLA class.
    pub fn latencies(&self) -> BTreeMap<String, Histogram> {
        locked(&self.latencies).clone()
    }

    /// Nanoseconds from arrival to the first rows of an answer that comes step by step.
    pub fn first_responses(&self) -> Histogram {
        let first = locked(&self.first_response);
        first.clone().unwrap_or_else(|| self.first_histogram())
    }

    /// The first rows of an answer came.
    pub fn responded_first(&self, took: Nanos) {
        let mut first = locked(&self.first_response);
        let first = first.get_or_insert_with(|| self.first_histogram());
        first.record(took.0);
    }

    /// The engine has answered a request, all of it.
    pub fn answered(&self, class: &str, passage: &Passage) {
        self.inferences.fetch_add(passage.samples as u64, Relaxed);
        self.outcome(class, passage.outcome);
    }

    /// A request to an ensemble whose program this one is a part of was answered at `now` of the
    /// engine's clock: `took` is the part's share.
    pub fn answered_within(&self, samples: usize, took: &Stages, now: Time) {
        self.within.fetch_add(1, Relaxed);
        // Before the samples of all: who takes them off never takes off more.
        self.samples_within.fetch_add(samples as u64, Relaxed);
        self.inferences.fetch_add(samples as u64, Relaxed);
        self.computed(took);
        self.success.add(took.sum());
        self.last_ns.store(now.0.max(1), Relaxed);
    }

    /// The outputs of such a request were put together; it took that.
    pub fn computed(&self, took: &Stages) {
        self.queue.add(took.queue);
        self.compute_input.add(took.input);
        self.compute_infer.add(took.infer);
        // Last: who tells them goes by it.
        self.compute_output.add(took.output);
    }

    /// An answer came from the response cache.
    pub fn hit(&self, class: &str, took: Nanos) {
        self.cache_hit.add(took);
        self.outcome(class, Outcome::Met);
    }

    /// A request failed after `took`.
    pub fn failed(&self, class: &str, error: &Error, took: Nanos) {
        let reason = match error {
            Error::Unavailable(_) => 0,
            Error::Internal(_) => 2,
            Error::Invalid(_) | Error::Exists(_) | Error::NotFound(_) | Error::Unsupported(_) => 3,
        };
        self.failures[reason].fetch_add(1, Relaxed);
        self.fail.add(took);
        match error {
            Error::Unavailable(_) => self.outcome(class, Outcome::Shed),
            Error::Internal(_) => self.outcome(class, Outcome::Failed),
            _ => {}
        }
    }

    /// A client left its request after `took`.
    pub fn cancelled(&self, class: &str, took: Nanos) {
        self.failures[1].fetch_add(1, Relaxed);
        self.fail.add(took);
        self.outcome(class, Outcome::Cancelled);
    }

    /// Milliseconds since 1970 of the last answer, told at `now` of the engine's clock; 0 before the
    /// first.
    #[allow(
        clippy::disallowed_methods,
        reason = "the protocol states the date of the last inference; nothing else depends on it"
    )]
    pub fn last_ms(&self, now: Time) -> u64 {
        let last = match self.last_ns.load(Relaxed) {
            0 => return 0,
            last => Time(last),
        };
        let ago = std::time::Duration::from_nanos(now.since(last).0);
        let date = std::time::SystemTime::now().checked_sub(ago);
        let since = date.and_then(|d| d.duration_since(std::time::UNIX_EPOCH).ok());
        since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    /// Notes that a whole request was answered at `now` of the engine's clock.
    pub fn succeeded(&self, class: &str, took: Nanos, now: Time) {
        self.success.add(took);
        {
            let mut latencies = locked(&self.latencies);
            match latencies.get_mut(class) {
                Some(latencies) => latencies.record(took.0),
                None => {
                    let mut first = Histogram::new(self.buckets.latencies.clone());
                    first.record(took.0);
                    latencies.insert(class.to_owned(), first);
                }
            }
        }
        self.last_ns.store(now.0.max(1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_engine::AtSize;

    use super::*;

    #[test]
    fn executions_go_by_the_samples_that_launches_of_a_size_had() {
        let stats = Stats::default();
        let mut sizes = Sizes::default();
        let mut launch = |samples, nodes| {
            sizes.add(
                samples,
                AtSize {
                    nodes,
                    ns: 5 * nodes,
                },
            );
            sizes.clone()
        };
        // Two requests over ten nodes: each has four alone, and the other six are theirs together.
        launch(1, 8);
        let after = launch(2, 6);
        stats.inferences.store(2, Relaxed);
        let of = |samples, num, ns| Executions { samples, num, ns };
        // 0.8 of one sample, and 0.6 of two: 2 samples in 1.4.
        assert_eq!(
            stats.executions(&after),
            (2, vec![of(1, 1, 40), of(2, 1, 30)])
        );
        // Twenty more, in four times five.
        let after = launch(5, 40);
        stats.inferences.store(22, Relaxed);
        let by_size = vec![of(1, 1, 40), of(2, 1, 30), of(5, 4, 200)];
        assert_eq!(stats.executions(&after), (6, by_size.clone()));
        assert_eq!(stats.executions(&after), (6, by_size), "nothing happened");
    }

    #[test]
    fn requests_within_ensembles_are_executions_without_launches_here() {
        let stats = Stats::default();
        let took = Stages {
            queue: Nanos(1),
            infer: Nanos(2),
            ..Stages::default()
        };
        for _ in 0..3 {
            stats.answered_within(4, &took, Time(9));
        }
        stats.inferences.fetch_add(5, Relaxed);
        let mut sizes = Sizes::default();
        sizes.add(5, AtSize { nodes: 7, ns: 70 });
        let own = Executions {
            samples: 5,
            num: 1,
            ns: 70,
        };
        assert_eq!(stats.executions(&sizes), (1 + 3, vec![own]));
        assert_eq!(stats.inferences.load(Relaxed), 17);
        assert_eq!((stats.success.count(), stats.success.ns()), (3, 9));
        assert_eq!((stats.queue.count(), stats.queue.ns()), (3, 3));
    }

    #[test]
    fn who_was_answered_without_a_launch_counts_as_one_execution() {
        let stats = Stats::default();
        stats.inferences.store(3, Relaxed);
        assert_eq!(stats.executions(&Sizes::default()), (3, Vec::new()));
    }
}
