//! The device trait.
//!
//! A device keeps models resident, holds the data of open requests, and runs launches. It decides
//! nothing: which requests share a launch comes from the scheduler. The trait is shaped for
//! captured graphs: [`Device::prepare`] once per (segment, bucket) at load, [`Device::enqueue`] on
//! the hot path, completion by [`Device::poll`].
//!
//! Invariants every implementation keeps:
//! 1. *Batch-invariance*: the bits of a request's outputs do not depend on the other members of
//!    its launches, on their order, on padding, or on the number of threads.
//! 2. A failed launch damages its members only.
//! 3. Launches of one lane complete in the order in which they were enqueued.
//!
//! A device that panics is not called again: the engine that drives it ends, as its state is unknown.
//! One that can tell what a panic has damaged catches it itself.

use std::any::Any;
use std::sync::Arc;

use lazybatch_graph::{NodeId, OutputId, SharedProgram, Tensor};
use lazybatch_sla::{Launch, ModelId, Nanos, RequestId, Slot, Ticket, Time};
use smallvec::SmallVec;

use crate::error::Error;
use crate::memory::MemoryBound;

/// A prepared execution of one segment, in the numbering of the device that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan(pub u32);

/// What a device is.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name as profiles and reports print it (`cpu-avx2-2t`, `sim`).
    pub name: String,
    /// Lanes: places where launches run one after another.
    pub num_lanes: u32,
    /// Whether latencies are simulated, so that [`Device::next_completion`] knows the future.
    pub is_virtual: bool,
}

/// Where the weights of a node are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Where the node runs, as are those of nodes without weights.
    Resident,
    /// On their way there. Launches of the node may be asked for: they run behind the copies.
    InFlight,
    /// On the host alone: the model is not loaded, or the node runs on the host of a device that is
    /// another.
    Host,
}

/// A request at its start.
#[derive(Clone, Debug)]
pub struct OpenRequest<'a> {
    /// Where its data shall live; not in use now.
    pub slot: Slot,
    /// The request.
    pub request: RequestId,
    /// Its model, loaded before.
    pub model: ModelId,
    /// One tensor per declared input, in order. A sequence input is `[len, ...]`, another one
    /// `[samples, ...]`. Empty on devices that only simulate.
    pub inputs: &'a [Tensor],
    /// Length of the input sequence; 0 for models without one.
    pub input_len: u32,
    /// Samples of the client's own batch.
    pub samples: u32,
    /// True number of passes of its `UntilStop` block, for devices that only simulate.
    pub output_len: Option<u32>,
}

/// The end of a launch.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Which launch.
    pub ticket: Ticket,
    /// Members whose `UntilStop` loop ended with this launch.
    pub stopped: SmallVec<[RequestId; 4]>,
    /// Members that failed alone, each once and with the cause, which says whose fault it is
    /// ([`Error::is_of_request`]): the launch ran for the others. None of them is in `stopped`, and
    /// nothing that the launch emitted for them is left.
    pub faults: Vec<(RequestId, Error)>,
    /// Failure of the launch, which is that of all its members.
    pub result: Result<(), Error>,
    /// How long it ran, where the device has measured that itself; what issuing it took the host is
    /// not in there.
    pub busy: Option<Nanos>,
    /// Its issue waited for the device: what that took is in `busy`, or is time of launches ahead.
    pub has_waited: bool,
}

impl Completion {
    /// Of a launch that ran, with nothing to tell.
    pub fn of(ticket: Ticket) -> Self {
        Self {
            ticket,
            stopped: SmallVec::new(),
            faults: Vec::new(),
            result: Ok(()),
            busy: None,
            has_waited: false,
        }
    }

