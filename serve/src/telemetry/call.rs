//! The span of an inference call, from its head to its end.
//!
//! Names and attributes are those of OpenTelemetry's semantic conventions for HTTP and RPC where it
//! has some, and begin with `lazybatch.` where it has not. Texts that clients choose are cut.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{FromRequestParts, MatchedPath, OriginalUri};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use lazybatch_engine::Launches;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, TraceId, Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use super::Telemetry;
use crate::error::Error;
use crate::explained::{MOST_NAME, cut};
use crate::infer::{Answer, Passage, Request, class_of};
use crate::model::Served;
use crate::state::State;
use crate::traces::Trace;

/// Most bytes of a text that the server made.
const MOST_TOLD: usize = 1024;
/// The service of gRPC, before the names of its methods.
const SERVICE: &str = "inference.GRPCInferenceService";

/// The span of a call, and its trace in a file; nothing where neither is made. Dropped before
/// [`Traced::end`] it is that of a call that its client left.
#[derive(Default)]
pub struct Traced {
    span: Option<Box<Open>>,
    /// For a file.
    file: Option<Box<Trace>>,
}

/// What a call came over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Grpc,
}

struct Open {
    span: Span,
    tracer: SdkTracer,
    protocol: Protocol,
    /// Whether a part of the answer was sent.
    has_responded: bool,
    /// Whether the status of HTTP was sent.
    has_status: bool,
}

impl Traced {
    /// Of a call over HTTP to `path`, which matched `route`.
    pub fn http(
        state: &State,
        method: &Method,
        route: &str,
        path: &str,
        headers: &HeaderMap,
    ) -> Self {
        let file = state.traces.comes(true);
        let Some(telemetry) = &state.telemetry else {
            return Self { span: None, file };
        };
        let name = format!("{method} {route}").into();
        let parent = telemetry.parent(headers);
        let mut open = Open::new(telemetry, name, Protocol::Http, &parent);
        if open.span.is_recording() {
            let attributes = [
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("url.path", cut(path, MOST_NAME)),
                KeyValue::new("url.scheme", telemetry.scheme),
                KeyValue::new("network.protocol.name", "http"),
            ];
            open.span.set_attributes(attributes);
            let agent = headers.get(header::USER_AGENT);
            if let Some(agent) = agent.and_then(|a| a.to_str().ok()) {
                let agent = cut(agent, MOST_NAME);
                open.set("user_agent.original", agent);
            }
        }
        let span = Some(Box::new(open));
        Self { span, file }
    }

    /// Of a call of `method` over gRPC that belongs to `parent`.
    pub fn grpc(state: &State, method: &'static str, parent: Option<&Context>) -> Self {
        let file = state.traces.comes(false);
        let (Some(telemetry), Some(parent)) = (&state.telemetry, parent) else {
            return Self { span: None, file };
        };
        let name = format!("{SERVICE}/{method}");
        let mut open = Open::new(telemetry, name.clone().into(), Protocol::Grpc, parent);
        if open.span.is_recording() {
            let attributes = [
                KeyValue::new("rpc.system.name", "grpc"),
                KeyValue::new("rpc.method", name),
            ];
            open.span.set_attributes(attributes);
        }
        let span = Some(Box::new(open));
        Self { span, file }
    }

    /// All of the call was read.
    pub fn read(&mut self) {
        if let Some(file) = &mut self.file {
            file.read();
        }
    }

    /// The trace that it belongs to.
    pub fn trace(&self) -> Option<TraceId> {
        let open = self.span.as_ref()?;
        Some(open.span.span_context().trace_id())
    }

