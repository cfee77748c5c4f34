//! A request between its arrival and its end, as statistics count it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use lazybatch_sla::Time;

use crate::error::Error;
use crate::explained::{MOST_NAME, cut};
use crate::model::Served;

/// The class of requests that name none.
pub const DEFAULT: &str = "default";

/// A request in the engine: counted as cancelled if it is dropped before its end, and before its answer is
/// there.
pub struct Pending {
    served: Arc<Served>,
    /// Its SLA class; the default one if `None`.
    class: Option<String>,
    start: Time,
    ended: bool,
    /// Its answer is there, and was counted.
    succeeds: bool,
}

impl Pending {
    /// From now on.
    pub fn new(served: &Arc<Served>, class: &str) -> Self {
        served.stats.pending.fetch_add(1, Relaxed);
        Self {
            start: served.now(),
            served: served.clone(),
            class: (class != DEFAULT).then(|| class.to_owned()),
            ended: false,
            succeeds: false,
        }
    }

    /// When it came, on the engine's clock.
    pub fn start(&self) -> Time {
        self.start
    }

    /// Its model.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Its SLA class.
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or(DEFAULT)
    }

    /// Its answer is there, and was counted: dropped, it has succeeded.
    pub fn succeeds(&mut self) {
        self.succeeds = true;
    }

    /// It counts as no request.
    pub fn forget(&mut self) {
        self.ended = true;
    }

    /// It ends now; a second end does not count.
    pub fn end(&mut self, error: Option<&Error>) {
        if !self.ended {
            self.end_at(self.served.now(), error);
        }
    }

    /// The same where the engine's clock has just been read: it says `now`.
    pub fn end_at(&mut self, now: Time, error: Option<&Error>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let stats = &self.served.stats;
        let took = now.since(self.start);
        tracing::debug!(
            model = self.served.name,
            version = self.served.version,
            class = self.class(),
            us = took.0 / 1000,
            error = error.map(|e| cut(&e.to_string(), MOST_NAME)),
            "request ended"
        );
        match error {
            None => stats.succeeded(self.class(), took, now),
            Some(error) => stats.failed(self.class(), error, took),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.succeeds {
            self.end(None);
        }
        let stats = &self.served.stats;
        stats.pending.fetch_sub(1, Relaxed);
        if !self.ended {
            let now = self.served.now();
            stats.cancelled(self.class(), now.since(self.start));
        }
    }
}
