//! Traces of inference calls in files, as the trace extension of the protocol has them.
//!
//! One of so many calls is traced: when it passed what, and what went in and came out. Clients change
//! the settings, of all models or of one, and the operator says in which folder files may be. Where no
//! folder is named, or nothing is traced, a call looks at one flag.
//!
//! A trace holds at most `MOST_KEPT` bytes and a tensor's text, which is bounded too, from when its
//! call comes until it ends; ended, it waits with others of its settings for as many bytes more, and
//! those that were handed to the writer have a bound of their own.
//!
//! Source: trace extension of Triton's protocol, and its user guide for names and the form of files.

mod file;
mod settings;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use lazybatch_sla::Time;
use tokio::time::Instant;

pub use file::{Counts, TraceDir};
pub use settings::{Level, Texts, Values};

use crate::error::{Error, Result};
use crate::infer::{Answer, Request};
use crate::model::Served;
use crate::telemetry::date;
use file::{Text, Writer};
use settings::Stated;

/// Bytes of traces that wait for others of their file, and of a trace that gets more tensors.
const MOST_KEPT: usize = 1 << 20;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Traces of a server.
pub struct Traces {
    /// Whether any model is traced.
    is_on: AtomicBool,
    clock: Clock,
    last_id: AtomicU64,
    all: Mutex<All>,
    writer: Option<Arc<Writer>>,
}

/// Nanoseconds since 1970 as they were at the start, and how long ago that is: never backwards.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    fn now(&self) -> u64 {
        let since = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.start_ns.saturating_add(since)
    }
}

/// Settings that hold: of all models, and of those that have some of their own.
struct All {
    global: (Stated, Arc<Setting>),
    models: BTreeMap<String, (Stated, Arc<Setting>)>,
}

impl Traces {
    /// Without traces at first; never with any if no folder is named.
    ///
    /// # Errors
    /// A folder that is not there.
    pub fn open(dir: Option<&TraceDir>) -> Result<Self> {
        let writer = dir.map(Writer::open).transpose()?.map(Arc::new);
        let global = Setting::new(Values::default(), writer.clone());
        let since = date().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            is_on: AtomicBool::new(false),
            clock: Clock {
                start: Instant::now(),
                start_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            },
            last_id: AtomicU64::new(0),
            all: Mutex::new(All {
                global: (Stated::default(), global),
                models: BTreeMap::new(),
            }),
            writer,
        })
    }

    /// Traces that were written, and that were not; `None` without a folder.
    pub fn counts(&self) -> Option<&Counts> {
        self.writer.as_deref().map(Writer::counts)
    }

    fn setting(&self, model: &str) -> Arc<Setting> {
        let all = locked(&self.all);
        let own = all.models.get(model);
        own.unwrap_or(&all.global).1.clone()
    }

    /// Settings of a model, or of all if that is empty.
    pub fn settings(&self, model: &str) -> Texts {
        self.setting(model).values().texts()
    }

    /// Changes settings of a model, or of all if that is empty: all of `changes` or none. What is no
    /// longer stated is as for all models, or as at the start.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no traces can be written, [`Error::Invalid`] for unknown settings
    /// and values.
    pub fn change(&self, model: &str, changes: &Texts) -> Result<()> {
        let mut all = locked(&self.all);
        let now = match all.models.get(model) {
            Some((own, setting)) => own.left(setting),
            None if model.is_empty() => all.global.0.left(&all.global.1),
            None => Stated::default(),
        };
        let new = now.with(changes)?;
        if self.writer.is_none() {
            let as_it_is = Values::default().texts();
            let asks =
                |values: &Vec<String>, key| !values.is_empty() && as_it_is.get(key) != Some(values);
            return match changes.iter().find(|&(key, values)| asks(values, key)) {
                None => Ok(()),
                Some((key, _)) => Err(Error::Unsupported(format!(
                    "trace setting '{key}': this server writes no traces (--trace-dir)"
                ))),
            };
        }
        // Whoever only looks changes nothing.
        if new == now {
            return Ok(());
        }
        let make = |values| Setting::new(values, self.writer.clone());
        if model.is_empty() {
            let values = new.over(&Values::default());
            all.global = (new, make(values));
            let global = all.global.1.values();
            for (own, setting) in all.models.values_mut() {
                let held = setting.values();
                let mut stated = own.clone();
                stated.set_left(held.count);
                let mut values = stated.over(&global);
                // What is used up stays so where nothing is said of it.
                if !changes.contains_key("trace_count") {
                    values.count = held.count;
                }
                if values != held {
                    *setting = make(values);
                }
                *own = stated;
            }
        } else if new == Stated::default() {
            all.models.remove(model);
        } else {
            let values = new.over(&all.global.1.values());
            all.models.insert(model.to_owned(), (new, make(values)));
        }
        self.note_on(&all);
        Ok(())
    }

    /// Forgets the settings of models that are not known any more.
    pub fn keep(&self, is_known: impl Fn(&str) -> bool) {
        let mut all = locked(&self.all);
        all.models.retain(|model, _| is_known(model));
        self.note_on(&all);
    }

    fn note_on(&self, all: &All) {
        let own = all.models.values().map(|(_, setting)| setting);
        let any = own.chain([&all.global.1]).any(|s| s.values.is_on());
        self.is_on.store(any, Ordering::Relaxed);
    }

    /// A call comes, over HTTP or else gRPC; `None` where nothing is traced.
    pub fn comes(self: &Arc<Self>, is_http: bool) -> Option<Box<Trace>> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let now = self.clock.now();
        Some(Box::new(Trace {
            traces: self.clone(),
            names: if is_http { &HTTP } else { &GRPC },
            came: now,
            is_read: now,
            sampled: None,
        }))
    }

    /// Writes what is left, if that takes no longer than a few seconds; later traces are dropped.
    pub async fn end(&self) {
        let Some(writer) = self.writer.clone() else {
            return;
        };
        self.is_on.store(false, Ordering::Relaxed);
        let old = {
            let mut all = locked(&self.all);
            let none = Setting::new(Values::default(), None);
            let global = std::mem::replace(&mut all.global.1, none);
            (global, std::mem::take(&mut all.models))
        };
        drop(old);
        writer.end().await;
    }
}

