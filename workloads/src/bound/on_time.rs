//! The bound on how many requests meet their target.
//!
//! A request is on time if its work is done between arrival and deadline: at most `e` times its
//! target on its private machine, the rest on the shared one. In fractions of requests the most that
//! fit are found greedily, least work first, each as far as what is taken already leaves room
//! (amounts that fit are a polymatroid). An amount fits if for every pair of an arrival and a later
//! deadline what lies wholly between them does; deadlines are first moved up so that they come in
//! the order of arrivals, which only adds room.

use super::Job;
use super::shares::Share;

/// The most requests that can be on time under targets `slas` in nanoseconds, in fractions, for a
/// private speed `e < 1`.
pub(super) fn at_most(jobs: &[Job], slas: &[f64], shares: &[Share], e: f64) -> f64 {
    let speed = 1.0 - e;
    let (mut starts, mut deadlines) = (Vec::new(), Vec::new());
    let mut work = Vec::new();
    let mut latest = 0.0;
    let mut met = 0.0;
    for ((job, share), &sla) in jobs.iter().zip(shares).zip(slas) {
        if job.alone > sla {
            continue;
        }
        latest = f64::max(latest, job.at + sla);
        let rest = share.work - e * sla;
        if rest <= 0.0 {
            met += 1.0;
            continue;
        }
        starts.push(job.at * speed);
        deadlines.push(latest * speed);
        work.push(rest);
    }
    let n = work.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| work[a].total_cmp(&work[b]).then(a.cmp(&b)));
    // With P[k] the amounts taken up to k, what lies between the i-th arrival and the k-th deadline
    // has room for deadline[k] - P[k] - (start[i] - P[i - 1]) more.
    let mut room = Tree::new(&deadlines);
    let mut used = Tree::new(&starts.iter().map(|s| -s).collect::<Vec<f64>>());
    for m in order {
        let free = room.least(m, n) + used.least(0, m + 1);
        let taken = free.clamp(0.0, work[m]);
        met += taken / work[m];
        room.add(m, n, -taken);
        used.add(m + 1, n, taken);
    }
    met
}

/// Sums over ranges and least values of ranges.
struct Tree {
    num_leaves: usize,
    least: Vec<f64>,
    added: Vec<f64>,
}

impl Tree {
    fn new(values: &[f64]) -> Self {
        let num_leaves = values.len().next_power_of_two();
        let mut least = vec![f64::INFINITY; 2 * num_leaves];
        least[num_leaves..num_leaves + values.len()].copy_from_slice(values);
        for i in (1..num_leaves).rev() {
            least[i] = f64::min(least[2 * i], least[2 * i + 1]);
        }
        Self {
            num_leaves,
            least,
            added: vec![0.0; 2 * num_leaves],
        }
    }

    /// Adds `amount` to the values at `from..to`.
    fn add(&mut self, from: usize, to: usize, amount: f64) {
        self.add_below(1, 0, self.num_leaves, (from, to), amount);
    }

    fn add_below(&mut self, at: usize, lo: usize, hi: usize, range: (usize, usize), amount: f64) {
        if range.1 <= lo || hi <= range.0 {
            return;
        }
        if range.0 <= lo && hi <= range.1 {
            self.least[at] += amount;
            self.added[at] += amount;
            return;
        }
        let mid = usize::midpoint(lo, hi);
        self.add_below(2 * at, lo, mid, range, amount);
        self.add_below(2 * at + 1, mid, hi, range, amount);
        self.least[at] = f64::min(self.least[2 * at], self.least[2 * at + 1]) + self.added[at];
    }

    /// The least value at `from..to`.
    fn least(&self, from: usize, to: usize) -> f64 {
        self.least_below(1, 0, self.num_leaves, (from, to))
    }

    fn least_below(&self, at: usize, lo: usize, hi: usize, range: (usize, usize)) -> f64 {
        if range.1 <= lo || hi <= range.0 {
            return f64::INFINITY;
        }
        if range.0 <= lo && hi <= range.1 {
            return self.least[at];
        }
        let mid = usize::midpoint(lo, hi);
        let left = self.least_below(2 * at, lo, mid, range);
        let right = self.least_below(2 * at + 1, mid, hi, range);
        f64::min(left, right) + self.added[at]
    }
}
