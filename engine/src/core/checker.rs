//! The checker: judges a run from its events, launches and actions alone.
//!
//! It shares no code with the core's mechanics and runs behind every simulation, property test and
//! replay. It finds, numbered as its messages cite them:
//! 1. time going back;
//! 2. a request that passes a node of its path twice, out of order, or not at all;
//! 3. a launch whose members do not share model, block and step rules, or hold one twice;
//! 4. an over-full launch;
//! 5. a ticket lost, repeated or completed out of its lane's order, or a lane over its depth;
//! 6. a request that ends twice, never, before its path has completed, or with the wrong outcome;
//! 7. (for stack policies) a launch of an entry that is not the top of the table;
//! 8. (where a bound is set) a request that more later requests have passed over than the bound;
//! 9. a model attached where one is, a request to one that is not there, or one that goes before its
//!    last request has ended, or without having been detached;
//! 10. (where asked for) a request that starts although it is delayed and one of its model and
//!     priority level waits that is not; those of sequences, which may be held, do not count;
//! 11. a launch of a request whose sequence is in the backlog.

use std::collections::VecDeque;

use lazybatch_graph::Repeat;
use lazybatch_sla::{Launch, Member, ModelId, Outcome, RequestId, SubBatchId, Ticket, Time};
use rustc_hash::{FxHashMap, FxHashSet};

use super::config::{CoreConfig, ModelSpec};
use super::event::{Action, Event, Note, Request};
use super::models::Attach;

/// A broken rule: which one and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checker rule {rule}: {what}")]
pub struct Violation {
    /// Number of the rule in the module's list.
    pub rule: u32,
    /// What happened.
    pub what: String,
}

/// Where a request must be launched next.
#[derive(Clone, Debug)]
struct Track {
    model: ModelId,
    deadline: Time,
    input_len: u32,
    max_steps: Option<u32>,
    samples: u32,
    block: u32,
    node: u32,
    step: u32,
    launches: u32,
    /// Its priority level.
    level: u8,
    /// It is delayed behind that.
    delayed: Time,
    /// Its correlation id.
    sequence: Option<u64>,
    /// It waits, and not for another one of its sequence.
    waits: bool,
    last: Option<Ticket>,
    /// The launch that completes its path and the block of it, while in flight.
    needs: Option<(Ticket, u32)>,
    failed: bool,
    cancelled: bool,
}

impl Track {
    /// Passes through its block; the bound for `UntilStop`.
    fn passes(&self, config: &CoreConfig) -> u32 {
        match config.models[self.model.index()].blocks[self.block as usize].repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => self.input_len.div_ceil(stride),
            Repeat::UntilStop { max } => self.max_steps.unwrap_or(u32::MAX).min(max),
        }
    }

    fn skip_blocks(&mut self, config: &CoreConfig) {
        while !self.is_complete(config) && self.passes(config) == 0 {
            self.block += 1;
        }
    }

    fn next_block(&mut self, config: &CoreConfig) {
        self.block += 1;
        self.node = 0;
        self.step = 0;
        self.skip_blocks(config);
    }

    fn is_complete(&self, config: &CoreConfig) -> bool {
        self.block as usize >= config.models[self.model.index()].blocks.len()
    }
}

