//! Runs requests: hands them to their model's engine, and gathers the answers.

use std::sync::Arc;

use lazybatch_engine::{
    Answer as Ended, Handle, Held, Launches, Options, RequestError, Step, StepStream,
};
use lazybatch_graph::Tensor;
use lazybatch_sla::{Nanos, Outcome, RequestId, Time};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::held::let_go;
use super::order::{Order, Turn};
use super::pending::{DEFAULT, Pending};
use super::prepare::{Prepared, prepare};
use super::sequence::{self, lost, refused};
use super::{Answer, Params, Passage, Request, Stages, answer, chain};
use crate::cache::{Key, Outputs};
use crate::error::{Error, Result};
use crate::explained::{self, MOST_NAME, cut};
use crate::model::{Engaged, Runs, Served};
use crate::responses::Response;

/// Sizes of launches that are told of a request.
const MOST_SIZES: usize = 128;

/// A request that runs. Dropping it cancels it.
pub struct Running {
    request: Request,
    way: Way,
    pending: Pending,
    /// When it may be answered, where that matters.
    turn: Option<Turn>,
}

/// How it runs.
enum Way {
    /// In the engine.
    Engine(Submitted),
    /// As requests of steps.
    Chain(Box<chain::Running>),
}

/// Why no request to a model is taken now, whatever it is: for certain, so that nothing has to be made
/// of it first. It counts as one that was refused.
pub fn full(served: &Arc<Served>) -> Option<Error> {
    let full = served.check_room().err()?;
    // What is wrong with a call to these is told, its answer is there already, or its sequence has to
    // know.
    if served.settings.decoupled || served.cache.is_some() || served.is_stateful() {
        return None;
    }
    let error = full.into();
    Pending::new(served, DEFAULT).end(Some(&error));
    Some(error)
}

/// A call to a model was refused before it was a request. It counts as one that failed where there was
/// no room for it, or something was wrong with it; a call that the model does not answer at all is none.
pub fn turned_away(served: &Arc<Served>, error: &Error) {
    match error {
        Error::Unavailable(_) | Error::Invalid(_) | Error::NotFound(_) => {
            Pending::new(served, DEFAULT).end(Some(error));
        }
        Error::Exists(_) | Error::Unsupported(_) | Error::Internal(_) => {}
    }
}

/// Hands a request to the engine: behind it, others of its sequence are later ones.
///
/// # Errors
/// What is wrong with it, or why it is not taken.
pub fn start(served: &Arc<Served>, mut request: Request) -> Result<Running> {
    let mut pending = Pending::new(served, class_of(served, &request));
    let way = match &served.runs {
        Runs::Program(own) => submit(served, own, &request).map(Way::Engine),
        Runs::Chain(steps) => {
            let running = chain::start(served, steps, &mut request, pending.start());
            running.map(|running| Way::Chain(Box::new(running)))
        }
    };
    match way {
        Ok(way) => {
            // The engine has its tensors; their message can go.
            request.inputs = Vec::new();
            Ok(Running {
                request,
                way,
                pending,
                turn: None,
            })
        }
        Err(error) => {
            pending.end(Some(&error));
            Err(in_request(served, &request, error))
        }
    }
}

/// The same for a request that is answered behind those of its model that came before it, where the
/// model keeps that order: what this returns has to be finished, or dropped, whatever its client does.
///
/// # Errors
/// As [`start`].
pub fn start_in_turn(served: &Arc<Served>, request: Request) -> Result<Running> {
    let turn = served.order.as_ref().map(Order::join);
    let running = start(served, request)?;
    Ok(Running { turn, ..running })
}

