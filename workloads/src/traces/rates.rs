//! Rate files: the mean request rate of consecutive windows, for [`Process::Piecewise`].
//!
//! CSV whose first column is the start of the window in whole seconds and whose second is the rate
//! per second, as derived from ServeGen's published clients:
//! `window_start_s,requests_per_s_sum_over_clients,active_clients`.

use std::path::Path;

use lazybatch_sla::Nanos;

use super::source::Source;
use crate::arrivals::{Piece, Process};
use crate::error::Result;

/// Columns of a rate file.
const COLUMNS: [&str; 2] = ["window_start_s", "requests_per_s_sum_over_clients"];

/// Reads a rate file as a process that follows its rates; the last window is as long as the one
/// before.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), or a fault in the file with its line and column.
pub fn read(path: &Path) -> Result<Process> {
    from_source(&Source::open(path)?)
}

/// Reads the rates of a file that is already in memory.
///
/// # Errors
/// As [`read`].
pub fn from_source(source: &Source) -> Result<Process> {
    let (rows, columns) = source.csv(&COLUMNS, &["active_clients"])?;
    let mut windows: Vec<(u64, f64)> = Vec::new();
    for row in rows {
        let row = row?;
        let start: u64 = row.integer(columns[0])?;
        let after = windows.last().map_or(0, |(last, _)| last + 1);
        if start < after {
            return Err(row.error(columns[0], format!("a start in order, {after} or later")));
        }
        let rate = row
            .text(columns[1])
            .and_then(|text| text.parse::<f64>().ok());
        let rate = rate.filter(|rate| rate.is_finite() && *rate >= 0.0);
        windows.push((
            start,
            rate.ok_or_else(|| row.error(columns[1], "a rate of 0 or more"))?,
        ));
    }
    let &[.., (before, _), (last, _)] = windows.as_slice() else {
        return Err(source.line(1, "at least two windows", windows.len()));
    };
    let ends = windows
        .iter()
        .skip(1)
        .map(|(start, _)| *start)
        .chain([last + (last - before)]);
    let pieces = windows
        .iter()
        .zip(ends)
        .map(|(&(start, rate_rps), end)| Piece {
            lasts: Nanos((end - start).saturating_mul(1_000_000_000)),
            rate_rps,
        });
    let process = Process::Piecewise {
        pieces: pieces.collect(),
    };
    process.validate().map(|()| process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::tests::shared_traces;

    const HEADER: &str = "window_start_s,requests_per_s_sum_over_clients,active_clients\n";

    fn parse(rows: &str) -> Result<Process> {
        from_source(&Source::from_text("rates.csv", format!("{HEADER}{rows}")))
    }

    #[test]
    fn windows_become_stretches() {
        let piece = |s: u64, rate_rps| Piece {
            lasts: Nanos::from_ms(1000 * s),
            rate_rps,
        };
        assert_eq!(
            parse("0,14.5,21\n600,0,0\n900,7.25,3\n").unwrap(),
            Process::Piecewise {
                pieces: vec![piece(600, 14.5), piece(300, 0.0), piece(300, 7.25)]
            }
        );
    }

    #[test]
    fn faults_are_named() {
        let message = |rows: &str| parse(rows).unwrap_err().to_string();
        assert!(message("0,1,1\n").contains("at least two windows, got 1"));
        assert!(message("0,1,1\n600,-2,1\n").contains("line 3, column requests_per_s_sum"));
        assert!(message("600,1,1\n600,2,1\n").contains("expected a start in order, 601 or later"));
        assert!(message("0,0,1\n600,0,1\n").contains("arrival rate over all stretches"));
    }

    #[test]
    fn public_rates_read_whole() {
        let Some(folder) = shared_traces() else {
            return;
        };
        let process = read(&folder.join("servegen/m-large_rate_10min.csv")).unwrap();
        let Process::Piecewise { pieces } = &process else {
            panic!("{process:?}")
        };
        assert_eq!(pieces.len(), 2016);
        assert!(
            pieces
                .iter()
                .all(|piece| piece.lasts == Nanos::from_ms(600_000))
        );
        assert!(process.mean_rate_rps() > 10.0);
    }
}
