//! The bound on the sum of latencies from requests in pairs: how long one of two has to wait for
//! the other, whatever else is there.
//!
//! A request's passes fall into stages: the segments of a block that runs once, each by itself, and
//! a loop as a whole, as its steps may share launches. If two requests share a launch in stage `K`,
//! both have left all stages before it behind, and what they did there apart from each other one
//! spent while the other waited; stages that they share nothing in likewise.

use super::Job;
use super::shares::{Stage, Together};

/// Most later requests that one is tried with.
const MOST_PARTNERS: usize = 256;

/// A bound on the sum of latencies less the times alone, in nanoseconds, for jobs by arrival.
/// `stages` are those of each job, with its model, `None` for one that is left out.
pub(super) fn waits(jobs: &[Job], stages: &[Option<(usize, &[Stage])>]) -> f64 {
    let mut pairs: Vec<(f64, usize, usize)> = Vec::new();
    for (i, own) in stages.iter().enumerate() {
        let Some((model, own)) = *own else { continue };
        let end = jobs[i].at + jobs[i].alone;
        let num = jobs[i + 1..].partition_point(|j| j.at < end);
        for j in (i + 1..i + 1 + num).step_by(num.div_ceil(MOST_PARTNERS).max(1)) {
            let Some((other_model, other)) = stages[j] else {
                continue;
            };
            let ahead = jobs[j].at - jobs[i].at;
            let wait = match model == other_model {
                true => least_wait(own, other, ahead),
                false => f64::min(jobs[i].alone - ahead, jobs[j].alone),
            };
            if wait > 0.0 {
                pairs.push((wait, i, j));
            }
        }
    }
    // Any pairs that have no request in common will do: the longest waits first.
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut taken = vec![false; jobs.len()];
    let mut sum = 0.0;
    for (wait, i, j) in pairs {
        if !taken[i] && !taken[j] {
            (taken[i], taken[j]) = (true, true);
            sum += wait;
        }
    }
    sum
}

/// How long the two of one model wait together at least, where `later` arrives when `earlier` can
/// have worked for `ahead` nanoseconds and is not complete.
fn least_wait(earlier: &[Stage], later: &[Stage], mut ahead: f64) -> f64 {
    let sum = |stages: &[Stage]| stages.iter().map(|s| s.alone).sum::<f64>();
    // What is left of both behind the stage looked at.
    let (mut left, mut left_later) = (sum(earlier) - ahead, sum(later));
    let mut least = f64::min(left, left_later);
    let mut apart = 0.0;
    for (own, other) in earlier.iter().zip(later) {
        let done = ahead.min(own.alone);
        let (rest, other) = (own.alone - done, other.alone);
        ahead -= done;
        left -= rest;
        left_later -= other;
        // They share their last launch here, then one of them goes on alone.
        let (more, more_later) = match own.together {
            Together::Equal => (f64::max(0.0, rest - other), f64::max(0.0, other - rest)),
            Together::OneLaunch | Together::Unknown => (0.0, 0.0),
        };
        least = least.min(apart + f64::min(left + more, left_later + more_later));
        apart += match own.together {
            Together::Equal => (rest - other).abs(),
            Together::OneLaunch if own.alone > 0.0 => done * f64::min(1.0, other / own.alone),
            Together::OneLaunch | Together::Unknown => 0.0,
        };
    }
    least
}
