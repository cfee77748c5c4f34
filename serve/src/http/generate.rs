//! Text in, text out: `generate`, and `generate_stream` with the text as it comes, as server-sent
//! events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::response::sse::{Event, Sse};
use bytes::Bytes;
use futures_util::Stream;
use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{App, Target, params};
use crate::config::{TEXT_INPUT, TEXT_OUTPUT};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::infer::{self, Input, Item, Output, Request, Stepwise, Wanted};
use crate::model::Served;

/// Reads `{"text_input": ..., "parameters": {...}}`; other keys are parameters too.
fn read(served: &Served, body: &[u8]) -> Result<Request> {
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
    })
}

fn text(output: &Output) -> String {
    let parts = dtype::split_bytes(&output.data).unwrap_or_default();
    parts
        .first()
        .map_or_else(String::new, |p| String::from_utf8_lossy(p).into_owned())
}

fn told(served: &Served, id: &str, text: &str) -> Value {
    let mut json = json!({
        "model_name": served.name,
        "model_version": served.version.to_string(),
        TEXT_OUTPUT: text,
    });
    if !id.is_empty() {
        json["id"] = id.into();
    }
    json
}

pub async fn whole(
    Shared(state): App,
    Path(target): Path<Target>,
    body: Bytes,
) -> Result<Json<Value>> {
    let _room = state.enter()?;
    let served = target.get(&state)?;
    let request = read(&served, &body)?;
    let answer = infer::start(&served, request)?.finish().await?;
    let text = answer.outputs.first().map(text).unwrap_or_default();
    let mut told = told(&served, &answer.id, &text);
    if let Some(why) = answer.explanation {
        told[explained::TELLS] = why.into();
    }
    Ok(Json(told))
}

/// A text as it grows.
struct Growing {
    steps: Stepwise,
    served: Arc<Served>,
    /// Output that the program's ids come from.
    ids: Vec<i32>,
    /// Bytes of text that were told.
    told: usize,
    _room: OwnedSemaphorePermit,
}

impl Growing {
    /// The next piece of text; `None` at the end.
    async fn next(&mut self) -> Option<Result<String>> {
        loop {
            match self.steps.next().await? {
                Ok(Item::Rows { output: 0, rows }) => {
                    self.ids.extend(rows.to_i32());
                    let whole = match self.text() {
                        Ok(whole) => whole,
                        Err(error) => return Some(Err(error)),
                    };
                    // A character of several tokens is told when it is whole.
                    if let Some(piece) = self.piece(&whole).filter(|_| !whole.ends_with('\u{fffd}'))
                    {
                        return Some(Ok(piece));
                    }
                }
                Ok(Item::Rows { .. }) => {}
                Ok(Item::End(answer)) => {
                    let whole = answer.outputs.first().map(text).unwrap_or_default();
                    return self.piece(&whole).map(Ok);
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
    body: Bytes,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let room = state.enter()?;
    let served = target.get(&state)?;
    let request = read(&served, &body)?;
    let id = request.id.clone();
    let growing = Growing {
        steps: infer::stream(&served, request)?,
        served,
        ids: Vec::new(),
        told: 0,
        _room: room,
    };
    let events = futures_util::stream::unfold(Some((growing, id)), |state| async move {
        let (mut growing, id) = state?;
        let (json, goes_on) = match growing.next().await? {
            Ok(piece) => (told(&growing.served, &id, &piece), true),
            Err(error) => (json!({ "error": error.to_string() }), false),
        };
        let event = Event::default().data(json.to_string());
        Some((Ok(event), goes_on.then_some((growing, id))))
    });
    Ok(Sse::new(events))
}
