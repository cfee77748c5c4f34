//! Trace settings: what is stated for all models or for one, and what comes of both.
//!
//! Source: the trace extension of Triton's protocol.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::explained::cut;

/// Most bytes of the name of a file.
const MOST_NAME: usize = 100;
/// The modes that there are.
const MODE: &str = "triton";

/// Settings as gRPC has them: each a list of values, an empty one for what is no longer stated.
pub type Texts = BTreeMap<String, Vec<String>>;

/// What is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// When requests passed what.
    pub timestamps: bool,
    /// What went in and came out.
    pub tensors: bool,
}

/// Settings that hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// What is traced.
    pub level: Level,
    /// One of so many requests is traced.
    pub rate: u32,
    /// So many traces are still made; `None` is without end.
    pub count: Option<u32>,
    /// So many traces go to a file of their own; 0 is all to one.
    pub log_frequency: u32,
    /// Name of the file.
    pub file: String,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            level: Level::default(),
            rate: 1000,
            count: None,
            log_frequency: 0,
            file: "trace.json".into(),
        }
    }
}

impl Values {
    /// Whether anything is traced.
    pub fn is_on(&self) -> bool {
        self.level != Level::default()
    }

    /// As the protocol tells them.
    pub fn texts(&self) -> Texts {
        let Level {
            timestamps,
            tensors,
        } = self.level;
        let level = match (timestamps, tensors) {
            (false, false) => vec!["OFF"],
            (true, false) => vec!["TIMESTAMPS"],
            (false, true) => vec!["TENSORS"],
            (true, true) => vec!["TIMESTAMPS", "TENSORS"],
        };
        let count = self.count.map_or(-1, i64::from);
        let one = |text: String| vec![text];
        let all = [
            (
                "trace_level",
                level.into_iter().map(str::to_owned).collect(),
            ),
            ("trace_rate", one(self.rate.to_string())),
            ("trace_count", one(count.to_string())),
            ("log_frequency", one(self.log_frequency.to_string())),
            ("trace_file", one(self.file.clone())),
            ("trace_mode", one(MODE.into())),
        ];
        all.map(|(key, values)| (key.to_owned(), values)).into()
    }
}

/// Settings that were stated; the others are those of all models, or as at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    level: Option<Level>,
    rate: Option<u32>,
    count: Option<Option<u32>>,
    log_frequency: Option<u32>,
    file: Option<String>,
}

impl Stated {
    /// What holds where `others` do for what is not stated.
    pub fn over(&self, others: &Values) -> Values {
        Values {
            level: self.level.unwrap_or(others.level),
            rate: self.rate.unwrap_or(others.rate),
            count: self.count.unwrap_or(others.count),
            log_frequency: self.log_frequency.unwrap_or(others.log_frequency),
            file: self.file.clone().unwrap_or_else(|| others.file.clone()),
        }
    }

    /// The number of traces that are still to be made, where it is stated.
    pub fn set_left(&mut self, left: Option<u32>) {
        if self.count.is_some() {
            self.count = Some(left);
        }
    }

    /// These with `changes`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for unknown settings and values, [`Error::Unsupported`] for another mode.
    pub fn with(&self, changes: &Texts) -> Result<Self> {
        let mut new = self.clone();
        for (key, values) in changes {
            let is_stated = !values.is_empty();
            let stated = || one(key, values);
            match key.as_str() {
                "trace_level" => new.level = is_stated.then(|| level(values)).transpose()?,
                "trace_rate" => {
                    new.rate = is_stated.then(|| number(key, stated()?, 1)).transpose()?
                }
                "trace_count" => new.count = is_stated.then(|| count(stated()?)).transpose()?,
                "log_frequency" => {
                    new.log_frequency = is_stated.then(|| number(key, stated()?, 0)).transpose()?;
                }
                "trace_file" => new.file = is_stated.then(|| file(stated()?)).transpose()?,
                "trace_mode" if is_stated && stated()? != MODE => {
                    let message = format!("trace setting '{key}' is '{MODE}' in this server");
                    return Err(Error::Unsupported(message));
                }
                "trace_mode" => {}
                _ => {
                    let key = cut(key, MOST_NAME);
                    return Err(Error::Invalid(format!("Unknown trace setting '{key}'")));
                }
            }
        }
        Ok(new)
    }
}

fn wrong<T>(key: &str, expected: impl std::fmt::Display, got: &str) -> Result<T> {
    let got = cut(got, MOST_NAME);
    Err(Error::expected(
        format!("trace setting '{key}'"),
        expected,
        format!("'{got}'"),
    ))
}

fn one<'a>(key: &str, values: &'a [String]) -> Result<&'a str> {
    match values {
        [one] => Ok(one),
        several => wrong(key, "one value", &several.join(", ")),
    }
}