/// Runs a request that no client sent, and blocks until it has ended. It is not counted as a
/// request; its launches are.
///
/// # Errors
/// What is wrong with it, or why it has no answer.
pub fn rehearse(served: &Served, mut request: Request) -> Result<Answer> {
    let own = match &served.runs {
        Runs::Program(own) => own,
        Runs::Chain(steps) => return chain::rehearse(served, steps, &mut request),
    };
    let prepared = prepare(served, own, &request)?;
    let options = Options {
        // Nobody waits for it, so it is never too late.
        sla: Some(Nanos::from_ms(86_400_000)),
        ..prepared.options
    };
    let submit = |inputs| own.engine.try_submit(inputs, options.clone());
    let handles = prepared.calls.into_iter().map(submit);
    let handles: Vec<Handle> = handles.collect::<std::result::Result<_, RequestError>>()?;
    let ended = handles.into_iter().map(|h| h.wait().map(|e| e.outputs));
    let outputs: Outputs = ended.collect::<std::result::Result<_, RequestError>>()?;
    answer::gather(served, &request, &outputs)
}

/// Whether a request's inputs were seen before, where answers are kept.
enum Seen {
    /// Answers are not kept.
    Off,
    /// Its answer is there; it was looked up for so long.
    Hit(Arc<Outputs>, Nanos),
    /// Its answer is to be kept.
    Miss(Key, Nanos),
}

impl Seen {
    fn of(served: &Served, request: &Request, prepared: &Prepared) -> Self {
        let (options, wish) = (&prepared.options, &prepared.wish);
        // Within a sequence an answer depends on those before it.
        let repeats = options.sequence.is_none() && wish.repeats();
        let Some(cache) = served.cache.as_ref().filter(|_| repeats) else {
            return Self::Off;
        };
        let before = served.now();
        let key = Key::of(served.generation, request, options.max_steps, wish.words());
        let found = cache.get(&key);
        let took = served.now().since(before);
        match found {
            Some(outputs) => Self::Hit(outputs, took),
            None => Self::Miss(key, took),
        }
    }
}

/// A request in the engine.
struct Submitted {
    handles: SmallVec<[Handle; 1]>,
    /// This one and those behind it, if it is the first that is held back.
    held: Option<Held>,
    seen: Seen,
    /// Samples of all handles together.
    samples: usize,
    /// Until when its turn has to come.
    deadline: Option<Instant>,
    /// Requests of the engine, if they are to be explained.
    explained: Option<Vec<RequestId>>,
}

fn submit(served: &Arc<Served>, own: &Engaged, request: &Request) -> Result<Submitted> {
    let prepared = prepare(served, own, request);
    let prepared = prepared.inspect_err(|e| refused(served, &request.params, e))?;
    let engine = &own.engine;
    let seen = Seen::of(served, request, &prepared);
    let (samples, deadline) = (prepared.samples, prepared.deadline());
    let explain = prepared.options.explain;
    if matches!(seen, Seen::Hit(..)) {
        return Ok(Submitted {
            handles: SmallVec::new(),
            held: None,
            seen,
            samples,
            deadline,
            explained: explain.then(Vec::new),
        });
    }
    let (calls, options) = (prepared.calls, &prepared.options);
    let (mut held, mut handles) = (None, SmallVec::with_capacity(calls.len()));
    for inputs in calls {
        let submitted = engine.try_submit_held(inputs, options.clone());
        let (handle, first) = submitted.map_err(|e| sequence::told(served, &request.params, e))?;
        handles.push(handle);
        // The one before, if there is one, goes at once.
        held = first.or(held);
    }
    let explained = explain.then(|| handles.iter().map(Handle::id).collect());
    Ok(Submitted {
        handles,
        held,
        seen,
        samples,
        deadline,
        explained,
    })
}

impl Running {
    /// Its answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn finish(self) -> impl Future<Output = Result<Answer>> + Send {
        let mut this = self;
        // The arguments of an asynchronous function would be kept, and moved, twice.
        async move {
            let mut result = match &mut this.way {
                Way::Engine(own) => {
                    let turn = &mut this.turn;
                    own.gathered(&this.request, &mut this.pending, turn).await
                }
                // Most calls are none of these, and keep no room for them.
                Way::Chain(steps) => Box::pin(steps.answer(&this.request, &mut this.pending)).await,
            };
            this.pending.end(result.as_ref().err());
            if let Way::Engine(Submitted {
                explained: Some(requests),
                ..
            }) = &this.way
            {
                let served = this.pending.served();
                let why = served.explained.tell(served, &this.request.id, requests);
                if let Ok(answer) = &mut result {
                    answer.explanation = Some(why);
                }
            }
            result.map_err(|e| in_request(this.pending.served(), &this.request, e))
        }
    }
}

