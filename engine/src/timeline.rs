//! Timelines: what happened, one line per event, as text or as a Chrome / Perfetto trace.
//!
//! An [`Observer`] that renders. It needs [`crate::core::CoreConfig::notes`] for the changes of
//! the batch table; without them it shows arrivals, launches and ends only.

use std::fmt::Write as _;
use std::ops::Range;

use lazybatch_sla::{LaneId, Launch, Member, ModelId, Nanos, RequestId, SubBatchId, Time};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};

use crate::core::{Action, Attach, BlockSpec, CoreConfig, Event, Note};
use crate::driver::Observer;

/// Names of models and their blocks, by id. Those of a model that has gone stay until its id is used
/// again.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<(String, Vec<BlockSpec>)>);

impl Names {
    /// Those of a core so configured.
    pub fn new(config: &CoreConfig) -> Self {
        let models = config.models.iter();
        Self(models.map(|m| (m.name.clone(), m.blocks.clone())).collect())
    }

    /// A model comes.
    pub fn attach(&mut self, attach: &Attach) {
        let m = attach.model.index();
        self.0.resize(self.0.len().max(m + 1), Default::default());
        self.0[m] = (attach.spec.name.clone(), attach.spec.blocks.clone());
    }

    /// A model's name; `?` of an id that none had.
    pub fn model(&self, model: ModelId) -> &str {
        self.0.get(model.index()).map_or("?", |m| &m.0)
    }

    /// Block and nodes of a launch, as `encoder.3` or `encoder.3-5`.
    pub fn nodes(&self, launch: &Launch) -> String {
        let blocks = self.0.get(launch.model.index()).map(|m| &m.1);
        let block = blocks.and_then(|b| b.get(launch.block as usize));
        let block = block.map_or("?", |b| &b.name);
        nodes(block, &(launch.first_node..launch.end_node))
    }
}

/// Text timeline: `time what`, times in microseconds. Launch lines show block and nodes, each
/// member with its step, and the entries that are parked below.
pub struct Timeline {
    names: Names,
    text: String,
    stack: Vec<(SubBatchId, Vec<RequestId>)>,
}

impl Timeline {
    /// An empty timeline of a core so configured.
    pub fn new(config: &CoreConfig) -> Self {
        Self {
            names: Names::new(config),
            text: String::new(),
            stack: Vec::new(),
        }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, now: Time, what: &str) {
        let us = format!("{}.{:03}", now.0 / 1000, now.0 % 1000);
        writeln!(self.text, "{us:>12} {what}").expect("a string takes all");
    }

    fn note(&mut self, now: Time, note: &Note) {
        match note {
            Note::Admit { sub_batch, members } => {
                self.stack.push((*sub_batch, members.clone()));
                self.line(now, &format!("admit {sub_batch} {members:?}"));
            }
            Note::Merge { into, from } => {
                if let Some(i) = self.stack.iter().position(|s| s.0 == *from) {
                    let (_, members) = self.stack.remove(i);
                    if let Some(kept) = self.stack.iter_mut().find(|s| s.0 == *into) {
                        kept.1.extend(members);
                    }
                }
                self.line(now, &format!("merge {from} into {into}"));
            }
            Note::Split {
                from,
                ahead,
                members,
            } => {
                if let Some(i) = self.stack.iter().position(|s| s.0 == *from) {
                    self.stack[i].1.retain(|m| !members.contains(m));
                    self.stack.insert(i, (*ahead, members.clone()));
                }
                self.line(now, &format!("split {from}, ahead {ahead} {members:?}"));
            }
            Note::Preempt { parked, by } => self.line(now, &format!("preempt {parked} by {by}")),
            Note::Behind { request, hold } => self.line(now, &format!("hold {request} {hold:?}")),
            Note::Queue { request } => self.line(now, &format!("queue {request}")),
            Note::Decide(why) => {
                self.line(now, &format!("decide {}: {}", why.chosen, why.because));
            }
            Note::Pop { sub_batch } => self.stack.retain(|s| s.0 != *sub_batch),
        }
    }
}

/// Nodes of a block, as `encoder.3` or `encoder.3-5`.
pub(crate) fn nodes(block: &str, range: &Range<u32>) -> String {
    match range.end - range.start {
        1 => format!("{block}.{}", range.start),
        _ => format!("{block}.{}-{}", range.start, range.end - 1),
    }
}

fn member(m: &Member) -> String {
    format!("{}@{}{}", m.request, m.step, if m.idle { "~" } else { "" })
}

