//! Journals: a run as JSON lines, and its replay.
//!
//! The first line is the [`Header`], which holds everything that a core needs; then one line per
//! event, launch and action, in order, and the end record, `{"end":{"lines":N}}`, with the number of
//! lines before it. A journal without one, as before there were any, may be cut where nothing was in
//! flight. The same seed gives the same bytes. Replay feeds the events
//! back through a fresh core, compares every launch and action, and lets the checker judge. Models
//! that are attached on the way are events, with their latencies.

use std::io::{BufRead, Write};

use lazybatch_sla::{Class, Launch, Profile, SegmentRanges, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::core::checker::Checker;
use crate::core::{Action, Core, CoreConfig, Event, ModelSpec};
use crate::driver::{Judge, Observer};
use crate::policy;

/// The value of `format` in every journal.
pub const FORMAT: &str = "lazybatch-journal/1";

/// First line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Always [`FORMAT`].
    pub format: String,
    /// Policy specification.
    pub policy: String,
    /// Latency tables.
    pub profile: Profile,
    /// Segments of each model.
    pub segments: Vec<SegmentRanges>,
    /// Predicted output length of each model.
    pub output_len_p90: Vec<u32>,
    /// Most requests in flight, of each model.
    pub max_in_flight: Vec<u32>,
    /// Which models were resident at the start.
    pub resident: Vec<bool>,
    /// SLA classes by id.
    #[serde(default = "one_class")]
    pub classes: Vec<Class>,
    /// Depth of each lane.
    pub lane_depths: Vec<u32>,
    /// Most waiting requests.
    pub max_queue: usize,
    /// Whether the device works on the driver's own thread.
    #[serde(default)]
    pub is_in_place: bool,
    /// Whether changes of the batch table are in the journal.
    pub notes: bool,
    /// Whether decisions with their reasons are in the journal.
    #[serde(default)]
    pub reasons: bool,
}

fn one_class() -> Vec<Class> {
    vec![Class::default()]
}

impl Header {
    /// Describes a core of that configuration, built from `profile`.
    pub fn new(policy: &str, profile: &Profile, config: &CoreConfig) -> Self {
        let segments = |m: &ModelSpec| m.blocks.iter().map(|b| b.segments.clone()).collect();
        Self {
            format: FORMAT.into(),
            policy: policy.into(),
            profile: profile.clone(),
            segments: config.models.iter().map(segments).collect(),
            output_len_p90: config.models.iter().map(|m| m.output_len_p90).collect(),
            max_in_flight: config.models.iter().map(|m| m.max_in_flight).collect(),
            resident: config.models.iter().map(|m| m.resident).collect(),
            classes: config.classes.clone(),
            lane_depths: config.lane_depths.clone(),
            max_queue: config.max_queue,
            is_in_place: config.is_in_place,
            notes: config.notes,
            reasons: config.reasons,
        }
    }

    /// Reads the first line of a journal.
    ///
    /// # Errors
    /// What is no text, or no header.
    pub fn read(input: &mut impl BufRead) -> Result<Self, JournalError> {
        let expected = format!("a {FORMAT} header");
        let fail = |got: String| JournalError {
            line: 1,
            expected: expected.clone(),
            got,
        };
        let start = input.fill_buf().map_err(|e| fail(e.to_string()))?;
        if start.is_empty() {
            return Err(fail("an empty file".into()));
        }
        if start.starts_with(&[0x1f, 0x8b]) {
            return Err(fail("a file that gzip has packed".into()));
        }
        let mut text = String::new();
        input.read_line(&mut text).map_err(|e| fail(told(&e)))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
        match &value["format"] {
            Value::String(format) if format == FORMAT => {
                serde_json::from_value(value).map_err(|e| fail(e.to_string()))
            }
            Value::Null => Err(fail("JSON without a format".into())),
            other => Err(fail(format!("one of format {other}"))),
        }
    }

