//! Why requests waited: decisions with their reasons as JSON lines, and an account of each request.
//!
//! Both are [`Observer`]s and need a core with [`crate::core::CoreConfig::reasons`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lazybatch_sla::{LaneId, Launch, ModelId, Nanos, Outcome, RequestId, Ticket, Time};
use rustc_hash::FxHashMap;
use serde_json::json;

use crate::core::{Action, Core, Event, Hold, Note, Why};
use crate::driver::Observer;

/// Writes each decision, with its candidates and their predicted device time, and each plan, with
/// the predicted mean cost of each rule, as a JSON line.
pub struct Log<W: Write> {
    out: W,
    failed: Option<std::io::Error>,
}

impl<W: Write> Log<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, failed: None }
    }

    /// Ends the log.
    ///
    /// # Errors
    /// What could not be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn line(&mut self, line: &serde_json::Value) {
        if self.failed.is_none() {
            self.failed = writeln!(self.out, "{line}").err();
        }
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl<W: Write> Observer for Log<W> {
    fn on_event(&mut self, now: Time, event: &Event) {
        if let Event::Planned(plan) = event {
            let cost = |(rule, ns): &(String, u64)| json!({"rule": rule, "cost_us": us(*ns)});
            let rules: Vec<_> = plan.costs.iter().map(cost).collect();
            let plan = json!({"rules": rules, "launches": plan.launches});
            self.line(&json!({"at_us": us(now.0), "plan": plan}));
        }
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        let Action::Note(Note::Decide(why)) = action else {
            return;
        };
        let candidate = |c: &crate::core::Candidate| json!({"what": c.what, "samples": c.samples, "predicted_us": us(c.predicted.0)});
        let candidates: Vec<_> = why.candidates.iter().map(candidate).collect();
        self.line(&json!({
            "at_us": us(now.0), "lane": why.lane.0, "chosen": why.chosen,
            "because": why.because, "candidates": candidates,
        }));
    }
}

/// Why one request took as long as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Which one.
    pub id: RequestId,
    /// When it arrived.
    pub arrival: Time,
    /// When it left the arrival queue.
    pub admitted: Option<Time>,
    /// When and how it ended; `None` while it is open.
    pub ended: Option<(Time, Outcome)>,
    /// Time until it was admitted by what held it: the others of its sequence, and then in the queue. The
    /// rest of that time a launch was running.
    pub held: BTreeMap<Hold, Nanos>,
    /// What the policy said when it last held it.
    pub because: String,
    /// Launches that carried it.
    pub launches: u32,
    /// Their device time. The rest of its time in flight others ran.
    pub running: Nanos,
    /// Whether it had to let others pass because it was too late.
    pub demoted: bool,
    /// When it was delayed, or would have been.
    delayed: Time,
    /// Now, where it is open.
    now: Time,
    /// Of its model when it joined the queue.
    before: BTreeMap<Hold, Nanos>,
    /// It has not: what it waits for, and since when.
    behind: Option<(Hold, Time)>,
    model: ModelId,
    sequence: Option<u64>,
}

impl Explanation {
    /// Until when it waited in its queue, or waits by now.
    fn waits_until(&self) -> Time {
        let ended = self.ended.map(|e| e.0);
        self.admitted.or(ended).unwrap_or(self.now)
    }

