//! Models that come and go: residency of their weights, and models of a core that runs.
//!
//! A model is attached under an id that is vacant, or the next one. Detached, it takes no more
//! arrivals; behind the end of its last request it is vacated, and its id may be used again.

use std::sync::Arc;

use lazybatch_graph::Repeat;
use lazybatch_sla::profile::{FORMAT, ModelProfile};
use lazybatch_sla::{Class, LatencyTable, ModelId, Profile, SegmentRanges, segments_of};
use serde::{Deserialize, Serialize};

use super::config::{BATCHES_IN_FLIGHT, BlockSpec, ModelSpec};
use super::event::Action;
use super::state::{Counters, Residency, State};

/// A model that a running core takes in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Described", into = "Described")]
pub struct Attach {
    /// Its id: a vacant one, or the next.
    pub model: ModelId,
    /// What is scheduled by.
    pub spec: ModelSpec,
    /// What the latencies of `spec` were made from: one node a segment.
    profile: Arc<ModelProfile>,
    /// All SLA classes from now on, by id; those in use stay as they are.
    pub classes: Vec<Class>,
}

/// An [`Attach`] as journals hold it.
#[derive(Serialize, Deserialize)]
struct Described {
    model: ModelId,
    profile: ModelProfile,
    segments: SegmentRanges,
    output_len_p90: u32,
    max_in_flight: u32,
    classes: Vec<Class>,
}

impl Attach {
    /// A model under `model`: `spec` with the latencies of `profile`, which has one node a segment
    /// and the spec's `max_batch`.
    pub fn new(
        model: ModelId,
        spec: ModelSpec,
        profile: Arc<ModelProfile>,
        classes: Vec<Class>,
    ) -> Self {
        Self {
            model,
            spec,
            profile,
            classes,
        }
    }
}

impl From<Attach> for Described {
    fn from(attach: Attach) -> Self {
        let spec = attach.spec;
        Self {
            model: attach.model,
            profile: ModelProfile::clone(&attach.profile),
            segments: spec.blocks.into_iter().map(|b| b.segments).collect(),
            output_len_p90: spec.output_len_p90,
            max_in_flight: spec.max_in_flight,
            classes: attach.classes,
        }
    }
}

impl TryFrom<Described> for Attach {
    type Error = String;

    fn try_from(d: Described) -> Result<Self, String> {
        let whole = Profile {
            format: FORMAT.into(),
            device: "engine".into(),
            copy_gbps: 0.0,
            dispatch_us: 0.0,
            issue_us: 0.0,
            models: vec![d.profile],
        };
        whole.check("attached model").map_err(|e| e.to_string())?;
        let profile = whole.models.into_iter().next().ok_or("one model")?;
        let counts = profile.blocks.iter().map(|b| b.nodes.len());
        if !counts.eq(d.segments.iter().map(Vec::len)) {
            return Err("expected one segment for each node of the profile".into());
        }
        if d.classes.is_empty() {
            return Err("expected at least one class".into());
        }
        let mut spec = ModelSpec::of_segments(&profile, d.segments, d.output_len_p90);
        spec.max_in_flight = d.max_in_flight;
        Ok(Self {
            model: d.model,
            spec,
            profile: Arc::new(profile),
            classes: d.classes,
        })
    }
}

/// By what journals hold.
impl PartialEq for Attach {
    fn eq(&self, other: &Self) -> bool {
        serde_json::to_value(self).ok() == serde_json::to_value(other).ok()
    }
}

/// A checked profile holds no number that differs from itself.
impl Eq for Attach {}

impl ModelSpec {
    /// From a profile with one node a segment; `segments` are those of the program's nodes.
    ///
    /// # Panics
    /// If the profile was not checked.
    pub fn of_segments(
        profile: &ModelProfile,
        segments: SegmentRanges,
        output_len_p90: u32,
    ) -> Self {
        let by_node = segments_of(profile, 1);
        let blocks = profile.blocks.iter().zip(segments);
        Self {
            name: profile.name.clone(),
            blocks: blocks
                .map(|(b, segments)| BlockSpec {
                    name: b.name.clone(),
                    repeat: b.repeat(),
                    segments,
                })
                .collect(),
            max_batch: profile.max_batch,
            max_in_flight: profile.max_batch.saturating_mul(BATCHES_IN_FLIGHT),
            table: Arc::new(LatencyTable::new(profile, &by_node, 0.0, 0.0)),
            output_len_p90,
            resident: true,
        }
    }

