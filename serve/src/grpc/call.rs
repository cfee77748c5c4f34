//! What is around every call over gRPC: the memory that it holds, how long its messages may take to
//! come, and how its answer is taken.
//!
//! A request for inference whose model has no room is refused as soon as its name is there, before its
//! message is decoded, or whole. Any other message says a few things: one that is longer is refused by its
//! head, so that it takes no memory from requests, whoever sends it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tower::{Layer, Service};

use super::pace::{self, Pace, Paced};
use super::weigh;
use crate::error::Error;
use crate::infer;
use crate::memory::Tab;
use crate::security::Guard;
use crate::state::State;
use crate::telemetry::{self, Traced};

/// Bytes in front of each message: whether it is packed, and its length.
const HEAD: usize = 5;
/// The call that has one request for inference.
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// The call that has many messages, and may wait for the next.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// The call that loads a model, which may bring files.
const LOAD: &str = "/inference.GRPCInferenceService/RepositoryModelLoad";
/// The call that is told of health until its client ends it.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Most bytes of all messages of a call that everybody may make: it has one, which names a service at most.
const FREE: usize = 4 << 10;

/// Most bytes of all messages of a call to `path` as they come, beside their heads. Those of requests for
/// inference, and of loads where clients may load, are bounded where they are read.
fn most(path: &str, loads: bool) -> usize {
    match path {
        INFER | STREAM => usize::MAX,
        LOAD if loads => usize::MAX,
        free if Guard::is_free(free) => FREE,
        _ => weigh::FEW,
    }
}

tokio::task_local! {
    /// The tab of the call that runs.
    static TAB: Arc<Tab>;
}

/// The tab of the call that runs; `None` outside of calls.
pub fn tab() -> Option<Arc<Tab>> {
    TAB.try_with(Arc::clone).ok()
}

/// Runs `work`, to which messages come, as a part of the call with this tab.
pub fn with<F: Future>(tab: Arc<Tab>, work: F) -> impl Future<Output = F::Output> {
    TAB.scope(tab, work)
}

/// Puts what watches a call around a service.
#[derive(Clone)]
pub struct CallLayer {
    state: Arc<State>,
    within: Duration,
}

impl CallLayer {
    /// Messages have to be whole within `within` of their begin.
    pub fn new(state: Arc<State>, within: Duration) -> Self {
        Self { state, within }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = Calls<S>;

    fn layer(&self, inner: S) -> Calls<S> {
        Calls {
            inner,
            of: self.clone(),
        }
    }
}

/// See the module.
#[derive(Clone)]
pub struct Calls<S> {
    inner: S,
    of: CallLayer,
}

impl<S> Service<Request<tonic::body::Body>> for Calls<S>
where
    S: Service<Request<tonic::body::Body>, Response = Response<tonic::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Paced>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Paced>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let (head, body) = request.into_parts();
        let is_packed = head.headers.contains_key("grpc-encoding");
        let state = &self.of.state;
        let tab = Arc::new(state.memory.tab().packed(is_packed));
        let asks = || Asks {
            state: state.clone(),
            parent: telemetry::parent(state, &head.headers),
        };
        let deadline = deadline(&head.headers);
        let path = head.uri.path();
        let asks = (path == INFER && !is_packed).then(asks);
        // Connections bring theirs.
        let pace = head.extensions.get::<Arc<Pace>>().cloned();
        let pace = pace.unwrap_or_else(|| Arc::new(Pace::new(Duration::MAX)));
        let call = match path {
            WATCH => pace::Call::watch(pace),
            _ => pace::Call::new(pace),
        };
        let body = Coming {
            is_stream: path == STREAM,
            most: most(path, state.repository.is_explicit()),
            announced: 0,
            body,
            asks,
            tab: tab.clone(),
            within: self.of.within,
            head: [0; HEAD],
            num_head: 0,
            missing: 0,
            until: None,
        };
        let request = Request::from_parts(head, tonic::body::Body::new(body));
        let answered = TAB.scope(tab.clone(), self.inner.call(request));
        let watched = |answer: Result<Response<_>, _>| {
            let answer: Response<tonic::body::Body> = answer?;
            Ok(answer.map(|body| call.answer(body, tab)))
        };
        let Some(within) = deadline else {
            return answered.map(watched).boxed();
        };
        let in_time = tokio::time::timeout(within, answered);
        let late = |_| Ok(Status::deadline_exceeded("Deadline Exceeded").into_http());
        in_time
            .map(move |answer| watched(answer.unwrap_or_else(late)))
            .boxed()
    }
}

