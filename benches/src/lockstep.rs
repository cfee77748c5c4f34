//! Requests that walk through a program together, as one batch that nobody joins.
//!
//! Each block is one segment. Who has made all passes of a loop leaves it and waits at its end for
//! the others. It is what a batch of a runtime without a scheduler is, at its best: nothing is padded.

use std::ops::Range;

use anyhow::Context;
use lazybatch_graph::{Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest, Plan, validate_inputs};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

/// The requests and the device that they run on.
pub struct Lockstep {
    device: CpuDevice,
    program: SharedProgram,
    requests: Vec<Vec<Tensor>>,
    /// Of each request, at step 0.
    members: Vec<Member>,
    /// Those of them that are open.
    batch: Range<usize>,
    /// By block.
    plans: Vec<Plan>,
    launch: Launch,
}

impl Lockstep {
    /// Loads `program` on a device of `options`, for `requests` given by their inputs; at most
    /// `options.max_open` of them run at once.
    ///
    /// # Errors
    /// Inputs that do not fit, or a program that the device refuses.
    pub fn new(
        program: SharedProgram,
        requests: Vec<Vec<Tensor>>,
        options: CpuOptions,
    ) -> anyhow::Result<Self> {
        let mut members = Vec::with_capacity(requests.len());
        for (i, inputs) in requests.iter().enumerate() {
            let shape = validate_inputs(&program, inputs)?;
            members.push(Member {
                request: RequestId(i as u64),
                slot: Slot(0),
                step: 0,
                input_len: shape.input_len as u32,
                samples: shape.samples as u32,
                idle: false,
            });
        }
        let mut device = CpuDevice::new(CpuOptions {
            max_open: requests.len().min(options.max_open),
            ..options
        });
        device.load(ModelId(0), SharedProgram::clone(&program))?;
        let mut plans = Vec::new();
        for (i, block) in program.blocks.iter().enumerate() {
            let end = block.nodes.len() as u32;
            plans.push(device.prepare(ModelId(0), i as u32, 0, end, u32::MAX)?);
        }
        let launch = Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: ModelId(0),
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 0,
            sub_batch: SubBatchId(0),
            members: Vec::new(),
            padded_len: None,
            merged_members: 0,
        };
        Ok(Self {
            device,
            program,
            requests,
            members,
            batch: 0..0,
            plans,
            launch,
        })
    }

    /// Opens all requests.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn open(&mut self) -> anyhow::Result<()> {
        self.open_some(0..self.requests.len())
    }

    fn open_some(&mut self, batch: Range<usize>) -> anyhow::Result<()> {
        self.batch = batch;
        let members = self.members[self.batch.clone()].iter_mut();
        let requests = &self.requests[self.batch.clone()];
        for (slot, (inputs, m)) in requests.iter().zip(members).enumerate() {
            m.slot = Slot(slot as u32);
            self.device.open(&OpenRequest {
                slot: m.slot,
                request: m.request,
                model: ModelId(0),
                inputs,
                input_len: m.input_len,
                samples: m.samples,
                output_len: None,
            })?;
        }
        Ok(())
    }

    /// Runs all passes of a block; blocks go in order.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn run_block(&mut self, block: usize) -> anyhow::Result<()> {
        let repeat = self.program.blocks[block].repeat;
        let passes = |m: &Member| match repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => m.input_len.div_ceil(stride.max(1)),
            Repeat::UntilStop { max } => max,
        };
        let launch = &mut self.launch;
        launch.block = block as u32;
        launch.segment = block as u32;
        launch.end_node = self.program.blocks[block].nodes.len() as u32;
        launch.members.clear();
        launch
            .members
            .extend_from_slice(&self.members[self.batch.clone()]);
        for step in 0.. {
            launch.members.retain(|m| step < passes(m));
            if launch.members.is_empty() {
                break;
            }
            launch.ticket.0 += 1;
            for m in &mut launch.members {
                m.step = step;
            }
            self.device.enqueue(Time::ZERO, self.plans[block], launch)?;
            let done = self.device.poll(Time::ZERO);
            let done = done.context("a launch that did not run in place")?;
            done.result?;
            launch
                .members
                .retain(|m| !done.stopped.contains(&m.request));
        }
        Ok(())
    }

    /// Closes what is open and returns the outputs, by request and output.
    pub fn close(&mut self) -> Vec<Vec<Option<Tensor>>> {
        let members = self.members[self.batch.clone()].iter();
        members.map(|m| self.device.close(m.slot)).collect()
    }

    /// Opens all requests, runs every block and closes them.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn run(&mut self) -> anyhow::Result<Vec<Vec<Option<Tensor>>>> {
        self.run_some(0..self.requests.len())
    }

    /// As [`Lockstep::run`], with some of the requests.
    ///
    /// # Errors
    /// What the device refuses or fails.
    ///
    /// # Panics
    /// If there are no such requests.
    pub fn run_some(&mut self, batch: Range<usize>) -> anyhow::Result<Vec<Vec<Option<Tensor>>>> {
        self.open_some(batch)?;
        for block in 0..self.plans.len() {
            self.run_block(block)?;
        }
        Ok(self.close())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lazybatch_graph::{Act, DType, ProgramBuilder};

    use super::*;

    /// A rectified copy in one block, and the sum of all rows before each row in another.
    fn sums() -> SharedProgram {
        let mut b = ProgramBuilder::new("sums");
        let x = b.sequence("x", DType::F32, &[2], 8);
        let copy = b.output_sequence("copy", DType::F32, &[2]);
        let sums = b.output_sequence("sums", DType::F32, &[2]);
        let sum = b.vector_state("sum", DType::F32, &[2], 0.0);
        b.begin_block("once", Repeat::Once);
        let rows = b.read_input("rows", x);
        let rows = b.unary("relu", Act::Relu, rows);
        b.emit("emit.copy", copy, rows);
        b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
        let row = b.read_input("row", x);
        let before = b.vec_read("before", sum);
        let after = b.add("add", before, row);
        b.vec_write("keep", sum, after);
        b.emit("emit.sum", sums, after);
        Arc::new(b.finish().unwrap())
    }

    fn threads(threads: usize) -> CpuOptions {
        CpuOptions {
            threads,
            ..CpuOptions::default()
        }
    }

    fn request(rows: &[f32]) -> Vec<Tensor> {
        vec![Tensor::from_f32(&[rows.len() / 2, 2], rows)]
    }

    #[test]
    fn every_request_gets_its_own_answer_again_and_again() {
        let requests = vec![
            request(&[1.0, -1.0, 2.0, 3.0, 0.5, 0.0]),
            request(&[-4.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ];
        let mut batch = Lockstep::new(sums(), requests, threads(2)).unwrap();
        for _ in 0..2 {
            let outputs = batch.run().unwrap();
            let get = |r: usize, o: usize| outputs[r][o].as_ref().unwrap().to_f32();
            assert_eq!(get(0, 0), [1.0, 0.0, 2.0, 3.0, 0.5, 0.0]);
            assert_eq!(get(0, 1), [1.0, -1.0, 3.0, 2.0, 3.5, 2.0]);
            assert_eq!(get(1, 1), [-4.0, 1.0, -3.0, 2.0, -2.0, 3.0]);
        }
    }

    #[test]
    fn requests_leave_a_loop_when_their_passes_are_done() {
        let requests = vec![request(&[1.0, 1.0]), request(&[1.0, 2.0, 1.0, 2.0])];
        let mut batch = Lockstep::new(sums(), requests, threads(1)).unwrap();
        let outputs = batch.run().unwrap();
        let get = |r: usize| outputs[r][1].as_ref().unwrap().to_f32();
        assert_eq!(get(0), [1.0, 1.0]);
        assert_eq!(get(1), [1.0, 2.0, 2.0, 4.0]);
        let some = batch.run_some(1..2).unwrap();
        assert_eq!(some[0][1].as_ref().unwrap().to_f32(), get(1));

        let mut b = ProgramBuilder::new("until");
        let y = b.output_sequence("y", DType::F32, &[2]);
        let x = b.input("x", DType::F32, &[2]);
        let state = b.vector_state("s", DType::F32, &[2], 0.0);
        b.begin_block("fill", Repeat::Once);
        let value = b.read_input("x", x);
        b.vec_write("write", state, value);
        b.begin_block("loop", Repeat::UntilStop { max: 3 });
        let value = b.vec_read("read", state);
        b.emit("emit", y, value);
        let id = b.arg_max("id", value);
        b.stop("stop", id, 1);
        let program = Arc::new(b.finish().unwrap());
        // The larger one is the second here, and the first there.
        let requests = vec![request(&[0.0, 1.0]), request(&[1.0, 0.0])];
        let mut batch = Lockstep::new(program, requests, threads(1)).unwrap();
        let outputs = batch.run().unwrap();
        let rows = |r: usize| outputs[r][0].as_ref().unwrap().dims[0];
        assert_eq!((rows(0), rows(1)), (1, 3));
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused() {
        let requests = vec![vec![Tensor::from_f32(&[1, 3], &[0.0; 3])]];
        assert!(Lockstep::new(sums(), requests, threads(1)).is_err());
    }
}