impl Submitted {
    async fn gathered(
        &mut self,
        request: &Request,
        pending: &mut Pending,
        turn: &mut Option<Turn>,
    ) -> Result<Answer> {
        if let Some(held) = self.held.take() {
            let_go(held).await;
        }
        if let Seen::Hit(outputs, looked) = &self.seen {
            let served = pending.served();
            let found = served.now();
            let answer = answer::gather(served, request, outputs)?;
            let took = *looked + served.now().since(found);
            served.stats.hit(pending.class(), took);
            pending.succeeds();
            come(turn).await;
            return Ok(answer);
        }
        let handles = std::mem::take(&mut self.handles);
        let told = |e| sequence::told(pending.served(), &request.params, e);
        let ended = wait(handles, self.deadline, told).await?;
        let served = pending.served();
        let mut passage = passage(&ended, self.samples, pending.start());
        let finished = served.now();
        let outputs: Outputs = ended.into_iter().map(|e: Ended| e.outputs).collect();
        let mut answer = answer::gather(served, request, &outputs)
            .inspect_err(|e| lost(served, &request.params, e))?;
        let gathered = served.now();
        if let Some(passage) = &mut passage {
            passage.stages.output = gathered.since(finished);
            counted(served, pending.class(), passage);
        }
        answer.passage = passage;
        if let (Seen::Miss(key, looked), Some(cache)) = (&self.seen, &served.cache) {
            cache.put(*key, Arc::new(outputs));
            let took = *looked + served.now().since(gathered);
            served.stats.cache_miss.add(took);
        } else if turn.is_none() {
            pending.end_at(gathered, None);
        }
        // It counts once, whether its client waits for its turn or not.
        pending.succeeds();
        come(turn).await;
        Ok(answer)
    }
}

/// Counts what the engine answered and could be written as it was wanted.
fn counted(served: &Served, class: &str, passage: &Passage) {
    served.stats.answered(class, passage);
    served.stats.computed(&passage.stages);
    served.count_parts(passage.samples, &passage.stages);
}

/// Waits until a request may be answered.
async fn come(turn: &mut Option<Turn>) {
    if let Some(turn) = turn {
        turn.come().await;
    }
}

/// The way of a request that came then and became `ended`; none if that is nothing.
fn passage(ended: &[Ended], samples: usize, came: Time) -> Option<Passage> {
    let first = |one: &Ended| one.first_launch.unwrap_or(one.finish);
    let late = ended.iter().find(|one| one.outcome == Outcome::Violated);
    // A turn of the engine that takes in what comes just behind its begin has the time of that.
    let arrival = ended.iter().map(|one| one.arrival).min()?.max(came);
    let first_launch = ended.iter().map(first).min()?.max(came);
    let finish = ended.iter().map(|one| one.finish).max()?;
    Some(Passage {
        arrival,
        first_launch,
        finish,
        outcome: late.map_or(Outcome::Met, |one| one.outcome),
        samples,
        requests: ended.len(),
        launches: launches(ended.iter().map(|one| one.launches.as_ref())),
        stages: Stages {
            queue: first_launch.since(arrival),
            // Between the two its inputs were read.
            input: arrival.since(came),
            infer: finish.since(first_launch),
            output: Nanos::default(),
        },
    })
}

