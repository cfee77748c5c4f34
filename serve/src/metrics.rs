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
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::error::{Error, Result};
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
    let text = render(&state)?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    ))
}

/// A figure of a model: its further labels and its value.
type Sample = (Vec<(&'static str, String)>, f64);

/// A family of figures, one or more for each model.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    of: fn(&Served) -> Vec<Sample>,
}

const fn counter(name: &'static str, help: &'static str, of: fn(&Served) -> Vec<Sample>) -> Family {
    let kind = MetricType::COUNTER;
    Family {
        name,
        help,
        kind,
        of,
    }
}

fn one(value: u64) -> Vec<Sample> {
    vec![(Vec::new(), value as f64)]
}

fn us(of: fn(&Stats) -> u64, served: &Served) -> Vec<Sample> {
    one(of(&served.stats) / 1000)
}

const FAMILIES: &[Family] = &[
    counter(
        "nv_inference_request_success",
        "Requests that were answered",
        |m| one(m.stats.success.count()),
    ),
    counter(
        "nv_inference_request_failure",
        "Requests that were not, by reason",
        |m| {
            let reasons = REASONS.iter().zip(m.stats.failures());
            reasons
                .map(|(reason, num)| (vec![("reason", (*reason).to_owned())], num as f64))
                .collect()
        },
    ),
    counter("nv_inference_count", "Samples that were answered", |m| {
        one(m.stats.inferences.load(Relaxed))
    }),
    counter(
        "nv_inference_exec_count",
        "Samples over the mean number of samples of a node's launch",
        |m| one(m.executions()),
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
        |m| one(m.stats.cache_hit.count()),
    ),
    counter(
        "nv_cache_num_misses_per_model",
        "Answers that the response cache did not have",
        |m| one(m.stats.cache_miss.count()),
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
    Family {
        name: "nv_inference_pending_request_count",
        help: "Requests that have not ended",
        kind: MetricType::GAUGE,
        of: |m| vec![(Vec::new(), m.stats.pending.load(Relaxed) as f64)],
    },
    counter("lazybatch_node_launches_total", "Launches of nodes", |m| {
        one(m.engine().stats().counters.launches)
    }),
    counter(
        "lazybatch_node_samples_total",
        "Samples of all launches of nodes",
        |m| one(m.engine().stats().counters.batched),
    ),
    counter(
        "lazybatch_merges_total",
        "Sub-batches that joined another",
        |m| one(m.engine().stats().counters.merges),
    ),
    counter(
        "lazybatch_preemptions_total",
        "Times that newer work went first",
        |m| one(m.engine().stats().counters.preemptions),
    ),
    counter(
        "lazybatch_decisions_total",
        "Decisions with a real choice",
        |m| one(m.engine().stats().counters.decisions),
    ),
    counter(
        "lazybatch_requests_total",
        "Requests by SLA class and outcome",
        |m| {
            let outcomes = m.stats.outcomes().into_iter();
            outcomes
                .map(|((class, outcome), num)| {
                    let labels = vec![("class", class), ("outcome", outcome.name().to_owned())];
                    (labels, num as f64)
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

fn metric(kind: MetricType, labels: Vec<LabelPair>, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels);
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}

fn render(state: &State) -> Result<String> {
    let served = state.repository.served();
    let mut families = Vec::new();
    for family in FAMILIES {
        let metrics: Vec<Metric> = served
            .iter()
            .flat_map(|model| {
                (family.of)(model)
                    .into_iter()
                    .map(move |sample| (model, sample))
            })
            .map(|(model, (more, value))| {
                let mut labels = vec![
                    label("model", &model.name),
                    label("version", &model.version.to_string()),
                ];
                labels.extend(more.iter().map(|(name, value)| label(name, value)));
                metric(family.kind, labels, value)
            })
            .collect();
        families.push(named(family.name, family.help, family.kind, metrics));
    }
    let in_flight = metric(MetricType::GAUGE, Vec::new(), state.in_flight() as f64);
    let help = "Inference calls that have not ended";
    families.push(named(
        "lazybatch_calls_in_flight",
        help,
        MetricType::GAUGE,
        vec![in_flight],
    ));
    families.retain(|f| !f.get_metric().is_empty());
    prometheus::TextEncoder::new()
        .encode_to_string(&families)
        .map_err(|e| Error::Internal(e.to_string()))
}

fn named(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}
