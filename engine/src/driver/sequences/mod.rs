//! Sequences of requests, and the state that they hand on.
//!
//! Of models that carry outputs to inputs ([`Program::carries`]), and of others that bound their
//! sequences. The core runs requests of one sequence one after another; here it is kept which are open,
//! which wait for others to end, and the state in between.
//!
//! Invariants:
//! 1. A request gets the state that the one handed in before it in its sequence left, or fails:
//!    behind one that did not complete, or was refused, the sequence is broken until it is started
//!    again. Who ends first does not matter: a request may be cancelled while those before it run.
//! 2. Requests of a sequence have as many samples as the one that starts it, as its state has.
//! 3. Of a model no more than [`SequenceOptions::most`] sequences are kept, none idle for longer than
//!    [`SequenceOptions::idle`].
//! 4. Requests of no more than [`SequenceOptions::candidates`] of them run; the others are in the
//!    backlog, and follow in the order of their starts as those end, or are idle for too long.
//!
//! 1 and 2 do not go for models without state: a request that fails breaks nothing.

mod table;

use std::collections::VecDeque;

use lazybatch_graph::{Program, Tensor};
use lazybatch_sla::{ModelId, Nanos, RequestId, Time};
use rustc_hash::FxHashMap;

use table::Table;

pub(crate) use self::table::Bounds;
use crate::embed::{InBacklog, RequestError};

/// Bounds on the sequences of a model.
#[derive(Clone, Copy, Debug)]
pub struct SequenceOptions {
    /// A sequence without requests for so long is forgotten. 60 s.
    pub idle: Nanos,
    /// Most sequences of a model at once; one more is refused. 4096.
    pub most: usize,
    /// Most of them whose requests run; the others wait until one of those ends, in the order of their
    /// starts. Those wait in no more than half of each queue that their model's requests wait in, one place at
    /// the least, and of each limit on memory, so that sequences that are open find room for theirs. All that
    /// are open, if there is no such bound ([`usize::MAX`]); one at the least.
    pub candidates: usize,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self {
            idle: Nanos::from_ms(60_000),
            most: 4096,
            candidates: usize::MAX,
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

/// Sequences of all models.
#[derive(Default)]
pub(crate) struct Sequences {
    of: FxHashMap<ModelId, Table>,
    /// When the first may have been idle for too long.
    stale_at: Option<Time>,
    /// No sweep comes before: each looks at all sequences of all models.
    next_sweep: Time,
    /// Those that have left the backlog, which the core has not been told.
    let_go: VecDeque<(ModelId, u64)>,
    /// Nothing is to come.
    is_closing: bool,
}

/// Time between two sweeps.
const BETWEEN: Nanos = Nanos::from_ms(250);

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
        for model in self.models() {
            self.with(model, |table| table.drop_stale(now));
        }
        let next = self.of.values().filter_map(Table::stale_at).min();
        self.stale_at = next.map(|at| at.max(now + BETWEEN));
        self.next_sweep = now + BETWEEN;
    }

    fn models(&self) -> Vec<ModelId> {
        self.of.keys().copied().collect()
    }

    /// Changes the sequences of a model, if it has any.
    fn with<T>(&mut self, model: ModelId, change: impl FnOnce(&mut Table) -> T) -> Option<T> {
        let table = self.of.get_mut(&model)?;
        let changed = change(table);
        table.tell();
        while let Some(sequence) = table.next_let_go() {
            self.let_go.push_back((model, sequence));
        }
        Some(changed)
    }

    /// One of a model may be idle from now on.
    fn note_idle(&mut self, now: Time, model: ModelId) {
        let Some(table) = self.of.get(&model) else {
            return;
        };
        let at = (now + table.idle() + Nanos(1)).max(self.next_sweep);
        self.stale_at = Some(self.stale_at.map_or(at, |before| before.min(at)));
    }

    /// Drops all of a model.
    pub fn forget(&mut self, model: ModelId) {
        self.of.remove(&model);
    }

    /// Nothing is to come of a model: those that are idle keep nobody in the backlog any longer.
    pub fn close(&mut self, model: ModelId) {
        self.with(model, Table::close);
    }

