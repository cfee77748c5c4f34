//! The journal of a sweep in progress: one line per finished simulation, so that an interrupted
//! sweep can go on where it stopped.
//!
//! The first line holds the grid and the version and build of the program; a journal of another grid
//! is refused, rows of another build are left out. A last line that was cut off is dropped. Nothing is
//! written before [`Journal::start`].

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cases::Case;
use super::grid::{Grid, Setting};
use super::score::Run;
use crate::error::{Error, Result};
use crate::traces::source::excerpt;

/// The value of `format` in the first line.
pub const FORMAT: &str = "lazybatch-sweep-partial/1";

/// The program's version, with a hash of the file that runs: a change of what it computes need not
/// change the version.
fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        let build = std::env::current_exe().and_then(|path| hash_of(&path));
        build.map_or(version.into(), |hash| format!("{version}+{hash:016x}"))
    })
}

/// A hash of a file's bytes.
fn hash_of(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut hasher = FxHasher::default();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hasher.finish()),
            n => hasher.write(&bytes[..n]),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    /// Of the program; older journals state none, and their rows count as those of another.
    #[serde(default)]
    version: Option<String>,
    grid: Grid,
}

impl Header {
    fn new(grid: &Grid) -> Self {
        Self {
            format: FORMAT.into(),
            version: Some(version().into()),
            grid: grid.clone(),
        }
    }

    /// Reads the first line of the journal `file`.
    fn parse(file: &Path, line: &str) -> Result<Self> {
        let header: Result<Self, _> = serde_json::from_str(line);
        let known = header.map_err(|e| e.to_string()).and_then(|header| {
            let format = header.format.clone();
            (format == FORMAT).then_some(header).ok_or(format)
        });
        known.map_err(|got| fault(file, 1, &format!("the journal of a sweep, {FORMAT}"), got))
    }
}

/// Which simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    setting: Setting,
    model: String,
    rate_rps: f64,
    pub(super) seed: u64,
    /// [`Lab::fingerprint`](super::cases::Lab::fingerprint); older journals have none, and are of no
    /// use.
    #[serde(default)]
    over: u64,
    pub(super) policy: String,
    pub(super) slas_ms: Vec<f64>,
}

impl Key {
    /// The simulation of a policy over a seed of a case, scored at these targets. `over` stands for
    /// what files say: rows of a journal from before one of them changed are of another simulation.
    pub fn new(case: &Case, seed: u64, over: u64, policy: &str, slas_ms: &[f64]) -> Self {
        Self {
            setting: case.setting.clone(),
            model: case.model.label.clone(),
            rate_rps: case.rate_rps,
            seed,
            over,
            policy: policy.into(),
            slas_ms: slas_ms.to_vec(),
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("plain fields serialise")
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: Key,
    runs: Vec<Run>,
}

/// A journal: what it holds, and where more goes.
pub struct Journal {
    path: PathBuf,
    header: String,
    /// Bytes of the file that stay; without them it is written anew.
    kept: Option<u64>,
    file: Option<File>,
    done: BTreeMap<String, Vec<Run>>,
    num_outdated: usize,
}

impl Journal {
    /// A new journal of a grid.
    ///
    /// # Errors
    /// A file in its place that is no journal, or holds simulations.
    pub fn create(path: &Path, grid: &Grid) -> Result<Self> {
        if let Some(found) = Found::read(path)? {
            let mut lines = found.text.lines();
            if let Some(first) = lines.next() {
                Header::parse(path, first)?;
            }
            let num = lines.count();
            if num > 0 {
                return Err(Error::File {
                    file: path.display().to_string(),
                    expected:
                        "no finished simulations of an interrupted sweep (go on with them by \
                               --resume, or delete the file)"
                            .into(),
                    got: num.to_string(),
                });
            }
        }
        Ok(Self::new(path, grid))
    }

    /// The journal of a grid, to go on with it; a new one if there is none.
    ///
    /// # Errors
    /// A file that is no journal, or one of another grid.
    pub fn resume(path: &Path, grid: &Grid) -> Result<Self> {
        let mut journal = Self::new(path, grid);
        let Some(found) = Found::read(path)? else {
            return Ok(journal);
        };
        let mut lines = found.text.lines().enumerate();
        let Some((_, first)) = lines.next() else {
            return Ok(journal);
        };
        let header = Header::parse(path, first)?;
        if let Some((key, own, other)) = difference(grid, &header.grid) {
            let expected = format!("a journal of this grid, {}, with {key} {own}", grid.name);
            let other = format!("one of grid {} with {key} {other}", header.grid.name);
            let got = format!("{other}: give the same grid and options again, or delete the file");
            return Err(fault(path, 1, &expected, got));
        }
        if header.version.as_deref() != Some(version()) {
            journal.num_outdated = lines.count();
            return Ok(journal);
        }
        for (i, line) in lines {
            let line: Line = serde_json::from_str(line)
                .map_err(|e| fault(path, i + 1, "a finished simulation", e.to_string()))?;
            journal.done.insert(line.key.text(), line.runs);
        }
        journal.kept = Some(found.num_bytes);
        Ok(journal)
    }

    fn new(path: &Path, grid: &Grid) -> Self {
        let header = serde_json::to_string(&Header::new(grid));
        Self {
            path: path.into(),
            header: header.expect("plain fields serialise"),
            kept: None,
            file: None,
            done: BTreeMap::new(),
            num_outdated: 0,
        }
    }

    /// Opens the file: without a line that was cut off, or new, with its first line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn start(&mut self) -> Result<()> {
        let fail = |e| Error::save(&self.path, e);
        let Some(kept) = self.kept else {
            self.file = Some(File::create(&self.path).map_err(fail)?);
            return self.write_line(&self.header.clone());
        };
        let file = OpenOptions::new().append(true).open(&self.path);
        let file = file.map_err(fail)?;
        file.set_len(kept).map_err(fail)?;
        self.file = Some(file);
        Ok(())
    }

    /// How many simulations it holds that another build of the program ran; they are not used.
    pub fn num_outdated(&self) -> usize {
        self.num_outdated
    }

    /// How many simulations it holds.
    pub fn num_done(&self) -> usize {
        self.done.len()
    }

    /// The rows of a simulation that it holds.
    pub fn take(&mut self, key: &Key) -> Option<Vec<Run>> {
        self.done.remove(&key.text())
    }

    /// Adds a simulation.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn append(&mut self, key: &Key, runs: &[Run]) -> Result<()> {
        let line = Line {
            key: key.clone(),
            runs: runs.to_vec(),
        };
        self.write_line(&serde_json::to_string(&line).expect("plain fields serialise"))
    }

