//! Text in, text out: `generate`, and `generate_stream` with the text as it comes, as server-sent
//! events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::json::{self, Small};
use super::whole::{Whole, kept};
use super::{App, Path, Target};
use crate::config::{TEXT_INPUT, TEXT_OUTPUT};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::infer::{self, Answer, Input, Item, Output, Param, Params, Request, Stepwise, Wanted};
use crate::model::Served;
use crate::state::{Room, State};
use crate::telemetry::Traced;

/// Reads a call, and tells its span of it.
fn read(served: &Arc<Served>, whole: &Whole, traced: &mut Traced) -> Result<Request> {
    let request = parse(served, whole);
    let mut request = request.inspect_err(|e| infer::turned_away(served, e))?;
    request.trace = traced.trace();
    traced.asks(served, &mut request);
    Ok(request)
}

/// Reads `{"text_input": ..., "parameters": {...}}`; other keys are parameters too.
fn parse(served: &Served, whole: &Whole) -> Result<Request> {
    if !served.known.writes_text {
        let message = format!("model '{}' does not read and write text", served.name);
        return Err(Error::Invalid(message));
    }
    let mut body = json::object(&whole.body, &whole.tab)?;
    let text = match body.shift_remove(TEXT_INPUT) {
        Some(Small::Param(Param::Text(text)) | Small::List(Some(Param::Text(text)), 1)) => text,
        other => {
            let got = other.unwrap_or(Small::Null);
            return Err(Error::expected(format!("'{TEXT_INPUT}'"), "a string", got));
        }
    };
    let id = match body.shift_remove("id") {
        Some(Small::Param(Param::Text(id))) => id,
        _ => String::new(),
    };
    let nested = match body.shift_remove("parameters") {
        Some(Small::Object(nested)) => nested,
        None => Params::default(),
        Some(other) => return Err(Error::expected("'parameters'", "an object", other)),
    };
    let params = json::looked_at(body)?.with(nested);
    let data = dtype::join_bytes([text.as_bytes()]).into();
    let inputs = vec![Input {
        name: TEXT_INPUT.into(),
        data_type: DataType::Bytes,
        shape: if served.batched { vec![1, 1] } else { vec![1] },
        data,
    }];
    infer::hold(&whole.tab, &inputs)?;
    Ok(Request {
        id,
        params,
        inputs,
        wanted: vec![Wanted {
            name: TEXT_OUTPUT.into(),
            ..Wanted::default()
        }],
        ..Request::default()
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
    body: Result<Whole>,
) -> Result<Response> {
    traced.read();
    let answered = answer(&state, &target, &mut traced, body).await;
    traced.ends(answered)
}

/// Room for a call, and what it asks of which model. Who is refused breaks the sequence that it is of.
fn enter(
    state: &State,
    target: &Target,
    traced: &mut Traced,
    body: Result<Whole>,
) -> Result<(Room, Whole, Arc<Served>, Request)> {
    let away = |e: &Error| target.turned_away(state, e);
    let room = state.enter().inspect_err(|e| {
        if let (Ok(body), Ok(served)) = (&body, target.get(state)) {
            refused(&served, body, e);
        }
        away(e);
    })?;
    let body = body.inspect_err(away)?;
    let served = target.get(state)?;
    let request = read(&served, &body, traced).inspect_err(|e| refused(&served, &body, e))?;
    room.admit(|| infer::goes_on(&served, &request.params))
        .inspect_err(|e| {
            refused(&served, &body, e);
            away(e);
        })?;
    Ok((room, body, served, request))
}

/// A call with that body was refused before it was read as a request, or as it was: if it is of a sequence,
/// as far as its parameters can be read, its engine is told.
fn refused(served: &Served, whole: &Whole, error: &Error) {
    if !served.is_stateful() {
        return;
    }
    let Ok(mut body) = json::object(&whole.body, &whole.tab) else {
        return;
    };
    let nested = match body.shift_remove("parameters") {
        Some(Small::Object(nested)) => nested,
        _ => Params::default(),
    };
    let own = (infer::PLACE.into_iter()).filter_map(|key| match body.shift_remove(key)? {
        Small::Param(value) => Some((key.to_owned(), value)),
        _ => None,
    });
    let own: Params = own.collect();
    infer::refused(served, &own.with(nested), error);
}

async fn answer(
    state: &Arc<State>,
    target: &Target,
    traced: &mut Traced,
    body: Result<Whole>,
) -> Result<Response> {
    let (_room, body, served, request) = enter(state, target, traced, body)?;
    let answer = match served.settings.decoupled {
        false => infer::start_in_turn(&served, request)?.finish().await?,
        true => only(&served, infer::stream(&served, request)?).await?,
    };
    traced.answered(&served, &answer);
    let text = answer.outputs.first().map(text).unwrap_or_default();
    let json = told(&served, &answer.id, &text, answer.explanation);
    let bytes = kept(json.to_string().into_bytes(), body.tab);
    Ok(([(CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// The answer of a decoupled model, if it gives it in one response.
async fn only(served: &Served, mut steps: Stepwise) -> Result<Answer> {
    let mut num = 0;
    while let Some(item) = steps.next().await {
        match item? {
            Item::Rows { output: 0, .. } => {
                num += 1;
                if num == 1 {
                    steps.made(served.now());
                }
            }
            Item::Rows { .. } => {}
            Item::End(answer) if num == 1 => return Ok(answer),
            Item::End(_) => break,
        }
        if num > 1 {
            break;
        }
    }
    steps.forget();
    let message = "generate expects model to produce exactly 1 response, use generate stream for model \
                   that generates various number of responses";
    Err(Error::Unsupported(message.into()))
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
                    let came = self.served.now();
                    self.ids.extend(rows.to_i32());
                    let whole = match self.text() {
                        Ok(whole) => whole,
                        Err(error) => return Some(Err(self.steps.fails(error))),
                    };
                    // A character of several tokens is told when it is whole.
                    if whole.ends_with('\u{fffd}') {
                        continue;
                    }
                    if let Some(piece) = self.piece(&whole) {
                        self.steps.made(came);
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
    body: Result<Whole>,
) -> Result<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    traced.read();
    let (mut growing, id, held) = match begin(&state, &target, &mut traced, body) {
        Ok(begun) => begun,
        Err(error) => return traced.ends(Err(error)),
    };
    growing.traced = traced;
    // The status tells of what went wrong before there was anything of an answer.
    let mut first = match growing.next().await {
        Some(Err(error)) => return std::mem::take(&mut growing.traced).ends(Err(error)),
        first => Some(first),
    };
    growing.traced.opens();
    // Bounded by the request's steps. A client that reads slowly holds no room among the calls once
    // the engine is done.
    let (to, from) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let _held = held;
        loop {
            let next = async {
                match first.take() {
                    Some(first) => first,
                    None => growing.next().await,
                }
            };
            let next = tokio::select! {
                next = next => next,
                // The client has gone: the request is dropped, and so cancelled.
                () = to.closed() => return,
            };
            let (json, goes_on) = match next {
                Some(Ok((piece, why))) => (told(&growing.served, &id, &piece, why), true),
                Some(Err(error)) => {
                    std::mem::take(&mut growing.traced).end(Some(&error));
                    (json!({ "error": error.told() }), false)
                }
                None => return,
            };
            let (text, tab) = (json.to_string(), state.memory.tab());
            tab.settle(text.len());
            if to.send((text, tab)).is_err() || !goes_on {
                return;
            }
        }
    });
    // An event was taken when the next one is asked for.
    let events = futures_util::stream::unfold((from, None), |(mut from, taken)| async move {
        drop(taken);
        let (text, tab) = from.recv().await?;
        Some((Ok(Event::default().data(text)), (from, Some(tab))))
    });
    Ok(Sse::new(events))
}

/// What a stream holds while it runs: its place among the calls, and its body.
type Holds = (Room, Whole);

/// Hands in the request of a stream: its text, the client's name for it, and what it holds.
fn begin(
    state: &Arc<State>,
    target: &Target,
    traced: &mut Traced,
    body: Result<Whole>,
) -> Result<(Growing, String, Holds)> {
    let (room, body, served, request) = enter(state, target, traced, body)?;
    let id = request.id.clone();
    let growing = Growing {
        steps: infer::stream(&served, request)?,
        served,
        ids: Vec::new(),
        told: 0,
        traced: Traced::default(),
    };
    Ok((growing, id, (room, body)))
}
