//! A page to watch node-level batching happen. It is made of three files that the program carries;
//! nothing of it comes from elsewhere, and its policy forbids that.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{HeaderName, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{Stream, StreamExt};

use crate::error::Result;
use crate::state::State;
use crate::watch;

/// What a page may load: its own parts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Its paths.
pub fn router() -> Router<Arc<State>> {
    let html = ("text/html; charset=utf-8", include_str!("page.html"));
    let js = ("text/javascript; charset=utf-8", include_str!("page.js"));
    let css = ("text/css; charset=utf-8", include_str!("page.css"));
    Router::new()
        .route("/", get(move || async move { part(html) }))
        .route("/lazybatch/page.js", get(move || async move { part(js) }))
        .route("/lazybatch/page.css", get(move || async move { part(css) }))
        .route("/lazybatch/events", get(events))
}

fn part((content_type, text): (&'static str, &'static str)) -> Response {
    const HEADERS: [(HeaderName, &str); 4] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (HEADERS, [(header::CONTENT_TYPE, content_type)], text).into_response()
}

async fn events(
    Shared(state): Shared<Arc<State>>,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let frames = watch::frames(&state)?;
    Ok(Sse::new(
        frames.map(|frame| Ok(Event::default().data(frame.as_ref()))),
    ))
}
