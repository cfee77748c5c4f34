//! Scheduling policies.
//!
//! A policy answers one question: what next, on this lane, now. It owns no queue, timer or metric;
//! the core applies and checks what it answers. A new policy is one file here, one line in
//! [`REGISTRY`], one golden timeline.

pub mod adaptive;
pub mod base;
pub mod cellular;
mod coarse;
pub mod continuous;
mod correction;
pub mod edf;
mod entries;
#[cfg(test)]
mod fixtures;
mod gate;
pub mod graph;
mod history;
mod host;
pub mod lazy;
mod load;
mod outputs;
mod places;
mod promise;
mod rescue;
pub mod serial;
mod share;
mod sizes;
pub mod triton;
mod turns;

use lazybatch_sla::{Launch, ModelId, Nanos, SubBatchId, Time};

use crate::core::{Ending, Key, ModelSpec, Plan, PlanRequest, Request, View};

/// Which requests of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The `n` oldest.
    First(usize),
    /// These, in this order.
    These(Vec<Key>),
}

/// A policy's answer. All but `Launch` and `Wait` are applied and followed by another question at
/// the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to launch; ask again at the next event, or at `until` at the latest.
    Wait {
        /// When, if no event comes before.
        until: Option<Time>,
    },
    /// Run the next segment of an entry.
    Launch(SubBatchId),
    /// Join `from` to `into`.
    Merge {
        /// Stays.
        into: SubBatchId,
        /// Goes.
        from: SubBatchId,
    },
    /// Form a new entry on top of the table.
    Admit {
        /// Whose queue.
        model: ModelId,
        /// Who.
        pick: Pick,
        /// As a padded whole-graph batch.
        padded: bool,
    },
    /// Let those pass a waiting request that are not too late. Once for a request.
    Demote {
        /// Who.
        request: Key,
    },
    /// Refuse a waiting request.
    Shed {
        /// Who.
        request: Key,
        /// Why.
        cause: &'static str,
    },
}

/// Decides. See the module.
pub trait Policy: Send {
    /// The next step on the view's lane.
    fn decide(&mut self, view: &View<'_>) -> Decision;

    /// Whether it may run requests of several lengths as one padded batch.
    fn pads(&self) -> bool {
        false
    }

    /// Why the last decision was taken, in words and numbers; asked under
    /// [`crate::core::CoreConfig::reasons`] only.
    fn because(&self) -> String {
        String::new()
    }

    /// A request arrives; it is not in its queue yet.
    fn on_arrive(&mut self, now: Time, request: &Request) {
        let _ = (now, request);
    }

    /// A launch has completed, which took its lane so long, issue included; it `ran` from its issue,
    /// or from the end of the launch ahead of it, until its end was seen. Not told of those that
    /// failed.
    fn on_done(&mut self, now: Time, launch: &Launch, took: Nanos, ran: Nanos) {
        let _ = (now, launch, took, ran);
    }

    /// A request has ended.
    fn on_end(&mut self, now: Time, ending: &Ending) {
        let _ = (now, ending);
    }

    /// A model was attached under `model`, or the one that was there has gone: what was kept of it
    /// is of no use. `models` are those from now on, by id.
    fn on_model(&mut self, model: ModelId, models: &[ModelSpec]) {
        let _ = (model, models);
    }

    /// A waiting request to refuse now, and why; asked again until there is none. Asked at every
    /// event, when no lane has room for a launch too: who is refused hears at once.
    fn refuse(&mut self, view: &View<'_>) -> Option<(Key, &'static str)> {
        let _ = view;
        None
    }

    /// A plan that it wants made; asked behind every decision.
    fn plan(&mut self, view: &View<'_>) -> Option<PlanRequest> {
        let _ = view;
        None
    }

    /// The plan that it wanted.
    fn on_planned(&mut self, now: Time, plan: &Plan) {
        let _ = (now, plan);
    }
}

/// One line of the registry.
pub struct Entry {
    /// Name, or prefix before `:`.
    pub name: &'static str,
    /// How the whole specification is written.
    pub usage: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Specifications that every suite runs, one for each way to decide; none refuses a request.
    /// Times are those of models that take microseconds.
    pub examples: &'static [&'static str],
    /// The same of those that refuse requests.
    pub refusing: &'static [&'static str],
    /// Whether requests must carry their true output length.
    pub needs_output_len: bool,
    /// Builds it from what follows `name:`.
    build: fn(Option<&str>) -> Option<Box<dyn Policy>>,
}

/// All policies.
pub const REGISTRY: &[Entry] = &[
    serial::ENTRY,
    graph::GRAPH,
    graph::GREEDY,
    lazy::LAZY,
    lazy::ORACLE,
    continuous::ENTRY,
    cellular::ENTRY,
    edf::ENTRY,
    triton::ENTRY,
    base::FRONT,
    base::JOIN,
    base::BALANCE,
    base::SHARING,
    base::ITERATION,
    adaptive::ENTRY,
];

