//! Connections looked at in rounds while a model has no room.
//!
//! A server that gets more than it can do is woken by each request that it refuses, and takes the
//! processor from the launches that answer the others: at each wake-up the scheduler's time, and what
//! the launch had in its caches. While requests are refused for the queue is full, workers wait for
//! [`ROUND`] before they ask what came, and refuse all of that in one go, as a network card holds back
//! its interrupts. Answers of that time are later by so much, and by as long as a launch keeps the
//! processor then; where nothing is refused nothing changes.
//!
//! Where there is one processor, the scheduler may leave a worker waiting for it until its next tick,
//! milliseconds behind the end of a round, though launches are much shorter. The thread that computes
//! therefore looks between two launches whether a worker ought to have the processor ([`Watch`]), and
//! yields it: behind a round at once, and otherwise once a millisecond, so that a worker which always
//! has work does not keep launches from going on.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lazybatch_engine::Clock;
use lazybatch_sla::{Nanos, Time};

/// How long a worker without work looks at nothing behind a refusal.
pub const ROUND: Duration = Duration::from_millis(1);
/// How long a round takes at most, until its worker waits for the processor: timers are late a little.
const LATE: Nanos = Nanos(ROUND.as_nanos() as u64 * 11 / 10);
/// How long launches go on while a worker has work.
const TURN: Nanos = Nanos(1_000_000);

thread_local! {
    /// Refusals that this worker knew of when it last had no work.
    static SEEN: Cell<u32> = const { Cell::new(0) };
}

/// Refusals for want of room, who has waited behind them, and what the worker does. One for a server
/// and its runtime.
#[derive(Debug, Default)]
pub struct Rounds {
    refused: AtomicU32,
    /// What the worker does, and how often it has begun something else.
    doing: AtomicU32,
}

/// In [`Rounds::doing`]: it waits for whatever comes.
const WAITS: u32 = 0;
/// It waits for a round to be over.
const ROUNDS: u32 = 1;
/// It has work.
const WORKS: u32 = 2;
/// Bits of these.
const DOING: u32 = 3;

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
            self.does(ROUNDS);
            std::thread::sleep(ROUND);
        }
        self.does(WAITS);
    }

    /// To be called by a worker that has waited and goes on.
    pub fn unpark(&self) {
        self.does(WORKS);
    }

    fn does(&self, what: u32) {
        let before = self.doing.load(Ordering::Relaxed);
        let next = (before | DOING).wrapping_add(1) | what;
        self.doing.store(next, Ordering::Relaxed);
    }

    /// What a thread that computes goes by, where there is one processor for all; else `None`.
    pub fn watch(self: &Arc<Self>) -> Option<Watch> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        (processors == 1).then(|| Watch {
            rounds: self.clone(),
            seen: WAITS,
            since: Time::ZERO,
        })
    }
}

/// Sees, on the thread that has the processor, that a worker ought to have it.
#[derive(Debug)]
pub struct Watch {
    rounds: Arc<Rounds>,
    /// What the worker did, and since when that is known.
    seen: u32,
    since: Time,
}

impl Watch {
    /// Lets the worker go first if it has waited for the processor; to be called between launches.
    pub fn look(&mut self, clock: &Clock) {
        if self.is_due(clock.now()) {
            std::thread::yield_now();
            self.since = clock.now();
        }
    }

    /// Whether the worker has done the same for so long that it must be waiting for the processor,
    /// which the calling thread has.
    fn is_due(&mut self, now: Time) -> bool {
        let doing = self.rounds.doing.load(Ordering::Relaxed);
        if doing != self.seen {
            (self.seen, self.since) = (doing, now);
            return false;
        }
        let most = match doing & DOING {
            ROUNDS => LATE,
            WORKS => TURN,
            _ => return false,
        };
        now.since(self.since) > most
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

    #[test]
    fn who_computes_lets_a_worker_go_first_behind_its_round_and_once_in_a_turn_of_work() {
        let rounds = Arc::new(Rounds::default());
        let mut watch = Watch {
            rounds: rounds.clone(),
            seen: WAITS,
            since: Time::ZERO,
        };
        let at = |us: u64| Time(us * 1000);
        // Whoever waits for what comes is not waiting for the processor.
        assert!([0, 5_000, 50_000].map(|us| watch.is_due(at(us))) == [false; 3]);
        // A round, from when it is seen to have begun.
        rounds.does(ROUNDS);
        assert!([50_010, 50_900, 51_100].map(|us| watch.is_due(at(us))) == [false; 3]);
        assert!(watch.is_due(at(51_120)));
        // It has got the processor, and has work for long.
        rounds.unpark();
        assert!([51_500, 52_400].map(|us| watch.is_due(at(us))) == [false; 2]);
        assert!(watch.is_due(at(52_600)));
        // Another wait in between is another turn.
        rounds.park();
        rounds.unpark();
        assert!(!watch.is_due(at(60_000)));
        assert!(!watch.is_due(at(60_900)));
        assert!(watch.is_due(at(61_100)));
    }
}
