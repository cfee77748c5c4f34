//! Takes requests in: to their sequences, and to the core.

use std::sync::Arc;

use lazybatch_sla::Time;

use super::super::command::{Refused, Reply, Submission};
use super::super::steps::Sent;
use super::{Driver, Open};
use crate::core::Event;
use crate::embed::{RequestError, Served};

impl Driver {
    /// Whether requests of a model are taken in.
    fn is_there(&self, served: &Arc<Served>) -> bool {
        self.core.takes(served.id) && Arc::ptr_eq(self.models.get(served.id), served)
    }

    pub(super) fn refused(&mut self, now: Time, refused: &Refused) {
        let Refused {
            served,
            place,
            cause,
        } = refused;
        if self.is_there(served) {
            let sequences = &mut self.state.sequences;
            sequences.refused(now, served.id, *place, cause);
        }
    }

    pub(super) fn submit(&mut self, now: Time, mut submission: Box<Submission>) {
        let mut request = submission.request.clone();
        submission.served.unseen.take(request.arrival);
        request.arrival = request.arrival.min(now);
        submission.request.arrival = request.arrival;
        let id = request.id;
        let served = &submission.served;
        if !self.is_there(served) {
            let model = served.name.clone();
            submission.refuse(RequestError::Unloaded { model });
            return;
        }
        let mut held = None;
        if let (Some(place), Some(bounds)) = (&mut submission.place, &served.sequences) {
            let (model, samples, came) = (request.model, request.samples, request.arrival);
            let sequences = &mut self.state.sequences;
            let room = || served.backlog_room(&request, &submission.memory);
            // Its sequence was not idle for longer than until then.
            match sequences.accept(came, model, place, samples, bounds, room) {
                Ok(waits) => held = waits.then_some(place.sequence),
                Err(error) => {
                    submission.refuse(error);
                    return;
                }
            }
        }
        // What made room for it made room for those before it.
        self.let_go(now);
        if let Some(sequence) = held {
            let model = request.model;
            self.event(now, Event::Hold { model, sequence });
        }
        let is_stream = matches!(submission.reply, Reply::Stream(_));
        let sent = is_stream.then(|| Sent::none(&submission.served.program));
        self.state.num_streams += usize::from(is_stream);
        let open = Open {
            submission,
            slot: None,
            ended: None,
            has_failed: false,
            is_own_fault: false,
            sent,
        };
        if let Some(explains) = self.on_request.as_mut().filter(|_| open.submission.explain) {
            explains.begin(id, &mut self.core);
        }
        if open.submission.count {
            self.state.counting.begin(id);
        }
        self.state.open.insert(id, open);
        self.event(now, Event::Arrive(request));
    }

    /// Tells the core of sequences that have left the backlog.
    pub(super) fn let_go(&mut self, now: Time) {
        while let Some((model, sequence)) = self.state.sequences.next_let_go() {
            self.event(now, Event::LetGo { model, sequence });
        }
    }
}
