//! Inference over gRPC: requests and answers, and streams of them.
//!
//! A stream runs its requests side by side; those of one sequence keep their order, since the engine
//! runs them one after another. Answers come in the order of the requests; only those of decoupled
//! models come as they are ready (as in Triton's `src/grpc/infer_handler.h`). Requests that run and
//! answers that nobody has taken are bounded together: where there are too many, no further request
//! is read until the client takes some, and flow control holds it back. A request counts among the
//! server's calls while it is in the engine, and no longer.
//!
//! An error is told in an answer, and the stream goes on. If the client asks for it ([`FAILS`]), the first
//! one ends the stream with its status, and what else runs of it is cancelled.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::Stream;
use opentelemetry::Context;
use prost::Message;
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::{Status, Streaming};

use super::call;
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::http::{region, wanted};
use crate::infer::{self, Answer, Input, Item, MAX_LISTED, Param, Params, Request, Wanted};
use crate::memory::{Memory, Tab};
use crate::model::Served;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
    ModelStreamInferResponse,
};
use crate::state::{Room, State, stopping};
use crate::telemetry::Traced;

/// Requests of a stream that run and answers of it that were not taken, together, beyond which no
/// request is read.
const MAX_OPEN: usize = 256;
/// Metadata of a stream that is to end with the status of its first error, if it is `true`.
pub const FAILS: &str = "triton_grpc_error";
/// Parameter of a stream's last answer to a request.
const FINAL: &str = "triton_final_response";
/// Parameter of a request that wants an answer of its own for the end.
const WANTS_FINAL: &str = "triton_enable_empty_final_response";

/// Runs one request.
///
/// # Errors
/// What is wrong with it, or why there is no answer.
pub async fn run(
    state: &State,
    call: ModelInferRequest,
    traced: &mut Traced,
) -> Result<ModelInferResponse> {
    let _room = enter(state, &call)?;
    let served = state
        .repository
        .get(&call.model_name, &call.model_version)?;
    // What is around calls has it until the answer was taken.
    let tab = call::tab().unwrap_or_else(|| Arc::new(state.memory.tab()));
    let place = place(&served, &call);
    let ready = served.check_whole("ModelInfer RPC");
    let ready = ready.and_then(|()| read(state, &tab, call));
    let mut request = ready.inspect_err(|e| turned_away(&served, &place, e))?;
    request.trace = traced.trace();
    traced.asks(&served, &mut request);
    let answer = infer::start_in_turn(&served, request)?.finish().await?;
    traced.answered(&served, &answer);
    let response = write(&served, answer);
    tab.settle(response.encoded_len());
    Ok(response)
}

/// A call was refused before it was a request, which was to stand there in a sequence.
fn turned_away(served: &Arc<Served>, place: &Params, error: &Error) {
    infer::refused(served, place, error);
    infer::turned_away(served, error);
}

/// Room for a call.
fn enter(state: &State, call: &ModelInferRequest) -> Result<Room> {
    let served = || {
        let repository = &state.repository;
        repository.get(&call.model_name, &call.model_version)
    };
    let room = state.enter().and_then(|room| {
        let goes_on = || served().is_ok_and(|served| infer::goes_on(&served, &own_place(call)));
        room.admit(goes_on)?;
        Ok(room)
    });
    room.inspect_err(|e| {
        if let Ok(served) = served() {
            turned_away(&served, &place(&served, call), e);
        }
    })
}

/// What of a call's parameters says where it stands in a sequence, if its model has state.
fn place(served: &Served, call: &ModelInferRequest) -> Params {
    match served.is_stateful() {
        true => own_place(call),
        false => Params::default(),
    }
}

fn own_place(call: &ModelInferRequest) -> Params {
    let own = infer::PLACE.into_iter().filter_map(|key| {
        let value = call.parameters.get(key)?;
        Some((key.to_owned(), value.clone()))
    });
    params(own.collect()).unwrap_or_default()
}

type Answered = std::result::Result<ModelStreamInferResponse, Status>;

/// Requests of a stream that run, and answers that were not taken.
#[derive(Default)]
struct Open {
    num: AtomicUsize,
    fewer: Notify,
}

/// One of them, until it is dropped.
struct One(Arc<Open>);

impl Open {
    fn one(self: &Arc<Self>) -> One {
        self.num.fetch_add(1, Ordering::SeqCst);
        One(self.clone())
    }

