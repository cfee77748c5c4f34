//! The sequences of one model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazybatch_graph::Tensor;
use lazybatch_sla::{Nanos, Time};
use rustc_hash::FxHashMap;

use super::{Place, SequenceOptions};
use crate::embed::{InBacklog, RequestError};

/// What bounds the sequences of a model, and how many there are.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub options: SequenceOptions,
    /// Requests hand on state.
    pub has_state: bool,
    /// Those that there are, for whoever asks.
    num: Arc<AtomicUsize>,
}

impl Bounds {
    /// Of a model whose requests hand on state or not.
    pub fn new(options: SequenceOptions, has_state: bool) -> Self {
        Self {
            options: SequenceOptions {
                candidates: options.candidates.max(1),
                ..options
            },
            has_state,
            num: Arc::default(),
        }
    }

    /// How many sequences may go on, or have a request on its way: those that began, and neither ended, nor
    /// were idle for too long, nor broke. It is told before any request that changes it is answered.
    pub fn num(&self) -> usize {
        self.num.load(Ordering::SeqCst)
    }
}

/// Carried tensors in the order of [`lazybatch_graph::Program::carries`], or why there are none.
pub(super) type Left = Result<Vec<Tensor>, String>;

struct Kept {
    /// What requests left that the next one still wants: that of the last one handed in, and those
    /// whose next one has not ended.
    left: BTreeMap<u64, Left>,
    /// Numbers of the requests accepted that have not ended, and what they hold as part of the backlog.
    pending: Vec<(u64, InBacklog)>,
    /// Requests handed in so far.
    num: u64,
    /// Samples of the request that started it; of any number if that was refused.
    samples: Option<u32>,
    /// More requests may follow: the last one handed in was no end.
    is_open: bool,
    /// End of the last request.
    used: Time,
    /// Its requests run; else it is in the backlog.
    is_candidate: bool,
    /// Nothing but a start can follow, and nothing is on its way: a request of it broke it.
    is_lost: bool,
}

impl Kept {
    /// When it will have been idle for too long, if no request comes.
    fn stale_at(&self, idle: Nanos) -> Option<Time> {
        let is_idle = self.pending.is_empty();
        is_idle.then(|| self.used + idle + Nanos(1))
    }

    fn is_stale(&self, now: Time, idle: Nanos) -> bool {
        self.stale_at(idle).is_some_and(|at| at <= now)
    }
}

/// See the module.
pub(super) struct Table {
    bounds: Bounds,
    kept: FxHashMap<u64, Kept>,
    num_candidates: usize,
    /// Those that are lost.
    num_lost: usize,
    /// Those that are no candidates, in the order of their starts.
    backlog: VecDeque<u64>,
    /// Nothing is to come.
    is_closing: bool,
    /// Those that have left the backlog, which nobody has been told.
    let_go: VecDeque<u64>,
}

