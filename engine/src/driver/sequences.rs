//! State that requests of one sequence hand on.
//!
//! For models that carry outputs to inputs ([`Program::carries`]). The core runs requests of one
//! sequence one after another; here the state waits in between.
//!
//! Invariants:
//! 1. A request gets the state that the one handed in before it in its sequence left, or fails:
//!    behind one that did not complete, or was refused, the sequence is broken until it is started
//!    again. Who ends first does not matter: a request may be cancelled while those before it run.
//! 2. Requests of a sequence have as many samples as the one that starts it, as its state has.
//! 3. Of a model no more than [`SequenceOptions::most`] sequences are kept, none idle for longer than
//!    [`SequenceOptions::idle`].

use std::collections::BTreeMap;

use lazybatch_graph::{Program, Tensor};
use lazybatch_sla::{ModelId, Nanos, RequestId, Time};
use rustc_hash::FxHashMap;

use crate::embed::RequestError;

/// Bounds on the state that is kept between requests of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceOptions {
    /// A sequence without requests for so long is forgotten. 60 s.
    pub idle: Nanos,
    /// Most sequences of a model at once. 4096.
    pub most: usize,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            idle: Nanos::from_ms(60_000),
            most: 4096,
        }
    }
}

/// Place of a request in a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Correlation id.
    pub sequence: u64,
    /// It starts the sequence (anew): its state is what it brings.
    pub start: bool,
    /// Behind it the state is dropped.
    pub end: bool,
    /// How many of its sequence were handed in before it, which [`Sequences::accept`] says.
    pub number: u64,
}

/// Sequences of models that carry state.
#[derive(Default)]
pub(crate) struct Sequences {
    kept: FxHashMap<ModelId, FxHashMap<u64, Kept>>,
    /// When the first may have been idle for too long.
    stale_at: Option<Time>,
    /// No sweep comes before: each looks at all sequences of all models.
    next_sweep: Time,
}

/// Time between two sweeps.
const BETWEEN: Nanos = Nanos::from_ms(250);

/// Carried tensors in the order of [`Program::carries`], or why there are none.
type Left = Result<Vec<Tensor>, String>;

struct Kept {
    /// What requests left that the next one still wants: that of the last one handed in, and those
    /// whose next one has not ended.
    left: BTreeMap<u64, Left>,
    /// Numbers of the requests accepted that have not ended.
    pending: Vec<u64>,
    /// Requests handed in so far.
    num: u64,
    /// Samples of the request that started it; of any number if that was refused.
    samples: Option<u32>,
    /// More requests may follow: the last one handed in was no end.
    is_open: bool,
    /// End of the last request.
    used: Time,
    /// For how long it may be idle.
    idle: Nanos,
}

impl Kept {
    fn is_stale(&self, now: Time) -> bool {
        self.stale_at().is_some_and(|at| at <= now)
    }

    /// When it will have been idle for too long, if no request comes.
    fn stale_at(&self) -> Option<Time> {
        let is_idle = self.pending.is_empty();
        is_idle.then(|| self.used + self.idle + Nanos(1))
    }

    /// Request `number` has ended and left this.
    fn ended(&mut self, number: u64, left: Left) {
        self.pending.retain(|&n| n != number);
        self.left.insert(number, left);
        let (pending, num) = (&self.pending, self.num);
        self.left
            .retain(|n, _| n + 1 == num || pending.contains(&(n + 1)));
    }
}

impl Sequences {
    /// When [`Self::sweep`] may have something to do.
    pub fn stale_at(&self) -> Option<Time> {
        self.stale_at
    }

    /// Drops those that have been idle for too long. Who is found shortly behind a sweep waits for the
    /// next.
    pub fn sweep(&mut self, now: Time) {
        if self.stale_at.is_none_or(|at| now < at) {
            return;
        }
        let mut next: Option<Time> = None;
        for of_model in self.kept.values_mut() {
            of_model.retain(|_, kept| !kept.is_stale(now));
            for kept in of_model.values() {
                let at = kept.stale_at().map(|at| at.max(now + BETWEEN));
                next = [next, at].into_iter().flatten().min();
            }
        }
        self.stale_at = next;
        self.next_sweep = now + BETWEEN;
    }

