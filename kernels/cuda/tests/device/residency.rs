//! Where weights are, from before a model is loaded until it has gone.

use std::sync::Arc;

use lazybatch_cuda::CudaOptions;
use lazybatch_graph::{DType, NodeId, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest, Residency};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::process::{Libraries, outcome};
use crate::{device, options};

const MODEL: ModelId = ModelId(0);

/// Ids of the table.
const IDS: usize = 280_000;

/// A table of more bytes than are copied at once, and a layer.
fn program() -> Program {
    let mut b = ProgramBuilder::new("layers").with_seed(1);
    let x = b.sequence_ids("x", 4, IDS);
    let y = b.output("y", DType::F32, &[30]);
    let table = b.seeded("table", &[IDS, 4], 1);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.embedding("embedding", v, table);
    let v = b.mean_rows("mean", v);
    let v = b.dense("layer", v, 30, None);
    b.emit("y", y, v);
    b.finish().unwrap()
}

/// What a model that was just loaded answers.
fn answer(device: &mut dyn Device, program: &Program) -> Vec<f32> {
    let end = program.blocks[0].nodes.len() as u32;
    let plan = device.prepare(MODEL, 0, 0, end, u32::MAX).unwrap();
    let ids = [0, IDS as i32 / 2, IDS as i32 - 1];
    device
        .open(&OpenRequest {
            slot: Slot(0),
            request: RequestId(0),
            model: MODEL,
            inputs: &[Tensor::from_i32(&[3], &ids)],
            input_len: 3,
            samples: 1,
            output_len: None,
        })
        .unwrap();
    let member = Member {
        request: RequestId(0),
        slot: Slot(0),
        step: 0,
        input_len: 3,
        samples: 1,
        idle: false,
    };
    let launch = Launch {
        ticket: Ticket(0),
        lane: LaneId(0),
        model: MODEL,
        block: 0,
        segment: 0,
        first_node: 0,
        end_node: end,
        sub_batch: SubBatchId(0),
        members: vec![member],
        padded_len: None,
        merged_members: 0,
    };
    device.enqueue(Time::ZERO, plan, &launch).unwrap();
    let done = loop {
        if let Some(done) = device.poll(Time::ZERO) {
            break done;
        }
    };
    done.whole().unwrap();
    device.close(Slot(0))[0].as_ref().unwrap().to_f32()
}

/// Where the weights of all nodes are.
fn of(device: &dyn Device, program: &Program) -> Vec<Residency> {
    let nodes = (0..program.nodes.len()).map(NodeId::new);
    nodes.map(|n| device.residency(MODEL, n)).collect()
}

#[test]
fn weights_come_beside_what_runs() {
    let name = "residency::weights_come_beside_what_runs";
    let body = || {
        let program = Arc::new(program());
        let want = answer(&mut loaded_cpu(&program), &program);
        for weights in [WeightType::F32, WeightType::Int8] {
            let mut device = device(CudaOptions {
                weights,
                ..options()
            });
            let all = |residency| vec![residency; program.nodes.len()];
            assert_eq!(of(&device, &program), all(Residency::Host));
            assert_eq!(device.staging_bytes(), 0);
            device.load(MODEL, Arc::clone(&program)).unwrap();
            let staging = device.staging_bytes();
            assert!((1..=8 << 20).contains(&staging), "{staging} bytes");
            // A launch behind them has them, whether anyone has asked or not.
            if weights == WeightType::F32 {
                let first = of(&device, &program);
                assert!(!first.contains(&Residency::Host), "{first:?}");
                println!("first {first:?}");
                let mut turns = 0u64;
                while of(&device, &program) != all(Residency::Resident) {
                    turns += 1;
                    assert!(turns < 1_000_000_000, "weights are on their way for ever");
                }
            }
            let got = answer(&mut device, &program);
            assert_eq!(device.staging_bytes(), 0);
            let tolerance = if weights == WeightType::F32 {
                1e-5
            } else {
                5e-2
            };
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{g}, {w}");
            }
            assert_eq!(of(&device, &program), all(Residency::Resident));
            device.unload(MODEL);
            assert_eq!(of(&device, &program), all(Residency::Host));
        }
    };
    // The copies seem to take a while.
    let vars = [(
        "LAZYBATCH_EMULATOR_FAIL",
        "cuEventQuery:1-2:CUDA_ERROR_NOT_READY",
    )];
    for seed in 0..3 {
        let ran = outcome(name, seed, Libraries::All, &vars, body);
        // What the rule does is told, and nothing else.
        let told =
            |line: &&str| line.contains("CUDA emulator") && !line.contains("answers NotReady");
        let is_clean = ran.passed && !ran.stderr.lines().any(|line| told(&line));
        assert!(is_clean, "seed {seed}:\n{}{}", ran.stdout, ran.stderr);
        let first = ran.stdout.lines().find(|l| l.contains("first "));
        let first = first.unwrap_or_default();
        assert!(first.contains("InFlight"), "seed {seed}: {first}");
    }
}

fn loaded_cpu(program: &Arc<Program>) -> CpuDevice {
    let mut device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    device.load(MODEL, Arc::clone(program)).unwrap();
    device
}
