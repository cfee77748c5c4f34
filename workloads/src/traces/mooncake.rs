//! The Mooncake traces (FAST 2025): one JSON object a line.
//!
//! Keys `timestamp` (whole milliseconds from the start), `input_length` and `output_length` in
//! tokens. Other keys, such as the prefix blocks `hash_ids`, are passed over.

use lazybatch_sla::Time;
use serde_json::Value;

use super::source::{Source, Whole, excerpt};
use super::{Format, Options};
use crate::arrivals::{Arrival, LATEST};
use crate::error::Result;

/// The registry's entry.
pub(super) const FORMAT: Format = Format {
    name: "mooncake",
    about: "Mooncake request trace, JSON lines",
    recognises: |line| line.starts_with('{') && line.contains("\"input_length\""),
    read,
    line_of: |source, n| Some(lines(source).nth(n)?.0),
    columns: ["input_length", "output_length", "timestamp"],
};

/// Lines that hold something, with their numbers.
fn lines(source: &Source) -> impl Iterator<Item = (u64, &str)> {
    let all = (1..).zip(source.text.lines());
    all.filter(|(_, text)| !text.trim().is_empty())
}

/// Reads a trace; its requests ask for the model of `options`.
///
/// # Errors
/// No model, or a fault in the file with its line and key.
pub fn read(source: &Source, options: &Options) -> Result<Vec<Arrival>> {
    let model = options.model_for(source)?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    for (line, text) in lines(source) {
        let object: Value = serde_json::from_str(text)
            .map_err(|e| source.line(line, "a JSON object", format!("{} ({e})", excerpt(text))))?;
        let number = |key: &str, range: &str| {
            let value = &object[key];
            let got = if value.is_null() {
                "nothing".into()
            } else {
                excerpt(&value.to_string())
            };
            value
                .as_u64()
                .ok_or_else(|| source.field(line, key, range, got))
        };
        let length = |key: &str| {
            let value = number(key, u32::RANGE)?;
            u32::try_from(value)
                .map_err(|_| source.field(line, key, u32::RANGE, format!("`{value}`")))
        };
        let ms = number("timestamp", "whole milliseconds of 0 or more")?;
        let at = ms.checked_mul(1_000_000).map(Time);
        let at = at.filter(|at| *at <= LATEST).ok_or_else(|| {
            let expected = format!("a time of at most {} ms", LATEST.0 / 1_000_000);
            source.field(line, "timestamp", expected, format!("`{ms}`"))
        })?;
        if arrivals.last().is_some_and(|last| last.at > at) {
            let expected = "a time no earlier than the one before";
            return Err(source.field(line, "timestamp", expected, format!("`{ms}`")));
        }
        let (input, output) = (length("input_length")?, length("output_length")?);
        arrivals.push(Arrival::new(at, model.clone(), input, output));
    }
    Ok(arrivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Arrival>> {
        let options = Options {
            model: Some("llm".into()),
            ..Options::default()
        };
        read(&Source::from_text("kimi.jsonl", text), &options)
    }

    fn line(timestamp: &str, input: &str, output: &str) -> String {
        format!(
            "{{\"timestamp\": {timestamp}, \"input_length\": {input}, \"output_length\": {output}, \
             \"hash_ids\": [0, 1]}}\n"
        )
    }

    #[test]
    fn lines_become_arrivals() {
        let text = line("0", "6758", "500") + "\n" + &line("3052", "72", "4");
        let arrival = |ns, input, output| Arrival::new(Time(ns), "llm", input, output);
        assert_eq!(
            parse(&text).unwrap(),
            [arrival(0, 6758, 500), arrival(3_052_000_000, 72, 4)]
        );
    }

    #[test]
    fn faults_are_named() {
        let message = |text: String| parse(&text).unwrap_err().to_string();
        assert_eq!(
            message(line("0", "1", "1") + &line("1", "\"many\"", "1")),
            "kimi.jsonl: line 2, column input_length: expected a whole number from 0 to \
             4294967295, got `\"many\"`"
        );
        assert!(message(line("1.5", "1", "1")).contains("expected whole milliseconds"));
        assert!(message(line("0", "-1", "1")).contains("got `-1`"));
        assert!(message(line("0", "1", "4294967296")).contains("got `4294967296`"));
        assert!(message("{\"timestamp\": 1}".into()).contains("column input_length"));
        assert!(message("{\"timestamp\": ".into()).contains("line 1: expected a JSON object"));
        let backwards = line("5", "1", "1") + &line("4", "1", "1");
        assert!(message(backwards).contains("a time no earlier than the one before, got `4`"));
    }
}
