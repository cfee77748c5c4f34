//! `edf`: earliest deadline first, node by node.
//!
//! At every boundary, of the entries in the table, the one with the earliest deadline among its
//! members runs its next segment. A request without an SLA target counts as due a *patience* after
//! its arrival. Entries at one cursor merge as far as they fit max batch. Waiting requests, the
//! earliest due first, start in one of three ways:
//! 1. Nothing in the table can run: the model with the earliest deadline starts its requests.
//! 2. The entry to run stands at the very start: requests of its model join it.
//! 3. The earliest deadline of all is that of a waiting request: it and the others of its model
//!    that are due before the entry to run *switch* ahead of it, if that gains more than it costs.
//!
//! How many start together is limited so that the earliest deadline among them is not lost to
//! their number: it is met at that batch, or not even met without them. A switch gains those
//! newcomers that are met if they run first and late if they run second; it costs the members of
//! the entry for which it is the other way round. It happens if the gain is at least the cost and
//! not nothing; if the first of the newcomers is late either way and nobody is harmed; or if it is
//! overdue by the patience. So every request runs after a bounded number of others: those due
//! before it, and what starts until it is overdue by the patience.
//!
//! Predictions are those of the latency table at the batch in question, with the output length
//! that covers 90 % of training outputs; those of an entry are of its member that is due first.
//! Who is late keeps its place: nothing is demoted or shed.
//!
//! Source: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
//! Environment", JACM 1973, for the rule on one lane; batching, joining and switching are our own.

use lazybatch_sla::{ModelId, Nanos, OutputLen, RequestId, Time};

use super::entries::merge_equals;
use super::{Decision, Entry, Pick, Policy};
use crate::core::{Key, RequestState, SubBatch, View};

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "edf",
    usage: "edf[:patience=MS]",
    summary: "earliest deadline first, node by node; without a target due after the patience (1000)",
    examples: &["edf", "edf:patience=0.02"],
    refusing: &[],
    needs_output_len: false,
    build: |argument| {
        let patience = match argument {
            None => Nanos::from_ms(1000),
            Some(text) => {
                let ms: f64 = text.strip_prefix("patience=")?.parse().ok()?;
                (ms.is_finite() && ms >= 0.0).then(|| Nanos::from_ms_f64(ms))?
            }
        };
        Some(Box::new(Edf {
            patience,
            waiting: Vec::new(),
        }))
    },
};

/// When a request is due, and its id as a tie-break.
type Due = (Time, RequestId);

struct Edf {
    patience: Nanos,
    /// By model: its waiting request that is due first, as of the queue's last change.
    waiting: Vec<Earliest>,
}

/// What was found in a queue, and how often that had changed then.
#[derive(Clone, Copy, Default)]
struct Earliest {
    seen: Option<u64>,
    found: Option<(Due, Key)>,
}

/// Samples and rows of a batch.
#[derive(Clone, Copy, Default)]
struct Size {
    samples: u32,
    rows: u64,
}

impl Size {
    fn of(request: &RequestState) -> Self {
        let r = &request.request;
        Self {
            samples: r.samples,
            rows: u64::from(r.samples) * u64::from(r.input_len),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            rows: self.rows + other.rows,
        }
    }
}

/// The entry to run.
struct Next<'a> {
    entry: &'a SubBatch,
    due: Due,
    /// Its member that is due first.
    tightest: &'a RequestState,
}

/// Waiting requests that could start together, the earliest due first.
struct Starters<'a> {
    model: ModelId,
    requests: Vec<(Due, Key, &'a RequestState)>,
}

impl Policy for Edf {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(merge) = merge_equals(view) {
            return merge;
        }
        let next = self.next(view);
        let Some((due, model)) = self.earliest(view) else {
            return next.map_or(Decision::Wait { until: None }, |n| {
                Decision::Launch(n.entry.id)
            });
        };
        let Some(next) = next else {
            let max_batch = view.model(model).max_batch;
            let starters = self.starters(view, model, max_batch, |_| true);
            let n = met_together(
                view,
                &starters,
                Size::default(),
                starters.requests[0].2,
                None,
            );
            return starters.admit(n.max(1));
        };
        if let Some(join) = self.join(view, &next) {
            return join;
        }
        if due < next.due
            && let Some(switch) = self.switch(view, &next, model)
        {
            return switch;
        }
        Decision::Launch(next.entry.id)
    }
}

