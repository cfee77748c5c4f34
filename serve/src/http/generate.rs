//! Text in, text out: `generate`, and `generate_stream` with the text as it comes, as server-sent
//! events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{App, Read, Target, params};
use crate::config::{TEXT_INPUT, TEXT_OUTPUT};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::infer::{self, Input, Item, Output, Request, Stepwise, Wanted};
use crate::model::Served;
use crate::state::State;
use crate::telemetry::Traced;

/// Reads a call, and tells its span of it.
fn read(served: &Served, body: Read, traced: &mut Traced) -> Result<Request> {
    let body = body.map_err(|e| Error::Invalid(e.body_text()))?;
    let mut request = parse(served, &body)?;
    request.trace = traced.trace();
    traced.asks(served, &request);
    Ok(request)
}

/// Reads `{"text_input": ..., "parameters": {...}}`; other keys are parameters too.
fn parse(served: &Served, body: &[u8]) -> Result<Request> {
    if !served.known.writes_text {
        let message = format!("model '{}' does not read and write text", served.name);
        return Err(Error::Invalid(message));
    }
    let mut body: IndexMap<String, Value> = serde_json::from_slice(body)
        .map_err(|e| Error::Invalid(format!("failed to parse the request JSON buffer: {e}")))?;
    let text = match body.shift_remove(TEXT_INPUT) {
        Some(Value::String(text)) => text,
        Some(Value::Array(items)) if items.len() == 1 => match &items[0] {
            Value::String(text) => text.clone(),
            other => {
                return Err(Error::expected(
                    format!("'{TEXT_INPUT}'"),
                    "a string",
                    other,
                ));
            }
        },
        other => {
            let got = other.unwrap_or(Value::Null);
            return Err(Error::expected(format!("'{TEXT_INPUT}'"), "a string", got));
        }
    };
    let id = match body.shift_remove("id") {
        Some(Value::String(id)) => id,
        _ => String::new(),
    };
    let nested = match body.shift_remove("parameters") {
        Some(Value::Object(nested)) => nested.into_iter().collect(),
        None => IndexMap::new(),
        Some(other) => return Err(Error::expected("'parameters'", "an object", other)),
    };
    body.extend(nested);
    let data = dtype::join_bytes([text.as_bytes()]).into();
    Ok(Request {
        id,
        params: params(body)?,
        inputs: vec![Input {
            name: TEXT_INPUT.into(),
            data_type: DataType::Bytes,
            shape: if served.batched { vec![1, 1] } else { vec![1] },
            data,
        }],
        wanted: vec![Wanted {
            name: TEXT_OUTPUT.into(),
            ..Wanted::default()
        }],
        trace: None,
    })
}

fn text(output: &Output) -> String {
    let parts = dtype::split_bytes(&output.data).unwrap_or_default();
    parts
        .first()
        .map_or_else(String::new, |p| String::from_utf8_lossy(p).into_owned())
}

fn told(served: &Served, id: &str, text: &str, why: Option<String>) -> Value {
    let mut json = json!({
        "model_name": served.name,
        "model_version": served.version.to_string(),
        TEXT_OUTPUT: text,
    });
    if !id.is_empty() {
        json["id"] = id.into();
    }
    if let Some(why) = why {
        json[explained::TELLS] = why.into();
    }
    json
}

pub async fn whole(
    Shared(state): App,
    Path(target): Path<Target>,
    mut traced: Traced,
    body: Read,
) -> Result<Json<Value>> {
    let answered = answer(&state, &target, &mut traced, body).await;
    traced.ends(answered)
}

async fn answer(
    state: &State,
    target: &Target,
    traced: &mut Traced,
    body: Read,
) -> Result<Json<Value>> {
    let _room = state.enter()?;
    let served = target.get(state)?;
    let request = read(&served, body, traced)?;
    let answer = infer::start(&served, request)?.finish().await?;
    traced.answered(&served, &answer);
    let text = answer.outputs.first().map(text).unwrap_or_default();
    Ok(Json(told(&served, &answer.id, &text, answer.explanation)))
}

/// A text as it grows.
struct Growing {
    steps: Stepwise,
    served: Arc<Served>,
    /// Output that the program's ids come from.
    ids: Vec<i32>,
    /// Bytes of text that were told.
    told: usize,
    traced: Traced,
    _room: OwnedSemaphorePermit,
}

/// What is told at once: a piece of the text, and at the end why the request took its time, if it
/// asks for that.
type Piece = (String, Option<String>);

impl Growing {
    /// The next piece; `None` behind the end or an error.
    async fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            match self.steps.next().await? {
                Ok(Item::Rows { output: 0, rows }) => {
                    self.traced.responds();
                    self.ids.extend(rows.to_i32());
                    let whole = match self.text() {
                        Ok(whole) => whole,
                        Err(error) => return Some(Err(error)),
                    };
                    // A character of several tokens is told when it is whole.
                    if let Some(piece) = self.piece(&whole).filter(|_| !whole.ends_with('\u{fffd}'))
                    {
                        return Some(Ok((piece, None)));
                    }
                }
                Ok(Item::Rows { .. }) => {}
                Ok(Item::End(answer)) => {
                    self.traced.answered(&self.served, &answer);
                    std::mem::take(&mut self.traced).end(None);
                    let whole = answer.outputs.first().map(text).unwrap_or_default();
                    let (rest, why) = (self.piece(&whole), answer.explanation);
                    let has_more = rest.is_some() || why.is_some();
                    return has_more.then(|| Ok((rest.unwrap_or_default(), why)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn text(&self) -> Result<String> {
        let ids = lazybatch_graph::Tensor::from_i32(&[self.ids.len()], &self.ids);
        let codec = self.served.text.as_ref();
        let text = codec.map(|c| c.answer(&[ids])).transpose();
        Ok(text.map_err(Error::Internal)?.flatten().unwrap_or_default())
    }

    /// What of the whole text was not told yet.
    fn piece(&mut self, whole: &str) -> Option<String> {
        let piece = whole.get(self.told..).filter(|p| !p.is_empty())?.to_owned();
        self.told = whole.len();
        Some(piece)
    }
}

pub async fn stream(
    Shared(state): App,
    Path(target): Path<Target>,
    mut traced: Traced,
    body: Read,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let (mut growing, id) = match begin(&state, &target, &mut traced, body) {
        Ok(begun) => begun,
        Err(error) => return traced.ends(Err(error)),
    };
    traced.opens();
    growing.traced = traced;
    let events = futures_util::stream::unfold(Some((growing, id)), |state| async move {
        let (mut growing, id) = state?;
        let (json, goes_on) = match growing.next().await? {
            Ok((piece, why)) => (told(&growing.served, &id, &piece, why), true),
            Err(error) => {
                std::mem::take(&mut growing.traced).end(Some(&error));
                (json!({ "error": error.to_string() }), false)
            }
        };
        let event = Event::default().data(json.to_string());
        Some((Ok(event), goes_on.then_some((growing, id))))
    });
    Ok(Sse::new(events))
}

/// Hands in the request of a stream: its text, and the client's name for it.
fn begin(
    state: &State,
    target: &Target,
    traced: &mut Traced,
    body: Read,
) -> Result<(Growing, String)> {
    let room = state.enter()?;
    let served = target.get(state)?;
    let request = read(&served, body, traced)?;
    let id = request.id.clone();
    let growing = Growing {
        steps: infer::stream(&served, request)?,
        served,
        ids: Vec::new(),
        told: 0,
        traced: Traced::default(),
        _room: room,
    };
    Ok((growing, id))
}
