//! Who fails in a launch: its members that the device names, and those that only seem to run in it.

use lazybatch_sla::{RequestId, Ticket};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::core::{Core, Event};

/// Why requests fail, whatever the device does in launches that carry them.
pub(super) type Doomed = FxHashMap<RequestId, String>;

/// Adds those that are doomed to the faults of a launch that is over, so that the core and all
/// observers hear what clients hear.
pub(super) fn add_doomed(core: &Core, doomed: [&Doomed; 2], done: &mut Event) {
    let Event::Done {
        ticket,
        stopped,
        faults,
        failed: None,
        ..
    } = done
    else {
        return;
    };
    if doomed.iter().all(|d| d.is_empty()) {
        return;
    }
    let members = core.oldest(*ticket).map_or(&[][..], |l| &l.members);
    for id in members.iter().map(|m| m.request) {
        let why = doomed.iter().find_map(|d| d.get(&id));
        let is_told = faults.iter().any(|(other, _)| *other == id);
        if let Some(why) = why.filter(|_| !is_told && core.is_open(id)) {
            faults.push((id, why.clone()));
            stopped.retain(|other| *other != id);
        }
    }
}

/// Those that fail in a launch that is over. Who has ended well in a launch ahead is none of them.
pub(super) fn failing(core: &Core, done: &Event) -> Vec<RequestId> {
    let Event::Done {
        ticket,
        faults,
        failed,
        ..
    } = done
    else {
        return Vec::new();
    };
    let launch = failed.as_ref().and_then(|_| core.oldest(*ticket));
    let members = launch.iter().flat_map(|l| &l.members);
    let all = members.map(|m| m.request);
    let alone = faults.iter().map(|(id, _)| *id);
    all.chain(alone).filter(|&id| core.is_open(id)).collect()
}

/// A launch is over that nothing comes of.
pub(super) fn over(ticket: Ticket, failed: Option<String>) -> Event {
    Event::Done {
        ticket,
        stopped: SmallVec::new(),
        faults: Vec::new(),
        failed,
        took: None,
    }
}
