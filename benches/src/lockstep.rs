//! Requests that walk through a program together, as one batch that nobody joins.
//!
//! Each block is one segment. Who has made all passes of a loop leaves it and waits at its end for
//! the others. It is what a batch of a runtime without a scheduler is, at its best: nothing is padded.

use std::ops::Range;

use anyhow::Context;
use lazybatch_graph::{Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest, Plan, validate_inputs};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::clock;

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
    /// By block, the nodes one by one, once they were asked for.
    nodes: Vec<Vec<(Plan, Range<u32>)>>,
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
            nodes: Vec::new(),
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
        let whole = (
            self.plans[block],
            0..self.program.blocks[block].nodes.len() as u32,
        );
        self.run_segments(block, &[whole], |_, _| ())
    }

    /// Opens all requests, runs every node in a launch of its own and closes them; `timed(block, node,
    /// ns)` is called behind each launch.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn run_nodes(&mut self, mut timed: impl FnMut(usize, usize, f64)) -> anyhow::Result<()> {
        if self.nodes.is_empty() {
            for (i, block) in self.program.blocks.iter().enumerate() {
                let nodes = (0..block.nodes.len() as u32).map(|node| {
                    let nodes = node..node + 1;
                    let plan =
                        self.device
                            .prepare(ModelId(0), i as u32, node, node + 1, u32::MAX)?;
                    anyhow::Ok((plan, nodes))
                });
                self.nodes.push(nodes.collect::<Result<_, _>>()?);
            }
        }
        self.open()?;
        for block in 0..self.plans.len() {
            let segments = std::mem::take(&mut self.nodes[block]);
            let done = self.run_segments(block, &segments, |node, ns| timed(block, node, ns));
            self.nodes[block] = segments;
            done?;
        }
        self.close();
        Ok(())
    }

    /// Runs all passes of a block, each as these launches, which cover it; `timed(i, ns)` is called
    /// behind launch `i` of a pass.
    fn run_segments(
        &mut self,
        block: usize,
        segments: &[(Plan, Range<u32>)],
        mut timed: impl FnMut(usize, f64),
    ) -> anyhow::Result<()> {
        let repeat = self.program.blocks[block].repeat;
        let passes = |m: &Member| match repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => m.input_len.div_ceil(stride.max(1)),
            Repeat::UntilStop { max } => max,
        };
        let launch = &mut self.launch;
        launch.block = block as u32;
        launch.members.clear();
        launch
            .members
            .extend_from_slice(&self.members[self.batch.clone()]);
        for step in 0.. {
            launch.members.retain(|m| step < passes(m));
            if launch.members.is_empty() {
                break;
            }
            for m in &mut launch.members {
                m.step = step;
            }
            let mut stopped = Vec::new();
            for (i, (plan, nodes)) in segments.iter().enumerate() {
                launch.ticket.0 += 1;
                launch.segment = i as u32;
                (launch.first_node, launch.end_node) = (nodes.start, nodes.end);
                let (ns, done) = clock::time(|| {
                    self.device.enqueue(Time::ZERO, *plan, launch)?;
                    let done = self.device.poll(Time::ZERO);
                    done.context("a launch that did not run in place")
                });
                let done = done?;
                done.whole()?;
                stopped.extend(done.stopped);
                timed(i, ns);
            }
            launch.members.retain(|m| !stopped.contains(&m.request));
        }
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &SharedProgram {
        &self.program
    }

    /// How many requests there are.
    pub fn requests(&self) -> usize {
        self.members.len()
    }

    /// Rows that a launch of all requests has, and the rows that attend to each other, on average.
    pub fn rows(&self) -> [u64; 2] {
        let lens = || self.members.iter().map(|m| u64::from(m.input_len.max(1)));
        let (rows, pairs) = (
            lens().sum::<u64>(),
            lens().map(|len| len * len).sum::<u64>(),
        );
        [rows, pairs / rows.max(1)]
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
    fn nodes_run_one_by_one_in_every_pass() {
        let requests = vec![request(&[1.0, 1.0]), request(&[1.0, 2.0, 1.0, 2.0])];
        let mut batch = Lockstep::new(sums(), requests, threads(1)).unwrap();
        for _ in 0..2 {
            let mut launches = vec![[0; 5]; 2];
            let seen = |block: usize, node: usize, ns: f64| {
                assert!(ns > 0.0);
                launches[block][node] += 1;
            };
            batch.run_nodes(seen).unwrap();
            // The longer request makes two passes of the loop.
            assert_eq!(launches, [[1, 1, 1, 0, 0], [2, 2, 2, 2, 2]]);
        }
        assert_eq!(batch.rows(), [3, 1]);
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
