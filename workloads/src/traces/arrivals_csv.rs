//! The project's own arrivals file.
//!
//! Header `arrival_us,model,input_len,output_len`, and optionally
//! `sla_us,priority,samples,sequence_id,class`. Times are decimals of a microsecond with at most
//! three decimals. Rows are sorted by arrival; ties keep file order. An empty optional cell is as
//! good as a missing column.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use lazybatch_sla::{Nanos, Time};

use super::source::{Column, Row, Source, parse_us};
use super::{Format, Options};
use crate::arrivals::{Arrival, LATEST};
use crate::error::{Error, Result};

/// Columns that a file must have.
const REQUIRED: [&str; 4] = ["arrival_us", "model", "input_len", "output_len"];
/// Columns that it may have.
const OPTIONAL: [&str; 5] = ["sla_us", "priority", "samples", "sequence_id", "class"];

/// The registry's entry.
pub(super) const FORMAT: Format = Format {
    name: "arrivals",
    about: "this project's arrivals CSV",
    recognises: |line| {
        let is_it = |name: &str| name.trim().trim_matches('"') == "arrival_us";
        line.split(',').any(is_it)
    },
    read: |source, _: &Options| read(source),
    line_of: |source, n| source.line_of_row(n, &REQUIRED, &OPTIONAL),
    columns: ["input_len", "output_len", "arrival_us"],
};

/// Reads an arrivals file.
///
/// # Errors
/// A fault in the file with its line and column.
pub fn read(source: &Source) -> Result<Vec<Arrival>> {
    let (rows, columns) = source.csv(&REQUIRED, &OPTIONAL)?;
    let mut names = Names::default();
    let mut arrivals: Vec<Arrival> = Vec::new();
    for row in rows {
        let row = row?;
        let arrival = parse(&row, &columns, &mut names)?;
        if let Some(last) = arrivals.last().filter(|last| last.at > arrival.at) {
            let expected = format!("arrivals in order, at or after {}", decimal_us(last.at.0));
            return Err(row.error(columns[0], expected));
        }
        arrivals.push(arrival);
    }
    Ok(arrivals)
}

fn parse(row: &Row<'_>, columns: &[Column], names: &mut Names) -> Result<Arrival> {
    const DECIMAL: &str =
        "microseconds from 0 to 18446744073709551.615 with at most three decimals";
    let microseconds = |column: Column| match row.text(column) {
        Some(text) => parse_us(text)
            .map(Some)
            .ok_or_else(|| row.error(column, DECIMAL)),
        None => Ok(None),
    };
    let [
        at,
        model,
        input_len,
        output_len,
        sla,
        priority,
        samples,
        sequence_id,
        class,
    ] = *columns
    else {
        unreachable!("one column per name asked for");
    };
    let at_column = at;
    let at = Time(microseconds(at)?.ok_or_else(|| row.error(at, DECIMAL))?);
    if at > LATEST {
        let expected = format!("an arrival by {}", decimal_us(LATEST.0));
        return Err(row.error(at_column, expected));
    }
    let samples_column = samples;
    let samples = row.optional_integer(samples_column)?.unwrap_or(1);
    if samples == 0 {
        return Err(row.error(samples_column, "at least 1 sample"));
    }
    Ok(Arrival {
        at,
        model: names.get(
            row.text(model)
                .ok_or_else(|| row.error(model, "a model name"))?,
        ),
        input_len: row.integer(input_len)?,
        output_len: row.integer(output_len)?,
        sla: microseconds(sla)?.map(Nanos),
        // There are 255 levels; those below the lowest are the lowest.
        priority: row.optional_integer::<u64>(priority)?.unwrap_or(0).min(255) as u8,
        samples,
        sequence_id: row.optional_integer(sequence_id)?,
        class: row.text(class).map(|text| names.get(text)),
    })
}

/// Names seen so far, so that equal ones share their text.
#[derive(Default)]
struct Names(BTreeMap<String, Arc<str>>);

impl Names {
    fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = name.into();
        self.0.insert(name.to_owned(), Arc::clone(&shared));
        shared
    }
}