    fn write_line(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        let file = self.file.as_mut().expect("rows come after the start");
        let done = file.write_all(line.as_bytes());
        done.map_err(|e| Error::save(&self.path, e))
    }
}

/// The whole lines of a file.
struct Found {
    num_bytes: u64,
    text: String,
}

impl Found {
    fn read(path: &Path) -> Result<Option<Self>> {
        let mut bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(path, e)),
        };
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        bytes.truncate(whole);
        Ok(Some(Self {
            num_bytes: whole as u64,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }))
    }
}

fn fault(file: &Path, line: usize, expected: &str, got: String) -> Error {
    Error::Line {
        file: file.display().to_string(),
        line: line as u64,
        expected: expected.into(),
        got,
    }
}

/// The first entry in which two grids differ, with what it is in each; what a grid is called comes
/// last.
fn difference(a: &Grid, b: &Grid) -> Option<(String, String, String)> {
    let entries = |grid: &Grid| match serde_json::to_value(grid) {
        Ok(Value::Object(entries)) => entries,
        _ => unreachable!("a grid is an object"),
    };
    let (a, b) = (entries(a), entries(b));
    let is_name = |key: &&String| ["name", "about"].contains(&key.as_str());
    let (names, rest): (Vec<&String>, Vec<&String>) = a.keys().partition(is_name);
    let mut keys = rest.into_iter().chain(names);
    keys.find_map(|key| difference_at(key.clone(), &a[key], b.get(key).unwrap_or(&Value::Null)))
}