fn number(key: &str, text: &str, least: u32) -> Result<u32> {
    match text.parse() {
        Ok(number) if number >= least => Ok(number),
        _ => wrong(key, format_args!("a whole number of {least} or more"), text),
    }
}

fn count(text: &str) -> Result<Option<u32>> {
    match text.parse::<i64>().map(|n| (n, u32::try_from(n))) {
        Ok((-1, _)) => Ok(None),
        Ok((_, Ok(count))) => Ok(Some(count)),
        _ => wrong("trace_count", "-1 or a whole number of 0 or more", text),
    }
}

fn level(values: &[String]) -> Result<Level> {
    let mut level = Level::default();
    for value in values {
        match value.as_str() {
            "TIMESTAMPS" => level.timestamps = true,
            "TENSORS" => level.tensors = true,
            "OFF" if values.len() == 1 => {}
            other => return wrong("trace_level", "OFF alone, or TIMESTAMPS, TENSORS", other),
        }
    }
    Ok(level)
}

/// A name that stays within the folder of traces, and is none of a numbered file.
fn file(name: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = !name.is_empty() && name.len() <= MOST_NAME && !name.starts_with('.');
    if !is_name || !name.chars().all(fits) {
        let expected = "the name of a file in the folder of traces, of letters, digits and -._";
        return wrong("trace_file", expected, name);
    }
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    if !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit()) {
        let expected = "a name without a dot and a number at its end, as numbered files have";
        return wrong("trace_file", expected, name);
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(settings: &[(&str, &[&str])]) -> Texts {
        let owned = |values: &[&str]| values.iter().map(|&v| v.to_owned()).collect();
        let all = settings.iter();
        all.map(|(key, values)| ((*key).to_owned(), owned(values)))
            .collect()
    }

    #[test]
    fn what_is_stated_holds_before_the_others_and_can_be_taken_back() {
        let global = texts(&[("trace_rate", &["5"]), ("trace_level", &["TIMESTAMPS"])]);
        let global = Stated::default()
            .with(&global)
            .unwrap()
            .over(&Values::default());
        let own = texts(&[
            ("trace_level", &["TENSORS", "TIMESTAMPS"]),
            ("trace_count", &["2"]),
        ]);
        let own = Stated::default().with(&own).unwrap();
        let told = own.over(&global).texts();
        let expected = texts(&[
            ("trace_level", &["TIMESTAMPS", "TENSORS"]),
            ("trace_rate", &["5"]),
            ("trace_count", &["2"]),
            ("log_frequency", &["0"]),
            ("trace_file", &["trace.json"]),
            ("trace_mode", &["triton"]),
        ]);
        assert_eq!(told, expected);
        // What is told can be stated.
        assert_eq!(
            own.with(&told).unwrap().over(&Values::default()).texts(),
            told
        );
        let back = own.with(&texts(&[("trace_level", &[]), ("trace_count", &[])]));
        assert_eq!(back.unwrap(), Stated::default());
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        let told = |key: &str, values: &[&str]| {
            let changed = Stated::default().with(&texts(&[(key, values)]));
            changed.unwrap_err().to_string()
        };
        for (key, values) in [
            ("trace_rate", &["0"][..]),
            ("trace_rate", &["-1"]),
            ("trace_rate", &["1", "2"]),
            ("trace_count", &["-2"]),
            ("trace_count", &["4294967296"]),
            ("log_frequency", &["often"]),
            ("trace_level", &["OFF", "TENSORS"]),
            ("trace_level", &["MAX"]),
            ("trace_file", &[""]),
            ("trace_file", &[".hidden"]),
            ("trace_file", &["../escaped"]),
            ("trace_file", &["/etc/passwd"]),
            ("trace_file", &["a\u{0}b"]),
            ("trace_file", &["trace.json.0"]),
            ("trace_file", &["a..17"]),
        ] {
            let told = told(key, values);
            assert!(told.contains(key) && told.contains("expected"), "{told}");
        }
        let collides = told("trace_file", &["trace.json.0"]);
        assert!(collides.contains("numbered files"), "{collides}");
        for name in ["a1", "a.", "a.1b", "1"] {
            let fits = texts(&[("trace_file", &[name])]);
            assert!(Stated::default().with(&fits).is_ok(), "{name}");
        }
        assert!(told("trace_colour", &["1"]).contains("Unknown"), "unknown");
        let long = "n".repeat(1000);
        assert!(told("trace_file", &[&long]).len() < 300, "quotes little");
        let other = Stated::default().with(&texts(&[("trace_mode", &["opentelemetry"])]));
        assert!(matches!(other, Err(Error::Unsupported(_))));
    }
}
