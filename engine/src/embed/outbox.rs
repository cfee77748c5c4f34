//! The way of commands to the driver.
//!
//! A command that is sent wakes the driver. Where requests come many at once, on threads that share
//! a processor with it, the two would take turns request by request, each in a launch of its own:
//! requests may be held back until whoever takes them in has taken in all that have come.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Shared;
use crate::driver::threaded::Command;

/// So many are held back at most: the device may be waiting for them.
const MOST_HELD: usize = 16;

/// The driver has ended.
#[derive(Debug)]
pub(crate) struct Gone;

/// Where commands are handed in. They come to the driver in that order.
pub(crate) struct Outbox {
    commands: Sender<Command>,
    held: Mutex<Vec<Command>>,
}

impl Outbox {
    /// In front of a driver.
    pub fn new(commands: Sender<Command>) -> Self {
        Self {
            commands,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Command>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command, behind all that are held back, which go with it.
    pub fn send(&self, command: Command) -> Result<(), Gone> {
        let mut held = self.held();
        if held.is_empty() {
            return self.commands.send(command).map_err(|_| Gone);
        }
        held.push(command);
        self.release(held)
    }

    /// Holds a command back, until [`Outbox::flush`] at the latest. True for the first: who handed
    /// it in has to see to that.
    pub fn hold(&self, command: Command) -> Result<bool, Gone> {
        let mut held = self.held();
        held.push(command);
        if held.len() >= MOST_HELD {
            return self.release(held).map(|()| false);
        }
        Ok(held.len() == 1)
    }

    /// Lets go what is held back. A driver that has ended has nobody left to answer.
    pub fn flush(&self) {
        let held = self.held();
        if !held.is_empty() {
            drop(self.release(held));
        }
    }

    /// Sent under the lock, so that nothing overtakes it.
    fn release(&self, mut held: MutexGuard<'_, Vec<Command>>) -> Result<(), Gone> {
        let all = std::mem::take(&mut *held);
        self.commands.send(Command::All(all)).map_err(|_| Gone)
    }
}

/// Requests that are held back; they go to the engine when this is dropped, if not before.
#[must_use = "dropped, it lets the requests go at once"]
pub struct Held(pub(super) Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.outbox.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use lazybatch_sla::RequestId;

    use super::*;

    fn ids(commands: &Receiver<Command>) -> Vec<Vec<u64>> {
        let id = |command: &Command| match command {
            Command::Cancel(id) => id.0,
            _ => panic!("a command that nobody sent"),
        };
        let of = |command: Command| match command {
            Command::All(all) => all.iter().map(id).collect(),
            one => vec![id(&one)],
        };
        commands.try_iter().map(of).collect()
    }

    #[test]
    fn commands_keep_their_order_and_none_is_held_for_ever() {
        let (tx, rx) = channel();
        let outbox = Outbox::new(tx);
        let cancel = |id| Command::Cancel(RequestId(id));
        outbox.send(cancel(0)).unwrap();
        assert_eq!(ids(&rx), [[0]]);
        assert!(outbox.hold(cancel(1)).unwrap(), "the first");
        assert!(!outbox.hold(cancel(2)).unwrap());
        assert!(ids(&rx).is_empty(), "held back");
        outbox.send(cancel(3)).unwrap();
        assert_eq!(ids(&rx), [[1, 2, 3]], "in order, at once");
        assert!(outbox.hold(cancel(4)).unwrap());
        outbox.flush();
        outbox.flush();
        assert_eq!(ids(&rx), [[4]]);
        let most = MOST_HELD as u64;
        for id in 0..most + 1 {
            outbox.hold(cancel(id)).unwrap();
        }
        assert_eq!(
            ids(&rx),
            [(0..most).collect::<Vec<_>>()],
            "not more than that"
        );
        drop(rx);
        assert!(outbox.send(cancel(0)).is_err());
        assert!(outbox.hold(cancel(0)).is_ok(), "told when it is let go");
        outbox.flush();
    }
}
