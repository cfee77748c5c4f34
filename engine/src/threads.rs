//! When a thread gets a processor that others want too.
//!
//! A device that works in place shares processors with whoever hands requests in. Linux lets a thread that
//! wakes interrupt one that runs: each request that comes in then interrupts a launch, which finds other
//! things in the caches behind it, and is read with cold caches itself.

/// How soon a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// As threads do at first: who wakes may interrupt who runs.
    Usual,
    /// Who wakes waits until who runs has nothing more to do, or its turn of some milliseconds is over.
    Patient,
    /// When nobody else wants a processor.
    Idle,
}

impl Claim {
    /// What the calling thread has; `None` for another one, as of threads in real time, and where the
    /// system does not tell.
    pub fn own() -> Option<Self> {
        system::own()
    }

    /// Gives it to the calling thread, and to those that it starts from then on; whether the system
    /// does that.
    pub fn take(self) -> bool {
        system::take(self)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::Claim;

    /// Of 19, the least urgent.
    const IDLE_NICE: i32 = 15;

    pub fn own() -> Option<Claim> {
        #[allow(unsafe_code, reason = "no library has this call")]
        // SAFETY: it takes and gives numbers.
        let policy = unsafe { libc::sched_getscheduler(0) };
        match policy {
            libc::SCHED_OTHER => Some(Claim::Usual),
            libc::SCHED_BATCH => Some(Claim::Patient),
            libc::SCHED_IDLE => Some(Claim::Idle),
            _ => None,
        }
    }

    pub fn take(claim: Claim) -> bool {
        let policy = match claim {
            Claim::Usual => libc::SCHED_OTHER,
            Claim::Patient => libc::SCHED_BATCH,
            Claim::Idle => {
                // On Linux a nice value and a policy belong to a thread; without a process it is the
                // calling one's. One with a nice value alone keeps its processor for a slice of
                // milliseconds when another wakes; an idle one is interrupted at once.
                let _ = rustix::process::setpriority_process(None, IDLE_NICE);
                libc::SCHED_IDLE
            }
        };
        let none = libc::sched_param { sched_priority: 0 };
        #[allow(unsafe_code, reason = "no library has this call")]
        // SAFETY: the parameters outlive the call, which keeps nothing of them.
        let failed = unsafe { libc::sched_setscheduler(0, policy, &none) };
        failed == 0
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Claim;

    pub fn own() -> Option<Claim> {
        None
    }

    pub fn take(_: Claim) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_the_threads_own_and_of_those_that_it_starts() {
        let in_thread = |f: fn()| std::thread::spawn(f).join().expect("no panic");
        in_thread(|| {
            let before = Claim::own();
            for claim in [Claim::Patient, Claim::Usual, Claim::Patient, Claim::Idle] {
                assert!(claim.take());
                assert_eq!(Claim::own(), Some(claim));
                let started = std::thread::spawn(Claim::own).join().expect("no panic");
                assert_eq!(started, Some(claim));
            }
            assert!(before.is_none_or(|b| b != Claim::Idle));
        });
    }
}
