//! Loads and unloads that clients ask for: one after another, in the order in which they came.
//!
//! Only the one whose turn it is has a thread, so that others of the pool stay for what else has to
//! wait for a disk. One that waits goes with its caller.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::error::{Error, Result};

/// Most of them at once, the one that runs among them.
const MOST: usize = 64;

/// Whose turn it is.
pub struct Changes {
    places: Arc<Semaphore>,
    turn: Arc<Mutex<()>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MOST)),
            turn: Arc::default(),
        }
    }
}

impl Changes {
    /// Makes a change on a thread where that may take its time, when its turn comes. Once begun it is
    /// made to its end, whoever waits for it.
    ///
    /// # Errors
    /// Too many that wait, or what the change says.
    pub async fn make<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{MOST} loads and unloads of models wait or run, the most");
            Error::Unavailable(message)
        })?;
        let turn = self.turn.clone().lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _holds = (turn, place);
            change()
        });
        made.await
            .unwrap_or_else(|e| Err(Error::Internal(e.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn changes_wait_in_bounds_and_go_with_their_callers() {
        let changes = Arc::new(Changes::default());
        let (go, goes) = mpsc::channel::<()>();
        let first = {
            let changes = changes.clone();
            tokio::spawn(async move {
                let change = move || goes.recv().map_err(|e| Error::Internal(e.to_string()));
                changes.make(change).await
            })
        };
        while changes.turn.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let made = Arc::new(AtomicUsize::new(0));
        let count = || {
            let made = made.clone();
            move || Ok(made.fetch_add(1, SeqCst))
        };
        let mut waiting: Vec<_> = (1..MOST).map(|_| Box::pin(changes.make(count()))).collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let refused = changes.make(count()).now_or_never().unwrap();
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        // Those whose callers have gone leave their places and are never made.
        waiting.truncate(1);
        go.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert_eq!(waiting.remove(0).await.unwrap(), 0);
        assert_eq!(changes.make(count()).await.unwrap(), 1);
    }
}
