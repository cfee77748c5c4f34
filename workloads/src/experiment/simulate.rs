//! One policy over one list of arrivals in virtual time.
//!
//! The checker runs behind every simulation; a broken rule is an error of the run.

use std::io::Write;
use std::sync::Arc;

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Core, CoreConfig, ModelSpec};
use lazybatch_engine::driver::virtual_time::{self, Ended, Script, SimRequest};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::journal::{Header, Writer};
use lazybatch_engine::policy;
use lazybatch_graph::Repeat;
use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::profile::ModelProfile;
use lazybatch_sla::{Class, ClassId, ModelId, Nanos, OutputLen, Profile, Time};

use crate::arrivals::{Arrival, LATEST};
use crate::error::{Error, Result};
use crate::results::{Counters, FinishedRequest};
use crate::traces::arrivals_csv::decimal_us;
use crate::traces::source::excerpt;

/// Times behind this are near where they end.
const LAST: Time = Time(1 << 63);
/// SLA target where neither arrival, command line nor profile state one, in milliseconds.
pub const DEFAULT_SLA_MS: f64 = 100.0;

/// Most node executions of one request, and of all together: some seconds, and some hours at worst.
const MAX_EXECUTIONS: u64 = 1 << 24;
const MAX_EXECUTIONS_IN_ALL: u64 = 100_000_000_000;

/// Policies whose drain rates are tried for a capacity, where they are registered.
const CAPACITY_POLICIES: [&str; 4] = ["greedy", "lazy", "cellular", "continuous"];

/// What observers see beside events, launches and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    Launches,
    /// Changes of the batch table.
    Table,
    /// Those, and each decision with its reasons.
    Reasons,
}

/// What is simulated.
pub struct Simulation<'a> {
    /// Latency tables; arrivals name its models.
    pub profile: &'a Profile,
    /// Who arrives, sorted.
    pub arrivals: &'a [Arrival],
    /// SLA target of arrivals that state none.
    pub sla: Option<Nanos>,
    /// SLA classes that arrivals name; with none, their names do not matter.
    pub classes: &'a [Class],
    /// Nodes per segment.
    pub segment: u32,
    /// Cost of each decision, added to its launch.
    pub decide: Nanos,
    /// Most waiting requests.
    pub max_queue: usize,
    /// Deviations from the profile.
    pub noise: Noise,
    /// Time decisions with a real choice (reads a clock; results then differ from run to run).
    pub timing: bool,
}

/// What came of it.
pub struct Simulated {
    /// Every request, by id.
    pub requests: Vec<FinishedRequest>,
    /// Counts of the core.
    pub counters: Counters,
}

