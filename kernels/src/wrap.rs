//! Devices around others.

use std::sync::Arc;

use lazybatch_graph::{NodeId, OutputId, SharedProgram, Tensor};
use lazybatch_sla::{Launch, ModelId, Slot, Time};

use crate::device::{Completion, Device, DeviceInfo, OpenRequest, Packed, Packer, Plan, Residency};
use crate::error::Error;
use crate::memory::MemoryBound;

/// A device that does what another does, but for the methods that it has itself: to measure, to
/// restrict, to fail. Whatever implements this is a [`Device`], whose documentation holds here; a
/// method that a wrapper does not have is the inner device's, so that none is lost.
///
/// [`Device::works_in_place`] and [`Device::max_depth`] are the inner device's too: who says otherwise
/// of [`Device::is_asynchronous`] says otherwise of them.
///
/// ```
/// use lazybatch_kernels::{CpuDevice, Device, Error, Plan, Wrapper};
/// use lazybatch_sla::{Launch, Time};
///
/// /// Counts launches.
/// struct Counting(CpuDevice, u64);
///
/// impl Wrapper for Counting {
///     fn inner(&self) -> &dyn Device {
///         &self.0
///     }
///     fn inner_mut(&mut self) -> &mut dyn Device {
///         &mut self.0
///     }
///     fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
///         self.1 += 1;
///         self.0.enqueue(now, plan, launch)
///     }
/// }
/// ```
#[expect(
    missing_docs,
    reason = "each is documented at the method of `Device` of its name"
)]
#[expect(clippy::missing_errors_doc, reason = "as above")]
pub trait Wrapper: Send {
    /// The device within.
    fn inner(&self) -> &dyn Device;

    /// The same, to change.
    fn inner_mut(&mut self) -> &mut dyn Device;

    fn info(&self) -> DeviceInfo {
        self.inner().info()
    }

    fn is_asynchronous(&self) -> bool {
        self.inner().is_asynchronous()
    }

    fn works_in_place(&self) -> bool {
        self.inner().works_in_place()
    }

    fn max_depth(&self) -> u32 {
        self.inner().max_depth()
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.inner_mut().load(model, program)
    }

    fn warm(&mut self, model: ModelId, samples: u32) {
        self.inner_mut().warm(model, samples);
    }

    fn residency(&self, model: ModelId, node: NodeId) -> Residency {
        self.inner().residency(model, node)
    }

    fn remarks(&self) -> Vec<String> {
        self.inner().remarks()
    }

    fn packer(&self) -> Option<Arc<dyn Packer>> {
        self.inner().packer()
    }

    fn attach(&mut self, model: ModelId, packed: Packed) -> Result<(), Error> {
        self.inner_mut().attach(model, packed)
    }

    fn unload(&mut self, model: ModelId) {
        self.inner_mut().unload(model);
    }

    fn buckets(&self) -> &[u32] {
        self.inner().buckets()
    }

    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        bucket: u32,
    ) -> Result<Plan, Error> {
        self.inner_mut()
            .prepare(model, block, first_node, end_node, bucket)
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        self.inner().max_open(model)
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        self.inner().memory(model)
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.inner_mut().open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.inner_mut().enqueue(now, plan, launch)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.inner_mut().poll(now)
    }

    fn next_completion(&self) -> Option<Time> {
        self.inner().next_completion()
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.inner().emitted(slot, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.inner_mut().close(slot)
    }
}

impl<W: Wrapper> Device for W {
    fn info(&self) -> DeviceInfo {
        Wrapper::info(self)
    }

    fn is_asynchronous(&self) -> bool {
        Wrapper::is_asynchronous(self)
    }

    fn works_in_place(&self) -> bool {
        Wrapper::works_in_place(self)
    }

    fn max_depth(&self) -> u32 {
        Wrapper::max_depth(self)
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        Wrapper::load(self, model, program)
    }

    fn warm(&mut self, model: ModelId, samples: u32) {
        Wrapper::warm(self, model, samples);
    }

    fn residency(&self, model: ModelId, node: NodeId) -> Residency {
        Wrapper::residency(self, model, node)
    }

    fn remarks(&self) -> Vec<String> {
        Wrapper::remarks(self)
    }

    fn packer(&self) -> Option<Arc<dyn Packer>> {
        Wrapper::packer(self)
    }

    fn attach(&mut self, model: ModelId, packed: Packed) -> Result<(), Error> {
        Wrapper::attach(self, model, packed)
    }

    fn unload(&mut self, model: ModelId) {
        Wrapper::unload(self, model);
    }

    fn buckets(&self) -> &[u32] {
        Wrapper::buckets(self)
    }

    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        bucket: u32,
    ) -> Result<Plan, Error> {
        Wrapper::prepare(self, model, block, first_node, end_node, bucket)
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        Wrapper::max_open(self, model)
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        Wrapper::memory(self, model)
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        Wrapper::open(self, request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        Wrapper::enqueue(self, now, plan, launch)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        Wrapper::poll(self, now)
    }

    fn next_completion(&self) -> Option<Time> {
        Wrapper::next_completion(self)
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        Wrapper::emitted(self, slot, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        Wrapper::close(self, slot)
    }
}
