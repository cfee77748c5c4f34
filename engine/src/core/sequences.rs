//! Requests of sequences, which wait for one another.

use std::collections::VecDeque;

use lazybatch_sla::ModelId;
use rustc_hash::FxHashMap;

use super::request::Key;
use super::why::Hold;

/// A sequence of a model.
type Of = (ModelId, u64);

/// A request that waits, and its samples.
type Held = (Key, u32);

/// The requests of a sequence behind the one that is queued or runs.
#[derive(Clone, Debug, Default)]
struct Behind {
    held: VecDeque<Held>,
    /// None of them is: the whole sequence waits.
    is_in_backlog: bool,
}

/// Who waits for whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequences {
    of: FxHashMap<Of, Behind>,
    num_held: usize,
    held_samples: u64,
}

impl Sequences {
    /// Requests that wait for their sequence.
    pub fn num_held(&self) -> usize {
        self.num_held
    }

    /// Their samples.
    pub fn held_samples(&self) -> u64 {
        self.held_samples
    }

    /// What a request that comes waits for, if it does; else the next ones wait for it.
    pub fn arrive(&mut self, of: Of, key: Key, samples: u32) -> Option<Hold> {
        let Some(behind) = self.of.get_mut(&of) else {
            self.of.insert(of, Behind::default());
            return None;
        };
        behind.held.push_back((key, samples));
        self.num_held += 1;
        self.held_samples += u64::from(samples);
        Some(match behind.is_in_backlog {
            true => Hold::Backlog,
            false => Hold::Sequence,
        })
    }

    /// A request that waits goes.
    pub fn leave(&mut self, of: Of, key: Key, samples: u32) {
        let behind = self.of.get_mut(&of).expect("it waits for others");
        behind.held.retain(|held| held.0 != key);
        self.count_less(samples);
    }

    /// The one before it is over: whose turn it is now.
    pub fn next(&mut self, of: Of) -> Option<Key> {
        let next = self.of.get_mut(&of)?.held.pop_front();
        match next {
            Some((_, samples)) => self.count_less(samples),
            None => drop(self.of.remove(&of)),
        }
        next.map(|held| held.0)
    }

    fn count_less(&mut self, samples: u32) {
        self.num_held -= 1;
        self.held_samples -= u64::from(samples);
    }

    /// Requests of a sequence that has none here wait from now on, the first one too.
    pub fn hold(&mut self, of: Of) {
        self.of.entry(of).or_insert_with(|| Behind {
            is_in_backlog: true,
            ..Behind::default()
        });
    }

    /// Whether it was in the backlog, which it no longer is.
    pub fn let_go(&mut self, of: Of) -> bool {
        let behind = self.of.get_mut(&of);
        behind.is_some_and(|behind| std::mem::take(&mut behind.is_in_backlog))
    }

    /// Whether a request of a model waits for its sequence.
    pub fn holds_any(&self, model: ModelId) -> bool {
        let mut of_model = self.of.iter().filter(|(of, _)| of.0 == model);
        of_model.any(|(_, behind)| !behind.held.is_empty())
    }
}