/// The launches of all together; `None` if those of one are not known.
pub fn launches<'a>(of: impl Iterator<Item = Option<&'a Launches>>) -> Option<Launches> {
    let mut all = Launches::default();
    for own in of {
        let own = own?;
        all.num += own.num;
        all.samples += own.samples;
        all.joined += own.joined;
        all.interrupted += own.interrupted;
        all.sizes.extend(&own.sizes);
    }
    all.sizes.truncate(MOST_SIZES);
    Some(all)
}

/// Names the request in an error's message, if the client named it. What is not the client's fault
/// is logged.
fn in_request(served: &Served, request: &Request, error: Error) -> Error {
    let id = &request.id;
    if let Error::Internal(error) = &error {
        let request_id = (!id.is_empty()).then(|| cut(id, MOST_NAME));
        let trace_id = request.trace.map(tracing::field::display);
        let (model, version) = (&*served.name, served.version);
        tracing::error!(
            model,
            version,
            request_id,
            trace_id,
            error,
            "request failed"
        );
    }
    if id.is_empty() || request.is_step {
        return error;
    }
    let id = cut(id, MOST_NAME);
    error.map(|text| format!("[request id: {id}] {text}"))
}

/// The class that a request counts in: what its model does not know counts as the default, since
/// figures of each class are kept.
pub fn class_of<'a>(served: &Served, request: &'a Request) -> &'a str {
    let named = request.params.text("sla_class").ok().flatten();
    let known = named.filter(|class| served.check_class(Some(class)).is_ok());
    known.unwrap_or(DEFAULT)
}

/// Waits for all answers; gives up at the deadline if the turn of one has not come by then. An error of the
/// engine is `told` so.
async fn wait(
    mut handles: SmallVec<[Handle; 1]>,
    mut deadline: Option<Instant>,
    told: impl Fn(RequestError) -> Error,
) -> Result<Vec<Ended>> {
    let mut all = Vec::with_capacity(handles.len());
    for at in 0..handles.len() {
        if let Some(until) = deadline {
            // Most calls need no timer, and keep no room for one.
            match Box::pin(timeout_at(until, &mut handles[at])).await {
                Ok(ended) => {
                    all.push(ended.map_err(&told)?);
                    continue;
                }
                Err(_) if handles[at..].iter().all(Handle::is_admitted) => deadline = None,
                Err(_) => return Err(Error::Unavailable("Request timeout expired".into())),
            }
        }
        all.push((&mut handles[at]).await.map_err(&told)?);
    }
    Ok(all)
}

/// An answer that comes step by step, or as a whole at the end where it is that of a chain.
pub struct Stepwise(Coming);

enum Coming {
    Steps(Box<Steps>),
    /// Once it was asked for there is none.
    Whole(Option<Box<Running>>),
}

/// Bytes of the name that a client gives to a request whose answer comes step by step, each with that name.
const MOST_ID: usize = 1024;

/// An answer of the engine that comes step by step.
struct Steps {
    request: Request,
    steps: StepStream,
    /// Samples of it.
    samples: usize,
    /// Until when its turn has to come.
    deadline: Option<Instant>,
    /// Whether nothing of the answer has come.
    is_silent: bool,
    explain: bool,
    pending: Pending,
    /// Whether its end, or an error, has come.
    is_over: bool,
    /// Responses that were made of it, and when the last one was.
    responses: (usize, Time),
    /// When the last one was there and when it was written, if it is not among them yet.
    made: Option<(Time, Time)>,
}

/// An item of [`Stepwise`].
pub enum Item {
    /// Rows of an output of the program.
    Rows {
        /// Which one.
        output: usize,
        /// The rows as the engine gave them.
        rows: Tensor,
    },
    /// The end, with all that the wanted outputs are.
    End(Answer),
}

/// Starts a request whose answer comes step by step. Dropping what it returns cancels it.
///
/// # Errors
/// What is wrong with it, or why it is not taken.
pub fn stream(served: &Arc<Served>, request: Request) -> Result<Stepwise> {
    streamed(served, request, |_| Ok(()))
}