    /// One of these may be idle from now on.
    fn note_idle(&mut self, now: Time, idle: Nanos) {
        let at = (now + idle + Nanos(1)).max(self.next_sweep);
        self.stale_at = Some(self.stale_at.map_or(at, |before| before.min(at)));
    }

    /// Drops all of a model.
    pub fn forget(&mut self, model: ModelId) {
        self.kept.remove(&model);
    }

    fn get(&self, model: ModelId, sequence: u64) -> Option<&Kept> {
        self.kept.get(&model)?.get(&sequence)
    }

    /// Takes in a request of so many samples, and numbers it.
    pub fn accept(
        &mut self,
        now: Time,
        model: ModelId,
        place: &mut Place,
        samples: u32,
        SequenceOptions { idle, most }: SequenceOptions,
    ) -> Result<(), RequestError> {
        let key = place.sequence;
        let misplaced = |expected: String| {
            Err(RequestError::Sequence {
                sequence: key,
                expected,
            })
        };
        let of_model = self.kept.entry(model).or_default();
        if of_model.get(&key).is_some_and(|k| k.is_stale(now)) {
            of_model.remove(&key);
        }
        if !of_model.contains_key(&key) {
            if !place.start {
                return misplaced("the start of a sequence, for none of that id is open".into());
            }
            if of_model.len() >= most {
                of_model.retain(|_, k| !k.is_stale(now));
            }
            if of_model.len() >= most {
                let sequence = key;
                return Err(RequestError::SequencesFull { sequence, most });
            }
        }
        let kept = of_model.entry(key).or_insert_with(|| Kept {
            left: BTreeMap::new(),
            pending: Vec::new(),
            num: 0,
            samples: None,
            is_open: false,
            used: now,
            idle,
        });
        let wrong = kept.samples.filter(|&own| own != samples);
        if place.start {
            kept.samples = Some(samples);
        } else if !kept.is_open {
            return misplaced("the start of a sequence, for its end came before".into());
        } else if let Some(expected) = wrong {
            let expected = format!("{expected} samples, as at its start, got {samples}");
            let refused = misplaced(expected);
            if let Err(error) = &refused {
                self.refused(now, model, *place, &error.to_string());
            }
            return refused;
        }
        place.number = kept.num;
        kept.num += 1;
        kept.pending.push(place.number);
        kept.is_open = !place.end;
        Ok(())
    }

    /// A request was refused: what follows it in its sequence fails with the cause, until one starts
    /// it again. Where it has no sequence behind it, nothing can follow but a start.
    pub fn refused(&mut self, now: Time, model: ModelId, place: Place, cause: &str) {
        let key = place.sequence;
        let Some(of_model) = self.kept.get_mut(&model) else {
            return;
        };
        let kept = of_model.get_mut(&key).filter(|k| !k.is_stale(now));
        let Some(kept) = kept.filter(|k| k.is_open || place.start) else {
            return;
        };
        let number = kept.num;
        kept.num += 1;
        kept.is_open = !place.end;
        kept.used = now;
        if place.start {
            kept.samples = None;
        }
        let why = format!("a request before it in sequence {key} was refused ({cause})");
        kept.ended(number, Err(why));
        let idle = kept.idle;
        if kept.pending.is_empty() && !kept.is_open {
            of_model.remove(&key);
        }
        self.note_idle(now, idle);
    }

