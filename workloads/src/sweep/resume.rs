//! The journal of a sweep in progress: one line per finished simulation, so that an interrupted
//! sweep can go on where it stopped.
//!
//! The first line holds the grid; a journal of another grid is refused. A last line that was cut
//! off is dropped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cases::Case;
use super::grid::{Grid, Setting};
use super::score::Run;
use crate::error::{Error, Result};

/// The value of `format` in the first line.
pub const FORMAT: &str = "lazybatch-sweep-partial/1";

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    grid: Grid,
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

/// An open journal: what it holds, and where more goes.
pub struct Journal {
    path: PathBuf,
    file: File,
    done: BTreeMap<String, Vec<Run>>,
}

impl Journal {
    /// Starts a journal of a grid, in place of what was there.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(path: &Path, grid: &Grid) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io(path, e))?;
        let mut journal = Self {
            path: path.into(),
            file,
            done: BTreeMap::new(),
        };
        let header = Header {
            format: FORMAT.into(),
            grid: grid.clone(),
        };
        journal.write_line(&serde_json::to_string(&header).expect("plain fields serialise"))?;
        Ok(journal)
    }

    /// Opens the journal of a grid to go on with it; starts one if there is none.
    ///
    /// # Errors
    /// A file that is no journal, or one of another grid.
    pub fn resume(path: &Path, grid: &Grid) -> Result<Self> {
        if !path.exists() {
            return Self::create(path, grid);
        }
        let io = |e| Error::io(path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .map_err(io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let fault = |line: usize, expected: &str, got: String| Error::Line {
            file: path.display().to_string(),
            line: line as u64,
            expected: expected.into(),
            got,
        };
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        file.set_len(whole as u64).map_err(io)?;
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let mut lines = text.lines().enumerate();
        let Some((_, first)) = lines.next() else {
            return Self::create(path, grid);
        };
        let header: Header = serde_json::from_str(first)
            .map_err(|e| fault(1, "the journal of a sweep", e.to_string()))?;
        let mut same = grid.clone();
        same.folder = PathBuf::new();
        if header.format != FORMAT || header.grid != same {
            let got = format!("one of grid {}, which differs", header.grid.name);
            let expected = format!("a journal of this grid, {}", grid.name);
            return Err(fault(1, &expected, got));
        }
        let mut done = BTreeMap::new();
        for (i, line) in lines {
            let line: Line = serde_json::from_str(line)
                .map_err(|e| fault(i + 1, "a finished simulation", e.to_string()))?;
            done.insert(line.key.text(), line.runs);
        }
        Ok(Self {
            path: path.into(),
            file,
            done,
        })
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
        let done = self.file.write_all(line.as_bytes());
        done.map_err(|e| Error::io(&self.path, e))
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
        assert_ne!(changed.runs, first.runs);
        assert_eq!(again().num_simulated, 0);
    }

    #[test]
    fn journals_of_other_grids_and_other_files_are_refused() {
        let (grid, folder) = fixture::grid("'loop'", "");
        let path = folder.path().join("j");
        drop(Journal::create(&path, &grid).unwrap());
        let mut other = grid.clone();
        other.requests += 1;
        let message = |grid: &Grid| Journal::resume(&path, grid).err().unwrap().to_string();
        assert!(message(&other).contains("line 1: expected a journal of this grid, tiny"));
        std::fs::write(&path, "hello\n").unwrap();
        assert!(message(&grid).contains("expected the journal of a sweep"));
    }
}
