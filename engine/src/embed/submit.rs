//! Hands requests in: checked against their model, with their places in what is bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazybatch_graph::{DType, InputId, Program, Tensor};
use lazybatch_kernels::{validate_inputs, with_sampling};
use lazybatch_sla::{RequestId, Time};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc as stream, oneshot};

use super::backlog::Half;
use super::handle::Guard;
use super::memory::Limit;
use super::outbox::{Gone, Held};
use super::{Admitted, Answer, Handle, Options, RequestError, Served, Shared, StepStream};
use crate::core::Request;
use crate::driver::command::{Command, Refused, Reply, Submission};
use crate::driver::sequences::Place;

/// Places of a request in what its model bounds, in what the engine bounds, and, in queues, in what
/// its model bounds for its priority level.
pub(crate) type Permits<const N: usize> = [Option<OwnedSemaphorePermit>; N];

/// A queue of so many places.
pub(crate) struct Bounded {
    room: Arc<Semaphore>,
    most: usize,
    of_backlog: Half,
}

/// What bounds the requests of all models together.
pub(crate) struct Overall {
    pub queue: Bounded,
    pub limit: Option<Limit>,
}

impl Bounded {
    /// Of `most` places.
    pub fn new(most: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            most,
            of_backlog: Half::of(most),
        }
    }

    /// A place among those that the backlog may have; how many these are, if none is left.
    pub fn backlog_place(&self) -> Result<OwnedSemaphorePermit, usize> {
        self.of_backlog.take(1).ok_or((self.most / 2).max(1))
    }

    /// How many of them are taken.
    pub fn num_taken(&self) -> usize {
        let room = self.most.min(Semaphore::MAX_PERMITS);
        room.saturating_sub(self.room.available_permits())
    }

    /// Whether none of them is free.
    pub fn is_full(&self) -> bool {
        self.room.available_permits() == 0
    }

    fn full(&self) -> RequestError {
        RequestError::QueueFull {
            max_queue: self.most,
        }
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, RequestError> {
        if self.most == 0 {
            // Nobody will ever give one back.
            return Err(self.full());
        }
        let place = self.room.clone().acquire_owned().await;
        place.map_err(|_| RequestError::Closed)
    }

    fn try_place(&self) -> Result<OwnedSemaphorePermit, RequestError> {
        let place = self.room.clone().try_acquire_owned();
        place.map_err(|_| self.full())
    }
}

/// A request's places in what is bounded.
struct Room {
    queue: Permits<3>,
    memory: Permits<2>,
}

/// Who waits for room, and for what; nobody once that is over.
struct Waits<'a>(Option<(&'a Shared, &'a Arc<Served>, &'a Options)>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some((shared, served, options)) = self.0 {
            shared.refused(served, options, "cancelled before it was taken in".into());
        }
    }
}

