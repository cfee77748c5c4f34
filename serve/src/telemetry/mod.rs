//! Spans of inference calls for OpenTelemetry, sent to a collector by OTLP over gRPC.
//!
//! Where no collector is named there is no [`Telemetry`], and a call looks at that once. Otherwise a
//! call has a [`Traced`], which ends with it; ended spans wait in a bounded queue for a task that
//! sends them. Nothing waits for the collector but that task, and the end of the server for a while.

mod call;
mod queue;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, Uri};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SdkTracer, SdkTracerProvider, SpanExporter as _,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) use call::date;
pub use call::{Traced, parent};
pub use queue::Counts;

use crate::error::{Error, Result};
use crate::state::SERVER_NAME;

/// Most bytes of a `tracestate`; a longer one is not handed on.
const MOST_STATE: usize = 512;

/// Where spans go, and of which calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's address, as [`check_endpoint`] takes it.
    pub endpoint: String,
    /// The part of the calls that get a span, 0 to 1, where the caller has not decided that.
    pub sample: f64,
    /// How long the end of the server waits for spans to be sent.
    pub flush: Duration,
}

/// Whether `endpoint` is an address that spans can be sent to: `http://HOST[:PORT]`.
///
/// # Errors
/// Another one.
pub fn check_endpoint(endpoint: &str) -> Result<()> {
    let fits = endpoint.parse::<Uri>().is_ok_and(|uri| {
        let is_bare = uri.path() == "/" && uri.query().is_none();
        // Secrets have no place in an option.
        let is_plain = uri.authority().is_some_and(|a| !a.as_str().contains('@'));
        uri.scheme_str() == Some("http") && is_bare && is_plain
    });
    match fits {
        true => Ok(()),
        false => Err(Error::expected(
            "the endpoint of OTLP",
            "http://HOST:PORT of a collector's gRPC",
            format!("'{endpoint}'"),
        )),
    }
}

/// Makes spans and sends them.
pub struct Telemetry {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    /// Of URLs of HTTP.
    scheme: &'static str,
    counts: Arc<Counts>,
    ending: watch::Sender<bool>,
    sends: Mutex<Option<JoinHandle<()>>>,
    flush: Duration,
}

impl Telemetry {
    /// Sends spans from now on; within a runtime. A collector that cannot be reached is no error.
    ///
    /// # Errors
    /// An endpoint or a part that makes no sense.
    pub fn open(otlp: &Otlp, is_encrypted: bool) -> Result<Self> {
        check_endpoint(&otlp.endpoint)?;
        if !(0.0..=1.0).contains(&otlp.sample) {
            let what = "the part of calls that get a span";
            return Err(Error::expected(what, "0 to 1", otlp.sample));
        }
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(otlp.endpoint.as_str())
            .with_timeout(queue::PATIENCE)
            .build();
        let mut exporter = exporter.map_err(|e| Error::Invalid(format!("OTLP: {e}")))?;
        let resource = resource();
        exporter.set_resource(&resource);
        let counts = Arc::new(Counts::default());
        let (queue, waiting) = queue::channel(counts.clone());
        let (ending, ended) = watch::channel(false);
        let sends = tokio::spawn(queue::send(exporter, waiting, ended, counts.clone()));
        let sampler = Sampler::TraceIdRatioBased(otlp.sample);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_span_processor(queue)
            .build();
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"));
        Ok(Self {
            tracer: provider.tracer_with_scope(scope.build()),
            propagator: TraceContextPropagator::new(),
            scheme: if is_encrypted { "https" } else { "http" },
            counts,
            ending,
            sends: Mutex::new(Some(sends)),
            flush: otlp.flush,
        })
    }

    /// How many spans went where.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What of a trace a call belongs to, as its headers say.
    fn parent(&self, headers: &HeaderMap) -> Context {
        self.propagator
            .extract_with_context(&Context::new(), &Headers(headers))
    }

    /// Sends what waits, for as long as [`Otlp::flush`], and ends.
    pub async fn end(&self) {
        self.ending.send_replace(true);
        let sends = self
            .sends
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut sends) = sends else { return };
        if tokio::time::timeout(self.flush, &mut sends).await.is_err() {
            sends.abort();
            let spans = self.counts.abandon();
            tracing::warn!(spans, "ended with spans that the collector did not take");
        }
    }
}

/// Headers of HTTP, or metadata of gRPC, as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        // Spans wait in memory with what their callers wrote.
        (key != "tracestate" || value.len() <= MOST_STATE).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

/// Who sends: this server, and what `OTEL_RESOURCE_ATTRIBUTES` says of it.
fn resource() -> Resource {
    Resource::builder_empty()
        .with_service_name(SERVER_NAME)
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance()),
            KeyValue::new("telemetry.sdk.name", "opentelemetry"),
            KeyValue::new("telemetry.sdk.language", "rust"),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()))
        .build()
}

/// A name that no other run has: a random UUID.
fn instance() -> String {
    let mut bytes = RandomIdGenerator::default().new_trace_id().to_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex[part].concat());
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_a_scheme_and_an_authority() {
        for good in [
            "http://localhost:4317",
            "http://127.0.0.1:4317/",
            "http://[::1]:4317",
            "http://collector",
        ] {
            assert_eq!(check_endpoint(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "localhost:4317",
            "/",
            "https://localhost:4317",
            "grpc://localhost:4317",
            "http://localhost:4318/v1/traces",
            "http://localhost:4317?a=b",
            "http://user:secret@localhost:4317",
        ] {
            let error = check_endpoint(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("got '{bad}'")), "{error}");
        }
    }

    #[test]
    fn instances_have_names_of_their_own() {
        let name = instance();
        assert_ne!(name, instance());
        assert_eq!(name.len(), 36);
        let parts: Vec<&str> = name.split('-').collect();
        assert_eq!(
            parts.iter().map(|p| p.len()).collect::<Vec<_>>(),
            [8, 4, 4, 4, 12]
        );
        assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']));
    }

    #[test]
    fn long_states_are_not_handed_on() {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", "p".repeat(MOST_STATE + 1).parse().unwrap());
        let get = |headers: &HeaderMap, key| Headers(headers).get(key).map(str::len);
        for (len, kept) in [(MOST_STATE, Some(MOST_STATE)), (MOST_STATE + 1, None)] {
            headers.insert("tracestate", "s".repeat(len).parse().unwrap());
            assert_eq!(get(&headers, "tracestate"), kept);
        }
        assert_eq!(get(&headers, "traceparent"), Some(MOST_STATE + 1));
    }
}
