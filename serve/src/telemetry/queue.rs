//! Ended spans on their way to the collector: a bounded queue, and the task that empties it.
//!
//! What does not fit, and what the collector does not take in time, is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// Most spans that wait.
const MOST_WAITING: usize = 4096;
/// Most spans of a message.
const MOST_SENT: usize = 512;
/// How long a message may wait to be filled.
const DELAY: Duration = Duration::from_secs(1);
/// How long the collector may take for a message.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How often there is a log line about spans that were dropped.
const QUIET: Duration = Duration::from_secs(60);

/// How many spans went where.
#[derive(Debug, Default)]
pub struct Counts {
    queued: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// Spans that the collector took.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Spans that are lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn waiting(&self) -> u64 {
        let gone = self.sent() + self.dropped();
        self.queued.load(Relaxed).saturating_sub(gone)
    }

    /// Counts what still waits as dropped: how many.
    pub(super) fn abandon(&self) -> u64 {
        let waiting = self.waiting();
        self.dropped.fetch_add(waiting, Relaxed);
        waiting
    }
}

/// The queue's end that spans go into.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: mpsc::Sender<SpanData>,
    counts: Arc<Counts>,
}

pub(super) fn channel(counts: Arc<Counts>) -> (Queue, mpsc::Receiver<SpanData>) {
    let (waiting, taken) = mpsc::channel(MOST_WAITING);
    (Queue { waiting, counts }, taken)
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // Before it can have been sent.
        self.counts.queued.fetch_add(1, Relaxed);
        if self.waiting.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends spans until `ending`, and then those that wait.
pub(super) async fn send(
    exporter: impl SpanExporter,
    mut waiting: mpsc::Receiver<SpanData>,
    mut ending: watch::Receiver<bool>,
    counts: Arc<Counts>,
) {
    let mut losses = Losses::default();
    let mut batch = Vec::with_capacity(MOST_SENT);
    loop {
        tokio::select! {
            biased;
            _ = waiting.recv_many(&mut batch, MOST_SENT) => {}
            // Nothing waits.
            () = ended(&mut ending) => waiting.close(),
        }
        if batch.is_empty() && waiting.is_closed() && waiting.is_empty() {
            return;
        }
        fill(&mut batch, &mut waiting, &mut ending).await;
        if batch.is_empty() {
            continue;
        }
        let num = batch.len() as u64;
        let whole = std::mem::replace(&mut batch, Vec::with_capacity(MOST_SENT));
        let why = match timeout(PATIENCE, exporter.export(whole)).await {
            Ok(Ok(())) => {
                counts.sent.fetch_add(num, Relaxed);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer in {} s", PATIENCE.as_secs())),
        };
        if why.is_some() {
            counts.dropped.fetch_add(num, Relaxed);
        }
        losses.tell(&counts, why.as_deref());
    }
}

async fn ended(ending: &mut watch::Receiver<bool>) {
    // An error says that whoever could say so has gone.
    let _ = ending.wait_for(|ended| *ended).await;
}

/// Waits for a message to be full, for a while.
async fn fill(
    batch: &mut Vec<SpanData>,
    waiting: &mut mpsc::Receiver<SpanData>,
    ending: &mut watch::Receiver<bool>,
) {
    let mut late = std::pin::pin!(sleep(DELAY));
    while batch.len() < MOST_SENT {
        let room = MOST_SENT - batch.len();
        tokio::select! {
            biased;
            num = waiting.recv_many(batch, room) => if num == 0 { return },
            () = &mut late => return,
            () = ended(ending) => return,
        }
    }
}

/// Says that spans are lost, but not often.
#[derive(Default)]
struct Losses {
    told: u64,
    last: Option<Instant>,
}

impl Losses {
    fn tell(&mut self, counts: &Counts, why: Option<&str>) {
        let dropped = counts.dropped();
        if dropped == self.told || self.last.is_some_and(|last| last.elapsed() < QUIET) {
            return;
        }
        let spans = dropped - self.told;
        let why = why.unwrap_or("more came than the collector took");
        tracing::warn!(spans, why, "spans were dropped");
        (self.told, self.last) = (dropped, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use opentelemetry::InstrumentationScope;
    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
    use opentelemetry_sdk::error::OTelSdkError;
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

    use super::*;

    fn span() -> SpanData {
        SpanData {
            span_context: SpanContext::NONE,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Server,
            name: "span".into(),
            start_time: std::time::UNIX_EPOCH,
            end_time: std::time::UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    /// Notes how many came at once, and refuses the second message.
    #[derive(Clone, Debug, Default)]
    struct Notes(Arc<Mutex<Vec<usize>>>);

    impl SpanExporter for Notes {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let mut notes = self.0.lock().unwrap();
            notes.push(batch.len());
            match notes.len() {
                2 => Err(OTelSdkError::InternalFailure("refused".into())),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn more_than_the_queue_holds_is_dropped() {
        let counts = Arc::new(Counts::default());
        let (queue, waiting) = channel(counts.clone());
        for _ in 0..MOST_WAITING + 5 {
            queue.on_end(span());
        }
        assert_eq!((waiting.len(), counts.dropped()), (MOST_WAITING, 5));
        assert_eq!(counts.abandon(), MOST_WAITING as u64);
        assert_eq!(
            (counts.dropped(), counts.waiting()),
            (MOST_WAITING as u64 + 5, 0)
        );
        drop(waiting);
        queue.on_end(span());
        assert_eq!(counts.dropped(), MOST_WAITING as u64 + 6);
    }

    #[tokio::test]
    async fn the_end_sends_what_waits_and_what_is_refused_is_dropped() {
        let counts = Arc::new(Counts::default());
        let (queue, waiting) = channel(counts.clone());
        for _ in 0..2 * MOST_SENT + 3 {
            queue.on_end(span());
        }
        let (ending, ended) = watch::channel(true);
        let notes = Notes::default();
        send(notes.clone(), waiting, ended, counts.clone()).await;
        assert_eq!(*notes.0.lock().unwrap(), [MOST_SENT, MOST_SENT, 3]);
        let (sent, dropped) = (MOST_SENT as u64 + 3, MOST_SENT as u64);
        assert_eq!((counts.sent(), counts.dropped()), (sent, dropped));
        queue.on_end(span());
        assert_eq!(counts.dropped(), dropped + 1, "it is closed");
        drop(ending);
    }
}
