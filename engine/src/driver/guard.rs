//! A device that has panicked is not asked again.
//!
//! What a panic leaves behind in a device nobody knows: whatever it is asked next may go wrong without
//! a word, or worse. From then on it is lost, and this answers in its place; the driver ends with that
//! (`Driver::turn`), as all that was on the device is gone. Panics of kernels are the devices' own,
//! which fail who runs in them.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use lazybatch_graph::{NodeId, OutputId, SharedProgram, Tensor};
use lazybatch_kernels::host_nodes::panic_text;
use lazybatch_kernels::{
    Completion, Device, DeviceInfo, Error, MemoryBound, OpenRequest, Packed, Packer, Plan,
    Residency,
};
use lazybatch_sla::{Launch, ModelId, Slot, Time};

/// See the module.
pub(crate) struct Guarded {
    device: Box<dyn Device>,
    info: DeviceInfo,
    lost: OnceCell<Error>,
    /// Told that it is lost, before anybody hears an answer by that.
    failed: Arc<OnceLock<String>>,
}

impl Guarded {
    /// Of a device that has not panicked; where it does, `failed` is told.
    pub fn new(device: Box<dyn Device>, failed: Arc<OnceLock<String>>) -> Self {
        Self {
            info: device.info(),
            device,
            lost: OnceCell::new(),
            failed,
        }
    }

    /// That it is lost, if it is.
    pub fn lost(&self) -> Option<&Error> {
        self.lost.get()
    }

    fn ask<'a, T>(&'a self, ask: impl FnOnce(&'a dyn Device) -> T) -> Option<T> {
        if self.lost.get().is_some() {
            return None;
        }
        let device = &*self.device;
        self.heard(catch_unwind(AssertUnwindSafe(|| ask(device))))
    }

    fn tell<T>(&mut self, tell: impl FnOnce(&mut dyn Device) -> T) -> Option<T> {
        if self.lost.get().is_some() {
            return None;
        }
        let device = &mut *self.device;
        let told = catch_unwind(AssertUnwindSafe(|| tell(device)));
        self.heard(told)
    }

    fn heard<T>(&self, told: std::thread::Result<T>) -> Option<T> {
        told.map_err(|panic| {
            let lost = self.lost.get_or_init(|| Error::Lost {
                device: self.info.name.clone(),
                why: panic_text(&*panic),
            });
            // An engine that has failed before keeps that cause.
            let _ = self.failed.set(lost.to_string());
        })
        .ok()
    }

    /// What a device says that is lost.
    fn or_lost<T>(&self, told: Option<Result<T, Error>>) -> Result<T, Error> {
        let lost = || self.lost.get().cloned().expect("it said nothing");
        told.unwrap_or_else(|| Err(lost()))
    }
}

impl Device for Guarded {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn is_asynchronous(&self) -> bool {
        self.ask(|d| d.is_asynchronous()).unwrap_or_default()
    }

    fn works_in_place(&self) -> bool {
        self.ask(|d| d.works_in_place()).unwrap_or_default()
    }

    fn max_depth(&self) -> u32 {
        self.ask(|d| d.max_depth()).unwrap_or(1)
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        let told = self.tell(|d| d.load(model, program));
        self.or_lost(told)
    }

    fn warm(&mut self, model: ModelId, samples: u32) {
        self.tell(|d| d.warm(model, samples));
    }

    fn residency(&self, model: ModelId, node: NodeId) -> Residency {
        self.ask(|d| d.residency(model, node))
            .unwrap_or(Residency::Host)
    }

    fn remarks(&self) -> Vec<String> {
        self.ask(|d| d.remarks()).unwrap_or_default()
    }

    fn packer(&self) -> Option<Arc<dyn Packer>> {
        self.ask(|d| d.packer()).flatten()
    }

    fn attach(&mut self, model: ModelId, packed: Packed) -> Result<(), Error> {
        let told = self.tell(|d| d.attach(model, packed));
        self.or_lost(told)
    }

    fn unload(&mut self, model: ModelId) {
        self.tell(|d| d.unload(model));
    }

    fn buckets(&self) -> &[u32] {
        self.ask(|d| d.buckets()).unwrap_or_default()
    }

    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        bucket: u32,
    ) -> Result<Plan, Error> {
        let told = self.tell(|d| d.prepare(model, block, first_node, end_node, bucket));
        self.or_lost(told)
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        self.ask(|d| d.max_open(model)).flatten()
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        self.ask(|d| d.memory(model)).flatten()
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        let told = self.tell(|d| d.open(request));
        self.or_lost(told)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let told = self.tell(|d| d.enqueue(now, plan, launch));
        self.or_lost(told)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.tell(|d| d.poll(now)).flatten()
    }

    fn next_completion(&self) -> Option<Time> {
        self.ask(|d| d.next_completion()).flatten()
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.ask(|d| d.emitted(slot, output, from)).flatten()
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.tell(|d| d.close(slot)).unwrap_or_default()
    }
}
