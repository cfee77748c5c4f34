//! The table of weight types in the documents, from recorded lines.

use std::fmt::Write;

use anyhow::Context;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_workloads::experiment::words;
use serde_json::Value;

use crate::measure::fetched::{MINILM, MOBILENET};

const BEGIN: &str = "<!-- weights: begin -->\n";
const END: &str = "<!-- weights: end -->\n";

/// Lines of a record.
///
/// # Errors
/// One that is no JSON.
pub fn read(text: &str) -> anyhow::Result<Vec<Value>> {
    let read = |line: &str| serde_json::from_str(line).context(line.to_owned());
    text.lines().map(read).collect()
}

/// The table; where there are several lines, the last one counts.
pub fn of(lines: &[Value]) -> String {
    let mut text = String::from(
        "\n| weights | MiniLM-L6: cosine to the reference, mean (least) | speed at 1, 16 \
         | MobileNetV2: pictures classed as the reference (furthest logit) | speed at 1, 16 \
         | letters to phonemes: words right | speed at 1, 16 |\n|---|---|---|---|---|---|---|\n",
    );
    for weights in WeightType::ALL {
        let name = weights.name();
        let find = |model: &str, part: &str, batch: Option<u64>| {
            let fits = |l: &&Value| {
                l["model"] == model
                    && l["part"] == part
                    && l["weights"] == name
                    && l["batch"].as_u64() == batch
            };
            lines.iter().rev().find(fits)
        };
        let accuracy = |model: &str, cell: &dyn Fn(&Value) -> Option<String>| {
            let line = find(model, "accuracy", None);
            line.and_then(cell).unwrap_or_else(|| "not yet".into())
        };
        let speed = |model: &str| {
            let of = |batch| find(model, "speed", Some(batch)).and_then(|l| l["median"].as_f64());
            match (of(1), of(16)) {
                (Some(one), Some(many)) => format!("{one:.2}, {many:.2}"),
                _ => "not yet".to_string(),
            }
        };
        let cosine = |l: &Value| {
            let (mean, least) = (l["mean"].as_f64()?, l["least"].as_f64()?);
            Some(format!("{mean:.7} ({least:.7})"))
        };
        let classed = |l: &Value| {
            let (right, num) = (l["right"].as_u64()?, l["num"].as_u64()?);
            let drift = l["max"].as_f64()?;
            Some(format!("{right} of {num} ({drift:.0e})"))
        };
        let spelled = |l: &Value| {
            let (right, num) = (l["right"].as_u64()?, l["num"].as_u64()?);
            let share = 100.0 * right as f64 / num as f64;
            Some(format!("{right} of {num} ({share:.2} %)"))
        };
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | {} | {} | {} | {} |",
            accuracy(MINILM, &cosine),
            speed(MINILM),
            accuracy(MOBILENET, &classed),
            speed(MOBILENET),
            accuracy(words::MODEL, &spelled),
            speed(words::MODEL),
        );
    }
    text.push('\n');
    text
}

/// `text` with `table` between its marks.
///
/// # Errors
/// A text without them.
pub fn put(text: &str, table: &str) -> anyhow::Result<String> {
    let marks = text.split_once(BEGIN);
    let marks = marks.and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = marks.with_context(|| format!("expected {BEGIN} and {END}, got neither"))?;
    Ok(format!("{head}{BEGIN}{table}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_line_of_a_cell_counts() {
        let speed = |batch: u64, median: f64| {
            json!({
                "model": MINILM, "part": "speed", "weights": "int8", "batch": batch,
                "median": median,
            })
        };
        let right = |right: u64| {
            json!({
                "model": "phonemes", "part": "accuracy", "weights": "f16", "num": 200,
                "right": right,
            })
        };
        let lines = [speed(1, 9.0), speed(16, 1.5), speed(1, 2.0), right(50)];
        let table = of(&lines);
        let row = |name: &str| {
            let start = format!("| `{name}` |");
            table
                .lines()
                .find(|l| l.starts_with(&start))
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            row("int8"),
            "| `int8` | not yet | 2.00, 1.50 | not yet | not yet | not yet | not yet |"
        );
        assert!(row("f16").contains("| 50 of 200 (25.00 %) |"));
        let text = put(&format!("a\n{BEGIN}old\n{END}b\n"), &table).unwrap();
        assert_eq!(text, format!("a\n{BEGIN}{table}{END}b\n"));
        assert!(put("nothing", &table).is_err());
    }

    /// The table in the document is that of the record that the document names.
    #[test]
    fn the_document_has_the_recorded_table() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let text = std::fs::read_to_string(docs.join("weights.md")).unwrap();
        let (_, rest) = text.split_once("(../benches/results/").unwrap();
        let (path, _) = rest.split_once(')').unwrap();
        let record = docs.join("../benches/results").join(path);
        let lines = read(&std::fs::read_to_string(record).unwrap()).unwrap();
        assert_eq!(put(&text, &of(&lines)).unwrap(), text);
    }
}
