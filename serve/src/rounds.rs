//! Connections looked at in rounds while a model has no room.
//!
//! A server that gets more than it can do is woken by each request that it refuses, and takes the
//! processor from the launches that answer the others: at each wake-up the scheduler's time, and what
//! the launch had in its caches. While requests are refused for the queue is full, workers wait for
//! [`ROUND`] before they ask what came, and refuse all of that in one go, as a network card holds back
//! its interrupts. Answers of that time are later by so much, and by as long as a launch keeps the
//! processor then; where nothing is refused nothing changes.
//!
//! Beside a device that works on their processors workers are patient instead: when they wake they do not
//! interrupt a launch, whatever comes, but have their turn when the device waits, or has had its own of some
//! milliseconds, and do all at once then that has come. These are rounds as well.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lazybatch_engine::threads::Claim;

/// How long a worker without work looks at nothing behind a refusal.
pub const ROUND: Duration = Duration::from_millis(1);

thread_local! {
    /// Refusals that this worker knew of when it last had no work.
    static SEEN: Cell<u32> = const { Cell::new(0) };
    /// Whether this worker is patient, once it was asked to be.
    static IS_PATIENT: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Refusals for want of room, and who has waited behind them. One for a server and its runtime.
#[derive(Debug, Default)]
pub struct Rounds {
    refused: AtomicU32,
    /// Workers wait for their turns, where the system has such, and for nothing else.
    are_patient: bool,
}

impl Rounds {
    /// Of workers beside a device that works on their processors. Threads that someone has given another
    /// claim than the usual one keep it.
    pub fn beside_device() -> Self {
        Self {
            are_patient: Claim::own() == Some(Claim::Usual),
            ..Self::default()
        }
    }

    /// To be called by a thread of the runtime that starts. Those that are no workers, and devices that are
    /// made there, are not what the worker is that started them.
    pub fn start(&self) {
        if self.are_patient {
            Claim::Usual.take();
        }
    }

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
        let is_patient = self.are_patient
            && IS_PATIENT.get().unwrap_or_else(|| {
                let is_patient = Claim::Patient.take();
                IS_PATIENT.set(Some(is_patient));
                is_patient
            });
        if !is_patient && self.is_due() {
            std::thread::sleep(ROUND);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn workers_are_patient_and_threads_that_they_start_are_not() {
        let claims = |rounds: fn() -> Rounds| {
            let runtime = move || {
                let rounds = Arc::new(rounds());
                let starts = rounds.clone();
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_time()
                    .on_thread_start(move || starts.start())
                    .on_thread_park(move || rounds.park())
                    .build()
                    .unwrap();
                let on_worker = async {
                    // It has waited for this.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let other = tokio::task::spawn_blocking(Claim::own).await.unwrap();
                    [Claim::own(), other]
                };
                let _within = runtime.enter();
                runtime.block_on(runtime.spawn(on_worker)).unwrap()
            };
            std::thread::spawn(runtime).join().unwrap()
        };
        let [usual, patient] = [Claim::Usual, Claim::Patient].map(Some);
        if Claim::own() != usual {
            return;
        }
        assert_eq!(claims(Rounds::beside_device), [patient, usual]);
        assert_eq!(claims(Rounds::default), [usual; 2]);
        let of_patient = || {
            Claim::Patient.take();
            Rounds::beside_device()
        };
        assert_eq!(claims(of_patient), [patient; 2], "as it was started");
    }

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