    /// Puts the state into a request's inputs, when it is its turn.
    pub fn hand_over(
        &self,
        program: &Program,
        model: ModelId,
        place: Place,
        inputs: &mut [Tensor],
    ) -> Result<(), String> {
        let Some(kept) = self.get(model, place.sequence) else {
            return Ok(());
        };
        if place.start {
            return Ok(());
        }
        let before = place.number.checked_sub(1);
        let left = before.and_then(|n| kept.left.get(&n));
        // Requests of a sequence run one behind another.
        let left = left.ok_or_else(|| "nothing is left of the request before it".to_string())?;
        let state = left.as_ref().map_err(Clone::clone)?;
        for (carry, tensor) in program.carries.iter().zip(state) {
            inputs[carry.input.index()] = tensor.clone();
        }
        Ok(())
    }

    /// Keeps what a request leaves: its outputs, or the cause of its end without.
    pub fn ended(
        &mut self,
        now: Time,
        request: RequestId,
        program: &Program,
        model: ModelId,
        place: Place,
        outputs: Result<&[Tensor], &str>,
    ) {
        let key = place.sequence;
        let Some(of_model) = self.kept.get_mut(&model) else {
            return;
        };
        let Some(kept) = of_model.get_mut(&key) else {
            return;
        };
        kept.used = now;
        let left = match outputs {
            Ok(outputs) => {
                let carried = program.carries.iter();
                Ok(carried.map(|c| outputs[c.output.index()].clone()).collect())
            }
            Err(cause) => {
                let before = place.number.checked_sub(1).filter(|_| !place.start);
                let broken = before.and_then(|n| kept.left.get(&n)?.as_ref().err());
                // What broke it first: a cause of a cause would grow with every request.
                Err(broken.cloned().unwrap_or_else(|| {
                    format!("{request}, before it in sequence {key}, did not complete ({cause})")
                }))
            }
        };
        kept.ended(place.number, left);
        let idle = kept.idle;
        if kept.pending.is_empty() && !kept.is_open {
            of_model.remove(&key);
        }
        self.note_idle(now, idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId(0);

    fn place(sequence: u64, start: bool, end: bool) -> Place {
        Place {
            sequence,
            start,
            end,
            number: 0,
        }
    }

    /// Sequences of one model, within bounds.
    struct Bounded(Sequences, SequenceOptions);

    impl Bounded {
        fn accept(&mut self, now: u64, place: Place) -> Result<Place, RequestError> {
            self.accept_samples(now, place, 1)
        }

        fn accept_samples(
            &mut self,
            now: u64,
            mut place: Place,
            samples: u32,
        ) -> Result<Place, RequestError> {
            let accepted = self.0.accept(Time(now), MODEL, &mut place, samples, self.1);
            accepted.map(|()| place)
        }

        fn end(&mut self, now: u64, place: Place, outputs: Result<(), &str>) {
            let (program, id) = (Program::default(), RequestId(place.number));
            let outputs = outputs.map(|()| &[][..]);
            self.0.ended(Time(now), id, &program, MODEL, place, outputs);
        }

        fn refused(&mut self, now: u64, place: Place) {
            self.0.refused(Time(now), MODEL, place, "full");
        }

        fn hand_over(&self, place: Place) -> Result<(), String> {
            self.0.hand_over(&Program::default(), MODEL, place, &mut [])
        }
    }

    fn sequences(idle: u64, most: usize) -> Bounded {
        let idle = Nanos(idle);
        Bounded(Sequences::default(), SequenceOptions { idle, most })
    }

    #[test]
    fn what_follows_needs_a_start_and_no_end() {
        let mut s = sequences(100, 10);
        let refused = s.accept(0, place(7, false, false));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("none of that id is open")
        );
        let mut all = vec![s.accept(0, place(7, true, false)).unwrap()];
        all.push(s.accept(1, place(7, false, true)).unwrap());
        let refused = s.accept(2, place(7, false, false));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("its end came before")
        );
        // Anew, while the former ones still run.
        all.push(s.accept(3, place(7, true, false)).unwrap());
        for place in all {
            s.end(4, place, Ok(()));
        }
        assert_eq!(s.0.kept[&MODEL].len(), 1);
        let last = s.accept(5, place(7, false, true)).unwrap();
        s.end(6, last, Ok(()));
        assert!(
            s.0.kept[&MODEL].is_empty(),
            "nothing is kept behind the end"
        );
    }

