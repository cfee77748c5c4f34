//! `lazy` and `oracle`: LazyBatching as we reconstruct it.
//!
//! The batch table is a stack; only its top runs. At every boundary: (1) finished members have
//! left; (2) while the two top entries stand at the same cursor and fit max batch together, they
//! merge; (3) if requests wait and the slack test passes, the longest prefix that passes is pushed
//! and runs alone until it stands where the former top stands; (4) the top runs one segment. An
//! empty table starts the first min(max batch, waiting) at once.
//!
//! Slack of a request = its deadline - now - predicted time, and must be >= 0 for every request in
//! flight and every candidate. `lazy` predicts the sum over all of them of their remaining time at
//! batch 1, with the output length that covers 90 % of training outputs. `oracle` predicts the
//! longest remaining time over all of them with every launch at the size that the merge would
//! reach, and knows the output lengths. `lazy:late-admits` skips the test once the oldest request
//! is late. `lazy:passes` lets newcomers preempt no entry within a pass of a loop, which they cannot
//! catch up with before its next: this is no part of the reconstruction.
//!
//! Source: Choi, Kim, Rhu, "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning
//! Inference", HPCA 2021 (arXiv 2010.13103); put together from its abstract and the field's
//! descriptions, so a reconstruction. With several models, the candidates are of the model whose
//! oldest request has waited longest, and max batch counts the requests of that model.

use lazybatch_graph::Repeat;
use lazybatch_sla::{BatchedSlack, ModelId, OutputLen, SerialisedSlack, SlackNs, Time};

use super::{Decision, Entry, Pick, Policy};
use crate::core::{RequestState, SubBatch, View};

/// Registry line of `lazy`.
pub const LAZY: Entry = Entry {
    name: "lazy",
    usage: "lazy[:late-admits|:passes]",
    summary: "LazyBatching as reconstructed: node-level batching with a serialised slack test",
    examples: &["lazy", "lazy:late-admits", "lazy:passes"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        let (late_admits, passes) = match argument {
            None => (false, false),
            Some("late-admits") => (true, false),
            Some("passes") => (false, true),
            Some(_) => return None,
        };
        Some(Box::new(Lazy {
            late_admits,
            passes,
            ..Lazy::default()
        }))
    },
};

/// Registry line of `oracle`.
pub const ORACLE: Entry = Entry {
    name: "oracle",
    usage: "oracle",
    summary: "lazy with exact batched latencies and exact output lengths",
    examples: &["oracle"],
    refusing: &[],
    needs_output_len: true,
    build: |argument| {
        argument.is_none().then(|| {
            Box::new(Lazy {
                oracle: true,
                ..Lazy::default()
            }) as Box<dyn Policy>
        })
    },
};

#[derive(Default)]
struct Lazy {
    late_admits: bool,
    /// No entry is preempted within a pass of a loop.
    passes: bool,
    oracle: bool,
    /// Newcomers were pushed at this boundary: what is left of it is to run the top. Some of them
    /// may stand at a cursor where they could merge, or may all have ended.
    pushed: bool,
}

impl Policy for Lazy {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        let table = view.table();
        let pushed = std::mem::take(&mut self.pushed);
        let Some(top) = table.from_top(0) else {
            return self.start(view);
        };
        if pushed {
            return self.run(view, top);
        }
        if let Some(below) = table.from_top(1).filter(|below| view.can_merge(below, top)) {
            return Decision::Merge {
                into: below.id,
                from: top.id,
            };
        }
        let stays = self.passes && is_within_pass(view, top);
        if !stays && let Some((model, n)) = self.candidates(view) {
            self.pushed = true;
            return Decision::Admit {
                model,
                pick: Pick::First(n),
                padded: false,
            };
        }
        self.run(view, top)
    }
}

impl Lazy {
    fn run(&self, view: &View<'_>, top: &SubBatch) -> Decision {
        if view.is_launchable(top) {
            Decision::Launch(top.id)
        } else {
            Decision::Wait { until: None }
        }
    }

    fn start(&mut self, view: &View<'_>) -> Decision {
        match view.oldest_head() {
            Some((model, _)) => {
                self.pushed = true;
                let n = view.fitting_prefix(model, view.model(model).max_batch);
                Decision::Admit {
                    model,
                    pick: Pick::First(n),
                    padded: false,
                }
            }
            None => Decision::Wait { until: None },
        }
    }