    /// Whether it had to let others pass because its time to wait had passed.
    pub fn is_delayed(&self) -> bool {
        self.waits_until() > self.delayed
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.ended.map_or(self.now, |e| e.0);
        let waited = self.waits_until().since(self.arrival);
        write!(
            f,
            "{} waited {:.3} ms in its queue",
            self.id,
            waited.as_ms()
        )?;
        for (hold, took) in self.held.iter().filter(|h| h.1.0 > 0) {
            let ms = took.as_ms();
            match hold {
                Hold::Loading => write!(f, ", {ms:.3} ms of it for the model's weights")?,
                Hold::Slots => write!(f, ", {ms:.3} ms of it for memory on the device")?,
                Hold::Policy => write!(f, ", {ms:.3} ms of it held by the policy")?,
                Hold::Sequence => {
                    write!(f, ", {ms:.3} ms of it for those before it in its sequence")?
                }
                Hold::Backlog => write!(f, ", {ms:.3} ms of it for other sequences to end")?,
            }
        }
        if !self.because.is_empty() {
            write!(f, " (last: {})", self.because)?;
        }
        if self.demoted {
            write!(f, "; it was demoted as too late")?;
        }
        if self.is_delayed() {
            write!(f, "; it was delayed, for its time to wait had passed")?;
        }
        if let Some(admitted) = self.admitted {
            let (in_flight, running) = (until.since(admitted), self.running);
            write!(
                f,
                "; then {:.3} ms in flight, {:.3} ms of it in {} launches of its own",
                in_flight.as_ms(),
                running.as_ms(),
                self.launches
            )?;
        }
        match self.ended {
            Some((_, outcome)) => write!(f, "; {outcome}"),
            None => write!(f, "; open"),
        }
    }
}

/// What holds a model's queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    held: BTreeMap<Hold, Nanos>,
    now: Option<(Hold, Time)>,
    because: String,
}

impl Queue {
    /// Adds what has passed since the last decision.
    fn settle(&mut self, now: Time) {
        if let Some((hold, since)) = &mut self.now {
            let sum = self.held.entry(*hold).or_default();
            *sum = sum.saturating_add(now.since(*since));
            *since = now;
        }
    }
}

/// An [`Explainer`] of those requests that ask for it: while none of them is open, it is told nothing
/// and decisions have no reasons.
#[derive(Clone)]
pub(crate) struct OnRequest {
    explainer: Arc<Mutex<Explainer>>,
    is_on: Arc<AtomicBool>,
    open: Vec<RequestId>,
    /// What notes the core makes anyway.
    notes: bool,
}

impl OnRequest {
    /// Most requests at once; others are not explained.
    const MOST: usize = 64;

    /// For a core that makes `notes` or not.
    pub fn new(explainer: Arc<Mutex<Explainer>>, notes: bool) -> Self {
        explainer.lock().expect("no holder panics").wanted = Some(Vec::new());
        Self {
            explainer,
            is_on: Arc::default(),
            open: Vec::new(),
            notes,
        }
    }

    /// A request is about to arrive.
    pub fn begin(&mut self, id: RequestId, core: &mut Core) {
        if self.open.len() == Self::MOST {
            return;
        }
        let mut explainer = self.explainer.lock().expect("no holder panics");
        if self.open.is_empty() {
            core.tell(true, true);
            self.is_on.store(true, Ordering::Relaxed);
            // Its launches begin where those end that are in flight unseen.
            for (launch, issued) in core.running() {
                let key = (launch.lane, launch.ticket);
                explainer.flights.insert(key, (issued, Vec::new()));
            }
        }
        self.open.push(id);
        explainer.wanted.get_or_insert_default().push(id);
    }

    /// A request has ended.
    pub fn end(&mut self, id: RequestId, core: &mut Core) {
        self.open.retain(|&open| open != id);
        if self.open.is_empty() && self.is_on.swap(false, Ordering::Relaxed) {
            core.tell(false, self.notes);
            self.explainer.lock().expect("no holder panics").pause();
        }
    }
}