impl Stated {
    /// These, with the number of traces that `setting` has left.
    fn left(&self, setting: &Setting) -> Self {
        let mut stated = self.clone();
        stated.set_left(setting.values().count);
        stated
    }
}

/// Settings that hold, and the traces made by them. Dropped, it writes those that are left.
struct Setting {
    values: Values,
    made: Mutex<Made>,
    writer: Option<Arc<Writer>>,
}

#[derive(Default)]
struct Made {
    /// Calls that came.
    calls: u64,
    /// Traces that are still to begin.
    left: Option<u32>,
    /// Traces that have begun and not ended.
    open: u64,
    /// Traces in `members`.
    num: u64,
    members: String,
}

impl Setting {
    fn new(values: Values, writer: Option<Arc<Writer>>) -> Arc<Self> {
        let made = Made {
            left: values.count,
            ..Made::default()
        };
        Arc::new(Self {
            values,
            made: Mutex::new(made),
            writer,
        })
    }

    /// As they were stated, with the traces that are left.
    fn values(&self) -> Values {
        Values {
            count: locked(&self.made).left,
            ..self.values.clone()
        }
    }

    /// Whether the next call is traced.
    fn samples(&self) -> bool {
        let mut made = locked(&self.made);
        if !self.values.is_on() || made.left == Some(0) {
            return false;
        }
        made.calls += 1;
        if !made.calls.is_multiple_of(u64::from(self.values.rate)) {
            return false;
        }
        made.left = made.left.map(|left| left - 1);
        made.open += 1;
        true
    }

    /// A trace has ended.
    fn collect(&self, members: &str) {
        let mut made = locked(&self.made);
        made.open -= 1;
        if !made.members.is_empty() {
            made.members.push_str(",\n");
        }
        made.members.push_str(members);
        made.num += 1;
        let frequency = u64::from(self.values.log_frequency);
        let is_full = frequency > 0 && made.num >= frequency;
        let is_last = made.left == Some(0) && made.open == 0;
        if is_full || is_last || made.members.len() >= MOST_KEPT {
            self.write(&mut made, is_full || is_last);
        }
    }

