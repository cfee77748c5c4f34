//! The embedding API: an engine inside a serving front end.
//!
//! [`Engine::builder`] takes a device, models and a policy and starts the driver thread.
//! [`Engine::submit`] checks a request, waits for room in the bounded queue and gives its outputs;
//! [`Engine::submit_stream`] gives decoder steps as they come; [`Engine::try_submit`] refuses at
//! once when the queue is full. Dropping what they return cancels the request.

mod backlog;
mod builder;
mod handle;
mod memory;
mod model;
mod outbox;
mod submit;
#[cfg(test)]
mod tests;
mod unseen;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc};

use lazybatch_graph::{SharedProgram, Tensor};
use lazybatch_kernels::{Packer, RequestMemory};
use lazybatch_sla::{Nanos, Outcome, RequestId, Time};
use tokio::sync::oneshot;

pub(crate) use backlog::InBacklog;
pub use builder::Builder;
pub(crate) use handle::Admitted;
pub use handle::{Handle, StepStream};
pub(crate) use model::{Draft, Maker, Served};
pub use model::{Figures, ModelHandle, ModelOptions, ModelStats};
pub use outbox::Held;
pub(crate) use outbox::{Abandoned, Inbox, Outbox};
pub(crate) use submit::Permits;

use crate::driver::command::Command;
use crate::driver::figures::Stats;
pub use crate::driver::launches::Launches;
use crate::driver::seat::Seat;
pub use crate::driver::sequences::SequenceOptions;
pub use crate::driver::tally::{AtSize, Sizes};
use crate::driver::threaded::Clock;
use crate::explain::{Explainer, Explanation};
use crate::watch::{Monitor, Tape};