impl Simulation<'_> {
    /// A core configuration for the profile's models. The predicted output length of a model whose
    /// profile states none is the 90th percentile of its arrivals.
    pub fn config(&self, detail: Detail) -> CoreConfig {
        let models = &self.profile.models;
        let spec = |m: &ModelProfile| {
            ModelSpec::from_profile(self.profile, m, self.segment, self.output_p90(&m.name))
        };
        CoreConfig {
            classes: Class::by_id(self.classes.iter().cloned()),
            max_queue: self.max_queue,
            notes: detail != Detail::Launches,
            reasons: detail == Detail::Reasons,
            ..CoreConfig::new(models.iter().map(spec).collect())
        }
    }

    fn output_p90(&self, model: &str) -> u32 {
        let of_model = self.arrivals.iter().filter(|a| &*a.model == model);
        OutputLen::covering(OutputLen::COVERAGE, of_model.map(|a| a.output_len)).predict()
    }

    /// The arrivals as the driver takes them.
    ///
    /// # Errors
    /// An arrival of a model that the profile lacks, with more samples than its max batch, so late or
    /// so long that it cannot be simulated.
    pub fn requests(&self, oracle: bool) -> Result<Vec<SimRequest>> {
        let names: Vec<&str> = self
            .profile
            .models
            .iter()
            .map(|m| m.name.as_str())
            .collect();
        let classes = Class::by_id(self.classes.iter().cloned());
        let mut requests = Vec::with_capacity(self.arrivals.len());
        let mut num_executions = 0_u64;
        for (i, arrival) in self.arrivals.iter().enumerate() {
            let fault = |column, expected, got| Error::Arrival {
                row: i,
                column,
                expected,
                got,
            };
            if arrival.at > LATEST {
                let expected = format!("an arrival by {}", decimal_us(LATEST.0));
                return Err(fault("arrival_us", expected, decimal_us(arrival.at.0)));
            }
            let model = names.iter().position(|n| *n == &*arrival.model);
            let model = model.ok_or_else(|| {
                let expected = format!("one of {}", names.join(", "));
                fault("model", expected, excerpt(&arrival.model))
            })?;
            let spec = &self.profile.models[model];
            if arrival.samples == 0 || arrival.samples > spec.max_batch {
                let expected = format!("1 to {} samples", spec.max_batch);
                return Err(fault("samples", expected, arrival.samples.to_string()));
            }
            let (column, own) = executions(spec, arrival);
            num_executions = num_executions.saturating_add(own);
            let length = match column {
                "input_len" => arrival.input_len,
                _ => arrival.output_len,
            };
            if own > MAX_EXECUTIONS {
                let expected = format!("at most {MAX_EXECUTIONS} node executions a request");
                return Err(fault(
                    column,
                    expected,
                    format!("{own} by a length of {length}"),
                ));
            }
            if num_executions > MAX_EXECUTIONS_IN_ALL {
                let most = MAX_EXECUTIONS_IN_ALL;
                let expected = format!("at most {most} node executions of all requests");
                return Err(fault(
                    column,
                    expected,
                    format!("more, by a length of {length}"),
                ));
            }
            let class = self.class_of(&classes, i, arrival)?;
            let promised = &classes[class.index()];
            let sla = self.target(arrival, promised);
            let mut request = SimRequest::new(
                i as u64,
                ModelId(model as u32),
                arrival.at,
                Some(sla),
                arrival.input_len,
                arrival.output_len,
            );
            request.request.samples = arrival.samples;
            request.request.class = class;
            request.request.priority = promised.priority_of(arrival.priority);
            request.request.sequence = arrival.sequence_id;
            request.request.known_output_len = oracle.then_some(arrival.output_len);
            requests.push(request);
        }
        Ok(requests)
    }

    /// The SLA target of an arrival of a class.
    fn target(&self, arrival: &Arrival, class: &Class) -> Nanos {
        let spec = self.profile.model(&arrival.model);
        let stated = arrival.sla.or(class.sla).or(self.sla);
        let sla = stated.or(spec.and_then(|m| m.sla()));
        sla.unwrap_or(Nanos::from_ms_f64(DEFAULT_SLA_MS))
    }

    /// The SLA target of each arrival.
    ///
    /// # Errors
    /// An arrival of an unknown class.
    pub fn targets(&self) -> Result<Vec<Nanos>> {
        let classes = Class::by_id(self.classes.iter().cloned());
        let each = self.arrivals.iter().enumerate();
        let target = |(i, a): (usize, &Arrival)| {
            let class = self.class_of(&classes, i, a)?;
            Ok(self.target(a, &classes[class.index()]))
        };
        each.map(target).collect()
    }

    fn class_of(&self, classes: &[Class], i: usize, arrival: &Arrival) -> Result<ClassId> {
        let Some(name) = arrival
            .class
            .as_deref()
            .filter(|_| !self.classes.is_empty())
        else {
            return Ok(ClassId::default());
        };
        let class = classes.iter().position(|c| c.name == name);
        class.map(|c| ClassId(c as u32)).ok_or_else(|| {
            let names: Vec<&str> = classes.iter().map(|c| c.name.as_str()).collect();
            Error::Arrival {
                row: i,
                column: "class",
                expected: format!("one of {}", names.join(", ")),
                got: excerpt(name),
            }
        })
    }

    /// Runs one policy. `journal` gets every event, launch and action; `observer` sees them too
    /// as far as `detail` says.
    ///
    /// # Errors
    /// An unknown policy, arrivals that do not fit the profile, a rule that the checker finds
    /// broken, or a journal that cannot be written.
    pub fn run(
        &self,
        policy: &str,
        journal: Option<Box<dyn Write + '_>>,
        observer: &mut dyn Observer,
        detail: Detail,
    ) -> Result<Simulated> {
        let entry =
            policy::find(policy).map_err(|e| Error::parameter("policy", e.expected, e.got))?;
        let requests = self.requests(entry.needs_output_len)?;
        let config = self.config(detail);
        let mut journal =
            journal.map(|out| Writer::new(out, &Header::new(policy, self.profile, &config)));
        let mut judge = Judge::new(Checker::new(&config, false));
        let tables = config.models.iter().map(|m| m.table.clone()).collect();
        let mut device = SimDevice::new(
            &self.profile.device,
            1,
            tables,
            self.decide,
            self.noise.clone(),
        );
        let built =
            policy::build(policy).map_err(|e| Error::parameter("policy", e.expected, e.got))?;
        let mut core = Core::new(config, built);
        let mut decisions = Vec::new();
        let mut timer = |core: &mut Core, now: Time| {
            if self.timing && core.wants_decision() {
                time_decision(core, now, &mut decisions);
            }
        };
        let mut both = (&mut judge, observer);
        let ended = match &mut journal {
            Some(writer) => {
                let mut all = (writer, &mut both);
                virtual_time::run(
                    &mut core,
                    &mut device,
                    &requests,
                    &Script::default(),
                    &mut all,
                    &mut timer,
                )
            }
            None => virtual_time::run(
                &mut core,
                &mut device,
                &requests,
                &Script::default(),
                &mut both,
                &mut timer,
            ),
        };
        judge
            .finish()
            .map_err(|v| Error::run(format!("simulation of {policy}"), v))?;
        if let Some(writer) = journal {
            writer.finish().map_err(|source| Error::Write {
                what: "the journal",
                source,
            })?;
        }
        if ended.iter().any(|e| e.finish > LAST) {
            let what = format!("simulation of {policy}");
            let expected = "an end within 2^63 ns (292 years)";
            return Err(Error::parameter(what, expected, "a later one"));
        }
        let counters = core.counters();
        Ok(Simulated {
            requests: self.finished(ended),
            counters: Counters {
                launches: counters.launches,
                members: counters.batched,
                merges: counters.merges,
                preemptions: counters.preemptions,
                demoted: counters.demoted,
                decisions: self.timing.then_some(decisions),
            },
        })
    }

    /// Requests per second at which the arrivals are worked off, all of which should wait at time 0:
    /// the best of greedy, lazy, cellular and continuous. A bound on what any rate can be kept up,
    /// to within the ends of that run.
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn drain_rate(&self) -> Result<f64> {
        let mut best = 0.0_f64;
        for spec in CAPACITY_POLICIES {
            if policy::find(spec).is_err() {
                continue;
            }
            let done = self.run(spec, None, &mut (), Detail::Launches)?;
            let last = done.requests.iter().map(|r| r.finish.0).max();
            let seconds = last.unwrap_or(0).max(1) as f64 / 1e9;
            best = best.max(self.arrivals.len() as f64 / seconds);
        }
        Ok(best)
    }

    fn finished(&self, ended: Vec<Ended>) -> Vec<FinishedRequest> {
        let names: Vec<Arc<str>> = self.arrivals.iter().map(|a| a.model.clone()).collect();
        let mut requests: Vec<_> = ended
            .into_iter()
            .map(|e| {
                let arrival = &self.arrivals[e.id.index()];
                FinishedRequest {
                    id: e.id.0,
                    model: names[e.id.index()].clone(),
                    arrival: arrival.at,
                    first_launch: e.first_launch,
                    finish: e.finish,
                    outcome: e.outcome,
                    input_len: arrival.input_len,
                    output_len: arrival.output_len,
                    class: arrival.class.clone(),
                }
            })
            .collect();
        requests.sort_by_key(|r| r.id);
        requests
    }
}