/// The same for a client that is told of single steps, not of the outputs at the end.
///
/// # Errors
/// As [`stream`], and an output that steps cannot have as it is wanted.
pub fn steps(served: &Arc<Served>, request: Request) -> Result<Stepwise> {
    streamed(served, request, |request| {
        answer::check_steps(served, request)
    })
}

fn streamed(
    served: &Arc<Served>,
    mut request: Request,
    check: impl FnOnce(&Request) -> Result<()>,
) -> Result<Stepwise> {
    let Runs::Program(own) = &served.runs else {
        let running = start(served, request)?;
        return Ok(Stepwise(Coming::Whole(Some(Box::new(running)))));
    };
    let mut pending = Pending::new(served, class_of(served, &request));
    let ready = check_id(&request).and_then(|()| check(&request));
    let ready = ready.and_then(|()| prepare(served, own, &request));
    let ready = ready.inspect_err(|e| refused(served, &request.params, e));
    let samples = ready.as_ref().map_or(0, |prepared| prepared.samples);
    match ready.and_then(|prepared| begin(served, own, &request.params, prepared)) {
        Ok((steps, deadline)) => {
            request.inputs = Vec::new();
            let steps = Box::new(Steps {
                is_over: false,
                responses: (0, pending.start()),
                made: None,
                samples,
                is_silent: true,
                explain: request.params.flag(explained::ASKS).unwrap_or(false),
                request,
                steps,
                deadline,
                pending,
            });
            Ok(Stepwise(Coming::Steps(steps)))
        }
        Err(error) => {
            pending.end(Some(&error));
            Err(in_request(served, &request, error))
        }
    }
}

/// Looks whether a request's name may be in each response to it.
fn check_id(request: &Request) -> Result<()> {
    let got = request.id.len();
    match got <= MOST_ID {
        true => Ok(()),
        false => Err(Error::expected(
            "id of a request that is answered step by step",
            format!("at most {MOST_ID} bytes"),
            format!("{got} bytes"),
        )),
    }
}

fn begin(
    served: &Arc<Served>,
    own: &Engaged,
    params: &Params,
    mut prepared: Prepared,
) -> Result<(StepStream, Option<Instant>)> {
    if prepared.calls.len() != 1 {
        let what = format!("streamed request to model '{}'", served.name);
        return Err(Error::expected(what, "one sample", prepared.samples));
    }
    let deadline = prepared.deadline();
    let inputs = prepared.calls.remove(0);
    let submitted = own.engine.try_submit_stream(inputs, prepared.options);
    let steps = submitted.map_err(|e| sequence::told(served, params, e))?;
    Ok((steps, deadline))
}

impl Stepwise {
    /// The next item; `None` behind the end or an error.
    pub async fn next(&mut self) -> Option<Result<Item>> {
        match &mut self.0 {
            Coming::Steps(steps) => steps.next().await,
            Coming::Whole(running) => Some(running.take()?.finish().await.map(Item::End)),
        }
    }

    /// Rows as an answer of the protocol; without outputs, and so no response, if the request does not
    /// want them.
    ///
    /// # Errors
    /// An output that cannot be as it is wanted.
    pub fn answer(&mut self, output: usize, rows: &Tensor) -> Result<Answer> {
        match &mut self.0 {
            Coming::Steps(steps) => {
                let served = steps.pending.served().clone();
                let came = served.now();
                let answer = answer::rows(&served, &steps.request, output, rows);
                let answer = answer.map_err(|e| steps.fails(came, e))?;
                if !answer.outputs.is_empty() {
                    let output = served.now().since(came);
                    steps.responds(came, |infer| Response::Made { infer, output });
                }
                Ok(answer)
            }
            Coming::Whole(_) => Err(Error::Internal("a chain answers as a whole".into())),
        }
    }

    /// Counts a response that its caller made of rows, which were there at `came`; unless it is forgotten before
    /// what comes next.
    pub fn made(&mut self, came: Time) {
        if let Coming::Steps(steps) = &mut self.0 {
            steps.count_made();
            steps.made = Some((came, steps.pending.served().now()));
        }
    }

