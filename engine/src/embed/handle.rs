//! What a client holds while its request runs. Dropping it cancels the request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use lazybatch_sla::RequestId;
use tokio::sync::{mpsc, oneshot};

use super::{Answer, RequestError, Shared, Step};
use crate::driver::command::Command;

/// Whether a request has left the arrival queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// It has.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Cancels a request when it is dropped before the end.
pub(crate) struct Guard {
    id: RequestId,
    admitted: Admitted,
    shared: Arc<Shared>,
    ended: bool,
}

impl Guard {
    /// Of a request that was handed in.
    pub fn new(id: RequestId, admitted: Admitted, shared: Arc<Shared>) -> Self {
        Self {
            id,
            admitted,
            shared,
            ended: false,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            // An engine that is gone has cancelled it already.
            drop(self.shared.outbox.send(Command::Cancel(self.id)));
        }
    }
}

/// A request in the engine; a future of its answer.
pub struct Handle {
    answer: oneshot::Receiver<Result<Answer, RequestError>>,
    guard: Guard,
}

impl Handle {
    pub(crate) fn new(
        answer: oneshot::Receiver<Result<Answer, RequestError>>,
        guard: Guard,
    ) -> Self {
        Self { answer, guard }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.guard.id
    }

    /// Whether it has left the arrival queue: its turn has come.
    pub fn is_admitted(&self) -> bool {
        self.guard.admitted.get()
    }

    /// Blocks the calling thread until it ends.
    ///
    /// # Errors
    /// How it ended, if not with an answer.
    ///
    /// # Panics
    /// On a thread of an asynchronous runtime.
    pub fn wait(mut self) -> Result<Answer, RequestError> {
        let answer = self.answer.blocking_recv();
        self.guard.ended = true;
        answer.unwrap_or_else(|_| Err(self.guard.shared.gone()))
    }
}

impl Future for Handle {
    type Output = Result<Answer, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        Pin::new(&mut this.answer).poll(cx).map(|result| {
            this.guard.ended = true;
            result.unwrap_or_else(|_| Err(this.guard.shared.gone()))
        })
    }
}

/// A request in the engine, as a stream of steps.
pub struct StepStream {
    steps: mpsc::UnboundedReceiver<Result<Step, RequestError>>,
    guard: Guard,
}

impl StepStream {
    pub(crate) fn new(
        steps: mpsc::UnboundedReceiver<Result<Step, RequestError>>,
        guard: Guard,
    ) -> Self {
        Self { steps, guard }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.guard.id
    }

    /// Whether it has left the arrival queue: its turn has come.
    pub fn is_admitted(&self) -> bool {
        self.guard.admitted.get()
    }

    /// The next step; `None` behind the end, which is an error if the engine went before it.
    pub async fn next(&mut self) -> Option<Result<Step, RequestError>> {
        let step = match self.steps.recv().await {
            None if !self.guard.ended => Some(Err(self.guard.shared.gone())),
            step => step,
        };
        if matches!(step, Some(Ok(Step::End(_)) | Err(_))) {
            self.guard.ended = true;
        }
        step
    }
}
