//! `lazybatch-generalise/1`: one line about the run, one per case, one with the summary.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::run::CaseResult;
use super::summary::Summary;

/// The value of `format` in every file.
pub const FORMAT: &str = "lazybatch-generalise/1";

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always [`FORMAT`].
    pub format: String,
    /// First seed.
    pub from: u64,
    /// One past the last seed.
    pub to: u64,
    /// Models of each case.
    #[serde(default = "one_model", skip_serializing_if = "is_one")]
    pub models: usize,
    /// Sets of arrivals of each case.
    #[serde(default = "one")]
    pub draws: u32,
    /// The policies.
    pub policies: Vec<String>,
    /// The judged one.
    pub judge: String,
}

/// The file's text.
///
/// # Panics
/// Never: every field has a JSON form.
pub fn text(
    seeds: &Range<u64>,
    models: usize,
    draws: u32,
    policies: &[String],
    results: &[CaseResult],
    summary: &Summary,
) -> String {
    let header = Header {
        format: FORMAT.into(),
        from: seeds.start,
        to: seeds.end,
        models,
        draws,
        policies: policies.to_vec(),
        judge: summary.judge.clone(),
    };
    let mut lines = vec![json(&header)];
    lines.extend(results.iter().map(json));
    lines.push(json(&serde_json::json!({ "summary": summary })));
    lines.join("\n") + "\n"
}

fn one_model() -> usize {
    1
}

fn is_one(models: &usize) -> bool {
    *models == 1
}

fn one() -> u32 {
    1
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has a JSON form")
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::result;
    use super::*;

    #[test]
    fn lines_read_back() {
        let rows = [("greedy", 3.0, 1.0), ("adaptive", 4.0, 1.0)];
        let results = [result(5, "adaptive", &rows), result(6, "adaptive", &rows)];
        let summary = Summary::new("adaptive", &results);
        let policies = ["greedy".to_owned(), "adaptive".to_owned()];
        let text = text(&(5..7), 2, 3, &policies, &results, &summary);
        let lines: Vec<&str> = text.lines().collect();
        let header: Header = serde_json::from_str(lines[0]).unwrap();
        assert_eq!(
            (header.from, header.to, header.models, header.draws),
            (5, 7, 2, 3)
        );
        for (line, want) in lines[1..3].iter().zip(&results) {
            let got: CaseResult = serde_json::from_str(line).unwrap();
            assert_eq!(got, *want);
        }
        let last: serde_json::Value = serde_json::from_str(lines[3]).unwrap();
        let read: Summary = serde_json::from_value(last["summary"].clone()).unwrap();
        assert_eq!((read, lines.len()), (summary, 4));
    }
}
