//! Connections looked at in rounds while a model has no room.
//!
//! A server that gets more than it can do is woken by each request that it refuses, and takes the
//! processor from the launches that answer the others: at each wake-up the scheduler's time, and what
//! the launch had in its caches. While requests are refused for the queue is full, workers wait for
//! [`ROUND`] before they ask what came, and refuse all of that in one go, as a network card holds back
//! its interrupts. Answers of that time are later by so much, and by as long as a launch keeps the
//! processor then; where nothing is refused nothing changes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a worker without work looks at nothing behind a refusal.
pub const ROUND: Duration = Duration::from_millis(1);

thread_local! {
    /// Refusals that this worker knew of when it last had no work.
    static SEEN: Cell<u32> = const { Cell::new(0) };
}

/// Refusals for want of room, and who has waited behind them. One for a server and its runtime.
#[derive(Debug, Default)]
pub struct Rounds {
    refused: AtomicU32,
}

impl Rounds {
    /// A request was refused because its model has no room.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether requests were refused since this thread asked before.
    pub fn is_due(&self) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        SEEN.replace(refused) != refused
    }

    /// To be called by a worker that has no work, before it waits for some.
    #[expect(
        clippy::disallowed_methods,
        reason = "the wait is the purpose, and has its bound"
    )]
    pub fn park(&self) {
        if self.is_due() {
            std::thread::sleep(ROUND);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_worker_waits_once_behind_refusals() {
        let rounds = Arc::new(Rounds::default());
        assert!(!rounds.is_due(), "nothing was refused");
        rounds.refuse();
        rounds.refuse();
        let other = rounds.clone();
        let waits = move || [other.is_due(), other.is_due()];
        assert_eq!(std::thread::spawn(waits).join().unwrap(), [true, false]);
        assert!(rounds.is_due(), "another's wait is not this one's");
        assert!(!rounds.is_due());
        rounds.refuse();
        assert!(rounds.is_due());
    }
}