impl Observer for OnRequest {
    fn on_event(&mut self, now: Time, event: &Event) {
        if self.is_on.load(Ordering::Relaxed) {
            self.explainer.on_event(now, event);
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        if self.is_on.load(Ordering::Relaxed) {
            self.explainer.on_launch(now, launch);
        }
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        if self.is_on.load(Ordering::Relaxed) {
            self.explainer.on_action(now, action);
        }
    }
}

/// Remembers what open requests, and the last that ended, waited for.
pub struct Explainer {
    capacity: usize,
    /// Only these, of those that have not arrived; all if `None`.
    wanted: Option<Vec<RequestId>>,
    known: FxHashMap<RequestId, Explanation>,
    ended: VecDeque<RequestId>,
    queues: FxHashMap<ModelId, Queue>,
    flights: FxHashMap<(LaneId, Ticket), (Time, Vec<RequestId>)>,
    /// When the last launch of a lane ended: until then the next one waited for it.
    freed: FxHashMap<LaneId, Time>,
    now: Time,
}

impl Explainer {
    /// Remembers the last `capacity` requests that ended.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            wanted: None,
            known: FxHashMap::default(),
            ended: VecDeque::new(),
            queues: FxHashMap::default(),
            flights: FxHashMap::default(),
            freed: FxHashMap::default(),
            now: Time::ZERO,
        }
    }

    /// Forgets what it knows of the present, behind which it is not told everything.
    fn pause(&mut self) {
        self.queues.clear();
        self.flights.clear();
        self.freed.clear();
    }

    /// Why a request takes or took its time; `None` for one that is not known, or no longer.
    pub fn explain(&mut self, id: RequestId) -> Option<Explanation> {
        let now = self.now;
        let explanation = self.known.get_mut(&id)?;
        if explanation.admitted.is_none() && explanation.ended.is_none() {
            explanation.settle(now, &mut self.queues);
        }
        explanation.now = now;
        Some(explanation.clone())
    }

    fn decided(&mut self, now: Time, why: &Why) {
        for (model, queue) in &mut self.queues {
            queue.settle(now);
            let Some(held) = &why.held else {
                continue;
            };
            let hold = held.iter().find(|h| h.0 == *model).map(|h| h.1);
            queue.now = hold.map(|h| (h, now));
            if hold == Some(Hold::Policy) {
                queue.because.clone_from(&why.because);
            }
        }
        if let Some(id) = why.chosen.strip_prefix("demote r") {
            let id = id.parse().map(RequestId);
            if let Some(e) = id.ok().and_then(|id| self.known.get_mut(&id)) {
                e.demoted = true;
            }
        }
    }

    fn leaves_queue(&mut self, now: Time, id: RequestId) {
        if let Some(e) = self.known.get_mut(&id)
            && e.admitted.is_none()
        {
            e.settle(now, &mut self.queues);
            e.admitted = Some(now);
        }
    }

    /// A request that waited for its sequence has joined the queue.
    fn joins_queue(&mut self, now: Time, id: RequestId) {
        if let Some(e) = self.known.get_mut(&id) {
            e.settle(now, &mut self.queues);
            e.behind = None;
            let queue = self.queues.entry(e.model).or_default();
            queue.settle(now);
            e.before.clone_from(&queue.held);
        }
    }
}

impl Explanation {
    /// Adds what has passed since the last time, until when it waits.
    fn settle(&mut self, now: Time, queues: &mut FxHashMap<ModelId, Queue>) {
        if let Some((hold, since)) = &mut self.behind {
            let sum = self.held.entry(*hold).or_default();
            *sum = sum.saturating_add(now.since(*since));
            *since = now;
            return;
        }
        let queue = queues.entry(self.model).or_default();
        queue.settle(now);
        for (hold, sum) in &queue.held {
            let before = self.before.get(hold).copied().unwrap_or_default();
            self.held.insert(*hold, Nanos(sum.0 - before.0));
        }
        if self.held.get(&Hold::Policy).is_some_and(|h| h.0 > 0) {
            self.because.clone_from(&queue.because);
        }
    }
}