    /// The same of all models.
    pub fn close_all(&mut self) {
        self.is_closing = true;
        self.models()
            .into_iter()
            .for_each(|model| self.close(model));
    }

    /// Whether [`Self::next_let_go`] has one.
    pub fn has_let_go(&self) -> bool {
        !self.let_go.is_empty()
    }

    /// A sequence that has left the backlog: its requests may run.
    pub fn next_let_go(&mut self) -> Option<(ModelId, u64)> {
        self.let_go.pop_front()
    }

    /// Takes in a request of so many samples, and numbers it; whether it is the first of a sequence that goes
    /// to the backlog. One that is to wait there needs what `find_room` finds.
    pub fn accept(
        &mut self,
        now: Time,
        model: ModelId,
        place: &mut Place,
        samples: u32,
        bounds: &Bounds,
        find_room: impl FnOnce() -> Result<InBacklog, RequestError>,
    ) -> Result<bool, RequestError> {
        let is_closing = self.is_closing;
        self.of.entry(model).or_insert_with(|| {
            let mut table = Table::new(bounds.clone());
            if is_closing {
                table.close();
            }
            table
        });
        let accepted = self.with(model, |table| table.accept(now, place, samples, find_room));
        let accepted = accepted.expect("it has one now");
        if accepted.is_err() {
            // It may have broken its sequence.
            self.note_idle(now, model);
        }
        accepted
    }

    /// A request was refused: what follows it in its sequence fails with the cause, until one starts
    /// it again. Where it has no sequence behind it, nothing can follow but a start.
    pub fn refused(&mut self, now: Time, model: ModelId, place: Place, cause: &str) {
        if self.with(model, |table| table.refused(now, place, cause)) == Some(true) {
            self.note_idle(now, model);
        }
    }

    /// Puts the state into a request's inputs, when it is its turn.
    pub fn hand_over(
        &self,
        program: &Program,
        model: ModelId,
        place: Place,
        inputs: &mut [Tensor],
    ) -> Result<(), String> {
        let left = self.of.get(&model).and_then(|table| table.left_for(place));
        for (carry, tensor) in program
            .carries
            .iter()
            .zip(left.transpose()?.into_iter().flatten())
        {
            inputs[carry.input.index()] = tensor;
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
        let Some(table) = self.of.get(&model) else {
            return;
        };
        let key = place.sequence;
        let left = match outputs {
            Ok(outputs) => {
                let carried = program.carries.iter();
                Ok(carried.map(|c| outputs[c.output.index()].clone()).collect())
            }
            Err(cause) => Err(table.cause_before(place).unwrap_or_else(|| {
                format!("{request}, before it in sequence {key}, did not complete ({cause})")
            })),
        };
        self.with(model, |table| table.leaves(now, key, place.number, left));
        self.note_idle(now, model);
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

    /// With any room.
    fn accept(
        sequences: &mut Sequences,
        now: u64,
        place: &mut Place,
        samples: u32,
        bounds: &Bounds,
    ) -> Result<bool, RequestError> {
        let room = || Ok(InBacklog::default());
        sequences.accept(Time(now), MODEL, place, samples, bounds, room)
    }

    /// Sequences of one model, within bounds.
    struct Bounded(Sequences, Bounds);

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
            let accepted = accept(&mut self.0, now, &mut place, samples, &self.1);
            accepted.map(|_| place)
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
        let options = SequenceOptions {
            idle: Nanos(idle),
            most,
            ..SequenceOptions::default()
        };
        Bounded(Sequences::default(), bounds(options))
    }

    fn bounds(options: SequenceOptions) -> Bounds {
        Bounds::new(options, true)
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
        assert_eq!(s.1.num(), 1);
        let last = s.accept(5, place(7, false, true)).unwrap();
        s.end(6, last, Ok(()));
        assert!(s.1.num() == 0, "nothing is kept behind the end");
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
    fn one_may_always_run() {
        let mut s = sequences(100, 4);
        s.1 = Bounds::new(
            SequenceOptions {
                candidates: 0,
                ..SequenceOptions::default()
            },
            true,
        );
        let mut own = place(1, true, true);
        let waits = accept(&mut s.0, 0, &mut own, 1, &s.1);
        assert_eq!(waits, Ok(false));
        let mut other = place(2, true, true);
        let waits = accept(&mut s.0, 0, &mut other, 1, &s.1);
        assert_eq!(waits, Ok(true));
        s.end(1, own, Ok(()));
        assert_eq!(s.0.next_let_go(), Some((MODEL, 2)));
    }

    /// A request of it may have been accepted before its engine began to drain.
    #[test]
    fn behind_the_end_a_model_that_had_none_keeps_nobody_waiting() {
        let mut s = sequences(100, 4);
        s.0.close_all();
        let one = s.accept(0, place(1, true, false)).unwrap();
        s.end(1, one, Ok(()));
        assert_eq!(s.1.num(), 0, "it is not kept open");
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
            assert_eq!(s.0.of[&MODEL].numbers_left(1), [3]);
        }
    }

    #[test]
    fn one_that_broke_is_none_that_may_go_on() {
        let mut s = sequences(100, 4);
        let first = s.accept(0, place(1, true, false)).unwrap();
        let second = s.accept(0, place(1, false, false)).unwrap();
        s.end(1, first, Err("cancelled"));
        assert_eq!(s.1.num(), 1, "a request of it is on its way");
        s.end(2, second, Err("broken"));
        assert_eq!(s.1.num(), 0);
        // What follows is told why.
        let third = s.accept(3, place(1, false, false)).unwrap();
        assert_eq!(s.1.num(), 1);
        s.end(
            4,
            third,
            s.hand_over(third).as_ref().map(|_| ()).map_err(|e| &e[..]),
        );
        assert_eq!(s.1.num(), 0);
        let again = s.accept(5, place(1, true, false)).unwrap();
        s.end(6, again, Ok(()));
        assert_eq!(s.1.num(), 1);
        s.refused(7, place(1, false, false));
        assert_eq!(s.1.num(), 0);
        s.0.sweep(Time(1_000_000_000));
        let other = s.accept(1_000_000_000, place(2, true, false)).unwrap();
        s.end(1_000_000_001, other, Ok(()));
        assert_eq!(s.1.num(), 1);
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
            assert!(s.1.num() == 0);
        }
    }

