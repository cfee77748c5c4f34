//! Requests of sequences, which wait for one another.

use std::collections::{BTreeSet, VecDeque};

use lazybatch_sla::{ModelId, RequestId, Time};
use rustc_hash::FxHashMap;

use super::request::Key;
use super::why::Hold;

/// A sequence of a model.
type Of = (ModelId, u64);

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub key: Key,
    pub id: RequestId,
    pub arrival: Time,
    pub samples: u32,
}

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
    /// Those that wait, by when they came.
    held: BTreeSet<(ModelId, Time, RequestId)>,
    held_samples: u64,
}

impl Sequences {
    /// Requests that wait for their sequence.
    pub fn num_held(&self) -> usize {
        self.held.len()
    }

    /// Their samples.
    pub fn held_samples(&self) -> u64 {
        self.held_samples
    }

    /// When the oldest of them that is of a model came.
    pub fn oldest(&self, model: ModelId) -> Option<Time> {
        let mut of_model = self.held.range((model, Time(0), RequestId(0))..);
        let (of, arrival, _) = of_model.next()?;
        (*of == model).then_some(*arrival)
    }

    /// What a request that comes waits for, if it does; else the next ones wait for it.
    pub fn arrive(&mut self, of: Of, held: Held) -> Option<Hold> {
        let Some(behind) = self.of.get_mut(&of) else {
            self.of.insert(of, Behind::default());
            return None;
        };
        behind.held.push_back(held);
        self.held.insert((of.0, held.arrival, held.id));
        self.held_samples += u64::from(held.samples);
        Some(match behind.is_in_backlog {
            true => Hold::Backlog,
            false => Hold::Sequence,
        })
    }

    /// A request that waits goes.
    pub fn leave(&mut self, of: Of, key: Key) {
        let behind = self.of.get_mut(&of).expect("it waits for others");
        let at = behind.held.iter().position(|held| held.key == key);
        let held = behind.held.remove(at.expect("it waits for others"));
        self.count_less(of.0, held.expect("found above"));
    }

    /// The one before it is over: whose turn it is now.
    pub fn next(&mut self, of: Of) -> Option<Key> {
        let next = self.of.get_mut(&of)?.held.pop_front();
        match next {
            Some(held) => self.count_less(of.0, held),
            None => drop(self.of.remove(&of)),
        }
        next.map(|held| held.key)
    }

    fn count_less(&mut self, model: ModelId, held: Held) {
        self.held.remove(&(model, held.arrival, held.id));
        self.held_samples -= u64::from(held.samples);
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
}
