//! Everything the core remembers, and the mechanics on it.
//!
//! The policy decides; this applies. Each function here keeps the table's invariants:
//! 1. Members of an entry share model, block and segment.
//! 2. A request is in at most one entry, one queue or one list of finishing requests.
//! 3. An entry is launched only when its former launch is complete, or on the same lane behind it.
//! 4. Every request that arrived gets exactly one `Finish`.

use std::collections::VecDeque;

use lazybatch_sla::{
    ClassId, LaneId, Launch, Member, ModelId, Outcome, RequestId, Slot, SubBatchId, Ticket, Time,
};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::config::CoreConfig;
use super::delays::Delays;
use super::event::{Action, Note, Request};
use super::queue::{ArrivalQueue, FlowKey};
use super::request::{Key, RequestState, Stage};
use super::sequences::{Held, Sequences};
use super::table::{BatchTable, Padded, SubBatch};

/// A launch in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// What runs.
    pub launch: Launch,
    /// Position in its lane's order.
    pub number: u64,
    /// Requests that end when it completes.
    pub finishing: Vec<Key>,
    /// When it was issued.
    pub issued: Time,
}

/// How a request ended, for policies that learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Which one.
    pub id: RequestId,
    /// How.
    pub outcome: Outcome,
    /// Its model.
    pub model: ModelId,
    /// Its class.
    pub class: ClassId,
    /// Its priority level.
    pub priority: u8,
    /// Length of its input.
    pub input_len: u32,
    /// Passes of its last `UntilStop` loop, if that has ended.
    pub output_len: Option<u32>,
    /// That is as many as it asked for: alone its output might have been longer.
    pub is_cut: bool,
}

/// One lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    pub depth: u32,
    pub issued: u64,
    pub completed: u64,
    pub flights: VecDeque<Flight>,
    /// When a launch completed last.
    pub freed: Time,
    /// The entry that was launched last, if it still exists.
    pub active: Option<SubBatchId>,
    /// When the policy wants to be asked again.
    pub wake: Option<Time>,
}

/// Residency of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    Host,
    Loading,
    Resident,
    Leaving,
    /// Detached; runs until its last request has ended.
    Retiring,
    /// No model has the id.
    Vacant,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Node executions.
    pub launches: u64,
    /// Samples of all node executions.
    pub batched: u64,
    /// Entries that joined another.
    pub merges: u64,
    /// Times an unfinished active entry was parked for another one.
    pub preemptions: u64,
    /// Steps computed for a request that had already left its loop.
    pub discarded: u64,
    /// Decisions with two or more legal actions.
    pub decisions: u64,
    /// Requests that arrived.
    pub arrivals: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Requests that were demoted.
    pub demoted: u64,
    /// Requests that were delayed.
    pub delayed: u64,
}

/// The core without its policy.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) config: CoreConfig,
    pub(crate) requests: Slab<RequestState>,
    pub(crate) by_id: FxHashMap<RequestId, Key>,
    pub(crate) queues: Vec<ArrivalQueue>,
    pub(crate) residency: Vec<Residency>,
    pub(crate) in_flight: Vec<u32>,
    pub(crate) samples_in_flight: Vec<u32>,
    pub(crate) table: BatchTable,
    pub(crate) lanes: Vec<Lane>,
    pub(super) sequences: Sequences,
    pub(super) delays: Delays,
    pub(crate) slots: Vec<Option<Key>>,
    free_slots: Vec<Slot>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) counters: Counters,
    /// The same by model, since it was attached.
    pub(crate) by_model: Vec<Counters>,
    /// Models that went, which the policy has not heard of.
    pub(crate) vacated: Vec<ModelId>,
    /// Endings that the policy has not heard of.
    pub(crate) endings: Vec<Ending>,
    next_ticket: u64,
    /// Node executions since the start.
    pub(crate) num_nodes: u64,
    /// Nothing is to come of any model.
    pub(crate) is_draining: bool,
    pub(super) spare: Vec<Launch>,
    lingering: Vec<Key>,
    pub(super) doomed: u32,
}