    /// Waits until another request may be read.
    async fn room(&self) {
        while self.num.load(Ordering::SeqCst) >= MAX_OPEN {
            self.fewer.notified().await;
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.num.fetch_sub(1, Ordering::SeqCst);
        self.0.fewer.notify_one();
    }
}

/// Lets the whole answers of a stream out in the order of their requests.
#[derive(Default)]
struct Turns(Option<oneshot::Receiver<()>>);

/// One request's: the next one's comes when this is dropped.
struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _next: oneshot::Sender<()>,
}

impl Turns {
    fn next(&mut self) -> Turn {
        let (next, behind) = oneshot::channel();
        Turn {
            before: self.0.replace(behind),
            _next: next,
        }
    }
}

impl Turn {
    async fn comes(&mut self) {
        if let Some(before) = self.before.take() {
            // Nothing is sent: the one before is dropped.
            let _ = before.await;
        }
    }
}

/// Where the answers of a stream go. What waits there is bounded by [`Open`], and by the steps of the
/// requests that run.
#[derive(Clone)]
struct Answers {
    to: mpsc::UnboundedSender<(Answered, One, Tab)>,
    open: Arc<Open>,
    memory: Arc<Memory>,
    end: Option<Arc<End>>,
}

/// The end of a stream that its first error ends.
#[derive(Default)]
struct End {
    has_failed: AtomicBool,
    comes: Notify,
}

impl Answers {
    /// Tells an error of the request that its client calls `id`.
    fn fail(&self, id: &str, error: Error) {
        let Some(end) = &self.end else {
            self.send(Ok(failed(id, &error)));
            return;
        };
        if !end.has_failed.swap(true, Ordering::SeqCst) {
            self.send(Err(error.into()));
            end.comes.notify_one();
        }
    }

