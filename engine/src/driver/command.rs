//! What the driver is told: requests, checked, and what is asked of it beside.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use lazybatch_graph::Tensor;
use lazybatch_sla::RequestId;
use tokio::sync::{mpsc, oneshot};

use super::sequences::Place;
use crate::core::Request;
use crate::embed::{Admitted, Answer, BuildError, Draft, Permits, RequestError, Served, Step};
use crate::watch::Look;

/// Where answers go.
pub(crate) enum Reply {
    /// All outputs at the end.
    Once(oneshot::Sender<Result<Answer, RequestError>>),
    /// Rows as they are emitted, then the end.
    Stream(mpsc::UnboundedSender<Result<Step, RequestError>>),
}

/// A request on its way to the driver, checked.
pub(crate) struct Submission {
    /// Its model.
    pub served: Arc<Served>,
    pub request: Request,
    pub inputs: Vec<Tensor>,
    /// Its place in a sequence, for models that carry state.
    pub place: Option<Place>,
    /// True output length, for devices that only simulate.
    pub sim_output_len: Option<u32>,
    pub reply: Reply,
    /// Places in bounded queues; given back at admission, or before it is answered without.
    pub queue: Permits<3>,
    /// Its shares of memory limits; given back before it is answered.
    pub memory: Permits<2>,
    /// Set at admission.
    pub admitted: Admitted,
    /// Its client wants to know why it took its time.
    pub explain: bool,
    /// Its client wants to know which launches carried it.
    pub count: bool,
}

impl Submission {
    /// Says why there is no answer. Whoever hears it may hand in the next request.
    pub fn refuse(self, error: RequestError) {
        let Self {
            queue,
            memory,
            reply,
            ..
        } = self;
        drop((queue, memory));
        reply.refuse(error);
    }
}

impl Reply {
    /// Says why there is no answer. The client may have gone; that then goes nowhere.
    fn refuse(self, error: RequestError) {
        match self {
            Self::Once(tx) => drop(tx.send(Err(error))),
            Self::Stream(tx) => drop(tx.send(Err(error))),
        }
    }
}

/// A request of a sequence that was refused before it came to the driver.
pub(crate) struct Refused {
    /// Its model.
    pub served: Arc<Served>,
    pub place: Place,
    pub cause: String,
}

/// What the driver is told.
pub(crate) enum Command {
    Submit(Box<Submission>),
    Cancel(RequestId),
    /// A request was refused that the driver would have had next of its sequence.
    Refused(Box<Refused>),
    /// Tell what is being done.
    Look(oneshot::Sender<Arc<Look>>),
    /// Take in a model, and say so.
    Load(Box<Draft>, Sender<Result<Arc<Served>, BuildError>>),
    /// Let a model go when its last request has ended.
    Unload(Arc<Served>),
    /// End when nothing is open.
    Drain,
    /// End now; what is open is cancelled.
    Stop,
}

impl Command {
    /// That of most.
    pub const WEIGHT: usize = 64;

    /// What it adds to a turn: next to nothing where it is only noted. Of those there may be any number,
    /// as who is refused has no place in what is bounded, so that a turn takes them all.
    pub fn weight(&self) -> usize {
        match self {
            Self::Refused(_) => 1,
            _ => Self::WEIGHT,
        }
    }

    /// Whether what it leads to is over within microseconds.
    pub fn is_quick(&self) -> bool {
        match self {
            Self::Submit(submission) => submission.served.is_quick,
            Self::Cancel(_) | Self::Refused(_) => true,
            _ => false,
        }
    }
}