/// Why an engine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The policy specification names none.
    #[error(transparent)]
    Policy(#[from] crate::policy::UnknownPolicy),
    /// The device refuses a model.
    #[error(transparent)]
    Device(#[from] lazybatch_kernels::Error),
    /// A model's options do not fit its program.
    #[error("model {model}: {what}: expected {expected}, got {got}")]
    Model {
        /// Which model.
        model: String,
        /// Which option.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// An option of the engine, or a class.
    #[error("{what}: expected {expected}, got {got}")]
    Option {
        /// Which option.
        what: String,
        /// What would be right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The driver thread cannot be started.
    #[error("driver thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine is draining or gone.
    #[error("the engine takes no more models")]
    Closed,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No model of that name.
    #[error("unknown model {got:?}: expected one of {expected}")]
    UnknownModel {
        /// What was asked for.
        got: String,
        /// What there is.
        expected: String,
    },
    /// No class of that name.
    #[error("unknown class {got:?}: expected one of {expected}")]
    UnknownClass {
        /// What was asked for.
        got: String,
        /// What there is.
        expected: String,
    },
    /// The inputs do not fit the model.
    #[error(transparent)]
    Input(#[from] lazybatch_kernels::Error),
    /// More samples than one launch holds.
    #[error("model {model}: expected at most {max_batch} samples, got {got}")]
    Samples {
        /// Model name.
        model: String,
        /// The bound.
        max_batch: u32,
        /// What came.
        got: u32,
    },
    /// A request without its place in a sequence that carries state.
    #[error("sequence {sequence}: expected {expected}")]
    Sequence {
        /// Which sequence.
        sequence: u64,
        /// What would be right.
        expected: String,
    },
    /// A sequence that would be one too many: others have to end first.
    #[error("sequence {sequence}: expected at most {most} open sequences")]
    SequencesFull {
        /// Which sequence.
        sequence: u64,
        /// The bound.
        most: usize,
    },
    /// The bounded queue has no room.
    #[error("the queue of {max_queue} requests is full")]
    QueueFull {
        /// Its size, or half of it where it is full for the backlog of sequences.
        max_queue: usize,
    },
    /// The bounded queue of its priority level has no room.
    #[error("the queue of {max_queue} requests of priority level {level} is full")]
    LevelFull {
        /// Its priority level.
        level: u8,
        /// The size of that level's queue.
        max_queue: usize,
    },
    /// It may hold more memory than is left of the limit.
    #[error(
        "model {model}: memory of a request of {input_len} positions and {samples} samples: \
         expected at most {left} bytes, what is left of the limit of {limit} bytes, got {got} bytes"
    )]
    Memory {
        /// Model name.
        model: String,
        /// Its length.
        input_len: u32,
        /// Its samples.
        samples: u32,
        /// What it may hold.
        got: u64,
        /// What accepted requests leave; of the half for those that wait in the backlog of sequences, if it would be
        /// one of them.
        left: u64,
        /// The limit of all requests together.
        limit: u64,
    },
    /// The scheduler refused or dropped it.
    #[error("shed: {0}")]
    Shed(String),
    /// It was withdrawn.
    #[error("cancelled")]
    Cancelled,
    /// What it brought leads to something that has no result: an id outside of a table, a whole number
    /// beyond those that a program holds.
    #[error("failed: {0}")]
    Data(String),
    /// A failure of the device, or of a kernel, took it.
    #[error("failed: {0}")]
    Failed(String),
    /// Its sequence could not go on: the request before it was refused or did not complete.
    #[error("failed: {0}")]
    Broken(String),
    /// Its model was unloaded before the request was taken.
    #[error("model {model} is unloaded")]
    Unloaded {
        /// Model name.
        model: String,
    },
    /// The engine is draining or gone. A request that it had accepted was cancelled when the engine was
    /// dropped.
    #[error("the engine takes no more requests")]
    Closed,
    /// The engine's driver or its device panicked: it serves no model any more. Who was in a launch then
    /// hears [`RequestError::Failed`].
    #[error("the engine has failed: {0}")]
    Crashed(String),
}

impl RequestError {
    pub(crate) fn of(outcome: Outcome, cause: String) -> Self {
        match outcome {
            Outcome::Shed => Self::Shed(cause),
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Failed | Outcome::Met | Outcome::Violated => Self::Failed(cause),
        }
    }
}

/// What a client may say about its request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of its SLA class; `default` if `None`.
    pub class: Option<String>,
    /// SLA target; that of its class if `None`, or else that of its model.
    pub sla: Option<Nanos>,
    /// Priority level, 1 is the highest; that of its class if 0.
    pub priority: u8,
    /// Correlation id: requests of one sequence run one after another, in order of arrival. Where
    /// the model carries state ([`lazybatch_graph::Program::carries`]), each gets what the one
    /// before it left; behind one that was refused or did not complete all fail until a start.
    pub sequence: Option<u64>,
    /// This request starts its sequence: its state is what it brings, or zeros. A sequence that
    /// carries state needs a start, and so does one whose model bounds them ([`ModelOptions::sequences`]).
    pub sequence_start: bool,
    /// This request ends its sequence: the state is dropped, and another may leave the backlog.
    pub sequence_end: bool,
    /// Behind so much waiting it is delayed: from then on it waits until nobody of its model waits
    /// who is not, and keeps its place among those who are.
    pub delay_after: Option<Nanos>,
    /// Most decoder steps; the model's bound if `None`.
    pub max_steps: Option<u32>,
    /// Scheduled arrival on the engine's clock, from which latency counts; now if `None` or later
    /// than now.
    pub arrival: Option<Time>,
    /// True output length, for `oracle` and for simulated devices.
    pub known_output_len: Option<u32>,
    /// Keep why it took its time, in an engine with [`Builder::explain_on_request`].
    pub explain: bool,
    /// Tell which launches carried it, as [`Answer::launches`].
    pub count: bool,
}

/// A completed request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its id.
    pub id: RequestId,
    /// Met or violated.
    pub outcome: Outcome,
    /// When it arrived.
    pub arrival: Time,
    /// When it was launched first.
    pub first_launch: Option<Time>,
    /// When it ended.
    pub finish: Time,
    /// The launches that carried it, where it asked with [`Options::count`] and few others that ask
    /// were open.
    pub launches: Option<Launches>,
    /// Outputs in declared order; one that was never emitted is empty.
    pub outputs: Vec<Tensor>,
}

/// One item of a stream.
#[derive(Clone, Debug)]
pub enum Step {
    /// Rows newly emitted to an output; all of one that does not grow, which comes once.
    Rows {
        /// Which output.
        output: usize,
        /// `[rows, ...]`.
        rows: Tensor,
    },
    /// The end, with all outputs.
    End(Answer),
}

