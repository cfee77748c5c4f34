//! Runs a core and a device on a thread of their own, in real time.
//!
//! Commands come by an inbox. Between two launches the thread takes in what has come, decides, and
//! issues the next launch; while nothing is to do it waits at the inbox, at most until the core's
//! next wake-up. Others may run it then for a while (`seat.rs`). A launch that runs beside this thread is
//! asked for again and again, less and less often. All events of one turn carry the same time, so a
//! journal of the run replays.
//!
//! It owns the only clock of the engine.

mod intake;

use std::collections::VecDeque;
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use lazybatch_graph::{OutputId, Tensor};
use lazybatch_kernels::{Completion, Device, OpenRequest, Plan};
use lazybatch_sla::{LaneId, ModelId, Nanos, Outcome, RequestId, Slot, Ticket, Time};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::Observer;
use super::command::{Command, Reply, Submission};
use super::failures::{Doomed, add_doomed, failing, over};
use super::figures::{Load, Stats};
use super::guard::Guarded;
use super::issue::issue;
use super::launches::Counting;
use super::models::Models;
use super::planner::Planner;
use super::sequences::Sequences;
use super::steps::Sent;
use super::tally::Tally;
use crate::core::{Action, Attach, Core, Event, Request};
use crate::embed::{
    Abandoned, Answer, BuildError, Draft, Inbox, ModelStats, RequestError, Served, Step,
};
use crate::explain::OnRequest;
use crate::watch::{Look, Tape};

/// A clock that starts at zero when the engine is built.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Starts now.
    #[allow(clippy::disallowed_methods, reason = "the engine's only clock")]
    pub fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    /// Time since the start.
    #[allow(clippy::disallowed_methods, reason = "the engine's only clock")]
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Prepared executions of a model, by block, segment and bucket, each with its bucket.
pub(crate) type Plans = Vec<Vec<Vec<(u32, Plan)>>>;

/// A model to load, and whom to tell.
type ToLoad = (Box<Draft>, LoadReply);
/// What came of it.
type Loaded = (Result<(Arc<Served>, Attach), BuildError>, LoadReply);
type LoadReply = Sender<Result<Arc<Served>, BuildError>>;

struct Open {
    submission: Box<Submission>,
    slot: Option<Slot>,
    ended: Option<(Time, Outcome, Option<Time>, Option<String>)>,
    /// It failed in a launch: what those behind that emit is nobody's.
    has_failed: bool,
    /// What failed it is what it brought.
    is_own_fault: bool,
    /// What was sent, if it is answered step by step.
    sent: Option<Sent>,
}

pub(crate) struct Driver {
    pub core: Core,
    pub device: Guarded,
    pub models: Models,
    pub commands: Inbox,
    pub clock: Clock,
    pub observer: Box<dyn Observer + Send>,
    pub stats: Arc<Mutex<Stats>>,
    pub time_decisions: bool,
    pub measure_decisions: bool,
    /// Explains requests that ask for it.
    pub on_request: Option<OnRequest>,
    /// Told to those who watch.
    pub tape: Arc<Tape>,
    /// Why it has ended before its time, if it has.
    pub failed: Arc<OnceLock<String>>,
    pub state: DriverState,
}

/// What the driver remembers between turns.
#[derive(Default)]
pub(crate) struct DriverState {
    open: FxHashMap<RequestId, Open>,
    /// Open requests that are answered step by step.
    num_streams: usize,
    /// Requests that the device did not take, and why: launches run without them.
    unstaged: Doomed,
    /// Requests whose sequence cannot go on, and why.
    broken: Doomed,
    /// A load whose turn is the next.
    next_load: Option<ToLoad>,
    /// Launches that failed at issue.
    refused: VecDeque<(Ticket, String)>,
    /// Members of those, until they are released, and why: launches behind run without them.
    astray: Doomed,
    draining: bool,
    /// What issuing took the host, of the launches in flight.
    issued: VecDeque<(Ticket, Nanos)>,
    /// Turns since a launch completed in which none did.
    empty_turns: u32,
    /// When the last launch was on its way.
    issued_at: Time,
    /// Since when there has been nothing to do.
    idle_since: Option<Time>,
    planner: Planner,
    sequences: Sequences,
    counting: Counting,
    tally: Tally,
    /// Who wants to know what is being done.
    looks: Vec<oneshot::Sender<Arc<Look>>>,
}

