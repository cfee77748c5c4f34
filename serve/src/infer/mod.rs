//! Requests and answers of the protocol, whatever they came over.

mod answer;
mod chain;
mod held;
mod order;
mod pending;
mod prepare;
mod run;
mod sampling;
mod sequence;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use indexmap::IndexMap;
use lazybatch_engine::Launches;
use lazybatch_sla::{Nanos, Outcome, Time};
use opentelemetry::TraceId;

pub use order::Order;
pub use prepare::Recipe;
pub use run::{
    Item, Running, Stepwise, class_of, full, rehearse, start, start_in_turn, steps, stream,
    turned_away,
};

pub use sequence::{PLACE, goes_on, refused};

use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::explained::{self, MOST_NAME, cut};
use crate::memory::Tab;
use crate::shm::Region;

/// Most inputs, outputs and parameters of a request, of each.
pub const MAX_LISTED: usize = 1024;

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that may be beyond [`i64`].
    Uint(u64),
    /// A number.
    Double(f64),
    /// Text.
    Text(String),
}

impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{:?}", cut(text, MOST_NAME)),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Int(n) => write!(f, "{n}"),
            Self::Uint(n) => write!(f, "{n}"),
            Self::Double(x) => write!(f, "{x}"),
        }
    }
}

/// Parameters of requests that are looked at; others may be anything.
pub const LOOKED_AT: [&str; 13] = [
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "sla_class",
    "sla_ms",
    "max_steps",
    "max_tokens",
    explained::ASKS,
    "temperature",
    "top_k",
    "seed",
];

/// Parameters by name, each name once.
///
/// A request has a few, which a list finds faster than a table does; all together they are bounded
/// where requests are read. Requests that say the same share them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(Option<Arc<Vec<(String, Param)>>>);

impl FromIterator<(String, Param)> for Params {
    /// Of several by one name the last is taken, in the place of the first.
    fn from_iter<I: IntoIterator<Item = (String, Param)>>(all: I) -> Self {
        let all: Vec<_> = all.into_iter().collect();
        let is_new = |at: usize| all[..at].iter().all(|(key, _)| *key != all[at].0);
        if all.is_empty() {
            return Self(None);
        }
        if all.len() <= FEW && (1..all.len()).all(is_new) {
            return Self(Some(Arc::new(all)));
        }
        if all.len() <= FEW {
            let mut few = Self(None);
            all.into_iter().for_each(|(key, value)| few.set(key, value));
            return few;
        }
        let all: IndexMap<_, _> = all.into_iter().collect();
        Self(Some(Arc::new(all.into_iter().collect())))
    }
}

/// Parameters of which each is looked for among all before it.
const FEW: usize = 16;

impl Params {
    fn all(&self) -> &[(String, Param)] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The parameter of that name.
    pub fn get(&self, key: &str) -> Option<&Param> {
        let found = self.all().iter().find(|(own, _)| own == key);
        found.map(|(_, value)| value)
    }

    /// Sets one, in the place of another of that name if there is one.
    pub fn set(&mut self, key: String, value: Param) {
        let all = Arc::make_mut(self.0.get_or_insert_default());
        match all.iter_mut().find(|(own, _)| *own == key) {
            Some((_, old)) => *old = value,
            None => all.push((key, value)),
        }
    }

    /// Keeps those alone that `is_kept`.
    pub fn retain(&mut self, is_kept: impl Fn(&str, &Param) -> bool) {
        if let Some(all) = &mut self.0 {
            Arc::make_mut(all).retain(|(key, value)| is_kept(key, value));
        }
    }

    /// Its parameters, and those of `other` behind and instead of them.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        self.all().iter().chain(other.all()).cloned().collect()
    }

    fn wrong<T>(key: &str, expected: &str, got: &Param) -> Result<T> {
        Err(Error::expected(format!("parameter '{key}'"), expected, got))
    }

    /// A flag; false if it is not there.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn flag(&self, key: &str) -> Result<bool> {
        match self.get(key) {
            None => Ok(false),
            Some(Param::Bool(b)) => Ok(*b),
            Some(Param::Text(t)) if t == "true" || t == "false" => Ok(t == "true"),
            Some(other) => Self::wrong(key, "true or false", other),
        }
    }

    /// A whole number of 0 or more.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn number(&self, key: &str) -> Result<Option<u64>> {
        let expected = "a whole number of 0 or more";
        match self.get(key) {
            None => Ok(None),
            Some(Param::Uint(n)) => Ok(Some(*n)),
            Some(got @ Param::Int(n)) => match u64::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Self::wrong(key, expected, got),
            },
            Some(got @ Param::Text(t)) => match t.parse() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Self::wrong(key, expected, got),
            },
            Some(other) => Self::wrong(key, expected, other),
        }
    }

    /// A number above 0.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        let Some(param) = self.get(key) else {
            return Ok(None);
        };
        let value = self.float(key).unwrap_or(f64::NAN);
        if value > 0.0 && value <= 1e9 {
            return Ok(Some(value));
        }
        Self::wrong(key, "a number above 0, at most 1e9", param)
    }

    /// A number, if it is there; none at all for what is no number.
    fn float(&self, key: &str) -> Option<f64> {
        Some(match self.get(key)? {
            Param::Double(x) => *x,
            Param::Int(n) => *n as f64,
            Param::Uint(n) => *n as f64,
            Param::Text(t) => t.parse().unwrap_or(f64::NAN),
            Param::Bool(_) => f64::NAN,
        })
    }

    /// A text.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Param::Text(t)) => Ok(Some(t)),
            Some(other) => Self::wrong(key, "a string", other),
        }
    }
}

