//! A node that you bring: a kernel in plain Rust, its registration, and a program that uses it.
//!
//! `cargo run -p lazybatch-kernels --example custom_node`

use std::sync::Arc;

use lazybatch_graph::{CustomOp, DType, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::{
    CpuDevice, CpuOptions, CustomCall, CustomKernel, CustomNode, Device, KernelRegistry,
};
use lazybatch_sla::ModelId;

/// `y = x clamped to +-limit`, with a limit per feature.
struct Clip;

impl CustomKernel for Clip {
    fn validate(&self, node: &CustomNode<'_>) -> Result<(), String> {
        match node.operands[..] {
            [x, limit] if x.row_elems() == limit.row_elems() => Ok(()),
            _ => Err("two operands, x [r, d] and limit [d]".into()),
        }
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        let (x, limit) = (call.operands[0], call.operands[1].data);
        for row in 0..call.num_rows() {
            let to = &mut call.output[row * limit.len()..][..limit.len()];
            for ((y, x), l) in to.iter_mut().zip(x.row(row)).zip(limit) {
                *y = x.clamp(-l, *l);
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = ProgramBuilder::new("clipped");
    let x = b.sequence("x", DType::F32, &[3], 8);
    let y = b.output_sequence("y", DType::F32, &[3]);
    b.begin_block("all", Repeat::Once);
    let rows = b.read_input("x", x);
    let limit = b.data("limit", Tensor::from_f32(&[3], &[0.5, 1.0, 2.0]));
    let clip = CustomOp {
        name: "clip".into(),
        output_dims: vec![3],
        flops_per_row: 6,
        batchable: true,
    };
    let clipped = b.custom("clip", clip, &[rows, limit]);
    b.emit("emit", y, clipped);
    let program = Arc::new(b.finish()?);

    let mut registry = KernelRegistry::new();
    registry.register("clip", Arc::new(Clip));
    let mut device = CpuDevice::new(CpuOptions {
        registry,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), Arc::clone(&program))?;

    let request = |rows: usize, value: f32| Request {
        inputs: vec![Tensor::from_f32(&[rows, 3], &vec![value; rows * 3])],
        len: rows,
        samples: 1,
    };
    let requests = [request(1, 0.75), request(2, -3.0)];
    for outputs in run(&mut device, &program, &requests, Schedule::Together)? {
        println!("{:?}", outputs[0].as_ref().map(Tensor::to_f32));
    }
    Ok(())
}