impl Edf {
    fn due(&self, request: &RequestState) -> Due {
        let due = match request.request.sla {
            Some(_) => request.deadline,
            None => request.request.arrival + self.patience,
        };
        (due, request.request.id)
    }

    /// That of a request that waits: delayed ones come behind all others.
    fn due_waiting(&self, request: &RequestState) -> Due {
        match request.is_delayed {
            true => (Time::MAX, request.request.id),
            false => self.due(request),
        }
    }

    fn next<'a>(&self, view: &View<'a>) -> Option<Next<'a>> {
        let entries = view.table().iter().filter(|e| view.is_launchable(e));
        entries
            .map(|entry| {
                let (due, tightest) = view
                    .members(entry)
                    .map(|r| (self.due(r), r))
                    .min_by_key(|m| m.0)
                    .expect("entries have members");
                Next {
                    entry,
                    due,
                    tightest,
                }
            })
            .min_by_key(|n| n.due)
    }

    /// The earliest deadline of those who may start, and its model. A queue is looked at when it
    /// has changed, and a flow searched only if deadlines in it are not in order of arrival.
    fn earliest(&mut self, view: &View<'_>) -> Option<(Due, ModelId)> {
        self.waiting
            .resize(view.models().len(), Earliest::default());
        view.ready()
            .map(|model| {
                let queue = view.queue(model);
                let seen = Some(queue.num_changes());
                let mut at = self.waiting[model.index()];
                let holds = |(due, key): (Due, Key)| {
                    view.is_waiting(key, due.1) && self.due_waiting(view.request(key)) == due
                };
                if at.seen != seen || !at.found.is_some_and(holds) {
                    let dues = queue.flows().flat_map(|flow| {
                        let num = if flow.is_in_order_of_deadlines() {
                            1
                        } else {
                            flow.len()
                        };
                        let first = flow.iter().take(num);
                        first.map(|k| (self.due_waiting(view.request(k)), k))
                    });
                    at.seen = seen;
                    at.found = dues.min();
                    self.waiting[model.index()] = at;
                }
                debug_assert_eq!(at.found, self.by_due(view, model).min());
                (at.found.expect("ready queues hold someone").0, model)
            })
            .min()
    }

    /// All of a queue, with when they are due.
    fn by_due(&self, view: &View<'_>, model: ModelId) -> impl Iterator<Item = (Due, Key)> {
        let queue = view.queue(model).iter();
        queue.map(|k| (self.due_waiting(view.request(k)), k))
    }

    /// Those of a model that `wanted` lets through, the earliest due first, as many as fit
    /// `room` samples and the free slots; the first that does not fit ends the list.
    fn starters<'a>(
        &self,
        view: &View<'a>,
        model: ModelId,
        room: u32,
        wanted: impl Fn(Due) -> bool,
    ) -> Starters<'a> {
        let free = view.model(model).max_in_flight - view.num_in_flight(model);
        // Every request has a sample, so no more than `most` can start.
        let most = free.min(room) as usize;
        let mut requests = Vec::new();
        for flow in view.queue(model).flows() {
            let num = match flow.is_in_order_of_deadlines() {
                true => most,
                false => flow.len(),
            };
            let first = flow.iter().take(num);
            let first = first.map(|k| (self.due_waiting(view.request(k)), k, view.request(k)));
            requests.extend(first.filter(|r| wanted(r.0)));
        }
        if most < requests.len() {
            if most > 0 {
                requests.select_nth_unstable_by_key(most - 1, |r| r.0);
            }
            requests.truncate(most);
        }
        requests.sort_unstable_by_key(|r| r.0);
        debug_assert!({
            let mut all: Vec<Due> = self.by_due(view, model).map(|w| w.0).collect();
            all.retain(|&due| wanted(due));
            all.sort_unstable();
            requests.iter().map(|r| r.0).eq(all.into_iter().take(most))
        });
        let mut samples = 0;
        let fits = |r: &&(Due, Key, &RequestState)| {
            samples += r.2.request.samples;
            samples <= room
        };
        let n = requests.iter().take_while(fits).count();
        requests.truncate(n);
        Starters { model, requests }
    }

    /// Requests that join the entry to run at the very start.
    fn join(&self, view: &View<'_>, next: &Next<'_>) -> Option<Decision> {
        let e = next.entry;
        if (e.block, e.segment) != (0, 0) || e.padded.is_some() || !view.is_ready(e.model) {
            return None;
        }
        let room = view.model(e.model).max_batch.saturating_sub(e.samples);
        if room == 0 {
            return None;
        }
        let starters = self.starters(view, e.model, room, |_| true);
        let there = view.members(e).map(Size::of);
        let there = there.fold(Size::default(), Size::and);
        let n = met_together(view, &starters, there, next.tightest, Some(e));
        (n > 0).then(|| starters.admit(n))
    }

    /// Requests of `model` that start ahead of the entry to run. See the module.
    fn switch(&self, view: &View<'_>, next: &Next<'_>, model: ModelId) -> Option<Decision> {
        let max_batch = view.model(model).max_batch;
        let starters = self.starters(view, model, max_batch, |due| due < next.due);
        let first = starters.requests.first()?.2;
        let n = met_together(view, &starters, Size::default(), first, None).max(1);
        let newcomers = &starters.requests[..n];
        let size = newcomers.iter().map(|r| Size::of(r.2));
        let theirs = needs(view, first, None, size.fold(Size::default(), Size::and));
        let members = view.members(next.entry).map(Size::of);
        let size = members.fold(Size::default(), Size::and);
        let others = needs(view, next.tightest, Some(next.entry), size);
        let (alone, both) = (view.now + theirs, view.now + theirs + others);
        let gain = newcomers
            .iter()
            .filter(|r| (alone..both).contains(&r.0.0))
            .count();
        let parked = view.now + others;
        let cost = view
            .members(next.entry)
            .filter(|r| (parked..both).contains(&self.due(r).0))
            .count();
        let due = self.due(first).0;
        let is_late = due < alone;
        let is_overdue = due + self.patience < view.now;
        let pays = gain > 0 && gain >= cost;
        (pays || is_late && cost == 0 || is_overdue).then(|| starters.admit(n))
    }
}