impl Table {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            kept: FxHashMap::default(),
            num_candidates: 0,
            num_lost: 0,
            backlog: VecDeque::new(),
            is_closing: false,
            let_go: VecDeque::new(),
        }
    }

    pub fn idle(&self) -> Nanos {
        self.bounds.options.idle
    }

    /// Says how many there are now that may go on.
    pub fn tell(&self) {
        let num = self.kept.len() - self.num_lost;
        self.bounds.num.store(num, Ordering::SeqCst);
    }

    /// Requests of a sequence of which something is left.
    #[cfg(test)]
    pub fn numbers_left(&self, key: u64) -> Vec<u64> {
        self.kept[&key].left.keys().copied().collect()
    }

    /// When the first will have been idle for too long.
    pub fn stale_at(&self) -> Option<Time> {
        let idle = self.idle();
        self.kept.values().filter_map(|k| k.stale_at(idle)).min()
    }

    pub fn drop_stale(&mut self, now: Time) {
        let idle = self.idle();
        self.drop_all(|kept| kept.is_stale(now, idle));
    }

    /// Nothing is to come: those that are idle keep nobody in the backlog any longer.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.drop_all(|kept| kept.pending.is_empty());
    }

    fn drop_all(&mut self, is_over: impl Fn(&Kept) -> bool) {
        let over = self.kept.iter().filter(|(_, kept)| is_over(kept));
        let over: Vec<u64> = over.map(|(&key, _)| key).collect();
        over.into_iter().for_each(|key| self.remove(key));
    }

    /// A sequence that has left the backlog, or what is left of one that was there.
    pub fn next_let_go(&mut self) -> Option<u64> {
        self.let_go.pop_front()
    }

    fn remove(&mut self, key: u64) {
        let Some(kept) = self.kept.remove(&key) else {
            return;
        };
        self.num_lost -= usize::from(kept.is_lost);
        if kept.is_candidate {
            self.num_candidates -= 1;
            self.promote();
        } else {
            self.backlog.retain(|&waiting| waiting != key);
            self.let_go.push_back(key);
        }
    }

    fn promote(&mut self) {
        while self.num_candidates < self.bounds.options.candidates {
            let Some(key) = self.backlog.pop_front() else {
                return;
            };
            let kept = self.kept.get_mut(&key).expect("the backlog is kept");
            kept.is_candidate = true;
            self.num_candidates += 1;
            for (_, held) in &mut kept.pending {
                *held = InBacklog::default();
            }
            self.let_go.push_back(key);
        }
    }

    /// Notes whether a sequence is lost.
    fn note_lost(&mut self, key: u64) {
        let Some(kept) = self.kept.get_mut(&key) else {
            return;
        };
        let is_broken = kept.left.last_key_value().is_some_and(|(_, l)| l.is_err());
        let is_lost = is_broken && kept.pending.is_empty();
        self.num_lost -= usize::from(kept.is_lost);
        self.num_lost += usize::from(is_lost);
        kept.is_lost = is_lost;
    }

    /// See [`super::Sequences::accept`].
    pub fn accept(
        &mut self,
        now: Time,
        place: &mut Place,
        samples: u32,
        find_room: impl FnOnce() -> Result<InBacklog, RequestError>,
    ) -> Result<bool, RequestError> {
        let (key, idle) = (place.sequence, self.idle());
        let SequenceOptions {
            most, candidates, ..
        } = self.bounds.options;
        let misplaced = |expected: String| RequestError::Sequence {
            sequence: key,
            expected,
        };
        if self.kept.get(&key).is_some_and(|k| k.is_stale(now, idle)) {
            self.remove(key);
        }
        let waits = match self.kept.get(&key) {
            Some(kept) if !place.start && !kept.is_open => {
                let expected = "the start of a sequence, for its end came before";
                return Err(misplaced(expected.into()));
            }
            Some(kept) => {
                let own = kept
                    .samples
                    .filter(|_| self.bounds.has_state && !place.start);
                if let Some(expected) = own.filter(|&own| own != samples) {
                    let expected = format!("{expected} samples, as at its start, got {samples}");
                    let error = misplaced(expected);
                    self.refused(now, *place, &error.to_string());
                    return Err(error);
                }
                !kept.is_candidate
            }
            None if !place.start => {
                let expected = "the start of a sequence, for none of that id is open";
                return Err(misplaced(expected.into()));
            }
            None => {
                if self.kept.len() >= most || self.num_candidates >= candidates {
                    self.drop_stale(now);
                }
                if self.kept.len() >= most {
                    let sequence = key;
                    return Err(RequestError::SequencesFull { sequence, most });
                }
                self.num_candidates >= candidates
            }
        };
        let held = match waits.then(find_room).transpose() {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                self.refused(now, *place, &error.to_string());
                return Err(error);
            }
        };
        let is_new = !self.kept.contains_key(&key);
        let kept = self.kept.entry(key).or_insert_with(|| Kept {
            left: BTreeMap::new(),
            pending: Vec::new(),
            num: 0,
            samples: None,
            is_open: false,
            used: now,
            is_candidate: !waits,
            is_lost: false,
        });
        if place.start {
            kept.samples = Some(samples);
        }
        place.number = kept.num;
        kept.num += 1;
        kept.pending.push((place.number, held));
        kept.is_open = !place.end;
        self.note_lost(key);
        match (is_new, waits) {
            (true, true) => self.backlog.push_back(key),
            (true, false) => self.num_candidates += 1,
            (false, _) => {}
        }
        Ok(is_new && waits)
    }

    /// See [`super::Sequences::refused`]; whether it may be idle from now on.
    pub fn refused(&mut self, now: Time, place: Place, cause: &str) -> bool {
        let (key, idle) = (place.sequence, self.idle());
        let kept = self.kept.get_mut(&key).filter(|_| self.bounds.has_state);
        let kept = kept.filter(|k| !k.is_stale(now, idle));
        let Some(kept) = kept.filter(|k| k.is_open || place.start) else {
            return false;
        };
        let number = kept.num;
        kept.num += 1;
        kept.is_open = !place.end;
        if place.start {
            kept.samples = None;
        }
        let why = format!("a request before it in sequence {key} was refused ({cause})");
        self.leaves(now, key, number, Err(why));
        true
    }

    /// What is left for request `number` of a sequence; none if it starts that, or there is no state.
    pub fn left_for(&self, place: Place) -> Option<Left> {
        let kept = self.kept.get(&place.sequence)?;
        if place.start || !self.bounds.has_state {
            return None;
        }
        // Requests of a sequence run one behind another.
        let left = place.number.checked_sub(1).and_then(|n| kept.left.get(&n));
        Some(
            left.cloned()
                .unwrap_or_else(|| Err("nothing is left of the request before it".into())),
        )
    }

    /// What broke the sequence before a request, if it was: a cause of a cause would grow with every one.
    pub fn cause_before(&self, place: Place) -> Option<String> {
        let kept = self.kept.get(&place.sequence)?;
        let before = place.number.checked_sub(1).filter(|_| !place.start)?;
        kept.left.get(&before)?.as_ref().err().cloned()
    }

    /// Request `number` of a sequence has ended and left this.
    pub fn leaves(&mut self, now: Time, key: u64, number: u64, left: Left) {
        let Some(kept) = self.kept.get_mut(&key) else {
            return;
        };
        kept.used = now;
        kept.pending.retain(|&(n, _)| n != number);
        if self.bounds.has_state {
            kept.left.insert(number, left);
            let (pending, num) = (&kept.pending, kept.num);
            let is_wanted = |n: u64| n + 1 == num || pending.iter().any(|&(p, _)| p == n + 1);
            kept.left.retain(|&n, _| is_wanted(n));
        }
        // Nothing of one in the backlog has run.
        let is_over = !kept.is_open || !kept.is_candidate || self.is_closing;
        if kept.pending.is_empty() && is_over {
            self.remove(key);
        }
        self.note_lost(key);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.bounds.num.store(0, Ordering::SeqCst);
    }
}