impl DriverState {
    /// What issuing took, of a launch that is over.
    fn issue_of(&mut self, ticket: Ticket) -> Nanos {
        let at = self.issued.iter().position(|(t, _)| *t == ticket);
        let issued = at.and_then(|at| self.issued.remove(at));
        issued.map_or(Nanos::ZERO, |(_, took)| took)
    }
}

/// What a driver does behind a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It has more to do.
    Turn,
    /// It waits for commands, at most until then.
    Wait(Option<Time>),
    /// It was drained or stopped.
    End,
}

impl Driver {
    /// Takes in what has come, and does what is to be done now.
    pub fn turn(&mut self) -> Next {
        let loaded = self.state.next_load.take().map(|load| self.load(load));
        // A clock may step back where the host's does.
        let now = self.clock.now().max(self.core.now());
        if let Some(since) = self.state.idle_since.take() {
            self.state.planner.idles(now.since(since));
        }
        self.take_completions(now);
        if let Some(loaded) = loaded {
            self.attach(now, loaded);
        }
        if !self.take_commands(now) {
            self.abandon(now);
            return Next::End;
        }
        // Behind what was handed in while something else held the driver.
        self.state.sequences.sweep(now);
        self.let_go(now);
        if let Some(plan) = self.state.planner.poll(now) {
            let mut stats = self.stats.lock().expect("no holder panics");
            stats.planning.plans += 1;
            stats.planning.launches += plan.launches;
            drop(stats);
            self.event(now, Event::Planned(plan));
        }
        if self.core.next_wakeup().is_some_and(|t| t <= now) {
            self.event(now, Event::Wake);
        }
        if !self.act(now) {
            self.publish(now);
        }
        if self.device.lost().is_some() {
            self.abandon(now);
            return Next::End;
        }
        if self.state.draining && self.state.open.is_empty() {
            return Next::End;
        }
        self.next()
    }

    fn event(&mut self, now: Time, mut event: Event) {
        let mut stepped = Vec::new();
        if let Event::Done { ticket, .. } = event {
            stepped = self.streams_of(ticket);
            let doomed = [&self.state.unstaged, &self.state.broken];
            add_doomed(&self.core, doomed, &mut event);
            for id in failing(&self.core, &event) {
                if let Some(open) = self.state.open.get_mut(&id) {
                    open.has_failed = true;
                }
            }
        }
        self.observer.on_event(now, &event);
        self.core.handle(now, event);
        for id in stepped {
            self.send_steps(id, false);
        }
    }

    fn take_completions(&mut self, now: Time) {
        loop {
            self.take_refused(now);
            let Some(done) = self.device.poll(now) else {
                return;
            };
            self.state.empty_turns = 0;
            self.note_own_faults(&done);
            let issue = self.state.issue_of(done.ticket);
            let took = match done.busy {
                Some(busy) if done.has_waited => Some(busy),
                Some(busy) => Some(busy + issue),
                // On this thread: the device worked while it was issued.
                None => self.core.config().is_in_place.then_some(issue),
            };
            if let Some((launch, held)) = self.core.held(now, done.ticket) {
                let held = took.map_or(held, |took| took.min(held));
                self.state.tally.ended(launch, held);
            }
            self.event(now, super::done(done, took));
        }
    }

    /// Keeps whose fault it is that members of a launch fail; the core does not ask.
    fn note_own_faults(&mut self, done: &Completion) {
        for (id, _) in done.faults.iter().filter(|(_, e)| e.is_of_request()) {
            let is_first = self.core.is_open(*id) && done.result.is_ok();
            if let Some(open) = self.state.open.get_mut(id).filter(|_| is_first) {
                open.is_own_fault = true;
            }
        }
    }

    /// Launches end in their order: one that was refused waits for those ahead of it.
    fn take_refused(&mut self, now: Time) {
        while let Some(at) = self.next_refused() {
            let Some((ticket, cause)) = self.state.refused.remove(at) else {
                return;
            };
            self.event(now, over(ticket, Some(cause)));
        }
    }

    /// The place of a launch that was refused and has none in flight ahead of it.
    fn next_refused(&self) -> Option<usize> {
        let mut refused = self.state.refused.iter();
        refused.position(|(ticket, _)| self.core.oldest(*ticket).is_some())
    }