    #[test]
    fn who_is_refused_keeps_no_sequence() {
        let mut s = sequences(100, 2);
        // None is open.
        for (starts, ends) in [(true, false), (false, false), (true, true)] {
            s.refused(0, place(1, starts, ends));
        }
        assert!(s.0.of.is_empty());
        assert!(s.accept(0, place(1, false, false)).is_err());
        // An end is one, whatever becomes of it.
        let first = s.accept(0, place(1, true, false)).unwrap();
        s.refused(1, place(1, false, true));
        assert!(s.accept(2, place(1, false, false)).is_err());
        s.refused(2, place(1, false, false));
        s.end(3, first, Ok(()));
        assert!(s.1.num() == 0);
        // So it is with one that is idle.
        let first = s.accept(4, place(1, true, false)).unwrap();
        s.end(5, first, Ok(()));
        s.refused(6, place(1, false, true));
        assert!(s.1.num() == 0);
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
            left.push((at.0, s.1.num()));
        }
        // The second waits for the next sweep.
        let ends = [(ms(800) + 1, 3), (ms(1050) + 1, 2), (ms(1300) + 1, 1)];
        assert_eq!(left, ends);
        s.end(ms(2000), runs, Ok(()));
        assert_eq!(s.0.stale_at(), Some(Time(ms(2800) + 1)));
        // One of another model, which may be idle for less, is due before.
        let mut soon = place(1, true, false);
        let bounds = bounds(SequenceOptions {
            idle: Nanos(ms(300)),
            most: 1,
            ..SequenceOptions::default()
        });
        let room = || Ok(InBacklog::default());
        let accepted =
            s.0.accept(Time(ms(2100)), ModelId(1), &mut soon, 1, &bounds, room);
        accepted.unwrap();
        let (program, id) = (Program::default(), RequestId(9));
        s.0.ended(Time(ms(2100)), id, &program, ModelId(1), soon, Ok(&[]));
        assert_eq!(s.0.stale_at(), Some(Time(ms(2400) + 1)));
    }
}