    fn write(&self, made: &mut Made, is_whole: bool) {
        let text = Text {
            file: self.values.file.clone(),
            is_numbered: is_whole || self.values.log_frequency > 0,
            members: std::mem::take(&mut made.members),
            num: std::mem::take(&mut made.num),
        };
        if let Some(writer) = self.writer.as_ref().filter(|_| text.num > 0) {
            writer.write(text);
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let mut made = std::mem::take(&mut *locked(&self.made));
        self.write(&mut made, false);
    }
}

/// Names of times that depend on what a call came over.
struct Names {
    reads: [&'static str; 2],
    sends: [&'static str; 2],
}

const HTTP: Names = Names {
    reads: ["HTTP_RECV_START", "HTTP_RECV_END"],
    sends: ["HTTP_SEND_START", "HTTP_SEND_END"],
};
const GRPC: Names = Names {
    reads: ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"],
    sends: ["GRPC_SEND_START", "GRPC_SEND_END"],
};

/// A call that is perhaps traced. Dropped, it is written as far as it came.
pub struct Trace {
    traces: Arc<Traces>,
    names: &'static Names,
    /// When it came, and when all of it was there.
    came: u64,
    is_read: u64,
    /// What is told of it, once it is known that it is traced.
    sampled: Option<Sampled>,
}

struct Sampled {
    id: u64,
    setting: Arc<Setting>,
    members: String,
    /// Whether there were more tensors than it holds.
    is_cut: bool,
    has_responded: bool,
    has_answer: bool,
}

impl Sampled {
    fn at(&mut self, name: &str, ns: u64) {
        if self.setting.values.level.timestamps {
            text::time(&mut self.members, self.id, name, ns);
        }
    }

    /// Adds a tensor. Of those for which there is no room the first one is told without its elements,
    /// the others not at all.
    fn tensor(&mut self, activity: &str, (name, ty, shape, data): text::Tensor<'_>) {
        if !self.setting.values.level.tensors || self.is_cut {
            return;
        }
        self.is_cut = self.members.len() >= MOST_KEPT;
        let data: &[u8] = if self.is_cut { &[] } else { data };
        let tensor = (name, ty, shape, data);
        text::tensor(&mut self.members, self.id, activity, tensor);
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        self.setting.collect(&self.members);
    }
}

impl Trace {
    /// All of the call was read.
    pub fn read(&mut self) {
        self.is_read = self.traces.clock.now();
    }

    /// It is known what is asked of whom; `None` if that is not traced.
    pub fn asks(mut self: Box<Self>, served: &Served, request: &Request) -> Option<Box<Self>> {
        let setting = self.traces.setting(&served.name);
        if !setting.samples() {
            return None;
        }
        let id = self.traces.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut sampled = Sampled {
            id,
            members: text::head(id, &served.name, served.version, &request.id),
            setting,
            is_cut: false,
            has_responded: false,
            has_answer: false,
        };
        for (name, ns) in self.names.reads.into_iter().zip([self.came, self.is_read]) {
            sampled.at(name, ns);
        }
        sampled.at("REQUEST_START", self.traces.clock.now());
        for input in &request.inputs {
            let tensor = (&*input.name, input.data_type, &*input.shape, &*input.data);
            sampled.tensor("TENSOR_QUEUE_INPUT", tensor);
        }
        self.sampled = Some(sampled);
        Some(self)
    }

    /// A part of the answer came; the first one is told.
    pub fn responds(&mut self) {
        let now = self.traces.clock.now();
        if let Some(sampled) = &mut self.sampled
            && !std::mem::replace(&mut sampled.has_responded, true)
        {
            sampled.at("INFER_RESPONSE_COMPLETE", now);
        }
    }

    /// The whole answer came, and is sent from now on.
    pub fn answered(&mut self, served: &Served, answer: &Answer) {
        self.responds();
        let now = self.traces.clock.now();
        let Some(sampled) = &mut self.sampled else {
            return;
        };
        if let Some(passage) = &answer.passage {
            let engine = served.now();
            let at = |time: Time| now.saturating_sub(engine.since(time).0);
            sampled.at("QUEUE_START", at(passage.arrival));
            // Inputs are the engine's before they wait.
            sampled.at("COMPUTE_START", at(passage.first_launch));
            sampled.at("COMPUTE_INPUT_END", at(passage.first_launch));
            sampled.at("COMPUTE_OUTPUT_START", at(passage.finish));
            sampled.at("COMPUTE_END", now);
        }
        for output in &answer.outputs {
            let (name, data) = (&*output.name, &*output.data);
            let tensor = (name, output.data_type, &*output.shape, data);
            sampled.tensor("TENSOR_BACKEND_OUTPUT", tensor);
        }
        self.sends(now);
    }

    fn sends(&mut self, now: u64) {
        if let Some(sampled) = &mut self.sampled
            && !std::mem::replace(&mut sampled.has_answer, true)
        {
            sampled.at("REQUEST_END", now);
            sampled.at(self.names.sends[0], now);
        }
    }

    /// All of the answer is on its way, or the error.
    pub fn ends(mut self) {
        let now = self.traces.clock.now();
        self.sends(now);
        if let Some(sampled) = &mut self.sampled {
            sampled.at(self.names.sends[1], now);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::dtype::DataType;

    #[test]
    fn a_trace_of_many_tensors_is_cut() {
        let level = Level {
            timestamps: false,
            tensors: true,
        };
        let values = Values {
            level,
            rate: 1,
            ..Values::default()
        };
        let setting = Setting::new(values, None);
        assert!(setting.samples());
        let mut sampled = Sampled {
            id: 1,
            setting,
            members: text::head(1, "m", 1, ""),
            is_cut: false,
            has_responded: false,
            has_answer: false,
        };
        let (shape, data) = ([4096], vec![255; 4096]);
        for _ in 0..1000 {
            let tensor = ("t", DataType::Uint8, &shape[..], &data[..]);
            sampled.tensor("TENSOR_QUEUE_INPUT", tensor);
        }
        let len = sampled.members.len();
        assert!((MOST_KEPT..MOST_KEPT + (32 << 10)).contains(&len), "{len}");
        let all: Vec<Json> = serde_json::from_str(&format!("[{}]", sampled.members)).unwrap();
        let (cut, whole) = all.split_last().unwrap();
        assert_eq!(cut["tensor"]["data"], "");
        assert!(whole[1..].iter().all(|one| one["tensor"]["data"] != ""));
    }
}
