//! A text file in memory, its rows by column name, and errors that point into it.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Most bytes that a packed file may unpack to: some ten million arrivals with every column.
const MAX_UNPACKED: u64 = 1 << 30;

/// A file's text and the name that messages call it by.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file, as it was named.
    pub name: String,
    /// Its text, unzipped, without a byte order mark.
    pub text: String,
}

impl Source {
    /// Reads a file; one that starts like gzip is unzipped, if that gives at most 1 GiB.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::File`] for what is not UTF-8 text, or too much of it.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut bytes = fs::read(path).map_err(|e| Error::io(path, e))?;
        if bytes.starts_with(&[0x1f, 0x8b]) {
            let plain = unpack(&bytes, MAX_UNPACKED).map_err(|e| Error::File {
                file: name.clone(),
                expected: "a whole gzip file, as it begins like one".into(),
                got: e.to_string(),
            })?;
            bytes = plain.ok_or_else(|| Error::File {
                file: name.clone(),
                expected: "at most 1 GiB once unpacked".into(),
                got: "more (unpack it, files that are not packed may be longer)".into(),
            })?;
        }
        let text = String::from_utf8(bytes).map_err(|e| Error::File {
            file: name.clone(),
            expected: "UTF-8 text".into(),
            got: format!("other bytes at offset {}", e.utf8_error().valid_up_to()),
        })?;
        Ok(Self::from_text(&name, text))
    }

    /// A text that is already in memory.
    pub fn from_text(name: &str, text: impl Into<String>) -> Self {
        const MARK: char = '\u{feff}';
        let mut text = text.into();
        if text.starts_with(MARK) {
            text.drain(..MARK.len_utf8());
        }
        Self {
            name: name.to_owned(),
            text,
        }
    }

    /// The rows of a CSV file with a header, and the columns for `required` and then `optional`
    /// names in that order. Columns may stand in any order; an unknown or repeated one is an
    /// error, because a misspelt optional column would otherwise be passed over.
    ///
    /// # Errors
    /// [`Error::Line`] about the header.
    pub fn csv(&self, required: &[&'static str], optional: &[&'static str]) -> Result<Table<'_>> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .flexible(true)
            .from_reader(self.text.as_bytes());
        let header = reader
            .headers()
            .map_err(|e| self.line(1, "a header", &e))?
            .clone();
        let end = reader.position().byte() as usize;
        check_quotes(&self.text[..end]).map_err(|(expected, got)| self.line(1, expected, got))?;
        let known: Vec<&'static str> = required.iter().chain(optional).copied().collect();
        for (i, name) in header.iter().enumerate() {
            if !known.contains(&name) {
                let expected = format!("columns among {}", known.join(","));
                return Err(self.line(1, expected, excerpt(name)));
            }
            if header.iter().take(i).any(|earlier| earlier == name) {
                return Err(self.line(1, "each column once", format!("{name} twice")));
            }
        }
        let find = |name: &str| header.iter().position(|h| h == name);
        if let Some(missing) = required.iter().find(|name| find(name).is_none()) {
            let got = excerpt(&header.iter().collect::<Vec<_>>().join(","));
            return Err(self.line(1, format!("a column {missing}"), got));
        }
        let columns = known
            .iter()
            .map(|name| Column {
                name,
                idx: find(name),
            })
            .collect();
        let lines = Lines {
            text: self.text.as_bytes(),
            byte: 0,
            line: 1,
        };
        let rows = Rows {
            source: self,
            num_columns: header.len(),
            reader,
            lines,
        };
        Ok((rows, columns))
    }

    /// The line of the `n`th row of a CSV file with these columns, from 0.
    pub fn line_of_row(
        &self,
        n: usize,
        required: &[&'static str],
        optional: &[&'static str],
    ) -> Option<u64> {
        let (mut rows, _) = self.csv(required, optional).ok()?;
        Some(rows.nth(n)?.ok()?.line)
    }

    /// An error about a whole line.
    pub fn line(&self, line: u64, expected: impl Into<String>, got: impl fmt::Display) -> Error {
        let (file, expected) = (self.name.clone(), expected.into());
        Error::Line {
            file,
            line,
            expected,
            got: got.to_string(),
        }
    }

    /// An error about one value.
    pub fn field(
        &self,
        line: u64,
        column: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Error {
        Error::Field {
            file: self.name.clone(),
            line,
            column: column.to_owned(),
            expected: expected.into(),
            got: got.into(),
        }
    }
}

/// What gzip packed; `None` if that is more than `most` bytes.
fn unpack(bytes: &[u8], most: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut plain = Vec::new();
    let packed = flate2::read::MultiGzDecoder::new(bytes);
    packed.take(most + 1).read_to_end(&mut plain)?;
    Ok(Some(plain).filter(|plain| plain.len() as u64 <= most))
}

/// Rows and columns of a CSV file.
pub type Table<'a> = (Rows<'a>, Vec<Column>);

/// A column by name, and where this file has it.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    idx: Option<usize>,
}