pub(crate) struct Shared {
    /// Those that are found by name, in the order in which they were loaded.
    pub models: RwLock<Vec<Arc<Served>>>,
    pub outbox: Outbox,
    pub seat: Arc<Seat>,
    pub next_id: AtomicU64,
    pub accepting: AtomicBool,
    pub clock: Clock,
    pub stats: Arc<Mutex<Stats>>,
    pub needs_output_len: bool,
    pub is_virtual: bool,
    pub explainer: Option<Arc<Mutex<Explainer>>>,
    pub tape: Arc<Tape>,
    /// Makes models ready beside the driver, where the device knows how.
    pub packer: Option<Arc<dyn Packer>>,
}

impl Shared {
    /// Lets go the requests that are held back.
    fn let_go(&self) {
        self.seat.let_go(&self.outbox);
    }

    /// Running figures.
    pub fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().expect("no holder panics")
    }

    /// Why there is no driver.
    fn gone(&self) -> RequestError {
        match self.seat.failure() {
            Some(cause) => RequestError::Crashed(cause.into()),
            None => RequestError::Closed,
        }
    }

    fn explain(&self, id: RequestId) -> Option<Explanation> {
        let explainer = self.explainer.as_ref()?;
        explainer.lock().expect("no holder panics").explain(id)
    }

    /// The model of a name; of several the one that was loaded last.
    fn find(&self, name: &str) -> Result<Arc<Served>, RequestError> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let found = models.iter().rev().find(|m| m.name == name).cloned();
        found.ok_or_else(|| {
            let names: Vec<_> = models.iter().map(|m| m.name.as_str()).collect();
            RequestError::UnknownModel {
                got: name.into(),
                expected: names.join(", "),
            }
        })
    }

    /// No request finds it by name any more.
    fn forget(&self, served: &Arc<Served>) {
        let models = self.models.write();
        let mut models = models.unwrap_or_else(PoisonError::into_inner);
        models.retain(|m| !Arc::ptr_eq(m, served));
    }
}

