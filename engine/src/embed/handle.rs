//! What a client holds while its request runs. Dropping it cancels the request.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};

use lazybatch_sla::RequestId;
use tokio::sync::{mpsc, oneshot};

use super::{Answer, RequestError, Step};
use crate::driver::threaded::Command;

/// Cancels a request when it is dropped before the end.
struct Guard {
    id: RequestId,
    commands: Sender<Command>,
    ended: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            // An engine that is gone has cancelled it already.
            drop(self.commands.send(Command::Cancel(self.id)));
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
        id: RequestId,
        commands: Sender<Command>,
    ) -> Self {
        Self {
            answer,
            guard: Guard {
                id,
                commands,
                ended: false,
            },
        }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.guard.id
    }

    /// Blocks the calling thread until it ends.
    ///
    /// # Errors
    /// How it ended, if not with an answer.
    ///
    /// # Panics
    /// On a thread of an asynchronous runtime.
    pub fn wait(mut self) -> Result<Answer, RequestError> {
        self.guard.ended = true;
        self.answer
            .blocking_recv()
            .unwrap_or(Err(RequestError::Closed))
    }
}

impl Future for Handle {
    type Output = Result<Answer, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        Pin::new(&mut this.answer).poll(cx).map(|result| {
            this.guard.ended = true;
            result.unwrap_or(Err(RequestError::Closed))
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
        id: RequestId,
        commands: Sender<Command>,
    ) -> Self {
        Self {
            steps,
            guard: Guard {
                id,
                commands,
                ended: false,
            },
        }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.guard.id
    }

    /// The next step; `None` behind the end.
    pub async fn next(&mut self) -> Option<Result<Step, RequestError>> {
        let step = self.steps.recv().await;
        if matches!(step, None | Some(Ok(Step::End(_)) | Err(_))) {
            self.guard.ended = true;
        }
        step
    }
}
