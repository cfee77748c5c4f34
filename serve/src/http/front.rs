//! The way of plain inference calls past the router.
//!
//! A call of `POST /v2/models/{model}[/versions/{version}]/infer` that neither came packed nor asks
//! for a packed answer needs none of the router's layers, which cost more than the call itself. It is
//! handled here, with the same bounds and the same answers; every other call goes to the router.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, Method, Request, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, poll_immediate};
use hyper::body::Incoming;
use tower::Service;

use super::whole::{self, Whole, unread};
use super::{Target, bug, full, infer};
use crate::error::Result;
use crate::fields;
use crate::state::State;
use crate::telemetry::Traced;
use crate::wakes::Pieces;

/// What a connection of HTTP hands its calls to.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

struct Inner {
    state: Arc<State>,
    router: Router,
    max_body: usize,
    body_timeout: Duration,
}

impl Front {
    /// Before `router`; bodies are at most `max_body` bytes and come whole within `body_timeout`.
    pub fn new(state: Arc<State>, router: Router, max_body: usize, body_timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            state,
            router,
            max_body,
            body_timeout,
        }))
    }
}

impl Inner {
    fn infer(
        self: Arc<Self>,
        target: Target,
        route: &'static str,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response>> + Send {
        let (head, body) = request.into_parts();
        let body = Pieces::new(body);
        // The arguments of an asynchronous function would be kept, and moved, twice.
        async move {
            let (path, headers) = (head.uri.path(), &head.headers);
            let mut traced = Traced::http(&self.state, &head.method, route, path, headers);
            if let Some(full) = full(&self.state, &target, &mut traced) {
                // Who waits to be asked for the body does not send it.
                if !headers.contains_key(header::EXPECT) {
                    let gone = pin!(whole::discard(body, self.max_body));
                    self.in_time(gone).await;
                }
                return traced.ends(Err(full));
            }
            let tab = self.state.memory.tab();
            let read = {
                let reads = pin!(whole::read(body, self.max_body, &tab));
                self.in_time(reads).await
            };
            let read = read.unwrap_or_else(|| Err(unread(TOO_LATE)));
            let body = read.map(|body| Whole { body, tab });
            infer(&self.state, &target, traced, headers, body).await
        }
    }

    /// What `reads` a body, or `None` behind the time that one may take.
    async fn in_time<T>(&self, mut reads: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        // Most bodies came with their heads, and need no timer.
        if let Some(read) = poll_immediate(reads.as_mut()).await {
            return Some(read);
        }
        // All calls would keep room for it.
        let read = Box::pin(tokio::time::timeout(self.body_timeout, reads));
        read.await.ok()
    }
}

type Answered = std::result::Result<Response, Infallible>;

impl Service<Request<Incoming>> for Front {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answered>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let plain = plain(request.method(), request.uri().path(), request.headers());
        let Some((target, route)) = plain else {
            return self.0.router.clone().call(request).boxed();
        };
        let answered = AssertUnwindSafe(self.0.clone().infer(target, route, request));
        let respond = |answered: std::thread::Result<Result<Response>>| {
            let answered = answered.unwrap_or_else(|_| Err(bug()));
            Ok(answered.unwrap_or_else(IntoResponse::into_response))
        };
        answered.catch_unwind().map(respond).boxed()
    }
}

/// What the router's layer says of a body that was not whole at its deadline.
const TOO_LATE: &str = "data was not received within the designated timeout";

/// The model that a plain inference call names, and the router's path for it; `None` of any other
/// call.
fn plain(method: &Method, path: &str, headers: &HeaderMap) -> Option<(Target, &'static str)> {
    let packs = [header::CONTENT_ENCODING, header::ACCEPT_ENCODING];
    let mut packs = fields::first(headers, packs).into_iter().flatten();
    let wants_layers = packs.any(|value| value != "identity");
    // Escaped names are the router's to read.
    if method != Method::POST || wants_layers || path.contains('%') {
        return None;
    }
    let rest = path.strip_prefix("/v2/models/")?.strip_suffix("/infer")?;
    let (model, version) = match rest.split_once('/') {
        None => (rest, ""),
        Some((model, rest)) => (model, rest.strip_prefix("versions/")?),
    };
    let is_named = !model.is_empty() && !version.contains('/');
    let has_version = !version.is_empty() || rest.len() == model.len();
    let route = match version {
        "" => "/v2/models/{model}/infer",
        _ => "/v2/models/{model}/versions/{version}/infer",
    };
    let target = || Target {
        model: model.into(),
        version: version.into(),
    };
    (is_named && has_version).then(|| (target(), route))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(
        method: &Method,
        path: &str,
        headers: &[(header::HeaderName, &str)],
    ) -> Option<[String; 2]> {
        let headers = headers.iter().map(|(k, v)| (k.clone(), v.parse().unwrap()));
        let (target, route) = plain(method, path, &headers.collect())?;
        assert_eq!(route.contains("{version}"), !target.version.is_empty());
        Some([target.model, target.version])
    }

    #[test]
    fn plain_inference_calls_name_a_model_and_perhaps_a_version() {
        let of = |path: &str| target(&Method::POST, path, &[]);
        let some = |model: &str, version: &str| Some([model.to_owned(), version.to_owned()]);
        assert_eq!(of("/v2/models/m/infer"), some("m", ""));
        assert_eq!(of("/v2/models/m/versions/3/infer"), some("m", "3"));
        assert_eq!(of("/v2/models/m/versions/x/infer"), some("m", "x"));
        for other in [
            "/v2/models//infer",
            "/v2/models/m/versions//infer",
            "/v2/models/m/versions/3/4/infer",
            "/v2/models/m/other/3/infer",
            "/v2/models/m/infer/",
            "/v2/models/m%20n/infer",
            "/v2/models/infer",
            "/v2/models/m/generate",
            "/v2/models/m",
            "/infer",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(target(&Method::GET, "/v2/models/m/infer", &[]), None);
    }

    #[test]
    fn packed_calls_are_the_routers() {
        let of = |headers: &[_]| target(&Method::POST, "/v2/models/m/infer", headers).is_some();
        assert!(of(&[(header::CONTENT_TYPE, "application/json")]));
        assert!(of(&[(header::ACCEPT_ENCODING, "identity")]));
        assert!(!of(&[(header::ACCEPT_ENCODING, "gzip, deflate")]));
        assert!(!of(&[(header::CONTENT_ENCODING, "gzip")]));
    }
}