    /// Takes in commands that have come, [`MOST_COMMANDS`] at most, up to a load: that takes a while, so
    /// what came before it does not wait for it, and it begins the next turn, as what comes meanwhile
    /// comes later. False when told to stop.
    fn take_commands(&mut self, now: Time) -> bool {
        let mut weight = 0;
        while weight < MOST_COMMANDS && self.state.next_load.is_none() {
            let command = match self.commands.next() {
                Ok(Some(command)) => command,
                Ok(None) => return true,
                Err(Abandoned) => return false,
            };
            weight += command.weight();
            if !self.command(now, command) {
                return false;
            }
        }
        true
    }

    fn command(&mut self, now: Time, command: Command) -> bool {
        match command {
            Command::Submit(submission) => self.submit(now, submission),
            Command::Cancel(id) => self.event(now, Event::Cancel(id)),
            Command::Refused(refused) => self.refused(now, &refused),
            Command::Look(tx) => self.state.looks.push(tx),
            Command::Load(draft, reply) => self.state.next_load = Some((draft, reply)),
            Command::Unload(served) => {
                self.state.sequences.close(served.id);
                self.event(now, Event::Detach(served.id));
            }
            Command::Drain => {
                self.state.draining = true;
                self.state.sequences.close_all();
                self.event(now, Event::Drain);
            }
            Command::Stop => return false,
        }
        true
    }

    /// Puts a model on the device.
    fn load(&mut self, (draft, reply): ToLoad) -> Loaded {
        let loaded = match self.state.draining {
            true => Err(BuildError::Closed),
            false => self.models.load(&mut self.device, *draft),
        };
        (loaded, reply)
    }

    /// A model is there: its requests may come.
    fn attach(&mut self, now: Time, (loaded, reply): Loaded) {
        let loaded = loaded.map(|(served, attach)| {
            let mut stats = self.stats.lock().expect("no holder panics");
            stats.begin(served.id.index());
            drop(stats);
            self.event(now, Event::Attach(Box::new(attach)));
            served
        });
        // Whoever asked may have gone; nobody then uses the model.
        if let Err(SendError(Ok(served))) = reply.send(loaded) {
            self.event(now, Event::Detach(served.id));
        }
    }

    fn vacate(&mut self, model: ModelId) {
        let Some(served) = self.models.vacate(&mut self.device, model) else {
            return;
        };
        self.state.sequences.forget(model);
        let m = model.index();
        // Whoever reads figures by id holds the lock, and looks here first.
        let mut stats = self.stats.lock().expect("no holder panics");
        self.state.tally.tell(&mut stats);
        let last = ModelStats {
            counters: self.core.counters_by_model()[m],
            account: stats.accounts[m].clone(),
            sizes: stats.sizes[m].clone(),
        };
        drop(served.gone.set(last));
    }

    /// Decides and does what follows; whether figures were told.
    fn act(&mut self, now: Time) -> bool {
        let timed = self.time_decisions || self.measure_decisions;
        if timed && self.core.wants_decision() {
            let start = self.clock.now();
            let choice = self.core.decide(now);
            let took = self.clock.now().since(start).0;
            if choice {
                let mut stats = self.stats.lock().expect("no holder panics");
                if self.time_decisions {
                    stats.decision_ns.push(took);
                }
                if self.measure_decisions {
                    stats.decisions.record(took);
                }
            }
        }
        let mut is_told = false;
        while let Some(action) = self.core.poll_action(now) {
            if let Action::Launch { ticket, lane } = action {
                let launch = self.core.launch(lane, ticket);
                self.observer.on_launch(now, launch);
                self.state.counting.launched(launch);
                self.state.tally.launched(launch);
                // Where the device runs in place, nothing is heard until the launch is over.
                self.publish(now);
                is_told = true;
                self.issue(now, lane, ticket);
                continue;
            }
            self.observer.on_action(now, &action);
            match action {
                Action::Open { request, slot } => self.open(request, slot),
                Action::Finish {
                    request,
                    outcome,
                    first_launch,
                    cause,
                } => {
                    self.finish(now, request, outcome, first_launch, cause);
                }
                Action::Release { request, slot } => self.release(request, slot),
                Action::Load(model) => {
                    let program = self.models.get(model).program.clone();
                    if self.device.load(model, program).is_ok() {
                        self.event(now, Event::Loaded(model));
                    }
                }
                Action::Evict(model) => self.device.unload(model),
                Action::Vacate(model) => self.vacate(model),
                Action::Plan => {
                    let request = self.core.take_plan().expect("asked for together");
                    let are_quick = self.models.are_quick();
                    self.state.planner.start(now, request, are_quick);
                }
                Action::Note(_) | Action::Launch { .. } => {}
            }
        }
        is_told
    }