    /// What the call asks of whom.
    pub fn asks(&mut self, served: &Served, request: &mut Request) {
        request.count = self.recording().is_some();
        let file = self.file.take();
        self.file = file.and_then(|file| file.asks(served, request));
        let Some(open) = self.recording() else { return };
        let priority = request.params.number("priority").ok().flatten();
        let class = class_of(served, request);
        let priority = served.settings.priority(priority.unwrap_or(0), class);
        let attributes = [
            KeyValue::new("lazybatch.model.name", cut(&served.name, MOST_NAME)),
            KeyValue::new("lazybatch.model.version", served.version.to_string()),
            KeyValue::new("lazybatch.class", class.to_owned()),
            KeyValue::new("lazybatch.priority", i64::from(priority)),
        ];
        open.span.set_attributes(attributes);
        if !request.id.is_empty() {
            open.set("lazybatch.request.id", cut(&request.id, MOST_NAME));
        }
    }

    /// The status of HTTP is sent, and the answer comes behind it.
    pub fn opens(&mut self) {
        if let Some(open) = &mut self.span {
            open.has_status = true;
        }
    }

    /// A part of the answer came; the first one is an event.
    pub fn responds(&mut self) {
        if let Some(file) = &mut self.file {
            file.responds();
        }
        if let Some(open) = self.recording()
            && !std::mem::replace(&mut open.has_responded, true)
        {
            open.span.add_event("lazybatch.first_response", Vec::new());
        }
    }

    /// The whole answer came.
    pub fn answered(&mut self, served: &Served, answer: &Answer) {
        if let Some(file) = &mut self.file {
            file.answered(served, answer);
        }
        let Some(open) = self.recording() else { return };
        if let Some(why) = &answer.explanation {
            open.set("lazybatch.explanation", cut(why, MOST_TOLD));
        }
        match &answer.passage {
            Some(passage) => open.passed(served, passage),
            None => open.set("lazybatch.cache_hit", true),
        }
    }

    /// The call ends now.
    pub fn end(mut self, error: Option<&Error>) {
        if let Some(file) = self.file.take() {
            file.ends();
        }
        if let Some(open) = self.span.take() {
            open.end(error);
        }
    }

    /// As [`Traced::end`] with the error of a result, which is given back.
    pub fn ends<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        self.end(result.as_ref().err());
        result
    }

    fn recording(&mut self) -> Option<&mut Open> {
        let open = self.span.as_deref_mut();
        open.filter(|open| open.span.is_recording())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(open) = self.span.take() {
            match std::thread::panicking() {
                true => open.end(Some(&Error::Internal("the server has a bug".into()))),
                false => open.left(),
            }
        }
    }
}

impl Open {
    fn new(
        telemetry: &Telemetry,
        name: Cow<'static, str>,
        protocol: Protocol,
        parent: &Context,
    ) -> Self {
        let span = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        Self {
            span: telemetry.tracer.build_with_context(span, parent),
            tracer: telemetry.tracer.clone(),
            protocol,
            has_responded: false,
            has_status: false,
        }
    }

    fn set(&mut self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.span.set_attribute(KeyValue::new(key, value));
    }

    /// Its way through the engine, with a span for waiting and one for what came then.
    fn passed(&mut self, served: &Served, passage: &Passage) {
        let waited = passage.first_launch.since(passage.arrival);
        let ran = passage.finish.since(passage.first_launch);
        let attributes = [
            KeyValue::new("lazybatch.outcome", passage.outcome.name()),
            KeyValue::new("lazybatch.samples", whole(passage.samples)),
            KeyValue::new("lazybatch.requests", whole(passage.requests)),
            KeyValue::new("lazybatch.queue_seconds", waited.0 as f64 / 1e9),
            KeyValue::new("lazybatch.compute_seconds", ran.0 as f64 / 1e9),
        ];
        self.span.set_attributes(attributes);
        if let Some(launches) = passage.launches.as_ref().filter(|l| l.num > 0) {
            self.launched(launches);
        }
        let own = self.span.span_context().clone();
        let within = Context::new().with_remote_span_context(own);
        let (now, date) = (served.now(), date());
        let at = |time| {
            let ago = Duration::from_nanos(now.since(time).0);
            date.checked_sub(ago).unwrap_or(date)
        };
        let parts = [
            ("queue", passage.arrival, passage.first_launch),
            ("compute", passage.first_launch, passage.finish),
        ];
        for (name, from, to) in parts {
            let part = SpanBuilder::from_name(name).with_start_time(at(from));
            let mut part = self.tracer.build_with_context(part, &within);
            part.end_with_timestamp(at(to));
        }
    }

