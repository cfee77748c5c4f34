//! How clients take answers over gRPC.
//!
//! HTTP/2 lets a client leave an answer lying while its connection lives on, so that no write ever
//! blocks. Every answer of a connection is therefore watched from where it waits for room: one of which
//! nothing was taken for too long is dropped, and with it what makes it; a connection that has no calls
//! but such ones is closed.
//!
//! A connection whose client has not shown that it may call is held by what it asks for alone: without
//! calls for too long it is closed. One that watches the server's health would be held for ever by that.
//!
//! A large piece of an answer is handed over in small ones, so that a slow client that does read is told
//! from one that does not, and its last bytes not before those in front of them were taken.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::Instant;
use tonic::Status;

use crate::memory::Tab;

/// Most bytes that are handed over at once.
const PIECE: usize = 32 << 10;
/// What is larger goes in two pieces at least.
const SMALL: usize = 4 << 10;
/// Answers of a connection after which it forgets those that have gone.
const TIDY: usize = 64;

/// The answers of one connection.
#[derive(Debug)]
pub struct Pace {
    within: Duration,
    /// Calls that have not ended.
    calls: AtomicUsize,
    /// Those of them that end with their client alone.
    watches: AtomicUsize,
    /// Whether a call has begun since somebody looked.
    has_begun: AtomicBool,
    /// Whether there was a call that not everybody may make.
    is_admitted: AtomicBool,
    answers: Mutex<Vec<Weak<Lies>>>,
}

impl Pace {
    /// Of a client that may leave an answer lying for as long as `within`.
    pub fn new(within: Duration) -> Self {
        Self {
            within,
            calls: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            has_begun: AtomicBool::new(false),
            is_admitted: AtomicBool::new(false),
            answers: Mutex::default(),
        }
    }

    /// How often to look.
    pub fn every(&self) -> Duration {
        (self.within / 4).max(Duration::from_millis(1))
    }

    /// Whether there is anything to look at.
    pub fn has_calls(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
    }

    /// There is a call that not everybody may make.
    pub fn admit(&self) {
        self.is_admitted.store(true, Ordering::SeqCst);
    }