    fn issue(&mut self, now: Time, lane: LaneId, ticket: Ticket) {
        let start = self.clock.now();
        let absent = [&self.state.unstaged, &self.state.astray];
        let launch = self.core.launch(lane, ticket);
        let issued = issue(&mut self.device, self.models.plans(), absent, now, launch);
        let end = self.clock.now();
        let took = end.since(start);
        self.state.issued_at = end;
        match issued {
            Err(cause) => {
                let members = launch.members.iter().map(|m| m.request);
                let astray = members.map(|id| (id, cause.clone()));
                self.state.astray.extend(astray);
                self.state.refused.push_back((ticket, cause));
            }
            Ok(()) => {
                self.state.issued.push_back((ticket, took));
                if !self.device.is_asynchronous() {
                    self.state.planner.works(end, took);
                }
            }
        }
    }

    fn open(&mut self, id: RequestId, slot: Slot) {
        let open = self
            .state
            .open
            .get_mut(&id)
            .expect("admitted requests are open");
        open.slot = Some(slot);
        open.submission.queue = Default::default();
        open.submission.admitted.set();
        let submission = &mut open.submission;
        let model = submission.request.model;
        if let Some(place) = submission.place {
            let (program, inputs) = (&submission.served.program, &mut submission.inputs);
            let handed = self
                .state
                .sequences
                .hand_over(program, model, place, inputs);
            // It runs on what it brought, so that those it runs with know nothing of it.
            if let Err(why) = handed {
                self.state.broken.insert(id, why);
            }
        }
        let request = OpenRequest {
            slot,
            request: id,
            model,
            inputs: &submission.inputs,
            input_len: submission.request.input_len,
            samples: submission.request.samples,
            output_len: submission.sim_output_len,
        };
        if let Err(error) = self.device.open(&request) {
            open.is_own_fault = error.is_of_request();
            // Those it would run with go on without it.
            self.state.unstaged.insert(id, error.to_string());
        }
        // The device has what it needs of them.
        submission.inputs = Vec::new();
    }

    fn finish(
        &mut self,
        now: Time,
        id: RequestId,
        outcome: Outcome,
        first_launch: Option<Time>,
        cause: Option<String>,
    ) {
        let open = self
            .state
            .open
            .get_mut(&id)
            .expect("ended requests were open");
        let unstaged = self.state.unstaged.get(&id);
        let (outcome, cause) = match unstaged.or(self.state.broken.get(&id)) {
            // It has ended without a launch in which it could fail.
            Some(why) if outcome.is_completed() => (Outcome::Failed, Some(why.clone())),
            // All of its launch failed, by another's cause perhaps.
            Some(_) if outcome == Outcome::Failed && unstaged.is_some() => {
                (outcome, unstaged.cloned())
            }
            _ => (outcome, cause),
        };
        open.ended = Some((now, outcome, first_launch, cause));
        let request = &open.submission.request;
        let latency = now.since(request.arrival);
        let model = request.model.index();
        let mut stats = self.stats.lock().expect("no holder panics");
        stats.accounts[model].record(outcome, latency);
        // Before its client hears of it, who may look.
        self.state.tally.tell(&mut stats);
        drop(stats);
        if open.slot.is_none() {
            self.answer(id, Vec::new(), false);
        }
    }

    fn release(&mut self, id: RequestId, slot: Slot) {
        self.send_steps(id, true);
        self.state.astray.remove(&id);
        let is_broken = self.state.broken.remove(&id).is_some();
        let outputs = if self.state.unstaged.remove(&id).is_some() {
            Vec::new()
        } else {
            self.device.close(slot)
        };
        self.answer(id, outputs, is_broken);
    }

