//! Drivers move events into the core and actions to a device.

pub(crate) mod command;
mod failures;
pub mod figures;
pub(crate) mod guard;
mod issue;
pub(crate) mod launches;
pub(crate) mod models;
pub mod plan;
mod planner;
pub(crate) mod seat;
pub(crate) mod sequences;
mod steps;
pub(crate) mod tally;
pub mod threaded;
mod trial;
pub mod virtual_time;

use std::sync::{Arc, Mutex};

use lazybatch_kernels::Completion;
use lazybatch_sla::{Launch, Nanos, Time};

use crate::core::checker::{Checker, Violation};
use crate::core::{Action, Event, Note};

/// What the core is told of a launch that is over.
fn done(completion: Completion, took: Option<Nanos>) -> Event {
    let faults = completion.faults.into_iter();
    Event::Done {
        ticket: completion.ticket,
        stopped: completion.stopped,
        faults: faults.map(|(id, error)| (id, error.to_string())).collect(),
        failed: completion.result.err().map(|e| e.to_string()),
        took,
    }
}

/// Sees everything that passes a driver, in order. Requests end as their clients hear it, but for one
/// that runs in no launch at all: where its inputs or its sequence would have failed it, its client
/// hears of a failure and observers that it was met.
pub trait Observer {
    /// An event, before the core handles it.
    fn on_event(&mut self, now: Time, event: &Event) {
        let _ = (now, event);
    }

    /// A launch, when it is issued.
    fn on_launch(&mut self, now: Time, launch: &Launch) {
        let _ = (now, launch);
    }

    /// An action other than a launch.
    fn on_action(&mut self, now: Time, action: &Action) {
        let _ = (now, action);
    }
}

/// Sees nothing.
impl Observer for () {}

/// Sees everything but what the core notes for somebody else.
pub(crate) struct Without<O> {
    pub inner: O,
    /// Changes of the batch table are for it too; reasons never are.
    pub notes: bool,
}

impl<O: Observer> Observer for Without<O> {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.inner.on_event(now, event);
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.inner.on_launch(now, launch);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        let is_told = match action {
            Action::Note(Note::Decide(_)) => false,
            Action::Note(_) => self.notes,
            _ => true,
        };
        if is_told {
            self.inner.on_action(now, action);
        }
    }
}

/// Both see everything, the first one first.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.0.on_event(now, event);
        self.1.on_event(now, event);
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.0.on_launch(now, launch);
        self.1.on_launch(now, launch);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.0.on_action(now, action);
        self.1.on_action(now, action);
    }
}

impl<O: Observer + ?Sized> Observer for &mut O {
    fn on_event(&mut self, now: Time, event: &Event) {
        (**self).on_event(now, event);
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        (**self).on_launch(now, launch);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        (**self).on_action(now, action);
    }
}

impl<O: Observer + ?Sized> Observer for Box<O> {
    fn on_event(&mut self, now: Time, event: &Event) {
        (**self).on_event(now, event);
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        (**self).on_launch(now, launch);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        (**self).on_action(now, action);
    }
}

/// Shared with whoever reads it after the run.
impl<O: Observer> Observer for Arc<Mutex<O>> {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.lock().expect("no holder panics").on_event(now, event);
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.lock()
            .expect("no holder panics")
            .on_launch(now, launch);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.lock()
            .expect("no holder panics")
            .on_action(now, action);
    }
}

/// A checker that remembers the first broken rule.
pub struct Judge {
    checker: Checker,
    verdict: Result<(), Violation>,
}

impl Judge {
    /// Judges by `checker`.
    pub fn new(checker: Checker) -> Self {
        Self {
            checker,
            verdict: Ok(()),
        }
    }

    fn note(&mut self, see: impl FnOnce(&mut Checker) -> Result<(), Violation>) {
        if self.verdict.is_ok() {
            self.verdict = see(&mut self.checker);
        }
    }

    /// The first broken rule, or what the end of the run breaks.
    ///
    /// # Errors
    /// That rule.
    pub fn finish(self) -> Result<(), Violation> {
        self.verdict.and_then(|()| self.checker.finish())
    }
}

impl Observer for Judge {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.note(|c| c.on_event(now, event));
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.note(|c| c.on_launch(now, launch));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.note(|c| c.on_action(now, action));
    }
}
