//! The bound on the sum of latencies.
//!
//! Requests have work `w`, arrive at `a`, and progress on one shared machine of speed `1 - e` and
//! each on a private one of speed `e`. Cost of progress at time `t`: `(t - a) / w`, so that a
//! request's cost is its mean busy time behind its arrival. For prices `p` of the requests' work the
//! dual value is
//!
//! ```text
//! sum p w - e sum p^2 w / 2 - (1 - e) integral over t of max over requests of (p - (t - a) / w)+
//! ```
//!
//! and bounds the cost of every schedule, whatever the prices. They are found by turns: with the
//! work `z` that is left to the shared machine given, the best order there is known (least `w`
//! first, preempting) and so are its prices, as is the integral; with prices given, the private
//! machines take `e p w` each, and `z` is the rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Job;
use super::shares::Share;

/// Turns of prices and work.
const TURNS: usize = 40;
/// Turns without gain behind which to stop.
const PATIENCE: usize = 6;
/// Least share of a request's work that stays on the shared machine, so that it has a price there.
const LEAST_SHARED: f64 = 1e-6;

/// Prices, and the cost of the work on the shared machine.
pub(super) struct Ordered {
    pub prices: Vec<f64>,
    pub cost: f64,
}

/// A bound on the sum of latencies, in nanoseconds, for a private speed `e < 1`.
pub(super) fn latency_sum(jobs: &[Job], shares: &[Share], e: f64) -> f64 {
    let lag: f64 = shares.iter().map(|s| s.lag).sum();
    let mut left: Vec<f64> = shares.iter().map(|s| s.work * (1.0 - e)).collect();
    let (mut best, mut idle_turns) = (0.0, 0);
    for turn in 0..TURNS {
        let ordered = shared(jobs, shares, &left, 1.0 - e);
        let mut value = ordered.cost;
        for ((price, share), left) in ordered.prices.iter().zip(shares).zip(&left) {
            value += price * (share.work - left) - e * price * price * share.work / 2.0;
        }
        if value > best * (1.0 + 1e-4) {
            idle_turns = 0;
        } else {
            idle_turns += 1;
        }
        best = f64::max(best, value);
        if e == 0.0 || idle_turns >= PATIENCE {
            break;
        }
        let step = 2.0 / (turn as f64 + 3.0);
        for ((price, share), left) in ordered.prices.iter().zip(shares).zip(&mut left) {
            let wanted = share.work * (1.0 - e * price).max(LEAST_SHARED);
            *left += step * (wanted - *left);
        }
    }
    if e == 0.0 {
        return f64::max(best + lag, shortest_remaining(jobs, shares));
    }
    best + lag
}

/// The shared machine with work `left`: least `work` first, preempting. Jobs by arrival.
pub(super) fn shared(jobs: &[Job], shares: &[Share], left: &[f64], speed: f64) -> Ordered {
    let n = jobs.len();
    let mut by_work: Vec<usize> = (0..n).collect();
    by_work.sort_by(|&a, &b| shares[a].work.total_cmp(&shares[b].work).then(a.cmp(&b)));
    let mut rank = vec![0; n];
    for (r, &j) in by_work.iter().enumerate() {
        rank[j] = r;
    }
    let mut left = left.to_vec();
    let mut waiting: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    // Whose price follows from whose: (request, its end, the first of those that wait then).
    let mut ends: Vec<(usize, f64, Option<usize>)> = Vec::with_capacity(n);
    let (mut next, mut now, mut cost) = (0, 0.0, 0.0);
    while next < n || !waiting.is_empty() {
        if waiting.is_empty() {
            now = f64::max(now, jobs[next].at);
        }
        while next < n && jobs[next].at <= now {
            waiting.push(Reverse(rank[next]));
            next += 1;
        }
        let Some(&Reverse(first)) = waiting.peek() else {
            continue;
        };
        let j = by_work[first];
        let end = now + left[j] / speed;
        let until = if next < n {
            end.min(jobs[next].at)
        } else {
            end
        };
        if shares[j].work > 0.0 {
            let (from, to) = (now - jobs[j].at, until - jobs[j].at);
            cost += speed * (to * to - from * from) / 2.0 / shares[j].work;
        }
        if until < end {
            left[j] -= speed * (until - now);
        } else {
            waiting.pop();
            ends.push((j, end, waiting.peek().map(|r| by_work[r.0])));
        }
        now = until;
    }
    let mut prices = vec![0.0; n];
    for &(j, end, behind) in ends.iter().rev() {
        let delay = |k: usize| {
            let work = shares[k].work;
            if work > 0.0 {
                (end - jobs[k].at) / work
            } else {
                0.0
            }
        };
        // Where one ends and another goes on, both are worth the same.
        let worth = behind.map_or(0.0, |k| f64::max(0.0, prices[k] - delay(k)));
        prices[j] = worth + delay(j);
    }
    Ordered { prices, cost }
}

/// Sum of latencies on one machine that always works on what has the least left: the least sum of
/// any schedule of `work` on one machine of speed 1.
fn shortest_remaining(jobs: &[Job], shares: &[Share]) -> f64 {
    // Work in whole nanoseconds, rounded down, so that it orders.
    let mut waiting: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut next, mut now, mut sum) = (0, 0.0, 0.0);
    while next < jobs.len() || !waiting.is_empty() {
        if waiting.is_empty() {
            now = f64::max(now, jobs[next].at);
        }
        while next < jobs.len() && jobs[next].at <= now {
            waiting.push(Reverse((shares[next].work as u64, next)));
            next += 1;
        }
        let Some(Reverse((left, j))) = waiting.pop() else {
            continue;
        };
        let end = now + left as f64;
        match jobs.get(next).filter(|n| n.at < end) {
            Some(arrival) => {
                let left = left - (arrival.at - now) as u64;
                waiting.push(Reverse((left, j)));
                now = arrival.at;
            }
            None => {
                sum += end - jobs[j].at;
                now = end;
            }
        }
    }
    sum
}
