//! What launches take on the device, as its events say.

use std::sync::{Arc, Mutex};

use lazybatch_cuda::{CudaDevice, CudaOptions, LaunchTime};
use lazybatch_graph::{CustomOp, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::{
    CustomCall, CustomKernel, CustomNode, Device, KernelRegistry, OpenRequest,
};
use lazybatch_sla::{
    LaneId, Launch, Member, ModelId, Nanos, RequestId, Slot, SubBatchId, Ticket, Time,
};

use lazybatch_engine::core::Event;
use lazybatch_engine::driver::Observer;
use lazybatch_engine::{Engine, ModelOptions, Options};

use crate::process::runs_clean;
use crate::{device, options};

const MODEL: ModelId = ModelId(0);

/// Layers of which the first is a hundred times as wide as the second.
fn program() -> Program {
    let mut b = ProgramBuilder::new("layers").with_seed(1);
    let x = b.input("x", DType::F32, &[8]);
    let y = b.output("y", DType::F32, &[8]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let v = b.dense("wide", x, 800, None);
    let v = b.dense("narrow", v, 8, None);
    b.emit("y", y, v);
    b.finish().unwrap()
}

fn enqueue(device: &mut CudaDevice, ticket: u64, nodes: std::ops::Range<u32>) {
    let plan = device
        .prepare(MODEL, 0, nodes.start, nodes.end, u32::MAX)
        .unwrap();
    let member = Member {
        request: RequestId(0),
        slot: Slot(0),
        step: 0,
        input_len: 0,
        samples: 1,
        idle: false,
    };
    let launch = Launch {
        ticket: Ticket(ticket),
        lane: LaneId(0),
        model: MODEL,
        block: 0,
        segment: 0,
        first_node: nodes.start,
        end_node: nodes.end,
        sub_batch: SubBatchId(0),
        members: vec![member],
        padded_len: None,
        merged_members: 0,
    };
    device.enqueue(Time::ZERO, plan, &launch).unwrap();
}

/// Waits for the oldest launch, and returns what it took.
fn finish(device: &mut CudaDevice) -> Nanos {
    loop {
        if let Some(done) = device.poll(Time::ZERO) {
            done.whole().unwrap();
            return done.busy.unwrap();
        }
    }
}

/// Runs the two halves of the program again and again, with both in flight.
fn run(times: bool) -> (Vec<Nanos>, Vec<LaunchTime>) {
    let mut device = device(CudaOptions { times, ..options() });
    device.load(MODEL, Arc::new(program())).unwrap();
    device
        .open(&OpenRequest {
            slot: Slot(0),
            request: RequestId(0),
            model: MODEL,
            inputs: &[Tensor::from_f32(&[1, 8], &[1.0; 8])],
            input_len: 0,
            samples: 1,
            output_len: None,
        })
        .unwrap();
    let (mut busy, mut all) = (Vec::new(), Vec::new());
    for pass in 0..4 {
        enqueue(&mut device, 2 * pass, 0..2);
        enqueue(&mut device, 2 * pass + 1, 2..4);
        for _ in 0..2 {
            busy.push(finish(&mut device));
        }
        all.extend(device.take_times());
    }
    assert!(device.take_times().is_empty());
    device.close(Slot(0));
    (busy, all)
}

#[test]
fn every_launch_has_its_time() {
    runs_clean("times::every_launch_has_its_time", || {
        let (busy, times) = run(false);
        assert!(busy.len() == 8 && times.is_empty());
        assert!(busy.iter().all(|t| *t > Nanos::ZERO), "{busy:?}");
        let (busy, times) = run(true);
        let of_times = times.iter().map(|t| Nanos((t.busy_us * 1e3) as u64));
        assert_eq!(busy, of_times.collect::<Vec<_>>());
        assert_eq!(times.len(), 8);
        assert_eq!(times[0].idle_us, 0.0);
        for time in &times {
            assert!(time.busy_us > 0.0 && time.idle_us >= 0.0, "{time:?}");
        }
    });
}

/// Gives what it is given.
struct Same;

impl CustomKernel for Same {
    fn validate(&self, _node: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        for (out, x) in call.output.iter_mut().zip(call.operands[0].data) {
            *out = *x;
        }
        Ok(())
    }
}

/// A layer, with a node that runs on the host in front of it.
fn on_host() -> Program {
    let mut b = ProgramBuilder::new("host").with_seed(1);
    let x = b.input("x", DType::F32, &[8]);
    let y = b.output("y", DType::F32, &[8]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let op = CustomOp {
        name: "same".into(),
        output_dims: vec![8],
        flops_per_row: 1,
        batchable: true,
    };
    let v = b.custom("same", op, &[x]);
    let v = b.dense("layer", v, 8, None);
    b.emit("y", y, v);
    b.finish().unwrap()
}

#[test]
fn issues_that_wait_for_the_device_say_so() {
    runs_clean("times::issues_that_wait_for_the_device_say_so", || {
        for (program, waits) in [(program(), false), (on_host(), true)] {
            let mut registry = KernelRegistry::new();
            registry.register("same", Arc::new(Same));
            let mut device = device(CudaOptions {
                registry,
                ..options()
            });
            let end = program.blocks[0].nodes.len() as u32;
            device.load(MODEL, Arc::new(program)).unwrap();
            device
                .open(&OpenRequest {
                    slot: Slot(0),
                    request: RequestId(0),
                    model: MODEL,
                    inputs: &[Tensor::from_f32(&[1, 8], &[1.0; 8])],
                    input_len: 0,
                    samples: 1,
                    output_len: None,
                })
                .unwrap();
            enqueue(&mut device, 0, 0..end);
            let done = loop {
                if let Some(done) = device.poll(Time::ZERO) {
                    break done;
                }
            };
            done.whole().unwrap();
            assert!(done.busy.is_some_and(|t| t > Nanos::ZERO));
            assert_eq!(done.has_waited, waits);
            device.close(Slot(0));
        }
    });
}

/// Launches that were over, and those whose time the device had measured.
#[derive(Default)]
struct Counted {
    over: usize,
    measured: usize,
}

impl Observer for Counted {
    fn on_event(&mut self, _now: Time, event: &Event) {
        if let Event::Done { took, .. } = event {
            self.over += 1;
            self.measured += usize::from(took.is_some_and(|t| t > Nanos::ZERO));
        }
    }
}

#[test]
fn the_scheduler_is_told_what_launches_took() {
    runs_clean("times::the_scheduler_is_told_what_launches_took", || {
        let counted = Arc::new(Mutex::new(Counted::default()));
        let engine = Engine::builder()
            .device(device(options()))
            .model("m", program(), ModelOptions::default())
            .observer(counted.clone(), false)
            .build()
            .unwrap();
        let inputs = || vec![Tensor::from_f32(&[1, 8], &[1.0; 8])];
        let submit = |_| {
            engine
                .try_submit("m", inputs(), Options::default())
                .unwrap()
        };
        let handles: Vec<_> = (0..4).map(submit).collect();
        handles.into_iter().for_each(|h| drop(h.wait().unwrap()));
        engine.drain_blocking().unwrap();
        let counted = counted.lock().unwrap();
        assert!(counted.over >= 4, "{} launches", counted.over);
        assert_eq!(counted.measured, counted.over);
    });
}