    /// Whether there was one.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::SeqCst)
    }

    /// Whether there was no call since this was asked last but for those that end with their client alone.
    pub fn was_idle(&self) -> bool {
        let order = Ordering::SeqCst;
        !self.has_begun.swap(false, order) && self.calls.load(order) <= self.watches.load(order)
    }

    /// Drops answers that have lain for too long; true if the connection has no other calls.
    pub fn look(&self) -> bool {
        let mut late = 0;
        lock(&self.answers).retain(|answer| {
            let Some(answer) = answer.upgrade() else {
                return false;
            };
            late += usize::from(answer.is_late(self.within));
            true
        });
        late > 0 && late >= self.calls.load(Ordering::SeqCst)
    }

    fn watch(&self, answer: &Arc<Lies>) {
        let mut answers = lock(&self.answers);
        if answers.len() >= TIDY && answers.len() == answers.capacity() {
            answers.retain(|a| a.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call of a connection, which counts until this is dropped.
#[derive(Debug)]
pub struct Call {
    pace: Arc<Pace>,
    is_watch: bool,
}

impl Call {
    /// Begins now.
    pub fn new(pace: Arc<Pace>) -> Self {
        Self::begin(pace, false)
    }

    /// The same of one that ends with its client alone.
    pub fn watch(pace: Arc<Pace>) -> Self {
        Self::begin(pace, true)
    }

    fn begin(pace: Arc<Pace>, is_watch: bool) -> Self {
        let order = Ordering::SeqCst;
        pace.calls.fetch_add(1, order);
        pace.watches.fetch_add(usize::from(is_watch), order);
        pace.has_begun.store(true, order);
        Self { pace, is_watch }
    }

    /// Watches over its answer, which is on `tab`.
    pub fn answer(self, body: tonic::body::Body, tab: Arc<Tab>) -> Paced {
        let lies = Arc::new(Lies(Mutex::new(Held {
            body: Some((body, tab)),
            rest: Bytes::new(),
            since: None,
        })));
        self.pace.watch(&lies);
        Paced { lies, _call: self }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let order = Ordering::SeqCst;
        self.pace
            .watches
            .fetch_sub(usize::from(self.is_watch), order);
        self.pace.calls.fetch_sub(1, order);
    }
}

/// An answer that may lie.
#[derive(Debug)]
struct Lies(Mutex<Held>);

#[derive(Debug)]
struct Held {
    /// What makes it, and the tab that it is on; `None` once it was dropped.
    body: Option<(tonic::body::Body, Arc<Tab>)>,
    /// What was made and not handed over.
    rest: Bytes,
    /// Since when what was handed over last waits for room.
    since: Option<Instant>,
}

impl Lies {
    /// Whether it has lain for so long; it is dropped then.
    fn is_late(&self, within: Duration) -> bool {
        let (late, dropped);
        {
            let mut held = lock(&self.0);
            late = held.since.is_some_and(|since| since.elapsed() >= within);
            dropped = late.then(|| {
                held.rest = Bytes::new();
                held.body.take()
            });
        }
        // Not while it is locked: it may take its time.
        drop(dropped);
        late
    }
}

impl Held {
    /// The next piece of what was made.
    fn piece(&mut self) -> Bytes {
        let len = match self.rest.len() {
            len if len > PIECE => PIECE,
            len if len > SMALL => len - SMALL / 4,
            len => len,
        };
        self.since = Some(Instant::now());
        self.rest.split_to(len)
    }
}

/// The body of an answer that is watched.
#[derive(Debug)]
pub struct Paced {
    lies: Arc<Lies>,
    _call: Call,
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut held = lock(&self.lies.0);
        held.since = None;
        if held.rest.is_empty() {
            let Some((body, _)) = &mut held.body else {
                let message = "the client took nothing of the answer for too long";
                return Poll::Ready(Some(Err(Status::cancelled(message))));
            };
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => held.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(held.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        let held = lock(&self.lies.0);
        held.rest.is_empty() && held.body.as_ref().is_some_and(|(b, _)| b.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::memory::Memory;

    fn answer(pace: &Arc<Pace>, len: usize) -> Paced {
        let body = Full::new(Bytes::from(vec![7; len]));
        let tab = Arc::new(Memory::new(0, 0)).tab();
        Call::new(pace.clone()).answer(tonic::body::Body::new(body), Arc::new(tab))
    }

    #[tokio::test]
    async fn answers_go_in_pieces_and_whole() {
        let pace = Arc::new(Pace::new(Duration::from_secs(9)));
        for (len, pieces) in [
            (10, 1),
            (SMALL, 1),
            (SMALL + 1, 2),
            (PIECE, 2),
            (100_000, 4),
            (3 * PIECE + SMALL + 1, 5),
        ] {
            let mut body = answer(&pace, len);
            let (mut sum, mut num) = (0, 0);
            while let Some(frame) = body.frame().await {
                sum += frame.unwrap().into_data().unwrap().len();
                num += 1;
            }
            assert_eq!((sum, num), (len, pieces));
        }
        assert!(!pace.has_calls());
    }

    #[tokio::test]
    async fn what_lies_is_dropped_and_a_connection_with_nothing_else_ends() {
        let pace = Arc::new(Pace::new(Duration::ZERO));
        let mut lies = answer(&pace, 100_000);
        let other = Call::new(pace.clone());
        assert!(!pace.look(), "nothing was handed over");
        lies.frame().await.unwrap().unwrap();
        assert!(!pace.look(), "there is another call");
        drop(other);
        assert!(pace.look());
        let told = lies.frame().await.unwrap().unwrap_err();
        assert_eq!(told.code(), tonic::Code::Cancelled);
        drop(lies);
        assert!(!pace.look() && !pace.has_calls());
    }

    #[tokio::test]
    async fn answers_that_have_gone_are_forgotten() {
        let pace = Arc::new(Pace::new(Duration::from_secs(9)));
        for _ in 0..100 * TIDY {
            drop(answer(&pace, 1));
        }
        assert!(lock(&pace.answers).len() <= 2 * TIDY);
    }
}