    /// That it ran for all of its members.
    ///
    /// # Errors
    /// Its failure, or that of the first member that failed alone.
    pub fn whole(&self) -> Result<(), Error> {
        self.result.clone()?;
        match self.faults.first() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// Makes models ready for a device on any thread, while the device runs.
pub trait Packer: Send + Sync {
    /// Does all of [`Device::load`] that takes long, and what of [`Device::warm`] for launches of up
    /// to `samples` samples can be done beside the device.
    ///
    /// # Errors
    /// Those of [`Device::load`].
    fn pack(&self, program: SharedProgram, samples: u32) -> Result<Packed, Error>;
}

/// A model that a [`Packer`] made ready.
pub struct Packed(pub Box<dyn Any + Send>);

/// Runs nodes. See the module's invariants.
pub trait Device: Send {
    /// What this device is.
    fn info(&self) -> DeviceInfo;

    /// Whether launches run beside the thread that issues them: then [`Device::enqueue`] takes what
    /// issuing costs and no more.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Whether launches run on the thread that issues them, while it does.
    fn works_in_place(&self) -> bool {
        !self.is_asynchronous() && !self.info().is_virtual
    }

    /// Most launches of a lane that may be in flight together where requests stop by themselves in one
    /// of them: what those behind it did for such a request is taken back. A device that runs launches
    /// in place tells of a stop only behind the next one, and takes nothing back.
    fn max_depth(&self) -> u32 {
        match self.is_asynchronous() {
            true => u32::MAX,
            false => 1,
        }
    }

    /// Makes a model's weights resident under `model`.
    ///
    /// # Errors
    /// An op without a kernel, a weight that does not fit, memory exhausted.
    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error>;

    /// Has memory at hand for launches of a loaded model of up to `samples` samples, as far as the
    /// device's bounds allow, so that the first ones do not wait for the system to find it. Nothing
    /// changes but when that time is spent.
    fn warm(&mut self, _model: ModelId, _samples: u32) {}

    /// Where the weights of a node of a model are just now: the hook for those who load models while
    /// others run. Devices whose [`Device::load`] returns when all is there need not say more than
    /// this of models that they have loaded.
    fn residency(&self, _model: ModelId, _node: NodeId) -> Residency {
        Residency::Resident
    }

    /// What whoever measures should know of how launches ran so far, a sentence each.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// What makes models ready for [`Device::attach`]; `None` for a device that only loads.
    fn packer(&self) -> Option<Arc<dyn Packer>> {
        None
    }

    /// As [`Device::load`], of what this device's [`Packer`] made, in next to no time.
    ///
    /// # Errors
    /// What some other packer made.
    fn attach(&mut self, model: ModelId, packed: Packed) -> Result<(), Error> {
        drop(packed);
        Err(Error::Input {
            model: model.to_string(),
            input: "packed model".into(),
            expected: "what a packer of this device made".into(),
            got: "that of a device that only loads".into(),
        })
    }

    /// Drops a model. No request of it may be open.
    fn unload(&mut self, model: ModelId);

    /// Row buckets that this device prepares plans for, ascending; a launch runs in the smallest
    /// bucket that holds it. One bucket `u32::MAX` where plans do not depend on the size.
    fn buckets(&self) -> &[u32];

    /// Prepares nodes `first_node..end_node` (positions in the block's node list) for up to
    /// `bucket` rows.
    ///
    /// # Errors
    /// What makes the segment impossible to run.
    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        bucket: u32,
    ) -> Result<Plan, Error>;

    /// Most requests of a model that can be open at once, however long they are; `None` where no
    /// pool bounds them.
    fn max_open(&self, _model: ModelId) -> Option<u32> {
        None
    }

    /// What requests of a model hold; `None` on devices that do not know.
    fn memory(&self, _model: ModelId) -> Option<MemoryBound> {
        None
    }

    /// Checks and stages a request's inputs and reserves the most that it can ever hold, so that
    /// no later launch can run out of memory.
    ///
    /// # Errors
    /// Inputs that do not fit the model, or a pool that has no room now.
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error>;

    /// Issues a launch at `now`. A device may run it in place and complete it before it returns.
    ///
    /// # Errors
    /// A refusal at issue; the ticket then never completes.
    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error>;

    /// The next completed launch at `now`, if there is one.
    fn poll(&mut self, now: Time) -> Option<Completion>;

    /// When the next launch will complete, on devices that know.
    fn next_completion(&self) -> Option<Time>;

    /// Number of leading rows that an open request has emitted to an output so far, and those from
    /// `from` on, as a tensor `[rows, ...]`. For outputs without `len` the whole tensor once set.
    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor>;

    /// Ends a request: its outputs in declared order (`None` for those never emitted), its memory
    /// free again. Must not be in a launch that has not completed.
    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>>;
}
