//! Typed reading of a manifest's keys. Each error names file, key, what was expected and what came;
//! keys that nobody asked for are refused.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::error::Error;

/// Largest size of anything: sizes beyond it are mistakes.
const MAX_SIZE: usize = 1 << 24;

/// A table of a manifest.
pub(super) struct Section<'a> {
    file: &'a str,
    path: String,
    table: Option<&'a Table>,
    asked: RefCell<BTreeSet<String>>,
}

/// `line N` where a TOML error says where it is.
pub(super) fn line_of(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.as_bytes()[..at].iter();
    format!("line {}", 1 + before.filter(|&&b| b == b'\n').count())
}

/// A value as a message shows it.
fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::Table(_)) => "a table".to_owned(),
        Some(Value::Array(items)) => {
            let items: Vec<String> = items.iter().map(|item| shown(Some(item))).collect();
            format!("[{}]", items.join(", "))
        }
        Some(Value::String(text)) => format!("{text:?}"),
        Some(Value::Integer(n)) => n.to_string(),
        Some(Value::Float(x)) => x.to_string(),
        Some(Value::Boolean(flag)) => flag.to_string(),
        Some(Value::Datetime(time)) => time.to_string(),
    }
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(file: &'a str, table: &'a Table) -> Self {
        Self::new(file, String::new(), Some(table))
    }

    fn new(file: &'a str, path: String, table: Option<&'a Table>) -> Self {
        Self {
            file,
            path,
            table,
            asked: RefCell::default(),
        }
    }

    /// The table `key`, empty if it is not there.
    pub(super) fn section(&self, key: &str) -> Result<Section<'a>, Error> {
        let path = self.path_of(key);
        match self.get(key) {
            None => Ok(Section::new(self.file, path, None)),
            Some(Value::Table(table)) => Ok(Section::new(self.file, path, Some(table))),
            other => self.fail(key, "a table", shown(other)),
        }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.table.and_then(|table| table.get(key))
    }

    fn path_of(&self, key: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{key}", self.path)
    }

    /// An error about `key`.
    pub(super) fn fail<T>(
        &self,
        key: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Result<T, Error> {
        Err(Error::Manifest {
            file: self.file.to_owned(),
            key: self.path_of(key),
            expected: expected.into(),
            got: got.into(),
        })
    }

    /// Refuses keys that nobody asked for.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let asked = self.asked.borrow();
        let unknown: Vec<&str> = self
            .table
            .into_iter()
            .flat_map(|table| table.keys())
            .map(String::as_str)
            .filter(|key| !asked.contains(*key))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let known: Vec<&str> = asked.iter().map(String::as_str).collect();
        let expected = match known[..] {
            [] => "no keys here".to_owned(),
            _ => format!("keys among {}", known.join(", ")),
        };
        self.fail(unknown[0], expected, unknown.join(", "))
    }

    /// Refuses the key if it is there; `expected` says what would be right.
    pub(super) fn absent(&self, key: &str, expected: &str) -> Result<(), Error> {
        match self.get(key) {
            None => Ok(()),
            value => self.fail(key, expected, shown(value)),
        }
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<String, Error> {
        match self.text_if(key)? {
            Some(text) => Ok(text),
            None => self.fail(key, "a text", "nothing"),
        }
    }

    /// A text, if it is there.
    pub(super) fn text_if(&self, key: &str) -> Result<Option<String>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            other => self.fail(key, "a text", shown(other)),
        }
    }

    /// A text or a list of texts, at least one.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, Error> {
        let texts = self.texts_if(key)?;
        if texts.is_empty() {
            return self.fail(key, "a text or a list of texts", "nothing");
        }
        Ok(texts)
    }

    /// A text or a list of texts; none if the key is missing.
    pub(super) fn texts_if(&self, key: &str) -> Result<Vec<String>, Error> {
        let texts = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => Some(vec![text.clone()]),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect(),
            Some(_) => None,
        };
        match texts.filter(|texts| texts.iter().all(|text| !text.is_empty())) {
            Some(texts) => Ok(texts),
            None => self.fail(key, "a text or a list of texts", shown(self.get(key))),
        }
    }

    /// Texts by key, of the table `key`.
    pub(super) fn text_table(&self, key: &str) -> Result<Vec<(String, String)>, Error> {
        let section = self.section(key)?;
        let Some(table) = section.table else {
            return Ok(Vec::new());
        };
        table
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.clone(), text.clone())),
                other => section.fail(key, "a text", shown(Some(other))),
            })
            .collect()
    }

    /// One of the named values.
    pub(super) fn one_of<T: Copy>(&self, key: &str, known: &[(&str, T)]) -> Result<T, Error> {
        let text = self.text_if(key)?;
        let found = known
            .iter()
            .find(|(name, _)| Some(*name) == text.as_deref());
        if let Some((_, value)) = found {
            return Ok(*value);
        }
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let expected = match names[..] {
            [one] => format!("`{one}`"),
            _ => format!("one of {}", names.join(", ")),
        };
        self.fail(
            key,
            expected,
            text.map_or_else(|| "nothing".to_owned(), |text| format!("`{text}`")),
        )
    }

    /// One of the named values, the first if the key is missing.
    pub(super) fn one_of_or_first<T: Copy>(
        &self,
        key: &str,
        known: &[(&str, T)],
    ) -> Result<T, Error> {
        match self.get(key) {
            None => Ok(known[0].1),
            Some(_) => self.one_of(key, known),
        }
    }

    /// A whole number within `range`.
    pub(super) fn number(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, Error> {
        match self.number_if(key, range.clone())? {
            Some(n) => Ok(n),
            None => self.fail(key, whole(&range), "nothing"),
        }
    }

    /// A whole number within `range`, if it is there.
    pub(super) fn number_if(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Error> {
        let value = self.get(key);
        let number = match value {
            None => return Ok(None),
            Some(Value::Integer(n)) => usize::try_from(*n).ok().filter(|n| range.contains(n)),
            Some(_) => None,
        };
        match number {
            Some(n) => Ok(Some(n)),
            None => self.fail(key, whole(&range), shown(value)),
        }
    }

    /// A positive size.
    pub(super) fn size(&self, key: &str) -> Result<usize, Error> {
        self.number(key, 1..=MAX_SIZE)
    }

    /// A positive size, if it is there.
    pub(super) fn size_if(&self, key: &str) -> Result<Option<usize>, Error> {
        self.number_if(key, 1..=MAX_SIZE)
    }

    /// A number of layers.
    pub(super) fn layers(&self, key: &str) -> Result<usize, Error> {
        self.number(key, 1..=1000)
    }

    /// Refuses another number than `wanted`, or a list of others; the key may be missing.
    pub(super) fn only(&self, key: &str, wanted: i64) -> Result<(), Error> {
        let value = self.get(key);
        let same = match value {
            None => true,
            Some(Value::Array(items)) => items[..] == [Value::Integer(wanted)],
            Some(value) => *value == Value::Integer(wanted),
        };
        match same {
            true => Ok(()),
            false => self.fail(key, format!("{wanted} alone"), shown(value)),
        }
    }

    /// A token id below `vocab`.
    pub(super) fn token(&self, key: &str, vocab: usize) -> Result<i32, Error> {
        Ok(self.number(key, 0..=vocab - 1)? as i32)
    }

    /// Token ids below `vocab`; none if the key is missing.
    pub(super) fn tokens(&self, key: &str, vocab: usize) -> Result<Vec<usize>, Error> {
        let value = self.get(key);
        let ids = match value {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_integer().and_then(|n| usize::try_from(n).ok()))
                .map(|id| id.filter(|&id| id < vocab))
                .collect::<Option<Vec<_>>>(),
            Some(_) => None,
        };
        match ids {
            Some(ids) => Ok(ids),
            None => self.fail(key, format!("a list of ids below {vocab}"), shown(value)),
        }
    }

    /// A positive number, `default` if it is missing.
    pub(super) fn positive_or(&self, key: &str, default: f32) -> Result<f32, Error> {
        let value = self.get(key);
        let number = match value {
            None => return Ok(default),
            Some(Value::Float(x)) => Some(*x as f32),
            Some(Value::Integer(n)) => Some(*n as f32),
            Some(_) => None,
        };
        match number.filter(|x| x.is_finite() && *x > 0.0) {
            Some(x) => Ok(x),
            None => self.fail(key, "a positive number", shown(value)),
        }
    }

    /// `true` or `false`, `default` if it is missing.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Boolean(flag)) => Ok(*flag),
            other => self.fail(key, "true or false", shown(other)),
        }
    }

    /// Refuses what is no plain file name: manifests speak of their own folder.
    pub(super) fn check_file_name(&self, key: &str, name: &str) -> Result<(), Error> {
        let plain = !name.contains(['/', '\\']) && name != "." && name != "..";
        if plain {
            return Ok(());
        }
        let expected = "the name of a file beside the manifest";
        self.fail(key, expected, format!("`{name}`"))
    }
}

fn whole(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}
