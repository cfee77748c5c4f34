//! The models of a driver: those that run, by id, and how they come and go.

use std::sync::Arc;

use lazybatch_kernels::Device;
use lazybatch_sla::ModelId;

use super::threaded::Plans;
use crate::core::{Attach, ModelSpec};
use crate::embed::{BuildError, Draft, Maker, Served};

/// See the module.
pub(crate) struct Models {
    by_id: Vec<Option<Arc<Served>>>,
    plans: Vec<Plans>,
    /// Ids that may be used again.
    vacant: Vec<ModelId>,
    maker: Maker,
}

impl Models {
    /// Those that are there from the start.
    pub fn new(served: Vec<Arc<Served>>, plans: Vec<Plans>, maker: Maker) -> Self {
        Self {
            by_id: served.into_iter().map(Some).collect(),
            plans,
            vacant: Vec::new(),
            maker,
        }
    }

    /// The model of an id.
    ///
    /// # Panics
    /// If there is none.
    pub fn get(&self, id: ModelId) -> &Arc<Served> {
        self.by_id[id.index()].as_ref().expect("it is attached")
    }

    /// Whether the largest batch of each is over within microseconds.
    pub fn are_quick(&self) -> bool {
        self.by_id.iter().flatten().all(|served| served.is_quick)
    }

    /// Prepared executions, by model.
    pub fn plans(&self) -> &[Plans] {
        &self.plans
    }

    /// Makes a model on the device, under an id that is free.
    ///
    /// # Errors
    /// What the device or a limit refuses.
    pub fn load(
        &mut self,
        device: &mut dyn Device,
        draft: Draft,
    ) -> Result<(Arc<Served>, Attach), BuildError> {
        let next = ModelId(self.by_id.len() as u32);
        let id = self.vacant.last().copied().unwrap_or(next);
        let profile = draft.profile.clone();
        let (served, plans, spec): (Served, Plans, ModelSpec) =
            self.maker.make(device, id, draft)?;
        let served = Arc::new(served);
        if id == next {
            self.by_id.push(Some(served.clone()));
            self.plans.push(plans);
        } else {
            self.vacant.pop();
            self.by_id[id.index()] = Some(served.clone());
            self.plans[id.index()] = plans;
        }
        let attach = Attach::new(id, spec, profile, self.maker.classes.all().to_vec());
        Ok((served, attach))
    }

    /// Takes a model off the device; its id is free.
    pub fn vacate(&mut self, device: &mut dyn Device, id: ModelId) -> Option<Arc<Served>> {
        let served = self.by_id[id.index()].take()?;
        device.unload(id);
        self.plans[id.index()] = Plans::new();
        self.maker.classes.give_back(&served.classes);
        self.vacant.push(id);
        Some(served)
    }
}
