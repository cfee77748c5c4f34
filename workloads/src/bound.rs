//! Lower bounds on mean latency and on violations that no schedule can beat.
//!
//! Given a profile and arrivals with their true lengths, [`LowerBound::of`] says how good any
//! schedule of one device with one launch at a time could be, online or with all arrivals known,
//! whatever it batches. Launches and decisions cost what the [`Simulation`] says; merge copies are
//! taken as free.
//!
//! The relaxation in short (statement and proof: `docs/design/001-lower-bound.md`): for a number e
//! from 0 to 1 every launch gets weights such that `b` members together progress at most at speed
//! `1 + e (b - 1)` (`shares`). A schedule then is no better than one shared machine of speed
//! `1 - e` beside a private one of speed `e` per request. Mean latency: the best mean busy times on
//! those machines, from a dual solution, and how far a request's end lies behind its mean busy time
//! (`mean`). Violations: the most requests that fit between arrival and deadline, in fractions
//! (`on_time`). `e = 0` shares all work at its cheapest, `e = 1` gives every request its own
//! device, but two of them wait for each other where they stand apart (`pairs`); the largest bound
//! over a grid counts.

mod mean;
mod on_time;
mod pairs;
mod shares;
#[cfg(test)]
mod tests;

use crate::arrivals::Arrival;
use crate::error::{Error, Result};
use crate::experiment::Simulation;
use lazybatch_sla::Nanos;

/// Values of e: the private speed of a request.
const PRIVATE_SPEEDS: [f64; 13] = [
    0.0, 0.001, 0.002, 0.004, 0.01, 0.02, 0.04, 0.08, 0.14, 0.22, 0.35, 0.5, 0.7,
];
/// What floating-point sums may be off by.
const ROUNDING: f64 = 1e-9;

/// What no schedule can beat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowerBound {
    /// Requests.
    pub requests: u64,
    /// Bound on the mean latency of schedules that complete every request, in milliseconds.
    pub mean_ms: f64,
    /// Mean latency if every request had its own device, in milliseconds; at most `mean_ms`.
    pub alone_ms: f64,
    /// Bound on the number of requests that miss their target or are not served.
    pub violations: u64,
    /// The private speed that gave `mean_ms`; 1 where it is `alone_ms` and what requests wait for
    /// each other in pairs.
    pub private_speed: f64,
}

/// A request as the relaxation sees it. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Arrival.
    at: f64,
    /// Least latency: alone on the device.
    alone: f64,
}

/// The target of the request at a position.
type Targets<'a> = &'a dyn Fn(usize) -> Nanos;

impl LowerBound {
    /// The bound on every schedule of `simulation`'s arrivals.
    ///
    /// # Errors
    /// [`Error::Parameter`] for arrivals that are unsorted or do not fit the profile, and for noise,
    /// under which launches may take less than the profile says.
    pub fn of(simulation: &Simulation<'_>) -> Result<Self> {
        let own = simulation.targets()?;
        let bounds = Self::under(simulation, &[&|i| own[i]])?;
        Ok(bounds[0])
    }

    /// The bounds where every request has the same target, for each of `slas`. All but
    /// `violations` is the same in all of them.
    ///
    /// # Errors
    /// As [`LowerBound::of`].
    pub fn at_slas(simulation: &Simulation<'_>, slas: &[Nanos]) -> Result<Vec<Self>> {
        let constant = |&sla: &Nanos| move |_: usize| sla;
        let targets: Vec<_> = slas.iter().map(constant).collect();
        let targets: Vec<Targets<'_>> = targets.iter().map(|t| t as Targets<'_>).collect();
        Self::under(simulation, &targets)
    }

    fn under(simulation: &Simulation<'_>, targets: &[Targets<'_>]) -> Result<Vec<Self>> {
        if !simulation.noise.is_silent() {
            let expected = "no noise: the bound is about the profile's latencies";
            return Err(Error::parameter("noise", expected, "some"));
        }
        let arrivals = simulation.arrivals;
        // Checks models and samples.
        simulation.requests(false)?;
        if let Some(i) = (1..arrivals.len()).find(|&i| arrivals[i].at < arrivals[i - 1].at) {
            let got = format!("{} ns behind {} ns", arrivals[i].at.0, arrivals[i - 1].at.0);
            return Err(Error::parameter(
                format!("arrival {i}"),
                "sorted times",
                got,
            ));
        }
        let Some(first) = arrivals.first() else {
            let nothing = Self {
                requests: 0,
                mean_ms: 0.0,
                alone_ms: 0.0,
                violations: 0,
                private_speed: 1.0,
            };
            return Ok(vec![nothing; targets.len()]);
        };
        let models = shares::Models::new(simulation);
        let alone = models.alone();
        let job = |(a, &alone): (&Arrival, &f64)| Job {
            at: a.at.since(first.at).0 as f64,
            alone,
        };
        let jobs: Vec<Job> = arrivals.iter().zip(&alone).map(job).collect();
        let slas_of = |target: &Targets<'_>| -> Vec<f64> {
            (0..jobs.len()).map(|i| target(i).0 as f64).collect()
        };
        let slas: Vec<Vec<f64>> = targets.iter().map(slas_of).collect();
        let alone_sum: f64 = alone.iter().sum();
        let (mut best, mut private_speed) = (alone_sum + models.waits(&jobs), 1.0);
        let in_time = |slas: &Vec<f64>| {
            let each = jobs.iter().zip(slas);
            each.filter(|(job, sla)| job.alone <= **sla).count() as f64
        };
        let mut on_time: Vec<f64> = slas.iter().map(in_time).collect();
        for e in PRIVATE_SPEEDS {
            let Some(shares) = models.shares(e) else {
                continue;
            };
            let sum = mean::latency_sum(&jobs, &shares, e);
            if sum > best {
                (best, private_speed) = (sum, e);
            }
            for (on_time, slas) in on_time.iter_mut().zip(&slas) {
                *on_time = on_time.min(on_time::at_most(&jobs, slas, &shares, e));
            }
        }
        let n = jobs.len() as f64;
        let bound = |on_time: f64| {
            let met = (on_time * (1.0 + ROUNDING) + ROUNDING).floor() as u64;
            Self {
                requests: jobs.len() as u64,
                mean_ms: best * (1.0 - ROUNDING) / n / 1e6,
                alone_ms: alone_sum * (1.0 - ROUNDING) / n / 1e6,
                violations: (jobs.len() as u64).saturating_sub(met),
                private_speed,
            }
        };
        Ok(on_time.into_iter().map(bound).collect())
    }
}