    /// What stands at an id that no model has.
    pub fn vacant() -> Self {
        let nothing = ModelProfile {
            name: String::new(),
            max_batch: 1,
            sla_ms: None,
            output_len_p90: None,
            blocks: Vec::new(),
        };
        Self {
            max_in_flight: 0,
            ..Self::of_segments(&nothing, Vec::new(), 1)
        }
    }

    /// Whether it is no model.
    pub fn is_vacant(&self) -> bool {
        self.max_in_flight == 0
    }

    /// Whether a block of it runs more than once for a request, or not at all.
    pub fn has_loops(&self) -> bool {
        self.blocks.iter().any(|b| b.repeat != Repeat::Once)
    }
}

impl State {
    /// Counts something of a model, and of all.
    pub(super) fn tally(&mut self, model: ModelId, add: impl Fn(&mut Counters)) {
        add(&mut self.counters);
        add(&mut self.by_model[model.index()]);
    }

    pub(crate) fn loaded(&mut self, model: ModelId) {
        self.residency[model.index()] = Residency::Resident;
    }

    pub(crate) fn evict(&mut self, model: ModelId) {
        if self.residency[model.index()] == Residency::Resident {
            self.residency[model.index()] = Residency::Leaving;
            self.try_leave(model);
        }
    }

    /// Lets a model go that shall go, if nothing of it is in flight.
    pub(super) fn try_leave(&mut self, model: ModelId) {
        let m = model.index();
        if self.in_flight[m] > 0 {
            return;
        }
        match self.residency[m] {
            Residency::Leaving => {
                self.actions.push_back(Action::Evict(model));
                self.residency[m] = Residency::Host;
                if !self.queues[m].is_empty() {
                    self.residency[m] = Residency::Loading;
                    self.actions.push_back(Action::Load(model));
                }
            }
            Residency::Retiring
                if self.queues[m].is_empty() && self.sequences.oldest(model).is_none() =>
            {
                self.actions.push_back(Action::Vacate(model));
                self.residency[m] = Residency::Vacant;
                self.config.models[m] = ModelSpec::vacant();
                self.vacated.push(model);
            }
            _ => {}
        }
    }

    /// Whether requests to a model may arrive.
    pub(crate) fn takes(&self, model: ModelId) -> bool {
        let residency = self.residency.get(model.index());
        residency.is_some_and(|r| !matches!(r, Residency::Retiring | Residency::Vacant))
    }

    /// Whether a model may be attached under that id.
    pub(crate) fn is_free(&self, model: ModelId) -> bool {
        match self.residency.get(model.index()) {
            Some(residency) => *residency == Residency::Vacant,
            None => model.index() == self.residency.len(),
        }
    }

    pub(crate) fn attach(&mut self, attach: Attach) {
        let Attach {
            model,
            spec,
            classes,
            ..
        } = attach;
        assert!(self.is_free(model), "{model} is taken");
        assert!(!spec.is_vacant(), "{model} has no room for requests");
        assert!(
            classes.len() >= self.config.classes.len(),
            "classes do not go"
        );
        self.config.classes = classes;
        let m = model.index();
        if m == self.residency.len() {
            self.config.models.push(spec);
            self.queues.push(Default::default());
            self.residency.push(Residency::Resident);
            self.in_flight.push(0);
            self.samples_in_flight.push(0);
            self.by_model.push(Counters::default());
        } else {
            self.config.models[m] = spec;
            self.residency[m] = Residency::Resident;
            self.by_model[m] = Counters::default();
        }
    }

    /// It goes when its last request has ended; weights that are on their way are of no use.
    pub(crate) fn detach(&mut self, model: ModelId) {
        assert!(self.takes(model), "{model} is not attached");
        assert_eq!(
            self.residency[model.index()],
            Residency::Resident,
            "models that are detached are resident"
        );
        self.residency[model.index()] = Residency::Retiring;
        self.try_leave(model);
    }
}
