//! What the engines do, for those who look: traces of a time span, and frames several times a second
//! for any number of viewers up to a bound.
//!
//! One task makes the frames, while there is a viewer. Each viewer has the latest frame only: one that
//! is slow loses those in between and holds nobody up, and one that reads nothing for a while loses
//! its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lazybatch_engine::Watch;
use lazybatch_engine::timeline::{ChromeTrace, document};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::error::{Error, Result};
use crate::state::State;

mod frame;

use frame::Frames;

/// How often there is a frame.
const EVERY: Duration = Duration::from_millis(200);
/// How long a viewer may ask for no frame.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most viewers at once.
pub const MOST_VIEWERS: usize = 32;
/// Longest span of a trace.
pub const LONGEST: Duration = Duration::from_secs(10);

/// Those who look.
pub struct Hub {
    viewers: Arc<Semaphore>,
    /// Of those viewers.
    seats: Mutex<Vec<Weak<Seat>>>,
    traces: Arc<Semaphore>,
    /// The latest frame; empty before the first.
    frame: watch::Sender<Arc<str>>,
    is_running: Mutex<bool>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            viewers: Arc::new(Semaphore::new(MOST_VIEWERS)),
            seats: Mutex::default(),
            traces: Arc::new(Semaphore::new(1)),
            frame: watch::Sender::new(Arc::from("")),
            is_running: Mutex::new(false),
        }
    }
}

/// A viewer's place.
struct Seat(Mutex<Held>);

struct Held {
    /// Taken from a viewer that reads nothing.
    place: Option<OwnedSemaphorePermit>,
    /// Frames that were made since its viewer last asked for one.
    missed: u128,
}

impl Seat {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its viewer asks for a frame. Whether it still has its place.
    fn asks(&self) -> bool {
        let mut held = self.held();
        held.missed = 0;
        held.place.is_some()
    }

    /// A frame is made. Whether its viewer still has its place.
    fn passes(&self) -> bool {
        let mut held = self.held();
        held.missed += 1;
        if held.missed > PATIENCE.as_millis() / EVERY.as_millis() {
            held.place = None;
        }
        held.place.is_some()
    }
}

impl Hub {
    /// A place for a viewer; `None` if there is none left.
    fn seat(&self) -> Option<Arc<Seat>> {
        let place = self.viewers.clone().try_acquire_owned().ok();
        let held = Held {
            place: Some(place?),
            missed: 0,
        };
        let seat = Arc::new(Seat(Mutex::new(held)));
        self.seats().push(Arc::downgrade(&seat));
        Some(seat)
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Weak<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame is about to be made: viewers that have not asked for one for too long lose their
    /// places.
    fn pass(&self) {
        let has_place = |seat: &Weak<Seat>| seat.upgrade().is_some_and(|seat| seat.passes());
        self.seats().retain(has_place);
    }

    /// Whether frames are made.
    pub fn is_running(&self) -> bool {
        *self.running()
    }

    fn running(&self) -> MutexGuard<'_, bool> {
        self.is_running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn has_viewers(&self) -> bool {
        self.viewers.available_permits() < MOST_VIEWERS
    }
}

/// Frames from now on, each a JSON text, until the server has ended its last call.
///
/// # Errors
/// Too many viewers, or a server that is over.
pub fn frames(state: &Arc<State>) -> Result<impl Stream<Item = Arc<str>> + use<>> {
    if state.is_over() {
        return Err(Error::Unavailable("the server is stopping".into()));
    }
    let hub = &state.hub;
    let seat = hub.seat().ok_or_else(|| {
        Error::Unavailable(format!("the server has {MOST_VIEWERS} viewers, its most"))
    })?;
    let frames = {
        let mut is_running = hub.running();
        let mut frames = hub.frame.subscribe();
        frames.mark_unchanged();
        if !std::mem::replace(&mut *is_running, true) {
            tokio::spawn(make(state.clone()));
        }
        frames
    };
    let viewer = Viewer {
        frames,
        state: state.clone(),
        seat,
    };
    let stream = futures_util::stream::unfold(viewer, next);
    Ok(stream.boxed())
}

struct Viewer {
    frames: watch::Receiver<Arc<str>>,
    state: Arc<State>,
    seat: Arc<Seat>,
}

async fn next(mut viewer: Viewer) -> Option<(Arc<str>, Viewer)> {
    if !viewer.seat.asks() {
        return None;
    }
    viewer.frames.changed().await.ok()?;
    if viewer.state.is_over() {
        return None;
    }
    let frame = viewer.frames.borrow_and_update().clone();
    // An empty one says that there come no more.
    (!frame.is_empty()).then_some((frame, viewer))
}

/// One who makes frames. If that ends by a panic, the viewers end with it, and whoever comes then
/// begins anew.
struct Maker<'a> {
    hub: &'a Hub,
    has_ended: bool,
}

