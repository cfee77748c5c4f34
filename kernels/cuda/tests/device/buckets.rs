//! Launches of all sizes: those that rows are rounded up to, and those beside them, by all own
//! products. Each row has the bits that it has alone.

use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions};
use lazybatch_graph::{Act, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::{Device, OpenRequest};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::process::runs_clean;
use crate::{device, options};

const MODEL: ModelId = ModelId(0);
/// Features of a row.
const WIDTH: usize = 6;
/// Ends of buckets from 96 on, of launches and of products, and what lies beside them.
const SIZES: [u32; 17] = [
    7, 8, 9, 33, 65, 95, 96, 97, 112, 127, 128, 129, 191, 192, 193, 256, 257,
];

fn program() -> Program {
    let mut b = ProgramBuilder::new("layers").with_seed(3);
    let x = b.input("x", DType::F32, &[WIDTH]);
    let y = b.output("y", DType::F32, &[10]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("wide", v, 24, Some(Act::Relu));
    let v = b.dense("narrow", v, 10, None);
    b.emit("y", y, v);
    b.finish().unwrap()
}

/// Elements of sample `row` of every request.
fn row(row: u32) -> impl Iterator<Item = f32> {
    (0..WIDTH as u32).map(move |i| ((row * 31 + i * 7) % 23) as f32 / 8.0 - 1.0)
}

/// Results of one request with samples `rows`, one by one.
fn run(device: &mut CudaDevice, ticket: u64, rows: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    let nodes = program().blocks[0].nodes.len() as u32;
    let samples = rows.len() as u32;
    let x: Vec<f32> = rows.flat_map(row).collect();
    device
        .open(&OpenRequest {
            slot: Slot(0),
            request: RequestId(ticket),
            model: MODEL,
            inputs: &[Tensor::from_f32(&[samples as usize, WIDTH], &x)],
            input_len: 0,
            samples,
            output_len: None,
        })
        .unwrap();
    let plan = device.prepare(MODEL, 0, 0, nodes, u32::MAX).unwrap();
    let member = Member {
        request: RequestId(ticket),
        slot: Slot(0),
        step: 0,
        input_len: 0,
        samples,
        idle: false,
    };
    let launch = Launch {
        ticket: Ticket(ticket),
        lane: LaneId(0),
        model: MODEL,
        block: 0,
        segment: 0,
        first_node: 0,
        end_node: nodes,
        sub_batch: SubBatchId(ticket),
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
    let y = device.close(Slot(0))[0].clone().unwrap();
    assert_eq!(y.dims, [samples as usize, 10]);
    let bytes = y.data.as_slice().len() / samples as usize;
    let rows = y.data.as_slice().chunks_exact(bytes);
    rows.map(<[u8]>::to_vec).collect()
}

#[test]
fn rows_have_the_same_bits_in_launches_of_all_sizes() {
    let name = "buckets::rows_have_the_same_bits_in_launches_of_all_sizes";
    runs_clean(name, || {
        for (weights, tensor_cores) in [
            (WeightType::F32, false),
            (WeightType::Int8, false),
            (WeightType::Bf16, false),
            (WeightType::Bf16, true),
            (WeightType::F16, true),
        ] {
            let mut device = device(CudaOptions {
                weights,
                tensor_cores,
                ..options()
            });
            device.load(MODEL, Arc::new(program())).unwrap();
            let mut ticket = 0;
            let mut of = |rows| {
                ticket += 1;
                run(&mut device, ticket, rows)
            };
            let most = SIZES[SIZES.len() - 1];
            let whole = of(0..most);
            for at in [0, 8, 95, 128, most - 1] {
                let alone = of(at..at + 1);
                assert_eq!(alone[0], whole[at as usize], "{weights}: row {at} alone");
            }
            for size in SIZES {
                // The first rows and the last: each lies elsewhere in its tile.
                for first in [0, most - size] {
                    let got = of(first..first + size);
                    let want = &whole[first as usize..(first + size) as usize];
                    assert!(got == want, "{weights}: {size} rows from {first}");
                }
            }
        }
    });
}
