//! Inference calls in flight, of which there are only so many.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The calls of a server.
#[derive(Debug)]
pub struct Calls {
    most: usize,
    num: AtomicUsize,
    /// Those that found no room.
    refused: AtomicU64,
    /// Told when none is left.
    none: Notify,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Calls>);

impl Calls {
    /// At most `most`.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            num: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            none: Notify::new(),
        }
    }

    /// Most of them.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many there are, also while somebody waits until there is none.
    pub fn num(&self) -> usize {
        self.num.load(Ordering::SeqCst)
    }

    /// Another one, if there is room for it.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let order = Ordering::SeqCst;
        let more = |num: usize| (num < self.most).then_some(num + 1);
        let entered = self.num.fetch_update(order, order, more);
        if entered.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        entered.ok().map(|_| Place(self.clone()))
    }

    /// How many found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until there is none.
    pub async fn gone(&self) {
        loop {
            let mut none = pin!(self.none.notified());
            // What is told from here on is heard.
            none.as_mut().enable();
            if self.num() == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.num.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn calls_are_counted_while_somebody_waits_for_their_end() {
        let calls = Arc::new(Calls::new(2));
        let (first, second) = (calls.enter().unwrap(), calls.enter().unwrap());
        assert!(calls.enter().is_none());
        assert_eq!(calls.refused(), 1);
        let mut gone = pin!(calls.gone());
        assert!(gone.as_mut().now_or_never().is_none());
        assert_eq!(calls.num(), 2);
        drop(first);
        assert!(gone.as_mut().now_or_never().is_none());
        assert_eq!(calls.num(), 1);
        let third = calls.enter().unwrap();
        drop(second);
        assert!(gone.as_mut().now_or_never().is_none());
        drop(third);
        gone.await;
        assert_eq!(calls.num(), 0);
    }
}
