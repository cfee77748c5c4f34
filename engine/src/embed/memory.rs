//! The limit on what accepted requests hold.
//!
//! A device states the most bytes that a request of some length can hold
//! ([`Device::memory`](lazybatch_kernels::Device::memory)). An engine with a limit takes a request
//! only if that much is left beside those that it took before and that have not ended, waiting ones
//! included. So whatever was accepted has its memory. Requests in the backlog of sequences hold no more than
//! half of a limit (`backlog.rs`).

use std::sync::Arc;

use lazybatch_kernels::{MemoryBound, RequestMemory};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::backlog::Half;
use super::{BuildError, RequestError, Served};
use crate::core::Request;

/// Bytes of a permit: shares are rounded up to it.
pub(crate) const UNIT: u64 = 1 << 10;

/// A share of the limit, given back when it is dropped.
pub(crate) type Share = OwnedSemaphorePermit;

/// What one model's requests hold.
#[derive(Clone)]
pub(crate) struct Bound {
    of: MemoryBound,
    /// In a padded batch every member's activations are as long as the longest request's.
    padded: Option<u32>,
}

impl Bound {
    /// Of requests that `of` bounds; `padded` is the longest request's length where batches are
    /// padded.
    pub fn new(of: MemoryBound, padded: Option<u32>) -> Self {
        Self { of, padded }
    }

    /// What a request holds.
    pub fn request(&self, input_len: u32, samples: u32) -> RequestMemory {
        let own = (self.of)(input_len, samples);
        match self.padded {
            Some(longest) => RequestMemory {
                activations: (self.of)(longest, samples).activations,
                ..own
            },
            None => own,
        }
    }
}

/// The limit of an engine, or of a model.
pub(crate) struct Limit {
    bytes: u64,
    room: Arc<Semaphore>,
    of_backlog: Half,
}

impl Limit {
    /// `bytes` for all requests together.
    pub fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX);
        let units = units.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self {
            bytes,
            room: Arc::new(Semaphore::new(units)),
            of_backlog: Half::of(units),
        }
    }

    /// Checks that the smallest request of the model called `name`, of `shortest` positions, fits.
    pub fn check(
        &self,
        name: &str,
        bound: Option<&Bound>,
        shortest: u32,
    ) -> Result<(), BuildError> {
        let fail = |expected: String, got: String| BuildError::Model {
            model: name.to_string(),
            what: "memory limit".into(),
            expected,
            got,
        };
        let Some(bound) = bound else {
            let expected = "a device that states what requests hold";
            return Err(fail(expected.into(), "one that does not".into()));
        };
        let least = bound.request(shortest, 1).total();
        let least = least.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
        if least > self.bytes {
            let expected = format!("at least {least} bytes, for its smallest request");
            return Err(fail(expected, format!("{} bytes", self.bytes)));
        }
        Ok(())
    }

    /// Units of a request of `needed` bytes, if it fits the limit at all.
    fn units(&self, name: &str, needed: u64, request: &Request) -> Result<u32, RequestError> {
        let refused = || self.refusal(name, needed, request, self.bytes);
        let units = needed.div_ceil(UNIT);
        if units > self.bytes / UNIT {
            return Err(refused());
        }
        u32::try_from(units).map_err(|_| refused())
    }

    fn refusal(&self, name: &str, needed: u64, request: &Request, left: u64) -> RequestError {
        RequestError::Memory {
            model: name.to_string(),
            input_len: request.input_len,
            samples: request.samples,
            got: needed,
            left,
            limit: self.bytes,
        }
    }

    /// The share of a request of `needed` bytes to the model called `name`; waits until there is
    /// room.
    pub async fn share(
        &self,
        name: &str,
        needed: u64,
        request: &Request,
    ) -> Result<Share, RequestError> {
        let units = self.units(name, needed, request)?;
        let room = self.room.clone();
        let share = room.acquire_many_owned(units).await;
        share.map_err(|_| RequestError::Closed)
    }

    /// As [`Self::share`], but refuses if there is no room now.
    pub fn try_share(
        &self,
        name: &str,
        needed: u64,
        request: &Request,
    ) -> Result<Share, RequestError> {
        let units = self.units(name, needed, request)?;
        let share = self.room.clone().try_acquire_many_owned(units);
        share.map_err(|_| {
            let left = self.room.available_permits() as u64 * UNIT;
            self.refusal(name, needed, request, left)
        })
    }

    /// As much as a share of what the backlog may have.
    pub fn backlog_share(
        &self,
        name: &str,
        share: &Share,
        request: &Request,
    ) -> Result<Share, RequestError> {
        let units = share.num_permits();
        let of_backlog = u32::try_from(units).ok();
        of_backlog
            .and_then(|units| self.of_backlog.take(units))
            .ok_or_else(|| {
                let left = self.of_backlog.left() as u64 * UNIT;
                self.refusal(name, units as u64 * UNIT, request, left)
            })
    }
}

impl Served {
    /// Limits on what its requests hold: its own, and that of all models.
    pub fn limits(&self) -> [Option<&Limit>; 2] {
        [self.limit.as_ref(), self.overall.limit.as_ref()]
    }

    /// Bytes that a request of it may hold, where that is limited.
    pub fn memory_of(&self, request: &Request) -> u64 {
        let bound = self.bound.as_ref();
        let bound = bound.filter(|_| self.limits().iter().any(Option::is_some));
        let needed = bound.map(|b| b.request(request.input_len, request.samples).total());
        needed.unwrap_or(0)
    }
}
