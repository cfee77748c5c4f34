//! Prints what a launch costs on the cpu device: tiny nodes, and a decoder step.
//!
//! `cargo run --release -p lazybatch-kernels --example device_speed`

use std::sync::Arc;

use lazybatch_graph::{Act, DType, Program, ProgramBuilder, Repeat, SharedProgram};
use lazybatch_kernels::profiler::{MeasureOptions, measure};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::ModelId;

const TINY_NODES: u32 = 20;

fn tiny() -> Program {
    let mut b = ProgramBuilder::new("tiny");
    let x = b.sequence("x", DType::F32, &[8], 64);
    let y = b.output_sequence("y", DType::F32, &[8]);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let mut v = b.read_input("x", x);
    for i in 2..TINY_NODES {
        v = b.scale(&format!("scale{i}"), v, 1.01);
    }
    b.emit("emit", y, v);
    b.finish().expect("a valid program")
}

/// One decoder layer over `memory` of an encoder, fed from the input.
fn decoder(d: usize) -> Program {
    let mut b = ProgramBuilder::new(format!("decoder-{d}"));
    let x = b.sequence("x", DType::F32, &[d], 32);
    let y = b.output_sequence("y", DType::F32, &[d]);
    b.begin_block("encoder", Repeat::Once);
    let rows = b.read_input("rows", x);
    let memory = b.cross_memory("memory", rows, d, 32);
    b.begin_block("decoder", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input("x", x);
    let n = b.norm("norm1", x, 1e-5);
    let x = b.cached_self_attention("self", n, 8, 32, Some(x));
    let n = b.norm("norm2", x, 1e-5);
    let x = b.cross_attention("cross", n, 8, memory, Some(x));
    let n = b.norm("norm3", x, 1e-5);
    let x = b.ffn("ffn", n, 4 * d, Act::Relu, Some(x));
    b.emit("emit", y, x);
    b.finish().expect("a valid program")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for threads in [1, 2] {
        let mut device = CpuDevice::new(CpuOptions {
            threads,
            ..CpuOptions::default()
        });
        println!("{}", device.info().name);
        let programs = [tiny(), decoder(192), decoder(512)];
        for (i, program) in programs.into_iter().enumerate() {
            let program: SharedProgram = Arc::new(program);
            let model = ModelId(i as u32);
            device.load(model, Arc::clone(&program))?;
            let last = program.blocks.len() - 1;
            let nodes = program.blocks[last].nodes.len() as u32;
            let mut options = MeasureOptions {
                batches: vec![1, 4, 16],
                lengths: vec![32],
                segments: vec![Vec::new(); last + 1],
                ..MeasureOptions::default()
            };
            let single = measure(&mut device, model, &program, &options)?;
            if threads == 1 {
                let mut slowest: Vec<_> = single.blocks[last].segments.iter().collect();
                slowest.sort_by_key(|s| std::cmp::Reverse(s.points.last().map(|p| p.latency_ns)));
                for segment in slowest.into_iter().take(4) {
                    let points = segment.points.iter().map(|p| (p.x, p.latency_ns));
                    println!("    {}: {:?}", segment.name, points.collect::<Vec<_>>());
                }
            }
            options.segments[last] = std::iter::once(0..nodes).collect();
            let whole = measure(&mut device, model, &program, &options)?;
            for (at, point) in whole.blocks[last].segments[0].points.iter().enumerate() {
                let singles = single.blocks[last].segments.iter();
                let sum: u64 = singles.map(|s| s.points[at].latency_ns).sum();
                println!(
                    "  {}: batch {}: pass {:.1} us ({:.2} us a node), nodes launched singly {:.1} us",
                    program.name,
                    point.x,
                    point.latency_ns as f64 / 1e3,
                    point.latency_ns as f64 / 1e3 / f64::from(nodes),
                    sum as f64 / 1e3,
                );
            }
        }
    }
    Ok(())
}
