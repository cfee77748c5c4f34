//! Programs so small that what is left is the cost of running them.

use std::sync::Arc;

use lazybatch_graph::{Act, DType, Error, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest, Plan};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

/// Features of every value.
const FEATURES: usize = 8;

/// `num` elementwise nodes on 8 floats, one after another, between a read and an emit.
///
/// # Errors
/// A bug of the builder.
pub fn chain(num: usize) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("tiny");
    let input = b.input("x", DType::F32, &[FEATURES]);
    let output = b.output("y", DType::F32, &[FEATURES]);
    b.begin_block("net", Repeat::Once);
    let mut x = b.read_input("read", input);
    for i in 0..num {
        x = b.unary(&format!("relu{i}"), Act::Relu, x);
    }
    b.emit("emit", output, x);
    b.finish()
}

/// An input of [`chain`].
pub fn input() -> Vec<Tensor> {
    vec![Tensor::from_f32(&[1, FEATURES], &[0.5; FEATURES])]
}

/// A device with one calling thread and no workers.
pub fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    })
}

/// One request that walks through [`chain`] node by node, again and again.
pub struct NodeWalk {
    device: CpuDevice,
    plans: Vec<Plan>,
    launch: Launch,
    inputs: Vec<Tensor>,
}

impl NodeWalk {
    /// A device that holds a chain of `num` elementwise nodes.
    ///
    /// # Errors
    /// A bug of the builder or the device.
    pub fn new(num: usize) -> anyhow::Result<Self> {
        let program: SharedProgram = Arc::new(chain(num)?);
        let num_nodes = program.blocks[0].nodes.len() as u32;
        let mut device = device();
        device.load(ModelId(0), program)?;
        let plans = (0..num_nodes)
            .map(|n| device.prepare(ModelId(0), 0, n, n + 1, u32::MAX))
            .collect::<Result<_, _>>()?;
        let launch = Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: ModelId(0),
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 1,
            sub_batch: SubBatchId(0),
            members: vec![Member {
                request: RequestId(0),
                slot: Slot(0),
                step: 0,
                input_len: 0,
                samples: 1,
                idle: false,
            }],
            padded_len: None,
            merged_members: 0,
        };
        Ok(Self {
            device,
            plans,
            launch,
            inputs: input(),
        })
    }

    /// Launches of one walk.
    pub fn num_launches(&self) -> usize {
        self.plans.len()
    }

    /// Stages the request.
    ///
    /// # Errors
    /// A bug of the device.
    pub fn open(&mut self) -> anyhow::Result<()> {
        let request = OpenRequest {
            slot: Slot(0),
            request: RequestId(0),
            model: ModelId(0),
            inputs: &self.inputs,
            input_len: 0,
            samples: 1,
            output_len: None,
        };
        Ok(self.device.open(&request)?)
    }

    /// Launches every node and polls its completion.
    ///
    /// # Panics
    /// If a launch fails or does not complete in place.
    pub fn walk(&mut self) {
        for (n, &plan) in self.plans.iter().enumerate() {
            self.launch.segment = n as u32;
            self.launch.first_node = n as u32;
            self.launch.end_node = n as u32 + 1;
            self.launch.ticket = Ticket(n as u64);
            self.device
                .enqueue(Time::ZERO, plan, &self.launch)
                .expect("the plan is for this launch");
            let done = self.device.poll(Time::ZERO).expect("it ran in place");
            done.whole().expect("the node runs");
        }
    }

    /// Ends the request.
    pub fn close(&mut self) {
        self.device.close(Slot(0));
    }
}
