//! State that requests of one sequence hand on.
//!
//! For models that carry outputs to inputs ([`Program::carries`]). The core runs requests of one
//! sequence one after another; here the state waits in between.
//!
//! Invariants:
//! 1. A request gets the state that the one accepted before it in its sequence left, or fails:
//!    behind one that did not complete, the sequence is broken until it is started again.
//! 2. Of a model no more than [`SequenceOptions::most`] sequences are kept, none idle for longer than
//!    [`SequenceOptions::idle`].

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
}

/// Sequences of models that carry state.
#[derive(Default)]
pub(crate) struct Sequences {
    kept: FxHashMap<ModelId, FxHashMap<u64, Kept>>,
}

struct Kept {
    /// Carried tensors in the order of [`Program::carries`], or why there are none.
    state: Result<Vec<Tensor>, String>,
    /// Requests accepted that have not ended.
    pending: usize,
    /// More requests may follow: the last one accepted was no end.
    is_open: bool,
    /// End of the last request.
    used: Time,
}

impl Sequences {
    /// Drops all of a model.
    pub fn forget(&mut self, model: ModelId) {
        self.kept.remove(&model);
    }

    fn get(&self, model: ModelId, sequence: u64) -> Option<&Kept> {
        self.kept.get(&model)?.get(&sequence)
    }

    /// Takes in a request.
    pub fn accept(
        &mut self,
        now: Time,
        model: ModelId,
        place: Place,
        SequenceOptions { idle, most }: SequenceOptions,
    ) -> Result<(), RequestError> {
        let key = place.sequence;
        let misplaced = |expected: &str| {
            Err(RequestError::Sequence {
                sequence: key,
                expected: expected.into(),
            })
        };
        let of_model = self.kept.entry(model).or_default();
        let is_stale = |k: &Kept| k.pending == 0 && now.since(k.used) > idle;
        if of_model.get(&key).is_some_and(is_stale) {
            of_model.remove(&key);
        }
        if !of_model.contains_key(&key) {
            if !place.start {
                return misplaced("the start of a sequence, for none of that id is open");
            }
            if of_model.len() >= most {
                of_model.retain(|_, k| !is_stale(k));
            }
            if of_model.len() >= most {
                let sequence = key;
                return Err(RequestError::SequencesFull { sequence, most });
            }
        }
        let kept = of_model.entry(key).or_insert_with(|| Kept {
            state: Err(String::new()),
            pending: 0,
            is_open: false,
            used: now,
        });
        if !place.start && !kept.is_open {
            return misplaced("the start of a sequence, for its end came before");
        }
        kept.pending += 1;
        kept.is_open = !place.end;
        Ok(())
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
        let state = kept.state.as_ref().map_err(Clone::clone)?;
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
        kept.pending -= 1;
        kept.state = match outputs {
            Ok(outputs) => {
                let carried = program.carries.iter();
                Ok(carried.map(|c| outputs[c.output.index()].clone()).collect())
            }
            Err(cause) => Err(format!(
                "{request}, before it in sequence {}, did not complete ({cause})",
                place.sequence
            )),
        };
        if kept.pending == 0 && !kept.is_open {
            of_model.remove(&key);
        }
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
        }
    }

    /// Sequences of one model, within bounds.
    struct Bounded(Sequences, SequenceOptions);

    impl Bounded {
        fn accept(&mut self, now: Time, model: ModelId, place: Place) -> Result<(), RequestError> {
            self.0.accept(now, model, place, self.1)
        }
    }

    fn sequences(idle: u64, most: usize) -> Bounded {
        let idle = Nanos(idle);
        Bounded(Sequences::default(), SequenceOptions { idle, most })
    }

    fn end(Bounded(sequences, _): &mut Bounded, now: u64, place: Place) {
        let program = Program::default();
        let outputs = Ok(&[][..]);
        sequences.ended(Time(now), RequestId(1), &program, MODEL, place, outputs);
    }

    #[test]
    fn what_follows_needs_a_start_and_no_end() {
        let mut s = sequences(100, 10);
        let refused = s.accept(Time(0), MODEL, place(7, false, false));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("none of that id is open")
        );
        s.accept(Time(0), MODEL, place(7, true, false)).unwrap();
        s.accept(Time(1), MODEL, place(7, false, true)).unwrap();
        let refused = s.accept(Time(2), MODEL, place(7, false, false));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("its end came before")
        );
        // Anew, while the former ones still run.
        s.accept(Time(3), MODEL, place(7, true, false)).unwrap();
        for start in [true, false, true] {
            end(&mut s, 4, place(7, start, false));
        }
        assert_eq!(s.0.kept[&MODEL].len(), 1);
        s.accept(Time(5), MODEL, place(7, false, true)).unwrap();
        end(&mut s, 6, place(7, false, true));
        assert!(
            s.0.kept[&MODEL].is_empty(),
            "nothing is kept behind the end"
        );
    }

    #[test]
    fn idle_sequences_are_forgotten_and_busy_ones_are_not() {
        let mut s = sequences(100, 10);
        s.accept(Time(0), MODEL, place(1, true, false)).unwrap();
        s.accept(Time(500), MODEL, place(1, false, false)).unwrap();
        end(&mut s, 600, place(1, true, false));
        end(&mut s, 600, place(1, false, false));
        s.accept(Time(700), MODEL, place(1, false, false)).unwrap();
        end(&mut s, 700, place(1, false, false));
        assert!(s.accept(Time(801), MODEL, place(1, false, false)).is_err());
    }

    #[test]
    fn their_number_is_bounded() {
        let mut s = sequences(100, 2);
        s.accept(Time(0), MODEL, place(1, true, false)).unwrap();
        s.accept(Time(0), MODEL, place(2, true, false)).unwrap();
        let refused = s.accept(Time(0), MODEL, place(3, true, false));
        let full = RequestError::SequencesFull {
            sequence: 3,
            most: 2,
        };
        assert_eq!(refused, Err(full));
        end(&mut s, 50, place(1, true, false));
        assert!(s.accept(Time(150), MODEL, place(3, true, false)).is_err());
        s.accept(Time(151), MODEL, place(3, true, false)).unwrap();
    }

    #[test]
    fn behind_a_request_that_did_not_complete_the_sequence_is_broken() {
        let (mut s, program) = (sequences(100, 2), Program::default());
        let first = place(1, true, false);
        s.accept(Time(0), MODEL, first).unwrap();
        s.accept(Time(0), MODEL, place(1, false, false)).unwrap();
        s.0.ended(
            Time(1),
            RequestId(4),
            &program,
            MODEL,
            first,
            Err("cancelled"),
        );
        let broken =
            s.0.hand_over(&program, MODEL, place(1, false, false), &mut []);
        assert_eq!(
            broken.unwrap_err(),
            format!(
                "{}, before it in sequence 1, did not complete (cancelled)",
                RequestId(4)
            )
        );
        s.0.hand_over(&program, MODEL, first, &mut []).unwrap();
    }
}