/// Node executions of a request that runs alone, and the length that most of them hang on.
fn executions(model: &ModelProfile, arrival: &Arrival) -> (&'static str, u64) {
    let (mut by_input, mut by_output) = (0_u64, 0_u64);
    for block in &model.blocks {
        let num = block.nodes.len() as u64;
        match block.repeat() {
            Repeat::Once => by_input += num,
            Repeat::PerInputStep { stride } => {
                by_input += num * u64::from(arrival.input_len.div_ceil(stride));
            }
            Repeat::UntilStop { max } => by_output += num * u64::from(arrival.output_len.min(max)),
        }
    }
    let column = match by_input > by_output {
        true => "input_len",
        false => "output_len",
    };
    (column, by_input.saturating_add(by_output))
}

#[allow(
    clippy::disallowed_methods,
    reason = "decisions are timed on request only"
)]
fn time_decision(core: &mut Core, now: Time, decisions: &mut Vec<Nanos>) {
    let start = std::time::Instant::now();
    if core.decide(now) {
        decisions.push(Nanos(start.elapsed().as_nanos() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(max_steps: &str, at: Time, output_len: u32, num: usize) -> Option<String> {
        let text = format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","blocks":[
            {{"name":"b","repeat":"until_stop"{max_steps},"nodes":[
            {{"name":"n","latency_us":[[1,1.0]]}},{{"name":"o","latency_us":[[1,1.0]]}}]}}]}}]}}"#
        );
        let profile = Profile::parse("-", &text).expect("valid");
        let simulation = Simulation {
            profile: &profile,
            arrivals: &vec![Arrival::new(at, "m", 1, output_len); num],
            sla: None,
            classes: &[],
            segment: 1,
            decide: Nanos::ZERO,
            max_queue: usize::MAX,
            noise: Noise::default(),
            timing: false,
        };
        simulation.requests(false).err().map(|e| e.to_string())
    }

    #[test]
    fn what_would_take_for_ever_is_refused_before_it_runs() {
        let zero = Time::ZERO;
        assert_eq!(fault("", zero, 1 << 23, 1), None);
        assert_eq!(
            fault("", zero, (1 << 23) + 1, 2).as_deref(),
            Some(
                "arrival 0, column output_len: expected at most 16777216 node executions a \
                 request, got 16777218 by a length of 8388609"
            )
        );
        // No request takes more steps than its model has.
        assert_eq!(fault(r#","max_steps":5"#, zero, u32::MAX, 9), None);
        let all = fault("", zero, 1 << 23, 6000).expect("too many");
        assert!(
            all.starts_with("arrival 5960, column output_len: "),
            "{all}"
        );
    }

    #[test]
    fn arrivals_at_the_end_of_time_are_refused() {
        assert_eq!(fault("", LATEST, 1, 1), None);
        let late = fault("", Time(LATEST.0 + 1), 1, 1).expect("too late");
        assert!(late.starts_with("arrival 0, column arrival_us: "), "{late}");
    }
}
