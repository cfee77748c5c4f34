//! The embedding API: an engine inside a serving front end.
//!
//! [`Engine::builder`] takes a device, models and a policy and starts the driver thread.
//! [`Engine::submit`] checks a request, waits for room in the bounded queue and gives its outputs;
//! [`Engine::submit_stream`] gives decoder steps as they come; [`Engine::try_submit`] refuses at
//! once when the queue is full. Dropping what they return cancels the request.

mod builder;
mod handle;
mod memory;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use lazybatch_graph::{DType, InputId, Program, SharedProgram, Tensor};
use lazybatch_kernels::{RequestMemory, validate_inputs};
use lazybatch_sla::{Class, ClassId, ModelId, Nanos, Outcome, RequestId, Time};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc as stream, oneshot};

pub use builder::{Builder, ModelOptions};
pub(crate) use handle::Admitted;
use handle::Guard;
pub use handle::{Handle, StepStream};

use crate::core::Request;
use crate::driver::sequences::Place;
pub use crate::driver::sequences::SequenceOptions;
use crate::driver::threaded::{Clock, Command, Reply, Stats, Submission};
use crate::explain::{Explainer, Explanation};

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
    /// The driver thread cannot be started.
    #[error("driver thread: {0}")]
    Thread(#[from] std::io::Error),
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
    /// The bounded queue has no room.
    #[error("the queue of {max_queue} requests is full")]
    QueueFull {
        /// Its size.
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
        /// What accepted requests leave.
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
    /// A device failure took it.
    #[error("failed: {0}")]
    Failed(String),
    /// The engine is draining or gone.
    #[error("the engine takes no more requests")]
    Closed,
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
    /// before it left.
    pub sequence: Option<u64>,
    /// This request starts its sequence: its state is what it brings, or zeros. A sequence that
    /// carries state needs a start.
    pub sequence_start: bool,
    /// This request ends its sequence: the state is dropped.
    pub sequence_end: bool,
    /// Most decoder steps; the model's bound if `None`.
    pub max_steps: Option<u32>,
    /// Scheduled arrival on the engine's clock, from which latency counts; now if `None` or later
    /// than now.
    pub arrival: Option<Time>,
    /// True output length, for `oracle` and for simulated devices.
    pub known_output_len: Option<u32>,
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
    /// Outputs in declared order; one that was never emitted is empty.
    pub outputs: Vec<Tensor>,
}

/// One item of a stream.
#[derive(Clone, Debug)]
pub enum Step {
    /// Rows newly emitted to an output.
    Rows {
        /// Which output.
        output: usize,
        /// `[rows, ...]`.
        rows: Tensor,
    },
    /// The end, with all outputs.
    End(Answer),
}

pub(crate) struct Served {
    pub name: String,
    pub program: SharedProgram,
    pub max_batch: u32,
    pub sla: Option<Nanos>,
    pub memory: Option<memory::Bound>,
}

pub(crate) struct Shared {
    pub models: Vec<Served>,
    pub classes: Vec<Class>,
    pub commands: mpsc::Sender<Command>,
    pub queue: Arc<Semaphore>,
    pub max_queue: usize,
    pub memory: Option<memory::Limit>,
    pub next_id: AtomicU64,
    pub accepting: AtomicBool,
    pub clock: Clock,
    pub stats: Arc<Mutex<Stats>>,
    pub needs_output_len: bool,
    pub is_virtual: bool,
    pub explainer: Option<Arc<Mutex<Explainer>>>,
}

/// A request's places in what is bounded.
struct Room {
    queue: OwnedSemaphorePermit,
    memory: Option<memory::Share>,
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

    /// Names of the models served, by id.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.shared.models.iter().map(|m| m.name.as_str())
    }

    /// Time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Running figures.
    pub fn stats(&self) -> Stats {
        self.shared.stats.lock().expect("no holder panics").clone()
    }

    /// The most that a request of that length and samples holds from its start to its end; `None` for
    /// a model that is not served, and on devices that do not know.
    pub fn request_memory(
        &self,
        model: &str,
        input_len: u32,
        samples: u32,
    ) -> Option<RequestMemory> {
        let served = self.shared.models.iter().find(|m| m.name == model)?;
        Some(served.memory.as_ref()?.request(input_len, samples))
    }

    /// Why a request takes or took its time. `None` for one that is not known, or no longer, and
    /// without [`Builder::explain`].
    pub fn explain(&self, id: RequestId) -> Option<Explanation> {
        let explainer = self.shared.explainer.as_ref()?;
        explainer.lock().expect("no holder panics").explain(id)
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
        let (request, inputs) = self.check(model, inputs, &options)?;
        let room = self.room(&request).await?;
        self.send_once(request, inputs, &options, room)?.await
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
        let (request, inputs) = self.check(model, inputs, &options)?;
        let room = self.room(&request).await?;
        self.send_stream(request, inputs, &options, room)
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
        let (request, inputs) = self.check(model, inputs, &options)?;
        let room = self.try_room(model, &request)?;
        self.send_stream(request, inputs, &options, room)
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
        let (request, inputs) = self.check(model, inputs, &options)?;
        let room = self.try_room(model, &request)?;
        self.send_once(request, inputs, &options, room)
    }

    /// Takes no more requests and returns when all accepted ones have ended.
    pub async fn drain(mut self) {
        self.start_drain();
        if let Some(thread) = self.thread.take() {
            let (tx, rx) = oneshot::channel();
            std::thread::spawn(move || {
                drop(thread.join());
                let _ = tx.send(());
            });
            drop(rx.await);
        }
    }

    /// As [`Engine::drain`], blocking the calling thread.
    pub fn drain_blocking(mut self) {
        self.start_drain();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }

    fn start_drain(&self) {
        self.shared.accepting.store(false, Ordering::SeqCst);
        drop(self.shared.commands.send(Command::Drain));
    }

    async fn room(&self, request: &Request) -> Result<Room, RequestError> {
        let shared = &self.shared;
        let memory = match &shared.memory {
            Some(limit) => {
                let name = &shared.models[request.model.index()].name;
                Some(limit.share(name, request).await?)
            }
            None => None,
        };
        let queue = shared.queue.clone().acquire_owned().await;
        let queue = queue.map_err(|_| RequestError::Closed)?;
        Ok(Room { queue, memory })
    }

    fn try_room(&self, model: &str, request: &Request) -> Result<Room, RequestError> {
        let shared = &self.shared;
        let limit = shared.memory.as_ref();
        let memory = limit.map(|l| l.try_share(model, request)).transpose()?;
        let max_queue = shared.max_queue;
        let queue = shared.queue.clone().try_acquire_owned();
        let queue = queue.map_err(|_| RequestError::QueueFull { max_queue })?;
        Ok(Room { queue, memory })
    }

    fn check(
        &self,
        model: &str,
        inputs: Vec<Tensor>,
        options: &Options,
    ) -> Result<(Request, Vec<Tensor>), RequestError> {
        let shared = &self.shared;
        let index = shared
            .models
            .iter()
            .position(|m| m.name == model)
            .ok_or_else(|| {
                let names: Vec<_> = self.models().collect();
                RequestError::UnknownModel {
                    got: model.into(),
                    expected: names.join(", "),
                }
            })?;
        let served = &shared.models[index];
        let inputs = with_carried(&served.program, inputs);
        let shape = validate_inputs(&served.program, &inputs)?;
        if shape.samples > served.max_batch {
            return Err(RequestError::Samples {
                model: model.into(),
                max_batch: served.max_batch,
                got: shape.samples,
            });
        }
        let class = options.class.as_deref().unwrap_or("default");
        let class_index = shared.classes.iter().position(|c| c.name == class);
        let class_index = class_index.ok_or_else(|| {
            let names: Vec<_> = shared.classes.iter().map(|c| c.name.as_str()).collect();
            RequestError::UnknownClass {
                got: class.into(),
                expected: names.join(", "),
            }
        })?;
        let class = &shared.classes[class_index];
        let simulated_end = options.known_output_len == Some(0) && shared.is_virtual;
        let request = Request {
            id: RequestId(0),
            model: ModelId(index as u32),
            arrival: options.arrival.unwrap_or(Time::MAX),
            sla: options.sla.or(class.sla).or(served.sla),
            class: ClassId(class_index as u32),
            priority: class.priority_of(options.priority),
            samples: shape.samples,
            input_len: shape.input_len,
            sequence: options.sequence,
            max_steps: if simulated_end {
                Some(0)
            } else {
                options.max_steps
            },
            known_output_len: options.known_output_len.filter(|_| shared.needs_output_len),
        };
        Ok((request, inputs))
    }

    fn send_once(
        &self,
        request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        room: Room,
    ) -> Result<Handle, RequestError> {
        let (tx, rx) = oneshot::channel();
        let admitted = Admitted::default();
        let reply = Reply::Once(tx);
        let id = self.send(request, inputs, options, reply, room, &admitted)?;
        let guard = Guard::new(id, admitted, self.shared.commands.clone());
        Ok(Handle::new(rx, guard))
    }

    fn send_stream(
        &self,
        request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        room: Room,
    ) -> Result<StepStream, RequestError> {
        let (tx, rx) = stream::unbounded_channel();
        let admitted = Admitted::default();
        let reply = Reply::Stream(tx);
        let id = self.send(request, inputs, options, reply, room, &admitted)?;
        let guard = Guard::new(id, admitted, self.shared.commands.clone());
        Ok(StepStream::new(rx, guard))
    }

    fn send(
        &self,
        mut request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        reply: Reply,
        room: Room,
        admitted: &Admitted,
    ) -> Result<RequestId, RequestError> {
        let shared = &self.shared;
        if !shared.accepting.load(Ordering::SeqCst) {
            return Err(RequestError::Closed);
        }
        let id = RequestId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        request.id = id;
        request.arrival = request.arrival.min(shared.clock.now());
        let carries = !shared.models[request.model.index()]
            .program
            .carries
            .is_empty();
        let place = request.sequence.filter(|_| carries);
        let place = place.map(|sequence| Place {
            sequence,
            start: options.sequence_start,
            end: options.sequence_end,
        });
        let submission = Submission {
            request,
            inputs,
            place,
            sim_output_len: options.known_output_len,
            reply,
            permit: Some(room.queue),
            memory: room.memory,
            admitted: admitted.clone(),
        };
        shared
            .commands
            .send(Command::Submit(Box::new(submission)))
            .map_err(|_| RequestError::Closed)?;
        Ok(id)
    }
}

/// The inputs with zeros for all carried ones, if just those are missing.
fn with_carried(program: &Program, given: Vec<Tensor>) -> Vec<Tensor> {
    let ids = || (0..program.inputs.len()).map(InputId::new);
    let num_carried = ids().filter(|&i| program.is_carried(i)).count();
    if num_carried == 0 || given.len() + num_carried != program.inputs.len() {
        return given;
    }
    // One per sample of the others; one where a sequence says how long the request is.
    let samples = match program.length_input {
        Some(_) => 1,
        None => given.first().map_or(1, |t| t.dims[0]),
    };
    let mut given = given.into_iter();
    let inputs = ids().filter_map(|id| {
        if !program.is_carried(id) {
            return given.next();
        }
        let ty = &program.input(id).ty;
        let dims: Vec<usize> = [samples].into_iter().chain(ty.fixed_dims()).collect();
        let num = dims.iter().product();
        Some(match ty.dtype {
            DType::I32 => Tensor::from_i32(&dims, &vec![0; num]),
            _ => Tensor::from_f32(&dims, &vec![0.0; num]),
        })
    });
    inputs.collect()
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.accepting.store(false, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(self.shared.commands.send(Command::Stop));
            drop(thread.join());
        }
    }
}
