//! Requests of equal length that walk through a program together, as one batch that nobody joins
//! or leaves.
//!
//! Each block is one segment. It is what a batch of a runtime without a scheduler is, so the two
//! can be compared.

use anyhow::{Context, bail, ensure};
use lazybatch_graph::{Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest, Plan, validate_inputs};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

/// The batch and the device that it runs on.
pub struct Lockstep {
    device: CpuDevice,
    program: SharedProgram,
    requests: Vec<Vec<Tensor>>,
    /// By block.
    plans: Vec<Plan>,
    launch: Launch,
}

impl Lockstep {
    /// Loads `program` on a device of `threads` threads, for `requests` given by their inputs.
    ///
    /// # Errors
    /// Inputs that do not fit, requests of different lengths, or a block that runs until it stops.
    pub fn new(
        program: SharedProgram,
        requests: Vec<Vec<Tensor>>,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let mut members = Vec::with_capacity(requests.len());
        for (i, inputs) in requests.iter().enumerate() {
            let shape = validate_inputs(&program, inputs)?;
            members.push(Member {
                request: RequestId(i as u64),
                slot: Slot(i as u32),
                step: 0,
                input_len: shape.input_len as u32,
                samples: shape.samples as u32,
                idle: false,
            });
        }
        let lens = members.iter().map(|m| m.input_len);
        let (shortest, longest) = (lens.clone().min(), lens.max());
        ensure!(
            shortest == longest && longest.is_some(),
            "{}: expected requests of one length, got {shortest:?} to {longest:?}",
            program.name
        );
        let mut device = CpuDevice::new(CpuOptions {
            threads,
            max_open: requests.len(),
            ..CpuOptions::default()
        });
        device.load(ModelId(0), SharedProgram::clone(&program))?;
        let mut plans = Vec::new();
        for (i, block) in program.blocks.iter().enumerate() {
            if let Repeat::UntilStop { .. } = block.repeat {
                bail!(
                    "block {}: expected a fixed number of passes, got one that runs until it stops",
                    block.name
                );
            }
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
            members,
            padded_len: None,
            merged_members: 0,
        };
        Ok(Self {
            device,
            program,
            requests,
            plans,
            launch,
        })
    }

    /// Opens all requests.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn open(&mut self) -> anyhow::Result<()> {
        for (inputs, m) in self.requests.iter().zip(&self.launch.members) {
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
        let passes = match self.program.blocks[block].repeat {
            Repeat::PerInputStep { stride } => {
                self.launch.members[0].input_len.div_ceil(stride.max(1))
            }
            Repeat::Once | Repeat::UntilStop { .. } => 1,
        };
        self.launch.block = block as u32;
        self.launch.segment = block as u32;
        self.launch.end_node = self.program.blocks[block].nodes.len() as u32;
        for step in 0..passes {
            self.launch.ticket.0 += 1;
            for m in &mut self.launch.members {
                m.step = step;
            }
            self.device
                .enqueue(Time::ZERO, self.plans[block], &self.launch)?;
            let done = self.device.poll(Time::ZERO);
            done.context("a launch that did not run in place")?.result?;
        }
        Ok(())
    }

    /// Closes all requests and returns their outputs, by request and output.
    pub fn close(&mut self) -> Vec<Vec<Option<Tensor>>> {
        let members = self.launch.members.iter();
        members.map(|m| self.device.close(m.slot)).collect()
    }

    /// Opens all requests, runs every block and closes them.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn run(&mut self) -> anyhow::Result<Vec<Vec<Option<Tensor>>>> {
        self.open()?;
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

    fn request(rows: &[f32]) -> Vec<Tensor> {
        vec![Tensor::from_f32(&[rows.len() / 2, 2], rows)]
    }

    #[test]
    fn every_request_gets_its_own_answer_again_and_again() {
        let requests = vec![
            request(&[1.0, -1.0, 2.0, 3.0, 0.5, 0.0]),
            request(&[-4.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ];
        let mut batch = Lockstep::new(sums(), requests, 2).unwrap();
        for _ in 0..2 {
            let outputs = batch.run().unwrap();
            let get = |r: usize, o: usize| outputs[r][o].as_ref().unwrap().to_f32();
            assert_eq!(get(0, 0), [1.0, 0.0, 2.0, 3.0, 0.5, 0.0]);
            assert_eq!(get(0, 1), [1.0, -1.0, 3.0, 2.0, 3.5, 2.0]);
            assert_eq!(get(1, 1), [-4.0, 1.0, -3.0, 2.0, -2.0, 3.0]);
        }
    }

    #[test]
    fn requests_of_different_lengths_are_refused() {
        let requests = vec![request(&[1.0, 1.0]), request(&[1.0; 4])];
        let error = Lockstep::new(sums(), requests, 1).err().unwrap();
        let message = error.to_string();
        assert!(
            message.starts_with("sums: expected requests of one length"),
            "{message}"
        );
        assert!(Lockstep::new(sums(), Vec::new(), 1).is_err());
    }

    #[test]
    fn blocks_that_run_until_they_stop_are_refused() {
        let mut b = ProgramBuilder::new("until");
        let y = b.output_sequence("y", DType::F32, &[1]);
        let x = b.input("x", DType::F32, &[1]);
        let state = b.vector_state("s", DType::F32, &[1], 0.0);
        b.begin_block("fill", Repeat::Once);
        let value = b.read_input("x", x);
        b.vec_write("write", state, value);
        b.begin_block("loop", Repeat::UntilStop { max: 3 });
        let value = b.vec_read("read", state);
        b.emit("emit", y, value);
        let id = b.arg_max("id", value);
        b.stop("stop", id, 1);
        let program = Arc::new(b.finish().unwrap());
        let inputs = vec![vec![Tensor::from_f32(&[1, 1], &[1.0])]];
        let error = Lockstep::new(program, inputs, 1).err().unwrap();
        assert!(error.to_string().starts_with("block loop:"), "{error}");
    }
}