    /// Its caller could not write a response: the request fails by that.
    pub fn fails(&mut self, error: Error) -> Error {
        match &mut self.0 {
            Coming::Steps(steps) => steps.fails(steps.pending.served().now(), error),
            Coming::Whole(_) => error,
        }
    }

    /// Its caller does not answer such calls: what has run of it is cancelled, and it counts as none.
    pub fn forget(mut self) {
        if let Coming::Steps(steps) = &mut self.0 {
            (steps.is_over, steps.made) = (true, None);
            steps.pending.forget();
        }
    }
}

impl Steps {
    async fn next(&mut self) -> Option<Result<Item>> {
        let step = match self.deadline.take() {
            Some(deadline) => match timeout_at(deadline, self.steps.next()).await {
                Ok(step) => step,
                Err(_) if self.steps.is_admitted() => self.steps.next().await,
                Err(_) => Some(Err(RequestError::Shed("Request timeout expired".into()))),
            },
            None => self.steps.next().await,
        };
        let served = self.pending.served();
        let step = step?;
        if step.is_ok() && std::mem::take(&mut self.is_silent) {
            let now = served.now();
            served
                .stats
                .responded_first(now.since(self.pending.start()));
        }
        let mut result = match step {
            Ok(Step::Rows { output, rows }) => {
                return Some(Ok(Item::Rows { output, rows }));
            }
            Ok(Step::End(ended)) => self.ended(ended),
            Err(error) => Err(sequence::told(served, &self.request.params, error)),
        };
        let now = self.pending.served().now();
        self.count_made();
        match &result {
            Ok(_) => self.responds(now, Response::Empty),
            Err(_) => self.responds(now, Response::Failed),
        }
        self.is_over = true;
        self.pending.end(result.as_ref().err());
        if self.explain {
            let served = self.pending.served();
            let requests = [self.steps.id()];
            let why = served.explained.tell(served, &self.request.id, &requests);
            if let Ok(answer) = &mut result {
                answer.explanation = Some(why);
            }
        }
        let result = result.map_err(|e| in_request(self.pending.served(), &self.request, e));
        Some(result.map(Item::End))
    }

    /// The answer for the end.
    fn ended(&self, ended: Ended) -> Result<Answer> {
        let served = self.pending.served();
        let came = self.pending.start();
        let mut passage = passage(std::slice::from_ref(&ended), self.samples, came);
        let finished = served.now();
        let answer = answer::gather(served, &self.request, &[ended.outputs])
            .inspect_err(|e| lost(served, &self.request.params, e))?;
        if let Some(passage) = &mut passage {
            passage.stages.output = served.now().since(finished);
            counted(served, self.pending.class(), passage);
        }
        Ok(Answer { passage, ..answer })
    }

    /// Counts the last response that its caller made.
    fn count_made(&mut self) {
        if let Some((came, written)) = self.made.take() {
            let output = written.since(came);
            self.responds(came, |infer| Response::Made { infer, output });
        }
    }

    /// It fails by a response that was there at `now` and could not be written.
    fn fails(&mut self, now: Time, error: Error) -> Error {
        self.count_made();
        self.responds(now, Response::Failed);
        self.is_over = true;
        self.pending.end(Some(&error));
        let served = self.pending.served();
        lost(served, &self.request.params, &error);
        in_request(served, &self.request, error)
    }

    /// Counts the next response, which was there at `now`, if the model is one whose responses are told;
    /// `of` has the time since the one before.
    fn responds(&mut self, now: Time, of: impl FnOnce(Nanos) -> Response) {
        let served = self.pending.served();
        let (place, before) = self.responses;
        if served.settings.decoupled {
            let took = now.since(before);
            served.stats.responses.add(place, of(took));
            self.responses = (place + 1, now);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if !self.is_over {
            let now = self.pending.served().now();
            self.count_made();
            self.responds(now, Response::Cancelled);
        }
    }
}