    fn launched(&mut self, launches: &Launches) {
        let sizes = launches.sizes.iter().map(|&size| i64::from(size));
        let sizes = opentelemetry::Array::I64(sizes.collect());
        let mean = launches.samples as f64 / f64::from(launches.num);
        self.span.set_attributes([
            KeyValue::new("lazybatch.launches", i64::from(launches.num)),
            KeyValue::new("lazybatch.launch.mean_samples", mean),
            KeyValue::new(
                "lazybatch.launch.samples",
                opentelemetry::Value::Array(sizes),
            ),
            KeyValue::new("lazybatch.joined", i64::from(launches.joined)),
            KeyValue::new("lazybatch.interrupted", i64::from(launches.interrupted)),
        ]);
    }

    /// The call ends with its answer, or without.
    fn end(mut self, error: Option<&Error>) {
        if self.span.is_recording() {
            let http = error.filter(|_| !self.has_status);
            let http = http.map_or(200, |e| e.http().as_u16());
            let code = error.map_or("OK", code);
            match self.protocol {
                Protocol::Http => self.set("http.response.status_code", i64::from(http)),
                Protocol::Grpc => self.set("rpc.response.status_code", code),
            }
            if let Some(error) = error {
                self.failed(error);
            }
        }
        self.span.end();
    }

    fn failed(&mut self, error: &Error) {
        match self.protocol {
            Protocol::Http => self.set("error.type", error.http().as_u16().to_string()),
            Protocol::Grpc => self.set("error.type", code(error)),
        }
        let message = cut(&error.to_string(), MOST_TOLD);
        self.set("error.message", message.clone());
        match error {
            Error::Unavailable(_) => self.set("lazybatch.outcome", "shed"),
            Error::Internal(_) => self.set("lazybatch.outcome", "failed"),
            _ => {}
        }
        // By the conventions what is the caller's fault leaves the status of a server's span alone.
        if !matches!(error, Error::Invalid(_) | Error::NotFound(_)) {
            self.span.set_status(Status::error(message));
        }
    }

    /// The client went before the end.
    fn left(mut self) {
        if self.span.is_recording() {
            self.set("error.type", "cancelled");
            self.set("lazybatch.outcome", "cancelled");
            match self.protocol {
                Protocol::Http if self.has_status => self.set("http.response.status_code", 200),
                Protocol::Http => {}
                Protocol::Grpc => self.set("rpc.response.status_code", "CANCELLED"),
            }
        }
        self.span.end();
    }
}

/// What a call of gRPC belongs to; nothing where no spans are made.
pub fn parent(state: &State, metadata: &HeaderMap) -> Option<Context> {
    let telemetry = state.telemetry.as_ref()?;
    Some(telemetry.parent(metadata))
}

impl FromRequestParts<Arc<State>> for Traced {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<Self, Infallible> {
        let Parts {
            method,
            uri,
            headers,
            extensions,
            ..
        } = parts;
        let route = extensions.get::<MatchedPath>();
        let uri = extensions.get::<OriginalUri>().map_or(&*uri, |u| &u.0);
        let route = route.map_or("", MatchedPath::as_str);
        Ok(Self::http(state, method, route, uri.path(), headers))
    }
}

/// The name of an error's code, which the conventions write in capitals.
fn code(error: &Error) -> &'static str {
    match error {
        Error::Invalid(_) => "INVALID_ARGUMENT",
        Error::NotFound(_) => "NOT_FOUND",
        Error::Unavailable(_) => "UNAVAILABLE",
        Error::Exists(_) => "ALREADY_EXISTS",
        Error::Unsupported(_) => "UNIMPLEMENTED",
        Error::Internal(_) => "INTERNAL",
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[allow(
    clippy::disallowed_methods,
    reason = "spans and traces are told by the date; nothing else depends on it"
)]
pub fn date() -> SystemTime {
    SystemTime::now()
}
