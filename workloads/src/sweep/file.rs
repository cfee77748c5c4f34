//! The results of a sweep, `lazybatch-sweep/1`; docs/sweeps.md lists its keys.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::aggregate::{self, Ratio, Reproduction};
use super::grid::Grid;
use super::judge::{self, Judgement};
use super::points::{self, Point};
use super::run::Ran;
use super::score::Run;
use crate::error::{Error, Result};

/// The value of `format`.
pub const FORMAT: &str = "lazybatch-sweep/1";
/// How many of the worst points are kept.
const NUM_WORST: usize = 30;

/// A finished sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Always [`FORMAT`].
    pub format: String,
    /// The grid.
    pub grid: Grid,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// Ratios between policies over the points.
    pub aggregates: Vec<Ratio>,
    /// The abstract's headlines, policy by policy.
    pub reproduction: Vec<Reproduction>,
    /// Judgements on the chosen policy.
    pub judgement: Option<Judgement>,
    /// The cells, policies side by side.
    pub points: Vec<Point>,
    /// Every simulation at every target.
    pub runs: Vec<Run>,
}

impl Sweep {
    /// Sums up what was run. `judged` is the policy to judge, [`judge::default_policy`] if absent.
    ///
    /// # Errors
    /// [`Error::Parameter`] if that policy did not run.
    pub fn new(grid: &Grid, ran: Ran, judged: Option<&str>) -> Result<Self> {
        let points = points::points(&ran.runs);
        let has_loop = |label: &str| ran.with_loops.contains(label);
        let chosen = judged
            .map(str::to_owned)
            .or_else(|| judge::default_policy(&points));
        let judgement = chosen.and_then(|p| Judgement::new(&points, &p, NUM_WORST, &has_loop));
        if let (Some(judged), None) = (judged, &judgement) {
            let expected = format!("one of {}", aggregate::policies(&points).join(", "));
            return Err(Error::parameter(
                "policy to judge",
                expected,
                format!("`{judged}`"),
            ));
        }
        Ok(Self {
            format: FORMAT.into(),
            grid: grid.clone(),
            skipped: ran.skipped,
            aggregates: aggregate::ratios(&points),
            reproduction: aggregate::reproduction(&points, &has_loop),
            judgement,
            points,
            runs: ran.runs,
        })
    }

    /// The file's text: JSON, one line per point, run and ratio.
    pub fn to_json(&self) -> String {
        fn one<T: Serialize>(value: &T) -> String {
            // Only a map with keys that are no strings or a failing `Serialize` could go wrong.
            serde_json::to_string(value).expect("plain fields serialise")
        }
        fn lines<T: Serialize>(list: &[T]) -> String {
            let lines: Vec<String> = list.iter().map(|v| format!("    {}", one(v))).collect();
            match lines.is_empty() {
                true => "[]".into(),
                false => format!("[\n{}\n  ]", lines.join(",\n")),
            }
        }
        let parts = [
            ("format", one(&self.format)),
            ("grid", one(&self.grid)),
            ("skipped", lines(&self.skipped)),
            ("aggregates", lines(&self.aggregates)),
            ("reproduction", lines(&self.reproduction)),
            ("judgement", one(&self.judgement)),
            ("points", lines(&self.points)),
            ("runs", lines(&self.runs)),
        ];
        let parts: Vec<String> = parts
            .iter()
            .map(|(k, v)| format!("  \"{k}\": {v}"))
            .collect();
        format!("{{\n{}\n}}\n", parts.join(",\n"))
    }

    /// Parses the text of a results file, called `file` in messages.
    ///
    /// # Errors
    /// [`Error::File`] when it is not one.
    pub fn from_json(file: &str, text: &str) -> Result<Self> {
        let fault = |got: String| Error::File {
            file: file.to_owned(),
            expected: format!("results in the format {FORMAT}"),
            got,
        };
        let sweep: Self = serde_json::from_str(text).map_err(|e| fault(e.to_string()))?;
        if sweep.format != FORMAT {
            return Err(fault(format!("format `{}`", sweep.format)));
        }
        Ok(sweep)
    }

    /// Reads a results file.
    ///
    /// # Errors
    /// [`Error::Io`], or as [`Sweep::from_json`].
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        Self::from_json(&path.display().to_string(), &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::run::{Options, run};

    #[test]
    fn results_are_written_and_read_back() {
        let (grid, _folder) = fixture::grid("'chain', 'loop'", "lengths = 'fixed:2:3'\n");
        let ran = || run(&grid, Options::default(), &|_| {}).unwrap();
        let sweep = Sweep::new(&grid, ran(), Some("greedy")).unwrap();
        assert_eq!(sweep.points.len(), 8);
        assert_eq!(sweep.judgement.as_ref().unwrap().policy, "greedy");
        let text = sweep.to_json();
        let again = Sweep::from_json("s.json", &text).unwrap();
        assert_eq!(again.to_json(), text);
        assert_eq!(again.runs, sweep.runs);
        let message = Sweep::new(&grid, ran(), Some("edf"))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("expected one of serial, greedy"),
            "{message}"
        );
        let message = Sweep::from_json("s.json", "{}").unwrap_err().to_string();
        assert!(message.contains("lazybatch-sweep/1"), "{message}");
    }

    #[test]
    fn models_of_a_profile_have_loops_as_it_says() {
        let extra = "lengths = 'fixed:2:3'\n";
        let (grid, _folder) = fixture::grid("'chain', 'loop', 'chain:1+loop:2'", extra);
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        assert_eq!(
            ran.with_loops,
            ["chain:1+loop:2", "loop"].map(String::from).into()
        );
    }
}