    /// Answers a request, whose sequence was broken before it if it `is_broken`.
    fn answer(&mut self, id: RequestId, outputs: Vec<Option<Tensor>>, is_broken: bool) {
        let open = self.state.open.remove(&id).expect("answered once");
        self.state.num_streams -= usize::from(open.sent.is_some());
        if let Some(explains) = self.on_request.as_mut().filter(|_| open.submission.explain) {
            explains.end(id, &mut self.core);
        }
        let launches = self.state.counting.end(id);
        let (finish, outcome, first_launch, cause) = open.ended.expect("it has ended");
        let Request { arrival, model, .. } = open.submission.request;
        let is_set: Vec<bool> = outputs.iter().map(Option::is_some).collect();
        let is_set = |o: OutputId| is_set.get(o.index()).is_some_and(|is_set| *is_set);
        let result = if let (true, Some(lost)) = (outcome.is_completed(), self.device.lost()) {
            // Nobody knows what of its outputs is there.
            Err(RequestError::Crashed(lost.to_string()))
        } else if outcome.is_completed() {
            Ok(Answer {
                id,
                outcome,
                arrival,
                first_launch,
                finish,
                launches,
                outputs: outputs
                    .into_iter()
                    .map(|o| o.unwrap_or_else(empty))
                    .collect(),
            })
        } else {
            let cause = cause.unwrap_or_default();
            Err(match outcome {
                Outcome::Failed if is_broken => RequestError::Broken(cause),
                Outcome::Failed if open.is_own_fault => RequestError::Data(cause),
                _ => RequestError::of(outcome, cause),
            })
        };
        if let Some(place) = open.submission.place {
            let program = &open.submission.served.program;
            let lacking = program.carries.iter().find(|c| !is_set(c.output));
            let lacking = lacking.map(|c| &program.output(c.output).name);
            let cause = match (&result, lacking) {
                (Err(error), _) => Some(error.to_string()),
                (Ok(_), Some(name)) => Some(format!("it ended without output {name}")),
                (Ok(_), None) => None,
            };
            let left = match (&result, &cause) {
                (Ok(answer), None) => Ok(&answer.outputs[..]),
                (_, cause) => Err(cause.as_deref().unwrap_or_default()),
            };
            let sequences = &mut self.state.sequences;
            sequences.ended(finish, id, program, model, place, left);
        }
        let Submission {
            queue,
            memory,
            reply,
            ..
        } = *open.submission;
        // Whoever has the answer may hand in the next request.
        drop((queue, memory));
        // The client may have gone; its answer then goes nowhere.
        match reply {
            Reply::Once(tx) => drop(tx.send(result)),
            Reply::Stream(tx) => drop(tx.send(result.map(Step::End))),
        }
    }

    /// Members of a launch that has run that are answered step by step.
    fn streams_of(&self, ticket: Ticket) -> Vec<RequestId> {
        let is_asked = self.state.num_streams > 0;
        let launch = self.core.oldest(ticket).filter(|_| is_asked);
        let members = launch.iter().flat_map(|l| &l.members).map(|m| m.request);
        let open = |id: &RequestId| self.state.open.get(id);
        members
            .filter(|id| open(id).is_some_and(|o| o.sent.is_some()))
            .collect()
    }

    /// Sends what a request has emitted since the last time, if it is answered step by step, but nothing
    /// of one that has failed: launches behind that carry it still.
    fn send_steps(&mut self, id: RequestId, is_over: bool) {
        let state = &mut self.state;
        let Some(open) = state.open.get_mut(&id) else {
            return;
        };
        let (Some(slot), Reply::Stream(tx)) = (open.slot, &open.submission.reply) else {
            return;
        };
        let is_doomed = state.unstaged.contains_key(&id) || state.broken.contains_key(&id);
        let has_answer = !open.has_failed && !is_doomed;
        let Some(sent) = open.sent.as_mut().filter(|_| has_answer) else {
            return;
        };
        let has_ended = |(_, outcome, ..): &(_, Outcome, _, _)| outcome.is_completed();
        let is_end = is_over && open.ended.as_ref().is_some_and(has_ended);
        sent.take_new(&self.device, slot, is_end, |output, rows| {
            // The client may have gone.
            drop(tx.send(Ok(Step::Rows { output, rows })));
        });
    }

    /// Tells figures, and whoever looks what is being done.
    fn publish(&mut self, now: Time) {
        let mut stats = self.stats.lock().expect("no holder panics");
        stats.counters = self.core.counters();
        stats.models.copy_from_slice(self.core.counters_by_model());
        for (m, load) in stats.loads.iter_mut().enumerate() {
            let (in_flight, oldest) = self.core.load_of(ModelId(m as u32));
            *load = Load { in_flight, oldest };
        }
        self.state.tally.tell(&mut stats);
        if stats.planning.note(now, self.core.rule()) {
            tracing::debug!(rule = self.core.rule(), "another rule decides");
        }
        drop(stats);
        if !self.state.looks.is_empty() || self.tape.wants_look(now) {
            let look = Arc::new(Look::of(&self.core, now));
            self.tape.show(look.clone());
            for tx in self.state.looks.drain(..) {
                // Who asked may have gone.
                drop(tx.send(look.clone()));
            }
        }
    }

