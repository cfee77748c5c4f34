//! What the end of a launch does to its members.

use lazybatch_sla::{Launch, Nanos, Outcome, RequestId, Slot, Ticket, Time};

use super::request::Stage;
use super::state::{Flight, Lane, State};

impl State {
    /// A launch ran; `stopped` have ended their loop in it, `faults` have failed alone.
    pub(crate) fn done(
        &mut self,
        now: Time,
        ticket: Ticket,
        stopped: &[RequestId],
        faults: &[(RequestId, String)],
    ) {
        let flight = self.completed(now, ticket);
        for (id, cause) in faults {
            let member = flight.launch.members.iter().find(|m| m.request == *id);
            let member = member.unwrap_or_else(|| panic!("{id} is no member of {ticket}"));
            self.fail(now, member.slot, cause);
        }
        self.stop(now, &flight.launch, stopped);
        for &key in &flight.finishing {
            // Who failed in it has gone.
            if self.requests.contains(key as usize) {
                self.complete(now, key);
            }
        }
        if self.doomed > 0 {
            self.drop_doomed(now, &flight.launch);
        }
        self.settle_padded(now, flight.launch.sub_batch);
        self.put_away(flight);
    }

    /// A launch failed, and with it all of its members.
    pub(crate) fn failed(&mut self, now: Time, ticket: Ticket, cause: &str) {
        let flight = self.completed(now, ticket);
        for member in &flight.launch.members {
            self.fail(now, member.slot, cause);
        }
        self.put_away(flight);
    }

    /// Takes the oldest launch of a lane.
    fn completed(&mut self, now: Time, ticket: Ticket) -> Flight {
        let is_oldest = |l: &Lane| l.flights.front().is_some_and(|f| f.launch.ticket == ticket);
        let lane = self.lanes.iter_mut().find(|l| is_oldest(l));
        let lane = lane.unwrap_or_else(|| panic!("{ticket} is not the oldest launch of a lane"));
        let flight = lane.flights.pop_front().expect("found above");
        lane.completed = flight.number;
        lane.freed = now;
        flight
    }

    fn put_away(&mut self, mut flight: Flight) {
        self.release_lingering();
        flight.launch.members.clear();
        self.spare.push(flight.launch);
    }

    /// Fails the request of a slot, unless it has ended.
    fn fail(&mut self, now: Time, slot: Slot, cause: &str) {
        let Some(key) = self.slots[slot.index()] else {
            return;
        };
        let stage = self.requests[key as usize].stage;
        if let Stage::InFlight(entry) = stage {
            self.leave(entry, key);
        }
        if stage != Stage::Lingering {
            self.finish(now, key, Outcome::Failed, Some(cause.to_owned()));
        }
    }

    /// The launch of a ticket, and how long it has run at `now`: from its issue, or from the end of
    /// the launch ahead of it on its lane.
    pub(crate) fn oldest_flight(&self, now: Time, ticket: Ticket) -> Option<(&Launch, Nanos)> {
        let lane = |l: &&Lane| l.flights.front().is_some_and(|f| f.launch.ticket == ticket);
        let lane = self.lanes.iter().find(lane)?;
        let flight = lane.flights.front()?;
        let began = flight.issued.max(lane.freed);
        Some((&flight.launch, now.since(began)))
    }

    fn drop_doomed(&mut self, now: Time, launch: &Launch) {
        for member in &launch.members {
            let Some(key) = self.slots[member.slot.index()] else {
                continue;
            };
            let state = &self.requests[key as usize];
            // A later launch may carry it already: its slot lingers, the client need not wait.
            if let (true, Stage::InFlight(entry)) = (state.doomed, state.stage) {
                self.leave(entry, key);
                self.finish(now, key, Outcome::Cancelled, None);
            }
        }
    }
}