/// A launch that has not completed.
#[derive(Clone, Debug)]
struct Issued {
    ticket: Ticket,
    block: u32,
    members: Vec<RequestId>,
    /// The path of a member is complete with it.
    ends: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Checker {
    config: CoreConfig,
    now: Time,
    open: FxHashMap<RequestId, Track>,
    lanes: Vec<VecDeque<Issued>>,
    spare: Vec<Vec<RequestId>>,
    next_ticket: u64,
    stack: Option<Vec<SubBatchId>>,
    arrived: u64,
    ended: u64,
    passing: Option<Passing>,
    /// Rule 10 is on.
    delays: bool,
    /// Models that go behind their last request.
    detached: FxHashSet<ModelId>,
    /// Sequences that wait.
    backlog: FxHashSet<(ModelId, u64)>,
}

/// Requests in order of arrival, for rule 8.
#[derive(Clone, Debug, Default)]
struct Passing {
    bound: u64,
    each: u64,
    /// Open requests and perhaps some ended ones: id, how many will have ended when everyone who
    /// arrived earlier has, and nobody later, and how often it may be passed over.
    order: VecDeque<(RequestId, u64, u64)>,
    ended: FxHashSet<RequestId>,
}

type Verdict = Result<(), Violation>;

fn broken<T>(rule: u32, what: String) -> Result<T, Violation> {
    Err(Violation { rule, what })
}

impl Checker {
    /// A checker for a core of that configuration. `stack` turns rule 7 on, which needs notes.
    pub fn new(config: &CoreConfig, stack: bool) -> Self {
        Self {
            lanes: vec![VecDeque::new(); config.lane_depths.len()],
            spare: Vec::new(),
            config: config.clone(),
            now: Time::ZERO,
            open: FxHashMap::default(),
            next_ticket: 0,
            stack: stack.then(Vec::new),
            arrived: 0,
            ended: 0,
            passing: None,
            delays: false,
            detached: FxHashSet::default(),
            backlog: FxHashSet::default(),
        }
    }

    /// Turns rule 8 on: at most `bound` requests that arrived later may end before a request, and
    /// `each` more for each that was open when it arrived.
    #[must_use]
    pub fn with_passing_bound(mut self, bound: u64, each: u64) -> Self {
        self.passing = Some(Passing {
            bound,
            each,
            ..Passing::default()
        });
        self
    }

    /// Turns rule 10 on. A policy that bounds how often a request is passed over breaks it on purpose.
    #[must_use]
    pub fn with_delays(mut self) -> Self {
        self.delays = true;
        self
    }

    fn advance(&mut self, now: Time) -> Verdict {
        if now < self.now {
            return broken(1, format!("time goes back from {} to {now}", self.now));
        }
        self.now = now;
        Ok(())
    }

    /// Sees an event before the core handles it.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn on_event(&mut self, now: Time, event: &Event) -> Verdict {
        match event {
            Event::Arrive(request) => self.on_arrive(now, request),
            Event::Done {
                ticket,
                stopped,
                faults,
                failed,
                ..
            } => self.on_done(now, *ticket, (stopped, faults), failed.is_some()),
            Event::Cancel(id) => {
                if let Some(track) = self.open.get_mut(id) {
                    track.cancelled = true;
                }
                self.advance(now)
            }
            Event::Hold { model, sequence } => {
                self.backlog.insert((*model, *sequence));
                self.advance(now)
            }
            Event::LetGo { model, sequence } => {
                self.backlog.remove(&(*model, *sequence));
                self.advance(now)
            }
            Event::Attach(attach) => self.on_attach(now, attach),
            Event::Detach(model) => {
                if !self.is_attached(*model) || !self.detached.insert(*model) {
                    return broken(9, format!("{model} is detached but not there"));
                }
                self.advance(now)
            }
            Event::Loaded(_) | Event::Evict(_) | Event::Drain | Event::Planned(_) | Event::Wake => {
                self.advance(now)
            }
        }
    }

    fn is_attached(&self, model: ModelId) -> bool {
        let spec = self.config.models.get(model.index());
        spec.is_some_and(|s| !s.is_vacant())
    }

    fn on_attach(&mut self, now: Time, attach: &Attach) -> Verdict {
        self.advance(now)?;
        let (m, models) = (attach.model.index(), &mut self.config.models);
        if m == models.len() {
            models.push(attach.spec.clone());
        } else if let Some(spec) = models.get_mut(m).filter(|s| s.is_vacant()) {
            *spec = attach.spec.clone();
        } else {
            return broken(9, format!("{} is attached but not vacant", attach.model));
        }
        Ok(())
    }

