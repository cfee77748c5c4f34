//! Who runs the driver: its own thread, and while that waits whoever hands quick requests in.
//!
//! To wake a thread and to be woken by it again takes longer than a small model does. A caller who lets
//! requests go therefore runs the driver itself, if they and all that has come are to models of a few
//! microseconds, if nothing else is open, and if the driver's thread waits. It sleeps on unless there is
//! more to do than that.
//!
//! One thread at a time has the driver; it does the same whoever runs it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::threaded::{Driver, Next};
use crate::embed::Outbox;

/// Most turns that somebody else takes: one to launch what has come and one to answer it, and as many
/// for what came meanwhile.
const MOST_TURNS: usize = 4;

thread_local! {
    /// This thread is in a turn of a driver.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a turn of a driver: whoever waits here for a driver waits for itself.
pub(crate) fn is_driving() -> bool {
    DRIVES.get()
}

/// A driver, and who runs it.
pub(crate) struct Seat {
    driver: Mutex<Option<Driver>>,
    /// What it or its device panicked with.
    failed: Arc<OnceLock<String>>,
}

/// Drops the driver with the thread that runs it, whatever ends that.
struct Leaves<'a>(&'a Seat);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut seat = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = seat.take();
        // Whoever waits for it is told, and may come here.
        drop(seat);
        drop(driver);
    }
}

impl Seat {
    /// Of a driver that nobody runs yet.
    pub fn new(driver: Driver) -> Self {
        Self {
            failed: driver.failed.clone(),
            driver: Mutex::new(Some(driver)),
        }
    }

    /// Runs the driver on the calling thread until it is drained or stopped.
    pub fn run(&self) {
        let _leaves = Leaves(self);
        loop {
            // Poisoned, it panicked where somebody else ran it.
            let Ok(mut seat) = self.driver.lock() else {
                return;
            };
            let Some(driver) = seat.as_mut() else { return };
            let until = loop {
                match self.turn(driver) {
                    Next::Turn => {}
                    Next::Wait(until) => break until,
                    Next::End => return,
                }
            };
            // What comes is handled in the next turn, with that turn's time.
            let longest = until.map(|at| Duration::from_nanos(at.since(driver.clock.now()).0));
            let rest = driver.commands.rest();
            drop(seat);
            rest.wait(longest);
        }
    }

    /// A turn of the driver, whose panic is remembered.
    fn turn(&self, driver: &mut Driver) -> Next {
        let outer = DRIVES.replace(true);
        let next = catch_unwind(AssertUnwindSafe(|| driver.turn()));
        DRIVES.set(outer);
        next.unwrap_or_else(|panic| {
            // The first is the cause.
            let _ = self.failed.set(text(panic.as_ref()));
            resume_unwind(panic)
        })
    }

    /// Does something with the driver between two of its turns.
    #[cfg(test)]
    pub fn with(&self, f: impl FnOnce(&mut Driver)) {
        let mut seat = self.driver.lock().expect("no holder panics");
        f(seat.as_mut().expect("it runs"));
    }

    /// What the driver panicked with, or that its device did, if so.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Has what was handed in done: here if it is quick, else on the driver's thread.
    pub fn let_go(&self, outbox: &Outbox) {
        // A panic in a turn would end the process.
        if std::thread::panicking() {
            return outbox.flush();
        }
        let Some(mut help) = outbox.help() else {
            return outbox.flush();
        };
        let Ok(mut seat) = self.driver.try_lock() else {
            return;
        };
        let Some(driver) = seat.as_mut().filter(|d| d.core.num_open() == 0) else {
            return;
        };
        driver.commands.only_quick = true;
        let mut next = Next::Turn;
        for _ in 0..MOST_TURNS {
            next = self.turn(driver);
            if next != Next::Turn {
                break;
            }
        }
        driver.commands.only_quick = false;
        help.is_over = next == Next::Wait(None);
    }
}

/// The message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".into())
}
