//! How much of the machine others took during a span.
//!
//! Reads the counters of the Linux kernel; on other systems nothing is known.

use std::fs;

/// Processor time since the start of the system, in ticks over all cores.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    total: u64,
    /// Neither idle nor waiting for a disk; time that the hypervisor took included.
    busy: u64,
    /// Of this process.
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat, &own)
    }

    /// Source: proc(5): `cpu user nice system idle iowait irq softirq steal ...`, and fields 14 and
    /// 15 of a process, counted behind its name in brackets.
    fn parse(stat: &str, own: &str) -> Option<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace()
                .filter_map(|f| f.parse().ok())
                .collect()
        };
        let all = numbers(stat.lines().next()?.strip_prefix("cpu ")?);
        let total = all.get(..8)?.iter().sum();
        let (_, fields) = own.rsplit_once(')')?;
        let own: Vec<&str> = fields.split_whitespace().collect();
        let field = |i: usize| own.get(i)?.parse::<u64>().ok();
        Some(Self {
            total,
            busy: total - all[3] - all[4],
            own: field(11)? + field(12)?,
        })
    }
}

/// Watches from its making to [`Contention::share`].
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    start: Option<Ticks>,
}

impl Contention {
    /// Starts now.
    pub fn watch() -> Self {
        Self {
            start: Ticks::now(),
        }
    }

    /// Processor time that other processes and the hypervisor took, as a share of all there was;
    /// not a number where the system does not say.
    pub fn share(&self) -> f64 {
        let (Some(start), Some(end)) = (self.start, Ticks::now()) else {
            return f64::NAN;
        };
        let others = (end.busy - start.busy).saturating_sub(end.own - start.own);
        others as f64 / (end.total - start.total).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_kernels_format() {
        let stat = "cpu  10 20 30 400 50 6 7 8 0 0\ncpu0 1 2 3 4\n";
        let own = "17 (a (b) c) S 1 1 1 0 -1 4 5 6 7 8 90 10 0 0 20";
        let ticks = Ticks::parse(stat, own).unwrap();
        assert_eq!((ticks.total, ticks.busy, ticks.own), (531, 81, 100));
    }
}