impl Maker<'_> {
    /// Ends if there is nobody to make frames for.
    fn ends(&mut self) -> bool {
        let mut is_running = self.hub.running();
        if !self.hub.has_viewers() {
            *is_running = false;
            self.has_ended = true;
        }
        self.has_ended
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        // Once it has ended there may be another one.
        if !self.has_ended {
            let mut is_running = self.hub.running();
            *is_running = false;
            self.hub.frame.send_replace(Arc::from(""));
        }
    }
}

/// Makes frames while there are viewers.
async fn make(state: Arc<State>) {
    let mut maker = Maker {
        hub: &state.hub,
        has_ended: false,
    };
    let mut frames = Frames::default();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.hub.pass();
        if maker.ends() {
            return;
        }
        let frame = frames.next(&state).await;
        state.hub.frame.send_replace(frame.into());
    }
}

/// What all engines do from now on for `span`, as a document for Perfetto.
///
/// # Errors
/// A span that is too long, or a trace that is being made.
pub async fn trace(state: &State, span: Duration) -> Result<String> {
    if span.is_zero() || span > LONGEST {
        let expected = format!("1 to {}", LONGEST.as_millis());
        return Err(Error::expected(
            "ms",
            expected,
            format!("{}", span.as_millis()),
        ));
    }
    let only = state.hub.traces.clone().try_acquire_owned();
    let only = only.map_err(|_| Error::Unavailable("another trace is being made".into()))?;
    let engines = state.repository.engines().into_iter();
    let watches: Vec<_> = engines
        .map(|(name, engine)| (name, engine.watch()))
        .collect();
    sleep(span).await;
    // Of a busy engine this takes a while, and goes on when whoever asked has left.
    let written = tokio::task::spawn_blocking(move || {
        let text = written(watches);
        drop(only);
        text
    });
    written.await.map_err(|e| Error::Internal(e.to_string()))
}

/// What was watched, as a document.
fn written(watches: Vec<(String, Watch)>) -> String {
    let mut events = Vec::new();
    for (n, (name, mut watch)) in watches.into_iter().enumerate() {
        let passed = watch.take();
        drop(watch);
        let mut trace = ChromeTrace::of(passed.names.clone(), 2 * n as u64);
        trace.name(&name);
        passed.replay(&mut trace);
        events.extend(trace.into_events());
    }
    document(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_that_read_nothing_lose_their_places_and_others_do_not() {
        let hub = Hub::default();
        let (reads, stuck) = (hub.seat().unwrap(), hub.seat().unwrap());
        let left = hub.seat().unwrap();
        drop(left);
        let taken = || MOST_VIEWERS - hub.viewers.available_permits();
        for _ in 0..PATIENCE.as_millis() / EVERY.as_millis() {
            assert!(reads.asks());
            hub.pass();
        }
        assert_eq!(taken(), 2, "just in time");
        assert!(reads.asks());
        hub.pass();
        assert_eq!((taken(), hub.seats().len()), (1, 1));
        assert!(reads.asks() && !stuck.asks());
        drop((reads, stuck));
        assert!(!hub.has_viewers());
    }

    #[test]
    fn a_panic_ends_the_viewers_and_lets_the_next_one_begin() {
        let hub = Hub::default();
        let _seat = hub.seat().unwrap();
        *hub.running() = true;
        let mut frames = hub.frame.subscribe();
        let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let maker = Maker {
                hub: &hub,
                has_ended: false,
            };
            assert!(maker.has_ended, "a panic");
        }));
        assert!(ends.is_err() && !hub.is_running());
        assert!(frames.has_changed().unwrap());
        assert_eq!(&**frames.borrow_and_update(), "");
    }

    #[test]
    fn one_who_ended_leaves_the_next_one_alone() {
        let hub = Hub::default();
        *hub.running() = true;
        let mut maker = Maker {
            hub: &hub,
            has_ended: false,
        };
        assert!(maker.ends() && !hub.is_running());
        *hub.running() = true;
        drop(maker);
        assert!(hub.is_running());
    }
}
