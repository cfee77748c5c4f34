//! The way of commands to the driver.
//!
//! A driver that waits is woken by who hands a command in; one that works finds it by itself. Where
//! requests come many at once, on threads that share a processor with the driver, waking it for each
//! would have them take turns request by request, each in a launch of its own: requests may be held
//! back from a driver that waits until whoever takes them in has taken in all that have come.
//!
//! The driver is woken after the lock is given back. A channel that wakes its receiver under a lock
//! which that takes next costs two more turns where both share a processor.
//!
//! Where all that has come is quick, whoever lets it go may run the driver in the place of the thread
//! that waits ([`Outbox::help`], `driver/seat.rs`); that thread sleeps on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::Shared;
use crate::driver::command::Command;

/// So many are held back at most: the device may be waiting for them.
const MOST_HELD: usize = 16;
/// The same where all of them are quick: one launch is not worth a wake-up.
const MOST_QUICK: usize = 64;

/// The driver has ended.
#[derive(Debug)]
pub(crate) struct Gone;

/// Nobody is left to hand commands in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Abandoned;

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Those of them that are not quick.
    num_slow: usize,
    /// The driver's thread while it waits for commands.
    waiter: Option<Thread>,
    /// The same while somebody else runs the driver.
    replaced: Option<Thread>,
    /// The driver has ended.
    is_gone: bool,
    /// The outbox is no more.
    is_abandoned: bool,
}

impl Queue {
    fn push(&mut self, command: Command) {
        self.num_slow += usize::from(!command.is_quick());
        self.commands.push_back(command);
    }
}

#[derive(Default)]
struct Line(Mutex<Queue>);

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a driver that waits, and gives the lock back before.
fn wake(mut queue: MutexGuard<'_, Queue>) {
    let waiter = queue.waiter.take();
    drop(queue);
    if let Some(thread) = waiter {
        thread.unpark();
    }
}

/// Both ends. Commands come in the order in which they were handed in.
pub(crate) fn line() -> (Outbox, Inbox) {
    let line = Arc::new(Line::default());
    let inbox = Inbox {
        line: line.clone(),
        taken: VecDeque::new(),
        only_quick: false,
    };
    (Outbox(line), inbox)
}

/// Where commands are handed in.
pub(crate) struct Outbox(Arc<Line>);

impl Outbox {
    /// Sends a command, behind all that are held back, which go with it.
    pub fn send(&self, command: Command) -> Result<(), Gone> {
        let mut queue = self.0.queue();
        if queue.is_gone {
            return Err(Gone);
        }
        queue.push(command);
        wake(queue);
        Ok(())
    }

    /// Sends a command, but leaves a driver that waits alone until [`Outbox::flush`] at the latest.
    /// True for the first that does: who handed it in has to see to that.
    pub fn hold(&self, command: Command) -> Result<bool, Gone> {
        let mut queue = self.0.queue();
        if queue.is_gone {
            return Err(Gone);
        }
        queue.push(command);
        let held = queue.commands.len();
        let most = match queue.num_slow {
            0 => MOST_QUICK,
            _ => MOST_HELD,
        };
        if held >= most {
            wake(queue);
            return Ok(false);
        }
        Ok(held == 1 && queue.waiter.is_some())
    }

    /// Lets go what is held back.
    pub fn flush(&self) {
        let queue = self.0.queue();
        if !queue.commands.is_empty() {
            wake(queue);
        }
    }

    /// Commands that have come and that the driver has not taken.
    pub fn num_waiting(&self) -> usize {
        self.0.queue().commands.len()
    }

    /// Takes the place of a driver's thread that waits, if all that has come is quick.
    pub fn help(&self) -> Option<Help<'_>> {
        let mut queue = self.0.queue();
        if queue.commands.is_empty() || queue.num_slow > 0 {
            return None;
        }
        queue.replaced = Some(queue.waiter.take()?);
        Some(Help {
            line: &self.0,
            is_over: false,
        })
    }
}

/// The place of the driver's thread, which gets it back when this is dropped.
#[must_use = "dropped, it wakes the driver's thread"]
pub(crate) struct Help<'a> {
    line: &'a Line,
    /// The driver waits for nothing but commands, so its thread may sleep on.
    pub is_over: bool,
}

impl Drop for Help<'_> {
    fn drop(&mut self) {
        let mut queue = self.line.queue();
        // None if it has woken by itself; then it may wait anew.
        if let Some(thread) = queue.replaced.take() {
            queue.waiter = Some(thread);
        }
        if !self.is_over || !queue.commands.is_empty() {
            wake(queue);
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_abandoned = true;
        wake(queue);
    }
}

