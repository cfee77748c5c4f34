//! What the engines do, for those who look: traces of a time span, and frames several times a second
//! for any number of viewers up to a bound.
//!
//! One task makes the frames, while there is a viewer. Each viewer has the latest frame only: one that
//! is slow loses those in between and holds nobody up.

use std::sync::{Arc, Mutex, PoisonError};
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
/// Most viewers at once.
pub const MOST_VIEWERS: usize = 32;
/// Longest span of a trace.
pub const LONGEST: Duration = Duration::from_secs(10);

/// Those who look.
pub struct Hub {
    viewers: Arc<Semaphore>,
    traces: Arc<Semaphore>,
    /// The latest frame; empty before the first.
    frame: watch::Sender<Arc<str>>,
    is_running: Mutex<bool>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            viewers: Arc::new(Semaphore::new(MOST_VIEWERS)),
            traces: Arc::new(Semaphore::new(1)),
            frame: watch::Sender::new(Arc::from("")),
            is_running: Mutex::new(false),
        }
    }
}

impl Hub {
    /// Whether frames are made.
    pub fn is_running(&self) -> bool {
        *self.running()
    }

    fn running(&self) -> std::sync::MutexGuard<'_, bool> {
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
    let place = hub.viewers.clone().try_acquire_owned();
    let place = place.map_err(|_| {
        Error::Unavailable(format!("the server has {MOST_VIEWERS} viewers, its most"))
    })?;
    let mut frames = hub.frame.subscribe();
    frames.mark_unchanged();
    {
        let mut is_running = hub.running();
        if !std::mem::replace(&mut *is_running, true) {
            tokio::spawn(make(state.clone()));
        }
    }
    let viewer = (frames, state.clone(), place);
    let stream = futures_util::stream::unfold(viewer, next);
    Ok(stream.boxed())
}

type Viewer = (watch::Receiver<Arc<str>>, Arc<State>, OwnedSemaphorePermit);

async fn next(mut viewer: Viewer) -> Option<(Arc<str>, Viewer)> {
    viewer.0.changed().await.ok()?;
    if viewer.1.is_over() {
        return None;
    }
    let frame = viewer.0.borrow_and_update().clone();
    Some((frame, viewer))
}

/// Makes frames while there are viewers.
async fn make(state: Arc<State>) {
    let mut frames = Frames::default();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        {
            let mut is_running = state.hub.running();
            if !state.hub.has_viewers() {
                *is_running = false;
                return;
            }
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
    let _only = state
        .hub
        .traces
        .try_acquire()
        .map_err(|_| Error::Unavailable("another trace is being made".into()))?;
    let engines = state.repository.engines().into_iter();
    let watches: Vec<_> = engines
        .map(|(name, engine)| (name, engine.watch()))
        .collect();
    sleep(span).await;
    // Of a busy engine this takes a while.
    let written = tokio::task::spawn_blocking(move || written(watches));
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
