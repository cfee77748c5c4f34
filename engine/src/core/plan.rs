//! Plans: long computations that a policy asks for and the driver makes.
//!
//! A policy that wants to know how rules would do over many arrivals hands out a [`PlanRequest`]
//! (with [`super::Action::Plan`]); the driver simulates each candidate over the arrivals, off the
//! device's path, and answers with [`super::Event::Planned`]. The answer is an event, so that a
//! journal replays without simulating anything.

use lazybatch_sla::{ClassId, ModelId, Nanos, RequestId};
use serde::{Deserialize, Serialize};

use super::config::CoreConfig;

/// One arrival of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Id of the request.
    pub id: RequestId,
    /// Time since the arrival before it.
    pub gap: Nanos,
    /// Model.
    pub model: ModelId,
    /// SLA target.
    pub sla: Option<Nanos>,
    /// SLA class.
    pub class: ClassId,
    /// Priority level.
    pub priority: u8,
    /// How long it may wait before it is delayed.
    pub delay_after: Option<Nanos>,
    /// Samples.
    pub samples: u32,
    /// Length of its input.
    pub input_len: u32,
    /// Passes of its loop, measured or guessed; 0 skips it.
    pub output_len: u32,
    /// Most passes that it asked for: what is predicted of it is no longer.
    pub max_steps: Option<u32>,
}

/// A request that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// As it arrived.
    pub past: Past,
    /// For how long it has been.
    pub since: Nanos,
    /// Where it stands, once it is in flight.
    pub place: Option<Place>,
}

/// Where a request in flight stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its sub-batch, from the bottom of the batch table.
    pub sub_batch: u32,
    /// Block of its next segment.
    pub block: u32,
    /// Its next segment.
    pub segment: u32,
    /// Passes through the block that it has run.
    pub step: u32,
}

/// What shall be simulated.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// Models with coarse, corrected latency tables.
    pub config: CoreConfig,
    /// Arrivals, oldest first.
    pub arrivals: Vec<Past>,
    /// Those among them that are open, oldest first; none whose last pass is in flight.
    pub open: Vec<Open>,
    /// Specifications of the rules to compare; the first is the incumbent.
    pub candidates: Vec<String>,
    /// How much one missed deadline counts, as a multiple of its SLA target.
    pub miss_weight: f64,
    /// By how much another rule must be cheaper to replace the incumbent.
    pub hysteresis: f64,
    /// And by how many standard errors of the difference between them.
    pub doubt: f64,
    /// How often the arrivals come, one time after another; oftener where they are few.
    pub repeats: usize,
    /// What each request takes of the host while no launch runs.
    pub per_request: Nanos,
    /// Launches to simulate, about.
    pub budget: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Candidates with their mean cost per request in nanoseconds, the cheapest first.
    pub costs: Vec<(String, u64)>,
    /// For each of them, the standard error of how much more or less than the incumbent it costs, in
    /// nanoseconds: rules that are compared over the same arrivals are now better, now worse.
    #[serde(default)]
    pub errors: Vec<u64>,
    /// Launches that were simulated.
    #[serde(default)]
    pub launches: u64,
    /// Time for which the planner rests now, so as to keep to its share of the processors. The
    /// policy asks for no plan meanwhile.
    #[serde(default)]
    pub rest: Nanos,
}

impl Plan {
    /// Candidates with their costs and so many standard errors on top.
    pub fn doubted(&self, doubt: f64) -> impl Iterator<Item = (&str, f64)> {
        let errors = self.errors.iter().copied().chain(std::iter::repeat(0));
        let costs = self.costs.iter().zip(errors);
        costs.map(move |((rule, cost), error)| (&**rule, *cost as f64 + doubt * error as f64))
    }
}
