//! A device that computes on the CPU and takes simulated time.

use std::collections::HashMap;
use std::sync::Arc;

use lazybatch_engine::core::{BATCHES_IN_FLIGHT, BlockSpec, CoreConfig, ModelSpec};
use lazybatch_graph::{OutputId, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{
    Completion, Device, DeviceInfo, Error, Noise, OpenRequest, Plan, SimDevice,
};
use lazybatch_sla::profile::{BlockProfile, By, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{
    LatencyTable, Launch, ModelId, Nanos, RequestId, Slot, Ticket, Time, segments_of,
};
use lazybatch_workloads::experiment::inputs::Item;

/// Simulated time, real results.
pub struct Shadow {
    sim: SimDevice,
    cpu: CpuDevice,
    plans: Vec<Vec<Plan>>,
    inputs: Vec<Vec<Tensor>>,
    requests: HashMap<Slot, RequestId>,
    computed: HashMap<Ticket, Completion>,
    decoders: Vec<bool>,
    /// Outputs of closed requests.
    pub outputs: HashMap<RequestId, Vec<Option<Tensor>>>,
    /// Decoder passes of each request.
    pub steps: HashMap<RequestId, u32>,
}

impl Shadow {
    /// A device for one model and these requests, by id.
    pub fn new(program: SharedProgram, config: &CoreConfig, items: &[&Item]) -> Self {
        let model = &config.models[0];
        let options = CpuOptions {
            threads: 2,
            poison: true,
            max_open: 64,
            ..CpuOptions::default()
        };
        let mut cpu = CpuDevice::new(options);
        cpu.load(ModelId(0), program.clone())
            .expect("every op is supported");
        let plans = model
            .blocks
            .iter()
            .enumerate()
            .map(|(b, block)| {
                block
                    .segments
                    .iter()
                    .map(|r| {
                        cpu.prepare(ModelId(0), b as u32, r.start, r.end, u32::MAX)
                            .expect("runs")
                    })
                    .collect()
            })
            .collect();
        let is_decoder =
            |b: &BlockSpec| matches!(b.repeat, lazybatch_graph::Repeat::UntilStop { .. });
        Self {
            sim: SimDevice::new(
                "shadow",
                1,
                vec![model.table.clone()],
                Nanos::ZERO,
                Noise::default(),
            ),
            cpu,
            plans,
            inputs: items.iter().map(|i| i.inputs.clone()).collect(),
            requests: HashMap::new(),
            computed: HashMap::new(),
            decoders: model.blocks.iter().map(is_decoder).collect(),
            outputs: HashMap::new(),
            steps: HashMap::new(),
        }
    }
}

impl Device for Shadow {
    fn info(&self) -> DeviceInfo {
        self.sim.info()
    }

    fn load(&mut self, _: ModelId, _: SharedProgram) -> Result<(), Error> {
        Ok(())
    }

    fn unload(&mut self, _: ModelId) {}

    fn buckets(&self) -> &[u32] {
        self.sim.buckets()
    }

    fn prepare(&mut self, _: ModelId, _: u32, _: u32, _: u32, _: u32) -> Result<Plan, Error> {
        Ok(Plan(0))
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        let inputs = &self.inputs[request.request.index()];
        self.requests.insert(request.slot, request.request);
        self.cpu.open(&OpenRequest {
            inputs,
            output_len: None,
            ..request.clone()
        })?;
        self.sim.open(&OpenRequest {
            output_len: None,
            ..request.clone()
        })
    }

    fn enqueue(&mut self, now: Time, _: Plan, launch: &Launch) -> Result<(), Error> {
        let plan = self.plans[launch.block as usize][launch.segment as usize];
        if self.decoders[launch.block as usize] && launch.first_node == 0 {
            for m in launch.members.iter().filter(|m| !m.idle) {
                self.steps.insert(m.request, m.step + 1);
            }
        }
        self.cpu.enqueue(now, plan, launch)?;
        let done = self.cpu.poll(now).expect("it completes in place");
        self.computed.insert(done.ticket, done);
        self.sim.enqueue(now, Plan(0), launch)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let due = self.sim.poll(now)?;
        self.computed.remove(&due.ticket)
    }

    fn next_completion(&self) -> Option<Time> {
        self.sim.next_completion()
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.cpu.emitted(slot, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        let request = self.requests.remove(&slot).expect("an open slot");
        self.outputs.insert(request, self.cpu.close(slot));
        self.sim.close(slot)
    }
}

/// The scheduler's view of a program: segments of `every` nodes, 20 us a node and 2 us a member.
pub fn spec(program: &SharedProgram, max_batch: u32, every: usize) -> ModelSpec {
    let ranges = |n: usize| -> Vec<std::ops::Range<u32>> {
        (0..n)
            .step_by(every)
            .map(|s| s as u32..(s + every).min(n) as u32)
            .collect()
    };
    let segments: Vec<_> = program
        .blocks
        .iter()
        .map(|b| ranges(b.nodes.len()))
        .collect();
    let node = |s: usize| NodeProfile {
        name: format!("s{s}"),
        by: By::Members,
        latency_us: vec![(1, 20.0), (64, 146.0)],
        num_nodes: None,
        merge_bytes_per_member: 0.0,
        weight_bytes: None,
        load_us: None,
        host_access_us: None,
    };
    let profile = ModelProfile {
        name: program.name.clone(),
        max_batch,
        sla_ms: None,
        output_len_p90: None,
        blocks: program
            .blocks
            .iter()
            .zip(&segments)
            .map(|(b, s)| BlockProfile {
                name: b.name.clone(),
                repeat: match b.repeat {
                    lazybatch_graph::Repeat::Once => RepeatRule::Once,
                    lazybatch_graph::Repeat::PerInputStep { .. } => RepeatRule::PerInputStep,
                    lazybatch_graph::Repeat::UntilStop { .. } => RepeatRule::UntilStop,
                },
                stride: None,
                max_steps: None,
                nodes: (0..s.len()).map(node).collect(),
            })
            .collect(),
    };
    ModelSpec {
        name: program.name.clone(),
        blocks: program
            .blocks
            .iter()
            .zip(segments)
            .map(|(b, segments)| BlockSpec {
                name: b.name.clone(),
                repeat: b.repeat,
                segments,
            })
            .collect(),
        max_batch,
        max_in_flight: BATCHES_IN_FLIGHT * max_batch,
        table: Arc::new(LatencyTable::new(
            &profile,
            &segments_of(&profile, 1),
            0.0,
            0.0,
        )),
        output_len_p90: 10,
        resident: true,
    }
}
