//! Sequences of requests, and what becomes of one where a request of it is refused.
//!
//! Those of models with state are the engine's matter, which hands it on. Of others it is kept here
//! which are open, by the same rules: a sequence has a start, none behind its end, a time for which it
//! may be idle, and there are so many at once. A request that fails breaks none of these.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazybatch_engine::{Options, RequestError, SequenceOptions};
use lazybatch_sla::Time;
use xxhash_rust::xxh3::xxh3_64;

use super::{Param, Params};
use crate::error::{Error, Result};
use crate::explained::{MOST_NAME, cut};
use crate::model::Served;

/// Parameters that say where a request stands in a sequence.
pub const PLACE: [&str; 3] = ["sequence_id", "sequence_start", "sequence_end"];

/// The sequence that parameters name.
///
/// # Errors
/// An id that is none.
pub fn id(params: &Params) -> Result<Option<u64>> {
    Ok(match params.get("sequence_id") {
        Some(Param::Text(id)) if id.is_empty() => None,
        Some(text @ Param::Text(_)) => number_of_text(text),
        _ => params.number("sequence_id")?.filter(|&id| id != 0),
    })
}

/// How the engine says that a sequence has not begun, or has ended.
const NO_START: &str = "the start of a sequence";

/// An error of the engine. If it is about the sequence of a request with these parameters, it is told
/// with the client's own id and the model, in the words of the protocol where that has some.
pub fn told(served: &Served, params: &Params, error: RequestError) -> Error {
    let id = match params.get("sequence_id") {
        Some(Param::Text(id)) => cut(id, MOST_NAME),
        Some(other) => other.to_string(),
        None => return error.into(),
    };
    let what = format!(
        "inference request for sequence {id} to model '{}'",
        served.name
    );
    match error {
        RequestError::Sequence { expected, .. } if expected.starts_with(NO_START) => {
            Error::Invalid(format!(
                "{what} must specify the START flag on the first request of the sequence: expected \
                 {expected}"
            ))
        }
        RequestError::Sequence { expected, .. } => {
            Error::Invalid(format!("{what}: expected {expected}"))
        }
        RequestError::SequencesFull { most, .. } => {
            Error::Unavailable(format!("{what}: expected at most {most} open sequences"))
        }
        RequestError::Broken(why) => {
            let own = params.get("sequence_id").and_then(number_of_text);
            let why = own.map_or(why.clone(), |own| {
                why.replace(&format!("sequence {own}"), &format!("sequence {id}"))
            });
            RequestError::Broken(why).into()
        }
        other => other.into(),
    }
}

/// The number of an id that is a text.
fn number_of_text(id: &Param) -> Option<u64> {
    match id {
        // Ids that are texts share the numbers' space, spread over all of it.
        Param::Text(id) => Some(xxh3_64(id.as_bytes()).max(1)),
        _ => None,
    }
}

/// Sequences of a model without state that are open.
pub struct OpenSequences {
    bounds: SequenceOptions,
    open: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By number of the sequence.
    all: BTreeMap<u64, Open>,
    /// How often one was started.
    num_started: u64,
}

struct Open {
    /// Which start it has.
    start: u64,
    /// Requests that have not ended.
    running: usize,
    /// When the last one came or ended.
    used: Time,
}

/// A request that is in its sequence until it is dropped.
pub struct InSequence {
    served: Arc<Served>,
    sequence: u64,
    start: u64,
}

