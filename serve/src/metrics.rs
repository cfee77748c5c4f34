//! `/metrics` in the text format of Prometheus: the names that Triton's dashboards use, and ours.
//!
//! Figures are read from the models when they are asked for; nothing is counted twice.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use lazybatch_engine::{Figures, Monitor, Planning};
use lazybatch_sla::Histogram;
use prometheus::proto::{Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::config::buckets::{FIRST_RESPONSES, LATENCIES};
use crate::error::{Error, Result};
use crate::gpus::{self, Gpus};
use crate::machine;
use crate::model::Served;
use crate::state::State;
use crate::stats::{REASONS, Stats};

/// The one path.
pub fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(state)
}

async fn metrics(Shared(state): Shared<Arc<State>>) -> Result<impl IntoResponse> {
    // A driver of GPUs is asked, which may take its time.
    let text = match &state.gpus {
        Some(_) => tokio::task::spawn_blocking(move || render(&state))
            .await
            .map_err(|e| Error::Internal(format!("figures: {e}")))??,
        None => render(&state)?,
    };
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    ))
}

/// A figure.
enum Value {
    Number(f64),
    /// Counts by bounds, and how many of its units are one of the metric's.
    Counts(Histogram, f64),
}

/// A figure of a model: its further labels and its value.
type Sample = (Vec<(&'static str, String)>, Value);

/// A family of figures, none or more for each model.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    of: fn(&Told) -> Vec<Sample>,
}

/// A model, with what its engine tells of it.
struct Told {
    served: Arc<Served>,
    figures: Figures,
}

const NS_PER_S: f64 = 1e9;

const fn counter(name: &'static str, help: &'static str, of: fn(&Told) -> Vec<Sample>) -> Family {
    let kind = MetricType::COUNTER;
    Family {
        name,
        help,
        kind,
        of,
    }
}

const fn gauge(name: &'static str, help: &'static str, of: fn(&Told) -> Vec<Sample>) -> Family {
    let kind = MetricType::GAUGE;
    Family {
        name,
        help,
        kind,
        of,
    }
}

const fn histogram(name: &'static str, help: &'static str, of: fn(&Told) -> Vec<Sample>) -> Family {
    let kind = MetricType::HISTOGRAM;
    Family {
        name,
        help,
        kind,
        of,
    }
}

fn one(value: u64) -> Vec<Sample> {
    vec![(Vec::new(), Value::Number(value as f64))]
}

fn us(of: fn(&Stats) -> u64, told: &Told) -> Vec<Sample> {
    one(of(&told.served.stats) / 1000)
}

const FAMILIES: &[Family] = &[
    counter(
        "nv_inference_request_success",
        "Requests that were answered",
        |m| one(m.served.stats.success.count()),
    ),
    counter(
        "nv_inference_request_failure",
        "Requests that were not, by reason",
        |m| {
            let reasons = REASONS.iter().zip(m.served.stats.failures());
            reasons
                .map(|(reason, num)| {
                    (
                        vec![("reason", (*reason).to_owned())],
                        Value::Number(num as f64),
                    )
                })
                .collect()
        },
    ),
    counter("nv_inference_count", "Samples that were answered", |m| {
        one(m.served.stats.inferences.load(Relaxed))
    }),
    counter(
        "nv_inference_exec_count",
        "Samples over the mean number of samples of a node's launch",
        |m| one(m.served.executions().0),
    ),
    counter(
        "nv_inference_request_duration_us",
        "From arrival to answer",
        |m| us(|s| s.success.ns(), m),
    ),
    counter(
        "nv_inference_queue_duration_us",
        "From arrival to the first launch",
        |m| us(|s| s.queue.ns(), m),
    ),
    counter(
        "nv_inference_compute_input_duration_us",
        "Reading of inputs",
        |m| us(|s| s.compute_input.ns(), m),
    ),
    counter(
        "nv_inference_compute_infer_duration_us",
        "From the first launch to the end",
        |m| us(|s| s.compute_infer.ns(), m),
    ),
    counter(
        "nv_inference_compute_output_duration_us",
        "Writing of outputs",
        |m| us(|s| s.compute_output.ns(), m),
    ),
    counter(
        "nv_cache_num_hits_per_model",
        "Answers from the response cache",
        |m| one(m.served.stats.cache_hit.count()),
    ),
    counter(
        "nv_cache_num_misses_per_model",
        "Answers that the response cache did not have",
        |m| one(m.served.stats.cache_miss.count()),
    ),
    counter(
        "nv_cache_hit_duration_per_model",
        "Lookup and writing of answers from the response cache, microseconds",
        |m| us(|s| s.cache_hit.ns(), m),
    ),
    counter(
        "nv_cache_miss_duration_per_model",
        "Lookup and keeping of answers that were not there, microseconds",
        |m| us(|s| s.cache_miss.ns(), m),
    ),
    gauge(
        "nv_inference_pending_request_count",
        "Requests of the engine that wait for their first launch",
        |m| one(m.figures.waiting as u64),
    ),
    gauge(
        "lazybatch_requests_open",
        "Requests that have not ended, whether they wait or run",
        |m| {
            let open = m.served.stats.pending.load(Relaxed);
            vec![(Vec::new(), Value::Number(open as f64))]
        },
    ),
    gauge(
        "lazybatch_sequences_open",
        "Sequences that may go on: they began, and neither ended, nor were idle for too long, nor broke",
        |m| one(m.served.num_sequences() as u64),
    ),
    histogram(
        FIRST_RESPONSES.name,
        "From arrival to the first response, of decoupled models",
        |m| {
            let is_told = m.served.settings.decoupled;
            let first = is_told.then(|| m.served.stats.first_responses());
            let first = first.map(|h| (Vec::new(), Value::Counts(h, FIRST_RESPONSES.unit as f64)));
            first.into_iter().collect()
        },
    ),
    histogram(
        "lazybatch_node_batch",
        "Samples of launches of nodes",
        |m| vec![(Vec::new(), Value::Counts(m.figures.sizes.histogram(), 1.0))],
    ),
    histogram(
        LATENCIES.name,
        "From arrival to answer, by SLA class",
        |m| {
            let latencies = m.served.stats.latencies().into_iter();
            latencies
                .map(|(class, h)| {
                    (
                        vec![("class", class)],
                        Value::Counts(h, LATENCIES.unit as f64),
                    )
                })
                .collect()
        },
    ),
    gauge(
        "lazybatch_waiting",
        "Requests of the engine whose turn has not come",
        |m| one(m.figures.waiting as u64),
    ),
    gauge(
        "lazybatch_in_flight",
        "Requests of the engine in its batch table",
        |m| one(m.figures.in_flight.into()),
    ),
    gauge(
        "lazybatch_queue_age_seconds",
        "How long the request that came first has waited",
        |m| {
            let oldest = m.figures.oldest.unwrap_or_default();
            vec![(Vec::new(), Value::Number(oldest.0 as f64 / NS_PER_S))]
        },
    ),
    counter("lazybatch_node_launches_total", "Launches of nodes", |m| {
        one(m.figures.counters.launches)
    }),
    counter(
        "lazybatch_node_samples_total",
        "Samples of all launches of nodes",
        |m| one(m.figures.counters.batched),
    ),
    counter(
        "lazybatch_merges_total",
        "Sub-batches that joined another",
        |m| one(m.figures.counters.merges),
    ),
    counter(
        "lazybatch_preemptions_total",
        "Times that newer work went first",
        |m| one(m.figures.counters.preemptions),
    ),
    counter(
        "lazybatch_decisions_total",
        "Decisions with a real choice",
        |m| one(m.figures.counters.decisions),
    ),
    counter(
        "lazybatch_requests_total",
        "Requests by SLA class and outcome",
        |m| {
            let outcomes = m.served.stats.outcomes().into_iter();
            outcomes
                .map(|((class, outcome), num)| {
                    let labels = vec![("class", class), ("outcome", outcome.name().to_owned())];
                    (labels, Value::Number(num as f64))
                })
                .collect()
        },
    ),
];

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn metric(labels: Vec<LabelPair>, kind: MetricType, value: Value) -> Metric {
    let mut metric = Metric::from_label(labels);
    match value {
        Value::Counts(counts, unit) => metric.set_histogram(buckets(&counts, unit)),
        Value::Number(value) if kind == MetricType::COUNTER => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Value::Number(value) => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
    }
    metric
}

fn buckets(counts: &Histogram, unit: f64) -> prometheus::proto::Histogram {
    let buckets = counts.at_most().map(|(bound, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound as f64 / unit);
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut histogram = prometheus::proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(counts.count());
    histogram.set_sample_sum(counts.sum() as f64 / unit);
    histogram
}

fn render(state: &State) -> Result<String> {
    let served = state.repository.served().into_iter();
    let told: Vec<Told> = served
        .map(|served| Told {
            figures: served.figures(),
            served,
        })
        .collect();
    let mut families = Vec::new();
    for family in FAMILIES {
        let metrics: Vec<Metric> = told
            .iter()
            .flat_map(|model| {
                let samples = (family.of)(model).into_iter();
                samples.map(|sample| (&model.served, sample))
            })
            .map(|(model, (more, value))| {
                let mut labels = vec![
                    label("model", &model.name),
                    label("version", &model.version.to_string()),
                ];
                let tags = model.settings.tags.iter();
                labels.extend(tags.map(|(name, value)| label(name, value)));
                labels.extend(more.iter().map(|(name, value)| label(name, value)));
                metric(labels, family.kind, value)
            })
            .collect();
        families.push(named(family.name, family.help, family.kind, metrics));
    }
    let engines = state.repository.engines();
    families.extend(of_plans(&engines));
    let decisions = engines.iter().map(|(name, engine)| {
        let value = Value::Counts(engine.decisions(), NS_PER_S);
        metric(vec![label("engine", name)], MetricType::HISTOGRAM, value)
    });
    families.push(named(
        "lazybatch_decision_seconds",
        "Time of decisions with a real choice, by engine",
        MetricType::HISTOGRAM,
        decisions.collect(),
    ));
    for (name, help, value) in whole(state) {
        let value = value.map(|v| metric(Vec::new(), MetricType::GAUGE, Value::Number(v)));
        let values = value.into_iter().collect();
        families.push(named(name, help, MetricType::GAUGE, values));
    }
    let refused = state.refused().map(|(cause, num)| {
        let labels = vec![label("cause", cause)];
        metric(labels, MetricType::COUNTER, Value::Number(num as f64))
    });
    families.push(named(
        "lazybatch_calls_refused_total",
        "Calls that found no room in the server, by cause",
        MetricType::COUNTER,
        refused.into(),
    ));
    families.extend(of_gpus(state.gpus.as_deref()));
    for (name, help, count) in sent(state) {
        let count = metric(Vec::new(), MetricType::COUNTER, Value::Number(count as f64));
        families.push(named(name, help, MetricType::COUNTER, vec![count]));
    }
    families.retain(|f| !f.get_metric().is_empty());
    prometheus::TextEncoder::new()
        .encode_to_string(&families)
        .map_err(|e| Error::Internal(e.to_string()))
}

/// What plans came to, of engines whose policy decides by one of several rules.
fn of_plans(engines: &[(String, Monitor)]) -> [MetricFamily; 3] {
    let kind = MetricType::COUNTER;
    let planning = engines
        .iter()
        .map(|(name, engine)| (name, engine.now(), engine.planning()));
    let planning: Vec<_> = planning.filter(|(.., p)| p.rule.is_some()).collect();
    let counter = |name, help, of: fn(&Planning) -> u64| {
        let each = planning.iter().map(|(engine, _, planning)| {
            let value = Value::Number(of(planning) as f64);
            metric(vec![label("engine", engine)], kind, value)
        });
        named(name, help, kind, each.collect())
    };
    let held = planning.iter().flat_map(|(engine, now, planning)| {
        let held = planning.held(*now).into_iter();
        held.map(|(rule, ns)| {
            let labels = vec![label("engine", engine), label("rule", &rule)];
            metric(labels, kind, Value::Number(ns.0 as f64 / NS_PER_S))
        })
    });
    [
        counter(
            "lazybatch_plans_total",
            "Plans that compared the rules which the policy decides by",
            |p| p.plans,
        ),
        counter(
            "lazybatch_rule_changes_total",
            "How often another rule came to decide",
            |p| p.changes,
        ),
        named(
            "lazybatch_rule_seconds_total",
            "For how long rules have decided",
            kind,
            held.collect(),
        ),
    ]
}

/// Figures of GPUs; those that they do not tell have no values.
fn of_gpus(gpus: Option<&dyn Gpus>) -> Vec<MetricFamily> {
    let gpus = gpus.map(Gpus::look).unwrap_or_default();
    let family = |(name, help, grows, of): gpus::Figure| {
        let kind = match grows {
            true => MetricType::COUNTER,
            false => MetricType::GAUGE,
        };
        let values = gpus.iter().filter_map(|gpu| {
            let labels = vec![label("gpu_uuid", &gpu.uuid)];
            Some(metric(labels, kind, Value::Number(of(gpu)?)))
        });
        named(name, help, kind, values.collect())
    };
    gpus::FIGURES.into_iter().map(family).collect()
}

/// Counts of spans and of traces in files, where there are some.
fn sent(state: &State) -> Vec<(&'static str, &'static str, u64)> {
    let mut all = Vec::new();
    if let Some(telemetry) = &state.telemetry {
        let counts = telemetry.counts();
        all.extend([
            (
                "lazybatch_spans_sent_total",
                "Spans of OpenTelemetry that the collector took",
                counts.sent(),
            ),
            (
                "lazybatch_spans_dropped_total",
                "Spans of OpenTelemetry that were lost",
                counts.dropped(),
            ),
        ]);
    }
    if let Some(counts) = state.traces.counts() {
        all.extend([
            (
                "lazybatch_traces_written_total",
                "Traces of calls that are in files",
                counts.written(),
            ),
            (
                "lazybatch_traces_dropped_total",
                "Traces of calls that were lost",
                counts.dropped(),
            ),
        ]);
    }
    all
}

/// Figures of the server and its machine; those that the system does not tell are left out.
fn whole(state: &State) -> [(&'static str, &'static str, Option<f64>); 5] {
    let memory = machine::memory();
    [
        (
            "lazybatch_calls_in_flight",
            "Inference calls that have not ended",
            Some(state.in_flight() as f64),
        ),
        (
            "lazybatch_process_resident_bytes",
            "Memory of this process",
            machine::resident().map(|b| b as f64),
        ),
        (
            "nv_cpu_utilization",
            "Part of the time since the last look in which processors worked, 0 to 1",
            state.meter.utilization(),
        ),
        (
            "nv_cpu_memory_total_bytes",
            "Memory of the machine",
            memory.map(|m| m.total as f64),
        ),
        (
            "nv_cpu_memory_used_bytes",
            "Memory of the machine that is not available",
            memory.map(|m| m.used as f64),
        ),
    ]
}

fn named(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpu;

    /// Two GPUs, one of which tells little.
    struct Fake;

    impl Gpus for Fake {
        fn look(&self) -> Vec<Gpu> {
            let whole = Gpu {
                uuid: "GPU-1".into(),
                utilization: Some(0.25),
                memory_total: Some(8_000_000_000),
                memory_used: Some(1),
                power_usage: Some(61.5),
                power_limit: Some(700.0),
                energy: Some(12.25),
            };
            let little = Gpu {
                uuid: "GPU-2".into(),
                memory_total: Some(16),
                ..Gpu::default()
            };
            vec![whole, little]
        }
    }

    #[test]
    fn figures_of_gpus_have_the_names_that_dashboards_use() {
        let mut families = of_gpus(Some(&Fake));
        families.retain(|f| !f.get_metric().is_empty());
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&families)
            .unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.25",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-1\"} 8000000000",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-2\"} 16",
            "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"} 1",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 61.5",
            "nv_gpu_power_limit{gpu_uuid=\"GPU-1\"} 700",
            "nv_energy_consumption{gpu_uuid=\"GPU-1\"} 12.25",
        ];
        assert_eq!(lines, expected);
        assert!(
            text.contains("# TYPE nv_energy_consumption counter"),
            "{text}"
        );
        assert!(of_gpus(None).iter().all(|f| f.get_metric().is_empty()));
    }
}
