//! What the machine and this process use of processors and memory; nothing where the system does not
//! say.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time of all processors since the machine started, in the system's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    /// In which they worked.
    pub busy: u64,
    /// All of it.
    pub total: u64,
}

impl Processors {
    /// Part of the time since `before` in which they worked, from 0 to 1; `None` if none has passed.
    pub fn utilization_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|&t| t > 0)?;
        let busy = self.busy.saturating_sub(before.busy).min(total);
        Some(busy as f64 / total as f64)
    }
}

/// Tells how much processors worked since it was last asked.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Option<(Instant, Processors, Option<f64>)>>);

impl Meter {
    /// Shortest time that is told of, since several may ask.
    const SHORTEST: Duration = Duration::from_secs(1);

    /// Part of the time since it was last asked in which processors worked; of the last whole second
    /// before, if it was asked within one. `None` where that is not known, and at first.
    pub fn utilization(&self) -> Option<f64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, _, told)) = &*last
            && at.elapsed() < Self::SHORTEST
        {
            return *told;
        }
        let now = processors()?;
        let told = last.and_then(|(_, before, _)| now.utilization_since(before));
        *last = Some((Instant::now(), now, told));
        told
    }
}

/// Bytes of memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// Of that, what is not available to a program that asks for it.
    pub used: u64,
}

#[cfg(target_os = "linux")]
mod system {
    use procfs::{Current, CurrentSI};

    use super::{Memory, Processors};

    /// Time of all processors so far.
    pub fn processors() -> Option<Processors> {
        let t = procfs::KernelStats::current().ok()?.total;
        let idle = t.idle + t.iowait.unwrap_or(0);
        let busy = t.user + t.nice + t.system;
        let busy = busy + t.irq.unwrap_or(0) + t.softirq.unwrap_or(0) + t.steal.unwrap_or(0);
        let total = busy + idle;
        Some(Processors { busy, total })
    }

    /// Memory of the machine.
    pub fn memory() -> Option<Memory> {
        let info = procfs::Meminfo::current().ok()?;
        let total = info.mem_total;
        let used = total.saturating_sub(info.mem_available?);
        Some(Memory { total, used })
    }

    /// Bytes of memory that this process has.
    pub fn resident() -> Option<u64> {
        let stat = procfs::process::Process::myself().ok()?.statm().ok()?;
        Some(stat.resident * procfs::page_size())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Memory, Processors};

    /// Not known here.
    pub fn processors() -> Option<Processors> {
        None
    }

    /// Not known here.
    pub fn memory() -> Option<Memory> {
        None
    }

    /// Not known here.
    pub fn resident() -> Option<u64> {
        None
    }
}

pub use system::{memory, processors, resident};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_a_part_of_the_time_that_passed() {
        let at = |busy, total| Processors { busy, total };
        assert_eq!(at(30, 100).utilization_since(at(10, 20)), Some(0.25));
        assert_eq!(at(10, 20).utilization_since(at(10, 20)), None);
        assert_eq!(at(10, 20).utilization_since(at(30, 100)), None);
        assert_eq!(at(5, 30).utilization_since(at(10, 20)), Some(0.0));
    }

    #[test]
    fn a_meter_tells_nothing_of_no_time() {
        let meter = Meter::default();
        assert_eq!(meter.utilization(), None);
        assert_eq!(meter.utilization(), None, "less than a second has passed");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_all_of_it() {
        let memory = memory().unwrap();
        assert!(memory.used > 0 && memory.used < memory.total);
        assert!((1..memory.total).contains(&resident().unwrap()));
        let now = processors().unwrap();
        assert!(now.busy > 0 && now.busy <= now.total);
    }
}
