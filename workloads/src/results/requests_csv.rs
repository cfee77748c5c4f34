//! The requests file: one row per request and policy.

use std::io::Write;

use super::FinishedRequest;
use crate::error::{Error, Result};
use crate::traces::arrivals_csv::decimal_us;

/// The columns.
pub const HEADER: [&str; 9] = [
    "id",
    "model",
    "arrival_us",
    "first_launch_us",
    "finish_us",
    "outcome",
    "input_len",
    "output_len",
    "policy",
];

/// Writes a requests file: policies in the order given, requests by id.
///
/// Times have exactly three decimals; `first_launch_us` is empty for a request that never ran.
///
/// # Errors
/// [`Error::Write`].
pub fn write<'a>(
    out: impl Write,
    runs: impl IntoIterator<Item = (&'a str, &'a [FinishedRequest])>,
) -> Result<()> {
    let fail = |e: csv::Error| Error::Write {
        what: "requests",
        source: e.into(),
    };
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(HEADER).map_err(fail)?;
    for (policy, requests) in runs {
        let mut by_id: Vec<&FinishedRequest> = requests.iter().collect();
        by_id.sort_by_key(|r| r.id);
        for r in by_id {
            let record = [
                r.id.to_string(),
                r.model.to_string(),
                decimal_us(r.arrival.0),
                r.first_launch
                    .map(|at| decimal_us(at.0))
                    .unwrap_or_default(),
                decimal_us(r.finish.0),
                r.outcome.to_string(),
                r.input_len.to_string(),
                r.output_len.to_string(),
                policy.to_owned(),
            ];
            csv.write_record(&record).map_err(fail)?;
        }
    }
    csv.flush().map_err(|source| Error::Write {
        what: "requests",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::{Outcome, Time};

    #[test]
    fn rows_come_by_policy_then_id_with_three_decimals() {
        let request = |id, first_launch: Option<u64>, outcome| FinishedRequest {
            id,
            model: "toy".into(),
            arrival: Time(1_000),
            first_launch: first_launch.map(Time),
            finish: Time(2_345_678),
            outcome,
            input_len: 3,
            output_len: 4,
            class: None,
        };
        let lazy = [
            request(1, Some(1_500), Outcome::Met),
            request(0, Some(1_001), Outcome::Violated),
        ];
        let greedy = [request(0, None, Outcome::Shed)];
        let mut out = Vec::new();
        write(&mut out, [("lazy", &lazy[..]), ("greedy", &greedy[..])]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "id,model,arrival_us,first_launch_us,finish_us,outcome,input_len,output_len,policy\n\
             0,toy,1.000,1.001,2345.678,violated,3,4,lazy\n\
             1,toy,1.000,1.500,2345.678,met,3,4,lazy\n\
             0,toy,1.000,,2345.678,shed,3,4,greedy\n"
        );
    }
}
