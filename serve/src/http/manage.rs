//! Calls about the repository, shared memory, traces and logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{FromRequest, Request, State as Shared};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use serde_json::{Value, json};

use super::whole::{Few, Whole};
use super::{App, Path, Target};
use crate::error::{Error, Result};
use crate::repository::{Brought, FILE, Indexed};
use crate::shm;
use crate::state::State;

/// The body of a call as an object; an empty body is an empty one.
fn object(body: &[u8]) -> Result<serde_json::Map<String, Value>> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(serde_json::Map::new());
    }
    serde_json::from_slice(body)
        .map_err(|e| Error::Invalid(format!("failed to parse the request JSON buffer: {e}")))
}

pub async fn index(Shared(state): App, Few(body): Few) -> Result<Json<Value>> {
    let body = object(&body)?;
    let ready = match body.get("ready") {
        None => false,
        Some(Value::Bool(ready)) => *ready,
        Some(other) => return Err(Error::expected("'ready'", "true or false", other)),
    };
    let index = index_of(&state, ready).await?.into_iter().map(|i| {
        let mut line = json!({ "name": i.name });
        for (key, value) in [
            ("version", i.version),
            ("state", i.state.into()),
            ("reason", i.reason),
        ] {
            if !value.is_empty() {
                line[key] = value.into();
            }
        }
        line
    });
    Ok(Json(index.collect()))
}

/// The repository's index, by a thread that may wait for a disk.
pub async fn index_of(state: &Arc<State>, ready: bool) -> Result<Vec<Indexed>> {
    let state = state.clone();
    let index = tokio::task::spawn_blocking(move || state.repository.index(ready));
    index.await.map_err(|e| Error::Internal(e.to_string()))
}

/// Loads a model from what `bring` gets on a thread where that may take its time.
pub async fn load_model(
    state: &Arc<State>,
    model: String,
    bring: impl FnOnce() -> Result<Brought> + Send + 'static,
) -> Result<()> {
    state.repository.check_explicit("load / unload")?;
    let shared = state.clone();
    let load = move || shared.repository.load(&model, bring()?);
    state.changes.make(load).await
}

/// What is said of a parameter of a load that is none.
pub fn no_parameter(name: &str) -> Error {
    let expected = format!("'config', a string, or '{FILE}PATH', the content of a file");
    let got = match name == "config" || name.starts_with(FILE) {
        true => format!("'{name}' of another kind"),
        false => format!("'{name}'"),
    };
    Error::expected("parameter", expected, got)
}

/// The parameters of a call, none if it has no such key.
fn parameters(
    object: &mut serde_json::Map<String, Value>,
) -> Result<serde_json::Map<String, Value>> {
    match object.remove("parameters") {
        Some(Value::Object(parameters)) => Ok(parameters),
        None | Some(Value::Null) => Ok(serde_json::Map::new()),
        Some(other) => Err(Error::expected("'parameters'", "an object", other)),
    }
}

pub async fn load(Shared(state): App, Path(target): Path<Target>, request: Request) -> Result<()> {
    if let Err(refused) = state.repository.check_explicit("load / unload") {
        // As much as of other calls is taken, so that the client reads the answer.
        Few::from_request(request, &state).await?;
        return Err(refused);
    }
    let Whole { body, tab } = Whole::from_request(request, &state).await?;
    // Texts are copied out of it.
    tab.add(body.len())?;
    let mut object = object(&body)?;
    drop(body);
    let mut config = None;
    let mut files = Vec::new();
    let parameters = parameters(&mut object)?;
    for (name, value) in parameters {
        match value {
            Value::String(text) if name == "config" => config = Some(text),
            Value::String(text) if name.starts_with(FILE) => files.push((name, text)),
            _ => return Err(no_parameter(&name)),
        }
    }
    let bring = move || {
        let _holds = tab;
        let mut brought = Brought::of_config(config);
        for (name, text) in files {
            let mut content = DecoderReader::new(text.as_bytes(), &STANDARD);
            brought.write(&name, &mut content)?;
        }
        Ok(brought)
    };
    load_model(&state, target.model, bring).await
}

pub async fn unload(Shared(state): App, Path(target): Path<Target>, Few(body): Few) -> Result<()> {
    state.repository.check_explicit("load / unload")?;
    let mut object = object(&body)?;
    let parameters = parameters(&mut object)?;
    let dependents = match parameters.get("unload_dependents") {
        None => false,
        Some(Value::Bool(dependents)) => *dependents,
        Some(other) => {
            let what = "parameter 'unload_dependents'";
            return Err(Error::expected(what, "true or false", other));
        }
    };
    unload_model(&state, target.model, dependents).await
}

