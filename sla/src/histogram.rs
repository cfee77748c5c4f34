//! Counts of values by fixed upper bounds, as monitoring systems keep them.

use std::borrow::Cow;

/// How many values lie at or below each of a list of bounds, and their sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    bounds: Cow<'static, [u64]>,
    /// By bound, each value in the first that holds it; those beyond all of them last.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// Empty; `bounds` increase.
    pub fn new(bounds: impl Into<Cow<'static, [u64]>>) -> Self {
        let bounds = bounds.into();
        debug_assert!(bounds.is_sorted(), "bounds increase");
        let counts = vec![0; bounds.len() + 1];
        Self {
            bounds,
            counts,
            sum: 0,
        }
    }

    /// Adds a value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Adds a value `times` times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        let at = self.bounds.partition_point(|&bound| bound < value);
        self.counts[at] += times;
        self.sum = self.sum.saturating_add(value.saturating_mul(times));
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All values together.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Each bound with the number of values at or below it, the bounds increasing.
    pub fn at_most(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut so_far = 0;
        let bounds = self.bounds.iter().zip(&self.counts);
        bounds.map(move |(&bound, &count)| {
            so_far += count;
            (bound, so_far)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_for_every_bound_that_holds_them() {
        let mut histogram = Histogram::new(&[1, 5, 10]);
        for value in [0, 1, 2, 5, 6, 11, 100] {
            histogram.record(value);
        }
        histogram.record_many(10, 3);
        let cumulative: Vec<_> = histogram.at_most().collect();
        assert_eq!(cumulative, [(1, 2), (5, 4), (10, 8)]);
        assert_eq!((histogram.count(), histogram.sum()), (10, 155));
    }
}