    #[test]
    fn idle_sequences_are_forgotten_and_busy_ones_are_not() {
        let mut s = sequences(100, 10);
        let first = s.accept(0, place(1, true, false)).unwrap();
        let second = s.accept(500, place(1, false, false)).unwrap();
        s.end(600, first, Ok(()));
        s.end(600, second, Ok(()));
        let third = s.accept(700, place(1, false, false)).unwrap();
        s.end(700, third, Ok(()));
        assert!(s.accept(801, place(1, false, false)).is_err());
    }

    #[test]
    fn their_number_is_bounded() {
        let mut s = sequences(100, 2);
        let first = s.accept(0, place(1, true, false)).unwrap();
        s.accept(0, place(2, true, false)).unwrap();
        let refused = s.accept(0, place(3, true, false));
        let full = RequestError::SequencesFull {
            sequence: 3,
            most: 2,
        };
        assert_eq!(refused.unwrap_err(), full);
        s.end(50, first, Ok(()));
        assert!(s.accept(150, place(3, true, false)).is_err());
        s.accept(151, place(3, true, false)).unwrap();
    }

    #[test]
    fn behind_a_request_that_did_not_complete_the_sequence_is_broken() {
        let mut s = sequences(100, 2);
        let first = s.accept(0, place(1, true, false)).unwrap();
        let second = s.accept(0, place(1, false, false)).unwrap();
        s.end(1, first, Err("cancelled"));
        assert_eq!(
            s.hand_over(second).unwrap_err(),
            format!(
                "{}, before it in sequence 1, did not complete (cancelled)",
                RequestId(0)
            )
        );
        s.hand_over(first).unwrap();
        // All that follow are told of the first.
        let told = s.hand_over(second).unwrap_err();
        s.end(2, second, Err(&told));
        let third = s.accept(3, place(1, false, false)).unwrap();
        assert_eq!(s.hand_over(third).unwrap_err(), told);
    }

    #[test]
    fn who_is_cancelled_while_those_before_run_breaks_what_follows_and_nothing_else() {
        for (lost, starts) in [(1, false), (1, true), (2, false)] {
            let mut s = sequences(100, 2);
            let accept = |i| s.accept(0, place(1, i == 0 || starts && i == lost, false));
            let all: Vec<Place> = (0..4).map(accept).map(Result::unwrap).collect();
            s.end(1, all[lost], Err("cancelled"));
            for i in (0..4).filter(|&i| i != lost) {
                let handed = s.hand_over(all[i]);
                assert_eq!(handed.is_err(), i > lost, "{lost} lost, {i}: {handed:?}");
                s.end(2, all[i], handed.as_ref().map(|_| ()).map_err(|e| &e[..]));
            }
            let left = &s.0.kept[&MODEL][&1].left;
            assert_eq!(left.keys().collect::<Vec<_>>(), [&3]);
        }
    }