/// Iterator over the rows of a CSV file.
#[derive(Debug)]
pub struct Rows<'a> {
    source: &'a Source,
    num_columns: usize,
    reader: csv::Reader<&'a [u8]>,
    lines: Lines<'a>,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = csv::StringRecord::new();
        let start = self.reader.position().byte();
        let line = self.lines.at(start);
        let read = self.reader.read_record(&mut record);
        let row = start as usize..self.reader.position().byte() as usize;
        if let Err((expected, got)) = check_quotes(&self.source.text[row]) {
            return Some(Err(self.source.line(line, expected, got)));
        }
        match read {
            Ok(false) => None,
            Ok(true) => Some(if record.len() == self.num_columns {
                Ok(Row {
                    source: self.source,
                    line,
                    record,
                })
            } else {
                let expected = format!("{} fields", self.num_columns);
                Err(self.source.line(line, expected, record.len()))
            }),
            Err(e) => Some(Err(self.source.line(line, "a row", e))),
        }
    }
}

/// Refuses quotes of a row that are not around whole cells, or not closed: what was expected and what came.
/// The reader takes any.
fn check_quotes(row: &str) -> Result<(), (&'static str, String)> {
    // Where in a cell the text so far ends.
    enum In {
        Start,
        Plain,
        Quoted,
        Closed,
    }
    if !row.contains('"') {
        return Ok(());
    }
    let mut place = In::Start;
    for (at, c) in row.char_indices() {
        place = match (place, c) {
            (In::Start, '"') => In::Quoted,
            (In::Start | In::Plain | In::Closed, ',' | '\r' | '\n') => In::Start,
            (In::Start | In::Plain, _) => In::Plain,
            (In::Quoted, '"') => In::Closed,
            // Two quotes stand for one.
            (In::Closed, '"') if row[..at].ends_with('"') => In::Quoted,
            (In::Quoted, _) => In::Quoted,
            (In::Closed, ' ' | '\t') => In::Closed,
            (In::Closed, _) => {
                let got = row[at..].split([',', '\r', '\n']).next();
                return Err((
                    "the end of the cell behind its quotes",
                    excerpt(got.unwrap_or_default()),
                ));
            }
        };
    }
    match place {
        In::Quoted => Err(("a quote that closes the cell", "the end of the file".into())),
        _ => Ok(()),
    }
}

/// Counts lines up to a byte. The reader's own count is one short after a carriage return, as it
/// stands between the two characters of the line's end.
#[derive(Debug)]
struct Lines<'a> {
    text: &'a [u8],
    byte: usize,
    line: u64,
}

impl Lines<'_> {
    /// The line of the first text at or after `byte`, which may only grow from call to call.
    fn at(&mut self, byte: u64) -> u64 {
        let ends_line = |b: Option<&u8>| matches!(b, Some(b'\r' | b'\n'));
        while (self.byte as u64) < byte || ends_line(self.text.get(self.byte)) {
            self.line += u64::from(self.text.get(self.byte) == Some(&b'\n'));
            self.byte += 1;
        }
        self.line
    }
}

/// One row of a CSV file.
#[derive(Debug)]
pub struct Row<'a> {
    source: &'a Source,
    /// Its line, from 1.
    pub line: u64,
    record: csv::StringRecord,
}

impl Row<'_> {
    /// The text of a cell; `None` when the file lacks the column or the cell is empty.
    pub fn text(&self, column: Column) -> Option<&str> {
        self.record.get(column.idx?).filter(|text| !text.is_empty())
    }

    /// A whole number that must be there.
    ///
    /// # Errors
    /// [`Error::Field`].
    pub fn integer<T: Whole>(&self, column: Column) -> Result<T> {
        let text = self.text(column).unwrap_or_default();
        parse_whole(text).ok_or_else(|| self.error(column, T::RANGE))
    }

    /// A whole number that may be left out.
    ///
    /// # Errors
    /// [`Error::Field`].
    pub fn optional_integer<T: Whole>(&self, column: Column) -> Result<Option<T>> {
        self.text(column).map(|_| self.integer(column)).transpose()
    }

    /// An error about a cell of this row.
    pub fn error(&self, column: Column, expected: impl Into<String>) -> Error {
        let got = self
            .text(column)
            .map_or_else(|| "nothing".to_owned(), excerpt);
        self.source.field(self.line, column.name, expected, got)
    }
}

/// Unsigned types that a cell can hold.
pub trait Whole: FromStr {
    /// The values accepted, for messages.
    const RANGE: &'static str;
}

impl Whole for u8 {
    const RANGE: &'static str = "a whole number from 0 to 255";
}

impl Whole for u32 {
    const RANGE: &'static str = "a whole number from 0 to 4294967295";
}

impl Whole for u64 {
    const RANGE: &'static str = "a whole number from 0 to 18446744073709551615";
}