/// Unloads a model on a thread that may wait for loads.
pub async fn unload_model(state: &Arc<State>, model: String, dependents: bool) -> Result<()> {
    let shared = state.clone();
    let unload = move || {
        shared.repository.unload(&model, dependents);
        Ok(())
    };
    state.changes.make(unload).await
}

/// The model whose trace settings a call is about, if it names one.
#[derive(serde::Deserialize)]
pub struct Whose {
    #[serde(default)]
    model: String,
    #[serde(default)]
    version: String,
}

impl Whose {
    /// Its name, which is empty where the call is about those of all.
    fn check(self, state: &State) -> Result<String> {
        let Self { model, version } = self;
        if !model.is_empty() {
            state.repository.get(&model, &version)?;
        }
        Ok(model)
    }
}

fn trace_settings(state: &State, model: &str) -> Json<Value> {
    let all = state.traces.settings(model).into_iter();
    let plain = all.map(|(key, values)| {
        // The level is a list; the others are one value each.
        let value = if key == "trace_level" {
            json!(values)
        } else {
            json!(values.first())
        };
        (key, value)
    });
    Json(Value::Object(plain.collect()))
}

pub async fn trace(Shared(state): App, Path(whose): Path<Whose>) -> Result<Json<Value>> {
    let model = whose.check(&state)?;
    Ok(trace_settings(&state, &model))
}

pub async fn set_trace(
    Shared(state): App,
    Path(whose): Path<Whose>,
    Few(body): Few,
) -> Result<Json<Value>> {
    let model = whose.check(&state)?;
    let text = |v: Value| match v {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let settings: BTreeMap<_, _> = object(&body)?
        .into_iter()
        .map(|(key, value)| match value {
            Value::Null => (key, Vec::new()),
            Value::Array(items) => (key, items.into_iter().map(text).collect()),
            other => (key, vec![text(other)]),
        })
        .collect();
    state.set_traces(&model, &settings)?;
    Ok(trace_settings(&state, &model))
}

pub async fn log(Shared(state): App) -> Json<Value> {
    Json(state.switches.log())
}

pub async fn set_log(Shared(state): App, Few(body): Few) -> Result<Json<Value>> {
    let settings = object(&body)?.into_iter().collect();
    state.switches.set_log(&settings)?;
    Ok(Json(state.switches.log()))
}

/// Paths of the shared memory extensions.
pub fn shared_memory() -> Router<Arc<State>> {
    let system = "/v2/systemsharedmemory";
    let region = format!("{system}/region/{{region}}");
    Router::new()
        .route(&format!("{system}/status"), get(all_regions))
        .route(&format!("{region}/status"), get(one_region))
        .route(&format!("{region}/register"), post(register))
        .route(&format!("{region}/unregister"), post(unregister))
        .route(&format!("{system}/unregister"), post(unregister_all))
        .merge(cuda_shared_memory())
}

/// The same of GPUs: there are no regions and none can be registered.
fn cuda_shared_memory() -> Router<Arc<State>> {
    let cuda = "/v2/cudasharedmemory";
    let region = format!("{cuda}/region/{{region}}");
    Router::new()
        .route(&format!("{cuda}/status"), get(async || Json(json!([]))))
        .route(&format!("{region}/status"), get(no_cuda_region))
        .route(&format!("{region}/register"), post(async || shm::no_cuda()))
        .route(&format!("{region}/unregister"), post(async || {}))
        .route(&format!("{cuda}/unregister"), post(async || {}))
}

async fn no_cuda_region(Path(name): Path<String>) -> Error {
    shm::unknown_cuda(&name)
}

fn regions(state: &State, name: &str) -> Result<Json<Value>> {
    let regions = state.regions.status(name)?.into_iter().map(|(name, r)| {
        json!({"name": name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size})
    });
    Ok(Json(regions.collect()))
}

async fn all_regions(Shared(state): App) -> Result<Json<Value>> {
    regions(&state, "")
}

async fn one_region(Shared(state): App, Path(name): Path<String>) -> Result<Json<Value>> {
    regions(&state, &name)
}

async fn register(Shared(state): App, Path(name): Path<String>, Few(body): Few) -> Result<()> {
    let body = object(&body)?;
    let number = |key: &str| {
        let value = body.get(key).unwrap_or(&Value::Null);
        let expected = || Error::expected(format!("'{key}'"), "a whole number of 0 or more", value);
        value.as_u64().ok_or_else(expected)
    };
    let key = body.get("key").and_then(Value::as_str);
    let key = key.ok_or_else(|| Error::expected("'key'", "a string", "none"))?;
    let offset = if body.contains_key("offset") {
        number("offset")?
    } else {
        0
    };
    state
        .regions
        .register(&name, key, offset, number("byte_size")?)
}

async fn unregister(Shared(state): App, Path(name): Path<String>) {
    state.regions.unregister(&name);
}

async fn unregister_all(Shared(state): App) {
    state.regions.unregister("");
}