    /// The longest prefix of the queue that passes the slack test.
    fn candidates(&self, view: &View<'_>) -> Option<(ModelId, usize)> {
        let (model, head) = view.oldest_head()?;
        let spec = view.model(model);
        let running: u32 = view
            .table()
            .iter()
            .filter(|e| e.model == model)
            .map(|e| e.samples)
            .sum();
        let room = spec.max_batch.checked_sub(running).filter(|&r| r > 0)?;
        let fitting = view.fitting_prefix(model, room);
        if fitting == 0 {
            return None;
        }
        if self.late_admits && oldest_deadline(view, head) < view.now {
            return Some((model, fitting));
        }
        let n = if self.oracle {
            self.batched_prefix(view, model, fitting)
        } else {
            self.serial_prefix(view, model, fitting)
        };
        (n > 0).then_some((model, n))
    }

    /// The longest prefix with no negative slack by the serialised estimate, which only falls as
    /// candidates are added.
    fn serial_prefix(&self, view: &View<'_>, model: ModelId, fitting: usize) -> usize {
        let mut slack = SerialisedSlack::new(view.now);
        let mut add = |request: &RequestState, entry: Option<&SubBatch>| {
            let progress = view.progress(request, entry, output_len(view, request));
            let table = &view.model(request.request.model).table;
            slack.add(table, &progress, request.request.samples, request.deadline);
            slack.least()
        };
        for entry in view.table().iter() {
            for request in view.members(entry) {
                if add(request, Some(entry)) < SlackNs(0) {
                    return 0;
                }
            }
        }
        view.queue(model)
            .iter()
            .take(fitting)
            .take_while(|&key| add(view.request(key), None) >= SlackNs(0))
            .count()
    }

    /// The longest prefix with no negative slack by the batched estimate. Where no latency falls
    /// with the batch, slack falls as candidates are added and bisection finds it; elsewhere it is
    /// looked for from the longest down.
    fn batched_prefix(&self, view: &View<'_>, model: ModelId, fitting: usize) -> usize {
        let candidates: Vec<_> = view
            .queue(model)
            .iter()
            .take(fitting)
            .map(|k| view.request(k))
            .collect();
        let passes = |n: usize| has_batched_slack(view, &candidates[..n]);
        if !view.models().iter().all(|m| m.table.is_monotone()) {
            return (1..=fitting).rev().find(|&n| passes(n)).unwrap_or(0);
        }
        let (mut most, mut too_many) = (0, fitting + 1);
        while too_many - most > 1 {
            let n = most.midpoint(too_many);
            if passes(n) {
                most = n;
            } else {
                too_many = n;
            }
        }
        most
    }
}

/// Whether nobody's slack is negative by the batched estimate. Slack falls as requests are added, so
/// the first negative one tells.
fn has_batched_slack(view: &View<'_>, candidates: &[&RequestState]) -> bool {
    let all = || {
        let running = |e| view.members(e).map(move |r| (r, Some(e)));
        let waiting = candidates.iter().map(|&r| (r, None));
        view.table().iter().flat_map(running).chain(waiting)
    };
    let mut slack = BatchedSlack::new(view.now, view.models().len());
    for (r, _) in all() {
        slack.count(
            r.request.model.index(),
            r.request.samples,
            r.request.input_len,
        );
    }
    for (r, entry) in all() {
        let progress = view.progress(r, entry, output_len(view, r));
        let m = r.request.model.index();
        slack.add(m, &view.models()[m].table, &progress, r.deadline);
        if slack.least() < SlackNs(0) {
            return false;
        }
    }
    true
}

fn is_within_pass(view: &View<'_>, entry: &SubBatch) -> bool {
    let block = &view.model(entry.model).blocks[entry.block as usize];
    entry.segment > 0 && block.repeat != Repeat::Once
}

/// Known, or predicted for everyone alike; a prediction is at least one step.
fn output_len(view: &View<'_>, request: &RequestState) -> u32 {
    request.request.known_output_len.unwrap_or_else(|| {
        OutputLen::known(view.model(request.request.model).output_len_p90).predict()
    })
}

fn oldest_deadline(view: &View<'_>, head: &RequestState) -> Time {
    view.table()
        .iter()
        .flat_map(|e| view.members(e))
        .chain([head])
        .min_by_key(|r| (r.request.arrival, r.request.id))
        .map_or(Time::MAX, |r| r.deadline)
}