/// Digits alone: no sign, no point, no exponent.
fn parse_whole<T: Whole>(text: &str) -> Option<T> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Text of a file as a message quotes it: in backquotes and not too long.
pub fn excerpt(text: &str) -> String {
    const MOST: usize = 60;
    if text.is_empty() {
        return "nothing".to_owned();
    }
    if text.chars().count() <= MOST {
        return format!("`{text}`");
    }
    format!("`{}...`", text.chars().take(MOST).collect::<String>())
}

/// A decimal number of microseconds with at most three decimals, as whole nanoseconds.
///
/// Computed in integers, so that what is written is what is meant. `None` for anything else,
/// a sign, an exponent, a missing digit and a value beyond 2^64 nanoseconds included.
pub fn parse_us(text: &str) -> Option<u64> {
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) => (whole, decimals),
        None => (text, "0"),
    };
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
        return None;
    }
    let scale = 10_u64.pow(3 - decimals.len() as u32);
    let ns = decimals.parse::<u64>().ok()? * scale;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn microseconds_are_exact() {
        for (text, ns) in [
            ("0", 0),
            ("0.001", 1),
            ("1.5", 1_500),
            ("12.25", 12_250),
            ("007.010", 7_010),
            // As a double this would come out one nanosecond short.
            ("9007199254740.993", 9_007_199_254_740_993),
            ("18446744073709551.615", u64::MAX),
        ] {
            assert_eq!(parse_us(text), Some(ns), "{text}");
        }
    }

    #[test]
    fn what_is_no_decimal_with_three_places_is_refused() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "1.2345",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "nan",
            "inf",
            "0x10",
            "1.5.0",
            "1 000",
            "18446744073709551.616",
            "99999999999999999999",
        ] {
            assert_eq!(parse_us(text), None, "{text}");
        }
    }

    #[test]
    fn gzip_and_byte_order_marks_are_undone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.csv.gz");
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all("\u{feff}a,b\n".as_bytes()).unwrap();
        fs::write(&path, zip.finish().unwrap()).unwrap();
        assert_eq!(Source::open(&path).unwrap().text, "a,b\n");
        fs::write(&path, [b'a', 0xff]).unwrap();
        let message = Source::open(&path).unwrap_err().to_string();
        assert!(
            message.ends_with("expected UTF-8 text, got other bytes at offset 1"),
            "{message}"
        );
        let missing = Source::open(&folder.path().join("none"))
            .unwrap_err()
            .to_string();
        assert!(missing.contains("none: "), "{missing}");
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(&[b'a'; 1000]).unwrap();
        let packed = zip.finish().unwrap();
        assert_eq!(unpack(&packed, 1000).unwrap().unwrap().len(), 1000);
        assert_eq!(unpack(&packed, 999).unwrap(), None);
    }

    #[test]
    fn lines_are_counted_whatever_ends_them() {
        for end in ["\n", "\r\n"] {
            let text = ["a,b", "1,2", "", "\"3\n3\",4", "5"].join(end);
            let source = Source::from_text("x", &text);
            let (mut rows, _) = source.csv(&["a", "b"], &[]).unwrap();
            let mut line = || rows.next().unwrap().map(|row| row.line);
            assert_eq!((line().unwrap(), line().unwrap()), (2, 4), "{end:?}");
            let message = line().unwrap_err().to_string();
            assert_eq!(message, "x: line 6: expected 2 fields, got 1", "{end:?}");
        }
    }

    #[test]
    fn quotes_are_around_whole_cells() {
        let message = |rows: &str| {
            let source = Source::from_text("x", format!("a,b\n{rows}"));
            let (rows, _) = source.csv(&["a", "b"], &[]).unwrap();
            let faults = rows.filter_map(Result::err);
            faults.map(|e| e.to_string()).collect::<Vec<_>>().join("; ")
        };
        for good in [
            "\"1\",\"2\"\r\n\n\"3\",4",
            "\"\",\"\"\n",
            "\"a\"\"b\",\"\"\"\"",
            "\"1\" ,\"2\"\t\n",
            "\"1,\n\",5\n6,7",
            "a\"b,c\n",
        ] {
            assert_eq!(message(good), "", "{good:?}");
        }
        let open = "expected a quote that closes the cell, got the end of the file";
        assert_eq!(message("1,2\r\n1,\"4"), format!("x: line 3: {open}"));
        assert_eq!(message("1,\"4\"\""), format!("x: line 2: {open}"));
        let behind = "expected the end of the cell behind its quotes, got";
        assert_eq!(
            message("\"to\"y,1\n2,3"),
            format!("x: line 2: {behind} `y`")
        );
        assert_eq!(
            message("1,2\n\"t\" \"y\",1"),
            format!("x: line 3: {behind} `\"y\"`")
        );
        let source = Source::from_text("x", "a,\"b");
        let header = source.csv(&["a", "b"], &[]).unwrap_err().to_string();
        assert_eq!(header, format!("x: line 1: {open}"));
    }

    #[test]
    fn long_text_is_cut_in_messages() {
        assert_eq!(excerpt("abc"), "`abc`");
        assert_eq!(excerpt(""), "nothing");
        assert_eq!(excerpt(&"é".repeat(99)).chars().count(), 65);
    }
}
