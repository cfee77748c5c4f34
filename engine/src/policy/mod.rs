//! Scheduling policies.
//!
//! A policy answers one question: what next, on this lane, now. It owns no queue, timer or metric;
//! the core applies and checks what it answers. A new policy is one file here and one line in
//! [`REGISTRY`]; what every one has to hold is in `ARCHITECTURE.md`.

pub mod adaptive;
pub mod base;
mod bounds;
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
mod lists;
mod load;
mod outputs;
mod places;
mod promise;
mod rescue;
mod rule;
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

    /// The rule that it decides by now, if it is one that changes between several.
    fn rule(&self) -> Option<&str> {
        None
    }

    /// A request arrives; it is not in its queue yet.
    fn on_arrive(&mut self, now: Time, request: &Request) {
        let _ = (now, request);
    }

    /// A launch has completed, which took its lane so long, issue included where the lane waited for
    /// it; it `ran`, which is no less, from its issue, or from the end of the launch ahead of it, until
    /// its end was seen. Not told of those that failed.
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
#[error("policy {got:?}: expected {expected}")]
pub struct UnknownPolicy {
    /// What was asked for.
    pub got: String,
    /// What there is: all policies, or what the one that it names takes.
    pub expected: String,
}

/// The registry entry of a specification such as `graph:5`, and its parameter.
///
/// # Errors
/// A name that is not registered, or a parameter that its policy does not take.
pub fn find(spec: &str) -> Result<&'static Entry, UnknownPolicy> {
    let (name, argument) = split(spec);
    let unknown = |expected: String| UnknownPolicy {
        got: spec.to_string(),
        expected,
    };
    let Some(entry) = REGISTRY.iter().find(|e| e.name == name) else {
        let all: Vec<_> = REGISTRY.iter().map(|e| e.usage).collect();
        return Err(unknown(format!("one of {}", all.join(", "))));
    };
    match (entry.build)(argument) {
        Some(_) => Ok(entry),
        None => Err(unknown(match argument {
            Some(list) if name == triton::ENTRY.name && !list.is_empty() => triton::expected(list),
            _ => format!("{} ({})", entry.usage, entry.summary),
        })),
    }
}

/// A specification with its numbers written in one way: `graph:05` and `graph:5.0` are `graph:5`.
pub fn canonical(spec: &str) -> String {
    const BETWEEN: [char; 5] = [':', ',', '=', '+', '/'];
    let one_way = |part: &str| {
        let end = part.trim_end_matches(BETWEEN).len();
        let number = part[..end].parse::<f64>().ok().filter(|x| x.is_finite());
        number.map_or_else(|| part.to_string(), |x| format!("{x}{}", &part[end..]))
    };
    spec.split_inclusive(BETWEEN).map(one_way).collect()
}

/// Whether a specification is a rule of those that `adaptive` chooses from.
pub fn is_base_rule(spec: &str) -> bool {
    rule::find(spec).is_some()
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

/// Puts a list that was cut at its commas together again: a part that is meant as a further parameter
/// of the specification before it, as in `greedy,triton:delay=5,pad`, belongs to it, right or wrong.
pub fn join_list<S: AsRef<str>>(parts: &[S]) -> Vec<String> {
    let mut specs: Vec<String> = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        let is_name = REGISTRY.iter().any(|e| e.name == split(part).0);
        match specs.last_mut() {
            Some(last) if !is_name && last.starts_with("triton:") && triton::is_parameter(part) => {
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
        // What is wrong is told of the whole.
        assert_eq!(joined("triton:pad,delay=x"), "triton:pad,delay=x");
        assert_eq!(joined("greedy,delay=5"), "greedy delay=5");
    }

    #[test]
    fn numbers_are_told_apart_by_what_they_are() {
        for (spec, same) in [
            ("graph:05", "graph:5"),
            ("graph:5.0", "graph:5"),
            ("graph:5", "graph:5"),
            ("graph:0.50", "graph:0.5"),
            (
                "triton:preferred=04+8,delay=1.50",
                "triton:preferred=4+8,delay=1.5",
            ),
            ("sharing:1.0/.5/2", "sharing:1/0.5/2"),
            ("lazy:late-admits", "lazy:late-admits"),
            ("greedy", "greedy"),
            ("graph:nan", "graph:nan"),
        ] {
            assert_eq!(canonical(spec), same);
        }
    }

    #[test]
    fn the_parameter_that_is_wrong_is_told() {
        for (spec, told) in [
            ("graph:x", "expected graph:W (whole-graph batches with"),
            (
                "triton:",
                "expected triton[:KEY=VALUE,...] (Triton's dynamic batcher: preferred=",
            ),
            (
                "triton:delay=1,delay=2",
                "expected each parameter once in place of \"delay=2\"",
            ),
            (
                "triton:levels=256",
                "expected levels=N of 0 to 255 in place of \"levels=256\"",
            ),
            (
                "triton:pad,window=3",
                "expected one of preferred=N+N.., delay=MS, levels=N, default-level=K, timeout=MS, \
                 action=reject or delay, max-queue=N, pad in place of \"window=3\"",
            ),
            (
                "triton:levels=2,default-level=9",
                "expected one of the 2 levels in place of \"default-level=9\"",
            ),
            (
                "triton:default-level=1",
                "expected levels=N with it in place of \"default-level=1\"",
            ),
        ] {
            let message = find(spec).map(|e| e.name).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("policy {spec:?}: {told}")),
                "{message}"
            );
        }
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
            "adaptive:shed/",
            "adaptive:shed/front",
            "adaptive:shed/without=luck",
            "adaptive:keen/without=within",
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
            let (name, _) = split(spec);
            let named = REGISTRY.iter().find(|e| e.name == name);
            let told = error.to_string();
            // The parameters of a policy, or all policies.
            match named {
                Some(entry) if !spec.starts_with("triton:") => assert!(told.contains(entry.usage)),
                Some(_) => assert!(
                    told.contains(" in place of ") || spec == "triton:",
                    "{told}"
                ),
                None => assert!(told.contains("one of serial, graph:W"), "{told}"),
            }
        }
    }
}
