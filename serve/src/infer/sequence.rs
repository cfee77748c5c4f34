//! Sequences of requests, and what becomes of one where a request of it is refused.

use lazybatch_engine::Options;
use xxhash_rust::xxh3::xxh3_64;

use super::{Param, Params};
use crate::error::{Error, Result};
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
        // Ids that are texts share the numbers' space, spread over all of it.
        Some(Param::Text(id)) => Some(xxh3_64(id.as_bytes()).max(1)),
        _ => params.number("sequence_id")?.filter(|&id| id != 0),
    })
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