    fn on_vacate(&mut self, model: ModelId) -> Verdict {
        if let Some((id, _)) = self.open.iter().find(|(_, track)| track.model == model) {
            return broken(9, format!("{model} goes while {id} is open"));
        }
        if !self.detached.remove(&model) {
            return broken(9, format!("{model} goes and was not detached"));
        }
        self.config.models[model.index()] = ModelSpec::vacant();
        Ok(())
    }

    fn on_arrive(&mut self, now: Time, r: &Request) -> Verdict {
        self.advance(now)?;
        if !self.is_attached(r.model) || self.detached.contains(&r.model) {
            return broken(
                9,
                format!("{} is for {}, which is not there", r.id, r.model),
            );
        }
        self.arrived += 1;
        if let Some(passing) = &mut self.passing {
            let num_open = self.open.len() as u64;
            let allowed = passing.bound.saturating_add(passing.each * num_open);
            passing
                .order
                .push_back((r.id, self.ended + num_open, allowed));
        }
        let mut track = Track {
            model: r.model,
            deadline: r.sla.map_or(Time::MAX, |sla| r.arrival + sla),
            input_len: r.input_len,
            max_steps: r.max_steps,
            samples: r.samples,
            block: 0,
            node: 0,
            step: 0,
            launches: 0,
            level: r.priority,
            delayed: r.delay_after.map_or(Time::MAX, |after| r.arrival + after),
            sequence: r.sequence,
            waits: r.sequence.is_none(),
            last: None,
            needs: None,
            failed: false,
            cancelled: false,
        };
        track.skip_blocks(&self.config);
        if self.open.insert(r.id, track).is_some() {
            return broken(6, format!("{} arrives twice", r.id));
        }
        Ok(())
    }