    fn next(&mut self) -> Next {
        if self.state.next_load.is_some()
            || self.core.wants_decision()
            || self.next_refused().is_some()
            || self.commands.has_next()
            || self.state.sequences.has_let_go()
        {
            return Next::Turn;
        }
        if self.core.num_launches() == 0 {
            self.state.idle_since = Some(self.state.issued_at.max(self.core.now()));
            let wakeups = [self.core.next_wakeup(), self.state.sequences.stale_at()];
            return Next::Wait(wakeups.into_iter().flatten().min());
        }
        match self.device.next_completion() {
            Some(at) => {
                // A lane that is free may want to be looked at before.
                let wakeups = [self.core.next_wakeup(), self.state.sequences.stale_at()];
                let at = wakeups.into_iter().flatten().fold(at, Time::min);
                match at > self.clock.now() {
                    true => Next::Wait(Some(at)),
                    false => Next::Turn,
                }
            }
            // It has completed in place, or it runs beside this thread.
            None => {
                self.state.empty_turns = self.state.empty_turns.saturating_add(1);
                match pause(self.state.empty_turns) {
                    Nanos::ZERO => Next::Turn,
                    pause => Next::Wait(Some(self.clock.now() + pause)),
                }
            }
        }
    }

    /// Cancels everyone still open, and tells them that the engine is gone. Launches that run are not
    /// waited for: the device goes too. Where it went before, their members fail with that.
    fn abandon(&mut self, now: Time) {
        let lost = self.device.lost().map(ToString::to_string);
        let gone = || {
            lost.clone()
                .map_or(RequestError::Closed, RequestError::Crashed)
        };
        if let Some(why) = &lost {
            for ticket in self.core.tickets() {
                self.event(now, over(ticket, Some(why.clone())));
            }
        }
        let mut open: Vec<RequestId> = self.state.open.keys().copied().collect();
        open.sort_unstable();
        for id in open {
            self.event(now, Event::Cancel(id));
        }
        for ticket in self.core.tickets() {
            self.event(now, over(ticket, None));
        }
        // A turn may follow, with what came meanwhile.
        self.state.num_streams = 0;
        while let Some(action) = self.core.poll_action(now) {
            match &action {
                Action::Launch { ticket, lane } => {
                    let launch = self.core.launch(*lane, *ticket);
                    self.observer.on_launch(now, launch);
                    self.event(now, over(*ticket, None));
                    continue;
                }
                Action::Finish {
                    request,
                    outcome,
                    cause,
                    ..
                } => {
                    let open = self.state.open.remove(request);
                    let open = open.expect("ended requests were open");
                    let arrival = open.submission.request.arrival;
                    let model = open.submission.request.model.index();
                    let mut stats = self.stats.lock().expect("no holder panics");
                    stats.accounts[model].record(*outcome, now.since(arrival));
                    drop(stats);
                    open.submission.refuse(match (outcome, cause) {
                        (Outcome::Failed, Some(cause)) => RequestError::Failed(cause.clone()),
                        _ => gone(),
                    });
                }
                Action::Plan => drop(self.core.take_plan()),
                _ => {}
            }
            self.observer.on_action(now, &action);
        }
        self.publish(now);
        // Those that had ended, whose slots the device still had.
        for (_, open) in self.state.open.drain() {
            open.submission.refuse(gone());
        }
    }
}

/// Commands that a turn takes in at most, by their weights: launches that are over, and those who wait for
/// the next, do not wait for more, and none of them is much later than the turn's time says.
const MOST_COMMANDS: usize = 256 * Command::WEIGHT;

/// Turns without a completion in which a device is asked at once again.
const EAGER_TURNS: u32 = 256;
/// Longest pause between two questions, in nanoseconds: a few percent of a segment.
const LONGEST_PAUSE: u64 = 50_000;

/// How long to wait for a command before a device is asked again whether a launch is over.
fn pause(empty_turns: u32) -> Nanos {
    match empty_turns.checked_sub(EAGER_TURNS) {
        None => Nanos::ZERO,
        Some(late) => Nanos((1000 + 100 * u64::from(late)).min(LONGEST_PAUSE)),
    }
}

/// What a request never emitted.
fn empty() -> Tensor {
    Tensor::from_i32(&[0], &[])
}