/// An input of a request.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// Its dimensions, the axis of samples included.
    pub shape: Vec<usize>,
    /// Its elements, little-endian.
    pub data: Bytes,
}

/// Puts the engine's tensors of inputs on `tab`, before they are made.
///
/// # Errors
/// A tensor that is too large, or no memory for them.
pub fn hold(tab: &Tab, inputs: &[Input]) -> Result<()> {
    for input in inputs {
        tab.check_tensor(format_args!("input '{}'", input.name), input.data.len())?;
        tab.add(engine_bytes(input))?;
    }
    Ok(())
}

/// Bytes of the engine's tensors of an input: elements of 32 bits. A text becomes one of them a byte at
/// most.
fn engine_bytes(input: &Input) -> usize {
    let num = input.data.len() / input.data_type.size().unwrap_or(1);
    num.saturating_mul(4)
}

/// What a request wants of an output.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// As bytes behind the JSON text; as the request says if `None`.
    pub binary: Option<bool>,
    /// Instead of the elements, the so many largest with their places.
    pub classes: usize,
    /// Where to put the bytes instead of the answer.
    pub region: Option<Region>,
}

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The client's name for it.
    pub id: String,
    /// What it says beside its tensors.
    pub params: Params,
    /// Its inputs.
    pub inputs: Vec<Input>,
    /// The outputs that it wants; all if there are none.
    pub wanted: Vec<Wanted>,
    /// The trace that its call belongs to, for log lines.
    pub trace: Option<TraceId>,
    /// Whether it is to be told which launches carried it.
    pub count: bool,
    /// It is that of a step of a chain, which names its own request in errors.
    pub is_step: bool,
    /// What was made of those that said the same to the same version, or will be of this one; none once
    /// a request was changed.
    pub recipe: Option<Arc<OnceLock<Recipe>>>,
}

/// An output of an answer.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// Its dimensions, the axis of samples included.
    pub shape: Vec<usize>,
    /// Its elements, little-endian: those of the engine's tensor where that has them so.
    pub data: lazybatch_graph::Bytes,
    /// What was asked about it.
    pub wanted: Wanted,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request's own name.
    pub id: String,
    /// Its outputs.
    pub outputs: Vec<Output>,
    /// Why it took its time, if the request asks for that.
    pub explanation: Option<String>,
    /// Its way through the engine; none of an answer from the cache, or of a part of one.
    pub passage: Option<Passage>,
}

/// How the engine came to an answer, by its clock.
#[derive(Clone, Debug)]
pub struct Passage {
    /// When the request arrived.
    pub arrival: Time,
    /// When the first launch of it began.
    pub first_launch: Time,
    /// When the last one ended.
    pub finish: Time,
    /// Met, or violated where a part of it was.
    pub outcome: Outcome,
    /// Samples of the request.
    pub samples: usize,
    /// Requests of the engine that it became.
    pub requests: usize,
    /// The launches that carried those, one request behind the other, where that was asked for.
    pub launches: Option<Launches>,
    /// What it took; of a chain, its steps together.
    pub stages: Stages,
}

/// What a request took in each stage, as the protocol counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From arrival to the first launch.
    pub queue: Nanos,
    /// Reading of inputs.
    pub input: Nanos,
    /// From the first launch to the end of the last one.
    pub infer: Nanos,
    /// Writing of outputs.
    pub output: Nanos,
}

impl Stages {
    /// One of `num` equal shares.
    pub fn share(&self, num: u64) -> Self {
        let part = |whole: Nanos| Nanos(whole.0 / num.max(1));
        Self {
            queue: part(self.queue),
            input: part(self.input),
            infer: part(self.infer),
            output: part(self.output),
        }
    }

    /// All of them together.
    pub fn sum(&self) -> Nanos {
        let all = [self.queue, self.input, self.infer, self.output];
        Nanos(all.iter().fold(0, |sum, stage| sum.saturating_add(stage.0)))
    }
}