fn difference_at(place: String, a: &Value, b: &Value) -> Option<(String, String, String)> {
    let shown = |value: &Value| match value {
        Value::Null => excerpt(""),
        other => excerpt(&other.to_string()),
    };
    match (a, b) {
        (a, b) if a == b => None,
        (Value::Array(a), Value::Array(b)) => (0..a.len().max(b.len())).find_map(|i| {
            let entry = |list: &[Value]| list.get(i).cloned().unwrap_or_default();
            difference_at(format!("{place}[{i}]"), &entry(a), &entry(b))
        }),
        (a, b) => Some((place, shown(a), shown(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::run::{Options, run};

    fn options(journal: Journal) -> Options {
        Options {
            threads: Some(2),
            journal: Some(journal),
            ..Options::default()
        }
    }

    #[test]
    fn a_cut_off_journal_is_gone_on_with() {
        let (grid, folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let path = folder.path().join("j");
        let whole = run(
            &grid,
            options(Journal::create(&path, &grid).unwrap()),
            &|_| {},
        )
        .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let num_lines = text.lines().count() as u64;
        assert_eq!(num_lines, 1 + whole.num_simulated);
        // Everything there; half of it, in the middle of a line; only the header.
        let header = text.find('\n').unwrap() + 1;
        for (length, some_left) in [(text.len(), false), (text.len() / 2, true), (header, true)] {
            std::fs::write(&path, &text[..length]).unwrap();
            let journal = Journal::resume(&path, &grid).unwrap();
            let num_kept = journal.num_done() as u64;
            let again = run(&grid, options(journal), &|_| {}).unwrap();
            assert_eq!(again.runs, whole.runs);
            assert_eq!(again.num_simulated, whole.num_simulated - num_kept);
            assert_eq!(again.num_taken, num_kept);
            assert_eq!(again.num_simulated > 0, some_left);
        }
    }

    #[test]
    fn rows_from_before_a_profile_changed_are_run_again() {
        let (grid, folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let path = folder.path().join("j");
        let journal = Journal::create(&path, &grid).unwrap();
        let first = run(&grid, options(journal), &|_| {}).unwrap();
        let profile = folder.path().join("p.json");
        let text = std::fs::read_to_string(&profile).unwrap();
        std::fs::write(&profile, text.replace("[[1, 40.0]]", "[[1, 44.0]]")).unwrap();
        let again = || {
            let journal = Journal::resume(&path, &grid).unwrap();
            run(&grid, options(journal), &|_| {}).unwrap()
        };
        let changed = again();
        assert_eq!(changed.num_simulated, first.num_simulated);
        assert_eq!(
            changed.num_taken, 0,
            "rows of the file that are of no use are not counted"
        );
        assert_ne!(changed.runs, first.runs);
        assert_eq!(again().num_simulated, 0);
    }

    #[test]
    fn journals_of_other_grids_and_other_files_are_refused() {
        let (grid, folder) = fixture::grid("'loop'", "");
        let path = folder.path().join("j");
        Journal::create(&path, &grid).unwrap().start().unwrap();
        let mut other = grid.clone();
        other.requests += 1;
        let message = |grid: &Grid| Journal::resume(&path, grid).err().unwrap().to_string();
        let differs = "expected a journal of this grid, tiny, with requests `41`, got one of grid tiny \
                       with requests `40`";
        assert!(message(&other).contains(differs), "{}", message(&other));
        other.requests -= 1;
        other.seeds.push(9);
        other.name = "other".into();
        let differs = "other, with seeds[3] `9`, got one of grid tiny with seeds[3] nothing";
        assert!(message(&other).contains(differs), "{}", message(&other));
        other.seeds.pop();
        let differs = "with name `\"other\"`, got one of grid tiny with name `\"tiny\"`";
        assert!(message(&other).contains(differs), "{}", message(&other));
        for text in [
            "hello\n",
            "{\"format\": \"lazybatch-sweep-partial/2\", \"grid\": {}}\n",
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(message(&grid).contains("expected the journal of a sweep"));
            let message = Journal::create(&path, &grid).err().unwrap().to_string();
            assert!(message.contains("expected the journal of a sweep"));
        }
    }

    #[test]
    fn a_new_journal_takes_the_place_of_no_rows() {
        let (grid, folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let path = folder.path().join("j");
        let journal = Journal::create(&path, &grid).unwrap();
        assert!(!path.exists(), "nothing is written before the start");
        run(&grid, options(journal), &|_| {}).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows = text.lines().count() - 1;
        let message = Journal::create(&path, &grid).err().unwrap().to_string();
        assert!(
            message.contains("--resume, or delete the file"),
            "{message}"
        );
        assert!(message.ends_with(&format!("got {rows}")), "{message}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        // A header, or a part of one, is no work.
        let header = text.find('\n').unwrap() + 1;
        for length in [header, header - 5] {
            std::fs::write(&path, &text[..length]).unwrap();
            let mut journal = Journal::create(&path, &grid).unwrap();
            journal.start().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text[..header]);
        }
    }

    #[test]
    fn a_journal_that_is_refused_stays_as_it_is() {
        let (grid, folder) = fixture::grid("'loop'", "");
        let path = folder.path().join("j");
        Journal::create(&path, &grid).unwrap().start().unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"key\": cut");
        std::fs::write(&path, &text).unwrap();
        let mut other = grid.clone();
        other.requests += 1;
        assert!(Journal::resume(&path, &other).is_err());
        let mut journal = Journal::resume(&path, &grid).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        journal.start().unwrap();
        let header = text.find('\n').unwrap() + 1;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text[..header]);
    }

    #[test]
    fn rows_of_another_version_are_run_again() {
        let (grid, folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let path = folder.path().join("j");
        let journal = Journal::create(&path, &grid).unwrap();
        let first = run(&grid, options(journal), &|_| {}).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let own = format!("\"version\":\"{}\",", version());
        assert_eq!(text.matches(&own).count(), 1);
        // That of another version, of another build of this one, and of none.
        let build = version().find('+').expect("tests can read their own file");
        let build = own.replace(&version()[build..], "+0123456789abcdef");
        for other in ["\"version\":\"0.0.0\",", &build, ""] {
            std::fs::write(&path, text.replace(&own, other)).unwrap();
            let journal = Journal::resume(&path, &grid).unwrap();
            assert_eq!(journal.num_done(), 0);
            assert_eq!(journal.num_outdated() as u64, first.num_simulated);
            let again = run(&grid, options(journal), &|_| {}).unwrap();
            assert_eq!(
                (again.num_simulated, again.num_taken),
                (first.num_simulated, 0)
            );
            assert_eq!(again.runs, first.runs);
            let journal = Journal::resume(&path, &grid).unwrap();
            assert_eq!(journal.num_done() as u64, first.num_simulated);
        }
    }
}