    /// Waits until an error has ended the stream.
    async fn ended(&self) {
        match &self.end {
            Some(end) => end.comes.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Sends one; false when the client has gone.
    fn send(&self, answer: Answered) -> bool {
        let tab = self.memory.tab();
        tab.settle(answer.as_ref().map_or(0, Message::encoded_len));
        self.send_on(answer, tab)
    }

    /// The same of one that is on `tab`.
    fn send_on(&self, answer: Answered, tab: Tab) -> bool {
        self.to.send((answer, self.open.one(), tab)).is_ok()
    }
}

/// Runs the requests of a stream, whose spans belong to `parent`; its first error ends it if it `fails`.
pub fn stream(
    state: Arc<State>,
    mut calls: Streaming<ModelInferRequest>,
    parent: Option<Context>,
    fails: bool,
) -> impl Stream<Item = Answered> {
    let (to, from) = mpsc::unbounded_channel();
    let open = Arc::new(Open::default());
    let memory = state.memory.clone();
    let answers = Answers {
        to,
        open,
        memory,
        end: fails.then(Arc::default),
    };
    let tab = call::tab().unwrap_or_else(|| Arc::new(state.memory.tab()));
    tokio::spawn(call::with(tab.clone(), async move {
        let mut running = tokio::task::JoinSet::new();
        let mut turns = Turns::default();
        // Asked for once a message: one that is coming has its own deadline.
        let mut has_room = false;
        let mut over = std::pin::pin!(state.ended());
        let last = loop {
            let next = async {
                if !has_room {
                    answers.open.room().await;
                    has_room = true;
                }
                calls.message().await
            };
            let next = tokio::select! {
                next = next => next,
                // The client has gone: what runs is dropped, and so cancelled.
                () = answers.to.closed() => return,
                () = answers.ended() => return,
                () = &mut over => break Some(stopping().into()),
                Some(_) = running.join_next() => continue,
            };
            match next {
                Ok(Some(call)) => {
                    has_room = false;
                    let traced = Traced::grpc(&state, "ModelStreamInfer", parent.as_ref());
                    let out = (&answers, &mut turns);
                    begin(&state, &tab, (call, traced), out, &mut running);
                }
                Ok(None) => break None,
                Err(status) => break Some(status),
            }
        };
        // What was taken is answered, also before a message that could not be.
        loop {
            tokio::select! {
                one = running.join_next() => if one.is_none() { break },
                () = answers.to.closed() => return,
                () = answers.ended() => return,
            }
        }
        if let Some(status) = last {
            answers.send(Err(status));
        }
    }));
    // The last one's bytes are with whoever sends them until the next one is asked for.
    futures_util::stream::unfold((from, None), |(mut from, sent)| async move {
        drop(sent);
        let (answer, _taken, tab) = from.recv().await?;
        Some((answer, (from, Some(tab))))
    })
}

fn failed(id: &str, error: &Error) -> ModelStreamInferResponse {
    let response = ModelInferResponse {
        id: id.to_owned(),
        ..ModelInferResponse::default()
    };
    ModelStreamInferResponse {
        error_message: error.told(),
        infer_response: Some(response),
    }
}

/// Hands in one request of a stream, in the stream's order, and leaves its answers to a task.
fn begin(
    state: &Arc<State>,
    tab: &Tab,
    (call, mut traced): (ModelInferRequest, Traced),
    (answers, turns): (&Answers, &mut Turns),
    running: &mut tokio::task::JoinSet<()>,
) {
    let id = call.id.clone();
    let tab = tab.take();
    let one = answers.open.one();
    let started = start(state, tab, call, &mut traced);
    let in_turn = !matches!(&started, Ok(s) if matches!(s.way, Way::Steps(_)));
    let mut turn = in_turn.then(|| turns.next());
    let answers = answers.clone();
    running.spawn(async move {
        let ended = match started {
            Ok(started) => started.finish(&answers, &mut traced, &mut turn).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(true) => traced.end(None),
            // Its client has gone, and hears nothing.
            Ok(false) => {}
            Err(error) => {
                traced.end(Some(&error));
                if let Some(turn) = &mut turn {
                    turn.comes().await;
                }
                answers.fail(&id, error);
            }
        }
        drop((one, turn));
    });
}

/// A request of a stream that is in the engine.
struct Started {
    served: Arc<Served>,
    way: Way,
    wants_final: bool,
    tab: Tab,
    room: Room,
}

/// How its answers come.
enum Way {
    Whole(Box<infer::Running>),
    Steps(Box<infer::Stepwise>),
}

fn start(
    state: &Arc<State>,
    tab: Tab,
    call: ModelInferRequest,
    traced: &mut Traced,
) -> Result<Started> {
    let room = enter(state, &call)?;
    let served = state
        .repository
        .get(&call.model_name, &call.model_version)?;
    let place = place(&served, &call);
    let ready = read(state, &tab, call).and_then(|r| Ok((r.params.flag(WANTS_FINAL)?, r)));
    let ready = ready.inspect_err(|e| turned_away(&served, &place, e));
    let (wants_final, mut request) = ready?;
    request.trace = traced.trace();
    traced.asks(&served, &mut request);
    let way = if served.settings.decoupled {
        Way::Steps(Box::new(infer::steps(&served, request)?))
    } else {
        Way::Whole(Box::new(infer::start(&served, request)?))
    };
    Ok(Started {
        served,
        way,
        wants_final,
        tab,
        room,
    })
}

impl Started {
    /// Sends its answers; false when the client has gone, which then gets none.
    async fn finish(
        self,
        answers: &Answers,
        traced: &mut Traced,
        turn: &mut Option<Turn>,
    ) -> Result<bool> {
        let mut steps = match self.way {
            Way::Whole(running) => {
                let answer = running.finish().await?;
                traced.answered(&self.served, &answer);
                drop(self.room);
                let answer = response(&self.served, answer, true);
                // It is held while others go before it.
                self.tab.settle(answer.encoded_len());
                if let Some(turn) = turn {
                    turn.comes().await;
                }
                return Ok(answers.send_on(Ok(answer), self.tab));
            }
            Way::Steps(steps) => steps,
        };
        while let Some(item) = steps.next().await {
            let is_sent = match item? {
                Item::Rows { output, rows } => {
                    traced.responds();
                    let answer = steps.answer(output, &rows)?;
                    answer.outputs.is_empty() || send(answers, &self.served, answer, false)
                }
                Item::End(answer) => {
                    traced.answered(&self.served, &answer);
                    let empty = Answer {
                        outputs: Vec::new(),
                        ..answer
                    };
                    !self.wants_final || send(answers, &self.served, empty, true)
                }
            };
            if !is_sent {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn flag(value: bool) -> InferParameter {
    InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(value)),
    }
}

/// Sends an answer; false when the client has gone.
fn send(answers: &Answers, served: &Served, answer: Answer, is_final: bool) -> bool {
    answers.send(Ok(response(served, answer, is_final)))
}

fn response(served: &Served, answer: Answer, is_final: bool) -> ModelStreamInferResponse {
    let mut response = write(served, answer);
    response.parameters.insert(FINAL.into(), flag(is_final));
    ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(response),
    }
}

/// Looks whether a request lists no more than it may of inputs, outputs or parameters.
fn check_listed(what: &str, num: usize) -> Result<()> {
    if num <= MAX_LISTED {
        return Ok(());
    }
    Err(Error::expected(what, format!("at most {MAX_LISTED}"), num))
}

fn params(from: HashMap<String, InferParameter>) -> Result<Params> {
    check_listed("parameters", from.len())?;
    let param = |(key, value): (String, InferParameter)| {
        let param = match value.parameter_choice {
            Some(ParameterChoice::BoolParam(b)) => Param::Bool(b),
            // The field has no sign to clients that know of ids of 64 bits and no other field for them.
            Some(ParameterChoice::Int64Param(n)) if key == "sequence_id" => Param::Uint(n as u64),
            Some(ParameterChoice::Int64Param(n)) => Param::Int(n),
            Some(ParameterChoice::StringParam(s)) => Param::Text(s),
            Some(ParameterChoice::DoubleParam(x)) => Param::Double(x),
            Some(ParameterChoice::Uint64Param(n)) => Param::Uint(n),
            None => {
                let what = format!("parameter '{key}'");
                return Err(Error::expected(what, "a value", "none"));
            }
        };
        Ok((key, param))
    };
    from.into_iter().map(param).collect()
}

fn read(state: &State, tab: &Tab, call: ModelInferRequest) -> Result<Request> {
    check_listed("inputs", call.inputs.len())?;
    check_listed("outputs", call.outputs.len())?;
    let mut raw = call.raw_input_contents.into_iter();
    let has_raw = raw.len() > 0;
    let mut inputs = Vec::with_capacity(call.inputs.len());
    for input in call.inputs {
        inputs.push(read_input(state, tab, input, has_raw, &mut raw)?);
    }
    if raw.len() > 0 {
        let what = "raw_input_contents";
        let expected = format!("at most one for each of {} inputs", inputs.len());
        return Err(Error::expected(
            what,
            expected,
            format!("{} more", raw.len()),
        ));
    }
    infer::hold(tab, &inputs)?;
    let outputs = call.outputs.into_iter();
    let wanted = outputs.map(|output| {
        let own = params(output.parameters)?;
        wanted(&state.regions, output.name, &own)
    });
    Ok(Request {
        id: call.id,
        params: params(call.parameters)?,
        inputs,
        wanted: wanted.collect::<Result<Vec<Wanted>>>()?,
        ..Request::default()
    })
}

fn read_input(
    state: &State,
    tab: &Tab,
    input: InferInputTensor,
    has_raw: bool,
    raw: &mut impl Iterator<Item = Bytes>,
) -> Result<Input> {
    let what = format!("input '{}'", input.name);
    let data_type = DataType::parse(&input.datatype).ok_or_else(|| {
        Error::expected(
            &what,
            "a data-type of the protocol",
            format!("'{}'", input.datatype),
        )
    })?;
    let shape: Option<Vec<usize>> = input.shape.iter().map(|&d| d.try_into().ok()).collect();
    let count = shape.as_deref().and_then(dtype::elements);
    let (Some(shape), Some(count)) = (shape, count) else {
        let got = format!("{:?}", input.shape);
        return Err(Error::expected(
            format!("{what}: shape"),
            "a countable number",
            got,
        ));
    };
    let own = params(input.parameters)?;
    let data = if let Some(region) = region(&state.regions, &own)? {
        if input.contents.is_some() {
            let got = "a region and contents";
            return Err(Error::expected(what, "its elements in one place", got));
        }
        region.read(&what, tab)?
    } else if has_raw {
        if input.contents.is_some() {
            let got = "raw_input_contents and contents";
            return Err(Error::expected(what, "its elements in one place", got));
        }
        let none = || Error::expected(&what, "one of raw_input_contents", "none left");
        raw.next().ok_or_else(none)?
    } else {
        let contents = input.contents.unwrap_or_default();
        // Elements of BYTES were weighed as they came.
        let size = count.saturating_mul(data_type.size().unwrap_or(0));
        tab.check_tensor(&what, size)?;
        tab.add(size)?;
        encode(&what, data_type, count, contents)?.into()
    };
    Ok(Input {
        name: input.name,
        data_type,
        shape,
        data,
    })
}

/// The bytes of typed elements.
fn encode(
    what: &str,
    data_type: DataType,
    count: usize,
    c: InferTensorContents,
) -> Result<Vec<u8>> {
    fn put<T: Copy, const N: usize>(from: &[T], f: impl Fn(T) -> [u8; N]) -> (usize, Vec<u8>) {
        (from.len(), from.iter().flat_map(|&v| f(v)).collect())
    }
    fn narrow<F: Copy, T: TryFrom<F>, const N: usize>(
        from: &[F],
        f: impl Fn(T) -> [u8; N],
    ) -> Option<(usize, Vec<u8>)> {
        let mut bytes = Vec::with_capacity(from.len() * N);
        for &v in from {
            bytes.extend(f(T::try_from(v).ok()?));
        }
        Some((from.len(), bytes))
    }
    let fields = [
        ("bool_contents", c.bool_contents.len()),
        ("int_contents", c.int_contents.len()),
        ("int64_contents", c.int64_contents.len()),
        ("uint_contents", c.uint_contents.len()),
        ("uint64_contents", c.uint64_contents.len()),
        ("fp32_contents", c.fp32_contents.len()),
        ("fp64_contents", c.fp64_contents.len()),
        ("bytes_contents", c.bytes_contents.len()),
    ];
    let filled = fields.iter().filter(|(_, num)| *num > 0);
    if filled.clone().count() > 1 {
        let filled: Vec<&str> = filled.map(|(field, _)| *field).collect();
        let got = filled.join(" and ");
        return Err(Error::expected(what, "elements of one type", got));
    }
    let coded = match data_type {
        DataType::Bool => Some(put(&c.bool_contents, |v| [u8::from(v)])),
        DataType::Int8 => narrow(&c.int_contents, i8::to_le_bytes),
        DataType::Int16 => narrow(&c.int_contents, i16::to_le_bytes),
        DataType::Int32 => Some(put(&c.int_contents, i32::to_le_bytes)),
        DataType::Int64 => Some(put(&c.int64_contents, i64::to_le_bytes)),
        DataType::Uint8 => narrow(&c.uint_contents, u8::to_le_bytes),
        DataType::Uint16 => narrow(&c.uint_contents, u16::to_le_bytes),
        DataType::Uint32 => Some(put(&c.uint_contents, u32::to_le_bytes)),
        DataType::Uint64 => Some(put(&c.uint64_contents, u64::to_le_bytes)),
        DataType::Fp32 => Some(put(&c.fp32_contents, f32::to_le_bytes)),
        DataType::Fp64 => Some(put(&c.fp64_contents, f64::to_le_bytes)),
        DataType::Bytes => {
            let parts = c.bytes_contents.iter().map(Vec::as_slice);
            Some((c.bytes_contents.len(), dtype::join_bytes(parts)))
        }
        DataType::Fp16 | DataType::Bf16 => {
            let expected = "raw_input_contents, for there is no typed field for it";
            let what = format!("{what} of data-type {data_type}");
            return Err(Error::expected(what, expected, "contents"));
        }
    };
    let (num, bytes) = coded.ok_or_else(|| {
        Error::expected(
            what,
            format!("elements of {data_type}"),
            "one beyond its range",
        )
    })?;
    if num != count {
        let expected = format!("{count} elements in the field of {data_type}");
        return Err(Error::expected(what, expected, num));
    }
    Ok(bytes)
}

fn write(served: &Served, answer: Answer) -> ModelInferResponse {
    let mut outputs = Vec::with_capacity(answer.outputs.len());
    let mut raw_output_contents = Vec::with_capacity(answer.outputs.len());
    for output in answer.outputs {
        let mut parameters = HashMap::new();
        if let Some(region) = &output.wanted.region {
            let (name, offset, _) = region.place();
            let choice = |c| InferParameter {
                parameter_choice: Some(c),
            };
            let number = |n: u64| {
                choice(ParameterChoice::Int64Param(
                    i64::try_from(n).unwrap_or(i64::MAX),
                ))
            };
            parameters.insert(
                "shared_memory_region".into(),
                choice(ParameterChoice::StringParam(name.to_owned())),
            );
            parameters.insert(
                "shared_memory_byte_size".into(),
                number(output.data.len() as u64),
            );
            if offset > 0 {
                parameters.insert("shared_memory_offset".into(), number(offset));
            }
            // Outputs and contents go together by place.
            raw_output_contents.push(Bytes::new());
        } else {
            raw_output_contents.push(output.data.into());
        }
        outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.data_type.name().into(),
            shape: output
                .shape
                .iter()
                .map(|&d| i64::try_from(d).unwrap_or(i64::MAX))
                .collect(),
            parameters,
            contents: None,
        });
    }
    let explanation = answer.explanation.map(|why| {
        let parameter_choice = Some(ParameterChoice::StringParam(why));
        (
            explained::TELLS.to_owned(),
            InferParameter { parameter_choice },
        )
    });
    ModelInferResponse {
        model_name: served.name.clone(),
        model_version: served.version.to_string(),
        id: answer.id,
        parameters: explanation.into_iter().collect(),
        outputs,
        raw_output_contents,
    }
}
