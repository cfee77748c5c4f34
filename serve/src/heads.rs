//! How a client of HTTP/1.1 sends the heads of its calls.
//!
//! Each has to be whole in time from its first byte on, the first one from the start, and behind an answer
//! the next one has to begin in time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Looks in the time that a connection may lie idle.
const LOOKS: u32 = 4;

/// What is known of a connection's heads.
pub struct Heads {
    /// Heads that were whole, and were handed on as calls.
    calls: Arc<AtomicUsize>,
    /// As many of them as were known when it was last looked.
    seen: usize,
    /// As many of them as have something of an answer.
    answered: usize,
    /// Whether something of the next one is there.
    has_begun: bool,
    /// Until when the rest has to come.
    until: Option<Pin<Box<Sleep>>>,
    within: Duration,
    idle: Idle,
}

/// A timer that runs while calls come and go, and looks whether there are any: to set one for each call
/// would be a part of what a quick one takes.
struct Idle {
    every: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// It will wake the task of the connection.
    is_set: bool,
    /// Calls that were answered at the last look; none while one runs.
    seen: Option<usize>,
    /// Looks since then that found nothing new.
    num_looks: u32,
}

impl Heads {
    /// Each is whole `within` that time, and the next one begins before the connection has lain idle for
    /// `keep_alive`, or up to a quarter of it more.
    pub fn new(within: Duration, keep_alive: Duration) -> Self {
        Self {
            calls: Arc::default(),
            seen: 0,
            answered: 0,
            has_begun: true,
            until: None,
            within,
            idle: Idle {
                every: keep_alive / LOOKS,
                timer: None,
                is_set: false,
                seen: None,
                num_looks: 0,
            },
        }
    }

    /// Counts the heads that were whole: whoever serves the connection counts them.
    pub fn calls(&self) -> Arc<AtomicUsize> {
        self.calls.clone()
    }

    /// Looks whether the head that was awaited has become a call.
    pub fn look(&mut self) {
        let calls = self.calls.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.seen, calls) != calls {
            self.has_begun = false;
            self.until = None;
        }
    }

    /// Something came: of a head, if it is not the body of a call that waits for its answer.
    pub fn came(&mut self) {
        self.has_begun |= self.answered == self.seen;
    }

    /// Something is written: an answer, if it does not ask for the body.
    pub fn writes(&mut self, bytes: &[u8]) {
        if !bytes.starts_with(b"HTTP/1.1 100 ") {
            self.answered = self.calls.load(Ordering::Relaxed);
        }
    }

    /// Whether a head is not whole in time, or has not begun in time, where more is awaited. All of a
    /// connection's looks are those of one task.
    pub fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.has_begun {
            // Whoever serves it may not read again once a call is answered, so the timer is set before.
            let rests = self.answered == self.seen;
            return self.idle.is_over(rests.then_some(self.seen), context);
        }
        let until = || Box::pin(tokio::time::sleep(self.within));
        let until = self.until.get_or_insert_with(until);
        until.as_mut().poll(context).is_ready()
    }
}

impl Idle {
    /// Whether it has lain idle for too long, where so many calls are answered and none runs.
    fn is_over(&mut self, seen: Option<usize>, context: &mut Context<'_>) -> bool {
        let timer = || Box::pin(tokio::time::sleep(self.every));
        let timer = self.timer.get_or_insert_with(timer);
        while !self.is_set || timer.is_elapsed() {
            self.is_set = timer.as_mut().poll(context).is_pending();
            if self.is_set {
                break;
            }
            self.num_looks = match seen.is_some() && self.seen == seen {
                true => self.num_looks + 1,
                false => 0,
            };
            self.seen = seen;
            if self.num_looks >= LOOKS {
                return true;
            }
            timer.as_mut().reset(Instant::now() + self.every);
        }
        false
    }
}
