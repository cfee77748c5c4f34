//! The protocol over HTTP.

mod body;
mod element;
mod forms;
mod front;
mod generate;
mod json;
mod manage;
mod plain;
mod watch;
mod whole;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State as Shared};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Method, StatusCode, Version};
use axum::middleware::{map_request, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, Predicate};
use tower_http::decompression::RequestDecompressionLayer;

use crate::config;
use crate::dashboard;
use crate::error::{Error, Result};
use crate::infer;
use crate::model::Served;
use crate::proto;
use crate::state::{SERVER_NAME, State};
use crate::telemetry::Traced;

pub use body::{region, wanted};
pub use front::Front;
pub use manage::{index_of, load_model, no_parameter, unload_model};

use whole::{MaxBody, Whole};

type App = Shared<Arc<State>>;

/// What the path of a call names.
struct Path<T>(T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(names)| Self(names))
            .map_err(|e| Error::Invalid(e.body_text()))
    }
}

/// A model, and a version if the path names one.
#[derive(serde::Deserialize)]
struct Target {
    model: String,
    #[serde(default)]
    version: String,
}

impl Target {
    fn get(&self, state: &State) -> Result<Arc<Served>> {
        state.repository.get(&self.model, &self.version)
    }

    /// A call to it was refused before it was a request.
    fn turned_away(&self, state: &State, error: &Error) {
        if let Ok(served) = self.get(state) {
            infer::turned_away(&served, error);
        }
    }
}

/// All paths; bodies are at most `max_body` bytes, unpacked. The page at `/` is there if `has_page`.
pub fn router(state: Arc<State>, max_body: usize, has_page: bool) -> Router {
    let model = Router::new()
        .route("/", get(metadata))
        .route("/ready", get(model_ready))
        .route("/config", get(model_config))
        .route("/stats", get(model_stats))
        .route(
            "/infer",
            post(run)
                .layer(packing())
                .layer(map_request(takes_unpacked)),
        )
        .route("/generate", post(generate::whole))
        .route("/generate_stream", post(generate::stream))
        .route("/trace/setting", get(manage::trace).post(manage::set_trace));
    let root = Router::new()
        .route("/v2", get(server))
        // The status is the answer; KServe's clients read it in the body.
        .route(
            "/v2/health/live",
            get(|| async { Json(json!({ "live": true })) }),
        )
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/stats", get(all_stats))
        .nest("/v2/models/{model}", model.clone())
        .nest("/v2/models/{model}/versions/{version}", model)
        .route("/v2/repository/index", post(manage::index))
        .route("/v2/repository/models/{model}/load", post(manage::load))
        .route("/v2/repository/models/{model}/unload", post(manage::unload))
        .route(
            "/v2/trace/setting",
            get(manage::trace).post(manage::set_trace),
        )
        .route("/v2/logging", get(manage::log).post(manage::set_log))
        .route("/lazybatch/trace", get(watch::trace))
        .route("/lazybatch/explain", get(watch::explain))
        .merge(manage::shared_memory());
    let root = match has_page {
        true => root.merge(dashboard::router()),
        false => root,
    };
    root.fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(max_body))
        .layer(Extension(MaxBody(max_body)))
        .layer(RequestDecompressionLayer::new())
        .layer(map_request(names_its_coding))
        .layer(map_response(unpackable))
        .layer(CatchPanicLayer::custom(|_| bug().into_response()))
        .with_state(state)
}

/// Packs answers for clients that ask for it. Those that do so without knowing it unpack the answers of
/// inference alone, and no errors.
fn packing() -> CompressionLayer<impl Predicate> {
    let succeeded =
        |status: StatusCode, _: Version, _: &HeaderMap, _: &Extensions| status == StatusCode::OK;
    CompressionLayer::new().compress_when(DefaultPredicate::new().and(succeeded))
}

/// Whoever takes no answer as it is and none that can be made gets it as it is all the same, since it
/// was computed: what refuses it is taken out of the head.
async fn takes_unpacked(mut request: Request) -> Request {
    let refuses = |item: &str| {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.find_map(|p| p.strip_prefix("q=")?.parse::<f32>().ok());
        name.eq_ignore_ascii_case("identity") || (name == "*" && quality == Some(0.0))
    };
    let accepted = request.headers().get(ACCEPT_ENCODING);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    if let Some(accepted) = accepted.filter(|value| value.split(',').any(refuses)) {
        let left = accepted.split(',').filter(|item| !refuses(item));
        let left = left.collect::<Vec<_>>().join(",");
        match HeaderValue::try_from(left).ok().filter(|v| !v.is_empty()) {
            Some(left) => drop(request.headers_mut().insert(ACCEPT_ENCODING, left)),
            None => drop(request.headers_mut().remove(ACCEPT_ENCODING)),
        }
    }
    request
}

/// A request whose coding is named as the layer that unpacks it knows it: names have no case, and one has an
/// older spelling too (RFC 9110, 8.4.1).
async fn names_its_coding(mut request: Request) -> Request {
    if let Some(coding) = request.headers_mut().get_mut(CONTENT_ENCODING) {
        for known in ["gzip", "deflate", "identity"] {
            let named = coding.as_bytes();
            let is_older = known == "gzip" && named.eq_ignore_ascii_case(b"x-gzip");
            if is_older || named.eq_ignore_ascii_case(known.as_bytes()) {
                *coding = HeaderValue::from_static(known);
                break;
            }
        }
    }
    request
}