impl Starters<'_> {
    fn admit(&self, n: usize) -> Decision {
        Decision::Admit {
            model: self.model,
            pick: Pick::These(self.requests[..n].iter().map(|r| r.1).collect()),
            padded: false,
        }
    }
}

/// Time that a request needs from where it stands, in launches of that size.
fn needs(view: &View<'_>, r: &RequestState, entry: Option<&SubBatch>, size: Size) -> Nanos {
    let spec = view.model(r.request.model);
    let predicted = || OutputLen::known(spec.output_len_p90).predict();
    let output_len = r.request.known_output_len.unwrap_or_else(predicted);
    let progress = view.progress(r, entry, output_len);
    spec.table.remaining(&progress, size.samples, size.rows)
}

/// How many of the starters may join `there` without costing `first` its deadline: all, if it is
/// late by itself.
fn met_together(
    view: &View<'_>,
    starters: &Starters<'_>,
    there: Size,
    first: &RequestState,
    entry: Option<&SubBatch>,
) -> usize {
    let mut sizes = vec![there];
    sizes.extend(starters.requests.iter().scan(there, |size, r| {
        *size = size.and(Size::of(r.2));
        Some(*size)
    }));
    let met = |n: usize| view.now + needs(view, first, entry, sizes[n]) <= first.deadline;
    let (alone, all) = (
        usize::from(there.samples == 0).min(starters.requests.len()),
        starters.requests.len(),
    );
    if !met(alone) || met(all) {
        return all;
    }
    // Latencies grow with the batch; where one does not, this is still a number that is met.
    let (mut most, mut too_many) = (alone, all);
    while too_many - most > 1 {
        let n = most.midpoint(too_many);
        if met(n) {
            most = n;
        } else {
            too_many = n;
        }
    }
    most
}