impl Shared {
    pub(super) async fn submit(
        self: &Arc<Self>,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Answer, RequestError> {
        let (request, inputs) = self.checked(served, inputs, &options)?;
        let room = self.wait_for_room(served, &request, &options).await?;
        self.send_once(served, request, inputs, &options, room)?
            .await
    }

    pub(super) async fn submit_stream(
        self: &Arc<Self>,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<StepStream, RequestError> {
        let (request, inputs) = self.checked(served, inputs, &options)?;
        let room = self.wait_for_room(served, &request, &options).await?;
        self.send_stream(served, request, inputs, &options, room)
    }

    pub(super) fn try_submit_stream(
        self: &Arc<Self>,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<StepStream, RequestError> {
        let (request, inputs) = self.checked(served, inputs, &options)?;
        let room = self.try_room(served, &request, &options)?;
        self.send_stream(served, request, inputs, &options, room)
    }

    pub(super) fn try_submit(
        self: &Arc<Self>,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Handle, RequestError> {
        let (request, inputs) = self.checked(served, inputs, &options)?;
        let room = self.try_room(served, &request, &options)?;
        self.send_once(served, request, inputs, &options, room)
    }

    pub(super) fn try_submit_held(
        self: &Arc<Self>,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<(Handle, Option<Held>), RequestError> {
        let (request, inputs) = self.checked(served, inputs, &options)?;
        let room = self.try_room(served, &request, &options)?;
        let (handle, submit) = self.once(served, request, inputs, &options, room)?;
        let is_first = self.outbox.hold(submit).map_err(|Gone| self.gone())?;
        Ok((handle, is_first.then(|| Held(self.clone()))))
    }

    /// Waits for room. Who leaves meanwhile has broken its sequence, as one that is refused has.
    async fn wait_for_room(
        &self,
        served: &Arc<Served>,
        request: &Request,
        options: &Options,
    ) -> Result<Room, RequestError> {
        let mut waits = Waits(Some((self, served, options)));
        let room = self.room(served, request).await;
        waits.0 = None;
        self.noting(served, options, room)
    }

    /// Tells the driver of a request that was refused, if it is of a sequence with state: in the order
    /// in which requests are handed in, so that what follows does not go on without it.
    pub(super) fn refused(&self, served: &Arc<Served>, options: &Options, cause: String) {
        if let Some(place) = place(served, options) {
            let served = served.clone();
            let refused = Refused {
                served,
                place,
                cause,
            };
            // An engine that is gone has no sequences.
            drop(self.outbox.send(Command::Refused(Box::new(refused))));
        }
    }

    /// The same where it is.
    fn noting<T>(
        &self,
        served: &Arc<Served>,
        options: &Options,
        result: Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        result.inspect_err(|error| self.refused(served, options, error.to_string()))
    }

    fn checked(
        &self,
        served: &Arc<Served>,
        inputs: Vec<Tensor>,
        options: &Options,
    ) -> Result<(Request, Vec<Tensor>), RequestError> {
        self.noting(served, options, self.check(served, inputs, options))
    }

    fn try_room(
        &self,
        served: &Arc<Served>,
        request: &Request,
        options: &Options,
    ) -> Result<Room, RequestError> {
        self.noting(served, options, self.find_room(served, request))
    }

    /// Waits for room. All requests take their places in this order, so none waits for another in a
    /// circle.
    async fn room(&self, served: &Served, request: &Request) -> Result<Room, RequestError> {
        let (limits, needed) = (served.limits(), served.memory_of(request));
        let mut room = Room {
            queue: Default::default(),
            memory: Default::default(),
        };
        for (limit, share) in limits.into_iter().zip(&mut room.memory) {
            if let Some(limit) = limit {
                *share = Some(limit.share(&served.name, needed, request).await?);
            }
        }
        if let Some(queue) = served.level_queues.get(&request.priority) {
            room.queue[2] = Some(queue.place().await?);
        }
        if let Some(queue) = &served.queue {
            room.queue[0] = Some(queue.place().await?);
        }
        room.queue[1] = Some(served.overall.queue.place().await?);
        Ok(room)
    }

    /// Looks whether any request of that model finds a place in the queues of all of its requests.
    pub(super) fn check_room(&self, served: &Served) -> Result<(), RequestError> {
        let queues = served.queue.iter().chain([&served.overall.queue]);
        let full = queues.into_iter().find(|queue| queue.is_full());
        full.map_or(Ok(()), |queue| Err(queue.full()))
    }

    fn find_room(&self, served: &Served, request: &Request) -> Result<Room, RequestError> {
        let needed = served.memory_of(request);
        let [own, all] = served.limits();
        let share = |limit: Option<&Limit>| {
            let share = limit.map(|l| l.try_share(&served.name, needed, request));
            share.transpose()
        };
        let memory = [share(own)?, share(all)?];
        let level = request.priority;
        let of_level = served.level_queues.get(&level).map(|queue| {
            let full = |_| RequestError::LevelFull {
                level,
                max_queue: queue.most,
            };
            queue.try_place().map_err(full)
        });
        let of_level = of_level.transpose()?;
        let own = served.queue.as_ref().map(Bounded::try_place);
        let queue = [
            own.transpose()?,
            Some(served.overall.queue.try_place()?),
            of_level,
        ];
        Ok(Room { queue, memory })
    }

    fn check(
        &self,
        served: &Served,
        inputs: Vec<Tensor>,
        options: &Options,
    ) -> Result<(Request, Vec<Tensor>), RequestError> {
        // What is left out is made for as many samples as the others have.
        let too_many = samples(&served.program, &inputs).filter(|&num| num > served.max_batch);
        if let Some(got) = too_many.filter(|_| inputs.len() < served.program.inputs.len()) {
            return Err(RequestError::Samples {
                model: served.name.clone(),
                max_batch: served.max_batch,
                got,
            });
        }
        let inputs = completed(&served.program, inputs);
        let shape = validate_inputs(&served.program, &inputs)?;
        if shape.samples > served.max_batch {
            return Err(RequestError::Samples {
                model: served.name.clone(),
                max_batch: served.max_batch,
                got: shape.samples,
            });
        }
        // Here it holds up the client alone.
        let inputs = inputs.into_iter().map(Tensor::on_words).collect();
        let (class, class_id) = served.class(options.class.as_deref())?;
        let simulated_end = options.known_output_len == Some(0) && self.is_virtual;
        let request = Request {
            id: RequestId(0),
            model: served.id,
            arrival: options.arrival.unwrap_or(Time::MAX),
            sla: options.sla.or(class.sla).or(served.sla),
            class: *class_id,
            priority: class.priority_of(options.priority),
            delay_after: options.delay_after,
            samples: shape.samples,
            input_len: shape.input_len,
            sequence: options.sequence,
            max_steps: if simulated_end {
                Some(0)
            } else {
                options.max_steps
            },
            known_output_len: options.known_output_len.filter(|_| self.needs_output_len),
        };
        Ok((request, inputs))
    }

    fn send_once(
        self: &Arc<Self>,
        served: &Arc<Served>,
        request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        room: Room,
    ) -> Result<Handle, RequestError> {
        let (handle, submit) = self.once(served, request, inputs, options, room)?;
        let sent = self.outbox.send(submit);
        sent.map(|()| handle).map_err(|Gone| self.gone())
    }

    /// A request that is answered once, and the command that hands it in.
    fn once(
        self: &Arc<Self>,
        served: &Arc<Served>,
        request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        room: Room,
    ) -> Result<(Handle, Command), RequestError> {
        let (tx, rx) = oneshot::channel();
        let admitted = Admitted::default();
        let reply = Reply::Once(tx);
        let submission =
            self.submission(served, request, inputs, options, reply, room, &admitted)?;
        let guard = Guard::new(submission.request.id, admitted, self.clone());
        Ok((Handle::new(rx, guard), Command::Submit(submission)))
    }

    fn send_stream(
        self: &Arc<Self>,
        served: &Arc<Served>,
        request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        room: Room,
    ) -> Result<StepStream, RequestError> {
        let (tx, rx) = stream::unbounded_channel();
        let admitted = Admitted::default();
        let reply = Reply::Stream(tx);
        let submission =
            self.submission(served, request, inputs, options, reply, room, &admitted)?;
        let guard = Guard::new(submission.request.id, admitted, self.clone());
        let sent = self.outbox.send(Command::Submit(submission));
        let stream = StepStream::new(rx, guard);
        sent.map(|()| stream).map_err(|Gone| self.gone())
    }

    /// What the driver is handed.
    fn submission(
        &self,
        served: &Arc<Served>,
        mut request: Request,
        inputs: Vec<Tensor>,
        options: &Options,
        reply: Reply,
        room: Room,
        admitted: &Admitted,
    ) -> Result<Box<Submission>, RequestError> {
        if !self.accepting.load(Ordering::SeqCst) {
            return Err(RequestError::Closed);
        }
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        request.id = id;
        request.arrival = request.arrival.min(self.clock.now());
        let place = place(served, options);
        let submission = Submission {
            served: served.clone(),
            request,
            inputs,
            place,
            sim_output_len: options.known_output_len,
            reply,
            queue: room.queue,
            memory: room.memory,
            admitted: admitted.clone(),
            explain: options.explain,
            count: options.count,
        };
        // Before the driver can see it, so that it never takes in what was not counted.
        served.unseen.add(submission.request.arrival);
        Ok(Box::new(submission))
    }
}

/// The inputs with those that a request may leave out.
pub(super) fn completed(program: &Program, given: Vec<Tensor>) -> Vec<Tensor> {
    with_sampling(program, with_carried(program, given))
}

/// Samples of the first input, where none says how long the request is.
fn samples(program: &Program, given: &[Tensor]) -> Option<u32> {
    let num = given.first().and_then(|t| t.dims.first());
    let num = num.filter(|_| program.length_input.is_none());
    num.map(|&num| u32::try_from(num).unwrap_or(u32::MAX))
}

/// The place of a request in a sequence, of a model that keeps those.
fn place(served: &Served, options: &Options) -> Option<Place> {
    let sequence = options.sequence.filter(|_| served.sequences.is_some())?;
    Some(Place {
        sequence,
        start: options.sequence_start,
        end: options.sequence_end,
        number: 0,
    })
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
        None => given.first().and_then(|t| t.dims.first()).map_or(1, |&d| d),
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
