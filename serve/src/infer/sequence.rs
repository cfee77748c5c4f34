//! Sequences of requests, and what becomes of one where a request of it is refused.
//!
//! Which are open, which wait, and their state are the engine's matter.

use lazybatch_engine::{Options, RequestError};
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

/// Whether a request with these parameters goes on with a sequence that is to have begun.
pub fn goes_on(served: &Served, params: &Params) -> bool {
    let starts = params.flag("sequence_start").unwrap_or(true);
    let keeps = served.is_sequence() || served.is_stateful();
    keeps && !starts && id(params).is_ok_and(|id| id.is_some())
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