/// The driver's end.
pub(crate) struct Inbox {
    line: Arc<Line>,
    /// Taken from the line together, for one turn at the lock.
    taken: VecDeque<Command>,
    /// Leaves commands alone while some are not quick.
    pub only_quick: bool,
}

impl Inbox {
    /// The next command that has come.
    pub fn next(&mut self) -> Result<Option<Command>, Abandoned> {
        if self.taken.is_empty() {
            let mut queue = self.line.queue();
            if self.only_quick && queue.num_slow > 0 {
                return Ok(None);
            }
            queue.num_slow = 0;
            std::mem::swap(&mut self.taken, &mut queue.commands);
            if self.taken.is_empty() && queue.is_abandoned {
                return Err(Abandoned);
            }
        }
        Ok(self.taken.pop_front())
    }

    /// Whether commands were taken from the line that are still to come.
    pub fn has_next(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Where the driver's thread waits.
    pub fn rest(&self) -> Rest {
        Rest(self.line.clone())
    }
}

/// Where the driver's thread waits.
pub(crate) struct Rest(Arc<Line>);

impl Rest {
    /// Waits until there is a command or nobody to hand one in, or this time is over; perhaps for
    /// less.
    pub fn wait(&self, longest: Option<Duration>) {
        let mut queue = self.0.queue();
        if !queue.commands.is_empty() || queue.is_abandoned {
            return;
        }
        queue.waiter = Some(std::thread::current());
        drop(queue);
        match longest {
            None => std::thread::park(),
            Some(longest) => std::thread::park_timeout(longest),
        }
        let mut queue = self.0.queue();
        (queue.waiter, queue.replaced) = (None, None);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.line.queue();
            queue.is_gone = true;
            std::mem::take(&mut queue.commands)
        };
        // Whoever waits for one of these learns that the engine is no more.
        drop(left);
    }
}

/// Requests that are held back; they go to the engine when this is dropped, if not before. Where all of
/// them take microseconds and the engine has nothing else to do, they run on the thread that drops it.
#[must_use = "dropped, it lets the requests go at once"]
pub struct Held(pub(super) Arc<Shared>);

