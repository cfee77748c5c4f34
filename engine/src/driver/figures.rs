//! Running figures of an engine.

use std::collections::BTreeMap;

use lazybatch_sla::{Account, Histogram, Nanos, Time};

use super::tally::Sizes;
use crate::core::Counters;

/// Running figures of an engine.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Counts of the core.
    pub counters: Counters,
    /// The same by model, of those that are loaded; decisions are those that launched it.
    pub models: Vec<Counters>,
    /// Outcomes and latencies, by model.
    pub accounts: Vec<Account>,
    /// By model, launches by how many samples they had.
    pub sizes: Vec<Sizes>,
    /// By model, what it has to do just now.
    pub loads: Vec<Load>,
    /// Nanoseconds of decisions with two or more legal actions, each kept, if they are timed.
    pub decision_ns: Vec<u64>,
    /// The same as counts, if they are measured.
    pub decisions: Histogram,
    /// What the policy's plans came to.
    pub planning: Planning,
}

/// What a policy does that plans which rule to decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planning {
    /// Plans that were made.
    pub plans: u64,
    /// Launches that they simulated.
    pub launches: u64,
    /// How often the rule changed.
    pub changes: u64,
    /// The rule; none of a policy that does not change between several.
    pub rule: Option<String>,
    /// Since when it is.
    since: Time,
    /// For how long rules decided, up to the last change.
    held: BTreeMap<String, Nanos>,
}

impl Planning {
    /// The policy decides by this rule from now on; whether that is another one than before.
    pub(crate) fn note(&mut self, now: Time, rule: Option<&str>) -> bool {
        if self.rule.as_deref() == rule {
            return false;
        }
        self.held = self.held(now);
        self.since = now;
        let before = std::mem::replace(&mut self.rule, rule.map(str::to_owned));
        self.changes += u64::from(before.is_some());
        before.is_some()
    }

    /// For how long each rule has decided.
    pub fn held(&self, now: Time) -> BTreeMap<String, Nanos> {
        let mut held = self.held.clone();
        if let Some(rule) = &self.rule {
            let so_far = held.entry(rule.clone()).or_default();
            *so_far += now.since(self.since);
        }
        held
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            counters: Counters::default(),
            models: Vec::new(),
            accounts: Vec::new(),
            sizes: Vec::new(),
            loads: Vec::new(),
            decision_ns: Vec::new(),
            decisions: Histogram::new(&DECISION_BOUNDS),
            planning: Planning::default(),
        }
    }
}

impl Stats {
    /// Those of `num` models that have done nothing.
    pub(crate) fn of_models(num: usize) -> Self {
        let mut stats = Self::default();
        (0..num).for_each(|m| stats.begin(m));
        stats
    }

    /// A model begins under the id `m`.
    pub(crate) fn begin(&mut self, m: usize) {
        let num = self.accounts.len().max(m + 1);
        self.accounts.resize(num, Account::default());
        self.models.resize(num, Counters::default());
        self.sizes.resize(num, Sizes::default());
        self.loads.resize(num, Load::default());
        self.accounts[m] = Account::default();
        self.models[m] = Counters::default();
        self.sizes[m] = Sizes::default();
        self.loads[m] = Load::default();
    }
}

/// What a model has to do, as its driver last saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the batch table or ending.
    pub in_flight: u32,
    /// Arrival of the request that has waited longest.
    pub oldest: Option<Time>,
}

/// Those running figures of a model that cost little to tell.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// As [`crate::ModelStats::counters`].
    pub counters: Counters,
    /// As [`crate::ModelStats::sizes`].
    pub sizes: Sizes,
    /// Requests in the batch table or ending.
    pub in_flight: u32,
    /// Requests that wait for their turn; 0 without [`crate::ModelOptions::max_queue`].
    pub waiting: usize,
    /// For how long the one of them that came first has.
    pub oldest: Option<Nanos>,
}

/// Bounds of a decision's nanoseconds.
const DECISION_BOUNDS: [u64; 13] = [
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_hold_until_another_one_decides() {
        let mut planning = Planning::default();
        assert!(!planning.note(Time(5), None) && planning.held(Time(9)).is_empty());
        assert!(!planning.note(Time(10), Some("a")), "the first");
        assert!(!planning.note(Time(12), Some("a")));
        assert!(planning.note(Time(15), Some("b")));
        assert!(planning.note(Time(17), Some("a")));
        let held = [("a".to_owned(), Nanos(8)), ("b".to_owned(), Nanos(2))];
        assert_eq!(planning.held(Time(20)), held.into());
        assert_eq!((planning.changes, planning.rule.as_deref()), (2, Some("a")));
    }
}