impl Observer for Explainer {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.now = now;
        match event {
            Event::Arrive(r) => {
                if let Some(wanted) = &mut self.wanted {
                    let Some(at) = wanted.iter().position(|&id| id == r.id) else {
                        return;
                    };
                    wanted.swap_remove(at);
                }
                let queue = self.queues.entry(r.model).or_default();
                queue.settle(now);
                let explanation = Explanation {
                    id: r.id,
                    arrival: r.arrival,
                    admitted: None,
                    ended: None,
                    held: BTreeMap::new(),
                    because: String::new(),
                    launches: 0,
                    running: Nanos::ZERO,
                    demoted: false,
                    delayed: r.delay_after.map_or(Time::MAX, |after| r.arrival + after),
                    now,
                    before: queue.held.clone(),
                    behind: None,
                    model: r.model,
                    sequence: r.sequence,
                };
                self.known.insert(r.id, explanation);
            }
            Event::LetGo { model, sequence } => {
                let of = |e: &&mut Explanation| e.model == *model && e.sequence == Some(*sequence);
                for e in self.known.values_mut().filter(of) {
                    if e.behind.is_some() {
                        e.settle(now, &mut self.queues);
                        e.behind = Some((Hold::Sequence, now));
                    }
                }
            }
            Event::Done { ticket, .. } => {
                let key = self.flights.keys().find(|k| k.1 == *ticket).copied();
                let Some((lane, (issued, members))) =
                    key.and_then(|k| Some((k.0, self.flights.remove(&k)?)))
                else {
                    return;
                };
                let freed = self.freed.insert(lane, now);
                let began = freed.map_or(issued, |freed| issued.max(freed));
                for id in members {
                    // Launches behind its end may carry it still.
                    if let Some(e) = self.known.get_mut(&id).filter(|e| e.ended.is_none()) {
                        e.launches += 1;
                        e.running = e.running.saturating_add(now.since(began));
                    }
                }
            }
            _ => {}
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        let members = launch.members.iter().map(|m| m.request).collect();
        let key = (launch.lane, launch.ticket);
        self.flights.insert(key, (now, members));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.now = now;
        match action {
            Action::Note(Note::Decide(why)) => self.decided(now, why),
            Action::Note(Note::Admit { members, .. }) => {
                for &id in members {
                    self.leaves_queue(now, id);
                }
            }
            Action::Note(Note::Behind { request, hold }) => {
                if let Some(e) = self.known.get_mut(request) {
                    e.behind = Some((*hold, e.arrival));
                }
            }
            Action::Note(Note::Queue { request }) => self.joins_queue(now, *request),
            Action::Vacate(model) => drop(self.queues.remove(model)),
            Action::Finish {
                request, outcome, ..
            } => {
                let Some(e) = self.known.get_mut(request) else {
                    return;
                };
                e.ended = Some((now, *outcome));
                if e.admitted.is_none() {
                    e.settle(now, &mut self.queues);
                }
                self.ended.push_back(*request);
                if self.ended.len() > self.capacity
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.known.remove(&oldest);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::Profile;

    use crate::core::{CoreConfig, ModelSpec, Request};
    use crate::policy;

    #[test]
    fn decisions_have_reasons_while_someone_asks_and_few_may() {
        let policy = policy::build("serial").unwrap();
        let mut core = Core::new(CoreConfig::new(Vec::new()), policy);
        let explainer = Arc::new(Mutex::new(Explainer::new(4)));
        let mut asked = OnRequest::new(explainer.clone(), false);
        assert!(!core.config().reasons);
        let all = OnRequest::MOST as u64 + 1;
        (0..all).for_each(|id| asked.begin(RequestId(id), &mut core));
        assert_eq!(asked.open.len(), OnRequest::MOST);
        assert!(core.config().reasons && core.config().notes);
        (1..all).for_each(|id| asked.end(RequestId(id), &mut core));
        assert!(core.config().reasons, "one is open");
        asked.end(RequestId(0), &mut core);
        assert!(!core.config().reasons && !core.config().notes);
        assert!(!asked.is_on.load(Ordering::Relaxed));
    }

    /// A core with a model of one node.
    struct Told {
        core: Core,
        asked: OnRequest,
        explainer: Arc<Mutex<Explainer>>,
    }

    impl Told {
        fn new(depth: u32) -> Self {
            let profile = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m",
                "max_batch":1,"blocks":[{"name":"net","repeat":"once",
                "nodes":[{"name":"a","latency_us":[[1,1.0]]}]}]}]}"#;
            let profile = Profile::parse("-", profile).unwrap();
            let model = ModelSpec::from_profile(&profile, &profile.models[0], 1, 1);
            let config = CoreConfig {
                lane_depths: vec![depth],
                ..CoreConfig::new(vec![model])
            };
            let explainer = Arc::new(Mutex::new(Explainer::new(4)));
            Self {
                core: Core::new(config, policy::build("serial").unwrap()),
                asked: OnRequest::new(explainer.clone(), false),
                explainer,
            }
        }

        fn pass(&mut self, at: u64, event: Event) {
            let Self { core, asked, .. } = self;
            asked.on_event(Time(at), &event);
            core.handle(Time(at), event);
            while let Some(action) = core.poll_action(Time(at)) {
                match action {
                    Action::Launch { ticket, lane } => {
                        asked.on_launch(Time(at), core.launch(lane, ticket));
                    }
                    other => asked.on_action(Time(at), &other),
                }
            }
        }

        fn arrive(&mut self, id: u64, at: u64, sequence: Option<u64>) {
            let request = Request {
                id: RequestId(id),
                model: ModelId(0),
                arrival: Time(at),
                sla: None,
                class: Default::default(),
                priority: 0,
                delay_after: None,
                samples: 1,
                input_len: 0,
                sequence,
                max_steps: None,
                known_output_len: None,
            };
            self.pass(at, Event::Arrive(request));
        }

        fn done(&mut self, at: u64, ticket: u64) {
            let done = Event::Done {
                ticket: Ticket(ticket),
                stopped: Default::default(),
                faults: Vec::new(),
                failed: None,
                took: None,
            };
            self.pass(at, done);
        }

        fn asks(&mut self, id: u64) {
            self.asked.begin(RequestId(id), &mut self.core);
        }

        fn explain(&self, id: u64) -> Explanation {
            let mut explainer = self.explainer.lock().unwrap();
            explainer.explain(RequestId(id)).unwrap()
        }
    }