    /// The configuration that it describes.
    ///
    /// # Errors
    /// A header whose lists do not fit its profile.
    pub fn config(&self) -> Result<CoreConfig, JournalError> {
        let fail = |what: &str, got: String| {
            Err(JournalError {
                line: 1,
                expected: what.to_string(),
                got,
            })
        };
        if self.format != FORMAT {
            return fail(FORMAT, format!("{:?}", self.format));
        }
        // A core may start without models.
        if !self.profile.models.is_empty()
            && let Err(e) = self.profile.check("journal header")
        {
            return fail("a valid profile", e.to_string());
        }
        let num = self.profile.models.len();
        let lens = [
            self.segments.len(),
            self.output_len_p90.len(),
            self.max_in_flight.len(),
            self.resident.len(),
        ];
        if lens.iter().any(|&n| n != num) {
            return fail(
                "lists of one entry a model",
                format!("{lens:?} for {num} models"),
            );
        }
        if self.lane_depths.is_empty() || self.lane_depths.contains(&0) {
            return fail(
                "lanes of depth 1 or more",
                format!("{:?}", self.lane_depths),
            );
        }
        let fits = |c: &Class| c.weight.is_finite() && c.weight > 0.0;
        if self.classes.is_empty() || !self.classes.iter().all(fits) {
            return fail(
                "at least one class, of weights above 0",
                format!("{:?}", self.classes),
            );
        }
        let mut models = Vec::new();
        for (m, model) in self.profile.models.iter().enumerate() {
            let covers = self.segments[m].len() == model.blocks.len()
                && model
                    .blocks
                    .iter()
                    .zip(&self.segments[m])
                    .all(|(block, ranges)| {
                        let mut end = 0;
                        ranges.iter().all(|r| {
                            std::mem::replace(&mut end, r.end) == r.start && r.start < r.end
                        }) && end as usize == block.nodes.len()
                    });
            if !covers {
                return fail(
                    "segments that cover each block",
                    format!("{:?}", self.segments[m]),
                );
            }
            models.push(ModelSpec {
                max_in_flight: self.max_in_flight[m],
                resident: self.resident[m],
                ..ModelSpec::with_segments(
                    &self.profile,
                    model,
                    self.segments[m].clone(),
                    self.output_len_p90[m],
                )
            });
        }
        Ok(CoreConfig {
            models,
            classes: self.classes.clone(),
            lane_depths: self.lane_depths.clone(),
            max_queue: self.max_queue,
            is_in_place: self.is_in_place,
            notes: self.notes,
            reasons: self.reasons,
        })
    }
}

/// What a line cannot be read for.
fn told(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::InvalidData => "bytes that are no UTF-8 text".into(),
        _ => error.to_string(),
    }
}

/// A journal that cannot be read or does not replay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal line {line}: expected {expected}, got {got}")]
pub struct JournalError {
    /// Line, from 1.
    pub line: usize,
    /// What would be right.
    pub expected: String,
    /// What is there.
    pub got: String,
}

/// Writes a journal as the run goes.
pub struct Writer<W: Write> {
    out: W,
    num_lines: u64,
    result: std::io::Result<()>,
}

impl<W: Write> Writer<W> {
    /// Starts with the header.
    pub fn new(out: W, header: &Header) -> Self {
        let mut writer = Self {
            out,
            num_lines: 0,
            result: Ok(()),
        };
        writer.line(&serde_json::to_value(header).expect("a header has a JSON form"));
        writer
    }

    fn line(&mut self, value: &Value) {
        if self.result.is_ok() {
            self.result = writeln!(self.out, "{value}");
            self.num_lines += 1;
        }
    }

