//! What requests in the backlog of sequences may hold of what is bounded.
//!
//! They hold their places in queues and their shares of memory until sequences that are open end, which
//! takes requests of those. So they get half of each bound, and open sequences find room beside them.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Permits, RequestError, Served};
use crate::core::Request;

/// What a request holds of those halves while it is in the backlog.
pub(crate) type InBacklog = SmallVec<[OwnedSemaphorePermit; 2]>;

/// Half of what is bounded, in its units; one at the least.
pub(super) struct Half(Arc<Semaphore>);

impl Half {
    pub fn of(most: usize) -> Self {
        let half = (most / 2).clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(half)))
    }

    /// So much of it, if that is free.
    pub fn take(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_many_owned(units).ok()
    }

    /// How much of it is free.
    pub fn left(&self) -> usize {
        self.0.available_permits()
    }
}

impl Served {
    /// Room in the backlog for a request that has these shares of memory.
    ///
    /// # Errors
    /// What has no room for it.
    pub fn backlog_room(
        &self,
        request: &Request,
        memory: &Permits<2>,
    ) -> Result<InBacklog, RequestError> {
        let mut held = InBacklog::new();
        let level = request.priority;
        if let Some(queue) = self.level_queues.get(&level) {
            let full = |max_queue| RequestError::LevelFull { level, max_queue };
            held.push(queue.backlog_place().map_err(full)?);
        }
        for queue in self.queue.iter().chain([&self.overall.queue]) {
            let full = |max_queue| RequestError::QueueFull { max_queue };
            held.push(queue.backlog_place().map_err(full)?);
        }
        for (limit, share) in self.limits().into_iter().zip(memory) {
            if let (Some(limit), Some(share)) = (limit, share) {
                held.push(limit.backlog_share(&self.name, share, request)?);
            }
        }
        Ok(held)
    }
}
