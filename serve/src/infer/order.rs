//! Answers in the order of their requests, where a model is to give them so.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The requests of a model that are to be answered one behind the other.
#[derive(Debug, Default)]
pub struct Order(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    next: u64,
    /// Those that have not ended, and who waits for its turn.
    open: BTreeMap<u64, Option<Waker>>,
}

impl Order {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of a request that comes now: behind those of all that came before it.
    pub fn join(self: &Arc<Self>) -> Turn {
        let mut turns = self.turns();
        let at = turns.next;
        turns.next += 1;
        turns.open.insert(at, None);
        Turn {
            order: self.clone(),
            at,
        }
    }
}

/// A request's place in an order, which it leaves when this is dropped: with its answer, or without.
#[derive(Debug)]
pub struct Turn {
    order: Arc<Order>,
    at: u64,
}

impl Turn {
    /// Waits until all that came before have left.
    pub async fn come(&mut self) {
        poll_fn(|context| {
            let mut turns = self.order.turns();
            if turns
                .open
                .first_key_value()
                .is_some_and(|(&at, _)| at == self.at)
            {
                return Poll::Ready(());
            }
            turns.open.insert(self.at, Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.order.turns();
        turns.open.remove(&self.at);
        let first = turns.open.first_entry();
        let waker = first.and_then(|mut first| first.get_mut().take());
        drop(turns);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn turns_come_in_order_whoever_leaves_without_one() {
        let order = Arc::new(Order::default());
        let [first, second, mut third] = [order.join(), order.join(), order.join()];
        let woken = Arc::new(Woken::default());
        let num_woken = || woken.0.load(Ordering::Relaxed);
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut coming = pin!(third.come());
        assert!(coming.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert_eq!(num_woken(), 0, "the first is still there");
        assert!(coming.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert_eq!(num_woken(), 1);
        assert!(coming.as_mut().poll(&mut context).is_ready());
        // Who comes to an empty order waits for nobody.
        let other = Arc::new(Order::default());
        drop(other.join());
        let mut alone = other.join();
        assert!(pin!(alone.come()).poll(&mut context).is_ready());
        drop(alone);
        assert!(other.turns().open.is_empty());
    }
}
