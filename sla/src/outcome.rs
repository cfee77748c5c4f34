//! How requests end, and the running account of it.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Terminal classification of a request; exactly one per accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Completed within its SLA target.
    Met,
    /// Completed late.
    Violated,
    /// Refused or dropped by the scheduler.
    Shed,
    /// Withdrawn by its client.
    Cancelled,
    /// Lost to a device failure.
    Failed,
}

impl Outcome {
    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Violated => "violated",
            Self::Shed => "shed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// Whether the request's answer was produced.
    pub const fn is_completed(self) -> bool {
        matches!(self, Self::Met | Self::Violated)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Live counters and a latency histogram of bounded memory (three significant digits, up to one
/// hour). Reports that need exact percentiles keep the latencies themselves.
#[derive(Clone, Debug)]
pub struct Account {
    counts: [u64; 5],
    latency_us: Histogram<u64>,
}

impl Default for Account {
    fn default() -> Self {
        let latency_us =
            Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are valid");
        Self {
            counts: [0; 5],
            latency_us,
        }
    }
}

impl Account {
    /// Adds one ended request. `latency` counts for completed ones only.
    pub fn record(&mut self, outcome: Outcome, latency: Nanos) {
        self.counts[outcome as usize] += 1;
        if outcome.is_completed() {
            self.latency_us.saturating_record((latency.0 / 1000).max(1));
        }
    }

    /// Requests that ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize]
    }

    /// Requests that ended.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// (violated + shed + failed) / (requests - cancelled); 0 without requests.
    pub fn violation_rate(&self) -> f64 {
        let counted = self.total() - self.count(Outcome::Cancelled);
        if counted == 0 {
            return 0.0;
        }
        let bad =
            self.count(Outcome::Violated) + self.count(Outcome::Shed) + self.count(Outcome::Failed);
        bad as f64 / counted as f64
    }

    /// Mean latency of completed requests in milliseconds, to three significant digits.
    pub fn mean_ms(&self) -> f64 {
        self.latency_us.mean() / 1e3
    }

    /// Latency in milliseconds at quantile `q` of completed requests, to three significant digits.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        self.latency_us.value_at_quantile(q) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_counts_by_outcome_and_leaves_cancelled_out_of_the_rate() {
        let mut account = Account::default();
        account.record(Outcome::Met, Nanos::from_ms(2));
        account.record(Outcome::Violated, Nanos::from_ms(8));
        account.record(Outcome::Shed, Nanos::ZERO);
        account.record(Outcome::Cancelled, Nanos::from_ms(900));
        account.record(Outcome::Met, Nanos::from_ms(2));
        assert_eq!(account.total(), 5);
        assert_eq!(account.violation_rate(), 0.5);
        assert!((account.mean_ms() - 4.0).abs() < 0.01);
        assert!((account.quantile_ms(0.5) - 2.0).abs() < 0.01);
        assert!((account.quantile_ms(1.0) - 8.0).abs() < 0.01);
    }
}
