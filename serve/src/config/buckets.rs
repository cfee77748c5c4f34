//! Bounds of the histograms of `/metrics` that a configuration may choose, in `model_metrics`.

use crate::error::{Error, Result};
use crate::explained::{MOST_NAME, cut};
use crate::proto::ModelMetrics;
use crate::proto::model_metrics::metric_control::MetricOptions;

/// Most bounds of a histogram.
const MOST: usize = 256;
/// Longest bound, in nanoseconds: a day.
const LONGEST: u64 = 86_400 * NS_PER_S;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// A histogram of times whose bounds a model may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name in `/metrics`.
    pub name: &'static str,
    /// Nanoseconds of its unit.
    pub unit: u64,
}

/// From arrival to the first response, of decoupled models.
pub const FIRST_RESPONSES: Family = Family {
    name: "nv_inference_first_response_histogram_ms",
    unit: NS_PER_MS,
};

/// From arrival to answer, by SLA class.
pub const LATENCIES: Family = Family {
    name: "lazybatch_request_latency_seconds",
    unit: NS_PER_S,
};

/// Bounds by histogram, in nanoseconds, increasing.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Of [`FIRST_RESPONSES`].
    pub first_responses: Vec<u64>,
    /// Of [`LATENCIES`].
    pub latencies: Vec<u64>,
}

impl Default for Buckets {
    fn default() -> Self {
        let ms = |bounds: &[u64]| bounds.iter().map(|ms| ms * NS_PER_MS).collect();
        let mut latencies = vec![NS_PER_MS / 4, NS_PER_MS / 2];
        latencies.append(&mut ms(&[
            1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 300, 500, 1000, 2000, 10_000,
        ]));
        Self {
            // Those of Triton.
            first_responses: ms(&[100, 500, 2000, 5000]),
            latencies,
        }
    }
}

impl Buckets {
    /// Those that a configuration states, others as they are without one; and paths of what it states
    /// of other metrics.
    ///
    /// # Errors
    /// Bounds that a histogram cannot have.
    pub fn of(stated: Option<&ModelMetrics>) -> Result<(Self, Vec<String>)> {
        let mut buckets = Self::default();
        let mut ignored = Vec::new();
        for control in stated.iter().flat_map(|metrics| &metrics.metric_control) {
            let family = control.metric_identifier.as_ref();
            let name = family.map_or("", |family| family.family.as_str());
            let (family, own) = match name {
                _ if name == FIRST_RESPONSES.name => {
                    (FIRST_RESPONSES, &mut buckets.first_responses)
                }
                _ if name == LATENCIES.name => (LATENCIES, &mut buckets.latencies),
                _ => {
                    let name = cut(name, MOST_NAME);
                    ignored.push(format!("model_metrics.metric_control[{name:?}]"));
                    continue;
                }
            };
            if let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options {
                *own = bounds(family, &options.buckets)?;
            }
        }
        Ok((buckets, ignored))
    }
}

/// Bounds in nanoseconds of those that are stated in a histogram's unit.
fn bounds(family: Family, stated: &[f64]) -> Result<Vec<u64>> {
    let what = || format!("model_metrics: buckets of {}", family.name);
    if stated.is_empty() || stated.len() > MOST {
        let expected = format!("1 to {MOST} bounds");
        return Err(Error::expected(what(), expected, stated.len()));
    }
    let mut bounds = Vec::with_capacity(stated.len());
    for &bound in stated {
        // Beyond what fits it saturates, and not a number is 0.
        let ns = (bound * family.unit as f64).round() as u64;
        if ns == 0 || ns > LONGEST || bounds.last().is_some_and(|&last| ns <= last) {
            let expected = "bounds of a nanosecond to a day, each above the one before";
            return Err(Error::expected(what(), expected, format!("{stated:?}")));
        }
        bounds.push(ns);
    }
    Ok(bounds)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn buckets(text: &str) -> Result<(Buckets, Vec<String>)> {
        let config = Config::parse("c", text).unwrap();
        assert_eq!(config.ignored, [""; 0], "by name: {text}");
        Buckets::of(config.proto.model_metrics.as_ref())
    }

    fn control(family: &str, bounds: &str) -> String {
        let options = format!("histogram_options {{ buckets: [{bounds}] }}");
        format!(
            "model_metrics {{ metric_control {{ metric_identifier {{ family: {family:?} }} \
             {options} }} }} "
        )
    }

    #[test]
    fn bounds_are_those_that_are_stated_in_the_unit_of_their_histogram() {
        let (plain, _) = buckets("").unwrap();
        let both = control(FIRST_RESPONSES.name, "0.5, 20") + &control(LATENCIES.name, "0.001, 3");
        let (own, ignored) = buckets(&both.replace("} model_metrics {", "")).unwrap();
        assert_eq!(own.first_responses, [500_000, 20_000_000]);
        assert_eq!(own.latencies, [1_000_000, 3_000_000_000]);
        assert_eq!(ignored, [""; 0]);
        let (other, ignored) = buckets(&control("nv_inference_count", "1")).unwrap();
        assert_eq!(
            ignored,
            ["model_metrics.metric_control[\"nv_inference_count\"]"]
        );
        assert_eq!(other.latencies, plain.latencies);
        assert_eq!(other.first_responses, plain.first_responses);
        assert!(plain.latencies.is_sorted() && plain.first_responses.is_sorted());
    }

    #[test]
    fn bounds_that_a_histogram_cannot_have_are_refused() {
        for stated in [
            "", "0", "-1", "5, 5", "7, 5", "nan", "inf", "1e12", "1, 1e-9",
        ] {
            let told = buckets(&control(FIRST_RESPONSES.name, stated)).unwrap_err();
            let told = told.to_string();
            assert!(
                told.starts_with("model_metrics: buckets of nv_inference_first_response"),
                "{told}"
            );
        }
        let many: Vec<String> = (1..258).map(|i| i.to_string()).collect();
        let told = buckets(&control(LATENCIES.name, &many.join(", "))).unwrap_err();
        assert!(
            told.to_string().contains("1 to 256 bounds, got 257"),
            "{told}"
        );
    }
}