    #[test]
    fn a_launch_begins_where_one_ends_that_was_in_flight_before_anyone_asked() {
        let mut told = Told::new(2);
        told.arrive(0, 0, None);
        told.asks(1);
        told.arrive(1, 10, None);
        assert_eq!(told.core.num_launches(), 2);
        told.done(100, 0);
        told.done(150, 1);
        let told = told.explain(1);
        assert_eq!((told.launches, told.running), (1, Nanos(50)));
    }

    #[test]
    fn a_wait_for_other_sequences_is_told_from_one_for_its_own_and_from_that_in_the_queue() {
        let (model, sequence) = (ModelId(0), 7);
        let mut told = Told::new(1);
        told.arrive(0, 0, None);
        (1..=4).for_each(|id| told.asks(id));
        told.pass(5, Event::Hold { model, sequence });
        told.arrive(1, 10, Some(7));
        told.arrive(2, 20, Some(7));
        told.arrive(3, 30, None);
        let held = |told: &Told, id: u64| -> Vec<(Hold, u64)> {
            let held = told.explain(id).held.into_iter();
            let held = held.map(|(hold, took)| (hold, took.0));
            held.filter(|held| held.1 > 0).collect()
        };
        assert_eq!(held(&told, 1), [(Hold::Backlog, 20)], "so far");
        told.pass(50, Event::LetGo { model, sequence });
        // Of 100 each: the one that was there, the first and the second of the sequence, which have lower
        // numbers, the third, which stands in the queue all the while, and the fourth.
        told.done(100, 0);
        told.done(200, 1);
        told.arrive(4, 210, Some(7));
        (2..=4).for_each(|ticket| told.done(100 * (ticket + 1), ticket));
        assert_eq!(held(&told, 1), [(Hold::Backlog, 40)]);
        let text = told.explain(2).to_string();
        assert_eq!(
            held(&told, 2),
            [(Hold::Sequence, 150), (Hold::Backlog, 30)],
            "{text}"
        );
        let parts = [
            "ms of it for those before it in its sequence",
            "ms of it for other sequences to end",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(held(&told, 3), [(Hold::Policy, 200)]);
        let fourth = [(Hold::Policy, 100), (Hold::Sequence, 90)];
        assert_eq!(held(&told, 4), fourth);
        assert_eq!(told.explain(4).ended.unwrap().0, Time(500));
    }
}
