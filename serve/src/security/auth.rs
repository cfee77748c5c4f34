//! The service in front of all calls of a port, over HTTP and gRPC alike.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::future::Either;
use serde_json::json;
use tower::{Layer, Service};

use super::{Guard, Port, Refusal};
use crate::grpc::Pace;

/// Puts [`Auth`] in front of a service.
pub struct AuthLayer<B> {
    guard: Arc<Guard>,
    port: Port,
    /// Whether the port listens on loopback.
    on_loopback: bool,
    refuse: fn(Refusal) -> Response<B>,
}

impl AuthLayer<axum::body::Body> {
    /// For HTTP at that address: 401 or 403, and the reason as JSON.
    pub fn http(guard: Arc<Guard>, port: Port, at: Option<SocketAddr>) -> Self {
        Self {
            guard,
            port,
            on_loopback: at.is_some_and(|at| at.ip().to_canonical().is_loopback()),
            refuse: refused,
        }
    }
}

impl AuthLayer<tonic::body::Body> {
    /// For gRPC: `UNAUTHENTICATED`.
    pub fn grpc(guard: Arc<Guard>) -> Self {
        Self {
            guard,
            port: Port::Grpc,
            on_loopback: false,
            refuse: |refusal| tonic::Status::unauthenticated(refusal.to_string()).into_http(),
        }
    }
}

impl<B> Clone for AuthLayer<B> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            ..*self
        }
    }
}

fn refused(refusal: Refusal) -> Response<axum::body::Body> {
    let body = axum::Json(json!({ "error": refusal.to_string() }));
    let challenge = match refusal {
        Refusal::Missing => "Bearer realm=\"lazybatch\"",
        Refusal::Unknown => "Bearer realm=\"lazybatch\", error=\"invalid_token\"",
        Refusal::OtherSite | Refusal::OtherHost => {
            return (StatusCode::FORBIDDEN, body).into_response();
        }
    };
    let challenge = [(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))];
    (StatusCode::UNAUTHORIZED, challenge, body).into_response()
}

impl<S, B> Layer<S> for AuthLayer<B> {
    type Service = Auth<S, B>;

    fn layer(&self, inner: S) -> Auth<S, B> {
        Auth {
            inner,
            ask: self.clone(),
        }
    }
}

/// Lets calls pass that [`Guard::admit`] does, before anything of them is read.
pub struct Auth<S, B> {
    inner: S,
    ask: AuthLayer<B>,
}

impl<S: Clone, B> Clone for Auth<S, B> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            ask: self.ask.clone(),
        }
    }
}

impl<S, R, B> Service<Request<R>> for Auth<S, B>
where
    S: Service<Request<R>, Response = Response<B>>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response<B>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let AuthLayer {
            guard,
            port,
            on_loopback,
            refuse,
        } = &self.ask;
        match guard.admit(*port, *on_loopback, request.uri().path(), request.headers()) {
            Ok(()) => {
                // Connections of gRPC bring theirs.
                if let Some(pace) = request.extensions().get::<Arc<Pace>>()
                    && !pace.is_admitted()
                    && guard.is_known(request.uri().path(), request.headers())
                {
                    pace.admit();
                }
                Either::Right(self.inner.call(request))
            }
            Err(refusal) => Either::Left(ready(Ok(refuse(refusal)))),
        }
    }
}
