//! A device that fails chosen launches, for tests.
//!
//! [`Faulty`] wraps a device. A launch in its [`FaultPlan`] never reaches the inner device and
//! completes as failed, in its lane's order; everything else passes through.

use std::collections::{BTreeSet, VecDeque};

use lazybatch_sla::{LaneId, Launch, Ticket, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::{Completion, Device, Plan};
use crate::error::Error;
use crate::wrap::Wrapper;

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

impl<D: Device> Wrapper for Faulty<D> {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
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
}