/// A specification that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {got:?}: expected one of {expected}")]
pub struct UnknownPolicy {
    /// What was asked for.
    pub got: String,
    /// What there is.
    pub expected: String,
}

/// The registry entry of a specification such as `graph:5`, and its parameter.
///
/// # Errors
/// A name that is not registered, or a parameter that its policy does not take.
pub fn find(spec: &str) -> Result<&'static Entry, UnknownPolicy> {
    let (name, argument) = split(spec);
    REGISTRY
        .iter()
        .find(|e| e.name == name)
        .filter(|e| (e.build)(argument).is_some())
        .ok_or_else(|| UnknownPolicy {
            got: spec.to_string(),
            expected: REGISTRY
                .iter()
                .map(|e| e.usage)
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Whether a specification is a rule of those that `adaptive` chooses from.
pub fn is_base_rule(spec: &str) -> bool {
    base::find(spec).is_some()
}

/// Names of the policies that are such rules.
pub fn base_rules() -> impl Iterator<Item = &'static str> {
    let rules = REGISTRY.iter().filter(|e| is_base_rule(e.examples[0]));
    rules.map(|e| e.name)
}

/// [`Entry::examples`] of all policies.
pub fn examples() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|e| e.examples).copied()
}

/// [`Entry::refusing`] of all policies.
pub fn refusing_examples() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|e| e.refusing).copied()
}

/// Builds the policy of a specification.
///
/// # Errors
/// As [`find`].
pub fn build(spec: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    let entry = find(spec)?;
    Ok((entry.build)(split(spec).1).expect("find has tried it"))
}

/// Puts a list that was cut at its commas together again: a part that names a further parameter of
/// the specification before it, as in `greedy,triton:delay=5,pad`, belongs to it.
pub fn join_list<S: AsRef<str>>(parts: &[S]) -> Vec<String> {
    let mut specs: Vec<String> = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        let is_name = REGISTRY.iter().any(|e| e.name == split(part).0);
        match specs.last_mut() {
            Some(last) if !is_name && find(&format!("{last},{part}")).is_ok() => {
                last.push(',');
                last.push_str(part);
            }
            _ => specs.push(part.to_string()),
        }
    }
    specs
}

fn split(spec: &str) -> (&str, Option<&str>) {
    spec.split_once(':')
        .map_or((spec, None), |(name, argument)| (name, Some(argument)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_builds_its_policy() {
        for entry in REGISTRY {
            assert!(!entry.examples.is_empty(), "{}", entry.name);
            for spec in entry.examples.iter().chain(entry.refusing) {
                assert_eq!(find(spec).map(|e| e.name), Ok(entry.name), "{spec}");
            }
        }
        for spec in [
            "graph:5",
            "edf:patience=2.5",
            "triton:preferred=4+8,delay=2.5,levels=3,default-level=2,timeout=9,action=delay",
            "triton:action=reject,max-queue=100",
            "balance:0.5/demote",
        ] {
            assert!(build(spec).is_ok(), "{spec}");
        }
    }

    #[test]
    fn lists_are_joined_where_a_parameter_follows() {
        let joined = |list: &str| join_list(&list.split(',').collect::<Vec<_>>()).join(" ");
        assert_eq!(joined("serial,graph:5,lazy"), "serial graph:5 lazy");
        assert_eq!(
            joined("triton:delay=5,pad,triton:preferred=4+8,delay=1,lazy"),
            "triton:delay=5,pad triton:preferred=4+8,delay=1 lazy"
        );
        assert_eq!(joined("greedy,pad,fifo"), "greedy pad fifo");
        assert_eq!(joined("triton:pad,delay=x"), "triton:pad delay=x");
    }

    #[test]
    fn unknown_names_and_parameters_are_refused_with_the_list() {
        for spec in [
            "fifo",
            "graph",
            "graph:x",
            "graph:-1",
            "greedy:3",
            "lazy:now",
            "",
            "serial:",
            "continuous:1",
            "cellular:x",
            "adaptive:without=",
            "adaptive:without=caps+luck",
            "front:cap0",
            "edf:3",
            "edf:patience=-1",
            "edf:patience=",
            "triton:",
            "triton:preferred=",
            "triton:preferred=4+0",
            "triton:delay=-1",
            "triton:levels=2,default-level=3",
            "triton:default-level=1",
            "triton:action=drop",
            "triton:pad=1",
            "triton:pads",
            "triton:delay=1,",
            "join",
            "join:-1",
            "front:1",
            "balance:1/x",
        ] {
            let Err(error) = build(spec) else {
                panic!("{spec:?} was accepted")
            };
            assert!(error.to_string().contains("graph:W"), "{error}");
        }
    }
}
