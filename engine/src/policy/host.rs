//! What launches and requests take of the host, beside what the device does.
//!
//! Where the driver's own thread computes, no launch runs while it decides, answers, and takes
//! requests in. Latency tables do not have that time; it is a large part of short launches, and a
//! larger batch pays it once. What comes with each request rather than with a launch is in some turns
//! and not in others: a low quantile of what turns take is near to that of a launch alone, and does
//! not mind those in which somebody else had the processor. What turns take beyond it, by the arrivals
//! and ends that they have, is what a request takes: no rule saves it, but a device that looks idle
//! for a tenth of its time without it has none to spare. (Below saturation it is found too low: answers
//! behind which nothing is launched are in no turn that is measured.) On devices that run beside the
//! driver a launch takes next to nothing of it, and what requests take does not hold the device up; in
//! virtual time both are nothing.

use lazybatch_sla::Nanos;

/// The share of launches that have less.
const QUANTILE: f64 = 0.25;
/// Launches of which the least begins it: the first may have waited for a model to load.
const FIRST: u32 = 8;
/// By how much of itself the estimate moves at a launch, at the least.
const NEWEST: f64 = 0.02;
/// What less than that moves by, in nanoseconds, if there is as much.
const LEAST: f64 = 1_000.0;
/// Arrivals and ends of which the estimate for requests is the mean; then each has so small a share.
const RECENT: f64 = 200.0;
/// One turn counts for no more than so many times the estimate, and [`LEAST`].
const OUTLIER: f64 = 4.0;

/// Running estimates of the time beside launches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Host {
    /// A quantile of that of turns.
    ns: f64,
    num: u32,
    /// Arrivals and ends since the last launch was over.
    num_edges: u32,
    /// Mean of what turns take beyond `ns` for each of them.
    per_edge: f64,
    /// Of how many it is, up to [`RECENT`].
    num_known: f64,
}

impl Host {
    /// A request arrives or ends: an *edge*.
    pub fn on_edge(&mut self) {
        self.num_edges += 1;
    }

    /// A launch took the device `took`; from its issue until its end was seen it was `ran`.
    pub fn on_done(&mut self, took: Nanos, ran: Nanos) {
        let beside = ran.0.saturating_sub(took.0) as f64;
        self.num = self.num.saturating_add(1);
        let edges = f64::from(std::mem::take(&mut self.num_edges));
        if edges > 0.0 && self.num > FIRST {
            let most = OUTLIER * self.per_edge + LEAST;
            let each = ((beside - self.ns) / edges).clamp(0.0, most);
            self.num_known = (self.num_known + edges).min(RECENT.max(edges));
            self.per_edge += edges / self.num_known * (each - self.per_edge);
        }
        if self.num <= FIRST {
            let least = if self.num == 1 { beside } else { self.ns };
            self.ns = least.min(beside);
            return;
        }
        let step = NEWEST * self.ns.max(beside.min(LEAST));
        self.ns += match beside {
            more if more > self.ns => step * QUANTILE,
            less if less < self.ns => -step * (1.0 - QUANTILE),
            _ => 0.0,
        };
    }

    /// For each launch.
    pub fn per_launch(&self) -> Nanos {
        Nanos(self.ns as u64)
    }

    /// For each request, which arrives and ends.
    pub fn per_request(&self) -> Nanos {
        Nanos((2.0 * self.per_edge) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(beside: impl Iterator<Item = u64>) -> f64 {
        let mut host = Host::default();
        for ns in beside {
            host.on_done(Nanos(50_000), Nanos(50_000 + ns));
        }
        host.per_launch().0 as f64
    }

    #[test]
    fn nothing_beside_launches_is_nothing() {
        assert_eq!(after(std::iter::repeat_n(0, 500)), 0.0);
        let mut host = Host::default();
        host.on_done(Nanos(70), Nanos(50));
        assert_eq!(host.per_launch(), Nanos::ZERO, "took longer than it ran");
    }

    #[test]
    fn what_all_launches_have_is_found_under_what_some_have() {
        // Two of three turns have requests to take in and to answer, one of fifty was interrupted.
        let beside = |i: u64| {
            6_000 + i % 7 * 100 + i % 3 * 4_000 + u64::from(i.is_multiple_of(50)) * 4_000_000
        };
        let found = after((0..3000).map(beside));
        assert!((5_500.0..7_500.0).contains(&found), "{found}");
    }

    #[test]
    fn what_turns_take_beyond_is_that_of_their_requests() {
        // Two of three turns have a request to take in, or two to answer, of 3 us each; one of fifty
        // was interrupted.
        let mut host = Host::default();
        for i in 0..4000_u64 {
            let ends = i % 3;
            (0..ends).for_each(|_| host.on_edge());
            let beside =
                5_000 + i % 7 * 100 + ends * 3_000 + u64::from(i.is_multiple_of(50)) * 4_000_000;
            host.on_done(Nanos(50_000), Nanos(50_000 + beside));
        }
        let found = host.per_request().0;
        assert!((5_000..7_500).contains(&found), "{found}");
        // It takes a third of that now.
        for i in 0..4000_u64 {
            let ends = i % 2;
            (0..ends).for_each(|_| host.on_edge());
            host.on_done(Nanos(50_000), Nanos(55_000 + ends * 1_000));
        }
        let found = host.per_request().0;
        assert!((1_800..2_200).contains(&found), "{found}");
    }

    #[test]
    fn one_long_turn_at_the_start_is_forgotten_at_once() {
        let beside = std::iter::once(80_000_000).chain(std::iter::repeat_n(5_000, 7));
        assert_eq!(after(beside), 5_000.0);
    }

    #[test]
    fn it_follows() {
        let found = after((0..1000).map(|i| if i < 500 { 20_000 } else { 4_000 }));
        assert!((3_500.0..4_500.0).contains(&found), "{found}");
        let found = after((0..2000).map(|i| if i < 500 { 0 } else { 8_000 }));
        assert!((7_000.0..8_500.0).contains(&found), "{found}");
    }
}
