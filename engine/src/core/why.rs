//! Why a decision was taken, for people: made only under [`CoreConfig::reasons`].
//!
//! [`CoreConfig::reasons`]: super::CoreConfig::reasons

use lazybatch_sla::{LaneId, ModelId, Nanos};
use serde::{Deserialize, Serialize};

use super::view::View;
use crate::policy::{Decision, Pick};

/// Something that could have been done at a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// As in [`Why::chosen`].
    pub what: String,
    /// Samples that would run.
    pub samples: u32,
    /// Device time until the next decision, by the latency tables.
    pub predicted: Nanos,
}

/// What keeps those who wait from being admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The model's weights are not on the device.
    Loading,
    /// As many requests are in flight as the device has memory for.
    Slots,
    /// The policy.
    Policy,
    /// An earlier request of its sequence.
    Sequence,
    /// As many sequences of the model are open as may: its own is in the backlog.
    Backlog,
}

/// A decision and its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// On which lane.
    pub lane: LaneId,
    /// `launch b3`, `admit 4 of m0`, `merge b2 into b1`, `demote r7`, `shed r7` or `wait`.
    pub chosen: String,
    /// What the policy says of it.
    pub because: String,
    /// Launches and admissions that were possible.
    pub candidates: Vec<Candidate>,
    /// What holds those who go on waiting, by model; `None` unless the decision is to launch or to
    /// wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Vec<(ModelId, Hold)>>,
}

impl Why {
    /// Of a decision that is about to be applied.
    pub(super) fn new(view: &View<'_>, decision: &Decision, because: String) -> Self {
        let is_last = matches!(decision, Decision::Launch(_) | Decision::Wait { .. });
        Self {
            lane: view.lane,
            chosen: describe(view, decision),
            because,
            candidates: candidates(view),
            held: is_last.then(|| held(view)),
        }
    }
}

fn describe(view: &View<'_>, decision: &Decision) -> String {
    let id = |key| view.request(key).request.id;
    match decision {
        Decision::Wait { until: None } => "wait".into(),
        Decision::Wait { until: Some(t) } => format!("wait until {t}"),
        Decision::Launch(entry) => format!("launch {entry}"),
        Decision::Merge { into, from } => format!("merge {from} into {into}"),
        Decision::Admit { model, pick, .. } => {
            let num = match pick {
                Pick::First(n) => *n,
                Pick::These(keys) => keys.len(),
            };
            format!("admit {num} of {model}")
        }
        Decision::Demote { request } => format!("demote {}", id(*request)),
        Decision::Shed { request, .. } => format!("shed {}", id(*request)),
    }
}

fn candidates(view: &View<'_>) -> Vec<Candidate> {
    let launchable = view.table().iter().filter(|e| view.is_launchable(e));
    let launch = |e: &super::SubBatch| {
        let rows = view.members(e).map(|r| rows(&r.request)).sum();
        let table = &view.model(e.model).table;
        Candidate {
            what: format!("launch {}", e.id),
            samples: e.samples,
            predicted: table.segment(e.block, e.segment, e.samples, rows),
        }
    };
    let admit = |model: ModelId| {
        let spec = view.model(model);
        let num = view.fitting_prefix(model, spec.max_batch);
        let first = view.queue(model).iter().take(num);
        let first = first.map(|k| &view.request(k).request);
        let (samples, rows) = first.fold((0, 0), |(s, total), r| (s + r.samples, total + rows(r)));
        Candidate {
            what: format!("admit {num} of {model}"),
            samples,
            predicted: spec.table.segment(0, 0, samples, rows),
        }
    };
    launchable
        .map(launch)
        .chain(view.ready().map(admit))
        .collect()
}

fn rows(request: &super::Request) -> u64 {
    u64::from(request.samples) * u64::from(request.input_len)
}

fn held(view: &View<'_>) -> Vec<(ModelId, Hold)> {
    let models = (0..view.models().len()).map(|m| ModelId(m as u32));
    let waiting = models.filter(|&m| !view.queue(m).is_empty());
    let hold = |m| match view.is_ready(m) {
        true => Hold::Policy,
        false if view.num_in_flight(m) >= view.model(m).max_in_flight => Hold::Slots,
        false => Hold::Loading,
    };
    waiting.map(|m| (m, hold(m))).collect()
}