/// A running engine. Dropping it cancels what is open; [`Engine::drain`] lets it finish.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Engine {
    /// Starts the description of an engine.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Names of the models that are served, in the order in which they were loaded.
    pub fn models(&self) -> Vec<String> {
        let models = self.shared.models.read();
        let models = models.unwrap_or_else(PoisonError::into_inner);
        models.iter().map(|m| m.name.clone()).collect()
    }

    /// Loads a model into the running engine: its requests batch and compete with those of all
    /// others from now on. Names may repeat, as those of versions do; requests by name go to the one
    /// that was loaded last. Blocks until the device has it. The device runs on meanwhile if it has a
    /// [`Packer`], which then works on the calling thread; else it runs nothing.
    ///
    /// # Errors
    /// What the device or the model's options refuse, examples without a profile, or an engine that is
    /// closed.
    pub fn load(
        &self,
        name: &str,
        program: impl Into<SharedProgram>,
        options: ModelOptions,
    ) -> Result<ModelHandle, BuildError> {
        if options.profile.is_none() && !options.examples.is_empty() {
            let expected =
                "a profile (`measure::measure` makes one on another device), as this one runs";
            return Err(options.unmeasured(name, expected));
        }
        let mut draft = Draft::new(name, program.into(), options)?;
        if !self.shared.accepting.load(Ordering::SeqCst) {
            return Err(BuildError::Closed);
        }
        if let Some(packer) = &self.shared.packer {
            draft.packed = Some(packer.pack(draft.program.clone(), draft.spec.max_batch)?);
        }
        let (tx, rx) = mpsc::channel();
        let command = Command::Load(Box::new(draft), tx);
        let sent = self.shared.outbox.send(command);
        sent.map_err(|_| BuildError::Closed)?;
        let served = rx.recv().unwrap_or(Err(BuildError::Closed))?;
        let models = self.shared.models.write();
        let mut models = models.unwrap_or_else(PoisonError::into_inner);
        models.push(served.clone());
        Ok(ModelHandle::new(self.shared.clone(), served))
    }

    /// Time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Running figures.
    pub fn stats(&self) -> Stats {
        self.shared.stats().clone()
    }

    /// What looks at it while it runs.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.shared.clone())
    }

    /// The most that a request of that length and samples holds from its start to its end; `None` for
    /// a model that is not served, and on devices that do not know.
    pub fn request_memory(
        &self,
        model: &str,
        input_len: u32,
        samples: u32,
    ) -> Option<RequestMemory> {
        let served = self.shared.find(model).ok()?;
        Some(served.bound.as_ref()?.request(input_len, samples))
    }

    /// Why a request takes or took its time. `None` for one that is not known, or no longer, and
    /// without [`Builder::explain`] or [`Builder::explain_on_request`].
    pub fn explain(&self, id: RequestId) -> Option<Explanation> {
        self.shared.explain(id)
    }

    /// Runs one request; waits while the queue is full, or while accepted requests leave it too
    /// little of the memory limit. Dropping the future cancels the request.
    ///
    /// `inputs` are those of the model, in order; those that it carries from request to request may
    /// be left out, all of them: they are then what the sequence has, or zeros.
    ///
    /// # Errors
    /// Inputs that do not fit, an engine that is closed, or how the request ended otherwise.
    pub async fn submit(
        &self,
        model: &str,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Answer, RequestError> {
        let served = self.shared.find(model)?;
        self.shared.submit(&served, inputs, options).await
    }

    /// Runs one request and gives its decoder steps as they come.
    ///
    /// # Errors
    /// Inputs that do not fit, or an engine that is closed.
    pub async fn submit_stream(
        &self,
        model: &str,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<StepStream, RequestError> {
        let served = self.shared.find(model)?;
        self.shared.submit_stream(&served, inputs, options).await
    }

    /// As [`Engine::submit_stream`], but refuses at once as [`Engine::try_submit`] does.
    ///
    /// # Errors
    /// Those of [`Engine::try_submit`].
    pub fn try_submit_stream(
        &self,
        model: &str,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<StepStream, RequestError> {
        let served = self.shared.find(model)?;
        self.shared.try_submit_stream(&served, inputs, options)
    }

    /// Hands in one request, or refuses it at once if the queue is full or too little is left of the
    /// memory limit.
    ///
    /// # Errors
    /// Inputs that do not fit, a full queue, too little memory, or an engine that is closed.
    pub fn try_submit(
        &self,
        model: &str,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Handle, RequestError> {
        let served = self.shared.find(model)?;
        self.shared.try_submit(&served, inputs, options)
    }

    /// Whether it takes requests: not behind a panic of its driver, in an observer, or of its device.
    pub fn is_running(&self) -> bool {
        self.shared.accepting.load(Ordering::SeqCst) && self.shared.seat.failure().is_none()
    }

    /// Takes no more requests and returns when all accepted ones have ended. Dropping the future stops
    /// the engine, as dropping the engine does.
    ///
    /// # Errors
    /// [`RequestError::Crashed`] if the driver or its device panicked, now or before.
    pub async fn drain(mut self) -> Result<(), RequestError> {
        self.start_drain();
        let mut stops = Stops(Some(self.shared.clone()));
        if let Some(thread) = self.thread.take() {
            let (tx, rx) = oneshot::channel();
            std::thread::spawn(move || {
                drop(thread.join());
                let _ = tx.send(());
            });
            drop(rx.await);
        }
        stops.0 = None;
        self.drained()
    }

    /// As [`Engine::drain`], blocking the calling thread.
    ///
    /// # Errors
    /// As [`Engine::drain`].
    pub fn drain_blocking(mut self) -> Result<(), RequestError> {
        self.start_drain();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        self.drained()
    }

    fn drained(&self) -> Result<(), RequestError> {
        match self.shared.gone() {
            RequestError::Closed => Ok(()),
            crashed => Err(crashed),
        }
    }

    fn start_drain(&self) {
        self.shared.accepting.store(false, Ordering::SeqCst);
        drop(self.shared.outbox.send(Command::Drain));
    }
}

/// Stops an engine that is not drained yet when this is dropped.
struct Stops(Option<Arc<Shared>>);

impl Drop for Stops {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            drop(shared.outbox.send(Command::Stop));
        }
    }
}

impl Drop for Engine {
    /// Returns when the launch that runs is over, but on a thread that runs a driver, as observers and
    /// wakers do: there the engine ends behind the turn.
    fn drop(&mut self) {
        self.shared.accepting.store(false, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(self.shared.outbox.send(Command::Stop));
            if !crate::driver::seat::is_driving() {
                drop(thread.join());
            }
        }
    }
}
