//! The clock of benches and measurements.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, to measure spans by.
#[allow(clippy::disallowed_methods, reason = "a bench reads a clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds that `f` takes, and its result.
pub fn time<R>(f: impl FnOnce() -> R) -> (f64, R) {
    let start = now();
    let result = f();
    (start.elapsed().as_nanos() as f64, result)
}

/// Nanoseconds between two readings of the clock with nothing in between: the median of many.
pub fn reading_cost_ns() -> f64 {
    let mut costs: Vec<f64> = (0..10_001).map(|_| time(|| ()).0).collect();
    costs.sort_unstable_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// Nanoseconds of processor time that this thread has taken, from the first field of its
/// `schedstat`; of the wall clock where the system does not say. Source: the kernel's
/// `Documentation/scheduler/sched-stats.rst`.
pub fn thread_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let taken = text.split_whitespace().next().and_then(|t| t.parse().ok());
    taken.unwrap_or_else(|| START.elapsed().as_nanos() as f64)
}

/// When wall time is counted from where processor time is not known.
static START: LazyLock<Instant> = LazyLock::new(now);

/// Waits without work.
#[allow(
    clippy::disallowed_methods,
    reason = "a measurement that needs an idle engine waits between requests"
)]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// The present minute in UTC, `2026-01-31T23:59Z`.
#[allow(clippy::disallowed_methods, reason = "results carry their date")]
pub fn utc_minute() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let minutes = since.map_or(0, |s| s.as_secs() / 60);
    let (year, month, day) = civil(minutes / 1440);
    let (hour, minute) = (minutes % 1440 / 60, minutes % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z")
}

/// The Gregorian date of a day since 1970-01-01.
///
/// Source: Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_453), (2025, 12, 31));
        assert_eq!(civil(20_454), (2026, 1, 1));
    }
}