/// Nanoseconds as microseconds with exactly three decimals.
pub fn decimal_us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// Writes an arrivals file to `path`; see [`write()`].
///
/// # Errors
/// [`Error::Save`].
pub fn save(path: &Path, arrivals: &[Arrival]) -> Result<()> {
    let mut text = Vec::new();
    write(&mut text, arrivals)?;
    std::fs::write(path, text).map_err(|e| Error::save(path, e))
}

/// Writes an arrivals file, with the optional columns that some arrival uses.
///
/// # Errors
/// [`Error::Write`].
pub fn write(out: impl Write, arrivals: &[Arrival]) -> Result<()> {
    type Cell = fn(&Arrival) -> String;
    fn or_empty(value: Option<impl ToString>) -> String {
        value.map(|v| v.to_string()).unwrap_or_default()
    }
    let required: [Cell; 4] = [
        |a| decimal_us(a.at.0),
        |a| a.model.to_string(),
        |a| a.input_len.to_string(),
        |a| a.output_len.to_string(),
    ];
    let optional: [(bool, Cell); 5] = [
        (arrivals.iter().any(|a| a.sla.is_some()), |a| {
            or_empty(a.sla.map(|s| decimal_us(s.0)))
        }),
        (arrivals.iter().any(|a| a.priority != 0), |a| {
            a.priority.to_string()
        }),
        (arrivals.iter().any(|a| a.samples != 1), |a| {
            a.samples.to_string()
        }),
        (arrivals.iter().any(|a| a.sequence_id.is_some()), |a| {
            or_empty(a.sequence_id)
        }),
        (arrivals.iter().any(|a| a.class.is_some()), |a| {
            or_empty(a.class.as_deref())
        }),
    ];
    let mut columns: Vec<(&str, Cell)> = REQUIRED.into_iter().zip(required).collect();
    let used = OPTIONAL
        .into_iter()
        .zip(optional)
        .filter(|(_, (used, _))| *used);
    columns.extend(used.map(|(name, (_, cell))| (name, cell)));

    let mut csv = csv::Writer::from_writer(out);
    let fail = |e: csv::Error| Error::Write {
        what: "arrivals",
        source: e.into(),
    };
    csv.write_record(columns.iter().map(|(name, _)| name))
        .map_err(fail)?;
    for arrival in arrivals {
        csv.write_record(columns.iter().map(|(_, cell)| cell(arrival)))
            .map_err(fail)?;
    }
    csv.flush().map_err(|source| Error::Write {
        what: "arrivals",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "arrival_us,model,input_len,output_len";

    fn parse_text(text: &str) -> Result<Vec<Arrival>> {
        read(&Source::from_text("a.csv", text))
    }

    fn message(text: &str) -> String {
        parse_text(text).unwrap_err().to_string()
    }

    #[test]
    fn the_required_columns_suffice() {
        let text = format!("{HEADER}\n0,toy,3,4\n1.5,toy,0,0\n1.500,other,7,8\n");
        let toy = |ns, input, output| Arrival::new(Time(ns), "toy", input, output);
        let other = Arrival::new(Time(1500), "other", 7, 8);
        assert_eq!(
            parse_text(&text).unwrap(),
            [toy(0, 3, 4), toy(1500, 0, 0), other]
        );
        assert_eq!(parse_text(HEADER).unwrap(), []);
    }

    #[test]
    fn optional_columns_are_read_in_any_order() {
        let text = "class,samples,arrival_us,model,input_len,output_len,sla_us,sequence_id,\
                    priority\r\ngold,4,2.001,m,1,2,100.5,18446744073709551615,3\r\n,,3,m,1,2,,,\r\n";
        let arrivals = parse_text(text).unwrap();
        let full = Arrival {
            sla: Some(Nanos(100_500)),
            priority: 3,
            samples: 4,
            sequence_id: Some(u64::MAX),
            class: Some("gold".into()),
            ..Arrival::new(Time(2001), "m", 1, 2)
        };
        assert_eq!(arrivals, [full, Arrival::new(Time(3000), "m", 1, 2)]);
    }

    #[test]
    fn every_fault_names_file_line_column_expected_and_got() {
        let row = |row: &str| message(&format!("{HEADER}\n0,m,1,1\n{row}\n"));
        assert_eq!(
            row("soon,m,1,1"),
            "a.csv: line 3, column arrival_us: expected microseconds from 0 to \
             18446744073709551.615 with at most three decimals, got `soon`"
        );
        assert_eq!(
            row("5,m,twelve,1"),
            "a.csv: line 3, column input_len: expected a whole number from 0 to 4294967295, \
             got `twelve`"
        );
        for (text, column, got) in [
            ("1.2345,m,1,1", "arrival_us", "`1.2345`"),
            ("-1,m,1,1", "arrival_us", "`-1`"),
            (",m,1,1", "arrival_us", "nothing"),
            ("1,,1,1", "model", "nothing"),
            ("1,m,1.0,1", "input_len", "`1.0`"),
            ("1,m,1,-1", "output_len", "`-1`"),
            ("1,m,1,", "output_len", "nothing"),
            ("1,m,1,4294967296", "output_len", "`4294967296`"),
            (
                "4611686018427387.905,m,1,1",
                "arrival_us",
                "`4611686018427387.905`",
            ),
        ] {
            let message = row(text);
            let ok = message.starts_with(&format!("a.csv: line 3, column {column}: expected "))
                && message.ends_with(&format!("got {got}"));
            assert!(ok, "{text}: {message}");
        }
        assert_eq!(row("1,m,1"), "a.csv: line 3: expected 4 fields, got 3");
    }

    #[test]
    fn optional_cells_are_checked_too() {
        let row =
            |column: &str, cell: &str| message(&format!("{HEADER},{column}\n1,m,1,1,{cell}\n"));
        assert!(row("sla_us", "1ms").contains("column sla_us: expected microseconds"));
        assert!(row("samples", "0").contains("column samples: expected at least 1 sample"));
        for priority in ["high", "-1"] {
            let expected = "column priority: expected a whole number";
            assert!(row("priority", priority).contains(expected), "{priority}");
        }
        assert!(row("sequence_id", "x").contains("column sequence_id"));
    }

    #[test]
    fn unsorted_arrivals_are_refused() {
        assert_eq!(
            message(&format!("{HEADER}\n5,m,1,1\n4.999,m,1,1\n")),
            "a.csv: line 3, column arrival_us: expected arrivals in order, at or after 5.000, \
             got `4.999`"
        );
    }

    #[test]
    fn headers_are_checked() {
        assert!(message("").contains("line 1: expected a column arrival_us, got nothing"));
        assert!(message("arrival_us,model,input_len\n").contains("a column output_len"));
        let typo = message(&format!("{HEADER},sla_ms\n"));
        assert!(
            typo.contains("columns among") && typo.contains("got `sla_ms`"),
            "{typo}"
        );
        assert!(message(&format!("{HEADER},model\n")).contains("model twice"));
    }

    #[test]
    fn only_used_columns_are_written() {
        let mut arrivals = vec![Arrival::new(Time(1_234_567), "m", 1, 2)];
        let text = |arrivals: &[Arrival]| {
            let mut out = Vec::new();
            write(&mut out, arrivals).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(&arrivals), format!("{HEADER}\n1234.567,m,1,2\n"));
        arrivals[0].class = Some("a,b".into());
        assert_eq!(
            text(&arrivals),
            format!("{HEADER},class\n1234.567,m,1,2,\"a,b\"\n")
        );
    }

    prop_compose! {
        fn any_arrival()(
            at in 0..=LATEST.0, lengths in any::<(u32, u32)>(), model in "[a-z][a-z0-9_.,\"-]{0,8}",
            sla in any::<Option<u64>>(), priority in any::<u8>(), samples in 1..u32::MAX,
            sequence_id in any::<Option<u64>>(), class in proptest::option::of("[a-z]{1,4}"),
        ) -> Arrival {
            Arrival {
                sla: sla.map(Nanos),
                priority,
                samples,
                sequence_id,
                class: class.map(Into::into),
                ..Arrival::new(Time(at), model, lengths.0, lengths.1)
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(mut arrivals in proptest::collection::vec(any_arrival(), 0..9)) {
            arrivals.sort_by_key(|a| a.at);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.csv");
            save(&path, &arrivals).unwrap();
            prop_assert_eq!(read(&Source::open(&path).unwrap()).unwrap(), arrivals);
        }
    }
}