/// The time in which the client wants its answer to begin, a little less: the transport, which has the
/// same, answers that it was cancelled.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    const LESS: Duration = Duration::from_millis(1);
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    let stated = match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    };
    Some(stated.saturating_sub(LESS))
}

/// A request for inference of which nothing came.
struct Asks {
    state: Arc<State>,
    /// What its span belongs to.
    parent: Option<opentelemetry::Context>,
}

impl Asks {
    /// Why it is refused by what its message begins with, if it is.
    fn refused(&self, begins: &[u8]) -> Option<Error> {
        if self.state.is_stopping() {
            return None;
        }
        let (model, version) = weigh::asked(begins.get(HEAD..)?)?;
        let repository = &self.state.repository;
        let served = repository.get(model, version.unwrap_or_default()).ok()?;
        served.check_room().err()?;
        if version.is_none() && repository.versions(model).len() != 1 {
            return None;
        }
        let error = infer::full(&served)?;
        self.state.rounds.refuse();
        let mut traced = Traced::grpc(&self.state, "ModelInfer", self.parent.as_ref());
        traced.asks(&served, &mut infer::Request::default());
        traced.end(Some(&error));
        Some(error)
    }
}

/// The body of a call as it comes.
struct Coming {
    body: tonic::body::Body,
    /// Looked at once.
    asks: Option<Asks>,
    tab: Arc<Tab>,
    /// How long a message may take, or the whole of a call that has one.
    within: Duration,
    is_stream: bool,
    /// Most bytes of all messages.
    most: usize,
    /// Bytes of those whose heads came.
    announced: usize,
    /// What came of a message's head.
    head: [u8; HEAD],
    num_head: usize,
    /// What did not come of a message whose head did.
    missing: usize,
    until: Option<Pin<Box<Sleep>>>,
}

impl Coming {
    /// Whether nothing came of a message that has not ended.
    fn is_between(&self) -> bool {
        self.num_head == 0 && self.missing == 0
    }

    /// Follows what came from message to message.
    ///
    /// # Errors
    /// More bytes than all messages may have.
    fn follow(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            if self.missing > 0 {
                let came = self.missing.min(data.len());
                self.missing -= came;
                data = &data[came..];
            } else {
                self.head[self.num_head] = data[0];
                self.num_head += 1;
                data = &data[1..];
                if self.num_head == HEAD {
                    let [_, len @ ..] = self.head;
                    self.missing = usize::try_from(u32::from_be_bytes(len)).unwrap_or(usize::MAX);
                    self.num_head = 0;
                    self.begins(self.missing)?;
                }
            }
            if self.is_stream && self.is_between() {
                self.until = None;
            }
        }
        Ok(())
    }

    /// A message of so many bytes begins.
    fn begins(&mut self, len: usize) -> Result<(), Error> {
        if self.is_stream {
            self.tab.keep(len, 0);
            return Ok(());
        }
        self.announced = self.announced.saturating_add(HEAD + len);
        if self.announced > HEAD.saturating_add(self.most) {
            let expected = format!("at most {} bytes", self.most);
            let got = format!("{} bytes", self.announced - HEAD);
            return Err(Error::expected("message", expected, got));
        }
        Ok(())
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    let refused = this.asks.take().and_then(|asks| asks.refused(data));
                    if let Some(error) = refused {
                        return Poll::Ready(Some(Err(error.into())));
                    }
                    let taken = this.follow(data).and_then(|()| this.tab.add(data.len()));
                    if let Err(error) = taken {
                        return Poll::Ready(Some(Err(error.into())));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending if this.is_stream && this.is_between() => Poll::Pending,
            Poll::Pending => {
                let within = this.within;
                let sleep = || Box::pin(tokio::time::sleep(within));
                let until = this.until.get_or_insert_with(sleep);
                if until.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let message = format!("expected a whole message within {within:?}, got a part");
                Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
