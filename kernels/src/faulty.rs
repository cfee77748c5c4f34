//! A device that fails chosen launches, for tests.
//!
//! [`Faulty`] wraps a device. A launch in its [`FaultPlan`] never reaches the inner device and
//! completes as failed, in its lane's order; everything else passes through.

use std::collections::{BTreeSet, VecDeque};

use lazybatch_graph::{NodeId, OutputId, SharedProgram, Tensor};
use lazybatch_sla::{LaneId, Launch, ModelId, Slot, Ticket, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Completion, Device, DeviceInfo, OpenRequest, Plan, Residency};
use crate::error::Error;
use crate::memory::MemoryBound;

/// Which launches fail.
#[derive(Clone, Debug)]
pub enum FaultPlan {
    /// Those with these tickets.
    Tickets(BTreeSet<Ticket>),
    /// Each with a probability, drawn from a seed in issuing order.
    Seeded {
        /// Generator of the draws.
        rng: Box<ChaCha8Rng>,
        /// Probability of a failure.
        probability: f64,
    },
}

impl FaultPlan {
    /// Fails the launches with these tickets.
    pub fn tickets(tickets: impl IntoIterator<Item = Ticket>) -> Self {
        Self::Tickets(tickets.into_iter().collect())
    }

    /// Fails each launch with `probability` (clamped to `0..=1`).
    pub fn seeded(seed: u64, probability: f64) -> Self {
        let rng = Box::new(ChaCha8Rng::seed_from_u64(seed));
        Self::Seeded {
            rng,
            probability: probability.clamp(0.0, 1.0),
        }
    }

    fn fails(&mut self, ticket: Ticket) -> bool {
        match self {
            Self::Tickets(tickets) => tickets.contains(&ticket),
            Self::Seeded { rng, probability } => rng.random_bool(*probability),
        }
    }
}

/// A launch in flight; with the time and cause if it is to fail.
#[derive(Debug)]
struct Pending {
    lane: LaneId,
    ticket: Ticket,
    failure: Option<(Time, Error)>,
}

/// A device whose planned launches fail.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    plan: FaultPlan,
    pending: VecDeque<Pending>,
    failed: u64,
}

impl<D: Device> Faulty<D> {
    /// Wraps `inner`.
    pub fn new(inner: D, plan: FaultPlan) -> Self {
        Self {
            inner,
            plan,
            pending: VecDeque::new(),
            failed: 0,
        }
    }

    /// Launches that were made to fail.
    pub fn num_failed(&self) -> u64 {
        self.failed
    }

    /// The wrapped device.
    pub fn into_inner(self) -> D {
        self.inner
    }

    /// The first failed launch that nothing of its lane stands before, and its time.
    fn next_failure(&self) -> Option<(usize, Time)> {
        self.pending.iter().enumerate().find_map(|(i, p)| {
            let (time, _) = p.failure.as_ref()?;
            let first = !self.pending.iter().take(i).any(|q| q.lane == p.lane);
            first.then_some((i, *time))
        })
    }
}

impl<D: Device> Device for Faulty<D> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.inner.load(model, program)
    }

    fn unload(&mut self, model: ModelId) {
        self.inner.unload(model);
    }

    fn buckets(&self) -> &[u32] {
        self.inner.buckets()
    }

    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        bucket: u32,
    ) -> Result<Plan, Error> {
        self.inner
            .prepare(model, block, first_node, end_node, bucket)
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        self.inner.max_open(model)
    }

    fn residency(&self, model: ModelId, node: NodeId) -> Residency {
        self.inner.residency(model, node)
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        self.inner.memory(model)
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let failure = if self.plan.fails(launch.ticket) {
            self.failed += 1;
            let error = Error::Launch {
                device: self.inner.info().name,
                segment: format!(
                    "k{}[{}..{}]",
                    launch.block, launch.first_node, launch.end_node
                ),
                why: "a planned fault".into(),
            };
            Some((now, error))
        } else {
            self.inner.enqueue(now, plan, launch)?;
            None
        };
        self.pending.push_back(Pending {
            lane: launch.lane,
            ticket: launch.ticket,
            failure,
        });
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        if let Some((i, _)) = self.next_failure() {
            let failed = self.pending.remove(i)?;
            let result = failed.failure.map_or(Ok(()), |(_, error)| Err(error));
            return Some(Completion {
                result,
                ..Completion::of(failed.ticket)
            });
        }
        let done = self.inner.poll(now)?;
        self.pending.retain(|p| p.ticket != done.ticket);
        Some(done)
    }

    fn next_completion(&self) -> Option<Time> {
        let failure = self.next_failure().map(|(_, time)| time);
        match (failure, self.inner.next_completion()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.inner.emitted(slot, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.inner.close(slot)
    }
}
