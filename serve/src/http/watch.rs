//! Our own extensions, under `/lazybatch`: traces and explanations.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::App;
use crate::error::{Error, Result};
use crate::watch;

/// How long to watch.
#[derive(serde::Deserialize)]
pub struct Span {
    #[serde(default = "half_a_second")]
    ms: u64,
}

fn half_a_second() -> u64 {
    500
}

/// How many explanations.
#[derive(serde::Deserialize)]
pub struct Last {
    #[serde(default = "twenty")]
    last: usize,
}

fn twenty() -> usize {
    20
}

type Asked<T> = std::result::Result<Query<T>, QueryRejection>;

fn asked<T>(query: Asked<T>) -> Result<T> {
    query
        .map(|q| q.0)
        .map_err(|e| Error::Invalid(e.body_text()))
}

pub async fn trace(Shared(state): App, query: Asked<Span>) -> Result<impl IntoResponse> {
    let span = Duration::from_millis(asked(query)?.ms);
    let text = watch::trace(&state, span).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text))
}

pub async fn explain(Shared(state): App, query: Asked<Last>) -> Result<Json<Value>> {
    let last = state.repository.explained().last(asked(query)?.last);
    Ok(Json(json!({ "explanations": last })))
}
