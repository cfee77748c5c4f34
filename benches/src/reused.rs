//! A device that outlives the engines that it serves.
//!
//! Weights of a large model take seconds to make and pack. Here they are loaded once: an engine
//! takes the device from the [`Shelf`] and leaves it there, warm, when it ends. All runs must serve
//! the same programs, each as the same model.
//!
//! Decoders with synthetic weights do not know when to stop. A request that states its output length
//! ends behind so many passes, whatever was computed; the scheduler is not told.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use lazybatch_graph::{BlockId, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{Completion, Device, Error, OpenRequest, Packer, Plan, Wrapper};
use lazybatch_sla::{Launch, ModelId, RequestId, Slot, Ticket, Time};
use rustc_hash::FxHashMap;

/// Where the device lies between runs.
#[derive(Clone)]
pub struct Shelf {
    place: Arc<Mutex<Option<Kept>>>,
}

/// A device and what is loaded on it.
struct Kept {
    device: Box<dyn Device>,
    /// By model.
    programs: FxHashMap<ModelId, SharedProgram>,
}

impl Shelf {
    /// Keeps `device`, on which nothing is loaded.
    pub fn new(device: Box<dyn Device>) -> Self {
        let kept = Kept {
            device,
            programs: FxHashMap::default(),
        };
        Self {
            place: Arc::new(Mutex::new(Some(kept))),
        }
    }

    /// Takes the device until what is returned is dropped.
    ///
    /// # Errors
    /// If it is taken.
    pub fn take(&self) -> anyhow::Result<Reused> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = place.take().context("the device is in use")?;
        Ok(Reused {
            kept: Some(kept),
            shelf: self.clone(),
            output_lens: FxHashMap::default(),
            issued: Vec::new(),
        })
    }
}

/// A launch that has not completed.
struct Issued {
    ticket: Ticket,
    /// Members that state their output length.
    known: Vec<RequestId>,
    /// Those of them for which this launch ends the last pass.
    ended: Vec<RequestId>,
}

/// The device, taken.
pub struct Reused {
    /// Taken on drop only.
    kept: Option<Kept>,
    shelf: Shelf,
    output_lens: FxHashMap<Slot, u32>,
    issued: Vec<Issued>,
}

impl Reused {
    fn kept(&self) -> &Kept {
        self.kept.as_ref().expect("taken on drop only")
    }

    fn device(&mut self) -> &mut dyn Device {
        let kept = self.kept.as_mut().expect("taken on drop only");
        kept.device.as_mut()
    }

    /// Whether `launch` ends a pass of a decoder.
    fn ends_pass(&self, launch: &Launch) -> bool {
        self.kept()
            .programs
            .get(&launch.model)
            .is_some_and(|program| {
                let block = program.block(BlockId::new(launch.block as usize));
                let is_decoder = matches!(block.repeat, Repeat::UntilStop { .. });
                is_decoder && launch.end_node as usize == block.nodes.len()
            })
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let place = &self.shelf.place;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = self.kept.take();
    }
}

impl Wrapper for Reused {
    fn inner(&self) -> &dyn Device {
        self.kept().device.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        self.device()
    }

    /// None: what is loaded is kept.
    fn packer(&self) -> Option<Arc<dyn Packer>> {
        None
    }

    /// Does nothing if it is this program that is loaded.
    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        let loaded = self.kept().programs.get(&model);
        if loaded.is_some_and(|p| Arc::ptr_eq(p, &program)) {
            return Ok(());
        }
        self.device().load(model, program.clone())?;
        let kept = self.kept.as_mut().expect("taken on drop only");
        kept.programs.insert(model, program);
        Ok(())
    }

    /// Keeps the model.
    fn unload(&mut self, _model: ModelId) {}

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.device().open(request)?;
        if let Some(len) = request.output_len {
            self.output_lens.insert(request.slot, len);
        }
        Ok(())
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.device().enqueue(now, plan, launch)?;
        let ends_pass = self.ends_pass(launch);
        let (mut known, mut ended) = (Vec::new(), Vec::new());
        for member in launch.members.iter().filter(|m| !m.idle) {
            if let Some(&len) = self.output_lens.get(&member.slot) {
                known.push(member.request);
                if ends_pass && member.step + 1 == len {
                    ended.push(member.request);
                }
            }
        }
        self.issued.push(Issued {
            ticket: launch.ticket,
            known,
            ended,
        });
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let mut done = self.device().poll(now)?;
        if let Some(i) = self.issued.iter().position(|l| l.ticket == done.ticket) {
            let launch = self.issued.swap_remove(i);
            done.stopped.retain(|r| !launch.known.contains(r));
            if done.result.is_ok() {
                let faults = &done.faults;
                let has_failed = |r: &RequestId| faults.iter().any(|(id, _)| id == r);
                let ended = launch.ended.into_iter().filter(|r| !has_failed(r));
                done.stopped.extend(ended);
            }
        }
        Some(done)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.output_lens.remove(&slot);
        self.device().close(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_engine::ModelOptions;
    use lazybatch_kernels::{CpuDevice, CpuOptions};
    use lazybatch_sla::Nanos;
    use lazybatch_workloads::experiment::{Call, Hosted, Serving, inputs};
    use lazybatch_workloads::zoo;

    #[test]
    fn decoders_end_where_requests_say_and_the_device_comes_back() {
        let (mut models, mut pool, mut lens) = (Vec::new(), Vec::new(), Vec::new());
        for (i, name) in ["transformer-tiny", "bert-tiny", "gnmt-tiny"]
            .into_iter()
            .enumerate()
        {
            let entry = zoo::find(name).unwrap();
            let program: SharedProgram = Arc::new(entry.program().unwrap());
            let (mut items, mut of_model) = inputs::drawn(&entry.served(&program), 6, 3).unwrap();
            items.iter_mut().for_each(|item| item.model = i);
            pool.append(&mut items);
            lens.append(&mut of_model);
            let options = ModelOptions::default();
            models.push(Hosted {
                name,
                program,
                options,
            });
        }
        let shelf = Shelf::new(Box::new(CpuDevice::new(CpuOptions::default())));
        let take = {
            let shelf = shelf.clone();
            move || Ok(Box::new(shelf.take().unwrap()) as Box<dyn Device>)
        };
        let serving = Serving {
            models,
            device: &take,
            pool: &pool,
            output_lens: Some(&lens),
            sla: Nanos::from_ms(60_000),
            classes: Vec::new(),
            drain: Nanos::from_ms(60_000),
            timing: false,
            trace: false,
            keeps_outputs: true,
            is_checked: true,
            depth: None,
            client: None,
        };
        let call = |item| Call {
            item,
            ..Call::default()
        };
        let calls: Vec<Call> = (0..pool.len()).map(call).collect();
        for policy in ["greedy", "adaptive"] {
            let served = serving.run(policy, &calls).unwrap();
            assert_eq!(served.steps, lens, "{policy}");
            assert!(served.requests.iter().all(|r| r.outcome.is_completed()));
        }
        assert_eq!(serving.serial_pass().unwrap().steps, lens, "a backlog too");
        let taken = shelf.take().unwrap();
        assert!(shelf.take().is_err());
        drop(taken);
        assert!(shelf.take().is_ok());
    }
}