    /// Sees a launch when it is issued.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn on_launch(&mut self, now: Time, launch: &Launch) -> Verdict {
        self.advance(now)?;
        if launch.ticket != Ticket(self.next_ticket) {
            return broken(
                5,
                format!("{} follows t{}", launch.ticket, self.next_ticket),
            );
        }
        self.next_ticket += 1;
        let spec = &self.config.models[launch.model.index()];
        if launch.members.is_empty() {
            return broken(3, format!("{} has no members", launch.ticket));
        }
        if launch.num_samples() > spec.max_batch {
            return broken(
                4,
                format!(
                    "{} carries {} samples of {}, max batch is {}",
                    launch.ticket,
                    launch.num_samples(),
                    launch.model,
                    spec.max_batch
                ),
            );
        }
        if let Some(stack) = &self.stack
            && stack.last() != Some(&launch.sub_batch)
        {
            return broken(
                7,
                format!("{} is launched, the table is {stack:?}", launch.sub_batch),
            );
        }
        let num_nodes = spec.blocks[launch.block as usize]
            .segments
            .last()
            .map_or(0, |s| s.end);
        let mut members = self.spare.pop().unwrap_or_default();
        members.extend(launch.members.iter().map(|m| m.request));
        for (l, lane) in self
            .lanes
            .iter()
            .enumerate()
            .filter(|_| self.lanes.len() > 1)
        {
            let twice = |i: &Issued| i.members.iter().find(|r| members.contains(r)).copied();
            if let Some(id) = lane
                .iter()
                .find_map(twice)
                .filter(|_| l != launch.lane.index())
            {
                return broken(3, format!("{id} runs on two lanes"));
            }
        }
        let mut ends = false;
        for member in &launch.members {
            ends |= self.on_member(launch, member, num_nodes)?;
        }
        let depth = self.config.lane_depths[launch.lane.index()] as usize;
        let lane = &mut self.lanes[launch.lane.index()];
        if lane.len() == depth {
            return broken(5, format!("{} has more than {depth} launches", launch.lane));
        }
        lane.push_back(Issued {
            ticket: launch.ticket,
            block: launch.block,
            members,
            ends,
        });
        Ok(())
    }

    /// Whether the member's path is complete with this launch.
    fn on_member(
        &mut self,
        launch: &Launch,
        member: &Member,
        num_nodes: u32,
    ) -> Result<bool, Violation> {
        let Some(track) = self.open.get_mut(&member.request) else {
            return broken(6, format!("{} is launched but not open", member.request));
        };
        if track.model != launch.model || track.samples != member.samples {
            return broken(3, format!("{} is not of {}", member.request, launch.model));
        }
        if track.last == Some(launch.ticket) {
            return broken(
                3,
                format!("{} is in {} twice", member.request, launch.ticket),
            );
        }
        track.last = Some(launch.ticket);
        let sequence = track.sequence.map(|sequence| (track.model, sequence));
        if sequence.is_some_and(|of| self.backlog.contains(&of)) {
            return broken(
                11,
                format!("{} runs, whose sequence is in the backlog", member.request),
            );
        }
        if member.idle {
            if launch.padded_len.is_none() {
                return broken(3, format!("{} idles in a packed batch", member.request));
            }
            return Ok(false);
        }
        track.launches += 1;
        let expected = (track.block, track.node, track.step);
        if expected != (launch.block, launch.first_node, member.step) {
            return broken(
                2,
                format!(
                    "{} stands at block {} node {} step {}, {} runs block {} node {} step {}",
                    member.request,
                    expected.0,
                    expected.1,
                    expected.2,
                    launch.ticket,
                    launch.block,
                    launch.first_node,
                    member.step
                ),
            );
        }
        track.node = launch.end_node;
        if track.node == num_nodes {
            track.node = 0;
            track.step += 1;
            if track.step >= track.passes(&self.config) {
                track.next_block(&self.config);
            }
        }
        let ends = track.is_complete(&self.config);
        if ends {
            track.needs = Some((launch.ticket, launch.block));
        }
        Ok(ends)
    }

    /// Sees a completion before the core handles it.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn on_done(
        &mut self,
        now: Time,
        ticket: Ticket,
        (stopped, faults): (&[RequestId], &[(RequestId, String)]),
        failed: bool,
    ) -> Verdict {
        self.advance(now)?;
        let Some(lane) = self
            .lanes
            .iter()
            .position(|l| l.front().is_some_and(|f| f.ticket == ticket))
        else {
            return broken(
                5,
                format!("{ticket} completes but is not the oldest of a lane"),
            );
        };
        let mut issued = self.lanes[lane].pop_front().expect("found above");
        for id in issued.members.iter().filter(|_| failed || issued.ends) {
            if let Some(track) = self.open.get_mut(id) {
                track.failed |= failed;
                track.needs = track.needs.filter(|n| n.0 != ticket);
            }
        }
        for (id, _) in faults {
            if !issued.members.contains(id) || stopped.contains(id) {
                return broken(2, format!("{id} fails, but stopped or is not in {ticket}"));
            }
            if let Some(track) = self.open.get_mut(id) {
                track.failed = true;
            }
        }
        for id in stopped {
            if !issued.members.contains(id) {
                return broken(2, format!("{id} stops but is not a member of {ticket}"));
            }
            if let Some(track) = self.open.get_mut(id) {
                // Later passes of the same loop may be in flight: their results are not needed.
                track.needs = track.needs.filter(|n| n.1 != issued.block);
                if track.block == issued.block {
                    track.next_block(&self.config);
                }
            }
        }
        issued.members.clear();
        self.spare.push(issued.members);
        Ok(())
    }

    /// Sees an action other than a launch.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn on_action(&mut self, now: Time, action: &Action) -> Verdict {
        self.advance(now)?;
        match action {
            Action::Open { request, .. } => self.on_open(now, *request),
            Action::Finish {
                request, outcome, ..
            } => self.on_finish(now, *request, *outcome),
            Action::Vacate(model) => self.on_vacate(*model),
            Action::Note(note) => self.on_note(note),
            _ => Ok(()),
        }
    }

    /// Everyone older than the oldest open request has ended, so whoever ended beyond those
    /// has passed it over.
    fn check_passing(&mut self, ended: RequestId) -> Verdict {
        let Some(passing) = &mut self.passing else {
            return Ok(());
        };
        passing.ended.insert(ended);
        while let Some((first, ..)) = passing.order.front()
            && passing.ended.remove(first)
        {
            passing.order.pop_front();
        }
        match passing.order.front() {
            Some((oldest, baseline, allowed))
                if self.ended.saturating_sub(*baseline) > *allowed =>
            {
                let passed = self.ended - baseline;
                broken(8, format!("{passed} later requests have passed {oldest}"))
            }
            _ => Ok(()),
        }
    }

    fn on_open(&mut self, now: Time, id: RequestId) -> Verdict {
        let Some(track) = self.open.get_mut(&id) else {
            return broken(6, format!("{id} starts but is not open"));
        };
        track.waits = false;
        let (model, level) = (track.model, track.level);
        if !self.delays || track.delayed >= now {
            return Ok(());
        }
        let passed =
            |t: &Track| t.waits && (t.model, t.level) == (model, level) && t.delayed >= now;
        match self.open.iter().find(|(_, t)| passed(t)) {
            Some((other, _)) => broken(10, format!("{id} is delayed and starts before {other}")),
            None => Ok(()),
        }
    }

    fn on_finish(&mut self, now: Time, id: RequestId, outcome: Outcome) -> Verdict {
        let Some(track) = self.open.remove(&id) else {
            return broken(6, format!("{id} ends ({outcome}) but is not open"));
        };
        self.ended += 1;
        self.check_passing(id)?;
        let is_through = track.is_complete(&self.config) && track.needs.is_none();
        let complete = is_through && !track.failed;
        let right = match outcome {
            Outcome::Met => complete && now <= track.deadline,
            Outcome::Violated => complete && now > track.deadline,
            Outcome::Failed => track.failed,
            Outcome::Cancelled => track.cancelled,
            Outcome::Shed => track.launches == 0,
        };
        if right {
            return Ok(());
        }
        broken(
            6,
            format!(
                "{id} ends as {outcome} at {now} (deadline {}) before block {} node {} step {}",
                track.deadline, track.block, track.node, track.step
            ),
        )
    }

    fn on_note(&mut self, note: &Note) -> Verdict {
        let Some(stack) = &mut self.stack else {
            return Ok(());
        };
        let position = |stack: &[SubBatchId], id: &SubBatchId| stack.iter().position(|s| s == id);
        match note {
            Note::Admit { sub_batch, .. } => stack.push(*sub_batch),
            Note::Merge { into, from } => match position(stack, from) {
                Some(i) if i > 0 && stack[i - 1] == *into => {
                    stack.remove(i);
                }
                _ => return broken(7, format!("{from} is not on top of {into}")),
            },
            Note::Split { from, ahead, .. } => match position(stack, from) {
                Some(i) => stack.insert(i, *ahead),
                None => return broken(7, format!("{from} splits but is not in the table")),
            },
            Note::Pop { sub_batch } => stack.retain(|s| s != sub_batch),
            Note::Preempt { .. } | Note::Decide(_) | Note::Behind { .. } | Note::Queue { .. } => {}
        }
        Ok(())
    }

    /// Judges the end of a run: nobody and nothing may be left.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn finish(&self) -> Verdict {
        if let Some(issued) = self.lanes.iter().flatten().next() {
            return broken(5, format!("{} never completes", issued.ticket));
        }
        if let Some(id) = self.open.keys().min() {
            return broken(6, format!("{id} never ends ({} open)", self.open.len()));
        }
        if self.arrived != self.ended {
            return broken(6, format!("{} arrived, {} ended", self.arrived, self.ended));
        }
        Ok(())
    }
}
