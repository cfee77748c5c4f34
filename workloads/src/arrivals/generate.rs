//! Synthetic workloads: a process for the times, a distribution for the lengths, one or more
//! models.
//!
//! Times and lengths come from separate streams of one seed, so changing the length distribution
//! leaves every arrival time as it was, and adding a model leaves the others alone.

use std::sync::Arc;

use lazybatch_sla::{Nanos, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Arrival, Process};
use crate::error::Result;
use crate::lengths::Lengths;

/// When a workload ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Arrivals before this time.
    Duration(Nanos),
    /// This many arrivals per stream.
    Requests(usize),
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The model they ask for.
    pub model: Arc<str>,
    /// When they arrive.
    pub process: Process,
    /// How long they are.
    pub lengths: Lengths,
    /// Their latency target, where it is not the profile's.
    pub sla: Option<Nanos>,
    /// Their priority level.
    pub priority: u8,
    /// Samples in each.
    pub samples: u32,
    /// Their SLA class.
    pub class: Option<Arc<str>>,
}

impl Stream {
    /// Requests of one sample at the default priority, without a target or class of their own.
    pub fn new(model: impl Into<Arc<str>>, process: Process, lengths: Lengths) -> Self {
        let model = model.into();
        Self {
            model,
            process,
            lengths,
            sla: None,
            priority: 0,
            samples: 1,
            class: None,
        }
    }

    fn draw(&self, seed: u64, limit: Limit) -> Result<Vec<Arrival>> {
        let mut lengths_rng = ChaCha8Rng::seed_from_u64(seed);
        lengths_rng.set_stream(1);
        let (until, most) = match limit {
            Limit::Duration(span) => (Time::ZERO + span, usize::MAX),
            Limit::Requests(n) => (Time::MAX, n),
        };
        let times = self
            .process
            .times(seed)?
            .take(most)
            .take_while(|at| *at < until);
        Ok(times
            .map(|at| {
                let (input_len, output_len) = self.lengths.sample(&mut lengths_rng);
                Arrival {
                    at,
                    model: Arc::clone(&self.model),
                    input_len,
                    output_len,
                    sla: self.sla,
                    priority: self.priority,
                    samples: self.samples,
                    sequence_id: None,
                    class: self.class.clone(),
                }
            })
            .collect())
    }
}

/// One or more streams, merged by time.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The streams; at equal times the earlier stream comes first.
    pub streams: Vec<Stream>,
    /// Where each stream ends.
    pub limit: Limit,
}

impl Workload {
    /// A workload of one stream.
    pub fn single(stream: Stream, limit: Limit) -> Self {
        Self {
            streams: vec![stream],
            limit,
        }
    }

    /// The arrivals of `seed`, in order.
    ///
    /// # Errors
    /// As [`Process::validate`].
    pub fn generate(&self, seed: u64) -> Result<Vec<Arrival>> {
        let mut all = Vec::new();
        for (i, stream) in self.streams.iter().enumerate() {
            all.extend(stream.draw(stream_seed(seed, i as u64), self.limit)?);
        }
        all.sort_by_key(|arrival| arrival.at);
        Ok(all)
    }
}

/// Spreads neighbouring seeds and stream numbers over all seeds (one round of SplitMix64), so that
/// stream 1 of seed 1 is not stream 0 of seed 2.
fn stream_seed(seed: u64, stream: u64) -> u64 {
    if stream == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(model: &str, lengths: &str) -> Stream {
        let lengths = Lengths::load(lengths).unwrap();
        Stream::new(model, Process::Poisson { rate_rps: 200.0 }, lengths)
    }

    fn times(arrivals: &[Arrival]) -> Vec<Time> {
        arrivals.iter().map(|a| a.at).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_workload() {
        let limit = Limit::Duration(Nanos::from_ms(5000));
        let workload = Workload::single(stream("a", "translation-short"), limit);
        let first = workload.generate(1).unwrap();
        assert_eq!(first, workload.generate(1).unwrap());
        assert_ne!(first, workload.generate(2).unwrap());
        assert!(
            (800..1200).contains(&first.len()),
            "{} arrivals",
            first.len()
        );
        assert!(first.iter().all(|a| a.at.0 < 5_000_000_000));
    }

    #[test]
    fn lengths_do_not_move_arrivals() {
        let limit = Limit::Requests(100);
        let short = Workload::single(stream("a", "translation-short"), limit)
            .generate(1)
            .unwrap();
        let fixed = Workload::single(stream("a", "fixed:3:4"), limit)
            .generate(1)
            .unwrap();
        assert_eq!(times(&short), times(&fixed));
        assert_eq!(fixed.len(), 100);
        assert!(fixed.iter().all(|a| (a.input_len, a.output_len) == (3, 4)));
    }

    #[test]
    fn streams_merge_by_time_and_stay_as_they_were_alone() {
        let limit = Limit::Duration(Nanos::from_ms(1000));
        let a = stream("a", "fixed:1:1");
        let alone = Workload::single(a.clone(), limit).generate(9).unwrap();
        let both = Workload {
            streams: vec![a, stream("b", "fixed:2:2")],
            limit,
        };
        let both = both.generate(9).unwrap();
        assert!(times(&both).is_sorted());
        let only_a: Vec<_> = both.iter().filter(|x| &*x.model == "a").cloned().collect();
        let only_b: Vec<_> = both.iter().filter(|x| &*x.model == "b").cloned().collect();
        assert_eq!(only_a, alone);
        assert_eq!(only_a.len() + only_b.len(), both.len());
        assert_ne!(times(&only_a), times(&only_b));
    }
}
