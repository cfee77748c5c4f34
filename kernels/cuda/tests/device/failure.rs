//! What is missing, has no room, fails or is lost is said, and fails no more than it must.

use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions};
use lazybatch_graph::{CustomOp, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::{
    Completion, CustomCall, CustomKernel, CustomNode, Device, Error, KernelRegistry, OpenRequest,
};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::process::{Libraries, Outcome, outcome, runs_clean, seeds};
use crate::{device, options};

const MODEL: ModelId = ModelId(0);

/// Fails where it sees a seven.
struct NoSevens;

impl CustomKernel for NoSevens {
    fn validate(&self, _node: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        if call.operands[0].data.contains(&7.0) {
            return Err("a seven".into());
        }
        call.output.copy_from_slice(call.operands[0].data);
        Ok(())
    }
}

/// `y = dense(x)`, behind a node of the user.
fn program(width: usize) -> Program {
    let mut b = ProgramBuilder::new("small").with_seed(1);
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[width]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let op = CustomOp {
        name: "no-sevens".into(),
        output_dims: vec![4],
        flops_per_row: 1,
        batchable: true,
    };
    let v = b.custom("user", op, &[v]);
    let v = b.dense("dense", v, width, None);
    b.emit("y", y, v);
    b.finish().unwrap()
}

fn with_kernel(mut options: CudaOptions) -> CudaOptions {
    let mut registry = KernelRegistry::new();
    registry.register("no-sevens", Arc::new(NoSevens));
    options.registry = registry;
    options
}

fn open(device: &mut CudaDevice, slot: u32, value: f32) -> Result<(), Error> {
    device.open(&OpenRequest {
        slot: Slot(slot),
        request: RequestId(u64::from(slot)),
        model: MODEL,
        inputs: &[Tensor::from_f32(&[1, 4], &[value; 4])],
        input_len: 0,
        samples: 1,
        output_len: None,
    })
}

/// Runs the whole block for the requests in these slots.
fn launch(device: &mut CudaDevice, ticket: u64, slots: &[u32], nodes: u32) -> Completion {
    let plan = device.prepare(MODEL, 0, 0, nodes, u32::MAX).unwrap();
    let members = slots.iter().map(|&s| Member {
        request: RequestId(u64::from(s)),
        slot: Slot(s),
        step: 0,
        input_len: 0,
        samples: 1,
        idle: false,
    });
    let launch = Launch {
        ticket: Ticket(ticket),
        lane: LaneId(0),
        model: MODEL,
        block: 0,
        segment: 0,
        first_node: 0,
        end_node: nodes,
        sub_batch: SubBatchId(ticket),
        members: members.collect(),
        padded_len: None,
        merged_members: 0,
    };
    device.enqueue(Time::ZERO, plan, &launch).unwrap();
    loop {
        if let Some(done) = device.poll(Time::ZERO) {
            assert_eq!(done.ticket, Ticket(ticket));
            return done;
        }
    }
}

#[test]
fn a_library_that_is_missing_is_named() {
    let name = "failure::a_library_that_is_missing_is_named";
    for (libraries, word) in [
        (Libraries::NoDriver, "libcuda.so"),
        (Libraries::NoCompiler, "libnvrtc.so"),
    ] {
        let Outcome { stdout, .. } = outcome(name, 0, libraries, &[], || {
            match CudaDevice::new(options()) {
                Err(error) => println!("refused: {error}"),
                Ok(_) => println!("there is one"),
            }
        });
        // A machine that has the library elsewhere cannot tell.
        let is_refused = stdout.contains("refused: ") && stdout.contains(word);
        assert!(is_refused || stdout.contains("there is one"), "{stdout}");
    }
}

#[test]
fn what_has_no_room_is_refused() {
    runs_clean("failure::what_has_no_room_is_refused", || {
        let huge = CudaOptions {
            arena_bytes: 1 << 50,
            ..options()
        };
        let error = CudaDevice::new(huge).unwrap_err().to_string();
        assert!(error.contains("out of device memory: the arena"), "{error}");

        let mut device = device(with_kernel(CudaOptions {
            host_bytes: 1024,
            ..options()
        }));
        device.load(MODEL, Arc::new(program(8))).unwrap();
        let most = device.max_open(MODEL).unwrap();
        for slot in 0..most {
            open(&mut device, slot, 1.0).unwrap();
        }
        let mut opened = (most..100).map(|slot| (slot, open(&mut device, slot, 1.0)));
        let refused = opened.find_map(|(slot, r)| Some((slot, r.err()?)));
        let (slot, error) = refused.unwrap();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        // Room that is given back is there again.
        device.close(Slot(0));
        open(&mut device, slot, 1.0).unwrap();
    });
}

#[test]
fn a_member_that_fails_takes_nobody_along() {
    runs_clean("failure::a_member_that_fails_takes_nobody_along", || {
        let mut device = device(with_kernel(options()));
        let program = Arc::new(program(8));
        let nodes = program.blocks[0].nodes.len() as u32;
        device.load(MODEL, program).unwrap();
        for (slot, value) in [(0, 1.0), (1, 7.0), (2, 2.0)] {
            open(&mut device, slot, value).unwrap();
        }
        let done = launch(&mut device, 0, &[0, 1], nodes);
        assert_eq!(done.result, Ok(()));
        let [(id, why)] = &done.faults[..] else {
            panic!("{:?}", done.faults)
        };
        assert_eq!(*id, RequestId(1));
        let why = why.to_string();
        assert!(why.contains("node user: a seven"), "{why}");
        let done = launch(&mut device, 1, &[2], nodes);
        assert_eq!(done.whole(), Ok(()));
        assert!(device.close(Slot(1))[0].is_none());
        for slot in [0, 2] {
            let y = device.close(Slot(slot))[0].clone().unwrap();
            assert_eq!(y.dims, [1, 8]);
        }
        assert_eq!(device.num_frames(), 0);
    });
}

#[test]
fn a_lost_device_says_so_to_all() {
    let name = "failure::a_lost_device_says_so_to_all";
    // No kernel gets to its end.
    let vars = [("LAZYBATCH_EMULATOR_STEPS", "3")];
    let body = || {
        let mut device = device(with_kernel(options()));
        let program = Arc::new(program(8));
        let nodes = program.blocks[0].nodes.len() as u32;
        device.load(MODEL, program).unwrap();
        open(&mut device, 0, 1.0).unwrap();
        open(&mut device, 1, 1.0).unwrap();
        let why = launch(&mut device, 0, &[0], nodes).result.unwrap_err();
        assert!(
            why.to_string().contains("CUDA_ERROR_LAUNCH_TIMEOUT"),
            "{why}"
        );
        // What is open fails, what comes is refused.
        let error = open(&mut device, 2, 1.0).unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(device.load(ModelId(1), Arc::new(self::program(4))).is_err());
        let plan = device.prepare(MODEL, 0, 0, nodes, u32::MAX).unwrap();
        let launch = Launch {
            ticket: Ticket(1),
            lane: LaneId(0),
            model: MODEL,
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: nodes,
            sub_batch: SubBatchId(1),
            members: Vec::new(),
            padded_len: None,
            merged_members: 0,
        };
        let error = device.enqueue(Time::ZERO, plan, &launch).unwrap_err();
        assert!(error.to_string().contains("is lost"), "{error}");
        assert!(device.close(Slot(0))[0].is_none());
    };
    for seed in seeds(0, 2) {
        let Outcome { passed, stderr, .. } = outcome(name, seed, Libraries::All, &vars, body);
        assert!(passed, "seed {seed}: {stderr}");
    }
}
