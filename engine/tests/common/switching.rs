//! A policy that hands each decision to one of all policies, changing at random moments: what one
//! leaves in the batch table, another must take over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazybatch_engine::core::{Ending, Plan, PlanRequest, Request, View};
use lazybatch_engine::policy::Decision;

use super::*;

/// Delegates to one inner policy until chance says otherwise.
pub struct Switching {
    inner: Vec<Box<dyn Policy>>,
    active: usize,
    /// Who asked for the plan that is being made.
    planner: usize,
    rng: ChaCha8Rng,
    change: f64,
    taken_over: Arc<AtomicU64>,
}

impl Switching {
    /// Of all examples. `taken_over` counts changes while entries were in the table.
    pub fn new(seed: u64, taken_over: Arc<AtomicU64>) -> Self {
        let mut rng = rng(seed);
        let build = |spec: &str| policy::build(spec).expect("a listed policy");
        Self {
            inner: examples().chain(refusing_examples()).map(build).collect(),
            active: 0,
            planner: 0,
            change: [0.02, 0.2, 1.0][rng.random_range(0..3)],
            rng,
            taken_over,
        }
    }
}

impl Policy for Switching {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if self.rng.random_bool(self.change) {
            self.active = self.rng.random_range(0..self.inner.len());
            let entries = u64::from(!view.table().is_empty());
            self.taken_over.fetch_add(entries, Ordering::Relaxed);
        }
        self.inner[self.active].decide(view)
    }

    fn on_arrive(&mut self, now: Time, request: &Request) {
        let inner = self.inner.iter_mut();
        inner.for_each(|p| p.on_arrive(now, request));
    }

    fn on_done(&mut self, now: Time, launch: &Launch, took: Nanos, ran: Nanos) {
        let inner = self.inner.iter_mut();
        inner.for_each(|p| p.on_done(now, launch, took, ran));
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        let inner = self.inner.iter_mut();
        inner.for_each(|p| p.on_end(now, ending));
    }

    fn plan(&mut self, view: &View<'_>) -> Option<PlanRequest> {
        let wanted = self.inner[self.active].plan(view)?;
        self.planner = self.active;
        Some(wanted)
    }

    fn on_planned(&mut self, now: Time, plan: &Plan) {
        self.inner[self.planner].on_planned(now, plan);
    }
}