    /// Writes the end record and flushes; the first error of the whole run, if any.
    ///
    /// # Errors
    /// That error.
    pub fn finish(mut self) -> std::io::Result<W> {
        let end = json!({ "end": { "lines": self.num_lines } });
        self.line(&end);
        self.result?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn launch_value(launch: &Launch) -> Value {
    let member = |m: &lazybatch_sla::Member| json!([m.request, m.slot, m.step, m.idle]);
    json!({
        "ticket": launch.ticket, "lane": launch.lane, "model": launch.model,
        "block": launch.block, "nodes": [launch.first_node, launch.end_node],
        "sub_batch": launch.sub_batch, "padded_len": launch.padded_len,
        "members": launch.members.iter().map(member).collect::<Vec<_>>(),
    })
}

impl<W: Write> Observer for Writer<W> {
    fn on_event(&mut self, now: Time, event: &Event) {
        self.line(&json!({ "at": now, "event": event }));
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.line(&json!({ "at": now, "launch": launch_value(launch) }));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        self.line(&json!({ "at": now, "action": action }));
    }
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The policy that was replayed.
    pub policy: String,
    /// Events fed in.
    pub events: usize,
    /// Launches compared.
    pub launches: usize,
    /// Requests that ended.
    pub finished: usize,
    /// Whether the journal says that it ends there.
    pub has_end: bool,
}

/// Replays a journal; `observer` sees the replayed run.
///
/// # Errors
/// A line that is no journal line, the first difference between the journal and the replay, or the
/// first rule that the checker finds broken.
pub fn replay(
    mut input: impl BufRead,
    observer: &mut dyn Observer,
) -> Result<Replayed, JournalError> {
    let header = Header::read(&mut input)?;
    let lines = input.lines().enumerate().map(|(i, l)| (i + 2, l));
    let config = header.config()?;
    let policy = policy::build(&header.policy).map_err(|e| JournalError {
        line: 1,
        expected: e.expected.clone(),
        got: format!("policy {:?}", e.got),
    })?;
    let mut judge = Judge::new(Checker::new(&config, false));
    let mut core = Core::new(config, policy);
    let mut result = Replayed {
        policy: header.policy.clone(),
        events: 0,
        launches: 0,
        finished: 0,
        has_end: false,
    };
    let mut now = Time::ZERO;
    let mut end = 2;
    for (line, text) in lines {
        end = line + 1;
        let bad = |expected: &str, got: String| JournalError {
            line,
            expected: expected.to_string(),
            got,
        };
        let text = text.map_err(|e| bad("a JSON line", told(&e)))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|e| bad("a JSON line", e.to_string()))?;
        if result.has_end {
            return Err(bad("nothing behind the end record", "a line".into()));
        }
        if let Some(told) = value.get("end") {
            let had = json!({ "lines": line - 1 });
            if *told != had {
                return Err(bad(
                    &format!("an end record of the {} lines before it", line - 1),
                    told.to_string(),
                ));
            }
            result.has_end = true;
            end = line;
            continue;
        }
        let at: Time = serde_json::from_value(value["at"].clone())
            .map_err(|_| bad("\"at\" in nanoseconds", value["at"].to_string()))?;
        if at < now {
            return Err(bad(
                "times that do not decrease",
                format!("{at} after {now}"),
            ));
        }
        if let Some(event) = value.get("event") {
            // Events of one time come together; what was decided before has left its lines.
            if (at > now || !core.wants_decision())
                && let Some(missing) =
                    next_output(&mut core, now, &mut judge, observer, &mut result)
            {
                return Err(bad(&missing.to_string(), "an event".into()));
            }
            now = at;
            let event: Event = serde_json::from_value(event.clone())
                .map_err(|e| bad("an event", e.to_string()))?;
            check_event(&core, now, &event)
                .map_err(|got| bad("an event that fits the run", got))?;
            judge.on_event(now, &event);
            observer.on_event(now, &event);
            core.handle(now, event);
            result.events += 1;
        } else {
            if at > now {
                return Err(bad(
                    &format!("an event, or \"at\": {}", now.0),
                    at.0.to_string(),
                ));
            }
            let got = next_output(&mut core, now, &mut judge, observer, &mut result);
            let expected = if value.get("launch").is_some() {
                "launch"
            } else {
                "action"
            };
            let recorded = json!({ expected: value[expected] });
            if got.as_ref() != Some(&recorded) {
                let got = got.map_or("nothing".to_string(), |v| v.to_string());
                return Err(bad(&recorded.to_string(), format!("{got} from the replay")));
            }
        }
    }
    let bad = |expected: String, got: String| JournalError {
        line: end,
        expected,
        got,
    };
    if result.events == 0 {
        return Err(bad("an event".into(), "the end of the journal".into()));
    }
    if let Some(missing) = next_output(&mut core, now, &mut judge, observer, &mut result) {
        return Err(bad(missing.to_string(), "the end of the journal".into()));
    }
    judge
        .finish()
        .map_err(|v| bad("a whole run without broken rules".into(), v.to_string()))?;
    Ok(result)
}

/// The core asserts on events that break its contract; a journal from outside gets an error.
fn check_event(core: &Core, now: Time, event: &Event) -> Result<(), String> {
    match event {
        Event::Arrive(r) if !core.takes(r.model) => Err(format!("unknown model {}", r.model)),
        Event::Arrive(r) if r.class.index() >= core.config().classes.len() => {
            Err(format!("{} has unknown {}", r.id, r.class))
        }
        Event::Arrive(r) if core.is_open(r.id) => Err(format!("{} arrives twice", r.id)),
        Event::Arrive(r)
            if r.samples == 0 || r.samples > core.config().models[r.model.index()].max_batch =>
        {
            Err(format!("{} has {} samples", r.id, r.samples))
        }
        Event::Arrive(r) if r.arrival > now => Err(format!("{} arrives in the future", r.id)),
        Event::Done {
            ticket,
            stopped,
            faults,
            ..
        } => {
            let Some(launch) = core.oldest(*ticket) else {
                return Err(format!("{ticket} is not the oldest launch of a lane"));
            };
            let is_member = |id| launch.members.iter().any(|m| m.request == id);
            let mut ends = stopped.iter().chain(faults.iter().map(|(id, _)| id));
            match ends.find(|&&id| !is_member(id)) {
                Some(id) => Err(format!("{id} ends in {ticket} but is no member")),
                None => Ok(()),
            }
        }
        Event::Attach(a) if !core.is_free(a.model) => Err(format!("{} is taken", a.model)),
        Event::Attach(a) if a.spec.is_vacant() => Err(format!("{} has no room", a.model)),
        Event::Attach(a) if a.classes.len() < core.config().classes.len() => {
            Err(format!("{} classes", a.classes.len()))
        }
        Event::Detach(m) if !core.is_resident(*m) => Err(format!("{m} is not resident")),
        Event::Loaded(m) | Event::Evict(m) | Event::Hold { model: m, .. } if !core.takes(*m) => {
            Err(format!("unknown model {m}"))
        }
        _ => Ok(()),
    }
}

fn next_output(
    core: &mut Core,
    now: Time,
    judge: &mut Judge,
    observer: &mut dyn Observer,
    result: &mut Replayed,
) -> Option<Value> {
    let action = core.poll_action(now)?;
    if let Action::Launch { ticket, lane } = action {
        let launch = core.launch(lane, ticket);
        judge.on_launch(now, launch);
        observer.on_launch(now, launch);
        result.launches += 1;
        return Some(json!({ "launch": launch_value(launch) }));
    }
    result.finished += usize::from(matches!(action, Action::Finish { .. }));
    judge.on_action(now, &action);
    observer.on_action(now, &action);
    Some(json!({ "action": action }))
}