impl Observer for Timeline {
    fn on_event(&mut self, now: Time, event: &Event) {
        match event {
            Event::Arrive(r) => {
                let model = self.names.model(r.model);
                let what = format!("arrive {} {model} input {}", r.id, r.input_len);
                self.line(now, &what);
            }
            Event::Cancel(id) => self.line(now, &format!("cancel {id}")),
            Event::Done {
                ticket,
                failed: Some(cause),
                ..
            } => {
                self.line(now, &format!("fail {ticket}: {cause}"));
            }
            Event::Done { ticket, faults, .. } => {
                for (id, cause) in faults {
                    self.line(now, &format!("fail {id} in {ticket}: {cause}"));
                }
            }
            Event::Loaded(model) => self.line(now, &format!("loaded {model}")),
            Event::Planned(plan) => {
                let costs = plan.costs.iter();
                let costs: Vec<_> = costs.map(|(c, ns)| format!("{c} {}", Nanos(*ns))).collect();
                let what = match costs.is_empty() {
                    true => "nothing, as none is needed".into(),
                    false => costs.join(", "),
                };
                self.line(now, &format!("planned {what}"));
            }
            Event::Attach(attach) => {
                self.names.attach(attach);
                self.line(
                    now,
                    &format!("attach {} {}", attach.model, attach.spec.name),
                );
            }
            Event::Hold { model, sequence } => {
                let model = self.names.model(*model);
                self.line(now, &format!("hold sequence {sequence} {model}"));
            }
            Event::LetGo { model, sequence } => {
                let model = self.names.model(*model);
                self.line(now, &format!("let go sequence {sequence} {model}"));
            }
            Event::Detach(model) => self.line(now, &format!("detach {model}")),
            Event::Drain => self.line(now, "drain"),
            Event::Evict(_) | Event::Wake => {}
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        let what = self.names.nodes(launch);
        let members: Vec<_> = launch.members.iter().map(member).collect();
        let mut line = format!("run {} {what} [{}]", launch.sub_batch, members.join(" "));
        let parked = self.stack.iter().filter(|s| s.0 != launch.sub_batch);
        let parked: Vec<_> = parked.map(|(id, m)| format!("{id} {m:?}")).collect();
        if !parked.is_empty() {
            write!(line, ", parked {}", parked.join(" ")).expect("a string takes all");
        }
        self.line(now, &line);
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        match action {
            Action::Note(note) => self.note(now, note),
            Action::Finish {
                request,
                outcome,
                cause,
                ..
            } => {
                for (_, members) in &mut self.stack {
                    members.retain(|m| m != request);
                }
                let cause = cause.as_ref().map(|c| format!(": {c}")).unwrap_or_default();
                self.line(now, &format!("finish {request} {outcome}{cause}"));
            }
            Action::Load(model) => self.line(now, &format!("load {model}")),
            Action::Evict(model) => self.line(now, &format!("evict {model}")),
            Action::Vacate(model) => self.line(now, &format!("vacate {model}")),
            Action::Plan => self.line(now, "plan"),
            Action::Open { .. } | Action::Release { .. } | Action::Launch { .. } => {}
        }
    }
}

/// Chrome trace events (`chrome://tracing`, Perfetto): launches as slices on their lane, requests
/// as asynchronous slices from arrival to end.
pub struct ChromeTrace {
    names: Names,
    /// Process of its launches in the trace; that of its requests is the next one.
    pid: u64,
    running: Vec<(Time, Launch)>,
    /// When the last launch of a lane ended: until then the next one waited for it.
    freed: FxHashMap<LaneId, Time>,
    /// Requests whose arrival is in the trace.
    open: FxHashSet<RequestId>,
    events: Vec<Value>,
}

impl ChromeTrace {
    /// An empty trace of a core so configured.
    pub fn new(config: &CoreConfig) -> Self {
        Self::of(Names::new(config), 0)
    }

    /// An empty trace of models that are named so: one of several in a document, each with a `pid`
    /// that is two above the former's.
    pub fn of(names: Names, pid: u64) -> Self {
        Self {
            names,
            pid,
            running: Vec::new(),
            freed: FxHashMap::default(),
            open: FxHashSet::default(),
            events: Vec::new(),
        }
    }

    /// Names its two processes: launches and requests of `engine`.
    pub fn name(&mut self, engine: &str) {
        for (pid, what) in [(self.pid, "launches"), (self.pid + 1, "requests")] {
            self.events.push(json!({
                "name": "process_name", "ph": "M", "pid": pid, "tid": 0,
                "args": { "name": format!("{engine}: {what}") },
            }));
        }
    }

    /// Its events, to be put beside those of others.
    pub fn into_events(self) -> Vec<Value> {
        self.events
    }

    /// The JSON document.
    pub fn into_json(self) -> String {
        document(self.events)
    }

    fn request(&mut self, now: Time, phase: &str, id: RequestId, args: Value) {
        self.events.push(json!({
            "name": id.to_string(), "cat": "request", "ph": phase, "id": id.0,
            "pid": self.pid + 1, "tid": 0, "ts": now.as_us(), "args": args,
        }));
    }
}

/// Chrome trace events as a JSON document.
pub fn document(events: Vec<Value>) -> String {
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}

impl Observer for ChromeTrace {
    fn on_event(&mut self, now: Time, event: &Event) {
        match event {
            Event::Arrive(r) => {
                let args = json!({ "model": self.names.model(r.model), "input": r.input_len });
                self.open.insert(r.id);
                self.request(r.arrival, "b", r.id, args);
            }
            Event::Done { ticket, .. } => {
                let Some(i) = self.running.iter().position(|r| r.1.ticket == *ticket) else {
                    return;
                };
                let (issued, launch) = self.running.remove(i);
                let freed = self.freed.insert(launch.lane, now);
                let start = freed.map_or(issued, |freed| issued.max(freed));
                self.events.push(json!({
                    "name": self.names.nodes(&launch),
                    "cat": "launch", "ph": "X", "pid": self.pid, "tid": launch.lane.0,
                    "ts": start.as_us(), "dur": now.since(start).as_us(),
                    "args": {
                        "model": self.names.model(launch.model),
                        "sub_batch": launch.sub_batch.to_string(),
                        "members": launch.members.iter().map(member).collect::<Vec<_>>(),
                    },
                }));
            }
            Event::Attach(attach) => self.names.attach(attach),
            _ => {}
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.running.push((now, launch.clone()));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        if let Action::Finish {
            request, outcome, ..
        } = action
            // Of one that came before the trace there is nothing to end.
            && self.open.remove(request)
        {
            self.request(now, "e", *request, json!({ "outcome": outcome }));
        }
    }
}