impl State {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let num = config.models.len();
        let lanes = config
            .lane_depths
            .iter()
            .map(|&depth| Lane {
                depth,
                ..Lane::default()
            })
            .collect::<Vec<_>>();
        assert!(
            !lanes.is_empty() && lanes.iter().all(|l| l.depth > 0),
            "lanes of depth >= 1"
        );
        assert!(!config.classes.is_empty(), "at least one class");
        Self {
            residency: config
                .models
                .iter()
                .map(|m| {
                    if m.resident {
                        Residency::Resident
                    } else {
                        Residency::Host
                    }
                })
                .collect(),
            requests: Slab::new(),
            by_id: FxHashMap::default(),
            queues: vec![ArrivalQueue::default(); num],
            in_flight: vec![0; num],
            samples_in_flight: vec![0; num],
            table: BatchTable::default(),
            lanes,
            sequences: Sequences::default(),
            delays: Delays::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            actions: VecDeque::new(),
            counters: Counters::default(),
            by_model: vec![Counters::default(); num],
            vacated: Vec::new(),
            endings: Vec::new(),
            next_ticket: 0,
            num_nodes: 0,
            spare: Vec::new(),
            lingering: Vec::new(),
            doomed: 0,
            is_draining: false,
            config,
        }
    }

    pub(crate) fn note(&mut self, note: impl FnOnce() -> Note) {
        if self.config.notes {
            self.actions.push_back(Action::Note(note()));
        }
    }

    pub(super) fn ids(&self, keys: &[Key]) -> Vec<RequestId> {
        keys.iter()
            .map(|&k| self.requests[k as usize].request.id)
            .collect()
    }

    // --- events -------------------------------------------------------------------------------

    pub(crate) fn arrive(&mut self, now: Time, request: Request) {
        let model = request.model;
        assert!(self.takes(model), "unknown model {model}");
        assert!(request.samples >= 1, "{} has no samples", request.id);
        assert!(
            request.samples <= self.config.models[model.index()].max_batch,
            "{} has more samples than a launch",
            request.id
        );
        assert!(
            request.class.index() < self.config.classes.len(),
            "unknown class {}",
            request.class
        );
        self.tally(model, |c| c.arrivals += 1);
        let (id, arrival, samples) = (request.id, request.arrival, request.samples);
        let sequence = request.sequence;
        let key = self.requests.insert(RequestState::new(request)) as Key;
        assert!(self.by_id.insert(id, key).is_none(), "{id} arrived twice");
        let queued: usize = self.queues.iter().map(ArrivalQueue::len).sum();
        let refusal = match queued + self.sequences.num_held() >= self.config.max_queue {
            true => Some("the arrival queue is full".to_owned()),
            false => self.beyond_counting(model, samples),
        };
        if refusal.is_some() {
            // It never was part of its sequence, so it must not release the next one.
            self.requests[key as usize].request.sequence = None;
            self.finish(now, key, Outcome::Shed, refusal);
            return;
        }
        self.delays.begin(&self.requests[key as usize]);
        let held = Held {
            key,
            id,
            arrival,
            samples,
        };
        let behind = sequence.and_then(|s| self.sequences.arrive((model, s), held));
        if let Some(behind) = behind {
            self.requests[key as usize].stage = Stage::Held;
            self.note(|| Note::Behind {
                request: id,
                hold: behind,
            });
            return;
        }
        self.enqueue(id, model, key);
    }

    /// Requests of a sequence that has none here wait from now on, the first one too.
    pub(crate) fn hold(&mut self, model: ModelId, sequence: u64) {
        self.sequences.hold((model, sequence));
    }

    /// They wait no longer than for one another.
    pub(crate) fn let_go(&mut self, model: ModelId, sequence: u64) {
        if self.sequences.let_go((model, sequence)) {
            self.next_of_sequence(model, sequence);
        }
    }

    /// Why so many more samples of a model are too many: all that are open of one are counted in 32 bits,
    /// and any sum of some of them, in policies too.
    fn beyond_counting(&self, model: ModelId, samples: u32) -> Option<String> {
        let m = model.index();
        let open = [self.queues[m].num_samples(), self.samples_in_flight[m]];
        let open = self.sequences.held_samples() + open.map(u64::from).iter().sum::<u64>();
        let most = u64::from(u32::MAX);
        (open + u64::from(samples) > most).then(|| {
            format!(
                "samples open of its model: expected at most {most}, got {samples} beside {open}"
            )
        })
    }

    fn enqueue(&mut self, id: RequestId, model: ModelId, key: Key) {
        self.requests[key as usize].stage = Stage::Queued;
        let state = &self.requests[key as usize];
        let RequestState {
            request,
            is_delayed,
            ..
        } = state;
        let flow = FlowKey {
            class: request.class,
            level: request.priority,
            is_late: false,
            is_delayed: *is_delayed,
        };
        self.queues[model.index()].insert(flow, id, key, state.waiter());
        if self.residency[model.index()] == Residency::Host {
            self.residency[model.index()] = Residency::Loading;
            self.actions.push_back(Action::Load(model));
        }
    }

    /// A waiting request lets those pass that are not too late.
    pub(crate) fn demote(&mut self, key: Key) {
        let state = &self.requests[key as usize];
        let (id, model) = (state.request.id, state.request.model);
        let queue = &mut self.queues[model.index()];
        let flow = queue.remove(id);
        let flow = flow.unwrap_or_else(|| panic!("{id} is not waiting"));
        assert!(!flow.is_late, "{id} is demoted twice");
        let is_late = true;
        queue.insert(FlowKey { is_late, ..flow }, id, key, state.waiter());
        self.tally(model, |c| c.demoted += 1);
    }

    pub(crate) fn cancel(&mut self, now: Time, id: RequestId) {
        let Some(&key) = self.by_id.get(&id) else {
            return;
        };
        let state = &self.requests[key as usize];
        let model = state.request.model;
        match state.stage {
            Stage::Held => {
                let sequence = state.request.sequence.expect("held behind its sequence");
                self.sequences.leave((model, sequence), key);
                // It never was its sequence's head, so it must not release the next one.
                self.requests[key as usize].request.sequence = None;
                self.finish(now, key, Outcome::Cancelled, None);
            }
            Stage::Queued => {
                self.queues[model.index()].remove(id);
                self.finish(now, key, Outcome::Cancelled, None);
            }
            Stage::InFlight(entry) if self.is_complete(state.after) => {
                self.leave(entry, key);
                self.finish(now, key, Outcome::Cancelled, None);
            }
            Stage::InFlight(_) | Stage::Finishing => {
                let state = &mut self.requests[key as usize];
                self.doomed += u32::from(!state.doomed);
                state.doomed = true;
            }
            Stage::Lingering => {}
        }
    }

    // --- ends ---------------------------------------------------------------------------------

    pub(super) fn complete(&mut self, now: Time, key: Key) {
        let state = &self.requests[key as usize];
        if matches!(state.stage, Stage::Lingering) {
            return;
        }
        let outcome = match (state.doomed, now <= state.deadline) {
            (true, _) => Outcome::Cancelled,
            (false, true) => Outcome::Met,
            (false, false) => Outcome::Violated,
        };
        self.note_bound(key);
        self.finish(now, key, outcome, None);
    }

    pub(crate) fn finish(&mut self, now: Time, key: Key, outcome: Outcome, cause: Option<String>) {
        let state = &mut self.requests[key as usize];
        if state.slot.is_none() {
            self.delays.end(state);
        }
        assert!(state.outcome.is_none(), "{} ends twice", state.request.id);
        assert!(
            state.request.arrival <= now,
            "{} ends before it arrived",
            state.request.id
        );
        state.outcome = Some(outcome);
        self.doomed -= u32::from(state.doomed);
        state.stage = Stage::Lingering;
        let (request, model, sequence) = (
            state.request.id,
            state.request.model,
            state.request.sequence,
        );
        let (slot, after, first_launch) = (state.slot, state.after, state.first_launch);
        self.endings.push(Ending {
            id: request,
            outcome,
            model,
            class: state.request.class,
            priority: state.request.priority,
            input_len: state.request.input_len,
            output_len: state.output_len,
            is_cut: state.is_cut,
        });
        self.by_id.remove(&request);
        self.tally(model, |c| c.finished += 1);
        self.actions.push_back(Action::Finish {
            request,
            outcome,
            first_launch,
            cause,
        });
        if slot.is_none() {
            self.requests.remove(key as usize);
            if let Some(sequence) = sequence {
                self.next_of_sequence(model, sequence);
            }
            self.try_leave(model);
        } else if self.is_complete(after) {
            self.release(key);
        } else {
            self.lingering.push(key);
        }
    }

    fn next_of_sequence(&mut self, model: ModelId, sequence: u64) {
        if let Some(next) = self.sequences.next((model, sequence)) {
            let id = self.requests[next as usize].request.id;
            self.enqueue(id, model, next);
            self.note(|| Note::Queue { request: id });
        }
    }

    pub(super) fn release_lingering(&mut self) {
        let mut i = 0;
        while i < self.lingering.len() {
            let key = self.lingering[i];
            if self.is_complete(self.requests[key as usize].after) {
                self.lingering.remove(i);
                self.release(key);
            } else {
                i += 1;
            }
        }
    }

    fn release(&mut self, key: Key) {
        let state = self.requests.remove(key as usize);
        let slot = state.slot.expect("only admitted requests hold a slot");
        self.slots[slot.index()] = None;
        self.free_slots.push(slot);
        let m = state.request.model.index();
        self.in_flight[m] -= 1;
        self.samples_in_flight[m] -= state.request.samples;
        self.actions.push_back(Action::Release {
            request: state.request.id,
            slot,
        });
        if let Some(sequence) = state.request.sequence {
            self.next_of_sequence(state.request.model, sequence);
        }
        self.try_leave(state.request.model);
    }

    /// Removes a request from its entry, and the entry if it was the last.
    pub(super) fn leave(&mut self, entry: SubBatchId, key: Key) {
        let i = self.table.position(entry).expect("its entry exists");
        let samples = self.requests[key as usize].request.samples;
        let entry = self.table.entry(i);
        entry.members.retain(|&k| k != key);
        entry.samples -= samples;
        if entry.members.is_empty() {
            self.pop(i);
        }
    }

    pub(super) fn pop(&mut self, index: usize) -> SubBatch {
        let entry = self.table.remove(index);
        for lane in &mut self.lanes {
            if lane.active == Some(entry.id) {
                lane.active = None;
            }
        }
        self.note(|| Note::Pop {
            sub_batch: entry.id,
        });
        entry
    }

    // --- decisions ----------------------------------------------------------------------------

    /// Whether everything up to a launch has completed.
    pub(crate) fn is_complete(&self, after: Option<(LaneId, u64)>) -> bool {
        after.is_none_or(|(lane, number)| self.lanes[lane.index()].completed >= number)
    }

    /// Gives requests that waited slots and an entry's id; how many samples they have.
    fn seat(&mut self, model: ModelId, keys: &[Key]) -> (SubBatchId, u32) {
        let spec = &self.config.models[model.index()];
        let samples: u32 = keys
            .iter()
            .map(|&k| self.requests[k as usize].request.samples)
            .sum();
        assert!(
            !keys.is_empty() && samples <= spec.max_batch,
            "{samples} samples admitted"
        );
        assert!(
            self.in_flight[model.index()] + keys.len() as u32 <= spec.max_in_flight,
            "more requests in flight than memory was reserved for"
        );
        self.in_flight[model.index()] += keys.len() as u32;
        self.samples_in_flight[model.index()] += samples;
        let id = self.table.fresh_id();
        for &key in keys {
            let slot = self.free_slots.pop().unwrap_or_else(|| {
                self.slots.push(None);
                Slot(self.slots.len() as u32 - 1)
            });
            self.slots[slot.index()] = Some(key);
            let state = &mut self.requests[key as usize];
            self.delays.end(state);
            state.slot = Some(slot);
            state.stage = Stage::InFlight(id);
            self.actions.push_back(Action::Open {
                request: state.request.id,
                slot,
            });
        }
        (id, samples)
    }

    /// Puts requests that have left their queue into the table, at a cursor other than the start.
    pub(super) fn place(&mut self, block: u32, segment: u32, members: Vec<Key>) {
        let Some(&first) = members.first() else {
            return;
        };
        let model = self.requests[first as usize].request.model;
        let is_alike = |&k: &Key| self.requests[k as usize].request.model == model;
        assert!(members.iter().all(is_alike), "members are of one model");
        let (id, samples) = self.seat(model, &members);
        self.table.push(SubBatch {
            id,
            model,
            block,
            segment,
            members,
            samples,
            padded: None,
            after: None,
            ran_at: Some(0),
            merged_members: 0,
        });
    }

    pub(crate) fn admit(&mut self, now: Time, model: ModelId, keys: Vec<Key>, padded: bool) {
        let (id, samples) = self.seat(model, &keys);
        self.note_admit(id, &keys);
        let longest = keys
            .iter()
            .map(|&k| self.requests[k as usize].request.input_len)
            .max()
            .unwrap_or(0);
        self.table.push(SubBatch {
            id,
            model,
            block: 0,
            segment: 0,
            members: keys,
            samples,
            padded: padded.then_some(Padded {
                longest,
                step: 0,
                undecided: false,
            }),
            after: None,
            ran_at: None,
            merged_members: 0,
        });
        let top = self.table.len() - 1;
        let mut ended = Vec::new();
        if padded {
            self.enter_padded(top, 0, &mut ended);
        } else {
            let targets: Vec<_> = self
                .table
                .at(top)
                .members
                .iter()
                .map(|&k| self.first_block(k, 0))
                .collect();
            self.route(top, &targets, &mut ended);
        }
        for key in ended {
            self.complete(now, key);
        }
    }

    fn note_admit(&mut self, id: SubBatchId, keys: &[Key]) {
        if self.config.notes {
            let members = self.ids(keys);
            self.note(|| Note::Admit {
                sub_batch: id,
                members,
            });
        }
    }

    pub(crate) fn can_merge(&self, a: &SubBatch, b: &SubBatch) -> bool {
        let lanes = match (a.after, b.after) {
            (Some(x), Some(y)) if x.0 != y.0 => {
                self.is_complete(a.after) && self.is_complete(b.after)
            }
            _ => true,
        };
        a.id != b.id
            && lanes
            && (a.model, a.block, a.segment) == (b.model, b.block, b.segment)
            && a.padded.is_none()
            && b.padded.is_none()
            && a.samples + b.samples <= self.config.models[a.model.index()].max_batch
    }

    pub(crate) fn merge(&mut self, into: SubBatchId, from: SubBatchId) {
        let i = self.table.position(from).expect("merged entries exist");
        let gone = self.table.remove(i);
        let j = self.table.position(into).expect("merged entries exist");
        assert!(
            self.can_merge(self.table.at(j), &gone),
            "{into} and {from} cannot merge"
        );
        for &key in &gone.members {
            self.requests[key as usize].stage = Stage::InFlight(into);
        }
        let entry = self.table.entry(j);
        // The copy moves the smaller part next to the larger one.
        entry.merged_members +=
            gone.members.len().min(entry.members.len()) as u32 + gone.merged_members;
        entry.members.extend_from_slice(&gone.members);
        entry.samples += gone.samples;
        entry.after = entry.after.max(gone.after);
        entry.ran_at = entry.ran_at.max(gone.ran_at);
        for lane in &mut self.lanes {
            if lane.active == Some(from) {
                lane.active = Some(into);
            }
        }
        self.tally(gone.model, |c| c.merges += 1);
        self.note(|| Note::Merge { into, from });
    }

    pub(crate) fn is_launchable(&self, entry: &SubBatch, lane: LaneId) -> bool {
        let decided = entry.padded.is_none_or(|p| !p.undecided);
        let ordered = entry.after.is_some_and(|(l, _)| l == lane) || self.is_complete(entry.after);
        decided && ordered
    }

    pub(crate) fn launch(&mut self, now: Time, lane: LaneId, id: SubBatchId) {
        let i = self
            .table
            .position(id)
            .unwrap_or_else(|| panic!("{id} is not in the table"));
        assert!(
            self.is_launchable(self.table.at(i), lane),
            "{id} is still in flight elsewhere"
        );
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let number = self.lanes[lane.index()].issued + 1;
        let launch = self.describe(i, lane, ticket);
        let nodes = u64::from(launch.end_node - launch.first_node);
        self.num_nodes += nodes;
        let entry = self.table.entry(i);
        entry.after = Some((lane, number));
        entry.ran_at = Some(self.num_nodes);
        entry.merged_members = 0;
        for &key in &entry.members {
            let state = &mut self.requests[key as usize];
            state.after = Some((lane, number));
            state.first_launch.get_or_insert(now);
        }
        let samples = u64::from(self.table.at(i).samples);
        self.tally(launch.model, |c| {
            c.launches += nodes;
            c.batched += nodes * samples;
        });
        self.set_active(lane, id);
        // Before the notes on what the cursor's advance does to the table.
        self.actions.push_back(Action::Launch { ticket, lane });
        let mut finishing = Vec::new();
        let spec = &self.config.models[launch.model.index()].blocks[launch.block as usize];
        if (launch.segment as usize) + 1 < spec.segments.len() {
            self.table.entry(i).segment += 1;
        } else {
            self.end_pass(i, spec.repeat, &mut finishing);
        }
        let state = &mut self.lanes[lane.index()];
        state.issued = number;
        state.wake = None;
        state.flights.push_back(Flight {
            launch,
            number,
            finishing,
            issued: now,
        });
    }

    fn set_active(&mut self, lane: LaneId, by: SubBatchId) {
        let former = self.lanes[lane.index()].active.replace(by);
        if let Some(parked) = former.filter(|&f| f != by) {
            let model = self.table.get(parked).expect("active entries exist").model;
            self.tally(model, |c| c.preemptions += 1);
            self.note(|| Note::Preempt { parked, by });
        }
    }

    fn describe(&mut self, i: usize, lane: LaneId, ticket: Ticket) -> Launch {
        let entry = self.table.at(i);
        let nodes = &self.config.models[entry.model.index()].blocks[entry.block as usize].segments
            [entry.segment as usize];
        let mut launch = self.spare.pop().unwrap_or_else(|| Launch {
            ticket,
            lane,
            model: entry.model,
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 0,
            sub_batch: entry.id,
            members: Vec::new(),
            padded_len: None,
            merged_members: 0,
        });
        launch.ticket = ticket;
        launch.lane = lane;
        launch.model = entry.model;
        launch.block = entry.block;
        launch.segment = entry.segment;
        launch.first_node = nodes.start;
        launch.end_node = nodes.end;
        launch.sub_batch = entry.id;
        launch.padded_len = entry.padded.map(|p| p.longest);
        launch.merged_members = entry.merged_members;
        for &key in &entry.members {
            let state = &self.requests[key as usize];
            let (step, idle) = match entry.padded {
                None => (state.step, false),
                Some(p) => {
                    let own = self.passes(key, entry.block);
                    (p.step, state.stopped || p.step >= own)
                }
            };
            launch.members.push(Member {
                request: state.request.id,
                slot: state.slot.expect("members hold slots"),
                step,
                input_len: state.request.input_len,
                samples: state.request.samples,
                idle,
            });
        }
        launch
    }
}