/// What is told of a body that came packed as nobody here unpacks it, which is refused without a word.
async fn unpackable(mut response: Response) -> Response {
    if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let expected = "identity, gzip or deflate";
        let error = Error::expected("content-encoding", expected, "another");
        let json = Json(json!({ "error": error.told() })).into_response();
        let (head, body) = json.into_parts();
        *response.body_mut() = body;
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().extend(head.headers);
    }
    response
}

/// What is answered where the server panicked.
fn bug() -> Error {
    Error::Internal("the server has a bug; its log says more".into())
}

async fn nowhere(method: Method, uri: axum::http::Uri) -> Error {
    Error::NotFound(format!("{method} {}: no such path", uri.path()))
}

async fn wrong_method(method: Method, uri: axum::http::Uri) -> Response {
    let text = format!("{}: the method {method} is not allowed", uri.path());
    (
        StatusCode::METHOD_NOT_ALLOWED,
        Json(json!({ "error": text })),
    )
        .into_response()
}

async fn server(Shared(state): App) -> Json<Value> {
    Json(json!({
        "name": SERVER_NAME,
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": state.extensions(),
    }))
}

fn ok_or_unready(ready: bool) -> StatusCode {
    if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn ready(Shared(state): App) -> (StatusCode, Json<Value>) {
    let is_ready = state.is_ready();
    (ok_or_unready(is_ready), Json(json!({ "ready": is_ready })))
}

async fn model_ready(Shared(state): App, Path(target): Path<Target>) -> Result<StatusCode> {
    match target.get(&state) {
        Ok(_) => Ok(ok_or_unready(state.is_running())),
        Err(Error::Unavailable(_)) => Ok(StatusCode::SERVICE_UNAVAILABLE),
        Err(other) => Err(other),
    }
}

async fn metadata(Shared(state): App, Path(target): Path<Target>) -> Result<Json<Value>> {
    let served = target.get(&state)?;
    let versions = match target.version.is_empty() {
        true => state.repository.versions(&served.name),
        false => vec![served.version],
    };
    Ok(Json(served.metadata(&versions)))
}

async fn model_config(Shared(state): App, Path(target): Path<Target>) -> Result<Json<Value>> {
    let served = target.get(&state)?;
    Ok(Json(config::to_json("ModelConfig", &served.config)))
}

fn stats(of: &[Arc<Served>]) -> Json<Value> {
    let message = proto::ModelStatisticsResponse {
        model_stats: of.iter().map(|served| served.statistics()).collect(),
    };
    Json(config::to_json("ModelStatisticsResponse", &message))
}

async fn model_stats(Shared(state): App, Path(target): Path<Target>) -> Result<Json<Value>> {
    let of = state.repository.get_all(&target.model, &target.version)?;
    Ok(stats(&of))
}

async fn all_stats(Shared(state): App) -> Json<Value> {
    stats(&state.repository.served())
}

async fn run(
    Shared(state): App,
    Path(target): Path<Target>,
    traced: Traced,
    headers: HeaderMap,
    body: Result<Whole>,
) -> Result<Response> {
    infer(&state, &target, traced, &headers, body).await
}

/// Why a call is refused before anything is known of it but its model: the queue is full. It counts
/// as a request then. A server that stops says that instead.
fn full(state: &State, target: &Target, traced: &mut Traced) -> Option<Error> {
    if state.is_stopping() {
        return None;
    }
    let served = target.get(state).ok()?;
    let full = infer::full(&served)?;
    state.rounds.refuse();
    traced.asks(&served, &mut infer::Request::default());
    Some(full)
}

/// An inference call whose body was read, or could not be.
async fn infer(
    state: &State,
    target: &Target,
    mut traced: Traced,
    headers: &HeaderMap,
    body: Result<Whole>,
) -> Result<Response> {
    traced.read();
    let answered = answer(state, target, &mut traced, headers, body).await;
    traced.ends(answered)
}

async fn answer(
    state: &State,
    target: &Target,
    traced: &mut Traced,
    headers: &HeaderMap,
    body: Result<Whole>,
) -> Result<Response> {
    let room = state.enter().inspect_err(|e| {
        if let (Ok(whole), Ok(served)) = (&body, target.get(state)) {
            body::refused(&served, headers, (&whole.body, &whole.tab), e);
        }
        target.turned_away(state, e);
    })?;
    let Whole { body, tab } = body.inspect_err(|e| target.turned_away(state, e))?;
    let served = target.get(state)?;
    let (mut request, answered) = {
        // Its place in a sequence is looked for where it is refused.
        let again = served.is_stateful().then(|| body.clone());
        let ready = served.check_whole("HTTP end point");
        let ready = ready.and_then(|()| body::read(&served, &state.regions, &tab, headers, body));
        let ready = ready.and_then(|ready| {
            room.admit(|| infer::goes_on(&served, &ready.0.params))?;
            Ok(ready)
        });
        ready.inspect_err(|e| {
            if let Some(body) = &again {
                body::refused(&served, headers, (body, &tab), e);
            }
            infer::turned_away(&served, e);
        })?
    };
    request.trace = traced.trace();
    traced.asks(&served, &mut request);
    let binary = request.params.flag("binary_data_output")?;
    let answer = infer::start_in_turn(&served, request)?.finish().await?;
    traced.answered(&served, &answer);
    body::write(&served, binary, &answer, tab, answered.as_deref())
}
