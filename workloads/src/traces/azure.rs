//! The Azure LLM inference traces of 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`.
//!
//! Timestamps are text such as `2023-11-16 18:17:03.9799600`, in steps of 100 ns, those of 2024 with
//! `+00:00` behind; they are taken relative to the first. Published with Splitwise (ISCA 2024), CC-BY 4.0.

use lazybatch_sla::Time;

use super::source::Source;
use super::{Format, Options};
use crate::arrivals::{Arrival, LATEST};
use crate::error::Result;

/// The registry's entry.
pub(super) const FORMAT: Format = Format {
    name: "azure-llm",
    about: "Azure LLM inference trace, CSV",
    recognises: |line| line.replace('"', "").starts_with("TIMESTAMP,ContextTokens"),
    read,
    line_of: |source, n| source.line_of_row(n, &COLUMNS, &[]),
    columns: [COLUMNS[1], COLUMNS[2], COLUMNS[0]],
};

const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Reads a trace; its requests ask for the model of `options`.
///
/// # Errors
/// No model, or a fault in the file with its line and column.
pub fn read(source: &Source, options: &Options) -> Result<Vec<Arrival>> {
    let model = options.model_for(source)?;
    let (rows, columns) = source.csv(&COLUMNS, &[])?;
    let mut first = None;
    let mut last = Time::ZERO;
    let mut arrivals = Vec::new();
    for row in rows {
        let row = row?;
        let stamp = row
            .text(columns[0])
            .and_then(parse_timestamp)
            .ok_or_else(|| row.error(columns[0], "a time such as 2023-11-16 18:17:03.9799600"))?;
        let start = *first.get_or_insert(stamp);
        let at = stamp.checked_sub(start).map(Time).filter(|at| *at >= last);
        if at.is_some_and(|at| at > LATEST) {
            return Err(row.error(columns[0], "a time within 146 years of the first"));
        }
        let at =
            at.ok_or_else(|| row.error(columns[0], "a time no earlier than the one before"))?;
        last = at;
        let (input, output) = (row.integer(columns[1])?, row.integer(columns[2])?);
        arrivals.push(Arrival::new(at, model.clone(), input, output));
    }
    Ok(arrivals)
}

/// Nanoseconds since 1970 of `YYYY-MM-DD hh:mm:ss[.f][+00:00]` with at most nine decimals.
fn parse_timestamp(text: &str) -> Option<u64> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let (date, time) = text.split_once(' ')?;
    let [year, month, day] = numbers::<3>(date, '-')?;
    let (clock, decimals) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers::<3>(clock, ':')?;
    let plausible = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !plausible || decimals.is_empty() || decimals.len() > 9 {
        return None;
    }
    let [fraction] = numbers::<1>(decimals, ' ')?;
    let ns = fraction * 10_u64.pow(9 - decimals.len() as u32);
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// Exactly `N` runs of digits between separators.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<[u64; N]> {
    let mut out = [0; N];
    let mut parts = text.split(separator);
    for slot in &mut out {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *slot = part.parse().ok()?;
    }
    parts.next().is_none().then_some(out)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let years: u64 = (1970..year).map(|y| 365 + u64::from(is_leap(y))).sum();
    let months: u64 = (1..month).map(|m| days_in_month(year, m)).sum();
    years + months + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

    fn parse(rows: &str) -> Result<Vec<Arrival>> {
        let options = Options {
            model: Some("llm".into()),
            ..Options::default()
        };
        read(
            &Source::from_text("azure.csv", format!("{HEADER}{rows}")),
            &options,
        )
    }

    #[test]
    fn times_are_exact_and_relative_to_the_first() {
        let rows = "2023-11-16 18:17:03.9799600,4808,10\r\n\
                    2023-11-16 18:17:04.0319601,3180,8\r\n\
                    2023-11-17 18:17:03.9799600,110,27";
        let arrival = |ns, input, output| Arrival::new(Time(ns), "llm", input, output);
        assert_eq!(
            parse(rows).unwrap(),
            [
                arrival(0, 4808, 10),
                arrival(52_000_100, 3180, 8),
                arrival(86_400_000_000_000, 110, 27)
            ]
        );
    }

    #[test]
    fn timestamps_follow_the_calendar() {
        let seconds = |text: &str| parse_timestamp(text).map(|ns| ns / 1_000_000_000);
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2000-02-29 12:00:00.5"), Some(951_825_600));
        assert_eq!(seconds("2024-03-01 00:00:00"), Some(1_709_251_200));
        assert_eq!(seconds("2024-03-01 00:00:00.25+00:00"), Some(1_709_251_200));
        for bad in [
            "2024-03-01 00:00:00+01:00",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16T18:17:03",
            "2023-11-16 18:17",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:+3",
            "1700171823",
        ] {
            assert_eq!(parse_timestamp(bad), None, "{bad}");
        }
    }

    #[test]
    fn faults_are_named() {
        let message = |rows: &str| parse(rows).unwrap_err().to_string();
        assert_eq!(
            message("yesterday,1,2"),
            "azure.csv: line 2, column TIMESTAMP: expected a time such as \
             2023-11-16 18:17:03.9799600, got `yesterday`"
        );
        let backwards =
            "2023-11-16 18:17:04,1,2\n2023-11-16 18:17:05,1,2\n2023-11-16 18:17:04.5,1,2";
        assert!(
            message(backwards).contains("line 4, column TIMESTAMP: expected a time no earlier")
        );
        assert!(message("2023-11-16 18:17:04,1,many").contains("column GeneratedTokens"));
        let source = Source::from_text("azure.csv", HEADER);
        let message = read(&source, &Options::default()).unwrap_err().to_string();
        assert!(
            message.starts_with("model for azure.csv: expected a model name"),
            "{message}"
        );
    }
}
