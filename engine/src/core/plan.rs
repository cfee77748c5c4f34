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
    /// When another rule replaces the incumbent.
    pub weighing: Weighing,
    /// How often the arrivals come, one time after another; oftener where they are few.
    pub repeats: usize,
    /// What each request takes of the host while no launch runs.
    pub per_request: Nanos,
    /// What the backlog that is left when the last has arrived costs beside those in it.
    pub backlog: Backlog,
    /// Launches to simulate, about.
    pub budget: u64,
    /// The incumbent was chosen for anyone: no plan knew these models.
    pub is_first: bool,
}

/// What a backlog that is left when the last of a simulation has arrived costs those who would come behind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Backlog {
    /// Nothing.
    #[default]
    Ends,
    /// As others keep coming it lasts by this factor longer than it is seen to.
    Lasts(f64),
    /// The same where those in flight take time that is no backlog: what is more than the least that a
    /// candidate leaves counts, and of those who would come no more than arrivals that were not simulated.
    Exceeds(f64),
}

/// How rules are weighed against the incumbent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weighing {
    /// By how much another rule must be cheaper to replace the incumbent.
    pub hysteresis: f64,
    /// And by how many standard errors of the difference between them.
    pub doubt: f64,
    /// By how much rules are held dearer than simulated, the incumbent too; those that are not, are left out.
    pub edges: Vec<(String, f64)>,
}

impl Weighing {
    /// What a cost of a rule counts.
    fn weigh(&self, rule: &str, cost: f64) -> f64 {
        let edge = self.edges.iter().find(|e| e.0 == rule);
        cost * (1.0 + edge.map_or(0.0, |e| e.1))
    }
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
    /// The rule that is to replace the incumbent; none where the incumbent is to stay.
    pub fn better(&self, incumbent: &str, weighing: &Weighing) -> Option<&str> {
        let errors = self.errors.iter().copied().chain(std::iter::repeat(0));
        let weighed = self.costs.iter().zip(errors);
        let weighed = weighed.map(|((rule, cost), error)| {
            let cost = *cost as f64 + weighing.doubt * error as f64;
            (&**rule, weighing.weigh(rule, cost))
        });
        let (best, least) = weighed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let own = self.costs.iter().find(|c| c.0 == incumbent);
        let own = own.map(|(rule, cost)| weighing.weigh(rule, *cost as f64));
        let is_better = own.is_none_or(|own| least < own * (1.0 - weighing.hysteresis));
        (best != incumbent && is_better).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_replaces_the_incumbent_that_is_cheaper_by_hysteresis_doubt_and_edge() {
        let better = |weighing: &Weighing, own: u64| {
            let plan = Plan {
                costs: [("capped", 100), ("own", own), ("other", 104)]
                    .map(|(n, c)| (n.to_string(), c))
                    .to_vec(),
                errors: vec![4, 0, 0],
                ..Plan::default()
            };
            plan.better("own", weighing).map(str::to_string)
        };
        let none = |weighing: &Weighing, own| better(weighing, own).is_none();
        let plain = Weighing::default();
        assert_eq!(better(&plain, 101).as_deref(), Some("capped"));
        assert!(none(&plain, 100), "a tie changes nothing");
        let slow = Weighing {
            hysteresis: 0.02,
            ..plain.clone()
        };
        assert!(none(&slow, 102));
        assert_eq!(better(&slow, 103).as_deref(), Some("capped"));
        let doubts = Weighing {
            doubt: 1.0,
            ..slow.clone()
        };
        assert!(none(&doubts, 106), "one standard error of 4");
        assert_eq!(better(&doubts, 107).as_deref(), Some("capped"));
        let edge = |rule: &str| Weighing {
            edges: vec![(rule.to_string(), 0.1)],
            ..slow.clone()
        };
        assert!(none(&edge("capped"), 106));
        assert_eq!(better(&edge("capped"), 107).as_deref(), Some("other"));
        assert_eq!(
            better(&edge("own"), 95).as_deref(),
            Some("capped"),
            "the incumbent is held dearer too"
        );
        // An incumbent that was not simulated, and a plan without rules.
        let plan = |costs: &[(&str, u64)]| Plan {
            costs: costs.iter().map(|c| (c.0.to_string(), c.1)).collect(),
            ..Plan::default()
        };
        assert_eq!(plan(&[("other", 9)]).better("own", &slow), Some("other"));
        assert_eq!(plan(&[]).better("own", &slow), None);
    }
}