impl Held {
    /// Whether there is one request at most that has come and was not taken in.
    pub fn is_alone(&self) -> bool {
        self.0.outbox.num_waiting() <= 1
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use lazybatch_sla::RequestId;

    use super::*;

    fn cancel(id: u64) -> Command {
        Command::Cancel(RequestId(id))
    }

    fn ids(inbox: &mut Inbox) -> Vec<u64> {
        let next = || inbox.next().unwrap();
        let id = |command| match command {
            Command::Cancel(id) => id.0,
            _ => panic!("a command that nobody sent"),
        };
        std::iter::from_fn(next).map(id).collect()
    }

    /// Waits on another thread as a driver does, and tells what it found behind each wait.
    fn waiting(mut inbox: Inbox) -> impl Fn() -> Vec<u64> {
        let (tx, rx) = channel();
        std::thread::spawn(move || {
            loop {
                inbox.rest().wait(None);
                match inbox.next() {
                    Err(Abandoned) => return,
                    // A wait may end early.
                    Ok(None) => {}
                    Ok(Some(first)) => {
                        inbox.taken.push_front(first);
                        drop(tx.send(ids(&mut inbox)));
                    }
                }
            }
        });
        move || rx.recv().unwrap_or_default()
    }

    fn until_it_waits(outbox: &Outbox) {
        while outbox.0.queue().waiter.is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn commands_keep_their_order() {
        let (outbox, mut inbox) = line();
        outbox.send(cancel(0)).unwrap();
        assert!(!outbox.hold(cancel(1)).unwrap(), "nobody waits");
        outbox.send(cancel(2)).unwrap();
        assert_eq!(ids(&mut inbox), [0, 1, 2]);
        assert_eq!(ids(&mut inbox), [0; 0]);
        inbox.rest().wait(Some(Duration::ZERO));
        outbox.send(cancel(3)).unwrap();
        inbox.rest().wait(None);
        assert_eq!(ids(&mut inbox), [3], "it did not wait for what has come");
        outbox.send(cancel(4)).unwrap();
        drop(outbox);
        assert_eq!(inbox.next().unwrap().into_iter().count(), 1);
        assert_eq!(inbox.next().err(), Some(Abandoned));
        inbox.rest().wait(None);
    }

    #[test]
    fn a_driver_that_waits_is_left_alone_for_a_while() {
        let (outbox, inbox) = line();
        let woken = waiting(inbox);
        until_it_waits(&outbox);
        assert!(outbox.hold(cancel(0)).unwrap(), "the first");
        assert_eq!(outbox.num_waiting(), 1, "it is alone");
        assert!(!outbox.hold(cancel(1)).unwrap());
        assert_eq!(outbox.num_waiting(), 2);
        assert!(outbox.0.queue().waiter.is_some(), "it waits on");
        outbox.flush();
        assert_eq!(woken(), [0, 1]);
        until_it_waits(&outbox);
        assert!(outbox.hold(cancel(2)).unwrap());
        outbox.send(cancel(3)).unwrap();
        assert_eq!(woken(), [2, 3], "they go with what is sent");
        until_it_waits(&outbox);
        let most = MOST_QUICK as u64;
        for id in 0..most {
            assert_eq!(outbox.hold(cancel(id)).unwrap(), id == 0);
        }
        assert_eq!(woken(), (0..most).collect::<Vec<_>>(), "not more than that");
        until_it_waits(&outbox);
        outbox.flush();
        assert!(
            outbox.0.queue().waiter.is_some(),
            "for nothing it is not woken"
        );
        outbox.send(cancel(9)).unwrap();
        assert_eq!(woken(), [9]);
        drop(outbox);
        assert_eq!(woken(), [0; 0], "its thread has ended");
    }

    #[test]
    fn a_driver_that_woke_meanwhile_and_waits_again_keeps_its_place() {
        for is_over in [false, true] {
            let (outbox, _inbox) = line();
            outbox.0.queue().waiter = Some(std::thread::current());
            assert!(outbox.hold(cancel(0)).unwrap());
            let mut help = outbox.help().unwrap();
            {
                // As its thread does: it wakes, takes what has come, and waits.
                let mut queue = outbox.0.queue();
                queue.commands.clear();
                (queue.waiter, queue.replaced) = (Some(std::thread::current()), None);
            }
            help.is_over = is_over;
            drop(help);
            let waits = outbox.0.queue().waiter.is_some();
            assert_eq!(waits, is_over, "else it is woken to look");
        }
    }

    #[test]
    fn who_lets_go_what_is_quick_takes_the_place_of_a_driver_that_waits() {
        let (outbox, inbox) = line();
        assert!(outbox.help().is_none(), "nothing has come");
        let woken = waiting(inbox);
        for is_over in [false, true] {
            until_it_waits(&outbox);
            assert!(outbox.hold(cancel(0)).unwrap());
            let mut help = outbox.help().unwrap();
            assert!(outbox.help().is_none(), "one at a time");
            assert!(!outbox.hold(cancel(1)).unwrap(), "who helps finds it");
            help.is_over = is_over;
            drop(help);
            assert_eq!(woken(), [0, 1], "nobody took them");
        }
        until_it_waits(&outbox);
        assert!(outbox.hold(cancel(2)).unwrap());
        let mut help = outbox.help().unwrap();
        outbox.0.queue().commands.clear();
        help.is_over = true;
        drop(help);
        assert!(outbox.0.queue().waiter.is_some(), "it was let sleep");
        assert!(outbox.hold(Command::Drain).unwrap());
        assert!(outbox.help().is_none(), "it may take long");
        outbox.0.queue().commands.clear();
        drop(outbox);
        assert_eq!(woken(), [0; 0]);
    }

    #[test]
    fn what_may_take_long_is_left_to_the_driver() {
        let (outbox, mut inbox) = line();
        outbox.send(cancel(0)).unwrap();
        inbox.only_quick = true;
        assert!(inbox.next().unwrap().is_some());
        outbox.send(cancel(1)).unwrap();
        outbox.send(Command::Drain).unwrap();
        assert!(inbox.next().unwrap().is_none());
        inbox.only_quick = false;
        assert!(inbox.next().unwrap().is_some());
        assert!(inbox.has_next());
        inbox.only_quick = true;
        assert!(inbox.next().unwrap().is_some(), "it has it already");
    }

    #[test]
    fn behind_its_end_a_driver_takes_nothing() {
        let (outbox, inbox) = line();
        let (tx, rx) = tokio::sync::oneshot::channel();
        outbox.send(Command::Look(tx)).unwrap();
        drop(inbox);
        assert!(rx.blocking_recv().is_err(), "told at once");
        assert!(outbox.send(cancel(0)).is_err());
        assert!(outbox.hold(cancel(0)).is_err());
        outbox.flush();
    }
}
