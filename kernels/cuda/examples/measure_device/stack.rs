//! A loop of linear layers on the device, launched segment by segment without a scheduler.

use std::ops::Range;
use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions, LaunchTime};
use lazybatch_graph::{Act, DType, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::{Device, OpenRequest};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};
use serde_json::Value;

use crate::Failure;

const MODEL: ModelId = ModelId(0);
/// The block that repeats.
pub const LOOP: u32 = 1;

/// Sizes of a stack.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Features.
    pub d: usize,
    /// Linear layers of a pass, a multiple of the segments.
    pub layers: usize,
    /// Segments of a pass.
    pub segments: usize,
    /// Most passes of a request.
    pub passes: u32,
}

/// Requests that move together.
pub struct SubBatch {
    members: Vec<Member>,
    /// Which pass.
    step: u32,
    /// Which segment is next.
    segment: usize,
}

impl SubBatch {
    /// Two sub-batches at the same segment, as one.
    pub fn merged(mut self, other: Self) -> Self {
        assert_eq!((self.step, self.segment), (other.step, other.segment));
        self.members.extend(other.members);
        self
    }

    /// Whether the next segment is the first of a pass.
    pub fn is_at_head(&self) -> bool {
        self.segment == 0
    }
}

/// The device with the stack loaded.
pub struct Stack {
    device: CudaDevice,
    program: SharedProgram,
    sizes: Sizes,
    next_ticket: u64,
    next_slot: u32,
}

/// A state that passes through layers, again and again; the index of its largest element is put
/// out, and never stops it.
pub fn program(sizes: Sizes) -> Result<Program, lazybatch_graph::Error> {
    let Sizes { d, passes, .. } = sizes;
    let mut b = ProgramBuilder::new("stack");
    let x = b.input("x", DType::F32, &[d]);
    let y = b.output_sequence("y", DType::I32, &[]);
    let state = b.vector_state("state", DType::F32, &[d], 0.0);
    b.begin_block("start", Repeat::Once);
    let x = b.read_input("x", x);
    b.vec_write("give", state, x);
    b.begin_block("loop", Repeat::UntilStop { max: passes });
    let mut x = b.vec_read("take", state);
    for layer in 0..sizes.layers {
        x = b.dense(&format!("layer{layer}"), x, d, Some(Act::Tanh));
    }
    let best = b.arg_max("best", x);
    b.emit("y", y, best);
    b.stop("stop", best, -1);
    b.vec_write("keep", state, x);
    b.finish()
}

/// Nodes of each segment of the loop: so many layers, and what is around them.
pub fn segments(program: &Program, sizes: Sizes) -> Vec<Range<u32>> {
    let Sizes {
        layers, segments, ..
    } = sizes;
    let all = program.blocks[LOOP as usize].nodes.len() as u32;
    // The first node takes the state.
    let start = |segment: usize| match segment {
        0 => 0,
        _ => 1 + (segment * layers / segments) as u32,
    };
    let end = |segment| match segment + 1 {
        next if next == segments => all,
        next => start(next),
    };
    (0..segments).map(|s| start(s)..end(s)).collect()
}

impl Stack {
    /// On the first GPU, with so many launches in flight at most.
    pub fn new(sizes: Sizes, deterministic: bool, depth: usize) -> Result<Self, Failure> {
        let mut device = CudaDevice::new(CudaOptions {
            weights: WeightType::Bf16,
            deterministic,
            depth,
            times: true,
            ..CudaOptions::default()
        })?;
        let program = Arc::new(program(sizes)?);
        device.load(MODEL, Arc::clone(&program))?;
        Ok(Self {
            device,
            program,
            sizes,
            next_ticket: 0,
            next_slot: 0,
        })
    }

    /// How launches ran so far: numbers of those by a graph, of those kernel by kernel, and of graphs,
    /// and why one was not captured.
    pub fn graphs(&self) -> [(&'static str, Value); 4] {
        let counts = self.device.graph_counts();
        [
            ("replayed", counts.replayed.into()),
            ("eager", counts.eager.into()),
            ("captured", counts.captured.into()),
            ("not_captured", self.device.graph_failure().into()),
        ]
    }

    /// Opens `num` requests and takes them to the head of the loop.
    pub fn open(&mut self, num: usize) -> Result<SubBatch, Failure> {
        let mut members = Vec::new();
        for _ in 0..num {
            let slot = self.next_slot;
            self.next_slot += 1;
            let x = vec![0.01 * (slot % 100) as f32; self.sizes.d];
            self.device.open(&OpenRequest {
                slot: Slot(slot),
                request: RequestId(u64::from(slot)),
                model: MODEL,
                inputs: &[Tensor::from_f32(&[1, self.sizes.d], &x)],
                input_len: 0,
                samples: 1,
                output_len: None,
            })?;
            members.push(Member {
                request: RequestId(u64::from(slot)),
                slot: Slot(slot),
                step: 0,
                input_len: 0,
                samples: 1,
                idle: false,
            });
        }
        let nodes = self.program.blocks[0].nodes.len() as u32;
        self.enqueue(&members, 0, 0..nodes)?;
        self.finish()?;
        Ok(SubBatch {
            members,
            step: 0,
            segment: 0,
        })
    }

    /// Ends requests; none may be in a launch.
    pub fn close(&mut self, batch: SubBatch) {
        for member in batch.members {
            self.device.close(member.slot);
        }
    }

    /// Issues the next segment of a sub-batch.
    pub fn launch(&mut self, batch: &mut SubBatch) -> Result<(), Failure> {
        for member in &mut batch.members {
            member.step = batch.step;
        }
        let nodes = segments(&self.program, self.sizes)[batch.segment].clone();
        self.enqueue(&batch.members, LOOP, nodes)?;
        batch.segment += 1;
        if batch.segment == self.sizes.segments {
            (batch.segment, batch.step) = (0, batch.step + 1);
        }
        Ok(())
    }

    fn enqueue(
        &mut self,
        members: &[Member],
        block: u32,
        nodes: Range<u32>,
    ) -> Result<(), Failure> {
        let (first, end) = (nodes.start, nodes.end);
        let plan = self.device.prepare(MODEL, block, first, end, u32::MAX)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let launch = Launch {
            ticket,
            lane: LaneId(0),
            model: MODEL,
            block,
            segment: 0,
            first_node: first,
            end_node: end,
            // Each has its own: its values stay where they are while others run.
            sub_batch: SubBatchId(members[0].slot.0.into()),
            members: members.to_vec(),
            padded_len: None,
            merged_members: 0,
        };
        Ok(self.device.enqueue(Time::ZERO, plan, &launch)?)
    }

    /// Whether the oldest launch in flight is over; it is then no longer in flight.
    pub fn poll(&mut self) -> Result<bool, Failure> {
        match self.device.poll(Time::MAX) {
            Some(done) => Ok(done.whole().map(|()| true)?),
            None => Ok(false),
        }
    }

    /// Waits for the oldest launch in flight.
    pub fn finish(&mut self) -> Result<(), Failure> {
        while !self.poll()? {}
        Ok(())
    }

    /// Times of launches that are over, since this was last asked.
    pub fn take_times(&mut self) -> Vec<LaunchTime> {
        self.device.take_times()
    }
}