impl OpenSequences {
    /// None is open.
    pub fn new(bounds: SequenceOptions) -> Self {
        let open = Mutex::default();
        Self { bounds, open }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a request with these options, if it is in order and `submit` takes it; its start's
    /// number, if it is of a sequence.
    fn take<T>(
        &self,
        now: Time,
        options: &Options,
        submit: impl FnOnce() -> std::result::Result<T, RequestError>,
    ) -> std::result::Result<(T, Option<u64>), RequestError> {
        let Some(sequence) = options.sequence else {
            return submit().map(|taken| (taken, None));
        };
        let SequenceOptions { idle, most } = self.bounds;
        let is_stale = |open: &Open| open.running == 0 && now.since(open.used) > idle;
        let mut table = self.table();
        if table.all.get(&sequence).is_some_and(is_stale) {
            table.all.remove(&sequence);
        }
        let known = table
            .all
            .get(&sequence)
            .map(|open| (open.start, open.running));
        let (start, running) = match known {
            Some(known) if !options.sequence_start => known,
            None if !options.sequence_start => {
                let expected = format!("{NO_START}, for none of that id is open");
                return Err(RequestError::Sequence { sequence, expected });
            }
            known => {
                if known.is_none() && table.all.len() >= most {
                    table.all.retain(|_, open| !is_stale(open));
                }
                if known.is_none() && table.all.len() >= most {
                    return Err(RequestError::SequencesFull { sequence, most });
                }
                (table.num_started, 0)
            }
        };
        let taken = submit()?;
        if options.sequence_start {
            table.num_started += 1;
        }
        if options.sequence_end {
            table.all.remove(&sequence);
        } else {
            let open = Open {
                start,
                running: running + 1,
                used: now,
            };
            table.all.insert(sequence, open);
        }
        Ok((taken, Some(start)))
    }

    fn ended(&self, now: Time, sequence: u64, start: u64) {
        let mut table = self.table();
        let open = table.all.get_mut(&sequence);
        if let Some(open) = open.filter(|open| open.start == start) {
            open.running = open.running.saturating_sub(1);
            open.used = now;
        }
    }
}

/// Submits a request to a model. Where its sequences are kept here, it is in its own until what comes
/// along is dropped.
///
/// # Errors
/// Those of `submit`, and a request that is not in order.
pub fn submitted<T>(
    served: &Arc<Served>,
    options: &Options,
    submit: impl FnOnce() -> std::result::Result<T, RequestError>,
) -> std::result::Result<(T, Option<InSequence>), RequestError> {
    let Some(sequences) = &served.sequences else {
        return submit().map(|taken| (taken, None));
    };
    let (taken, start) = sequences.take(served.now(), options, submit)?;
    let within = options
        .sequence
        .zip(start)
        .map(|(sequence, start)| InSequence {
            served: served.clone(),
            sequence,
            start,
        });
    Ok((taken, within))
}

impl Drop for InSequence {
    fn drop(&mut self) {
        if let Some(sequences) = &self.served.sequences {
            sequences.ended(self.served.now(), self.sequence, self.start);
        }
    }
}

/// Tells the engine of a request with these parameters that was refused before it came there: if it is
/// of a sequence with state, what follows in that fails with the cause until it is started again.
pub fn refused(served: &Served, params: &Params, error: &Error) {
    let flag = |key| params.flag(key).unwrap_or(false);
    breaks(served, params, flag("sequence_start"), error);
}

/// The same of a request that the engine has run, and whose answer did not go where it was wanted: its
/// client has nothing of it, so what follows is not to go on from there.
pub fn lost(served: &Served, params: &Params, error: &Error) {
    // Behind its end nothing follows, and its id may be another's by now.
    if !params.flag("sequence_end").unwrap_or(false) {
        breaks(served, params, false, error);
    }
}

fn breaks(served: &Served, params: &Params, sequence_start: bool, error: &Error) {
    if !served.is_stateful() {
        return;
    }
    if let Ok(Some(sequence)) = id(params) {
        let options = Options {
            sequence: Some(sequence),
            sequence_start,
            sequence_end: params.flag("sequence_end").unwrap_or(false),
            ..Options::default()
        };
        served.refused(&options, &error.told());
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_sla::Nanos;

    use super::*;

    fn options(sequence: u64, sequence_start: bool, sequence_end: bool) -> Options {
        Options {
            sequence: Some(sequence),
            sequence_start,
            sequence_end,
            ..Options::default()
        }
    }

    fn open(most: usize) -> OpenSequences {
        let idle = Nanos(100);
        OpenSequences::new(SequenceOptions { idle, most })
    }

    /// The number of its start, or why it is refused.
    fn take(all: &OpenSequences, now: u64, options: &Options) -> std::result::Result<u64, String> {
        let taken = all.take(Time(now), options, || Ok(()));
        let taken = taken.map_err(|e| e.to_string())?;
        Ok(taken.1.unwrap())
    }

    #[test]
    fn a_sequence_without_state_has_a_start_and_nothing_behind_its_end() {
        let all = open(10);
        let told = "sequence 1: expected the start of a sequence, for none of that id is open";
        assert_eq!(take(&all, 0, &options(1, false, false)).unwrap_err(), told);
        let first = take(&all, 1, &options(1, true, false)).unwrap();
        assert_eq!(take(&all, 2, &options(1, false, false)), Ok(first));
        assert_eq!(take(&all, 3, &options(1, false, true)), Ok(first));
        assert_eq!(take(&all, 4, &options(1, false, false)).unwrap_err(), told);
        // One that is its own end is open no longer.
        assert!(take(&all, 5, &options(2, true, true)).is_ok());
        assert!(take(&all, 6, &options(2, false, false)).is_err());
        // A start that is not taken starts nothing.
        let full = || Err::<(), _>(RequestError::Closed);
        assert!(all.take(Time(7), &options(3, true, false), full).is_err());
        assert!(take(&all, 8, &options(3, false, false)).is_err());
    }

    #[test]
    fn a_sequence_without_state_is_forgotten_when_it_is_idle() {
        let all = open(2);
        let first = take(&all, 0, &options(1, true, false)).unwrap();
        take(&all, 0, &options(2, true, false)).unwrap();
        let full = "sequence 3: expected at most 2 open sequences";
        assert_eq!(take(&all, 500, &options(3, true, false)).unwrap_err(), full);
        // None is idle whose request runs.
        all.ended(Time(600), 1, first);
        assert!(take(&all, 700, &options(1, false, false)).is_ok());
        all.ended(Time(800), 1, first);
        assert!(take(&all, 901, &options(1, false, false)).is_err());
        assert!(
            take(&all, 901, &options(3, true, false)).is_ok(),
            "there is room"
        );
        // What ends late is not of the sequence that was started anew.
        let anew = take(&all, 902, &options(2, true, false)).unwrap();
        all.ended(Time(903), 2, anew - 1);
        assert!(take(&all, 2000, &options(2, false, false)).is_ok());
    }
}