    #[test]
    fn samples_are_those_of_the_start() {
        let mut s = sequences(100, 2);
        s.accept_samples(0, place(1, true, false), 2).unwrap();
        let refused = s.accept_samples(0, place(1, false, false), 1);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "sequence 1: expected 2 samples, as at its start, got 1"
        );
        let behind = s.accept_samples(0, place(1, false, false), 2).unwrap();
        let told = "a request before it in sequence 1 was refused (sequence 1: expected 2 samples, as at \
                    its start, got 1)";
        assert_eq!(s.hand_over(behind).unwrap_err(), told);
        s.accept_samples(0, place(1, true, false), 1).unwrap();
        s.accept_samples(0, place(1, false, false), 1).unwrap();
    }

    #[test]
    fn behind_a_request_that_was_refused_the_sequence_is_broken_until_its_start() {
        for starts in [false, true] {
            let mut s = sequences(100, 2);
            let first = s.accept(0, place(1, true, false)).unwrap();
            s.refused(1, place(1, starts, false));
            // Of whatever samples the start would have had.
            let samples = if starts { 3 } else { 1 };
            let behind = s.accept_samples(2, place(1, false, false), samples);
            let behind = behind.unwrap();
            // Those before it know nothing of it, and leave nothing to those behind.
            s.end(3, first, Ok(()));
            let told = s.hand_over(behind).unwrap_err();
            assert_eq!(told, "a request before it in sequence 1 was refused (full)");
            s.end(4, behind, Err(&told));
            let again = s.accept(5, place(1, true, false)).unwrap();
            let last = s.accept(5, place(1, false, true)).unwrap();
            s.end(6, again, Ok(()));
            s.hand_over(last).unwrap();
            s.end(7, last, Ok(()));
            assert!(s.0.kept[&MODEL].is_empty());
        }
    }

    #[test]
    fn who_is_refused_keeps_no_sequence() {
        let mut s = sequences(100, 2);
        // None is open.
        for (starts, ends) in [(true, false), (false, false), (true, true)] {
            s.refused(0, place(1, starts, ends));
        }
        assert!(s.0.kept.is_empty());
        assert!(s.accept(0, place(1, false, false)).is_err());
        // An end is one, whatever becomes of it.
        let first = s.accept(0, place(1, true, false)).unwrap();
        s.refused(1, place(1, false, true));
        assert!(s.accept(2, place(1, false, false)).is_err());
        s.refused(2, place(1, false, false));
        s.end(3, first, Ok(()));
        assert!(s.0.kept[&MODEL].is_empty());
        // So it is with one that is idle.
        let first = s.accept(4, place(1, true, false)).unwrap();
        s.end(5, first, Ok(()));
        s.refused(6, place(1, false, true));
        assert!(s.0.kept[&MODEL].is_empty());
        let first = s.accept(7, place(1, true, false)).unwrap();
        s.end(8, first, Ok(()));
        s.refused(109, place(1, false, false));
        assert!(s.accept(109, place(1, false, false)).is_err(), "too late");
    }

    #[test]
    fn who_is_idle_for_too_long_is_dropped_though_nobody_comes() {
        let ms = |n: u64| n * 1_000_000;
        let mut s = sequences(ms(800), 10);
        for (at, key) in [(0, 1), (50, 2), (400, 3)] {
            let place = s.accept(ms(at), place(key, true, false)).unwrap();
            s.end(ms(at), place, Ok(()));
        }
        let runs = s.accept(ms(500), place(4, true, false)).unwrap();
        let mut left = Vec::new();
        while let Some(at) = s.0.stale_at() {
            s.0.sweep(at);
            left.push((at.0, s.0.kept[&MODEL].len()));
        }
        // The second waits for the next sweep.
        let ends = [(ms(800) + 1, 3), (ms(1050) + 1, 2), (ms(1300) + 1, 1)];
        assert_eq!(left, ends);
        s.end(ms(2000), runs, Ok(()));
        assert_eq!(s.0.stale_at(), Some(Time(ms(2800) + 1)));
        // One of another model, which may be idle for less, is due before.
        let mut soon = place(1, true, false);
        let bounds = SequenceOptions {
            idle: Nanos(ms(300)),
            most: 1,
        };
        let accepted = s.0.accept(Time(ms(2100)), ModelId(1), &mut soon, 1, bounds);
        accepted.unwrap();
        let (program, id) = (Program::default(), RequestId(9));
        s.0.ended(Time(ms(2100)), id, &program, ModelId(1), soon, Ok(&[]));
        assert_eq!(s.0.stale_at(), Some(Time(ms(2400) + 1)));
    }
}
