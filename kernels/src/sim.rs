//! A device that computes nothing: launches take the time that a latency profile says.
//!
//! Time is handed in, so the same device serves virtual-time runs and, polled against a wall clock,
//! real-time ones. Jitter, stragglers and failures are drawn from a seed, launch by launch, so a run
//! repeats exactly.

use std::sync::Arc;

use lazybatch_graph::{OutputId, Repeat, SharedProgram, Tensor};
use lazybatch_sla::{LatencyTable, Launch, ModelId, Nanos, RequestId, Slot, Ticket, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smallvec::SmallVec;

use crate::device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
use crate::error::Error;

/// Deviations from the profile.
#[derive(Clone, Debug, Default)]
pub struct Noise {
    /// Seed of all draws.
    pub seed: u64,
    /// Latencies are scaled by a factor uniform in `[1 - jitter, 1 + jitter]`.
    pub jitter: f64,
    /// Share of launches that are stragglers.
    pub straggler_rate: f64,
    /// Factor on a straggler's latency.
    pub straggler_factor: f64,
    /// Share of launches that fail at their end.
    pub failure_rate: f64,
    /// Share of the members of launches that fail alone at its end.
    pub fault_rate: f64,
    /// Tickets that fail at their end.
    pub failing: Vec<Ticket>,
}

impl Noise {
    /// Whether launches take exactly what the tables say and never fail.
    pub fn is_silent(&self) -> bool {
        let shares = [self.straggler_rate, self.failure_rate, self.fault_rate];
        self.jitter == 0.0 && shares == [0.0; 3]
    }
}

/// See the module.
pub struct SimDevice {
    name: String,
    tables: Vec<Arc<LatencyTable>>,
    noise: Noise,
    rng: ChaCha8Rng,
    decide: Nanos,
    /// What each request takes of the host while no launch runs.
    per_request: Nanos,
    /// Requests that came since the last launch.
    num_opened: u32,
    lanes: Vec<Time>,
    /// In order of completion, then of ticket.
    pending: Vec<(Time, Completion)>,
    output_lens: Vec<Option<u32>>,
}

impl SimDevice {
    /// A device with `num_lanes` equal lanes and one latency table a model. Every launch costs
    /// `decide` on top of its table's time.
    pub fn new(
        name: &str,
        num_lanes: u32,
        tables: Vec<Arc<LatencyTable>>,
        decide: Nanos,
        noise: Noise,
    ) -> Self {
        Self {
            name: name.into(),
            tables,
            rng: ChaCha8Rng::seed_from_u64(noise.seed),
            noise,
            decide,
            per_request: Nanos::ZERO,
            num_opened: 0,
            lanes: vec![Time::ZERO; num_lanes as usize],
            pending: Vec::new(),
            output_lens: Vec::new(),
        }
    }

    /// Every request that is opened makes the launch behind it take so much longer: where the host's
    /// thread computes, none runs while it takes requests in and answers them.
    #[must_use]
    pub fn with_host(self, per_request: Nanos) -> Self {
        Self {
            per_request,
            ..self
        }
    }

    fn latency(&mut self, launch: &Launch) -> Nanos {
        let table = &self.tables[launch.model.index()];
        let (block, segment) = (launch.block, launch.segment);
        let mut latency = table.segment(block, segment, launch.num_samples(), launch.num_rows());
        if launch.merged_members > 0 {
            latency += table.merge(block, segment, launch.merged_members);
        }
        if !self.noise.is_silent() {
            let spread = self.noise.jitter * (2.0 * self.rng.random::<f64>() - 1.0);
            let straggles = self.rng.random::<f64>() < self.noise.straggler_rate;
            let factor = if straggles {
                self.noise.straggler_factor
            } else {
                1.0
            };
            latency = Nanos((latency.0 as f64 * (1.0 + spread) * factor).round() as u64);
        }
        let num_opened = u64::from(std::mem::take(&mut self.num_opened));
        latency + self.decide + Nanos(num_opened * self.per_request.0)
    }

    fn fails(&mut self, ticket: Ticket) -> bool {
        let drawn = !self.noise.is_silent() && self.rng.random::<f64>() < self.noise.failure_rate;
        drawn || self.noise.failing.contains(&ticket)
    }

    /// Members that fail alone.
    fn faults(&mut self, launch: &Launch) -> Vec<(RequestId, Error)> {
        if self.noise.fault_rate == 0.0 {
            return Vec::new();
        }
        let error = self.launch_error(launch, "injected fault");
        let members = launch.members.iter().filter(|m| !m.idle);
        let faults = members.filter_map(|m| {
            let fails = self.rng.random::<f64>() < self.noise.fault_rate;
            fails.then(|| (m.request, error.clone()))
        });
        faults.collect()
    }

    fn launch_error(&self, launch: &Launch, why: &str) -> Error {
        Error::Launch {
            device: self.name.clone(),
            segment: format!("block {} segment {}", launch.block, launch.segment),
            why: why.into(),
        }
    }

    fn stopped(&self, launch: &Launch) -> SmallVec<[RequestId; 4]> {
        let table = &self.tables[launch.model.index()];
        let is_loop = matches!(table.repeat(launch.block), Repeat::UntilStop { .. });
        if !is_loop || launch.segment + 1 < table.num_segments(launch.block) {
            return SmallVec::new();
        }
        launch
            .members
            .iter()
            .filter(|m| !m.idle && self.output_lens[m.slot.index()] == Some(m.step + 1))
            .map(|m| m.request)
            .collect()
    }
}

impl Device for SimDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            num_lanes: self.lanes.len() as u32,
            is_virtual: true,
        }
    }

    /// It computes nothing that could be wrong.
    fn max_depth(&self) -> u32 {
        u32::MAX
    }

    /// A model that has a latency table.
    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        if model.index() < self.tables.len() {
            return Ok(());
        }
        Err(Error::Input {
            model: program.name.clone(),
            input: "latency table".into(),
            expected: format!("one of {} models of {}", self.tables.len(), self.name),
            got: model.to_string(),
        })
    }

    fn unload(&mut self, _model: ModelId) {}

    fn buckets(&self) -> &[u32] {
        &[u32::MAX]
    }

    fn prepare(
        &mut self,
        _model: ModelId,
        _block: u32,
        _first_node: u32,
        _end_node: u32,
        _bucket: u32,
    ) -> Result<Plan, Error> {
        Ok(Plan(0))
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        let slot = request.slot.index();
        if slot >= self.output_lens.len() {
            self.output_lens.resize(slot + 1, None);
        }
        self.output_lens[slot] = request.output_len;
        self.num_opened += 1;
        Ok(())
    }

    fn enqueue(&mut self, now: Time, _plan: Plan, launch: &Launch) -> Result<(), Error> {
        let lane = launch.lane.index();
        let end = self.lanes[lane].max(now) + self.latency(launch);
        self.lanes[lane] = end;
        let fails = self.fails(launch.ticket);
        let result = match fails {
            true => Err(self.launch_error(launch, "injected failure")),
            false => Ok(()),
        };
        let mut stopped = self.stopped(launch);
        let mut faults = self.faults(launch);
        faults.retain(|_| !fails);
        stopped.retain(|id| faults.iter().all(|(other, _)| other != id));
        let at = self
            .pending
            .partition_point(|p| (p.0, p.1.ticket) < (end, launch.ticket));
        self.pending.insert(
            at,
            (
                end,
                Completion {
                    stopped,
                    faults,
                    result,
                    ..Completion::of(launch.ticket)
                },
            ),
        );
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let due = self.pending.first().is_some_and(|p| p.0 <= now);
        due.then(|| self.pending.remove(0).1)
    }

    fn next_completion(&self) -> Option<Time> {
        self.pending.first().map(|p| p.0)
    }

    fn emitted(&self, _slot: Slot, _output: OutputId, _from: usize) -> Option<Tensor> {
        None
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.output_lens[slot.index()] = None;
        Vec::new()
    }
}
