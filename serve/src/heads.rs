//! How a client of HTTP/1.1 sends the heads of its calls.
//!
//! Each has to be whole in time from its first byte on, the first one from the start, and behind an answer
//! that is over the next one has to begin in time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Looks in the time that a connection may lie idle.
const LOOKS: u32 = 4;

/// Calls of a connection, which whoever serves it counts.
#[derive(Default)]
pub struct Calls {
    /// Heads that were whole, and were handed on as calls.
    begun: AtomicUsize,
    /// As many of them as are over: all of the answer was handed on, or there will be none.
    over: AtomicUsize,
}

impl Calls {
    /// Another one has begun.
    pub fn begin(self: &Arc<Self>) -> Running {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Running(self.clone())
    }
}

/// A call that is over when this is dropped.
pub struct Running(Arc<Calls>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of an answer, with whose end its call is over.
pub struct Answer {
    body: Body,
    _call: Running,
}

impl Answer {
    /// The body of the answer to a call.
    pub fn new(body: Body, call: Running) -> Self {
        Self { body, _call: call }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What is known of a connection's heads.
pub struct Heads {
    calls: Arc<Calls>,
    /// Calls that had begun when it was last looked.
    seen: usize,
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
    /// Calls that were over at the last look; none while one runs.
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

    /// Counts the calls.
    pub fn calls(&self) -> Arc<Calls> {
        self.calls.clone()
    }

    /// Looks whether the head that was awaited has become a call.
    pub fn look(&mut self) {
        let calls = self.calls.begun.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.seen, calls) != calls {
            self.has_begun = false;
            self.until = None;
        }
    }

    /// Whether no call runs.
    fn rests(&self) -> bool {
        self.calls.over.load(Ordering::Relaxed) == self.seen
    }

    /// Something came: of a head, if no call runs, whose body it may be.
    pub fn came(&mut self) {
        self.has_begun |= self.rests();
    }

    /// Something is written: where it is the end of an answer, the time to the next head begins.
    pub fn writes(&mut self) {
        self.idle.num_looks = 0;
    }

    /// Whether a head is not whole in time, or has not begun in time, where more is awaited. All of a
    /// connection's looks are those of one task.
    pub fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.has_begun {
            // Whoever serves it may not read again once a call is over, so the timer is set before.
            let over = self.rests().then_some(self.seen);
            return self.idle.is_over(over, context);
        }
        let until = || Box::pin(tokio::time::sleep(self.within));
        let until = self.until.get_or_insert_with(until);
        until.as_mut().poll(context).is_ready()
    }
}

impl Idle {
    /// Whether it has lain idle for too long, where so many calls are over and none runs.
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
